//! Translation of messages for a legacy server and its modern client.

use steadfast_json::scan;
use steadfast_mcp::http::{LEGACY, META_CAPABILITIES, META_VERSION, MODERN};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::RpcMessage;

use super::super::json_edits::{CLIENT_INFO, INPUT_REQUIRED, SERVER_INFO, list, with_first, without};
use super::super::no_id;
use super::inner;
use crate::json_parts::object;
use crate::protocol::LOG_LEVEL;

/// The introduction of a server from its handshake, in modern form.
#[derive(Debug)]
pub(super) struct LegacyServerInfo {
    capabilities: JsonText,
    info: Option<JsonText>,
    instructions: Option<JsonText>,
}

impl LegacyServerInfo {
    /// Parses the result of `initialize`. Tasks differ between the eras, so they are not offered.
    pub(super) fn of(result: &str) -> Self {
        let member = |name| scan::get(result, name).and_then(|value| JsonText::parse(value.to_owned()).ok());
        Self {
            capabilities: without(inner(result, "capabilities").unwrap_or("{}"), &["tasks"]),
            info: member("serverInfo"),
            instructions: member("instructions"),
        }
    }

    /// Returns true if the server has this capability.
    pub(super) fn has(&self, capability: &str) -> bool {
        inner(self.capabilities.as_str(), capability).is_some()
    }

    /// Returns true if the server has this part of a capability.
    pub(super) fn has_within(&self, capability: &str, part: &str) -> bool {
        let whole = inner(self.capabilities.as_str(), capability);
        whole.and_then(|whole| scan::get(whole, part)) == Some("true")
    }

    /// Returns the answer to `server/discover`.
    pub(super) fn discovered(&self) -> RpcMessage {
        let versions = list(&[MODERN]);
        let members =
            [("supportedVersions", versions.as_str()), ("capabilities", self.capabilities.as_str())];
        let instructions = self.instructions.iter().map(|text| ("instructions", text.as_str()));
        let result = object(members.into_iter().chain(instructions));
        self.answer("server/discover", &RpcMessage::result_response(&no_id(), &result))
    }

    /// Adds the members that a modern result requires: its type, its server and its cache limits. Existing members are
    /// kept.
    pub(super) fn answer(&self, method: &str, answer: &RpcMessage) -> RpcMessage {
        if answer.result().is_none() {
            return answer.clone();
        }
        let kind = ("resultType", "\"complete\"");
        let answer = match is_cacheable(method) {
            true => with_first(answer, &[kind, ("ttlMs", "0"), ("cacheScope", "\"private\"")]),
            false => with_first(answer, &[kind]),
        };
        self.signed(answer)
    }

    /// Returns a result that requests this input from the client.
    pub(super) fn input_required(&self, questions: &[(&str, &RpcMessage)], state: &str) -> RpcMessage {
        let questions: Vec<(&str, JsonText)> =
            questions.iter().map(|(key, request)| (*key, question(request))).collect();
        let questions = object(questions.iter().map(|(key, question)| (*key, question.as_str())));
        let state = JsonText::string(state);
        let result = object([
            ("resultType", INPUT_REQUIRED),
            ("inputRequests", questions.as_str()),
            ("requestState", state.as_str()),
        ]);
        self.signed(RpcMessage::result_response(&no_id(), &result))
    }

    fn signed(&self, answer: RpcMessage) -> RpcMessage {
        match &self.info {
            Some(info) if answer.meta_member(SERVER_INFO).is_none() => {
                answer.rewrite().meta(SERVER_INFO, info.clone()).finish()
            }
            Some(_) | None => answer,
        }
    }
}

/// Returns the method and parameters of a server request, without id.
fn question(request: &RpcMessage) -> JsonText {
    let method = JsonText::string(request.method().unwrap_or_default());
    let params = request.params().map(|params| ("params", params));
    object([("method", method.as_str())].into_iter().chain(params))
}

/// Returns true if results of this method have cache limits in the modern era.
fn is_cacheable(method: &str) -> bool {
    matches!(
        method,
        "server/discover"
            | "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
    )
}

