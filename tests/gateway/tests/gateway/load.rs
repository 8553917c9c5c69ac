//! Many concurrent calls over plain HTTP, while an operator changes everything that can be changed. No call is lost,
//! none runs twice, and every refusal has a reason.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;

use crate::client::McpTestClient;
use crate::raw::{PersistentConnection, RawRequest, send};
use crate::world::{GatewayTestFolder, LISTEN, replace_file, wait};

/// Number of concurrent callers.
const CALLERS: usize = 200;

/// The minimum load, however long it takes.
struct LoadSize {
    /// Invoices that each caller pays.
    invoices: usize,
    /// Number of rounds in which the operator changes everything.
    rounds: usize,
}

impl LoadSize {
    /// Returns the load. It is ten times as large under `cargo xtask test --long`.
    fn of_this_run() -> Self {
        let (invoices, rounds) = TestEffort::of_this_run().pick((2, 1), (10, 4), (100, 40));
        Self { invoices, rounds }
    }
}

/// State that callers and the operator share.
#[derive(Default)]
struct LoadProgress {
    /// Calls that were refused so far.
    refused: AtomicUsize,
    /// True if the operator has made all changes, or has failed.
    is_turned: AtomicBool,
}

/// A payment service over HTTP. It counts the payments by invoice.
#[derive(Clone, Default)]
struct PaymentServer(Arc<Mutex<HashMap<String, u32>>>);

impl PaymentServer {
    fn open() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, address) = (Self::default(), listener.local_addr().unwrap());
        let serving = server.clone();
        thread::spawn(move || {
            for payer in listener.incoming().map_while(Result::ok) {
                let server = serving.clone();
                thread::spawn(move || server.serve(payer));
            }
        });
        (server, address)
    }

    /// Serves one connection to its end.
    fn serve(&self, payer: TcpStream) -> Option<()> {
        payer.set_nodelay(true).ok()?;
        let mut payer = BufReader::new(payer);
        loop {
            let (mut path, mut length, mut line) = (String::new(), 0, String::new());
            while payer.read_line(&mut line).ok()? > 2 {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().ok()?;
                }
                if path.is_empty() {
                    path = line.split(' ').nth(1)?.to_owned();
                }
                line.clear();
            }
            if path.is_empty() {
                return None;
            }
            payer.read_exact(&mut vec![0; length]).ok()?;
            let invoice = path.strip_prefix("/pay/")?.to_owned();
            *self.0.lock().entry(invoice).or_default() += 1;
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"paid\":true}";
            payer.get_mut().write_all(answer.as_bytes()).ok()?;
        }
    }
}

/// The results of all calls for one invoice.
#[derive(Clone, Copy, Debug, Default)]
struct InvoiceOutcome {
    paid: u32,
    refused: u32,
}

/// Pays one invoice after the other, some of them again. Returns the results of each. Ends when enough are paid and the
/// operator is done.
fn pay_invoices(
    caller: usize,
    gateway: SocketAddr,
    enough: usize,
    progress: &LoadProgress,
) -> BTreeMap<String, InvoiceOutcome> {
    let mut connection = PersistentConnection::to(gateway);
    let mut outcomes = BTreeMap::<String, InvoiceOutcome>::new();
    let mut paid = 0;
    for number in 0.. {
        if paid >= enough && progress.is_turned.load(Ordering::Relaxed) {
            break;
        }
        let invoice = format!("{caller}-{number}");
        let envelope = json!({
            "contractVersion": "1.1", "requestId": invoice, "toolNamespace": "http", "toolName": "pay",
            "target": { "sessionKey": format!("s-{caller}"), "actorId": "ann" },
            "payload": { "version": "1.0", "params": { "invoice": invoice }, "idempotencyKey": invoice },
        });
        let request =
            RawRequest::to(gateway).line("POST /v1/calls HTTP/1.1").header("accept", "application/json");
        let request = request.body(envelope.to_string());
        for _ in 0..if number % 5 == 0 { 2 } else { 1 } {
            let response: Value = serde_json::from_slice(&connection.request(&request)).unwrap();
            let of = outcomes.entry(invoice.clone()).or_default();
            match (response["status"].as_str(), response["error"]["code"].as_str()) {
                (Some("success"), None) => {
                    of.paid += 1;
                    paid += usize::from(of.paid == 1);
                }
                // The operator held the breaker open, or a limit was reached.
                (_, Some("circuit_open" | "overloaded")) => {
                    of.refused += 1;
                    progress.refused.fetch_add(1, Ordering::Relaxed);
                }
                _ => panic!("unexplained: {response}"),
            }
        }
    }
    outcomes
}

