//! `steadfast status`, `breaker`, `flush`, `tail`, `doctor`, `completions` and `bench`, run by an operator with a
//! running gateway, and on the store alone.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/waiting.rs"]
mod waiting;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use steadfast::admin::{BreakerOverride, OperatorIdentity, OperatorSurface};
use steadfast::call::classify::{AttemptFault, FaultSource};
use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
use steadfast::policy::{ApprovalTrigger, CallPolicy, EnforcementMode, ToolClass};
use steadfast::store::{SqliteOptions, SqliteStore};
use steadfast::{Attempt, Engine, Steadfast};
use steadfast_core::policy::PolicyProfile;
use steadfast_testkit::effort::TestEffort;

use crate::folder::CliTestFolder;
use crate::waiting::{ChildGuard, wait};

/// A folder with a configuration and its store.
struct OperatorTestHome(CliTestFolder);

/// A running gateway, which is ended on drop.
struct OperatorTestGateway {
    child: ChildGuard,
    address: String,
}

const SECRET: &str = "hunter2hunter2";

impl OperatorTestHome {
    fn new(test: &str) -> Self {
        let home = Self(CliTestFolder::new(&format!("looking_{test}")));
        home.configure("");
        home
    }

    fn configure(&self, more: &str) {
        let text = format!("[store]\nkind = \"sqlite\"\npath = \"state/state.db\"\n{more}");
        fs::write(self.0.join("steadfast.toml"), text).unwrap();
    }

    /// Returns an engine on that store, like that of a gateway.
    async fn engine(&self, policy: CallPolicy) -> Engine {
        fs::create_dir_all(self.0.join("state")).unwrap();
        let store = SqliteStore::open(SqliteOptions::at(self.0.join("state/state.db"))).unwrap();
        Engine::builder().store(Arc::new(store)).policies(Arc::new(policy)).start().await
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command.args(arguments).current_dir(&self.0).env_clear().env("HOME", &self.0).env("USER", "ann");
        command
    }

    /// Runs a command. Returns both output streams and the exit code. Asserts that the output has no secrets and no
    /// colours.
    fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        self.ran(&mut self.command(arguments))
    }

    fn ran(&self, command: &mut Command) -> (String, String, i32) {
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        for secret in [Some(SECRET.to_owned()), self.token(), Some("\x1b".to_owned())].into_iter().flatten() {
            assert!(!out.contains(&secret) && !err.contains(&secret), "{secret}: {out}{err}");
        }
        (out, err, output.status.code().unwrap())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (out, err, code) = self.run(&[arguments, &["--json"]].concat());
        assert_eq!((err.as_str(), code), ("", 0), "{arguments:?}: {out}");
        serde_json::from_str(&out).unwrap()
    }

    fn token(&self) -> Option<String> {
        fs::read_to_string(self.0.join("state/admin-token")).ok()
    }

    /// Starts a gateway that listens, in front of the bank of the demo.
    fn gateway(&self, more: &[&str]) -> OperatorTestGateway {
        let mut arguments = vec!["wrap", "--listen", "127.0.0.1:0", "--name", "bank"];
        arguments.extend(more);
        arguments.extend(["--", env!("CARGO_BIN_EXE_steadfast"), "demo-bank", "ledger"]);
        OperatorTestGateway::started(&mut self.command(&arguments))
    }

    /// Announces a gateway at this address in a file beside the state. Its process is this one, which is alive.
    #[cfg(target_os = "linux")]
    fn announce(&self, address: SocketAddr, store: &str) {
        let own = steadfast_store::this_process();
        let announcement = json!({
            "address": address.to_string(),
            "pid": own.pid,
            "boot": &*own.boot,
            "started": own.started,
            "startedAtMs": 0,
            "version": env!("CARGO_PKG_VERSION"),
            "store": store,
        });
        self.private(
            &format!("state/gateways/{}-{}.json", own.pid, address.port()),
            &announcement.to_string(),
        );
    }

    /// Writes a private file.
    #[cfg(unix)]
    fn private(&self, name: &str, text: &str) {
        use std::os::unix::fs::OpenOptionsExt as _;
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(file).unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[cfg(unix)]
    fn allow(&self, name: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

impl OperatorTestGateway {
    fn started(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = ChildGuard(command.spawn().unwrap());
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut lines = lines.map(|line| line.unwrap());
        let url =
            lines.find_map(|line| line.split_once("listening on http://").map(|(_, rest)| rest.to_owned()));
        let address = url.unwrap().trim_end_matches("/mcp").to_owned();
        // Drains the output, so that the pipe does not fill.
        std::thread::spawn(move || lines.for_each(drop));
        OperatorTestGateway { child, address }
    }
}

#[cfg(target_os = "linux")]
impl OperatorTestGateway {
    /// Stops it as Ctrl-Z does. On return, all its threads are stopped.
    fn stop(&self) {
        self.signal("-STOP");
        let threads = || fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().map(Result::unwrap);
        let is_stopped = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('T'))
        };
        wait(|| threads().all(is_stopped), || format!("the stop of {}", self.address));
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

/// An unrelated server that sends given responses and records the requests.
struct FakeGateway {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeGateway {
    /// Answers by the number and the path of each request.
    fn answering(answer: impl Fn(usize, &str) -> (u16, Value) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let recorder = requests.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).is_ok_and(|read| read > 0) {}
                let head = head.to_lowercase();
                let length = head
                    .split("content-length: ")
                    .nth(1)
                    .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
                stream.read_exact(&mut vec![0; length]).unwrap();
                let (status, body) = answer(number, head.split(' ').nth(1).unwrap_or_default());
                recorder.lock().unwrap().push(head);
                let body = body.to_string();
                let response = format!(
                    "HTTP/1.1 {status} so\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.get_mut().write_all(response.as_bytes());
            }
        });
        Self { address, requests }
    }

    fn has_received(&self, text: &str) -> bool {
        self.requests.lock().unwrap().iter().any(|head| head.contains(text))
    }
}

