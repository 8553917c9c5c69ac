//! Which call is a duplicate, who holds it, and what a duplicate gets.
//!
//! This is the part where a mistake costs someone money, so it is a set of tables: each function here is the
//! decision of **one atomic store operation** (one SQLite transaction, one Redis script, one shard lock). The
//! store finds the records, asks the function, and writes what it says, all in one; it never acts on an
//! earlier look-up.
//!
//! | operation | decided by |
//! | --- | --- |
//! | claim, look-up, and what a waiter does when it wakes | [`decide_claim`] |
//! | mark `started` before an attempt | [`decide_start`] |
//! | renew the lease | [`decide_renew`] |
//! | save an answer, or that nobody knows | [`decide_save`] |
//! | release: it never ran, or may run again | [`decide_release`] |
//! | the answer has reached its caller | [`decide_delivered`] |
//! | an operator settles an unknown outcome | [`decide_resolve`] |
//! | somebody looks at a run whose holder is gone | [`decide_abandoned`] |
//!
//! Six ideas carry the tables:
//!
//! - **The owner is the fence.** Every claim has a token of its own; whoever is not the owner any more
//!   writes nothing.
//! - **Delivered is a fact about an answer, not about a key.** An answer that did not arrive is given again;
//!   one that did is history, and an equal call without a key is a new intent.
//! - **Waiters take what they find.** Who waited for a run gets its answer, delivered or not.
//! - **Call ids have their own records**; equal arguments are only an index to the newest one.
//! - **No guessing.** A run that may have happened and must not happen twice becomes `unknown`, and that is
//!   what its callers are told.
//! - **Nothing counts before the end.** As long as the attempt may still take effect, its callers are only asked to wait.
//!   What they are told after that is final, and lets them look and call again.

mod claim;
mod delivery;
mod format;
mod loss;
mod marker;
mod owner;
mod record;
mod records;

pub use claim::{
    Address, Claim, ClaimDecision, ClaimVerdict, Decided, End, Found, Intent, Known, Replay, ReplayReason,
    Role, Rules, Unsettled, decide_claim,
};
pub use delivery::{Delivery, Heard};
pub use format::{FORMAT, UnreadableRecord};
pub use loss::{Commit, CommitNote, CommitsFound, LossCause, NoteFound, RecordLoss, detect_loss};
pub use marker::{Marker, MarkerWatch, Seen};
pub use owner::{
    Absence, Release, RenewVerdict, Resolution, Resolve, ResolveVerdict, Save, SaveVerdict, StartVerdict,
    decide_abandoned, decide_delivered, decide_release, decide_renew, decide_resolve, decide_save,
    decide_start,
};
pub use record::{
    AttemptFact, Ending, Failure, IndexMove, Lease, LeaseSight, Observed, Origin, Owner, Process, Receipt,
    Record, RecordState, RunId, Settles, SettlesIn, UnknownEnding, UnknownOutcome, Write,
};

pub use records::Records;

#[cfg(test)]
mod tests;
