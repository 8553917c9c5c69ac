//! The last calls of this process, step by step, and the figures of the last hour by minute. For views.
//!
//! No decision depends on it, nothing of it is stored, and it contains neither the input nor the output of calls. Facts
//! are stored unchanged, which costs a call one short lock for each. Texts are made of them and redacted on request.

mod series;
mod step;

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_core::call::{CallNotice, CallResult, Provenance};
use steadfast_core::code::{CallStatus, Code};
use steadfast_core::id::{ModelId, RequestId, SessionKey, TenantId, ToolRef};
use steadfast_core::policy::ToolClass;
use steadfast_core::{Timestamp, millis};

pub use series::{CallMinute, CallSeries, CallTally};
pub use step::{CallStep, StepTone};

use crate::observe::listener::{EngineListener, NoticeContext, RejectedCall};
use series::MinuteRing;

/// One call of this process, finished or in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallTrace {
    /// Its number in this process.
    pub call: u64,
    /// The request.
    pub request_id: RequestId,
    /// The tool.
    pub tool: ToolRef,
    /// Class of the tool.
    pub class: ToolClass,
    /// Tenant whose data it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// The model, if the host reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// Time of arrival.
    pub arrived_at_ms: Timestamp,
    /// Steps, in order.
    pub steps: Vec<CallStep>,
    /// Number of steps that were left out because there were too many.
    pub left_out: u32,
    /// End of the call. Absent while it is in flight.
    #[serde(rename = "ended", skip_serializing_if = "Option::is_none")]
    pub end: Option<CallEnd>,
}

/// End of a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallEnd {
    /// Time of the end.
    pub at_ms: Timestamp,
    /// Duration of the call.
    pub took_ms: u64,
    /// Status.
    pub status: CallStatus,
    /// The code of its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The rule that decided its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Failure message for the caller, redacted and truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of attempts.
    pub attempts: u32,
    /// True if an earlier result was replayed.
    pub replayed: bool,
}

/// A listener that remembers the last calls and the figures of the last hour. It can be queried at any time.
#[derive(Debug, Default)]
pub struct RecentActivity(Mutex<RecentCalls>);

#[derive(Debug, Default)]
struct RecentCalls {
    calls: VecDeque<RecentCall>,
    /// Number of calls that were removed before the first one.
    removed: u64,
    /// Position of each call, counted from the first call ever.
    places: HashMap<u64, u64>,
    minutes: MinuteRing,
}

/// A call, with its facts as they were reported.
#[derive(Debug)]
struct RecentCall {
    about: CallTrace,
    facts: Vec<(Timestamp, CallNotice)>,
}

/// Maximum number of calls, and of facts per call.
const MOST: usize = 1000;
const MOST_FACTS: usize = 64;
/// Maximum bytes of a failure message as it is stored and as it is shown.
const STORED_MESSAGE: usize = 4096;
const SHOWN_MESSAGE: usize = 1024;

impl RecentActivity {
    /// Returns the calls with this request id, newest first.
    pub fn of_request(&self, request: &str) -> Vec<CallTrace> {
        self.find(|call| call.about.request_id.as_str() == request)
    }

    /// Returns the calls in flight, newest first.
    pub fn running(&self) -> Vec<CallTrace> {
        self.find(|call| call.about.end.is_none())
    }

    /// Returns the figures of the last hour by minute, and the totals since the start.
    pub fn series(&self, now: Timestamp) -> CallSeries {
        self.0.lock().minutes.series(now)
    }

    fn find(&self, fits: impl Fn(&RecentCall) -> bool) -> Vec<CallTrace> {
        let recent = self.0.lock();
        let found: Vec<_> = recent
            .calls
            .iter()
            .rev()
            .filter(|call| fits(call))
            .map(|call| (call.about.clone(), call.facts.clone()))
            .collect();
        // Redaction is slow, and calls must not wait for it.
        drop(recent);
        found.into_iter().map(|(about, facts)| with_steps(about, &facts)).collect()
    }
}

fn with_steps(mut trace: CallTrace, facts: &[(Timestamp, CallNotice)]) -> CallTrace {
    trace.steps = facts.iter().filter_map(|(at, notice)| step::of(*at, notice)).collect();
    if let Some(message) = trace.end.as_mut().and_then(|end| end.message.as_mut()) {
        *message = steadfast_redact::excerpt(message, SHOWN_MESSAGE);
    }
    trace
}

