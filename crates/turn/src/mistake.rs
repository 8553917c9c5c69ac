//! Errors of a plan, reported all at once, each with its path.

use std::fmt::{self, Write as _};

use steadfast_core::id::{InvalidId, ToolCallId};
use steadfast_json::JsonError;

use super::clip;
use super::pointer::{InvalidJsonPointer, JsonPointer};

/// All errors of a plan. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanErrors {
    /// The first [`PlanErrors::MAX`] errors, in the order of the plan as far as it could be read.
    pub errors: Vec<PlanError>,
    /// The number of further errors.
    pub omitted: usize,
}

/// One error of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// Path of the error, as a JSON Pointer into the plan. Empty for the plan as a whole.
    pub path: String,
    /// The problem at that path.
    pub problem: PlanProblem,
}

/// A kind of error in a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanProblem {
    /// The plan is not JSON, or exceeds the limits of the reader.
    #[error("{0}")]
    Json(JsonError),
    /// A part of the plan exceeds a limit.
    #[error("has {found} {parts}, at most {limit} are allowed")]
    TooLarge {
        /// The name of the parts.
        parts: &'static str,
        /// Number found.
        found: usize,
        /// Number allowed.
        limit: usize,
    },
    /// A required field is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// An unknown field. A misspelt `dependsOn` must not run calls in the wrong order.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// A value of the wrong type.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// The expected type.
        expected: &'static str,
        /// The type found.
        found: &'static str,
    },
    /// An invalid name.
    #[error("{0}")]
    InvalidName(InvalidId),
    /// A tool without a namespace.
    #[error("a tool is named as \"namespace/tool\"")]
    ToolWithoutNamespace,
    /// Two calls have the same id.
    #[error("the id {id:?} is already used at {first}")]
    DuplicateId {
        /// The id.
        id: ToolCallId,
        /// Path of the first one.
        first: String,
    },
    /// The same dependency is named twice.
    #[error("the dependency on {0:?} is named twice")]
    DuplicateDependency(ToolCallId),
    /// No call of the plan has this id.
    #[error("no call of this plan has the id {0:?}")]
    UnknownCall(ToolCallId),
    /// A call depends on itself.
    #[error("a call cannot depend on itself")]
    SelfReference,
    /// A cycle: each call depends on the next, the last on the first.
    #[error(fmt = write_cycle)]
    Cycle(Vec<ToolCallId>),
    /// A path that is not a JSON Pointer.
    #[error("{0}")]
    InvalidPointer(InvalidJsonPointer),
    /// An object with `$from` has fields other than `path`.
    #[error("an object with `$from` may have `path` besides it and nothing else, found {0:?}")]
    BadReference(String),
    /// A default does not have a part that the arguments take from that dependency.
    #[error("the default has nothing at {:?}, which the arguments take from {from:?}", .pointer.as_str())]
    DefaultMisses {
        /// The dependency that the default replaces.
        from: ToolCallId,
        /// The missing part.
        pointer: JsonPointer,
    },
    /// All the arguments are taken from that dependency, and its default is not an object.
    #[error("all the arguments are taken from {0:?}, and what the default has there is not an object")]
    DefaultNotAnObject(ToolCallId),
}

impl PlanErrors {
    /// The number of errors that are listed. A longer list has no use.
    pub const MAX: usize = 100;

    pub(super) const fn none() -> Self {
        Self { errors: Vec::new(), omitted: 0 }
    }

    pub(super) fn push(&mut self, path: impl Into<String>, problem: PlanProblem) {
        if self.errors.len() < Self::MAX {
            self.errors.push(PlanError { path: path.into(), problem });
        } else {
            self.omitted = self.omitted.saturating_add(1);
        }
    }

    /// Returns true if every part of the plan fits the schema, and only the relations between the parts are wrong. A
    /// schema cannot express those.
    pub fn is_only_semantic(&self) -> bool {
        self.errors.iter().all(|error| error.problem.is_semantic())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }
}

impl fmt::Display for PlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, error) in self.errors.iter().enumerate() {
            if position > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{error}")?;
        }
        if self.omitted > 0 {
            write!(f, "; and {} more", self.omitted)?;
        }
        Ok(())
    }
}

// Not derived: the text is a list, which no format string of `thiserror` expresses.
impl std::error::Error for PlanErrors {}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() { "the plan" } else { &self.path };
        write!(f, "{place}: {}", self.problem)
    }
}

impl PlanProblem {
    /// Returns true if a schema cannot express the rule.
    const fn is_semantic(&self) -> bool {
        match self {
            Self::Json(_)
            | Self::TooLarge { .. }
            | Self::Missing(_)
            | Self::UnknownField(_)
            | Self::Expected { .. }
            | Self::InvalidName(_)
            | Self::ToolWithoutNamespace => false,
            Self::DuplicateId { .. }
            | Self::DuplicateDependency(_)
            | Self::UnknownCall(_)
            | Self::SelfReference
            | Self::Cycle(_)
            | Self::InvalidPointer(_)
            | Self::BadReference(_)
            | Self::DefaultMisses { .. }
            | Self::DefaultNotAnObject(_) => true,
        }
    }
}

