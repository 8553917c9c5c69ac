//! Rehearsals of a history of ten thousand calls that the real engine made. Without a change of the policies nothing
//! may differ; with a change, exactly its effects may differ.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalChannel, ApprovalDecision, Grantor};
use steadfast_core::call::EqualCallPolicy;
use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{
    AmbiguousOutcomePolicy, ApprovalTrigger, CallPolicy, EnforcementMode, LimitPolicy, PolicyProfile,
    ToolClass,
};
use steadfast_executor::{
    Attempt, AttemptError, BreakerOverride, CallFacts, CallOptions, Engine, OperatorIdentity,
    OperatorSurface, Recording, RuntimeClock, ToolResult,
};
use steadfast_json::RawJson;
use steadfast_replay::{
    DifferenceKind, RecordedCall, RecordedEventKind, Rehearsal, ReplayDifference, ReplayEnd, TakenReason,
};
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, MemoryOptions, MemoryStore, StateStore, TimeSource,
};
use steadfast_testkit::effort::TestEffort;
use tokio::time::Instant;

/// Returns the number of calls to record and replay. It is larger with `cargo xtask test --long`.
fn calls() -> u64 {
    if std::env::var_os("LONG_TESTS").is_some() { 10_000 } else { 1_500 }
}

/// SplitMix64: a random generator whose seed determines everything.
#[derive(Clone)]
struct SplitMixRandom(u64);

impl SplitMixRandom {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.roll() % most
    }

    fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}

/// A clock that follows the timers and starts at the same moment in every run, because the outages of tools depend on
/// the time.
#[derive(Debug)]
struct RehearsalTestClock(Instant);

impl TimeSource for RehearsalTestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000) + self.0.elapsed()
    }
}

const TOOLS: [(&str, &str); 6] = [
    ("bank", "pay"),
    ("bank", "balance"),
    ("web", "get"),
    ("web", "post"),
    ("shop", "order"),
    ("shop", "list"),
];

type PolicyChange = fn(&mut CallPolicy);

/// Returns the policies of the tools, with a change to all of them.
fn policies(change: PolicyChange) -> BTreeMap<String, Arc<CallPolicy>> {
    let of = |(namespace, tool): (&str, &str)| {
        let class = match tool {
            "pay" | "order" => ToolClass::Mutating,
            "balance" | "list" => ToolClass::ReadOnly,
            "get" => ToolClass::Idempotent,
            _ => ToolClass::Unknown,
        };
        let mut policy = PolicyProfile::Standard.policy(class);
        match tool {
            "order" => policy.approval.when = ApprovalTrigger::Always,
            "post" => policy.repeat.ambiguous = AmbiguousOutcomePolicy::Stop,
            "list" => policy.limits = LimitPolicy { concurrency: NonZeroU32::new(3), rate: None },
            _ => {}
        }
        // Without approvals, the other mechanisms act more often.
        if matches!(tool, "pay" | "balance" | "get" | "list") {
            policy.modes.trust = EnforcementMode::Off;
        }
        change(&mut policy);
        (format!("{namespace}/{tool}"), Arc::new(policy))
    };
    TOOLS.into_iter().map(of).collect()
}

fn unchanged(_: &mut CallPolicy) {}

