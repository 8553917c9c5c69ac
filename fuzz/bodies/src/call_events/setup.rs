//! Policies, requests and events, derived from bytes.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{Channel, GrantId, Spend};
use steadfast_core::call::{
    Approval, AttemptEnd, Duplicates, Event, Hints, Others, Outcome, Request, RunBy, SentKey, StoreFault,
    Waits, Wake,
};
use steadfast_core::classify::{Fault, RetryAfter, Severity, Source, Transport};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    Address, ClaimVerdict, End, Failure, Observed, Owner, Process, Receipt, RenewVerdict, Replay,
    ReplayReason, RunId, SaveVerdict, StartVerdict, Unsettled,
};
use steadfast_core::id::{Digest, Domain, Namespace, RequestId, SessionKey, ToolName, ToolRef, TurnId};
use steadfast_core::key::Key;
use steadfast_core::output::{Output, RawJson};
use steadfast_core::policy::{
    AfterUnknown, Ambiguous, ArgumentCheck, AskWhen, CacheFailures, Dangerous, Mode, Modes, OnStoreFailure,
    Policy, Profile, RateLimit, RepeatedSuccess, ToolClass, TrustRule,
};
use steadfast_core::retry::CallerLimits;
use steadfast_core::trust::Signature;

use crate::draw::Draw;

pub(super) fn policy(draw: &mut Draw<'_>) -> Policy {
    let class =
        draw.pick([ToolClass::Mutating, ToolClass::Unknown, ToolClass::ReadOnly, ToolClass::Idempotent]);
    let mut policy = draw.pick([Profile::Standard, Profile::Measured, Profile::Stepped]).policy(class);
    if draw.flag() {
        policy = policy.for_gateway();
    }
    let mut mode = || draw.pick([Mode::Enforce, Mode::Enforce, Mode::Enforce, Mode::Shadow, Mode::Off]);
    policy.modes = Modes { dedupe: mode(), retry: mode(), breaker: mode(), guard: mode(), trust: mode() };
    policy.repeat.retry_safe = draw.flag();
    policy.repeat.ambiguous = draw.pick([policy.repeat.ambiguous, Ambiguous::Retry, Ambiguous::Stop]);
    policy.dedupe.cache_failures =
        draw.pick([CacheFailures::Terminal, CacheFailures::All, CacheFailures::None]);
    policy.dedupe.after_unknown = draw.pick([AfterUnknown::TellOnce, AfterUnknown::Hold]);
    policy.dedupe.on_store_failure = draw.pick([OnStoreFailure::GoOn, OnStoreFailure::Refuse]);
    policy.dedupe.largest_output = draw.pick([8 << 20, 0]);
    policy.approval.when = draw.pick([AskWhen::Escalated, AskWhen::Always, AskWhen::Never]);
    policy.approval.dangerous = draw.pick([Dangerous::Record, Dangerous::Ask]);
    policy.arguments = draw.pick([ArgumentCheck::Assist, ArgumentCheck::Enforce, ArgumentCheck::Off]);
    policy.domain_trust = draw.flag().then(TrustRule::default);
    let one = NonZeroU32::MIN;
    match draw.byte() % 6 {
        1 => policy.limits.concurrency = Some(one),
        2 => policy.limits.rate = Some(RateLimit { attempts: one, per: Duration::from_secs(60) }),
        3 => policy.breaker.forced_open = true,
        4 => policy.guard.repeated_success = RepeatedSuccess::Refuse(one),
        5 => policy.time.total = Duration::ZERO,
        _ => {}
    }
    policy
}

