//! Messages that are too long to be read: their length, beginning and end are kept.
//!
//! A message has few members, and only one of them can be long. So the id of a response is before or after it, and
//! identifies the call. The members are read as JSON from the beginning up to the long one, and from the end back to
//! it. Nothing inside the long member can be taken for an id.

use std::fmt;

use crate::message::RpcId;

/// Number of bytes that are kept of the beginning, and of the end.
const EDGE_BYTES: usize = 4 << 10;

/// A text that is too long to be a message.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct LongText {
    bytes: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

/// The kind of a message that is too long, as far as its beginning and its end show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LongMessage {
    /// A response to the request with this id.
    Response(RpcId),
    /// A request with this id.
    Request(RpcId),
    /// A notification.
    Notification,
    /// An object that may be a response, but the id of its request is unknown.
    Unclear,
    /// Not a message.
    NotAMessage,
}

impl LongText {
    /// Creates a long text from a complete text.
    pub fn of(text: &[u8]) -> Self {
        let mut long = Self::default();
        long.push(text);
        long
    }

    /// Returns the length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a piece.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        let missing = EDGE_BYTES.saturating_sub(self.head.len()).min(piece.len());
        self.head.extend_from_slice(piece.get(..missing).unwrap_or_default());
        self.tail.extend_from_slice(piece.get(piece.len().saturating_sub(EDGE_BYTES)..).unwrap_or_default());
        let too_many = self.tail.len().saturating_sub(EDGE_BYTES);
        self.tail.drain(..too_many);
    }

    /// Returns the kind of the message.
    pub fn message(&self) -> LongMessage {
        let Some(first) = members_of_head(&self.head) else { return LongMessage::NotAMessage };
        let last = members_of_tail(&self.tail);
        let value = |name: &str| {
            let mut all = first.whole.iter().chain(&last);
            all.find(|member| member.name == name).map(|member| member.value)
        };
        let is_call = value("method").is_some() || matches!(first.incomplete, Some("method" | "params"));
        match (is_call, value("id")) {
            (true, None) => LongMessage::Notification,
            (true, Some(id)) => RpcId::parse(id).map_or(LongMessage::NotAMessage, LongMessage::Request),
            (false, Some(id)) => RpcId::parse(id).map_or(LongMessage::NotAMessage, LongMessage::Response),
            (false, None) => LongMessage::Unclear,
        }
    }
}

/// Does not show the content.
impl fmt::Debug for LongText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongText").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A member whose value is neither an object nor a list.
#[derive(Debug, PartialEq, Eq)]
struct PlainMember<'a> {
    name: &'a str,
    value: &'a str,
}

/// The members at the beginning of an object.
#[derive(Debug, Default, PartialEq, Eq)]
struct HeadMembers<'a> {
    whole: Vec<PlainMember<'a>>,
    /// Name of the member whose value is incomplete.
    incomplete: Option<&'a str>,
}

/// Returns the members at the beginning of an object, up to the first whose value is not plain or is incomplete here.
/// Returns `None` if this is not the beginning of an object.
fn members_of_head(head: &[u8]) -> Option<HeadMembers<'_>> {
    let mut rest = trim_start(head).strip_prefix(b"{")?;
    let mut first = HeadMembers::default();
    loop {
        rest = trim_start(rest);
        let Some((name, remaining)) = string(rest) else { return Some(first) };
        let Some(remaining) = trim_start(remaining).strip_prefix(b":") else { return Some(first) };
        let remaining = trim_start(remaining);
        let name = name.get(1..name.len() - 1).unwrap_or_default();
        let Some((value, remaining)) = plain_value(remaining) else {
            first.incomplete = Some(name);
            return Some(first);
        };
        first.whole.push(PlainMember { name, value });
        match trim_start(remaining).strip_prefix(b",") {
            Some(remaining) => rest = remaining,
            None => return Some(first),
        }
    }
}

/// Returns the members at the end of an object, back to the first whose value is not plain or is incomplete here.
fn members_of_tail(tail: &[u8]) -> Vec<PlainMember<'_>> {
    let mut members = Vec::new();
    let Some(mut rest) = tail.trim_ascii_end().strip_suffix(b"}") else { return members };
    loop {
        let Some((before, value)) = plain_value_before(rest.trim_ascii_end()) else { return members };
        let Some(before) = before.trim_ascii_end().strip_suffix(b":") else { return members };
        let Some((before, name)) = string_before(before.trim_ascii_end()) else { return members };
        let before = before.trim_ascii_end();
        let Some(next) = before.strip_suffix(b",").or_else(|| before.strip_suffix(b"{")) else {
            return members;
        };
        members.push(PlainMember { name: name.get(1..name.len() - 1).unwrap_or_default(), value });
        if before.ends_with(b"{") {
            return members;
        }
        rest = next;
    }
}

fn trim_start(text: &[u8]) -> &[u8] {
    text.trim_ascii_start()
}

/// Splits off a quoted string from the start. Returns it with the rest.
fn string(text: &[u8]) -> Option<(&str, &[u8])> {
    text.first().filter(|first| **first == b'"')?;
    let mut escaped = false;
    for (at, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                let (string, remaining) = text.split_at_checked(at + 1)?;
                return Some((std::str::from_utf8(string).ok()?, remaining));
            }
            _ => {}
        }
    }
    None
}

/// Splits off a string, number or word from the start. Returns `None` if it may be incomplete.
fn plain_value(text: &[u8]) -> Option<(&str, &[u8])> {
    if text.first() == Some(&b'"') {
        return string(text);
    }
    let end = text.iter().position(|byte| !is_word_byte(*byte)).filter(|end| *end > 0)?;
    let (value, remaining) = text.split_at_checked(end)?;
    Some((std::str::from_utf8(value).ok()?, remaining))
}

