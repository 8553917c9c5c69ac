//! Approval requests to the user of the MCP client.
//!
//! In the legacy era the client gets an elicitation request while the call waits. In the modern era the result of the
//! call contains an elicitation and an opaque `requestState`, and the client sends the call again with both. The server
//! may have asked for input of its own before. The client's answers to that travel inside our state, so that neither
//! request overwrites the other.
//!
//! The state is not secret and grants nothing by itself. It names the approval request that was shown and carries a
//! seal that only this process can make. It counts only for a call with the same tool, arguments and conversation.
//! After a restart the seal is no longer valid and the user is asked again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use steadfast_core::approval::{ApprovalChannel, ApprovalDecision, ParkedRequest, ParkedRequestId};
use steadfast_core::id::Digest;
use steadfast_core::millis;
use steadfast_core::output::ToolOutput;
use steadfast_core::trust::PromptLevel;
use steadfast_executor::{ApprovalPrompter, ClientDecision, ClientDecisionFuture};
use steadfast_json::RawJson as Kept;
use steadfast_json::scan;
use steadfast_mcp::http::{META_CAPABILITIES, ProtocolEra};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage};
use tokio::sync::oneshot;

use crate::client::request_channel::RequestChannel;
use crate::protocol::{cancel, elicits};
use crate::seal::SealKey;

/// Asks the user of the client that made one call.
pub(crate) struct Elicitation {
    route: ApprovalRoute,
    conversation: ConversationStatus,
    /// The decision that came with the call.
    returned_decision: Option<ReturnedDecision>,
}

/// The form in which the client gets the approval request.
enum ApprovalRoute {
    /// A request from the gateway, while the call waits.
    Request(Arc<ElicitationRequests>, RequestChannel),
    /// The result of the call. The client sends its input back together with the decision.
    Answer(ClientInput),
}

/// States if the conversation of a call is known. If it is not, no approval can cover a whole session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConversationStatus {
    Known,
    Unknown,
}

/// The input that a client sends back for a call whose result asked for it.
#[derive(Debug, Default)]
struct ClientInput {
    request_state: Option<Box<RawValue>>,
    input_responses: Option<Box<RawValue>>,
}

/// A decision that came with a call, and the approval request that it answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReturnedDecision {
    request: ParkedRequestId,
    arguments: Digest,
    decision: ApprovalDecision,
}

impl Elicitation {
    /// Returns the asker for the client of this request, or `None` if the client cannot be asked. `legacy` returns true
    /// if a client of the legacy era declared the capability in its handshake.
    pub(crate) fn of(
        request: &RpcMessage,
        era: ProtocolEra,
        legacy: impl FnOnce() -> bool,
        questions: &Arc<ElicitationRequests>,
        channel: &RequestChannel,
        conversation: ConversationStatus,
        returned_decision: Option<ReturnedDecision>,
    ) -> Option<Arc<dyn ApprovalPrompter>> {
        let route = match era {
            ProtocolEra::Legacy => {
                legacy().then(|| ApprovalRoute::Request(questions.clone(), channel.clone()))
            }
            ProtocolEra::Modern => request
                .meta_member(META_CAPABILITIES)
                .is_some_and(elicits)
                .then(|| ApprovalRoute::Answer(ClientInput::by(request))),
        }?;
        Some(Arc::new(Self { route, conversation, returned_decision }))
    }
}

/// Returns the channel on which a call can be approved while it waits.
pub(crate) fn channel(prompter: Option<&Arc<dyn ApprovalPrompter>>) -> ApprovalChannel {
    match prompter {
        Some(_) => ApprovalChannel::Interactive,
        None => ApprovalChannel::Headless,
    }
}

impl ApprovalPrompter for Elicitation {
    fn ask(&self, id: ParkedRequestId, request: ParkedRequest) -> ClientDecisionFuture {
        if let Some(returned_decision) = &self.returned_decision
            && (returned_decision.request, returned_decision.arguments) == (id, request.arguments)
        {
            return Box::pin(std::future::ready(within(
                self.conversation,
                ClientDecision::Decided(returned_decision.decision),
            )));
        }
        let question = form(&request, self.conversation);
        match &self.route {
            ApprovalRoute::Request(questions, channel) => {
                let (questions, channel) = (questions.clone(), channel.clone());
                let conversation = self.conversation;
                Box::pin(async move { within(conversation, questions.ask(&channel, &question).await) })
            }
            ApprovalRoute::Answer(input) => {
                let decision = match state(id, &request, input) {
                    Some(state) => ClientDecision::PutToCaller(question_result(&question, &state)),
                    None => ClientDecision::Unavailable,
                };
                Box::pin(std::future::ready(decision))
            }
        }
    }
}

