//! A memory that was lost: the state file or its log is deleted, overwritten, cut off or replaced by an older copy while the gateway
//! is down. Acknowledged keys do not run again, and everybody is told, until somebody accepts the loss.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value, json};

use super::{Gateway, PLAIN, envelope, keyed};

const PAYMENTS: usize = 12;

fn state(gateway: &Gateway, suffix: &str) -> PathBuf {
    gateway.folder.join(format!(".local/state/steadfast/state.db{suffix}"))
}

fn pay(gateway: &Gateway, round: &str, number: usize) -> super::Said {
    let id = format!("{round} {number}");
    gateway.call(&keyed("http/pay", &json!({ "id": id }), &id))
}

/// Twelve payments under keys of their own, each acknowledged.
fn acknowledge(gateway: &Gateway, round: &str) {
    for number in 0..PAYMENTS {
        assert_eq!(pay(gateway, round, number).text(), format!("pay {round} {number}, run 1"));
    }
}

/// None of them runs again: each is answered from what is left, or refused with the reason.
fn none_runs_again(gateway: &Gateway, round: &str) {
    for number in 0..PAYMENTS {
        let said = pay(gateway, round, number);
        if said.status != 200 {
            assert_eq!(said.code(), "store_unavailable", "{round}: {said:?}");
            for part in ["lost records", "may already have run", "steadfast state accept"] {
                assert!(said.message().contains(part), "{part} in {said:?}");
            }
        }
        assert_eq!(gateway.count("http", &format!("pay {round} {number}")), 1, "{round}");
    }
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).replace('\n', " ")
}

/// Readiness, status, command line and doctor say what is lost.
fn everybody_is_told(gateway: &Gateway, round: &str, part: &str) {
    let ready = gateway.asked("GET /readyz", &Value::Null);
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
    for said in [shown(&gateway.run(&["status", "--gateway", &address])), shown(&doctor)] {
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("committed records are lost"), "{round}: {said}");
        assert!(said.contains("steadfast state accept"), "{round}: {said}");
    }
    assert_eq!(doctor.status.code(), Some(4), "{round}");
}

/// What no harm can come of twice, and what brings no key, goes on.
fn the_rest_goes_on(gateway: &Gateway, round: &str) {
    let id = json!({ "id": format!("rest {round}") });
    assert_eq!(gateway.call(&keyed("http/look", &id, &format!("look {round}"))).status, 200);
    assert_eq!(gateway.call(&envelope("http/look", &id)).status, 200);
    assert_eq!(gateway.call(&envelope("http/pay", &id)).status, 200);
}

fn is_well(gateway: &Gateway) {
    let ready = gateway.asked("GET /readyz", &Value::Null);
    assert_eq!(ready.status, 200, "{ready:?}");
    let status = gateway.get("/v1/status");
    assert_eq!((&status["verdict"], &status["store"]["recordsLost"]), (&json!("fine"), &Value::Null));
}

/// Loses records, sees that it is told, and has the command line accept it.
fn story(gateway: &mut Gateway, round: &str, part: &str, loses: impl FnOnce(&Gateway)) {
    acknowledge(gateway, round);
    gateway.kill();
    loses(gateway);
    gateway.start(|_| {});
    none_runs_again(gateway, round);
    everybody_is_told(gateway, round, part);
    the_rest_goes_on(gateway, round);
    gateway.kill();
    gateway.start(|_| {});
    everybody_is_told(gateway, round, part);
    none_runs_again(gateway, round);
    let address = format!("http://{}", gateway.address);
    let accepted = gateway.run(&["state", "accept", "--gateway", &address]);
    assert!(accepted.status.success() && shown(&accepted).contains("accepted"), "{}", shown(&accepted));
    is_well(gateway);
    let id = format!("after {round}");
    assert_eq!(gateway.call(&keyed("http/pay", &json!({ "id": id }), &id)).status, 200);
}

fn garbage(file: &PathBuf) {
    let length = usize::try_from(fs::metadata(file).unwrap().len()).unwrap();
    fs::write(file, vec![0xa5; length]).unwrap();
}

fn cut_to_nothing(file: &PathBuf) {
    OpenOptions::new().write(true).truncate(true).open(file).unwrap();
}

