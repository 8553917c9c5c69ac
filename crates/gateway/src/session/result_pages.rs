//! Results that exceed the limit of their tool, and the resources through which the client reads the rest.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use steadfast_core::large_result::ResultReader;
use steadfast_executor::{CallResponse, TurnResponse};
use steadfast_json::scan;
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::message::{RpcId, RpcMessage, code};

use super::GatewaySession;
use crate::calls::large_results::{ReadMethod, ResultPage, ResultReadError, ResultUri, uri_at};
use crate::client::connection::ClientConnection;
use crate::client::identity::ClientIdentity;
use crate::json_parts;

/// The member of `_meta` that describes a page of a result.
const PAGE: &str = "dev.steadfast/page";
/// The error code for an unknown resource in the legacy era.
const RESOURCE_NOT_FOUND: i64 = -32_002;

impl GatewaySession {
    /// Shortens a result and stores the whole text.
    pub(super) async fn shorten(&self, called: &mut CallResponse, reader: &ResultReader) {
        self.large.shorten(called, reader, self.read_by(), self.engine.now()).await;
    }

    /// Shortens the results of a turn.
    pub(super) async fn shorten_turn(&self, turned: &mut TurnResponse, reader: &ResultReader) {
        self.large.shorten_turn(turned, reader, self.read_by(), self.engine.now()).await;
    }

    fn read_by(&self) -> ReadMethod {
        match &self.client {
            _ if self.has_resources.load(Ordering::Relaxed) => ReadMethod::Resource,
            ClientConnection::Line(_) => ReadMethod::File,
            ClientConnection::Streams(_) | ClientConnection::Answers => ReadMethod::Http,
        }
    }

    /// Records if a handshake response offers resources.
    pub(super) fn note_resources(&self, request: &RpcMessage, answered: &RpcMessage) {
        if !matches!(request.method(), Some("initialize" | "server/discover")) {
            return;
        }
        let capabilities = answered.result().and_then(|result| scan::get(result, "capabilities"));
        if capabilities.is_some_and(|capabilities| scan::get(capabilities, "resources").is_some()) {
            self.has_resources.store(true, Ordering::Relaxed);
        }
    }

    /// Answers a request about a resource of a stored result. Returns `None` for any other resource. The servers never
    /// see requests about these.
    pub(super) fn stored_result(
        &self,
        id: &RpcId,
        request: &RpcMessage,
        from: &ClientIdentity,
    ) -> Option<RpcMessage> {
        let method = request.method().filter(|method| method.starts_with("resources/"))?;
        let uri = request.param_text("uri")?;
        let ResultUri { id: result, offset } = self.large.named(&uri)?;
        let era = ProtocolEra::of_request(request);
        let refused = |code, reason: &str| {
            let data = json_parts::json(&json!({ "uri": uri }).to_string());
            Some(RpcMessage::error_response(Some(id), code, reason, Some(&data)))
        };
        if method != "resources/read" {
            return refused(
                code::INVALID_PARAMS,
                "the text of a result never changes: read it with resources/read",
            );
        }
        let Some(offset) = offset else {
            return refused(
                code::INVALID_PARAMS,
                "an offset in a result is written as `?offset=` and a number of bytes",
            );
        };
        let reader = from.reader();
        let read = self.large.read(result, |own| *own == reader, offset, self.engine.now());
        match read {
            Ok(page) => {
                let answer = json_parts::json(&contents(&uri, result, &page, era).to_string());
                Some(RpcMessage::result_response(id, &answer))
            }
            Err(ResultReadError::NoPage(reason)) => refused(code::INVALID_PARAMS, &reason.to_string()),
            Err(ResultReadError::NotKept) => {
                let code = match era {
                    ProtocolEra::Legacy => RESOURCE_NOT_FOUND,
                    ProtocolEra::Modern => code::INVALID_PARAMS,
                };
                refused(code, "there is no such result, or it has expired: call the tool again")
            }
        }
    }
}

/// Builds the `resources/read` result of a page. Programs find the next page in `_meta`, models in a text after the
/// page.
fn contents(uri: &str, id: &str, page: &ResultPage, era: ProtocolEra) -> Value {
    let ResultPage { text, offset, next, bytes, expires } = page;
    let next_uri = next.map(|next| uri_at(id, next));
    let about = json!({ "offset": offset, "bytes": bytes, "next": next_uri, "expiresAtMs": expires });
    let mut contents = vec![json!({ "uri": uri, "mimeType": "text/plain", "text": text })];
    if let (Some(next), Some(next_uri)) = (next, &next_uri) {
        let words =
            format!("[Bytes {offset} to {next} of {bytes}. The next page is the resource {next_uri}.]");
        contents.push(json!({ "uri": next_uri, "mimeType": "text/plain", "text": words }));
    }
    let result = json!({ "contents": contents, "_meta": { PAGE: about } });
    match (era, result) {
        (ProtocolEra::Modern, Value::Object(mut members)) => {
            members.insert("resultType".to_owned(), json!("complete"));
            members.insert("ttlMs".to_owned(), json!(0));
            members.insert("cacheScope".to_owned(), json!("private"));
            Value::Object(members)
        }
        (ProtocolEra::Modern | ProtocolEra::Legacy, result) => result,
    }
}
