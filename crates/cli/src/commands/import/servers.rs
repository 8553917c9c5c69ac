//! Decides how each server in a configuration is rewritten.
//!
//! `{"command": C, "args": [A…]}` becomes `{"command": steadfast, "args": ["wrap", "--imported", "--name", NAME, "--",
//! C, A…]}`, and back. Servers with a URL are in `remote`. Both directions are splices into the text, so that
//! everything else stays byte for byte, and added text can be removed from a file that was edited since. The command
//! keeps its own spelling.
//!
//! `--imported` marks what was added. A server that was wrapped manually does not have it, and is never unwrapped.

mod remote;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use serde_json::Value as Json;
use steadfast::call::id::Namespace;

use self::remote::{DefaultTransport, UrlServer};
use super::names::ServerNames;
use super::tree::{SpannedNode, SyntaxError, TableMember, member};
use super::{json, toml};

/// Format of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfigFormat {
    Json,
    Toml,
}

impl ConfigFormat {
    pub(super) fn read(self, text: &str) -> Result<SpannedNode, SyntaxError> {
        match self {
            Self::Json => json::read(text),
            Self::Toml => toml::read(text),
        }
    }
}

/// A path to a table of servers. `*` matches every name.
pub(super) type TablePath = &'static [&'static str];

/// Path of the servers in OpenClaw's file.
pub(super) const OPENCLAW: TablePath = &["mcp", "servers"];

/// Requested change.
#[derive(Clone, Debug)]
pub(super) enum ImportRequest {
    /// Put every server behind Steadfast.
    Wrap {
        /// Command with which clients start Steadfast.
        program: ProgramLocation,
        /// Servers with a URL that need no sign-in, although nothing in the file says so.
        without_sign_in: Vec<String>,
    },
    /// Restore every server that an import put behind Steadfast.
    Unwrap,
}

/// Command with which clients can start this program.
#[derive(Clone, Debug)]
pub(super) struct ProgramLocation {
    /// Its whole path.
    pub(super) path: String,
    /// Its name, if the client that reads the configuration finds it by name.
    pub(super) name: Option<String>,
}

/// A server in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImportedServer {
    pub(super) name: String,
    /// Project of the server, if a file has several.
    pub(super) within: Option<String>,
    pub(super) verdict: ServerVerdict,
    /// Further notes about the change.
    pub(super) notes: Vec<String>,
}

/// Decision about a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerVerdict {
    /// Its command line is changed.
    Change { now: Vec<String>, becomes: Vec<String> },
    /// It already is as requested.
    AlreadyDone,
    /// It is not changed, for this reason.
    Left(String),
}

/// Returns all servers of a text, and the rewritten text.
pub(super) fn rewrite(
    text: &str,
    form: ConfigFormat,
    table_paths: &[TablePath],
    request: &ImportRequest,
    names: &mut ServerNames,
) -> Result<(Vec<ImportedServer>, String), SyntaxError> {
    let root = form.read(text)?;
    let mut servers = Vec::new();
    let mut splices = Vec::new();
    for found in find(&root, text, table_paths)? {
        let ServerDecision { verdict, splices: own, notes } = found.judge(text, form, request, names)?;
        splices.extend(own);
        servers.push(ImportedServer {
            name: found.name.to_owned(),
            within: found.within.clone(),
            verdict,
            notes,
        });
    }
    let new = spliced(text, splices);
    check(&new, form, table_paths, &servers)?;
    Ok((servers, new))
}

/// Verifies the new text. An error in the splices ends here, before anything is written.
fn check(
    new: &str,
    form: ConfigFormat,
    table_paths: &[TablePath],
    servers: &[ImportedServer],
) -> Result<(), SyntaxError> {
    let wrong = |message: String| {
        SyntaxError::new(0, format!("it cannot be changed without breaking it ({message})"))
    };
    let root = form.read(new).map_err(|mistake| wrong(mistake.message))?;
    let found = find(&root, new, table_paths)?;
    if found.len() != servers.len() {
        return Err(wrong("servers would be lost".to_owned()));
    }
    for (found, server) in found.iter().zip(servers) {
        if let ServerVerdict::Change { becomes, .. } = &server.verdict
            && found.shape(form)?.ok().is_none_or(|shape| shape.line() != *becomes)
        {
            return Err(wrong(format!("server `{}`", server.name)));
        }
    }
    Ok(())
}

