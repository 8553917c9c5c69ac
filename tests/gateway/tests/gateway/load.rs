//! Many calls at once over plain HTTP, while somebody turns everything that can be turned: none is lost, none runs twice,
//! and what is refused is refused with a reason.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::client::Client;
use crate::raw::{Kept, Request, send};
use crate::world::free_address;

/// Callers at a time.
const CALLERS: usize = 200;

/// A minute under `cargo xtask test --long`, else ten seconds.
fn how_long() -> Duration {
    Duration::from_secs(if std::env::var_os("LONG_TESTS").is_some() { 60 } else { 10 })
}

/// A till that anybody can pay into over HTTP. It counts what was paid, by invoice.
#[derive(Clone, Default)]
struct Till(Arc<Mutex<HashMap<String, u32>>>);

impl Till {
    fn open() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (till, address) = (Self::default(), listener.local_addr().unwrap());
        let serving = till.clone();
        thread::spawn(move || {
            for payer in listener.incoming().map_while(Result::ok) {
                let till = serving.clone();
                thread::spawn(move || till.serve(payer));
            }
        });
        (till, address)
    }

    /// Takes what comes over one connection, to its end.
    fn serve(&self, payer: TcpStream) -> Option<()> {
        payer.set_nodelay(true).ok()?;
        let mut payer = BufReader::new(payer);
        loop {
            let (mut path, mut length, mut line) = (String::new(), 0, String::new());
            while payer.read_line(&mut line).ok()? > 2 {
                if let Some(told) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                    length = told.trim().parse().ok()?;
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

/// What became of all calls of one invoice.
#[derive(Clone, Copy, Debug, Default)]
struct Became {
    paid: u32,
    refused: u32,
}

/// Pays one invoice after the other, some of them again, and says what became of each.
fn pays(caller: usize, gateway: SocketAddr, until: Instant) -> BTreeMap<String, Became> {
    let mut connection = Kept::to(gateway);
    let mut became = BTreeMap::<String, Became>::new();
    for number in 0.. {
        if Instant::now() >= until {
            break;
        }
        let invoice = format!("{caller}-{number}");
        let envelope = json!({
            "contractVersion": "1.1", "requestId": invoice, "toolNamespace": "http", "toolName": "pay",
            "target": { "sessionKey": format!("s-{caller}"), "actorId": "ann" },
            "payload": { "version": "1.0", "params": { "invoice": invoice }, "idempotencyKey": invoice },
        });
        let request =
            Request::to(gateway).line("POST /v1/calls HTTP/1.1").header("accept", "application/json");
        let request = request.body(envelope.to_string());
        for _ in 0..if number % 5 == 0 { 2 } else { 1 } {
            let said: Value = serde_json::from_slice(&connection.ask(&request)).unwrap();
            let of = became.entry(invoice.clone()).or_default();
            match (said["status"].as_str(), said["error"]["code"].as_str()) {
                (Some("success"), None) => of.paid += 1,
                // The operator held the breaker open, or there was no room.
                (_, Some("circuit_open" | "overloaded")) => of.refused += 1,
                _ => panic!("nobody explains {said}"),
            }
        }
    }
    became
}

/// Turns one thing after the other until it is told to stop. Says how often.
fn steers(gateway: SocketAddr, config: &Path, stop: &AtomicBool) -> usize {
    let ask = |line: &str, body: Value| {
        let request = Request::to(gateway).line(&format!("{line} HTTP/1.1")).body(body.to_string());
        let answered = send(&request.header("authorization", "Bearer person")).expect("an answer");
        assert_eq!(answered.status, 200, "{line} {body}: {}", String::from_utf8_lossy(&answered.body));
    };
    let mut turns = 0;
    while !stop.load(Ordering::Relaxed) {
        match turns % 8 {
            0 => ask("PUT /v1/switches", json!({ "breaker": "shadow" })),
            1 => ask("POST /v1/breakers/tool:http:pay", json!({ "to": "open", "for": "100ms" })),
            2 => ask("PUT /v1/switches", json!({ "breaker": "enforce", "guard": "off" })),
            3 => ask("POST /v1/breakers/tool:http:pay", json!({ "to": "open", "for": "50ms" })),
            4 => ask("PUT /v1/switches", json!({ "retry": "off", "trust": "shadow" })),
            5 => ask("POST /v1/breakers/tool:http:pay", json!({ "to": "reset" })),
            6 => {
                ask("PUT /v1/switches", json!({ "retry": "enforce", "trust": "enforce", "guard": "enforce" }))
            }
            _ => {
                // Read again while calls are under way. As a whole: half a file is another matter.
                let text = fs::read_to_string(config).unwrap();
                let base = text.split("# turned").next().unwrap();
                let turned = format!("{base}# turned {turns}\n");
                fs::write(config.with_extension("new"), turned).unwrap();
                fs::rename(config.with_extension("new"), config).unwrap();
            }
        }
        turns += 1;
        thread::sleep(Duration::from_millis(20));
    }
    turns
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("load");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn tr_1_two_hundred_at_a_time_lose_nothing_while_somebody_turns_everything() {
    let (till, address) = Till::open();
    let (folder, gateway) = (folder(), free_address());
    let config = folder.join("steadfast.toml");
    let tool = format!(
        "[http_tools.pay]\nmethod = \"POST\"\nurl = \"http://{address}/pay/{{invoice}}\"\n\n[tools.\"http/pay\"]\nclass = \"mutating\"\n"
    );
    fs::write(&config, tool).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
    command.args(["serve", "--listen", &gateway.to_string()]).current_dir(&folder).env("HOME", &folder);
    command
        .env_remove("XDG_STATE_HOME")
        .env("STEADFAST_ADMIN_TOKEN", "person")
        .env("STEADFAST_LOG_LEVEL", "warn");
    command.stderr(fs::File::create(folder.join("log")).unwrap()).stdin(Stdio::null());
    let _gateway = Client::over_http(command, gateway);

    let (until, stop) = (Instant::now() + how_long(), AtomicBool::new(false));
    let (became, turns) = thread::scope(|scope| {
        let steering = scope.spawn(|| steers(gateway, &config, &stop));
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| scope.spawn(move || pays(caller, gateway, until))).collect();
        let became: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
        // However the callers fared: else nobody would ever hear of one that found no explanation.
        stop.store(true, Ordering::Relaxed);
        (became, steering.join().unwrap())
    });
    let became: BTreeMap<String, Became> =
        became.into_iter().flat_map(|became| became.expect("every call is answered")).collect();

    let paid = till.0.lock().clone();
    for (invoice, became) in &became {
        let runs = paid.get(invoice).copied().unwrap_or_default();
        assert_eq!(runs, u32::from(became.paid > 0), "{invoice}: {became:?}");
    }
    assert_eq!(paid.len(), became.values().filter(|became| became.paid > 0).count(), "nobody else paid");
    let sum = |count: fn(&Became) -> u32| became.values().map(count).sum::<u32>();
    let (answered, refused) = (sum(|one| one.paid), sum(|one| one.refused));
    eprintln!("{answered} paid, {refused} refused, {turns} turns");
    assert!(answered > 500 && refused > 0 && turns > 20, "{answered} paid, {refused} refused, {turns} turns");
}
