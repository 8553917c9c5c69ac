//! Calls and stores for these tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    CallFailure, Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules,
    LocalKnowledge, ProcessIdentity, RecordAddress, ReleaseRequest, RunOutcome, SaveRequest, SaveVerdict,
    SettleDelay, UnknownOutcomeReason, UnknownOutcomeReport,
};
use steadfast_core::id::{Digest, Namespace, RequestId, RunId, ToolName, ToolRef};
use steadfast_core::key::{RecordKey, run_key};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{DedupePolicy, PolicyProfile, RecordLifetimes, ToolClass};
use steadfast_json::RawJson;
use steadfast_store::{StateStore, StoreError, StoreEvent};
use steadfast_store_redis::{KeyPrefix, Options, RedisStore};
use tokio::sync::broadcast;

/// A guard against hanging tests, not a measured limit. Used for events that must come, and as the timeout of a
/// store.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A lease that is longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Options for this server with a unique prefix.
pub(crate) fn options(url: &str) -> Options {
    let prefix = format!("test{}:", NUMBER.fetch_add(1, Ordering::Relaxed));
    Options { prefix: KeyPrefix::new(&prefix).unwrap(), ..patient(url) }
}

/// Options for this server, for which no working server is too slow.
pub(crate) fn patient(url: &str) -> Options {
    let (command_timeout, connect_timeout) = (TEST_TIMEOUT, TEST_TIMEOUT);
    Options { command_timeout, connect_timeout, ..Options::parse(url).unwrap() }
}

/// A call with a key, to a tool that must not run twice.
pub(crate) fn claim(key: &str) -> Claim {
    at(RecordAddress::Explicit(RecordKey(Digest::of(key.as_bytes()))))
}

/// A call that is identified by its arguments only.
pub(crate) fn keyless(arguments: &str) -> Claim {
    let index = RecordKey(Digest::of(arguments.as_bytes()));
    let claim = claim("");
    let address = RecordAddress::Keyless { run: run_key(index, &claim.run), index };
    Claim { address, ..claim }
}

fn at(address: RecordAddress) -> Claim {
    let call = NUMBER.fetch_add(1, Ordering::Relaxed);
    Claim {
        address,
        intent: ClaimIntent::Take { started: true },
        role: ClaimRole::Fresh,
        owner: ClaimOwner {
            process: ProcessIdentity { boot: "here".into(), pid: 1, started: 1 },
            call,
            claim: 1,
        },
        digest: Digest::of(b"arguments"),
        retry_safe: false,
        best_effort: false,
        arrived: steadfast_core::Timestamp::ZERO,
        age: Duration::ZERO,
        end_observed_within: None,
        run: RunId(format!("run-{call}").into()),
        rules: DedupeRules::from(&PolicyProfile::Standard.policy(ToolClass::Mutating)),
        tool: ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() },
        request: RequestId::new(format!("request-{call}")).unwrap(),
        tool_call: None,
        context: None,
        session: None,
        actor: None,
        tenant: None,
    }
}

/// The same call with another lease.
pub(crate) fn with_lease(claim: Claim, lease: Duration) -> Claim {
    let keep = RecordLifetimes { lease, ..claim.rules.keep };
    Claim { rules: DedupeRules { keep, ..claim.rules }, ..claim }
}

pub(crate) fn done(text: &str) -> RunOutcome {
    RunOutcome::Done(Some(ToolOutput { content: RawJson::string(text), metadata: None }))
}

/// An unknown outcome with a partial output.
pub(crate) fn unknown(settles: SettleDelay) -> RunOutcome {
    let output = Some(ToolOutput { content: RawJson::string("perhaps"), metadata: None });
    let words = Some("how it was said".into());
    RunOutcome::Unknown(UnknownOutcomeReport {
        settles,
        observed: UnknownOutcomeReason::ErrorAnswer,
        details: words,
        output,
    })
}

/// A permanent failure, which is a result.
pub(crate) fn failed() -> RunOutcome {
    RunOutcome::Failed(CallFailure {
        code: Code::ToolError,
        message: "no".into(),
        retriable: false,
        terminal: true,
        rule: None,
        verify: None,
        retry_after: None,
        output: None,
    })
}

pub(crate) fn save(claimed: &DedupeRecord, text: &str) -> SaveRequest {
    SaveRequest {
        claimed: Arc::new(claimed.clone()),
        ending: done(text),
        attempts: Vec::new(),
        delivered: None,
        hold: false,
        keep: DedupePolicy::default().keep,
    }
}

pub(crate) fn release(record: &DedupeRecord) -> ReleaseRequest {
    ReleaseRequest { key: record.key, index: record.index, owner: record.owner.clone() }
}

/// Claims a key that must be free.
pub(crate) async fn take(store: &RedisStore, claim: &Claim) -> DedupeRecord {
    match store.claim(claim, &LocalKnowledge::default()).await {
        Ok(ClaimVerdict::Acquired(record)) => Arc::unwrap_or_clone(record),
        other => panic!("expected mine, got {other:?}"),
    }
}

/// Claims and saves, and both must succeed.
pub(crate) async fn run(store: &RedisStore, claim: &Claim, text: &str) -> DedupeRecord {
    let record = take(store, claim).await;
    assert!(matches!(store.save(&save(&record, text)).await, Ok(SaveVerdict::Saved(_))));
    record
}

/// Returns the verdict of a claim as a word.
pub(crate) async fn verdict(store: &RedisStore, claim: &Claim) -> &'static str {
    match store.claim(claim, &LocalKnowledge::default()).await.unwrap() {
        ClaimVerdict::Acquired(_) => "mine",
        ClaimVerdict::Follow(_) => "follow",
        ClaimVerdict::Replay(_) => "replay",
        ClaimVerdict::Unknown(_) => "tell",
        ClaimVerdict::StoreRecovering => "closed",
        ClaimVerdict::RecordsLost => "records lost",
        ClaimVerdict::Conflict => "conflict",
        ClaimVerdict::Nothing => "nothing",
        ClaimVerdict::Busy => "busy",
        ClaimVerdict::Full => "full",
    }
}

/// Waits for an event that must come.
pub(crate) async fn within<F: Future>(event: &str, future: F) -> F::Output {
    let outcome = tokio::time::timeout(TEST_TIMEOUT, future).await;
    outcome.unwrap_or_else(|_| panic!("{event}: nothing came within {TEST_TIMEOUT:?}"))
}

/// Waits for this event.
pub(crate) async fn wait_for_event(events: &mut broadcast::Receiver<StoreEvent>, expected: StoreEvent) {
    let listening = async { while events.recv().await.unwrap() != expected {} };
    within(&format!("{expected:?}"), listening).await;
}

/// Waits for the event that the store is lost. Returns the reason.
pub(crate) async fn wait_for_outage(events: &mut broadcast::Receiver<StoreEvent>) -> Arc<str> {
    let listening = async {
        loop {
            if let StoreEvent::Unavailable(reason) = events.recv().await.unwrap() {
                return reason;
            }
        }
    };
    within("lost", listening).await
}

/// Tries until the operation succeeds: after an outage it may fail a few more times.
pub(crate) async fn eventually<T, F: Future<Output = Result<T, StoreError>>>(
    mut attempt: impl FnMut() -> F,
) -> T {
    let trying = async {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    within("the store does it", trying).await
}
