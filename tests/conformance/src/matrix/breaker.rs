//! TR-8 to TR-10: the breaker of a failing tool opens, probes, and closes again.

use std::time::Duration;

use steadfast_core::breaker::State;
use steadfast_core::call::CallNotice;
use steadfast_core::policy::{CallPolicy, ToolClass};
use steadfast_executor::{
    AuditAction, AuditQuery, BreakerKey, BreakerOverride, ChangeScope, Engine, OperatorIdentity,
    OperatorSurface,
};
use steadfast_store::DocumentKind;
use tokio::task::JoinSet;

use crate::calls::{
    CountingTool, OPEN, SUCCESS, TEST_TIMEOUT, fail, keyed, paid, single, status, wait_for_notice, within,
};
use crate::world::{ConformanceWorld, plain};

/// Returns the time for which it stays open: mutating tools have 15 s.
fn cooldown(policy: &CallPolicy) -> Duration {
    policy.breaker.cooldown.first
}

/// The shortest measurable time.
const SHORTEST: Duration = Duration::from_millis(1);

pub(super) async fn tr_8_five_failing_mutations_open_the_breaker_and_the_next_call_reaches_no_tool(
    world: ConformanceWorld,
) {
    world.stop_clock();
    let policy = plain(ToolClass::Mutating);
    let engine = world.engine(&policy).await;
    let mut events = engine.events();
    fail(&engine, 4).await;
    let before = engine.call(keyed("before"), CountingTool::paying()).await;
    assert_eq!(status(&before), SUCCESS, "four are not enough, and a success ends the run of failures");
    fail(&engine, 5).await;
    let opened =
        wait_for_notice(&mut events, |notice| matches!(notice, CallNotice::BreakerChanged { .. })).await;
    let CallNotice::BreakerChanged { transition, .. } = opened else { panic!("{opened:?}") };
    assert_eq!((transition.from, transition.to), (State::Closed, State::Open));

    let records = world.records().await.len();
    let tool = CountingTool::paying();
    for number in 0..20 {
        let refused = engine.call(single(number), tool.clone()).await;
        assert_eq!((status(&refused), refused.result.attempts), (OPEN, 0));
        assert_eq!(refused.result.error.unwrap().breaker_state, Some(State::Open));
    }
    assert_eq!(world.records().await.len(), records, "a refusal leaves nothing behind");
    // A call that would succeed remains blocked until the cool-down is over, also after a restart.
    world.advance_clock(cooldown(&policy) - SHORTEST);
    assert_eq!(status(&engine.call(keyed("k"), tool.clone()).await), OPEN);
    engine.shutdown(TEST_TIMEOUT).await;
    let restarted = world.engine(&policy).await;
    assert_eq!(status(&restarted.call(keyed("k"), tool.clone()).await), OPEN);
    assert_eq!(tool.runs(), 0);
    assert!(restarted.call(keyed("before"), tool.clone()).await.result.from_cache, "answers stay to be had");
}

