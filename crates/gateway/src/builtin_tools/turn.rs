//! A built-in tool that runs a whole turn: several calls of the client's servers that depend on each other.
//!
//! The plan has the form of [`steadfast_turn`], with the tool names that the client uses.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast_executor::{TurnRejection, TurnResponse};
use steadfast_mcp::json_text::JsonText;
use steadfast_turn::{PlanErrors, TurnCallOutcome, TurnCallResult, TurnLimits, TurnPlan, TurnStatus};

use crate::servers::routing::SessionServers;

/// The name of the tool.
pub(crate) const RUN_TURN: &str = "run_turn";

/// The longest turn of a client that gets no progress. Such a client must get its answer before it gives up.
const SHORT: Duration = Duration::from_secs(50);

/// The definition of the tool for `tools/list`.
pub(crate) const DEFINITION: &str = r#"{"name":"run_turn","title":"Run several calls","description":"Runs several tool calls that may depend on each other, in parallel where they can be. Returns the results at the deadline, and the reason for each call without one. To continue a turn that ended early, call it again with the same turnId and plan: finished calls are not run again.","inputSchema":{"type":"object","properties":{"turnId":{"type":"string","description":"A name for this turn, with which it can be continued"},"deadlineMs":{"type":"integer","minimum":1},"parallelism":{"type":"integer","minimum":1},"calls":{"type":"array","items":{"type":"object","properties":{"id":{"type":"string","description":"A name for the call within this plan"},"tool":{"type":"string","description":"The tool, by the name under which you know it"},"params":{"type":"object","description":"Its arguments; {\"$from\": \"<id>\", \"path\": \"<JSON Pointer>\"} stands for a part of another call's output"},"dependsOn":{"type":"array","items":{"type":["string","object"],"description":"The id of a call, or {\"id\": …, \"default\": …} with what stands in if it fails"}},"required":{"type":"boolean","default":true},"alternatives":{"type":"array","items":{"type":["string","object"],"description":"Another tool for the same job, or {\"tool\": …, \"params\": …}"}},"timeoutMs":{"type":"integer","minimum":1}},"required":["id","tool"]}}},"required":["calls"]},"annotations":{"readOnlyHint":false,"openWorldHint":true}}"#;

/// The time that the client can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientPatience {
    /// The client gets progress notifications.
    Long,
    /// Unknown.
    Short,
}

/// Parses the plan of a client and resolves its tool names.
pub(crate) fn plan(
    arguments: &str,
    servers: &SessionServers,
    patience: ClientPatience,
) -> Result<TurnPlan, PlanErrors> {
    let limits = match patience {
        ClientPatience::Long => TurnLimits::DEFAULT,
        ClientPatience::Short => {
            TurnLimits { deadline: TurnLimits::DEFAULT.deadline.min(SHORT), ..TurnLimits::DEFAULT }
        }
    };
    match serde_json::from_str::<Value>(arguments) {
        Ok(mut plan) => {
            for call in plan.get_mut("calls").and_then(Value::as_array_mut).into_iter().flatten() {
                rename(call.get_mut("tool"), servers);
                let alternatives = call.get_mut("alternatives").and_then(Value::as_array_mut);
                for alternative in alternatives.into_iter().flatten() {
                    if alternative.is_object() {
                        rename(alternative.get_mut("tool"), servers);
                    } else {
                        rename(Some(alternative), servers);
                    }
                }
            }
            TurnPlan::parse(plan.to_string().as_bytes(), &limits)
        }
        // The parser of plans reports the error.
        Err(_) => TurnPlan::parse(arguments.as_bytes(), &limits),
    }
}

/// Replaces the client's name of a tool with the name at its server.
fn rename(tool: Option<&mut Value>, servers: &SessionServers) {
    let Some(Value::String(name)) = tool else { return };
    let found = servers.named(name).and_then(|(at, plain)| {
        let behind = servers.get(at)?;
        // A name that no server lists may already be resolved.
        let known = behind.server.catalog.tool(plain).is_some() || !name.contains('/');
        known.then(|| format!("{}/{plain}", behind.server.name))
    });
    if let Some(found) = found {
        *name = found;
    }
}

/// Builds the result of a turn for the client.
pub(crate) fn answer(turned: &Result<TurnResponse, TurnRejection>) -> JsonText {
    let result = match turned {
        Ok(turned) => {
            let mut text = turned.result.summary.clone();
            for call in &turned.result.calls {
                text.push('\n');
                text.push_str(&line(call));
            }
            if turned.result.status == TurnStatus::Partial && turned.result.turn_id.is_some() {
                text.push_str(
                    "\nTo continue with the remaining calls, call run_turn again with the same turnId and plan.",
                );
            }
            json!({
                "content": [{ "type": "text", "text": text }],
                "structuredContent": turned,
                "isError": turned.result.status == TurnStatus::Failed,
            })
        }
        Err(refused) => refusal(&refused.to_string()),
    };
    JsonText::parse(result.to_string()).unwrap_or_else(|_| JsonText::string(""))
}

/// Builds the result for an invalid plan.
pub(crate) fn mistakes(errors: &PlanErrors) -> JsonText {
    let text = format!("the plan has errors, and no call was made:\n{errors}");
    JsonText::parse(refusal(&text).to_string()).unwrap_or_else(|_| JsonText::string(""))
}

fn refusal(reason: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": reason }], "isError": true })
}

fn line(call: &TurnCallResult) -> String {
    let outcome = match call.outcome {
        TurnCallOutcome::Succeeded => "done",
        TurnCallOutcome::Failed => "failed",
        TurnCallOutcome::Skipped => "skipped",
        TurnCallOutcome::Cancelled => "stopped",
        TurnCallOutcome::LeftRunning => "still running",
    };
    match (&call.output, &call.message) {
        (Some(output), _) => format!("{} ({}): {outcome}: {}", call.id, call.tool.tool, output.as_str()),
        (None, Some(message)) => format!("{} ({}): {outcome}: {message}", call.id, call.tool.tool),
        (None, None) => format!("{} ({}): {outcome}", call.id, call.tool.tool),
    }
}
