//! MCP on the wire: messages, lines and streamable HTTP, for both sides and both eras of the protocol.
//!
//! This crate does transport and framing, and decides nothing about calls. A message stays the bytes that came in.
//! Only the fields used for routing are read, and changes are spliced in. So unknown fields, spellings of numbers,
//! order and white space of everything else are preserved.
//!
//! - [`message`]: one JSON-RPC message
//! - [`json_text`]: JSON values of messages
//! - [`lines`]: messages as lines, for standard input and output
//! - [`sse`]: messages as server-sent events
//! - [`long_text`]: the beginning and end of a text that is too long to be a message
//! - [`delivery`]: delivery of final responses to the client
//! - [`http`]: streamable HTTP, [`http::server`] towards clients and [`http::upstream`] towards servers
//!
//! All buffers are bounded, and the parsers are plain functions over bytes.

pub mod delivery;
pub mod http;
pub mod json_text;
pub mod lines;
pub mod long_text;
pub mod message;
pub mod sse;
