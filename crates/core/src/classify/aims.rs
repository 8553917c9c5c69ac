//! The targets of a call, found by the names of its parameters: URLs, paths and commands.
//!
//! Every call passes through this module. The names are examined once, and all judgements that use them (the signature,
//! the domain, the table of dangerous commands) share the result.

use std::borrow::Cow;

use super::shell::{self, Command};
use crate::json::{Kind, Spelling, Value};

/// The parameters that name the targets of a call.
#[derive(Clone, Debug)]
pub struct Aims<'d> {
    /// Found parameters, in the order of [`NAMES`].
    found: Vec<(Aim, Value<'d>)>,
    commands: Vec<Command>,
}

/// The kind of target that a known parameter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Url,
    Path,
    /// A command line, or its words.
    Command,
    /// One or more command lines.
    Commands,
    /// The arguments of a command.
    Arguments,
}

impl<'d> Aims<'d> {
    /// Finds the targets in the parameters of a call.
    pub fn of(params: Value<'d>) -> Self {
        let entries = params.entries().into_iter().flatten();
        let mut ranked: Vec<(usize, Value<'d>)> = entries
            .filter_map(|(name, value)| {
                let name = Folded::of(name)?;
                Some((NAMES.iter().position(|(_, wanted)| *wanted == name)?, value))
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let found = ranked.into_iter().filter_map(|(rank, value)| Some((NAMES.get(rank)?.0, value)));
        let mut aims = Self { found: found.collect(), commands: Vec::new() };
        aims.commands = aims.read_commands();
        aims
    }

    /// Returns the parameters of this kind. The first has the highest priority.
    pub(super) fn all(&self, wanted: Aim) -> impl Iterator<Item = Value<'d>> {
        self.found.iter().filter(move |(aim, _)| *aim == wanted).map(|(_, value)| *value)
    }

    /// Returns the commands that the call would start.
    pub(super) fn commands(&self) -> &[Command] {
        &self.commands
    }

    fn read_commands(&self) -> Vec<Command> {
        let mut commands = Vec::new();
        for (aim, value) in &self.found {
            let (Aim::Command | Aim::Commands) = aim else { continue };
            match value.kind() {
                Kind::String(line) => match self.words_behind(&line) {
                    Some(words) => commands.extend(shell::commands_of_words(words)),
                    None => commands.extend(shell::commands(&line)),
                },
                Kind::Array(lines) if *aim == Aim::Commands => {
                    let lines = lines.take(64).filter_map(Value::as_str);
                    commands.extend(lines.flat_map(|line| shell::commands(&line)));
                }
                Kind::Array(words) => {
                    let words = words.take(1024).filter_map(Value::as_str).map(Cow::into_owned).collect();
                    commands.extend(shell::commands_of_words(words));
                }
                Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Object(_) => {}
            }
        }
        commands
    }

    /// Returns `{"command": "rm", "args": ["-rf", "x"]}` as one list of words.
    fn words_behind(&self, program: &str) -> Option<Vec<String>> {
        let Kind::Array(list) = self.all(Aim::Arguments).next()?.kind() else { return None };
        if program.contains(char::is_whitespace) {
            return None;
        }
        let rest = list.take(1024).filter_map(Value::as_str).map(Cow::into_owned);
        Some(std::iter::once(program.to_owned()).chain(rest).collect())
    }
}

/// The parameter names that tools use for targets. For each kind, the first that is present counts.
const NAMES: &[(Aim, Folded)] = &[
    (Aim::Url, Folded::wanted("url")),
    (Aim::Url, Folded::wanted("uri")),
    (Aim::Url, Folded::wanted("endpoint")),
    (Aim::Url, Folded::wanted("href")),
    (Aim::Url, Folded::wanted("baseurl")),
    (Aim::Path, Folded::wanted("path")),
    (Aim::Path, Folded::wanted("filepath")),
    (Aim::Path, Folded::wanted("file")),
    (Aim::Path, Folded::wanted("filename")),
    (Aim::Path, Folded::wanted("absolutepath")),
    (Aim::Path, Folded::wanted("notebookpath")),
    (Aim::Path, Folded::wanted("directory")),
    (Aim::Path, Folded::wanted("dir")),
    (Aim::Path, Folded::wanted("folder")),
    (Aim::Command, Folded::wanted("command")),
    (Aim::Command, Folded::wanted("cmd")),
    (Aim::Command, Folded::wanted("commandline")),
    (Aim::Command, Folded::wanted("shellcommand")),
    (Aim::Command, Folded::wanted("script")),
    (Aim::Command, Folded::wanted("argv")),
    (Aim::Commands, Folded::wanted("commands")),
    (Aim::Arguments, Folded::wanted("args")),
    (Aim::Arguments, Folded::wanted("arguments")),
];

/// A name in lower case without `_` and `-`, so that `file_path` and `filePath` are the same. Holds up to sixteen
/// letters, with the last one in the lowest byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Folded(u128);

impl Folded {
    /// Returns the folded name, or `None` if it cannot be one of the known names.
    fn of(name: Spelling<'_>) -> Option<Self> {
        match name {
            Spelling::Plain(plain) => plain.bytes().try_fold(Self(0), Self::and),
            Spelling::Escaped(_) => {
                name.decoded().try_fold(Self(0), |folded, letter| folded.and(u8::try_from(letter).ok()?))
            }
        }
    }

    /// Returns a known name that is already written in folded form.
    const fn wanted(name: &str) -> Self {
        let (mut folded, mut rest) = (0, name.as_bytes());
        assert!(rest.len() <= 16);
        while let [letter, behind @ ..] = rest {
            assert!(letter.is_ascii_lowercase());
            folded = folded << 8 | *letter as u128;
            rest = behind;
        }
        Self(folded)
    }

    fn and(self, letter: u8) -> Option<Self> {
        match letter {
            b'_' | b'-' => Some(self),
            b'A'..=b'Z' | b'a'..=b'z' if self.0 >> 120 == 0 => {
                Some(Self(self.0 << 8 | u128::from(letter.to_ascii_lowercase())))
            }
            _ => None,
        }
    }
}
