//! `steadfast trace`, run by an operator with a running gateway, and on the store alone.

#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so by panicking")]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/waiting.rs"]
mod waiting;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::folder::CliTestFolder;
use crate::waiting::{ChildGuard, wait};

/// A folder with a configuration, its store, and a gateway.
struct TraceTestHome {
    // Declared first, so that the gateway ends before its folder is removed.
    gateway: Option<(ChildGuard, String)>,
    folder: CliTestFolder,
}

impl TraceTestHome {
    fn new(test: &str) -> Self {
        let folder = CliTestFolder::new(&format!("trace_{test}"));
        let script_tool = |tool: &str, script: &str| {
            format!("[command_tools.{tool}]\ncommand = [\"sh\", \"-c\", {script:?}]\n")
        };
        let config = [
            "[store]\nkind = \"sqlite\"\npath = \"state/state.db\"\n[guard]\nmode = \"off\"\n[trust]\nmode = \"off\"\n".to_owned(),
            script_tool("search", "cat > sent; echo '{}'"),
            script_tool("broken", "cat > sent; echo 'HTTP 400 Bad Request' >&2; exit 1"),
            script_tool("pay", "cat > sent; echo '{}'"),
        ];
        fs::write(folder.join("steadfast.toml"), config.concat()).unwrap();
        Self { folder, gateway: None }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command.args(arguments).current_dir(&self.folder).env_clear().env("HOME", &self.folder);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Runs a command. Returns both output streams and the exit code.
    fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr), output.status.code().unwrap())
    }

    /// Returns the output of a command that must succeed.
    fn output_of(&self, arguments: &[&str]) -> String {
        let (out, err, code) = self.run(arguments);
        assert_eq!((err.as_str(), code), ("", 0), "{arguments:?}: {out}");
        assert!(!out.contains('\x1b'), "{out:?}");
        out
    }

    fn start(&mut self) {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = ChildGuard(command.spawn().unwrap());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
        let address = lines.find(|line| line.contains("/v1/calls"));
        // Drains the output, so that the pipe does not fill.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.unwrap();
        let address = address.split("http://").nth(1).unwrap().split('/').next().unwrap();
        self.gateway = Some((child, address.to_owned()));
    }

    fn stop(&mut self) {
        if let Some((mut child, _)) = self.gateway.take() {
            // The gateway writes pending records before it ends.
            assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
            wait(|| child.try_wait().unwrap().is_some(), || "the end of the gateway".to_owned());
        }
    }

    /// Runs a turn and returns its result.
    fn turn(&self, plan: &Value) -> Value {
        let target = json!({ "sessionKey": "s-1", "actorId": "ann" });
        let body = json!({ "contractVersion": "1.1", "target": target, "plan": plan }).to_string();
        let address = &self.gateway.as_ref().unwrap().1;
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST /v1/turns HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

/// Returns a turn in which a call is replaced, one fails, one is skipped, and one waits for another.
fn trip() -> Value {
    json!({
        "turnId": "trip",
        "calls": [
            { "id": "flights", "tool": "command/search", "params": {} },
            { "id": "hotels", "tool": "command/broken", "params": {}, "alternatives": ["command/search"] },
            { "id": "mail", "tool": "command/broken", "params": {}, "dependsOn": ["flights"] },
            { "id": "book", "tool": "command/pay", "params": {}, "dependsOn": ["mail"] },
        ],
    })
}

/// Returns the line of a waterfall that begins with this sign and has this call and tool.
fn row<'t>(text: &'t str, sign: &str, call: &str, tool: &str) -> &'t str {
    let fits = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.first() == Some(&sign) && words.get(1) == Some(&call) && words.get(2) == Some(&tool)
    };
    text.lines().find(fits).unwrap_or_else(|| panic!("no row of {sign} {call} {tool}: {text}"))
}

