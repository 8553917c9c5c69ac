//! Builds an HTTP request from the parameters of a call: its path, its query and its body.
//!
//! Values come from a model, and may come from anything that the model has read. Each value stays within the place that
//! the configuration gives it: it is written as one path segment or one query value whatever it contains. A value that
//! cannot be written that way is refused before anything is sent.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use http::Uri;
use steadfast_config::{HttpMethod, UrlPiece, UrlTemplate};
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_json::{JsonDocument, JsonKind, JsonLimits, JsonValue};

/// The parts of a request that come from the parameters of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilledRequest {
    /// Path and query.
    pub(super) target: Uri,
    /// The JSON body, for methods that have one.
    pub(super) body: Option<Bytes>,
}

/// Fills a URL with parameters. Parameters in the URL are left out of query and body.
pub(super) fn fill(
    method: HttpMethod,
    url: &UrlTemplate,
    params: &str,
) -> Result<FilledRequest, ParameterError> {
    let document = JsonDocument::parse(params.as_bytes(), JsonLimits::PARAMS)
        .map_err(|error| ParameterError(format!("invalid arguments: they are not valid JSON ({error})")))?;
    let root = document.root();
    if !root.is_object() {
        return Err(ParameterError(format!(
            "invalid arguments: they are {}, not an object",
            root.kind().describe()
        )));
    }
    let mut target = path(url, root)?;
    let mut query = QueryParameters { text: String::new() };
    for piece in url.query().unwrap_or_default() {
        match piece {
            UrlPiece::Text(text) => write_literal(text, &mut query.text),
            UrlPiece::Parameter(name) => write_value(&named(root, name)?, &mut query.text),
        }
    }
    let is_named = |name: &str| {
        let pieces = url.path().iter().chain(url.query().unwrap_or_default());
        pieces.into_iter().any(|piece| matches!(piece, UrlPiece::Parameter(own) if own == name))
    };
    let rest: Vec<_> = root.members().into_iter().flatten().filter(|(name, _)| !is_named(name)).collect();
    let body = match method {
        HttpMethod::Get | HttpMethod::Head | HttpMethod::Delete => {
            for (name, value) in rest {
                query.add(&name, value)?;
            }
            None
        }
        HttpMethod::Post | HttpMethod::Put | HttpMethod::Patch => Some(body(&rest)),
    };
    if !query.text.is_empty() {
        target.push('?');
        target.push_str(&query.text);
    }
    let bytes = target.len();
    let target = target.parse().map_err(|_| {
        ParameterError(format!("invalid arguments: with them the URL has {bytes} bytes, which is too long"))
    })?;
    Ok(FilledRequest { target, body })
}

/// Parameters that cannot be sent, with the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParameterError(String);

impl ParameterError {
    /// Returns the fault. Nothing was sent. The core recognizes the message as an error of the model, so that it is
    /// not repeated.
    pub(super) fn fault(self) -> AttemptFault {
        AttemptFault::new(FaultSource::Transport { error: TransportError::Other, written: false }, self.0)
    }

    fn parameter(name: &str, reason: &str) -> Self {
        Self(format!("invalid arguments: the parameter `{name}` {reason}"))
    }
}

fn path(url: &UrlTemplate, params: JsonValue<'_>) -> Result<String, ParameterError> {
    let mut path = String::new();
    // The current segment: where it begins, and the parameter in it.
    let (mut begin, mut filled): (usize, Option<&str>) = (0, None);
    for piece in url.path() {
        match piece {
            UrlPiece::Text(text) => {
                for part in text.split_inclusive('/') {
                    let part_of_it = part.strip_suffix('/');
                    write_literal(part_of_it.unwrap_or(part), &mut path);
                    if part_of_it.is_some() {
                        check_segment(path.get(begin..).unwrap_or_default(), filled)?;
                        path.push('/');
                        (begin, filled) = (path.len(), None);
                    }
                }
            }
            UrlPiece::Parameter(name) => {
                write_value(&named(params, name)?, &mut path);
                filled = Some(name);
            }
        }
    }
    check_segment(path.get(begin..).unwrap_or_default(), filled)?;
    if path.is_empty() {
        path.push('/');
    }
    Ok(path)
}

