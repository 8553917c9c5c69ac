//! Questions during a call: approval requests to the client, and tools that ask for input first.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use steadfast_core::approval::{ApprovalChannel, ApprovalDecision, Grantor, ParkedRequest, ParkedRequestId};
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{ApprovalTrigger, CallPolicy, EnforcementMode, PolicyProfile, ToolClass};
use steadfast_core::trust::TrustTarget;
use steadfast_executor::{
    ApprovalPrompter, Attempt, AttemptError, CallOptions, CallResponse, ClientDecision, ClientDecisionFuture,
    Engine, OperatorIdentity, OperatorSurface, RuntimeClock, ToolResult,
};
use steadfast_json::RawJson;
use steadfast_store::{Journal, JournalQuery, MemoryOptions, MemoryStore, StateStore};

fn by() -> OperatorIdentity {
    OperatorIdentity::new("ann", OperatorSurface::Library)
}

fn policy() -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Mutating);
    policy.modes.guard = EnforcementMode::Off;
    policy
}

fn needs_approval() -> CallPolicy {
    let mut policy = policy();
    policy.approval.when = ApprovalTrigger::Always;
    policy
}

async fn engine(policy: CallPolicy) -> Engine {
    Engine::builder().clock(Arc::new(RuntimeClock::new())).policies(Arc::new(policy)).start().await
}

fn pay(amount: u32, key: &str) -> CallEnvelope {
    let text = format!(
        r#"{{"contractVersion":"1.1","requestId":"r","toolName":"pay","toolNamespace":"bank",
            "target":{{"sessionKey":"s","actorId":"ann"}},
            "payload":{{"version":"1.0","params":{{"amount":{amount}}},"idempotencyKey":"{key}"}}}}"#
    );
    CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
}

fn text(words: &str) -> ToolOutput {
    ToolOutput { content: RawJson::string(words), metadata: None }
}

async fn works(_: Attempt) -> ToolResult {
    Ok(text("paid"))
}

fn code(called: &CallResponse) -> Option<Code> {
    called.result.error.as_ref().map(|error| error.code)
}

/// A prompter with a fixed decision, or none at all. Records the requests, and those that were dropped.
#[derive(Debug, Default)]
struct ScriptedApprover {
    decision: Option<ClientDecision>,
    requests: Mutex<Vec<ParkedRequestId>>,
    given_up: Arc<AtomicU32>,
}

