//! State machine of a call: each event returns one step, and adds notices for logs, metrics and audit.
//!
//! The order of the stages is part of the contract. `machine.rs` has the table of all states and events. Each stage has
//! a file:
//!
//! 1. **Refusals without a wait** (deadline, arguments, guard, breaker, trust). Before it refuses, the call looks up
//!    its idempotency key: a finished result is still replayed, and a call in flight is still waited for. Nothing is
//!    claimed on this path. (`arrival.rs`)
//! 2. **Claim**, so that everything after it happens once. (`claim.rs`)
//! 3. **Approval**, if required. After the claim, so that duplicates wait for one decision. (`approvals.rs`)
//! 4. **Admission**: limits and breaker, before every attempt. (`admission.rs`)
//! 5. **Attempt**, bounded in time. (`attempt.rs`)
//! 6. **Classify**, and record into the breaker: each attempt counts. (`attempt_end.rs`)
//! 7. **Retry or stop.** (`retry.rs`; `final_failure.rs` has the failure that the caller gets)
//! 8. **Save** under the fencing token, or release (`completion.rs`). Trust and guard count the finished call once
//!    (`counting.rs`). `settling.rs` handles an unknown outcome. A call that finds one waits for its end
//!    (`AwaitingEnd`) if its time allows.
//!
//! ```text
//!            ┌──────── refused, nothing found ─────────────────────────────┐
//!            │                                                             ▼
//!  begin ─▶ Looking ─▶ Following ◀─┐                                   Finished
//!    │                   │ woke    │ held by another                       ▲
//!    ├─▶ Claiming ◀──────┘─────────┘                                       │
//!    │      │ mine                                                         │
//!    │      ├─▶ AwaitingApproval ─▶ Spending ─▶ Starting ─┐                │
//!    │      │                                             ▼                │
//!    └──────┴────────────────▶ (Probing ─▶) Attempting ─▶ Saving ──────────┤
//!                                  ▲            │  └────▶ Releasing ───────┘
//!                                  │            ▼
//!                       Renewing ◀─┴─────── BackingOff
//! ```
//!
//! `answered.rs` counts a call that its host answered without asking. It has no states.
//!
//! The machine serves a driver that runs the tool and a driver whose host runs it: `begin`, `report`
//! ([`CallEvent::Ran`]), `heartbeat` ([`CallEvent::Progressed`]), `cancel` ([`CallEvent::Cancelled`]).

mod accounting;
mod admission;
mod answered;
mod approvals;
mod arrival;
mod attempt;
mod attempt_end;
mod caller;
mod cancellation;
mod claim;
mod completion;
mod context;
mod counting;
mod failure_record;
mod failure_response;
mod final_failure;
mod grant;
mod in_flight;
mod intake;
mod machine;
mod messages;
mod notice;
mod outcome;
mod recorded_attempt;
mod refusal;
mod request;
mod result;
mod retry;
mod settling;
mod settling_outcome;
mod shadow;
mod state;
mod step;
mod tickets;

pub use answered::HostAnswer;
pub use context::CallMechanisms;
pub use intake::IntakeContext;
pub use machine::CallMisuse;
pub use notice::{CallNotice, FailedAttempt, ShadowDecision};
pub use recorded_attempt::{RecordedAttempt, RecordedFailure, RecordedFailureKind};
pub use request::{
    AttemptEndVisibility, CallId, CallRequest, CallerHints, CallerKeyScope, CallerPatience, Deduplication,
    EqualCallPolicy, RunnerKind, UpstreamKey,
};
pub use state::Call;
pub use step::{
    ApprovalOutcome, ApprovalRequest, AttemptCommand, AttemptReport, BreakerScope, CallEvent, CallResult,
    CutReason, DeferredWrite, NextStep, OtherWaiters, Provenance, RecordStatus, ResultStage, RetriedAttempt,
    StoreFault, UnknownOutcomeInfo, UpstreamSignal, WakeReason,
};

#[cfg(test)]
mod tests;
