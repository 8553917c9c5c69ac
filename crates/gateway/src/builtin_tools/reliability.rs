//! Two optional built-in tools: the trust status of the other tools, and a reset of trust.
//!
//! `reliability_status` only reads. `reliability_reset` needs approval, because a model that could restore trust in the
//! tools that it broke would make trust useless. The user of the client is asked if the client supports it. Otherwise
//! the request waits for an operator, and the model calls again. A client token does not make its holder an operator,
//! because the model acts with the same token.

use std::sync::Arc;

use serde_json::{Value, json};
use steadfast_core::approval::{Grantor, ParkedRequestId};
use steadfast_core::classify::record::FailureRecord;
use steadfast_core::id::{Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::trust::{
    Escalation, ToolReliabilityState, TrustScope, TrustState, TrustStatus, TrustTarget,
};
use steadfast_executor::{
    ActionApproval, ActionRequest, ApprovalPrompter, DomainView, Engine, FailureQuery, OperatorIdentity,
    OperatorSurface, TenantFilter, is_named,
};
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;

/// The names of the tools.
pub(crate) const STATUS: &str = "reliability_status";
pub(crate) const RESET: &str = "reliability_reset";

/// Returns the definitions of the trust tools for `tools/list`.
pub(super) fn definitions() -> &'static [&'static str] {
    &[
        r#"{"name":"reliability_status","title":"Reliability of tools","description":"Returns the tools that have lost trust, with the reason and the way to recover. Without tool_name: all of them.","inputSchema":{"type":"object","properties":{"tool_name":{"type":"string","description":"One tool, as tool or server/tool"},"include_history":{"type":"boolean","description":"Also the last failures, and the results of calls to each host and server","default":false}}},"annotations":{"readOnlyHint":true,"openWorldHint":false}}"#,
        r#"{"name":"reliability_reset","title":"Restore trust in a tool","description":"Restores trust in a tool, so that it runs without approval again. The reset itself needs approval.","inputSchema":{"type":"object","properties":{"tool_name":{"type":"string","description":"The tool, as tool or server/tool"}},"required":["tool_name"]},"annotations":{"readOnlyHint":false,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}"#,
    ]
}

/// Returns true if this is the name of a trust tool.
pub(crate) fn is_reliability_tool(name: &str) -> bool {
    matches!(name, STATUS | RESET)
}

/// A call of a trust tool.
pub(crate) struct TrustToolCall<'a> {
    pub(crate) engine: &'a Engine,
    /// The tenant whose trust records are shown.
    pub(crate) tenant: Option<&'a TenantId>,
    pub(crate) session: Option<&'a SessionKey>,
    /// Asks the user of the client.
    pub(crate) prompter: Option<Arc<dyn ApprovalPrompter>>,
}

/// The response to such a call.
pub(crate) enum TrustToolResponse {
    /// A result of `tools/call`.
    Result(JsonText),
    /// An approval request to the user of the client, in the form of a result.
    Question(JsonText),
}

