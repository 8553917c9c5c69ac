//! The targets of a call, found by the names of its parameters: URLs, paths and commands.
//!
//! Every call passes through this module. The names are examined once, and all judgements that use them (the signature,
//! the domain, the table of dangerous commands) share the result.

use std::borrow::Cow;

use steadfast_json::{JsonKind, JsonValue, NameSpelling};

use super::shell::{self, ShellCommand};

/// The parameters that name the targets of a call.
#[derive(Clone, Debug)]
pub struct ArgumentTargets<'d> {
    /// Found parameters, in the order of [`NAMES`].
    found: Vec<(ArgumentTargetKind, JsonValue<'d>)>,
    commands: Vec<ShellCommand>,
}

/// The kind of target that a known parameter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentTargetKind {
    Url,
    Path,
    /// A command line, or its words.
    Command,
    /// One or more command lines.
    Commands,
    /// The arguments of a command.
    Arguments,
}

impl<'d> ArgumentTargets<'d> {
    /// Finds the targets in the parameters of a call.
    pub fn of(params: JsonValue<'d>) -> Self {
        let entries = params.entries().into_iter().flatten();
        let mut ranked: Vec<(usize, JsonValue<'d>)> = entries
            .filter_map(|(name, value)| {
                let name = FoldedName::of(name)?;
                Some((NAMES.iter().position(|(_, known)| *known == name)?, value))
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let found = ranked.into_iter().filter_map(|(rank, value)| Some((NAMES.get(rank)?.0, value)));
        let mut aims = Self { found: found.collect(), commands: Vec::new() };
        aims.commands = aims.read_commands();
        aims
    }

    /// Returns the parameters of this kind. The first has the highest priority.
    pub(super) fn all(&self, kind: ArgumentTargetKind) -> impl Iterator<Item = JsonValue<'d>> {
        self.found.iter().filter(move |(aim, _)| *aim == kind).map(|(_, value)| *value)
    }

    /// Returns the commands that the call would start.
    pub(super) fn commands(&self) -> &[ShellCommand] {
        &self.commands
    }

    fn read_commands(&self) -> Vec<ShellCommand> {
        let mut commands = Vec::new();
        for (aim, value) in &self.found {
            let (ArgumentTargetKind::Command | ArgumentTargetKind::Commands) = aim else { continue };
            match value.kind() {
                JsonKind::String(line) => match self.arguments_of(&line) {
                    Some(words) => commands.extend(shell::commands_of_words(words)),
                    None => commands.extend(shell::commands(&line)),
                },
                JsonKind::Array(lines) if *aim == ArgumentTargetKind::Commands => {
                    let lines = lines.take(64).filter_map(JsonValue::as_str);
                    commands.extend(lines.flat_map(|line| shell::commands(&line)));
                }
                JsonKind::Array(words) => {
                    let words = words.take(1024).filter_map(JsonValue::as_str).map(Cow::into_owned).collect();
                    commands.extend(shell::commands_of_words(words));
                }
                JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::Object(_) => {}
            }
        }
        commands
    }

    /// Returns `{"command": "rm", "args": ["-rf", "x"]}` as one list of words.
    fn arguments_of(&self, program: &str) -> Option<Vec<String>> {
        let JsonKind::Array(list) = self.all(ArgumentTargetKind::Arguments).next()?.kind() else {
            return None;
        };
        if program.contains(char::is_whitespace) {
            return None;
        }
        let rest = list.take(1024).filter_map(JsonValue::as_str).map(Cow::into_owned);
        Some(std::iter::once(program.to_owned()).chain(rest).collect())
    }
}

/// The parameter names that tools use for targets. For each kind, the first that is present counts.
const NAMES: &[(ArgumentTargetKind, FoldedName)] = &[
    (ArgumentTargetKind::Url, FoldedName::known("url")),
    (ArgumentTargetKind::Url, FoldedName::known("uri")),
    (ArgumentTargetKind::Url, FoldedName::known("endpoint")),
    (ArgumentTargetKind::Url, FoldedName::known("href")),
    (ArgumentTargetKind::Url, FoldedName::known("baseurl")),
    (ArgumentTargetKind::Path, FoldedName::known("path")),
    (ArgumentTargetKind::Path, FoldedName::known("filepath")),
    (ArgumentTargetKind::Path, FoldedName::known("file")),
    (ArgumentTargetKind::Path, FoldedName::known("filename")),
    (ArgumentTargetKind::Path, FoldedName::known("absolutepath")),
    (ArgumentTargetKind::Path, FoldedName::known("notebookpath")),
    (ArgumentTargetKind::Path, FoldedName::known("directory")),
    (ArgumentTargetKind::Path, FoldedName::known("dir")),
    (ArgumentTargetKind::Path, FoldedName::known("folder")),
    (ArgumentTargetKind::Command, FoldedName::known("command")),
    (ArgumentTargetKind::Command, FoldedName::known("cmd")),
    (ArgumentTargetKind::Command, FoldedName::known("commandline")),
    (ArgumentTargetKind::Command, FoldedName::known("shellcommand")),
    (ArgumentTargetKind::Command, FoldedName::known("script")),
    (ArgumentTargetKind::Command, FoldedName::known("argv")),
    (ArgumentTargetKind::Commands, FoldedName::known("commands")),
    (ArgumentTargetKind::Arguments, FoldedName::known("args")),
    (ArgumentTargetKind::Arguments, FoldedName::known("arguments")),
];

/// A name in lower case without `_` and `-`, so that `file_path` and `filePath` are the same. Holds up to sixteen
/// letters, with the last one in the lowest byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FoldedName(u128);

impl FoldedName {
    /// Returns the folded name, or `None` if it cannot be one of the known names.
    fn of(name: NameSpelling<'_>) -> Option<Self> {
        match name {
            NameSpelling::Plain(plain) => plain.bytes().try_fold(Self(0), Self::and),
            NameSpelling::Escaped(_) => {
                name.decoded().try_fold(Self(0), |folded, letter| folded.and(u8::try_from(letter).ok()?))
            }
        }
    }

    /// Returns a known name that is already written in folded form.
    const fn known(name: &str) -> Self {
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
