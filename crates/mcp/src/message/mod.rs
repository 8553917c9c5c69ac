//! One JSON-RPC message: the original bytes, and the places of the fields used for routing.
//!
//! Reading walks over the text once ([`crate::json_text`]) and keeps places, no values. Changes in transit (ids, progress
//! tokens, names, members of `_meta`) are spliced by a [`MessageRewrite`]. Every other byte is preserved.
//!
//! Both sides must understand a message in the same way. So a name that is repeated on a routed level is refused. A
//! batch is refused because neither era of the protocol allows batches in streamable HTTP.

mod builder;
mod id;
mod rewrite;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use steadfast_json::scan::{self, DEPTH, JsonProblem, JsonScanner, JsonSyntaxError};

pub use self::id::RpcId;
pub use self::rewrite::MessageRewrite;
use crate::json_text::{JsonText, routed};

/// Error codes of responses that this crate creates.
pub mod code {
    /// The text is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// The JSON is not a message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method does not exist.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are invalid for the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// An internal error.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// HTTP headers and body do not match.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The client did not declare a capability that the request needs.
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// The protocol version is not supported.
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

/// A JSON-RPC message.
#[derive(Clone)]
pub struct RpcMessage {
    text: Bytes,
    places: MessageSpans,
    shape: MessageShape,
    /// The method with its escapes resolved, if it has any.
    spelled: Option<Box<str>>,
    /// True if there is a line break between its tokens.
    breaks: bool,
}

/// The kind of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcMessageKind<'m> {
    /// A request, which expects a response.
    Request {
        /// The id.
        id: RpcId,
        /// The method.
        method: &'m str,
    },
    /// A notification, which expects no response.
    Notification {
        /// The method.
        method: &'m str,
    },
    /// A response with a result.
    Result {
        /// The id of the request.
        id: RpcId,
    },
    /// A response with an error.
    Error {
        /// The id of the request, if it could be read.
        id: Option<RpcId>,
    },
}

impl RpcMessage {
    /// Parses a message of at most `most_bytes` bytes.
    pub fn parse(text: impl Into<Bytes>, most_bytes: usize) -> Result<Self, InvalidMessage> {
        let text = text.into();
        if text.len() > most_bytes.min(MOST_BYTES) {
            return Err(InvalidMessage::new(MessageFault::TooLarge { most: most_bytes.min(MOST_BYTES) }));
        }
        if let Err(error) = std::str::from_utf8(&text) {
            let wrong = JsonSyntaxError { at: error.valid_up_to(), problem: JsonProblem::NotUtf8 };
            return Err(InvalidMessage::new(MessageFault::NotJson(wrong)));
        }
        let (places, breaks) = locate(&text).map_err(InvalidMessage::new)?;
        let message = Self { text, places, shape: MessageShape::Notification, spelled: None, breaks };
        message.judged()
    }

    /// Returns the original text.
    pub fn bytes(&self) -> &Bytes {
        &self.text
    }

    /// Returns the message on one line: line breaks between tokens become spaces. Copies only if there are any.
    pub fn one_line(&self) -> Bytes {
        if !self.breaks {
            return self.text.clone();
        }
        // Within strings line breaks are always escaped, so all line breaks are between tokens.
        let flat = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
        self.text.iter().map(flat).collect::<Vec<u8>>().into()
    }

