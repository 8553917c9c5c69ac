//! Tools that are commands.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::{FaultMatcher, FaultNature, OverrideRule, Overrides};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::policy::{EnforcementMode, MechanismModes, ToolClass};
use steadfast_executor::CallResponse;
use steadfast_tools::{PlainTool, Toolbox};

use crate::{
    SECRET, StoppedClock, TEST_TIMEOUT, ToolTestFolder, call, code, content, engine, message, once, soon,
    standard, tool, toolbox,
};

/// Returns a tool `t` that runs a shell with this script.
fn sh(script: &str) -> PlainTool {
    tool(&tools(script, ""), "command", "t")
}

fn tools(script: &str, more: &str) -> Toolbox {
    // JSON string syntax is valid in TOML.
    let script = serde_json::Value::from(script);
    toolbox(&format!("[command_tools.t]\ncommand = [\"sh\", \"-c\", {script}]\n{more}\n"))
}

async fn run(class: ToolClass, script: &str, params: &str) -> CallResponse {
    soon(engine(once(class)).await.call(call("command", params, Some("k")), sh(script))).await
}

#[tokio::test]
async fn a_command_gets_parameters_on_its_input_and_answers_on_its_output() {
    for (script, content_is) in [
        ("cat", r#"{"n": 1.50, "t": "ä"}"#),
        ("cat > /dev/null; echo '5 km'; echo", "\"5 km\""),
        ("echo ' [1.0] '; echo noise >&2", "[1.0]"),
        ("exit 0", "null"),
    ] {
        let called = run(ToolClass::Mutating, script, r#"{"n": 1.50, "t": "ä"}"#).await;
        assert_eq!(content(&called), content_is, "{script}");
    }
    // A command that takes no parameters need not read them, whatever their size.
    let long = format!("{{\"x\":\"{}\"}}", "x".repeat(900_000));
    for script in ["echo done", "exec <&-; echo done"] {
        assert_eq!(content(&run(ToolClass::Mutating, script, &long).await), "\"done\"");
    }
    assert_eq!(content(&run(ToolClass::Mutating, "cat", &long).await), long);
}

#[tokio::test]
async fn a_command_gets_its_variables_its_folder_and_facts_about_the_attempt() {
    let folder = ToolTestFolder::new();
    let place = &folder.0;
    let more = format!("env = {{ UNITS = \"si\" }}\ncwd = {:?}", place.to_str().unwrap());
    let script = r#"pwd; echo "$UNITS|$TOOL_IDEMPOTENCY_KEY|$TOOL_ATTEMPT|${TOOL_DEADLINE_MS:+there}"; env | grep -c '^CARGO'; true"#;
    let tools = tools(script, &more);
    let place = place.canonicalize().unwrap();
    let mut off = once(ToolClass::Mutating);
    off.modes = MechanismModes::all(EnforcementMode::Off);
    for (policy, attempt) in [(once(ToolClass::Mutating), "si|order 7|1|there"), (off, "si|||")] {
        let called = soon(
            engine(policy).await.call(call("command", "{}", Some("order 7")), tool(&tools, "command", "t")),
        )
        .await;
        let output: String = serde_json::from_str(content(&called)).unwrap();
        assert_eq!(output.lines().collect::<Vec<_>>(), [place.to_str().unwrap(), attempt, "0"]);
    }
}

#[tokio::test]
async fn an_exit_code_is_reported_with_the_end_of_stderr() {
    let script = "echo reading >&2; echo 'invalid airport: XYZ' >&2; echo half an answer; exit 3";
    for class in [ToolClass::ReadOnly, ToolClass::Mutating] {
        let called = run(class, script, "{}").await;
        assert_eq!(code(&called), Some(Code::ToolError), "{called:?}");
        let text = message(&called);
        assert!(text.starts_with("the command ended with exit code 3: invalid airport: XYZ"), "{text}");
        assert!(text.contains("before that:\nreading"), "{text}");
    }
    let quiet = run(ToolClass::ReadOnly, "echo 'no luck'; exit 1", "{}").await;
    assert_eq!(message(&quiet), "the command ended with exit code 1: no luck");
    // After other commands, the exit code of a shell for a missing command proves nothing.
    let missing = run(ToolClass::Mutating, "true; nosuchcommand", "{}").await;
    assert_eq!(code(&missing), Some(Code::ToolError), "{missing:?}");
    assert!(message(&missing).contains("exit code 127"), "{missing:?}");
    // The message for a flood of output has only its end.
    let flood = run(
        ToolClass::ReadOnly,
        "yes 'a long line of nothing' | head -n 100000 >&2; echo last >&2; exit 1",
        "{}",
    )
    .await;
    assert!(message(&flood).starts_with("the command ended with exit code 1: last\n"), "{flood:?}");
    assert!(message(&flood).len() < 5000);
}

#[tokio::test]
async fn eh_1_5_a_rule_of_the_tool_classifies_an_exit_code() {
    let folder = ToolTestFolder::new();
    let place = folder.join("tried");
    let script =
        format!("if [ -e {0} ]; then echo \"$TOOL_ATTEMPT\"; else touch {0}; exit 75; fi", place.display());
    let rule = |exit: i32| OverrideRule {
        name: Some("try later".to_owned()),
        when: FaultMatcher { exit: Some(exit), ..FaultMatcher::default() },
        nature: FaultNature::Transient,
        severity: None,
        reach: None,
        retry_after: None,
        matches: Vec::new(),
        misses: Vec::new(),
    };
    // An exit code that the rule does not name is an unchanged result of the tool.
    for (exit, expected, attempts) in [(74, Err(Code::ToolError), 1), (75, Ok("2"), 2)] {
        let _ = std::fs::remove_file(&place);
        let mut policy = standard(ToolClass::ReadOnly);
        policy.classify = Arc::new(Overrides::new(vec![rule(exit)]).unwrap());
        let called = soon(engine(policy).await.call(call("command", "{}", None), sh(&script))).await;
        let actual = code(&called).map_or_else(|| Ok(content(&called)), Err);
        assert_eq!((actual, called.result.attempts), (expected, attempts), "{called:?}");
    }
}

#[tokio::test]
async fn tr_5_transient_faults_are_retried() {
    let folder = ToolTestFolder::new();
    let place = folder.join("tried");
    let script = format!(
        "if [ -e {0} ]; then echo \"$TOOL_ATTEMPT\"; else touch {0}; echo 'connection refused' >&2; exit 1; fi",
        place.display()
    );
    let engine = engine(standard(ToolClass::ReadOnly)).await;
    let called = soon(engine.call(call("command", "{}", None), sh(&script))).await;
    assert_eq!((content(&called), called.result.attempts), ("2", 2));
}

#[tokio::test]
async fn sf_1_a_command_that_is_killed_is_unknown_and_does_not_run_again() {
    let folder = ToolTestFolder::new();
    let place = folder.join("runs");
    let script = format!("echo run >> {}; kill -9 $$", place.display());
    let engine = engine(standard(ToolClass::Mutating)).await;
    for _ in 0..2 {
        let called = soon(engine.call(call("command", "{}", Some("k")), sh(&script))).await;
        assert_eq!(code(&called), Some(Code::OutcomeUnknown), "{called:?}");
    }
    assert_eq!(std::fs::read_to_string(place).unwrap(), "run\n");
}

#[tokio::test]
async fn a_command_that_cannot_be_started_did_not_run() {
    let place = ToolTestFolder::new();
    std::fs::write(place.join("text"), "no program").unwrap();
    let missing = place.join("missing");
    for (text, expected) in [
        ("command = [\"no-such-command-here\"]".to_owned(), "there is no command `no-such-command-here`"),
        (format!("command = [{:?}]", place.join("text").to_str().unwrap()), "cannot be executed"),
        (format!("command = [\"sh\"]\ncwd = {:?}", missing.to_str().unwrap()), "there is no folder"),
    ] {
        let none = tool(&toolbox(&format!("[command_tools.t]\n{text}\n")), "command", "t");
        let called =
            soon(engine(standard(ToolClass::Mutating)).await.call(call("command", "{}", Some("k")), none))
                .await;
        assert_eq!(
            (code(&called), called.result.attempts),
            (Some(Code::UpstreamUnavailable), 1),
            "{called:?}"
        );
        assert!(message(&called).contains(expected), "{called:?}");
    }
}

#[tokio::test]
async fn output_that_is_too_long_is_a_fault_and_ends_the_command() {
    let called = run(ToolClass::ReadOnly, "yes | head -c 70000000; exec sleep 600", "{}").await;
    assert!(message(&called).contains("longer than 67108864 bytes"), "{called:?}");
}

#[tokio::test]
async fn sf_6_secrets_of_a_command_are_in_no_error_and_no_debug_output() {
    let more = "env = { BANK_TOKEN = \"${SECRET}\" }";
    let tools = tools("echo \"cannot log in with $BANK_TOKEN\" >&2; exit 1", more);
    let asking = tool(&tools, "command", "t");
    let called =
        soon(engine(once(ToolClass::ReadOnly)).await.call(call("command", "{}", None), asking.clone())).await;
    assert!(message(&called).contains("cannot log in with [redacted]"), "{called:?}");
    for text in [format!("{called:?}"), format!("{tools:?} {asking:#?}")] {
        assert!(!text.contains(SECRET) && !text.contains("hunter2"), "{text}");
    }
}

#[cfg(target_os = "linux")]
mod groups {
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::retry_on_intr;
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

    use super::*;

    /// A process that can be waited for, although it is not a child of the test.
    struct WatchedPidfd(OwnedFd);

    impl WatchedPidfd {
        fn new(pid: Pid) -> Self {
            Self(pidfd_open(pid, PidfdFlags::empty()).expect("it is there"))
        }

        fn ends_within(&self, span: Duration) -> bool {
            let limit = Timespec::try_from(span).unwrap();
            retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit))).unwrap() == 1
        }
    }

    /// Returns the processes that a script wrote into a file, one per line, as soon as there are so many.
    async fn written(path: &Path, count: usize) -> Vec<Pid> {
        soon(async {
            loop {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                let whole: Vec<&str> =
                    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
                if whole.len() >= count {
                    let pid = |line: &&str| Pid::from_raw(line.trim().parse().unwrap()).unwrap();
                    return whole.iter().map(pid).collect();
                }
                // The time of the runtime may be stopped here.
                std::thread::sleep(Duration::from_millis(1));
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Returns a script that starts a process and two daemons, writes their ids, and hangs.
    fn hanging(path: &Path, trap: &str) -> String {
        format!(
            "{trap} sleep 600 & printf '%s\\n%s\\n' $$ $! >> {0}; setsid sh -c 'echo $$ >> {0}; exec sleep 600' & \
             (setsid sh -c 'echo $$ >> {0}; exec sleep 600' &); wait; sleep 600",
            path.display()
        )
    }

    /// Number of processes of such a script.
    const HANGING: usize = 4;

    async fn all_end(watched: Vec<WatchedPidfd>) {
        let all_ended = tokio::task::spawn_blocking(move || {
            watched.iter().all(|process| process.ends_within(TEST_TIMEOUT))
        });
        assert!(soon(all_ended).await.unwrap());
    }

    #[tokio::test]
    async fn a_hanging_command_is_ended_at_its_timeout_with_its_processes() {
        for (class, trap, code_is) in [
            (ToolClass::ReadOnly, "", Code::Timeout),
            (ToolClass::Mutating, "", Code::OutcomeUnknown),
            (ToolClass::Mutating, "trap '' TERM;", Code::OutcomeUnknown),
        ] {
            let folder = ToolTestFolder::new();
            let path = folder.join("pids");
            let mut policy = once(class);
            policy.time.attempt = Duration::from_secs(30);
            let engine = engine(policy.clone()).await;
            // It has unlimited time until it hangs, and none after that.
            let clock = StoppedClock::new();
            let calling =
                tokio::spawn(engine.call(call("command", "{}", Some("k")), sh(&hanging(&path, trap))));
            let watched: Vec<WatchedPidfd> =
                written(&path, HANGING).await.into_iter().map(WatchedPidfd::new).collect();
            clock.pass(policy.time.attempt).await;
            let called = soon(calling).await.unwrap();
            assert_eq!(code(&called), Some(code_is), "{class:?} {trap}: {called:?}");
            all_end(watched).await;
            assert_eq!(written(&path, HANGING).await.len(), HANGING, "{class:?} {trap} ran once");
        }
    }

    #[tokio::test]
    async fn a_cancelled_command_is_ended_with_its_processes() {
        for class in [ToolClass::ReadOnly, ToolClass::Mutating] {
            let folder = ToolTestFolder::new();
            let path = folder.join("pids");
            let engine = engine(once(class)).await;
            let calling = engine.call(call("command", "{}", Some("k")), sh(&hanging(&path, "")));
            let cancel = calling.canceller();
            let calling = tokio::spawn(calling);
            let watched: Vec<WatchedPidfd> =
                written(&path, HANGING).await.into_iter().map(WatchedPidfd::new).collect();
            cancel.cancel();
            all_end(watched).await;
            let called = soon(calling).await.unwrap();
            assert!(matches!(code(&called), Some(Code::Cancelled | Code::OutcomeUnknown)), "{called:?}");
        }
    }

    #[tokio::test]
    async fn processes_left_by_a_command_are_ended_even_daemons() {
        let folder = ToolTestFolder::new();
        let path = folder.join("pids");
        let script = format!(
            "sleep 600 & echo $! >> {0}; setsid sh -c 'echo $$ >> {0}; exec sleep 600' & \
             while [ \"$(wc -l < {0})\" -lt 2 ]; do sleep 0.01; done; echo started",
            path.display()
        );
        let called = run(ToolClass::Mutating, &script, "{}").await;
        assert_eq!((called.result.status, content(&called)), (CallStatus::Success, "\"started\""));
        let pids = written(&path, 2).await;
        let there: Vec<Pid> =
            pids.into_iter().filter(|pid| pidfd_open(*pid, PidfdFlags::empty()).is_ok()).collect();
        for left in &there {
            kill_process(*left, Signal::KILL).unwrap();
        }
        assert_eq!(there, []);
    }
}
