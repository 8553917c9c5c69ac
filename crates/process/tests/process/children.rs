//! The end of children, by themselves and on request.

use std::time::Duration;

use steadfast_process::{ChildExit, SpawnedChild, StderrLog, StopTimeouts};
use tokio::io::AsyncWriteExt;

use crate::common::{LONG, all, command, line, sh, soon};
#[cfg(target_os = "linux")]
use crate::common::{PolledProcess, parent, signal};
use crate::{leash, start};

#[tokio::test]
async fn codes_and_signals_are_passed_on() {
    for (script, exit) in [
        ("exit 0", ChildExit::Code(0)),
        ("exit 7", ChildExit::Code(7)),
        ("exit 255", ChildExit::Code(255)),
        ("kill -9 $$", ChildExit::Signal(9)),
        ("kill -11 $$", ChildExit::Signal(11)),
    ] {
        let started = start(&sh(script)).await;
        assert_eq!(soon(started.child.exited()).await, exit, "{script}");
        assert_eq!(soon(started.child.wait_until_gone()).await, exit, "{script}");
    }
}

#[tokio::test]
async fn written_lines_arrive_and_are_answered() {
    let SpawnedChild { child, mut stdin, mut stdout } = start(&command(&["cat"])).await;
    let long = "x".repeat(1_000_000);
    let write = async {
        stdin.write_all(long.as_bytes()).await.unwrap();
        stdin.write_all(b"\n").await.unwrap();
    };
    let ((), answer) = tokio::join!(write, line(&mut stdout));
    assert!(answer == long);
    drop(stdin);
    assert_eq!(soon(child.wait_until_gone()).await, ChildExit::Code(0));
}

