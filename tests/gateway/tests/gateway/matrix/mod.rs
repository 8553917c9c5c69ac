//! The acceptance matrix of tool reliability (TR-2 to TR-11, TR-13 to TR-15), as an MCP client sees it. Each test shows
//! its row, and the state that must not have changed.

mod breaker;
mod duplicates;
mod retries;
mod telemetry;

/// No approval is requested and no call is stopped, except for the subject of the test.
const PLAIN: &str = concat!("guard.mode = \"off\"\ntrust.mode = \"off\"\n", short_settle_times!());