/// Returns the commands of the servers in a text that are behind Steadfast, by name.
pub(super) fn named(text: &str, form: ConfigFormat, table_paths: &[TablePath]) -> Vec<(String, Vec<String>)> {
    let Ok(root) = form.read(text) else { return Vec::new() };
    let Ok(found) = find(&root, text, table_paths) else { return Vec::new() };
    let of = |found: &FoundServer<'_>| match found.shape(form).ok()?.ok()? {
        ServerTransport::Command(parts) if is_steadfast(parts.program) => {
            Some((parts.name()?.to_owned(), parts.after_program()?))
        }
        ServerTransport::Command(_) | ServerTransport::Url(_) => None,
    };
    found.iter().filter_map(of).collect()
}

/// A server in a text.
struct FoundServer<'n> {
    name: &'n str,
    within: Option<String>,
    node: &'n SpannedNode,
    table_path: TablePath,
    /// True if it is within braces: always in JSON, and in TOML if it is an inline table.
    in_braces: bool,
}

fn find<'n>(
    root: &'n SpannedNode,
    text: &str,
    table_paths: &[TablePath],
) -> Result<Vec<FoundServer<'n>>, SyntaxError> {
    let mut found = Vec::new();
    for table_path in table_paths {
        descend(
            root,
            text,
            table_path,
            &SearchContext { table_path, project: None, in_braces: false },
            &mut found,
        )?;
    }
    Ok(found)
}

/// Context on the path to a server.
struct SearchContext {
    table_path: TablePath,
    project: Option<String>,
    in_braces: bool,
}

fn descend<'n>(
    node: &'n SpannedNode,
    text: &str,
    table_path: &[&str],
    within: &SearchContext,
    found: &mut Vec<FoundServer<'n>>,
) -> Result<(), SyntaxError> {
    let Some(members) = node.members() else {
        let message = format!("expected a table of names, found {}", node.describe());
        return Err(SyntaxError::new(node.span.start, message));
    };
    let in_braces = within.in_braces || opens_with_brace(node, text);
    match table_path.split_first() {
        Some((&"*", rest)) => {
            for one in members {
                let within = SearchContext {
                    table_path: within.table_path,
                    project: Some(one.name.clone()),
                    in_braces,
                };
                descend(&one.node, text, rest, &within, found)?;
            }
        }
        Some((name, rest)) => {
            if let Some(next) = member(members, name)? {
                let within = SearchContext {
                    table_path: within.table_path,
                    project: within.project.clone(),
                    in_braces,
                };
                descend(&next.node, text, rest, &within, found)?;
            }
        }
        None => {
            let mut names = BTreeSet::new();
            for one in members {
                if !names.insert(one.name.as_str()) {
                    return Err(SyntaxError::new(
                        one.name_span.start,
                        format!("`{}` occurs twice", one.name),
                    ));
                }
                let in_braces = in_braces || opens_with_brace(&one.node, text);
                let (table_path, within) = (within.table_path, within.project.clone());
                found.push(FoundServer { name: &one.name, within, node: &one.node, table_path, in_braces });
            }
        }
    }
    Ok(())
}

fn opens_with_brace(node: &SpannedNode, text: &str) -> bool {
    text.get(node.span.clone()).is_some_and(|own| own.starts_with('{'))
}

/// Command of a server on stdio.
struct StdioServer<'n> {
    members: &'n [TableMember],
    command: &'n TableMember,
    program: &'n str,
    args: Option<&'n TableMember>,
    items: &'n [SpannedNode],
    words: Vec<&'n str>,
}

/// Transport of a server.
enum ServerTransport<'n> {
    Command(StdioServer<'n>),
    Url(UrlServer<'n>),
}

impl ServerTransport<'_> {
    /// Returns its command or its URL.
    fn line(&self) -> Vec<String> {
        match self {
            Self::Command(parts) => parts.line(),
            Self::Url(remote) => remote.line(),
        }
    }
}

