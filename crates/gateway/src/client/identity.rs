//! The identity of a caller, its session, and the idempotency key of its call.
//!
//! Each client sends this data in its own fields. Missing data is taken from the connection. Without a session key,
//! equal calls may come from different clients.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::HeaderMap;
use steadfast_core::call::{CallId, EqualCallPolicy};
use steadfast_core::envelope::{IdempotencyKey, MAX_TAGS, read_baggage};
use steadfast_core::id::{
    ActorId, AgentId, CorrelationId, Digest, InvalidId, ModelId, SessionKey, TenantId, ToolCallId, TurnId,
};
use steadfast_core::key::continuation_digest;
use steadfast_json::scan;
use steadfast_json::{JsonDocument, JsonLimits};
use steadfast_mcp::message::RpcMessage;

/// The identity of a client, known from its connection.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The actor.
    pub actor: ActorId,
    /// The tenant of the client's token, if it has one.
    pub tenant: Option<TenantId>,
    /// The session, if the connection is one or the environment names it.
    pub session: Option<SessionKey>,
}

/// The context that one request states about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestContext {
    /// The session key.
    pub session: Option<SessionKey>,
    /// The idempotency key.
    pub key: Option<IdempotencyKey>,
    /// The client's own id of this call.
    pub call_id: Option<CallId>,
    /// The turn of the assistant.
    pub turn: Option<TurnId>,
    /// The trace id, which may identify a turn.
    pub trace: Option<TurnId>,
    /// The model.
    pub model: Option<ModelId>,
    /// The agent.
    pub agent: Option<AgentId>,
    /// The correlation id for other records of the host: the one in the request, or else the trace id.
    pub correlation: Option<CorrelationId>,
    /// The digest of the input that the client sends to a call that asked for it.
    pub continuation: Option<Digest>,
    /// W3C trace context, as forwarded.
    pub traceparent: Option<String>,
    /// W3C baggage, as forwarded.
    pub baggage: BTreeMap<String, String>,
    /// Tags for logs.
    pub tags: Vec<String>,
    /// The hook that made the call.
    pub hook: Option<String>,
}

impl RequestContext {
    /// Reads the context of a request. An invalid idempotency key is an error, because the caller relies on it.
    /// `headers` are those of the HTTP request, if there is one; fields of the request take precedence over them.
    pub fn by(
        request: &RpcMessage,
        connection: &ClientIdentity,
        headers: &HeaderMap,
    ) -> Result<Self, UnusableKey> {
        let text = |names: &[&str]| names.iter().find_map(|name| request.meta_text(name));
        let session = text(&["dev.steadfast/session"]).or_else(|| text(CONVERSATIONS));
        let trace = request.meta_text("traceparent").or_else(|| header(headers, "traceparent"));
        let baggage = request.meta_text("baggage").or_else(|| header(headers, "baggage"));
        Ok(Self {
            session: session
                .and_then(|text| SessionKey::new(text).ok())
                .or_else(|| connection.session.clone()),
            key: key(request, headers)?,
            call_id: call_id(request),
            turn: turn(request).and_then(|text| TurnId::new(text).ok()),
            trace: trace.as_deref().and_then(trace_id),
            model: text(&["dev.steadfast/model"]).and_then(|text| ModelId::new(text).ok()),
            agent: text(&["dev.steadfast/agent"]).and_then(|text| AgentId::new(text).ok()),
            correlation: text(&["dev.steadfast/correlation-id", "correlationId"])
                .or_else(|| trace.as_deref().and_then(|text| text.split('-').nth(1)).map(Cow::Borrowed))
                .and_then(|text| CorrelationId::new(text).ok()),
            continuation: continuation(request),
            traceparent: trace.map(Cow::into_owned),
            baggage: baggage.as_deref().map(read_baggage).unwrap_or_default(),
            tags: tags(request),
            hook: text(&["dev.steadfast/hook"]).map(Cow::into_owned),
        })
    }

