//! No child outlives its owner for long, however the owner ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::common::{PolledProcess, TEST_TIMEOUT, parent, signal};

/// An owner with a server that ignores every request to end, as do its descendants, and does not read its stdin.
struct OwnerTestWorld {
    owner: Child,
    leash: PolledProcess,
    server: PolledProcess,
    descendants: Vec<PolledProcess>,
}

impl OwnerTestWorld {
    fn new() -> Self {
        let script = "trap '' TERM INT HUP QUIT
            sh -c 'echo $$; sleep 600 & echo $!; wait' &
            echo $$; while :; do sleep 0.05; done";
        let (owner, mut pids) = owner_of(script, 3);
        // The leash is the process whose parent is not among them.
        let place = pids.iter().position(|pid| !pids.contains(&parent(*pid).unwrap())).unwrap();
        let server = pids.swap_remove(place);
        Self {
            owner,
            leash: PolledProcess::new(parent(server).unwrap()),
            server: PolledProcess::new(server),
            descendants: pids.into_iter().map(PolledProcess::new).collect(),
        }
    }

    fn collect_owner(&mut self) {
        assert!(PolledProcess::new(self.owner.id()).ends_within(TEST_TIMEOUT), "the owner ends");
        self.owner.wait().unwrap();
    }

    fn all_processes(&self) -> impl Iterator<Item = &PolledProcess> {
        [&self.server, &self.leash].into_iter().chain(&self.descendants)
    }
}

/// Starts an owner of a server that runs this script, and reads the process ids that the script prints.
fn owner_of(script: &str, printed: usize) -> (Child, Vec<u32>) {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_steadfast-process-actor"))
        .arg(script)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let pids = lines.take(printed).map(|line| line.unwrap().parse().unwrap()).collect();
    (owner, pids)
}

/// Leaves no processes behind if a test fails.
impl Drop for OwnerTestWorld {
    fn drop(&mut self) {
        let _ = self.owner.kill();
        let _ = self.owner.wait();
        // If a test kills the leash too, nothing else would end these.
        self.descendants.iter().for_each(PolledProcess::end);
    }
}

#[test]
fn no_orphan_is_left_after_any_end_of_the_owner() {
    for signal_kind in [Signal::TERM, Signal::INT, Signal::KILL, Signal::HUP, Signal::ABORT] {
        let mut world = OwnerTestWorld::new();
        assert!(world.all_processes().all(PolledProcess::is_there));
        signal(world.owner.id(), signal_kind);
        world.collect_owner();
        for process in world.all_processes() {
            assert!(process.ends_within(TEST_TIMEOUT), "{} is left after {signal_kind:?}", process.pid);
        }
    }
}

#[test]
fn a_leash_that_receives_a_signal_ends_its_group_first() {
    for signal_kind in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut world = OwnerTestWorld::new();
        signal(world.leash.pid, signal_kind);
        for process in world.all_processes() {
            assert!(process.ends_within(TEST_TIMEOUT), "{} is left after {signal_kind:?}", process.pid);
        }
        world.collect_owner();
    }
}

/// A regression: daemons survived every one of these.
#[test]
fn no_daemon_is_left_after_any_end_of_the_owner() {
    for signal_kind in [Signal::TERM, Signal::INT, Signal::KILL, Signal::HUP, Signal::ABORT] {
        let script = "setsid sh -c 'echo $$; exec sleep 600' &
            (setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 600' &)
            sleep 600";
        let (mut owner, pids) = owner_of(script, 2);
        let daemons: Vec<_> = pids.into_iter().map(PolledProcess::new).collect();
        signal(owner.id(), signal_kind);
        owner.wait().unwrap();
        let left: Vec<_> = daemons.iter().filter(|daemon| !daemon.ends_within(TEST_TIMEOUT)).collect();
        left.iter().for_each(|daemon| daemon.end());
        assert!(left.is_empty(), "{} left after {signal_kind:?}", left.len());
    }
}

/// If owner and leash are killed at once, only the kernel can end the server.
#[test]
fn the_server_ends_also_when_owner_and_leash_are_killed_at_once() {
    let mut world = OwnerTestWorld::new();
    signal(world.leash.pid, Signal::STOP);
    world.owner.kill().unwrap();
    world.collect_owner();
    assert!(world.server.is_there());
    signal(world.leash.pid, Signal::KILL);
    assert!(world.server.ends_within(TEST_TIMEOUT));
}