/// Limits a decision to the options that were offered: without a known conversation, an approval covers one call.
fn within(conversation: ConversationStatus, decision: ClientDecision) -> ClientDecision {
    match (conversation, decision) {
        (ConversationStatus::Unknown, ClientDecision::Decided(ApprovalDecision::Session)) => {
            ClientDecision::Decided(ApprovalDecision::Once)
        }
        (ConversationStatus::Known | ConversationStatus::Unknown, decision) => decision,
    }
}

impl fmt::Debug for Elicitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route = match &self.route {
            ApprovalRoute::Request(..) => "Request",
            ApprovalRoute::Answer(_) => "Answer",
        };
        f.debug_struct("Elicitation").field("way", &route).finish_non_exhaustive()
    }
}

// ---- the question ----

/// Builds the parameters of an elicitation.
fn form(request: &ParkedRequest, conversation: ConversationStatus) -> serde_json::Value {
    let all = [
        ("once", "Approve this call"),
        ("session", "Approve for this session"),
        ("recover", "Approve, and let the tool recover trust"),
        ("deny", "Deny"),
    ];
    let offered = all.into_iter().filter(|(word, _)| match *word {
        "session" => conversation == ConversationStatus::Known,
        "recover" => request.prompt.waits_for_recovery,
        _ => true,
    });
    let (words, names): (Vec<_>, Vec<_>) = offered.unzip();
    json!({
        "mode": "form",
        "message": message(request),
        "requestedSchema": {
            "type": "object",
            "properties": {
                DECISION: { "type": "string", "title": "Approve this call?", "enum": words, "enumNames": names },
            },
            "required": [DECISION],
        },
    })
}

/// Builds the message that the user reads.
fn message(request: &ParkedRequest) -> String {
    let prompt = &request.prompt;
    let level = match prompt.level {
        PromptLevel::Info => "info",
        PromptLevel::Warning => "warning",
        PromptLevel::Error => "error",
    };
    let mut lines = vec![prompt.summary.clone()];
    lines.extend(prompt.warnings.iter().cloned());
    lines.push(format!("Tool: {}", request.tool));
    lines.extend(request.shown.iter().map(|shown| format!("Arguments: {shown}")));
    lines.push(format!("Level: {level}"));
    lines.push(format!("Reason: {}", prompt.reason));
    if prompt.failures > 0 {
        lines.push(format!("Failures: {} ({})", prompt.failures, prompt.window));
    }
    if !prompt.recovery_hint.is_empty() {
        lines.push(format!("Recovery: {}", prompt.recovery_hint));
    }
    lines.join("\n")
}

