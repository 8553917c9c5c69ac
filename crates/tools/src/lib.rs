//! Tools that are not MCP servers: an HTTP request, or a command.
//!
//! Like any other tool of the engine, they make one attempt and report its result and how far it got. They decide
//! nothing. The policy of the tool, `[tools."http/NAME"]` or `[tools."command/NAME"]`, decides whether an attempt is
//! made, its timeout, and its retries.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`Toolbox`] | all tools of a configuration, by name |
//! | [`HttpTool`] | sends an HTTP request; `http/request` builds it from parameters |
//! | [`CommandTool`] | runs a program, on a leash |
//! | `output` | converts the output of both |

mod command;
mod http;
mod output;
mod problem;
mod toolbox;

pub use self::command::CommandTool;
pub use self::http::HttpTool;
pub use self::problem::{UnusableReason, UnusableTool};
pub use self::toolbox::{PlainTool, Toolbox};

/// Maximum length of a tool's output, the same as for servers of the gateway. Longer output is a fault.
pub const LONGEST_ANSWER: usize = steadfast_mcp::lines::LONGEST_LINE;
