//! `steadfast import`: puts every MCP server of the clients on this machine behind Steadfast, or restores it.
//!
//! | file | responsibility |
//! | --- | --- |
//! | `client_files` | locations of the files of clients |
//! | `json`, `toml`, `tree` | contents of such a file with byte positions |
//! | `servers` | decision about each server, and the new text |
//! | `names` | names of servers behind Steadfast |
//! | `files` | safe replacement of files |
//! | `report` | output as text and JSON |
//!
//! A file that cannot be used never stops the others from being handled.

mod client_files;
mod files;
mod json;
mod names;
mod report;
mod servers;
mod toml;
mod tree;

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use steadfast_json::TextPosition;

use self::client_files::{ClientFile, ClientProgram, FileAudience};
use self::files::{Backup, FileError, OriginalFile};
use self::names::ServerNames;
use self::servers::{ImportRequest, ImportedServer, ProgramLocation, ServerVerdict, rewrite};
use crate::support::failure::CommandFailure;
use crate::support::output;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Write the changes. Without it they are only shown.
    #[arg(long)]
    write: bool,
    /// Remove from the configurations what an import added, and leave everything else unchanged. Without --write, only
    /// show what would be removed.
    #[arg(long)]
    undo: bool,
    /// A server with a URL that needs no sign-in. May be given more than once. Without credentials in the file, a
    /// remote server is not changed, because only its client can sign in to it.
    #[arg(long = "without-sign-in", value_name = "NAME", conflicts_with = "undo")]
    without_sign_in: Vec<String>,
    /// Only this client. May be given more than once.
    #[arg(long = "client", value_name = "NAME", value_enum)]
    clients: Vec<ClientProgram>,
    /// Only this file, in any location. May be given more than once.
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Action of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportAction {
    ShowImport,
    Import,
    ShowUndo,
    Undo,
}

impl ImportAction {
    fn is_undo(self) -> bool {
        match self {
            Self::ShowUndo | Self::Undo => true,
            Self::ShowImport | Self::Import => false,
        }
    }

    fn writes(self) -> bool {
        match self {
            Self::Import | Self::Undo => true,
            Self::ShowImport | Self::ShowUndo => false,
        }
    }
}

/// Result for a file.
struct HandledFile {
    client: Option<ClientProgram>,
    reader: FileAudience,
    path: PathBuf,
    outcome: Result<FileRewrite, String>,
}

/// Servers of a file, and the changes.
struct FileRewrite {
    servers: Vec<ImportedServer>,
    backup: Backup,
}

/// Runs `steadfast import`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let action = match (options.write, options.undo) {
        (false, false) => ImportAction::ShowImport,
        (true, false) => ImportAction::Import,
        (false, true) => ImportAction::ShowUndo,
        (true, true) => ImportAction::Undo,
    };
    let program = SteadfastProgram::find()?;
    let places = places(options)?;
    let mut names = names(&places);
    let mut visited = BTreeSet::new();
    let mut handled = Vec::new();
    for place in &places {
        let request = || match action {
            ImportAction::ShowImport | ImportAction::Import => ImportRequest::Wrap {
                program: program.program_for(place.reader),
                without_sign_in: options.without_sign_in.clone(),
            },
            ImportAction::ShowUndo | ImportAction::Undo => ImportRequest::Unwrap,
        };
        let outcome = match files::read(&place.path) {
            Ok(None) => continue,
            // Two clients, or the home and the current folder, may share one file.
            Ok(Some(original)) if !visited.insert(original.real().to_owned()) => continue,
            Ok(Some(original)) => handle(place, &original, action, &request(), &mut names),
            Err(FileError(reason)) => Err(reason),
        };
        handled.push(HandledFile {
            client: place.client,
            reader: place.reader,
            path: place.path.clone(),
            outcome,
        });
    }
    let back = again(&Options { without_sign_in: Vec::new(), ..options.clone() }, &program);
    let import_report =
        report::ImportReport { action, handled, again: again(options, &program), back, looked: &places };
    let failed = import_report.handled.iter().any(|file| file.outcome.is_err());
    if options.json {
        output::print_json(&import_report.to_json());
    } else {
        import_report.print();
    }
    if failed { Err(CommandFailure::Environment(String::new()).without_message()) } else { Ok(()) }
}

fn places(options: &Options) -> Result<Vec<ClientFile>, CommandFailure> {
    if options.files.is_empty() {
        let is_selected = |place: &ClientFile| {
            options.clients.is_empty() || place.client.is_some_and(|client| options.clients.contains(&client))
        };
        return Ok(client_files::known().into_iter().filter(is_selected).collect());
    }
    let client = match options.clients.as_slice() {
        [] => None,
        [client] => Some(*client),
        _ => {
            return Err(CommandFailure::Usage(
                "a file belongs to one client: give --client once with --file".to_owned(),
            ));
        }
    };
    let named = |path: &PathBuf| match path.exists() {
        true => Ok(client_files::named(path, client)),
        false => Err(CommandFailure::Usage(format!("{} does not exist", path.display()))),
    };
    options.files.iter().map(named).collect()
}

