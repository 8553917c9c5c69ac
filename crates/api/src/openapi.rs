//! The OpenAPI document, made from the endpoint descriptions and the types.

use std::collections::BTreeMap;

use axum::extract::State as Shared;
use axum::response::Response;
use http::{Method, StatusCode};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::State;
use crate::access::Permission;
use crate::encoding;
use crate::endpoint::{Endpoint, ResponseContent, ResponseSpec, SchemaFn};

/// The endpoint of the document.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(Method::GET, "/openapi.json", "openapi", "This document", Permission::Anyone, answer)
            .gives::<Map<String, Value>>("OpenAPI 3.1"),
    ]
}

async fn answer(Shared(State(inner)): Shared<State>) -> Response {
    encoding::json(StatusCode::OK, &inner.document)
}

/// Builds the OpenAPI 3.1 document. Its schemas are JSON Schema.
pub(crate) fn document(endpoints: &[Endpoint]) -> Value {
    let mut generator = generator();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let mut operation = Map::new();
        operation.insert("operationId".into(), endpoint.name.into());
        operation.insert("summary".into(), endpoint.summary.into());
        operation.insert("security".into(), security(endpoint.permission));
        let mut parameters: Vec<Value> = names(endpoint.path)
            .map(|name| {
                let schema = (endpoint.named)(&mut generator);
                json!({ "name": name, "in": "path", "required": true, "schema": schema })
            })
            .collect();
        if let Some(query) = endpoint.query {
            parameters.extend(QueryFields::of(query, &mut generator).parameters());
        }
        parameters.extend(endpoint.headers.iter().map(|(name, description, shape)| {
            let schema = shape(&mut generator);
            json!({ "name": name, "in": "header", "required": false, "description": description, "schema": schema })
        }));
        if !parameters.is_empty() {
            operation.insert("parameters".into(), parameters.into());
        }
        if let Some(takes) = endpoint.takes {
            let content = json!({ "application/json": { "schema": takes(&mut generator) } });
            operation.insert("requestBody".into(), json!({ "required": true, "content": content }));
        }
        operation.insert("responses".into(), responses(&endpoint.gives, &mut generator));
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            path.insert(endpoint.method.as_str().to_ascii_lowercase(), operation.into());
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Steadfast",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Reliable tool calls, and endpoints to observe and control them.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn generator() -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        settings.transforms.push(Box::new(RecursiveTransform(add_range)));
    });
    settings.into_generator()
}

/// Adds the range of a number type, because `format` alone is not binding.
fn add_range(schema: &mut Schema) {
    let format = schema.get("format").and_then(Value::as_str);
    let range: (Value, Value) = match format {
        Some("uint16") => (0.into(), u16::MAX.into()),
        Some("uint32") => (0.into(), u32::MAX.into()),
        Some("uint64" | "uint") => (0.into(), u64::MAX.into()),
        Some("int32") => (i32::MIN.into(), i32::MAX.into()),
        Some("int64") => (i64::MIN.into(), i64::MAX.into()),
        Some(_) | None => return,
    };
    let keywords = schema.ensure_object();
    keywords.entry("minimum").or_insert(range.0);
    keywords.entry("maximum").or_insert(range.1);
}

/// Returns the names of the query parameters of an endpoint, as in the document.
pub(crate) fn query_names(endpoint: &Endpoint) -> Vec<String> {
    let Some(query) = endpoint.query else { return Vec::new() };
    QueryFields::of(query, &mut generator()).properties.keys().cloned().collect()
}

/// Returns the security requirements. Local programs may call and read without a token.
fn security(permission: Permission) -> Value {
    match permission {
        Permission::Anyone => json!([]),
        Permission::Caller | Permission::Viewer => json!([{}, { "token": [] }]),
        Permission::Admin => json!([{ "token": [] }]),
    }
}

