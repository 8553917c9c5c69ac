//! Locations of the configuration files of MCP clients.
//!
//! All paths come from variables and the current folder. The locations of every operating system are checked on every
//! system, and missing files are skipped. Sources: the documentation of each client, and anthropics/claude-code#25579
//! for Claude Desktop on Windows, whose package has a folder of its own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::servers::{ConfigFormat, OPENCLAW, TablePath};

/// A known MCP client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ClientProgram {
    ClaudeCode,
    ClaudeDesktop,
    Cursor,
    #[value(name = "vscode")]
    VsCode,
    Codex,
    #[value(name = "openclaw")]
    OpenClaw,
}

impl ClientProgram {
    /// Returns the name that the client uses for itself.
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

    /// Returns its name on the command line.
    pub(super) fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn form(self) -> ConfigFormat {
        match self {
            Self::Codex => ConfigFormat::Toml,
            Self::ClaudeCode | Self::ClaudeDesktop | Self::Cursor | Self::VsCode | Self::OpenClaw => {
                ConfigFormat::Json
            }
        }
    }

    fn table_paths(self) -> &'static [TablePath] {
        match self {
            Self::ClaudeCode => &[&["mcpServers"], &["projects", "*", "mcpServers"]],
            Self::ClaudeDesktop | Self::Cursor => &[&["mcpServers"]],
            Self::VsCode => &[&["servers"]],
            Self::Codex => &[&["mcp_servers"]],
            Self::OpenClaw => &[OPENCLAW],
        }
    }
}

/// A file that may contain servers.
#[derive(Clone, Debug)]
pub(super) struct ClientFile {
    /// Client that owns the file, if it is a known one.
    pub(super) client: Option<ClientProgram>,
    pub(super) path: PathBuf,
    pub(super) form: ConfigFormat,
    pub(super) table_paths: &'static [TablePath],
    pub(super) reader: FileAudience,
}

/// Reader of a file. It decides how this program is named in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileAudience {
    /// A client that is started from a terminal and finds programs as the shell does.
    Terminal,
    /// A client that is started from a desktop or as a service, with a different search path. With a name that is not
    /// found there, the user would lose the servers.
    Desktop,
    /// Other users of the project, on machines where this program is in another place.
    Project,
}

/// Returns every location of every client, even if there is no file.
pub(super) fn known() -> Vec<ClientFile> {
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
    let mut add = |client: ClientProgram, reader: FileAudience, path: PathBuf| {
        places.push(ClientFile {
            client: Some(client),
            path,
            form: client.form(),
            table_paths: client.table_paths(),
            reader,
        });
    };
    use ClientProgram::{ClaudeCode, ClaudeDesktop, Codex, Cursor, OpenClaw, VsCode};
    use FileAudience::{Desktop, Project, Terminal};
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

/// Returns the location of a file that was named. The given client, the client whose file it is, or the contents
/// decide its format.
pub(super) fn named(path: &Path, client: Option<ClientProgram>) -> ClientFile {
    let same = |place: &ClientFile| {
        fs::canonicalize(&place.path)
            .ok()
            .is_some_and(|known| fs::canonicalize(path).is_ok_and(|own| own == known))
    };
    let known = known().into_iter().find(same);
    let reader = known.as_ref().map_or(FileAudience::Desktop, |place| place.reader);
    let client = client.or_else(|| known.and_then(|place| place.client));
    let is_toml = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
    let (form, table_paths) = match client {
        Some(client) => (client.form(), client.table_paths()),
        None if is_toml => (ConfigFormat::Toml, ClientProgram::Codex.table_paths()),
        None => (ConfigFormat::Json, ANY),
    };
    ClientFile { client, path: path.to_owned(), form, table_paths, reader }
}

const ANY: &[TablePath] = &[&["mcpServers"], &["projects", "*", "mcpServers"], &["servers"], OPENCLAW];

/// Returns the folder that a variable names.
fn folder(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the folders in a folder with this prefix, in order; at most a hundred.
fn within(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let named = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut found: Vec<_> = named.map(|entry| entry.path()).take(100).collect();
    found.sort();
    found
}