    /// Returns the kind of the message.
    pub fn kind(&self) -> RpcMessageKind<'_> {
        let method = self.method().unwrap_or_default();
        match (self.shape, self.id()) {
            (MessageShape::Request, Some(id)) => RpcMessageKind::Request { id, method },
            (MessageShape::Result, Some(id)) => RpcMessageKind::Result { id },
            (MessageShape::Error, id) => RpcMessageKind::Error { id },
            (MessageShape::Notification | MessageShape::Request | MessageShape::Result, _) => {
                RpcMessageKind::Notification { method }
            }
        }
    }

    /// Returns true for a request.
    pub fn is_request(&self) -> bool {
        self.shape == MessageShape::Request
    }

    /// Returns true for a notification.
    pub fn is_notification(&self) -> bool {
        self.shape == MessageShape::Notification
    }

    /// Returns true for a response, with a result or an error.
    pub fn is_response(&self) -> bool {
        matches!(self.shape, MessageShape::Result | MessageShape::Error)
    }

    /// Returns the id, if there is one that is not null.
    pub fn id(&self) -> Option<RpcId> {
        let place = self.places.id?;
        (self.at(place) != "null").then(|| RpcId::known(self.piece(place)))
    }

    /// Returns the method of a request or a notification.
    pub fn method(&self) -> Option<&str> {
        match &self.spelled {
            Some(method) => Some(method),
            None => self.places.method.map(|place| self.at(place).trim_matches('"')),
        }
    }

    /// Returns the parameters as text.
    pub fn params(&self) -> Option<&str> {
        self.places.params.map(|place| self.at(place))
    }

    /// Returns the parameters without copying them.
    pub fn params_json(&self) -> Option<JsonText> {
        self.places.params.map(|place| JsonText::known(self.piece(place)))
    }

    /// Returns the value of one member of the parameters as text.
    pub fn param(&self, name: &str) -> Option<&str> {
        scan::get(self.params()?, name)
    }

    /// Returns the value of one member of the parameters, if it is a string.
    pub fn param_text(&self, name: &str) -> Option<Cow<'_, str>> {
        scan::string(self.param(name)?)
    }

    /// Returns the `name` in the parameters, if it is a string: the tool or prompt.
    pub fn name(&self) -> Option<Cow<'_, str>> {
        self.places.name.and_then(|place| scan::string(self.at(place)))
    }

    /// Returns the `arguments` in the parameters without copying them.
    pub fn arguments(&self) -> Option<JsonText> {
        self.places.arguments.map(|place| JsonText::known(self.piece(place)))
    }

    /// Returns the `_meta` of the parameters, or of the result of a response, as text.
    pub fn meta(&self) -> Option<&str> {
        self.places.meta.map(|place| self.at(place))
    }

    /// Returns the value of one member of [`RpcMessage::meta`] as text.
    pub fn meta_member(&self, name: &str) -> Option<&str> {
        scan::get(self.meta()?, name)
    }

    /// Returns the value of one member of [`RpcMessage::meta`], if it is a string.
    pub fn meta_text(&self, name: &str) -> Option<Cow<'_, str>> {
        scan::string(self.meta_member(name)?)
    }

    /// Returns the progress token of a request.
    pub fn progress_token(&self) -> Option<JsonText> {
        let place = self.places.token.filter(|_| self.shape == MessageShape::Request)?;
        Some(JsonText::known(self.piece(place)))
    }

    /// Returns the result as text.
    pub fn result(&self) -> Option<&str> {
        self.places.result.map(|place| self.at(place))
    }

    /// Returns the result without copying it.
    pub fn result_json(&self) -> Option<JsonText> {
        self.places.result.map(|place| JsonText::known(self.piece(place)))
    }

    /// Returns the error as text.
    pub fn error(&self) -> Option<&str> {
        self.places.error.map(|place| self.at(place))
    }

    /// Returns the error code, if it is a whole number.
    pub fn error_code(&self) -> Option<i64> {
        scan::get(self.error()?, "code")?.parse().ok()
    }

    /// Returns the error message.
    pub fn error_text(&self) -> Option<Cow<'_, str>> {
        scan::string(scan::get(self.error()?, "message")?)
    }

    /// Returns true if the message cancels the request with this id.
    pub fn cancels(&self, id: &RpcId) -> bool {
        self.method() == Some("notifications/cancelled")
            && self.param("requestId").is_some_and(|cancelled| id.is(cancelled))
    }

    /// Starts a rewrite of the message.
    pub fn rewrite(&self) -> MessageRewrite<'_> {
        MessageRewrite::new(self)
    }

    fn at(&self, place: MessageSpan) -> &str {
        self.text.get(place.range()).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    fn piece(&self, place: MessageSpan) -> Bytes {
        if place.range().end <= self.text.len() { self.text.slice(place.range()) } else { Bytes::new() }
    }

    /// Returns the message, if the fields found make a valid one.
    fn judged(mut self) -> Result<Self, InvalidMessage> {
        let id = self.places.id.map(|place| self.at(place));
        let usable = id.is_some_and(|id| {
            id.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
        });
        let refuse = |problem| {
            let id = usable.then(|| self.id()).flatten();
            Err(InvalidMessage { id, fault: MessageFault::NotAMessage(problem) })
        };
        let version = self.places.version.and_then(|place| scan::string(self.at(place)));
        if version.as_deref() != Some("2.0") {
            return refuse("the member `jsonrpc` must be \"2.0\"");
        }
        if id.is_some_and(|id| !usable && id != "null") {
            return refuse("an id must be a string or a number");
        }
        let method = self.places.method.map(|place| self.at(place));
        if method.is_some_and(|method| !method.starts_with('"')) {
            return refuse("a method must be a string");
        }
        let params = self.params();
        if params.is_some_and(|params| !params.starts_with(['{', '['])) && params != Some("null") {
            return refuse("params must be an object");
        }
        let shape = match (method, self.places.result, self.places.error) {
            (Some(_), None, None) if usable => MessageShape::Request,
            (Some(_), None, None) if id.is_none() => MessageShape::Notification,
            (Some(_), None, None) => return refuse("the id of a request must not be null"),
            (None, Some(_), None) if usable => MessageShape::Result,
            (None, Some(_), None) => return refuse("a result needs the id of its request"),
            (None, None, Some(_)) if self.error().is_some_and(|error| error.starts_with('{')) => {
                MessageShape::Error
            }
            (None, None, Some(_)) => return refuse("an error must be an object"),
            (None, None, None) => return refuse("a message has a method, a result or an error"),
            (Some(_), _, _) => return refuse("a message with a method has neither result nor error"),
            (None, Some(_), Some(_)) => return refuse("a message has either a result or an error"),
        };
        let spelled = method.filter(|method| method.contains('\\')).and_then(scan::string);
        (self.spelled, self.shape) = (spelled.map(|method| method.into_owned().into()), shape);
        Ok(self)
    }
}

