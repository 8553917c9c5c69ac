//! Names and identifiers. The core creates none of them: they are inputs, and each kind has its own type.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Maximum length of an identifier in characters, as JSON Schema counts them.
pub const MAX_ID_LENGTH: usize = 256;

/// The reason why a text is not a valid identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The text is empty.
    #[error("must not be empty")]
    Empty,
    /// The text is longer than [`MAX_ID_LENGTH`].
    #[error("is {length} characters long, at most {MAX_ID_LENGTH} are allowed")]
    TooLong {
        /// Its length in characters.
        length: usize,
    },
    /// The text has a control character, which would break logs and headers.
    #[error("must not contain control characters")]
    ControlCharacter,
}

/// Checks that a text is a valid identifier. The same rules apply to other short texts, such as tags and keys.
pub(crate) fn check_id(text: &str) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty);
    }
    // A text never has more characters than bytes, so few texts need to be counted.
    let length = if text.len() > MAX_ID_LENGTH { text.chars().count() } else { 0 };
    if length > MAX_ID_LENGTH {
        return Err(InvalidId::TooLong { length });
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidId::ControlCharacter);
    }
    Ok(())
}

/// Returns the schema of a tool with its namespace as one text: `namespace/tool`.
#[cfg(feature = "schema")]
pub fn tool_schema() -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "pattern": format!(
            "^[^/\\u0000-\\u001f\\u007f-\\u009f]{{1,{MAX_ID_LENGTH}}}/[^\\u0000-\\u001f\\u007f-\\u009f]{{1,{MAX_ID_LENGTH}}}$"
        ),
    })
}

/// Returns the schema of an identifier: the rules of `check_id`.
#[cfg(feature = "schema")]
pub fn id_schema() -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_ID_LENGTH,
        "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]+$",
    })
}

macro_rules! text_ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the identifier, if the text is valid.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
                let text = text.as_ref();
                check_id(text)?;
                Ok(Self(Arc::from(text)))
            }

            /// Returns the text of the identifier.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns the shared text of the identifier, without a copy.
            pub fn to_shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                id_schema()
            }
        }
    )*};
}

text_ids! {
    /// One request of one caller. Each request has a new one, also a resend.
    RequestId,
    /// The model's id of its call. Kept for logs; never an idempotency key by itself.
    ToolCallId,
    /// The group that a tool belongs to: an MCP server, a plugin, a package.
    Namespace,
    /// The name of a tool within its namespace.
    ToolName,
    /// The session that a call belongs to.
    SessionKey,
    /// The actor that makes a call: a user or an account.
    ActorId,
    /// The owner of the data. Tenants are isolated from each other.
    TenantId,
    /// The workspace of the caller, if the host has workspaces.
    WorkspaceId,
    /// The agent that made the call.
    AgentId,
    /// Correlates a call with other records of the host.
    CorrelationId,
    /// One turn of the assistant: the calls between two messages of the user.
    TurnId,
    /// The model that made the call, as the host names it.
    ModelId,
    /// The dependency of a tool: a host name or an MCP server.
    Domain,
}

/// A tool depends at least on the server that it belongs to.
impl From<&Namespace> for Domain {
    fn from(server: &Namespace) -> Self {
        Self(Arc::clone(&server.0))
    }
}

/// A tool with its namespace: the unit of breakers and policies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolRef {
    /// The namespace.
    pub namespace: Namespace,
    /// The name within the namespace.
    pub tool: ToolName,
}

impl TenantId {
    /// Returns the command-line option for it, quoted for a shell: `--tenant acme`.
    pub fn flag(&self) -> String {
        let is_plain = |sign: char| sign.is_alphanumeric() || "_.:@/+-".contains(sign);
        match self.0.chars().all(is_plain) && !self.0.starts_with('-') {
            true => format!("--tenant {self}"),
            false => format!("--tenant='{}'", self.0.replace('\'', "'\\''")),
        }
    }
}

