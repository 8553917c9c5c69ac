//! Translation of messages for a modern server and its legacy client.

use steadfast_json::scan;
use steadfast_mcp::http::{LEGACY, META_CAPABILITIES, META_VERSION, MODERN};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcMessage, code};

use super::super::json_edits::{CLIENT_INFO, INPUT_REQUIRED, SERVER_INFO, list, without};
use super::super::no_id;
use crate::json_parts::object;
use crate::protocol::LOG_LEVEL;

/// The severities of log messages.
pub(super) const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The introduction of a server.
#[derive(Debug)]
pub(super) struct ModernServerInfo {
    capabilities: JsonText,
    info: Option<JsonText>,
    instructions: Option<JsonText>,
}

impl ModernServerInfo {
    /// Parses the result of `server/discover`. Extensions do not exist in the legacy era.
    pub(super) fn of(result: &str) -> Self {
        let owned = |value: &str| JsonText::parse(value.to_owned()).ok();
        let capabilities = scan::get(result, "capabilities").filter(|value| value.starts_with('{'));
        let info = scan::get(result, "_meta").and_then(|meta| scan::get(meta, SERVER_INFO));
        Self {
            capabilities: without(capabilities.unwrap_or("{}"), &["extensions"]),
            info: info.filter(|info| info.starts_with('{')).and_then(owned),
            instructions: scan::get(result, "instructions").and_then(owned),
        }
    }

    /// Returns the answer to a client's handshake, in its version if that exists. A server without a name gets the name
    /// in the configuration.
    pub(super) fn initialized(&self, request: &RpcMessage, name: &str) -> RpcMessage {
        let requested = request.param_text("protocolVersion").unwrap_or_default();
        let version = LEGACY.iter().find(|version| **version == requested).unwrap_or(&LEGACY[0]);
        let (version, name) = (JsonText::string(version), JsonText::string(name));
        let fallback = object([("name", name.as_str()), ("version", "\"unknown\"")]);
        let info = self.info.as_ref().unwrap_or(&fallback);
        let members = [
            ("protocolVersion", version.as_str()),
            ("capabilities", self.capabilities.as_str()),
            ("serverInfo", info.as_str()),
        ];
        let instructions = self.instructions.iter().map(|text| ("instructions", text.as_str()));
        let result = object(members.into_iter().chain(instructions));
        RpcMessage::result_response(&request.id().unwrap_or_else(no_id), &result)
    }

    /// Returns the subscription filter for a client that watches these resources. `None` if there is nothing to
    /// receive.
    pub(super) fn filter(&self, watched: &[String]) -> Option<JsonText> {
        let announces = |capability: &str| {
            let capability = scan::get(self.capabilities.as_str(), capability);
            capability.and_then(|inner| scan::get(inner, "listChanged")) == Some("true")
        };
        let lists = [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ];
        let lists =
            lists.into_iter().filter(|(capability, _)| announces(capability)).map(|(_, name)| (name, "true"));
        let uris = list(watched);
        let uris = (!watched.is_empty()).then_some(("resourceSubscriptions", uris.as_str()));
        let filter = object(lists.chain(uris));
        (filter.as_str() != "{}").then_some(filter)
    }
}

/// The introduction of a client from its handshake.
#[derive(Debug)]
pub(super) struct LegacyClientInfo {
    pub(super) capabilities: JsonText,
    info: Option<JsonText>,
}

impl LegacyClientInfo {
    /// Parses the parameters of `initialize`. Tasks differ between the eras.
    pub(super) fn of(params: Option<&JsonText>) -> Self {
        let params = params.map_or("{}", JsonText::as_str);
        let capabilities = scan::get(params, "capabilities").filter(|value| value.starts_with('{'));
        let info = scan::get(params, "clientInfo").filter(|info| info.starts_with('{'));
        Self {
            capabilities: without(capabilities.unwrap_or("{}"), &["tasks"]),
            info: info.and_then(|info| JsonText::parse(info.to_owned()).ok()),
        }
    }

