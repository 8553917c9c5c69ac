//! Hosts that run their tools themselves, in the process of the engine: on threads without a runtime, with futures that
//! are polled once, and with futures that are dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use steadfast_core::breaker::State;
use steadfast_core::call::CallNotice;
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::classify::TransportError;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::guard::GuardVerdict;
use steadfast_core::id::TurnId;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{
    Backoff, CallPolicy, EnforcementMode, GrowthFactor, MechanismModes, ToolClass,
};
use steadfast_core::trust::TrustState;
use steadfast_executor::{
    AnsweredCall, Attempt, CallOptions, Engine, EngineListener, HostAbilities, HostAttempts, HostError,
    HostLocation, HostStep, NoticeContext, OrderEnd, RunOrder, ToolFault,
};
use tokio::runtime::{Builder, Runtime};

use super::turns::scripted::{ok, reset, settle};
use super::{GatedTool, code, engine, pay, standard};

/// Returns a runtime with one thread of its own, and an engine on it. The thread of the test has no runtime.
fn engine_of_another_thread(policy: CallPolicy) -> (Runtime, Engine) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let engine = runtime.block_on(engine(policy));
    (runtime, engine)
}

/// Polls a future once, as a binding does that returns a value at once if there is one.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn at_first_poll<F: Future>(future: F) -> F::Output {
    match poll_once(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future has to wait"),
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread, without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn ordered(step: HostStep) -> RunOrder {
    match step {
        HostStep::Run(order) => order,
        HostStep::Answered(called) => panic!("answered: {called:?}"),
    }
}

/// Returns a policy whose retries come at once.
fn impatient(class: ToolClass) -> CallPolicy {
    let mut policy = standard(class);
    policy.retry.backoff = Backoff::Exponential {
        base: Duration::from_millis(1),
        factor: GrowthFactor::ONE,
        cap: Duration::from_millis(1),
    };
    policy
}

#[test]
fn begin_and_report_complete_at_their_first_poll_on_a_thread_without_a_runtime() {
    let (_runtime, engine) = engine_of_another_thread(standard(ToolClass::Mutating));
    for amount in 0..20 {
        let key = format!("key {amount}");
        let order = ordered(at_first_poll(engine.begin(pay(amount, Some(&key)), CallOptions::default())));
        assert_eq!((order.attempt, engine.in_flight_calls()), (1, 1));
        let Ok(HostStep::Answered(called)) = at_first_poll(engine.report(order.call, 1, ok())) else {
            panic!()
        };
        assert_eq!((called.result.status, called.result.attempts), (CallStatus::Success, 1));
        assert_eq!(engine.in_flight_calls(), 0, "nothing of the call is left for another thread");
        let again = at_first_poll(engine.begin(pay(amount, Some(&key)), CallOptions::default()));
        let HostStep::Answered(replayed) = again else { panic!() };
        assert!(replayed.result.from_cache);
    }
}

#[test]
fn a_retry_that_has_to_wait_continues_on_the_runtime_of_the_engine() {
    let (_runtime, engine) = engine_of_another_thread(impatient(ToolClass::Idempotent));
    let order = ordered(at_first_poll(engine.begin(pay(1, Some("k")), CallOptions::default())));
    let again = block_on(engine.report(order.call, 1, reset())).unwrap();
    assert_eq!(ordered(again).attempt, 2);
    let Ok(HostStep::Answered(called)) = at_first_poll(engine.report(order.call, 2, ok())) else { panic!() };
    assert_eq!((called.result.status, called.result.attempts), (CallStatus::Success, 2));
}

#[test]
fn a_call_that_is_polled_outside_of_a_runtime_has_timers() {
    let mut policy = standard(ToolClass::ReadOnly);
    policy.time.attempt = Duration::from_millis(1);
    policy.retry.attempts = 1.try_into().unwrap();
    let (_runtime, engine) = engine_of_another_thread(policy);
    let called = block_on(engine.call(pay(1, None), GatedTool::new()));
    assert_eq!(code(&called), Some(Code::Timeout));
}

/// A pending call that was dropped on a thread without a runtime used to be lost: it neither continued nor released its
/// claim.
#[test]
fn a_call_that_is_dropped_outside_of_a_runtime_is_completed_by_the_engine() {
    let (_runtime, engine) = engine_of_another_thread(standard(ToolClass::Mutating));
    let tool = GatedTool::new();
    let mut call = Box::pin(engine.call(pay(1, Some("k")), tool.clone()));
    assert!(poll_once(call.as_mut()).is_pending());
    assert_eq!(tool.runs(), 1);
    drop(call);
    tool.leave.add_permits(1);
    let found = block_on(engine.call(pay(1, Some("k")), tool.clone()));
    assert_eq!((found.result.status, found.result.from_cache), (CallStatus::Success, true));
    assert_eq!(tool.runs(), 1);
}

#[test]
fn hosts_on_many_threads_are_served_in_place_and_by_the_runtime() {
    let (_runtime, engine) = engine_of_another_thread(impatient(ToolClass::Idempotent));
    std::thread::scope(|threads| {
        for host in 0..8 {
            let engine = &engine;
            threads.spawn(move || {
                for number in 0..50 {
                    let call = pay(host * 1000 + number, Some(&format!("{host} {number}")));
                    let order = ordered(block_on(engine.begin(call, CallOptions::default())));
                    let Ok(HostStep::Answered(called)) = block_on(engine.report(order.call, 1, ok())) else {
                        panic!()
                    };
                    assert_eq!(called.result.status, CallStatus::Success);
                }
            });
        }
    });
    assert_eq!(engine.in_flight_calls(), 0);
}

/// A listener that panics, which no listener may.
#[derive(Debug)]
struct PanickingListener;

impl EngineListener for PanickingListener {
    fn notice(&self, _about: &NoticeContext<'_>, _notice: &CallNotice) {
        panic!("a listener that panics");
    }
}

#[test]
fn a_panic_of_a_call_reaches_its_host_instead_of_a_wait_without_end() {
    let (_runtime, engine) = engine_of_another_thread(standard(ToolClass::Mutating));
    let options = CallOptions { listener: Some(Arc::new(PanickingListener)), ..CallOptions::default() };
    let begun = catch_unwind(AssertUnwindSafe(|| at_first_poll(engine.begin(pay(1, Some("k")), options))));
    assert_eq!(begun.unwrap_err().downcast_ref::<&str>(), Some(&"a listener that panics"));
    let order = ordered(at_first_poll(engine.begin(pay(2, Some("l")), CallOptions::default())));
    assert!(engine.report_is_answered(&order), "the engine continues");
}

/// Reports a success at the first poll.
trait Reports {
    fn report_is_answered(&self, order: &RunOrder) -> bool;
}

impl Reports for Engine {
    fn report_is_answered(&self, order: &RunOrder) -> bool {
        let step = at_first_poll(self.report(order.call, order.attempt, ok()));
        matches!(step, Ok(HostStep::Answered(_)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_begin_that_is_dropped_while_it_waits_for_another_run_leaves_that_run_alone() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let tool = GatedTool::new();
    let leader = tokio::spawn(engine.call(pay(1, Some("k")), tool.clone()));
    settle().await;
    let mut begun = Box::pin(engine.begin(pay(1, Some("k")), CallOptions::default()));
    assert!(poll_once(begun.as_mut()).is_pending());
    settle().await;
    assert_eq!(engine.in_flight_calls(), 2);
    drop(begun);
    settle().await;
    assert_eq!(engine.in_flight_calls(), 1, "the call of the host that left is over");
    tool.leave.add_permits(1);
    assert_eq!(leader.await.unwrap().result.status, CallStatus::Success);
}

/// Returns a call of the host that waits for its second attempt.
async fn waiting_for_a_retry<'e>(
    engine: &'e Engine,
    key: &str,
) -> (RunOrder, Pin<Box<dyn Future<Output = Result<HostStep, HostError>> + 'e>>) {
    let order = ordered(engine.begin(pay(1, Some(key)), CallOptions::default()).await);
    let mut report: Pin<Box<dyn Future<Output = _>>> = Box::pin(engine.report(order.call, 1, reset()));
    assert!(poll_once(report.as_mut()).is_pending());
    (order, report)
}

#[tokio::test(start_paused = true)]
async fn a_host_that_leaves_before_its_order_is_made_gets_none_and_counts_for_nothing() {
    let engine = engine(standard(ToolClass::Idempotent)).await;
    let (order, report) = waiting_for_a_retry(&engine, "k").await;
    drop(report);
    assert_eq!(engine.heartbeat(order.call, 1), Err(HostError::NoSuchCall));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(engine.in_flight_calls(), 0, "the order was returned at once");
    let again = ordered(engine.begin(pay(1, Some("k")), CallOptions::default()).await);
    assert_eq!((again.attempt, engine.in_flight_calls()), (1, 1), "the claim was released");
}

#[tokio::test(start_paused = true)]
async fn an_order_that_its_host_never_received_is_returned_when_the_future_is_dropped() {
    let engine = engine(standard(ToolClass::Idempotent)).await;
    let (order, report) = waiting_for_a_retry(&engine, "k").await;
    // The order is made on the runtime, and the host has not polled since.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(engine.in_flight_calls(), 1);
    drop(report);
    settle().await;
    assert_eq!(engine.in_flight_calls(), 0);
    assert_eq!(engine.heartbeat(order.call, 2), Err(HostError::NoSuchCall));
    assert_eq!(ordered(engine.begin(pay(1, Some("k")), CallOptions::default()).await).attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn hosts_that_leave_count_neither_for_the_breaker_nor_for_trust() {
    let engine = engine(standard(ToolClass::Idempotent)).await;
    for number in 0..12 {
        // The order of a follower is made when its leader is gone, and its host leaves before it looks.
        let leader = ordered(engine.begin(pay(number, Some(&key)), CallOptions::default()).await);
        let mut follower = Box::pin(engine.begin(pay(number, Some(&key)), CallOptions::default()));
        assert!(poll_once(follower.as_mut()).is_pending());
        engine.return_order(&leader).await.unwrap();
        settle().await;
        assert_eq!(engine.in_flight_calls(), 1, "the follower runs");
        drop(follower);
        settle().await;
        assert_eq!(engine.in_flight_calls(), 0);
    }
    let view = &engine.admin().tools(None, []).await[0];
    assert_eq!((view.breaker, view.trust, view.score), (State::Closed, TrustState::Trusted, None));
}

fn in_process(attempts: HostAttempts) -> CallOptions {
    let host = HostAbilities { attempts, location: HostLocation::InProcess };
    CallOptions { host, ..CallOptions::default() }
}

#[test]
fn a_host_that_cannot_run_again_gets_the_answer_of_the_failed_attempt_at_once() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let (_runtime, engine) = engine_of_another_thread(standard(class));
        let begun = engine.begin(pay(1, Some("k")), in_process(HostAttempts::One));
        let order = ordered(at_first_poll(begun));
        let fault = ToolFault::http(429, "too many requests").retry_after(Duration::from_secs(7));
        let Ok(HostStep::Answered(called)) = at_first_poll(engine.report(order.call, 1, Err(fault.into())))
        else {
            panic!()
        };
        let error = called.result.error.unwrap();
        assert_eq!((error.retriable, error.retry_after_ms, called.result.attempts), (true, Some(7000), 1));
        assert_eq!(engine.in_flight_calls(), 0, "{class:?}");
        // Nothing stands in the way of the repetition that the model decides on.
        assert_eq!(
            ordered(at_first_poll(engine.begin(pay(1, Some("k")), in_process(HostAttempts::One)))).attempt,
            1
        );
    }
}

#[test]
fn an_unknown_outcome_of_a_host_that_cannot_run_again_is_answered_at_once() {
    let (_runtime, engine) = engine_of_another_thread(standard(ToolClass::Mutating));
    let begun = engine.begin(pay(1, Some("k")), in_process(HostAttempts::One));
    let order = ordered(at_first_poll(begun));
    let fault = ToolFault::connection_lost(TransportError::ConnectionReset, "connection reset");
    let Ok(HostStep::Answered(called)) = at_first_poll(engine.report(order.call, 1, Err(fault.into()))) else {
        panic!()
    };
    assert_eq!(code(&called), Some(Code::OutcomeUnknown));
}

#[tokio::test(start_paused = true)]
async fn the_timeouts_of_a_host_in_our_process_count_and_it_learns_of_them() {
    for class in [ToolClass::Idempotent, ToolClass::Mutating] {
        let mut policy = standard(class);
        (policy.modes.guard, policy.modes.trust) = (EnforcementMode::Off, EnforcementMode::Off);
        let timeout = policy.time.attempt;
        let engine = engine(policy).await;
        for amount in 0..5 {
            let order =
                ordered(engine.begin(pay(amount, None), in_process(HostAttempts::One)).await);
            let end = tokio::spawn(engine.order_end(&order));
            tokio::time::sleep(timeout / 2).await;
            assert!(!end.is_finished());
            assert_eq!(end.await.unwrap(), OrderEnd::NotWanted, "{class:?}");
            let report = ToolFault::new("aborted");
            let Ok(HostStep::Answered(called)) =
                engine.report(order.call, 1, Err(report.into())).await
            else {
                panic!()
            };
            let code = code(&called);
            assert!(matches!(code, Some(Code::Timeout | Code::CircuitOpen | Code::OutcomeUnknown)), "{code:?}");
        }
        let called = engine.call(pay(9, None), async |_: Attempt| ok()).await;
        assert_eq!(code(&called), Some(Code::CircuitOpen), "{class:?}: the timeouts opened the breaker");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_in_our_process_that_reports_too_late_gets_the_next_order_instead_of_an_error() {
    let engine = engine(standard(ToolClass::Idempotent)).await;
    let order = ordered(engine.begin(pay(1, Some("k")), in_process(HostAttempts::AsOrdered)).await);
    assert_eq!(engine.order_end(&order).await, OrderEnd::NotWanted);
    // The next attempt is due before this report.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let again = ordered(engine.report(order.call, 1, ok()).await.unwrap());
    assert_eq!(again.attempt, 2);
    assert_eq!(engine.report(order.call, 1, ok()).await.unwrap_err(), HostError::NotThisAttempt);
    let Ok(HostStep::Answered(called)) = engine.report(order.call, 2, ok()).await else { panic!() };
    assert_eq!((called.result.status, called.result.attempts), (CallStatus::Success, 2));
}

#[tokio::test(start_paused = true)]
async fn an_order_ends_when_its_call_is_cancelled_or_its_report_has_come() {
    let engine = engine(standard(ToolClass::Idempotent)).await;
    let cancelled = ordered(engine.begin(pay(1, Some("k")), in_process(HostAttempts::AsOrdered)).await);
    engine.cancel(cancelled.call).unwrap();
    assert_eq!(engine.order_end(&cancelled).await, OrderEnd::NotWanted);
    let reported = ordered(engine.begin(pay(2, Some("l")), in_process(HostAttempts::AsOrdered)).await);
    let end = tokio::spawn(engine.order_end(&reported));
    settle().await;
    engine.report(reported.call, 1, ok()).await.unwrap();
    assert_eq!(end.await.unwrap(), OrderEnd::Reported);
    assert_eq!(engine.order_end(&reported).await, OrderEnd::Reported, "the call is over");
}

fn invalid() -> AnsweredCall {
    AnsweredCall::InvalidArguments { message: "amount: must be positive".to_owned() }
}

#[tokio::test(start_paused = true)]
async fn calls_that_the_host_refuses_are_a_loop_at_the_second_and_reach_the_limit_of_the_turn() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let mut verdicts = Vec::new();
    for _ in 0..12 {
        let called = engine.answered(in_turn(pay(1, Some("k"))), CallOptions::default(), invalid());
        assert_eq!(code(&called), Some(Code::InvalidArguments));
        assert!(!called.remarks.is_empty());
        verdicts.push(called.verdict);
    }
    assert_eq!(verdicts[..2], [GuardVerdict::None, GuardVerdict::LoopDetected]);
    assert_eq!(verdicts.last(), Some(&GuardVerdict::ToolErrorLimit), "{verdicts:?}");
    assert!(verdicts.is_sorted(), "{verdicts:?}");
    let HostStep::Answered(refused) =
        engine.begin(in_turn(pay(2, Some("l"))), CallOptions::default()).await
    else {
        panic!()
    };
    assert_eq!(
        (code(&refused), refused.verdict),
        (Some(Code::ToolErrorLimit), GuardVerdict::ToolErrorLimit)
    );
}

/// Returns the call in a turn that the host names.
fn in_turn(mut call: CallEnvelope) -> CallEnvelope {
    call.target.turn_id = Some(TurnId::new("turn").unwrap());
    call
}

#[tokio::test(start_paused = true)]
async fn an_answered_call_claims_nothing_and_passes_no_breaker_and_is_in_the_history() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    for number in 0..8 {
        let fault = ToolFault::connection_lost(TransportError::ConnectionReset, "connection reset");
        let call = pay(number, Some(&format!("key {number}")));
        let called = engine.answered(call, CallOptions::default(), AnsweredCall::Ran(Err(fault)));
        let error = called.result.error.unwrap();
        assert!(error.retriable && error.code != Code::OutcomeUnknown, "{error:?}");
    }
    let view = &engine.admin().tools(None, []).await[0];
    assert_eq!(view.breaker, State::Closed);
    assert!(view.score.is_some(), "the failures count for the score");
    let call = pay(0, Some("key 0"));
    let called = engine.answered(call, CallOptions::default(), AnsweredCall::Ran(ok_output()));
    assert_eq!((called.result.status, called.result.from_cache), (CallStatus::Success, false));
    let order = ordered(engine.begin(pay(0, Some("key 0")), CallOptions::default()).await);
    assert_eq!(order.attempt, 1, "no record replays the answer");
    engine.shutdown(Duration::from_secs(1)).await;
}

fn ok_output() -> Result<ToolOutput, ToolFault> {
    Ok(super::turns::scripted::tool_output("\"paid\""))
}

#[tokio::test(start_paused = true)]
async fn a_denial_counts_for_the_guard_and_for_nothing_else() {
    let engine = engine(standard(ToolClass::Mutating)).await;
    let denied = || AnsweredCall::Denied { message: "the user said no".to_owned() };
    let first = engine.answered(pay(1, None), CallOptions::default(), denied());
    assert_eq!((code(&first), first.verdict), (Some(Code::ApprovalDenied), GuardVerdict::None));
    let second = engine.answered(pay(1, None), CallOptions::default(), denied());
    assert_eq!(second.verdict, GuardVerdict::LoopDetected);
    assert!(second.remarks.iter().any(|remark| remark.contains("[LOOP DETECTED]")), "{second:?}");
    let view = &engine.admin().tools(None, []).await[0];
    assert_eq!((view.trust, view.score), (TrustState::Trusted, None));
}

#[tokio::test(start_paused = true)]
async fn in_shadow_an_answered_call_gets_no_remarks() {
    let mut policy = standard(ToolClass::Mutating);
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let engine = engine(policy).await;
    for _ in 0..5 {
        let called = engine.answered(pay(1, None), CallOptions::default(), invalid());
        assert_eq!((called.verdict, called.remarks.len()), (GuardVerdict::None, 0));
    }
}