impl TrustToolCall<'_> {
    /// Runs a tool. `arguments` is a JSON object.
    pub(crate) async fn call(self, name: &str, arguments: &str) -> TrustToolResponse {
        let tool = scan::get(arguments, "tool_name").and_then(scan::string).map(|name| name.into_owned());
        let done = match (name, tool) {
            (STATUS, tool) => {
                let history = scan::get(arguments, "include_history") == Some("true");
                status(self.engine, self.tenant, tool.as_deref(), history).await
            }
            (RESET, Some(tool)) => match self.may_reset(&tool).await {
                Ok(by) => reset(self.engine, self.tenant, &tool, &by).await,
                Err(ResetRefusal::Refused(reason)) => Err(reason),
                Err(ResetRefusal::ApprovalRequested(question)) => {
                    return TrustToolResponse::Question(question);
                }
            },
            (RESET, None) => Err("specify the tool: {\"tool_name\": \"server/tool\"}".to_owned()),
            (other, _) => Err(format!("there is no tool {other} here")),
        };
        let result = match done {
            Ok((text, facts)) => json!({
                "content": [{ "type": "text", "text": text }],
                "structuredContent": facts,
                "isError": false,
            }),
            Err(reason) => json!({ "content": [{ "type": "text", "text": reason }], "isError": true }),
        };
        TrustToolResponse::Result(
            JsonText::parse(result.to_string()).unwrap_or_else(|_| JsonText::string("")),
        )
    }

    /// Asks for approval of a reset. Returns the approver.
    async fn may_reset(&self, name: &str) -> Result<OperatorIdentity, ResetRefusal> {
        if self.engine.admin().tools_with_trust_history(self.tenant, name).is_empty() {
            let reason =
                format!("no failures of {name} count; call {STATUS} to list tools that have lost trust");
            return Err(ResetRefusal::Refused(reason));
        }
        let own = own_tool();
        let prompt = Escalation::trust_restoration(&own, name);
        let request_details = ActionRequest {
            tenant: self.tenant,
            session: self.session,
            tool: &own,
            shown: name,
            prompt,
            operator_only: self.is_blocked(name),
            asker: self.prompter.clone(),
        };
        let refused = |reason: String| Err(ResetRefusal::Refused(reason));
        match self.engine.request_approval(request_details).await {
            Ok(ActionApproval::Approved(Grantor::Client)) if self.is_blocked(name) => refused(format!(
                "{name} was blocked in the meantime; only an operator can reset it. Call {RESET} again"
            )),
            Ok(ActionApproval::Approved(Grantor::Client)) => {
                Ok(OperatorIdentity::new("client", OperatorSurface::Mcp))
            }
            Ok(ActionApproval::Approved(Grantor::Operator)) => {
                Ok(OperatorIdentity::new("operator", OperatorSurface::Mcp))
            }
            Ok(ActionApproval::Denied) => {
                refused(format!("the user denied the reset of {name}; do not ask again"))
            }
            Ok(ActionApproval::Pending(ParkedRequestId(number))) => {
                let flag = self.tenant.map_or_else(String::new, |tenant| format!(" {}", tenant.flag()));
                refused(format!(
                    "the reset of {name} needs approval. Ask the operator to run `steadfast approve {number}{flag}`, then call {RESET} again"
                ))
            }
            Ok(ActionApproval::PutToCaller(question)) => {
                let question = JsonText::parse(question.content.as_str().to_owned());
                question.map_or_else(
                    |_| refused(String::new()),
                    |question| Err(ResetRefusal::ApprovalRequested(question)),
                )
            }
            Err(error) => refused(format!("the approval request failed: {error}")),
        }
    }
}

impl TrustToolCall<'_> {
    /// Returns true if only an operator may unblock the tool.
    fn is_blocked(&self, name: &str) -> bool {
        let states = self.engine.admin().trust(self.tenant);
        // A reset of the tool does not change its domain.
        let mut own = states.iter().map(|one| &one.standing).filter(|one| one.scope != TrustScope::Domain);
        own.any(|one| one.state == TrustState::Blocked && is_about(one, name))
    }
}

/// The reason for which trust is not restored now.
enum ResetRefusal {
    Refused(String),
    ApprovalRequested(JsonText),
}

/// Returns the tool name that approval requests for a reset show.
#[expect(clippy::expect_used, reason = "both are names")]
fn own_tool() -> ToolRef {
    let namespace = Namespace::new("steadfast").expect("it is a name");
    ToolRef { namespace, tool: ToolName::new(RESET).expect("it is a name") }
}

/// The text for the model, and the same data for programs.
type TrustToolOutput = (String, Value);

