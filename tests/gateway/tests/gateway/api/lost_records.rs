//! Lost records: the state file or its log is deleted, overwritten, truncated or replaced by an older copy while the
//! gateway is down. Acknowledged keys do not run again, and all outputs report the loss, until an operator accepts it.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;

use super::store_health::in_a_namespace;
use super::{ApiGateway, PLAIN, envelope, keyed};
use crate::world::{LISTEN, TestProcess, start_gateway};

const PAYMENTS: usize = 12;

fn state(gateway: &ApiGateway, suffix: &str) -> PathBuf {
    gateway.folder.join(format!(".local/state/steadfast/state.db{suffix}"))
}

fn pay(gateway: &ApiGateway, round: &str, number: usize) -> super::ApiTestResponse {
    let id = format!("{round} {number}");
    gateway.call(&keyed("http/pay", &json!({ "id": id }), &id))
}

/// Makes twelve payments with keys of their own, each acknowledged.
fn acknowledge(gateway: &ApiGateway, round: &str) {
    for number in 0..PAYMENTS {
        assert_eq!(pay(gateway, round, number).text(), format!("pay {round} {number}, run 1"));
    }
}

/// Checks that none of them runs again: each is replayed from the remaining records, or refused with the reason.
fn assert_none_rerun(gateway: &ApiGateway, round: &str) {
    for number in 0..PAYMENTS {
        let response = pay(gateway, round, number);
        if response.status != 200 {
            assert_eq!(response.code(), "store_unavailable", "{round}: {response:?}");
            for part in
                ["records of earlier calls are lost", "may already have run", "steadfast state accept"]
            {
                assert!(response.message().contains(part), "{part} in {response:?}");
            }
        }
        assert_eq!(gateway.count("http", &format!("pay {round} {number}")), 1, "{round}");
    }
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).replace('\n', " ")
}

/// Checks that readiness, status, command line and doctor report the lost records, and how that was noticed.
fn assert_loss_is_reported(gateway: &ApiGateway, round: &str, part: &str) {
    let ready = gateway.request_as_operator("GET /readyz", &Value::Null);
    assert_eq!((ready.status, ready.code()), (503, "store_unavailable"), "{round}: {ready:?}");
    let status = gateway.get("/v1/status");
    assert_eq!(status["verdict"], "trouble", "{round}: {status}");
    assert!(status["store"]["recordsLost"]["noticedMs"].is_number(), "{round}: {status}");
    assert_eq!(status["store"]["trouble"], Value::Null, "{round}: it answers");
    let finding = status["findings"][0]["what"].as_str().unwrap();
    for text in [ready.message(), finding] {
        assert!(text.contains(part), "{round}: {part} in {text}");
    }
    let address = format!("http://{}", gateway.address);
    let doctor = gateway.run(&["doctor", "--no-servers"]);
    for text in [shown(&gateway.run(&["status", "--gateway", &address])), shown(&doctor)] {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("committed records ") && text.contains(part), "{round}: {text}");
        assert!(text.contains("steadfast state accept"), "{round}: {text}");
    }
    assert_eq!(doctor.status.code(), Some(4), "{round}");
}

/// Checks that calls that may run twice, and calls without a key, continue.
fn assert_other_calls_run(gateway: &ApiGateway, round: &str) {
    let id = json!({ "id": format!("rest {round}") });
    assert_eq!(gateway.call(&keyed("http/look", &id, &format!("look {round}"))).status, 200);
    assert_eq!(gateway.call(&envelope("http/look", &id)).status, 200);
    assert_eq!(gateway.call(&envelope("http/pay", &id)).status, 200);
}

fn assert_healthy(gateway: &ApiGateway) {
    let ready = gateway.request_as_operator("GET /readyz", &Value::Null);
    assert_eq!(ready.status, 200, "{ready:?}");
    let status = gateway.get("/v1/status");
    assert_eq!((&status["verdict"], &status["store"]["recordsLost"]), (&json!("fine"), &Value::Null));
}

/// Loses records of a gateway that is down.
type StateLoss = fn(&ApiGateway);

