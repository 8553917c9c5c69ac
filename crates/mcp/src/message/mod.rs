//! One JSON-RPC message: the original bytes, and the places of the fields used for routing.
//!
//! Reading walks over the text once ([`crate::raw`]) and keeps places, no values. Changes in transit (ids, progress
//! tokens, names, members of `_meta`) are spliced by a [`Rewrite`]. Every other byte is preserved.
//!
//! Both sides must understand a message in the same way. So a name that is repeated on a routed level is refused. A
//! batch is refused because neither era of the protocol allows batches in streamable HTTP.

mod build;
mod id;
mod rewrite;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

pub use self::id::Id;
pub use self::rewrite::Rewrite;
use crate::raw::{self, DEPTH, Problem, RawJson, Skim, Wrong};

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
pub struct Message {
    text: Bytes,
    places: Places,
    shape: Shape,
    /// The method with its escapes resolved, if it has any.
    spelled: Option<Box<str>>,
    /// True if there is a line break between its tokens.
    breaks: bool,
}

/// The kind of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'m> {
    /// A request, which expects a response.
    Request {
        /// The id.
        id: Id,
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
        id: Id,
    },
    /// A response with an error.
    Error {
        /// The id of the request, if it could be read.
        id: Option<Id>,
    },
}

impl Message {
    /// Parses a message of at most `most_bytes` bytes.
    pub fn parse(text: impl Into<Bytes>, most_bytes: usize) -> Result<Self, Unreadable> {
        let text = text.into();
        if text.len() > most_bytes.min(MOST_BYTES) {
            return Err(Unreadable::new(Fault::TooLarge { most: most_bytes.min(MOST_BYTES) }));
        }
        if let Err(error) = std::str::from_utf8(&text) {
            let wrong = Wrong { at: error.valid_up_to(), problem: Problem::NotUtf8 };
            return Err(Unreadable::new(Fault::NotJson(wrong)));
        }
        let (places, breaks) = locate(&text).map_err(Unreadable::new)?;
        let message = Self { text, places, shape: Shape::Notification, spelled: None, breaks };
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
    pub fn kind(&self) -> Kind<'_> {
        let method = self.method().unwrap_or_default();
        match (self.shape, self.id()) {
            (Shape::Request, Some(id)) => Kind::Request { id, method },
            (Shape::Result, Some(id)) => Kind::Result { id },
            (Shape::Error, id) => Kind::Error { id },
            (Shape::Notification | Shape::Request | Shape::Result, _) => Kind::Notification { method },
        }
    }

    /// Returns true for a request.
    pub fn is_request(&self) -> bool {
        self.shape == Shape::Request
    }

    /// Returns true for a notification.
    pub fn is_notification(&self) -> bool {
        self.shape == Shape::Notification
    }

    /// Returns true for a response, with a result or an error.
    pub fn is_response(&self) -> bool {
        matches!(self.shape, Shape::Result | Shape::Error)
    }

    /// Returns the id, if there is one that is not null.
    pub fn id(&self) -> Option<Id> {
        let place = self.places.id?;
        (self.at(place) != "null").then(|| Id::known(self.piece(place)))
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
    pub fn params_json(&self) -> Option<RawJson> {
        self.places.params.map(|place| RawJson::known(self.piece(place)))
    }

    /// Returns the value of one member of the parameters as text.
    pub fn param(&self, name: &str) -> Option<&str> {
        raw::get(self.params()?, name)
    }

    /// Returns the value of one member of the parameters, if it is a string.
    pub fn param_text(&self, name: &str) -> Option<Cow<'_, str>> {
        raw::string(self.param(name)?)
    }

