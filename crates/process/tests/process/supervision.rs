//! Supervision of one server.

use std::time::Duration;

use steadfast_core::classify::{AttemptReach, Overrides, classify};
use steadfast_core::restart::{DownReason, RestartPolicy};
use steadfast_core::{Timestamp, code::Code};
use steadfast_process::{
    ChildExit, Incarnation, IncarnationEnd, IncarnationReceiver, Launch, ServerStatus, ServerUnavailable,
    State, Supervisor,
};
use tokio::io::AsyncWriteExt;

use crate::common::{LONG, command, line, sh, soon};
use crate::leash;

fn supervise(launch: Launch) -> (Supervisor, IncarnationReceiver) {
    let policy = RestartPolicy {
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(5),
        // Large enough for all events of a test, on any machine.
        window: LONG,
        well_after: LONG,
        longest_rest: LONG,
        ..RestartPolicy::default()
    };
    Supervisor::new(launch, leash(), policy, 7)
}

async fn reached(supervisor: &Supervisor, reached: impl FnMut(&ServerStatus) -> bool) -> ServerStatus {
    let mut status = supervisor.status();
    soon(status.wait_for(reached)).await.unwrap().clone()
}

async fn next(incarnations: &mut IncarnationReceiver) -> Incarnation {
    soon(incarnations.next()).await.expect("there is another incarnation")
}