/// A tool with random behavior. Each tool has outages.
async fn run(attempt: Attempt, mut dice: SplitMixRandom, down: bool) -> ToolResult {
    let fault = |source, words: &str| -> ToolResult { Err(AttemptFault::new(source, words).into()) };
    for _ in 0..attempt.number {
        dice.roll();
    }
    let takes = match dice.below(40) {
        0 => 45_000,
        1..5 => dice.below(12_000),
        _ => dice.below(400),
    };
    let pulse = dice.percent(10);
    let mut left = takes;
    while pulse && left > 10_000 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        attempt.progress();
        left -= 10_000;
    }
    tokio::time::sleep(Duration::from_millis(left)).await;
    let closed = |written| FaultSource::Transport { error: TransportError::ConnectionClosed, written };
    match dice.below(100) {
        _ if down => match dice.below(3) {
            0 => fault(FaultSource::Http { status: 503 }, "unavailable"),
            1 => fault(closed(true), "the connection was closed"),
            _ => fault(
                FaultSource::Transport { error: TransportError::ConnectionRefused, written: false },
                "refused",
            ),
        },
        0..3 => {
            fault(FaultSource::Http { status: 500 }, &format!("internal error in request {}", dice.roll()))
        }
        3 => fault(closed(true), "the connection was closed"),
        4 => fault(closed(false), "the connection was closed"),
        5 => fault(FaultSource::JsonRpc { code: -32602 }, "amount must be a number"),
        6 => fault(FaultSource::IsError, "there is not enough money"),
        7..9 => {
            let retry_after = Some(RetryAfter::Delay(Duration::from_millis(dice.below(3000))));
            let fault = AttemptFault {
                retry_after,
                ..AttemptFault::new(FaultSource::Http { status: 429 }, "slow down")
            };
            Err(fault.into())
        }
        9 => Err(AttemptError::InputRequired(ToolOutput {
            content: RawJson::string("which one?"),
            metadata: None,
        })),
        _ => Ok(ToolOutput { content: RawJson::from_trusted("{\"done\":true}"), metadata: None }),
    }
}

