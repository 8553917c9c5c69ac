//! `steadfast status`, `breaker`, `flush`, `tail`, `doctor`, `completions` and `bench`, as an operator runs them: with a gateway that
//! runs, and on the store alone.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use steadfast::classify::{Fault, Source};
use steadfast::policy::{AskWhen, Mode, Policy, ToolClass};
use steadfast::{Answer, Attempt, Engine, SqliteOptions, SqliteStore, Steadfast, call, output};
use steadfast_core::policy::Profile;

/// A folder with a configuration and the store that it names.
struct Home(PathBuf);

/// A gateway that runs until this is dropped.
struct Gateway {
    child: Child,
    address: String,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SECRET: &str = "hunter2hunter2";

impl Home {
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("looking_{test}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let home = Self(folder);
        home.configure("");
        home
    }

    fn configure(&self, more: &str) {
        let text = format!("[store]\nkind = \"sqlite\"\npath = \"state/state.db\"\n{more}");
        fs::write(self.0.join("steadfast.toml"), text).unwrap();
    }

    /// An engine on that store, as a gateway has one.
    async fn engine(&self, policy: Policy) -> Engine {
        fs::create_dir_all(self.0.join("state")).unwrap();
        let store = SqliteStore::open(SqliteOptions::at(self.0.join("state/state.db"))).unwrap();
        Engine::builder().store(Arc::new(store)).policies(Arc::new(policy)).start().await
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command.args(arguments).current_dir(&self.0).env_clear().env("HOME", &self.0).env("USER", "ann");
        command
    }

    /// What is said, on both streams, and the exit code. Nothing of it is a secret or a colour.
    fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        self.ran(&mut self.command(arguments))
    }

    fn ran(&self, command: &mut Command) -> (String, String, i32) {
        let ended = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(ended.stdout), text(ended.stderr));
        for secret in [Some(SECRET.to_owned()), self.token(), Some("\x1b".to_owned())].into_iter().flatten() {
            assert!(!out.contains(&secret) && !err.contains(&secret), "{secret}: {out}{err}");
        }
        (out, err, ended.status.code().unwrap())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (out, err, code) = self.run(&[arguments, &["--json"]].concat());
        assert_eq!((err.as_str(), code), ("", 0), "{arguments:?}: {out}");
        serde_json::from_str(&out).unwrap()
    }

    fn token(&self) -> Option<String> {
        fs::read_to_string(self.0.join("state/admin-token")).ok()
    }

    /// A gateway that listens, with the bank of the demo behind it.
    fn gateway(&self, more: &[&str]) -> Gateway {
        let mut arguments = vec!["wrap", "--listen", "127.0.0.1:0", "--name", "bank"];
        arguments.extend(more);
        arguments.extend(["--", env!("CARGO_BIN_EXE_steadfast"), "demo-bank", "ledger"]);
        let mut command = self.command(&arguments);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut lines = lines.map(|line| line.unwrap());
        let said =
            lines.find_map(|line| line.split_once("listening on http://").map(|(_, rest)| rest.to_owned()));
        let address = said.unwrap().trim_end_matches("/mcp").to_owned();
        // Somebody must read what it says.
        std::thread::spawn(move || lines.for_each(drop));
        Gateway { child, address }
    }
}

fn plain() -> Policy {
    let mut policy = Profile::Standard.policy(ToolClass::Mutating);
    policy.modes.guard = Mode::Off;
    policy.modes.trust = Mode::Off;
    policy.retry.attempts = 1.try_into().unwrap();
    policy
}

fn asks() -> Policy {
    let mut policy = plain();
    policy.modes.trust = Mode::Enforce;
    policy.approval.when = AskWhen::Always;
    policy
}

async fn pay(engine: &Engine, to: &str) {
    let wanted = call("bank", "pay").params(&json!({ "to": to, "password": SECRET })).session("s-1").key(to);
    engine.call(wanted.envelope().unwrap(), async |_: Attempt| -> Answer { Ok(output("paid")) }).await;
}