fn plain() -> CallPolicy {
    let mut policy = PolicyProfile::Standard.policy(ToolClass::Mutating);
    policy.modes.guard = EnforcementMode::Off;
    policy.modes.trust = EnforcementMode::Off;
    policy.retry.attempts = 1.try_into().unwrap();
    policy
}

fn approval_policy() -> CallPolicy {
    let mut policy = plain();
    policy.modes.trust = EnforcementMode::Enforce;
    policy.approval.when = ApprovalTrigger::Always;
    policy
}

async fn pay(engine: &Engine, to: &str) {
    let envelope = EnvelopeBuilder::new("bank/pay")
        .args(&json!({ "to": to, "password": SECRET }))
        .session("s-1")
        .key(to);
    engine
        .call(envelope.build().unwrap(), async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) })
        .await;
}

async fn fail(engine: &Engine, times: u32) {
    for number in 0..times {
        let envelope = EnvelopeBuilder::new("bank/fails").args(&json!({ "n": number })).build().unwrap();
        let fails = async |_: Attempt| -> ToolResult {
            Err(AttemptFault::new(FaultSource::Http { status: 500 }, "no").into())
        };
        engine.call(envelope, fails).await;
    }
}

/// Returns the gateway's own response.
async fn answered(gateway: &OperatorTestGateway, path: &str) -> Value {
    use steadfast_mcp::http::upstream::{HttpOrigin, HttpUpstreamSettings, OriginRequest, RequestProgress};
    let origin =
        HttpOrigin::new(&format!("http://{}", gateway.address), HttpUpstreamSettings::default()).unwrap();
    let request = OriginRequest {
        method: http::Method::GET,
        target: path.parse().unwrap(),
        headers: http::HeaderMap::new(),
        body: Bytes::new(),
    };
    let replied = origin.send(request, &RequestProgress::default()).await.unwrap();
    serde_json::from_slice(&replied.body).unwrap()
}