/// A stop is as gentle as possible: closed stdin, then SIGTERM, then SIGKILL, and no further than needed.
#[tokio::test]
async fn a_stop_goes_no_further_than_it_must() {
    // Each step but the one that ends it has a short limit; that one has plenty of time.
    const SHORT: Duration = Duration::from_millis(50);
    for (script, exit, stdin, term) in [
        ("echo ready; cat > /dev/null; exit 4", ChildExit::Code(4), LONG, LONG),
        ("echo ready; exec sleep 600", ChildExit::Signal(15), SHORT, LONG),
        ("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", ChildExit::Code(5), SHORT, LONG),
        ("trap '' TERM; echo ready; while :; do sleep 0.01; done", ChildExit::Signal(9), SHORT, SHORT),
        ("trap '' TERM; echo ready; kill -STOP $$; exit 6", ChildExit::Signal(9), SHORT, SHORT),
    ] {
        let SpawnedChild { child, stdin: pipe, mut stdout } = start(&sh(script)).await;
        assert_eq!(line(&mut stdout).await, "ready");
        drop(pipe);
        let patience = StopTimeouts { stdin, term, kill: LONG };
        assert_eq!(soon(child.stop(&patience)).await, exit, "{script}");
        assert_eq!(soon(child.stop(&patience)).await, exit, "a second stop has nothing to do");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn processes_that_a_child_leaves_behind_are_ended_with_it_even_if_they_ignore_signals() {
    for script in
        ["sleep 600 & echo $!; read go; exit 3", "trap '' TERM; sleep 600 & echo $!; read go; exit 3"]
    {
        let mut started = start(&sh(script)).await;
        let left: u32 = line(&mut started.stdout).await.parse().unwrap();
        let left = PolledProcess::new(left);
        drop(started.stdin);
        assert_eq!(soon(started.child.wait_until_gone()).await, ChildExit::Code(3));
        assert!(!left.is_there(), "{script}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn processes_that_left_the_group_on_purpose_are_ended_too() {
    // A process in a session of its own, a daemon whose parent has ended, and one that ignores requests to end. They
    // also keep the pipes open.
    for left in [
        "setsid sh -c 'echo $$; exec sleep 600' &",
        "(setsid sh -c 'echo $$; exec sleep 600' &)",
        "setsid sh -c '(setsid sh -c \"echo \\$\\$; exec sleep 600\" &)'",
        "(setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 600' &)",
    ] {
        for end in ["sleep 600", "read go; exit 3"] {
            let mut started = start(&sh(&format!("{left}\n{end}"))).await;
            let daemon: u32 = line(&mut started.stdout).await.parse().unwrap();
            let daemon = PolledProcess::new(daemon);
            drop(started.stdin);
            let exit = if end == "sleep 600" {
                soon(started.child.stop(&sh("").patience)).await
            } else {
                soon(started.child.wait_until_gone()).await
            };
            let is_there = daemon.is_there();
            daemon.end();
            assert!(!is_there, "{left} {end}");
            assert_eq!(
                exit,
                if end == "sleep 600" { ChildExit::Signal(15) } else { ChildExit::Code(3) },
                "{left} {end}"
            );
        }
    }
}

#[tokio::test]
async fn a_child_that_closes_its_stdout_lives_on() {
    let mut started = start(&sh("exec >&-; read line; exit 5")).await;
    assert_eq!(all(&mut started.stdout).await, "");
    started.stdin.write_all(b"end\n").await.unwrap();
    assert_eq!(soon(started.child.wait_until_gone()).await, ChildExit::Code(5));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_child_that_is_dropped_is_ended() {
    let SpawnedChild { child, stdin, mut stdout } =
        start(&sh("trap '' TERM; sleep 600 & echo $!; wait")).await;
    let grandchild: u32 = line(&mut stdout).await.parse().unwrap();
    let (leash, grandchild) =
        (PolledProcess::new(parent(child.pid()).unwrap()), PolledProcess::new(grandchild));
    let watched = PolledProcess::new(child.pid());
    drop((child, stdin));
    let all_ended = tokio::task::spawn_blocking(move || {
        [watched, grandchild, leash].iter().all(|process| process.ends_within(crate::common::TEST_TIMEOUT))
    });
    assert!(soon(all_ended).await.unwrap());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_group_is_ended_also_when_its_leash_is_killed() {
    let SpawnedChild { child, stdin: _stdin, mut stdout } =
        start(&sh("trap '' TERM; sleep 600 & echo $!; wait")).await;
    let grandchild: u32 = line(&mut stdout).await.parse().unwrap();
    let (server, grandchild) = (PolledProcess::new(child.pid()), PolledProcess::new(grandchild));
    signal(parent(child.pid()).unwrap(), rustix::process::Signal::KILL);
    assert_eq!(soon(child.wait_until_gone()).await, ChildExit::Unknown);
    let all_ended = tokio::task::spawn_blocking(move || {
        [server, grandchild].iter().all(|process| process.ends_within(crate::common::TEST_TIMEOUT))
    });
    assert!(soon(all_ended).await.unwrap());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_leash_that_hangs_holds_no_stop_up() {
    let SpawnedChild { child, stdin, mut stdout } = start(&sh("echo ready; exec sleep 600")).await;
    assert_eq!(line(&mut stdout).await, "ready");
    let server = PolledProcess::new(child.pid());
    signal(parent(child.pid()).unwrap(), rustix::process::Signal::STOP);
    drop(stdin);
    let patience = StopTimeouts { kill: Duration::from_millis(50), ..sh("").patience };
    assert_eq!(soon(child.stop(&patience)).await, ChildExit::Unknown);
    assert!(
        soon(tokio::task::spawn_blocking(move || server.ends_within(crate::common::TEST_TIMEOUT)))
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn a_flood_on_stderr_is_bounded_and_its_end_is_stored() {
    let stderr = StderrLog::new();
    let mut follower = stderr.follow();
    let script = "yes 'a line that says nothing' | head -n 50000 >&2; printf 'token=abcdefgh12345678\\nlast words' >&2; exit 1";
    let started = soon(sh(script).start(&leash(), &stderr)).await.unwrap();
    assert_eq!(soon(started.child.wait_until_gone()).await, ChildExit::Code(1));
    assert_eq!(stderr.written(), 50_002);
    assert_eq!(stderr.tail(2), ["token=[redacted]", "last words"]);
    assert_eq!(stderr.tail(usize::MAX).len(), StderrLog::MAX_LINES);
    assert!(soon(follower.next()).await.is_some());
}
