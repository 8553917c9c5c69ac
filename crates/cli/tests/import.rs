//! `steadfast import`, run by a user.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "support/folder.rs"]
mod folder;

use std::ffi::CString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::folder::CliTestFolder;

/// The whole path of the program. In these homes it is not found by name.
const PROGRAM: &str = env!("CARGO_BIN_EXE_steadfast");

/// A folder that is the home of one test. Its folder `project` is the working folder.
struct ImportTestHome {
    folder: CliTestFolder,
}

/// Result of a command.
struct ImportRun {
    code: i32,
    out: String,
    err: String,
}

impl ImportTestHome {
    fn new(test: &str) -> Self {
        let folder = CliTestFolder::new(&format!("import_{test}"));
        fs::create_dir_all(folder.join("project")).unwrap();
        Self { folder }
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("import").args(arguments).current_dir(self.path("project"));
        command.env_clear().env("HOME", &self.folder);
        command
    }

    fn run(&self, arguments: &[&str]) -> ImportRun {
        run_command(&mut self.command(arguments))
    }

    /// Runs a command that must succeed.
    fn good(&self, arguments: &[&str]) -> String {
        let ImportRun { code, out, err } = self.run(arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        out
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(self.path(folder)).unwrap().map(name).collect();
        names.sort();
        names
    }
}

fn run_command(command: &mut Command) -> ImportRun {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    ImportRun { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// A file of a client: its path, its text, and the text after the import.
struct ImportCase {
    client: &'static str,
    file: &'static str,
    before: &'static str,
    after: &'static str,
}

/// In `after`, a placeholder is replaced by the path of the program.
const CASES: &[ImportCase] = &[
    ImportCase {
        client: "claude-code",
        file: ".claude.json",
        before: r#"{
  "numStartups": 12,
  "mcpServers": {
    "github": {
      "type": "stdio",
      "command": "npx",
      "args": [
        "-y",
        "@modelcontextprotocol/server-github"
      ],
      "env": {}
    }
  },
  "projects": {
    "/home/me/work": {
      "allowedTools": [],
      "mcpServers": {
        "notes": { "command": "uvx", "args": ["notes"] },
        "linear": { "type": "http", "url": "https://mcp.linear.app/mcp" }
      }
    },
    "/home/me/other": {}
  }
}
"#,
        after: r#"{
  "numStartups": 12,
  "mcpServers": {
    "github": {
      "type": "stdio",
      "command": "US",
      "args": [
        "wrap", "--imported", "--name", "github", "--", "npx",
        "-y",
        "@modelcontextprotocol/server-github"
      ],
      "env": {}
    }
  },
  "projects": {
    "/home/me/work": {
      "allowedTools": [],
      "mcpServers": {
        "notes": { "command": "US", "args": ["wrap", "--imported", "--name", "notes", "--", "uvx", "notes"] },
        "linear": { "type": "http", "url": "https://mcp.linear.app/mcp" }
      }
    },
    "/home/me/other": {}
  }
}
"#,
    },
    ImportCase {
        client: "claude-code",
        file: "project/.mcp.json",
        before: r#"{"mcpServers":{"db":{"command":"${TOOLS}/db","args":[]}}}"#,
        after: r#"{"mcpServers":{"db":{"command":"US","args":["wrap", "--imported=empty-args", "--name", "db", "--", "${TOOLS}/db"]}}}"#,
    },
    ImportCase {
        client: "claude-desktop",
        file: ".config/Claude/claude_desktop_config.json",
        before: "{\r\n\t\"mcpServers\": {\r\n\t\t\"files\": {\r\n\t\t\t\"command\": \"files\"\r\n\t\t}\r\n\t}\r\n}",
        after: "{\r\n\t\"mcpServers\": {\r\n\t\t\"files\": {\r\n\t\t\t\"command\": \"US\",\r\n\t\t\t\"args\": [\"wrap\", \"--imported\", \"--name\", \"files\", \"--\", \"files\"]\r\n\t\t}\r\n\t}\r\n}",
    },
    ImportCase {
        client: "claude-desktop",
        file: "Library/Application Support/Claude/claude_desktop_config.json",
        before: r#"{"globalShortcut": "", "mcpServers": {"mac": {"args": ["x"], "command": "a"}}}"#,
        after: r#"{"globalShortcut": "", "mcpServers": {"mac": {"args": ["wrap", "--imported", "--name", "mac", "--", "a", "x"], "command": "US"}}}"#,
    },
    ImportCase {
        client: "cursor",
        file: ".cursor/mcp.json",
        before: r#"{"mcpServers": {"a": {"command": "npx", "args": ["a"], "envFile": "${workspaceFolder}/.env"}}}"#,
        after: r#"{"mcpServers": {"a": {"command": "US", "args": ["wrap", "--imported", "--name", "a", "--", "npx", "a"], "envFile": "${workspaceFolder}/.env"}}}"#,
    },
    ImportCase {
        client: "cursor",
        file: "project/.cursor/mcp.json",
        before: r#"{"mcpServers": {"b": {"command": "b", "args": ["-"]}}}"#,
        after: r#"{"mcpServers": {"b": {"command": "US", "args": ["wrap", "--imported", "--name", "b", "--", "b", "-"]}}}"#,
    },
    ImportCase {
        client: "vscode",
        file: ".config/Code/User/mcp.json",
        before: r#"// of mine
{
	"inputs": [{ "id": "key", "type": "promptString", "password": true, }],
	"servers": {
		/* looks things up */
		"docs": {
			"type": "stdio", // always
			"command": "npx", // not yarn
			"args": [
				// quietly
				"-y", "docs",
			],
			"env": { "KEY": "${input:key}" },
		},
	},
}
"#,
        after: r#"// of mine
{
	"inputs": [{ "id": "key", "type": "promptString", "password": true, }],
	"servers": {
		/* looks things up */
		"docs": {
			"type": "stdio", // always
			"command": "US", // not yarn
			"args": [
				// quietly
				"wrap", "--imported", "--name", "docs", "--", "npx",
				"-y", "docs",
			],
			"env": { "KEY": "${input:key}" },
		},
	},
}
"#,
    },
    ImportCase {
        client: "vscode",
        file: "project/.vscode/mcp.json",
        before: r#"{"servers": {"c": {"command": "c", "args": ["1"]}}}"#,
        after: r#"{"servers": {"c": {"command": "US", "args": ["wrap", "--imported", "--name", "c", "--", "c", "1"]}}}"#,
    },
    ImportCase {
        client: "codex",
        file: ".codex/config.toml",
        before: r#"model = "o" # the large one

[mcp_servers.docs]
command = 'npx'   # not yarn
args = ["-y", "docs"]
startup_timeout_sec = 20

[mcp_servers.docs.env]
KEY = "value"

[mcp_servers.bare]
command = "bare" # alone
enabled = false

[mcp_servers.far]
url = "https://far.example/mcp"
"#,
        after: r#"model = "o" # the large one

[mcp_servers.docs]
command = "US"   # not yarn
args = ["wrap", "--imported", "--name", "docs", "--", 'npx', "-y", "docs"]
startup_timeout_sec = 20

[mcp_servers.docs.env]
KEY = "value"

[mcp_servers.bare]
command = "US" # alone
args = ["wrap", "--imported", "--name", "bare", "--", "bare"]
enabled = false

[mcp_servers.far]
url = "https://far.example/mcp"
"#,
    },
    ImportCase {
        client: "openclaw",
        file: ".openclaw/openclaw.json",
        before: "{\n  // mine\n  gateway: { port: 1 },\n  mcp: { servers: {\n    bank: { command: 'bank', args: ['--live'], cwd: '.' },\n    bare: { command: 'bare' },\n  } },\n}\n",
        after: "{\n  // mine\n  gateway: { port: 1 },\n  mcp: { servers: {\n    bank: { command: \"US\", args: [\"wrap\", \"--imported\", \"--name\", \"bank\", \"--\", 'bank', '--live'], cwd: '.' },\n    bare: { command: \"US\", args: [\"wrap\", \"--imported\", \"--name\", \"bare\", \"--\", 'bare'] },\n  } },\n}\n",
    },
];

#[test]
fn every_client_is_wrapped_and_restored_byte_for_byte() {
    let home = ImportTestHome::new("every-client");
    for case in CASES {
        home.write(case.file, case.before);
    }
    let shown = home.good(&[]);
    for ImportCase { file, before, .. } in CASES {
        let path = file
            .strip_prefix("project/")
            .map_or_else(|| home.path(file).display().to_string(), str::to_owned);
        assert!(shown.contains(&path), "{path} in {shown}");
        assert_eq!(home.read(file), *before, "nothing was written");
    }
    assert!(shown.ends_with(&format!(
        "13 servers in 10 files would go through steadfast; nothing was written\nto do it: {PROGRAM} import --write\n"
    )), "{shown}");

    let written = home.good(&["--write"]);
    for ImportCase { file, before, after, .. } in CASES {
        assert_eq!(home.read(file), after.replace("US", PROGRAM), "{file}");
        assert_eq!(home.read(&format!("{file}.steadfast-backup")), *before);
    }
    assert!(written.contains("13 servers in 10 files now go through steadfast"), "{written}");
    assert!(written.contains("Claude Code, Claude Desktop, Cursor, VS Code, Codex, OpenClaw"), "{written}");

    let again = home.good(&["--write"]);
    assert!(
        again.ends_with("nothing to change\n") && again.contains("already goes through steadfast"),
        "{again}"
    );
    for ImportCase { file, after, .. } in CASES {
        assert_eq!(home.read(file), after.replace("US", PROGRAM), "{file}");
    }

    let shown = home.good(&["--undo"]);
    assert!(shown.ends_with(&format!(
        "13 servers in 10 files would no longer go through steadfast; nothing was written\nto do it: {PROGRAM} import --undo --write\n"
    )), "{shown}");
    assert!(
        shown.contains(&format!(
            "    - {PROGRAM} wrap --imported --name bank -- bank --live\n    + bank --live\n"
        )),
        "{shown}"
    );
    for ImportCase { file, after, .. } in CASES {
        assert_eq!(home.read(file), after.replace("US", PROGRAM), "{file}");
    }
    let undo_output = home.good(&["--undo", "--write"]);
    assert!(undo_output.contains("13 servers in 10 files no longer go through steadfast"), "{undo_output}");
    for ImportCase { file, before, .. } in CASES {
        assert_eq!(home.read(file), *before, "{file}");
        assert!(
            !home.path(&format!("{file}.steadfast-backup")).exists(),
            "it has nothing that the file has not"
        );
    }
    assert!(home.good(&["--undo"]).ends_with("nothing to undo\n"));
}

#[test]
fn a_dry_run_shows_old_and_new_command_lines() {
    let home = ImportTestHome::new("shown");
    home.write("project/.mcp.json", CASES[1].before);
    home.write(
        ".claude.json",
        r#"{"mcpServers": {"far": {"url": "https://far.example"}, "a b": {"command": "x", "args": ["say hi"]}}}"#,
    );
    let expected = format!(
        "Claude Code  {home}/.claude.json
  far: not changed: the file has no credentials for it, so that its client may have to sign in (OAuth), and only the client can do that; if it needs none, add --without-sign-in NAME
  a b
    - x 'say hi'
    + {PROGRAM} wrap --imported --name 'a b' -- x 'say hi'

Claude Code  .mcp.json
  db
    - '${{TOOLS}}/db'
    + {PROGRAM} wrap --imported=empty-args --name db -- '${{TOOLS}}/db'
  note: it belongs to the project: all users of the project need steadfast too

2 servers in 2 files would go through steadfast; nothing was written
to do it: {PROGRAM} import --client claude-code --write
",
        home = home.folder.display()
    );
    assert_eq!(home.good(&["--client", "claude-code"]), expected);
}

#[test]
fn a_client_or_a_file_can_be_selected_and_the_others_are_unchanged() {
    let home = ImportTestHome::new("chosen");
    for case in CASES {
        home.write(case.file, case.before);
    }
    home.good(&["--write", "--client", "codex", "--client", "cursor"]);
    for ImportCase { client, file, before, after } in CASES {
        let expected = if ["codex", "cursor"].contains(client) {
            after.replace("US", PROGRAM)
        } else {
            (*before).to_owned()
        };
        assert_eq!(home.read(file), expected, "{file}");
    }
    // A file that is at no known location: recognized by its contents, or read as that of a client.
    for (name, client) in [("elsewhere.json", None), ("elsewhere.toml", None), ("else", Some("codex"))] {
        let case = &CASES[if name.ends_with("json") { 6 } else { 8 }];
        home.write(name, case.before);
        let path = home.path(name).display().to_string();
        let mut arguments = vec!["--write", "--file", &path];
        arguments.extend(client.iter().flat_map(|client| ["--client", client]));
        let out = home.good(&arguments);
        assert_eq!(home.read(name), case.after.replace("US", PROGRAM), "{out}");
    }

    let ImportRun { code, err, .. } = home.run(&["--file", "nowhere.json"]);
    assert_eq!((code, err.as_str()), (2, "error: nowhere.json does not exist\n"));
    assert_eq!(home.run(&["--client", "emacs"]).code, 2);
    assert_eq!(home.run(&["--undo", "--without-sign-in", "a"]).code, 2);
}

/// Variables of the clients give the locations of their files, and Windows has other folders.
#[test]
fn files_are_found_through_environment_variables() {
    let home = ImportTestHome::new("variables");
    let places = [
        ("CLAUDE_CONFIG_DIR", "claude", "claude/.claude.json", 1),
        ("XDG_CONFIG_HOME", "xdg", "xdg/Claude/claude_desktop_config.json", 2),
        ("XDG_CONFIG_HOME", "xdg", "xdg/Code/User/profiles/-1a/mcp.json", 7),
        ("APPDATA", "roaming", "roaming/Code - Insiders/User/mcp.json", 7),
        (
            "LOCALAPPDATA",
            "local",
            "local/Packages/Claude_x1/LocalCache/Roaming/Claude/claude_desktop_config.json",
            2,
        ),
        ("CODEX_HOME", "codex", "codex/config.toml", 8),
        ("OPENCLAW_CONFIG_PATH", "claw.json5", "claw.json5", 9),
    ];
    let mut command = home.command(&["--json"]);
    for (variable, value, file, case) in places {
        home.write(file, CASES[case].before);
        command.env(variable, home.path(value));
    }
    let ImportRun { code, out, err } = run_command(&mut command);
    assert_eq!(code, 0, "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let mut found: Vec<_> =
        report["files"].as_array().unwrap().iter().map(|file| file["file"].clone()).collect();
    let mut expected: Vec<_> = places
        .iter()
        .map(|(_, _, file, _)| serde_json::Value::from(home.path(file).to_str().unwrap()))
        .collect();
    found.sort_by_key(ToString::to_string);
    expected.sort_by_key(ToString::to_string);
    assert_eq!(found, expected);
}

#[test]
fn the_short_name_is_written_where_its_reader_finds_it() {
    let home = ImportTestHome::new("short-name");
    for case in CASES {
        home.write(case.file, case.before);
    }
    // A link to the program, as package managers create it.
    fs::create_dir(home.path("bin")).unwrap();
    symlink(PROGRAM, home.path("bin/steadfast")).unwrap();
    let run = |arguments: &[&str]| run_command(home.command(arguments).env("PATH", home.path("bin")));
    let ImportRun { code, out, err } = run(&["--write"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.ends_with("to undo: steadfast import --undo --write\n"), "{out}");
    let long = home.path("bin/steadfast").display().to_string();
    for ImportCase { client, file, after, .. } in CASES {
        let by_name = file.starts_with("project/") || ["claude-code", "codex"].contains(client);
        let program = if by_name { "steadfast" } else { &long };
        assert_eq!(home.read(file), after.replace("US", program), "{file}");
    }
    assert_eq!(run(&["--undo", "--write"]).code, 0);
    assert!(CASES.iter().all(|case| home.read(case.file) == case.before));

    // Another program with the same name is not Steadfast.
    fs::remove_file(home.path("bin/steadfast")).unwrap();
    symlink("/bin/sh", home.path("bin/steadfast")).unwrap();
    assert_eq!(run(&["--write"]).code, 0);
    assert!(CASES.iter().all(|case| home.read(case.file) == case.after.replace("US", PROGRAM)));
}

#[test]
fn later_edits_survive_an_undo_and_so_does_the_first_backup() {
    let home = ImportTestHome::new("edited");
    let file = ".cursor/mcp.json";
    home.write(file, CASES[4].before);
    home.good(&["--write"]);
    let edited = home
        .read(file)
        .replace("\"a\"]", "\"a\", \"--verbose\"]")
        .replace("{\"a\":", "{\"new\": {\"command\": \"new\"}, \"a\":");
    home.write(file, &edited);
    let out = home.good(&["--write"]);
    assert!(out.contains("backup from before the first import"), "{out}");
    assert_eq!(home.read(&format!("{file}.steadfast-backup")), CASES[4].before);
    let out = home.good(&["--undo", "--write"]);
    assert_eq!(
        home.read(file),
        CASES[4]
            .before
            .replace("[\"a\"]", "[\"a\", \"--verbose\"]")
            .replace("{\"a\":", "{\"new\": {\"command\": \"new\"}, \"a\":")
    );
    assert_eq!(home.read(&format!("{file}.steadfast-backup")), CASES[4].before, "{out}");
    assert_eq!(
        home.names(".cursor"),
        ["mcp.json", "mcp.json.steadfast-backup"],
        "nothing else is left behind"
    );
}

#[test]
fn permissions_are_preserved_and_links_are_followed() {
    let home = ImportTestHome::new("links");
    home.write("dotfiles/claude", CASES[0].before);
    fs::set_permissions(home.path("dotfiles/claude"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("dotfiles/claude", home.path(".claude.json")).unwrap();
    // The same file again, as that of another client.
    fs::create_dir(home.path(".cursor")).unwrap();
    symlink("../dotfiles/claude", home.path(".cursor/mcp.json")).unwrap();
    let out = home.good(&["--write"]);
    assert!(out.contains("2 servers in 1 file now"), "{out}");
    assert!(fs::symlink_metadata(home.path(".claude.json")).unwrap().is_symlink());
    assert_eq!(home.read("dotfiles/claude"), CASES[0].after.replace("US", PROGRAM));
    assert_eq!(home.names("dotfiles"), ["claude", "claude.steadfast-backup"]);
    for name in ["dotfiles/claude", "dotfiles/claude.steadfast-backup"] {
        assert_eq!(fs::metadata(home.path(name)).unwrap().permissions().mode() & 0o777, 0o640, "{name}");
    }
}

#[test]
fn an_invalid_file_is_reported_and_the_others_are_handled() {
    let secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let broken = [
        (
            ".claude.json",
            format!("{{\"mcpServers\": {{\n  \"a\": {{\"env\": {{\"K\": \"{secret}\"}} \"b\": 1}}\n"),
            "line 2, column",
        ),
        (
            ".config/Claude/claude_desktop_config.json",
            "[1, 2]".to_owned(),
            "line 1, column 1: expected a table of names, found a list",
        ),
        (
            ".cursor/mcp.json",
            "{\"mcpServers\": [\"a\"]}".to_owned(),
            "line 1, column 16: expected a table of names, found a list",
        ),
        (
            ".config/Code/User/mcp.json",
            "{\"servers\": {\"a\": {}, \"a\": {}}}".to_owned(),
            "`a` occurs twice",
        ),
        (
            ".codex/config.toml",
            format!("[mcp_servers.a]\ncommand = {secret}\n"),
            "line 2, column 11: this is not TOML",
        ),
    ];
    let home = ImportTestHome::new("broken");
    for (file, text, _) in &broken {
        home.write(file, text);
    }
    fs::write(home.path("project/.mcp.json"), b"\xff\xfe{\0}\0").unwrap();
    home.write(".openclaw/openclaw.json", CASES[9].before);
    for arguments in [&["--write"][..], &[], &["--undo", "--write"]] {
        let ImportRun { code, out, err } = home.run(arguments);
        assert_eq!(code, 1, "{err}");
        assert_eq!(err.lines().count(), 6, "{err}");
        for (file, text, expected) in &broken {
            let line =
                err.lines().find(|line| line.contains(&home.path(file).display().to_string())).unwrap();
            assert!(line.starts_with("error: ") && line.contains(expected), "{expected} in {line}");
            assert!(line.contains("correct it there"), "{line}");
            assert_eq!(home.read(file), *text, "it is left alone");
        }
        assert!(err.contains(".mcp.json: it is not UTF-8"), "{err}");
        assert!(!err.contains("ghp_") && !out.contains("ghp_"), "{err}");
        if arguments == ["--write"] {
            assert_eq!(home.read(".openclaw/openclaw.json"), CASES[9].after.replace("US", PROGRAM), "{out}");
        }
    }
    assert_eq!(home.read(".openclaw/openclaw.json"), CASES[9].before);

    let run = home.run(&["--json"]);
    assert_eq!((run.code, run.err.as_str()), (1, ""));
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((report["ok"].as_bool(), report["files"].as_array().unwrap().len()), (Some(false), 7));
}

/// Root may read and write anything, so the command runs as the user `nobody` if the tests run as root.
#[test]
fn an_inaccessible_file_is_reported_and_nothing_is_lost() {
    let home = ImportTestHome::new("closed-files");
    for (file, mode) in
        [(".claude.json", 0o000), (".cursor/mcp.json", 0o444), ("closed/openclaw.json", 0o666)]
    {
        let case =
            CASES.iter().find(|case| case.file.ends_with(file) || file.ends_with("claw.json")).unwrap();
        home.write(file, if file.ends_with("claw.json") { CASES[9].before } else { case.before });
        fs::set_permissions(home.path(file), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(home.path("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    home.write(".codex/config.toml", CASES[8].before);
    // A folder and a pipe without a writer are not files.
    fs::create_dir_all(home.path("project/.mcp.json")).unwrap();
    fs::create_dir(home.path("project/.vscode")).unwrap();
    assert!(Command::new("mkfifo").arg(home.path("project/.vscode/mcp.json")).status().unwrap().success());

    let mut command = home.command(&["--write"]);
    command.env("OPENCLAW_CONFIG_PATH", home.path("closed/openclaw.json"));
    let own = fs::metadata(home.path(".codex")).unwrap().uid();
    if own == 0 {
        for name in [".claude.json", ".codex", ".codex/config.toml", ".cursor", ".cursor/mcp.json"] {
            let path = CString::new(home.path(name).to_str().unwrap()).unwrap();
            std::os::unix::fs::chown(path.to_str().unwrap(), Some(65534), Some(65534)).unwrap();
        }
        command.uid(65534).gid(65534);
    }
    let ImportRun { code, out, err } = run_command(&mut command);
    assert_eq!(code, 1, "{out}{err}");
    for (file, expected) in [
        (".claude.json", "it cannot be read: "),
        (".cursor/mcp.json", "it is read-only"),
        ("closed/openclaw.json", "no backup can be written beside it"),
        (".mcp.json", "it is not a file"),
        (".vscode/mcp.json", "it is not a file"),
    ] {
        assert!(err.lines().any(|line| line.contains(file) && line.contains(expected)), "{file}: {err}");
    }
    assert_eq!(err.lines().count(), 5, "{err}");
    // So that it can be removed.
    fs::set_permissions(home.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(home.read(".codex/config.toml"), CASES[8].after.replace("US", PROGRAM));
    assert_eq!(home.read(".cursor/mcp.json"), CASES[4].before);
    assert_eq!(home.names("closed"), ["openclaw.json"]);
    assert_eq!(home.names(".cursor"), ["mcp.json"], "no backup of what was not changed");
}

#[test]
fn secrets_are_never_printed() {
    let home = ImportTestHome::new("secrets");
    let secrets =
        ["hunter2", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "tr0ub4dor", "s3cr3t-header", "in-the-env"];
    home.write(
        ".claude.json",
        &format!(
            r#"{{"mcpServers": {{
                "db": {{"command": "db", "args": ["--password", "{}", "postgres://me:{}@host/db"]}},
                "gh": {{"command": "npx", "args": ["gh", "--token={}"], "env": {{"API_KEY": "{}"}}}},
                "far": {{"type": "http", "url": "https://x", "headers": {{"Authorization": "Bearer {}"}}}}
            }}}}"#,
            secrets[0], secrets[2], secrets[1], secrets[4], secrets[3]
        ),
    );
    for arguments in [
        &[][..],
        &["--json"],
        &["--write"],
        &["--write", "--json"],
        &["--undo", "--json"],
        &["--undo", "--write"],
    ] {
        let ImportRun { code, out, err } = home.run(arguments);
        assert_eq!(code, 0, "{err}");
        for secret in secrets {
            assert!(!out.contains(secret) && !err.contains(secret), "{secret} in {out}{err}");
        }
        assert!(out.contains("gh"), "{out}");
    }
}

/// A project file may have any author, and its names may be malicious.
#[test]
fn control_characters_in_a_file_do_not_reach_the_terminal() {
    let home = ImportTestHome::new("terminal");
    home.write(
        "project/.mcp.json",
        r#"{"mcpServers": {"a\u001b[2J": {"command": "x"}, "b": {"command": "x", "args": ["\u001b]0;owned\u0007\n\n"]}}}"#,
    );
    home.write(".cursor/mcp.json", r#"{"mcpServers": {"\u001b[2J": {}, "\u001b[2J": {}}}"#);
    let ImportRun { code, out, err } = home.run(&[]);
    assert_eq!(code, 1);
    for text in [out, err] {
        assert!(text.contains('\u{fffd}') && text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}

#[test]
fn the_json_output_has_the_result_of_every_server() {
    let home = ImportTestHome::new("json");
    home.write(".claude.json", CASES[0].before);
    let run_json =
        |arguments: &[&str]| serde_json::from_str::<serde_json::Value>(&home.good(arguments)).unwrap();
    let shown = run_json(&["--json"]);
    assert_eq!((shown["ok"].as_bool(), shown["written"].as_bool()), (Some(true), Some(false)));
    let file = &shown["files"][0];
    assert_eq!((file["client"].as_str(), file["changes"].as_u64()), (Some("claude-code"), Some(2)));
    assert!(file["backup"].is_null() && file["error"].is_null());
    let states: Vec<_> =
        file["servers"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["change", "change", "left"]);
    assert_eq!(file["servers"][0]["now"], "npx -y @modelcontextprotocol/server-github");
    assert_eq!(
        file["servers"][0]["becomes"],
        format!("{PROGRAM} wrap --imported --name github -- npx -y @modelcontextprotocol/server-github")
    );
    assert_eq!(file["servers"][1]["within"], "/home/me/work");
    let written = run_json(&["--write", "--json"]);
    assert_eq!(written["written"], true);
    assert_eq!(
        written["files"][0]["backup"],
        home.path(".claude.json.steadfast-backup").display().to_string()
    );
    assert_eq!(run_json(&["--json"])["files"][0]["changes"], 0);
}

#[test]
fn if_nothing_is_found_the_checked_locations_are_listed() {
    let home = ImportTestHome::new("nothing");
    let out = home.good(&["--client", "codex"]);
    let expected = format!(
        "no configuration of a known client was found; checked:\n  {}\n  .codex/config.toml\n\
         name another file with --file PATH\n",
        home.path(".codex/config.toml").display()
    );
    assert_eq!(out, expected);
    home.write(".cursor/mcp.json", "");
    let out = home.good(&[]);
    assert!(out.contains("no servers") && out.ends_with("nothing to change\n"), "{out}");
}

#[test]
fn undo_removes_only_the_additions_of_an_import() {
    let home = ImportTestHome::new("by-hand");
    let by_hand =
        r#""mine": {"command": "steadfast", "args": ["wrap", "--name", "mine", "--", "npx", "mine"]}"#;
    let before =
        format!(r#"{{"mcpServers": {{{by_hand}, "theirs": {{"command": "npx", "args": ["theirs"]}}}}}}"#);
    home.write(".cursor/mcp.json", &before);
    home.good(&["--write"]);
    assert!(home.read(".cursor/mcp.json").contains("--imported"));
    let shown = home.good(&["--undo"]);
    assert!(shown.contains("  mine: not changed: it was put behind steadfast manually"), "{shown}");
    assert!(shown.contains("    + npx theirs\n"), "{shown}");
    home.good(&["--undo", "--write"]);
    assert_eq!(home.read(".cursor/mcp.json"), before);
    // Nothing is left to undo, and a second undo changes nothing.
    assert!(home.good(&["--undo", "--write"]).ends_with("nothing to undo\n"));
    assert_eq!(home.read(".cursor/mcp.json"), before);
}

#[test]
fn servers_with_one_name_and_different_commands_get_distinct_names() {
    let home = ImportTestHome::new("names");
    let of =
        |command: &str| format!(r#"{{"mcpServers": {{"db": {{"command": "{command}", "args": ["x"]}}}}}}"#);
    home.write(".claude.json", &of("one"));
    home.write(".cursor/mcp.json", &of("two"));
    home.write("project/.mcp.json", &of("one"));
    home.write("project/.cursor/mcp.json", r#"{"mcpServers": {"db": {"url": "http://127.0.0.1:9/mcp"}}}"#);
    let shown = home.good(&[]);
    assert!(shown.contains("its name with steadfast is `db-2`"), "{shown}");
    home.good(&["--write"]);
    let name = |file: &str| {
        let read: serde_json::Value = serde_json::from_str(&home.read(file)).unwrap();
        let words = read["mcpServers"]["db"]["args"].as_array().unwrap().clone();
        let at = words.iter().position(|word| word == "--name").unwrap();
        words[at + 1].as_str().unwrap().to_owned()
    };
    assert_eq!((name(".claude.json"), name("project/.mcp.json")), ("db".to_owned(), "db".to_owned()));
    assert_eq!(
        (name(".cursor/mcp.json"), name("project/.cursor/mcp.json")),
        ("db-2".to_owned(), "db-3".to_owned())
    );
    // A file that is added later must use other names, even if only its client is selected.
    home.write(".config/Code/User/mcp.json", r#"{"servers": {"db": {"command": "four"}}}"#);
    home.write("project/.vscode/mcp.json", r#"{"servers": {"db": {"command": "two", "args": ["x"]}}}"#);
    let shown = home.good(&["--client", "vscode"]);
    assert!(shown.contains("--name db-4 -- four") && shown.contains("--name db-2 -- two x"), "{shown}");
}

#[test]
fn a_remote_server_without_credentials_is_wrapped_only_if_it_needs_no_sign_in() {
    let home = ImportTestHome::new("sign-in");
    let before = r#"{"mcpServers": {"far": {"type": "http", "url": "https://far.example/mcp"}}}"#;
    home.write("project/.mcp.json", before);
    let out = home.good(&["--write"]);
    assert!(out.contains("--without-sign-in") && out.ends_with("nothing to change\n"), "{out}");
    assert_eq!(home.read("project/.mcp.json"), before);
    let out = home.good(&["--without-sign-in", "far"]);
    assert!(out.ends_with(&format!("to do it: {PROGRAM} import --without-sign-in far --write\n")), "{out}");
    let out = home.good(&["--without-sign-in", "far", "--write"]);
    assert!(out.ends_with(&format!("to undo: {PROGRAM} import --undo --write\n")), "{out}");
    assert!(home.read("project/.mcp.json").contains(r#""--url", "https://far.example/mcp""#));
    home.good(&["--undo", "--write"]);
    assert_eq!(home.read("project/.mcp.json"), before);
}

/// Serves one request with an error, and returns the request.
fn one_request(listener: &TcpListener) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while reader.read_line(&mut head).unwrap() > 2 {}
    stream.write_all(b"HTTP/1.1 418 no\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
    head
}

/// The command that is written for a server with a URL reaches it, with its headers.
#[test]
fn the_command_that_is_written_for_a_url_sends_its_headers() {
    let home = ImportTestHome::new("headers");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    home.write(
        "project/.mcp.json",
        &format!(
            r#"{{"mcpServers": {{"far": {{"type": "http", "url": "http://{address}/mcp",
                "headers": {{"Authorization": "Bearer s3cr3t-0123456789", "X-Team": "blue"}}}}}}}}"#
        ),
    );
    let out = home.good(&["--write"]);
    assert!(!out.contains("s3cr3t"), "{out}");
    assert!(out.contains("the value of the header Authorization stays in this file, as the variable MCP_HEADER_AUTHORIZATION"), "{out}");
    let written: serde_json::Value = serde_json::from_str(&home.read("project/.mcp.json")).unwrap();
    let server = &written["mcpServers"]["far"];
    assert_eq!(server["type"], "stdio");
    assert!(!server["args"].to_string().contains("s3cr3t"), "{server}");
    let mut command = Command::new(server["command"].as_str().unwrap());
    command.args(server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()));
    command.current_dir(&home.folder).env_clear().env("HOME", &home.folder);
    for (name, value) in server["env"].as_object().unwrap() {
        command.env(name, value.as_str().unwrap());
    }
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}}}"#).unwrap();
    let head = one_request(&listener).to_lowercase();
    child.kill().unwrap();
    child.wait().unwrap();
    for expected in ["post /mcp ", "authorization: bearer s3cr3t-0123456789\r\n", "x-team: blue\r\n"] {
        assert!(head.contains(expected), "{expected} in {head}");
    }
}

/// An error about a header names its missing variable.
#[test]
fn a_header_without_its_variable_is_refused() {
    let home = ImportTestHome::new("unset");
    let wrap = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("wrap").args(arguments).current_dir(&home.folder).env_clear().env("HOME", &home.folder);
        run_command(command.stdin(Stdio::null()))
    };
    for (arguments, expected) in [
        (
            &["--url", "http://127.0.0.1:9", "--header-env", "X=GONE"][..],
            "`--header-env X=GONE`: GONE is not set",
        ),
        (&["--url", "http://127.0.0.1:9", "--header-env", "X"], "write NAME=VARIABLE"),
        (&["--url-env", "GONE"], "`--url-env GONE`: GONE is not set"),
        (&["--url-env", "GONE", "--url", "http://x"], "cannot be used with"),
        (&["--header-env", "X=GONE", "--", "npx"], "required"),
    ] {
        let ImportRun { code, err, .. } = wrap(arguments);
        assert!(code == 2 && err.contains(expected), "{arguments:?}: {err}");
    }
}

/// The command that is written is valid for the program that it names.
#[test]
fn the_command_that_is_written_starts_the_server() {
    let home = ImportTestHome::new("starts");
    home.write(
        "project/.mcp.json",
        r#"{"mcpServers": {"-odd name": {"command": "touch", "args": ["--", "was here"]}}}"#,
    );
    home.good(&["--write"]);
    let written: serde_json::Value = serde_json::from_str(&home.read("project/.mcp.json")).unwrap();
    let server = &written["mcpServers"]["-odd name"];
    let mut command = Command::new(server["command"].as_str().unwrap());
    command.args(server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()));
    command.current_dir(&home.folder).env_clear().env("HOME", &home.folder).env("PATH", "/usr/bin:/bin");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{}}}}"#).unwrap();
    // It is not a server. The error response arrives after it was started and has ended.
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    drop(input);
    child.wait().unwrap();
    assert!(home.path("was here").exists(), "{answer}");
}
