//! Shadow mode responds as if all mechanisms were off, and reports for each call the first action of enforce mode.
//!
//! A stream of calls runs three times, each time with a new engine: off, shadow, and enforce. The responses of shadow
//! mode are those of off, byte for byte, for any stream. Its reports are compared with the actions of enforce mode on
//! streams in which one decision does not change the next: duplicates, the loop guard, the first opening of a breaker.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]
#![expect(clippy::wildcard_enum_match_arm, reason = "what is compared are a few of many notices")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use steadfast_core::Timestamp;
use steadfast_core::call::{CallNotice, ShadowDecision};
use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};
use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::guard::GuardLayer;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{CallPolicy, EnforcementMode, MechanismModes, PolicyProfile, ToolClass};
use steadfast_executor::{Attempt, Engine, EngineListener, NoticeContext, ToolResult};
use steadfast_json::RawJson;
use steadfast_store::TimeSource;
use tokio::time::Instant;

/// One call of a stream.
#[derive(Clone, Debug)]
struct StreamCall {
    /// Milliseconds since the previous call arrived.
    after: u64,
    arguments: u32,
    key: Option<u32>,
    turn: Option<u32>,
    best_effort: bool,
    /// Milliseconds from its arrival to its deadline.
    deadline: Option<u64>,
    /// Milliseconds that the tool takes.
    takes: u64,
    fares: ToolBehavior,
}

/// Behavior of the tool for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolBehavior {
    Well,
    /// It refuses the call, permanently.
    Refused,
    /// The arguments are wrong.
    Malformed,
    /// It is down, and it is unknown how far the call got.
    Down,
    /// It is busy, and did not run.
    Busy,
    /// It is busy for an hour.
    BusyForLong,
    /// The connection broke while the call was in flight.
    Lost,
}

impl ToolBehavior {
    fn answer(self, arguments: u32) -> ToolResult {
        let fault = |source| AttemptFault::new(source, format!("no luck with {arguments}"));
        let busy = |wait| AttemptFault {
            retry_after: Some(RetryAfter::Delay(wait)),
            ..fault(FaultSource::Http { status: 429 })
        };
        Err(match self {
            Self::Well => {
                let content = RawJson::from_trusted(format!("{{\"did\":{arguments}}}"));
                return Ok(ToolOutput { content, metadata: None });
            }
            Self::Refused => fault(FaultSource::Http { status: 404 }),
            Self::Malformed => fault(FaultSource::JsonRpc { code: -32602 }),
            Self::Down => fault(FaultSource::Http { status: 503 }),
            Self::Busy => busy(Duration::from_millis(1)),
            Self::BusyForLong => busy(Duration::from_secs(3600)),
            Self::Lost => {
                fault(FaultSource::Transport { error: TransportError::ConnectionReset, written: true })
            }
        }
        .into())
    }
}

/// Log of a stream: for each call its response, its attempts, and its notices.
#[derive(Debug, Default)]
struct StreamLog {
    answers: Vec<String>,
    attempts: Vec<(String, u32, Option<Timestamp>)>,
    notices: BTreeMap<String, Vec<CallNotice>>,
}

impl StreamLog {
    /// Returns the reports of shadow mode for each call.
    fn reported(&self) -> Vec<Vec<ShadowDecision>> {
        let report_of = |notice: &CallNotice| match notice {
            CallNotice::Shadowed(shadowed) => Some(*shadowed),
            _ => None,
        };
        self.each(|notices| notices.iter().filter_map(report_of).collect())
    }

    /// Returns the first action on each call that off mode would not have taken.
    fn done(&self) -> Vec<Vec<ShadowDecision>> {
        self.each(|notices| first_done(notices).into_iter().collect())
    }

    fn each<T>(&self, of: impl Fn(&[CallNotice]) -> T) -> Vec<T> {
        (0..self.answers.len()).map(|number| of(&self.notices[&format!("r{number}")])).collect()
    }
}

