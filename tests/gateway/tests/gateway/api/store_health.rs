//! A store that can be read and accepts no writes: a full disk, a foreign lock, a Redis that refuses. Calls that must
//! not run twice do not run then, and readiness, status and the log give the reason, until a write succeeds again.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use steadfast_testkit::effort::TestEffort;
use steadfast_testkit::redis::RedisServer;

use super::{ApiGateway, PLAIN, envelope, keyed};
use crate::world::{path_in_process, wait};

/// Checks that all outputs report this reason for not being ready.
fn is_not_ready(gateway: &ApiGateway, reasons: &[&str]) {
    let ready = || gateway.request_as_operator("GET /readyz", &json!(null));
    wait(|| ready().status == 503, || format!("{:?}", ready()));
    let (ready, status) = (ready(), gateway.get("/v1/status"));
    let address = format!("http://{}", gateway.address);
    let shown = String::from_utf8(gateway.run(&["status", "--gateway", &address]).stdout).unwrap();
    assert_eq!(status["verdict"], "trouble", "{status}");
    assert!(!shown.contains("all is well"), "{shown}");
    for part in reasons {
        assert!(ready.message().contains(part), "{part} in {ready:?}");
        assert!(status["store"]["trouble"].as_str().unwrap().contains(part), "{part} in {status}");
        assert!(shown.replace('\n', " ").contains(part), "{part} in {shown}");
    }
}

/// Waits until it is ready again, without a call.
fn is_ready(gateway: &ApiGateway) {
    let ready = || gateway.request_as_operator("GET /readyz", &json!(null));
    wait(|| ready().status == 200, || format!("{:?}", ready()));
    assert_eq!(gateway.get("/v1/status")["store"]["trouble"], json!(null));
}

/// Checks that a payment that must not run twice is refused while the store accepts no writes, and that reads do not
/// change that: neither lists of records, nor a replay, where it is possible.
fn refuses_payments(gateway: &ApiGateway) {
    for number in 0..3 {
        let response = gateway.call(&keyed("http/pay", &json!({ "id": format!("refused {number}") }), "k"));
        assert_eq!(response.code(), "store_unavailable", "{response:?}");
        // Both only read.
        assert_eq!(gateway.request_as_operator("GET /v1/records", &json!(null)).status, 200);
        gateway.call(&keyed("http/pay", &json!({ "id": "before" }), "before"));
    }
    assert!(!gateway.ledger("http").contains("refused"), "{}", gateway.ledger("http"));
    assert_eq!(gateway.count("http", "pay before"), 1);
}

/// Runs the whole scenario. `break_store` makes the store refuse writes, and `heal` ends that.
fn fail_and_heal<T>(
    gateway: &ApiGateway,
    reasons: &[&str],
    break_store: impl FnOnce() -> T,
    heal: impl FnOnce(T),
) {
    let before = keyed("http/pay", &json!({ "id": "before" }), "before");
    assert_eq!(gateway.call(&before).text(), "pay before, run 1");
    is_ready(gateway);
    let broken = break_store();
    is_not_ready(gateway, reasons);
    refuses_payments(gateway);
    is_not_ready(gateway, reasons);
    heal(broken);
    is_ready(gateway);
    let after = gateway.call(&keyed("http/pay", &json!({ "id": "after" }), "k"));
    assert_eq!(after.text(), "pay after, run 1", "{after:?}");
    let lost = gateway.logged_times("store_lost", 1);
    let error = lost[0]["error"].as_str().unwrap();
    assert!(reasons.iter().all(|part| error.contains(part)), "{lost:?}");
    gateway.logged_times("store_back", 1);
}

/// Runs the program in a mount namespace of its own. There the script mounts something at a place, `$0`, before the
/// program starts.
pub(super) fn in_a_namespace(command: &mut Command, mounts: &str, place: &Path) {
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", "--mount", "sh", "-c", mounts]).arg(place);
    inside.arg(command.get_program()).args(command.get_args());
    inside.env_clear().current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        inside.env(name, value.unwrap());
    }
    *command = inside;
}

/// Returns a gateway with its state on a disk of this many MiB.
fn gateway_on_a_small_disk(test: &str, size: u32) -> ApiGateway {
    ApiGateway::with(test, PLAIN, "", |command| {
        let disk = command.get_current_dir().unwrap().join(STATE);
        fs::create_dir_all(&disk).unwrap();
        let script = format!("mount -t tmpfs -o size={size}m tmpfs \"$0\" && exec \"$@\"");
        in_a_namespace(command, &script, &disk);
    })
}

const STATE: &str = ".local/state/steadfast";

#[test]
fn sf_12_a_full_disk_is_reported_by_readiness_status_and_log_until_a_write_succeeds() {
    let gateway = gateway_on_a_small_disk("full_disk", 2);
    let state = gateway.folder.join(STATE);
    let disk = path_in_process(gateway.pid(), &state);
    assert!(disk.join("state.db").exists(), "the state file is on the small disk");
    let ballast = disk.join("ballast");
    let fill = || {
        let mut file = File::create(&ballast).unwrap();
        for block in [4096, 1] {
            while file.write_all(&vec![7; block]).is_ok() {}
        }
    };
    let file = state.join("state.db");
    let reasons = ["ENOSPC", file.to_str().unwrap(), "0 bytes free", "make room"];
    fail_and_heal(&gateway, &reasons, fill, |()| fs::remove_file(&ballast).unwrap());
}