fn envelope(number: u64, dice: &mut SplitMixRandom, tool: (&str, &str), now: Timestamp) -> CallEnvelope {
    let session = dice.below(40);
    let mut text = format!(
        r#"{{"contractVersion":"1.1","requestId":"r{number}","toolName":"{}","toolNamespace":"{}","#,
        tool.1, tool.0
    );
    // Turns follow each other. Some hosts do not report them.
    let turn =
        if session.is_multiple_of(8) { String::new() } else { format!(r#","turnId":"t{}""#, number / 200) };
    text.push_str(&format!(r#""target":{{"sessionKey":"s{session}","actorId":"ann"{turn}}},"#));
    let hint = match dice.below(10) {
        0 => r#""circuitBreakerHint":"dependency","#,
        1 => r#""circuitBreakerHint":"global","#,
        _ => "",
    };
    let mode = match dice.below(12) {
        0 => r#""dedupeMode":"bestEffort","#,
        1 => r#""dedupeMode":"enforced","#,
        2 => r#""dedupeMode":"disabled","#,
        _ => "",
    };
    let budget = if dice.percent(10) { r#""retryBudget":{"maxAttempts":2}"# } else { r#""retryBudget":{}"# };
    text.push_str(&format!(r#""transport":{{{hint}{mode}{budget}}},"#));
    if dice.percent(5) {
        let deadline = now.as_millis() + dice.below(20_000);
        text.push_str(&format!(r#""control":{{"deadlineAtMs":{deadline}}},"#));
    }
    let key = if dice.percent(30) {
        format!(r#","idempotencyKey":"k{}""#, number / 40 * 40 + dice.below(15))
    } else {
        String::new()
    };
    let hints = if dice.percent(5) { r#","callHints":{"timeoutMs":5000}"# } else { "" };
    let amount = number / 60 * 10 + dice.below(10);
    text.push_str(&format!(r#""payload":{{"version":"1.0","params":{{"amount":{amount}}}{key}{hints}}}}}"#));
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

/// Makes calls, some of them concurrently, and returns their recording.
async fn record(calls: u64, seed: u64) -> Recording {
    let clock = Arc::new(RehearsalTestClock(Instant::now()));
    let options = MemoryOptions::new(clock.clone());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions { most: 100_000, ..options }));
    let by_tool = policies(unchanged);
    let engine = Engine::builder()
        .clock(clock)
        .store(store.clone())
        .policies(move |call: &CallEnvelope| by_tool[&call.tool().to_string()].clone())
        .history(JournalLimits {
            most: 1_000_000,
            most_per_subject: None,
            age: Duration::from_secs(30 * 24 * 3600),
        })
        .start()
        .await;
    let mut dice = SplitMixRandom(seed);
    let mut callers = Vec::new();
    for number in 0..calls {
        let pause = if dice.percent(60) { dice.below(300) } else { 0 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if number.is_multiple_of(20) {
            answer_requests(&engine, &mut dice).await;
        }
        let mut own = SplitMixRandom(seed ^ number.wrapping_mul(0x1234_5678_9abc_def1));
        let tool = match own.below(20) {
            0 => ("shop", "order"),
            1..6 => ("bank", "pay"),
            6..10 => ("bank", "balance"),
            10..14 => ("web", "get"),
            14..16 => ("web", "post"),
            _ => ("shop", "list"),
        };
        let now = engine.now();
        // Each tool is down for a while now and then.
        let phase = now.as_millis() / 20_000 + u64::try_from(tool.1.len()).unwrap();
        let down = phase.is_multiple_of(15);
        let envelope = envelope(number, &mut own, tool, now);
        let mut options = CallOptions::default();
        if own.percent(30) {
            options.equal_calls = EqualCallPolicy::Joined;
        }
        if own.percent(30) {
            options.channel = ApprovalChannel::Interactive;
        }
        let arrives = own.percent(80);
        let patience = own.percent(8).then(|| own.below(5000));
        let withdraws = own.percent(50);
        let answers = own.clone();
        let calling = engine.call_with(envelope, move |attempt| run(attempt, answers.clone(), down), options);
        let engine = engine.clone();
        callers.push(tokio::spawn(async move {
            let canceller = calling.canceller();
            let called = match patience.map(Duration::from_millis) {
                None => calling.await,
                Some(patience) if withdraws => {
                    let cancel = async {
                        tokio::time::sleep(patience).await;
                        canceller.cancel();
                    };
                    tokio::join!(calling, cancel).0
                }
                Some(patience) => match tokio::time::timeout(patience, calling).await {
                    Ok(called) => called,
                    Err(_) => return,
                },
            };
            if let Some(arrival) = called.delivery.filter(|_| arrives) {
                engine.mark_delivered(arrival);
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    while engine.in_flight_calls() > 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    engine.shutdown(Duration::ZERO).await;
    Recording::read(&*store, Timestamp::ZERO, 1_000_000).await.unwrap()
}

/// Decides approval requests now and then, as an operator would.
async fn answer_requests(engine: &Engine, dice: &mut SplitMixRandom) {
    for (id, _) in engine.admin().approvals(None) {
        let decision = match dice.below(4) {
            0 => ApprovalDecision::Deny,
            1 => continue,
            _ => ApprovalDecision::Once,
        };
        let by = OperatorIdentity::new("ann", OperatorSurface::Library);
        // It may be over by now.
        drop(engine.admin().decide(None, id, decision, Grantor::Operator, &by).await);
    }
}

fn rehearse<'r>(recording: &'r Recording, change: PolicyChange) -> (Rehearsal<'r>, Vec<ReplayDifference>) {
    let (was, would) = (policies(unchanged), policies(change));
    let of = |policies: &BTreeMap<String, Arc<CallPolicy>>, call: &RecordedCall| {
        policies[&call.request.tool.to_string()].clone()
    };
    let rehearsal = Rehearsal::of(&recording.calls, &mut |call| of(&was, call), &[], &mut |_| {});
    let replayed = rehearsal.replay_under(&mut |call| of(&would, call), &[], &mut |_| {});
    let differences = rehearsal.differences(&replayed);
    (rehearsal, differences)
}

#[tokio::test(start_paused = true)]
async fn a_long_history_comes_out_as_it_was() {
    let calls = calls();
    let recording = record(calls, 1).await;
    assert_eq!(recording.calls.len(), usize::try_from(calls).unwrap());
    let codes: BTreeSet<_> = recording.facts.iter().filter_map(|facts| facts.code).collect();
    assert!(codes.len() > 8, "there is something to explain: {codes:?}");
    let (rehearsal, differences) = rehearse(&recording, unchanged);
    if let Some(first) =
        rehearsal.before().calls.iter().position(|call| matches!(call.end, ReplayEnd::Taken(_)))
    {
        let policies = policies(unchanged);
        let of = |call: &RecordedCall| policies[&call.request.tool.to_string()].clone();
        let again = Rehearsal::of(&recording.calls, &mut |call| of(call), &[first], &mut |_| {});
        let (facts, would) = (&recording.facts[first], &again.before().calls[first]);
        panic!("the first that is not explained: {facts:#?}, replayed as {would:#?}");
    }
    assert_eq!(rehearsal.count_taken(TakenReason::NotExplained), 0, "every answer is explained");
    assert_eq!(rehearsal.count_taken(TakenReason::InsufficientRecord), 0);
    assert_eq!(differences, []);
}

// ---- short recordings, each with one change ----

/// Reply of a tool to an attempt.
#[derive(Clone, Copy)]
enum ScriptedReply {
    Yes,
    /// It is down.
    No,
    /// Success, after this many seconds.
    Late(u64),
}

/// A call that comes one second after the previous one.
#[derive(Clone)]
struct ScheduledCall {
    amount: u32,
    key: Option<&'static str>,
    replies: Vec<ScriptedReply>,
}

fn planned(replies: &[ScriptedReply]) -> ScheduledCall {
    ScheduledCall { amount: 1, key: None, replies: replies.to_vec() }
}

fn keyed(key: &'static str) -> ScheduledCall {
    ScheduledCall { key: Some(key), ..planned(&[ScriptedReply::Yes]) }
}

/// Returns the standard profile with only retries, breaker and deduplication.
fn plain() -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Idempotent);
    (policy.modes.guard, policy.modes.trust) = (EnforcementMode::Off, EnforcementMode::Off);
    policy
}

async fn start(policy: &CallPolicy) -> (Engine, Arc<dyn StateStore>) {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let policies = Arc::new(policy.clone());
    (Engine::builder().clock(clock).store(store.clone()).policies(policies).start().await, store)
}

async fn make(engine: &Engine, number: usize, planned: ScheduledCall) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ScheduledCall { amount, key, replies } = planned;
    let key = key.map_or(String::new(), |key| format!(r#","idempotencyKey":"{key}""#));
    let text = format!(
        r#"{{"contractVersion":"1.1","requestId":"r{number}","toolName":"pay","toolNamespace":"bank",
            "target":{{"sessionKey":"s","actorId":"ann"}},
            "payload":{{"version":"1.0","params":{{"amount":{amount}}}{key}}}}}"#
    );
    let envelope = CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap();
    let tool = move |attempt: Attempt| {
        let reply = replies[usize::try_from(attempt.number).unwrap() - 1];
        async move {
            let ok = || Ok(ToolOutput { content: RawJson::string("paid"), metadata: None });
            match reply {
                ScriptedReply::Yes => ok(),
                ScriptedReply::No => {
                    Err(AttemptFault::new(FaultSource::Http { status: 503 }, "unavailable").into())
                }
                ScriptedReply::Late(seconds) => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    ok()
                }
            }
        }
    };
    engine.call(envelope, tool).await;
}

async fn story(policy: &CallPolicy, calls: impl IntoIterator<Item = ScheduledCall>) -> Recording {
    let (engine, store) = start(policy).await;
    for (number, planned) in calls.into_iter().enumerate() {
        make(&engine, number, planned).await;
    }
    engine.shutdown(Duration::ZERO).await;
    Recording::read(&*store, Timestamp::ZERO, 1000).await.unwrap()
}

/// Returns the differences: the call, the kind, and the code that it would get, or `?` if that is unknown.
fn changed(
    recording: &Recording,
    was: &CallPolicy,
    would: &CallPolicy,
) -> Vec<(usize, DifferenceKind, String)> {
    let (was, would) = (Arc::new(was.clone()), Arc::new(would.clone()));
    let rehearsal = Rehearsal::of(&recording.calls, &mut |_| was.clone(), &[], &mut |_| {});
    let same = rehearsal.replay_under(&mut |_| was.clone(), &[], &mut |_| {});
    assert_eq!(rehearsal.differences(&same), [], "unchanged it is the same");
    let replayed = rehearsal.replay_under(&mut |_| would.clone(), &[], &mut |_| {});
    let one = |difference: ReplayDifference| {
        let code = match difference.would {
            None => "?".to_owned(),
            Some(would) => would.code.map_or("success".to_owned(), |code| code.to_string()),
        };
        (difference.call, difference.kind, code)
    };
    rehearsal.differences(&replayed).into_iter().map(one).collect()
}

fn taken(recording: &Recording, policy: &CallPolicy) -> Vec<usize> {
    let policy = Arc::new(policy.clone());
    let rehearsal = Rehearsal::of(&recording.calls, &mut |_| policy.clone(), &[], &mut |_| {});
    let calls = rehearsal.before().calls.iter().enumerate();
    calls.filter(|(_, call)| matches!(call.end, ReplayEnd::Taken(_))).map(|(index, _)| index).collect()
}

const NONE: [usize; 0] = [];

fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lower_threshold_shows_the_calls_that_the_breaker_would_have_refused() {
    let mut was = plain();
    was.modes.retry = EnforcementMode::Off;
    let failures = [ScriptedReply::No, ScriptedReply::No, ScriptedReply::Yes, ScriptedReply::Yes]
        .map(|reply| planned(&[reply]));
    let recording = story(&was, failures).await;
    assert_eq!(taken(&recording, &was), NONE);
    let mut would = was.clone();
    would.breaker.consecutive = Some(number(2));
    let refused = |call| (call, DifferenceKind::RefusedByBreaker, "circuit_open".to_owned());
    assert_eq!(changed(&recording, &was, &would), [refused(2), refused(3)]);
}

#[tokio::test(start_paused = true)]
async fn a_higher_threshold_lets_calls_run_with_unknown_outcomes() {
    let mut was = plain();
    was.modes.retry = EnforcementMode::Off;
    was.breaker.consecutive = Some(number(2));
    let recording = story(
        &was,
        [ScriptedReply::No, ScriptedReply::No, ScriptedReply::Yes, ScriptedReply::Yes]
            .map(|reply| planned(&[reply])),
    )
    .await;
    let mut would = was.clone();
    would.breaker.consecutive = Some(number(5));
    let unknown = |call| (call, DifferenceKind::RunAlthoughRefused, "?".to_owned());
    assert_eq!(changed(&recording, &was, &would), [unknown(2), unknown(3)]);
}

#[tokio::test(start_paused = true)]
async fn fewer_and_more_retries_are_distinguished() {
    let mut two = plain();
    two.retry.attempts = number(2);
    let calls = [
        &[ScriptedReply::No, ScriptedReply::Yes][..],
        &[ScriptedReply::Yes],
        &[ScriptedReply::No, ScriptedReply::No],
    ]
    .map(planned);
    let recording = story(&two, calls).await;
    assert_eq!(taken(&recording, &two), NONE);
    let mut off = two.clone();
    off.modes.retry = EnforcementMode::Off;
    let less = |call, code: &str| (call, DifferenceKind::RetriedLess, code.to_owned());
    let code = "upstream_unavailable";
    assert_eq!(changed(&recording, &two, &off), [less(0, code), less(2, code)]);
    let mut four = two.clone();
    four.retry.attempts = number(4);
    assert_eq!(changed(&recording, &two, &four), [(2, DifferenceKind::RetriedMore, "?".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn without_dedupe_replayed_calls_would_run_and_with_it_repeated_calls_would_not() {
    let calls = [keyed("k"), keyed("k"), keyed("other")];
    let (on, mut off) = (plain(), plain());
    off.modes.dedupe = EnforcementMode::Off;
    let recording = story(&on, calls.clone()).await;
    assert_eq!(changed(&recording, &on, &off), [(1, DifferenceKind::RunInsteadOfReplay, "?".to_owned())]);
    let recording = story(&off, calls).await;
    assert_eq!(changed(&recording, &off, &on), [(1, DifferenceKind::Replayed, "success".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_stricter_guard_shows_the_calls_that_it_would_have_refused() {
    let mut was = plain();
    was.modes.guard = EnforcementMode::Enforce;
    (was.modes.retry, was.modes.breaker) = (EnforcementMode::Off, EnforcementMode::Off);
    was.guard.identical = number(4);
    let recording = story(&was, vec![planned(&[ScriptedReply::No]); 4]).await;
    assert_eq!(taken(&recording, &was), NONE);
    let mut would = was.clone();
    would.guard.identical = number(2);
    let refused = |call| (call, DifferenceKind::RefusedByGuard, "loop_detected".to_owned());
    assert_eq!(changed(&recording, &was, &would), [refused(2), refused(3)]);
}

#[tokio::test(start_paused = true)]
async fn calls_that_would_need_approval_are_reported() {
    let was = plain();
    let recording = story(&was, [planned(&[ScriptedReply::Yes])]).await;
    let mut would = was.clone();
    would.modes.trust = EnforcementMode::Enforce;
    would.approval.when = ApprovalTrigger::Always;
    let change = (0, DifferenceKind::ApprovalRequested, "approval_required".to_owned());
    assert_eq!(changed(&recording, &was, &would), [change]);
}

#[tokio::test(start_paused = true)]
async fn less_time_ends_an_attempt_and_more_time_has_an_unknown_result() {
    let long = plain();
    let mut short = plain();
    short.time.attempt = Duration::from_secs(5);
    (short.modes.retry, short.modes.breaker) = (EnforcementMode::Off, EnforcementMode::Off);
    let long = CallPolicy { modes: short.modes, ..long };
    let calls = [ScriptedReply::Late(2), ScriptedReply::Late(10)].map(|reply| planned(&[reply]));
    let recording = story(&long, calls.clone()).await;
    let timeout = (1, DifferenceKind::AnsweredDifferently, "timeout".to_owned());
    assert_eq!(changed(&recording, &long, &short), [timeout]);
    let recording = story(&short, calls).await;
    assert_eq!(taken(&recording, &short), NONE);
    assert_eq!(changed(&recording, &short, &long), [(1, DifferenceKind::GivenMoreTime, "?".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn state_from_before_the_recording_is_not_a_difference() {
    let mut was = plain();
    was.modes.retry = EnforcementMode::Off;
    was.breaker.consecutive = Some(number(2));
    let calls = [ScriptedReply::No, ScriptedReply::No, ScriptedReply::Yes, ScriptedReply::Yes]
        .map(|reply| planned(&[reply]));
    let mut recording = story(&was, calls).await;
    recording = Recording::of(recording.facts.split_off(2));
    assert_eq!(taken(&recording, &was), [0, 1], "the breaker was open before");
    let mut would = was.clone();
    would.breaker.consecutive = Some(number(1));
    assert_eq!(changed(&recording, &was, &would), []);
}

#[tokio::test(start_paused = true)]
async fn operator_changes_are_taken_over_and_are_not_differences() {
    let mut was = plain();
    was.modes.retry = EnforcementMode::Off;
    was.breaker.consecutive = Some(number(2));
    let (engine, store) = start(&was).await;
    for at in 0..3 {
        make(&engine, at, planned(&[ScriptedReply::No])).await;
    }
    let by = OperatorIdentity::new("ann", OperatorSurface::Library);
    let key = engine.admin().breakers(None).await[0].key.clone();
    engine.admin().update_breaker(None, &key, BreakerOverride::Reset, &by).await;
    for at in 3..6 {
        make(&engine, at, planned(&[ScriptedReply::Yes])).await;
    }
    engine.shutdown(Duration::ZERO).await;
    let recording = Recording::read(&*store, Timestamp::ZERO, 1000).await.unwrap();
    assert_eq!(
        taken(&recording, &was),
        [3],
        "the first call after the reset is not explained; those after it are"
    );
    assert_eq!(changed(&recording, &was, &was), []);
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_older_version_are_taken_as_they_were_and_count_for_those_after_them() {
    let mut was = plain();
    was.modes.retry = EnforcementMode::Off;
    let calls = [ScriptedReply::No, ScriptedReply::No, ScriptedReply::Yes].map(|reply| planned(&[reply]));
    let mut recording = story(&was, calls).await;
    for facts in recording.facts.iter_mut().take(2) {
        let text = serde_json::to_value(&*facts).unwrap();
        let old = |name: &str| !["engine", "asked", "trail", "outcomes"].contains(&name);
        let fields = text.as_object().unwrap().iter().filter(|(name, _)| old(name));
        let text: serde_json::Map<_, _> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        *facts = serde_json::from_value(text.into()).unwrap();
    }
    let recording = Recording::of(recording.facts);
    assert_eq!(taken(&recording, &was), [0, 1]);
    let mut would = was.clone();
    would.breaker.consecutive = Some(number(2));
    assert_eq!(
        changed(&recording, &was, &would),
        [(2, DifferenceKind::RefusedByBreaker, "circuit_open".to_owned())]
    );
}

/// Returns the calls that an open breaker refused, each with the call that had opened it.
fn refused_with_opening_call(recording: &Recording, policy: &CallPolicy) -> Vec<(usize, Option<usize>)> {
    let policy = Arc::new(policy.clone());
    let all: Vec<_> = (0..recording.calls.len()).collect();
    let rehearsal = Rehearsal::of(&recording.calls, &mut |_| policy.clone(), &all, &mut |_| {});
    let calls = rehearsal.before().calls.iter().enumerate().filter(|(index, _)| {
        recording.facts[*index].code.is_some_and(|code| code.as_str() == "circuit_open")
    });
    calls.map(|(index, call)| (index, call.opened_by.map(|opened| opened.call))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_an_open_breaker_refused_names_the_call_that_opened_it() {
    let mut policy = plain();
    policy.modes.retry = EnforcementMode::Off;
    policy.breaker.consecutive = Some(number(2));
    policy.breaker.cooldown.first = Duration::from_millis(1500);
    // The second one opens it, the fourth is a probe and opens it again.
    let calls = [ScriptedReply::No; 5].map(|reply| planned(&[reply]));
    let recording = story(&policy, calls).await;
    assert_eq!(refused_with_opening_call(&recording, &policy), [(2, Some(1)), (4, Some(3))]);
    // A call that an older version recorded opens it as well.
    let mut older = recording.facts.clone();
    for facts in older.iter_mut().take(2) {
        facts.request = None;
    }
    let older = Recording::of(older);
    assert_eq!(taken(&older, &policy), [0, 1]);
    assert_eq!(refused_with_opening_call(&older, &policy), [(2, Some(1)), (4, Some(3))]);
    // The cause is unknown if it happened before the recording.
    let later = Recording::of(recording.facts[2..].to_vec());
    assert_eq!(refused_with_opening_call(&later, &policy).first(), Some(&(0, None)));
}

/// Corrupts the facts of a call, like a damaged store or a false record.
fn broken(facts: &mut CallFacts, dice: &mut SplitMixRandom) {
    let place = |dice: &mut SplitMixRandom, most: usize| {
        usize::try_from(dice.below(u64::try_from(most.max(1)).unwrap())).unwrap()
    };
    let odd = |dice: &mut SplitMixRandom| [0, 1, 7_777, 1 << 40, u64::MAX - 5, u64::MAX][place(dice, 6)];
    let at = place(dice, facts.trail.len());
    let kinds = [
        RecordedEventKind::Arrived,
        RecordedEventKind::Acquired,
        RecordedEventKind::Follow,
        RecordedEventKind::Time,
        RecordedEventKind::Ran,
        RecordedEventKind::Saved,
        RecordedEventKind::Started,
        RecordedEventKind::Disconnected,
    ];
    let kind = kinds[place(dice, 8)];
    match dice.below(12) {
        0 => facts.trail.truncate(at),
        1 => facts.trail.reverse(),
        2 => facts.trail.extend(facts.trail.clone()),
        3 => facts.trail.iter_mut().skip(at).for_each(|moment| moment.after_ms = odd(dice)),
        4 => facts.trail.iter_mut().skip(at).take(1).for_each(|moment| moment.order = odd(dice)),
        5 => facts.trail.iter_mut().skip(at).take(1).for_each(|moment| moment.kind = kind),
        6 => facts.arrived = Timestamp::from_millis(odd(dice)),
        7 => facts.took_ms = odd(dice),
        8 => facts.attempts.clear(),
        9 => facts.outcomes.clear(),
        10 => facts.attempts.iter_mut().for_each(|one| one.finished = Timestamp::from_millis(odd(dice))),
        _ => facts.request = None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_recording_that_makes_no_sense_comes_to_an_end_and_unchanged_it_does_not_differ() {
    let sound = record(400, 2).await;
    let (rehearsal, _) = rehearse(&sound, unchanged);
    assert_eq!(rehearsal.count_taken(TakenReason::NotExplained), 0, "what is sound is explained");
    let (mut taken, mut calls) = (0, 0);
    for seed in TestEffort::of_this_run().cases((0..60).collect()) {
        let mut dice = SplitMixRandom(seed);
        let mut facts = sound.facts.clone();
        // Every third one only has gaps.
        let damaged = if seed.is_multiple_of(3) { 0 } else { 25 };
        for facts in &mut facts {
            if dice.percent(damaged) {
                broken(facts, &mut dice);
            }
        }
        // Some are lost, and some are duplicated.
        facts.retain(|_| !dice.percent(5));
        facts.extend(facts.clone().into_iter().filter(|_| dice.percent(2)));
        let recording = Recording::of(facts);
        let (rehearsal, differences) = rehearse(&recording, unchanged);
        assert_eq!(differences, [], "seed {seed}");
        taken += rehearsal.count_taken(TakenReason::NotExplained);
        calls += recording.calls.len();
        let changes: [PolicyChange; 3] = [
            |policy| policy.breaker.consecutive = NonZeroU32::new(1),
            |policy| policy.modes.dedupe = EnforcementMode::Off,
            |policy| policy.time.attempt = Duration::from_millis(50),
        ];
        for change in changes {
            rehearse(&recording, change);
        }
    }
    assert!((1..calls / 2).contains(&taken), "most is still explained: {taken} of {calls} are not");
}

#[tokio::test(start_paused = true)]
async fn records_of_a_newer_version_are_counted_and_skipped() {
    let (engine, store) = start(&plain()).await;
    for at in 0..2 {
        make(&engine, at, planned(&[ScriptedReply::Yes])).await;
    }
    engine.shutdown(Duration::ZERO).await;
    let mut facts = Recording::read(&*store, Timestamp::ZERO, 1000).await.unwrap().facts.remove(0);
    facts.format += 1;
    let entry = |body: String| JournalEntry { at: facts.arrived, subject: "new".into(), body: body.into() };
    let newer = [entry(serde_json::to_string(&facts).unwrap()), entry("{\"other\":1}".to_owned())];
    let keep = JournalLimits { most: 100, most_per_subject: None, age: Duration::from_secs(3600) };
    store.append(Journal::History, &newer, keep).await.unwrap();
    let recording = Recording::read(&*store, Timestamp::ZERO, 1000).await.unwrap();
    assert_eq!((recording.facts.len(), recording.calls.len(), recording.unreadable), (2, 2, 2));
}