fn first_done(notices: &[CallNotice]) -> Option<ShadowDecision> {
    let mut ran = false;
    notices.iter().find_map(|notice| match notice {
        CallNotice::AttemptStarted { .. } => {
            ran = true;
            None
        }
        CallNotice::Following | CallNotice::Replayed { .. } => Some(ShadowDecision::Duplicate),
        // The outcome is that of another call's run.
        CallNotice::OutcomeUnknown { .. } if !ran => Some(ShadowDecision::Duplicate),
        CallNotice::OutcomeUnknown { .. } => Some(ShadowDecision::Failed(Code::OutcomeUnknown)),
        CallNotice::CallBlocked { code, .. } => Some(ShadowDecision::Refused(*code)),
        CallNotice::ApprovalRequested => Some(ShadowDecision::ApprovalRequested),
        CallNotice::RetryScheduled { .. } => Some(ShadowDecision::Retried),
        CallNotice::AttemptCut { .. } => Some(ShadowDecision::Cut),
        CallNotice::GuardTripped { layer } => Some(ShadowDecision::GuardRemark(*layer)),
        _ => None,
    })
}

struct NoticeListener(Arc<Mutex<StreamLog>>);

impl EngineListener for NoticeListener {
    fn notice(&self, about: &NoticeContext<'_>, notice: &CallNotice) {
        let id = about.request.id.as_str().to_owned();
        self.0.lock().notices.entry(id).or_default().push(notice.clone());
    }
}

/// A clock that starts at the same moment in every run and follows the timers.
#[derive(Debug)]
struct ShadowTestClock(Instant);

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

impl TimeSource for ShadowTestClock {
    fn now(&self) -> Timestamp {
        START + self.0.elapsed()
    }
}

fn envelope(number: usize, given: &StreamCall, at: Timestamp) -> CallEnvelope {
    let mut call = serde_json::json!({
        "contractVersion": "1.1", "requestId": format!("r{number}"), "toolName": "pay", "toolNamespace": "bank",
        "target": { "sessionKey": "s", "actorId": "ann" },
        "payload": { "version": "1.0", "params": { "amount": given.arguments } },
    });
    if let Some(key) = given.key {
        call["payload"]["idempotencyKey"] = format!("key-{key}").into();
        call["transport"] =
            serde_json::json!({ "dedupeMode": if given.best_effort { "bestEffort" } else { "enforced" } });
    }
    if let Some(turn) = given.turn {
        call["target"]["turnId"] = format!("turn-{turn}").into();
    }
    if let Some(span) = given.deadline {
        call["control"] =
            serde_json::json!({ "deadlineAtMs": (at + Duration::from_millis(span)).as_millis() });
    }
    CallEnvelope::parse(call.to_string().as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn run(stream: &[StreamCall], policy: CallPolicy) -> StreamLog {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let log = Arc::new(Mutex::new(StreamLog::default()));
        let clock = Arc::new(ShadowTestClock(Instant::now()));
        let engine = Engine::builder()
            .clock(clock.clone())
            .policies(Arc::new(policy))
            .listener(Arc::new(NoticeListener(log.clone())))
            .start()
            .await;
        let mut calls = Vec::new();
        for (number, given) in stream.iter().enumerate() {
            tokio::time::sleep(Duration::from_millis(given.after)).await;
            let call = envelope(number, given, clock.now());
            let (given, log) = (given.clone(), log.clone());
            let tool = move |attempt: Attempt| {
                let entry =
                    (attempt.envelope.request_id.as_str().to_owned(), attempt.number, attempt.deadline);
                log.lock().attempts.push(entry);
                let given = given.clone();
                async move {
                    tokio::time::sleep(Duration::from_millis(given.takes)).await;
                    given.fares.answer(given.arguments)
                }
            };
            calls.push(tokio::spawn(engine.call(call, tool)));
        }
        for call in calls {
            let called = call.await.unwrap();
            let answer = format!("{} {:?}", serde_json::to_string(&called.result).unwrap(), called.remarks);
            log.lock().answers.push(answer);
        }
        drop(engine);
        std::mem::take(&mut *log.lock())
    })
}

