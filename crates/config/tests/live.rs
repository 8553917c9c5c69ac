//! Following the files: valid changes are applied, invalid ones are refused and reported once.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use steadfast_config::{AnnotationHints, ConfigFile, FileRequirement, LiveConfig, Reload, Sources, Switches};
use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_core::policy::EnforcementMode;

/// A file in a folder that no other test and no other test run uses. The folder is removed with the test.
struct FollowedConfig {
    path: PathBuf,
    live: LiveConfig,
}

impl Drop for FollowedConfig {
    fn drop(&mut self) {
        if let Some(folder) = self.path.parent() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

impl FollowedConfig {
    fn new(name: &str, text: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("steadfast.toml");
        fs::write(&path, text).unwrap();
        let files = vec![ConfigFile { path: path.clone(), needed: FileRequirement::IfThere }];
        let live = LiveConfig::start(Sources { files, ..Sources::default() }).unwrap();
        Self { path, live }
    }

    fn write(&self, text: &str) {
        fs::write(&self.path, text).unwrap();
    }

    fn timeout(&self) -> u64 {
        let tool = ToolRef { namespace: Namespace::new("a").unwrap(), tool: ToolName::new("b").unwrap() };
        self.live.current().resolve_at(&tool, AnnotationHints::default(), None).policy.time.attempt.as_secs()
    }
}

fn word(reload: &Reload) -> &'static str {
    match reload {
        Reload::Unchanged => "unchanged",
        Reload::Replaced { .. } => "replaced",
        Reload::Kept(_) => "kept",
    }
}

#[test]
fn a_changed_file_is_applied_and_old_snapshots_do_not_change() {
    let followed = FollowedConfig::new("live-change", "timeout = \"1s\"\n");
    let old = followed.live.current();
    assert_eq!(word(&followed.live.check_now()), "unchanged");
    // The same size, and possibly the same modification time.
    followed.write("timeout = \"2s\"\n");
    assert_eq!(word(&followed.live.check_now()), "replaced");
    assert_eq!(followed.timeout(), 2);
    let tool = ToolRef { namespace: Namespace::new("a").unwrap(), tool: ToolName::new("b").unwrap() };
    let resolved = old.resolve_at(&tool, AnnotationHints::default(), None);
    assert_eq!(resolved.policy.time.attempt, Duration::from_secs(1));
}

#[test]
fn an_invalid_file_keeps_the_running_configuration_and_is_reported_once() {
    let followed = FollowedConfig::new("live-bad", "timeout = \"1s\"\n");
    followed.write("timeout = 2\n");
    let Reload::Kept(errors) = followed.live.check_now() else { panic!("it should be kept") };
    assert!(errors.to_string().contains("give it a unit"), "{errors}");
    assert_eq!(word(&followed.live.check_now()), "unchanged");
    assert_eq!(followed.timeout(), 1);
    followed.write("timeout = \"3s\"\n");
    assert_eq!((word(&followed.live.check_now()), followed.timeout()), ("replaced", 3));
}

#[test]
fn a_file_that_vanishes_keeps_the_running_configuration() {
    let followed = FollowedConfig::new("live-gone", "timeout = \"1s\"\n");
    fs::remove_file(&followed.path).unwrap();
    let Reload::Kept(errors) = followed.live.check_now() else { panic!("it should be kept") };
    assert!(errors.to_string().contains("is gone"), "{errors}");
    assert_eq!((word(&followed.live.check_now()), followed.timeout()), ("unchanged", 1));
    followed.write("timeout = \"1s\"\n");
    assert_eq!((word(&followed.live.check_now()), followed.timeout()), ("unchanged", 1));
    followed.write("");
    assert_eq!((word(&followed.live.check_now()), followed.timeout()), ("replaced", 30));
}

#[test]
fn polling_waits_until_two_reads_are_equal() {
    let followed = FollowedConfig::new("live-poll", "timeout = \"1s\"\n");
    followed.write("");
    assert_eq!(word(&followed.live.poll()), "unchanged");
    followed.write("timeout = \"2s\"\n");
    assert_eq!(
        (word(&followed.live.poll()), followed.timeout()),
        ("unchanged", 1),
        "it was still being written"
    );
    assert_eq!((word(&followed.live.poll()), followed.timeout()), ("replaced", 2));
    assert_eq!(word(&followed.live.poll()), "unchanged");
}

#[test]
fn switches_stay_turned_when_files_change() {
    let followed = FollowedConfig::new("live-switch", "timeout = \"1s\"\n");
    followed.live.switch(|_| Switches { all: EnforcementMode::Off, ..Switches::default() });
    followed.write("timeout = \"2s\"\n");
    assert_eq!((word(&followed.live.check_now()), followed.timeout()), ("replaced", 2));
    assert_eq!(followed.live.current().switches().all, EnforcementMode::Off);
}

/// Regression: two switches were changed at the same moment, and one change was lost.
#[test]
fn switches_turned_at_the_same_moment_are_all_turned() {
    let followed = FollowedConfig::new("live-switches", "");
    let turns: [fn(&mut Switches); 7] = [
        |switches| switches.all = EnforcementMode::Shadow,
        |switches| switches.dedupe = EnforcementMode::Shadow,
        |switches| switches.retry = EnforcementMode::Shadow,
        |switches| switches.breaker = EnforcementMode::Shadow,
        |switches| switches.guard = EnforcementMode::Shadow,
        |switches| switches.trust = EnforcementMode::Shadow,
        |switches| switches.derive = false,
    ];
    let mut all = Switches::default();
    turns.iter().for_each(|turn| turn(&mut all));
    for _ in 0..50 {
        followed.live.switch(|_| Switches::default());
        let (live, together) = (&followed.live, &Barrier::new(turns.len()));
        thread::scope(|scope| {
            for turn in turns {
                scope.spawn(move || {
                    together.wait();
                    live.switch(|mut switches| {
                        // A concurrent reader sees the old state.
                        thread::yield_now();
                        turn(&mut switches);
                        switches
                    });
                });
            }
        });
        assert_eq!(followed.live.current().switches(), all);
    }
}

#[test]
fn sf_6_a_changed_token_is_reported_by_name() {
    let token = |secret: &str| format!("[tokens.ann]\ntoken = \"{secret}\"\n");
    let followed = FollowedConfig::new("live-tokens", &token("0123456789abcdef-1"));
    followed.write(&token("0123456789abcdef-2"));
    let Reload::Replaced { changed } = followed.live.check_now() else { panic!("it should be replaced") };
    assert_eq!(changed, ["tokens.ann"]);
    let shown = format!("{:?} {:?}", followed.live.current().tokens(), followed.live.current().shown());
    assert!(!shown.contains("0123456789abcdef"), "{shown}");
    followed.write(&token("guessed"));
    let Reload::Kept(errors) = followed.live.check_now() else { panic!("it should be kept") };
    assert!(
        errors.to_string().contains("7 characters") && !errors.to_string().contains("guessed\""),
        "{errors}"
    );
}

#[test]
fn changed_global_settings_are_reported() {
    let followed =
        FollowedConfig::new("live-whole", "listen = \"127.0.0.1:1\"\n[servers.a]\ncommand = [\"x\"]\n");
    followed.write("listen = \"127.0.0.1:2\"\ntimeout = \"3s\"\n[servers.a]\nurl = \"http://h/\"\n[servers.b]\ncommand = [\"x\"]\n");
    let Reload::Replaced { changed } = followed.live.check_now() else { panic!("it should be replaced") };
    assert_eq!(changed, ["listen", "servers.a", "servers.b"]);
    followed.write("listen = \"127.0.0.1:2\"\n[servers.b]\ncommand = [\"x\"]\n[http_tools.s]\nmethod = \"GET\"\nurl = \"http://h/\"\n[command_tools.c]\ncommand = [\"x\"]\n");
    let Reload::Replaced { changed } = followed.live.check_now() else { panic!("it should be replaced") };
    assert_eq!(changed, ["servers.a", "http_tools.s", "command_tools.c"]);
    followed.write("listen = \"127.0.0.1:2\"\n[servers.b]\ncommand = [\"x\"]\n[http_tools.s]\nmethod = \"GET\"\nurl = \"http://h/other\"\n[command_tools.c]\ncommand = [\"x\"]\n");
    let Reload::Replaced { changed } = followed.live.check_now() else { panic!("it should be replaced") };
    assert_eq!(changed, ["http_tools.s"]);
}
