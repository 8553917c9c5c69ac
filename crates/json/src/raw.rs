//! JSON as text.

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