pub(super) fn request(draw: &mut Draw<'_>, number: u64, now: Timestamp) -> Request {
    let key = |name: &str| Key(Digest::of(name.as_bytes()));
    let index = key("index");
    let duplicates = match draw.byte() % 7 {
        0 => Duplicates::Joined(Address::Explicit(key("explicit"))),
        1 => Duplicates::Joined(Address::Keyless { run: key(&format!("run {number}")), index }),
        2 => Duplicates::Joined(Address::CallId { id: key("id"), index }),
        3 => Duplicates::Joined(Address::CallId { id: key("another id"), index }),
        4 => Duplicates::Refused(Address::Explicit(key("explicit"))),
        5 => Duplicates::Refused(Address::Keyless { run: key(&format!("run {number}")), index }),
        _ => Duplicates::Allowed,
    };
    let sent_key = match duplicates {
        Duplicates::Joined(Address::Explicit(_)) => SentKey::Given,
        Duplicates::Joined(_) | Duplicates::Refused(_) | Duplicates::Allowed => SentKey::Run,
    };
    let millis = |number: u64| Duration::from_millis(number);
    let limits = match draw.byte() % 6 {
        1 => CallerLimits { attempts: Some(0), ..CallerLimits::default() },
        2 => CallerLimits { elapsed: Some(millis(100)), ..CallerLimits::default() },
        3 => CallerLimits { attempt: Some(Duration::ZERO), ..CallerLimits::default() },
        4 => CallerLimits { deadline: Some(now + millis(1000)), ..CallerLimits::default() },
        5 => CallerLimits { deadline: Some(now), ..CallerLimits::default() },
        _ => CallerLimits::default(),
    };
    let hints = draw.byte();
    let shape = draw.byte();
    Request {
        id: known(RequestId::new(format!("request-{number}"))),
        tool: tool(),
        tool_call: None,
        context: None,
        session: (shape & 1 == 0).then(|| known(SessionKey::new("session"))),
        actor: None,
        tenant: None,
        turn: (shape & 2 != 0).then(|| known(TurnId::new("turn"))),
        trace: (shape & 4 != 0)
            .then(|| known(TurnId::new(if number.is_multiple_of(3) { "trace" } else { "other" }))),
        model: None,
        duplicates,
        sent_key,
        computed_since: (shape & 128 != 0).then_some(now),
        in_turn: hints & 8 != 0,
        digest: Digest::of(if shape & 4 == 0 { b"{}" } else { b"[]" }),
        run: RunId(format!("run-{number}").into()),
        process: process(1),
        number,
        signature: signature(),
        domain: (shape & 8 != 0).then(|| known(Domain::new("example.com"))),
        danger: (shape & 16 != 0).then(|| Arc::from("recursive delete")),
        invalid_arguments: (shape & 32 != 0).then(|| Arc::from("path is missing")),
        limits,
        waits: if hints & 4 == 0 { Waits::NotForLong } else { Waits::AsLongAsItTakes },
        run_by: RunBy::Driver,
        end: if hints & 16 == 0 { AttemptEnd::Unseen } else { AttemptEnd::Seen },
        reads: Arc::default(),
        hints: Hints { expected_retry_safe: hints & 1 != 0, safety_critical: hints & 2 != 0 },
        channel: if shape & 64 == 0 { Channel::Interactive } else { Channel::Headless },
    }
}

pub(super) fn tool() -> ToolRef {
    ToolRef { namespace: known(Namespace::new("files")), tool: known(ToolName::new("write")) }
}

pub(super) fn signature() -> Signature {
    Signature("files/write".into())
}

pub(super) fn process(pid: u32) -> Process {
    Process { boot: "boot".into(), pid, started: 1 }
}

fn known<T, E: std::fmt::Debug>(id: Result<T, E>) -> T {
    match id {
        Ok(id) => id,
        Err(error) => unreachable!("a fixed text is an identifier: {error:?}"),
    }
}

pub(super) fn output() -> Output {
    Output { content: RawJson::from_trusted("1"), metadata: None }
}

/// Draws the outcome of an attempt.
pub(super) fn outcome(draw: &mut Draw<'_>) -> Outcome {
    let second = Duration::from_secs(1);
    let refused = Source::Transport { error: Transport::ConnectionRefused, written: false };
    let reset = Source::Transport { error: Transport::ConnectionReset, written: true };
    let source = match draw.byte() % 17 {
        0 => return Outcome::Success { output: output(), concern: None },
        1 => return Outcome::Success { output: output(), concern: Some(Severity::ServerError) },
        2 => refused,
        3 => reset,
        4 => Source::Http { status: 503 },
        5 => Source::Http { status: 500 },
        6 => Source::Http { status: 400 },
        7 => Source::Timeout { after: second },
        8 => Source::IsError,
        9 => Source::Tool,
        10 => Source::JsonRpc { code: -32602 },
        11 => Source::JsonRpc { code: -32603 },
        12 => Source::Exit { code: None, signal: Some(9) },
        13 => Source::Panic,
        14 => Source::SessionLost,
        16 => return Outcome::InputRequired { output: output() },
        _ => Source::BadAnswer,
    };
    let told = draw.byte();
    let retry_after = match told % 4 {
        1 => Some(RetryAfter::Delay(second)),
        2 => Some(RetryAfter::Delay(Duration::MAX)),
        _ => None,
    };
    let fault = Fault { retry_after, ..Fault::new(source, "it did not work") };
    Outcome::Failure { fault, output: (told & 4 != 0).then(output) }
}

