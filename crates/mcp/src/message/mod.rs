//! One JSON-RPC message: the bytes that came, and where its routed fields stand.
//!
//! Reading walks over the text once ([`crate::raw`]) and keeps places, no values. What must change on the way (ids, progress
//! tokens, names, members of `_meta`) is spliced by a [`Rewrite`]; every other byte goes on as it came.
//!
//! What we understand must be what the other side understands: a name that stands twice on a level that we route by is
//! refused, and a batch is, because neither era of the protocol has them in streamable HTTP.

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

/// The codes that this crate itself answers with.
pub mod code {
    /// The text is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// The JSON is not a message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// There is no such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are not as the method wants them.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Something went wrong on our side.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// HTTP headers and body do not agree.
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
    /// The method with its escapes resolved, where it has any.
    spelled: Option<Box<str>>,
    /// Whether a line break stands between its tokens.
    breaks: bool,
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'m> {
    /// Wants an answer.
    Request {
        /// Its id.
        id: Id,
        /// Its method.
        method: &'m str,
    },
    /// Wants none.
    Notification {
        /// Its method.
        method: &'m str,
    },
    /// Answers a request.
    Result {
        /// The id of that request.
        id: Id,
    },
    /// Refuses a request.
    Error {
        /// The id of that request, if it could be read.
        id: Option<Id>,
    },
}

impl Message {
    /// Reads a message of at most so many bytes.
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

    /// The whole of it, as it came.
    pub fn bytes(&self) -> &Bytes {
        &self.text
    }

    /// The whole of it on one line: line breaks between tokens become spaces. Nothing is copied where there are none.
    pub fn one_line(&self) -> Bytes {
        if !self.breaks {
            return self.text.clone();
        }
        // Within strings a line break is always escaped, so all that are found stand between tokens.
        let flat = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
        self.text.iter().map(flat).collect::<Vec<u8>>().into()
    }

