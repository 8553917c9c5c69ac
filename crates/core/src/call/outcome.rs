//! Conversion of a call result into its envelope, and into the text that a model reads.

use std::borrow::Cow;

use steadfast_json::RawJson;

use super::request::CallRequest;
use super::step::{CallResult, Provenance, RecordStatus, RetriedAttempt};
use crate::code::{CallStatus, Code};
use crate::dedupe::CallFailure;
use crate::envelope::{self, CacheHit, CacheMatch, ErrorBody, ResultEnvelope};
use crate::id::{RequestId, ToolName};
use crate::millis;
use crate::output::ToolOutput;

/// Metadata member that carries the guard's remarks on a success.
const REMARKS: &str = "dev.steadfast/remarks";

impl CallResult {
    /// Returns the envelope that carries this result. The guard's remarks are part of the message of a failure, and of
    /// the metadata of a success: the tool's own output is not changed.
    pub fn to_envelope(&self, request: &CallRequest) -> ResultEnvelope {
        let turn = request.turn.clone();
        ResultEnvelope { turn, ..self.to_envelope_of(&request.id, &request.tool.tool) }
    }

    /// Returns the envelope for a request of which only the id and the tool are known.
    pub fn to_envelope_of(&self, request: &RequestId, tool: &ToolName) -> ResultEnvelope {
        ResultEnvelope {
            request_id: request.clone(),
            status: self.status(),
            from_cache: matches!(self.provenance, Provenance::Replayed { .. }),
            cache: self.cache_hit(),
            tool_name: tool.clone(),
            duration_ms: millis(self.took),
            attempts: self.attempts,
            output: match &self.outcome {
                Ok(output) => Some(self.remarked(output)),
                Err(failure) => failure.output.clone(),
            },
            error: self.outcome.as_ref().err().map(|failure| self.error(failure)),
            retried_by: self.retries.iter().map(RetriedAttempt::on_the_wire).collect(),
            recorded: match self.recorded {
                RecordStatus::NotAsked => None,
                RecordStatus::Yes => Some(true),
                RecordStatus::No => Some(false),
            },
            escalated: self.escalated,
            turn: None,
            shortened: None,
        }
    }

    /// Returns the status of the call, from the code of its failure and from what happened before it.
    pub fn status(&self) -> CallStatus {
        match &self.outcome {
            Ok(_) => CallStatus::Success,
            // The call was tried, and the breaker opened before the next attempt.
            Err(CallFailure { code: Code::CircuitOpen, .. }) if self.attempts > 0 => {
                CallStatus::RetryExhausted
            }
            Err(failure) => failure.code.status(failure.retriable),
        }
    }

    /// Returns the text that a model gets beside the tool's own output: the reason for a failure, and the guard's
    /// remarks. Returns `None` for a success without remarks.
    pub fn model_text(&self) -> Option<Cow<'_, str>> {
        let message = self.outcome.as_ref().err().map(|failure| &*failure.message);
        let mut lines = message.into_iter().chain(self.remarks.iter().map(|remark| &*remark.text));
        let first = lines.next()?;
        Some(lines.fold(Cow::Borrowed(first), |text, line| Cow::Owned(format!("{text}\n{line}"))))
    }

    fn cache_hit(&self) -> Option<CacheHit> {
        match &self.provenance {
            Provenance::Fresh => None,
            Provenance::Replayed { age, fingerprint, .. } => Some(CacheHit {
                matched_on: if self.was_followed() { CacheMatch::Inflight } else { CacheMatch::Completed },
                age_ms: millis(*age),
                key_fingerprint: fingerprint.clone(),
            }),
        }
    }

    fn error(&self, failure: &CallFailure) -> ErrorBody {
        ErrorBody {
            code: failure.code,
            message: self.model_text().map(|text| self.with_resolve_command(text)).unwrap_or_default(),
            retriable: failure.retriable,
            terminal: failure.terminal,
            breaker_state: self.breaker,
            rule: failure.rule.as_ref().map(ToString::to_string),
            verify: failure.verify.as_ref().map(ToString::to_string),
            retry_after_ms: failure.retry_after.map(millis),
            observed: self.unknown.map(|unknown| unknown.observed),
            is_final: self.unknown.map(|unknown| unknown.is_final),
        }
    }

    /// Adds the command that resolves an unknown outcome. It names one run, so it is added here: two equal failures
    /// stay equal for the guard.
    fn with_resolve_command(&self, text: Cow<'_, str>) -> String {
        match (&self.outcome, &self.receipt) {
            (Err(CallFailure { code, .. }), Some(receipt)) if code.is_unknown_outcome() => {
                let name = receipt.key.fingerprint();
                format!(
                    "{text}. An operator can resolve it with `steadfast resolve {name} --ran` or `--did-not-run`"
                )
            }
            (Err(_) | Ok(_), Some(_) | None) => text.into_owned(),
        }
    }

    /// Returns the remarks that Steadfast adds to the tool's output.
    pub fn remarks(&self) -> impl Iterator<Item = Cow<'static, str>> {
        let note = self.note.map(Cow::Borrowed);
        note.into_iter().chain(self.remarks.iter().map(|remark| remark.text.clone()))
    }

    /// Returns an output with the remarks in its metadata. Metadata that is not an object stays as it is.
    fn remarked(&self, output: &ToolOutput) -> ToolOutput {
        let mut output = output.clone();
        let texts: Vec<String> =
            self.remarks().map(|text| RawJson::string(&text).as_str().to_owned()).collect();
        if texts.is_empty() {
            return output;
        }
        let member = format!("\"{REMARKS}\":[{}]", texts.join(","));
        let members = output.metadata.as_ref().map_or("{}", RawJson::as_str).trim_start().strip_prefix('{');
        if let Some(members) = members {
            let comma = if members.trim_start().starts_with('}') { "" } else { "," };
            output.metadata = Some(RawJson::from_trusted(format!("{{{member}{comma}{members}")));
        }
        output
    }
}

impl RetriedAttempt {
    fn on_the_wire(&self) -> envelope::RetryEntry {
        envelope::RetryEntry {
            attempt: self.attempt,
            delay_ms: millis(self.delay),
            reason_code: self.reason.to_string(),
            latency_ms: millis(self.latency),
        }
    }
}