    /// Returns the `name` in the parameters, if it is a string: the tool or prompt.
    pub fn name(&self) -> Option<Cow<'_, str>> {
        self.places.name.and_then(|place| raw::string(self.at(place)))
    }

    /// Returns the `arguments` in the parameters without copying them.
    pub fn arguments(&self) -> Option<RawJson> {
        self.places.arguments.map(|place| RawJson::known(self.piece(place)))
    }

    /// Returns the `_meta` of the parameters, or of the result of a response, as text.
    pub fn meta(&self) -> Option<&str> {
        self.places.meta.map(|place| self.at(place))
    }

    /// Returns the value of one member of [`Message::meta`] as text.
    pub fn meta_member(&self, name: &str) -> Option<&str> {
        raw::get(self.meta()?, name)
    }

    /// Returns the value of one member of [`Message::meta`], if it is a string.
    pub fn meta_text(&self, name: &str) -> Option<Cow<'_, str>> {
        raw::string(self.meta_member(name)?)
    }

    /// Returns the progress token of a request.
    pub fn progress_token(&self) -> Option<RawJson> {
        let place = self.places.token.filter(|_| self.shape == Shape::Request)?;
        Some(RawJson::known(self.piece(place)))
    }

    /// Returns the result as text.
    pub fn result(&self) -> Option<&str> {
        self.places.result.map(|place| self.at(place))
    }

    /// Returns the result without copying it.
    pub fn result_json(&self) -> Option<RawJson> {
        self.places.result.map(|place| RawJson::known(self.piece(place)))
    }

    /// Returns the error as text.
    pub fn error(&self) -> Option<&str> {
        self.places.error.map(|place| self.at(place))
    }

    /// Returns the error code, if it is a whole number.
    pub fn error_code(&self) -> Option<i64> {
        raw::get(self.error()?, "code")?.parse().ok()
    }

    /// Returns the error message.
    pub fn error_text(&self) -> Option<Cow<'_, str>> {
        raw::string(raw::get(self.error()?, "message")?)
    }

    /// Returns true if the message cancels the request with this id.
    pub fn cancels(&self, id: &Id) -> bool {
        self.method() == Some("notifications/cancelled")
            && self.param("requestId").is_some_and(|cancelled| id.is(cancelled))
    }

    /// Starts a rewrite of the message.
    pub fn rewrite(&self) -> Rewrite<'_> {
        Rewrite::new(self)
    }

    fn at(&self, place: Place) -> &str {
        self.text.get(place.range()).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    fn piece(&self, place: Place) -> Bytes {
        if place.range().end <= self.text.len() { self.text.slice(place.range()) } else { Bytes::new() }
    }

    /// Returns the message, if the fields found make a valid one.
    fn judged(mut self) -> Result<Self, Unreadable> {
        let id = self.places.id.map(|place| self.at(place));
        let usable = id.is_some_and(|id| {
            id.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
        });
        let refuse = |problem| {
            let id = usable.then(|| self.id()).flatten();
            Err(Unreadable { id, fault: Fault::NotAMessage(problem) })
        };
        let version = self.places.version.and_then(|place| raw::string(self.at(place)));
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
            (Some(_), None, None) if usable => Shape::Request,
            (Some(_), None, None) if id.is_none() => Shape::Notification,
            (Some(_), None, None) => return refuse("the id of a request must not be null"),
            (None, Some(_), None) if usable => Shape::Result,
            (None, Some(_), None) => return refuse("a result needs the id of its request"),
            (None, None, Some(_)) if self.error().is_some_and(|error| error.starts_with('{')) => Shape::Error,
            (None, None, Some(_)) => return refuse("an error must be an object"),
            (None, None, None) => return refuse("a message has a method, a result or an error"),
            (Some(_), _, _) => return refuse("a message with a method has neither result nor error"),
            (None, Some(_), Some(_)) => return refuse("a message has either a result or an error"),
        };
        let spelled = method.filter(|method| method.contains('\\')).and_then(raw::string);
        (self.spelled, self.shape) = (spelled.map(|method| method.into_owned().into()), shape);
        Ok(self)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

/// Messages are equal if their bytes are.
impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Message {}

/// The reason why a text is not a valid message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The id of the request or response, if it could be read.
    pub id: Option<Id>,
    /// The fault.
    pub fault: Fault,
}

/// A fault in a text that must be a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The text is not JSON.
    NotJson(Wrong),
    /// The containers are nested too deep, or a name is repeated.
    Refused(Wrong),
    /// The text is JSON, but not a message.
    NotAMessage(&'static str),
    /// The text is longer than allowed.
    TooLarge {
        /// The limit in bytes.
        most: usize,
    },
}

impl Unreadable {
    fn new(fault: Fault) -> Self {
        Self { id: None, fault }
    }

