//! Output of an import. All text from files is redacted.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::client_files::{ClientFile, ClientProgram, FileAudience};
use super::files::Backup;
use super::servers::{ImportedServer, ServerVerdict};
use super::{FileRewrite, HandledFile, ImportAction};
use crate::support::output;

pub(super) struct ImportReport<'p> {
    pub(super) action: ImportAction,
    pub(super) handled: Vec<HandledFile>,
    /// Next command line to type, without its final arguments.
    pub(super) again: String,
    /// Command line that undoes it, without its final arguments.
    pub(super) back: String,
    /// Every location that was checked.
    pub(super) looked: &'p [ClientFile],
}

impl ImportReport<'_> {
    /// Prints the result as text: results to standard output, problems to standard error.
    pub(super) fn print(&self) {
        let mut text = String::new();
        for file in &self.handled {
            match &file.outcome {
                Ok(done) => text.push_str(&self.file(file, done)),
                Err(reason) => {
                    output::print_message(&format!("error: {}: {}", file.path.display(), visible(reason)))
                }
            }
        }
        if self.handled.is_empty() {
            text.push_str("no configuration of a known client was found; checked:\n");
            for place in self.looked {
                let _ = writeln!(text, "  {}", place.path.display());
            }
            text.push_str("name another file with --file PATH\n");
        } else {
            text.push_str(&self.end());
        }
        output::print_data(&text);
    }

    fn file(&self, file: &HandledFile, done: &FileRewrite) -> String {
        let client = file.client.map_or("", ClientProgram::title);
        let mut text =
            format!("{client}{}{}\n", if client.is_empty() { "" } else { "  " }, file.path.display());
        for server in self.shown_servers(done) {
            let name = visible(&steadfast_redact::excerpt(&server.name, 80));
            let within =
                server.within.as_ref().map(|within| format!(" (in {})", visible(within))).unwrap_or_default();
            let _ = match &server.verdict {
                ServerVerdict::Change { now, becomes } => {
                    writeln!(text, "  {name}{within}\n    - {}\n    + {}", line(now), line(becomes))
                }
                ServerVerdict::AlreadyDone => {
                    writeln!(text, "  {name}{within}: already goes through steadfast")
                }
                ServerVerdict::Left(reason) => {
                    writeln!(text, "  {name}{within}: not changed: {}", visible(reason))
                }
            };
            for note in &server.notes {
                let _ = writeln!(text, "    note: {}", visible(note));
            }
        }
        if self.shown_servers(done).next().is_none() {
            text.push_str(match self.action.is_undo() {
                false => "  no servers\n",
                true => "  it contains nothing from steadfast\n",
            });
        }
        let _ = match &done.backup {
            Backup::Created(path) => writeln!(text, "  written; backup: {}", path.display()),
            Backup::Kept(path) => {
                writeln!(text, "  written; backup from before the first import: {}", path.display())
            }
            Backup::Removed(path) => {
                writeln!(
                    text,
                    "  written; the original is restored, so the backup {} was removed",
                    path.display()
                )
            }
            Backup::None if self.action == ImportAction::Undo && done.changes() > 0 => {
                writeln!(text, "  written")
            }
            Backup::None => Ok(()),
        };
        if file.reader == FileAudience::Project && !self.action.is_undo() && done.changes() > 0 {
            text.push_str("  note: it belongs to the project: all users of the project need steadfast too\n");
        }
        text.push('\n');
        text
    }

    /// For an undo, servers that were never imported are not listed.
    fn shown_servers<'d>(&self, done: &'d FileRewrite) -> impl Iterator<Item = &'d ImportedServer> {
        let undo = self.action.is_undo();
        done.servers.iter().filter(move |server| !(undo && server.verdict == ServerVerdict::AlreadyDone))
    }

    fn end(&self) -> String {
        let done: Vec<_> =
            self.handled.iter().filter_map(|file| Some((file, file.outcome.as_ref().ok()?))).collect();
        let servers: usize = done.iter().map(|(_, done)| done.changes()).sum();
        let changed: Vec<_> = done.iter().filter(|(_, done)| done.changes() > 0).collect();
        let clients: BTreeSet<_> = changed.iter().filter_map(|(file, _)| file.client).collect();
        let clients: Vec<_> = clients.into_iter().map(ClientProgram::title).collect();
        let restart = if clients.is_empty() { "its client".to_owned() } else { clients.join(", ") };
        let counted = format!("{} in {}", many(servers, "server"), many(changed.len(), "file"));
        let again = &self.again;
        match self.action {
            ImportAction::ShowImport | ImportAction::Import if servers == 0 => {
                "nothing to change\n".to_owned()
            }
            ImportAction::ShowImport => {
                format!(
                    "{counted} would go through steadfast; nothing was written\nto do it: {again} --write\n"
                )
            }
            ImportAction::Import => format!(
                "{counted} now go through steadfast; restart: {restart}\nto undo: {} --undo --write\n",
                self.back
            ),
            ImportAction::ShowUndo | ImportAction::Undo if servers == 0 => "nothing to undo\n".to_owned(),
            ImportAction::ShowUndo => format!(
                "{counted} would no longer go through steadfast; nothing was written\nto do it: {again} --undo --write\n"
            ),
            ImportAction::Undo => format!("{counted} no longer go through steadfast; restart: {restart}\n"),
        }
    }

    /// Returns the result as JSON.
    pub(super) fn to_json(&self) -> Json {
        json!({
            "ok": self.handled.iter().all(|file| file.outcome.is_ok()),
            "written": self.action.writes(),
            "files": self.handled.iter().map(file_json).collect::<Vec<_>>(),
        })
    }
}

impl FileRewrite {
    fn changes(&self) -> usize {
        self.servers.iter().filter(|server| matches!(server.verdict, ServerVerdict::Change { .. })).count()
    }
}

fn file_json(file: &HandledFile) -> Json {
    let done = file.outcome.as_ref().ok();
    let backup = done.and_then(|done| match &done.backup {
        Backup::Created(path) | Backup::Kept(path) => Some(path.display().to_string()),
        Backup::Removed(_) | Backup::None => None,
    });
    json!({
        "client": file.client.map(ClientProgram::word),
        "file": file.path.display().to_string(),
        "changes": done.map_or(0, FileRewrite::changes),
        "backup": backup,
        "error": file.outcome.as_ref().err(),
        "servers": done.map(|done| done.servers.iter().map(server_json).collect::<Vec<_>>()).unwrap_or_default(),
    })
}

fn server_json(server: &ImportedServer) -> Json {
    let (state, now, becomes, reason) = match &server.verdict {
        ServerVerdict::Change { now, becomes } => ("change", Some(line(now)), Some(line(becomes)), None),
        ServerVerdict::AlreadyDone => ("as_wished", None, None, None),
        ServerVerdict::Left(reason) => ("left", None, None, Some(reason)),
    };
    json!({
        "name": steadfast_redact::text(&server.name),
        "within": server.within,
        "state": state,
        "now": now,
        "becomes": becomes,
        "reason": reason,
        "notes": server.notes,
    })
}

/// Formats a command line without its secrets.
fn line(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| shown(word)).collect();
    visible(&steadfast_redact::excerpt(&words.join(" "), MOST_OF_A_LINE))
}

const MOST_OF_A_LINE: usize = 1000;

/// Formats a word as it would be typed.
pub(super) fn shown(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@=,+%~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Removes characters that control a terminal, because a file of a project may have any author.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn many(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