type Splice = (Range<usize>, String);

/// Decision about a server, with the changes of the text.
struct ServerDecision {
    verdict: ServerVerdict,
    splices: Vec<Splice>,
    notes: Vec<String>,
}

impl ServerDecision {
    fn unchanged(verdict: ServerVerdict) -> Self {
        Self { verdict, splices: Vec::new(), notes: Vec::new() }
    }
}

impl<'n> FoundServer<'n> {
    fn judge(
        &self,
        text: &str,
        form: ConfigFormat,
        request: &ImportRequest,
        names: &mut ServerNames,
    ) -> Result<ServerDecision, SyntaxError> {
        let left = |reason: String| Ok(ServerDecision::unchanged(ServerVerdict::Left(reason)));
        let already_done = || Ok(ServerDecision::unchanged(ServerVerdict::AlreadyDone));
        let shape = match (self.shape(form)?, request) {
            (Ok(shape), _) => shape,
            (Err(reason), ImportRequest::Wrap { .. }) => return left(reason),
            (Err(_), ImportRequest::Unwrap) => return already_done(),
        };
        let changed = match (&shape, request) {
            (ServerTransport::Url(_), ImportRequest::Unwrap) => return already_done(),
            (ServerTransport::Command(parts), ImportRequest::Wrap { .. }) if is_steadfast(parts.program) => {
                return already_done();
            }
            (ServerTransport::Command(parts), ImportRequest::Unwrap) if !is_steadfast(parts.program) => {
                return already_done();
            }
            (ServerTransport::Command(parts), ImportRequest::Unwrap) => self.unwrap(parts, text, form),
            (ServerTransport::Command(parts), ImportRequest::Wrap { program, .. }) => {
                self.named(names, &parts.line()).and_then(|name| self.wrap(parts, &name, program, text, form))
            }
            (ServerTransport::Url(remote), ImportRequest::Wrap { program, without_sign_in }) => {
                let may_be_open = without_sign_in.iter().any(|name| name == self.name);
                remote.may_be_wrapped(may_be_open).and_then(|()| {
                    let name = self.named(names, &[remote.address.to_owned()])?;
                    self.wrap_url(remote, &name, program, text, form)
                })
            }
        };
        match changed {
            Ok(ServerRewrite { becomes, splices, notes }) => Ok(ServerDecision {
                verdict: ServerVerdict::Change { now: shape.line(), becomes },
                splices,
                notes,
            }),
            Err(reason) => left(reason),
        }
    }

    /// Returns its name behind Steadfast: its own, unless a server that runs something else has that name.
    fn named(&self, names: &mut ServerNames, runs: &[String]) -> Result<String, String> {
        let name = names.take(self.name, runs);
        match Namespace::new(&name) {
            Ok(_) => Ok(name),
            Err(reason) => Err(format!("it is not a valid server name: {reason}")),
        }
    }

    /// Returns a note if the name behind Steadfast is a different one.
    fn renamed(&self, name: &str) -> Vec<String> {
        let note = || {
            format!(
                "its name with steadfast is `{name}`: another server called `{}` runs something else",
                self.name
            )
        };
        (name != self.name).then(note).into_iter().collect()
    }

