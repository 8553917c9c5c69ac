//! Names of tools, dependencies, sessions and breakers within a tenant.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use steadfast_core::call::CallRequest;
use steadfast_core::envelope::{BreakerHint, CallEnvelope};
use steadfast_core::id::{Domain, Namespace, SessionKey, TenantId, ToolName, ToolRef};

/// A tool of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ToolKey {
    pub(crate) tenant: Option<TenantId>,
    pub(crate) tool: ToolRef,
}

/// A dependency of several tools: a host, a server, or everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DependencyKey {
    pub(crate) tenant: Option<TenantId>,
    pub(crate) name: Arc<str>,
}

/// A session of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId {
    pub(crate) tenant: Option<TenantId>,
    pub(crate) session: Option<SessionKey>,
}

impl SessionId {
    pub(crate) fn of(request: &CallRequest) -> Self {
        Self { tenant: request.tenant.clone(), session: request.session.clone() }
    }
}

impl DependencyKey {
    /// Returns the dependency of a call: the host that its arguments name, else the server of its tool.
    pub(crate) fn of(request: &CallRequest) -> Self {
        let name =
            request.domain.as_ref().map_or_else(|| request.tool.namespace.to_shared(), Domain::to_shared);
        Self { tenant: request.tenant.clone(), name }
    }

    /// Returns the key of the coarser circuit breaker that the caller asked for.
    pub(crate) fn coarser(envelope: &CallEnvelope, request: &CallRequest) -> Option<Self> {
        match envelope.transport.circuit_breaker_hint {
            None | Some(BreakerHint::Tool) => None,
            Some(BreakerHint::Dependency) => Some(Self::of(request)),
            Some(BreakerHint::Global) => Some(Self { tenant: request.tenant.clone(), name: "*".into() }),
        }
    }
}

/// The key of a circuit breaker of a tenant. Its text form can stand in a URL unchanged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerKey {
    /// The breaker of a tool.
    Tool(ToolRef),
    /// The breaker of a dependency of several tools: a host, a server, or `*` for everything.
    Dependency(Arc<str>),
}

/// A name with its bytes [escaped](escape), as a regular expression.
macro_rules! name_pattern {
    () => {
        concat!(
            "([-0-9A-Za-z_.~*]",
            // One byte, without the plain characters.
            "|=(2[0-9BCF]|3[A-F]|40|5[B-E]|60|7[BCD])",
            // Two bytes. Below C2 A0 are control characters.
            "|=C2=[AB][0-9A-F]|=(C[3-9A-F]|D[0-9A-F])=[89AB][0-9A-F]",
            // Three bytes, without surrogates.
            "|=E0=[AB][0-9A-F]=[89AB][0-9A-F]|=ED=[89][0-9A-F]=[89AB][0-9A-F]",
            "|=E[1-9A-CEF](=[89AB][0-9A-F]){2}",
            // Four bytes, up to U+10FFFF.
            "|=F0=[9AB][0-9A-F](=[89AB][0-9A-F]){2}|=F4=8[0-9A-F](=[89AB][0-9A-F]){2}",
            "|=F[123](=[89AB][0-9A-F]){3}",
            "){1,256}"
        )
    };
}

/// A text that is not a valid breaker key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid breaker key: use tool:SERVER:TOOL or dependency:NAME, as in the list of breakers")]
pub struct InvalidBreakerKey;

/// Bytes that URLs may change are written as `=` and two digits, so that URL decoding does not change the name.
impl fmt::Display for BreakerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool(tool) => {
                f.write_str("tool:")?;
                escape(f, tool.namespace.as_str())?;
                f.write_str(":")?;
                escape(f, tool.tool.as_str())
            }
            Self::Dependency(name) => {
                f.write_str("dependency:")?;
                escape(f, name)
            }
        }
    }
}

impl BreakerKey {
    /// Regular expression that matches exactly the valid keys: names of 1 to 256 characters, each plain, or as the
    /// bytes of its UTF-8 if it is neither plain nor a control character.
    pub const PATTERN: &str =
        concat!("^(tool:", name_pattern!(), ":", name_pattern!(), "|dependency:", name_pattern!(), ")$");
}

impl FromStr for BreakerKey {
    type Err = InvalidBreakerKey;

    fn from_str(text: &str) -> Result<Self, InvalidBreakerKey> {
        let mut parts = text.split(':');
        let key = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("tool"), Some(namespace), Some(tool), None) => {
                let namespace = Namespace::new(unescape(namespace)?).map_err(|_| InvalidBreakerKey)?;
                let tool = ToolName::new(unescape(tool)?).map_err(|_| InvalidBreakerKey)?;
                Self::Tool(ToolRef { namespace, tool })
            }
            (Some("dependency"), Some(name), None, None) => {
                let name = Domain::new(unescape(name)?).map_err(|_| InvalidBreakerKey)?;
                Self::Dependency(name.to_shared())
            }
            _ => return Err(InvalidBreakerKey),
        };
        // Keys have one text form each, so that two texts are never the same breaker.
        if key.to_string() == text { Ok(key) } else { Err(InvalidBreakerKey) }
    }
}

impl Serialize for BreakerKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for BreakerKey {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BreakerKey".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": Self::PATTERN })
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~*".contains(&byte)
}

fn escape(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.bytes().try_for_each(|byte| {
        if is_plain(byte) { write!(f, "{}", char::from(byte)) } else { write!(f, "={byte:02X}") }
    })
}

fn unescape(text: &str) -> Result<String, InvalidBreakerKey> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'=' {
            let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
            let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
                return Err(InvalidBreakerKey);
            };
            plain.push(u8::try_from(high * 16 + low).map_err(|_| InvalidBreakerKey)?);
        } else {
            plain.push(byte);
        }
    }
    String::from_utf8(plain).map_err(|_| InvalidBreakerKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_every_url_and_means_one_breaker() {
        let tool = |namespace: &str, tool: &str| {
            let (namespace, tool) = (Namespace::new(namespace).unwrap(), ToolName::new(tool).unwrap());
            BreakerKey::Tool(ToolRef { namespace, tool })
        };
        for (key, text) in [
            (tool("bank", "pay"), "tool:bank:pay"),
            (tool("a:b", "c/d e%41=ä"), "tool:a=3Ab:c=2Fd=20e=2541=3D=C3=A4"),
            (BreakerKey::Dependency("*".into()), "dependency:*"),
            (BreakerKey::Dependency("api.example.com:443".into()), "dependency:api.example.com=3A443"),
        ] {
            assert_eq!(key.to_string(), text);
            assert_eq!(text.parse(), Ok(key));
        }
        for wrong in [
            "",
            "tool",
            "tool:a",
            "tool:a:b:c",
            "tool::b",
            "dependency:",
            "dependency:=2",
            "dependency:=GG",
            "dependency:=C3",
            "dependency:=61",
            "dependency:=3a",
            "dependency:a b",
            "server:a",
            "dependency:=0A",
        ] {
            assert_eq!(wrong.parse::<BreakerKey>(), Err(InvalidBreakerKey), "{wrong}");
        }
    }
}