struct DropCounter(Arc<AtomicU32>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl ApprovalPrompter for ScriptedApprover {
    fn ask(&self, id: ParkedRequestId, _: ParkedRequest) -> ClientDecisionFuture {
        self.requests.lock().push(id);
        let (decision, given_up) = (self.decision.clone(), DropCounter(self.given_up.clone()));
        Box::pin(async move {
            let _given_up = given_up;
            match decision {
                Some(decision) => decision,
                None => std::future::pending().await,
            }
        })
    }
}

fn interactive(person: &Arc<ScriptedApprover>) -> CallOptions {
    let asker: Arc<dyn ApprovalPrompter> = person.clone();
    CallOptions { channel: ApprovalChannel::Interactive, prompter: Some(asker), ..CallOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn rp_7_the_decision_of_the_user_at_the_client_counts() {
    for (decision, expected) in [
        (ClientDecision::Decided(ApprovalDecision::Once), None),
        (ClientDecision::Decided(ApprovalDecision::Deny), Some(Code::ApprovalDenied)),
        (ClientDecision::Unavailable, Some(Code::ApprovalRequired)),
    ] {
        let engine = engine(needs_approval()).await;
        let person =
            Arc::new(ScriptedApprover { decision: Some(decision.clone()), ..ScriptedApprover::default() });
        for key in ["k", "l"] {
            let called = engine.call_with(pay(1, key), works, interactive(&person)).await;
            assert_eq!(code(&called), expected, "{decision:?}");
        }
        assert_eq!(person.requests.lock().len(), 2, "each call asks: {decision:?}");
        let other = engine.call(pay(2, "m"), works).await;
        assert_eq!(code(&other), Some(Code::ApprovalRequired), "it was about other arguments");
    }
}

#[tokio::test(start_paused = true)]
async fn rp_7_a_faster_operator_decides_and_the_prompt_is_dropped() {
    let engine = engine(needs_approval()).await;
    let person = Arc::new(ScriptedApprover::default());
    let calling = tokio::spawn(engine.call_with(pay(1, "k"), works, interactive(&person)));
    while person.requests.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    let (id, _) = engine.admin().approvals(None).pop().unwrap();
    assert_eq!(
        (person.requests.lock().as_slice(), person.given_up.load(Ordering::SeqCst)),
        ([id].as_slice(), 0)
    );
    engine.admin().decide(None, id, ApprovalDecision::Once, Grantor::Operator, &by()).await.unwrap();
    assert_eq!(code(&calling.await.unwrap()), None);
    assert_eq!(person.given_up.load(Ordering::SeqCst), 1);
    let unanswered = engine.call_with(pay(1, "l"), works, interactive(&person)).await;
    assert_eq!(code(&unanswered), Some(Code::ApprovalRequired), "the wait is bounded");
    assert_eq!(person.given_up.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn rp_7_an_approval_request_to_the_caller_is_its_answer_and_claims_nothing() {
    let engine = engine(needs_approval()).await;
    let person = ScriptedApprover {
        decision: Some(ClientDecision::PutToCaller(text("may it?"))),
        ..ScriptedApprover::default()
    };
    let person = Arc::new(person);
    for _ in 0..2 {
        let called = engine.call_with(pay(1, "k"), works, interactive(&person)).await;
        assert_eq!(called.result.output, Some(text("may it?")));
        assert_eq!((called.result.from_cache, called.result.attempts), (false, 0));
    }
    assert_eq!(
        engine.admin().approvals(None).len(),
        1,
        "both ask for the same, and an operator can answer it"
    );
    let approver = Arc::new(ScriptedApprover {
        decision: Some(ClientDecision::Decided(ApprovalDecision::Once)),
        ..ScriptedApprover::default()
    });
    let called = engine.call_with(pay(1, "k"), works, interactive(&approver)).await;
    assert_eq!(called.result.output, Some(text("paid")));
    assert_eq!(approver.requests.lock().last(), person.requests.lock().last(), "the same request");
}

#[tokio::test(start_paused = true)]
async fn rp_7_only_an_operator_can_approve_a_blocked_tool() {
    let mut policy = policy();
    policy.trust.block_after = 1.try_into().unwrap();
    policy.retry.attempts = 1.try_into().unwrap();
    policy.modes.breaker = EnforcementMode::Off;
    let engine = engine(policy).await;
    let person = Arc::new(ScriptedApprover {
        decision: Some(ClientDecision::Decided(ApprovalDecision::Once)),
        ..ScriptedApprover::default()
    });
    let fails = async |_: Attempt| -> ToolResult {
        Err(AttemptFault::new(FaultSource::Http { status: 500 }, "no").into())
    };
    // Three failures escalate its trust. A failure with an approved call blocks it.
    for number in 0..4 {
        engine.call_with(pay(number, &format!("k{number}")), fails, interactive(&person)).await;
    }
    let before = person.requests.lock().len();
    let called = engine.call_with(pay(9, "l"), works, interactive(&person)).await;
    assert_eq!((code(&called), before), (Some(Code::ToolBlocked), 1));
    assert_eq!(person.requests.lock().len(), before);
    engine.admin().reset_trust(None, TrustTarget::All, &by()).await.unwrap();
    assert_eq!(code(&engine.call(pay(9, "m"), works).await), None, "forgiven");
}

#[tokio::test(start_paused = true)]
async fn an_input_request_of_a_tool_is_returned_each_time_and_recorded_as_one() {
    let clock = Arc::new(RuntimeClock::new());
    let store: Arc<dyn StateStore> = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let engine =
        Engine::builder().clock(clock).store(store.clone()).policies(Arc::new(policy())).start().await;
    let runs = Arc::new(AtomicU32::new(0));
    for round in 1..=3 {
        let counted = runs.clone();
        let asks_for_input = move |_: Attempt| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err::<ToolOutput, _>(AttemptError::InputRequired(text("which account?"))))
        };
        let called = engine.call(pay(1, "k"), asks_for_input).await;
        assert_eq!((code(&called), called.result.output), (None, Some(text("which account?"))));
        assert_eq!((called.result.from_cache, runs.load(Ordering::SeqCst)), (false, round));
    }
    assert_eq!(engine.call(pay(1, "k"), works).await.result.output, Some(text("paid")), "nothing is unknown");
    engine.shutdown(std::time::Duration::ZERO).await;
    let entries = store.entries(&JournalQuery::newest(Journal::History, 10)).await.unwrap();
    let input_required =
        entries.iter().filter(|(_, entry)| entry.body.contains("\"inputRequired\":true")).count();
    assert_eq!((entries.len(), input_required), (4, 3));
}
