//! The end of a call: the response to its caller, and the records of it.

use steadfast_core::call::{CallResult, Provenance};

use super::driver::CallDriver;
use crate::keys::SessionId;
use crate::observe::history::FinishedCall;

impl CallDriver {
    pub(super) fn answer(&self, result: CallResult) {
        let at = self.calls.state.next_sequence();
        let limit = self.call.policy().text_limit();
        self.slot.answer(&result, self.call.request(), limit, &self.store, &self.calls.deliveries, at);
    }

    /// Informs operators, followers and hooks of the end of the call before its caller gets the response.
    pub(super) async fn notify_of_end(&mut self, result: &CallResult) {
        self.tell();
        if let Some(unknown) = self.unnotified.take()
            && result.is_unknown_outcome()
        {
            let about = self.about();
            self.calls.telemetry.notify_of_unknown(&about, &unknown);
        }
        if let (Some((_, entered)), Err(failure)) = (&self.entered, &result.outcome)
            && result.is_refused_for_all()
        {
            entered.refused(failure);
        }
        if result.attempts == 0 {
            let code = result.outcome.as_ref().err().map(|failure| failure.code);
            self.calls.hooks.short_circuit(&self.envelope, code).await;
        }
    }

    /// Records the end of the call and sends the response to its caller.
    pub(super) fn finish(self, result: &CallResult) {
        let now = self.calls.clock.now();
        self.calls.admin.trips.record(&self.envelope, &self.call, result, now);
        self.cells.record_end(&self.call, result, now);
        self.calls.telemetry.finished(|| self.about(), result);
        let hint = self.envelope.transport.circuit_breaker_hint;
        let is_read = result.outcome.is_ok() && result.attempts > 0 && result.provenance == Provenance::Fresh;
        if is_read && !self.looks_into.is_empty() {
            let session = SessionId::of(self.call.request());
            self.calls.verifications.read_succeeded(&session, &self.looks_into);
        }
        if let Some(record) = self.call.failure_record(result, self.calls.clock.now()) {
            self.calls.failures.add(record);
        }
        let limit = self.call.policy().text_limit();
        let finished = FinishedCall::new(self.call, self.trail, self.surface, hint, result);
        let at = self.calls.state.next_sequence();
        if let Some(owner) = self.unsaved {
            self.calls.deliveries.hand_over_unsaved(owner, at);
        }
        self.slot.answer(result, finished.request(), limit, &self.store, &self.calls.deliveries, at);
        self.calls.history.add(finished);
    }
}
