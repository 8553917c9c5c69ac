//! Layer D: the log of malformed calls by model, one JSON line each.
//!
//! [`ModelAttribution`] is the one place that names the model of a call. It also has the source of the name: the host, or
//! the form of the call id.
//!
//! The lines are for comparisons of models, by readers and scripts, so their field names must not change. The caller
//! writes and rotates the file.

use std::fmt;

use serde::Serialize;

use super::text::beginning;
use crate::Timestamp;
use crate::classify::ModelMistake;
use crate::id::{ModelId, ToolCallId, ToolRef};

/// The error of a malformed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedCallKind {
    /// A mistake of the model.
    Mistake(ModelMistake),
    /// It was refused because it repeats a failed call.
    Loop,
    /// It was refused because too many calls of its turn had failed.
    TurnLimit,
}

/// A call that failed because of a mistake of the model, or was refused because the model loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedCall {
    /// The model that made it.
    pub model: ModelAttribution,
    /// The tool.
    pub tool: ToolRef,
    /// The arguments, already redacted.
    pub arguments: String,
    /// The error.
    pub error_type: MalformedCallKind,
    /// Time of the response.
    pub at: Timestamp,
}

/// The model of a call, with the certainty of that. A wrong name is worse than none, so a guess is marked as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelAttribution {
    /// The host named the model.
    Named(ModelId),
    /// The form of the call id suggests the family.
    Guessed(ModelFamily),
    /// The host did not name the model, and the call id does not help.
    Unknown,
}

/// Model families that are recognised by the form of their call ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFamily {
    /// Ids that begin with `toolu_`.
    Anthropic,
    /// Ids that begin with `call_`: Fireworks, and all others with OpenAI's protocol.
    OpenAiCompatible,
}

impl ModelAttribution {
    /// Returns the model that the host named, or else the family that the prefix of the call id suggests.
    pub fn of(named: Option<&ModelId>, call: Option<&ToolCallId>) -> Self {
        if let Some(model) = named {
            return Self::Named(model.clone());
        }
        match call.map(ToolCallId::as_str) {
            Some(id) if id.starts_with("toolu_") => Self::Guessed(ModelFamily::Anthropic),
            Some(id) if id.starts_with("call_") => Self::Guessed(ModelFamily::OpenAiCompatible),
            Some(_) | None => Self::Unknown,
        }
    }

    /// Returns the source of the name.
    const fn source(&self) -> &'static str {
        match self {
            Self::Named(_) => "host",
            Self::Guessed(_) => "call_id",
            Self::Unknown => "none",
        }
    }
}

impl fmt::Display for ModelAttribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named(model) => model.as_str(),
            Self::Guessed(ModelFamily::Anthropic) => "anthropic",
            Self::Guessed(ModelFamily::OpenAiCompatible) => "fireworks/openai-compat",
            Self::Unknown => "unknown",
        })
    }
}

impl MalformedCall {
    /// Returns the line without a line break. Long arguments are cut.
    pub fn to_line(&self) -> String {
        let line = MalformedCallLine {
            timestamp: self.at.to_string(),
            model: self.model.to_string(),
            model_source: self.model.source(),
            namespace: self.tool.namespace.as_str(),
            tool: self.tool.tool.as_str(),
            arguments: beginning(&self.arguments, LONGEST_ARGUMENTS),
            error_type: match self.error_type {
                MalformedCallKind::Mistake(ModelMistake::Arguments) => "invalid_arguments",
                MalformedCallKind::Mistake(ModelMistake::UnknownTool) => "unknown_tool",
                MalformedCallKind::Loop => "loop_detected",
                MalformedCallKind::TurnLimit => "tool_error_limit",
            },
        };
        // It has text fields only, so serialization cannot fail.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct MalformedCallLine<'a> {
    timestamp: String,
    model: String,
    model_source: &'static str,
    namespace: &'a str,
    tool: &'a str,
    arguments: &'a str,
    error_type: &'static str,
}

/// Maximum length of the arguments in a line, in bytes.
const LONGEST_ARGUMENTS: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Namespace, ToolName};

    fn malformed(model: ModelAttribution, arguments: &str) -> MalformedCall {
        MalformedCall {
            model,
            tool: ToolRef {
                namespace: Namespace::new("files").unwrap(),
                tool: ToolName::new("read").unwrap(),
            },
            arguments: arguments.to_owned(),
            error_type: MalformedCallKind::Mistake(ModelMistake::Arguments),
            at: Timestamp::from_millis(1_762_338_645_007),
        }
    }

    #[test]
    fn tg_5_the_model_is_named_by_the_host_and_guessed_from_the_id_only_without_one() {
        let named = ModelId::new("minimax-m2.5").unwrap();
        let id = |text| ToolCallId::new(text).unwrap();
        for (model, call, name, source) in [
            (None, Some(id("call_9f")), "fireworks/openai-compat", "call_id"),
            (None, Some(id("toolu_01A")), "anthropic", "call_id"),
            (None, Some(id("7")), "unknown", "none"),
            (None, Some(id("chatcmpl-tool-1")), "unknown", "none"),
            (None, Some(id("my_call_1")), "unknown", "none"),
            (None, None, "unknown", "none"),
            (Some(&named), Some(id("toolu_01A")), "minimax-m2.5", "host"),
            (Some(&named), None, "minimax-m2.5", "host"),
        ] {
            let attribution = ModelAttribution::of(model, call.as_ref());
            assert_eq!((attribution.to_string().as_str(), attribution.source()), (name, source));
        }
    }

    #[test]
    fn tg_5_a_line_has_stable_names_and_is_one_line() {
        let line = malformed(ModelAttribution::Guessed(ModelFamily::OpenAiCompatible), "{\n}").to_line();
        assert_eq!(
            line,
            r#"{"timestamp":"2025-11-05T10:30:45.007Z","model":"fireworks/openai-compat","model_source":"call_id","namespace":"files","tool":"read","arguments":"{\n}","error_type":"invalid_arguments"}"#
        );
        let long = malformed(ModelAttribution::Unknown, &"é".repeat(5000)).to_line();
        assert!(long.len() < 2500 && !long.contains('\n'));
    }
}