/// Parses the decision from the result of an elicitation. Returns `None` if the result is malformed.
fn decision(result: &str) -> Option<ApprovalDecision> {
    match scan::get(result, "action").and_then(scan::string)?.as_ref() {
        "decline" | "cancel" => Some(ApprovalDecision::Deny),
        "accept" => {
            let content = scan::get(result, "content")?;
            match scan::get(content, DECISION).and_then(scan::string)?.as_ref() {
                "once" => Some(ApprovalDecision::Once),
                "session" => Some(ApprovalDecision::Session),
                "recover" => Some(ApprovalDecision::Recover),
                "deny" => Some(ApprovalDecision::Deny),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The name of the form field.
const DECISION: &str = "decision";

// ---- the legacy era: a request of the gateway ----

/// The elicitation requests that one session has sent to its client and that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct ElicitationRequests {
    open: Mutex<BTreeMap<u64, oneshot::Sender<ClientDecision>>>,
    next: AtomicU64,
}

/// The maximum number of open elicitation requests for one client.
const MOST_OPEN: usize = 64;
/// The prefix of the ids of the gateway's own requests. The ids of server requests are numbers.
const ID_PREFIX: &str = "steadfast-";

impl ElicitationRequests {
    /// Takes the answer to an elicitation request. Returns true if the id is one of the gateway's.
    pub(crate) fn answered(&self, id: &RpcId, answer: &RpcMessage) -> bool {
        let Some(text) = scan::string(id.as_str()) else { return false };
        let Some(number) = text.strip_prefix(ID_PREFIX).and_then(|number| number.parse().ok()) else {
            return false;
        };
        // The client may still answer a request that was cancelled.
        if let Some(waiting) = self.open.lock().remove(&number) {
            let decided = answer
                .result()
                .and_then(decision)
                .map_or(ClientDecision::Unavailable, ClientDecision::Decided);
            let _ = waiting.send(decided);
        }
        true
    }

    async fn ask(&self, channel: &RequestChannel, form: &serde_json::Value) -> ClientDecision {
        let Ok(params) = JsonText::parse(form.to_string()) else { return ClientDecision::Unavailable };
        let (sender, answer) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut open = self.open.lock();
            if open.len() >= MOST_OPEN {
                return ClientDecision::Unavailable;
            }
            open.insert(number, sender);
        }
        let id = RpcId::string(&format!("{ID_PREFIX}{number}"));
        let _guard = ElicitationCancelGuard { questions: self, number, id: &id, channel };
        channel.send(&RpcMessage::request(&id, "elicitation/create", Some(&params))).await;
        answer.await.unwrap_or(ClientDecision::Unavailable)
    }
}

/// Cancels the elicitation request at the client on drop, unless it was answered.
struct ElicitationCancelGuard<'a> {
    questions: &'a ElicitationRequests,
    number: u64,
    id: &'a RpcId,
    channel: &'a RequestChannel,
}

impl Drop for ElicitationCancelGuard<'_> {
    fn drop(&mut self) {
        if self.questions.open.lock().remove(&self.number).is_some() {
            self.channel.try_send(cancel(self.id, "the approval is no longer needed"));
        }
    }
}

// ---- the modern era: the result of the call ----

/// Removes the gateway's own parameters from a request. Returns the request and the decision that it carries.
pub(crate) fn unwrapped(request: RpcMessage) -> (RpcMessage, Option<ReturnedDecision>) {
    let Some(text) = request.param_text("requestState") else { return (request, None) };
    let Some((seal, written)) = text.strip_prefix(STATE).and_then(|rest| rest.split_once('.')) else {
        return (request, None);
    };
    let Ok(state) = serde_json::from_str::<State>(written) else { return (request, None) };
    let is_valid = seal_key().is_some_and(|key| key.verifies(written, seal)) && now() < state.expires;
    let choice =
        request.param("inputResponses").and_then(|all| scan::get(all, INPUT_REQUEST)).and_then(decision);
    let returned_decision = match (is_valid, choice, Digest::from_hex(&state.arguments)) {
        (true, Some(decision), Some(arguments)) => {
            Some(ReturnedDecision { request: ParkedRequestId(state.request), arguments, decision })
        }
        _ => None,
    };
    // The client's earlier input is its own data, so it is restored even if our state is not valid.
    let input = ClientInput { request_state: state.request_state, input_responses: state.input_responses };
    match input.put_back(&request) {
        Some(request) => (request, returned_decision),
        None => (request, None),
    }
}

/// The approval request that was shown, and the input that the client had sent before.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    request: u64,
    arguments: String,
    expires: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_state: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input_responses: Option<Box<RawValue>>,
}

/// The prefix of the state, and the key of the gateway's input request.
const STATE: &str = "steadfast-1.";
const INPUT_REQUEST: &str = "dev.steadfast/approval";
/// The time until a state expires.
const STATE_LIFETIME: Duration = Duration::from_secs(15 * 60);

fn state(id: ParkedRequestId, request: &ParkedRequest, input: &ClientInput) -> Option<String> {
    let state = State {
        request: id.0,
        arguments: request.arguments.to_hex(),
        expires: now().saturating_add(millis(STATE_LIFETIME)),
        request_state: input.request_state.clone(),
        input_responses: input.input_responses.clone(),
    };
    let written = serde_json::to_string(&state).ok()?;
    let seal = seal_key()?.seal(&written);
    Some(format!("{STATE}{seal}.{written}"))
}

