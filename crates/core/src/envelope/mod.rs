//! The call and result envelopes: what comes in and what goes out, on every surface alike.
//!
//! A call is read by [`CallEnvelope::parse`], which either gives a call that is right in every field, or
//! everything that is wrong with it at once, each mistake with the path to its field. A call that cannot be
//! read never becomes a call: there is nothing to record and nothing to retry.
//!
//! What has to be there is `contractVersion`, `requestId`, `toolName`, `toolNamespace`, `target` with
//! `sessionKey` and `actorId`, and `payload` with `version` and `params`. Everything else may be absent, also
//! whole objects such as `transport`; `null` counts as absent there. Fields that we do not know are kept
//! and ignored, or refused where the surface is strict.

mod baggage;
mod call;
mod context;
pub(crate) mod parse;
mod result;
#[cfg(test)]
mod tests;
mod turn;

pub use baggage::{read_baggage, write_baggage};
pub use call::{
    BreakerHint, CallEnvelope, CallHints, ContractVersion, Control, IdempotencyKey, Payload, PayloadVersion,
    RetryLimits, Target, Trace, Transport, TurnControl, Unknown,
};
pub use context::CallContext;
pub use parse::{EnvelopeError, Problem, UnknownFields};
pub use result::{CacheHit, ErrorBody, MatchedOn, ResultEnvelope, Retried};
pub use turn::TurnEnvelope;

/// Tags that one call may carry.
pub const MAX_TAGS: usize = 64;

/// Entries of baggage that one call may carry, as W3C Baggage has it.
pub const MAX_BAGGAGE_ENTRIES: usize = 64;

/// Bytes of baggage that one call may carry, names and values together, as W3C Baggage has it.
pub const MAX_BAGGAGE_BYTES: usize = 8192;