#[tokio::test]
async fn a_server_is_started_on_request_and_again_after_it_was_killed() {
    let (supervisor, mut incarnations) = supervise(command(&["cat"]));
    assert_eq!(supervisor.status().borrow().state, State::Idle);

    supervisor.request_start().await;
    let mut first = next(&mut incarnations).await;
    assert_eq!(
        (first.number.get(), &supervisor.status().borrow().state),
        (1, &State::Starting(first.number))
    );
    first.stdin.write_all(b"hello\n").await.unwrap();
    assert_eq!(line(&mut first.stdout).await, "hello");
    supervisor.ready(first.number).await;
    assert_eq!(soon(supervisor.wait_until_ready()).await, Ok(first.number));

    let pid = rustix::process::Pid::from_raw(i32::try_from(first.pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let mut second = next(&mut incarnations).await;
    second.stdin.write_all(b"again\n").await.unwrap();
    assert_eq!(line(&mut second.stdout).await, "again");
    supervisor.ready(first.number).await;
    supervisor.ready(second.number).await;
    assert_eq!(soon(supervisor.wait_until_ready()).await, Ok(second.number));
    let status = supervisor.status().borrow().clone();
    assert_eq!((second.number.get(), status.restarts), (2, 1));
    let last = status.last_end.unwrap();
    assert_eq!((last.incarnation, &last.end), (first.number, &IncarnationEnd::Exited(ChildExit::Signal(9))));
}

#[tokio::test]
async fn a_server_that_dies_too_often_is_down_with_a_reason_and_a_reset_starts_it_again() {
    let (supervisor, mut incarnations) = supervise(sh("echo \"no such option: --colour\" >&2; exit 2"));
    let taking = tokio::spawn(async move {
        let mut taken = 0;
        while incarnations.next().await.is_some() {
            taken += 1;
        }
        taken
    });
    let unavailable = soon(supervisor.wait_until_ready()).await.unwrap_err();
    let ServerUnavailable::Down { down, last_end } = &unavailable else { panic!("{unavailable}") };
    assert!(matches!(down.reason, DownReason::Crashes { count: 5, .. }));
    assert_eq!(last_end.as_ref().unwrap().end, IncarnationEnd::Exited(ChildExit::Code(2)));
    assert_eq!(supervisor.stderr().written(), 5, "five starts and no more");
    let message = unavailable.to_string();
    assert!(
        message.starts_with("the server is down: it crashed 5 times within 3600s; the first call after"),
        "{message}"
    );
    assert!(
        message.ends_with(
            "Last time: it ended with exit code 2. Last lines of stderr: no such option: --colour"
        ),
        "{message}"
    );

    let fault = classify(&unavailable.fault(), &Overrides::default(), Timestamp::ZERO);
    assert_eq!((fault.reach, fault.code), (AttemptReach::Refused, Code::UpstreamUnavailable));
    assert!(fault.retry_after.is_some());

    assert_eq!(soon(supervisor.wait_until_ready()).await.unwrap_err(), unavailable, "it is left alone");
    supervisor.request_start().await;
    soon(supervisor.stop()).await;
    assert!(matches!(supervisor.status().borrow().state, State::Down(_)), "a stop is no way around the rest");
    assert_eq!(supervisor.stderr().written(), 5, "nor is asking");
    supervisor.reset().await;
    assert_eq!(supervisor.status().borrow().state, State::Idle);
    assert!(soon(supervisor.wait_until_ready()).await.is_err());
    assert_eq!(supervisor.stderr().written(), 10);
    assert_eq!(supervisor.status().borrow().restarts, 8);
    drop(supervisor);
    assert_eq!(soon(taking).await.unwrap(), 10);
}

#[tokio::test]
async fn a_command_that_is_not_there_is_not_tried_again_and_again() {
    let (supervisor, _incarnations) = supervise(command(&["no-such-command-here"]));
    let unavailable = soon(supervisor.wait_until_ready()).await.unwrap_err();
    let ServerUnavailable::Down { down, .. } = &unavailable else { panic!("{unavailable}") };
    assert_eq!(down.reason, DownReason::CannotStart);
    assert!(unavailable.to_string().contains("give its full path"), "{unavailable}");
    assert_eq!(supervisor.status().borrow().restarts, 0);
}

#[tokio::test]
async fn of_one_server_there_are_never_two() {
    let lock = std::env::temp_dir().join(format!("steadfast-process-lock-{}", std::process::id()));
    // It takes time to end, and so do the processes that it leaves behind.
    let script = format!(
        "mkdir {0} || echo twice
         trap '' TERM; (sleep 0.2; rmdir {0}) &
         trap 'exit 1' TERM; echo ready; while :; do sleep 0.01; done",
        lock.display()
    );
    let mut launch = sh(&script);
    launch.patience.term = LONG;
    let (supervisor, mut incarnations) = supervise(launch);
    supervisor.request_start().await;
    for round in 1..=3 {
        let Incarnation { number, stdin, mut stdout, .. } = next(&mut incarnations).await;
        assert_eq!((number.get(), line(&mut stdout).await.as_str()), (round, "ready"));
        supervisor.ready(number).await;
        assert_eq!(soon(supervisor.wait_until_ready()).await, Ok(number));
        drop(stdin);
        supervisor.condemn(number, "it hangs").await;
        supervisor.condemn(number, "said twice, it counts once").await;
        reached(&supervisor, |status| status.restarts == round).await;
    }
    let end = supervisor.status().borrow().last_end.clone().unwrap();
    assert_eq!(
        end.end,
        IncarnationEnd::Condemned { reason: "it hangs".to_owned(), exit: ChildExit::Code(1) }
    );
    drop(supervisor);
    while soon(incarnations.next()).await.is_some() {}
    assert!(!lock.exists());
}

#[tokio::test]
async fn a_stopped_server_stays_stopped_until_the_next_request_and_that_is_not_a_restart() {
    let (supervisor, mut incarnations) = supervise(command(&["cat"]));
    for round in 1..=7 {
        supervisor.request_start().await;
        let incarnation = next(&mut incarnations).await;
        assert_eq!(incarnation.number.get(), round);
        drop(incarnation.stdin);
        soon(supervisor.stop()).await;
        let status = supervisor.status().borrow().clone();
        assert_eq!((status.state, status.restarts, status.last_end), (State::Idle, 0, None));
    }
}

#[tokio::test]
async fn a_server_whose_owner_has_ended_is_stopped() {
    let (supervisor, incarnations) = supervise(command(&["sleep", "600"]));
    supervisor.request_start().await;
    reached(&supervisor, |status| matches!(status.state, State::Starting(_))).await;
    drop(incarnations);
    reached(&supervisor, |status| status.state == State::Closed).await;
    assert_eq!(soon(supervisor.wait_until_ready()).await, Err(ServerUnavailable::Closed));

    let (supervisor, mut incarnations) = supervise(command(&["sleep", "600"]));
    supervisor.request_start().await;
    let _incarnation = next(&mut incarnations).await;
    let mut status = supervisor.status();
    drop(supervisor);
    soon(status.wait_for(|status| status.state == State::Closed)).await.unwrap();
}