    /// Returns the rule for equal calls without an idempotency key.
    pub fn equal_calls(&self) -> EqualCallPolicy {
        match self.session {
            Some(_) => EqualCallPolicy::Joined,
            None => EqualCallPolicy::JoinedIfRepeatable,
        }
    }
}

/// The reason for which an idempotency key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableKey {
    /// It is not a string, or not one that a header can carry.
    #[error("must be a string, and in a header only printable ASCII characters")]
    NotText,
    /// It is not a valid key.
    #[error("{0}")]
    Invalid(InvalidId),
}

/// Returns the idempotency key: the first one in order of precedence. All places are checked, so that no invalid key is
/// ignored.
fn key(request: &RpcMessage, headers: &HeaderMap) -> Result<Option<IdempotencyKey>, UnusableKey> {
    let header = headers.get("idempotency-key").map(|value| value.to_str().map(Cow::Borrowed)).transpose();
    let places = [
        text(request.meta_member("dev.steadfast/idempotency-key"))?,
        header.map_err(|_| UnusableKey::NotText)?,
        text(request.param("idempotencyKey"))?,
        text(request.meta_member("io.mcp-gateway/idempotency-key"))?,
    ];
    let given = places.into_iter().flatten().next();
    given.map(IdempotencyKey::new).transpose().map_err(UnusableKey::Invalid)
}

/// Parses the value of a field.
fn text(value: Option<&str>) -> Result<Option<Cow<'_, str>>, UnusableKey> {
    match value {
        // Counts as absent: some clients always write optional fields.
        None | Some("null") => Ok(None),
        Some(value) => scan::string(value).map(Some).ok_or(UnusableKey::NotText),
    }
}

/// Returns a header as text. Repeated headers are joined to a list.
fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, str>> {
    let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let first = values.next()?;
    Some(values.fold(Cow::Borrowed(first), |list, value| Cow::Owned(format!("{list},{value}"))))
}

/// Returns the string tags of a request.
fn tags(request: &RpcMessage) -> Vec<String> {
    let given = request.meta_member("dev.steadfast/tags");
    let read = given.and_then(|text| JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).ok());
    let items = read.as_ref().and_then(|tags| tags.root().items()).into_iter().flatten();
    items.filter_map(|tag| Some(tag.as_str()?.into_owned())).take(MAX_TAGS).collect()
}

/// The fields in which clients name the session.
const CONVERSATIONS: &[&str] = &[
    "threadId",
    "vscode.conversationId",
    "openai/session",
    "ai.opencode/sessionID",
    "sessionID",
    "antigravity.google/conversation_id",
];

/// Returns the client's own id of the call. The id of Claude Code is unique; the id of Codex is unique within its
/// thread.
fn call_id(request: &RpcMessage) -> Option<CallId> {
    let id = |name| request.meta_text(name).and_then(|text| ToolCallId::new(text).ok());
    if let Some(id) = id("claudecode/toolUseId") {
        return Some(CallId::Unique(id));
    }
    request.meta_member("threadId")?;
    id("callId").map(CallId::InSession)
}

/// Returns the turn, from its own field or from the request id of the user's message.
fn turn(request: &RpcMessage) -> Option<Cow<'_, str>> {
    request
        .meta_text("dev.steadfast/turn")
        .or_else(|| request.meta_text("vscode.requestId"))
        .or_else(|| codex_turn(request))
}

/// Returns the trace id of a W3C `traceparent`.
fn trace_id(traceparent: &str) -> Option<TurnId> {
    TurnId::new(traceparent.split('-').nth(1)?).ok()
}

/// Returns the turn from the metadata of Codex, which is JSON, sometimes in a string.
fn codex_turn(request: &RpcMessage) -> Option<Cow<'_, str>> {
    let metadata = request.meta_member("x-codex-turn-metadata")?;
    match scan::string(metadata) {
        Some(inner) => {
            JsonDocument::parse(inner.as_bytes(), JsonLimits::ENVELOPE).ok()?;
            scan::get(&inner, "turn_id").and_then(scan::string).map(|text| Cow::Owned(text.into_owned()))
        }
        None => scan::get(metadata, "turn_id").and_then(scan::string),
    }
}