async fn status(
    engine: &Engine,
    tenant: Option<&TenantId>,
    tool: Option<&str>,
    with_history: bool,
) -> Result<TrustToolOutput, String> {
    let applies = |one: &TrustStatus| tool.is_none_or(|name| is_about(&one.standing, name));
    let trust_states: Vec<_> = engine.admin().trust(tenant).into_iter().filter(applies).collect();
    let mut lines: Vec<_> = trust_states.iter().map(line).collect();
    if lines.is_empty() {
        lines.push(match tool {
            Some(tool) => format!("{tool} is trusted"),
            None => "all tools are trusted".to_owned(),
        });
    }
    let mut history = None;
    if with_history {
        let tenants = TenantFilter::One(tenant.cloned());
        let page = FailureQuery { tenants, ..FailureQuery::newest(MOST_SEARCHED) };
        let failures =
            engine.admin().failures(&page).await.map_err(|error| format!("the failures: {error}"))?.found;
        let failures: Vec<_> = failures
            .into_iter()
            .filter(|record| {
                tool.is_none_or(|name| is_named(&record.tool.namespace, &record.tool.tool, name))
            })
            .take(MOST_FAILURES)
            .collect();
        lines.extend(failures.iter().map(failure));
        history = Some(failures);
    }
    let facts = match history {
        None => json!({ "states": trust_states }),
        Some(failures) => {
            // For one tool, the domains of its failures; otherwise all.
            let applies = |view: &DomainView| {
                let of_failure = |record: &FailureRecord| record.domain.as_ref() == Some(&view.domain);
                tool.is_none() || failures.iter().any(of_failure)
            };
            let domains: Vec<_> = engine.admin().domains(tenant).into_iter().filter(applies).collect();
            lines.extend(domains.iter().map(domain));
            json!({ "states": trust_states, "history": failures, "domains": domains })
        }
    };
    Ok((lines.join("\n"), facts))
}

async fn reset(
    engine: &Engine,
    tenant: Option<&TenantId>,
    name: &str,
    by: &OperatorIdentity,
) -> Result<TrustToolOutput, String> {
    let known = engine.admin().tools_with_trust_history(tenant, name);
    let mut changes = Vec::new();
    for tool in &known {
        let changed = engine.admin().reset_trust(tenant, TrustTarget::Tool(tool), by).await;
        changes.extend(changed.map_err(|error| format!("{tool} could not be reset: {error}"))?);
    }
    let reset: Vec<_> = known.iter().map(ToString::to_string).collect();
    Ok((format!("trust restored: {}", reset.join(", ")), json!({ "reset": reset, "changes": changes.len() })))
}

fn is_about(stored: &ToolReliabilityState, name: &str) -> bool {
    match (&stored.plugin_name, &stored.tool_name) {
        (Some(namespace), Some(tool)) => is_named(namespace, tool, name),
        // A state of a whole server, or of everything, concerns each tool.
        (None | Some(_), None | Some(_)) => true,
    }
}

fn line(TrustStatus { standing: stored, recovers_at, waits_for_approval, .. }: &TrustStatus) -> String {
    let subject: Arc<str> = match (&stored.plugin_name, &stored.tool_name, &stored.domain) {
        (Some(namespace), Some(tool), _) => format!("{namespace}/{tool}").into(),
        (_, _, Some(domain)) => domain.as_str().into(),
        (_, _, None) => "everything".into(),
    };
    let state = json!(stored.state);
    let mut line = format!("{subject}: {}", state.as_str().unwrap_or("not trusted"));
    if let Some(reason) = &stored.escalation_reason {
        line.push_str(&format!(" ({reason})"));
    }
    if stored.failures_in_window > 0 {
        line.push_str(&format!(", {} failures", stored.failures_in_window));
    }
    if let Some(at) = recovers_at {
        line.push_str(&format!(", recovers at {at}"));
    }
    if *waits_for_approval {
        line.push_str(", needs approval to recover");
    }
    line
}

fn failure(record: &FailureRecord) -> String {
    let severity = json!(record.severity);
    let severity = severity.as_str().unwrap_or_default();
    format!("{} failed at {} ({severity}): {}", record.tool, record.at, record.message)
}