#[test]
fn eh_6_6_a_turn_is_drawn_the_same_by_a_gateway_and_by_its_store() {
    let mut home = TraceTestHome::new("drawn");
    home.start();
    let turned = home.turn(&trip());
    assert_eq!(turned["status"], "partial", "{turned:#}");
    let trace = turned["traceId"].as_str().unwrap();
    let drawing = home.output_of(&["trace", "trip"]);
    assert!(drawing.starts_with("▲ partial  turn trip  after "), "{drawing}");
    assert!(drawing.contains(&format!("trace {trace} · session s-1")), "{drawing}");
    assert!(row(&drawing, "●", "flights", "command/search").ends_with("succeeded"), "{drawing}");
    assert!(row(&drawing, "✖", "hotels", "command/broken").contains("failed"), "{drawing}");
    assert!(row(&drawing, "●", "hotels", "command/search").ends_with("succeeded · alternative"), "{drawing}");
    assert!(row(&drawing, "✖", "mail", "command/broken").ends_with("failed · after flights"), "{drawing}");
    assert!(row(&drawing, "○", "book", "command/pay").ends_with("skipped · needs mail"), "{drawing}");
    assert!(drawing.contains("Used alternative tool search instead of broken  (hotels)"), "{drawing}");
    let is_row = |line: &&str| line.trim_start().starts_with(['●', '✖', '○']);
    let rows: Vec<_> = drawing.lines().filter(is_row).collect();
    assert!(rows.len() == 5 && rows.iter().all(|row| row.chars().count() <= 130), "{drawing}");
    assert_eq!(home.output_of(&["trace", trace]), drawing, "by its trace");
    let (json, lines) =
        (home.output_of(&["trace", "trip", "--json"]), home.output_of(&["trace", "trip", "--jsonl"]));
    home.stop();
    // The store has the same trace.
    assert_eq!(home.output_of(&["trace", "trip"]), drawing);
    assert_eq!(home.output_of(&["trace", "trip", "--json"]), json);
    assert_eq!(home.output_of(&["trace", "trip", "--jsonl"]), lines);
    let stored_trace: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&stored_trace["turn"]["turnId"], &stored_trace["turn"]["traceId"]),
        (&json!("trip"), &json!(trace))
    );
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = |place: &str| stored_trace[place].as_array().unwrap().len();
    assert_eq!(lines.len(), 1 + rows("spans") + rows("events"));
    assert_eq!((&lines[0]["turn"], &lines[1]["span"]), (&stored_trace["turn"], &stored_trace["spans"][0]));
    assert_eq!(lines.last().unwrap()["event"]["eventType"], "TurnEnded");
}

#[test]
fn the_newest_turns_are_listed_and_an_unknown_one_is_reported() {
    let mut home = TraceTestHome::new("listed");
    let (out, err, code) = home.run(&["trace"]);
    assert_eq!((out.as_str(), err.as_str(), code), ("", "no turn was submitted yet\n", 0));
    home.start();
    home.turn(&trip());
    home.turn(&json!({ "turnId": "later", "calls": [{ "id": "a", "tool": "command/search" }] }));
    home.stop();
    let listed = home.output_of(&["trace"]);
    let lines: Vec<_> = listed.lines().collect();
    assert!(lines[0].starts_with("BEGAN") && lines.len() == 3, "{listed}");
    assert!(lines[1].contains("later") && lines[1].contains("● completed"), "{listed}");
    assert!(lines[2].contains("trip") && lines[2].contains("▲ partial (needs attention)"), "{listed}");
    assert_eq!(home.output_of(&["trace", "-n", "1"]).lines().count(), 2);
    let turns: Value = serde_json::from_str(&home.output_of(&["trace", "--json"])).unwrap();
    assert_eq!(turns["turns"][0]["turnId"], "later");
    assert_eq!(home.output_of(&["trace", "--jsonl"]).lines().count(), 2);
    let (out, err, code) = home.run(&["trace", "nobody\x1b[2J"]);
    assert_eq!((out.as_str(), code), ("", 1), "{err}");
    assert!(err.contains("nobody [2J") && err.contains("`steadfast trace` lists the newest"), "{err:?}");
}

#[test]
fn sf_5_names_in_a_turn_do_nothing_to_a_terminal() {
    let mut home = TraceTestHome::new("hostile");
    home.start();
    let odd = "a\u{202e}b\u{200b}c";
    let turned = home.turn(&json!({ "turnId": odd, "calls": [
        { "id": odd, "tool": "command/search" },
        { "id": "then", "tool": "command/pay", "dependsOn": [odd] },
    ] }));
    let Some(trace) = turned["traceId"].as_str() else { panic!("{turned:#}") };
    for arguments in
        [&["trace"] as &[_], &["trace", trace], &["trace", trace, "--json"], &["trace", trace, "--jsonl"]]
    {
        let output = home.output_of(arguments);
        assert!(!output.contains(['\u{202e}', '\u{200b}']), "{arguments:?}: {output:?}");
    }
    assert!(home.output_of(&["trace", trace]).contains("after a b c"));
}