/// Loses records after the gateway was killed, so that the last of them are in the log.
fn lose_and_recover(gateway: &mut ApiGateway, round: &str, part: &str, lose: impl FnOnce(&ApiGateway)) {
    acknowledge(gateway, round);
    gateway.kill();
    assert!(state(gateway, "-wal").exists());
    assert_reported_until_accepted(gateway, round, part, lose);
}

/// Loses records after the gateway was stopped, so that all of them are in the file.
fn lose_file_and_recover(gateway: &mut ApiGateway, round: &str, part: &str, lose: impl FnOnce(&ApiGateway)) {
    acknowledge(gateway, round);
    gateway.stop();
    assert!(
        !state(gateway, "-wal").exists(),
        "a log that is left could be mixed with a copy that is put back"
    );
    assert_reported_until_accepted(gateway, round, part, lose);
}

/// Loses records, checks that the loss is reported, and accepts it on the command line.
fn assert_reported_until_accepted(
    gateway: &mut ApiGateway,
    round: &str,
    part: &str,
    lose: impl FnOnce(&ApiGateway),
) {
    lose(gateway);
    gateway.start(|_| {});
    assert_none_rerun(gateway, round);
    assert_loss_is_reported(gateway, round, part);
    assert_other_calls_run(gateway, round);
    gateway.kill();
    gateway.start(|_| {});
    assert_loss_is_reported(gateway, round, part);
    assert_none_rerun(gateway, round);
    let address = format!("http://{}", gateway.address);
    let accepted = gateway.run(&["state", "accept", "--gateway", &address]);
    assert!(accepted.status.success() && shown(&accepted).contains("accepted"), "{}", shown(&accepted));
    assert_healthy(gateway);
    let id = format!("after {round}");
    assert_eq!(gateway.call(&keyed("http/pay", &json!({ "id": id }), &id)).status, 200);
}

fn garbage(file: &Path) {
    let length = usize::try_from(fs::metadata(file).unwrap().len()).unwrap();
    fs::write(file, vec![0xa5; length]).unwrap();
}

fn cut_to(file: &Path, length: u64) {
    OpenOptions::new().write(true).open(file).unwrap().set_len(length).unwrap();
}

#[test]
fn sf_13_a_log_that_was_deleted_or_damaged_while_the_gateway_was_down_is_noticed() {
    let mut gateway = ApiGateway::new("lost_log", PLAIN);
    let losses: [(&str, StateLoss); 3] = [
        ("deleted", |gateway| fs::remove_file(state(gateway, "-wal")).unwrap()),
        ("garbage", |gateway| garbage(&state(gateway, "-wal"))),
        ("flipped", |gateway| {
            let mut log = fs::read(state(gateway, "-wal")).unwrap();
            log[200] ^= 0x10;
            fs::write(state(gateway, "-wal"), log).unwrap();
        }),
    ];
    let losses = TestEffort::of_this_run().cases(losses.into());
    for (name, lose) in &losses {
        lose_and_recover(&mut gateway, name, "lacked commits", lose);
    }
    gateway.logged_times("store.records_lost", losses.len());
}

#[test]
fn sf_13_a_state_file_that_was_overwritten_cut_off_or_deleted_while_the_gateway_was_down_is_noticed() {
    let mut gateway = ApiGateway::new("lost_file", PLAIN);
    let nothing = "missing or empty";
    let losses: [(&str, &str, StateLoss); 5] = [
        ("killed and nothing", nothing, |gateway| cut_to(&state(gateway, ""), 0)),
        ("stopped and nothing", nothing, |gateway| cut_to(&state(gateway, ""), 0)),
        ("cut off", "damaged", |gateway| cut_to(&state(gateway, ""), 5000)),
        ("overwritten", "damaged", |gateway| garbage(&state(gateway, ""))),
        ("deleted", nothing, |gateway| {
            fs::remove_file(state(gateway, "")).unwrap();
            // It changes nothing, and reports the loss all the same.
            let doctor = gateway.run(&["doctor", "--no-servers"]);
            assert!(shown(&doctor).contains("held committed records"), "{}", shown(&doctor));
            assert!(!state(gateway, "").exists());
        }),
    ];
    for (name, part, lose) in TestEffort::of_this_run().cases(losses.into()) {
        match name {
            "killed and nothing" => lose_and_recover(&mut gateway, name, part, lose),
            _ => lose_file_and_recover(&mut gateway, name, part, lose),
        }
    }
}

