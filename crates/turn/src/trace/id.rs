//! Ids of traces and spans, in the form of W3C Trace Context. The core makes none.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! hex_ids {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Creates the id from its bytes.
            pub const fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// Returns the bytes of the id.
            pub const fn to_bytes(self) -> [u8; $bytes] {
                self.0
            }

            /// Parses lowercase hex. All zeros are not an id.
            pub fn from_hex(text: &str) -> Option<Self> {
                let mut bytes = [0_u8; $bytes];
                let plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                if !plain || text.len() != 2 * $bytes {
                    return None;
                }
                for (position, byte) in bytes.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(text.get(2 * position..2 * position + 2)?, 16).ok()?;
                }
                bytes.iter().any(|byte| *byte != 0).then_some(Self(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::from_hex(&text).ok_or_else(|| serde::de::Error::custom("expected lowercase hex, not all zeros"))
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": concat!("^([0-9a-f]{", stringify!($bytes), "}){2}$") })
            }
        }
    )*};
}

hex_ids! {
    /// The id of a trace, in the form of W3C Trace Context.
    TraceId: 16,
    /// The id of a span, in the form of W3C Trace Context.
    SpanId: 8,
}
