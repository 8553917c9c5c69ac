//! The whole path of a call through the engine with the memory store, beside the parts that it cannot do without.
//!
//! The clock runs from the envelope to the answer, in a task of a runtime with as many workers as there are cores.
//! The engine's background work (history, sweeps) goes on meanwhile, as in production.

mod caller;
mod footprint;
mod turn;

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfast_core::envelope::EnvelopeError;
use steadfast_core::id::{Digest, InvalidId};
use steadfast_core::key::arguments_digest;
use steadfast_core::policy::CallPolicy;
use steadfast_json::{JsonDocument, JsonLimits};
use tokio::runtime::Runtime;

pub(crate) use self::caller::{EngineCallScenario, EngineCaller, EngineKeyChoice};
pub(crate) use self::footprint::{CHILD as FOOTPRINT, child as footprint_child, run as run_footprint};
pub(crate) use self::turn::run as run_turn;
use crate::measure::{allocations, contest};
use crate::report::{BenchBudget, BenchReport, Figure, ReportRow};

const PARTS: &str = "read + canonical form + SHA-256";
const FRESH: &str = "a fresh call";
/// Enough operations to replace the contents of the caches.
const PER_ROUND: u32 = 100;

/// The reason why something cannot be measured.
#[derive(Debug)]
pub(crate) struct MeasurementError(String);

impl MeasurementError {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for MeasurementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<InvalidId> for MeasurementError {
    fn from(problem: InvalidId) -> Self {
        Self(problem.to_string())
    }
}

impl From<EnvelopeError> for MeasurementError {
    fn from(problem: EnvelopeError) -> Self {
        Self(problem.to_string())
    }
}

impl From<std::io::Error> for MeasurementError {
    fn from(problem: std::io::Error) -> Self {
        Self(problem.to_string())
    }
}

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    let runtime = runtime()?;
    compare_fresh_with_parts(report, &runtime)?;
    compare_full_store(report, &runtime)?;
    compare_short_paths(report, &runtime)?;
    count_allocations(report, &runtime)
}

/// Creates a runtime like that of a program.
pub(crate) fn runtime() -> Result<Arc<Runtime>, MeasurementError> {
    Ok(Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?))
}

fn compare_fresh_with_parts(
    report: &mut BenchReport,
    runtime: &Arc<Runtime>,
) -> Result<(), MeasurementError> {
    let texts: Arc<[String]> = caller::arguments(1000).into();
    for (name, given) in [("explicit key", EngineKeyChoice::Key), ("computed key", EngineKeyChoice::Nothing)]
    {
        let title = format!("fresh, 1 KiB, {name}");
        if !report.is_selected(&title) {
            continue;
        }
        let mut caller = EngineCaller::new(runtime, None, EngineCallScenario::Fresh, given)?;
        let standing = contest(
            PER_ROUND,
            &mut [
                Box::new(move |calls| caller.calls(calls)),
                Box::new(|count| parts_in_a_task(runtime, &texts, count)),
            ],
        );
        report.add_peers(&title, &standing, &[(PARTS, BenchBudget::AtMost(1.5))]);
    }
    Ok(())
}

/// Measures the cost of removing an old record for every new one.
fn compare_full_store(report: &mut BenchReport, runtime: &Arc<Runtime>) -> Result<(), MeasurementError> {
    const TITLE: &str = "fresh, 1 KiB, explicit key, the store full of 25,000 records";
    if !report.is_selected(TITLE) {
        return Ok(());
    }
    let mut full = EngineCaller::new(runtime, None, EngineCallScenario::Fresh, EngineKeyChoice::Key)?;
    for _ in 0..26 {
        full.calls(1000);
    }
    let mut other = EngineCaller::new(runtime, None, EngineCallScenario::Fresh, EngineKeyChoice::Key)?;
    let standing = contest(
        PER_ROUND,
        &mut [Box::new(move |calls| full.calls(calls)), Box::new(move |calls| other.calls(calls))],
    );
    report.add_peers(TITLE, &standing, &[("the same, not full", BenchBudget::None)]);
    Ok(())
}

/// Measures calls that do not run. They must not cost more than one that does.
fn compare_short_paths(report: &mut BenchReport, runtime: &Arc<Runtime>) -> Result<(), MeasurementError> {
    for scenario in [
        EngineCallScenario::Replayed,
        EngineCallScenario::RefusedByBreaker,
        EngineCallScenario::RefusedByGuard,
    ] {
        let title = format!("{}, 1 KiB", scenario.name());
        if !report.is_selected(&title) {
            continue;
        }
        let mut short = EngineCaller::new(runtime, None, scenario, EngineKeyChoice::Key)?;
        let mut fresh = EngineCaller::new(runtime, None, EngineCallScenario::Fresh, EngineKeyChoice::Key)?;
        let standing = contest(
            PER_ROUND,
            &mut [Box::new(move |calls| short.calls(calls)), Box::new(move |calls| fresh.calls(calls))],
        );
        report.add_peers(&title, &standing, &[(FRESH, BenchBudget::AtMost(1.0))]);
    }
    Ok(())
}

fn count_allocations(report: &mut BenchReport, runtime: &Arc<Runtime>) -> Result<(), MeasurementError> {
    let scenarios = [
        (EngineCallScenario::Fresh, EngineKeyChoice::Key, "explicit key"),
        (EngineCallScenario::Fresh, EngineKeyChoice::Nothing, "computed key"),
        (EngineCallScenario::Replayed, EngineKeyChoice::Key, "explicit key"),
        (EngineCallScenario::RefusedByBreaker, EngineKeyChoice::Key, "explicit key"),
        (EngineCallScenario::RefusedByGuard, EngineKeyChoice::Key, "explicit key"),
    ];
    for (scenario, given, name) in scenarios {
        let title = format!("allocations per call, {}, {name}", scenario.name());
        if !report.is_selected(&title) {
            continue;
        }
        let mut caller = EngineCaller::new(runtime, None, scenario, given)?;
        // The caller's work on its envelope does not count for the engine.
        let envelope = allocations(|_| caller.envelope());
        let whole = allocations(|_| caller.call_once());
        let steadfast = Figure::Allocations(whole - envelope);
        report.add(&ReportRow { title, steadfast, peer: None, ratio: None, budget: BenchBudget::None });
    }
    Ok(())
}

/// Measures the parts in a task like calls: a thread that comes from other work begins with cold caches. As no two
/// calls have the same arguments, neither have the parts.
fn parts_in_a_task(runtime: &Runtime, texts: &Arc<[String]>, count: u32) -> Duration {
    let (texts, policy) = (Arc::clone(texts), caller::policy());
    let work = async move {
        let started = Instant::now();
        for text in texts.iter().cycle().take(count as usize) {
            black_box(parts(black_box(text), &policy));
        }
        started.elapsed()
    };
    runtime.block_on(async { tokio::spawn(work).await }).unwrap_or_default()
}

/// Does the work in which the budget is counted.
fn parts(text: &str, policy: &CallPolicy) -> Option<Digest> {
    let document = JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).ok()?;
    Some(arguments_digest(document.root(), policy.class, &policy.dedupe))
}