/// Returns the names in use: in the handled files, and in those of all clients.
fn names(handled: &[ClientFile]) -> ServerNames {
    let mut names = ServerNames::default();
    let known = client_files::known();
    for place in handled.iter().chain(&known) {
        if let Ok(Some(original)) = files::read(&place.path) {
            for (name, runs) in servers::named(&original.text, place.form, place.table_paths) {
                names.note(name, runs);
            }
        }
    }
    names
}

fn handle(
    place: &ClientFile,
    original: &OriginalFile,
    action: ImportAction,
    request: &ImportRequest,
    names: &mut ServerNames,
) -> Result<FileRewrite, String> {
    let rewritten = rewrite(&original.text, place.form, place.table_paths, request, names);
    let (servers, new) = rewritten.map_err(|mistake| {
        let TextPosition { line, column } = mistake.position(&original.text);
        format!(
            "line {line}, column {column}: {}; it was not changed: correct it there and run this again",
            mistake.message
        )
    })?;
    let changes = servers.iter().any(|server| matches!(server.verdict, ServerVerdict::Change { .. }));
    let backup = match action {
        ImportAction::Import if changes => original.replace_with_backup(&new),
        ImportAction::Undo if changes => original.replace_and_drop_backup(&new),
        ImportAction::ShowImport | ImportAction::Import | ImportAction::ShowUndo | ImportAction::Undo => {
            Ok(Backup::None)
        }
    };
    backup.map(|backup| FileRewrite { servers, backup }).map_err(|FileError(reason)| reason)
}

/// State of the servers of a client.
pub(crate) struct ClientSurvey {
    pub(crate) client: &'static str,
    pub(crate) path: PathBuf,
    /// Number of servers that bypass Steadfast and number behind it, or the reason why they are not known.
    pub(crate) servers: Result<(usize, usize), String>,
}

/// Inspects the clients on this machine. Changes nothing.
pub(crate) fn survey() -> Vec<ClientSurvey> {
    let Ok(program) = SteadfastProgram::find() else { return Vec::new() };
    let mut visited = BTreeSet::new();
    let mut surveyed = Vec::new();
    for place in client_files::known() {
        let outcome = match files::read(&place.path) {
            Ok(None) => continue,
            Ok(Some(original)) if !visited.insert(original.real().to_owned()) => continue,
            Ok(Some(original)) => {
                let program = program.program_for(place.reader);
                let request = ImportRequest::Wrap { program, without_sign_in: Vec::new() };
                handle(&place, &original, ImportAction::ShowImport, &request, &mut ServerNames::default())
            }
            Err(FileError(reason)) => Err(reason),
        };
        let count = |done: FileRewrite| {
            let wrapped = done
                .servers
                .iter()
                .filter(|server| matches!(server.verdict, ServerVerdict::AlreadyDone))
                .count();
            (done.servers.len() - wrapped, wrapped)
        };
        // Many programs have such a file without a server in it.
        let servers = outcome.map(count);
        if servers != Ok((0, 0)) {
            let client = place.client.map_or("client", ClientProgram::title);
            surveyed.push(ClientSurvey { client, path: place.path, servers });
        }
    }
    surveyed
}

/// This program, as other programs can start it.
pub(crate) struct SteadfastProgram {
    pub(crate) path: String,
    /// True if its name alone leads to it.
    pub(crate) in_path: bool,
}

impl SteadfastProgram {
    pub(crate) fn find() -> Result<Self, CommandFailure> {
        let cannot = |reason: String| {
            CommandFailure::Environment(format!("this program cannot determine its own path: {reason}"))
        };
        let own = env::current_exe().map_err(|error| cannot(error.to_string()))?;
        let search = env::var_os("PATH").unwrap_or_default();
        let mut named =
            env::split_paths(&search).map(|folder| folder.join(NAME)).filter(|path| path.is_file());
        // The first match counts. It may be a link, which survives an update that its target does not.
        let found = named.next().filter(|path| path.is_absolute() && is_same(path, &own));
        let in_path = found.is_some();
        let path = found.unwrap_or(own).into_os_string().into_string();
        let path = path.map_err(|path| cannot(format!("{} is not UTF-8", path.display())))?;
        Ok(Self { path, in_path })
    }

    fn program_for(&self, reader: FileAudience) -> ProgramLocation {
        let name = match reader {
            FileAudience::Terminal | FileAudience::Project => self.in_path.then(|| "steadfast".to_owned()),
            FileAudience::Desktop => None,
        };
        ProgramLocation { path: self.path.clone(), name }
    }
}

#[cfg(windows)]
const NAME: &str = "steadfast.exe";
#[cfg(not(windows))]
const NAME: &str = "steadfast";

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns the next command line to type, without its final arguments.
fn again(options: &Options, program: &SteadfastProgram) -> String {
    let mut words = vec![if program.in_path { "steadfast".to_owned() } else { program.path.clone() }];
    words.push("import".to_owned());
    words.extend(options.clients.iter().map(|client| format!("--client {}", client.word())));
    words.extend(
        options.files.iter().map(|file| format!("--file {}", report::shown(&file.to_string_lossy()))),
    );
    words.extend(
        options.without_sign_in.iter().map(|name| format!("--without-sign-in {}", report::shown(name))),
    );
    words.join(" ")
}