    /// Adds the client's introduction to a request.
    pub(super) fn with_client_info(&self, request: &RpcMessage, log_level: Option<JsonText>) -> RpcMessage {
        let mut prepared = request
            .rewrite()
            .meta(META_VERSION, JsonText::string(MODERN))
            .meta(META_CAPABILITIES, self.capabilities.clone());
        if let Some(info) = &self.info {
            prepared = prepared.meta(CLIENT_INFO, info.clone());
        }
        if let Some(level) = log_level {
            prepared = prepared.meta(LOG_LEVEL, level);
        }
        prepared.finish()
    }
}

/// An input request of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InputRequest {
    pub(super) questions: Vec<InputQuestion>,
    pub(super) state: Option<JsonText>,
}

/// One question of an input request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InputQuestion {
    /// The server's name for it.
    pub(super) key: String,
    pub(super) method: String,
    pub(super) params: Option<JsonText>,
}

impl InputRequest {
    /// Parses the input request in an answer, if there is one.
    pub(super) fn of(answer: &RpcMessage) -> Option<Self> {
        let result = answer.result()?;
        scan::get(result, "resultType").filter(|kind| *kind == INPUT_REQUIRED)?;
        let owned = |value: &str| JsonText::parse(value.to_owned()).ok();
        let requests = scan::get(result, "inputRequests").unwrap_or("{}");
        let questions = scan::members(requests).filter_map(|member| {
            let question = requests.get(member.value)?;
            Some(InputQuestion {
                key: member.name.into_owned(),
                method: scan::get(question, "method").and_then(scan::string)?.into_owned(),
                params: scan::get(question, "params").and_then(owned),
            })
        });
        Some(Self {
            questions: questions.take(MOST_QUESTIONS).collect(),
            state: scan::get(result, "requestState").and_then(owned),
        })
    }

    /// Returns the request with the client's input.
    pub(super) fn answered(&self, request: &RpcMessage, answers: &[(&str, JsonText)]) -> RpcMessage {
        let mut again = request.rewrite();
        if !answers.is_empty() {
            let answers = object(answers.iter().map(|(key, answer)| (*key, answer.as_str())));
            again = again.param("inputResponses", answers);
        }
        if let Some(state) = &self.state {
            again = again.param("requestState", state.clone());
        }
        again.finish()
    }
}

/// The maximum number of questions of one round.
const MOST_QUESTIONS: usize = 64;

