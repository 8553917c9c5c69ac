//! The memory of 25,000 finished records of 1 KiB, measured in a process of its own. Its pages include the overhead of
//! the allocator, and memory that was freed earlier would hide new allocations.

use std::process::Command;
use std::sync::Arc;

use steadfast_core::output::ToolOutput;
use steadfast_executor::{Attempt, Engine};
use steadfast_json::RawJson;
use steadfast_store::{JournalLimits, MemoryStore};

use super::caller::{EngineCallScenario, EngineCaller, EngineKeyChoice, policy};
use super::{MeasurementError, runtime};
use crate::report::{BenchBudget, BenchReport, Figure, ReportRow};

const RECORDS: u32 = 25_000;
const ALLOWED: f64 = 60.0 * (1 << 20) as f64;
const PAGE: f64 = 4096.0;

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    let measurements = [
        ("records", "25,000 finished records of 1 KiB", BenchBudget::AtMost(1.0)),
        ("history", "25,000 finished records of 1 KiB and the history of their calls", BenchBudget::None),
    ];
    for (name, title, budget) in measurements {
        if !report.is_selected(title) {
            continue;
        }
        let output = Command::new(std::env::current_exe()?).args([CHILD, name]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let bytes: f64 =
            text.trim().parse().map_err(|_| MeasurementError(format!("no figure but `{text}`")))?;
        let peer = Some(("allowed".to_owned(), Figure::Bytes(ALLOWED)));
        report.add(&ReportRow {
            title: title.to_owned(),
            steadfast: Figure::Bytes(bytes),
            peer,
            ratio: None,
            budget,
        });
    }
    Ok(())
}

/// Argument that makes this program the measured process.
pub(crate) const CHILD: &str = "footprint";

/// Makes the calls in the measured process, and prints the number of bytes by which it has grown.
pub(crate) fn child(kind: &str) -> Result<(), MeasurementError> {
    let runtime = runtime()?;
    let mut envelopes = EngineCaller::new(&runtime, None, EngineCallScenario::Fresh, EngineKeyChoice::Key)?;
    let store = Arc::new(MemoryStore::default());
    let most = if kind == "history" { u64::from(RECORDS) } else { 0 };
    let keep = JournalLimits { most, most_per_subject: None, age: std::time::Duration::from_secs(3600) };
    let engine =
        runtime.block_on(Engine::builder().policies(policy()).store(store.clone()).history(keep).start());
    let content: Arc<str> = format!("\"{}\"", "a".repeat(1022)).into();
    let before = resident()?;
    runtime.block_on(async {
        for number in 0..RECORDS {
            let Some(envelope) = envelopes.envelope() else { continue };
            let content = Arc::clone(&content);
            engine
                .call(envelope, move |_: Attempt| {
                    // Each answer has its own text, as answers of tools do.
                    let content = RawJson::from_trusted(Arc::<str>::from(&*content));
                    std::future::ready(Ok(ToolOutput { content, metadata: None }))
                })
                .await;
            if number.is_multiple_of(200) {
                // The history is written beside the calls and drops entries when it is too slow.
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    });
    println!("{}", resident()? - before);
    Ok(())
}

/// Returns the bytes of memory of this process, on systems with a Linux `/proc`.
fn resident() -> Result<f64, MeasurementError> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok());
    Ok(pages.ok_or_else(|| MeasurementError("the system does not tell its pages".to_owned()))? * PAGE)
}