    /// Returns the JSON-RPC code.
    pub fn code(&self) -> i64 {
        match self.fault {
            Fault::NotJson(_) => code::PARSE_ERROR,
            Fault::Refused(_) | Fault::NotAMessage(_) | Fault::TooLarge { .. } => code::INVALID_REQUEST,
        }
    }

    /// Returns the error response for the sender.
    pub fn answer(&self) -> Message {
        Message::error_response(self.id.as_ref(), self.code(), &self.to_string(), None)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            Fault::NotJson(wrong) => write!(f, "not JSON: {wrong}"),
            Fault::Refused(wrong) => write!(f, "not accepted: {wrong}"),
            Fault::NotAMessage(problem) => write!(f, "not a JSON-RPC message: {problem}"),
            Fault::TooLarge { most } => write!(f, "the message is longer than {most} bytes"),
        }
    }
}

impl std::error::Error for Unreadable {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Request,
    Notification,
    Result,
    Error,
}

/// Places of the routed fields.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    version: Option<Place>,
    id: Option<Place>,
    method: Option<Place>,
    params: Option<Place>,
    result: Option<Place>,
    error: Option<Place>,
    name: Option<Place>,
    arguments: Option<Place>,
    meta: Option<Place>,
    token: Option<Place>,
}

/// A place of two 32-bit numbers, to keep a message small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    start: u32,
    end: u32,
}

const MOST_BYTES: usize = (u32::MAX - 1) as usize;

impl Place {
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
fn locate(text: &[u8]) -> Result<(Places, bool), Fault> {
    let mut skim = Skim::new(text);
    skim.space();
    match skim.peek() {
        Some(b'{') => {}
        Some(b'[') => return Err(Fault::NotAMessage("batches are not part of this protocol")),
        _ => {
            let whole = skim.value(DEPTH).and_then(|_| skim.end());
            return Err(whole.map_or_else(fault_of, |()| Fault::NotAMessage("a message is an object")));
        }
    }
    let mut found = Places::default();
    skim.routed(DEPTH, |skim, name| {
        let place = match name {
            "params" => return params(skim, &mut found),
            "result" => return result(skim, &mut found),
            // Only the names in the error itself must be unique. Its data belongs to the server.
            "error" => {
                let room = DEPTH - 1;
                found.error = Some(Place::new(skim.routed(room, |skim, _| skim.value(room - 1).map(drop))?));
                return Ok(());
            }
            "jsonrpc" => &mut found.version,
            "id" => &mut found.id,
            "method" => &mut found.method,
            _ => return skim.value(DEPTH - 1).map(drop),
        };
        *place = Some(Place::new(skim.value(DEPTH - 1)?));
        Ok(())
    })
    .map_err(fault_of)?;
    skim.end().map_err(fault_of)?;
    Ok((found, skim.breaks))
}

fn params(skim: &mut Skim<'_>, found: &mut Places) -> Result<(), Wrong> {
    let room = DEPTH - 1;
    let whole = skim.routed(room, |skim, name| {
        let place = match name {
            "_meta" => return meta(skim, found),
            "name" => &mut found.name,
            "arguments" => &mut found.arguments,
            _ => return skim.value(room - 1).map(drop),
        };
        *place = Some(Place::new(skim.value(room - 1)?));
        Ok(())
    })?;
    found.params = Some(Place::new(whole));
    Ok(())
}

fn result(skim: &mut Skim<'_>, found: &mut Places) -> Result<(), Wrong> {
    let room = DEPTH - 1;
    let whole = skim.routed(room, |skim, name| match name {
        "_meta" => meta(skim, found),
        _ => skim.value(room - 1).map(drop),
    })?;
    found.result = Some(Place::new(whole));
    Ok(())
}

fn meta(skim: &mut Skim<'_>, found: &mut Places) -> Result<(), Wrong> {
    let room = DEPTH - 2;
    let whole = skim.routed(room, |skim, name| {
        let value = skim.value(room - 1)?;
        if name == "progressToken" {
            found.token = Some(Place::new(value));
        }
        Ok(())
    })?;
    found.meta = Some(Place::new(whole));
    Ok(())
}

fn fault_of(wrong: Wrong) -> Fault {
    match wrong.problem {
        Problem::NotUtf8 | Problem::NotJson(_) => Fault::NotJson(wrong),
        Problem::TooDeep | Problem::Twice(_) => Fault::Refused(wrong),
    }
}
