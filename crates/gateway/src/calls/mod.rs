//! One call through the gateway, from the request of a client to its response.
//!
//! | module | purpose |
//! | --- | --- |
//! | `envelope`, `request_name` | the envelope of a call, and the name of its request |
//! | `upstream_tool` | the upstream tool that the engine runs |
//! | `approval` | approval requests to the user of the client |
//! | `responses` | the MCP response for the result of a call |
//! | `large_results/` | result texts that exceed the limit of their tool |
//! | `direct` | calls of callers without MCP |

pub(crate) mod approval;
pub(crate) mod direct;
pub(crate) mod envelope;
pub(crate) mod large_results;
pub(crate) mod request_name;
pub(crate) mod responses;
pub(crate) mod upstream_tool;
