//! Arguments that refer to results of other calls.
//!
//! Anywhere in the params of a call, an object `{"$from": "<id>", "path": "<JSON Pointer>"}` stands for a part of that
//! call's output. Without `path` it stands for the whole output. References are found once, when the plan is checked,
//! and stored as byte ranges of the text. So the rest of the params is sent to the tool byte for byte, and numbers keep
//! all their digits.

use std::collections::BTreeMap;
use std::ops::Range;

use steadfast_core::id::ToolCallId;
use steadfast_json::{JsonDocument, JsonError, JsonKind, JsonLimits, JsonValue, RawJson};

use super::clip;
use super::mistake::{PlanErrors, PlanPath, PlanProblem};
use super::pointer::JsonPointer;

/// The params of a call, with the positions at which outputs are inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallParams {
    text: RawJson,
    references: Vec<OutputReference>,
}

/// A position in the params that is replaced by a part of another call's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputReference {
    /// The call that has the output.
    pub from: ToolCallId,
    /// The part of the output.
    pub pointer: JsonPointer,
    /// Byte range in the text of the params.
    span: Range<usize>,
    /// Path in the plan, for messages.
    path: String,
}

impl CallParams {
    /// Returns an empty object.
    pub fn none() -> Self {
        Self { text: RawJson::from_trusted("{}"), references: Vec::new() }
    }

    /// Returns the references in the order of the text.
    pub fn references(&self) -> &[OutputReference] {
        &self.references
    }

    /// Returns the reference that replaces the params as a whole, if there is one.
    pub(super) fn all_from(&self) -> Option<&OutputReference> {
        self.references.first().filter(|reference| reference.span == (0..self.text.as_str().len()))
    }

    /// Returns the arguments, with `piece` in the place of every reference.
    ///
    /// The result is a JSON object of at most `limit` bytes, or an error.
    pub fn resolve<'p>(
        &self,
        limit: usize,
        piece: impl Fn(&OutputReference) -> Result<&'p str, ArgumentResolveError>,
    ) -> Result<RawJson, ArgumentResolveError> {
        if self.references.is_empty() {
            return Ok(self.text.clone());
        }
        let text = self.text.as_str();
        let mut filled = String::new();
        let mut rest = 0;
        let mut append = |part: &str| {
            if filled.len().saturating_add(part.len()) > limit {
                return Err(ArgumentResolveError::TooLarge { limit });
            }
            filled.push_str(part);
            Ok(())
        };
        for reference in &self.references {
            append(text.get(rest..reference.span.start).unwrap_or_default())?;
            append(piece(reference)?)?;
            rest = reference.span.end;
        }
        append(text.get(rest..).unwrap_or_default())?;
        if !filled.trim_start().starts_with('{') {
            return Err(ArgumentResolveError::NotAnObject);
        }
        Ok(RawJson::from_trusted(filled))
    }

    /// Reads params from a plan. Adds problems to `errors`.
    pub(super) fn read(value: JsonValue<'_>, path: &mut PlanPath, errors: &mut PlanErrors) -> Self {
        let text = value.raw();
        match value.kind() {
            JsonKind::Object(_) => {}
            other @ (JsonKind::Null
            | JsonKind::Bool(_)
            | JsonKind::Number(_)
            | JsonKind::String(_)
            | JsonKind::Array(_)) => {
                let found = other.describe();
                errors.push(&*path, PlanProblem::Expected { expected: "an object", found });
                return Self::none();
            }
        }
        let mut references = Vec::new();
        find_references(value, value.span().start, path, &mut references, errors);
        Self { text: RawJson::from_trusted(text), references }
    }
}

impl OutputReference {
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// The reason why the arguments of a call cannot be resolved. The call fails with the code `dependency_failed`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentResolveError {
    /// The output does not have that part.
    #[error("the output of {from:?} has nothing at {:?}", clip(.pointer.as_str(), 256))]
    Missing {
        /// The call that has the output.
        from: ToolCallId,
        /// The missing part.
        pointer: JsonPointer,
    },
    /// The output was too large to be stored for dependants.
    #[error("the output of {from:?} was too large to pass on; request a smaller output")]
    NotKept {
        /// The call that had the output.
        from: ToolCallId,
    },
    /// The output is not JSON, or exceeds the limits of the reader.
    #[error("the output of {from:?} cannot be read: {error}")]
    Unreadable {
        /// The call that has the output.
        from: ToolCallId,
        /// The JSON error.
        error: JsonError,
    },
    /// The arguments are too large after outputs were inserted.
    #[error("with the outputs in them the arguments exceed {limit} bytes; refer to smaller parts")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// All of the params come from an output that is not an object.
    #[error("the output that should be the arguments is not an object")]
    NotAnObject,
}

/// A text with the parts of it that other calls refer to, found in one pass.
///
/// An output may have megabytes and a thousand dependants. Separate lookups would read it a thousand times. Parts are
/// byte ranges, so overlapping parts cost nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputParts {
    text: RawJson,
    found: BTreeMap<JsonPointer, Range<usize>>,
    error: Option<JsonError>,
}