    /// Returns its transport, or the reason why it is not known.
    fn shape(&self, form: ConfigFormat) -> Result<Result<ServerTransport<'n>, String>, SyntaxError> {
        let Some(members) = self.node.members() else {
            return Ok(Err(format!("it is {}, not a table", self.node.describe())));
        };
        if members.iter().any(|one| matches!(one.name.as_str(), "url" | "httpUrl" | "serverUrl")) {
            let default_transport = if self.table_path == OPENCLAW {
                DefaultTransport::Older
            } else {
                DefaultTransport::Streamable
            };
            return Ok(UrlServer::read(members, form, default_transport)?.map(ServerTransport::Url));
        }
        Ok(self.parts(members)?.map(ServerTransport::Command))
    }

    /// Returns its command, or the reason why it has none.
    fn parts(&self, members: &'n [TableMember]) -> Result<Result<StdioServer<'n>, String>, SyntaxError> {
        let kind = member(members, "type")?.and_then(|kind| kind.node.text());
        if kind.is_some_and(|kind| kind != "stdio") {
            return Ok(Err("its `type` is not `stdio`: it is not started as a program".to_owned()));
        }
        let Some(command) = member(members, "command")? else {
            return Ok(Err("it has neither a command nor a URL".to_owned()));
        };
        let Some(program) = command.node.text() else {
            return Ok(Err(format!("its `command` is {}, not a text", command.node.describe())));
        };
        let args = member(members, "args")?;
        let items = match args {
            None => Some(&[][..]),
            Some(args) => args.node.list(),
        };
        let words = items.and_then(|items| items.iter().map(SpannedNode::text).collect::<Option<Vec<_>>>());
        let (Some(items), Some(words)) = (items, words) else {
            return Ok(Err("its `args` are not a list of texts".to_owned()));
        };
        Ok(Ok(StdioServer { members, command, program, args, items, words }))
    }

    fn wrap(
        &self,
        parts: &StdioServer<'_>,
        name: &str,
        program: &ProgramLocation,
        text: &str,
        form: ConfigFormat,
    ) -> Result<ServerRewrite, String> {
        if parts.program.chars().any(char::is_whitespace) && !Path::new(parts.program).is_file() {
            return Err(
                "its `command` is a whole command line; write the program there and the rest into `args`"
                    .to_owned(),
            );
        }
        // A custom search path may not contain this program.
        let own_path = member(parts.members, "env").ok().flatten().and_then(|env| env.node.members());
        let own_path =
            own_path.is_some_and(|env| env.iter().any(|one| one.name.eq_ignore_ascii_case("path")));
        let us = program.name.as_ref().filter(|_| !own_path).unwrap_or(&program.path);
        let own = text.get(parts.command.node.span.clone()).unwrap_or_default();
        // When restoring, an empty list is kept: it is not one that an import added.
        let empty_list = parts.args.is_some() && parts.items.is_empty();
        let mark = if empty_list { format!("{MARK}={EMPTY_LIST}") } else { MARK.to_owned() };
        let mut prefix = vec!["wrap".to_owned(), mark];
        prefix.extend(name_flag(name));
        prefix.push("--".to_owned());
        let mut front: Vec<_> = prefix.iter().map(|word| quoted(word)).collect();
        front.push(own.to_owned());
        let front = front.join(", ");
        let splice = match (parts.args, parts.items.first()) {
            (Some(_), Some(first)) => {
                let at = first.span.start;
                (at..at, format!("{front},{}", gap_before(text, at)))
            }
            (Some(args), None) => {
                let at = args.node.span.start + 1;
                (at..at, front)
            }
            (None, _) => {
                let list = ("args", format!("[{front}]"));
                new_members(parts.command, self.in_braces, &[list], text, form)?
            }
        };
        let becomes = [us.clone()].into_iter().chain(prefix).chain(parts.line()).collect();
        let splices = vec![(parts.command.node.span.clone(), quoted(us)), splice];
        Ok(ServerRewrite { becomes, splices, notes: self.renamed(name) })
    }

    fn unwrap(
        &self,
        parts: &StdioServer<'_>,
        text: &str,
        form: ConfigFormat,
    ) -> Result<ServerRewrite, String> {
        let Some(mark) = parts.mark() else {
            return Err(BY_HAND.to_owned());
        };
        if parts.flag("--url").is_some() || parts.flag("--url-env").is_some() {
            return self.unwrap_url(parts, mark, text, form);
        }
        let nothing =
            || "it is not of the form `wrap … -- COMMAND`: its original command is unknown".to_owned();
        let end = parts.words.iter().position(|word| *word == "--").ok_or_else(nothing)?;
        let (Some(args), Some(first), Some(command)) =
            (parts.args, parts.items.first(), parts.items.get(end + 1))
        else {
            return Err(nothing());
        };
        let own = text.get(command.span.clone()).unwrap_or_default().to_owned();
        let emptied = || first.span.start..after_comma(text, command.span.end);
        let removed = match parts.items.get(end + 2) {
            Some(next) => first.span.start..next.span.start,
            None if mark == EMPTY_LIST => emptied(),
            None => whole_member(parts.members, args, self.in_braces, text, form).unwrap_or_else(emptied),
        };
        let becomes = parts.words.iter().skip(end + 1).map(|word| (*word).to_owned()).collect();
        let splices = vec![(parts.command.node.span.clone(), own), (removed, String::new())];
        Ok(ServerRewrite { becomes, splices, notes: Vec::new() })
    }
}

