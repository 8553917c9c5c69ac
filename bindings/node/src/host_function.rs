//! Tools that are functions of JavaScript.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use steadfast::call::envelope::CallEnvelope;
use steadfast::call::{ResolvedTool, ToolInfo, ToolRegistry, ToolResult};
use steadfast::{Attempt, Timestamp, ToolFault, ToolHandler};
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_executor::AttemptError;

use crate::environment::{Environment, Recipient};

/// A tool that is a function of JavaScript: an attempt is a message, and lasts until its report.
pub(crate) struct HostFunction {
    pub(crate) environment: Arc<Environment>,
    /// The call or turn that it belongs to.
    pub(crate) to: Recipient,
    /// The name of the tool, for turns, which have several.
    pub(crate) tool: Option<Arc<str>>,
}

/// The message that asks JavaScript to run a tool once.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunMessage<'a> {
    token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    attempt: u32,
    run: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_at_ms: Option<Timestamp>,
    /// The arguments, where JavaScript does not have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct RunEnvelope<'a> {
    run: RunMessage<'a>,
}

impl HostFunction {
    fn message(&self, token: u64, attempt: &Attempt) -> String {
        let is_needed = self.tool.is_some() || attempt.has_key_argument();
        let params = is_needed.then(|| serde_json::from_str(attempt.params()).ok()).flatten();
        let run = RunMessage {
            token,
            tool: self.tool.as_deref(),
            attempt: attempt.number,
            run: &attempt.run.0,
            deadline_at_ms: attempt.deadline,
            params,
        };
        // Texts and numbers always serialize.
        serde_json::to_string(&RunEnvelope { run }).unwrap_or_default()
    }
}

impl ToolHandler for HostFunction {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let (environment, to) = (self.environment.clone(), self.to);
        let expected = environment.expect_report(attempt.clone());
        let expected = expected.map(|(token, reported)| {
            let text = self.message(token, &attempt);
            (AttemptRegistration { environment, to, token, is_reported: false }, reported, text)
        });
        async move {
            let Some((mut registration, mut reported, text)) = expected else {
                return Err(AttemptError::NotRun(thread_ended(false)));
            };
            registration.environment.send(to, text);
            let report = tokio::select! {
                biased;
                report = &mut reported => report,
                () = attempt.cancelled() => {
                    registration.abort();
                    reported.await
                }
            };
            registration.is_reported = true;
            // The sender is dropped with its thread. What the function did until then is not known.
            report.unwrap_or_else(|_| Err(ToolFault::from(thread_ended(true)).into()))
        }
    }
}

fn thread_ended(written: bool) -> AttemptFault {
    let source = FaultSource::Transport { error: TransportError::ConnectionClosed, written };
    AttemptFault::new(source, "the thread of JavaScript that was to run the tool has ended")
}

/// An attempt that JavaScript runs. When the engine drops it, JavaScript learns that the attempt is no longer wanted.
struct AttemptRegistration {
    environment: Arc<Environment>,
    to: Recipient,
    token: u64,
    is_reported: bool,
}

impl AttemptRegistration {
    fn abort(&self) {
        self.environment.send(self.to, format!("{{\"abort\":{}}}", self.token));
    }
}

impl Drop for AttemptRegistration {
    fn drop(&mut self) {
        if self.environment.take_report(self.token).is_some() && !self.is_reported {
            self.abort();
        }
    }
}

/// The functions of JavaScript that a turn can call, by name.
pub(crate) struct HostFunctions {
    pub(crate) environment: Arc<Environment>,
    pub(crate) to: Recipient,
    pub(crate) tools: BTreeMap<String, Option<Arc<ToolInfo>>>,
}

impl ToolRegistry for HostFunctions {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        let name = envelope.tool().to_string();
        let found = self.tools.get(&name).map(|info| {
            let function = HostFunction {
                environment: self.environment.clone(),
                to: self.to,
                tool: Some(Arc::from(name.as_str())),
            };
            ResolvedTool { info: info.clone(), ..ResolvedTool::new(function) }
        });
        Box::pin(std::future::ready(found))
    }
}