async fn fail(engine: &Engine, times: u32) {
    for number in 0..times {
        let wanted = call("bank", "fails").params(&json!({ "n": number })).envelope().unwrap();
        let fails =
            async |_: Attempt| -> Answer { Err(Fault::new(Source::Http { status: 500 }, "no").into()) };
        engine.call(wanted, fails).await;
    }
}

/// What the gateway itself answers.
async fn answered(gateway: &Gateway, path: &str) -> Value {
    use steadfast_mcp::http::back::{Asked, Origin, Settings, UnderWay};
    let origin = Origin::new(&format!("http://{}", gateway.address), Settings::default()).unwrap();
    let asked = Asked {
        method: http::Method::GET,
        target: path.parse().unwrap(),
        headers: http::HeaderMap::new(),
        body: Bytes::new(),
    };
    let replied = origin.send(asked, &UnderWay::default()).await.unwrap();
    serde_json::from_slice(&replied.body).unwrap()
}

/// What fits the schema that the OpenAPI document has for this.
async fn fits(operation: &str, value: &Value) {
    let steadfast =
        Steadfast::opening(steadfast::Sources::default()).set("store.kind", "memory").open().await.unwrap();
    let api = steadfast_api::Api::new(steadfast, steadfast_api::Access::default());
    let request =
        Request::get("/openapi.json").header("host", "localhost").body(Full::new(Bytes::new())).unwrap();
    let body = api.respond(request).await.into_body().collect().await.unwrap().to_bytes();
    let document: Value = serde_json::from_slice(&body).unwrap();
    let schema =
        &document["paths"][operation]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{operation}");
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::draft202012::new(&whole).unwrap();
    let wrong: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{operation}: {wrong:?} in {value}");
}

#[tokio::test]
async fn where_nothing_ran_nothing_is_wrong_and_nothing_is_made() {
    let home = Home::new("nothing");
    let (out, err, code) = home.run(&["status"]);
    assert!(code == 0 && out.starts_with("● nothing has run here yet"), "{out}{err}");
    let status = home.json(&["status"]);
    assert_eq!(
        (&status["verdict"], &status["store"]["kind"]),
        (&json!("fine"), &json!("sqlite")),
        "{status}"
    );
    fits("/v1/status", &status).await;
    for arguments in [
        &["approvals"][..],
        &["breaker"],
        &["tail", "--once"],
        &["reset", "bank/pay"],
        &["flush", "--tool", "bank/pay"],
    ] {
        let (out, err, code) = home.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {out}{err}");
    }
    assert!(!home.0.join("state").exists(), "looking made a state file");
}

#[tokio::test]
async fn the_status_is_what_the_gateway_says_and_its_code_says_how_bad_it_is() {
    let home = Home::new("status");
    let engine = home.engine(asks()).await;
    pay(&engine, "ann").await;
    engine.shutdown(Duration::ZERO).await;
    let alone = home.run(&["status"]);
    let gateway = home.gateway(&[]);
    let with = home.run(&["status"]);
    for (out, err, code) in [&alone, &with] {
        assert_eq!(*code, 3, "{out}{err}");
        assert!(
            out.starts_with("▲ somebody should look") && out.contains("1 call waits for approval"),
            "{out}"
        );
        assert!(out.contains("needs an answer") && out.contains("bank/pay"), "{out}");
    }
    assert!(
        alone.0.contains("none listens here") && with.0.contains(&gateway.address),
        "{}{}",
        alone.0,
        with.0
    );
    let (out, err, code) = home.run(&["status", "--json"]);
    assert_eq!((err.as_str(), code), ("", 3));
    let (mut said, mut heard): (Value, _) =
        (serde_json::from_str(&out).unwrap(), answered(&gateway, "/v1/status").await);
    fits("/v1/status", &said).await;
    (said["atMs"], heard["atMs"]) = (Value::Null, Value::Null);
    assert_eq!(said, heard);
    for (arguments, path) in [(["approvals"], "/v1/approvals"), (["breaker"], "/v1/breakers")] {
        let said = home.json(&arguments);
        assert_eq!(said, answered(&gateway, path).await);
        fits(path, &said).await;
    }
}