/// The new command line, the splices for it, and notes.
struct ServerRewrite {
    becomes: Vec<String>,
    splices: Vec<Splice>,
    notes: Vec<String>,
}

impl<'n> StdioServer<'n> {
    fn line(&self) -> Vec<String> {
        [self.program].into_iter().chain(self.words.iter().copied()).map(str::to_owned).collect()
    }

    /// Returns the words before the command of the server.
    fn prefix(&self) -> &[&'n str] {
        let end = self.words.iter().position(|word| *word == "--").unwrap_or(self.words.len());
        self.words.get(..end).unwrap_or_default()
    }

    /// Returns the value of the import mark, or `None` if there is no mark.
    fn mark(&self) -> Option<&'n str> {
        let prefix = self.prefix();
        let rest = prefix.iter().find_map(|word| word.strip_prefix(MARK));
        rest.filter(|rest| prefix.first() == Some(&"wrap") && (rest.is_empty() || rest.starts_with('=')))
            .map(|rest| rest.trim_start_matches('='))
    }

    /// Returns the position of the value of a flag, if the value is a word of its own.
    fn flag(&self, flag: &str) -> Option<usize> {
        let at = self.prefix().iter().position(|word| *word == flag)? + 1;
        (at < self.words.len()).then_some(at)
    }

    /// Returns the name behind Steadfast.
    fn name(&self) -> Option<&'n str> {
        let joined = || self.prefix().iter().find_map(|word| word.strip_prefix("--name="));
        self.flag("--name").and_then(|at| self.words.get(at).copied()).or_else(joined)
    }

    /// Returns the command behind Steadfast.
    fn after_program(&self) -> Option<Vec<String>> {
        if let Some(url) = self.flag("--url").and_then(|at| self.words.get(at)) {
            return Some(vec![(*url).to_owned()]);
        }
        if let Some(variable) = self.flag("--url-env").and_then(|at| self.words.get(at)) {
            let env = member(self.members, "env").ok()??.node.members()?;
            return Some(vec![member(env, variable).ok()??.node.text()?.to_owned()]);
        }
        let end = self.words.iter().position(|word| *word == "--")?;
        Some(self.words.iter().skip(end + 1).map(|word| (*word).to_owned()).collect())
    }
}

/// Marks a server that an import changed. Its value says what else is needed to restore it.
const MARK: &str = "--imported";
/// There was an empty list of arguments.
const EMPTY_LIST: &str = "empty-args";
const BY_HAND: &str =
    "it was put behind steadfast manually; to undo that, remove `steadfast wrap …` from its command";

/// Returns true if this is the Steadfast program.
fn is_steadfast(program: &str) -> bool {
    let file = program.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem =
        file.get(..file.len().saturating_sub(4)).filter(|_| file.to_ascii_lowercase().ends_with(".exe"));
    stem.unwrap_or(file).eq_ignore_ascii_case("steadfast")
}

/// Returns the flag that names a server. A name may look like a flag itself.
fn name_flag(name: &str) -> Vec<String> {
    match name.starts_with('-') {
        true => vec![format!("--name={name}")],
        false => vec!["--name".to_owned(), name.to_owned()],
    }
}

/// Returns a text in quotes. TOML reads the escapes of JSON in the same way.
fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