impl fmt::Debug for RpcMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

/// Messages are equal if their bytes are.
impl PartialEq for RpcMessage {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for RpcMessage {}

/// The reason why a text is not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct InvalidMessage {
    /// The id of the request or response, if it could be read.
    pub id: Option<RpcId>,
    /// The fault.
    pub fault: MessageFault,
}

/// A fault in a text that must be a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageFault {
    /// The text is not JSON.
    #[error("not JSON: {0}")]
    NotJson(JsonSyntaxError),
    /// The containers are nested too deep, or a name is repeated.
    #[error("not accepted: {0}")]
    Refused(JsonSyntaxError),
    /// The text is JSON, but not a message.
    #[error("not a JSON-RPC message: {0}")]
    NotAMessage(&'static str),
    /// The text is longer than allowed.
    #[error("the message is longer than {most} bytes")]
    TooLarge {
        /// The limit in bytes.
        most: usize,
    },
}

impl InvalidMessage {
    fn new(fault: MessageFault) -> Self {
        Self { id: None, fault }
    }

    /// Returns the JSON-RPC code.
    pub fn code(&self) -> i64 {
        match self.fault {
            MessageFault::NotJson(_) => code::PARSE_ERROR,
            MessageFault::Refused(_) | MessageFault::NotAMessage(_) | MessageFault::TooLarge { .. } => {
                code::INVALID_REQUEST
            }
        }
    }

