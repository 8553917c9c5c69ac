//! Agents that do their work through Steadfast while faults occur: the contents of the shop's database when they are
//! done.
//!
//! A *naive* agent calls again when it gets an error. An *obedient* one follows the responses. A *careful* one reads
//! before it calls again. In all cases nothing is ordered twice, and obedient and careful agents end with everything
//! ordered once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, params};
use serde_json::json;
use steadfast_testkit::effort::TestEffort;

use crate::client::{McpTestClient, ToolResponse};
use crate::world::{GatewayWorld, LISTEN, TestTransport, initialized, wait};

/// Shorter times for tests, with the same purpose as the defaults.
const CONFIG: &str = "settling.grace = \"500ms\"\nsettling.settle = \"500ms\"\nsettling.drain = \"1s\"\n\
    [tools.\"shop/orders_add\"]\ntimeout = \"3s\"\n";

const FAULTS: [&str; 8] = [
    "crash_before",
    "crash_after",
    "hang_before",
    "hang_after",
    "unavailable",
    "error_after",
    "late",
    "cancelled_then_ordered",
];

const ITEMS: [&str; 3] = ["apples", "bread", "cheese"];

/// A shop with a database of its own.
struct ShopWorld {
    world: GatewayWorld,
    front: TestTransport,
    database: PathBuf,
}

impl ShopWorld {
    fn new(test: &str, front: TestTransport, config: &str) -> Self {
        let world = GatewayWorld::of(test, config, front, TestTransport::Stdio);
        let database = world.folder().join("shop.db");
        let shop = Connection::open(&database).unwrap();
        shop.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT);
             CREATE TABLE faults (id INTEGER PRIMARY KEY, item TEXT, fault TEXT);",
        )
        .unwrap();
        Self { world, front, database }
    }

    /// Plans this fault for the next order of this item.
    fn plan(&self, item: &str, fault: &str) {
        let shop = Connection::open(&self.database).unwrap();
        shop.busy_timeout(Duration::from_secs(120)).unwrap();
        shop.execute("INSERT INTO faults (item, fault) VALUES (?1, ?2)", params![item, fault]).unwrap();
    }

    /// Returns the number of faults that are still planned.
    fn planned(&self) -> u32 {
        let shop = Connection::open(&self.database).unwrap();
        shop.busy_timeout(Duration::from_secs(120)).unwrap();
        shop.query_row("SELECT count(*) FROM faults", [], |row| row.get(0)).unwrap()
    }

    fn client(&self) -> McpTestClient {
        let line = |listen: &[&str]| -> Command {
            let mut command = self.world.wrap_alone(&[&["--name", "shop"], listen].concat());
            command.args(["--", env!("CARGO_BIN_EXE_steadfast-test-shop")]).arg(&self.database);
            command
        };
        initialized(match self.front {
            TestTransport::Stdio => McpTestClient::on_streams(line(&[])),
            TestTransport::Http => McpTestClient::over_http(line(&LISTEN)),
        })
    }

    /// Returns the number of orders of each item.
    fn orders(&self) -> BTreeMap<String, u32> {
        let shop = Connection::open(&self.database).unwrap();
        shop.busy_timeout(Duration::from_secs(120)).unwrap();
        let mut rows = shop.prepare("SELECT item, count(*) FROM orders GROUP BY item").unwrap();
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    }
}

fn order(client: &mut McpTestClient, item: &str) -> ToolResponse {
    client.call("orders_add", json!({ "item": item }))
}

fn is_there(client: &mut McpTestClient, item: &str) -> bool {
    let listed = client.call("orders_list", json!({}));
    assert!(!listed.is_error, "{listed:?}");
    listed.text.lines().any(|line| line == item)
}

type AgentBehavior = fn(&mut McpTestClient, &str);

fn naive(client: &mut McpTestClient, item: &str) {
    for _ in 0..4 {
        if !order(client, item).is_error {
            return;
        }
    }
}

/// Maximum number of rounds. An agent that follows the responses and needs more is in a loop.
const ROUNDS: usize = 8;