/// Returns the digest of the input that the client sends to a call that asked for it.
fn continuation(request: &RpcMessage) -> Option<Digest> {
    let read = |name| {
        let text: Option<&str> = request.param(name);
        text.and_then(|text| JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).ok())
    };
    let (responses, state) = (read("inputResponses"), read("requestState"));
    continuation_digest(responses.as_ref().map(JsonDocument::root), state.as_ref().map(JsonDocument::root))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn connection() -> ClientIdentity {
        let session = Some(SessionKey::new("of the connection").unwrap());
        ClientIdentity { actor: ActorId::new("somebody").unwrap(), tenant: None, session }
    }

    fn context_of(params: &str) -> RequestContext {
        RequestContext::by(&request(params), &connection(), &HeaderMap::new()).unwrap()
    }

    fn request(params: &str) -> RpcMessage {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        RpcMessage::parse(text, usize::MAX).unwrap()
    }

    fn headers(name: &'static str, values: impl IntoIterator<Item = &'static str>) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
        values.into_iter().map(|text| (HeaderName::from_static(name), value(text))).collect()
    }

    fn session(context: &RequestContext) -> &str {
        context.session.as_ref().map_or("", |session| session.as_str())
    }

    #[test]
    fn a_request_without_a_session_has_that_of_its_connection() {
        let plain = context_of(r#"{"name":"pay"}"#);
        assert_eq!(session(&plain), "of the connection");
        assert_eq!(plain.equal_calls(), EqualCallPolicy::Joined);
        assert_eq!((plain.key, plain.call_id, plain.turn), (None, None, None));
        let stranger = ClientIdentity { session: None, ..connection() };
        let unknown = RequestContext::by(&request("{}"), &stranger, &HeaderMap::new()).unwrap();
        assert_eq!(unknown.equal_calls(), EqualCallPolicy::JoinedIfRepeatable);
    }

    #[test]
    fn the_fields_of_each_client_are_recognised() {
        for (meta, conversation) in [
            (r#"{"threadId":"t"}"#, "t"),
            (r#"{"vscode.conversationId":"v"}"#, "v"),
            (r#"{"openai/session":"o"}"#, "o"),
            (r#"{"openai/session":"o","dev.steadfast/session":"ours"}"#, "ours"),
            (r#"{"openai/session":17}"#, "of the connection"),
        ] {
            assert_eq!(session(&context_of(&format!(r#"{{"_meta":{meta}}}"#))), conversation, "{meta}");
        }
        let id = |text| ToolCallId::new(text).unwrap();
        for (meta, call) in [
            (r#"{"claudecode/toolUseId":"toolu_1"}"#, Some(CallId::Unique(id("toolu_1")))),
            (r#"{"callId":"c","threadId":"t"}"#, Some(CallId::InSession(id("c")))),
            (r#"{"callId":"c"}"#, None),
        ] {
            assert_eq!(context_of(&format!(r#"{{"_meta":{meta}}}"#)).call_id, call, "{meta}");
        }
        for (meta, turn) in [
            (r#"{"vscode.requestId":"r"}"#, Some("r")),
            (r#"{"x-codex-turn-metadata":"{\"turn_id\":\"c\"}"}"#, Some("c")),
            (r#"{"x-codex-turn-metadata":{"turn_id":"d"}}"#, Some("d")),
            (r#"{"x-codex-turn-metadata":"no JSON"}"#, None),
        ] {
            let context = context_of(&format!(r#"{{"_meta":{meta}}}"#));
            assert_eq!(context.turn.as_ref().map(TurnId::as_str), turn, "{meta}");
        }
        // Not every trace is a turn, so it is reported as a trace.
        let traced = context_of(
            r#"{"_meta":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}"#,
        );
        assert_eq!(traced.trace.as_ref().map(TurnId::as_str), Some("0af7651916cd43dd8448eb211c80319c"));
        assert_eq!(traced.turn, None);
    }

    #[test]
    fn correlation_data_comes_from_the_request_or_else_from_its_headers() {
        let by = |meta: &str, headers| {
            RequestContext::by(&request(&format!(r#"{{"_meta":{meta}}}"#)), &connection(), &headers).unwrap()
        };
        let (own_trace, header_trace) =
            ("0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736");
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let correlation =
            |context: RequestContext| context.correlation.map(|id| id.as_str().to_owned()).unwrap();
        let meta = format!(r#"{{"traceparent":"00-{own_trace}-b7ad6b7169203331-01"}}"#);
        assert_eq!(correlation(by("{}", headers("traceparent", [header]))), header_trace);
        assert_eq!(correlation(by(&meta, headers("traceparent", [header]))), own_trace);
        let context = by("{}", headers("baggage", ["a=1,b=2", "c=3"]));
        assert_eq!(
            context.baggage.into_iter().map(|(name, value)| name + &value).collect::<Vec<_>>(),
            ["a1", "b2", "c3"]
        );
        let context = by(
            r#"{"baggage":"d=4","dev.steadfast/tags":["x",7,"y"],"dev.steadfast/hook":"before-pay"}"#,
            headers("baggage", ["a=1"]),
        );
        assert_eq!(context.baggage.keys().collect::<Vec<_>>(), ["d"]);
        assert_eq!(
            (context.tags, context.hook.as_deref()),
            (vec!["x".to_owned(), "y".to_owned()], Some("before-pay"))
        );
        assert!(by(r#"{"dev.steadfast/tags":"x","baggage":17}"#, HeaderMap::new()).tags.is_empty());
    }

    #[test]
    fn a_key_is_found_in_every_place_and_an_invalid_one_is_refused() {
        let key = |params: &str, header: Option<&'static str>| {
            RequestContext::by(&request(params), &connection(), &headers("idempotency-key", header))
                .map(|context| context.key.map(|key| key.as_str().to_owned()))
        };
        let both = r#"{"idempotencyKey":"param","_meta":{"dev.steadfast/idempotency-key":"meta"}}"#;
        assert_eq!(key(both, Some("header")).unwrap().unwrap(), "meta");
        assert_eq!(key(r#"{"idempotencyKey":"param"}"#, Some("header")).unwrap().unwrap(), "header");
        assert_eq!(key(r#"{"idempotencyKey":"param"}"#, None).unwrap().unwrap(), "param");
        assert_eq!(key(r#"{"idempotencyKey":""}"#, None), Err(UnusableKey::Invalid(InvalidId::Empty)));
        assert_eq!(key(r#"{"idempotencyKey":null}"#, None), Ok(None));
        for params in [
            r#"{"idempotencyKey":42}"#,
            r#"{"idempotencyKey":true}"#,
            r#"{"idempotencyKey":["a"]}"#,
            r#"{"_meta":{"dev.steadfast/idempotency-key":42}}"#,
            r#"{"_meta":{"io.mcp-gateway/idempotency-key":{}}}"#,
            // A valid key elsewhere does not hide an invalid one.
            r#"{"idempotencyKey":42,"_meta":{"dev.steadfast/idempotency-key":"meta"}}"#,
        ] {
            assert_eq!(key(params, None), Err(UnusableKey::NotText), "{params}");
        }
        assert_eq!(key("{}", Some("schl\u{fc}ssel")), Err(UnusableKey::NotText));
    }

    #[test]
    fn the_next_round_of_a_call_differs_from_the_first() {
        let first = context_of(r#"{"name":"pay"}"#).continuation;
        let next = |state: &str| {
            context_of(&format!(r#"{{"name":"pay","inputResponses":{{"a":1}},"requestState":{state}}}"#))
                .continuation
        };
        assert_eq!(first, None);
        assert!(next("\"s\"").is_some());
        assert_eq!(next("\"s\""), next("\"s\""));
        assert_ne!(next("\"s\""), next("\"t\""));
    }
}
