//! The servers in a configuration, and what becomes of each: the one place where that is decided.
//!
//! `{"command": C, "args": [A…]}` becomes `{"command": steadfast, "args": ["wrap", "--name", NAME, "--", C, A…]}`, and
//! back. Both ways are splices into the text, so that everything else stays byte for byte, and what was put in can be
//! taken out of a text that was edited since. The command is carried over in its own spelling.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use serde_json::Value as Json;
use steadfast::id::Namespace;

use super::tree::{Member, Mistake, Node, member};
use super::{json, toml};

/// How a configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Toml,
}

impl Form {
    pub(super) fn read(self, text: &str) -> Result<Node, Mistake> {
        match self {
            Self::Json => json::read(text),
            Self::Toml => toml::read(text),
        }
    }
}

/// A way to a table of servers; `*` is every name.
pub(super) type Way = &'static [&'static str];

/// What is wanted.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    /// Every server goes through us.
    Wrap(Program),
    /// None does.
    Unwrap,
}

/// How clients can start this program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// With its whole path.
    pub(super) path: String,
    /// By its name, where the client that reads the configuration finds it by that.
    pub(super) name: Option<String>,
}

/// A server as it was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) name: String,
    /// Within which project, where a file has several.
    pub(super) within: Option<String>,
    pub(super) verdict: Verdict,
}

/// What becomes of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is changed from one command line to another.
    Change { now: Vec<String>, becomes: Vec<String> },
    /// It is as it was wished for.
    AsWished,
    /// It is left as it is, and why.
    Left(String),
}

/// All servers of a text, and the text that is wished for.
pub(super) fn rewrite(
    text: &str,
    form: Form,
    ways: &[Way],
    wish: &Wish,
) -> Result<(Vec<Server>, String), Mistake> {
    let root = form.read(text)?;
    let mut servers = Vec::new();
    let mut splices = Vec::new();
    for found in find(&root, text, ways)? {
        let (verdict, own) = found.judge(text, form, wish)?;
        splices.extend(own);
        servers.push(Server { name: found.name.to_owned(), within: found.within.clone(), verdict });
    }
    let new = spliced(text, splices);
    check(&new, form, ways, &servers)?;
    Ok((servers, new))
}

/// That the new text says what was meant. Whatever was overlooked above ends here, before anything is written.
fn check(new: &str, form: Form, ways: &[Way], servers: &[Server]) -> Result<(), Mistake> {
    let wrong = |what: String| Mistake::new(0, format!("it cannot be changed without breaking it ({what})"));
    let root = form.read(new).map_err(|mistake| wrong(mistake.what))?;
    let found = find(&root, new, ways)?;
    if found.len() != servers.len() {
        return Err(wrong("servers would be lost".to_owned()));
    }
    for (found, server) in found.iter().zip(servers) {
        if let Verdict::Change { becomes, .. } = &server.verdict
            && found.parts()?.ok().is_none_or(|parts| parts.line() != *becomes)
        {
            return Err(wrong(format!("server `{}`", server.name)));
        }
    }
    Ok(())
}

/// A server in a text.
struct Found<'n> {
    name: &'n str,
    within: Option<String>,
    node: &'n Node,
    /// Whether it stands within braces: always in JSON, and in TOML where it is written in one line.
    in_braces: bool,
}

fn find<'n>(root: &'n Node, text: &str, ways: &[Way]) -> Result<Vec<Found<'n>>, Mistake> {
    let mut found = Vec::new();
    for way in ways {
        descend(root, text, way, &Within { project: None, in_braces: false }, &mut found)?;
    }
    Ok(found)
}

/// What is known of the way down.
struct Within {
    project: Option<String>,
    in_braces: bool,
}

fn descend<'n>(
    node: &'n Node,
    text: &str,
    way: &[&str],
    within: &Within,
    found: &mut Vec<Found<'n>>,
) -> Result<(), Mistake> {
    let Some(members) = node.members() else {
        let what = format!("{} stands where a table of names is expected", node.describe());
        return Err(Mistake::new(node.span.start, what));
    };
    let in_braces = within.in_braces || opens_with_brace(node, text);
    match way.split_first() {
        Some((&"*", rest)) => {
            for one in members {
                let within = Within { project: Some(one.name.clone()), in_braces };
                descend(&one.node, text, rest, &within, found)?;
            }
        }
        Some((name, rest)) => {
            if let Some(next) = member(members, name)? {
                descend(
                    &next.node,
                    text,
                    rest,
                    &Within { project: within.project.clone(), in_braces },
                    found,
                )?;
            }
        }
        None => {
            let mut names = BTreeSet::new();
            for one in members {
                if !names.insert(one.name.as_str()) {
                    return Err(Mistake::new(
                        one.name_span.start,
                        format!("`{}` is written twice", one.name),
                    ));
                }
                let in_braces = in_braces || opens_with_brace(&one.node, text);
                let within = within.project.clone();
                found.push(Found { name: &one.name, within, node: &one.node, in_braces });
            }
        }
    }
    Ok(())
}