/// Refuses a segment that leads to another resource. Clients and servers resolve `..` and `.` in any encoding, and an
/// empty segment can turn a request for one resource into one for all. A service may treat an encoded slash as a
/// slash, and may decode more than once.
fn check_segment(segment: &str, filled: Option<&str>) -> Result<(), ParameterError> {
    let Some(name) = filled else { return Ok(()) };
    if segment.is_empty() {
        return Err(ParameterError::parameter(name, "is empty, and stands for a part of the path"));
    }
    let mut text = segment.to_ascii_lowercase();
    // Each round that changes something makes it shorter.
    loop {
        let decoded = text.replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\").replace("%25", "%");
        if decoded == text {
            break;
        }
        text = decoded;
    }
    match text.split(['/', '\\']).any(|part| matches!(part, "." | "..")) {
        true => Err(ParameterError::parameter(name, "would lead to another path")),
        false => Ok(()),
    }
}

/// Returns the parameter that a URL names.
fn named<'d>(params: JsonValue<'d>, name: &str) -> Result<Cow<'d, str>, ParameterError> {
    let Some(value) = params.get(name).filter(|value| !value.is_null()) else {
        return Err(ParameterError(format!(
            "missing required parameter `{name}`: it stands in the URL of this tool"
        )));
    };
    match scalar(value) {
        ParameterValue::Text(text) => Ok(text),
        ParameterValue::Nothing | ParameterValue::None(_) => {
            let reason = format!("is {}, and stands for a part of the URL", value.kind().describe());
            Err(ParameterError::parameter(name, &reason))
        }
    }
}

/// The parameters that the URL does not name.
struct QueryParameters {
    text: String,
}

impl QueryParameters {
    fn add(&mut self, name: &str, value: JsonValue<'_>) -> Result<(), ParameterError> {
        let many = value.items();
        let values = many.into_iter().flatten().chain(value.items().is_none().then_some(value));
        for value in values {
            match scalar(value) {
                ParameterValue::Nothing => {}
                ParameterValue::Text(text) => {
                    if !self.text.is_empty() && !self.text.ends_with('&') {
                        self.text.push('&');
                    }
                    write_value(name, &mut self.text);
                    self.text.push('=');
                    write_value(&text, &mut self.text);
                }
                ParameterValue::None(kind) => {
                    let reason = format!("has {kind} in it, which cannot stand in a query");
                    return Err(ParameterError::parameter(name, &reason));
                }
            }
        }
        Ok(())
    }
}

/// A value in the form that a URL can have.
enum ParameterValue<'d> {
    Text(Cow<'d, str>),
    /// `null`, which is treated as absent.
    Nothing,
    /// Any other value, with its type.
    None(&'static str),
}

fn scalar(value: JsonValue<'_>) -> ParameterValue<'_> {
    let kind = value.kind();
    match kind {
        JsonKind::Null => ParameterValue::Nothing,
        JsonKind::Bool(_) | JsonKind::Number(_) => ParameterValue::Text(Cow::Borrowed(value.raw())),
        JsonKind::String(text) => ParameterValue::Text(text),
        JsonKind::Array(_) | JsonKind::Object(_) => ParameterValue::None(kind.describe()),
    }
}

/// Returns the members as an object, with unchanged values.
fn body(members: &[(Cow<'_, str>, JsonValue<'_>)]) -> Bytes {
    let mut text = String::from("{");
    for (name, value) in members {
        if text.len() > 1 {
            text.push(',');
        }
        let name = serde_json::Value::from(name.as_ref());
        let _ = write!(text, "{name}:{}", value.raw());
    }
    text.push('}');
    text.into()
}

/// Writes a value so that no character of it has a meaning in a URL (RFC 3986: all but the unreserved characters are
/// encoded).
fn write_value(value: &str, out: &mut String) {
    write_encoded(value, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte), out);
}

/// Writes text of the configuration. Only characters that no URL can have are encoded.
fn write_literal(text: &str, out: &mut String) {
    write_encoded(text, |byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte), out);
}

