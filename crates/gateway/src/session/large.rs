//! Results that exceed the limit of their tool, and the resources through which the client reads the rest.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use steadfast_core::large_result::Reader;
use steadfast_executor::{Called, Turned};
use steadfast_mcp::http::Era;
use steadfast_mcp::message::{Id, Message, code};
use steadfast_mcp::raw;

use super::Session;
use crate::client::Client;
use crate::large_results::{ReadBy, ReadError, ResultPage, ResultUri, uri_at};
use crate::pieces;
use crate::who::Connection;

/// The member of `_meta` that describes a page of a result.
const PAGE: &str = "dev.steadfast/page";
/// The error code for an unknown resource in the legacy era.
const RESOURCE_NOT_FOUND: i64 = -32_002;

impl Session {
    /// Shortens a result and stores the whole text.
    pub(super) async fn shorten(&self, called: &mut Called, reader: &Reader) {
        self.large.shorten(called, reader, self.read_by(), self.engine.now()).await;
    }

    /// Shortens the results of a turn.
    pub(super) async fn shorten_turn(&self, turned: &mut Turned, reader: &Reader) {
        self.large.shorten_turn(turned, reader, self.read_by(), self.engine.now()).await;
    }

    fn read_by(&self) -> ReadBy {
        match &self.client {
            _ if self.has_resources.load(Ordering::Relaxed) => ReadBy::Resource,
            Client::Line(_) => ReadBy::File,
            Client::Streams(_) | Client::Answers => ReadBy::Http,
        }
    }

    /// Records if a handshake response offers resources.
    pub(super) fn note_resources(&self, request: &Message, answered: &Message) {
        if !matches!(request.method(), Some("initialize" | "server/discover")) {
            return;
        }
        let capabilities = answered.result().and_then(|result| raw::get(result, "capabilities"));
        if capabilities.is_some_and(|capabilities| raw::get(capabilities, "resources").is_some()) {
            self.has_resources.store(true, Ordering::Relaxed);
        }
    }

    /// Answers a request about a resource of a stored result. Returns `None` for any other resource. The servers never
    /// see requests about these.
    pub(super) fn kept_result(&self, id: &Id, request: &Message, from: &Connection) -> Option<Message> {
        let method = request.method().filter(|method| method.starts_with("resources/"))?;
        let uri = request.param_text("uri")?;
        let ResultUri { id: result, offset } = self.large.named(&uri)?;
        let era = Era::of_request(request);
        let refused = |code, why: &str| {
            let data = pieces::json(&json!({ "uri": uri }).to_string());
            Some(Message::error_response(Some(id), code, why, Some(&data)))
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
                let answer = pieces::json(&contents(&uri, result, &page, era).to_string());
                Some(Message::result_response(id, &answer))
            }
            Err(ReadError::NoPage(why)) => refused(code::INVALID_PARAMS, &why.to_string()),
            Err(ReadError::NotKept) => {
                let code = match era {
                    Era::Legacy => RESOURCE_NOT_FOUND,
                    Era::Modern => code::INVALID_PARAMS,
                };
                refused(code, "there is no such result, or it has expired: call the tool again")
            }
        }
    }
}

/// Builds the `resources/read` result of a page. Programs find the next page in `_meta`, models in a text after the
/// page.
fn contents(uri: &str, id: &str, page: &ResultPage, era: Era) -> Value {
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
        (Era::Modern, Value::Object(mut members)) => {
            members.insert("resultType".to_owned(), json!("complete"));
            members.insert("ttlMs".to_owned(), json!(0));
            members.insert("cacheScope".to_owned(), json!("private"));
            Value::Object(members)
        }
        (Era::Modern | Era::Legacy, result) => result,
    }
}
