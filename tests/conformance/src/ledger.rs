//! A tool with a countable side effect: a line in a file, synced, for every execution.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use steadfast_executor::{Attempt, ToolHandler, ToolResult};

use crate::calls::text_result;

/// The tool. It pauses briefly before and after its effect, so that a crash can fall between any two steps.
#[derive(Clone)]
pub(crate) struct LedgerTool {
    path: Arc<Path>,
    /// While this file exists, no execution answers after its effect.
    hold: Arc<Path>,
    draws: Arc<AtomicU64>,
}

/// Maximum length of a pause.
const WHILE: u64 = 4;
/// The end of a complete line. A process that is killed while it writes may leave half of a line at a page boundary of
/// the file, and the next writer must not continue that line.
const WHOLE: &str = " .";

impl LedgerTool {
    pub(crate) fn at(path: impl Into<PathBuf>, seed: u64) -> Self {
        let path = path.into();
        let hold = path.with_extension("hold").into();
        Self { path: path.into(), hold, draws: Arc::new(AtomicU64::new(seed)) }
    }

    /// Delays the answers of all executions whose effect comes from now on, in any process.
    pub(crate) fn hold(&self) {
        File::create(&self.hold).unwrap();
    }

    /// Lets them answer again.
    pub(crate) fn resume(&self) {
        std::fs::remove_file(&self.hold).unwrap();
    }

    /// Returns the number of executions.
    pub(crate) fn executions(&self) -> usize {
        self.read().values().map(Vec::len).sum()
    }

    /// Returns the executions: by the `name` of their arguments, the answer of each one. Its last word is the time at
    /// which the execution [began](began).
    pub(crate) fn read(&self) -> BTreeMap<String, Vec<String>> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let mut executions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_suffix(WHOLE)) {
            let (name, _) = line.split_once(' ').unwrap();
            executions.entry(name.to_owned()).or_default().push(line.to_owned());
        }
        executions
    }

    fn draw(&self) -> Duration {
        let drawn = draw(self.draws.fetch_add(1, Ordering::Relaxed));
        Duration::from_micros(drawn % (WHILE * 1000))
    }
}

impl ToolHandler for LedgerTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let this = self.clone();
        async move {
            let began = moment();
            tokio::time::sleep(this.draw()).await;
            let params: Value = serde_json::from_str(attempt.params()).unwrap();
            let number = this.draws.fetch_add(1, Ordering::Relaxed);
            let name = params["name"].as_str().unwrap();
            let line = format!("{name} {}.{number:x} {began}", std::process::id());
            let (path, written) = (this.path.clone(), line.clone());
            tokio::task::spawn_blocking(move || {
                let mut file = File::options().append(true).create(true).open(path).unwrap();
                file.write_all(format!("\n{written}{WHOLE}\n").as_bytes()).unwrap();
                file.sync_data().unwrap();
            })
            .await
            .unwrap();
            tokio::time::sleep(this.draw()).await;
            while this.hold.exists() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            text_result(&line)
        }
    }
}

/// Returns the time at which the execution with this answer began.
pub(crate) fn began(answer: &str) -> u64 {
    answer.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Returns the time in microseconds, the same for all processes of a test.
pub(crate) fn moment() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().try_into().unwrap()
}

/// Returns a pseudo-random number for a number (SplitMix64).
pub(crate) fn draw(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