/// Writes a cycle. A long one is shown by its beginning and its length.
fn write_cycle(calls: &[ToolCallId], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SHOWN: usize = 10;
    write!(f, "dependency cycle (each call depends on the next): ")?;
    for call in calls.iter().take(SHOWN) {
        write!(f, "{call} -> ")?;
    }
    if calls.len() > SHOWN {
        write!(f, "… {} more … -> ", calls.len() - SHOWN)?;
    }
    calls.first().map_or(Ok(()), |first| write!(f, "{first}"))
}

/// The path of a value in the plan, as a JSON Pointer. It is kept short, so that a hostile name cannot make the error
/// message long.
#[derive(Clone, Debug)]
pub(super) struct PlanPath(String);

impl PlanPath {
    /// The plan as a whole.
    pub(super) const ROOT: Self = Self(String::new());

    const TOKEN_BYTES: usize = 48;
    const BYTES: usize = 256;

    /// Goes one step down. Passing the returned value to [`PlanPath::leave`] goes back up.
    pub(super) fn enter(&mut self, token: impl fmt::Display) -> usize {
        let before = self.0.len();
        if before < Self::BYTES {
            self.0.push('/');
            let start = self.0.len();
            // Writing to a string cannot fail.
            let _ = write!(PointerEscaper(&mut self.0), "{token}");
            if self.0.len() - start > Self::TOKEN_BYTES {
                let clipped = clip(self.0.get(start..).unwrap_or_default(), Self::TOKEN_BYTES);
                self.0.truncate(start);
                self.0.push_str(&clipped);
            }
        } else if !self.0.ends_with("/…") {
            self.0.push_str("/…");
        }
        before
    }

    pub(super) fn leave(&mut self, before: usize) {
        self.0.truncate(before);
    }

    /// Returns the path one step below this one.
    pub(super) fn to(&self, token: impl fmt::Display) -> Self {
        let mut below = self.clone();
        below.enter(token);
        below
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A writer that escapes one step of a JSON Pointer.
struct PointerEscaper<'t>(&'t mut String);

impl fmt::Write for PointerEscaper<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let mut rest = part;
        while let Some(at) = rest.find(['~', '/']) {
            let (plain, special) = rest.split_at(at);
            self.0.push_str(plain);
            self.0.push_str(if special.starts_with('~') { "~0" } else { "~1" });
            rest = special.get(1..).unwrap_or_default();
        }
        self.0.push_str(rest);
        Ok(())
    }
}

impl From<&PlanPath> for String {
    fn from(path: &PlanPath) -> Self {
        path.0.clone()
    }
}

impl From<PlanPath> for String {
    fn from(path: PlanPath) -> Self {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_json_pointer_whose_steps_are_escaped_and_cut() {
        let mut path = PlanPath::ROOT.to("calls").to(3);
        let before = path.enter("a/b~c~/é");
        assert_eq!(path.as_str(), "/calls/3/a~1b~0c~0~1é");
        path.leave(before);
        assert_eq!(path.as_str(), "/calls/3");
        path.enter("/".repeat(100));
        assert_eq!(path.as_str(), format!("/calls/3/{}…", "~1".repeat(PlanPath::TOKEN_BYTES / 2)));
        path.enter("ü".repeat(PlanPath::TOKEN_BYTES / 2));
        assert!(path.as_str().ends_with("…/üüüüüüüüüüüüüüüüüüüüüüüü"), "what just fits is whole: {path:?}");
        path.enter("x".repeat(PlanPath::TOKEN_BYTES + 1));
        assert!(path.as_str().ends_with("x…"), "and what does not is cut: {path:?}");
    }

    #[test]
    fn a_path_ends_where_it_is_too_long() {
        let mut path = PlanPath::ROOT;
        for _ in 0..100 {
            path.enter("name");
        }
        assert!(path.as_str().len() < PlanPath::BYTES + 16, "{path:?}");
        assert!(path.as_str().ends_with("/name/…"), "{path:?}");

        let mut path = PlanPath::ROOT;
        while path.as_str().len() < PlanPath::BYTES {
            path.enter("seventy");
        }
        assert_eq!(path.as_str().len(), PlanPath::BYTES);
        path.enter("name");
        assert!(path.as_str().ends_with("/seventy/…"), "{path:?}");
    }

    #[test]
    fn errors_are_listed_one_after_the_other() {
        let mut errors = PlanErrors::none();
        errors.push("/calls/0", PlanProblem::Missing("id"));
        assert_eq!(errors.to_string(), "/calls/0: `id` is missing");
        errors.push(PlanPath::ROOT, PlanProblem::Missing("calls"));
        assert_eq!(errors.to_string(), "/calls/0: `id` is missing; the plan: `calls` is missing");
    }

    #[test]
    fn a_cycle_of_ten_is_listed_in_full() {
        let cycle = |length: usize| {
            PlanProblem::Cycle((0..length).map(|call| ToolCallId::new(call.to_string()).unwrap()).collect())
        };
        assert!(cycle(10).to_string().ends_with("8 -> 9 -> 0"), "{}", cycle(10));
        assert!(cycle(11).to_string().ends_with("8 -> 9 -> … 1 more … -> 0"), "{}", cycle(11));
    }
}
