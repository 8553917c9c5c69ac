//! Where clients keep their servers.
//!
//! Everything comes from variables and the current folder, and the places of every system are looked at on every
//! system: what is not there is passed over. Sources: the documentation of each client, and for Claude Desktop on
//! Windows, whose package has a folder of its own, anthropics/claude-code#25579.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::servers::{Form, OPENCLAW, Way};

/// A client that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Client {
    ClaudeCode,
    ClaudeDesktop,
    Cursor,
    #[value(name = "vscode")]
    VsCode,
    Codex,
    #[value(name = "openclaw")]
    OpenClaw,
}

impl Client {
    /// What it calls itself.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::Cursor => "Cursor",
            Self::VsCode => "VS Code",
            Self::Codex => "Codex",
            Self::OpenClaw => "OpenClaw",
        }
    }

    /// What it is called on the command line.
    pub(super) fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn form(self) -> Form {
        match self {
            Self::Codex => Form::Toml,
            Self::ClaudeCode | Self::ClaudeDesktop | Self::Cursor | Self::VsCode | Self::OpenClaw => {
                Form::Json
            }
        }
    }

    fn ways(self) -> &'static [Way] {
        match self {
            Self::ClaudeCode => &[&["mcpServers"], &["projects", "*", "mcpServers"]],
            Self::ClaudeDesktop | Self::Cursor => &[&["mcpServers"]],
            Self::VsCode => &[&["servers"]],
            Self::Codex => &[&["mcp_servers"]],
            Self::OpenClaw => &[OPENCLAW],
        }
    }
}

/// A file that may have servers in it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Whose it is, if it is one of those that we know.
    pub(super) client: Option<Client>,
    pub(super) path: PathBuf,
    pub(super) form: Form,
    pub(super) ways: &'static [Way],
    pub(super) reader: Reader,
}

/// Who reads a file, and so how this program is named in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// A client that is started from a terminal and finds programs as the shell does.
    Terminal,
    /// A client that is started from a desktop or as a service, where the search path is another one. A name that is
    /// not found there would take the servers away from the person.
    Desktop,
    /// Whoever works on the project, on machines where this program is somewhere else.
    Project,
}

/// Every place of every client, whether there is a file or not.
pub(super) fn known() -> Vec<Place> {
    let here = PathBuf::new();
    let home = folder("HOME").or_else(|| folder("USERPROFILE"));
    let in_home = |path: &str| home.as_ref().map(|home| home.join(path));
    let settings: Vec<PathBuf> = [
        folder("XDG_CONFIG_HOME").or_else(|| in_home(".config")),
        in_home("Library/Application Support"),
        folder("APPDATA"),
    ]
    .into_iter()
    .flatten()
    .collect();

    let mut places = Vec::new();
    let mut add = |client: Client, reader: Reader, path: PathBuf| {
        places.push(Place { client: Some(client), path, form: client.form(), ways: client.ways(), reader });
    };
    use Client::{ClaudeCode, ClaudeDesktop, Codex, Cursor, OpenClaw, VsCode};
    use Reader::{Desktop, Project, Terminal};
    for folder in folder("CLAUDE_CONFIG_DIR").into_iter().chain(home.clone()) {
        add(ClaudeCode, Terminal, folder.join(".claude.json"));
    }
    add(ClaudeCode, Project, here.join(".mcp.json"));
    let packages = folder("LOCALAPPDATA").map(|folder| folder.join("Packages"));
    let packaged = packages.map(|folder| within(&folder, "Claude_")).unwrap_or_default();
    let packaged = packaged.into_iter().map(|folder| folder.join("LocalCache").join("Roaming"));
    for folder in settings.iter().cloned().chain(packaged) {
        add(ClaudeDesktop, Desktop, folder.join("Claude").join("claude_desktop_config.json"));
    }
    if let Some(path) = in_home(".cursor/mcp.json") {
        add(Cursor, Desktop, path);
    }
    add(Cursor, Project, here.join(".cursor").join("mcp.json"));
    let editions = ["Code", "Code - Insiders", "VSCodium"];
    let users = settings.iter().flat_map(|folder| editions.map(|edition| folder.join(edition).join("User")));
    for user in users.chain(in_home(".vscode-server/data/User")) {
        for profile in within(&user.join("profiles"), "") {
            add(VsCode, Desktop, profile.join("mcp.json"));
        }
        add(VsCode, Desktop, user.join("mcp.json"));
    }
    add(VsCode, Project, here.join(".vscode").join("mcp.json"));
    if let Some(folder) = folder("CODEX_HOME").or_else(|| in_home(".codex")) {
        add(Codex, Terminal, folder.join("config.toml"));
    }
    add(Codex, Project, here.join(".codex").join("config.toml"));
    let state = folder("OPENCLAW_STATE_DIR")
        .or_else(|| folder("OPENCLAW_HOME").map(|home| home.join(".openclaw")))
        .or_else(|| in_home(".openclaw"));
    let openclaw = folder("OPENCLAW_CONFIG_PATH").or_else(|| state.map(|state| state.join("openclaw.json")));
    if let Some(path) = openclaw {
        add(OpenClaw, Desktop, path);
    }
    places
}

/// A file that was named: as that client's, or as that of whoever has it, or by what is in it.
pub(super) fn named(path: &Path, client: Option<Client>) -> Place {
    let same = |place: &Place| {
        fs::canonicalize(&place.path)
            .ok()
            .is_some_and(|known| fs::canonicalize(path).is_ok_and(|own| own == known))
    };
    let known = known().into_iter().find(same);
    let reader = known.as_ref().map_or(Reader::Desktop, |place| place.reader);
    let client = client.or_else(|| known.and_then(|place| place.client));
    let is_toml = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
    let (form, ways) = match client {
        Some(client) => (client.form(), client.ways()),
        None if is_toml => (Form::Toml, Client::Codex.ways()),
        None => (Form::Json, ANY),
    };
    Place { client, path: path.to_owned(), form, ways, reader }
}

const ANY: &[Way] = &[&["mcpServers"], &["projects", "*", "mcpServers"], &["servers"], OPENCLAW];

/// The folder that a variable names.
fn folder(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folders in a folder whose names begin so, in order; a hundred at most.
fn within(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let named = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut found: Vec<_> = named.map(|entry| entry.path()).take(100).collect();
    found.sort();
    found
}