#[tokio::test]
async fn breakers_are_opened_and_reset_with_a_gateway_and_without() {
    let home = Home::new("breaker");
    let engine = home.engine(plain()).await;
    pay(&engine, "ann").await;
    engine.shutdown(Duration::ZERO).await;
    for listens in [false, true] {
        let gateway = listens.then(|| home.gateway(&[]));
        let (out, err, code) = home.run(&["breaker", "open", "bank/pay", "--for", "30m"]);
        assert!(code == 0 && out.contains("tool:bank:pay is open for 30m"), "{out}{err}");
        let (out, _, code) = home.run(&["breaker", "list"]);
        assert!(code == 0 && out.contains("forced open") && out.contains("by hand, ends in"), "{out}");
        let (out, _, code) = home.run(&["status"]);
        assert!(code == 3 && out.contains("left alone") && out.contains("tool:bank:pay"), "{out}");
        let breakers = home.json(&["breaker"]);
        assert_eq!(breakers["breakers"][0]["state"], "FORCED_OPEN", "{breakers}");
        let steered = home.json(&["breaker", "reset", "tool:bank:pay"]);
        assert_eq!(
            (&steered["before"], &steered["known"]),
            (&json!("FORCED_OPEN"), &json!(true)),
            "{steered}"
        );
        assert_eq!(home.run(&["status"]).2, 0);
        if let Some(gateway) = gateway {
            let (mut command, token) = (home.command(&["status"]), home.token().unwrap());
            command.env("STEADFAST_ADMIN_TOKEN", token);
            assert_eq!(home.ran(&mut command).2, 0, "{}", gateway.address);
        }
    }
}

#[tokio::test]
async fn what_a_person_changed_is_in_the_audit_under_their_name() {
    let home = Home::new("audit");
    home.run(&["breaker", "open", "tool:bank:pay"]);
    let gateway = home.gateway(&[]);
    home.run(&["breaker", "reset", "tool:bank:pay"]);
    let engine = home.engine(plain()).await;
    let audit = engine.audit(&steadfast::AuditPage::default()).await.unwrap();
    let audit: Vec<_> = audit.iter().map(|entry| serde_json::to_value(entry).unwrap()).collect();
    let seen: Vec<_> = audit.iter().map(|entry| entry.to_string()).collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.iter().all(|entry| entry.contains("\"ann\"")), "{seen:?}");
    assert!(seen[0].contains("http") && seen[1].contains("cli"), "{seen:?}");
    drop(gateway);
}

#[tokio::test]
async fn a_breaker_that_opened_by_itself_is_trouble() {
    let home = Home::new("trouble");
    let engine = home.engine(plain()).await;
    fail(&engine, 12).await;
    engine.shutdown(Duration::ZERO).await;
    let (out, err, code) = home.run(&["status"]);
    assert!(
        code == 4 && out.starts_with("✖ calls fail") && out.contains("tool:bank:fails"),
        "{code} {out}{err}"
    );
}

#[tokio::test]
async fn calls_are_forgotten_by_key_session_and_tool() {
    for listens in [false, true] {
        let home = Home::new(&format!("flush_{listens}"));
        let engine = home.engine(plain()).await;
        for to in ["ann", "bob", "cyd"] {
            pay(&engine, to).await;
        }
        let records =
            engine.records(&Default::default(), steadfast::Page { after: None, limit: 9 }).await.unwrap();
        let key = records[1].key.0.to_hex();
        engine.shutdown(Duration::ZERO).await;
        let gateway = listens.then(|| home.gateway(&[]));
        let (out, err, code) = home.run(&["flush", "--key", &key[..12]]);
        assert!(code == 0 && out.contains("1 call is forgotten"), "{out}{err}");
        let (_, err, code) = home.run(&["flush", "--key", &key[..12]]);
        assert!(code == 1 && err.contains("there is no call"), "{err}");
        let (out, err, code) = home.run(&["flush", "--tool", "bank/pya"]);
        assert!(
            code == 0 && out.contains("nothing to forget") && err.contains("did you mean `bank/pay`"),
            "{out}{err}"
        );
        assert_eq!(home.json(&["flush", "--session", "s-1", "--tool", "bank/pay"])["forgotten"], 2);
        for wrong in [
            &["flush"][..],
            &["flush", "--key", "12", "--tool", "a/b"],
            &["flush", "--tool", "pay"],
            &["flush", "--key", "xyz"],
        ] {
            assert_eq!(home.run(wrong).2, 2, "{wrong:?}");
        }
        drop(gateway);
    }
}

