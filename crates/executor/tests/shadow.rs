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
use steadfast_core::call::{Notice, Shadowed};
use steadfast_core::classify::{Fault, RetryAfter, Source, Transport};
use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, UnknownFields};
use steadfast_core::guard::Layer;
use steadfast_core::output::{Output, RawJson};
use steadfast_core::policy::{Mode, Modes, Policy, Profile, ToolClass};
use steadfast_executor::{About, Answer, Attempt, Engine, Listener};
use steadfast_store::Clock;
use tokio::time::Instant;

/// One call of a stream.
#[derive(Clone, Debug)]
struct Given {
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
    fares: Fares,
}

/// Behavior of the tool for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fares {
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

impl Fares {
    fn answer(self, arguments: u32) -> Answer {
        let fault = |source| Fault::new(source, format!("no luck with {arguments}"));
        let busy = |wait| Fault {
            retry_after: Some(RetryAfter::Delay(wait)),
            ..fault(Source::Http { status: 429 })
        };
        Err(match self {
            Self::Well => {
                let content = RawJson::from_trusted(format!("{{\"did\":{arguments}}}"));
                return Ok(Output { content, metadata: None });
            }
            Self::Refused => fault(Source::Http { status: 404 }),
            Self::Malformed => fault(Source::JsonRpc { code: -32602 }),
            Self::Down => fault(Source::Http { status: 503 }),
            Self::Busy => busy(Duration::from_millis(1)),
            Self::BusyForLong => busy(Duration::from_secs(3600)),
            Self::Lost => fault(Source::Transport { error: Transport::ConnectionReset, written: true }),
        }
        .into())
    }
}

/// Log of a stream: for each call its response, its attempts, and its notices.
#[derive(Debug, Default)]
struct Seen {
    answers: Vec<String>,
    asked: Vec<(String, u32, Option<Timestamp>)>,
    notices: BTreeMap<String, Vec<Notice>>,
}

impl Seen {
    /// Returns the reports of shadow mode for each call.
    fn told(&self) -> Vec<Vec<Shadowed>> {
        let told = |notice: &Notice| match notice {
            Notice::WouldHave(shadowed) => Some(*shadowed),
            _ => None,
        };
        self.each(|notices| notices.iter().filter_map(told).collect())
    }

    /// Returns the first action on each call that off mode would not have taken.
    fn done(&self) -> Vec<Vec<Shadowed>> {
        self.each(|notices| first_done(notices).into_iter().collect())
    }

    fn each<T>(&self, of: impl Fn(&[Notice]) -> T) -> Vec<T> {
        (0..self.answers.len()).map(|number| of(&self.notices[&format!("r{number}")])).collect()
    }
}

fn first_done(notices: &[Notice]) -> Option<Shadowed> {
    let mut ran = false;
    notices.iter().find_map(|notice| match notice {
        Notice::AttemptStarted { .. } => {
            ran = true;
            None
        }
        Notice::Following | Notice::Replayed { .. } => Some(Shadowed::Duplicate),
        // The outcome is that of another call's run.
        Notice::OutcomeUnknown { .. } if !ran => Some(Shadowed::Duplicate),
        Notice::OutcomeUnknown { .. } => Some(Shadowed::Told(Code::OutcomeUnknown)),
        Notice::CallBlocked { code, .. } => Some(Shadowed::Refused(*code)),
        Notice::ApprovalAsked => Some(Shadowed::Asked),
        Notice::RetryScheduled { .. } => Some(Shadowed::Retried),
        Notice::AttemptCut { .. } => Some(Shadowed::Cut),
        Notice::GuardTripped { layer } => Some(Shadowed::Remarked(*layer)),
        _ => None,
    })
}

struct Ear(Arc<Mutex<Seen>>);

impl Listener for Ear {
    fn notice(&self, about: &About<'_>, notice: &Notice) {
        let id = about.request.id.as_str().to_owned();
        self.0.lock().notices.entry(id).or_default().push(notice.clone());
    }
}

/// A clock that starts at the same moment in every run and follows the timers.
#[derive(Debug)]
struct Same(Instant);

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

impl Clock for Same {
    fn now(&self) -> Timestamp {
        START + self.0.elapsed()
    }
}

fn envelope(number: usize, given: &Given, at: Timestamp) -> CallEnvelope {
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
    CallEnvelope::parse(call.to_string().as_bytes(), UnknownFields::Refuse).unwrap()
}

fn run(stream: &[Given], policy: Policy) -> Seen {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let clock = Arc::new(Same(Instant::now()));
        let engine = Engine::builder()
            .clock(clock.clone())
            .policies(Arc::new(policy))
            .listener(Arc::new(Ear(seen.clone())))
            .start()
            .await;
        let mut calls = Vec::new();
        for (number, given) in stream.iter().enumerate() {
            tokio::time::sleep(Duration::from_millis(given.after)).await;
            let call = envelope(number, given, clock.now());
            let (given, seen) = (given.clone(), seen.clone());
            let tool = move |attempt: Attempt| {
                let asked =
                    (attempt.envelope.request_id.as_str().to_owned(), attempt.number, attempt.deadline);
                seen.lock().asked.push(asked);
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
            seen.lock().answers.push(answer);
        }
        drop(engine);
        std::mem::take(&mut *seen.lock())
    })
}

