//! `steadfast serve` with tools that are not servers: a real listener and a real command, called over HTTP.

#![cfg(unix)]
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
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::folder::CliTestFolder;
use crate::waiting::{ChildGuard, wait};

/// A folder with a configuration.
struct PlainToolTestHome(CliTestFolder);

/// A running gateway.
struct ServeProcess {
    _child: ChildGuard,
    address: String,
}

impl PlainToolTestHome {
    fn new(test: &str) -> Self {
        Self(CliTestFolder::new(&format!("plain_tools_{test}")))
    }

    fn write(&self, name: &str, text: &str) {
        // Replaced atomically, because the gateway may read it at any moment.
        fs::write(self.0.join("fresh"), text).unwrap();
        fs::rename(self.0.join("fresh"), self.0.join(name)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .env_clear()
            .env("HOME", &self.0)
            .env("PATH", "/usr/bin:/bin");
        command
    }

    fn serve(&self) -> ServeProcess {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = ChildGuard(child.unwrap());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("/v1/calls")).unwrap();
        // Drains the output, so that the pipe does not fill.
        thread::spawn(move || lines.for_each(drop));
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        ServeProcess { _child: child, address }
    }
}

impl ServeProcess {
    fn call(&self, tool: &str, params: &Value, key: &str) -> (u16, Value) {
        let (namespace, name) = tool.split_once('/').unwrap();
        let body = json!({
            "contractVersion": "1.1", "requestId": "r-1", "toolName": name, "toolNamespace": namespace,
            // Each key in a session of its own, so that the loop guard stops none.
            "target": { "sessionKey": key, "actorId": "ann" },
            "payload": { "version": "1.0", "params": params, "idempotencyKey": key },
        })
        .to_string();
        self.post("/v1/calls", &body)
    }

    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
    }
}

/// Starts an HTTP service that counts its requests, and answers the first one with "busy".
fn service() -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let mut text = Vec::new();
            let mut piece = [0; 4096];
            while !String::from_utf8_lossy(&text).contains("rust") {
                match stream.read(&mut piece).unwrap() {
                    0 => break,
                    read => text.extend_from_slice(&piece[..read]),
                }
            }
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            let (status, body) = if number == 1 {
                ("503 Busy", "{}".to_owned())
            } else {
                ("200 OK", json!({ "hits": number }).to_string())
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    (address, requests)
}

#[test]
fn http_tools_and_commands_are_called_without_any_server_and_follow_the_configuration() {
    let home = PlainToolTestHome::new("called");
    let (address, requests) = service();
    let script = home.0.join("convert");
    fs::write(&script, "#!/bin/sh\necho ran >> ledger\ncat\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let search = format!(
        "[store]\nkind = \"memory\"\n[tools.\"http/search\"]\nclass = \"read_only\"\n\
         [http_tools.search]\nmethod = \"POST\"\nurl = \"http://{address}/search\"\n"
    );
    home.write("steadfast.toml", &search);
    let serving = home.serve();
    let (status, body) = serving.call("http/search", &json!({ "q": "rust" }), "k");
    assert_eq!((status, &body["attempts"]), (200, &json!(2)), "{body}");
    assert_eq!(body["output"]["content"]["hits"], 2, "{body}");
    let (_, again) = serving.call("http/search", &json!({ "q": "rust" }), "k");
    assert_eq!((&again["fromCache"], requests.load(Ordering::SeqCst)), (&json!(true), 2));
    let convert = json!({ "from": "m", "to": "km" });
    assert_eq!(serving.call("command/convert", &convert, "before").0, 404);
    home.write("steadfast.toml", &format!("{search}[command_tools.convert]\ncommand = [\"./convert\"]\n"));
    let (mut number, mut answer) = (0, (404, Value::Null));
    let follows = || {
        number += 1;
        let params = json!({ "from": "m", "to": "km", "number": number });
        answer = serving.call("command/convert", &params, &format!("after {number}"));
        answer.0 != 404
    };
    wait(follows, || "the tool of the new configuration".to_owned());
    let (status, body) = answer;
    assert_eq!((status, &body["output"]["content"]["to"]), (200, &json!("km")), "{body}");
    let ledger = || fs::read_to_string(home.0.join("ledger")).unwrap().lines().count();
    assert_eq!(ledger(), 1);
    let params = json!({ "from": "m", "to": "km", "number": number });
    let (_, again) = serving.call("command/convert", &params, &format!("after {number}"));
    assert_eq!((&again["fromCache"], ledger()), (&json!(true), 1), "{again}");
}

#[test]
fn without_servers_serve_fails_with_advice() {
    let home = PlainToolTestHome::new("nothing");
    for (configuration, arguments) in [
        ("", &["serve", "--listen", "127.0.0.1:0"][..]),
        ("[command_tools.convert]\ncommand = [\"cat\"]\n", &["serve", "--stdio"]),
    ] {
        home.write("steadfast.toml", &format!("[store]\nkind = \"memory\"\n{configuration}"));
        let output = home.command(arguments).stdin(Stdio::null()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(
            err.contains("the configuration has no server") && err.contains("[http_tools.NAME]"),
            "{err}"
        );
    }
}

/// As documented in docs/reference/http-api.md.
#[test]
fn an_unexpected_report_is_409_for_an_attempt_and_404_for_a_call() {
    let home = PlainToolTestHome::new("late-report");
    home.write("steadfast.toml", "[store]\nkind = \"memory\"\n[command_tools.date]\ncommand = [\"date\"]\n");
    let gateway = home.serve();
    let begin = |tool: &str| {
        let envelope = json!({
            "contractVersion": "1.1", "requestId": "r-1", "toolName": tool, "toolNamespace": "mine",
            "target": { "sessionKey": tool, "actorId": "ann" }, "payload": { "version": "1.0", "params": {} },
        });
        let (status, order) = gateway.post("/v1/calls/begin", &envelope.to_string());
        assert_eq!((status, order["next"].as_str()), (200, Some("run")), "{order}");
        order["id"].as_str().unwrap().to_owned()
    };
    let report = |id: &str, attempt: u32, rest: Value| {
        let mut body = json!({ "attempt": attempt });
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let (status, answer) = gateway.post(&format!("/v1/calls/{id}/report"), &body.to_string());
        (status, answer["error"]["code"].as_str().or(answer["next"].as_str()).unwrap().to_owned())
    };
    let done = || json!({ "output": { "content": [{ "type": "text", "text": "x" }] } });
    let expected = |status: u16, word: &str| (status, word.to_owned());

    let id = begin("done");
    assert_eq!(report(&id, 7, done()), expected(409, "conflict"), "no such attempt");
    assert_eq!(report(&id, 1, done()), expected(200, "answer"));
    assert_eq!(report(&id, 1, done()), expected(404, "not_found"), "its answer was given");

    let id = begin("again");
    let busy = json!({ "failure": { "message": "busy", "source": { "kind": "http", "status": 429 } } });
    assert_eq!(report(&id, 1, busy), expected(200, "run"));
    assert_eq!(report(&id, 1, done()), expected(409, "conflict"), "the next order replaced it");
    assert_eq!(report(&id, 2, done()), expected(200, "answer"));

    let id = begin("cancelled");
    assert_eq!(gateway.post(&format!("/v1/calls/{id}/cancel"), "{}").0, 200);
    assert_eq!(report(&id, 1, done()), expected(409, "answer"), "how it ended");
    assert_eq!(report(&id, 1, done()), expected(404, "not_found"));
    assert_eq!(report("77-never", 1, done()), expected(404, "not_found"));
}