/// An operator at one process stops a working tool, and the others learn it from the store alone.
pub(super) async fn tr_8_a_forced_open_breaker_stays_open_in_a_fleet_and_over_a_restart(
    world: ConformanceWorld,
) {
    world.stop_clock();
    let policy = plain(ToolClass::Mutating);
    let (first, second) = (world.engine(&policy).await, world.engine(&policy).await);
    let tool = CountingTool::paying();
    assert_eq!(status(&second.call(single(0), tool.clone()).await), SUCCESS);
    let (key, by) = (BreakerKey::Tool(single(0).tool()), OperatorIdentity::new("ann", OperatorSurface::Cli));
    let forced = first.admin().update_breaker(None, &key, BreakerOverride::Open { until: None }, &by).await;
    assert_eq!(forced.reach, ChangeScope::Everywhere);
    let assert_outcome = async |engine: &Engine, expected| {
        let mut number = 1;
        let propagation = async {
            while status(&engine.call(single(number), tool.clone()).await) != expected {
                number += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("the forced state is shared", propagation).await;
    };
    if world.notifies_engines() {
        assert_outcome(&second, OPEN).await;
    }
    first.shutdown(TEST_TIMEOUT).await;
    world.advance_clock(Duration::from_secs(30 * 86_400));
    world.store().await.sweep().await.unwrap();
    let third = world.engine(&policy).await;
    let refused = third.call(keyed("k"), tool.clone()).await.result;
    let error = refused.error.unwrap();
    assert_eq!(error.rule.as_deref(), Some("breaker.forced_by_hand"), "a month and a restart later");
    assert_eq!(error.breaker_state, Some(State::ForcedOpen));

    third.admin().update_breaker(None, &key, BreakerOverride::Reset, &by).await;
    assert_eq!(status(&third.call(keyed("k"), tool.clone()).await), SUCCESS);
    if world.notifies_engines() {
        assert_outcome(&second, SUCCESS).await;
    }
    let audit = third.admin().audit(&AuditQuery::default()).await.unwrap().found;
    assert_eq!(
        audit.iter().map(|entry| entry.deed).collect::<Vec<_>>(),
        [AuditAction::BreakerReset, AuditAction::BreakerForcedOpen]
    );
}

pub(super) async fn tr_9_two_successful_probes_close_the_breaker(world: ConformanceWorld) {
    world.stop_clock();
    let policy = plain(ToolClass::Mutating);
    let engine = world.engine(&policy).await;
    fail(&engine, 5).await;
    let mut events = engine.events();
    let mut changes = Vec::new();
    let mut next_change = async || {
        let notice =
            wait_for_notice(&mut events, |notice| matches!(notice, CallNotice::BreakerChanged { .. })).await;
        let CallNotice::BreakerChanged { transition, .. } = notice else { panic!("{notice:?}") };
        changes.push((transition.from, transition.to));
        changes.clone()
    };
    world.advance_clock(cooldown(&policy));
    for probe in ["first", "second"] {
        let tool = CountingTool::gated();
        let probing = tokio::spawn(engine.call(keyed(probe), tool.clone()));
        tool.wait_for_runs(1).await;
        // One probe at a time.
        let concurrent = engine.call(keyed("beside"), tool.clone()).await;
        assert_eq!((status(&concurrent), tool.runs()), (OPEN, 1), "{probe}");
        tool.finish_runs(1);
        assert_eq!(status(&probing.await.unwrap()), SUCCESS);
    }
    next_change().await;
    assert_eq!(next_change().await, [(State::Open, State::HalfOpen), (State::HalfOpen, State::Closed)]);
    // Afterwards calls succeed at the first attempt, concurrently, and as quickly as their tool.
    let tool = CountingTool::gated();
    let concurrent_calls: Vec<_> =
        (0..8).map(|number| tokio::spawn(engine.call(single(number), tool.clone()))).collect();
    tool.wait_for_runs(8).await;
    tool.finish_runs(8);
    for call in concurrent_calls {
        let called = within("it is as quick as its tool", call).await.unwrap();
        assert_eq!((status(&called), called.result.attempts), (SUCCESS, 1));
    }
}

/// The cool-down ends for all at the same moment, while the tool is just recovering.
pub(super) async fn tr_9_a_fleet_sends_one_probe(world: ConformanceWorld) {
    world.stop_clock();
    let policy = plain(ToolClass::Mutating);
    let first = world.engine(&policy).await;
    fail(&first, 5).await;
    let store = world.store().await;
    let stored = async {
        while store.documents(DocumentKind::Breaker).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the open breaker is stored", stored).await;
    let fleet =
        [first, world.engine(&policy).await, world.engine(&policy).await, world.engine(&policy).await];
    world.advance_clock(cooldown(&policy));
    let tool = CountingTool::gated();
    let mut calls = JoinSet::new();
    for (number, engine) in fleet.iter().enumerate() {
        calls.spawn(engine.call(single(number), tool.clone()));
    }
    for _ in 1..fleet.len() {
        let refused = within("who does not probe is refused", calls.join_next()).await.unwrap().unwrap();
        assert_eq!(status(&refused), OPEN);
    }
    tool.wait_for_runs(1).await;
    tool.finish_runs(1);
    assert_eq!(status(&calls.join_next().await.unwrap().unwrap()), SUCCESS);
    assert_eq!(tool.runs(), 1);
}

pub(super) async fn tr_10_a_failing_probe_opens_the_breaker_again_with_a_new_cooldown(
    world: ConformanceWorld,
) {
    world.stop_clock();
    let policy = plain(ToolClass::Mutating);
    let engine = world.engine(&policy).await;
    let tool = CountingTool::paying();
    engine.call(keyed("before"), tool.clone()).await;
    fail(&engine, 5).await;
    world.advance_clock(cooldown(&policy));
    fail(&engine, 1).await;
    let (open, paying) = (keyed("k"), CountingTool::paying());
    assert_eq!(status(&engine.call(open.clone(), paying.clone()).await), OPEN);
    world.advance_clock(cooldown(&policy) - SHORTEST);
    assert_eq!(status(&engine.call(open.clone(), paying.clone()).await), OPEN, "the cool-down restarted");
    // Earlier successful answers are still replayed while it is open.
    let before = engine.call(keyed("before"), tool.clone()).await;
    assert_eq!((before.result.from_cache, before.result.output), (true, Some(paid().unwrap())));
    assert_eq!((tool.runs(), paying.runs()), (1, 0));
    world.advance_clock(SHORTEST);
    assert_eq!(status(&engine.call(open, paying).await), SUCCESS);
}