#[tokio::test]
async fn rp_7_an_answer_goes_through_a_gateway_that_keeps_its_state_in_memory() {
    let home = Home::new("memory");
    home.configure("");
    let gateway = home.gateway(&["--store", "memory"]);
    let (out, err, code) = home.run(&["status"]);
    assert!(
        code == 0 && out.contains(&gateway.address) && out.contains("memory of this process"),
        "{out}{err}"
    );
    let (_, err, code) = home.run(&["approve", "7"]);
    assert!(code == 1 && err.contains("steadfast approvals"), "{err}");
    assert!(!home.0.join("state/state.db").exists());
}

#[tokio::test]
async fn rp_7_requests_are_answered_through_a_gateway() {
    let home = Home::new("answers");
    let engine = home.engine(asks()).await;
    pay(&engine, "ann").await;
    pay(&engine, "bob").await;
    engine.shutdown(Duration::ZERO).await;
    let gateway = home.gateway(&[]);
    let ids: Vec<_> = home.json(&["approvals"])["approvals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].to_string())
        .collect();
    assert_eq!(home.json(&["approve", &ids[0]])["answer"], "approved");
    assert_eq!(home.json(&["deny", &ids[1]])["answer"], "denied");
    let (_, err, code) = home.run(&["deny", &ids[1]]);
    assert!(code == 1 && err.contains("there is no request"), "{err}");
    assert_eq!(home.json(&["approvals"])["approvals"], json!([]));
    drop(gateway);
}

#[tokio::test]
async fn sf_7_steering_a_gateway_needs_its_token_and_looking_does_not() {
    let home = Home::new("token");
    let gateway = home.gateway(&[]);
    let mut wrong = home.command(&["breaker", "open", "tool:bank:pay"]);
    let (out, err, code) = home.ran(wrong.env("STEADFAST_ADMIN_TOKEN", "somebody-elses"));
    assert!(
        code == 1 && err.contains("STEADFAST_ADMIN_TOKEN") && !err.contains("somebody-elses"),
        "{out}{err}"
    );
    let mut looking = home.command(&["status"]);
    assert_eq!(home.ran(looking.env("STEADFAST_ADMIN_TOKEN", "somebody-elses")).2, 0);
    assert_eq!(home.run(&["breaker", "open", "tool:bank:pay", "--gateway", &gateway.address]).2, 0);
    let mut direct = home.command(&["breaker", "reset", "tool:bank:pay", "--gateway", "none"]);
    assert_eq!(
        home.ran(direct.env("STEADFAST_ADMIN_TOKEN", "somebody-elses")).2,
        0,
        "the file is theirs anyway"
    );
}

#[tokio::test]
async fn several_gateways_are_one_as_far_as_they_share_their_state() {
    let home = Home::new("several");
    let (one, two) = (home.gateway(&[]), home.gateway(&[]));
    let (out, _, code) = home.run(&["status"]);
    assert!(code == 0 && out.contains(&one.address) && out.contains(&two.address), "{out}");
    let (out, err, _) = home.run(&["status", "--json"]);
    assert!(serde_json::from_str::<Value>(&out).is_ok() && err.contains(&one.address), "{err}");
    let apart = home.gateway(&["--store", "memory"]);
    let (_, err, code) = home.run(&["breaker", "open", "tool:bank:pay"]);
    assert!(code == 2 && err.contains("--gateway") && err.contains(&apart.address), "{err}");
    assert_eq!(home.run(&["status", "--gateway", &two.address]).2, 0);
    // Killed: it takes nothing away, and nobody asks it again.
    for gateway in [one, two, apart] {
        drop(gateway);
    }
    let left = || fs::read_dir(home.0.join("state/gateways")).unwrap().count();
    assert_eq!(left(), 3);
    let (out, err, code) = home.run(&["status"]);
    assert!(code == 0 && err.is_empty() && out.contains("none listens here"), "{out}{err}");
    assert_eq!(left(), 0);
}

#[tokio::test]
async fn slips_of_the_pen_are_recognised() {
    let home = Home::new("slips");
    home.configure("[servers.bank]\ncommand = [\"true\"]\n");
    let engine = home.engine(plain()).await;
    pay(&engine, "ann").await;
    engine.shutdown(Duration::ZERO).await;
    for (arguments, code, part) in [
        (&["breaker", "open", "bank/pya"][..], 2, "did you mean `bank/pay`"),
        (&["breaker", "open", "pya"], 2, "did you mean `bank/pay`"),
        (&["breaker", "reset", "tool:bank:pya", "--for", "1m"], 2, "--for"),
        (&["breaker", "open", "bank/pay", "--for", "soon"], 2, "30m"),
        (&["breaker", "open", "!"], 2, "SERVER/TOOL"),
        (&["reset", "bank/pya"], 0, "did you mean `bank/pay`"),
        (&["tail", "--once", "--tool", "bank/pya"], 0, "did you mean `bank/pay`"),
        (
            &["config", "explain", "bank/pay", "--setting", "retry.atempts"],
            2,
            "did you mean `retry.attempts`",
        ),
        (&["config", "explain", "bnak/pay", "--setting", "retry"], 0, "did you mean `bank`"),
        (&["bench", "bnak"], 2, "did you mean `bank`"),
        (&["statsu"], 2, "status"),
        (&["status", "--gateway", "::"], 2, "127.0.0.1:8080"),
        (&["status", "--gateway", "127.0.0.1:1"], 1, "does not answer"),
    ] {
        let (out, err, status) = home.run(arguments);
        assert_eq!(status, code, "{arguments:?}: {out}{err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
}

#[tokio::test]
async fn calls_are_told_as_they_happen() {
    let home = Home::new("tail");
    let engine = home.engine(plain()).await;
    pay(&engine, "ann").await;
    pay(&engine, "ann").await;
    fail(&engine, 1).await;
    engine.shutdown(Duration::ZERO).await;
    let (out, _, code) = home.run(&["tail", "--once"]);
    let lines: Vec<_> = out.lines().collect();
    assert!(code == 0 && lines.len() == 3, "{out}");
    assert!(
        lines[0].contains("ok") && lines[1].contains("replayed") && lines[2].contains("bank/fails"),
        "{out}"
    );
    let (out, _, _) = home.run(&["tail", "--once", "-n", "1", "--tool", "bank/pay"]);
    assert!(out.lines().count() == 1 && out.contains("replayed"), "{out}");
    let (out, _, _) = home.run(&["tail", "--once", "--json"]);
    let facts: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((facts.len(), &facts[2]["call"]["tool"]["tool"]), (3, &json!("fails")));
    for listens in [false, true] {
        let gateway = listens.then(|| home.gateway(&[]));
        let mut tail =
            home.command(&["tail", "-n", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(tail.stderr.take().unwrap()).lines();
        assert!(said.next().unwrap().unwrap().contains("following"));
        let engine = home.engine(plain()).await;
        pay(&engine, if listens { "bob" } else { "cyd" }).await;
        engine.shutdown(Duration::ZERO).await;
        let line = BufReader::new(tail.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        assert!(line.contains("ok") && line.contains("bank/pay") && line.contains("s-1"), "{line}");
        tail.kill().unwrap();
        tail.wait().unwrap();
        drop(gateway);
    }
}

#[test]
fn a_status_that_is_watched_is_told_when_it_changes() {
    let home = Home::new("watch");
    let mut watching = home.command(&["status", "--watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["verdict"], "fine");
    home.run(&["breaker", "open", "tool:bank:pay"]);
    assert_eq!(next()["counts"]["forcedBreakers"], 1);
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn sf_6_a_doctor_finds_what_one_trips_over_and_tells_no_secret() {
    let home = Home::new("doctor");
    let bank = env!("CARGO_BIN_EXE_steadfast");
    home.configure(&format!(
        "[servers.bank]\ncommand = [{bank:?}, \"demo-bank\", \"ledger\"]\nenv = {{ KEY = \"{SECRET}\" }}\n\
         [servers.gone]\ncommand = [\"no-such-program\"]\n\
         [servers.away]\nurl = \"http://127.0.0.1:1/{SECRET}\"\n"
    ));
    let (out, _, code) = home.run(&["doctor", "--json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &found["ok"]), (4, &json!(false)), "{found:#}");
    let level = |name: &str| {
        let checks = found["checks"].as_array().unwrap();
        let check =
            checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {found:#}"));
        (check["level"].as_str().unwrap(), check["what"].as_str().unwrap(), check["todo"].is_string())
    };
    let (ok, what, _) = level("server bank");
    assert!(ok == "ok" && what.contains("steadfast-demo-bank") && what.contains("tools"), "{what}");
    for bad in ["server gone", "server away"] {
        assert_eq!((level(bad).0, level(bad).2), ("bad", true), "{}", level(bad).1);
    }
    for ok in ["configuration", "state folder", "store", "disk", "clock", "admin token", "program"] {
        assert_eq!(level(ok).0, "ok", "{}", level(ok).1);
    }
    assert!(!home.0.join("state").exists(), "looking made something");
    home.configure("attemps = 3\n");
    let (out, _, code) = home.run(&["doctor"]);
    assert!(code == 4 && out.contains("bad   configuration") && out.contains("steadfast check"), "{out}");
    home.configure("");
    let (out, err, code) = home.run(&["doctor", "--no-servers"]);
    assert!(matches!(code, 0 | 3) && out.contains("ok    configuration"), "{code} {out}{err}");
}

#[test]
fn every_shell_can_complete_our_commands() {
    let home = Home::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (out, err, code) = home.run(&["completions", shell]);
        assert!(code == 0 && out.contains("approvals") && !out.contains("demo-bank"), "{shell}: {err}");
    }
    assert_eq!(home.run(&["completions", "tcsh"]).2, 2);
}

#[test]
fn a_server_is_measured_alone_and_behind_us_and_leaves_nothing() {
    let home = Home::new("bench");
    let bank = ["--", env!("CARGO_BIN_EXE_steadfast"), "demo-bank", "ledger"];
    let run = |more: &[&str]| home.run(&[&["bench", "--rounds", "5"][..], more, &bank].concat());
    let (out, err, code) = run(&["--json"]);
    assert_eq!((err.as_str(), code), ("", 0), "{out}");
    let measured: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&measured["server"], &measured["rounds"]), (&json!("steadfast-demo-bank"), &json!(5)));
    for (place, name) in ["ping", "tools/list"].into_iter().enumerate() {
        let one = &measured["measured"][place];
        assert_eq!(one["asked"], name);
        for who in ["bareMicros", "guardedMicros"] {
            let of = |percent: &str| one[who][percent].as_u64().unwrap();
            assert!(0 < of("p50") && of("p50") <= of("p95") && of("p95") <= of("p99"), "{one}");
        }
    }
    let (out, err, code) = run(&["--tool", "balance"]);
    assert!(code == 0 && out.contains("tools/call") && out.contains("DIFFERENCE"), "{out}{err}");
    let (_, err, code) = run(&["--tool", "balanec"]);
    assert!(code == 2 && err.contains("did you mean `balance`"), "{err}");
    assert!(!home.0.join("state").exists(), "the measurement is in the history");
    let (_, err, code) = home.run(&["bench", "--", "no-such-program"]);
    assert!(code == 1 && err.contains("no-such-program"), "{err}");
}