/// Runs a stream with these modes off, in shadow and enforced. Returns the reports of shadow and the actions of
/// enforce.
fn compare(
    stream: &[StreamCall],
    policy: &CallPolicy,
    modes: impl Fn(EnforcementMode) -> MechanismModes,
) -> (Vec<Vec<ShadowDecision>>, Vec<Vec<ShadowDecision>>) {
    let with = |mode| run(stream, CallPolicy { modes: modes(mode), ..policy.clone() });
    let shadow = with(EnforcementMode::Shadow);
    assert_as_off(&with(EnforcementMode::Off), &shadow);
    let enforced = with(EnforcementMode::Enforce);
    assert_eq!(enforced.reported(), vec![vec![]; stream.len()], "who acts has nothing to wish for");
    (shadow.reported(), enforced.done())
}

fn assert_as_off(off: &StreamLog, shadow: &StreamLog) {
    assert_eq!(shadow.answers, off.answers);
    assert_eq!(shadow.attempts, off.attempts, "the tool sees no difference either");
    assert_eq!(off.reported(), vec![vec![]; off.answers.len()]);
    assert!(shadow.reported().iter().all(|reports| reports.len() <= 1), "{:?}", shadow.reported());
}

fn plain(class: ToolClass) -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(class);
    policy.retry.attempts = 1.try_into().unwrap();
    policy
}

/// Returns a call without an idempotency key, with no delay.
fn call(arguments: u32, fares: ToolBehavior) -> StreamCall {
    StreamCall {
        after: 1,
        arguments,
        key: None,
        turn: None,
        best_effort: false,
        deadline: None,
        takes: 0,
        fares,
    }
}

fn only_dedupe(mode: EnforcementMode) -> MechanismModes {
    MechanismModes { dedupe: mode, ..MechanismModes::all(EnforcementMode::Off) }
}

fn without_judges(mode: EnforcementMode) -> MechanismModes {
    MechanismModes { guard: EnforcementMode::Off, trust: EnforcementMode::Off, ..MechanismModes::all(mode) }
}

/// Duplicates whose tool behaves the same for each use of a key.
fn duplicates() -> impl Strategy<Value = (ToolClass, Vec<StreamCall>)> {
    let fares = [ToolBehavior::Well, ToolBehavior::Refused, ToolBehavior::Lost, ToolBehavior::Busy];
    (class(), vec(0..200_u64, fares.len())).prop_flat_map(move |(class, takes)| {
        let one = (
            0..4_u32,
            prop_oneof![8 => 1..150_u64, 1 => Just(400_000_u64)],
            prop::bool::weighted(0.1),
            prop::bool::weighted(0.2),
        );
        let given = move |(key, after, other, best_effort): (u32, u64, bool, bool)| {
            let fares = fares[key as usize];
            // A follower of a run without a stored result runs itself, later than shadow mode assumes: no call follows
            // one.
            let leaves_nothing = match fares {
                ToolBehavior::Busy => true,
                ToolBehavior::Lost => class != ToolClass::Mutating,
                _ => false,
            };
            StreamCall {
                after,
                arguments: if other { key + 100 } else { key },
                key: Some(key),
                best_effort,
                takes: if leaves_nothing { 0 } else { takes[key as usize] },
                ..call(key, fares)
            }
        };
        (Just(class), vec(one.prop_map(given), 1..24))
    })
}

/// Calls of a model that enters a loop and stays in it. A held tool never works again: enforce mode would not find out
/// that it works by now, or let other working tools run first. The holds do not end, and no turn comes back.
fn loops() -> impl Strategy<Value = Vec<StreamCall>> {
    let turn = || prop::option::weighted(0.7, 0..2_u32);
    let after = prop_oneof![6 => 1..1000_u64, 1 => Just(61_000_u64), 1 => Just(125_000_u64)];
    let works = vec((0..5_u32, after, turn()), 0..8);
    let fails =
        (select(vec![ToolBehavior::Refused, ToolBehavior::Malformed]), vec((1..1000_u64, turn()), 1..30));
    (works, fails).prop_map(|(works, (fares, mut fails))| {
        fails.sort_by_key(|(_, turn)| *turn);
        let works = works.into_iter().map(|(number, after, turn)| StreamCall {
            after,
            turn,
            ..call(number, ToolBehavior::Well)
        });
        works
            .chain(fails.into_iter().map(|(after, turn)| StreamCall { after, turn, ..call(9, fares) }))
            .collect()
    })
}

