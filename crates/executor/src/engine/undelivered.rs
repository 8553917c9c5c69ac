//! Responses that never arrived, for clients that come back over another connection without calling again.

use steadfast_core::call::CallResult;
use steadfast_core::dedupe::{
    Claim, ClaimOwner, ClaimVerdict, DedupeRecord, DedupeRules, LocalKnowledge, ReleaseRequest,
};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{RequestId, SessionKey};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::EnforcementMode;
use steadfast_store::{RecordFilter, RecordPage, StoreError};

use super::api::Engine;
use crate::call::slot::CallResponse;
use crate::keys::SessionId;
use crate::state::next_call_number;
use crate::writes::deliveries::OutcomeRecipient;

/// A response that never arrived.
#[derive(Clone, Debug)]
pub struct UndeliveredResponse {
    /// The request that it responds to.
    pub request: RequestId,
    /// The response. Mark its [arrival](Engine::mark_delivered) like that of any other.
    pub called: CallResponse,
}

/// Number of records to read at once. Each may hold a whole response.
const PAGE: usize = 32;
/// Maximum number of pages to read.
const MOST_PAGES: usize = 256;
/// Total size of responses after which the rest waits for the next time.
const MOST_BYTES: usize = 8 << 20;

impl Engine {
    /// Returns the responses of a session that never arrived. `envelope_for` selects the records: it returns an envelope
    /// of that tool for those to return, and the envelope determines their policy. A run in flight has no response yet.
    /// A run that is safe to repeat has none until it is called again.
    pub async fn undelivered(
        &self,
        session: &SessionKey,
        envelope_for: impl Fn(&DedupeRecord) -> Option<CallEnvelope>,
    ) -> Vec<UndeliveredResponse> {
        let selection = RecordFilter { session: Some(session.clone()), ..RecordFilter::default() };
        let (mut all, mut after, mut bytes) = (Vec::new(), None, 0);
        for _ in 0..MOST_PAGES {
            let page = RecordPage { after, limit: PAGE };
            let records = match self.inner.calls.store.records(&selection, page).await {
                Ok(records) => records,
                Err(error) => {
                    self.inner.calls.store_trouble(&error);
                    break;
                }
            };
            after = records.last().map(|record| record.key);
            let is_last = records.len() < PAGE;
            for record in records {
                let Some(envelope) = envelope_for(&record).filter(|_| self.is_owed(&record)) else {
                    continue;
                };
                match self.response_for(&record, &envelope).await {
                    Ok(Some(called)) => {
                        bytes += called.result.output.as_ref().map_or(0, ToolOutput::len);
                        all.push(UndeliveredResponse { request: record.request, called });
                    }
                    Ok(None) => {}
                    Err(error) => self.inner.calls.store_trouble(&error),
                }
            }
            if is_last || bytes > MOST_BYTES {
                break;
            }
        }
        all
    }

    /// Returns true if no caller is known to have the response.
    fn is_owed(&self, record: &DedupeRecord) -> bool {
        let receipt = record.receipt();
        record.delivered.is_none() && !self.inner.calls.deliveries.has_arrived(&receipt)
    }

    /// Returns the response for a caller that waited for this record.
    async fn response_for(
        &self,
        record: &DedupeRecord,
        envelope: &CallEnvelope,
    ) -> Result<Option<CallResponse>, StoreError> {
        let Ok(policy) = self.policy_of(envelope) else { return Ok(None) };
        if policy.modes.dedupe != EnforcementMode::Enforce {
            return Ok(None);
        }
        let (calls, call) = (&self.inner.calls, next_call_number());
        let owner = ClaimOwner { process: calls.state.process.clone(), call, claim: 1 };
        let claim = Claim::to_await_result(record, owner, DedupeRules::from(&*policy), calls.store.now());
        let Some(claim) = claim else { return Ok(None) };
        let known =
            LocalKnowledge { delivered: calls.deliveries.known_to(&claim), ..LocalKnowledge::default() };
        let verdict = calls.store.claim(&claim, &known).await?;
        if let ClaimVerdict::Acquired(given) = &verdict {
            // The record has gone, and no run is wanted here.
            let release = ReleaseRequest { key: given.key, index: given.index, owner: given.owner.clone() };
            calls.store.release(&release).await?;
        }
        Ok(CallResult::from_verdict(verdict, &policy).map(|result| CallResponse {
            result: result.to_envelope_of(&record.request, &record.tool.tool),
            delivery: result.receipt.clone().map(|receipt| {
                let recipient = result.is_unknown_outcome().then(|| OutcomeRecipient {
                    session: SessionId { tenant: record.tenant.clone(), session: record.session.clone() },
                    server: record.tool.namespace.clone(),
                });
                calls.deliveries.hand_over(
                    receipt,
                    calls.store.clone(),
                    recipient,
                    calls.state.next_sequence(),
                )
            }),
            remarks: result.remarks().collect(),
            verdict: result.guard_verdict(),
            text_limit: policy.text_limit(),
        }))
    }
}