    /// Returns the error response for the sender.
    pub fn answer(&self) -> RpcMessage {
        RpcMessage::error_response(self.id.as_ref(), self.code(), &self.to_string(), None)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageShape {
    Request,
    Notification,
    Result,
    Error,
}

/// Places of the routed fields.
#[derive(Clone, Copy, Debug, Default)]
struct MessageSpans {
    version: Option<MessageSpan>,
    id: Option<MessageSpan>,
    method: Option<MessageSpan>,
    params: Option<MessageSpan>,
    result: Option<MessageSpan>,
    error: Option<MessageSpan>,
    name: Option<MessageSpan>,
    arguments: Option<MessageSpan>,
    meta: Option<MessageSpan>,
    token: Option<MessageSpan>,
}

/// A place of two 32-bit numbers, to keep a message small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageSpan {
    start: u32,
    end: u32,
}

const MOST_BYTES: usize = (u32::MAX - 1) as usize;

impl MessageSpan {
    fn new(range: Range<usize>) -> Self {
        // Longer texts are refused before they are read.
        let short = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { start: short(range.start), end: short(range.end) }
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Finds the fields used for routing in a text, and detects line breaks.
fn locate(text: &[u8]) -> Result<(MessageSpans, bool), MessageFault> {
    let mut skim = JsonScanner::new(text);
    skim.space();
    match skim.peek() {
        Some(b'{') => {}
        Some(b'[') => return Err(MessageFault::NotAMessage("batches are not part of this protocol")),
        _ => {
            let whole = skim.value(DEPTH).and_then(|_| skim.end());
            return Err(whole.map_or_else(fault_of, |()| MessageFault::NotAMessage("a message is an object")));
        }
    }
    let mut found = MessageSpans::default();
    routed(&mut skim, DEPTH, |skim, name| {
        let place = match name {
            "params" => return params(skim, &mut found),
            "result" => return result(skim, &mut found),
            // Only the names in the error itself must be unique. Its data belongs to the server.
            "error" => {
                let room = DEPTH - 1;
                found.error =
                    Some(MessageSpan::new(routed(skim, room, |skim, _| skim.value(room - 1).map(drop))?));
                return Ok(());
            }
            "jsonrpc" => &mut found.version,
            "id" => &mut found.id,
            "method" => &mut found.method,
            _ => return skim.value(DEPTH - 1).map(drop),
        };
        *place = Some(MessageSpan::new(skim.value(DEPTH - 1)?));
        Ok(())
    })
    .map_err(fault_of)?;
    skim.end().map_err(fault_of)?;
    Ok((found, skim.breaks))
}

fn params(skim: &mut JsonScanner<'_>, found: &mut MessageSpans) -> Result<(), JsonSyntaxError> {
    let room = DEPTH - 1;
    let whole = routed(skim, room, |skim, name| {
        let place = match name {
            "_meta" => return meta(skim, found),
            "name" => &mut found.name,
            "arguments" => &mut found.arguments,
            _ => return skim.value(room - 1).map(drop),
        };
        *place = Some(MessageSpan::new(skim.value(room - 1)?));
        Ok(())
    })?;
    found.params = Some(MessageSpan::new(whole));
    Ok(())
}

fn result(skim: &mut JsonScanner<'_>, found: &mut MessageSpans) -> Result<(), JsonSyntaxError> {
    let room = DEPTH - 1;
    let whole = routed(skim, room, |skim, name| match name {
        "_meta" => meta(skim, found),
        _ => skim.value(room - 1).map(drop),
    })?;
    found.result = Some(MessageSpan::new(whole));
    Ok(())
}

fn meta(skim: &mut JsonScanner<'_>, found: &mut MessageSpans) -> Result<(), JsonSyntaxError> {
    let room = DEPTH - 2;
    let whole = routed(skim, room, |skim, name| {
        let value = skim.value(room - 1)?;
        if name == "progressToken" {
            found.token = Some(MessageSpan::new(value));
        }
        Ok(())
    })?;
    found.meta = Some(MessageSpan::new(whole));
    Ok(())
}

fn fault_of(wrong: JsonSyntaxError) -> MessageFault {
    match wrong.problem {
        JsonProblem::NotUtf8 | JsonProblem::NotJson(_) => MessageFault::NotJson(wrong),
        JsonProblem::TooDeep | JsonProblem::DuplicateName(_) => MessageFault::Refused(wrong),
    }
}