fn write_encoded(text: &str, is_plain: impl Fn(u8) -> bool, out: &mut String) {
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use steadfast_config::{CommandLineFlag, Config, Sources};
    use steadfast_core::Timestamp;
    use steadfast_core::classify::{AttemptReach, FaultNature, ModelMistake, Overrides, classify};
    use steadfast_core::code::Code;

    use super::*;

    fn template(url: &str) -> UrlTemplate {
        let flag = |setting: &str, value: &str| CommandLineFlag {
            name: "--set".to_owned(),
            setting: format!("http_tools.t.{setting}"),
            value: value.to_owned(),
        };
        let flags = vec![flag("method", "GET"), flag("url", url)];
        let config = Config::load(&Sources { flags, ..Sources::default() }).unwrap();
        config.http_tools().values().next().unwrap().url.clone()
    }

    fn filled(method: HttpMethod, url: &str, params: &str) -> Result<(String, Option<String>), String> {
        let filled = fill(method, &template(url), params).map_err(|ParameterError(reason)| reason)?;
        let body = filled.body.map(|body| String::from_utf8(body.to_vec()).unwrap());
        Ok((filled.target.to_string(), body))
    }

    #[test]
    fn parameters_are_placed_by_method_and_url() {
        use HttpMethod::{Delete, Get, Head, Patch, Post, Put};
        let url = "https://h/users/{id}?v={v}";
        let params = r#"{"v":true, "id":"a b", "n":1.50, "l":["x",2,null], "z":null, "e":[]}"#;
        for method in [Get, Head, Delete] {
            let request = filled(method, url, params).unwrap();
            assert_eq!(request, ("/users/a%20b?v=true&n=1.50&l=x&l=2".to_owned(), None));
        }
        for method in [Post, Put, Patch] {
            let (target, body) = filled(method, url, params).unwrap();
            assert_eq!(target, "/users/a%20b?v=true");
            assert_eq!(body.unwrap(), r#"{"n":1.50,"l":["x",2,null],"z":null,"e":[]}"#);
        }
        for (url, params, target) in [
            ("https://h", "{}", "/"),
            ("https://h?", "{}", "/"),
            ("https://h?a=1", r#"{"b":2}"#, "/?a=1&b=2"),
            ("https://h/?a=1&", r#"{"b":2}"#, "/?a=1&b=2"),
            ("https://h/ä|%20", "{}", "/%C3%A4%7C%20"),
            (
                "https://h/{a}{a}",
                r#"{"a":12345678901234567890}"#,
                "/1234567890123456789012345678901234567890",
            ),
            ("https://h/?q={q}", r#"{"q":""}"#, "/?q="),
            ("https://h/", r#"{"a b&c=":"\u00e4"}"#, "/?a%20b%26c%3D=%C3%A4"),
        ] {
            assert_eq!(filled(Get, url, params).unwrap().0, target, "{url} {params}");
        }
        let odd = r#"{"a\"b\u00e4": {"x":1.0}}"#;
        assert_eq!(filled(Post, "https://h/", odd).unwrap().1.unwrap(), "{\"a\\\"bä\":{\"x\":1.0}}");
    }

    #[test]
    fn hostile_values_stay_in_their_place() {
        for (value, written) in [
            ("a/b", "a%2Fb"),
            ("a?admin=1", "a%3Fadmin%3D1"),
            ("a#b", "a%23b"),
            ("a&b=c", "a%26b%3Dc"),
            ("%41", "%2541"),
            ("a\\\\b", "a%5Cb"),
            ("a\\r\\nHost: evil", "a%0D%0AHost%3A%20evil"),
            ("\\u0000", "%00"),
            ("日本", "%E6%97%A5%E6%9C%AC"),
            ("@evil.example", "%40evil.example"),
            (";x", "%3Bx"),
            ("...", "..."),
        ] {
            let params = format!(r#"{{"id":"{value}"}}"#);
            let (target, _) = filled(HttpMethod::Get, "https://h/users/{id}/keys", &params).unwrap();
            assert_eq!(target, format!("/users/{written}/keys"), "{value}");
            let (target, _) = filled(HttpMethod::Get, "https://h/?q={id}&r=1", &params).unwrap();
            assert_eq!(target, format!("/?q={written}&r=1"), "{value}");
        }
        // In a query, dots have no special meaning.
        let (target, _) = filled(HttpMethod::Get, "https://h/?q={id}", r#"{"id":"../../admin"}"#).unwrap();
        assert_eq!(target, "/?q=..%2F..%2Fadmin");
    }

    /// Parameters that cannot be sent are an error of the model: nothing is sent, no retry is made, and the reason is
    /// reported.
    #[test]
    fn unsendable_parameters_are_an_argument_error_and_not_sent() {
        use HttpMethod::{Delete, Get, Post};
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(70_000));
        for (method, url, params, expected) in [
            (Post, "https://h/{id}", "{}", "missing required parameter `id`"),
            (Post, "https://h/{id}", r#"{"id":null}"#, "missing required parameter `id`"),
            (Post, "https://h/?q={id}", "{}", "missing required parameter `id`"),
            (Post, "https://h/{id}", r#"{"id":["a"]}"#, "the parameter `id` is an array"),
            (Post, "https://h/{id}", r#"{"id":{}}"#, "the parameter `id` is an object"),
            (Delete, "https://h/users/{id}", r#"{"id":""}"#, "`id` is empty"),
            (Delete, "https://h/users/{id}/", r#"{"id":""}"#, "`id` is empty"),
            (Get, "https://h/users/{id}", r#"{"id":".."}"#, "lead to another path"),
            (Get, "https://h/users/{id}", r#"{"id":"../../admin"}"#, "lead to another path"),
            (Get, "https://h/users/{id}", r#"{"id":"..%2F..%2fadmin"}"#, "lead to another path"),
            (Get, "https://h/users/{id}", r#"{"id":"a%252f%252E."}"#, "lead to another path"),
            (Get, "https://h/users/{id}", r#"{"id":"..\\admin"}"#, "lead to another path"),
            (Get, "https://h/users/{id}/x", r#"{"id":"."}"#, "lead to another path"),
            (Get, "https://h/users/.{id}/x", r#"{"id":"."}"#, "lead to another path"),
            (Get, "https://h/users/%2E{id}/x", r#"{"id":"."}"#, "lead to another path"),
            (Get, "https://h/users/{id}{id}", r#"{"id":"."}"#, "lead to another path"),
            (Get, "https://h/", r#"{"where":{"a":1}}"#, "`where` has an object in it"),
            (Get, "https://h/", r#"{"where":[[1]]}"#, "`where` has an array in it"),
            (Get, "https://h/", r#"{"a":1,"a":2}"#, "not valid JSON"),
            (Post, "https://h/", "[1]", "an array, not an object"),
            (Get, "https://h/{id}", &long, "too long"),
        ] {
            let unfit = fill(method, &template(url), params).unwrap_err();
            let fault = unfit.fault();
            assert!(fault.message.contains(expected), "{expected}: {}", fault.message);
            let judged = classify(&fault, &Overrides::default(), Timestamp::ZERO);
            assert_eq!(
                (judged.reach, judged.nature, judged.mistake, judged.code),
                (
                    AttemptReach::NotSent,
                    FaultNature::Permanent,
                    Some(ModelMistake::Arguments),
                    Code::InvalidArguments
                ),
                "{}",
                fault.message
            );
        }
    }

    proptest! {
        /// Whatever a value is, the path has the segments of the template, and the query has its values.
        #[test]
        fn no_value_changes_the_shape_of_a_url(value in any::<String>()) {
            let params = serde_json::json!({ "id": value, "rest": value }).to_string();
            match filled(HttpMethod::Get, "https://h/a/{id}/b?q={id}", &params) {
                Ok((target, _)) => {
                    let (path, query) = target.split_once('?').unwrap();
                    let segments: Vec<&str> = path.split('/').collect();
                    prop_assert_eq!((segments.len(), segments[0], segments[1], segments[3]), (4, "", "a", "b"));
                    prop_assert!(![".", "..", ""].contains(&segments[2]));
                    prop_assert_eq!(query.split('&').count(), 2);
                    prop_assert!(target.bytes().all(|byte| byte.is_ascii_graphic()));
                }
                Err(_) => prop_assert!(value.is_empty() || value.contains('.') || value.contains("%2")),
            }
        }
    }
}