/// Asserts that the value matches the schema of the operation in the OpenAPI document.
async fn fits(operation: &str, value: &Value) {
    let steadfast = Steadfast::builder().set("store.kind", "memory").build().await.unwrap();
    let api = steadfast_api::Api::new(steadfast, steadfast_api::AccessRules::default());
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
    let home = OperatorTestHome::new("nothing");
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
async fn the_status_is_that_of_the_gateway_and_sets_the_exit_code() {
    let home = OperatorTestHome::new("status");
    let engine = home.engine(approval_policy()).await;
    pay(&engine, "ann").await;
    engine.shutdown(Duration::ZERO).await;
    let alone = home.run(&["status"]);
    let gateway = home.gateway(&[]);
    let with = home.run(&["status"]);
    for (out, err, code) in [&alone, &with] {
        assert_eq!(*code, 3, "{out}{err}");
        assert!(out.starts_with("▲ needs attention") && out.contains("1 call waits for approval"), "{out}");
        assert!(out.contains("pending approvals") && out.contains("bank/pay"), "{out}");
    }
    assert!(
        alone.0.contains("none is running here") && with.0.contains(&gateway.address),
        "{}{}",
        alone.0,
        with.0
    );
    let (out, err, code) = home.run(&["status", "--json"]);
    assert_eq!((err.as_str(), code), ("", 3));
    let (mut printed, mut served): (Value, _) =
        (serde_json::from_str(&out).unwrap(), answered(&gateway, "/v1/status").await);
    fits("/v1/status", &printed).await;
    (printed["atMs"], served["atMs"]) = (Value::Null, Value::Null);
    assert_eq!(printed, served);
    for (arguments, path) in [(["approvals"], "/v1/approvals"), (["breaker"], "/v1/breakers")] {
        let printed = home.json(&arguments);
        assert_eq!(printed, answered(&gateway, path).await);
        fits(path, &printed).await;
    }
}

#[tokio::test]
async fn breakers_are_opened_and_reset_with_a_gateway_and_without() {
    let home = OperatorTestHome::new("breaker");
    let engine = home.engine(plain()).await;
    pay(&engine, "ann").await;
    engine.shutdown(Duration::ZERO).await;
    for listens in [false, true] {
        let gateway = listens.then(|| home.gateway(&[]));
        let (out, err, code) = home.run(&["breaker", "open", "bank/pay", "--for", "30m"]);
        assert!(code == 0 && out.contains("tool:bank:pay is open for 30m"), "{out}{err}");
        let (out, _, code) = home.run(&["breaker", "list"]);
        assert!(code == 0 && out.contains("forced open") && out.contains("by an operator, ends in"), "{out}");
        let (out, _, code) = home.run(&["status"]);
        assert!(code == 3 && out.contains("open circuit breakers") && out.contains("tool:bank:pay"), "{out}");
        let breakers = home.json(&["breaker"]);
        assert_eq!(breakers["breakers"][0]["state"], "FORCED_OPEN", "{breakers}");
        let steered = home.json(&["breaker", "reset", "tool:bank:pay"]);
        assert_eq!(
            (&steered["before"], &steered["known"]),
            (&json!("FORCED_OPEN"), &json!(true)),
            "{steered}"
        );
        assert_eq!(home.run(&["status"]).2, 0);
        // All at once, as in an emergency.
        let (out, err, code) = home.run(&["breaker", "open", "--all"]);
        assert!(code == 0 && out.contains("tool:bank:pay is open"), "{out}{err}");
        assert_eq!(home.run(&["status"]).2, 3);
        let reset = home.json(&["breaker", "reset", "--all"]);
        assert_eq!(reset["steered"][0]["before"], "FORCED_OPEN", "{reset}");
        assert_eq!(home.run(&["status"]).2, 0);
        if let Some(gateway) = gateway {
            let (mut command, token) = (home.command(&["status"]), home.token().unwrap());
            command.env("STEADFAST_ADMIN_TOKEN", token);
            assert_eq!(home.ran(&mut command).2, 0, "{}", gateway.address);
        }
    }
}

#[tokio::test]
async fn a_list_that_is_longer_than_a_page_is_shown_to_its_end() {
    let home = OperatorTestHome::new("long");
    let engine = home.engine(PolicyProfile::Standard.policy(ToolClass::ReadOnly)).await;
    let works = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("seen")) };
    for number in 0..1100 {
        engine
            .call(EnvelopeBuilder::new("bank/look").args(&[("number", number)]).build().unwrap(), works)
            .await;
    }
    let mut opening = tokio::task::JoinSet::new();
    for number in 0..1001 {
        let (engine, key) = (engine.clone(), format!("dependency:host-{number}").parse().unwrap());
        let by = OperatorIdentity::new("ann", OperatorSurface::Library);
        opening.spawn(async move {
            engine.admin().update_breaker(None, &key, BreakerOverride::Open { until: None }, &by).await
        });
    }
    opening.join_all().await;
    engine.shutdown(Duration::ZERO).await;
    let list = home.json(&["breaker"]);
    assert_eq!((list["breakers"].as_array().unwrap().len(), &list["next"]), (1001, &Value::Null));
    let (out, _, _) = home.run(&["status"]);
    assert_eq!(out.lines().filter(|line| line.contains("dependency:host-")).count(), 1001);
    let (out, _, _) = home.run(&["tail", "--once", "--json", "-n", "1050"]);
    assert_eq!(out.lines().count(), 1050);
    let (out, err, _) = home.run(&["tail", "--once", "--json", "--tenant", "acme"]);
    assert_eq!((out.as_str(), err.as_str()), ("", ""));
}

#[tokio::test]
async fn manual_changes_are_in_the_audit_log_with_the_operator() {
    let home = OperatorTestHome::new("audit");
    home.run(&["breaker", "open", "tool:bank:pay"]);
    let gateway = home.gateway(&[]);
    home.run(&["breaker", "reset", "tool:bank:pay"]);
    let engine = home.engine(plain()).await;
    let audit = engine.admin().audit(&steadfast::admin::AuditQuery::default()).await.unwrap().found;
    let audit: Vec<_> = audit.iter().map(|entry| serde_json::to_value(entry).unwrap()).collect();
    let entries: Vec<_> = audit.iter().map(|entry| entry.to_string()).collect();
    assert_eq!(entries.len(), 2, "{entries:?}");
    assert!(entries.iter().all(|entry| entry.contains("\"ann\"")), "{entries:?}");
    // With and without a gateway.
    assert!(audit.iter().all(|entry| entry["by"]["from"] == "cli"), "{entries:?}");
    drop(gateway);
}