fn question_result(form: &serde_json::Value, state: &str) -> ToolOutput {
    let result = json!({
        "resultType": "input_required",
        "inputRequests": { INPUT_REQUEST: { "method": "elicitation/create", "params": form } },
        "requestState": state,
    });
    ToolOutput { content: Kept::from_trusted(result.to_string()), metadata: None }
}

impl ClientInput {
    fn by(request: &RpcMessage) -> Self {
        let read = |name| request.param(name).and_then(|text| RawValue::from_string(text.to_owned()).ok());
        Self { request_state: read("requestState"), input_responses: read("inputResponses") }
    }

    /// Returns the request with this input in place of its current input.
    fn put_back(&self, request: &RpcMessage) -> Option<RpcMessage> {
        let params = request.params()?;
        let mut members: Vec<String> = scan::members(params)
            .filter(|member| !["requestState", "inputResponses"].contains(&&*member.name))
            .filter_map(|member| Some((JsonText::string(&member.name), params.get(member.value)?)))
            .map(|(name, value)| format!("{}:{value}", name.as_str()))
            .collect();
        let mut carry = |name: &str, value: &Option<Box<RawValue>>| {
            members.extend(value.iter().map(|value| format!("\"{name}\":{}", value.get())));
        };
        carry("inputResponses", &self.input_responses);
        carry("requestState", &self.request_state);
        let params = JsonText::parse(format!("{{{}}}", members.join(","))).ok()?;
        Some(RpcMessage::request(&request.id()?, request.method()?, Some(&params)))
    }
}

/// Returns the key of this process.
fn seal_key() -> Option<&'static SealKey> {
    static KEY: OnceLock<Option<SealKey>> = OnceLock::new();
    KEY.get_or_init(SealKey::new).as_ref()
}

