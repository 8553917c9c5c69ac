//! Messages as server-sent events: a writer, and a bounded parser without I/O.
//!
//! Some clients take a blank line for an event once they have seen an id. So a comment for keep-alive is one line
//! without a blank one after it, and `retry` is sent with an event that has data.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::long_text::LongText;

/// A comment line, which every client skips.
pub const KEEP_ALIVE: &[u8] = b":\n";

/// Writes one event. `data` must have no line breaks ([`crate::message::RpcMessage::one_line`]).
pub fn write_event(out: &mut BytesMut, id: Option<&str>, retry: Option<Duration>, data: &[u8]) {
    out.reserve(data.len() + id.map_or(0, str::len) + 64);
    if let Some(id) = id {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(b"\n");
    }
    if let Some(retry) = retry {
        out.extend_from_slice(format!("retry: {}\n", retry.as_millis()).as_bytes());
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\n\n");
}

/// An item of an event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    /// An event with data.
    Event(SseEvent),
    /// An event that was too long, and was skipped. Contains the ends of its data.
    TooLong(LongText),
}

/// A server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// The type, if it has one.
    pub kind: Option<Box<str>>,
    /// The data, with its lines joined by line feeds.
    pub data: Bytes,
}

/// Splits a stream of bytes into events. Buffers at most one event and one read.
#[derive(Debug)]
pub struct SseParser {
    buffer: BytesMut,
    /// Length of the part of the buffer that was searched for a line end.
    searched: usize,
    longest: usize,
    at_start: bool,
    /// True if a carriage return ended the last line. A line feed directly after it belongs to it.
    after_return: bool,
    /// True while the rest of a line that is too long is dropped.
    in_long_line: bool,
    event: PartialSseEvent,
    last_id: Option<Box<str>>,
    retry: Option<Duration>,
}

#[derive(Debug, Default)]
struct PartialSseEvent {
    kind: Option<Box<str>>,
    first: Option<Bytes>,
    rest: BytesMut,
    length: usize,
    /// Both ends of data that is too long.
    long: Option<LongText>,
}

/// Longest id that is kept. No client could send a longer one in a header.
const LONGEST_ID: usize = 1024;

impl SseParser {
    /// Creates a parser for events of at most `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            longest,
            at_start: true,
            after_return: false,
            in_long_line: false,
            event: PartialSseEvent::default(),
            last_id: None,
            retry: None,
        }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete event.
    pub fn next_item(&mut self) -> Option<SseItem> {
        while let Some(line) = self.next_line() {
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if let Some(long) = event.long {
                    return Some(SseItem::TooLong(long));
                }
                if let Some(event) = event.finished() {
                    return Some(SseItem::Event(event));
                }
            } else {
                self.field(line);
            }
        }
        None
    }

    /// Returns the id of the last event that had one, for resumption.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Returns how long the server wants the client to wait before it reconnects.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn next_line(&mut self) -> Option<Bytes> {
        if self.at_start {
            if self.buffer.len() < BOM.len() && BOM.starts_with(&self.buffer) {
                return None;
            }
            if self.buffer.starts_with(BOM) {
                self.buffer.advance(BOM.len());
            }
            self.at_start = false;
        }
        loop {
            if self.after_return && self.buffer.first() == Some(&b'\n') {
                self.buffer.advance(1);
            }
            self.after_return &= self.buffer.is_empty();
            let unseen = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = unseen.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.searched = self.buffer.len();
                if self.buffer.len() > self.longest.saturating_add(FIELD) {
                    // A new buffer frees the memory of a long line.
                    let piece = std::mem::take(&mut self.buffer);
                    self.skip(&piece);
                    (self.searched, self.in_long_line) = (0, true);
                }
                return None;
            };
            let at = self.searched + at;
            let mut line = self.buffer.split_to(at + 1);
            self.after_return = line.last() == Some(&b'\r');
            self.searched = 0;
            line.truncate(at);
            if !std::mem::take(&mut self.in_long_line) {
                return Some(line.freeze());
            }
            self.event.skip(&line);
        }
    }

    /// Skips a piece of a line that is too long.
    fn skip(&mut self, piece: &[u8]) {
        // The name of the field is not part of its data.
        let data = piece.strip_prefix(b"data:").filter(|_| !self.in_long_line);
        let data = data.map(|data| data.strip_prefix(b" ").unwrap_or(data));
        self.event.skip(data.unwrap_or(piece));
    }

    fn field(&mut self, line: Bytes) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let name = line.slice(..colon);
        let mut value = line.slice((colon + 1).min(line.len())..);
        if value.first() == Some(&b' ') {
            value.advance(1);
        }
        match &name[..] {
            b"data" => self.event.add(value, self.longest),
            b"event" => {
                self.event.kind = text(&value).filter(|kind| kind.len() <= LONGEST_ID).map(Into::into)
            }
            b"id" if value.len() <= LONGEST_ID && !value.contains(&0) => {
                self.last_id = text(&value).map(Into::into);
            }
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                let millis = text(&value).and_then(|digits| digits.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            // Comments have no name. Other names are reserved for the future.
            _ => {}
        }
    }
}

impl PartialSseEvent {
    fn add(&mut self, value: Bytes, longest: usize) {
        self.length += value.len() + usize::from(self.first.is_some());
        if let Some(long) = &mut self.long {
            long.push(b"\n");
            long.push(&value);
            return;
        }
        if self.length > longest {
            if self.first.is_some() {
                self.skip(b"\n");
            }
            self.skip(&value);
            return;
        }
        match &self.first {
            None => self.first = Some(value),
            Some(_) => {
                self.rest.extend_from_slice(b"\n");
                self.rest.extend_from_slice(&value);
            }
        }
    }

    /// Skips data that is too long, or that follows such data.
    fn skip(&mut self, piece: &[u8]) {
        let before = (self.first.take(), std::mem::take(&mut self.rest));
        let long = self.long.get_or_insert_default();
        long.push(&before.0.unwrap_or_default());
        long.push(&before.1);
        long.push(piece);
    }

    fn finished(self) -> Option<SseEvent> {
        let first = self.first?;
        let data = match self.rest.is_empty() {
            // The usual case of one line, without a copy.
            true => first,
            false => [&first[..], &self.rest[..]].concat().into(),
        };
        (!data.is_empty()).then_some(SseEvent { kind: self.kind, data })
    }
}

const BOM: &[u8] = "\u{feff}".as_bytes();

/// Room for the name of a field beside its value.
const FIELD: usize = 16;

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