impl RecentCalls {
    fn find(&mut self, call: u64) -> Option<&mut RecentCall> {
        let place = self.places.get(&call)?.checked_sub(self.removed)?;
        self.calls.get_mut(usize::try_from(place).ok()?)
    }

    fn begin(&mut self, about: &NoticeContext<'_>, at: Timestamp) {
        if self.calls.len() >= MOST
            && let Some(oldest) = self.calls.pop_front()
        {
            self.places.remove(&oldest.about.call);
            self.removed += 1;
        }
        let request = about.request;
        self.places.insert(request.number, self.removed + self.calls.len() as u64);
        let about = CallTrace {
            call: request.number,
            request_id: request.id.clone(),
            tool: request.tool.clone(),
            class: about.policy.class,
            tenant: request.tenant.clone(),
            session: request.session.clone(),
            model: request.model.clone(),
            arrived_at_ms: at,
            steps: Vec::new(),
            left_out: 0,
            end: None,
        };
        self.calls.push_back(RecentCall { about, facts: Vec::new() });
    }
}

impl EngineListener for RecentActivity {
    fn notice(&self, about: &NoticeContext<'_>, notice: &CallNotice) {
        let mut recent = self.0.lock();
        if let CallNotice::CallStarted { at } = notice {
            recent.begin(about, *at);
        }
        let Some(call) = recent.find(about.request.number) else { return };
        if call.facts.len() < MOST_FACTS {
            call.facts.push((about.at, notice.clone()));
        } else {
            call.about.left_out = call.about.left_out.saturating_add(1);
        }
    }

    fn finished(&self, about: &NoticeContext<'_>, result: &CallResult) {
        let failure = result.outcome.as_ref().err();
        let code = failure.map(|failure| failure.code);
        let replayed = matches!(result.provenance, Provenance::Replayed { .. });
        let end = CallEnd {
            at_ms: about.at,
            took_ms: millis(result.took),
            status: result.status(),
            code,
            rule: failure.and_then(|failure| failure.rule.as_ref().map(ToString::to_string)),
            message: failure.map(|failure| stored_message(failure.message.as_ref())),
            attempts: result.attempts,
            replayed,
        };
        let tally = CallTally::of(code, result.attempts, replayed);
        let mut recent = self.0.lock();
        recent.minutes.add(about.at, &tally);
        if let Some(call) = recent.find(about.request.number) {
            call.about.end = Some(end);
        }
    }

    fn call_rejected(&self, away: &RejectedCall<'_>) {
        self.0.lock().minutes.add(away.at, &CallTally::of(Some(away.error.code), 0, false));
    }
}

/// Truncates a long message. It is redacted first if the cut could split a secret.
fn stored_message(message: &str) -> String {
    if message.len() <= STORED_MESSAGE {
        message.to_owned()
    } else {
        steadfast_redact::excerpt(message, SHOWN_MESSAGE)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
    use steadfast_core::output::ToolOutput;
    use steadfast_json::RawJson;

    use super::*;
    use crate::{Attempt, Engine, ToolResult};

    #[tokio::test(start_paused = true)]
    async fn a_call_that_made_room_leaves_nothing_behind() {
        let recent = Arc::new(RecentActivity::default());
        let engine = Engine::builder().listener(recent.clone()).start().await;
        for number in 0..MOST + 10 {
            let text = format!(
                r#"{{"contractVersion":"1.1","requestId":"r","toolName":"pay","toolNamespace":"bank",
                    "target":{{"sessionKey":"s-{number}","actorId":"ann"}},
                    "payload":{{"version":"1.0","params":{{}}}}}}"#
            );
            let call = CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap();
            let works = async |_: Attempt| -> ToolResult {
                Ok(ToolOutput { content: RawJson::from_trusted("1"), metadata: None })
            };
            engine.call(call, works).await;
        }
        let state = recent.0.lock();
        assert_eq!((state.calls.len(), state.places.len()), (MOST, MOST));
    }

    #[test]
    fn a_long_message_is_not_kept_and_no_secret_is_cut_in_two() {
        assert_eq!(stored_message("short"), "short");
        let before = "x ".repeat(SHOWN_MESSAGE / 2 - 8);
        let long = format!("{before}sk-live-4f9a8b7c6d5e4f3a2b1c {}", "y ".repeat(STORED_MESSAGE));
        let message = stored_message(&long);
        assert!(message.len() <= SHOWN_MESSAGE && !message.contains("sk-live"), "{message}");
    }
}