/// Builds the responses by status. A status with several meanings or media types lists all of them.
fn responses(gives: &[ResponseSpec], generator: &mut SchemaGenerator) -> Value {
    let mut responses: BTreeMap<u16, StatusMeanings> = BTreeMap::new();
    for gives in gives {
        let (kind, schema) = match gives.content {
            ResponseContent::Json(shape) => ("application/json", shape(generator).to_value()),
            ResponseContent::Text(kind) => (kind, json!({ "type": "string" })),
        };
        let response = responses.entry(gives.status.as_u16()).or_default();
        response.when.push(gives.when);
        let schemas = response.content.entry(kind).or_default();
        if !schemas.contains(&schema) {
            schemas.push(schema);
        }
    }
    responses
        .into_iter()
        .map(|(status, response)| (status.to_string(), response.described()))
        .collect::<Map<_, _>>()
        .into()
}

/// The meanings of one status.
#[derive(Default)]
struct StatusMeanings {
    when: Vec<&'static str>,
    /// The schemas of each media type.
    content: BTreeMap<&'static str, Vec<Value>>,
}

impl StatusMeanings {
    fn described(self) -> Value {
        let schema = |mut schemas: Vec<Value>| match schemas.len() {
            1 => schemas.remove(0),
            _ => json!({ "anyOf": schemas }),
        };
        let content = self.content.into_iter();
        let content: Map<_, _> =
            content.map(|(kind, schemas)| (kind.to_owned(), json!({ "schema": schema(schemas) }))).collect();
        json!({ "description": self.when.join("; or "), "content": content })
    }
}

/// Returns the names of path parameters.
fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// The query parameters of an endpoint.
struct QueryFields {
    properties: Map<String, Value>,
    /// The rules for combining parameters, if there are any.
    together: Option<Value>,
}

impl QueryFields {
    fn of(query: SchemaFn, generator: &mut SchemaGenerator) -> Self {
        let mut object = query(generator).to_value();
        let name = object.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
        if let Some(named) = name.and_then(|name| generator.definitions_mut().remove(name)) {
            object = named;
        }
        let mut take = |keyword| object.as_object_mut().and_then(|object| object.remove(keyword));
        let properties = match take("properties") {
            Some(Value::Object(properties)) => properties,
            Some(_) | None => Map::new(),
        };
        let together = take("oneOf");
        // The generator does not process a schema that was taken out of its definition.
        let in_query = |(name, schema): (String, Value)| {
            // Clients of the document handle inlined parts of an object better.
            let schema = if together.is_some() { written_out(schema, generator) } else { schema };
            let mut schema = Schema::try_from(schema).unwrap_or_default();
            add_range(&mut schema);
            (name, without_null(schema.to_value()))
        };
        let properties = properties.into_iter().map(in_query).collect();
        Self { properties, together }
    }

    /// Returns one parameter for each field. If there are rules for combining them, returns a single exploded object
    /// instead.
    fn parameters(self) -> Vec<Value> {
        if let Some(rules) = self.together {
            let properties = self.properties;
            let schema = json!({
                "type": "object", "properties": properties, "additionalProperties": false, "oneOf": rules,
            });
            return vec![json!({
                "name": "which", "in": "query", "required": true, "style": "form", "explode": true, "schema": schema,
            })];
        }
        let of = |(name, mut schema): (String, Value)| {
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            json!({ "name": name, "in": "query", "required": false, "description": description, "schema": schema })
        };
        self.properties.into_iter().map(of).collect()
    }
}

/// Replaces references to definitions in a schema, or in its choices, by their content.
fn written_out(mut schema: Value, generator: &SchemaGenerator) -> Value {
    let defined = |schema: &Value| {
        let name = schema.get("$ref")?.as_str()?.rsplit('/').next()?;
        generator.definitions().get(name).cloned()
    };
    for choice in schema.get_mut("anyOf").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(defined) = defined(choice) {
            *choice = defined;
        }
    }
    schema
}

/// Removes `null` from the schema of an optional parameter, because a query cannot express it.
fn without_null(mut schema: Value) -> Value {
    let Some(keywords) = schema.as_object_mut() else { return schema };
    if let Some(Value::Array(kinds)) = keywords.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [one] = &kinds[..] {
            let one = one.clone();
            keywords.insert("type".into(), one);
        }
    }
    if let Some(Value::Array(mut choices)) = keywords.remove("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        match (choices.len(), choices.pop()) {
            (1, Some(Value::Object(only))) => keywords.extend(only),
            (_, last) => {
                choices.extend(last);
                keywords.insert("anyOf".into(), choices.into());
            }
        }
    }
    schema
}
