//! Requests for approval to functions of JavaScript.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use steadfast::admin::approval::{ApprovalDecision, ParkedRequest, ParkedRequestId};
use steadfast::admin::{ApprovalPrompter, ClientDecision, ClientDecisionFuture};
use steadfast_api::queries::{ApprovalRequest, ApprovalView};
use tokio::sync::oneshot;

use crate::environment::{Environment, Recipient};

/// A function of JavaScript that asks a user for approval.
pub(crate) struct HostPrompter {
    pub(crate) environment: Arc<Environment>,
    /// The call that asks.
    pub(crate) to: Recipient,
}

/// A request that JavaScript has not answered yet.
pub(crate) struct PendingPrompt {
    decided: oneshot::Sender<ClientDecision>,
}

impl PendingPrompt {
    /// Answers the request. `None` if no user could be asked.
    pub(crate) fn decide(self, decision: Option<ApprovalDecision>) {
        // The receiver is gone if the decision is no longer needed.
        let _ = self.decided.send(decision.map_or(ClientDecision::Unavailable, ClientDecision::Decided));
    }
}

#[derive(Serialize)]
struct PromptMessage {
    prompt: u64,
    request: ApprovalView,
}

impl ApprovalPrompter for HostPrompter {
    fn ask(&self, id: ParkedRequestId, request: ParkedRequest) -> ClientDecisionFuture {
        let (decided, decision) = oneshot::channel();
        let (environment, to) = (self.environment.clone(), self.to);
        let Some(prompt) = environment.add_prompt(PendingPrompt { decided }) else {
            return Box::pin(std::future::ready(ClientDecision::Unavailable));
        };
        let request = ApprovalView { id: id.0, request: ApprovalRequest::from(request) };
        let text = serde_json::to_string(&PromptMessage { prompt, request }).unwrap_or_default();
        let registration = PromptRegistration { environment, to, prompt };
        registration.environment.send(to, text);
        Box::pin(async move {
            let decision = decision.await;
            drop(registration);
            decision.unwrap_or(ClientDecision::Unavailable)
        })
    }
}

impl fmt::Debug for HostPrompter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPrompter").field("to", &self.to).finish_non_exhaustive()
    }
}

/// A request in the hands of JavaScript, which learns when the decision is no longer needed.
struct PromptRegistration {
    environment: Arc<Environment>,
    to: Recipient,
    prompt: u64,
}

impl Drop for PromptRegistration {
    fn drop(&mut self) {
        if self.environment.take_prompt(self.prompt).is_some() {
            self.environment.send(self.to, format!("{{\"promptOver\":{}}}", self.prompt));
        }
    }
}