fn now() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;
    use steadfast_core::classify::signature::Signature;
    use steadfast_core::id::{Namespace, ToolName, ToolRef};
    use steadfast_core::trust::Escalation;

    use super::*;

    fn parked(arguments: &str) -> ParkedRequest {
        let tool =
            ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() };
        ParkedRequest {
            prompt: Escalation::routine(&tool),
            arguments: Digest::of(arguments.as_bytes()),
            signature: Signature("bank/pay".into()),
            session: None,
            blocked: false,
            shown: Some(arguments.into()),
            request_count: 1,
            first_requested: Timestamp::from_millis(0),
            last_requested: Timestamp::from_millis(0),
            expires: Timestamp::from_millis(1),
            tool,
        }
    }

    fn request(more: &str) -> RpcMessage {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"pay","arguments":{{"to":"a"}}{more}}}}}"#
        );
        RpcMessage::parse(text, usize::MAX).unwrap()
    }

    /// The call as a client sends it again with this answer to the elicitation.
    fn again(first: &RpcMessage, answer: &str) -> RpcMessage {
        let state = state(ParkedRequestId(3), &parked("x"), &ClientInput::by(first)).unwrap();
        let state = JsonText::string(&state);
        request(&format!(
            r#","inputResponses":{{"{INPUT_REQUEST}":{answer}}},"requestState":{}"#,
            state.as_str()
        ))
    }

    const ACCEPT: &str = r#"{"action":"accept","content":{"decision":"once"}}"#;

    #[test]
    fn rp_7_the_state_of_the_gateway_is_removed_and_that_of_the_server_restored() {
        for more in ["", r#","inputResponses":{"who":{"action":"accept"}},"requestState":"of the server""#] {
            let first = request(more);
            let (back, returned_decision) = unwrapped(again(&first, ACCEPT));
            let value = |message: &RpcMessage| -> serde_json::Value {
                serde_json::from_slice(message.bytes()).unwrap()
            };
            assert_eq!(value(&back), value(&first), "{more}");
            let arguments = Digest::of(b"x");
            let decision = ApprovalDecision::Once;
            assert_eq!(
                returned_decision,
                Some(ReturnedDecision { request: ParkedRequestId(3), arguments, decision })
            );
        }
    }

    #[test]
    fn rp_7_a_forged_state_decides_nothing() {
        let sent = again(&request(""), ACCEPT);
        let forged = sent.param_text("requestState").unwrap().replace("\"request\":3", "\"request\":4");
        let forged = sent.rewrite().param("requestState", JsonText::string(&forged)).finish();
        let (back, returned_decision) = unwrapped(forged);
        assert_eq!(returned_decision, None);
        assert_eq!(back.param("requestState"), None, "the server does not see it either");
        let (same, returned_decision) = unwrapped(request(r#","requestState":"of the server""#));
        assert_eq!((same.param("requestState"), returned_decision), (Some("\"of the server\""), None));
    }

    #[test]
    fn rp_7_a_decision_counts_for_the_request_that_was_shown_and_for_no_other() {
        let ask = |id, arguments: &str| {
            let (back, returned_decision) = unwrapped(again(&request(""), ACCEPT));
            let route = ApprovalRoute::Answer(ClientInput::by(&back));
            let elicitation =
                Elicitation { route, conversation: ConversationStatus::Known, returned_decision };
            let asking = elicitation.ask(ParkedRequestId(id), parked(arguments));
            futures_util::FutureExt::now_or_never(asking).unwrap()
        };
        assert!(matches!(ask(3, "x"), ClientDecision::Decided(ApprovalDecision::Once)));
        assert!(matches!(ask(4, "x"), ClientDecision::PutToCaller(_)), "another request");
        assert!(matches!(ask(3, "y"), ClientDecision::PutToCaller(_)), "other arguments");
    }

    #[test]
    fn rp_7_no_approval_covers_an_unknown_session() {
        let session = || ClientDecision::Decided(ApprovalDecision::Session);
        assert!(matches!(
            within(ConversationStatus::Known, session()),
            ClientDecision::Decided(ApprovalDecision::Session)
        ));
        assert!(matches!(
            within(ConversationStatus::Unknown, session()),
            ClientDecision::Decided(ApprovalDecision::Once)
        ));
    }

    #[test]
    fn rp_7_a_valid_answer_decides_and_a_malformed_one_does_not() {
        for (answer, expected) in [
            (ACCEPT, Some(ApprovalDecision::Once)),
            (r#"{"action":"accept","content":{"decision":"session"}}"#, Some(ApprovalDecision::Session)),
            (r#"{"action":"accept","content":{"decision":"deny"}}"#, Some(ApprovalDecision::Deny)),
            (r#"{"action":"decline"}"#, Some(ApprovalDecision::Deny)),
            (r#"{"action":"cancel"}"#, Some(ApprovalDecision::Deny)),
            (r#"{"action":"accept"}"#, None),
            (r#"{"action":"accept","content":{"decision":"yes"}}"#, None),
            ("[]", None),
        ] {
            assert_eq!(decision(answer), expected, "{answer}");
        }
    }

    #[test]
    fn rp_7_the_prompt_is_complete_and_offers_a_session_only_if_it_is_known() {
        let mut request = parked(r#"{"to":"a"}"#);
        request.prompt.summary = "bank/pay has failed".to_owned();
        request.prompt.warnings = vec!["3 failures".to_owned()];
        (request.prompt.failures, request.prompt.window) = (3, "1h".to_owned());
        (request.prompt.level, request.prompt.recovery_hint) = (PromptLevel::Warning, "wait".to_owned());
        let known = form(&request, ConversationStatus::Known);
        let text = known["message"].as_str().unwrap();
        for part in ["bank/pay has failed", "3 failures", "warning", "(1h)", "wait", r#"{"to":"a"}"#] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        let offered =
            |form: &serde_json::Value| form["requestedSchema"]["properties"][DECISION]["enum"].clone();
        assert_eq!(offered(&known), json!(["once", "session", "deny"]));
        assert_eq!(offered(&form(&request, ConversationStatus::Unknown)), json!(["once", "deny"]));
    }

    #[test]
    fn only_clients_with_elicitation_get_approval_requests() {
        for (capabilities, expected) in [
            (r#"{"elicitation":{}}"#, true),
            (r#"{"elicitation":{"form":{},"url":{}}}"#, true),
            (r#"{"elicitation":{"url":{}}}"#, false),
            (r#"{"sampling":{}}"#, false),
            ("{}", false),
        ] {
            assert_eq!(elicits(capabilities), expected, "{capabilities}");
        }
    }
}