/// Runs a stream with these modes off, in shadow and enforced. Returns the reports of shadow and the actions of
/// enforce.
fn compare(
    stream: &[Given],
    policy: &Policy,
    modes: impl Fn(Mode) -> Modes,
) -> (Vec<Vec<Shadowed>>, Vec<Vec<Shadowed>>) {
    let with = |mode| run(stream, Policy { modes: modes(mode), ..policy.clone() });
    let shadow = with(Mode::Shadow);
    assert_as_off(&with(Mode::Off), &shadow);
    let enforced = with(Mode::Enforce);
    assert_eq!(enforced.told(), vec![vec![]; stream.len()], "who acts has nothing to wish for");
    (shadow.told(), enforced.done())
}

fn assert_as_off(off: &Seen, shadow: &Seen) {
    assert_eq!(shadow.answers, off.answers);
    assert_eq!(shadow.asked, off.asked, "the tool sees no difference either");
    assert_eq!(off.told(), vec![vec![]; off.answers.len()]);
    assert!(shadow.told().iter().all(|told| told.len() <= 1), "{:?}", shadow.told());
}

fn plain(class: ToolClass) -> Policy {
    let mut policy = Profile::Standard.policy(class);
    policy.retry.attempts = 1.try_into().unwrap();
    policy
}

/// Returns a call without an idempotency key, with no delay.
fn call(arguments: u32, fares: Fares) -> Given {
    Given { after: 1, arguments, key: None, turn: None, best_effort: false, deadline: None, takes: 0, fares }
}

fn only_dedupe(mode: Mode) -> Modes {
    Modes { dedupe: mode, ..Modes::all(Mode::Off) }
}

fn without_judges(mode: Mode) -> Modes {
    Modes { guard: Mode::Off, trust: Mode::Off, ..Modes::all(mode) }
}

