//! The envelope of a call, from the fields of its request.

use steadfast_core::call::CallId;
use steadfast_core::envelope::{
    CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ContractVersion, EnvelopeTrace,
    ExtraFields, PayloadVersion, TransportOptions, TurnControl,
};
use steadfast_core::id::{Namespace, RequestId, SessionKey, ToolName};
use steadfast_json::RawJson as Kept;

use crate::calls::request_name::next_request;
use crate::client::identity::{ClientIdentity, RequestContext};

/// Builds the envelope of a call.
pub(crate) fn envelope(
    request: RequestId,
    server: &Namespace,
    tool: ToolName,
    arguments: String,
    context: RequestContext,
    connection: &ClientIdentity,
) -> CallEnvelope {
    let TurnControl { request_tags, from_hook, .. } = control(&context);
    CallEnvelope {
        contract_version: ContractVersion::V1_1,
        request_id: request,
        // Its format reveals the model of the caller if no field names one.
        tool_call_id: context.call_id.as_ref().map(|id| match id {
            CallId::Unique(id) | CallId::InSession(id) => id.clone(),
        }),
        tool_name: tool,
        tool_namespace: server.clone(),
        target: target(&context, connection),
        payload: CallPayload {
            version: PayloadVersion::V1_0,
            params: Kept::from_trusted(arguments),
            idempotency_key: context.key.clone(),
            call_hints: CallHints::default(),
            unknown: ExtraFields::new(),
        },
        transport: TransportOptions::default(),
        control: CallControl { request_tags, from_hook, ..CallControl::default() },
        trace: trace(&context),
        unknown: ExtraFields::new(),
    }
}

/// Returns the target of a call: the caller, its session and its turn.
pub(crate) fn target(context: &RequestContext, connection: &ClientIdentity) -> CallerIdentity {
    CallerIdentity {
        agent_id: context.agent.clone(),
        session_key: context.session.clone().unwrap_or_else(unknown_session),
        actor_id: connection.actor.clone(),
        workspace_id: None,
        correlation_id: context.correlation.clone(),
        tenant_id: connection.tenant.clone(),
        turn_id: context.turn.clone(),
        model_id: context.model.clone(),
        domain: None,
        unknown: ExtraFields::new(),
    }
}

/// Returns the tags of a request.
pub(crate) fn control(context: &RequestContext) -> TurnControl {
    TurnControl {
        request_tags: context.tags.clone(),
        from_hook: context.hook.clone(),
        unknown: ExtraFields::new(),
    }
}

/// Returns the trace context of a request.
pub(crate) fn trace(context: &RequestContext) -> EnvelopeTrace {
    let (traceparent, baggage) = (context.traceparent.clone(), context.baggage.clone());
    EnvelopeTrace { traceparent, baggage, unknown: ExtraFields::new() }
}

/// Builds an empty envelope for looking up the policy of a tool.
pub(crate) fn envelope_of(server: &Namespace, tool: ToolName, connection: &ClientIdentity) -> CallEnvelope {
    envelope(next_request(None), server, tool, "{}".to_owned(), RequestContext::default(), connection)
}

/// The tool name whose policy applies to requests other than calls.
#[expect(clippy::expect_used, reason = "a constant that is a name")]
pub(crate) fn requests() -> ToolName {
    ToolName::new("requests").expect("it is short and printable")
}

/// The session key of callers that name no session.
#[expect(clippy::expect_used, reason = "a constant that is a session key")]
fn unknown_session() -> SessionKey {
    SessionKey::new("unknown").expect("it is short and printable")
}