    /// What it is.
    pub fn kind(&self) -> Kind<'_> {
        let method = self.method().unwrap_or_default();
        match (self.shape, self.id()) {
            (Shape::Request, Some(id)) => Kind::Request { id, method },
            (Shape::Result, Some(id)) => Kind::Result { id },
            (Shape::Error, id) => Kind::Error { id },
            (Shape::Notification | Shape::Request | Shape::Result, _) => Kind::Notification { method },
        }
    }

    /// Whether it wants an answer.
    pub fn is_request(&self) -> bool {
        self.shape == Shape::Request
    }

    /// Whether it wants no answer and is none.
    pub fn is_notification(&self) -> bool {
        self.shape == Shape::Notification
    }

    /// Whether it answers a request, with a result or an error.
    pub fn is_response(&self) -> bool {
        matches!(self.shape, Shape::Result | Shape::Error)
    }

    /// Its id, if it has one that is not null.
    pub fn id(&self) -> Option<Id> {
        let place = self.places.id?;
        (self.at(place) != "null").then(|| Id::known(self.piece(place)))
    }

    /// Its method, if it is a request or a notification.
    pub fn method(&self) -> Option<&str> {
        match &self.spelled {
            Some(method) => Some(method),
            None => self.places.method.map(|place| self.at(place).trim_matches('"')),
        }
    }

    /// Its parameters, as text.
    pub fn params(&self) -> Option<&str> {
        self.places.params.map(|place| self.at(place))
    }

    /// Its parameters, without copying them.
    pub fn params_json(&self) -> Option<RawJson> {
        self.places.params.map(|place| RawJson::known(self.piece(place)))
    }

    /// The value of one member of its parameters, as text.
    pub fn param(&self, name: &str) -> Option<&str> {
        raw::get(self.params()?, name)
    }

    /// The value of one member of its parameters, if that is a string.
    pub fn param_text(&self, name: &str) -> Option<Cow<'_, str>> {
        raw::string(self.param(name)?)
    }

    /// The `name` of its parameters, if that is a string: which tool or prompt is meant.
    pub fn name(&self) -> Option<Cow<'_, str>> {
        self.places.name.and_then(|place| raw::string(self.at(place)))
    }

    /// The `arguments` of its parameters, without copying them.
    pub fn arguments(&self) -> Option<RawJson> {
        self.places.arguments.map(|place| RawJson::known(self.piece(place)))
    }

    /// The `_meta` of its parameters or, of a response, of its result, as text.
    pub fn meta(&self) -> Option<&str> {
        self.places.meta.map(|place| self.at(place))
    }

    /// The value of one member of [`Message::meta`], as text.
    pub fn meta_member(&self, name: &str) -> Option<&str> {
        raw::get(self.meta()?, name)
    }

    /// The value of one member of [`Message::meta`], if that is a string.
    pub fn meta_text(&self, name: &str) -> Option<Cow<'_, str>> {
        raw::string(self.meta_member(name)?)
    }

    /// The token under which a request wants to hear of progress.
    pub fn progress_token(&self) -> Option<RawJson> {
        let place = self.places.token.filter(|_| self.shape == Shape::Request)?;
        Some(RawJson::known(self.piece(place)))
    }

    /// Its result, as text.
    pub fn result(&self) -> Option<&str> {
        self.places.result.map(|place| self.at(place))
    }

    /// Its result, without copying it.
    pub fn result_json(&self) -> Option<RawJson> {
        self.places.result.map(|place| RawJson::known(self.piece(place)))
    }

    /// Its error, as text.
    pub fn error(&self) -> Option<&str> {
        self.places.error.map(|place| self.at(place))
    }

    /// The code of its error, if it is a whole number.
    pub fn error_code(&self) -> Option<i64> {
        raw::get(self.error()?, "code")?.parse().ok()
    }

    /// What its error says.
    pub fn error_text(&self) -> Option<Cow<'_, str>> {
        raw::string(raw::get(self.error()?, "message")?)
    }

    /// Whether it tells that the request of this id is not wanted any more.
    pub fn cancels(&self, id: &Id) -> bool {
        self.method() == Some("notifications/cancelled")
            && self.param("requestId").is_some_and(|cancelled| id.is(cancelled))
    }

    /// Begins to change it.
    pub fn rewrite(&self) -> Rewrite<'_> {
        Rewrite::new(self)
    }

    fn at(&self, place: Place) -> &str {
        self.text.get(place.range()).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    fn piece(&self, place: Place) -> Bytes {
        if place.range().end <= self.text.len() { self.text.slice(place.range()) } else { Bytes::new() }
    }

    /// The message, if what was found makes one.
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

/// Two messages are equal if their bytes are.
impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Message {}

/// Why a text is no message that could be passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The id of the request or response, if at least that could be read.
    pub id: Option<Id>,
    /// What is wrong.
    pub fault: Fault,
}

/// What can be wrong with a text that should be a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not JSON.
    NotJson(Wrong),
    /// Containers stand too deep within each other, or a name stands twice.
    Refused(Wrong),
    /// It is JSON, but not a message.
    NotAMessage(&'static str),
    /// It is longer than allowed.
    TooLarge {
        /// The most bytes that are.
        most: usize,
    },
}

impl Unreadable {
    fn new(fault: Fault) -> Self {
        Self { id: None, fault }
    }

    /// The JSON-RPC code for it.
    pub fn code(&self) -> i64 {
        match self.fault {
            Fault::NotJson(_) => code::PARSE_ERROR,
            Fault::Refused(_) | Fault::NotAMessage(_) | Fault::TooLarge { .. } => code::INVALID_REQUEST,
        }
    }

    /// The error response that tells the sender.
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

/// Where the routed fields stand.
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

/// A place as 32 bits each, to keep a message small.
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

/// Walks over a text and finds what a message is routed by; also whether it has line breaks.
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
            // Only its own names must be unique; its data is the server's affair.
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
