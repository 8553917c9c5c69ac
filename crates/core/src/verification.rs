//! Verification of calls with an unknown outcome: a hint for operators and models, or a read-only call whose result
//! shows the effect.

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::id::{Namespace, ToolName, ToolRef};
use crate::output::ToolOutput;
use crate::template::KeyTemplate;

/// The way to check whether a call took effect.
#[derive(Clone, Debug, PartialEq)]
pub enum VerificationMethod {
    /// Instruction for an operator or a model.
    Hint(Arc<str>),
    /// Call that shows the effect.
    Call(Arc<VerificationCall>),
}

impl VerificationMethod {
    /// Returns the instruction for an operator or a model.
    pub fn hint(&self) -> Arc<str> {
        match self {
            Self::Hint(hint) => hint.clone(),
            Self::Call(call) => call.hint.clone(),
        }
    }
}

impl From<&str> for VerificationMethod {
    fn from(hint: &str) -> Self {
        Self::Hint(hint.into())
    }
}

/// A read-only call whose result shows whether another call took effect.
#[derive(Clone, Debug, PartialEq)]
pub struct VerificationCall {
    tool: ToolRef,
    params: ParamTemplate,
    ran_if: VerificationCondition,
    hint: Arc<str>,
    /// Text of the setting.
    text: Box<str>,
}

impl fmt::Display for VerificationCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The reason why a setting is not a valid verification call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVerificationCall {
    /// The tool is not named as `server/tool`.
    #[error("does not name its tool as `server/tool`")]
    Tool,
    /// The params are not an object.
    #[error("has params that are not a table")]
    Params,
    /// A template in the params or in the value is not valid.
    #[error("has an unmatched brace or a placeholder without a name")]
    Template,
    /// The condition is not a JSON pointer, an equals sign and a value.
    #[error("has a ran_if that is not a JSON pointer, `=` and a value")]
    Condition,
}

/// The finding of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerificationFinding {
    /// The call took effect.
    Ran,
    /// The call did not take effect.
    DidNotRun,
    /// The result shows neither; with the reason.
    Unclear(String),
}

impl VerificationCall {
    /// Creates a call of this tool (`server/tool`) with these params, in which `{name}` stands for an argument of the
    /// call to verify. `ran_if` is a JSON pointer into the result, an equals sign, and the value that is there if the
    /// call took effect. `*` in the pointer stands for any member of a list.
    pub fn new(tool: &str, params: &Json, ran_if: &str) -> Result<Self, InvalidVerificationCall> {
        let (namespace, name) = tool.split_once('/').ok_or(InvalidVerificationCall::Tool)?;
        let namespace = Namespace::new(namespace).map_err(|_| InvalidVerificationCall::Tool)?;
        let tool =
            ToolRef { namespace, tool: ToolName::new(name).map_err(|_| InvalidVerificationCall::Tool)? };
        if !params.is_object() {
            return Err(InvalidVerificationCall::Params);
        }
        let text = format!("{{ tool = \"{tool}\", params = {params}, ran_if = {ran_if:?} }}").into();
        let (params, ran_if) = (ParamTemplate::parse(params)?, VerificationCondition::parse(ran_if)?);
        let hint = format!("call {tool}").into();
        Ok(Self { tool, params, ran_if, hint, text })
    }

    /// Returns the tool to call.
    pub fn tool(&self) -> &ToolRef {
        &self.tool
    }

    /// Returns the params for verifying a call with these arguments, or the names of the arguments that it lacks.
    pub fn params(&self, arguments: &Json) -> Result<Json, Vec<String>> {
        let mut missing = Vec::new();
        let filled = self.params.fill(arguments, &mut missing);
        if missing.is_empty() { Ok(filled) } else { Err(missing) }
    }

    /// Returns the finding for a call with these arguments. A result without the place of the pointer shows nothing: a
    /// wrong pointer must not let calls run twice.
    pub fn finding(&self, arguments: &Json, answer: &ToolOutput) -> VerificationFinding {
        let mut missing = Vec::new();
        let expected = self.ran_if.value.fill(arguments, &mut missing);
        if !missing.is_empty() {
            return VerificationFinding::Unclear(format!("the call has no argument {}", missing.join(", ")));
        }
        let Some(shown) = shown(answer.content.as_str()) else {
            return VerificationFinding::Unclear(format!("{} did not return JSON", self.tool));
        };
        match match_pointer(&shown, &self.ran_if.pointer, &expected) {
            PointerMatch::Equal => VerificationFinding::Ran,
            PointerMatch::Other => VerificationFinding::DidNotRun,
            PointerMatch::Missing => VerificationFinding::Unclear(format!(
                "the answer of {} has nothing at {}",
                self.tool,
                self.ran_if.pointer()
            )),
        }
    }
}