/// Returns the answer for a legacy client when input could not be obtained. A tool call gets a result with `isError`,
/// as from a legacy server, so that the model sees it.
pub(super) fn unanswered(method: &str, reason: &str) -> RpcMessage {
    if method != "tools/call" {
        return RpcMessage::error_response(Some(&no_id()), code::INVALID_REQUEST, reason, None);
    }
    let text = JsonText::string(reason);
    let block = object([("type", "\"text\""), ("text", text.as_str())]);
    let blocks = format!("[{}]", block.as_str());
    RpcMessage::result_response(&no_id(), &object([("content", blocks.as_str()), ("isError", "true")]))
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

    fn initialize(version: &str) -> RpcMessage {
        parsed(json!({ "jsonrpc": "2.0", "id": "i", "method": "initialize", "params": {
            "protocolVersion": version,
            "capabilities": { "elicitation": {}, "tasks": {} },
            "clientInfo": { "name": "c", "version": "1" },
        }}))
    }

    fn about() -> ModernServerInfo {
        ModernServerInfo::of(
            &json!({
                "supportedVersions": ["2026-07-28"],
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "public",
                "capabilities": { "tools": { "listChanged": true }, "prompts": {}, "extensions": { "x/y": {} } },
                "instructions": "Ask.",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "s", "version": "1" } },
            })
            .to_string(),
        )
    }

    #[test]
    fn the_handshake_is_answered_in_the_version_of_the_client() {
        let answer = about().initialized(&initialize("2025-06-18"), "ours");
        assert_eq!(
            value(answer.result().unwrap()),
            json!({
                "protocolVersion": "2025-06-18",
                "capabilities": { "tools": { "listChanged": true }, "prompts": {} },
                "serverInfo": { "name": "s", "version": "1" },
                "instructions": "Ask.",
            })
        );
        assert_eq!(answer.id(), initialize("x").id());
        let bare = ModernServerInfo::of("{}").initialized(&initialize("1999-01-01"), "ours");
        let bare = value(bare.result().unwrap());
        assert_eq!(bare["protocolVersion"], "2025-11-25");
        assert_eq!(bare["serverInfo"], json!({ "name": "ours", "version": "unknown" }));
    }

    #[test]
    fn the_introduction_of_a_client_is_sent_with_every_request() {
        let client = LegacyClientInfo::of(initialize("2025-11-25").params_json().as_ref());
        let request = parsed(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {
            "cursor": "2", "_meta": { "progressToken": 7 },
        }}));
        let prepared = client.with_client_info(&request, Some(JsonText::string("info")));
        assert_eq!(
            value(prepared.params().unwrap()),
            json!({ "cursor": "2", "_meta": {
                "progressToken": 7,
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
                "io.modelcontextprotocol/clientInfo": { "name": "c", "version": "1" },
                "io.modelcontextprotocol/logLevel": "info",
            }})
        );
        let bare = parsed(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }));
        let prepared = LegacyClientInfo::of(None).with_client_info(&bare, None);
        assert_eq!(prepared.meta_member(META_CAPABILITIES), Some("{}"));
        assert_eq!(prepared.meta_member(CLIENT_INFO), None);
    }

    #[test]
    fn the_subscription_filter_has_all_supported_notifications() {
        let filter = |watched: &[&str]| {
            let watched: Vec<_> = watched.iter().map(|uri| (*uri).to_owned()).collect();
            about().filter(&watched).map(|filter| value(filter.as_str()))
        };
        assert_eq!(filter(&[]), Some(json!({ "toolsListChanged": true })));
        let watching = json!({ "toolsListChanged": true, "resourceSubscriptions": ["a://b"] });
        assert_eq!(filter(&["a://b"]), Some(watching));
        assert_eq!(ModernServerInfo::of("{}").filter(&[]), None);
    }

    #[test]
    fn a_call_is_sent_again_with_the_input_and_the_unchanged_state() {
        let input_required = parsed(json!({ "jsonrpc": "2.0", "id": 1, "result": {
            "resultType": "input_required",
            "inputRequests": { "who \"?": { "method": "elicitation/create", "params": { "message": "m" } }, "bad": 7 },
            "requestState": "s\u{1}t",
        }}));
        let input = InputRequest::of(&input_required).unwrap();
        let [question] = &input.questions[..] else { panic!("{input:?}") };
        assert_eq!((question.key.as_str(), question.method.as_str()), ("who \"?", "elicitation/create"));
        let request =
            parsed(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "t" } }));
        let answer = JsonText::parse(r#"{"action":"accept"}"#).unwrap();
        let again = input.answered(&request, &[("who \"?", answer)]);
        assert_eq!(
            value(again.params().unwrap()),
            json!({ "name": "t", "inputResponses": { "who \"?": { "action": "accept" } }, "requestState": "s\u{1}t" })
        );
        let complete = parsed(json!({ "jsonrpc": "2.0", "id": 1, "result": { "resultType": "complete" } }));
        assert_eq!(InputRequest::of(&complete), None);
    }

    #[test]
    fn missing_input_is_reported_as_a_legacy_server_would() {
        let tool = value(unanswered("tools/call", "no \"sampling\"").result().unwrap());
        assert_eq!(
            tool,
            json!({ "content": [{ "type": "text", "text": "no \"sampling\"" }], "isError": true })
        );
        assert_eq!(unanswered("prompts/get", "no").error_code(), Some(-32600));
    }
}
