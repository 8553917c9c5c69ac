//! Every decision of Steadfast, without any action.
//!
//! This crate decides whether a call may run, is a duplicate, is tried again or needs approval, whether a circuit
//! breaker is open, and whether the model repeats itself. It cannot act: it has no clock, no randomness of its own, no
//! IO and no async. `now`, seeds and identifiers are arguments, and the same inputs give the same outputs, byte for
//! byte. Everything that it keeps is bounded.
//!
//! The entry point is [`call::Call`]: each event returns one step. Smaller state machines can be used on their own:
//! [`breaker::CircuitBreaker`], [`guard::LoopGuard`], [`trust::TrustLedger`], [`retry`], [`classify`], [`dedupe`],
//! [`watchdog`], [`restart`]. Turns and replays are decided the same way in `steadfast-turn` and `steadfast-replay`.

pub mod approval;
pub mod breaker;
pub mod call;
pub mod classify;
pub mod code;
pub mod dedupe;
pub mod envelope;
pub mod guard;
pub mod id;
pub mod key;
pub mod large_result;
pub mod limit;
pub mod notification;
pub mod output;
pub mod policy;
pub mod report;
pub mod restart;
pub mod retry;
pub mod server_name;
pub mod stats;
pub mod template;
mod time;
pub mod trust;
pub mod verification;
pub mod watchdog;

pub use time::{Timestamp, millis};