/// Builds the handshake from the introduction in a modern request.
pub(crate) fn initialize(request: &RpcMessage) -> RpcMessage {
    let version = JsonText::string(LEGACY[0]);
    let capabilities = capabilities(request);
    let info = request.meta_member(CLIENT_INFO).filter(|info| info.starts_with('{'));
    let params = object([
        ("protocolVersion", version.as_str()),
        ("capabilities", capabilities.as_str()),
        ("clientInfo", info.unwrap_or(r#"{"name":"unknown","version":"unknown"}"#)),
    ]);
    RpcMessage::request(&no_id(), "initialize", Some(&params))
}

/// Returns the client capabilities of a request that both eras have.
pub(super) fn capabilities(request: &RpcMessage) -> JsonText {
    let declared = request.meta_member(META_CAPABILITIES).filter(|value| value.starts_with('{'));
    without(declared.unwrap_or("{}"), &["extensions", "tasks"])
}

/// Translates a request into the legacy era.
pub(super) fn request(request: &RpcMessage) -> RpcMessage {
    let bare = request.rewrite().without_meta(META_VERSION).without_meta(META_CAPABILITIES);
    bare.without_meta(CLIENT_INFO).without_meta(LOG_LEVEL).finish()
}

/// Returns true if only the legacy era has this method, or has it with another meaning.
pub(super) fn is_only_older(method: &str) -> bool {
    matches!(method, "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe")
        || method.starts_with("tasks/")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(message: Value) -> RpcMessage {
        RpcMessage::parse(message.to_string(), usize::MAX).unwrap()
    }

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    fn modern() -> RpcMessage {
        parsed(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "t",
            "arguments": { "a": 1.50 },
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": { "sampling": {}, "extensions": { "x/y": {} } },
                "io.modelcontextprotocol/clientInfo": { "name": "c", "version": "2" },
                "io.modelcontextprotocol/logLevel": "info",
                "progressToken": 7,
                "vendor/thing": 1,
            },
        }}))
    }

    fn about() -> LegacyServerInfo {
        LegacyServerInfo::of(
            r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"tasks":{"list":{}}},
            "serverInfo":{"name":"s","version":"1"},"instructions":"Ask."}"#,
        )
    }

    #[test]
    fn a_request_loses_fields_of_the_modern_era() {
        let sent = value(request(&modern()).params().unwrap());
        assert_eq!(
            sent,
            json!({ "name": "t", "arguments": { "a": 1.5 }, "_meta": { "progressToken": 7, "vendor/thing": 1 } })
        );
    }

    #[test]
    fn the_handshake_has_the_introduction_of_a_modern_client() {
        let request = initialize(&modern());
        assert_eq!(
            value(request.params().unwrap()),
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "sampling": {} },
                "clientInfo": { "name": "c", "version": "2" },
            })
        );
        let bare = parsed(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }));
        assert_eq!(value(initialize(&bare).param("capabilities").unwrap()), json!({}));
        assert!(initialize(&bare).param("clientInfo").is_some(), "the older era wants one");
    }

    #[test]
    fn the_answer_to_discover_has_the_introduction_of_the_server() {
        assert_eq!(
            value(about().discovered().result().unwrap()),
            json!({
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
                "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": { "listChanged": true } },
                "instructions": "Ask.",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "s", "version": "1" } },
            })
        );
        assert!(about().has_within("tools", "listChanged") && !about().has("tasks"));
    }

    #[test]
    fn results_get_a_type_and_errors_stay_unchanged() {
        let result = |method, result: Value| {
            let answer = parsed(json!({ "jsonrpc": "2.0", "id": 3, "result": result }));
            value(about().answer(method, &answer).result().unwrap())
        };
        let info = json!({ "name": "s", "version": "1" });
        assert_eq!(
            result("tools/call", json!({ "content": [], "_meta": { "own": 1 } })),
            json!({
                "resultType": "complete",
                "content": [],
                "_meta": { "own": 1, "io.modelcontextprotocol/serverInfo": info },
            })
        );
        let listed = result("tools/list", json!({ "tools": [], "ttlMs": 5 }));
        assert_eq!((&listed["ttlMs"], &listed["cacheScope"]), (&json!(5), &json!("private")));
        let error = parsed(json!({ "jsonrpc": "2.0", "id": 3, "error": { "code": -1, "message": "no" } }));
        assert_eq!(about().answer("tools/list", &error), error);
    }

    #[test]
    fn input_requests_of_a_server_are_in_a_result() {
        let elicitation =
            parsed(json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {
                "message": "who?", "requestedSchema": {},
            }}));
        let roots = parsed(json!({ "jsonrpc": "2.0", "id": 9, "method": "roots/list" }));
        let required = about().input_required(&[("1", &elicitation), ("2", &roots)], "secret");
        let result = value(required.result().unwrap());
        assert_eq!(
            result["inputRequests"],
            json!({
                "1": { "method": "elicitation/create", "params": { "message": "who?", "requestedSchema": {} } },
                "2": { "method": "roots/list" },
            })
        );
        assert_eq!(
            (&result["resultType"], &result["requestState"]),
            (&json!("input_required"), &json!("secret"))
        );
    }

    #[test]
    fn methods_of_only_the_legacy_era_are_not_offered() {
        for method in ["ping", "logging/setLevel", "resources/subscribe", "tasks/get"] {
            assert!(is_only_older(method), "{method}");
        }
        assert!(!is_only_older("tools/call") && !is_only_older("resources/read"));
    }
}