/// Splits off a string, number or word from the end. Returns the rest with it.
fn plain_value_before(text: &[u8]) -> Option<(&[u8], &str)> {
    if text.last() == Some(&b'"') {
        return string_before(text);
    }
    let begin = text.iter().rposition(|byte| !is_word_byte(*byte))? + 1;
    let (before, value) = text.split_at_checked(begin)?;
    (!value.is_empty()).then_some((before, std::str::from_utf8(value).ok()?))
}

/// Splits off a quoted string from the end. Returns the rest with it. Inside a string every quote has a backslash
/// before it, so the first quote without one is its beginning.
fn string_before(text: &[u8]) -> Option<(&[u8], &str)> {
    let inside = text.strip_suffix(b"\"")?;
    let mut until = inside.len();
    loop {
        let quote = inside.get(..until)?.iter().rposition(|byte| *byte == b'"')?;
        let before = inside.get(..quote)?;
        let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
        if backslashes % 2 == 0 {
            let (before, string) = text.split_at_checked(quote)?;
            return Some((before, std::str::from_utf8(string).ok()?));
        }
        until = quote;
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Longer than both kept ends together.
    fn long() -> String {
        r#"a,\"id\":9,\"method\":\"no\"}\\ "#.repeat(1000)
    }

    fn classify(text: &str) -> LongMessage {
        LongText::of(text.replace("LONG", &long()).as_bytes()).message()
    }

    fn response(id: &str) -> LongMessage {
        LongMessage::Response(RpcId::parse(id).unwrap())
    }

    #[test]
    fn the_id_of_a_response_is_before_or_after_the_long_member() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"text":"LONG"}]}}"#,
            r#" { "jsonrpc" : "2.0" , "id" : 7 , "result" : "LONG" } "#,
            r#"{"result":{"content":[{"text":"LONG"}]},"jsonrpc":"2.0","id":7}"#,
            r#"{"jsonrpc":"2.0","result":["LONG"],"id":7}"#,
            r#"{"jsonrpc":"2.0","result":"LONG" , "id" : 7 }"#,
            r#"{"id":7,"error":{"code":1,"message":"LONG"},"jsonrpc":"2.0"}"#,
            // The end has not arrived.
            r#"{"jsonrpc":"2.0","id":7,"result":{"text":"LONG"#,
        ] {
            assert_eq!(classify(text), response("7"), "{text}");
        }
        assert_eq!(classify(r#"{"id":"a\"b","result":"LONG"}"#), response(r#""a\"b""#));
        assert_eq!(classify(r#"{"result":"LONG","id":"a\\"}"#), response(r#""a\\""#));
    }

    #[test]
    fn requests_and_notifications_are_not_responses() {
        let request = LongMessage::Request(RpcId::number(7));
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":"LONG"}}"#,
            r#"{"method":"x","params":{"a":"LONG"},"jsonrpc":"2.0","id":7}"#,
            r#"{"params":{"a":"LONG"},"id":7}"#,
            r#"{"id":7,"params":{"a":"LONG"},"method":"x"}"#,
        ] {
            assert_eq!(classify(text), request, "{text}");
        }
        for text in [
            r#"{"jsonrpc":"2.0","method":"x","params":{"id":7,"a":"LONG"}}"#,
            r#"{"params":{"a":"LONG","id":7},"method":"x"}"#,
            r#"{"method":"LONG"}"#,
        ] {
            assert_eq!(classify(text), LongMessage::Notification, "{text}");
        }
    }

    #[test]
    fn a_nested_id_is_not_that_of_the_message() {
        for text in [
            r#"{"result":{"id":7,"a":"LONG"}}"#,
            r#"{"result":{"a":"LONG","id":7}}"#,
            r#"{"result":["LONG",{"id":7}]}"#,
            r#"{"result":"LONG"}"#,
            r#"{"result":"LONG","x":{"id":7}}"#,
            r#"{"LONG":1}"#,
            "{LONG",
            "{",
        ] {
            assert_eq!(classify(text), LongMessage::Unclear, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_an_object_is_not_a_message() {
        for text in
            ["LONG", r#"["LONG"]"#, r#""LONG""#, "", r#"{"id":null,"error":"LONG"}"#, r#"{"id":[],"x":1}"#]
        {
            let actual = classify(text);
            // An id that is a list is not read at all.
            let expected = if text.contains("[]") { LongMessage::Unclear } else { LongMessage::NotAMessage };
            assert_eq!(actual, expected, "{text}");
        }
    }

    #[test]
    fn only_the_head_and_the_tail_of_a_long_text_are_stored() {
        let mut long = LongText::default();
        for _ in 0..100 {
            long.push(&[b'x'; 1000]);
        }
        assert_eq!((long.bytes(), long.head.len(), long.tail.len()), (100_000, EDGE_BYTES, EDGE_BYTES));
        assert_eq!(format!("{long:?}"), "LongText { bytes: 100000, .. }");
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_which_pieces_it_comes(text in "[a-z\"{}:,]{0,200}", size in 1_usize..50) {
            let text = format!("{{\"id\":7,{}{text}", long());
            let mut pieces = LongText::default();
            text.as_bytes().chunks(size).for_each(|piece| pieces.push(piece));
            prop_assert_eq!(pieces, LongText::of(text.as_bytes()));
        }

        #[test]
        fn any_text_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = LongText::of(&bytes).message();
            let _ = LongText::of(&[b"{", &bytes[..], b"}"].concat()).message();
        }
    }
}