#[test]
fn sf_13_an_older_copy_of_the_state_file_is_noticed_and_the_loss_accepted_over_http_is_in_the_audit() {
    let mut gateway = ApiGateway::new("lost_copy", PLAIN);
    acknowledge(&gateway, "before");
    gateway.stop();
    // Like an operator who copies a file that no process has open.
    let copied = fs::read(state(&gateway, "")).unwrap();
    gateway.start(|_| {});
    acknowledge(&gateway, "after");
    gateway.stop();
    fs::write(state(&gateway, ""), copied).unwrap();
    gateway.start(|_| {});
    assert_none_rerun(&gateway, "before");
    assert_none_rerun(&gateway, "after");
    assert_loss_is_reported(&gateway, "copy", "lacked commits");
    let lost = gateway.get("/v1/status")["store"]["recordsLost"].clone();
    assert!(lost["commits"].as_u64().unwrap() >= 24, "each payment is two commits: {lost}");

    // A second loss before the first is accepted.
    gateway.stop();
    fs::remove_file(state(&gateway, "")).unwrap();
    gateway.start(|_| {});
    assert_none_rerun(&gateway, "after");
    let both = gateway.get("/v1/status")["store"]["recordsLost"].clone();
    assert!(both["commits"].as_u64() > lost["commits"].as_u64(), "{lost} then {both}");

    assert_eq!(gateway.post("/v1/state/accept", &json!({})).status, 401, "an operator's word");
    let accepted = gateway.post_as_operator("POST /v1/state/accept", &Value::Null);
    assert_eq!(accepted["accepted"], both);
    assert_healthy(&gateway);
    assert_eq!(gateway.post_as_operator("POST /v1/state/accept", &Value::Null)["accepted"], Value::Null);
    let audit = gateway.get("/v1/audit?deed=loss_accepted");
    let entries = audit["audit"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{audit}");
    assert!(entries[0]["before"].as_str().unwrap().contains("committed records are lost"), "{audit}");
    assert_eq!(pay(&gateway, "after", 0).text(), "pay after 0, run 2", "the operator has looked");
}

#[test]
fn a_new_state_file_can_be_started_after_a_loss() {
    let mut gateway = ApiGateway::new("lost_anew", &format!("{PLAIN}store.on_damage = \"start_anew\"\n"));
    acknowledge(&gateway, "anew");
    gateway.kill();
    garbage(&state(&gateway, ""));
    gateway.start(|_| {});
    assert_eq!(pay(&gateway, "anew", 0).text(), "pay anew 0, run 2");
    assert_healthy(&gateway);
    let logged = gateway.logged_times("store.records_lost", 1);
    assert!(logged[0]["loss"].as_str().unwrap().contains("damaged"), "{logged:?}");
}

/// A loss is noticed by the file that counts commits. Without that file a loss could not be excluded.
#[test]
fn sf_13_a_deleted_or_damaged_commit_counter_is_reported_like_lost_records() {
    let mut gateway = ApiGateway::new("lost_note", PLAIN);
    let (note, counts) = ("-commits", "counts commits");
    lose_and_recover(&mut gateway, "deleted", counts, |gateway| {
        fs::remove_file(state(gateway, note)).unwrap()
    });
    lose_and_recover(&mut gateway, "emptied", counts, |gateway| cut_to(&state(gateway, note), 0));
    lose_and_recover(&mut gateway, "damaged", counts, |gateway| garbage(&state(gateway, note)));
    // Last, because it takes a file that had records before.
    lose_and_recover(&mut gateway, "deleted with the log", counts, |gateway| {
        fs::remove_file(state(gateway, note)).unwrap();
        fs::remove_file(state(gateway, "-wal")).unwrap();
    });
    assert_eq!(
        gateway.run(&["state", "accept"]).status.code(),
        Some(0),
        "there is nothing to accept any more"
    );
}

#[test]
fn sf_13_all_gateways_on_one_state_file_report_a_loss_until_it_is_accepted_at_one_of_them() {
    let mut gateway = ApiGateway::new("lost_shared", PLAIN);
    let mut other = second_process(&gateway);
    acknowledge(&gateway, "one");
    switch(&mut gateway, &mut other);
    acknowledge(&gateway, "other");
    gateway.kill();
    // Commits of either gateway count for both.
    switch(&mut gateway, &mut other);
    acknowledge(&gateway, "last");
    gateway.kill();
    fs::remove_file(state(&gateway, "-wal")).unwrap();
    gateway.start(|_| {});
    let mut other = second_process(&gateway);
    for _ in 0..2 {
        for round in ["one", "other", "last"] {
            assert_none_rerun(&gateway, round);
        }
        assert_loss_is_reported(&gateway, "shared", "lacked commits");
        switch(&mut gateway, &mut other);
    }
    gateway.post_as_operator("POST /v1/state/accept", &Value::Null);
    for _ in 0..2 {
        assert_healthy(&gateway);
        switch(&mut gateway, &mut other);
    }
    assert_eq!(pay(&gateway, "one", 0).text(), "pay one 0, run 2", "the operator has looked");
    gateway.logged_times("store.records_lost", 1);
}

type GatewayProcess = (Option<TestProcess>, SocketAddr);

/// Starts another gateway of the same user.
fn second_process(gateway: &ApiGateway) -> GatewayProcess {
    let mut command = gateway.command(&["serve"]);
    let log = OpenOptions::new().append(true).open(gateway.folder.join("log")).unwrap();
    let (process, address) = start_gateway(command.args(LISTEN).stderr(log));
    (Some(process), address)
}

/// Uses the other gateway from now on.
fn switch(gateway: &mut ApiGateway, other: &mut GatewayProcess) {
    std::mem::swap(&mut gateway.process, &mut other.0);
    std::mem::swap(&mut gateway.address, &mut other.1);
}

/// Simulates a reboot of the machine: the kernel reports another boot id.
fn after_the_next_boot(gateway: &ApiGateway) -> impl Fn(&mut Command) + use<> {
    let boot = gateway.folder.join("boot_id");
    fs::write(&boot, "00000000-0000-4000-8000-000000000001\n").unwrap();
    move |command| {
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        in_a_namespace(command, script, &boot);
    }
}

/// After a power cut the note has the content of its last sync: that of the first commit. That is no loss as long as
/// the log is there, and one if it is not.
#[test]
fn sf_13_a_power_cut_is_not_a_loss_and_a_log_missing_after_one_is() {
    let mut gateway = ApiGateway::new("power_cut", PLAIN);
    let next_boot = after_the_next_boot(&gateway);
    assert_eq!(pay(&gateway, "first", 0).status, 200);
    let synced = fs::read(state(&gateway, "-commits")).unwrap();
    acknowledge(&gateway, "cut");
    gateway.kill();
    fs::write(state(&gateway, "-commits"), &synced).unwrap();
    gateway.start(&next_boot);
    assert_healthy(&gateway);
    assert_none_rerun(&gateway, "cut");
    for number in 0..PAYMENTS {
        assert_eq!(
            pay(&gateway, "cut", number).text(),
            format!("pay cut {number}, run 1"),
            "it is remembered"
        );
    }
    gateway.kill();

    // The same once more, and the log is gone. By then the file itself contains what the note says, so that only the
    // log shows it.
    let mut gateway = ApiGateway::new("power_cut_and_loss", PLAIN);
    let next_boot = after_the_next_boot(&gateway);
    assert_eq!(pay(&gateway, "first", 0).status, 200);
    let synced = fs::read(state(&gateway, "-commits")).unwrap();
    acknowledge(&gateway, "in the file");
    let file = rusqlite::Connection::open(state(&gateway, "")).unwrap();
    let busy: i64 = file.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
    assert_eq!(busy, 0);
    drop(file);
    acknowledge(&gateway, "cut");
    gateway.kill();
    fs::write(state(&gateway, "-commits"), &synced).unwrap();
    fs::remove_file(state(&gateway, "-wal")).unwrap();
    gateway.start(&next_boot);
    for round in ["in the file", "cut"] {
        assert_none_rerun(&gateway, round);
    }
    assert_loss_is_reported(&gateway, "power cut", "log of the state file was missing");
}
