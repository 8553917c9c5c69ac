//! The command line with hostile input (SF-5): arguments, files, third-party names, and servers that are no gateway. It
//! ends with a sentence, never with a crash, and nothing but text reaches the terminal.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;

use super::{ApiGateway, KINDS, envelope};
use crate::world::{GatewayTestFolder, TestProcess, wait};

/// The folder in which commands run.
struct CommandFolder(GatewayTestFolder);

/// The output of a command.
#[derive(Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

/// Maximum memory of a command, in KiB: beyond its own size, whatever the size of its input.
const MOST_MEMORY: u64 = 200 << 10;

impl CommandFolder {
    fn new(test: &str) -> Self {
        let folder = GatewayTestFolder::new(&format!("line_{test}"));
        fs::write(folder.join("steadfast.toml"), "[store]\npath = \"state/state.db\"\n").unwrap();
        Self(folder)
    }

    fn command(&self, arguments: &[OsString]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command
            .args(arguments)
            .current_dir(&*self.0)
            .env_clear()
            .env("HOME", &*self.0)
            .env("PATH", "/usr/bin:/bin");
        command
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let arguments: Vec<_> = arguments.iter().map(OsString::from).collect();
        ran(self.command(&arguments), &format!("{arguments:?}"))
    }
}

/// Runs a command. Checks that it ended by itself with text, without control characters for a terminal, and with
/// bounded memory.
fn ran(mut command: Command, label: &str) -> CommandOutput {
    let label = &label[..label.len().min(300)];
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut child = TestProcess::of(child);
    let stdout_reader = thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).unwrap();
        text
    });
    let stderr_reader = thread::spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).unwrap();
        text
    });
    let mut most = 0;
    let has_ended = || {
        // The peak that can be observed.
        let proc_status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = proc_status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        most = most.max(line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0));
        child.exit_status().is_some()
    };
    wait(has_ended, || format!("the end of {label}"));
    let status = child.end();
    assert!(most < MOST_MEMORY, "{label}: {most} KiB");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_else(|error| panic!("{label}: {error}"));
    let (out, err) = (text(stdout_reader.join().unwrap()), text(stderr_reader.join().unwrap()));
    for output in [&out, &err] {
        let turns = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!output.contains(turns), "{label}: {:?}", output.chars().take(3_000).collect::<String>());
        assert!(!output.contains("panicked"), "{label}: {output}");
    }
    let code = status.code().unwrap_or_else(|| panic!("{label}: {status}"));
    CommandOutput { code, out, err }
}

/// Checks that it failed, with a short reason.
fn assert_reports_error(output: &CommandOutput, codes: &[i32], label: &str) {
    assert!(codes.contains(&output.code), "{label}: {output:?}");
    assert!(
        !output.err.trim().is_empty() && output.err.len() < 20_000,
        "{label}: {} bytes",
        output.err.len()
    );
}

