//! The tools that the gateway itself offers to clients.
//!
//! | module | purpose |
//! | --- | --- |
//! | `reliability` | the trust status of the other tools, and the reset of trust |
//! | `turn` | several calls that depend on each other |

pub(crate) mod reliability;
pub(crate) mod turn;

/// The built-in tools that clients see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuiltinTools {
    /// The status and the reset of trust.
    pub reliability: bool,
    /// The tool that runs several calls.
    pub turns: bool,
}

impl BuiltinTools {
    /// Returns the tool definitions for `tools/list`.
    pub(crate) fn definitions(self) -> Vec<&'static str> {
        let reliability = if self.reliability { reliability::definitions() } else { &[] };
        reliability.iter().copied().chain(self.turns.then_some(turn::DEFINITION)).collect()
    }
}