/// The number of kinds of events of [`stray`].
pub(super) const STRAYS: u8 = 23;

/// Draws any event, whatever the pending step is. The record's ownership and its start mark are never invented: a
/// driver reports only what its store has written. `own` is the token of the record that the call has.
pub(super) fn stray(draw: &mut Draw<'_>, own: Option<Owner>, now: Timestamp) -> Event {
    let owner = Owner { process: process(3), call: 0, claim: 0 };
    let key = Key(Digest::of(b"explicit"));
    let receipt = Receipt { key, owner, version: 1 };
    let replay = |answer| {
        let (reason, age) = (ReplayReason::SameKey, Duration::ZERO);
        ClaimVerdict::Replay(Box::new(Replay { answer, reason, age, receipt: receipt.clone() }))
    };
    match draw.byte() % STRAYS {
        0 => Event::Woke(Wake::Time),
        1 => Event::Woke(Wake::Changed),
        2 => Event::Woke(Wake::LeaderRefused(Box::new(failure()))),
        3 => Event::Answered(answer(draw)),
        4 => Event::Spent(draw.pick([
            Spend::Spent,
            Spend::AlreadyMine,
            Spend::Holds,
            Spend::Lost,
            Spend::Gone,
        ])),
        5 => Event::Started(StartVerdict::Lost),
        6 => Event::Ran(outcome(draw)),
        7 => {
            let own = own.unwrap_or_else(|| receipt.owner.clone());
            // An earlier claim of the same call, whose renewal arrives late.
            let stale = Owner { claim: own.claim.wrapping_add(1), ..own.clone() };
            let (owner, verdict) = draw.pick([
                (own.clone(), RenewVerdict::Renewed),
                (own.clone(), RenewVerdict::MarkedUnknown),
                (own, RenewVerdict::Lost),
                (stale.clone(), RenewVerdict::Renewed),
                (stale.clone(), RenewVerdict::MarkedUnknown),
                (stale, RenewVerdict::Lost),
            ]);
            Event::Renewed { owner, sent: now, verdict }
        }
        8 => Event::Saved(draw.pick([SaveVerdict::FenceLost, SaveVerdict::Saved(receipt)])),
        9 => Event::Released,
        10 => Event::StoreFailed(draw.pick([StoreFault::NotDone, StoreFault::Unanswered])),
        11 => Event::Progressed,
        12 => Event::Cancelled(draw.pick([Others::None, Others::Waiting])),
        13 => Event::Disconnected(draw.pick([Others::None, Others::Waiting])),
        14 => Event::Claimed(ClaimVerdict::Follow(key)),
        15 => Event::Claimed(ClaimVerdict::Unknown(Box::new(Unsettled {
            end: draw.pick([
                End::Settled,
                End::NotYet(None),
                End::NotYet(Some(Duration::from_secs(5))),
                End::NotYet(Some(Duration::MAX)),
            ]),
            observed: Observed::NoAnswer,
            words: None,
            output: None,
            runs_in: None,
            receipt,
        }))),
        16 => Event::Claimed(draw.pick([ClaimVerdict::Busy, ClaimVerdict::Conflict, ClaimVerdict::Full])),
        17 => Event::Claimed(ClaimVerdict::Nothing),
        18 => Event::Claimed(replay(Ok(Some(output())))),
        19 => Event::Claimed(replay(Ok(None))),
        21 => Event::Settled,
        22 => Event::DriverEnds,
        _ => Event::Claimed(replay(Err(failure()))),
    }
}

pub(super) fn answer(draw: &mut Draw<'_>) -> Approval {
    draw.pick([
        Approval::Granted(None),
        Approval::Granted(Some(GrantId(1))),
        Approval::Denied,
        Approval::Nobody,
    ])
}

fn failure() -> Failure {
    Failure {
        code: Code::CircuitOpen,
        message: "not now".into(),
        retriable: true,
        terminal: false,
        rule: None,
        verify: None,
        retry_after: None,
        output: None,
    }
}
