//! The call and result envelopes: the input and output format of every surface.
//!
//! [`CallEnvelope::parse`] reads a call. It returns a call that is valid in every field, or all errors at once, each
//! with the path to its field. Invalid input never becomes a call: there is nothing to record and nothing to retry.
//!
//! Required are `contractVersion`, `requestId`, `toolName`, `toolNamespace`, `target` with `sessionKey` and `actorId`,
//! and `payload` with `version` and `params`. Everything else may be absent, including whole objects such as
//! `transport`. For these, `null` counts as absent. Unknown fields are kept and ignored, or refused if the surface is
//! strict.

mod baggage;
mod call;
mod context;
pub(crate) mod parse;
#[cfg(feature = "schema")]
mod plan_schema;
mod result;
#[cfg(test)]
mod tests;
mod turn;

pub use baggage::{read_baggage, write_baggage};
pub use call::{
    BreakerHint, CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion,
    EnvelopeTrace, ExtraFields, IdempotencyKey, PayloadVersion, RetryLimits, TransportOptions, TurnControl,
};
pub use parse::{EnvelopeError, EnvelopeProblem, UnknownFieldPolicy};
pub use result::{CacheHit, CacheMatch, ErrorBody, ResultEnvelope, RetryEntry};
pub use turn::TurnEnvelope;

/// The maximum number of tags of a call.
pub const MAX_TAGS: usize = 64;

/// The maximum number of baggage entries of a call, as in W3C Baggage.
pub const MAX_BAGGAGE_ENTRIES: usize = 64;

/// The maximum bytes of baggage of a call, names and values together, as in W3C Baggage.
pub const MAX_BAGGAGE_BYTES: usize = 8192;