#[test]
fn a_log_that_was_deleted_or_damaged_while_the_gateway_was_down_is_noticed() {
    let mut gateway = Gateway::new("lost_log", PLAIN);
    let lacks = "lacked commits";
    story(&mut gateway, "deleted", lacks, |gateway| fs::remove_file(state(gateway, "-wal")).unwrap());
    story(&mut gateway, "garbage", lacks, |gateway| garbage(&state(gateway, "-wal")));
    story(&mut gateway, "flipped", lacks, |gateway| {
        let mut log = fs::read(state(gateway, "-wal")).unwrap();
        log[200] ^= 0x10;
        fs::write(state(gateway, "-wal"), log).unwrap();
    });
    gateway.logged_times("store.records_lost", 3);
}

#[test]
fn a_state_file_that_was_overwritten_or_cut_off_while_the_gateway_was_down_is_noticed() {
    let mut gateway = Gateway::new("lost_file", PLAIN);
    story(&mut gateway, "nothing", "missing or empty", |gateway| cut_to_nothing(&state(gateway, "")));
    story(&mut gateway, "overwritten", "damaged", |gateway| garbage(&state(gateway, "")));
    story(&mut gateway, "deleted", "missing or empty", |gateway| {
        fs::remove_file(state(gateway, "")).unwrap();
        fs::remove_file(state(gateway, "-wal")).unwrap();
        // It changes nothing, and says so all the same.
        let doctor = gateway.run(&["doctor", "--no-servers"]);
        assert!(shown(&doctor).contains("held committed records"), "{}", shown(&doctor));
        assert!(!state(gateway, "").exists());
    });
}

#[test]
fn an_older_copy_of_the_state_file_is_noticed_and_the_loss_accepted_over_http_is_in_the_audit() {
    let mut gateway = Gateway::new("lost_copy", PLAIN);
    acknowledge(&gateway, "before");
    gateway.stop();
    // The log stays where connections were closed at the same moment.
    let copied = ["", "-wal"].map(|suffix| (suffix, fs::read(state(&gateway, suffix)).ok()));
    gateway.start(|_| {});
    acknowledge(&gateway, "after");
    gateway.stop();
    for (suffix, bytes) in copied {
        let _ = fs::remove_file(state(&gateway, suffix));
        if let Some(bytes) = bytes {
            fs::write(state(&gateway, suffix), bytes).unwrap();
        }
    }
    gateway.start(|_| {});
    none_runs_again(&gateway, "before");
    none_runs_again(&gateway, "after");
    everybody_is_told(&gateway, "copy", "lacked commits");
    let lost = gateway.get("/v1/status")["store"]["recordsLost"].clone();
    assert!(lost["commits"].as_u64().unwrap() >= 24, "each payment is two commits: {lost}");

    // A second loss before the first is accepted.
    gateway.stop();
    fs::remove_file(state(&gateway, "")).unwrap();
    gateway.start(|_| {});
    none_runs_again(&gateway, "after");
    let both = gateway.get("/v1/status")["store"]["recordsLost"].clone();
    assert!(both["commits"].as_u64() > lost["commits"].as_u64(), "{lost} then {both}");

    assert_eq!(gateway.post("/v1/state/accept", &json!({})).status, 401, "an operator's word");
    let accepted = gateway.steer("POST /v1/state/accept", &Value::Null);
    assert_eq!(accepted["accepted"], both);
    is_well(&gateway);
    assert_eq!(gateway.steer("POST /v1/state/accept", &Value::Null)["accepted"], Value::Null);
    let audit = gateway.get("/v1/audit?deed=loss_accepted");
    let entries = audit["audit"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{audit}");
    assert!(entries[0]["before"].as_str().unwrap().contains("committed records are lost"), "{audit}");
    assert_eq!(pay(&gateway, "after", 0).text(), "pay after 0, run 2", "the operator has looked");
}

#[test]
fn whoever_wants_it_starts_anew_after_a_loss() {
    let mut gateway = Gateway::new("lost_anew", &format!("{PLAIN}store.on_damage = \"start_anew\"\n"));
    acknowledge(&gateway, "anew");
    gateway.kill();
    garbage(&state(&gateway, ""));
    gateway.start(|_| {});
    assert_eq!(pay(&gateway, "anew", 0).text(), "pay anew 0, run 2");
    is_well(&gateway);
    let told = gateway.logged_times("store.records_lost", 1);
    assert!(told[0]["loss"].as_str().unwrap().contains("damaged"), "{told:?}");
}
