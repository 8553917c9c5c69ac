//! Verification of calls with an unknown outcome: a hint for operators and models, or a read-only call whose result
//! shows the effect.

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::id::{Namespace, ToolName, ToolRef};
use crate::key::KeyTemplate;
use crate::output::Output;

/// The way to check whether a call took effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Verify {
    /// Instruction for an operator or a model.
    Hint(Arc<str>),
    /// Call that shows the effect.
    Call(Arc<VerifyCall>),
}

impl Verify {
    /// Returns the instruction for an operator or a model.
    pub fn hint(&self) -> Arc<str> {
        match self {
            Self::Hint(hint) => hint.clone(),
            Self::Call(call) => call.hint.clone(),
        }
    }
}

impl From<&str> for Verify {
    fn from(hint: &str) -> Self {
        Self::Hint(hint.into())
    }
}

/// A read-only call whose result shows whether another call took effect.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyCall {
    tool: ToolRef,
    params: Filled,
    ran_if: Condition,
    hint: Arc<str>,
    /// Text of the setting.
    text: Box<str>,
}

impl fmt::Display for VerifyCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The reason why a setting is not a valid verification call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidVerify {
    /// The tool is not named as `server/tool`.
    Tool,
    /// The params are not an object.
    Params,
    /// A template in the params or in the value is not valid.
    Template,
    /// The condition is not a JSON pointer, an equals sign and a value.
    Condition,
}

impl fmt::Display for InvalidVerify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tool => "does not name its tool as `server/tool`",
            Self::Params => "has params that are not a table",
            Self::Template => "has an unmatched brace or a placeholder without a name",
            Self::Condition => "has a ran_if that is not a JSON pointer, `=` and a value",
        })
    }
}

impl std::error::Error for InvalidVerify {}

/// The finding of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The call took effect.
    Ran,
    /// The call did not take effect.
    DidNotRun,
    /// The result shows neither; with the reason.
    Unclear(String),
}

