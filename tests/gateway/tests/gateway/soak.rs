//! After much work all resources are as before (SF-9): processes, threads, handles, sockets, memory.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::ops::Range;

use serde_json::json;
use steadfast_testkit::effort::TestEffort;

use crate::client::McpTestClient;
use crate::hostile::resident;
use crate::raw::{RawRequest, send};
use crate::world::{GatewayWorld, TestTransport, is_running, wait};

/// The load on all transports together.
struct SoakLoad {
    calls: usize,
    sessions: usize,
    crashes: usize,
}

impl SoakLoad {
    /// Returns the full load under `cargo xtask test --long`, otherwise a part.
    fn of_this_run() -> Self {
        let share = TestEffort::of_this_run().pick(100, 10, 1);
        Self { calls: 10_000 / share, sessions: 1_000 / share, crashes: 100 / share }
    }
}

/// The resources of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MachineUsage {
    processes: usize,
    threads: usize,
    handles: usize,
}

impl MachineUsage {
    fn by(pid: u32) -> Self {
        let count = |kind: &str| fs::read_dir(format!("/proc/{pid}/{kind}")).unwrap().count();
        Self { processes: descendants(pid).len(), threads: count("task"), handles: count("fd") }
    }

    /// Returns true if this is within the base. Threads that wait for files vary, by a few at most.
    fn is_within(&self, base: &Self) -> bool {
        self.processes <= base.processes && self.threads <= base.threads + 4 && self.handles <= base.handles
    }
}

/// Returns the descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
    };
    let parents: BTreeMap<u32, u32> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(one) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| **parent == one).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// More memory than allocators retain.
const SLACK: u64 = 32 << 10;

/// Makes calls of all kinds, one after the other and some concurrently.
fn work(client: &mut McpTestClient, calls: usize, name: &str) {
    for number in 0..calls {
        let id = format!("{name} {number}");
        match number % 10 {
            0 => assert_eq!(client.call("pay", json!({ "id": id })).text, format!("pay {id}, run 1")),
            1 => assert!(client.request("tools/list", json!({}))["result"].is_object()),
            2 => {
                let params = json!({ "name": "look", "arguments": { "id": id }, "_meta": { "progressToken": number } });
                assert!(client.request("tools/call", params)["result"].is_object());
            }
            _ => assert_eq!(client.call("look", json!({ "id": id })).text, format!("look {id}, run 1")),
        }
    }
}

/// Crashes the server during a read, which the next server then answers.
fn crash(client: &mut McpTestClient, id: &str) {
    let response = client.call("look", json!({ "id": id, "fault": "die_after", "times": 1 }));
    assert_eq!(response.text, format!("look {id}, run 2"), "{response:?}");
}

/// Runs a session from its beginning to its end.
fn visit(gateway: &McpTestClient, name: &str, visitor: impl FnOnce(&mut McpTestClient)) {
    let mut client = McpTestClient::at(gateway.address());
    client.initialize();
    client.request("tools/list", json!({}));
    visitor(&mut client);
    let end = RawRequest::to(gateway.address())
        .line("DELETE /mcp HTTP/1.1")
        .header("mcp-session-id", &client.session());
    assert_eq!(send(&end).unwrap().status, 204, "{name}");
}

#[test]
fn sf_9_calls_sessions_and_crashes_leave_nothing_behind() {
    let load = SoakLoad::of_this_run();
    // With so many crashes among so few calls the breaker would open.
    GatewayWorld::each("sf_9_soak", "breaker.mode = \"off\"\n", |world| {
        let mut client = world.client();
        let pid = client.pid();
        let is_http = world.front == TestTransport::Http;
        // Allocations that are made once and kept happen before the first count.
        work(&mut client, 20, "warm");
        crash(&mut client, "warm crash");
        if is_http {
            visit(&client, "warm", |client| work(client, 3, "warm visit"));
        }
        // Cleanup runs in the background.
        let settled = || {
            let mut last = MachineUsage::by(pid);
            wait(
                || {
                    // Two samples at the same moment would prove nothing.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    let now = MachineUsage::by(pid);
                    std::mem::replace(&mut last, now.clone()) == now
                },
                || "rest".to_owned(),
            );
            last
        };
        let (base, memory) = (settled(), resident(pid));
        let (calls, sessions, crashes) = (load.calls / 4, load.sessions / 2, load.crashes.div_ceil(4));
        work(&mut client, calls, "work");
        if is_http {
            for number in 0..sessions {
                visit(&client, &number.to_string(), |client| match number % 4 {
                    0 => {}
                    // A client that ends a session while a call in it is still running.
                    1 => drop(client.send_call("look", json!({ "id": "left", "fault": "slow", "size": 50 }))),
                    _ => work(client, 2, &format!("visit {number}")),
                });
            }
            for number in 0..crashes {
                visit(&client, "crash", |client| crash(client, &format!("crash {number}")));
            }
        } else {
            // A server that crashes too often within a minute is not restarted, so these belong to several gateways.
            for number in 0..crashes {
                let mut other = world.client();
                crash(&mut other, &format!("crash {number}"));
                let (gateway, children) = (other.pid(), descendants(other.pid()));
                assert!(other.hang_up().success());
                wait(
                    || !is_running(gateway) && children.iter().all(|pid| !is_running(*pid)),
                    || "the end of all".to_owned(),
                );
            }
        }
        wait(
            || MachineUsage::by(pid).is_within(&base),
            || format!("{base:?}, and then {:?}", MachineUsage::by(pid)),
        );
        let after = resident(pid);
        assert!(after < memory + SLACK, "{memory} KiB, then {after} KiB");
        work(&mut client, 10, "still");
    });
}

/// Detects a leak of one KiB per call of one kind: for a client or a server over stdio or HTTP, for new arguments, for
/// a failure. The memory of a call makes room for that of the next one, and the first calls fill all such memories. The
/// largest one has room for 25,000 records; here it is limited to a few.
#[test]
fn sf_9_a_call_leaves_less_than_a_kilobyte_on_the_heap() {
    const WARM: u32 = 1_500;
    const CALLS: u32 = 600;
    // One KiB for each third call would be more.
    const MOST: u64 = 256 * CALLS as u64;
    let config = "breaker.mode = \"off\"\nguard.per_turn = 10000\nstore.records = 64\n";
    for (front, back) in TestEffort::of_this_run()
        .cases(vec![(TestTransport::Stdio, TestTransport::Http), (TestTransport::Http, TestTransport::Stdio)])
    {
        let world = GatewayWorld::of("sf_9_heap", config, front, back);
        let file = world.folder().join("heap");
        let mut client = world.client_of("bank", |command| {
            command.env("TESTED_HEAP", &file);
        });
        let port: u16 = fs::read_to_string(&file).unwrap().parse().unwrap();
        let heap = || -> u64 {
            let mut text = String::new();
            TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut text).unwrap();
            text.parse().unwrap()
        };
        let mut work = |numbers: Range<u32>| {
            for number in numbers {
                let id = format!("own {number:05}");
                let (tool, fault) = [("look", ""), ("pay", ""), ("look", "400")][number as usize % 3];
                let response = client.call(tool, json!({ "id": id, "fault": fault }));
                assert_eq!(response.is_error, fault == "400", "{response:?}");
            }
        };
        work(0..WARM);
        let before = heap();
        work(WARM..WARM + CALLS);
        let description =
            || format!("{before} bytes, then {} after {CALLS} calls, {front:?} to {back:?}", heap());
        wait(|| heap() < before + MOST, description);
    }
}