#[test]
fn sf_5_absurd_arguments_are_refused_with_a_message() {
    let home = CommandFolder::new("arguments");
    let long = "x".repeat(100_000);
    for arguments in [
        &[""][..],
        &["\u{1b}[31mred\u{1b}[0m"],
        &["status", "--gateway", ""],
        &["status", "--gateway", "\u{1b}]0;title\u{7}"],
        &["status", "--gateway", &long],
        &["status", "--gateway", "http://[::1"],
        &["status", "--gateway", "127.0.0.1:99999"],
        &["status", "--gateway", "file:///etc/passwd"],
        &["status", "\u{202e}sutats"],
        &["approve", "-1"],
        &["approve", "18446744073709551616"],
        &["approve", "1", "--for", "99999999999999999999d"],
        &["approve", "1", "--for", "-5m"],
        &["deny", "\u{1b}[2J"],
        &["breaker", "open", ""],
        &["breaker", "open", &long],
        &["breaker", "open", "a\nb/c\u{1b}[1m"],
        &["breaker", "open", "bank/pay", "--for", "1e99h"],
        &["flush", "--key", "zz"],
        &["flush", "--tool", "\u{1b}[1m/\u{1b}[2m"],
        &["flush"],
        &["resolve", "", "--ran"],
        &["resolve", &long, "--did-not-run"],
        &["tail", "--once", "-n", "99999999999999999999999"],
        &["tail", "--once", "-n", "-1"],
        &["config", "explain", "\u{1b}[1m"],
        &["config", "explain", "bank/pay", "--arguments", "{\"a\":"],
        &["config", "explain", "bank/pay", "--setting", "\u{1b}[1m"],
        &["wrap"],
        &["wrap", "--listen", "nowhere", "--", "cat"],
        &["wrap", "--name", "\u{1b}[1m", "--", "cat"],
        &["wrap", "--url", "ftp://\u{1b}[1m"],
        &["serve", "--mcp-config", "{\"mcpServers\": 7}"],
        &["serve", "--mcp-config", &format!("{{{}", "[".repeat(50_000))],
        &["serve", "--listen", "127.0.0.1:-1"],
        &["serve", "--host", "\u{1b}[1m", "--listen", "x"],
        &["check", "--config", &long],
        &["check", "--config", "\u{1b}[1m.toml"],
        &["bench", "--rounds", "99999999999999999999", "--", "cat"],
        &["completions", "\u{1b}[1m"],
    ] {
        let output = home.run(arguments);
        assert_reports_error(
            &output,
            &[1, 2],
            &format!("{arguments:?}").chars().take(200).collect::<String>(),
        );
    }
    // The trust of an unknown tool may be reset.
    assert!(home.run(&["reset", "\u{1b}[1m/x"]).out.contains("nothing to restore for"));
    // Bytes that are not text.
    let raw = OsString::from_vec(vec![0xff, 0xfe, 0x80]);
    for before in
        [&[][..], &["status", "--gateway"], &["approve"], &["breaker", "open"], &["check", "--config"]]
    {
        let mut arguments: Vec<_> = before.iter().map(OsString::from).collect();
        arguments.push(raw.clone());
        let output = ran(home.command(&arguments), &format!("{arguments:?}"));
        assert_reports_error(&output, &[1, 2], &format!("{arguments:?}"));
    }
    assert!(!home.0.join("state").exists(), "nothing was made");
}

/// All commands that read the state or change it.
const COMMANDS: [&[&str]; 10] = [
    &["status"],
    &["approvals"],
    &["approve", "1"],
    &["breaker"],
    &["breaker", "open", "tool:bank:pay"],
    &["flush", "--tool", "bank/pay"],
    &["reset", "bank/pay"],
    &["tail", "--once"],
    &["check", "--open"],
    &["doctor", "--no-servers"],
];

