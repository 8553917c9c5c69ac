//! The era of a message, and the check that its headers match its body.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::refusal::HttpRefusal;
use crate::http::{
    MCP_METHOD, MCP_NAME, MCP_PROTOCOL_VERSION, META_CAPABILITIES, META_VERSION, ProtocolEra, decode_value,
    name_source,
};
use crate::json_text::JsonText;
use crate::message::{RpcMessage, code};

/// The protocol version of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MessageVersion {
    pub(super) era: ProtocolEra,
    /// The version that the client named.
    pub(super) version: Option<Box<str>>,
}

/// Returns the version of a request without a message. Only the legacy era has such requests.
pub(super) fn of_bodiless(headers: &HeaderMap) -> Result<MessageVersion, HttpRefusal> {
    let not_allowed =
        || HttpRefusal::invalid(StatusCode::METHOD_NOT_ALLOWED, "only POST is supported by this version");
    match single(headers, &MCP_PROTOCOL_VERSION) {
        Ok(None) => Ok(MessageVersion { era: ProtocolEra::Legacy, version: None }),
        Ok(Some(version)) => match version.to_str().ok().map(|version| (version, ProtocolEra::of(version))) {
            Some((version, Some(ProtocolEra::Legacy))) => {
                Ok(MessageVersion { era: ProtocolEra::Legacy, version: Some(version.into()) })
            }
            Some((_, Some(ProtocolEra::Modern))) => Err(not_allowed()),
            Some((_, None)) | None => Err(HttpRefusal::invalid(
                StatusCode::BAD_REQUEST,
                "this MCP-Protocol-Version is not supported",
            )),
        },
        Err(RepeatedHeader) => {
            Err(HttpRefusal::invalid(StatusCode::BAD_REQUEST, "MCP-Protocol-Version is repeated"))
        }
    }
}

/// Returns the version of a message, after checking its headers.
pub(super) fn of_message(
    headers: &HeaderMap,
    message: &RpcMessage,
    supported: &[impl AsRef<str>],
) -> Result<MessageVersion, HttpRefusal> {
    let mismatch = |text: &str| HttpRefusal::bad_request(message, code::HEADER_MISMATCH, text, None);
    let in_header = single(headers, &MCP_PROTOCOL_VERSION)
        .map_err(|RepeatedHeader| mismatch("header mismatch: MCP-Protocol-Version is repeated"))?;
    let in_header = match in_header {
        None => None,
        Some(value) => {
            let text =
                value.to_str().map_err(|_| mismatch("header mismatch: MCP-Protocol-Version is not text"))?;
            Some(text.trim())
        }
    };
    let in_body = message.meta_text(META_VERSION).filter(|_| !message.is_response());
    let spoken = |era, version: &str| Ok(MessageVersion { era, version: Some(version.into()) });
    match (in_header, in_body.as_deref()) {
        (None, None) => Ok(MessageVersion { era: ProtocolEra::Legacy, version: None }),
        (None, Some(_)) if message.is_request() => {
            Err(mismatch("header mismatch: the header MCP-Protocol-Version is missing"))
        }
        (None, Some(version)) => spoken(ProtocolEra::of(version).unwrap_or(ProtocolEra::Modern), version),
        (Some(header), Some(body)) if header != body => {
            let text = format!("header mismatch: MCP-Protocol-Version is {header:?}, the body has {body:?}");
            Err(mismatch(&text))
        }
        (Some(header), body) => match ProtocolEra::of(header) {
            Some(ProtocolEra::Legacy) => spoken(ProtocolEra::Legacy, header),
            None if body.is_none() => Err(unsupported(message, header, supported)),
            Some(ProtocolEra::Modern) | None => {
                check_modern(headers, message, header, supported)?;
                spoken(ProtocolEra::Modern, header)
            }
        },
    }
}

