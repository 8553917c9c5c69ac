//! What the tests of configurations have in common.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up fails")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(missing_docs, unreachable_pub, reason = "the names say it")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use steadfast_config::{Annotations, Config, ConfigFile, Needed, Sources};
use steadfast_core::id::{Domain, Namespace, ToolName, ToolRef};
use steadfast_core::policy::Policy;

pub fn tool(server: &str, name: &str) -> ToolRef {
    ToolRef { namespace: Namespace::new(server).unwrap(), tool: ToolName::new(name).unwrap() }
}

pub fn domain(name: &str) -> Domain {
    Domain::new(name).unwrap()
}

/// Files with these texts, the weakest first, in a folder of this name.
pub fn files(test: &str, texts: &[(&str, &str)]) -> Vec<ConfigFile> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    let write = |(name, text): &(&str, &str)| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        ConfigFile { path, needed: Needed::Always }
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
    let file = ConfigFile { path: Path::new("tests/samples").join(path), needed: Needed::Always };
    let sources = Sources {
        files: vec![file],
        environment: environment(&[("HOME", "/home/me")]),
        ..Sources::default()
    };
    Config::load(&sources).unwrap_or_else(|errors| panic!("{errors}"))
}

pub fn policy(config: &Config, tool: &ToolRef) -> Arc<Policy> {
    config.resolve_at(tool, Annotations::default(), None).policy
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