#[test]
fn sf_5_an_invalid_state_file_is_reported_and_stays_unchanged() {
    let home = CommandFolder::new("stores");
    let file = home.0.join("state/state.db");
    let good = {
        assert_eq!(home.run(&["check", "--open"]).code, 0);
        assert_eq!(home.run(&["breaker", "open", "tool:bank:pay"]).code, 0);
        fs::read(&file).unwrap()
    };
    let mut flipped = good.clone();
    for at in (100..flipped.len()).step_by(37) {
        flipped[at] ^= 0x55;
    }
    let damaged: [(&str, Vec<u8>); 6] = [
        ("no database", b"hello, this is a diary\n".repeat(1_000)),
        ("zeroes", vec![0; 1 << 20]),
        ("half of it", good[..good.len() / 2 + 11].to_vec()),
        ("its head alone", good[..100].to_vec()),
        ("other bytes in it", flipped),
        ("escapes", b"\x1b[31m\x1b]0;x\x07".repeat(500)),
    ];
    for (name, bytes) in TestEffort::of_this_run().cases(damaged.into()) {
        for command in COMMANDS {
            for sidecar in ["state/state.db-wal", "state/state.db-shm"] {
                let _ = fs::remove_file(home.0.join(sidecar));
            }
            fs::write(&file, &bytes).unwrap();
            let output = home.run(command);
            assert!((0..=4).contains(&output.code), "{name}, {command:?}: {output:?}");
            assert!(
                output.code == 0 || !output.err.is_empty() || !output.out.is_empty(),
                "{name}, {command:?}"
            );
            let is_of_others = !bytes.starts_with(b"SQLite format 3\0");
            assert!(
                !is_of_others || fs::read(&file).unwrap() == bytes,
                "{name}, {command:?}: it was changed"
            );
            let json = home.run(&[command, &["--json"]].concat());
            let lines = json.out.lines();
            let whole = serde_json::from_str::<Value>(&json.out).is_ok();
            let by_line = || lines.clone().all(|line| serde_json::from_str::<Value>(line).is_ok());
            assert!(whole || by_line(), "{name}, {command:?}: {}", json.out);
        }
    }
    // Not a file at all.
    fs::remove_dir_all(home.0.join("state")).unwrap();
    fs::create_dir_all(&file).unwrap();
    for command in COMMANDS {
        let output = home.run(command);
        assert!((1..=4).contains(&output.code), "{command:?}: {output:?}");
    }
    fs::remove_dir_all(home.0.join("state")).unwrap();
    fs::write(home.0.join("state"), "a file where the folder should be").unwrap();
    for command in COMMANDS {
        let output = home.run(command);
        assert!((0..=4).contains(&output.code), "{command:?}: {output:?}");
    }
}

#[test]
fn sf_5_an_invalid_configuration_is_reported_with_its_position() {
    let home = CommandFolder::new("configurations");
    let file = home.0.join("steadfast.toml");
    let texts: Vec<(&str, Vec<u8>)> = vec![
        ("no TOML", b"{{{{".to_vec()),
        ("no text", vec![0xff; 4_000]),
        ("zeroes", vec![0; 4_000]),
        ("escapes", b"\x1b[31m\x1b]0;x\x07 = \"\x1b[2J\"\n".to_vec()),
        ("escapes in a name", "\"\\u001b[31m\" = 1\n[\"\\u202ex\"]\ny = 1\n".as_bytes().to_vec()),
        ("a name twice", b"[retry]\nattempts = 1\nattempts = 2\n".to_vec()),
        ("deep lists", format!("a = {}{}\n", "[".repeat(50_000), "]".repeat(50_000)).into_bytes()),
        ("deep names", format!("{}a = 1\n", "a.".repeat(50_000)).into_bytes()),
        ("a number beyond all", b"[retry]\nattempts = 99999999999999999999999999\n".to_vec()),
        ("no number", b"[retry]\nfactor = nan\nbudget_share = -inf\n".to_vec()),
        ("wrong types", b"retry = 7\nservers = []\ntools = \"x\"\nlisten = {}\n".to_vec()),
        ("a long line", format!("colour = \"{}\"\n", "x".repeat(3 << 20)).into_bytes()),
        ("many mistakes", (0..1_000).map(|n| format!("n{n} = {n}\n")).collect::<String>().into_bytes()),
        (
            "a pattern without an end",
            b"[[classify.rules]]\nname = \"x\"\ntext = \"(((((a+)+)+)+)+)+$[\"\n".to_vec(),
        ),
    ];
    for (name, text) in TestEffort::of_this_run().cases(texts) {
        fs::write(&file, text).unwrap();
        for command in [&["check"][..], &["status"], &["serve"], &["config", "explain", "bank/pay"]] {
            let output = home.run(command);
            assert_reports_error(&output, &[2], &format!("{name}, {command:?}"));
            assert!(output.err.contains("steadfast.toml"), "{name}, {command:?}: {}", output.err);
        }
        let json = home.run(&["check", "--json"]);
        let report: Value =
            serde_json::from_str(&json.out).unwrap_or_else(|error| panic!("{name}: {error}: {}", json.out));
        assert_eq!((json.code, &report["ok"]), (2, &json!(false)), "{name}: {report}");
        let mistakes = report["mistakes"].as_array().unwrap();
        assert!(!mistakes.is_empty() || report["error"].is_string(), "{name}: {report}");
    }
    // A valid one with unusual texts.
    let odd = "verify = \"\\u001b[31m\\u202ex\"\n[\"tools\".\"bank/\\u001bpay\"]\nverify = \"\\u001b[2J\"\n";
    fs::write(&file, format!("{odd}[servers.bank]\ncommand = [\"true\", \"\\u001b[2J\"]\n")).unwrap();
    for command in [
        &["check"][..],
        &["config", "explain", "bank/pay"],
        &["config", "explain", "bank/\u{1b}pay"],
        &["doctor"],
    ] {
        let output = home.run(command);
        assert!((0..=4).contains(&output.code), "{command:?}: {output:?}");
        let json = home.run(&[command, &["--json"]].concat());
        assert!(
            json.code == 2 || serde_json::from_str::<Value>(&json.out).is_ok(),
            "{command:?}: {}",
            json.out
        );
    }
    // Not a file.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_reports_error(&home.run(&["check"]), &[2], "a folder");
    fs::remove_dir(&file).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap();
    assert_reports_error(&home.run(&["check"]), &[2], "a link to itself");
    // Configuration of other programs, which is read as well.
    let _ = fs::remove_file(&file);
    for (name, text) in
        [("half.json", "{\"mcpServers\":"), ("deep.json", &"[".repeat(100_000)), ("odd.json", "7")]
    {
        fs::write(home.0.join(name), text).unwrap();
        assert_reports_error(&home.run(&["check", "--config", name]), &[2], name);
        assert_reports_error(&home.run(&["serve", "--mcp-config", name]), &[2], name);
    }
}

