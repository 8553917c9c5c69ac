//! JSON objects with members added or removed. Other members stay unchanged, byte for byte.

use serde_json::value::RawValue;
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcMessage, code};

use super::no_id;
use crate::json_parts::{self, json};

/// The member of `_meta` in a request that identifies the client.
pub(super) const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// The member of `_meta` in a result that identifies the server.
pub(super) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// The result type of an input request.
pub(super) const INPUT_REQUIRED: &str = "\"input_required\"";

/// Returns true if a server may answer this method with an input request.
pub(super) fn may_ask(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Checks that a client with these capabilities supports this method. A client that lists no elicitation modes supports
/// forms.
pub(super) fn check_client_support(
    capabilities: &str,
    method: &str,
    params: Option<&str>,
) -> Result<(), String> {
    let needed = match method {
        "sampling/createMessage" => "sampling",
        "elicitation/create" => "elicitation",
        "roots/list" => "roots",
        other => return Err(format!("there is no method {other}")),
    };
    let Some(declared) = scan::get(capabilities, needed).filter(|value| value.starts_with('{')) else {
        return Err(format!("the client does not support {needed}"));
    };
    let mode = params.and_then(|params| scan::get(params, "mode"));
    if needed == "elicitation" && mode == Some("\"url\"") && scan::get(declared, "url").is_none() {
        return Err("the client does not support elicitation by URL".to_owned());
    }
    Ok(())
}

/// Removes members from an object.
pub(super) fn without(object: &str, names: &[&str]) -> JsonText {
    let members: Vec<_> = scan::members(object).filter(|member| !names.contains(&&*member.name)).collect();
    let remaining =
        members.iter().filter_map(|member| Some((&*member.name, object.get(member.value.clone())?)));
    json_parts::object(remaining)
}

/// Inserts members at the beginning of a result, except for those that it has.
pub(super) fn with_first(response: &RpcMessage, members: &[(&str, &str)]) -> RpcMessage {
    let (Some(id), Some(result)) = (response.id(), response.result()) else { return response.clone() };
    let Some(own) = result.trim_start().strip_prefix('{') else { return response.clone() };
    let mut text = String::from("{");
    for (name, value) in members.iter().filter(|(name, _)| scan::get(result, name).is_none()) {
        text.push_str(&format!("{}:{value},", JsonText::string(name).as_str()));
    }
    if own.trim_start().starts_with('}') && text.ends_with(',') {
        text.pop();
    }
    text.push_str(own);
    RpcMessage::result_response(&id, &json(&text))
}

/// Removes a member from a result.
pub(super) fn with_none(response: &RpcMessage, name: &str) -> RpcMessage {
    match (response.id(), response.result()) {
        (Some(id), Some(result)) if scan::get(result, name).is_some() => {
            RpcMessage::result_response(&id, &without(result, &[name]))
        }
        _ => response.clone(),
    }
}

/// Parses the strings of a list.
pub(super) fn strings(list: &str) -> Vec<String> {
    let items = serde_json::from_str::<Vec<&RawValue>>(list).unwrap_or_default();
    items.iter().filter_map(|item| scan::string(item.get()).map(|text| text.into_owned())).collect()
}

/// Builds a list of strings.
pub(super) fn list<S: AsRef<str>>(strings: &[S]) -> String {
    let items: Vec<_> =
        strings.iter().map(|text| JsonText::string(text.as_ref()).as_str().to_owned()).collect();
    format!("[{}]", items.join(","))
}

/// Returns an empty result.
pub(super) fn nothing() -> RpcMessage {
    RpcMessage::result_response(&no_id(), &json("{}"))
}

/// Returns the error for a method that the client's era does not have.
pub(super) fn no_method(method: &str) -> RpcMessage {
    let reason = format!("there is no method {method}");
    RpcMessage::error_response(Some(&no_id()), code::METHOD_NOT_FOUND, &reason, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(result: &str) -> RpcMessage {
        RpcMessage::parse(format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#), usize::MAX).unwrap()
    }

    #[test]
    fn missing_members_are_added_and_others_removed() {
        let first = |result, members: &[(&str, &str)]| {
            with_first(&response(result), members).result().unwrap().to_owned()
        };
        assert_eq!(first(r#"{"x": 1.50}"#, &[("a", "1"), ("x", "2")]), r#"{"a":1,"x": 1.50}"#);
        assert_eq!(first("{}", &[("a", "1")]), r#"{"a":1}"#);
        assert_eq!(first("{ }", &[]), "{ }");
        assert_eq!(first("7", &[("a", "1")]), "7");
        let none = with_none(&response(r#"{"a":"ü","resultType":"complete","b":[ 1 ]}"#), "resultType");
        assert_eq!(none.result(), Some(r#"{"a":"ü","b":[ 1 ]}"#));
        assert_eq!(with_none(&response("{}"), "resultType"), response("{}"));
    }

    #[test]
    fn a_client_gets_only_requests_that_it_supports() {
        let all = r#"{"sampling":{},"elicitation":{"url":{}},"roots":{}}"#;
        for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
            assert_eq!(check_client_support(all, method, None), Ok(()));
            assert!(check_client_support("{}", method, None).unwrap_err().contains("does not support"));
        }
        let url = Some(r#"{"mode":"url"}"#);
        assert_eq!(check_client_support(all, "elicitation/create", url), Ok(()));
        assert!(check_client_support(r#"{"elicitation":{}}"#, "elicitation/create", url).is_err());
        assert!(check_client_support(all, "vendor/thing", None).is_err());
    }
}
