//! Shared helpers of the configuration tests.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up fails")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(missing_docs, unreachable_pub, reason = "the names say it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use steadfast_config::{AnnotationHints, Config, ConfigFile, FileRequirement, Sources};
use steadfast_core::id::{Domain, Namespace, ToolName, ToolRef};
use steadfast_core::policy::CallPolicy;

pub fn tool(server: &str, name: &str) -> ToolRef {
    ToolRef { namespace: Namespace::new(server).unwrap(), tool: ToolName::new(name).unwrap() }
}

pub fn domain(name: &str) -> Domain {
    Domain::new(name).unwrap()
}

/// A folder that no other test and no other test run uses.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new() -> Self {
        let (process, thread) = (std::process::id(), std::thread::current().id());
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("config-{process}-{thread:?}")))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// Each test has a thread, and its folder is removed with the thread.
thread_local! {
    static SCRATCH: ScratchFolder = ScratchFolder::new();
}

/// Returns a folder with this name for this test alone.
pub fn folder(name: &str) -> PathBuf {
    let folder = SCRATCH.with(|scratch| scratch.0.join(name));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes files with these texts, weakest first, in a folder with this name.
pub fn files(test: &str, texts: &[(&str, &str)]) -> Vec<ConfigFile> {
    let folder = folder(test);
    let write = |(name, text): &(&str, &str)| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        ConfigFile { path, needed: FileRequirement::Always }
    };
    texts.iter().map(write).collect()
}

pub fn environment(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub fn load(test: &str, text: &str) -> Config {
    let sources = Sources { files: files(test, &[("steadfast.toml", text)]), ..Sources::default() };
    Config::load(&sources).unwrap_or_else(|errors| panic!("{errors}"))
}

pub fn sample(path: &str) -> Config {
    let file = ConfigFile { path: Path::new("tests/samples").join(path), needed: FileRequirement::Always };
    let sources = Sources {
        files: vec![file],
        environment: environment(&[("HOME", "/home/me")]),
        ..Sources::default()
    };
    Config::load(&sources).unwrap_or_else(|errors| panic!("{errors}"))
}

pub fn policy(config: &Config, tool: &ToolRef) -> Arc<CallPolicy> {
    config.resolve_at(tool, AnnotationHints::default(), None).policy
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
