//! MCP on the wire: messages, lines, streamable HTTP; both sides, both eras of the protocol.
//!
//! This crate transports and frames, and decides nothing about calls. A message stays the bytes that came; only the
//! fields by which it is routed are looked at, and what must be rewritten is spliced, so that unknown fields, spellings
//! of numbers, order and white space of everything else go on as they were.
//!
//! - [`message`]: one JSON-RPC message, [`raw`]: a look at JSON without reading it all into a tree;
//! - [`lines`]: messages as lines, for standard input and output;
//! - [`sse`]: messages as server-sent events;
//! - [`long`]: what is known of a text that is too long to be a message;
//! - [`delivery`]: whether a final answer has arrived at the client;
//! - [`http`]: streamable HTTP, [`http::front`] towards clients and [`http::back`] towards servers.
//!
//! Everything that is kept has a bound, and the parsers are plain functions over bytes.

pub mod delivery;
pub mod http;
pub mod lines;
pub mod long;
pub mod message;
pub mod raw;
pub mod sse;