fn opens_with_brace(node: &Node, text: &str) -> bool {
    text.get(node.span.clone()).is_some_and(|own| own.starts_with('{'))
}

/// What a server on stdio is started with.
struct Parts<'n> {
    members: &'n [Member],
    command: &'n Member,
    program: &'n str,
    args: Option<&'n Member>,
    items: &'n [Node],
    words: Vec<&'n str>,
}

type Splice = (Range<usize>, String);

impl<'n> Found<'n> {
    fn judge(&self, text: &str, form: Form, wish: &Wish) -> Result<(Verdict, Vec<Splice>), Mistake> {
        let left = |why: String| Ok((Verdict::Left(why), Vec::new()));
        let parts = match (self.parts()?, wish) {
            (Ok(parts), _) => parts,
            (Err(why), Wish::Wrap(_)) => return left(why),
            (Err(_), Wish::Unwrap) => return Ok((Verdict::AsWished, Vec::new())),
        };
        let changed = match (wish, is_ours(parts.program)) {
            (Wish::Wrap(_), true) | (Wish::Unwrap, false) => return Ok((Verdict::AsWished, Vec::new())),
            (Wish::Wrap(program), false) => self.wrap(&parts, program, text, form),
            (Wish::Unwrap, true) => self.unwrap(&parts, text, form),
        };
        match changed {
            Ok((becomes, splices)) => Ok((Verdict::Change { now: parts.line(), becomes }, splices)),
            Err(why) => left(why),
        }
    }

    /// What it is started with, or why it is none that is started.
    fn parts(&self) -> Result<Result<Parts<'n>, String>, Mistake> {
        let Some(members) = self.node.members() else {
            return Ok(Err(format!("it is {}, not a table", self.node.describe())));
        };
        let kind = member(members, "type")?.and_then(|kind| kind.node.text());
        let by_url = members.iter().any(|one| matches!(one.name.as_str(), "url" | "httpUrl" | "serverUrl"));
        if by_url {
            return Ok(Err(BY_URL.to_owned()));
        }
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
        let words = items.and_then(|items| items.iter().map(Node::text).collect::<Option<Vec<_>>>());
        let (Some(items), Some(words)) = (items, words) else {
            return Ok(Err("its `args` are not a list of texts".to_owned()));
        };
        Ok(Ok(Parts { members, command, program, args, items, words }))
    }

    fn wrap(&self, parts: &Parts<'_>, program: &Program, text: &str, form: Form) -> Result<Changed, String> {
        if parts.program.chars().any(char::is_whitespace) && !Path::new(parts.program).is_file() {
            return Err(
                "its `command` is a whole command line; write the program there and the rest into `args`"
                    .to_owned(),
            );
        }
        if let Err(why) = Namespace::new(self.name) {
            return Err(format!("a server cannot be called that: {why}"));
        }
        // A search path of its own may not lead to us.
        let own_path = member(parts.members, "env").ok().flatten().and_then(|env| env.node.members());
        let own_path =
            own_path.is_some_and(|env| env.iter().any(|one| one.name.eq_ignore_ascii_case("path")));
        let us = program.name.as_ref().filter(|_| !own_path).unwrap_or(&program.path);
        let own = text.get(parts.command.node.span.clone()).unwrap_or_default();
        let ours = match (parts.args, self.name.starts_with('-')) {
            (None, false) => named_apart(self.name),
            (Some(_), false) if !parts.items.is_empty() => named_apart(self.name),
            // An empty list is marked by the other spelling, so that on the way back it stays and is not taken for
            // one of ours.
            (Some(_), _) | (None, true) => {
                vec!["wrap".to_owned(), format!("--name={}", self.name), "--".to_owned()]
            }
        };
        let mut front: Vec<_> = ours.iter().map(|word| quoted(word)).collect();
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
            (None, _) => new_member(parts.command, self.in_braces, &format!("[{front}]"), text, form)?,
        };
        let becomes = [us.clone()].into_iter().chain(ours).chain(parts.line()).collect();
        Ok((becomes, vec![(parts.command.node.span.clone(), quoted(us)), splice]))
    }

    fn unwrap(&self, parts: &Parts<'_>, text: &str, form: Form) -> Result<Changed, String> {
        let nothing =
            || "it is not of the form `wrap … -- COMMAND`: nothing is known to go back to".to_owned();
        if parts.words.first() != Some(&"wrap") {
            return Err(nothing());
        }
        let end = parts.words.iter().position(|word| *word == "--").ok_or_else(nothing)?;
        let (Some(args), Some(first), Some(command)) =
            (parts.args, parts.items.first(), parts.items.get(end + 1))
        else {
            return Err(nothing());
        };
        let own = text.get(command.span.clone()).unwrap_or_default().to_owned();
        let list_was_there = parts.words.get(1).is_some_and(|word| word.starts_with("--name="));
        let emptied = || first.span.start..after_comma(text, command.span.end);
        let gone = match parts.items.get(end + 2) {
            Some(kept) => first.span.start..kept.span.start,
            None if list_was_there => emptied(),
            None => whole_member(parts.members, args, self.in_braces, text, form).unwrap_or_else(emptied),
        };
        let becomes = parts.words.iter().skip(end + 1).map(|word| (*word).to_owned()).collect();
        Ok((becomes, vec![(parts.command.node.span.clone(), own), (gone, String::new())]))
    }
}