#[test]
fn sf_5_foreign_names_and_messages_cannot_control_a_terminal_and_json_stays_json() {
    let config = "guard.mode = \"off\"\nbreaker.mode = \"off\"\nretry.attempts = 1\n[trust]\ncount = 2\n";
    let gateway = ApiGateway::new("line_names", config);
    let odd = "\u{1b}[31mred\u{1b}]0;title\u{7}\u{202e}drawkcab\r\nsecond line\u{9b}2J\u{0}";
    for kind in KINDS {
        for number in 0..4 {
            let params = json!({ "id": format!("{number}"), "fault": "503", "text": odd, odd: odd });
            let mut call = envelope(&format!("{kind}/look"), &params);
            call["target"]["sessionKey"] = "\u{1b}[1ms".into();
            gateway.call(&call);
            call["target"]["sessionKey"] = format!("s {odd}").replace('\0', "").into();
            call["requestId"] = "\u{1b}[1mr\u{202e}".into();
            gateway.call(&call);
            call["target"]["sessionKey"] = "s-1".into();
            call["requestId"] = "r-1".into();
            gateway.call(&call);
            call["toolName"] = "\u{1b}[1mx\u{202e}".into();
            gateway.call(&call);
        }
    }
    gateway.call(&envelope("bank/look", &json!({ "id": "stderr", "fault": "stderr", "text": odd })));
    for (name, value) in [("toolName", odd), ("domain", odd), ("error", odd)] {
        let mut report = json!({ "toolName": "search", "error": "no", "severity": "server_error" });
        report[name] = value.into();
        for _ in 0..3 {
            gateway.post("/v1/failures", &report);
        }
    }
    wait(
        || !gateway.get("/v1/approvals")["approvals"].as_array().unwrap().is_empty(),
        || "a request".to_owned(),
    );
    let mut printed = String::new();
    for gateway_option in [&[][..], &["--gateway", "none"]] {
        for command in [
            &["status"][..],
            &["approvals"],
            &["breaker"],
            &["tail", "--once", "-n", "100"],
            &["tail", "--once", "--all"],
            &["deny", "99999"],
            &["reset", "search/x"],
        ] {
            for form in [&[][..], &["--json"]] {
                let arguments = [command, gateway_option, form].concat();
                let output = ran(gateway.command(&arguments), &format!("{arguments:?}"));
                if form.is_empty() {
                    printed.push_str(&output.out);
                    continue;
                }
                let whole = serde_json::from_str::<Value>(&output.out).is_ok();
                let by_line = || output.out.lines().all(|line| serde_json::from_str::<Value>(line).is_ok());
                assert!(whole || by_line(), "{arguments:?}: {}", output.out);
            }
        }
    }
    assert!(printed.contains("look"), "{printed}");
}

