//! Outputs of tools. They pass through as the JSON text that was received.

use serde::{Deserialize, Serialize};
use steadfast_json::RawJson;

/// The output of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolOutput {
    /// The result.
    pub content: RawJson,
    /// Metadata beside the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<RawJson>,
}

impl ToolOutput {
    /// Returns a plain text as an output: a JSON string.
    pub fn text(text: &str) -> Self {
        Self { content: RawJson::string(text), metadata: None }
    }

    /// Returns a value as an output.
    pub fn json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Self> {
        Ok(Self { content: RawJson::from_trusted(serde_json::to_string(value)?), metadata: None })
    }

    /// Returns the size of the stored output in bytes.
    pub fn len(&self) -> usize {
        self.content.as_str().len() + self.metadata.as_ref().map_or(0, |metadata| metadata.as_str().len())
    }

    /// Returns true if the output is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
