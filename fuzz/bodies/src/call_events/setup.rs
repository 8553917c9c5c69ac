//! Policies, requests and events, derived from bytes.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalChannel, GrantId, SpendVerdict};
use steadfast_core::call::{
    ApprovalOutcome, AttemptEndVisibility, AttemptReport, CallEvent, CallRequest, CallerHints,
    CallerPatience, Deduplication, OtherWaiters, RunnerKind, StoreFault, UpstreamKey, WakeReason,
};
use steadfast_core::classify::signature::Signature;
use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, Severity, TransportError};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    CallFailure, ClaimOwner, ClaimVerdict, DeliveryReceipt, ProcessIdentity, RecordAddress, RenewVerdict,
    ReplayReason, ReplayedResult, SaveVerdict, SettleStatus, StartVerdict, UnknownOutcomeReason,
    UnknownOutcomeStatus,
};
use steadfast_core::id::{
    Digest, Domain, Namespace, RequestId, RunId, SessionKey, ToolName, ToolRef, TurnId,
};
use steadfast_core::key::RecordKey;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{
    AmbiguousOutcomePolicy, ApprovalTrigger, ArgumentCheck, CallPolicy, DangerousCommandPolicy,
    EnforcementMode, FailureReplayPolicy, MechanismModes, PolicyProfile, RateLimit, RepeatedSuccessPolicy,
    StoreFailurePolicy, ToolClass, TrustRule, UnknownOutcomePolicy,
};
use steadfast_core::retry::CallerLimits;
use steadfast_json::RawJson;

use crate::draw::InputDraw;

pub(super) fn policy(draw: &mut InputDraw<'_>) -> CallPolicy {
    let class =
        draw.pick([ToolClass::Mutating, ToolClass::Unknown, ToolClass::ReadOnly, ToolClass::Idempotent]);
    let mut policy =
        draw.pick([PolicyProfile::Standard, PolicyProfile::Measured, PolicyProfile::Stepped]).policy(class);
    if draw.flag() {
        policy = policy.for_gateway();
    }
    let mut mode = || {
        draw.pick([
            EnforcementMode::Enforce,
            EnforcementMode::Enforce,
            EnforcementMode::Enforce,
            EnforcementMode::Shadow,
            EnforcementMode::Off,
        ])
    };
    policy.modes =
        MechanismModes { dedupe: mode(), retry: mode(), breaker: mode(), guard: mode(), trust: mode() };
    policy.repeat.retry_safe = draw.flag();
    policy.repeat.ambiguous =
        draw.pick([policy.repeat.ambiguous, AmbiguousOutcomePolicy::Retry, AmbiguousOutcomePolicy::Stop]);
    policy.dedupe.cache_failures =
        draw.pick([FailureReplayPolicy::Terminal, FailureReplayPolicy::All, FailureReplayPolicy::None]);
    policy.dedupe.after_unknown = draw.pick([UnknownOutcomePolicy::TellOnce, UnknownOutcomePolicy::Hold]);
    policy.dedupe.on_store_failure = draw.pick([StoreFailurePolicy::GoOn, StoreFailurePolicy::Refuse]);
    policy.dedupe.largest_output = draw.pick([8 << 20, 0]);
    policy.approval.when =
        draw.pick([ApprovalTrigger::Escalated, ApprovalTrigger::Always, ApprovalTrigger::Never]);
    policy.approval.dangerous = draw.pick([DangerousCommandPolicy::Record, DangerousCommandPolicy::Ask]);
    policy.arguments = draw.pick([ArgumentCheck::Assist, ArgumentCheck::Enforce, ArgumentCheck::Off]);
    policy.domain_trust = draw.flag().then(TrustRule::default);
    let one = NonZeroU32::MIN;
    match draw.byte() % 6 {
        1 => policy.limits.concurrency = Some(one),
        2 => policy.limits.rate = Some(RateLimit { attempts: one, per: Duration::from_secs(60) }),
        3 => policy.breaker.forced_open = true,
        4 => policy.guard.repeated_success = RepeatedSuccessPolicy::Refuse(one),
        5 => policy.time.total = Duration::ZERO,
        _ => {}
    }
    policy
}