/// Starts a server that is not a gateway, and answers everything with this.
fn stranger(answer: impl Fn(&mut std::net::TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let answer = &answer;
        thread::scope(|scope| {
            for mut stream in listener.incoming().map_while(Result::ok) {
                // A silent client must not block others.
                scope.spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    answer(&mut stream);
                });
            }
        });
    });
    address
}

fn whole(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn sf_5_an_impostor_of_a_gateway_cannot_crash_flood_or_control_the_command_line() {
    let home = CommandFolder::new("strangers");
    let odd = "\u{1b}[31mred\u{1b}]0;title\u{7}\u{202e}x\r\n";
    let many: Vec<_> =
        (0..2_000).map(|n| json!({ "id": n, "key": odd, "tool": odd, "state": odd })).collect();
    let mut answers: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("no HTTP", b"hello\x1b[31m\r\n\r\n".to_vec()),
        ("no JSON", whole("200 OK", b"<html>\x1b[31m")),
        ("no text", whole("200 OK", &[0xff; 1_000])),
        ("half an answer", whole("200 OK", b"{\"verdict\":")[..80].to_vec()),
        ("a deep one", whole("200 OK", "[".repeat(200_000).as_bytes())),
        ("another type", whole("200 OK", b"7")),
        (
            "an error that paints",
            whole("500 Oh", json!({ "error": { "code": odd, "message": odd } }).to_string().as_bytes()),
        ),
        ("a status that paints", b"HTTP/1.1 500 \x1b[31mred\r\ncontent-length: 0\r\n\r\n".to_vec()),
    ];
    let painted = json!({
        "verdict": odd, "findings": [{ "what": odd, "todo": odd, "level": odd }], "store": { "kind": odd }, "counts": odd,
        "approvals": many, "breakers": many, "calls": many, "trust": many, "version": odd,
    });
    answers.push(("names that paint", whole("200 OK", painted.to_string().as_bytes())));
    for (name, answer) in TestEffort::of_this_run().cases(answers) {
        let address = stranger(move |stream| {
            let _ = stream.write_all(&answer);
        })
        .to_string();
        for command in [&["status"][..], &["approvals"], &["breaker"], &["approve", "1"], &["tail", "--once"]]
        {
            for form in [&[][..], &["--json"]] {
                let arguments = [command, &["--gateway", &address], form].concat();
                let output = home.run(&arguments);
                assert!((0..=4).contains(&output.code), "{name}, {command:?}: {output:?}");
                // A tail without calls prints nothing.
                let may_be_silent = command[0] == "tail";
                let is_silent = output.err.is_empty() && output.out.is_empty();
                assert!(!is_silent || may_be_silent, "{name}, {command:?}: {output:?}");
                assert!(output.err.len() < 20_000, "{name}, {command:?}: {} bytes", output.err.len());
            }
        }
    }
    // A server that never stops sending.
    let endless = stranger(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\"");
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..1_000 {
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
    });
    let output = home.run(&["status", "--gateway", &endless.to_string()]);
    assert_reports_error(&output, &[1, 4], "one that never stops talking");
}