#[tokio::test]
async fn a_breaker_that_opened_by_itself_is_a_problem() {
    let home = OperatorTestHome::new("trouble");
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
async fn records_are_deleted_by_key_session_and_tool() {
    for listens in [false, true] {
        let home = OperatorTestHome::new(&format!("flush_{listens}"));
        let engine = home.engine(plain()).await;
        for to in ["ann", "bob", "cyd"] {
            pay(&engine, to).await;
        }
        let records = engine
            .admin()
            .records(&Default::default(), steadfast::store::RecordPage { after: None, limit: 9 })
            .await
            .unwrap();
        let key = records[1].key.0.to_hex();
        engine.shutdown(Duration::ZERO).await;
        let gateway = listens.then(|| home.gateway(&[]));
        let (out, err, code) = home.run(&["flush", "--key", &key[..12]]);
        assert!(code == 0 && out.contains("1 record deleted"), "{out}{err}");
        let (_, err, code) = home.run(&["flush", "--key", &key[..12]]);
        assert!(code == 1 && err.contains("there is no call"), "{err}");
        let (out, err, code) = home.run(&["flush", "--tool", "bank/pya"]);
        assert!(
            code == 0 && out.contains("no matching records") && err.contains("did you mean `bank/pay`"),
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
async fn rp_7_a_decision_reaches_a_gateway_with_state_in_memory() {
    let home = OperatorTestHome::new("memory");
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
    let home = OperatorTestHome::new("answers");
    let engine = home.engine(approval_policy()).await;
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
    assert!(code == 1 && err.contains("no pending request has the id"), "{err}");
    assert_eq!(home.json(&["approvals"])["approvals"], json!([]));
    drop(gateway);
}

#[tokio::test]
async fn sf_7_changes_of_a_gateway_require_its_token_and_queries_do_not() {
    let home = OperatorTestHome::new("token");
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
    let home = OperatorTestHome::new("several");
    let (one, two) = (home.gateway(&[]), home.gateway(&[]));
    let (out, _, code) = home.run(&["status"]);
    assert!(code == 0 && out.contains(&one.address) && out.contains(&two.address), "{out}");
    let all = home.json(&["status"]);
    assert_eq!(all["verdict"], "fine", "{all:#}");
    let listed = |all: &Value, address: &str| {
        let gateways = all["gateways"].as_array().unwrap();
        assert_eq!(gateways.len(), 2, "{all:#}");
        gateways.iter().find(|gateway| gateway["gateway"] == address).map(|gateway| gateway["status"].clone())
    };
    for gateway in [&one, &two] {
        let own = home.json(&["status", "--gateway", &gateway.address]);
        let mut same = listed(&all, &gateway.address).unwrap();
        same["atMs"] = own["atMs"].clone();
        assert_eq!(same, own, "each is what it says itself");
    }
    // State of a single process is shown, whichever gateway was started last.
    #[cfg(target_os = "linux")]
    for stopped in [&one, &two] {
        stopped.stop();
        let (out, _, code) = home.run(&["status", "--json"]);
        stopped.signal("-CONT");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &report["verdict"]), (4, &json!("trouble")), "{report:#}");
        let verdict = |address: &str| listed(&report, address).unwrap()["verdict"].clone();
        let running = if stopped.address == one.address { &two } else { &one };
        assert_eq!((verdict(&stopped.address), verdict(&running.address)), (json!("trouble"), json!("fine")));
    }
    let apart = home.gateway(&["--store", "memory"]);
    let (_, err, code) = home.run(&["breaker", "open", "tool:bank:pay"]);
    assert!(code == 2 && err.contains("--gateway") && err.contains(&apart.address), "{err}");
    assert_eq!(home.run(&["status", "--gateway", &two.address]).2, 0);
    // A killed gateway leaves its file behind, but is not asked again.
    for gateway in [one, two, apart] {
        drop(gateway);
    }
    let left = || fs::read_dir(home.0.join("state/gateways")).unwrap().count();
    assert_eq!(left(), 3);
    let (out, err, code) = home.run(&["status"]);
    assert!(code == 0 && err.is_empty() && out.contains("none is running here"), "{out}{err}");
    assert_eq!(left(), 0);
}

#[tokio::test]
async fn misspelt_arguments_get_suggestions() {
    let home = OperatorTestHome::new("slips");
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
async fn calls_are_printed_as_they_happen() {
    let home = OperatorTestHome::new("tail");
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
        let mut tail = home.command(&["tail", "-n", "0"]);
        let mut tail = ChildGuard(tail.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut messages = BufReader::new(tail.stderr.take().unwrap()).lines();
        assert!(messages.next().unwrap().unwrap().contains("following"));
        let engine = home.engine(plain()).await;
        pay(&engine, if listens { "bob" } else { "cyd" }).await;
        engine.shutdown(Duration::ZERO).await;
        let line = BufReader::new(tail.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        assert!(line.contains("ok") && line.contains("bank/pay") && line.contains("s-1"), "{line}");
        drop(tail);
        drop(gateway);
    }
}

#[test]
fn a_watched_status_is_printed_when_it_changes() {
    let home = OperatorTestHome::new("watch");
    let mut watching = home.command(&["status", "--watch", "--json"]);
    let mut watching = ChildGuard(watching.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["verdict"], "fine");
    home.run(&["breaker", "open", "tool:bank:pay"]);
    assert_eq!(next()["counts"]["forcedBreakers"], 1);
}

#[test]
fn sf_6_doctor_finds_setup_problems_and_prints_no_secret() {
    let home = OperatorTestHome::new("doctor");
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
    let (ok, description, _) = level("server bank");
    assert!(
        ok == "ok" && description.contains("steadfast-demo-bank") && description.contains("tools"),
        "{description}"
    );
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
fn every_shell_can_complete_the_commands() {
    let home = OperatorTestHome::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (out, err, code) = home.run(&["completions", shell]);
        assert!(code == 0 && out.contains("approvals") && !out.contains("demo-bank"), "{shell}: {err}");
    }
    assert_eq!(home.run(&["completions", "tcsh"]).2, 2);
}

#[test]
fn a_server_is_measured_alone_and_behind_the_gateway_and_nothing_is_left() {
    let home = OperatorTestHome::new("bench");
    let bank = ["--", env!("CARGO_BIN_EXE_steadfast"), "demo-bank", "ledger"];
    let temporary = home.0.join("temporary");
    fs::create_dir(&temporary).unwrap();
    let run = |more: &[&str]| {
        let mut command = home.command(&[&["bench", "--rounds", "5"][..], more, &bank].concat());
        home.ran(command.env("TMPDIR", &temporary))
    };
    let (out, err, code) = run(&["--json"]);
    assert_eq!((err.as_str(), code), ("", 0), "{out}");
    let measured: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&measured["server"], &measured["rounds"]), (&json!("steadfast-demo-bank"), &json!(5)));
    for (place, name) in ["ping", "tools/list"].into_iter().enumerate() {
        let one = &measured["measured"][place];
        assert_eq!(one["asked"], name);
        for side in ["bareMicros", "guardedMicros"] {
            let of = |percent: &str| one[side][percent].as_u64().unwrap();
            assert!(0 < of("p50") && of("p50") <= of("p95") && of("p95") <= of("p99"), "{one}");
        }
    }
    let (out, err, code) = run(&["--tool", "balance"]);
    assert!(code == 0 && out.contains("tools/call") && out.contains("DIFFERENCE"), "{out}{err}");
    let (_, err, code) = run(&["--tool", "balanec"]);
    assert!(code == 2 && err.contains("did you mean `balance`"), "{err}");
    assert!(!home.0.join("state").exists(), "the measurement is in the history");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "a folder is left behind");
    let (_, err, code) = home.run(&["bench", "--", "no-such-program"]);
    assert!(code == 1 && err.contains("no-such-program"), "{err}");
}

#[test]
fn a_server_at_a_url_is_measured_too() {
    let home = OperatorTestHome::new("bench_url");
    let server = home.gateway(&["--store", "memory"]);
    let url = format!("http://{}/mcp", server.address);
    for named in [&["--url", &url][..], &["bank"]] {
        home.configure(&format!("[servers.bank]\nurl = \"{url}\"\n"));
        let (out, err, code) =
            home.run(&[&["bench", "--rounds", "3", "--tool", "balance", "--json"], named].concat());
        assert_eq!((err.as_str(), code), ("", 0), "{named:?}: {out}");
        let measured: Value = serde_json::from_str(&out).unwrap();
        let methods: Vec<_> =
            measured["measured"].as_array().unwrap().iter().map(|one| &one["asked"]).collect();
        assert_eq!(methods, ["ping", "tools/list", "tools/call"], "{named:?}");
        for side in ["bareMicros", "guardedMicros"] {
            assert!(measured["measured"][2][side]["p50"].as_u64() > Some(0), "{named:?}: {measured:#}");
        }
    }
    let (_, err, code) = home.run(&["bench", "--url", &format!("http://{SECRET}@127.0.0.1:1/{SECRET}")]);
    assert!(code == 1 && err.contains("the server at 127.0.0.1:1 alone"), "{err}");
}

#[tokio::test]
async fn rp_7_gateways_that_keep_their_state_in_memory_share_nothing() {
    let home = OperatorTestHome::new("apart");
    let (one, two) = (home.gateway(&["--store", "memory"]), home.gateway(&["--store", "memory"]));
    let (out, err, code) = home.run(&["approve", "1"]);
    assert_eq!(code, 2, "{out}{err}");
    assert!(err.contains("--gateway") && err.contains(&one.address) && err.contains(&two.address), "{err}");
    let (_, err, code) = home.run(&["approve", "1", "--gateway", &one.address]);
    assert!(code == 1 && err.contains("steadfast approvals"), "{err}");
}

#[test]
#[cfg(target_os = "linux")]
fn sf_7_the_token_of_this_machine_is_sent_to_gateways_that_are_announced_only() {
    let home = OperatorTestHome::new("stranger");
    let token = "0123456789abcdef-of-this-machine";
    home.private("state/admin-token", token);
    let stranger = FakeGateway::answering(|_, _| (200, json!({})));
    let address = stranger.address.to_string();
    let open = ["breaker", "open", "tool:bank:pay", "--gateway"];
    for named in [address.clone(), format!("localhost:{}", stranger.address.port())] {
        home.run(&[&open[..], &[&named]].concat());
        assert!(stranger.has_received("/v1/breakers") && !stranger.has_received(token), "{named}");
    }
    let mut given = home.command(&[&open[..], &[&address]].concat());
    home.ran(given.env("STEADFAST_ADMIN_TOKEN", "given-by-hand"));
    assert!(stranger.has_received("bearer given-by-hand") && !stranger.has_received(token));
    home.announce(stranger.address, "sqlite file elsewhere");
    home.run(&[&open[..], &[&format!("localhost:{}", stranger.address.port())]].concat());
    assert!(stranger.has_received(token), "one that is announced is asked with it");
}

#[test]
#[cfg(target_os = "linux")]
fn sf_7_files_writable_by_other_users_are_not_trusted() {
    let home = OperatorTestHome::new("distrust");
    let gateway = home.gateway(&[]);
    let open = || home.run(&["breaker", "open", "tool:bank:pay"]);
    let (token, backup) = (home.0.join("state/admin-token"), home.0.join("state/kept"));
    for mode in [0o640, 0o602] {
        home.allow("state/admin-token", mode);
        let (out, err, code) = open();
        assert!(
            code == 1 && err.contains("admin-token") && err.contains("chmod 600"),
            "{mode:o}: {out}{err}"
        );
        let (_, err, code) = home.run(&["status"]);
        assert!(code == 0 && err.contains("chmod 600"), "looking needs none: {err}");
    }
    home.allow("state/admin-token", 0o600);
    fs::rename(&token, &backup).unwrap();
    std::os::unix::fs::symlink(&backup, &token).unwrap();
    let (out, err, code) = open();
    assert!(code == 1 && err.contains("admin-token"), "{out}{err}");
    fs::rename(&backup, &token).unwrap();
    assert_eq!(open().2, 0);
    let file = fs::read_dir(home.0.join("state/gateways")).unwrap().next().unwrap().unwrap().file_name();
    let file = format!("state/gateways/{}", file.to_str().unwrap());
    home.allow(&file, 0o666);
    let (out, err, code) = home.run(&["status"]);
    assert!(code == 3 && out.contains("none is running here") && err.contains(&file), "{code} {out}{err}");
    home.allow(&file, 0o600);
    assert!(home.run(&["status"]).0.contains(&gateway.address));
}

#[test]
#[cfg(target_os = "linux")]
fn a_gateway_that_accepts_and_does_not_answer_is_a_problem() {
    for status in [401, 500] {
        let home = OperatorTestHome::new(&format!("mute_{status}"));
        let gateway = home.gateway(&[]);
        let file = fs::read_dir(home.0.join("state/gateways")).unwrap().next().unwrap().unwrap().path();
        let announcement: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let mute = FakeGateway::answering(move |_, path| match path {
            "/healthz" => (200, json!({})),
            _ => (status, json!({})),
        });
        home.announce(mute.address, announcement["store"].as_str().unwrap());
        let (out, err, code) = home.run(&["status"]);
        assert!(code == 4 && out.contains(&format!("at {}: ", mute.address)), "{code} {out}{err}");
        assert!(out.contains(&gateway.address), "{out}");
        assert_eq!(home.run(&["status", "--json"]).2, 4);
    }
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn nothing_is_changed_behind_the_back_of_a_gateway_that_is_silent() {
    let home = OperatorTestHome::new("silent");
    let engine = home.engine(approval_policy()).await;
    pay(&engine, "ann").await;
    engine.shutdown(Duration::ZERO).await;
    let id = home.json(&["approvals"])["approvals"][0]["id"].to_string();
    let silent = FakeGateway::answering(|_, _| (503, json!({})));
    home.announce(silent.address, "sqlite file elsewhere");
    for change in [
        &["breaker", "open", "tool:bank:pay"][..],
        &["breaker", "reset", "tool:bank:pay"],
        &["approve", &id],
        &["deny", &id],
        &["reset", "bank/pay"],
        &["flush", "--tool", "bank/pay"],
    ] {
        let (out, err, code) = home.run(change);
        assert!(code == 1 && err.contains("--gateway none"), "{change:?}: {code} {out}{err}");
        assert!(err.contains(&silent.address.to_string()), "{err}");
    }
    let (out, err, code) = home.run(&["status"]);
    assert!(code == 4 && out.contains("1 call waits for approval"), "{code} {out}");
    assert!(
        out.contains(&format!("at {}: ", silent.address)) && err.contains("does not answer"),
        "{out}{err}"
    );
    assert_eq!(home.run(&["approve", &id, "--gateway", "none"]).2, 0);
    assert_eq!(home.json(&["breaker", "--gateway", "none"])["breakers"], json!([]));
}

#[test]
fn sf_7_blanks_around_the_token_of_the_environment_do_not_count() {
    let home = OperatorTestHome::new("blanks");
    let bank = ["--", env!("CARGO_BIN_EXE_steadfast"), "demo-bank", "ledger"];
    let mut command =
        home.command(&[&["wrap", "--listen", "127.0.0.1:0", "--name", "bank"][..], &bank].concat());
    let _gateway = OperatorTestGateway::started(command.env("STEADFAST_ADMIN_TOKEN", "  a-token-of-ours\n"));
    for given in ["a-token-of-ours", " a-token-of-ours\n"] {
        let mut open = home.command(&["breaker", "open", "tool:bank:pay"]);
        let (out, err, code) = home.ran(open.env("STEADFAST_ADMIN_TOKEN", given));
        assert_eq!(code, 0, "{given:?}: {out}{err}");
    }
    let mut none = home.command(&["breaker", "open", "tool:bank:pay"]);
    let (_, err, code) = home.ran(none.env("STEADFAST_ADMIN_TOKEN", " "));
    assert!(code == 1 && err.contains("STEADFAST_ADMIN_TOKEN"), "blanks are no token: {err}");
}

#[test]
fn a_watched_status_continues_after_a_missing_response() {
    let home = OperatorTestHome::new("watch_on");
    let stranger = FakeGateway::answering(|number, _| match number {
        0 | 1 => (500, json!({})),
        _ => (200, json!({ "verdict": "fine" })),
    });
    let address = stranger.address.to_string();
    let mut command = home.command(&["status", "--watch", "--json", "--gateway", &address]);
    let mut watching = ChildGuard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let line = BufReader::new(watching.stdout.take().unwrap()).lines().next();
    let exit = watching.try_wait().unwrap();
    watching.kill().unwrap();
    let mut errors = String::new();
    watching.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    watching.wait().unwrap();
    let report: Value = serde_json::from_str(&line.expect("it ended").unwrap()).unwrap();
    assert!(report["verdict"] == "fine" && exit.is_none(), "{report}");
    assert_eq!(errors.matches("500").count(), 1, "what did not change is said once: {errors}");
}

/// Secrets in arguments and keys that must never be shown: recognized by name, or by form.
const SECRETS: [&str; 4] =
    [SECRET, "ghp_0123456789abcdefghijABCDEFGHIJ012345", "AKIAIOSFODNN7EXAMPLE", "eyJhbGciOiJIUzI1NiJ9"];

#[tokio::test]
async fn tr_15_no_command_prints_a_secret_of_a_call_and_everything_else_is_printed() {
    let home = OperatorTestHome::new("secrets");
    let arguments = json!({
        "to": "ann",
        "password": SECRETS[0],
        "note": format!("take {} or {}", SECRETS[1], SECRETS[2]),
        "more": [{ "header": format!("Bearer {}.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl", SECRETS[3]) }],
    });
    let engine = home.engine(approval_policy()).await;
    let envelope = EnvelopeBuilder::new("bank/pay").args(&arguments).session("s-1").key(SECRETS[1]);
    engine
        .call(envelope.build().unwrap(), async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) })
        .await;
    engine.shutdown(Duration::ZERO).await;
    let engine = home.engine(plain()).await;
    for number in 0..12 {
        let mut arguments = arguments.clone();
        arguments["n"] = number.into();
        let envelope = EnvelopeBuilder::new("bank/fails").args(&arguments).session("s-1").build().unwrap();
        let fails = async |_: Attempt| -> ToolResult {
            let message = format!("no: {} and {}", SECRETS[1], SECRETS[2]);
            Err(AttemptFault::new(FaultSource::Http { status: 500 }, message.as_str()).into())
        };
        engine.call(envelope, fails).await;
    }
    engine.shutdown(Duration::ZERO).await;
    let (out, _, _) = home.run(&["tail", "--once", "--json"]);
    let ids: Vec<String> = out
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["call"]["requestId"].as_str().unwrap().to_owned()
        })
        .collect();
    let (first, last) = (ids.first().unwrap(), ids.last().unwrap());
    let mut all = String::new();
    for listens in TestEffort::of_this_run().cases(vec![false, true]) {
        let gateway = listens.then(|| home.gateway(&[]));
        for command in [
            &["explain", first, "--profile", "measured"][..],
            &["explain", last, "--profile", "measured"],
            &["rehearse", "--config", "steadfast.toml"],
            &["trace"],
            &["status"],
            &["approvals"],
            &["breaker"],
            &["tail", "--once"],
            &["tail", "--once", "--all"],
            &["doctor", "--no-servers"],
            &["config", "explain", "bank/pay"],
            &["approve", "999"],
            &["flush", "--key", "0123456789ab"],
        ] {
            for form in [&[][..], &["--json"]] {
                let (out, err, _) = home.run(&[command, form].concat());
                for secret in SECRETS {
                    assert!(
                        !out.contains(secret) && !err.contains(secret),
                        "{command:?}: {secret}: {out}{err}"
                    );
                }
                all.push_str(&out);
            }
        }
        drop(gateway);
    }
    for expected in ["bank/pay", "bank/fails", r#"\"to\":\"ann\""#, "[redacted]", "tool:bank:fails"] {
        assert!(all.contains(expected), "{expected} is hidden too: {all}");
    }
}

