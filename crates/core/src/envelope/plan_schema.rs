//! The JSON schema of a plan. The parser of `steadfast-turn` reads one. The same plans fit both, except for rules that a
//! schema cannot express: ids are unique and known, and no call depends on itself.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::json;

use crate::id::{id_schema, tool_schema};

use super::TurnEnvelope;

/// The calls of a turn.
pub(super) struct PlanSchema;

impl JsonSchema for PlanSchema {
    fn schema_name() -> Cow<'static, str> {
        "TurnPlan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let id = id_schema().to_value();
        let positive = json!({ "type": "integer", "minimum": 1, "maximum": u64::MAX });
        let tool = json!({ "anyOf": [
            tool_schema(),
            object(&json!({ "namespace": id, "tool": id }), &["namespace", "tool"]),
        ] });
        let params = json!({
            "type": "object",
            "description": "Its arguments; `{\"$from\": \"<id>\", \"path\": \"<JSON Pointer>\"}` stands for a part of the output of another call",
        });
        let dependency = json!({ "anyOf": [id, object(&json!({
            "id": id,
            "default": { "description": "The value that replaces its output if it does not succeed" },
        }), &["id"])] });
        let alternative =
            json!({ "anyOf": [tool, object(&json!({ "tool": tool, "params": params }), &["tool"])] });
        let call = object(
            &json!({
                "id": id,
                "tool": tool,
                "params": params,
                "dependsOn": {
                    "type": "array",
                    "items": dependency,
                    "description": "The calls that it depends on. Calls that its arguments refer to are implied",
                },
                "required": { "type": "boolean", "default": true },
                "alternatives": {
                    "type": "array",
                    "items": alternative,
                    "maxItems": TurnEnvelope::DEFAULT_ALTERNATIVES,
                    "description": "Other tools for the same job, in this order",
                },
                "timeoutMs": positive,
            }),
            &["id", "tool"],
        );
        let plan = object(
            &json!({
                "turnId": id,
                "deadlineMs": positive,
                "parallelism": positive,
                "calls": {
                    "type": "array",
                    "items": call,
                    "minItems": 1,
                    "maxItems": TurnEnvelope::DEFAULT_CALLS,
                },
            }),
            &["calls"],
        );
        json_schema!({
            "description": "The calls of a turn. With a `turnId` the turn can be submitted again; finished calls do not run again.",
            "allOf": [plan],
        })
    }
}

/// Returns the schema of an object with these fields and no others.
fn object(properties: &serde_json::Value, required: &[&str]) -> serde_json::Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}