/// Calls of a tool that may start to fail, within less time than its breaker stays open.
fn falling_ill() -> impl Strategy<Value = Vec<StreamCall>> {
    let fares = select(vec![
        ToolBehavior::Down,
        ToolBehavior::Down,
        ToolBehavior::Down,
        ToolBehavior::Well,
        ToolBehavior::Refused,
    ]);
    let one = (fares, 1..600_u64, 0..900_u64);
    vec(one, 1..40).prop_map(|stream| {
        let numbered = (0..).zip(stream);
        numbered
            .map(|(number, (fares, after, takes))| StreamCall { after, takes, ..call(number, fares) })
            .collect()
    })
}

/// Any stream of calls.
fn wild() -> impl Strategy<Value = Vec<StreamCall>> {
    let fares = select(vec![
        ToolBehavior::Well,
        ToolBehavior::Refused,
        ToolBehavior::Malformed,
        ToolBehavior::Down,
        ToolBehavior::Busy,
        ToolBehavior::BusyForLong,
        ToolBehavior::Lost,
    ]);
    let takes = prop_oneof![6 => 0..500_u64, 1 => Just(45_000_u64)];
    let one = (
        prop_oneof![6 => 0..500_u64, 1 => Just(40_000_u64)],
        0..4_u32,
        prop::option::weighted(0.6, 0..3_u32),
        prop::option::weighted(0.3, 0..2_u32),
        prop::bool::weighted(0.2),
        prop::option::weighted(0.2, select(vec![0_u64, 100, 20_000])),
        takes,
        fares,
    );
    let given = |(after, arguments, key, turn, best_effort, deadline, takes, fares)| StreamCall {
        after,
        arguments,
        key,
        turn,
        best_effort,
        deadline,
        takes,
        fares,
    };
    vec(one.prop_map(given), 1..32)
}

fn class() -> impl Strategy<Value = ToolClass> {
    select(vec![ToolClass::ReadOnly, ToolClass::Idempotent, ToolClass::Mutating, ToolClass::Unknown])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.min(200), ..ProptestConfig::default() })]

    #[test]
    fn shadow_changes_no_answer(stream in wild(), class in class()) {
        let mut policy = PolicyProfile::Standard.policy(class);
        policy.limits.concurrency = 2.try_into().ok();
        let with = |mode| run(&stream, CallPolicy { modes: MechanismModes::all(mode), ..policy.clone() });
        assert_as_off(&with(EnforcementMode::Off), &with(EnforcementMode::Shadow));
    }

    #[test]
    fn shadow_reports_the_duplicates_that_enforce_replays((class, stream) in duplicates()) {
        let (reported, done) = compare(&stream, &plain(class), only_dedupe);
        prop_assert_eq!(reported, done);
    }

    #[test]
    fn shadow_reports_the_remarks_and_refusals_of_an_enforcing_guard(stream in loops()) {
        let (reported, done) = compare(&stream, &plain(ToolClass::Idempotent), MechanismModes::all);
        prop_assert_eq!(reported, done);
    }

    #[test]
    fn shadow_reports_the_refusals_of_a_breaker_that_first_opens(stream in falling_ill()) {
        let (reported, done) = compare(&stream, &plain(ToolClass::Idempotent), without_judges);
        prop_assert_eq!(reported, done);
    }
}