fn obedient(client: &mut McpTestClient, item: &str) {
    let mut responses = Vec::new();
    for _ in 0..ROUNDS {
        let response = order(client, item);
        if !response.is_error {
            return;
        }
        let error = &response.gateway_meta["error"];
        if error["ended"] == json!(true) {
            if is_there(client, item) {
                return;
            }
        } else if let Some(wait) = error["retryAfterMs"].as_u64() {
            assert!(
                names_wait(&response.text, wait),
                "the text says the same: {} in {:?}",
                wait,
                response.text
            );
            thread::sleep(Duration::from_millis(wait));
        }
        responses.push(response.text);
    }
    panic!("{item} is not done: {responses:#?}");
}

/// Returns true if the text names the same wait as the field for programs.
fn names_wait(text: &str, wait: u64) -> bool {
    text.contains(&format!("{} s", wait.div_ceil(1000)))
}

fn careful(client: &mut McpTestClient, item: &str) {
    let mut responses = Vec::new();
    for _ in 0..ROUNDS {
        let response = order(client, item);
        if !response.is_error || is_there(client, item) {
            return;
        }
        responses.push(response.text);
    }
    panic!("{item} is not done: {responses:#?}");
}

#[test]
fn sf_10_agents_end_with_their_work_done_once_under_every_fault() {
    let agents: [(&str, AgentBehavior); 3] = [("naive", naive), ("obedient", obedient), ("careful", careful)];
    let fronts = [TestTransport::Stdio, TestTransport::Http];
    thread::scope(|scope| {
        let cases = all_of(&all_of(&fronts, &FAULTS), &agents);
        for ((front, fault), (name, agent)) in TestEffort::of_this_run().cases(cases) {
            scope.spawn(move || {
                let shop = ShopWorld::new(&format!("agents_{fault}_{name}"), front, CONFIG);
                shop.plan("bread", fault);
                let mut client = shop.client();
                for item in ITEMS {
                    agent(&mut client, item);
                }
                drop(client);
                let orders = shop.orders();
                assert!(orders.values().all(|times| *times == 1), "{front:?} {fault} {name}: {orders:?}");
                if name != "naive" {
                    assert_eq!(orders.len(), ITEMS.len(), "{front:?} {fault} {name}: {orders:?}");
                }
            });
        }
    });
}

/// The same with faults in almost every call, some of them twice.
#[test]
fn sf_10_agents_end_with_their_work_done_once_under_all_faults_together() {
    let agents: [(&str, AgentBehavior); 2] = [("obedient", obedient), ("careful", careful)];
    let fronts = [TestTransport::Stdio, TestTransport::Http];
    let days: Vec<usize> = (0..FAULTS.len()).step_by(2).collect();
    thread::scope(|scope| {
        let cases = all_of(&all_of(&fronts, &days), &agents);
        for ((front, day), (name, agent)) in TestEffort::of_this_run().cases(cases) {
            scope.spawn(move || {
                // With this many faults an approval would be requested.
                let config = format!("trust.mode = \"off\"\n{CONFIG}");
                let shop = ShopWorld::new(&format!("agents_day_{day}_{name}"), front, &config);
                let fault = |number: usize| FAULTS[(day + number) % FAULTS.len()];
                for (number, item) in ITEMS.into_iter().enumerate() {
                    shop.plan(item, fault(number * 3));
                }
                shop.plan(ITEMS[1], fault(1));
                let mut client = shop.client();
                for item in ITEMS {
                    agent(&mut client, item);
                }
                drop(client);
                let orders = shop.orders();
                let once: BTreeMap<_, _> = ITEMS.map(|item| (item.to_owned(), 1)).into();
                assert_eq!(orders, once, "{front:?} {day} {name}");
            });
        }
    });
}

const VERIFY: &str = "verify = { tool = \"shop/orders_find\", params = { item = \"{item}\" }, \
    ran_if = \"/orders/*/item = {item}\" }\n";

/// Calls again until the call is done, and never verifies.
fn repeat_until_done(client: &mut McpTestClient, item: &str, key: Option<&str>) -> Vec<ToolResponse> {
    let mut responses = Vec::new();
    for _ in 0..ROUNDS {
        let response = match key {
            Some(key) => client.call_keyed("orders_add", json!({ "item": item }), key),
            None => order(client, item),
        };
        let is_done = !response.is_error || response.code.as_deref() == Some("result_not_kept");
        responses.push(response);
        if is_done {
            return responses;
        }
    }
    panic!("{item} is not done: {responses:#?}");
}

