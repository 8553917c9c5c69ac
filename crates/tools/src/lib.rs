//! Tools that are no MCP servers: one request over plain HTTP, or a command.
//!
//! Both are shells of the engine like any other tool: they ask once, say what came of it and how far it got, and decide
//! nothing. Whether an attempt is made at all, how long it may take and whether there is another one is said in the policy of
//! the tool, `[tools."http/NAME"]` or `[tools."command/NAME"]`, and decided by the core.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`Toolbox`] | all of them, made from a configuration and found by name |
//! | [`HttpTool`] | asks over HTTP; `http/request` makes a request of parameters |
//! | [`CommandTool`] | runs a program, on a leash |
//! | `said` | what both make of what they hear |

mod command;
mod http;
mod said;
mod toolbox;

pub use self::command::CommandTool;
pub use self::http::HttpTool;
pub use self::toolbox::{PlainTool, Toolbox, Unusable, UnusableTool};

/// The longest answer of a tool: as long as the gateway takes them from servers. A longer one is a fault.
pub const LONGEST_ANSWER: usize = steadfast_mcp::lines::LONGEST_LINE;