/// The gateway's own writes fill the disk.
#[test]
fn a_small_disk_holds_as_many_calls_as_fit_and_what_it_holds_stays() {
    let gateway = gateway_on_a_small_disk("small_disk", TestEffort::of_this_run().pick(1, 2, 2));
    let pay = |number: usize| {
        let name = number.to_string();
        gateway.call(&keyed("http/pay", &json!({ "id": name, "note": "x".repeat(2000) }), &name))
    };
    let done = (0..10_000).take_while(|number| pay(*number).status == 200).count();
    // Far more than the first commits take.
    assert!(done >= 100, "{done}");
    is_not_ready(&gateway, &["ENOSPC"]);
    // The answer of the last call may not have been written.
    for number in 0..done - 1 {
        let response = pay(number);
        assert_eq!(response.text(), format!("pay {number}, run 1"), "{}", response.body);
    }
    let runs = gateway.ledger("http");
    assert!((0..done).all(|number| runs.lines().filter(|run| **run == format!("pay {number}")).count() == 1));
}

#[test]
fn sf_12_a_state_file_that_another_program_locks_is_reported_until_it_is_released() {
    let gateway = ApiGateway::new("held_file", PLAIN);
    let file = gateway.folder.join(".local/state/steadfast/state.db");
    assert!(file.exists());
    let hold = || {
        let other = rusqlite::Connection::open(&file).unwrap();
        other.execute_batch("PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE").unwrap();
        other
    };
    let reasons = ["held by another process", file.to_str().unwrap()];
    fail_and_heal(&gateway, &reasons, hold, drop);
}

#[test]
fn sf_12_a_redis_that_refuses_writes_is_reported_until_it_accepts_them() {
    let redis = RedisServer::start();
    let config = format!("{PLAIN}[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let gateway = ApiGateway::new("redis_oom", &config);
    let full = || redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    fail_and_heal(&gateway, &["out of memory"], full, |_| {
        redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    });

    let redis = RedisServer::start();
    let config = format!("{PLAIN}[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let gateway = ApiGateway::new("redis_replica", &config);
    // Of a primary that does not exist.
    let replica = || redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let envelope = envelope("http/look", &json!({ "id": "read" }));
    assert_eq!(gateway.call(&envelope).text(), "look read, run 1");
    redis.command(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
    fail_and_heal(&gateway, &["takes no writes"], replica, |_| {
        redis.command(&["REPLICAOF", "NO", "ONE"]);
    });
}

/// A disk that became read-only is simulated by a read-only mount at the place of the state file.
#[test]
fn sf_12_a_read_only_state_folder_is_reported_until_it_is_writable() {
    let gateway = gateway_on_a_small_disk("read_only_folder", 2);
    let state = gateway.folder.join(STATE);
    let file = state.join("state.db");
    let before = keyed("http/pay", &json!({ "id": "before" }), "before");
    assert_eq!(gateway.call(&before).text(), "pay before, run 1");
    is_ready(&gateway);
    let inside = |script: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--preserve-credentials", "--user", "--mount", "--target", &gateway.pid().to_string()]);
        let done = command.args(["sh", "-ec", script]).arg(&state).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    // The same files on another disk, which no process has open yet.
    inside(
        "mkdir \"$0.other\" && mount -t tmpfs tmpfs \"$0.other\" && cp -p \"$0\"/state.db* \"$0.other\" && \
         mount -o remount,ro \"$0.other\" && mount --move \"$0.other\" \"$0\"",
    );
    let reasons = ["Read-only file system", file.to_str().unwrap(), "writable"];
    is_not_ready(&gateway, &reasons);
    for number in 0..3 {
        let response = gateway.call(&keyed("http/pay", &json!({ "id": format!("refused {number}") }), "k"));
        assert_eq!(response.code(), "store_unavailable", "{response:?}");
    }
    is_not_ready(&gateway, &reasons);
    inside("umount --lazy \"$0\"");
    is_ready(&gateway);
    let after = gateway.call(&keyed("http/pay", &json!({ "id": "after" }), "k"));
    assert_eq!(after.text(), "pay after, run 1", "{after:?}");
    assert_eq!(gateway.call(&before).text(), "pay before, run 1", "it is the file of before");
    assert!(!gateway.ledger("http").contains("refused"), "{}", gateway.ledger("http"));
    let lost = gateway.logged_times("store_lost", 1);
    assert!(reasons.iter().all(|part| lost[0]["error"].as_str().unwrap().contains(part)), "{lost:?}");
    gateway.logged_times("store_back", 1);
    gateway.logged_times("store.records_lost", 0);
}

/// Redis refuses writes after it could not save its data.
#[test]
fn sf_12_a_redis_that_cannot_save_is_reported_until_it_can() {
    let redis = RedisServer::start();
    let config = format!("{PLAIN}[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let gateway = ApiGateway::new("redis_misconf", &config);
    let folder = redis.command(&["CONFIG", "GET", "dir"]);
    // A folder with this name prevents the rename.
    let obstacle = Path::new(folder.strip_prefix("dir ").unwrap()).join("dump.rdb");
    let save = |outcome: &str| {
        redis.command(&["BGSAVE"]);
        let is_over = || redis.command(&["INFO", "persistence"]);
        let outcome = format!("rdb_last_bgsave_status:{outcome}");
        wait(|| is_over().contains(&outcome), is_over);
    };
    let fails = || {
        redis.command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
        redis.command(&["CONFIG", "SET", "save", "86400 1000000"]);
        fs::create_dir(&obstacle).unwrap();
        save("err");
    };
    fail_and_heal(&gateway, &["cannot write to its disk"], fails, |()| {
        fs::remove_dir(&obstacle).unwrap();
        save("ok");
    });
}
