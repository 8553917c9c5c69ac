//! The native part of the npm package `steadfast-node`.
//!
//! JavaScript and Rust exchange JSON texts. A function of the addon returns its answer at once if nothing has to wait.
//! Otherwise it returns nothing, and the answer comes as a message to the number that the caller gave. Nothing here
//! decides anything about a call: that is the engine.
//!
//! | module | purpose |
//! | --- | --- |
//! | `exports` | the classes and functions that JavaScript sees |
//! | `runtime` | the threads that run what has to wait |
//! | `environment` | one thread of JavaScript: its messages, and the attempts that run there |
//! | `in_place` | futures that the thread of JavaScript polls itself as long as nothing has to wait |
//! | `engines` | the engines of this process, shared by everything that opens the same state file |
//! | `call_text`, `report_text`, `step_text` | calls, reports and steps as JSON |
//! | `host_function` | tools that are functions of JavaScript, alone and in turns |
//! | `prompts` | requests for approval to functions of JavaScript |
//! | `failure` | errors as JSON |
//! | `vectors` | for the tests: the vectors that all languages share |

mod call_text;
mod engines;
mod environment;
mod exports;
mod failure;
mod host_function;
mod in_place;
mod prompts;
mod report_text;
mod runtime;
mod step_text;
#[cfg(feature = "testing")]
mod vectors;