/// Checks one message against the rules of the modern era.
fn check_modern(
    headers: &HeaderMap,
    message: &RpcMessage,
    version: &str,
    supported: &[impl AsRef<str>],
) -> Result<(), HttpRefusal> {
    if message.is_response() {
        let text = "in this protocol version a server sends no requests, so there is nothing to respond to";
        return Err(HttpRefusal::bad_request(message, code::INVALID_REQUEST, text, None));
    }
    // The protocol does not define headers for notifications.
    if message.is_notification() {
        return Ok(());
    }
    let method = message.method().unwrap_or_default();
    check_header(headers, message, &MCP_METHOD, Some(method), HeaderRequirement::Yes)?;
    if let Some(source) = name_source(method) {
        let name = message.param_text(source);
        let needed =
            if source == "taskId" || name.is_none() { HeaderRequirement::No } else { HeaderRequirement::Yes };
        check_header(headers, message, &MCP_NAME, name.as_deref(), needed)?;
    }
    let invalid = |text: &str| Err(HttpRefusal::bad_request(message, code::INVALID_PARAMS, text, None));
    if message.meta_text(META_VERSION).is_none() {
        return invalid("invalid params: _meta has no io.modelcontextprotocol/protocolVersion");
    }
    if !message.meta_member(META_CAPABILITIES).is_some_and(|value| value.starts_with('{')) {
        return invalid("invalid params: _meta has no io.modelcontextprotocol/clientCapabilities");
    }
    match supported.iter().any(|own| own.as_ref() == version) {
        true => Ok(()),
        false => Err(unsupported(message, version, supported)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HeaderRequirement {
    Yes,
    No,
}

/// Checks that a header matches the body.
fn check_header(
    headers: &HeaderMap,
    message: &RpcMessage,
    name: &HeaderName,
    body: Option<&str>,
    needed: HeaderRequirement,
) -> Result<(), HttpRefusal> {
    let mismatch = |text: &str| Err(HttpRefusal::bad_request(message, code::HEADER_MISMATCH, text, None));
    let Ok(value) = single(headers, name) else {
        return mismatch(&format!("header mismatch: {name} is repeated"));
    };
    match (value.map(decode_value), body) {
        (None, _) if needed == HeaderRequirement::No => Ok(()),
        (None, _) => mismatch(&format!("header mismatch: the header {name} is missing")),
        (Some(Some(header)), Some(body)) if header == body => Ok(()),
        (Some(Some(header)), Some(body)) => {
            mismatch(&format!("header mismatch: {name} is {header:?}, the body has {body:?}"))
        }
        (Some(Some(_)), None) => {
            mismatch(&format!("header mismatch: nothing in the body corresponds to {name}"))
        }
        (Some(None), _) => mismatch(&format!("header mismatch: {name} is not well formed")),
    }
}

fn unsupported(message: &RpcMessage, version: &str, supported: &[impl AsRef<str>]) -> HttpRefusal {
    let listed: Vec<_> =
        supported.iter().map(|own| JsonText::string(own.as_ref()).as_str().to_owned()).collect();
    let requested = JsonText::string(version);
    let data = format!("{{\"supported\":[{}],\"requested\":{}}}", listed.join(","), requested.as_str());
    let data = JsonText::parse(data).ok();
    HttpRefusal::bad_request(
        message,
        code::UNSUPPORTED_VERSION,
        "unsupported protocol version",
        data.as_ref(),
    )
}

/// The error for a header that must not be repeated.
struct RepeatedHeader;

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, RepeatedHeader> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (first, None) => Ok(first),
        (_, Some(_)) => Err(RepeatedHeader),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In a message that is accepted as modern, headers and body agree, for any headers.
        #[test]
        fn any_headers_are_checked(
            values in proptest::collection::vec(
                (0..3_usize, prop_oneof![
                    prop::sample::select(vec!["2026-07-28", "2025-11-25", "tools/call", "pay", "=?base64?cGF5?=", "=?base64?!?="])
                        .prop_map(|text| text.as_bytes().to_vec()),
                    proptest::collection::vec(any::<u8>().prop_map(|byte| byte.max(b' ')), 0..6),
                ]),
                0..5,
            ),
            has_meta in any::<bool>(),
        ) {
            let names = [MCP_PROTOCOL_VERSION, MCP_METHOD, MCP_NAME];
            let mut headers = HeaderMap::new();
            for (name, value) in values {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.append(names[name].clone(), value);
                }
            }
            let meta = if has_meta { format!(",{META}") } else { String::new() };
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay"{meta}}}}}"#);
            let message = RpcMessage::parse(body, 10_000).unwrap();
            let _ = of_bodiless(&headers);
            if let Ok(MessageVersion { era: ProtocolEra::Modern, .. }) = of_message(&headers, &message, &["2026-07-28"]) {
                prop_assert!(has_meta);
                for (name, value) in [(MCP_METHOD, "tools/call"), (MCP_NAME, "pay")] {
                    let values: Vec<_> = headers.get_all(&name).iter().map(decode_value).collect();
                    prop_assert_eq!(values, [Some(value.into())]);
                }
            }
        }
    }

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

    fn judged(headers: &[(&'static str, &'static str)], body: &str) -> Result<ProtocolEra, (u16, i64)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let message = RpcMessage::parse(body.replace("$META", META), 10_000).unwrap();
        match of_message(&map, &message, &["2026-07-28"]) {
            Ok(spoken) => Ok(spoken.era),
            Err(refusal) => {
                let expected = message.id().filter(|_| message.is_request());
                assert_eq!(refusal.error.id(), expected, "the id is echoed: {body}");
                Err((refusal.status.as_u16(), refusal.error.error_code().unwrap()))
            }
        }
    }

    const V: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
    const LIST: (&str, &str) = ("mcp-method", "tools/list");
    const CALL: (&str, &str) = ("mcp-method", "tools/call");

    #[test]
    fn a_modern_request_repeats_its_body_in_its_headers() {
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{$META}}"#;
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a b",$META}}"#;
        let read = r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"ü",$META}}"#;
        let task = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t",$META}}"#;
        let get = ("mcp-method", "tasks/get");
        for (headers, body, expected) in [
            (&[V, LIST][..], list, Ok(ProtocolEra::Modern)),
            (&[V, CALL, ("mcp-name", "a b")], call, Ok(ProtocolEra::Modern)),
            (&[V, CALL, ("mcp-name", " a b ")], call, Ok(ProtocolEra::Modern)),
            (&[V, CALL, ("mcp-name", "=?base64?YSBi?=")], call, Ok(ProtocolEra::Modern)),
            (
                &[V, ("mcp-method", "resources/read"), ("mcp-name", "=?base64?w7w=?=")],
                read,
                Ok(ProtocolEra::Modern),
            ),
            (&[V, get], task, Ok(ProtocolEra::Modern)),
            (&[V, get, ("mcp-name", "t")], task, Ok(ProtocolEra::Modern)),
            (&[V, get, ("mcp-name", "u")], task, Err((400, -32020))),
            (&[LIST], list, Err((400, -32020))),
            (&[V], list, Err((400, -32020))),
            (&[V, V, LIST], list, Err((400, -32020))),
            (&[V, LIST, LIST], list, Err((400, -32020))),
            (&[V, ("mcp-method", "TOOLS/LIST")], list, Err((400, -32020))),
            (&[("mcp-protocol-version", "2025-11-25"), LIST], list, Err((400, -32020))),
            (&[V, CALL], call, Err((400, -32020))),
            (&[V, CALL, ("mcp-name", "A B")], call, Err((400, -32020))),
            (&[V, CALL, ("mcp-name", "=?base64?***?=")], call, Err((400, -32020))),
        ] {
            assert_eq!(judged(headers, body), expected, "{headers:?} {body}");
        }
    }

    #[test]
    fn a_modern_request_carries_its_version_and_capabilities() {
        let only_version = META.split_once(",\"io").unwrap().0.to_owned() + "}";
        let only_capabilities = r#""_meta":{"io.modelcontextprotocol/clientCapabilities":{}}"#;
        let body =
            |meta: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{{{meta}}}}}"#);
        for meta in ["", &only_version, only_capabilities] {
            assert_eq!(judged(&[V, LIST], &body(meta)), Err((400, -32602)), "{meta}");
        }
        let unknown = META.replace("2026-07-28", "v999");
        assert_eq!(judged(&[("mcp-protocol-version", "v999"), LIST], &body(&unknown)), Err((400, -32022)));
        assert_eq!(judged(&[("mcp-protocol-version", "v999")], &body("")), Err((400, -32022)));
    }

    #[test]
    fn an_unsupported_version_is_refused_with_the_supported_ones() {
        let message =
            RpcMessage::parse(&b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}"[..], 1000).unwrap();
        let refusal = unsupported(&message, "v\"9", &["2026-07-28", "2025-11-25"]);
        let error: serde_json::Value = serde_json::from_slice(refusal.error.bytes()).unwrap();
        let data = serde_json::json!({"supported": ["2026-07-28", "2025-11-25"], "requested": "v\"9"});
        assert_eq!(error["error"]["data"], data);
    }

    #[test]
    fn legacy_messages_are_recognized_by_version_or_by_its_absence() {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let answer =
            r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x"}}}"#;
        for body in [ping, notification, answer] {
            assert_eq!(judged(&[], body), Ok(ProtocolEra::Legacy), "{body}");
            assert_eq!(
                judged(&[("mcp-protocol-version", "2025-06-18")], body),
                Ok(ProtocolEra::Legacy),
                "{body}"
            );
        }
        assert_eq!(judged(&[V], notification), Ok(ProtocolEra::Modern));
        assert_eq!(judged(&[V], answer), Err((400, -32600)));
    }
}
