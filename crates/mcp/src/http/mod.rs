//! Streamable HTTP: the parts shared by client and server side.
//!
//! Two eras of the protocol use it differently. Up to 2025-11-25 a client opens a session, may listen on a GET
//! stream, and resumes streams by the id of the last event. From 2026-07-28 on every request is self-contained,
//! repeats parts of its body in headers, and is cancelled by closing its stream.

pub mod header_params;
mod header_value;
pub mod server;
pub mod upstream;

use crate::message::RpcMessage;

use http::HeaderName;

pub use self::header_value::{decode_value, encode_value};

/// The session of a request, in the legacy era.
pub const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The protocol version.
pub const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The method of the body.
pub const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The tool, prompt or resource that the body names.
pub const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The last event that a client has seen of the stream to resume.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The first version without sessions.
pub const MODERN: &str = "2026-07-28";
/// The versions with sessions, newest first.
pub const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The member of `_meta` with the protocol version.
pub const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` with the capabilities of the client.
pub const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// An era of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolEra {
    /// With `initialize` and sessions: 2025-11-25 and before.
    Legacy,
    /// Every request is self-contained: 2026-07-28 and after.
    Modern,
}

impl ProtocolEra {
    /// Returns the era of a known version.
    pub fn of(version: &str) -> Option<Self> {
        if version == MODERN {
            return Some(Self::Modern);
        }
        LEGACY.contains(&version).then_some(Self::Legacy)
    }

    /// Returns the era of a request. In the modern era each request names its version.
    pub fn of_request(request: &RpcMessage) -> Self {
        if request.meta_member(META_VERSION).is_some() { Self::Modern } else { Self::Legacy }
    }
}

/// Returns the member of the parameters that the header [`MCP_NAME`] repeats for this method.
pub fn name_source(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}