/// Returns the line break and indentation before a byte, or a space.
fn gap_before(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or_default();
    let gap = before.get(before.trim_end().len()..).unwrap_or_default();
    let newline = gap.rfind('\n').map(|newline| match gap.get(..newline) {
        Some(rest) if rest.ends_with('\r') => newline - 1,
        Some(_) | None => newline,
    });
    newline.and_then(|start| gap.get(start..)).unwrap_or(" ")
}

/// Returns new members after an existing one, in its style.
fn new_members(
    there: &TableMember,
    in_braces: bool,
    new: &[(&str, String)],
    text: &str,
    form: ConfigFormat,
) -> Result<Splice, String> {
    let Range { start, end } = there.name_span;
    let spelled = text.get(start..end).unwrap_or_default();
    let position = there.node.span.end;
    let line = text.get(..start).unwrap_or_default();
    let written = |between: &str, is: &str| -> String {
        let one =
            |(name, value): &(&str, String)| format!("{between}{}{is}{value}", respelled(spelled, name));
        new.iter().map(one).collect()
    };
    match (form, in_braces) {
        (ConfigFormat::Json, _) => {
            Ok((position..position, written(&format!(",{}", gap_before(text, start)), ": ")))
        }
        (ConfigFormat::Toml, true) if line.trim_end().ends_with(['{', ',']) => {
            Ok((position..position, written(&format!(",{}", gap_before(text, start)), " = ")))
        }
        (ConfigFormat::Toml, true) => Err("`args` cannot be inserted here; add `args = []`".to_owned()),
        (ConfigFormat::Toml, false) => {
            // The whole beginning of the line, because it may also name the server: `mcp_servers.bank.command = …`.
            let prefix = line.rsplit('\n').next().unwrap_or_default();
            let rest = text.get(position..).unwrap_or_default();
            let line_end = rest.find('\n').unwrap_or(rest.len());
            let returns = rest.get(..line_end).is_some_and(|line| line.ends_with('\r'));
            let (at, newline) =
                if returns { (position + line_end - 1, "\r\n") } else { (position + line_end, "\n") };
            Ok((at..at, written(&format!("{newline}{prefix}"), " = ")))
        }
    }
}

/// Returns a name in the quotes of another one, or without quotes if that has none.
fn respelled(like: &str, name: &str) -> String {
    match like.chars().next() {
        Some(quote @ ('"' | '\'')) => format!("{quote}{name}{quote}"),
        Some(_) | None => name.to_owned(),
    }
}

/// Returns the range of `args` including its separator, if that can be determined.
fn whole_member(
    members: &[TableMember],
    args: &TableMember,
    in_braces: bool,
    text: &str,
    form: ConfigFormat,
) -> Option<Range<usize>> {
    let (start, end) = (args.name_span.start, args.node.span.end);
    if form == ConfigFormat::Toml && !in_braces {
        let line_start = text.get(..start)?.rfind('\n')?;
        let returns = text.get(..line_start)?.ends_with('\r');
        return Some(line_start - usize::from(returns)..end);
    }
    let only_a_comma = |between: Range<usize>| text.get(between).is_some_and(|gap| gap.trim() == ",");
    let place = members.iter().position(|one| one.name == args.name)?;
    if let Some(before) = place.checked_sub(1).and_then(|before| members.get(before)) {
        let from = before.node.span.end;
        return only_a_comma(from..start).then_some(from..end);
    }
    let next = members.get(place + 1)?.name_span.start;
    only_a_comma(end..next).then_some(start..next)
}

/// Returns the byte after a following comma, or the same byte.
fn after_comma(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let gap = rest.len() - rest.trim_start().len();
    if rest.trim_start().starts_with(',') { at + gap + 1 } else { at }
}

/// Returns the text with some ranges replaced. They must not overlap.
fn spliced(text: &str, mut splices: Vec<Splice>) -> String {
    splices.sort_by_key(|(range, _)| range.start);
    let mut new = String::with_capacity(text.len() + splices.len() * 64);
    let mut done = 0;
    for (range, instead) in splices {
        new.push_str(text.get(done..range.start).unwrap_or_default());
        new.push_str(&instead);
        done = range.end;
    }
    new.push_str(text.get(done..).unwrap_or_default());
    new
}
