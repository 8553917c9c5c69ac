//! Names for servers without a configured one.

use std::env;
use std::ffi::OsStr;
use std::path::Path;

use steadfast_core::id::{Digest, Namespace};
use steadfast_process::{ALLOWED, Launch};

/// Returns a name for a server without a configured one: its program, and a digest of its command, folder and
/// environment. Two accounts of one server differ in their environment only.
#[expect(clippy::expect_used, reason = "letters, digits and a hyphen")]
pub fn namespace_of(launch: &Launch) -> Namespace {
    let mut parts = Vec::new();
    let mut part = |bytes: &[u8]| {
        parts.extend_from_slice(&bytes.len().to_be_bytes());
        parts.extend_from_slice(bytes);
    };
    part(launch.program.as_encoded_bytes());
    for argument in &launch.args {
        part(argument.as_encoded_bytes());
    }
    part(b"\n");
    let folder = launch.folder.clone().or_else(|| env::current_dir().ok()).unwrap_or_default();
    part(folder.as_os_str().as_encoded_bytes());
    for (name, value) in launch.environment.iter().filter(|(name, _)| !is_passing(name)) {
        part(name.as_encoded_bytes());
        part(value.as_encoded_bytes());
    }
    let digest = Digest::of(&parts).fingerprint();
    let program = Path::new(&launch.program).file_stem().unwrap_or_default().to_string_lossy();
    Namespace::new(format!("{}-{digest}", plain(&program))).expect("it is short and printable")
}

/// Returns a name for a server at a URL. Only the host appears in clear, since the rest of the URL may contain a
/// secret.
#[expect(clippy::expect_used, reason = "letters, digits and a hyphen")]
pub fn namespace_of_url(url: &str) -> Namespace {
    let host = url.split("://").nth(1).unwrap_or_default();
    let host = host.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default().split(':').next().unwrap_or_default();
    Namespace::new(format!("{}-{}", plain(host), Digest::of(url.as_bytes()).fingerprint()))
        .expect("it is short and printable")
}

/// Returns the characters of a text that are valid in a name. Names in the configuration begin with a letter.
fn plain(text: &str) -> String {
    let text: String =
        text.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(40).collect();
    if text.starts_with(|c: char| c.is_ascii_alphabetic()) { text } else { format!("at-{text}") }
}

/// Returns true if a variable belongs to the terminal, shell or session of the parent and not to the server. The server
/// keeps its name across terminals, so that a repeated call is recognized as a duplicate.
fn is_passing(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == *pattern,
    };
    ALLOWED.iter().chain(VARYING_VARIABLES).any(is)
}

/// Variables that differ between terminals, sessions or starts. A trailing `*` matches any suffix.
const VARYING_VARIABLES: &[&str] = &[
    "_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "COLUMNS",
    "LINES",
    "COLORTERM",
    "COLORFGBG",
    "NO_COLOR",
    "FORCE_COLOR",
    "WINDOWID",
    "TERM_*",
    "TMUX*",
    "STY",
    "ITERM_*",
    "KITTY_*",
    "WEZTERM_*",
    "ALACRITTY_*",
    "GHOSTTY_*",
    "VTE_VERSION",
    "WT_SESSION",
    "KONSOLE_*",
    "SSH_*",
    "GPG_TTY",
    "GPG_AGENT_INFO",
    "DBUS_SESSION_BUS_ADDRESS",
    "SESSION_MANAGER",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID",
    "DESKTOP_STARTUP_ID",
    "GIO_*",
    "VSCODE_*",
    "CURSOR_*",
    "ELECTRON_*",
    "CLAUDE_CODE_*",
    "CLAUDECODE",
    "AI_AGENT",
    "STEADFAST_*",
    "npm_lifecycle_*",
    "npm_package_*",
    "INIT_CWD",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::path::PathBuf;

    use steadfast_process::{Environment, StopTimeouts};

    use super::*;

    fn launch(program: &str, args: &[&str], environment: &[(&str, &str)]) -> Launch {
        let own = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Launch {
            program: program.into(),
            args: args.iter().map(OsString::from).collect(),
            folder: Some(PathBuf::from("/work")),
            environment: Environment::inherited_and(own, &BTreeMap::new()),
            patience: StopTimeouts::default(),
        }
    }

    #[test]
    fn a_server_is_the_same_from_any_terminal_and_another_with_other_credentials() {
        let name = |launch: &Launch| namespace_of(launch).as_str().to_owned();
        let first = launch(
            "/usr/bin/bank-mcp",
            &["--flag"],
            &[("BANK_TOKEN", "a"), ("PATH", "/bin"), ("SHLVL", "1")],
        );
        assert!(name(&first).starts_with("bank-mcp-"), "{}", name(&first));
        let again = launch(
            "/usr/bin/bank-mcp",
            &["--flag"],
            &[
                ("BANK_TOKEN", "a"),
                ("PATH", "/opt/bin"),
                ("TERM_PROGRAM", "x"),
                ("CLAUDE_CODE_SESSION_ID", "s"),
            ],
        );
        assert_eq!(name(&first), name(&again));
        for other in [
            launch("/usr/bin/bank-mcp", &["--flag"], &[("BANK_TOKEN", "b")]),
            launch("/usr/bin/bank-mcp", &["--flag"], &[("BANK_TOKEN", "a"), ("ACCOUNT", "b")]),
            launch("/usr/bin/bank-mcp", &["--fl", "ag"], &[("BANK_TOKEN", "a")]),
            launch("/usr/bin/bank-mcp", &[], &[("BANK_TOKEN", "a")]),
            launch("/opt/bin/bank-mcp", &["--flag"], &[("BANK_TOKEN", "a")]),
            Launch { folder: Some(PathBuf::from("/elsewhere")), ..first.clone() },
        ] {
            assert_ne!(name(&first), name(&other), "{other:?}");
        }
    }

    #[test]
    fn a_program_and_a_url_of_any_name_have_a_name_that_can_be_written() {
        let letter = |name: &Namespace| name.as_str().starts_with(|c: char| c.is_ascii_alphabetic());
        for program in ["/", "", "漢字", "7z", "a b/c d", &"x".repeat(500)] {
            assert!(letter(&namespace_of(&launch(program, &[], &[]))), "{program}");
        }
        for url in ["", "http://127.0.0.1:80/mcp", "http://[::1]:80/mcp", "https://bank.example/mcp"] {
            assert!(letter(&namespace_of_url(url)), "{url}");
        }
    }
}