pub(super) fn request(draw: &mut InputDraw<'_>, number: u64, now: Timestamp) -> CallRequest {
    let key = |name: &str| RecordKey(Digest::of(name.as_bytes()));
    let index = key("index");
    let duplicates = match draw.byte() % 7 {
        0 => Deduplication::Joined(RecordAddress::Explicit(key("explicit"))),
        1 => Deduplication::Joined(RecordAddress::Keyless { run: key(&format!("run {number}")), index }),
        2 => Deduplication::Joined(RecordAddress::CallId { id: key("id"), index }),
        3 => Deduplication::Joined(RecordAddress::CallId { id: key("another id"), index }),
        4 => Deduplication::Refused(RecordAddress::Explicit(key("explicit"))),
        5 => Deduplication::Refused(RecordAddress::Keyless { run: key(&format!("run {number}")), index }),
        _ => Deduplication::Allowed,
    };
    let sent_key = match duplicates {
        Deduplication::Joined(RecordAddress::Explicit(_)) => UpstreamKey::Given,
        Deduplication::Joined(_) | Deduplication::Refused(_) | Deduplication::Allowed => UpstreamKey::Run,
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
    CallRequest {
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
        waits: if hints & 4 == 0 { CallerPatience::MayGiveUp } else { CallerPatience::UntilDone },
        run_by: RunnerKind::Driver,
        end: if hints & 16 == 0 { AttemptEndVisibility::Hidden } else { AttemptEndVisibility::Visible },
        reads: Arc::default(),
        hints: CallerHints { expected_retry_safe: hints & 1 != 0, safety_critical: hints & 2 != 0 },
        channel: if shape & 64 == 0 { ApprovalChannel::Interactive } else { ApprovalChannel::Headless },
    }
}

pub(super) fn tool() -> ToolRef {
    ToolRef { namespace: known(Namespace::new("files")), tool: known(ToolName::new("write")) }
}

pub(super) fn signature() -> Signature {
    Signature("files/write".into())
}

pub(super) fn process(pid: u32) -> ProcessIdentity {
    ProcessIdentity { boot: "boot".into(), pid, started: 1 }
}

fn known<T, E: std::fmt::Debug>(id: Result<T, E>) -> T {
    match id {
        Ok(id) => id,
        Err(error) => unreachable!("a fixed text is an identifier: {error:?}"),
    }
}

pub(super) fn output() -> ToolOutput {
    ToolOutput { content: RawJson::from_trusted("1"), metadata: None }
}

/// Draws the outcome of an attempt.
pub(super) fn outcome(draw: &mut InputDraw<'_>) -> AttemptReport {
    let second = Duration::from_secs(1);
    let refused = FaultSource::Transport { error: TransportError::ConnectionRefused, written: false };
    let reset = FaultSource::Transport { error: TransportError::ConnectionReset, written: true };
    let source = match draw.byte() % 17 {
        0 => return AttemptReport::Success { output: output(), concern: None },
        1 => return AttemptReport::Success { output: output(), concern: Some(Severity::ServerError) },
        2 => refused,
        3 => reset,
        4 => FaultSource::Http { status: 503 },
        5 => FaultSource::Http { status: 500 },
        6 => FaultSource::Http { status: 400 },
        7 => FaultSource::Timeout { after: second },
        8 => FaultSource::IsError,
        9 => FaultSource::Tool,
        10 => FaultSource::JsonRpc { code: -32602 },
        11 => FaultSource::JsonRpc { code: -32603 },
        12 => FaultSource::Exit { code: None, signal: Some(9) },
        13 => FaultSource::Panic,
        14 => FaultSource::SessionLost,
        16 => return AttemptReport::InputRequired { output: output() },
        _ => FaultSource::BadAnswer,
    };
    let details = draw.byte();
    let retry_after = match details % 4 {
        1 => Some(RetryAfter::Delay(second)),
        2 => Some(RetryAfter::Delay(Duration::MAX)),
        _ => None,
    };
    let fault = AttemptFault { retry_after, ..AttemptFault::new(source, "it did not work") };
    AttemptReport::Failure { fault, output: (details & 4 != 0).then(output) }
}

/// The number of kinds of events of [`stray`].
pub(super) const STRAYS: u8 = 23;

/// Draws any event, whatever the pending step is. The record's ownership and its start mark are never invented: a
/// driver reports only what its store has written. `own` is the token of the record that the call has.
pub(super) fn stray(draw: &mut InputDraw<'_>, own: Option<ClaimOwner>, now: Timestamp) -> CallEvent {
    let owner = ClaimOwner { process: process(3), call: 0, claim: 0 };
    let key = RecordKey(Digest::of(b"explicit"));
    let receipt = DeliveryReceipt { key, owner, version: 1 };
    let replay = |answer| {
        let (reason, age) = (ReplayReason::SameKey, Duration::ZERO);
        ClaimVerdict::Replay(Box::new(ReplayedResult { answer, reason, age, receipt: receipt.clone() }))
    };
    match draw.byte() % STRAYS {
        0 => CallEvent::Woke(WakeReason::Time),
        1 => CallEvent::Woke(WakeReason::Changed),
        2 => CallEvent::Woke(WakeReason::LeaderRefused(Box::new(failure()))),
        3 => CallEvent::Answered(answer(draw)),
        4 => CallEvent::Spent(draw.pick([
            SpendVerdict::Spent,
            SpendVerdict::AlreadyMine,
            SpendVerdict::Holds,
            SpendVerdict::Lost,
            SpendVerdict::Gone,
        ])),
        5 => CallEvent::Started(StartVerdict::Lost),
        6 => CallEvent::Ran(outcome(draw)),
        7 => {
            let own = own.unwrap_or_else(|| receipt.owner.clone());
            // An earlier claim of the same call, whose renewal arrives late.
            let stale = ClaimOwner { claim: own.claim.wrapping_add(1), ..own.clone() };
            let (owner, verdict) = draw.pick([
                (own.clone(), RenewVerdict::Renewed),
                (own.clone(), RenewVerdict::MarkedUnknown),
                (own, RenewVerdict::Lost),
                (stale.clone(), RenewVerdict::Renewed),
                (stale.clone(), RenewVerdict::MarkedUnknown),
                (stale, RenewVerdict::Lost),
            ]);
            CallEvent::Renewed { owner, sent: now, verdict }
        }
        8 => CallEvent::Saved(draw.pick([SaveVerdict::FenceLost, SaveVerdict::Saved(receipt)])),
        9 => CallEvent::Released,
        10 => CallEvent::StoreFailed(draw.pick([StoreFault::NotDone, StoreFault::Unanswered])),
        11 => CallEvent::Progressed,
        12 => CallEvent::Cancelled(draw.pick([OtherWaiters::None, OtherWaiters::Waiting])),
        13 => CallEvent::Disconnected(draw.pick([OtherWaiters::None, OtherWaiters::Waiting])),
        14 => CallEvent::Claimed(ClaimVerdict::Follow(key)),
        15 => CallEvent::Claimed(ClaimVerdict::Unknown(Box::new(UnknownOutcomeStatus {
            end: draw.pick([
                SettleStatus::Settled,
                SettleStatus::NotYet(None),
                SettleStatus::NotYet(Some(Duration::from_secs(5))),
                SettleStatus::NotYet(Some(Duration::MAX)),
            ]),
            observed: UnknownOutcomeReason::NoAnswer,
            details: None,
            output: None,
            runs_in: None,
            receipt,
        }))),
        16 => CallEvent::Claimed(draw.pick([ClaimVerdict::Busy, ClaimVerdict::Conflict, ClaimVerdict::Full])),
        17 => CallEvent::Claimed(ClaimVerdict::Nothing),
        18 => CallEvent::Claimed(replay(Ok(Some(output())))),
        19 => CallEvent::Claimed(replay(Ok(None))),
        21 => CallEvent::Settled,
        22 => CallEvent::DriverEnds,
        _ => CallEvent::Claimed(replay(Err(failure()))),
    }
}

pub(super) fn answer(draw: &mut InputDraw<'_>) -> ApprovalOutcome {
    draw.pick([
        ApprovalOutcome::Granted(None),
        ApprovalOutcome::Granted(Some(GrantId(1))),
        ApprovalOutcome::Denied,
        ApprovalOutcome::Unreachable,
    ])
}

fn failure() -> CallFailure {
    CallFailure {
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
