//! Construction of call results, and questions about them.

use std::time::Duration;

use super::messages;
use super::step::{CallResult, Provenance, RecordStatus, ResultStage, UnknownOutcomeInfo};
use crate::code::Code;
use crate::dedupe::{
    CallFailure, ClaimVerdict, DeliveryReceipt, ReplayReason, ReplayedResult, Resolution, SettleStatus,
    UnknownOutcomeStatus,
};
use crate::guard::{GuardRemark, GuardVerdict};
use crate::id::ToolRef;
use crate::output::ToolOutput;
use crate::policy::CallPolicy;

impl CallResult {
    /// Returns the response to a caller that [waits for a record](crate::dedupe::Claim::to_await_result); `None` while the
    /// run continues.
    pub fn from_verdict(verdict: ClaimVerdict, policy: &CallPolicy) -> Option<Self> {
        match verdict {
            ClaimVerdict::Replay(replay) => Some(Self::replayed(*replay, policy)),
            ClaimVerdict::Unknown(unsettled) => Some(Self::unknown(*unsettled, &[], policy)),
            ClaimVerdict::Acquired(_)
            | ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Conflict
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::StoreRecovering
            | ClaimVerdict::RecordsLost => None,
        }
    }

    /// Returns the response for a stored result.
    pub(super) fn replayed(replay: ReplayedResult, policy: &CallPolicy) -> Self {
        let outcome = match replay.answer {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(messages::result_not_kept(policy)),
            Err(failure) => Err(failure),
        };
        let provenance = Provenance::Replayed {
            reason: replay.reason,
            age: replay.age,
            fingerprint: replay.receipt.key.fingerprint(),
        };
        Self { provenance, recorded: RecordStatus::Yes, receipt: Some(replay.receipt), ..Self::bare(outcome) }
    }

    /// Returns the response for an unknown outcome.
    pub(super) fn unknown(unsettled: UnknownOutcomeStatus, reads: &[Box<str>], policy: &CallPolicy) -> Self {
        let UnknownOutcomeStatus { end, observed, details: words, output, runs_in, receipt } = unsettled;
        let unknown = messages::UnknownOutcomeMessage { end, observed, words, output, runs_in };
        let outcome = Err(messages::outcome_unknown(reads, policy, unknown));
        // Only a final response can count as delivered.
        let receipt = Some(receipt).filter(|_| end == SettleStatus::Settled);
        let unknown = Some(UnknownOutcomeInfo { observed, is_final: end == SettleStatus::Settled });
        Self { recorded: RecordStatus::Yes, receipt, unknown, ..Self::bare(outcome) }
    }

    /// Replaces an unknown outcome by the finding of a verification with this tool. The receipt is that of the record
    /// that stores the finding.
    pub fn verified(self, tool: &ToolRef, resolution: Resolution, receipt: Option<DeliveryReceipt>) -> Self {
        let Some(unknown) = self.unknown else { return self };
        let failure = match resolution {
            Resolution::Ran => messages::verified_as_run(tool),
            Resolution::DidNotRun => messages::verified_as_not_run(tool, unknown.observed),
        };
        Self { outcome: Err(failure), unknown: None, receipt, ..self }
    }

    /// Returns a result without any details.
    pub(super) fn bare(outcome: Result<ToolOutput, CallFailure>) -> Self {
        Self {
            outcome,
            stage: ResultStage::Final,
            provenance: Provenance::Fresh,
            attempts: 0,
            retries: Vec::new(),
            took: Duration::ZERO,
            recorded: RecordStatus::NotAsked,
            receipt: None,
            note: None,
            remarks: Vec::new(),
            breaker: None,
            escalated: false,
            unknown: None,
        }
    }

    /// Returns the finding of the guard about the model, from its refusal or its remarks.
    pub fn guard_verdict(&self) -> GuardVerdict {
        let refusal = self.outcome.as_ref().err();
        let refused = refusal.map(|failure| GuardVerdict::of_refusal(failure.code, &failure.message));
        self.remarks.iter().map(GuardRemark::verdict).chain(refused).max().unwrap_or_default()
    }

    /// Returns true if the call was refused without an attempt. Such a response is never stored.
    pub fn is_refused(&self) -> bool {
        let code = self.outcome.as_ref().err().map(|failure| failure.code);
        self.attempts == 0 && code.is_some_and(|code| code.is_refusal() && code != Code::Cancelled)
    }

    /// Returns true if the response says that the outcome of the call is unknown.
    pub fn is_unknown_outcome(&self) -> bool {
        self.outcome.as_ref().is_err_and(|failure| failure.code.is_unknown_outcome())
    }

    /// Returns true if calls that waited for this one are refused too: the reason is not a limit of its own caller.
    pub fn is_refused_for_all(&self) -> bool {
        let code = self.outcome.as_ref().err().map(|failure| failure.code);
        self.is_refused() && code != Some(Code::DeadlineExceeded)
    }

    /// Returns true if the result comes from a run that was in flight when the call arrived.
    pub fn was_followed(&self) -> bool {
        matches!(self.provenance, Provenance::Replayed { reason: ReplayReason::Waited, .. })
    }
}
