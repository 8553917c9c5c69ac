//! Deduplication of calls: detects duplicates, tracks the owner of each claim, and decides the response to a duplicate.
//!
//! A mistake here costs money, so this module is a set of tables. Each function is the decision of
//! **one atomic store operation**: one SQLite transaction, one Redis script, or one shard lock. The store finds the
//! records, calls the function and applies the write that it returns, all in one operation. It never acts on an
//! earlier lookup.
//!
//! | operation | decided by |
//! | --- | --- |
//! | claim, lookup, and the wake-up of a waiter | [`decide_claim`] |
//! | mark `started` before an attempt | [`decide_start`] |
//! | renew the lease | [`decide_renew`] |
//! | save a result or an unknown outcome | [`decide_save`] |
//! | release: the call never ran, or may run again | [`decide_release`] |
//! | the response has reached its caller | [`decide_delivered`] |
//! | an operator resolves an unknown outcome | [`decide_resolve`] |
//! | a run whose owner is gone is inspected | [`decide_abandoned`] |
//!
//! Six ideas carry the tables:
//!
//! - **The owner is the fencing token.** Every claim has its own token. A caller that is no longer the owner writes
//!   nothing.
//! - **Delivery is a fact about one response, not about a key.** A response that did not arrive is replayed. One that
//!   arrived is history, and an equal call without a key is a new intent.
//! - **Waiters take the result they find.** A call that waited for a run gets its result, delivered or not.
//! - **Call ids have their own records.** Equal arguments are only an index to the newest one.
//! - **No guessing.** A run that may have happened and must not happen twice becomes `unknown`, and its callers get
//!   that as their response.
//! - **Nothing counts before the end.** While the attempt can still take effect, its callers are only asked to wait.
//!   The response after that is final: it lets them check the outcome and call again.

mod address;
mod claim;
mod claim_table;
mod context;
mod delivery;
mod format;
mod loss;
mod marker;
mod owner;
mod record;
mod records;
mod rules;
mod unknown_outcome;

pub use address::RecordAddress;
pub use claim::{
    Claim, ClaimDecision, ClaimIntent, ClaimRole, ClaimVerdict, DedupeDecision, FoundRecords, LocalKnowledge,
    ReplayReason, ReplayedResult, SettleStatus, UnknownOutcomeStatus,
};
pub use claim_table::decide_claim;
pub use context::CallContext;
pub use delivery::{Delivery, DeliverySignal};
pub use format::{FORMAT, UnreadableRecord};
pub use loss::{Commit, CommitHistory, CommitNote, CommitNoteState, LossCause, RecordLoss, detect_loss};
pub use marker::{MarkerStatus, MarkerWatch, StoreMarker};
pub use owner::{
    RecordAbsence, ReleaseRequest, RenewVerdict, Resolution, ResolutionRequest, ResolveVerdict, SaveRequest,
    SaveVerdict, StartVerdict, decide_abandoned, decide_delivered, decide_release, decide_renew,
    decide_resolve, decide_save, decide_start,
};
pub use record::{
    AttemptRecord, CallFailure, ClaimOwner, DedupeRecord, DedupeState, DeliveryReceipt, IndexUpdate, Lease,
    LeaseOwnerState, ProcessIdentity, RecordOrigin, RecordWrite, RunOutcome, SettleDelay, SettleTime,
    UnknownOutcome, UnknownOutcomeReason, UnknownOutcomeReport,
};

pub use records::MemoryRecords;
pub use rules::DedupeRules;

#[cfg(test)]
mod tests;
