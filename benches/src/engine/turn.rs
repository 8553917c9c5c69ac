//! A turn of a thousand calls that depend on each other, beside the same calls without a turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use steadfast_core::envelope::CallEnvelope;
use steadfast_executor::{Engine, ResolvedTool, ToolRegistry, TurnOptions};
use steadfast_turn::{TurnLimits, TurnPlan, TurnStatus};
use tokio::runtime::Runtime;

use super::caller::{
    EngineCallScenario, EngineCaller, EngineKeyChoice, InstantTool, numbered, policies, template,
};
use super::{MeasurementError, runtime};
use crate::measure::contest_in;
use crate::report::{BenchBudget, BenchReport};
use crate::sample;

const CALLS: u32 = 1000;
/// Size of the arguments of one call. A thousand of them fit into a plan.
const BYTES: usize = 512;
const TITLE: &str = "1,000 calls of 512 B with random dependencies, for each call";
const ROUNDS: usize = 41;

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    if !report.is_selected(TITLE) {
        return Ok(());
    }
    let runtime = runtime()?;
    let mut named = TurnSubject::new(&runtime, true)?;
    let mut unnamed = TurnSubject::new(&runtime, false)?;
    let mut bare = EngineCaller::new(&runtime, None, EngineCallScenario::Fresh, EngineKeyChoice::Key)?
        .with_params(BYTES);
    let standing = contest_in(
        ROUNDS,
        CALLS,
        &mut [
            Box::new(move |_| named.turn()),
            Box::new(move |calls| bare.calls_at_once(calls, TurnLimits::DEFAULT.parallelism)),
            Box::new(move |_| unnamed.turn()),
        ],
    );
    let peers = [
        ("the same calls without a turn, as many at once", BenchBudget::AtMost(4.0)),
        ("the turn without a name", BenchBudget::None),
    ];
    report.add_peers(TITLE, &standing, &peers);
    Ok(())
}

/// Runs one turn after the other.
struct TurnSubject {
    runtime: Arc<Runtime>,
    engine: Engine,
    template: CallEnvelope,
    params: String,
    is_named: bool,
    number: u64,
}

impl TurnSubject {
    fn new(runtime: &Arc<Runtime>, is_named: bool) -> Result<Self, MeasurementError> {
        Ok(Self {
            runtime: Arc::clone(runtime),
            engine: runtime.block_on(Engine::builder().policies(policies()).start()),
            template: template()?,
            params: sample::params(BYTES),
            is_named,
            number: 0,
        })
    }

    /// Runs one turn. Returns its duration, from the text of its plan to its result.
    fn turn(&mut self) -> Duration {
        self.number += 1;
        let plan = self.plan();
        let options = TurnOptions::of(self.template.target.clone());
        let shelf = Arc::new(SingleToolRegistry);
        let engine = self.engine.clone();
        let turn = async move {
            let started = Instant::now();
            let Ok(plan) = TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT) else {
                return Duration::MAX;
            };
            let turned = engine.turn(Arc::new(plan), shelf, options).await;
            let status = turned.ok().map(|turned| turned.result.status);
            assert_eq!(status, Some(TurnStatus::Completed), "each of its calls succeeds");
            started.elapsed()
        };
        self.runtime.block_on(async { tokio::spawn(turn).await }).unwrap_or(Duration::MAX)
    }

    /// Returns a plan in which each call depends on up to three of those before it.
    fn plan(&self) -> String {
        let mut seed = self.number;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let calls: Vec<_> = (0..u64::from(CALLS))
            .map(|call| {
                let mut before: Vec<_> = (0..random(4)).map(|_| random(call.max(1))).filter(|on| *on < call).collect();
                before.sort_unstable();
                before.dedup();
                let before: Vec<_> = before.iter().map(ToString::to_string).collect();
                let params = numbered(&self.params, self.number * u64::from(CALLS) + call);
                let params: serde_json::Value = serde_json::from_str(&params).unwrap_or_default();
                json!({ "id": call.to_string(), "tool": "accounts/update_entries", "params": params, "dependsOn": before })
            })
            .collect();
        match self.is_named {
            true => json!({ "turnId": format!("turn {}", self.number), "calls": calls }).to_string(),
            false => json!({ "calls": calls }).to_string(),
        }
    }
}

/// A registry with a single tool.
struct SingleToolRegistry;

impl ToolRegistry for SingleToolRegistry {
    fn find<'a>(
        &'a self,
        _: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        Box::pin(std::future::ready(Some(ResolvedTool::new(InstantTool::well()))))
    }
}
