//! Outputs of tools. They pass through as the JSON text that was received.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// JSON text as received. It is never parsed and printed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawJson(Arc<str>);

impl RawJson {
    /// Takes a text that is known to be JSON. The caller is responsible for that.
    pub fn from_trusted(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns a plain text as a JSON string.
    pub fn string(text: &str) -> Self {
        Self(serde_json::Value::String(text.to_owned()).to_string().into())
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(<Box<RawValue>>::deserialize(deserializer)?.get().into()))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for RawJson {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Json".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!(true)
    }
}

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