fn domain(DomainView { domain, successes, failures, .. }: &DomainView) -> String {
    format!("calls to {domain}: {successes} succeeded, {failures} failed")
}

/// The number of failure records that are searched for those of one tool.
const MOST_SEARCHED: usize = 1000;

/// The maximum number of failures in a response.
const MOST_FAILURES: usize = 50;

#[cfg(test)]
mod tests {
    use steadfast_core::classify::{AttemptFault, FaultSource};
    use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
    use steadfast_core::policy::{EnforcementMode, PolicyProfile, ToolClass};
    use steadfast_executor::{Attempt, ToolResult};

    use super::*;

    /// An engine in which `bank/pay` has lost trust.
    async fn engine() -> Engine {
        let mut policy = PolicyProfile::Standard.policy(ToolClass::Unknown);
        policy.retry.attempts = 1.try_into().unwrap();
        policy.modes.guard = EnforcementMode::Off;
        policy.modes.breaker = EnforcementMode::Off;
        let engine = Engine::builder().policies(Arc::new(policy)).start().await;
        for number in 0..3 {
            let text = format!(
                r#"{{"contractVersion":"1.1","requestId":"r-{number}","toolName":"pay","toolNamespace":"bank","target":{{"sessionKey":"s","actorId":"ann"}},"payload":{{"version":"1.0","params":{{"n":{number}}}}}}}"#
            );
            let envelope = CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Keep).unwrap();
            let fails = async |_: Attempt| -> ToolResult {
                Err(AttemptFault::new(FaultSource::Http { status: 500 }, "no").into())
            };
            engine.call(envelope, fails).await;
        }
        engine
    }

    async fn call_tool(engine: &Engine, name: &str, arguments: &str) -> (String, bool, Value) {
        let called = TrustToolCall { engine, tenant: None, session: None, prompter: None };
        let TrustToolResponse::Result(result) = called.call(name, arguments).await else {
            panic!("nobody is asked")
        };
        let result: Value = serde_json::from_str(result.as_str()).unwrap();
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        (text, result["isError"] == true, result["structuredContent"].clone())
    }

    #[test]
    fn rp_13_the_tools_are_described_as_tools_are() {
        let names: Vec<String> = definitions()
            .iter()
            .map(|text| serde_json::from_str::<Value>(text).unwrap()["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, [STATUS, RESET]);
        assert!(names.iter().all(|name| is_reliability_tool(name)) && !is_reliability_tool("pay"));
    }

    #[tokio::test(start_paused = true)]
    async fn rp_13_the_status_lists_tools_that_lost_trust_with_the_reason() {
        let engine = engine().await;
        let (text, is_error, facts) = call_tool(&engine, STATUS, "{}").await;
        assert!(!is_error && text.starts_with("bank/pay: escalated ("), "{text}");
        assert_eq!(facts["states"][0]["tool_name"], "pay");
        let (text, _, facts) = call_tool(&engine, STATUS, r#"{"tool_name":"bank/look"}"#).await;
        assert_eq!((text.as_str(), &facts["states"]), ("bank/look is trusted", &json!([])));
        let with_history = r#"{"tool_name":"pay","include_history":true}"#;
        let (_, _, facts) = call_tool(&engine, STATUS, with_history).await;
        assert_eq!(facts["history"].as_array().unwrap().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn rp_13_a_reset_needs_an_operator() {
        let engine = engine().await;
        let pay = r#"{"tool_name":"bank/pay"}"#;
        let (text, is_error, _) = call_tool(&engine, RESET, pay).await;
        assert!(is_error && text.contains("steadfast approve"), "{text}");
        assert_eq!(engine.admin().trust(None).len(), 1, "nothing was forgiven");
        let (text, is_error, _) = call_tool(&engine, RESET, "{}").await;
        assert!(is_error && text.contains("tool_name"), "{text}");
    }
}