#[test]
fn sf_10_with_a_verification_unknown_outcomes_are_settled_without_the_client() {
    let (fronts, keys) = ([TestTransport::Stdio, TestTransport::Http], [None, Some("k-1")]);
    thread::scope(|scope| {
        let cases = all_of(&all_of(&fronts, &FAULTS), &keys);
        for ((front, fault), key) in TestEffort::of_this_run().cases(cases) {
            scope.spawn(move || {
                let config = format!("{CONFIG}{VERIFY}");
                let shop =
                    ShopWorld::new(&format!("agents_verify_{fault}_{}", key.is_some()), front, &config);
                shop.plan("bread", fault);
                let mut client = shop.client();
                let responses = repeat_until_done(&mut client, "bread", key);
                assert_eq!(shop.orders()["bread"], 1, "{front:?} {fault} {key:?}: {responses:#?}");
                // No response says that the call is over and unknown, because by then its outcome is known.
                for response in &responses {
                    assert_ne!(
                        response.gateway_meta["error"]["ended"],
                        json!(true),
                        "{front:?} {fault} {key:?}: {response:?}"
                    );
                }
                drop(client);
                let (unknown, _) = shop.world.steadfast(&["unknown"]);
                assert!(!unknown.contains("orders_add"), "{front:?} {fault} {key:?}: {unknown}");
                let notifications = shop.world.logged("notification");
                let mut notifications =
                    notifications.iter().filter(|line| line["notification"] == "outcome_unknown");
                assert_eq!(notifications.next(), None, "{front:?} {fault} {key:?}");
            });
        }
    });
}

#[test]
fn sf_10_a_verification_that_shows_nothing_leaves_the_outcome_unknown() {
    for (verify, reason) in TestEffort::of_this_run().cases(vec![
        (VERIFY.replace("/orders/*/item", "/items/*/item"), "has nothing at"),
        (VERIFY.replace("{ item = \"{item}\" }", "{ item = \"{goods}\" }"), "has no argument goods"),
        (VERIFY.replace("orders_find", "orders_search"), "not known to be read-only"),
        (VERIFY.replace("orders_find", "orders_add"), "not known to be read-only"),
        (VERIFY.replace("shop/", "store/"), "there is no tool"),
    ]) {
        let shop = ShopWorld::new("agents_unverified", TestTransport::Stdio, &format!("{CONFIG}{verify}"));
        shop.plan("bread", "crash_after");
        let mut client = shop.client();
        let response = order(&mut client, "bread");
        assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{verify}: {response:?}");
        assert_eq!(shop.orders()["bread"], 1, "{verify}");
        let logged = shop.world.logged_times("tool_call_verified", 1);
        assert!(
            logged[0]["reason"].as_str().is_some_and(|text| text.contains(reason)),
            "{verify}: {logged:?}"
        );
        assert_eq!(logged[0]["outcome"], "unknown", "{verify}");
        let notifications = shop.world.logged_times("notification", 1);
        assert_eq!(notifications[0]["notification"], "outcome_unknown", "{verify}: {notifications:?}");
    }
}

/// At its deadline the caller gets the response that the call is still running. It never comes back.
#[test]
fn sf_10_a_verification_settles_an_outcome_whose_client_never_comes_back() {
    for (fault, ran, after) in TestEffort::of_this_run()
        .cases(vec![("hang_after", "ran", "it ran"), ("hang_before", "did_not_run", "it did not run")])
    {
        let shop = ShopWorld::new(
            &format!("agents_alone_{fault}"),
            TestTransport::Http,
            &format!("{CONFIG}{VERIFY}"),
        );
        shop.plan("bread", fault);
        let mut client = shop.client();
        client.send_call("orders_add", json!({ "item": "bread" }));
        // The call is in flight when its client leaves for good.
        wait(|| shop.planned() == 0, || "the order has begun".to_owned());
        client.disconnect();
        let verified = shop.world.logged_times("tool_call_verified", 1);
        assert_eq!(verified[0]["outcome"], ran, "{fault}: {verified:?}");
        let audited = shop.world.logged_times("audit", 1);
        let entry =
            ["by", "deed", "after"].map(|name| audited[0][name].as_str().unwrap_or_default().to_owned());
        assert_eq!(
            entry,
            ["verification with shop/orders_find (verify)", "resolved", after].map(str::to_owned),
            "{fault}: {audited:?}"
        );
        let (unknown, _) = shop.world.steadfast(&["unknown"]);
        assert!(!unknown.contains("orders_add"), "{fault}: {unknown}");
    }
}

