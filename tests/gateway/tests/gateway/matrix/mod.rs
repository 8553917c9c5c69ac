//! The acceptance matrix of tool reliability (TR-2 to TR-11, TR-13 to TR-15), as a client of MCP sees it: each test shows its
//! row, and with it what the row says must not be lost.

mod around;
mod breaker;
mod duplicates;
mod retries;

/// Nobody asks and nobody is stopped for anything but what a test is about.
const PLAIN: &str = concat!("guard.mode = \"off\"\ntrust.mode = \"off\"\n", soon_settled!());
