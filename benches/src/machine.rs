//! The machine of a measurement: the facts needed to judge the figures, and nothing that identifies it.

use std::process::Command;
use std::time::SystemTime;

use steadfast_core::Timestamp;

/// Returns one paragraph of facts about a run of this suite.
pub(crate) fn facts(suite: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "`cargo xtask bench {suite}` on {}: {cores} cores ({}), {}, {}, release build. {}",
        today(),
        processor(),
        std::env::consts::OS,
        compiler(),
        load(),
    )
}

fn today() -> String {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_millis(steadfast_core::millis(since_epoch)).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}

/// Returns the model of the processor, on systems with a Linux `/proc`.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

fn compiler() -> String {
    let output =
        Command::new("rustc").arg("--version").output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version: Vec<_> = text.split_whitespace().take(2).collect();
    if version.is_empty() { "an unknown compiler".to_owned() } else { version.join(" ") }
}

/// Returns the load of the machine before the run.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    match text.split_whitespace().next() {
        Some(load) => format!("The load of the machine was {load} when it began."),
        None => "The load of the machine is not known.".to_owned(),
    }
}
