//! Failures that a JSON object reports in its structure.

use steadfast_json::{JsonKind, JsonValue};

use super::cut;

/// The maximum length of a stored message, in bytes.
pub(super) const LONGEST_MESSAGE: usize = 1024;
/// The maximum length of an error type, in bytes.
pub(super) const LONGEST_TYPE: usize = 128;

/// The failure fields of a result.
#[derive(Debug)]
pub(super) struct StatedFailure {
    pub(super) error_type: String,
    pub(super) message: String,
    pub(super) http_status: Option<u16>,
}

/// Returns the failure that an object reports in its structure, if it reports one.
pub(super) fn failure_in(result: JsonValue<'_>) -> Option<StatedFailure> {
    let JsonKind::Object(_) = result.kind() else { return None };
    let http_status = status_of(result);
    let named = |otherwise: &str| {
        let given = result.get("error_type").and_then(JsonValue::as_str);
        cut(given.as_deref().unwrap_or(otherwise), LONGEST_TYPE).to_owned()
    };
    if let Some(message) = result.get("error").and_then(error_text) {
        let error_type = named(error_class(&message).unwrap_or("unknown"));
        let http_status = http_status.or_else(|| status_of(result.get("error")?));
        return Some(StatedFailure { error_type, message, http_status });
    }
    let is_error = result.get("isError").is_some_and(|flag| matches!(flag.kind(), JsonKind::Bool(true)));
    if http_status.is_none() && !is_error {
        return None;
    }
    let message =
        ["message", "body", "content"].into_iter().find_map(|name| result.get(name).and_then(words));
    let error_type = named(if is_error { "is_error" } else { "http_error" });
    Some(StatedFailure { error_type, message: message.unwrap_or_default(), http_status })
}

/// Returns a status of 400 or more, given as a number or as its digits.
fn status_of(object: JsonValue<'_>) -> Option<u16> {
    ["http_status", "status_code", "httpStatus", "statusCode"].into_iter().find_map(|name| {
        let status: f64 = match object.get(name)?.kind() {
            JsonKind::Number(digits) => digits.parse().ok()?,
            JsonKind::String(digits) => digits.trim().parse().ok()?,
            JsonKind::Null | JsonKind::Bool(_) | JsonKind::Array(_) | JsonKind::Object(_) => return None,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
        (400.0..1000.0).contains(&status).then_some(status as u16)
    })
}

/// Returns the text of an `error` member, if it reports an error.
fn error_text(error: JsonValue<'_>) -> Option<String> {
    let text = match error.kind() {
        JsonKind::Null | JsonKind::Bool(false) => return None,
        JsonKind::Bool(true) => "unspecified error".to_owned(),
        JsonKind::Number(digits) if digits.parse() == Ok(0.0) => return None,
        JsonKind::Number(digits) => format!("error {digits}"),
        JsonKind::String(text) => text.trim().to_owned(),
        JsonKind::Array(_) => words(error)?,
        JsonKind::Object(mut members) => {
            members.next()?;
            words(error)?
        }
    };
    (!text.is_empty()).then(|| cut(&text, LONGEST_MESSAGE).to_owned())
}

/// Returns the text of a value: a string, the message of an object, or the first text in a list of them.
fn words(value: JsonValue<'_>) -> Option<String> {
    let text = match value.kind() {
        JsonKind::String(text) => text.into_owned(),
        JsonKind::Array(mut items) => items.find_map(|item| match item.kind() {
            JsonKind::String(text) => Some(text.into_owned()),
            JsonKind::Object(_) => message_of(item),
            JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) | JsonKind::Array(_) => None,
        })?,
        JsonKind::Object(_) => message_of(value).unwrap_or_else(|| value.raw().to_owned()),
        JsonKind::Null | JsonKind::Bool(_) | JsonKind::Number(_) => return None,
    };
    Some(cut(text.trim(), LONGEST_MESSAGE).to_owned())
}

fn message_of(object: JsonValue<'_>) -> Option<String> {
    ["message", "text", "error", "detail", "description"]
        .into_iter()
        .find_map(|name| object.get(name).and_then(JsonValue::as_str))
        .map(|text| text.into_owned())
}

/// Returns the name before the first colon, if it looks like the class of an exception.
pub(super) fn error_class(message: &str) -> Option<&str> {
    let (name, _) = cut(message, LONGEST_TYPE).split_once(':')?;
    let word =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
    let class = ["Error", "Exception", "Fault", "Failure"].iter().any(|end| name.ends_with(end));
    (word && class && name != "Error").then_some(name)
}
