//! Endpoint descriptions: permission, parameters, body and responses of each endpoint. The router and the OpenAPI
//! document are both made from them, so that they always agree.

use std::collections::BTreeSet;

use axum::handler::Handler;
use axum::routing::{MethodRouter, delete, get, post, put};
use http::{Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use steadfast_core::code::Code;

use crate::State;
use crate::access::Permission;
use crate::problem::ErrorResponse;

/// The description of one endpoint.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// The path, with `{name}` for a parameter.
    pub(crate) path: &'static str,
    /// The operation id in the OpenAPI document.
    pub(crate) name: &'static str,
    /// The summary, in one sentence.
    pub(crate) summary: &'static str,
    pub(crate) permission: Permission,
    /// The query parameters, as an object.
    pub(crate) query: Option<SchemaFn>,
    /// The schema of the path parameter.
    pub(crate) named: SchemaFn,
    /// The headers that it reads: name, description and schema.
    pub(crate) headers: Vec<(&'static str, &'static str, SchemaFn)>,
    /// The schema of the body.
    pub(crate) takes: Option<SchemaFn>,
    pub(crate) gives: Vec<ResponseSpec>,
    pub(crate) route: MethodRouter<State>,
}

/// A function that makes the schema of a type.
pub(crate) type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

/// A possible response.
#[derive(Clone, Copy)]
pub(crate) struct ResponseSpec {
    pub(crate) status: StatusCode,
    pub(crate) when: &'static str,
    pub(crate) content: ResponseContent,
}

/// The content of a response.
#[derive(Clone, Copy)]
pub(crate) enum ResponseContent {
    Json(SchemaFn),
    /// Text of this media type.
    Text(&'static str),
}

fn shape<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Endpoint {
    /// Creates an endpoint for a method and a path.
    pub(crate) fn new<T: 'static>(
        method: Method,
        path: &'static str,
        name: &'static str,
        summary: &'static str,
        permission: Permission,
        handler: impl Handler<T, State>,
    ) -> Self {
        let route = match method {
            Method::POST => post(handler),
            Method::PUT => put(handler),
            Method::DELETE => delete(handler),
            _ => get(handler),
        };
        let mut gives = vec![
            wrong(StatusCode::BAD_REQUEST, "the request is malformed"),
            wrong(StatusCode::FORBIDDEN, "the origin, the host name or the token does not allow the request"),
        ];
        if permission != Permission::Anyone {
            gives.push(wrong(StatusCode::UNAUTHORIZED, "a token is required"));
        }
        if path.contains('{') {
            gives.push(wrong(StatusCode::NOT_FOUND, "not found"));
        }
        let named = shape::<String>;
        Self {
            method,
            path,
            name,
            summary,
            permission,
            query: None,
            named,
            headers: Vec::new(),
            takes: None,
            gives,
            route,
        }
    }

    /// Sets the schema of the path parameter. Any other value is malformed, rather than not found.
    pub(crate) fn names<T: JsonSchema>(mut self) -> Self {
        self.named = shape::<T>;
        self
    }

    /// Sets the query parameters.
    pub(crate) fn takes_query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(shape::<T>);
        self
    }

    /// Adds a header with any value.
    pub(crate) fn reads_header(self, header: &'static str, description: &'static str) -> Self {
        self.reads_header_as::<String>(header, description)
    }

    /// Adds a header with this schema.
    pub(crate) fn reads_header_as<T: JsonSchema>(
        mut self,
        header: &'static str,
        description: &'static str,
    ) -> Self {
        self.headers.push((header, description, shape::<T>));
        self
    }

    /// Sets the schema of the body.
    pub(crate) fn takes<T: JsonSchema>(mut self) -> Self {
        self.takes = Some(shape::<T>);
        self.gives.push(wrong(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"));
        self.gives.push(wrong(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body has a `Content-Encoding`"));
        self.gives.push(wrong(StatusCode::REQUEST_TIMEOUT, "the body did not end in time"));
        self
    }

    /// Adds the response for a request that contradicts itself in a way that no schema can express.
    pub(crate) fn or_contradiction(mut self, when: &'static str) -> Self {
        self.gives.push(wrong(StatusCode::UNPROCESSABLE_ENTITY, when));
        self
    }

    /// Adds the response for a conflict with the current state.
    pub(crate) fn or_conflict(mut self) -> Self {
        self.gives.push(wrong(StatusCode::CONFLICT, "the current state does not allow it"));
        self
    }

    /// Adds the response for too many requests.
    pub(crate) fn or_overloaded(mut self) -> Self {
        self.gives.push(wrong(StatusCode::TOO_MANY_REQUESTS, "the concurrency limit is reached"));
        self
    }

    /// Adds the response for a request that cannot be handled at the moment.
    pub(crate) fn or_unavailable(mut self) -> Self {
        self.gives.push(wrong(StatusCode::SERVICE_UNAVAILABLE, "temporarily unavailable"));
        self
    }

    /// Adds the successful response.
    pub(crate) fn gives<T: JsonSchema>(self, when: &'static str) -> Self {
        self.also(StatusCode::OK, when, ResponseContent::Json(shape::<T>))
    }

    /// Adds the result of a call, with each status that it can have.
    pub(crate) fn gives_call_result<T: JsonSchema>(self) -> Self {
        let statuses: BTreeSet<u16> = Code::ALL.iter().map(|code| code.http_status()).collect();
        let statuses = statuses.into_iter().filter_map(|status| StatusCode::from_u16(status).ok());
        statuses.fold(
            self.gives::<T>("the call succeeded, or its tool returned an error"),
            |endpoint, status| match status {
                StatusCode::OK => endpoint,
                status => endpoint.also(
                    status,
                    "the call did not succeed: `error.code` is the reason",
                    ResponseContent::Json(shape::<T>),
                ),
            },
        )
    }

    /// Adds a successful text response.
    pub(crate) fn gives_text(self, when: &'static str, kind: &'static str) -> Self {
        self.also(StatusCode::OK, when, ResponseContent::Text(kind))
    }

    /// Adds the response for an unavailable store.
    pub(crate) fn reads_the_store(self) -> Self {
        self.also(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store does not answer",
            ResponseContent::Json(shape::<ErrorResponse>),
        )
    }

    /// Adds a response.
    pub(crate) fn also(mut self, status: StatusCode, when: &'static str, content: ResponseContent) -> Self {
        self.gives.push(ResponseSpec { status, when, content });
        self
    }
}

fn wrong(status: StatusCode, when: &'static str) -> ResponseSpec {
    ResponseSpec { status, when, content: ResponseContent::Json(shape::<ErrorResponse>) }
}