/// A JSON value in which names of arguments stand for the arguments.
#[derive(Clone, Debug, PartialEq)]
enum ParamTemplate {
    As(Json),
    Template(KeyTemplate),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl ParamTemplate {
    fn parse(value: &Json) -> Result<Self, InvalidVerificationCall> {
        Ok(match value {
            Json::String(text) if text.contains(['{', '}']) => {
                Self::Template(KeyTemplate::parse(text).map_err(|_| InvalidVerificationCall::Template)?)
            }
            Json::Array(items) => Self::List(items.iter().map(Self::parse).collect::<Result<_, _>>()?),
            Json::Object(members) => {
                let members = members.iter().map(|(name, value)| Ok((name.clone(), Self::parse(value)?)));
                Self::Object(members.collect::<Result<_, _>>()?)
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => Self::As(value.clone()),
        })
    }

    fn fill(&self, arguments: &Json, missing: &mut Vec<String>) -> Json {
        match self {
            Self::As(value) => value.clone(),
            Self::Template(template) => template.fill_value(arguments).unwrap_or_else(|names| {
                missing.extend(names);
                Json::Null
            }),
            Self::List(items) => items.iter().map(|item| item.fill(arguments, missing)).collect(),
            Self::Object(members) => {
                let filled =
                    members.iter().map(|(name, value)| (name.clone(), value.fill(arguments, missing)));
                Json::Object(filled.collect())
            }
        }
    }
}

/// The place in a result, and its value if the call took effect.
#[derive(Clone, Debug, PartialEq)]
struct VerificationCondition {
    pointer: Box<[Box<str>]>,
    value: ParamTemplate,
}

impl VerificationCondition {
    fn parse(text: &str) -> Result<Self, InvalidVerificationCall> {
        let (pointer, value) = text.split_once('=').ok_or(InvalidVerificationCall::Condition)?;
        let path = pointer.trim().strip_prefix('/').ok_or(InvalidVerificationCall::Condition)?;
        let value = value.trim().trim_start_matches('=').trim();
        if value.is_empty() {
            return Err(InvalidVerificationCall::Condition);
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| Json::String(value.to_owned()));
        let pointer = path.split('/').map(|step| step.replace("~1", "/").replace("~0", "~").into());
        Ok(Self { pointer: pointer.collect(), value: ParamTemplate::parse(&value)? })
    }

    fn pointer(&self) -> String {
        self.pointer.iter().map(|step| format!("/{step}")).collect()
    }
}

/// Returns the data of a result: an MCP tool's structured content, or its text if that is JSON; else the result itself.
fn shown(answer: &str) -> Option<Json> {
    let answer: Json = serde_json::from_str(answer).ok()?;
    if let Some(data) = answer.get("structuredContent").filter(|data| !data.is_null()) {
        return Some(data.clone());
    }
    let blocks = answer.get("content").and_then(Json::as_array);
    let Some(blocks) = blocks.filter(|blocks| blocks.iter().all(|block| block.get("type").is_some())) else {
        return Some(answer);
    };
    let mut texts = blocks.iter().filter_map(|block| block.get("text")?.as_str());
    texts.find_map(|text| serde_json::from_str(text).ok())
}

/// The value at the end of a pointer, compared with the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PointerMatch {
    /// The expected value.
    Equal,
    /// Another value, or the result says that there is none.
    Other,
    /// The result has no such place.
    Missing,
}

fn match_pointer(at: &Json, pointer: &[Box<str>], expected: &Json) -> PointerMatch {
    let Some((step, rest)) = pointer.split_first() else {
        return if is_same(at, expected) { PointerMatch::Equal } else { PointerMatch::Other };
    };
    match at {
        Json::Null => PointerMatch::Other,
        Json::Array(items) if &**step == "*" => {
            let found: Vec<PointerMatch> =
                items.iter().map(|item| match_pointer(item, rest, expected)).collect();
            if found.contains(&PointerMatch::Equal) {
                PointerMatch::Equal
            } else if found.contains(&PointerMatch::Missing) {
                PointerMatch::Missing
            } else {
                PointerMatch::Other
            }
        }
        Json::Array(items) => match step.parse::<usize>() {
            Ok(number) => {
                items.get(number).map_or(PointerMatch::Other, |item| match_pointer(item, rest, expected))
            }
            Err(_) => PointerMatch::Missing,
        },
        Json::Object(members) => {
            members.get(&**step).map_or(PointerMatch::Missing, |member| match_pointer(member, rest, expected))
        }
        Json::Bool(_) | Json::Number(_) | Json::String(_) => PointerMatch::Missing,
    }
}

/// Returns true if two values are equal. A number equals its digits as a text, because an id may be either.
fn is_same(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Number(one), Json::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Json::Number(number), Json::String(text)) | (Json::String(text), Json::Number(number)) => {
            number.to_string() == *text
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use steadfast_json::RawJson;

    use super::*;

    fn call(ran_if: &str) -> VerificationCall {
        VerificationCall::new("bank/payments", &json!({ "invoice": "{invoice}", "last": 10 }), ran_if)
            .unwrap()
    }

    fn finding(ran_if: &str, answer: &Json) -> VerificationFinding {
        let answer = ToolOutput { content: RawJson::from_trusted(answer.to_string()), metadata: None };
        call(ran_if).finding(&json!({ "invoice": "INV-7" }), &answer)
    }

    fn is_unclear(finding: &VerificationFinding) -> bool {
        matches!(finding, VerificationFinding::Unclear(_))
    }

    #[test]
    fn its_params_are_made_of_the_arguments_of_the_call_as_they_are() {
        let deep = json!({ "id": "{order.id}", "text": "order {order.id} of {who}", "all": ["{who}", 1] });
        let call = VerificationCall::new("shop/orders", &deep, "/ok = true").unwrap();
        assert_eq!(
            call.params(&json!({ "order": { "id": 7 }, "who": "ann" })),
            Ok(json!({ "id": 7, "text": "order 7 of ann", "all": ["ann", 1] }))
        );
        assert_eq!(call.params(&json!({ "who": "ann" })).unwrap_err(), ["order.id", "order.id"]);
        assert_eq!(call.tool().to_string(), "shop/orders");
    }

    #[test]
    fn the_value_at_the_pointer_decides() {
        for (ran_if, answer, ran) in [
            ("/paid = true", json!({ "paid": true }), true),
            ("/paid = true", json!({ "paid": false }), false),
            ("/status = paid", json!({ "status": "paid" }), true),
            ("/status=\"paid\"", json!({ "status": "open" }), false),
            ("/payment/invoice = {invoice}", json!({ "payment": { "invoice": "INV-7" } }), true),
            ("/payment/invoice = {invoice}", json!({ "payment": null }), false),
            ("/payments/*/invoice = {invoice}", json!({ "payments": [{ "invoice": "INV-1" }] }), false),
            (
                "/payments/*/invoice = {invoice}",
                json!({ "payments": [{ "invoice": 1 }, { "invoice": "INV-7" }] }),
                true,
            ),
            ("/payments/*/invoice = {invoice}", json!({ "payments": [] }), false),
            ("/0/id = 7", json!([{ "id": "7" }]), true),
            ("/0/id = 7", json!([]), false),
            ("/a~1b = 1", json!({ "a/b": 1.0 }), true),
        ] {
            let expected = if ran { VerificationFinding::Ran } else { VerificationFinding::DidNotRun };
            assert_eq!(finding(ran_if, &answer), expected, "{ran_if} in {answer}");
        }
    }

    #[test]
    fn an_answer_without_such_a_place_shows_nothing() {
        for (ran_if, answer) in [
            ("/paid = true", json!({ "payed": true })),
            ("/paid = true", json!("paid")),
            ("/payments/*/invoice = {invoice}", json!({ "payments": [{ "id": 1 }] })),
            ("/payments/*/invoice = {invoice}", json!({ "payments": [{ "invoice": "INV-1" }, { "id": 1 }] })),
            ("/payments/*/invoice = {invoice}", json!({ "items": [] })),
            ("/payments/first = 1", json!({ "payments": [1] })),
            ("/paid = {amount}", json!({ "paid": 1 })),
        ] {
            assert!(is_unclear(&finding(ran_if, &answer)), "{ran_if} in {answer}");
        }
    }

    #[test]
    fn the_answer_of_an_mcp_tool_is_read_as_data_or_as_text() {
        let text = |text: &str| json!({ "content": [{ "type": "text", "text": text }] });
        for (answer, expected) in [
            (json!({ "content": [], "structuredContent": { "paid": true } }), VerificationFinding::Ran),
            (text(r#"{"paid":true}"#), VerificationFinding::Ran),
            (text(r#"{"paid":false}"#), VerificationFinding::DidNotRun),
        ] {
            assert_eq!(finding("/paid = true", &answer), expected, "{answer}");
        }
        assert!(is_unclear(&finding("/paid = true", &text("It was paid."))));
    }

    #[test]
    fn an_invalid_verification_is_refused_with_the_reason() {
        let new = |tool, params, ran_if| VerificationCall::new(tool, &params, ran_if).unwrap_err();
        assert_eq!(new("payments", json!({}), "/a = 1"), InvalidVerificationCall::Tool);
        assert_eq!(new("bank/payments", json!([]), "/a = 1"), InvalidVerificationCall::Params);
        assert_eq!(new("bank/payments", json!({ "a": "{b" }), "/a = 1"), InvalidVerificationCall::Template);
        for wrong in ["", "/a", "/a =", "a = 1"] {
            assert_eq!(new("bank/payments", json!({}), wrong), InvalidVerificationCall::Condition, "{wrong}");
        }
    }
}