impl VerifyCall {
    /// Creates a call of this tool (`server/tool`) with these params, in which `{name}` stands for an argument of the
    /// call to verify. `ran_if` is a JSON pointer into the result, an equals sign, and the value that is there if the
    /// call took effect. `*` in the pointer stands for any member of a list.
    pub fn new(tool: &str, params: &Json, ran_if: &str) -> Result<Self, InvalidVerify> {
        let (namespace, name) = tool.split_once('/').ok_or(InvalidVerify::Tool)?;
        let namespace = Namespace::new(namespace).map_err(|_| InvalidVerify::Tool)?;
        let tool = ToolRef { namespace, tool: ToolName::new(name).map_err(|_| InvalidVerify::Tool)? };
        if !params.is_object() {
            return Err(InvalidVerify::Params);
        }
        let text = format!("{{ tool = \"{tool}\", params = {params}, ran_if = {ran_if:?} }}").into();
        let (params, ran_if) = (Filled::parse(params)?, Condition::parse(ran_if)?);
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
    pub fn finding(&self, arguments: &Json, answer: &Output) -> Finding {
        let mut missing = Vec::new();
        let wanted = self.ran_if.value.fill(arguments, &mut missing);
        if !missing.is_empty() {
            return Finding::Unclear(format!("the call has no argument {}", missing.join(", ")));
        }
        let Some(shown) = shown(answer.content.as_str()) else {
            return Finding::Unclear(format!("{} did not return JSON", self.tool));
        };
        match look(&shown, &self.ran_if.pointer, &wanted) {
            Look::Equal => Finding::Ran,
            Look::Other => Finding::DidNotRun,
            Look::Missing => Finding::Unclear(format!(
                "the answer of {} has nothing at {}",
                self.tool,
                self.ran_if.pointer()
            )),
        }
    }
}

/// A JSON value in which names of arguments stand for the arguments.
#[derive(Clone, Debug, PartialEq)]
enum Filled {
    As(Json),
    Template(KeyTemplate),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Filled {
    fn parse(value: &Json) -> Result<Self, InvalidVerify> {
        Ok(match value {
            Json::String(text) if text.contains(['{', '}']) => {
                Self::Template(KeyTemplate::parse(text).map_err(|_| InvalidVerify::Template)?)
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
struct Condition {
    pointer: Box<[Box<str>]>,
    value: Filled,
}

impl Condition {
    fn parse(text: &str) -> Result<Self, InvalidVerify> {
        let (pointer, value) = text.split_once('=').ok_or(InvalidVerify::Condition)?;
        let path = pointer.trim().strip_prefix('/').ok_or(InvalidVerify::Condition)?;
        let value = value.trim().trim_start_matches('=').trim();
        if value.is_empty() {
            return Err(InvalidVerify::Condition);
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| Json::String(value.to_owned()));
        let pointer = path.split('/').map(|step| step.replace("~1", "/").replace("~0", "~").into());
        Ok(Self { pointer: pointer.collect(), value: Filled::parse(&value)? })
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
enum Look {
    /// The expected value.
    Equal,
    /// Another value, or the result says that there is none.
    Other,
    /// The result has no such place.
    Missing,
}

fn look(at: &Json, pointer: &[Box<str>], wanted: &Json) -> Look {
    let Some((step, rest)) = pointer.split_first() else {
        return if is_same(at, wanted) { Look::Equal } else { Look::Other };
    };
    match at {
        Json::Null => Look::Other,
        Json::Array(items) if &**step == "*" => {
            let looks: Vec<Look> = items.iter().map(|item| look(item, rest, wanted)).collect();
            if looks.contains(&Look::Equal) {
                Look::Equal
            } else if looks.contains(&Look::Missing) {
                Look::Missing
            } else {
                Look::Other
            }
        }
        Json::Array(items) => match step.parse::<usize>() {
            Ok(number) => items.get(number).map_or(Look::Other, |item| look(item, rest, wanted)),
            Err(_) => Look::Missing,
        },
        Json::Object(members) => {
            members.get(&**step).map_or(Look::Missing, |member| look(member, rest, wanted))
        }
        Json::Bool(_) | Json::Number(_) | Json::String(_) => Look::Missing,
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

    use super::*;
    use crate::output::RawJson;

    fn call(ran_if: &str) -> VerifyCall {
        VerifyCall::new("bank/payments", &json!({ "invoice": "{invoice}", "last": 10 }), ran_if).unwrap()
    }

    fn finding(ran_if: &str, answer: &Json) -> Finding {
        let answer = Output { content: RawJson::from_trusted(answer.to_string()), metadata: None };
        call(ran_if).finding(&json!({ "invoice": "INV-7" }), &answer)
    }

    fn is_unclear(finding: &Finding) -> bool {
        matches!(finding, Finding::Unclear(_))
    }

    #[test]
    fn its_params_are_made_of_the_arguments_of_the_call_as_they_are() {
        let deep = json!({ "id": "{order.id}", "text": "order {order.id} of {who}", "all": ["{who}", 1] });
        let call = VerifyCall::new("shop/orders", &deep, "/ok = true").unwrap();
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
            let expected = if ran { Finding::Ran } else { Finding::DidNotRun };
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
            (json!({ "content": [], "structuredContent": { "paid": true } }), Finding::Ran),
            (text(r#"{"paid":true}"#), Finding::Ran),
            (text(r#"{"paid":false}"#), Finding::DidNotRun),
        ] {
            assert_eq!(finding("/paid = true", &answer), expected, "{answer}");
        }
        assert!(is_unclear(&finding("/paid = true", &text("It was paid."))));
    }

    #[test]
    fn an_invalid_verification_is_refused_with_the_reason() {
        let new = |tool, params, ran_if| VerifyCall::new(tool, &params, ran_if).unwrap_err();
        assert_eq!(new("payments", json!({}), "/a = 1"), InvalidVerify::Tool);
        assert_eq!(new("bank/payments", json!([]), "/a = 1"), InvalidVerify::Params);
        assert_eq!(new("bank/payments", json!({ "a": "{b" }), "/a = 1"), InvalidVerify::Template);
        for wrong in ["", "/a", "/a =", "a = 1"] {
            assert_eq!(new("bank/payments", json!({}), wrong), InvalidVerify::Condition, "{wrong}");
        }
    }
}