/// Makes one change after the other while calls are in flight. Returns the number of changes.
fn make_changes(gateway: SocketAddr, config: &Path, rounds: usize, progress: &LoadProgress) -> usize {
    // However this ends. Otherwise the callers would wait for ever.
    let _turned = CallerStopGuard(progress);
    let ask = |line: &str, body: Value| {
        let request = RawRequest::to(gateway).line(&format!("{line} HTTP/1.1")).body(body.to_string());
        let answered = send(&request.header("authorization", "Bearer person")).expect("an answer");
        assert_eq!(answered.status, 200, "{line} {body}: {}", String::from_utf8_lossy(&answered.body));
    };
    let text = fs::read_to_string(config).unwrap();
    let mut turns = 0;
    for _ in 0..rounds {
        let refused = progress.refused.load(Ordering::Relaxed);
        for turn in 0..8 {
            match turn {
                0 => ask("PUT /v1/switches", json!({ "breaker": "shadow" })),
                1 => ask("POST /v1/breakers/tool:http:pay", json!({ "to": "open", "for": "100ms" })),
                2 => ask("PUT /v1/switches", json!({ "breaker": "enforce", "guard": "off" })),
                3 => {
                    ask("POST /v1/breakers/tool:http:pay", json!({ "to": "open", "for": "10m" }));
                    let is_refused = || progress.refused.load(Ordering::Relaxed) > refused;
                    wait(is_refused, || "a call that is refused".to_owned());
                }
                4 => ask("PUT /v1/switches", json!({ "retry": "off", "trust": "shadow" })),
                5 => ask("POST /v1/breakers/tool:http:pay", json!({ "to": "reset" })),
                6 => ask(
                    "PUT /v1/switches",
                    json!({ "retry": "enforce", "trust": "enforce", "guard": "enforce" }),
                ),
                // The configuration is read again while calls are in flight.
                _ => replace_file(config, &format!("{text}# turned {turns}\n")),
            }
            turns += 1;
        }
    }
    turns
}

/// Lets the callers end when it is dropped.
struct CallerStopGuard<'a>(&'a LoadProgress);

impl Drop for CallerStopGuard<'_> {
    fn drop(&mut self) {
        self.0.is_turned.store(true, Ordering::Relaxed);
    }
}

#[test]
fn tr_1_two_hundred_callers_lose_nothing_while_an_operator_changes_everything() {
    let (server, address) = PaymentServer::open();
    let folder = GatewayTestFolder::new("load");
    let config = folder.join("steadfast.toml");
    let tool = format!(
        "[http_tools.pay]\nmethod = \"POST\"\nurl = \"http://{address}/pay/{{invoice}}\"\n\n[tools.\"http/pay\"]\nclass = \"mutating\"\n"
    );
    fs::write(&config, tool).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
    command.arg("serve").args(LISTEN).current_dir(&*folder).env("HOME", &*folder);
    command
        .env_remove("XDG_STATE_HOME")
        .env("STEADFAST_ADMIN_TOKEN", "person")
        .env("STEADFAST_LOG_LEVEL", "warn");
    command.stderr(fs::File::create(folder.join("log")).unwrap());
    let client = McpTestClient::over_http(command);
    let gateway = client.address();

    let (load, progress) = (LoadSize::of_this_run(), LoadProgress::default());
    let (outcomes, turns) = thread::scope(|scope| {
        let (progress, enough) = (&progress, load.invoices);
        let steering = scope.spawn(|| make_changes(gateway, &config, load.rounds, progress));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| scope.spawn(move || pay_invoices(caller, gateway, enough, progress)))
            .collect();
        let outcomes: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
        (outcomes, steering.join().unwrap())
    });
    let outcomes: BTreeMap<String, InvoiceOutcome> =
        outcomes.into_iter().flat_map(|outcomes| outcomes.expect("every call is answered")).collect();

    let paid = server.0.lock().clone();
    for (invoice, outcomes) in &outcomes {
        let runs = paid.get(invoice).copied().unwrap_or_default();
        assert_eq!(runs, u32::from(outcomes.paid > 0), "{invoice}: {outcomes:?}");
    }
    assert_eq!(
        paid.len(),
        outcomes.values().filter(|outcomes| outcomes.paid > 0).count(),
        "nobody else paid"
    );
    let sum = |count: fn(&InvoiceOutcome) -> u32| outcomes.values().map(count).sum::<u32>();
    let (answered, refused) = (sum(|one| one.paid), sum(|one| one.refused));
    eprintln!("{answered} paid, {refused} refused, {turns} turns");
    assert!(paid.len() >= CALLERS * load.invoices && refused > 0, "{answered} paid, {refused} refused");
}