#[test]
fn explain_queries_the_gateway_for_a_turn() {
    let home = OperatorTestHome::new("turn");
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let head = json!({
        "traceId": trace, "spanId": "b7ad6b7169203331", "turnId": "trip/1", "session": "s", "actor": "ann", "calls": 1,
        "startedAtMs": 1_000, "endedAtMs": 3_500, "status": "completed", "summary": "Completed look.",
    });
    let event = json!({
        "sequence": 1, "eventType": "ToolStarted", "kind": "ToolInvocation", "timestamp": "1970-01-01T00:00:01.250Z",
        "traceId": trace, "sentence": "Started look",
    });
    let gateway = FakeGateway::answering(move |_, path| match path {
        "/v1/traces/trip%2f1" => (200, json!({ "turn": head, "spans": [], "events": [event] })),
        "/v1/traces/broken" => (200, json!({ "turn": "what" })),
        history if history.starts_with("/v1/history?") => (200, json!({ "calls": [], "next": null })),
        _ => (404, json!({ "error": { "message": "not here" } })),
    });
    let address = gateway.address.to_string();
    let explain = |id: &str| home.run(&["explain", id, "--gateway", &address]);
    let (out, err, code) = explain("trip/1");
    assert_eq!(code, 0, "{out}{err}");
    for part in [
        "turn trip/1  1 call, session s, trace 0af7",
        "+250 ms  Started look",
        "2.500 s  ended: Completed look.",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (out, err, code) = explain("nobody");
    assert!(code == 1 && err.contains("no stored call or turn has the id `nobody`"), "{code} {out}{err}");
    let (_, err, code) = explain("");
    assert!(code == 2 && err.contains("a value is required"), "{code} {err}");
    let (out, err, code) = explain("broken");
    assert!(code == 1 && err.contains("the trace cannot be read"), "{code} {out}{err}");
}

#[test]
fn sf_5_recorded_text_cannot_colour_or_reverse_an_explanation() {
    let home = OperatorTestHome::new("hostile_story");
    let odd = "r\u{202e}\x1b[2J";
    let facts = json!({
        "format": 1, "requestId": "r-1", "tool": { "namespace": "bank", "tool": "pay" }, "class": "unknown",
        "signature": "bank/pay", "digest": "0".repeat(64), "key": odd, "danger": odd, "invalidArguments": odd, "bestEffort": false,
        "seed": 1, "arrivedAtMs": 1000, "tookMs": 5, "attempts": [], "status": "error", "code": "tool_error", "rule": odd,
        "replayed": false,
    });
    let gateway =
        FakeGateway::answering(move |_, _| (200, json!({ "calls": [facts, { "format": 2 }], "next": null })));
    let address = gateway.address.to_string();
    for command in [
        &["explain", "r-1", "--profile", "measured"][..],
        &["rehearse", "--config", "steadfast.toml", "--current", "steadfast.toml"],
    ] {
        let (out, err, code) = home.run(&[command, &["--gateway", &address]].concat());
        assert!(
            code == 0 && !format!("{out}{err}").contains(['\x1b', '\u{9b}', '\u{202e}']),
            "{code} {out:?}{err:?}"
        );
        assert!(out.contains("tool_error by r  [2J") || out.contains("1 call was left out"), "{out}");
    }
}
