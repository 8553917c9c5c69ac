//! The response to a call, and the state that a call shares with its caller.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use steadfast_core::call::{CallRequest, CallResult};
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_core::guard::GuardVerdict;
use steadfast_core::policy::{ArgumentCheck, CallPolicy};
use steadfast_store::StateStore;
use tokio::sync::Notify;

use super::signals::{AttemptCancellation, CallSignals};
use super::tool_info::{ArgumentAssistance, ToolInfo};
use crate::keys::SessionId;
use crate::writes::deliveries::{Deliveries, DeliveryHandle, OutcomeRecipient};

/// The response to a call, with what the surface needs to deliver it.
#[derive(Clone, Debug)]
pub struct CallResponse {
    /// The result.
    pub result: ResultEnvelope,
    /// Handle for marking the response as [delivered](crate::Engine::mark_delivered), where that matters.
    pub delivery: Option<DeliveryHandle>,
    /// Remarks of the loop guard for the model, one paragraph each. The error text of the result contains them too.
    /// They are for surfaces that pass the tool's own output on unchanged.
    pub remarks: Vec<Cow<'static, str>>,
    /// The finding of the loop guard, for hosts that can end a turn.
    pub verdict: GuardVerdict,
    /// Maximum bytes of output text to give to the caller, if limited. The output here is complete: a surface that
    /// stores the rest for its caller shortens it.
    pub text_limit: Option<usize>,
}

/// State that a call shares with its caller: the response and the signals.
#[derive(Debug, Default)]
pub(crate) struct CallerSlot {
    pub(crate) control: CallSignals,
    pub(crate) unwanted: AttemptCancellation,
    answer: Mutex<Option<CallResponse>>,
    given: AtomicBool,
    pub(crate) answered: Notify,
    pub(crate) left_alone: AtomicBool,
    assistance: OnceLock<ArgumentAssistance>,
}

impl CallerSlot {
    /// Sends the response to the caller, once. `at` is its sequence number.
    pub(crate) fn answer(
        &self,
        result: &CallResult,
        request: &CallRequest,
        text_limit: Option<usize>,
        store: &Arc<dyn StateStore>,
        deliveries: &Deliveries,
        at: u64,
    ) {
        if !self.given.load(Ordering::Acquire) {
            let recipient = result.is_unknown_outcome().then(|| OutcomeRecipient {
                session: SessionId::of(request),
                server: request.tool.namespace.clone(),
            });
            let receipt = result.receipt.clone();
            let arrival = receipt.map(|receipt| deliveries.hand_over(receipt, store.clone(), recipient, at));
            let remarks = result.remarks().collect();
            let verdict = result.guard_verdict();
            let mut result = result.to_envelope(request);
            if let Some(assistance) = self.assistance.get() {
                assistance.add_to(&mut result);
            }
            self.give(CallResponse { result, delivery: arrival, remarks, verdict, text_limit });
        }
    }

    /// Sets the explanation to add for the model if the arguments are refused, if the policy asks for that.
    pub(crate) fn assist(
        &self,
        envelope: &Arc<CallEnvelope>,
        policy: &CallPolicy,
        tool: Option<Arc<ToolInfo>>,
    ) {
        if let (ArgumentCheck::Assist, false, Some(tool)) =
            (policy.arguments, policy.modes.is_pass_through(), tool)
        {
            let put_there = policy.dedupe.key_argument.clone();
            // Each slot belongs to one call.
            let _ = self.assistance.set(ArgumentAssistance { envelope: envelope.clone(), tool, put_there });
        }
    }

    pub(crate) fn give(&self, called: CallResponse) {
        if !self.given.swap(true, Ordering::AcqRel) {
            *self.answer.lock() = Some(called);
            self.answered.notify_waiters();
        }
    }

    /// Returns true if the caller has its response.
    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Option<CallResponse> {
        if self.given.load(Ordering::Acquire) { self.answer.lock().take() } else { None }
    }
}