#[test]
fn each_kind_of_decision_occurs_in_these_streams() {
    let keyed = |key, arguments, fares| StreamCall { key: Some(key), ..call(arguments, fares) };
    let mut busy = keyed(1, 1, ToolBehavior::Well);
    busy.takes = 100;
    let stream = [
        busy.clone(),
        busy.clone(),
        StreamCall { best_effort: true, ..busy },
        keyed(1, 2, ToolBehavior::Well),
        keyed(3, 3, ToolBehavior::Lost),
    ];
    let duplicate = vec![ShadowDecision::Duplicate];
    let refused = |code| vec![ShadowDecision::Refused(code)];
    let expected = [
        vec![],
        duplicate,
        refused(Code::InFlight),
        refused(Code::IdempotencyConflict),
        vec![ShadowDecision::Failed(Code::OutcomeUnknown)],
    ];
    let (reported, done) = compare(&stream, &plain(ToolClass::Mutating), only_dedupe);
    assert_eq!((&reported[..], &done[..]), (&expected[..], &expected[..]));

    let stream = vec![call(1, ToolBehavior::Refused); 4];
    let expected = [
        vec![],
        vec![ShadowDecision::GuardRemark(GuardLayer::Loop)],
        refused(Code::LoopDetected),
        refused(Code::LoopDetected),
    ];
    let (reported, done) = compare(&stream, &plain(ToolClass::Idempotent), MechanismModes::all);
    assert_eq!((&reported[..], &done[..]), (&expected[..], &expected[..]));

    let stream: Vec<StreamCall> = (0..7).map(|number| call(number, ToolBehavior::Down)).collect();
    let open = refused(Code::CircuitOpen);
    let expected = [vec![], vec![], vec![], vec![], vec![], open.clone(), open];
    let (reported, done) = compare(&stream, &plain(ToolClass::Idempotent), without_judges);
    assert_eq!((&reported[..], &done[..]), (&expected[..], &expected[..]));
}

/// Reasons against a run do not matter for a call that would not have run: enforce mode looks for a stored result
/// first.
#[test]
fn a_duplicate_is_reported_before_an_open_breaker() {
    let keyed = |key, fares| StreamCall { key: Some(key), ..call(key, fares) };
    let mut stream = vec![keyed(99, ToolBehavior::Well)];
    stream.extend((0..5).map(|number| keyed(number, ToolBehavior::Down)));
    stream.extend([keyed(99, ToolBehavior::Well), keyed(7, ToolBehavior::Well)]);
    let (reported, done) = compare(&stream, &plain(ToolClass::Idempotent), without_judges);
    assert_eq!(
        reported[6..],
        [vec![ShadowDecision::Duplicate], vec![ShadowDecision::Refused(Code::CircuitOpen)]]
    );
    assert_eq!(reported, done);
}

/// In enforce mode the rest of the call would differ. Shadow mode reports the first difference.
#[test]
fn limits_of_no_mechanism_are_reported_and_not_enforced() {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Idempotent);
    policy.limits.concurrency = 1.try_into().ok();
    let slow = |takes, deadline| StreamCall { takes, deadline, ..call(1, ToolBehavior::Well) };
    for (stream, expected) in [
        (vec![slow(1, Some(0))], ShadowDecision::Refused(Code::DeadlineExceeded)),
        (vec![slow(500, Some(100))], ShadowDecision::Cut),
        (vec![slow(45_000, None)], ShadowDecision::Cut),
        (vec![slow(500, None), slow(1, None)], ShadowDecision::Refused(Code::Overloaded)),
        (vec![call(1, ToolBehavior::Down)], ShadowDecision::Retried),
        (vec![call(1, ToolBehavior::BusyForLong)], ShadowDecision::Failed(Code::RetryExhausted)),
    ] {
        let with = |mode| run(&stream, CallPolicy { modes: MechanismModes::all(mode), ..policy.clone() });
        let shadow = with(EnforcementMode::Shadow);
        assert_as_off(&with(EnforcementMode::Off), &shadow);
        assert_eq!(shadow.reported().last().unwrap(), &[expected], "{stream:?}");
        let done = with(EnforcementMode::Enforce).done();
        match expected {
            // It fails like any other call, with a different error.
            ShadowDecision::Failed(_) => assert_eq!(done.last().unwrap(), &[]),
            expected => assert_eq!(done.last().unwrap(), &[expected], "{stream:?}"),
        }
    }
}