#[test]
fn sf_10_a_verification_that_does_not_answer_is_given_up() {
    let shop = ShopWorld::new("agents_verify_hangs", TestTransport::Stdio, &format!("{CONFIG}{VERIFY}"));
    shop.plan("bread", "crash_after");
    shop.plan("orders_find", "hang");
    let mut client = shop.client();
    let response = order(&mut client, "bread");
    assert_eq!(response.code.as_deref(), Some("outcome_unknown"), "{response:?}");
    let logged = shop.world.logged_times("tool_call_verified", 1);
    let reason = logged[0]["reason"].as_str().unwrap_or_default();
    assert!(logged[0]["outcome"] == "unknown" && reason.contains("did not answer in time"), "{logged:?}");
    assert_eq!(shop.world.logged("audit"), [json!(null); 0]);
}

/// Returns all pairs.
fn all_of<A: Copy, B: Copy>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    first.iter().flat_map(|one| second.iter().map(move |other| (*one, *other))).collect()
}

/// Waits until the gateway has read all messages so far.
fn wait_until_read(client: &mut McpTestClient) {
    client.request("ping", json!({}));
}

#[test]
fn sf_11_a_call_that_is_dispatched_twice_is_run_once_and_one_that_follows_is_run_again() {
    for front in TestTransport::cases() {
        let shop = ShopWorld::new("agents_twice", front, "");
        let gate = shop.world.folder().join("shop.db.gate");
        std::fs::write(&gate, "").unwrap();
        shop.plan("apples", "gate");
        let mut client = shop.client();
        let calls = [0; 2].map(|_| client.send_call("orders_add", json!({ "item": "apples" })));
        wait_until_read(&mut client);
        std::fs::remove_file(&gate).unwrap();
        for call in calls {
            let response = ToolResponse::of(&client.answer(call));
            assert!(!response.is_error, "{response:?}");
        }
        assert_eq!(shop.orders()["apples"], 1, "{front:?}");
        // Each of these is sent after the answer to the previous one.
        for times in 2..6 {
            let response = order(&mut client, "apples");
            assert!(!response.is_error && !response.from_cache, "{response:?}");
            assert_eq!(shop.orders()["apples"], times, "{front:?}");
        }
    }
}

#[test]
fn sf_10_a_client_that_gave_up_and_sends_again_gets_the_answer_of_its_first_call() {
    let cases = all_of(&[TestTransport::Stdio, TestTransport::Http], &[true, false]);
    for (front, cancels) in TestEffort::of_this_run().cases(cases) {
        let shop = ShopWorld::new(&format!("agents_resend_{cancels}"), front, "");
        let gate = shop.world.folder().join("shop.db.gate");
        std::fs::write(&gate, "").unwrap();
        shop.plan("apples", "gate");
        let mut client = shop.client();
        let first = client.send_call("orders_add", json!({ "item": "apples" }));
        wait_until_read(&mut client);
        if cancels {
            client.notify("notifications/cancelled", json!({ "requestId": first, "reason": "timed out" }));
        }
        let second = client.send_call("orders_add", json!({ "item": "apples" }));
        wait_until_read(&mut client);
        std::fs::remove_file(&gate).unwrap();
        let response = ToolResponse::of(&client.answer(second));
        assert!(!response.is_error, "{front:?} {cancels}: {response:?}");
        assert_eq!(shop.orders()["apples"], 1, "{front:?} {cancels}");
    }
}

#[test]
fn sf_10_an_answer_that_came_too_late_is_given_once_more() {
    for front in TestTransport::cases() {
        let shop = ShopWorld::new("agents_late", front, "dedupe.late_after = \"1ms\"\n");
        let mut client = shop.client();
        assert!(!order(&mut client, "apples").is_error);
        wait_until_read(&mut client);
        // It may have been too late for the client to use it, whatever came in between.
        let again = order(&mut client, "apples");
        assert!(again.from_cache, "{again:?}");
        assert_eq!(shop.orders()["apples"], 1, "{front:?}");
    }
}