/// The new command line, and what is spliced for it.
type Changed = (Vec<String>, Vec<Splice>);

impl Parts<'_> {
    fn line(&self) -> Vec<String> {
        [self.program].into_iter().chain(self.words.iter().copied()).map(str::to_owned).collect()
    }
}

const BY_URL: &str = "it is reached by URL, and its headers and sign-in cannot be carried over";

/// Whether this is the program that we are.
fn is_ours(program: &str) -> bool {
    let file = program.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem =
        file.get(..file.len().saturating_sub(4)).filter(|_| file.to_ascii_lowercase().ends_with(".exe"));
    stem.unwrap_or(file).eq_ignore_ascii_case("steadfast")
}

fn named_apart(name: &str) -> Vec<String> {
    ["wrap", "--name", name, "--"].map(str::to_owned).to_vec()
}

/// A text in quotes. What JSON escapes, TOML reads the same way.
fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

/// The line break and indentation before a byte, or a space.
fn gap_before(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or_default();
    let gap = before.get(before.trim_end().len()..).unwrap_or_default();
    let newline = gap.rfind('\n').map(|newline| match gap.get(..newline) {
        Some(rest) if rest.ends_with('\r') => newline - 1,
        Some(_) | None => newline,
    });
    newline.and_then(|start| gap.get(start..)).unwrap_or(" ")
}

/// `args` where there were none: behind the command, in the way the command is written.
fn new_member(
    command: &Member,
    in_braces: bool,
    list: &str,
    text: &str,
    form: Form,
) -> Result<Splice, String> {
    let Range { start, end } = command.name_span;
    let name = text.get(start..end).unwrap_or_default().replace("command", "args");
    let behind = command.node.span.end;
    let line = text.get(..start).unwrap_or_default();
    match (form, in_braces) {
        (Form::Json, _) => Ok((behind..behind, format!(",{}{name}: {list}", gap_before(text, start)))),
        (Form::Toml, true) if line.trim_end().ends_with(['{', ',']) => {
            Ok((behind..behind, format!(",{}{name} = {list}", gap_before(text, start))))
        }
        (Form::Toml, true) => {
            Err("it is written in a way that `args` cannot be added to; add `args = []`".to_owned())
        }
        (Form::Toml, false) => {
            // The whole beginning of the line, for it may name the server too: `mcp_servers.bank.command = …`.
            let prefix = line.rsplit('\n').next().unwrap_or_default();
            let rest = text.get(behind..).unwrap_or_default();
            let line_end = rest.find('\n').unwrap_or(rest.len());
            let returns = rest.get(..line_end).is_some_and(|line| line.ends_with('\r'));
            let (at, newline) =
                if returns { (behind + line_end - 1, "\r\n") } else { (behind + line_end, "\n") };
            Ok((at..at, format!("{newline}{prefix}{name} = {list}")))
        }
    }
}

/// The bytes of `args` with what parts it from its neighbours, where that can be told.
fn whole_member(
    members: &[Member],
    args: &Member,
    in_braces: bool,
    text: &str,
    form: Form,
) -> Option<Range<usize>> {
    let (start, end) = (args.name_span.start, args.node.span.end);
    if form == Form::Toml && !in_braces {
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

/// The byte behind a comma that follows, or the same byte.
fn after_comma(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let gap = rest.len() - rest.trim_start().len();
    if rest.trim_start().starts_with(',') { at + gap + 1 } else { at }
}

/// The text with some of its ranges replaced; they do not overlap.
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
