//! The failure record of a call.

use super::state::Call;
use super::step::CallResult;
use crate::Timestamp;
use crate::classify::record::{FailureDetails, FailureRecord, argument_summary, detected_in};

impl Call {
    /// Returns the failure record of the call; `None` if the tool succeeded or never ran.
    pub fn failure_record(&self, result: &CallResult, now: Timestamp) -> Option<FailureRecord> {
        let severity = self.accounting.severity()?;
        let detected =
            result.outcome.as_ref().ok().and_then(|output| detected_in(output, &self.policy.classify, now));
        let failure = result.outcome.as_ref().err();
        let trouble = match (&detected, &self.trouble, failure) {
            (Some(detected), ..) => FailureDetails {
                severity,
                rule: &detected.error_type,
                message: &detected.message,
                http_status: detected.http_status,
                transient: false,
            },
            (None, Some(trouble), _) => FailureDetails {
                severity,
                rule: &trouble.rule,
                message: &trouble.message,
                http_status: trouble.http_status,
                transient: trouble.transient,
            },
            (None, None, Some(failure)) => FailureDetails {
                severity,
                rule: failure.rule.as_deref().unwrap_or(failure.code.as_str()),
                message: &failure.message,
                http_status: None,
                transient: false,
            },
            (None, None, None) => return None,
        };
        let request = &self.request;
        Some(FailureRecord {
            retries: self.attempts.saturating_sub(1),
            arguments_digest: Some(request.digest),
            argument_summary: argument_summary(&request.signature),
            domain: request.domain.clone(),
            request_id: Some(request.id.clone()),
            tool_call_id: request.tool_call.clone(),
            tenant: request.tenant.clone(),
            session: request.session.clone(),
            turn: request.turn.clone(),
            model: request.model.clone(),
            ..FailureRecord::new(request.tool.clone(), &trouble, now)
        })
    }
}