impl OutputParts {
    /// Finds the parts at all `pointers` in a text.
    pub fn select<'p>(
        text: RawJson,
        pointers: impl IntoIterator<Item = &'p JsonPointer>,
        limits: JsonLimits,
    ) -> Self {
        let mut pointers: Vec<PointerSteps<'p>> = pointers
            .into_iter()
            .filter(|pointer| !pointer.as_str().is_empty())
            .map(|pointer| PointerSteps { tokens: pointer.tokens(), pointer })
            .collect();
        pointers.sort_by(|a, b| a.tokens.cmp(&b.tokens));
        let mut found = BTreeMap::new();
        let mut error = None;
        if !pointers.is_empty() {
            match JsonDocument::parse(text.as_str().as_bytes(), limits) {
                Ok(document) => find_pieces(document.root(), &pointers, 0, &mut found),
                Err(problem) => error = Some(problem),
            }
        }
        Self { text, found, error }
    }

    /// Returns the whole text.
    pub fn text(&self) -> &RawJson {
        &self.text
    }

    /// Returns the part at one of the requested pointers. `from` names the text in the error if the part is missing.
    pub fn piece(&self, from: &ToolCallId, pointer: &JsonPointer) -> Result<&str, ArgumentResolveError> {
        if pointer.as_str().is_empty() {
            return Ok(self.text.as_str());
        }
        if let Some(error) = &self.error {
            return Err(ArgumentResolveError::Unreadable { from: from.clone(), error: error.clone() });
        }
        self.found
            .get(pointer)
            .and_then(|span| self.text.as_str().get(span.clone()))
            .ok_or_else(|| ArgumentResolveError::Missing { from: from.clone(), pointer: pointer.clone() })
    }
}

struct PointerSteps<'p> {
    tokens: Vec<String>,
    pointer: &'p JsonPointer,
}

/// Descends once for all pointers with the same beginning. They are sorted, so those that share their first `level`
/// steps are adjacent. Recursion ends at `TurnLimits::OUTPUT_DEPTH`, which also limits the pointers.
fn find_pieces(
    value: JsonValue<'_>,
    pointers: &[PointerSteps<'_>],
    level: usize,
    found: &mut BTreeMap<JsonPointer, Range<usize>>,
) {
    let mut below: BTreeMap<&str, &[PointerSteps<'_>]> = BTreeMap::new();
    for group in pointers.chunk_by(|a, b| a.tokens.get(level) == b.tokens.get(level)) {
        let Some(first) = group.first() else { continue };
        match first.tokens.get(level) {
            Some(token) => {
                below.insert(token, group);
            }
            None => {
                for here in group {
                    found.insert(here.pointer.clone(), value.span());
                }
            }
        }
    }
    if below.is_empty() {
        return;
    }
    match value.kind() {
        JsonKind::Object(members) => {
            for (name, member) in members {
                if let Some(group) = below.get(name.as_ref()) {
                    find_pieces(member, group, level + 1, found);
                }
            }
        }
        JsonKind::Array(items) => {
            let mut positions: Vec<_> =
                below.iter().filter_map(|(token, group)| Some((array_index(token)?, *group))).collect();
            positions.sort_by_key(|(position, _)| *position);
            let mut positions = positions.into_iter().peekable();
            for (position, item) in items.enumerate() {
                let Some((next, group)) = positions.peek() else { break };
                if *next == position {
                    find_pieces(item, group, level + 1, found);
                    positions.next();
                }
            }
        }
        JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::String(_) => {}
    }
}

/// Returns the array index of a step. `-` and `01` are not indexes.
fn array_index(token: &str) -> Option<usize> {
    let plain =
        token == "0" || (!token.starts_with('0') && token.bytes().all(|digit| digit.is_ascii_digit()));
    if plain { token.parse().ok() } else { None }
}

/// Collects the references below a value. `start` is the position of the params in the document. Recursion ends at the
/// depth limit of the document.
fn find_references(
    value: JsonValue<'_>,
    start: usize,
    path: &mut PlanPath,
    found: &mut Vec<OutputReference>,
    errors: &mut PlanErrors,
) {
    match value.kind() {
        JsonKind::Object(_) if value.get("$from").is_some() => {
            found.extend(read_reference(value, start, path, errors));
        }
        JsonKind::Object(members) => {
            for (name, member) in members {
                let before = path.enter(name);
                find_references(member, start, path, found, errors);
                path.leave(before);
            }
        }
        JsonKind::Array(items) => {
            for (position, item) in items.enumerate() {
                let before = path.enter(position);
                find_references(item, start, path, found, errors);
                path.leave(before);
            }
        }
        JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::String(_) => {}
    }
}

fn read_reference(
    value: JsonValue<'_>,
    start: usize,
    path: &PlanPath,
    errors: &mut PlanErrors,
) -> Option<OutputReference> {
    let members = value.members()?;
    let mut from = None;
    let mut pointer = Some(JsonPointer::whole());
    for (name, member) in members {
        let place = || path.to(&name);
        let string = member.as_str();
        let expected = |expected| PlanProblem::Expected { expected, found: member.kind().describe() };
        match (name.as_ref(), string) {
            ("$from", Some(id)) => match ToolCallId::new(id) {
                Ok(id) => from = Some(id),
                Err(error) => errors.push(place(), PlanProblem::InvalidName(error)),
            },
            ("$from", None) => errors.push(place(), expected("the id of a call")),
            ("path", Some(at)) => match JsonPointer::parse(&at) {
                Ok(at) => pointer = Some(at),
                Err(error) => {
                    pointer = None;
                    errors.push(place(), PlanProblem::InvalidPointer(error));
                }
            },
            ("path", None) => errors.push(place(), expected("a JSON Pointer")),
            (other, _) => errors.push(path, PlanProblem::BadReference(clip(other, 64))),
        }
    }
    let span = value.span().start.saturating_sub(start)..value.span().end.saturating_sub(start);
    Some(OutputReference { from: from?, pointer: pointer?, span, path: path.as_str().to_owned() })
}