impl Namespace {
    /// Returns the namespace that stands for every namespace, for a host that names a tool without its server.
    pub fn any() -> Self {
        Self(Arc::from(ToolRef::ANY_NAMESPACE))
    }

    /// Separator between a name and the mark that distinguishes servers of the same name.
    pub const MARK: char = '~';

    /// Returns the name in the configuration: without the mark that distinguishes servers of the same name.
    pub fn configured(&self) -> Self {
        match self.0.split_once(Self::MARK) {
            Some((name, _)) if !name.is_empty() => Self(Arc::from(name)),
            Some(_) | None => self.clone(),
        }
    }

    /// Returns the same name with a mark of these letters, as many as distinguish the servers.
    pub fn marked(&self, letters: &str) -> Self {
        let letters: String = letters.chars().take(6).collect();
        let most = MAX_ID_LENGTH - letters.chars().count() - 1;
        let name: String = self.0.chars().take(most).collect();
        Self(Arc::from(format!("{name}{}{letters}", Self::MARK)))
    }
}

impl ToolRef {
    /// Text of [`Namespace::any`].
    pub const ANY_NAMESPACE: &str = "*";

    /// Returns the tool of this name in any namespace.
    pub fn in_any_namespace(tool: ToolName) -> Self {
        Self { namespace: Namespace::any(), tool }
    }

    /// Returns true if the namespace does not matter.
    pub fn is_in_any_namespace(&self) -> bool {
        self.namespace.as_str() == Self::ANY_NAMESPACE
    }
}

impl fmt::Display for ToolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.tool)
    }
}

/// The id of one run of a tool. It is sent upstream when the caller gave no key, and stays the same when another
/// owner takes over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub Arc<str>);

/// SHA-256 of some bytes, usually of canonical JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
    }
}

impl Digest {
    /// Returns the digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns a digest that was computed elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the digest as hex, for stores.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// Appends the digest as hex to a text.
    pub(crate) fn write_hex(&self, text: &mut String) {
        write_hex(text, &self.0);
    }

    /// Returns the first twelve hex digits: the form of a key in logs, metrics and responses.
    pub fn fingerprint(&self) -> String {
        hex(self.0.first_chunk::<6>().map_or(&self.0[..], |short| &short[..]))
    }

    /// Parses the output of [`Digest::to_hex`].
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0_u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = hex_value(*high)? << 4 | hex_value(*low)?;
        }
        Some(Self(bytes))
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    write_hex(&mut text, bytes);
    text
}

fn write_hex(text: &mut String, bytes: &[u8]) {
    text.reserve(bytes.len() * 2);
    for byte in bytes {
        text.extend(hex_digits(*byte).map(char::from));
    }
}

fn hex_digits(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|value| if value < 10 { b'0' + value } else { b'a' + value - 10 })
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&hex_digits(byte));
        }
        serializer.serialize_str(std::str::from_utf8(&digits).map_err(serde::ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| serde::de::Error::custom("expected 64 lowercase hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_would_break_a_log_line_are_refused() {
        assert_eq!(ToolName::new(""), Err(InvalidId::Empty));
        assert_eq!(ToolName::new("a\nb"), Err(InvalidId::ControlCharacter));
        assert_eq!(ToolName::new("x".repeat(257)), Err(InvalidId::TooLong { length: 257 }));
        assert_eq!(ToolName::new("ä".repeat(257)), Err(InvalidId::TooLong { length: 257 }));
        for letter in ["x", "ä", "\u{1f980}"] {
            assert!(ToolName::new(letter.repeat(256)).is_ok(), "{letter}");
        }
    }

    #[test]
    fn digests_survive_their_text_form() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.fingerprint(), "ba7816bf8f01");
        assert_eq!(Digest::from_hex(&digest.to_hex()), Some(digest));
        assert_eq!(Digest::from_hex("BA"), None);
        assert_eq!(Digest::from_hex(&"G".repeat(64)), None);
    }
}
