//! `steadfast check` and `steadfast config explain`, run by a user.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/waiting.rs"]
mod waiting;

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use steadfast_testkit::redis::RedisServer;

use crate::folder::CliTestFolder;
use crate::waiting::{ChildGuard, wait};

/// A folder that is the home and the working folder of one test.
struct CheckTestHome {
    folder: CliTestFolder,
}

/// Result of a command.
struct CheckRun {
    code: i32,
    out: String,
    err: String,
}

impl CheckTestHome {
    fn new(test: &str) -> Self {
        Self { folder: CliTestFolder::new(&format!("check_{test}")) }
    }

    /// Creates a home whose configuration has this in `[store]`.
    fn with_store(test: &str, store: &str) -> Self {
        let home = Self::new(test);
        home.write("steadfast.toml", &format!("[store]\n{store}\n"));
        home
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command.args(arguments).current_dir(&self.folder).env_clear().env("HOME", &self.folder);
        command
    }

    fn run(&self, arguments: &[&str]) -> CheckRun {
        run_command(&mut self.command(arguments))
    }

    fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(&self.folder).unwrap().map(name).collect();
        names.sort();
        names
    }
}

fn run_command(command: &mut Command) -> CheckRun {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CheckRun { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// Returns the result of a command that must end by itself.
fn refused(command: &mut Command) -> CheckRun {
    let mut child = ChildGuard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    wait(|| child.try_wait().unwrap().is_some(), || format!("the end of {command:?}"));
    let text = |stream: &mut dyn Read| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let (out, err) = (text(child.stdout.as_mut().unwrap()), text(child.stderr.as_mut().unwrap()));
    CheckRun { code: child.wait().unwrap().code().unwrap(), out, err }
}

/// The warning about a configuration without a server.
const NO_SERVER: &str = "note: there is no server and no tool: `steadfast serve` cannot start; `steadfast wrap` can, because it brings its own server\n";

#[test]
fn a_valid_configuration_is_reported_and_nothing_is_created() {
    let home = CheckTestHome::new("good");
    let CheckRun { code, out, err } = home.run(&["check"]);
    assert_eq!((code, err.as_str()), (0, NO_SERVER));
    let state = home.path(".local/state/steadfast/state.db");
    let expected = format!(
        "the configuration is valid\n  read   no file; all settings have their defaults\n  store  sqlite file {}\n",
        state.display()
    );
    assert_eq!(out, expected);
    assert_eq!(home.names(), [""; 0]);
}

#[test]
fn sf_6_token_owners_are_listed_and_no_token_is_shown() {
    let home = CheckTestHome::new("tokens");
    home.write(
        "steadfast.toml",
        "[tokens.alice]\ntoken = \"${ALICE}\"\ntenant = \"acme\"\n[tokens.bob]\ntoken = \"of-bob-0123456789\"\n\
         [tokens.grafana]\ntoken = \"of-grafana-0123456789\"\nrole = \"viewer\"\n",
    );
    for arguments in [&["check"][..], &["check", "--json"], &["doctor", "--json", "--no-servers"]] {
        let CheckRun { out, err, .. } =
            run_command(home.command(arguments).env("ALICE", "of-alice-0123456789"));
        for owner in ["alice (tenant acme)", "bob", "grafana (viewer)"] {
            assert!(out.contains(owner), "{arguments:?}: {owner} in {out}{err}");
        }
        assert!(!format!("{out}{err}").contains("0123456789"), "{out}{err}");
    }
    let CheckRun { code, err, .. } = run_command(home.command(&["check"]).env("ALICE", "of-bob-0123456789"));
    assert!(code == 2 && err.contains("`[tokens.bob]` has the same token as `[tokens.alice]`"), "{err}");
    let given = ("STEADFAST_ADMIN_TOKEN", "of-bob-0123456789");
    let mut check = home.command(&["check"]);
    let CheckRun { code, err, .. } =
        run_command(check.env("ALICE", "of-alice-0123456789").env(given.0, given.1));
    assert!(code == 2 && err.contains("has the same token as STEADFAST_ADMIN_TOKEN"), "{err}");
    assert!(!err.contains("0123456789"), "{err}");
}

#[test]
fn sf_7_where_others_can_reach_it_a_gateway_does_not_start_without_the_token_of_a_client() {
    let home = CheckTestHome::new("reached");
    let tools = "[command_tools.date]\ncommand = [\"date\"]\n";
    let viewer = "[tokens.grafana]\ntoken = \"of-grafana-0123456789\"\nrole = \"viewer\"\n";
    for tokens in ["", viewer] {
        home.write("steadfast.toml", &format!("{tools}{tokens}"));
        let CheckRun { code, err, .. } = refused(&mut home.command(&["serve", "--listen", "0.0.0.0:0"]));
        assert!(code != 0 && err.contains("[tokens.NAME]"), "{err}");
    }
    // Its owner could use the admin API.
    home.write("steadfast.toml", tools);
    let folder = home.path(".local/state/steadfast");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(folder.join("admin-token"), "of-everybody-0123456789").unwrap();
    fs::set_permissions(folder.join("admin-token"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut serve = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    let CheckRun { code, err, .. } = refused(serve.env("STEADFAST_TOKEN", "of-everybody-0123456789"));
    assert!(code == 2 && err.contains("is the admin token"), "{err}");
}

/// A configuration with which no gateway starts: its text beside a tool, and the error that both commands report.
struct BadConfig {
    name: &'static str,
    config: &'static str,
    errors: &'static [&'static str],
}

const BAD: &[BadConfig] = &[
    BadConfig { name: "syntax", config: "timeout = ", errors: &["steadfast.toml:1:"] },
    BadConfig { name: "unknown-key", config: "atempts = 3", errors: &["`atempts` is not a setting"] },
    BadConfig {
        name: "unset-variable",
        config: "[servers.a]\nurl = \"http://h\"\nheaders = { A = \"${GONE}\" }",
        errors: &["GONE, which is not set"],
    },
    BadConfig {
        name: "bad-header",
        config: "[servers.a]\nurl = \"http://h\"\nheaders = { \"bad name\" = \"x\" }",
        errors: &["[servers.a]: header bad name"],
    },
    BadConfig {
        name: "bad-ports",
        config: "[servers.a]\nurl = \"http://h:99999/\"\n[servers.b]\nurl = \"http://h:70000/\"\n\
                 [http_tools.t]\nmethod = \"GET\"\nurl = \"http://h:99999/\"\n[notify.ops]\nurl = \"http://h:99999/\"",
        errors: &[
            "[servers.a]: the port",
            "[servers.b]: the port",
            "steadfast.toml:7:7",
            "[notify.ops]: the port",
        ],
    },
    BadConfig {
        name: "server-named-as-tools",
        config: "[servers.command]\ncommand = [\"x\"]",
        errors: &["the tools of the server `command` would be called as those of"],
    },
    BadConfig {
        name: "same-tokens",
        config: "[tokens.a]\ntoken = \"0123456789abcdef\"\n[tokens.b]\ntoken = \"0123456789abcdef\"",
        errors: &["`[tokens.b]` has the same token as `[tokens.a]`"],
    },
    BadConfig {
        name: "same-as-admin",
        config: "[tokens.a]\ntoken = \"of-the-admin-0123456789\"",
        errors: &["the token of `a` is the admin token"],
    },
    BadConfig {
        name: "open-to-all",
        config: "listen = \"0.0.0.0:0\"",
        errors: &["0.0.0.0:0 can be reached from other machines"],
    },
    BadConfig {
        name: "not-our-address",
        config: "listen = \"192.0.2.1:0\"",
        errors: &["can be reached from other machines", "cannot listen on 192.0.2.1:0: "],
    },
    BadConfig {
        name: "host-name",
        config: "listen = \"gateway.example:8931\"",
        errors: &["host names are not resolved"],
    },
    BadConfig {
        name: "state-below-a-file",
        config: "[store]\npath = \"steadfast.toml/deep/state.db\"",
        errors: &["steadfast.toml/deep cannot be used"],
    },
    BadConfig {
        name: "state-in-a-file",
        config: "[store]\npath = \"steadfast.toml/state.db\"",
        errors: &["steadfast.toml cannot be used"],
    },
    BadConfig { name: "state-is-a-folder", config: "[store]\npath = \".\"", errors: &["it is a folder"] },
    BadConfig {
        name: "no-key-file",
        config: "[store]\nkey_file = \"no.key\"",
        errors: &["`store.key_file` cannot be used"],
    },
    BadConfig {
        name: "bad-key-file",
        config: "[store]\nkey_file = \"steadfast.toml\"",
        errors: &["holds no key"],
    },
    BadConfig {
        name: "bad-redis",
        config: "[store]\nkind = \"redis\"\nurl = \"redis://h:1/zz\"",
        errors: &["`store.url` cannot be used"],
    },
    BadConfig { name: "no-redis", config: "[store]\nkind = \"redis\"", errors: &["there is no `store.url`"] },
    BadConfig {
        name: "bad-collector",
        config: "[otlp]\nendpoint = \"http://h/?a=b\"",
        errors: &["cannot have a query"],
    },
    BadConfig {
        name: "no-folder-for-the-log",
        config: "[log]\nmalformed_calls = \"no/such/file\"",
        errors: &["`log.malformed_calls` cannot be used"],
    },
    // An empty file of trusted certificates.
    BadConfig {
        name: "no-roots",
        config: "[servers.a]\nurl = \"https://h\"",
        errors: &["[servers.a]: no trusted root certificates for https"],
    },
    // Several errors at once, from different parts of the start.
    BadConfig {
        name: "many",
        config: "listen = \"0.0.0.0:0\"\n[store]\npath = \"steadfast.toml/state.db\"\nkey_file = \"no.key\"\n\
                 [otlp]\nendpoint = \"http://h/?a=b\"\n[servers.a]\nurl = \"http://h:99999/\"",
        errors: &[
            "can be reached from other machines",
            "steadfast.toml cannot be used",
            "`store.key_file` cannot be used",
            "cannot have a query",
            "[servers.a]: the port",
        ],
    },
];

#[test]
fn serve_and_check_refuse_the_same_settings_with_the_same_messages() {
    for BadConfig { name, config, errors } in BAD {
        let home = CheckTestHome::new(&format!("bad-{name}"));
        home.write("steadfast.toml", &format!("{config}\n[command_tools.date]\ncommand = [\"date\"]\n"));
        if *name == "same-as-admin" {
            let folder = home.path(".local/state/steadfast");
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
            fs::write(folder.join("admin-token"), "of-the-admin-0123456789").unwrap();
            fs::set_permissions(folder.join("admin-token"), fs::Permissions::from_mode(0o600)).unwrap();
        }
        if *name == "no-roots" {
            home.write("no-roots.pem", "");
        }
        let command = |arguments: &[&str]| {
            let mut command = home.command(arguments);
            if *name == "no-roots" {
                command.env("SSL_CERT_FILE", home.path("no-roots.pem"));
            }
            command
        };
        let before = home.names();
        let checked = refused(&mut command(&["check"]));
        assert_eq!(home.names(), before, "{name}: check makes nothing");
        let served = refused(&mut command(&["serve"]));
        assert_eq!(home.names(), before, "{name}: what cannot start makes nothing");
        assert_eq!((checked.code, &checked.err), (served.code, &served.err), "{name}");
        assert!(checked.code == 1 || checked.code == 2, "{name}: {}", checked.code);
        for expected in *errors {
            assert!(checked.err.contains(expected), "{name}: {expected} in {}", checked.err);
        }
        let json = run_command(&mut command(&["check", "--json"]));
        let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        let count = |list: &str| report[list].as_array().unwrap().len();
        assert_eq!((report["ok"].as_bool(), json.code), (Some(false), checked.code), "{name}");
        assert_eq!(count("mistakes") + count("errors"), errors.len(), "{name}: {}", json.out);
    }
}

#[test]
fn all_errors_of_files_and_values_are_reported_at_once() {
    let home = CheckTestHome::new("one-pass");
    home.write(
        "steadfast.toml",
        "[servers.a]\nurl = \"http://h:99999/\"\n[http_tools.t]\nmethod = \"GET\"\n",
    );
    home.write("more.toml", "atempts = 3\n[servers.b]\n[notify.ops]\nformat = \"slack\"\n[tokens.c]\n");
    home.write("broken.toml", "timeout = \n");
    let files = ["--config", "steadfast.toml", "--config", "more.toml", "--config", "broken.toml"];
    let mut check = home.command(&["check"]);
    let CheckRun { code, err, .. } = run_command(check.args(files).env("STEADFAST_PROFILE", "fast"));
    assert_eq!(code, 2);
    for expected in [
        "`atempts` is not a setting",
        "the server `b` has neither a command nor a URL",
        "`[http_tools.t]` has no",
        "`[notify.ops]` has no url",
        "`[tokens.c]` has no",
        "broken.toml:1:",
        "STEADFAST_PROFILE",
        "[servers.a]: the port of the URL",
    ] {
        assert!(err.contains(expected), "{expected} in {err}");
    }
    // A value that could not be read is not reported as missing too.
    home.write(
        "more.toml",
        "[servers.b]\ncommand = 7\n[notify.ops]\nurl = 7\n[store]\nkind = \"redis\"\nurl = 7\n",
    );
    let CheckRun { err, .. } = run_command(home.command(&["check"]).args(["--config", "more.toml"]));
    assert!(err.ends_with("3 errors in the configuration\n"), "{err}");
}

#[test]
fn probable_errors_are_noted_and_not_refused() {
    let home = CheckTestHome::new("noted");
    let program = env!("CARGO_BIN_EXE_steadfast");
    home.write(
        "steadfast.toml",
        &format!(
            "[servers.gone]\ncommand = [\"no-such-program\"]\n[servers.a]\ncommand = [\"{program}\"]\n\
             [servers.b]\ncommand = [\"{program}\"]\n"
        ),
    );
    let CheckRun { code, err, .. } = home.run(&["check"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("note: [servers.gone]: no program `no-such-program` is found here"), "{err}");
    assert!(err.contains("note: [servers.b] runs the same as [servers.a]"), "{err}");
    assert_eq!(err.lines().count(), 2, "{err}");
}

#[test]
fn check_takes_the_servers_and_the_address_that_serve_takes() {
    let home = CheckTestHome::new("as-serve");
    for (arguments, expected) in [
        (&["--listen", "0.0.0.0:0"][..], "can be reached from other machines"),
        (&["--mcp-config", r#"{"mcpServers": {"a": {"url": "http://h:99999/"}}}"#], "[servers.a]: the port"),
        (&["--listen", "gateway.example:8931"], "host names are not resolved"),
    ] {
        for command in ["check", "serve"] {
            let mcp = r#"{"mcpServers": {"z": {"command": "z"}}}"#;
            let extra = if command == "serve" { &["--mcp-config", mcp][..] } else { &[] };
            let CheckRun { code, err, .. } = refused(home.command(&[command]).args(arguments).args(extra));
            assert!(code == 2 && err.contains(expected), "{command} {arguments:?}: {err}");
        }
    }
}

/// Returns the output of `serve` after the start, up to the token.
fn start_and_read(command: &mut Command) -> (ChildGuard, Vec<String>) {
    let mut child = ChildGuard(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut output = Vec::new();
    for line in lines.by_ref() {
        output.push(line.clone());
        if line.starts_with("admin token:") {
            break;
        }
    }
    // Drains the output, so that the pipe does not fill.
    std::thread::spawn(move || lines.for_each(drop));
    (child, output)
}

#[test]
fn serve_prints_the_dashboard_url_and_the_token_location() {
    let home = CheckTestHome::new("greeting");
    home.write("steadfast.toml", "[command_tools.date]\ncommand = [\"date\"]\n");
    let token = home.path(".local/state/steadfast/admin-token");
    let (_running, output) = start_and_read(&mut home.command(&["serve", "--listen", "localhost:0"]));
    let [.., page, admin] = output.as_slice() else { panic!("{output:?}") };
    assert_eq!(admin, &format!("admin token: in {}", token.display()));
    let address = page.strip_prefix("dashboard: http://").unwrap().strip_suffix('/').unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{page}");
    let secret = fs::read_to_string(&token).unwrap();
    assert!(!output.iter().any(|line| line.contains(secret.trim())), "{output:?}");
    // The port accepts connections.
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("<html"), "{answer}");

    let mut serve = home.command(&["serve", "--listen", "0.0.0.0:0"]);
    serve
        .env("STEADFAST_ADMIN_TOKEN", "of-the-admin-0123456789")
        .env("STEADFAST_TOKEN", "of-clients-0123456789");
    let (_running, output) = start_and_read(&mut serve);
    let [.., page, admin] = output.as_slice() else { panic!("{output:?}") };
    assert_eq!(admin, "admin token: the value of STEADFAST_ADMIN_TOKEN");
    assert!(page.starts_with("dashboard: http://127.0.0.1:"), "{page}");
}

/// Sends the messages of a client that lists tools, and returns the list response.
fn list_tools(child: &mut ChildGuard) -> String {
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    writeln!(input, r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}}}"#).unwrap();
    lines.find(|line| line.contains(r#""id":1"#)).unwrap();
    writeln!(input, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#).unwrap();
    writeln!(input, r#"{{"jsonrpc":"2.0","id":2,"method":"tools/list"}}"#).unwrap();
    let listed = lines.find(|line| line.contains(r#""id":2"#)).unwrap();
    drop(input);
    child.wait().unwrap();
    listed
}

#[test]
fn explain_resolves_a_tool_with_its_last_known_annotations() {
    let home = CheckTestHome::new("annotations");
    let explain = |arguments: &[&str]| {
        let mut command = home.command(&["config", "explain"]);
        let CheckRun { code, out, err } = run_command(command.args(arguments).args(["--setting", "class"]));
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        out
    };
    let out = explain(&["bank/balance"]);
    assert!(out.starts_with("annotations not received; the name alone decides its class\n"), "{out}");
    assert!(out.contains("unknown"), "{out}");
    assert_eq!(home.names(), [""; 0], "looking makes nothing");

    // A client of `wrap` lists the tools. Both have ended when the command runs.
    let program = env!("CARGO_BIN_EXE_steadfast");
    let ledger = home.path("ledger");
    let mut wrap =
        home.command(&["wrap", "--name", "bank", "--", program, "demo-bank", ledger.to_str().unwrap()]);
    let mut wrap =
        ChildGuard(wrap.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let listed = list_tools(&mut wrap);
    assert!(listed.contains(r#""name":"balance""#), "{listed}");
    let out = explain(&["bank/balance"]);
    assert!(out.starts_with("annotations last seen at 20") && out.contains("readOnlyHint true"), "{out}");
    let class = out.lines().find(|line| line.trim_start().starts_with("class")).unwrap();
    assert!(class.contains("read_only") && class.contains("annotations of the server"), "{class}");
    let report: serde_json::Value = serde_json::from_str(&explain(&["bank/balance", "--json"])).unwrap();
    assert_eq!(
        (report["annotations"]["readOnlyHint"].as_bool(), report["annotations"]["destructiveHint"].as_bool()),
        (Some(true), Some(false))
    );
    assert!(report["annotations"]["seenAtMs"].as_u64().unwrap() > 0);
    let out = explain(&["bank/pay"]);
    assert!(out.contains("mutating"), "{out}");
    assert!(explain(&["bank/no-such-tool"]).starts_with("annotations not received"));

    // The configuration is stronger: annotations of an untrusted server are ignored.
    home.write(
        "steadfast.toml",
        &format!("[servers.bank]\ncommand = [\"{program}\"]\ntrust_annotations = false\n"),
    );
    let distrusted = explain(&["bank/balance"]);
    assert!(distrusted.contains("`trust_annotations` is false"), "{distrusted}");
    assert!(!distrusted.contains("read_only"), "{distrusted}");
    assert!(explain(&["bank__pay"]).contains("bank/pay"), "as clients see it");

    // The same applies if only the gateway knew the server, and no configuration does now.
    let mut wrap =
        home.command(&["wrap", "--name", "bank", "--", program, "demo-bank", ledger.to_str().unwrap()]);
    let mut wrap =
        ChildGuard(wrap.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    list_tools(&mut wrap);
    home.write("steadfast.toml", "");
    let out = explain(&["bank/balance"]);
    assert!(out.contains("`trust_annotations` is false") && !out.contains("read_only"), "{out}");
    let report: serde_json::Value = serde_json::from_str(&explain(&["bank/balance", "--json"])).unwrap();
    assert_eq!(report["annotations"]["trusted"], false, "{report}");
}

#[test]
fn explain_queries_a_gateway_that_stores_its_state_in_memory() {
    let home = CheckTestHome::new("annotations-of-a-gateway");
    let program = env!("CARGO_BIN_EXE_steadfast");
    let ledger = home.path("ledger");
    home.write(
        "steadfast.toml",
        &format!(
            "[store]\nkind = \"memory\"\n[servers.bank]\ncommand = [\"{program}\", \"demo-bank\", {ledger:?}]\n"
        ),
    );
    let explain = || {
        let CheckRun { code, out, err } =
            home.run(&["config", "explain", "bank/balance", "--setting", "class"]);
        assert_eq!(code, 0, "{err}");
        out
    };
    let (_running, output) = start_and_read(&mut home.command(&["serve", "--listen", "127.0.0.1:0"]));
    let url = output.iter().find_map(|line| line.strip_prefix("bank is at ")).unwrap();
    assert!(explain().starts_with("annotations not received"));
    let mut wrap = home.command(&["wrap", "--url", url]);
    let mut wrap =
        ChildGuard(wrap.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    list_tools(&mut wrap);
    // It is written concurrently with the response.
    wait(
        || explain().starts_with("annotations last seen at 20"),
        || "the annotations at the gateway".to_owned(),
    );
    assert!(explain().contains("read_only"));
}

/// Ten errors of different kinds, in two files and in the environment.
const TEN_ERRORS: &str = r#"profile = "fast"
listen = "everywhere"
timeout = 30
unknown_setting = 1

[store]
kind = "postgres"
records = 1

[retry]
attemps = 3
jitter = 2

[tools."bank/pay"]
class = "dangerous"

[servers.bank]
command = []
"#;

#[test]
fn ten_errors_are_reported_at_once_with_their_lines_and_nothing_is_created() {
    let home = CheckTestHome::new("ten-mistakes");
    home.write("steadfast.toml", TEN_ERRORS);
    let CheckRun { code, out, err } = home.run(&["check", "--open"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.ends_with("10 errors in the configuration\n"), "{err}");
    for place in ["1:11", "2:10", "3:11", "4:1", "7:8", "8:11", "11:1", "12:10", "15:9", "18:11"] {
        assert!(err.contains(&format!("steadfast.toml:{place}\n")), "{place} in {err}");
    }
    assert!(err.contains("11 | attemps = 3\n") && err.contains("did you mean `attempts`"), "{err}");
    assert!(!err.contains('\x1b'), "plain where it is piped");
    assert_eq!(home.names(), ["steadfast.toml"]);

    let CheckRun { code, out, err } = home.run(&["check", "--json"]);
    assert_eq!((code, err.as_str()), (2, ""));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let mistakes = report["mistakes"].as_array().unwrap();
    assert_eq!((report["ok"].as_bool(), mistakes.len()), (Some(false), 10));
    assert_eq!((mistakes[6]["line"].as_u64(), mistakes[6]["column"].as_u64()), (Some(11), Some(1)));
    assert!(mistakes[6]["instead"].as_str().unwrap().contains("attempts"), "{out}");
}

#[test]
fn a_foreign_file_is_imported_with_notes() {
    let home = CheckTestHome::new("others");
    home.write("reliability.json", r#"{"default_rule": {"count_threshold": 7}, "notify_user": false}"#);
    let CheckRun { code, out, err } = home.run(&["check", "--config", "reliability.json"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.starts_with("note: "), "{err}");
    assert!(out.contains("reliability.json"), "{out}");
    let explained = home.run(&["config", "explain", "bank/pay", "--config", "reliability.json"]);
    let count = explained.out.lines().find(|line| line.trim_start().starts_with("trust.count")).unwrap();
    assert!(count.contains(" 7 ") && count.contains("reliability.json"), "{count}");
}

#[test]
fn a_named_file_that_is_missing_is_a_configuration_error() {
    let CheckRun { code, err, .. } =
        CheckTestHome::new("missing").run(&["check", "--config", "nowhere.toml"]);
    assert_eq!(code, 2);
    assert!(err.contains("nowhere.toml does not exist"), "{err}");
}

#[test]
fn a_missing_state_folder_is_created_for_this_user_only() {
    let home = CheckTestHome::with_store("no-folder", "path = \"deep/er/state.db\"");
    let CheckRun { code, out, err } = home.run(&["check", "--open"]);
    assert_eq!((code, err.as_str()), (0, NO_SERVER));
    assert!(out.contains("(opened, usable)"), "{out}");
    assert_eq!(fs::metadata(home.path("deep/er")).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(home.path("deep/er/state.db").is_file());
}

/// Root may write anywhere, so the command runs as the user `nobody` if the tests run as root.
#[test]
fn a_read_only_state_folder_is_reported_with_advice() {
    let home = CheckTestHome::with_store("read-only", "path = \"state/state.db\"");
    fs::create_dir(home.path("state")).unwrap();
    fs::set_permissions(home.path("state"), fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = home.command(&["check", "--open"]);
    if fs::metadata(home.path("steadfast.toml")).unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    let CheckRun { code, err, .. } = run_command(&mut command);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("error: the state f") && err.contains("`store.path`"), "{err}");
    assert_eq!(fs::read_dir(home.path("state")).unwrap().count(), 0);
}

#[test]
fn a_corrupt_database_is_reported_and_unchanged() {
    let home = CheckTestHome::with_store("corrupt", "path = \"state.db\"");
    assert_eq!(home.run(&["check", "--open"]).code, 0);
    let mut file = fs::OpenOptions::new().write(true).open(home.path("state.db")).unwrap();
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&[0xa5; 12288]).unwrap();
    drop(file);
    let before = fs::read(home.path("state.db")).unwrap();
    let CheckRun { code, err, .. } = home.run(&["check", "--open"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("is damaged") && err.contains("move it away"), "{err}");
    assert!(fs::read(home.path("state.db")).unwrap() == before, "nothing of it is lost");
}

#[test]
fn a_foreign_state_file_is_reported_and_unchanged() {
    for (name, kind) in [("text", "no SQLite file"), ("diary", "a SQLite file of another program")] {
        let home = CheckTestHome::with_store(&format!("foreign-{name}"), "path = \"state.db\"");
        match name {
            "text" => home.write("state.db", &"my diary, not yours. ".repeat(100)),
            _ => {
                let diary = rusqlite::Connection::open(home.path("state.db")).unwrap();
                diary.execute_batch("CREATE TABLE diary (day, entry)").unwrap();
            }
        }
        let before = fs::read(home.path("state.db")).unwrap();
        let CheckRun { code, err, .. } = home.run(&["check", "--open"]);
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(kind) && err.contains("`store.path`"), "{err}");
        assert_eq!(fs::read(home.path("state.db")).unwrap(), before);
    }
}

#[test]
fn a_wrong_redis_password_is_reported_with_advice_and_never_shown() {
    let server = RedisServer::with(&["--requirepass", "correct"]);
    let url = |password: &str| {
        // No timeout: a running server answers eventually.
        format!(
            "kind = \"redis\"\ntimeout = \"1m\"\nurl = \"redis://:{password}@127.0.0.1:{}\"",
            server.port()
        )
    };
    let CheckRun { code, err, .. } =
        CheckTestHome::with_store("redis-wrong", &url("hunter2")).run(&["check", "--open"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("password") && !err.contains("hunter2"), "{err}");
    let CheckRun { code, out, err } =
        CheckTestHome::with_store("redis-right", &url("correct")).run(&["check", "--open"]);
    assert_eq!((code, err.as_str()), (0, NO_SERVER));
    assert!(out.contains("redis at 127.0.0.1") && !out.contains("correct\n"), "{out}");
}

#[test]
fn an_unreachable_redis_is_reported_with_its_address() {
    let port = RedisServer::free_port();
    let store = format!("kind = \"redis\"\nurl = \"redis://127.0.0.1:{port}\"");
    let home = CheckTestHome::with_store("redis-gone", &store);
    assert_eq!(home.run(&["check"]).code, 0, "the configuration is valid; nothing was opened");
    let CheckRun { code, err, .. } = home.run(&["check", "--open"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains(&format!("127.0.0.1:{port}")), "{err}");
    let run = home.run(&["check", "--open", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((report["ok"].as_bool(), report["storeUsable"].as_bool()), (Some(false), Some(false)));
}

#[test]
fn explain_shows_the_rule_that_decided_each_setting() {
    let home = CheckTestHome::new("explain");
    home.write(
        "steadfast.toml",
        "timeout = \"20s\"\n[tools.\"web/fetch\"]\nclass = \"read_only\"\n\
         [domains.\"api.example.com\".retry]\nattempts = 9\n",
    );
    let row = |out: &str, setting: &str| {
        let found =
            out.lines().find(|line| line.split_whitespace().next() == Some(setting)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("{setting} in {out}"))
    };
    let CheckRun { code, out, err } = home.run(&["config", "explain", "web/fetch"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(row(&out, "class").contains("read_only") && row(&out, "class").contains("[tools.\"web/fetch\"]"));
    assert!(row(&out, "retry.attempts").contains("profile standard, class read_only"), "{out}");
    let arguments = r#"{"url":"https://api.example.com/x"}"#;
    let explained = home.run(&["config", "explain", "web/fetch", "--arguments", arguments, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&explained.out).unwrap();
    assert_eq!(report["domain"], "api.example.com");
    let settings = report["settings"].as_array().unwrap();
    let attempts = settings.iter().find(|one| one["setting"] == "retry.attempts").unwrap();
    assert_eq!(attempts["value"], "9");
    assert!(attempts["decidedBy"].as_str().unwrap().contains("[domains.\"api.example.com\"]"), "{attempts}");

    for wrong in
        [&["config", "explain", "fetch"][..], &["config", "explain", "web/fetch", "--arguments", "{"]]
    {
        let CheckRun { code, err, .. } = home.run(wrong);
        assert_eq!(code, 2);
        assert!(err.starts_with("error: "), "{err}");
    }
}

#[test]
fn the_version_is_printed() {
    let CheckRun { code, out, .. } = CheckTestHome::new("version").run(&["--version"]);
    assert_eq!((code, out.as_str()), (0, concat!("steadfast ", env!("CARGO_PKG_VERSION"), "\n")));
}
