//! A configuration that follows its files while it is in use.
//!
//! Readers take a snapshot and never wait. Files are compared by their contents. That costs one read of some
//! kilobytes and cannot be fooled by clocks, copies or editors that keep a file's size. If a file is invalid or
//! gone, the running configuration stays in use and the problem is reported once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::config::Config;
use crate::diagnostics::{ConfigErrors, ConfigProblem};
use crate::sources::{FileContents, ProgramText, Sources};
use crate::switch::Switches;

/// A configuration that follows its files.
pub struct LiveConfig {
    current: ArcSwap<Config>,
    sources: ArcSwap<Sources>,
    snapshot: Mutex<FileSnapshot>,
}

struct FileSnapshot {
    /// Files that the running configuration was made from.
    running: Vec<FileContents>,
    /// Files that were last reported as invalid. Each is reported once.
    refused: Option<Vec<FileContents>>,
    /// Files at the last check, if they were new then.
    changing: Option<Vec<FileContents>>,
}

impl FileSnapshot {
    fn know(&self, found: &Vec<FileContents>) -> bool {
        self.running == *found || self.refused.as_ref() == Some(found)
    }
}

/// State of the switches before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchChange {
    /// State before the change.
    pub before: Switches,
    /// State after the change.
    pub after: Switches,
}

/// Result of a check of the files.
#[derive(Debug)]
pub enum Reload {
    /// The files did not change.
    Unchanged,
    /// A new configuration is in use.
    Replaced {
        /// Global settings, servers, tools and tokens that differ. The user of a setting decides whether it needs a
        /// restart.
        changed: Vec<String>,
    },
    /// The files are invalid. The running configuration stays in use.
    Kept(ConfigErrors),
}

impl LiveConfig {
    /// Loads the configuration and starts to follow its files.
    pub fn start(sources: Sources) -> Result<Self, ConfigErrors> {
        let running = sources.read();
        let config = Config::of(&sources, &running)?;
        let snapshot = Mutex::new(FileSnapshot { running, refused: None, changing: None });
        let (current, sources) = (ArcSwap::from_pointee(config), ArcSwap::from_pointee(sources));
        Ok(Self { current, sources, snapshot })
    }

    /// Returns a snapshot of the current configuration. The snapshot does not change.
    pub fn current(&self) -> Arc<Config> {
        self.current.load_full()
    }

    /// Checks the files and applies changes at once.
    pub fn check_now(&self) -> Reload {
        let found = self.sources.load().read();
        let mut snapshot = self.snapshot.lock();
        snapshot.changing = None;
        self.judge(&mut snapshot, found)
    }

    /// Checks the files and applies a change when the next check finds the same contents, because an editor may still
    /// be writing. Meant for a task that checks about every second.
    pub fn poll(&self) -> Reload {
        let found = self.sources.load().read();
        let mut snapshot = self.snapshot.lock();
        if snapshot.know(&found) || snapshot.changing.as_ref() == Some(&found) {
            snapshot.changing = None;
            return self.judge(&mut snapshot, found);
        }
        snapshot.changing = Some(found);
        Reload::Unchanged
    }

    /// Replaces the settings that the program passes as text, or returns all their errors and changes nothing. Returns
    /// the names of the settings that differ, as [`Reload::Replaced`] has them. The files are those that are in use,
    /// and switches stay as they are.
    pub fn reconfigure(&self, program: ProgramText) -> Result<Vec<String>, ConfigErrors> {
        let snapshot = self.snapshot.lock();
        let sources = Sources { program: Some(program), ..Sources::clone(&self.sources.load()) };
        let config = Config::of(&sources, &snapshot.running)?;
        self.sources.store(Arc::new(sources));
        Ok(self.replace(config))
    }

    /// Changes switches from their current state to the returned one. Reloads of files do not reset them.
    pub fn switch(&self, turn: impl FnOnce(Switches) -> Switches) -> SwitchChange {
        // Under the lock, so that neither a reload nor another change at the same moment restores the old switches.
        let _snapshot = self.snapshot.lock();
        let current = self.current.load();
        let before = current.switches();
        let after = turn(before);
        self.current.store(Arc::new(current.with_switches(after)));
        SwitchChange { before, after }
    }

    /// Puts a configuration in use, and returns the names of the settings that differ.
    fn replace(&self, config: Config) -> Vec<String> {
        let running = self.current.load();
        let changed = differences(&running, &config);
        self.current.store(Arc::new(config.with_switches(running.switches())));
        changed
    }

    fn judge(&self, snapshot: &mut FileSnapshot, found: Vec<FileContents>) -> Reload {
        if snapshot.know(&found) {
            return Reload::Unchanged;
        }
        let sources = self.sources.load();
        let removed_file =
            snapshot.running.iter().zip(&found).zip(&sources.files).find_map(|((before, now), file)| {
                let vanished = *before != FileContents::Missing && *now == FileContents::Missing;
                vanished.then(|| {
                    ConfigProblem::nowhere(format!("{} is gone", file.path.display()))
                        .help("put it back, or restart without it; an empty file takes its settings away")
                })
            });
        let loaded = match removed_file.and_then(|problem| ConfigErrors::of(vec![problem], BTreeSet::new())) {
            Some(errors) => Err(errors),
            None => Config::of(&sources, &found),
        };
        match loaded {
            Ok(config) => {
                (snapshot.running, snapshot.refused) = (found, None);
                Reload::Replaced { changed: self.replace(config) }
            }
            Err(errors) => {
                snapshot.refused = Some(found);
                Reload::Kept(errors)
            }
        }
    }
}

/// Returns the global settings, servers, tools and tokens that differ.
fn differences(before: &Config, after: &Config) -> Vec<String> {
    let (old, new) = (before.shown(), after.shown());
    let global = old.iter().zip(&new).filter(|(old, new)| old.value != new.value);
    let mut changed: Vec<String> = global.map(|(old, _)| old.setting.to_owned()).collect();
    // Passwords are not shown, so two URLs that differ only in the password look equal.
    let url = "store.url".to_owned();
    if before.global().store.url != after.global().store.url && !changed.contains(&url) {
        changed.push(url);
    }
    changed.extend(differing("servers", before.servers(), after.servers()));
    changed.extend(differing("http_tools", before.http_tools(), after.http_tools()));
    changed.extend(differing("command_tools", before.command_tools(), after.command_tools()));
    changed.extend(differing("tokens", before.tokens(), after.tokens()));
    changed.extend(differing("notify", before.webhooks(), after.webhooks()));
    changed
}

fn differing<N: Ord + fmt::Display, T: PartialEq>(
    section: &str,
    before: &BTreeMap<N, T>,
    after: &BTreeMap<N, T>,
) -> Vec<String> {
    let names: BTreeSet<&N> = before.keys().chain(after.keys()).collect();
    let differs = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    differs.map(|name| format!("{section}.{name}")).collect()
}