/// Duplicates whose tool behaves the same for each use of a key.
fn duplicates() -> impl Strategy<Value = (ToolClass, Vec<Given>)> {
    let fares = [Fares::Well, Fares::Refused, Fares::Lost, Fares::Busy];
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
                Fares::Busy => true,
                Fares::Lost => class != ToolClass::Mutating,
                _ => false,
            };
            Given {
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
fn loops() -> impl Strategy<Value = Vec<Given>> {
    let turn = || prop::option::weighted(0.7, 0..2_u32);
    let after = prop_oneof![6 => 1..1000_u64, 1 => Just(61_000_u64), 1 => Just(125_000_u64)];
    let works = vec((0..5_u32, after, turn()), 0..8);
    let fails = (select(vec![Fares::Refused, Fares::Malformed]), vec((1..1000_u64, turn()), 1..30));
    (works, fails).prop_map(|(works, (fares, mut fails))| {
        fails.sort_by_key(|(_, turn)| *turn);
        let works =
            works.into_iter().map(|(number, after, turn)| Given { after, turn, ..call(number, Fares::Well) });
        works.chain(fails.into_iter().map(|(after, turn)| Given { after, turn, ..call(9, fares) })).collect()
    })
}

/// Calls of a tool that may start to fail, within less time than its breaker stays open.
fn falling_ill() -> impl Strategy<Value = Vec<Given>> {
    let fares = select(vec![Fares::Down, Fares::Down, Fares::Down, Fares::Well, Fares::Refused]);
    let one = (fares, 1..600_u64, 0..900_u64);
    vec(one, 1..40).prop_map(|stream| {
        let numbered = (0..).zip(stream);
        numbered
            .map(|(number, (fares, after, takes))| Given { after, takes, ..call(number, fares) })
            .collect()
    })
}

/// Any stream of calls.
fn wild() -> impl Strategy<Value = Vec<Given>> {
    let fares = select(vec![
        Fares::Well,
        Fares::Refused,
        Fares::Malformed,
        Fares::Down,
        Fares::Busy,
        Fares::BusyForLong,
        Fares::Lost,
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
    let given = |(after, arguments, key, turn, best_effort, deadline, takes, fares)| Given {
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
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn shadow_changes_no_answer(stream in wild(), class in class()) {
        let mut policy = Profile::Standard.policy(class);
        policy.limits.concurrency = 2.try_into().ok();
        let with = |mode| run(&stream, Policy { modes: Modes::all(mode), ..policy.clone() });
        assert_as_off(&with(Mode::Off), &with(Mode::Shadow));
    }

    #[test]
    fn shadow_reports_the_duplicates_that_enforce_replays((class, stream) in duplicates()) {
        let (told, done) = compare(&stream, &plain(class), only_dedupe);
        prop_assert_eq!(told, done);
    }

    #[test]
    fn shadow_reports_the_remarks_and_refusals_of_an_enforcing_guard(stream in loops()) {
        let (told, done) = compare(&stream, &plain(ToolClass::Idempotent), Modes::all);
        prop_assert_eq!(told, done);
    }

    #[test]
    fn shadow_reports_the_refusals_of_a_breaker_that_first_opens(stream in falling_ill()) {
        let (told, done) = compare(&stream, &plain(ToolClass::Idempotent), without_judges);
        prop_assert_eq!(told, done);
    }
}

#[test]
fn each_kind_of_decision_occurs_in_these_streams() {
    let keyed = |key, arguments, fares| Given { key: Some(key), ..call(arguments, fares) };
    let mut busy = keyed(1, 1, Fares::Well);
    busy.takes = 100;
    let stream = [
        busy.clone(),
        busy.clone(),
        Given { best_effort: true, ..busy },
        keyed(1, 2, Fares::Well),
        keyed(3, 3, Fares::Lost),
    ];
    let duplicate = vec![Shadowed::Duplicate];
    let refused = |code| vec![Shadowed::Refused(code)];
    let expected = [
        vec![],
        duplicate,
        refused(Code::InFlight),
        refused(Code::IdempotencyConflict),
        vec![Shadowed::Told(Code::OutcomeUnknown)],
    ];
    let (told, done) = compare(&stream, &plain(ToolClass::Mutating), only_dedupe);
    assert_eq!((&told[..], &done[..]), (&expected[..], &expected[..]));

    let stream = vec![call(1, Fares::Refused); 4];
    let expected = [
        vec![],
        vec![Shadowed::Remarked(Layer::Loop)],
        refused(Code::LoopDetected),
        refused(Code::LoopDetected),
    ];
    let (told, done) = compare(&stream, &plain(ToolClass::Idempotent), Modes::all);
    assert_eq!((&told[..], &done[..]), (&expected[..], &expected[..]));

    let stream: Vec<Given> = (0..7).map(|number| call(number, Fares::Down)).collect();
    let open = refused(Code::CircuitOpen);
    let expected = [vec![], vec![], vec![], vec![], vec![], open.clone(), open];
    let (told, done) = compare(&stream, &plain(ToolClass::Idempotent), without_judges);
    assert_eq!((&told[..], &done[..]), (&expected[..], &expected[..]));
}

/// Reasons against a run do not matter for a call that would not have run: enforce mode looks for a stored result
/// first.
#[test]
fn a_duplicate_is_reported_before_an_open_breaker() {
    let keyed = |key, fares| Given { key: Some(key), ..call(key, fares) };
    let mut stream = vec![keyed(99, Fares::Well)];
    stream.extend((0..5).map(|number| keyed(number, Fares::Down)));
    stream.extend([keyed(99, Fares::Well), keyed(7, Fares::Well)]);
    let (told, done) = compare(&stream, &plain(ToolClass::Idempotent), without_judges);
    assert_eq!(told[6..], [vec![Shadowed::Duplicate], vec![Shadowed::Refused(Code::CircuitOpen)]]);
    assert_eq!(told, done);
}

/// In enforce mode the rest of the call would differ. Shadow mode reports the first difference.
#[test]
fn limits_of_no_mechanism_are_reported_and_not_enforced() {
    let mut policy = Profile::Standard.policy(ToolClass::Idempotent);
    policy.limits.concurrency = 1.try_into().ok();
    let slow = |takes, deadline| Given { takes, deadline, ..call(1, Fares::Well) };
    for (stream, expected) in [
        (vec![slow(1, Some(0))], Shadowed::Refused(Code::DeadlineExceeded)),
        (vec![slow(500, Some(100))], Shadowed::Cut),
        (vec![slow(45_000, None)], Shadowed::Cut),
        (vec![slow(500, None), slow(1, None)], Shadowed::Refused(Code::Overloaded)),
        (vec![call(1, Fares::Down)], Shadowed::Retried),
        (vec![call(1, Fares::BusyForLong)], Shadowed::Told(Code::RetryExhausted)),
    ] {
        let with = |mode| run(&stream, Policy { modes: Modes::all(mode), ..policy.clone() });
        let shadow = with(Mode::Shadow);
        assert_as_off(&with(Mode::Off), &shadow);
        assert_eq!(shadow.told().last().unwrap(), &[expected], "{stream:?}");
        let done = with(Mode::Enforce).done();
        match expected {
            // It fails like any other call, with a different error.
            Shadowed::Told(_) => assert_eq!(done.last().unwrap(), &[]),
            expected => assert_eq!(done.last().unwrap(), &[expected], "{stream:?}"),
        }
    }
}
