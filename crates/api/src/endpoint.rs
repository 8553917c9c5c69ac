//! What can be asked for, one row for each: who may, what goes in, what comes out. The router and the OpenAPI document are
//! both made of these rows, so that neither knows something that the other does not.

use std::collections::BTreeSet;

use axum::handler::Handler;
use axum::routing::{MethodRouter, delete, get, post, put};
use http::{Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use steadfast_core::code::Code;

use crate::State;
use crate::access::Who;
use crate::problem::Wrong;

/// One row.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// With `{name}` for what is put in.
    pub(crate) path: &'static str,
    /// What it is called in the document.
    pub(crate) name: &'static str,
    /// What it is for, in a sentence.
    pub(crate) what: &'static str,
    pub(crate) who: Who,
    /// The fields behind the `?`: an object.
    pub(crate) query: Option<Shape>,
    /// What stands in its path.
    pub(crate) named: Shape,
    /// Headers that it heeds, what they mean, and what may stand in them.
    pub(crate) headers: Vec<(&'static str, &'static str, Shape)>,
    /// What the body must be.
    pub(crate) takes: Option<Shape>,
    pub(crate) gives: Vec<Gives>,
    pub(crate) route: MethodRouter<State>,
}

/// Makes the schema of a type.
pub(crate) type Shape = fn(&mut SchemaGenerator) -> Schema;

/// One answer that can come.
#[derive(Clone, Copy)]
pub(crate) struct Gives {
    pub(crate) status: StatusCode,
    pub(crate) when: &'static str,
    pub(crate) content: Content,
}

/// What is in an answer.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    Json(Shape),
    /// Text of this media type.
    Text(&'static str),
}

fn shape<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Endpoint {
    /// What is asked for by this method at this path.
    pub(crate) fn new<T: 'static>(
        method: Method,
        path: &'static str,
        name: &'static str,
        what: &'static str,
        who: Who,
        handler: impl Handler<T, State>,
    ) -> Self {
        let route = match method {
            Method::POST => post(handler),
            Method::PUT => put(handler),
            Method::DELETE => delete(handler),
            _ => get(handler),
        };
        let mut gives = vec![
            wrong(StatusCode::BAD_REQUEST, "the request cannot be understood"),
            wrong(StatusCode::FORBIDDEN, "asked from a page or under a name that is not ours"),
        ];
        if who != Who::Anyone {
            gives.push(wrong(StatusCode::UNAUTHORIZED, "a token is needed"));
        }
        if path.contains('{') {
            gives.push(wrong(StatusCode::NOT_FOUND, "there is no such thing"));
        }
        let named = shape::<String>;
        Self {
            method,
            path,
            name,
            what,
            who,
            query: None,
            named,
            headers: Vec::new(),
            takes: None,
            gives,
            route,
        }
    }

    /// What must stand in its path; anything else is malformed, rather than not there.
    pub(crate) fn names<T: JsonSchema>(mut self) -> Self {
        self.named = shape::<T>;
        self
    }

    /// The fields behind its `?`.
    pub(crate) fn asks<T: JsonSchema>(mut self) -> Self {
        self.query = Some(shape::<T>);
        self
    }

    /// A header that it heeds, whatever stands in it.
    pub(crate) fn heeds(self, header: &'static str, what: &'static str) -> Self {
        self.heeds_only::<String>(header, what)
    }

    /// A header that it heeds, and in which only this may stand.
    pub(crate) fn heeds_only<T: JsonSchema>(mut self, header: &'static str, what: &'static str) -> Self {
        self.headers.push((header, what, shape::<T>));
        self
    }

    /// What its body must be.
    pub(crate) fn takes<T: JsonSchema>(mut self) -> Self {
        self.takes = Some(shape::<T>);
        self.gives.push(wrong(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long"));
        self.gives.push(wrong(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body has a `Content-Encoding`"));
        self.gives.push(wrong(StatusCode::REQUEST_TIMEOUT, "the body does not end"));
        self
    }

    /// It is well formed, and contradicts itself in a way that no schema can say.
    pub(crate) fn or_contradiction(mut self, when: &'static str) -> Self {
        self.gives.push(wrong(StatusCode::UNPROCESSABLE_ENTITY, when));
        self
    }

    /// It cannot be done as things stand.
    pub(crate) fn or_conflict(mut self) -> Self {
        self.gives.push(wrong(StatusCode::CONFLICT, "it cannot be done as things stand"));
        self
    }

    /// There is too much to do already.
    pub(crate) fn or_overloaded(mut self) -> Self {
        self.gives.push(wrong(StatusCode::TOO_MANY_REQUESTS, "as many of them are under way as may be"));
        self
    }

    /// It cannot be done at all for now.
    pub(crate) fn or_unavailable(mut self) -> Self {
        self.gives.push(wrong(StatusCode::SERVICE_UNAVAILABLE, "it cannot be done for now"));
        self
    }

    /// The answer when all is well.
    pub(crate) fn gives<T: JsonSchema>(self, when: &'static str) -> Self {
        self.also(StatusCode::OK, when, Content::Json(shape::<T>))
    }

    /// What a call came to, with the status that goes with it.
    pub(crate) fn gives_what_came_of_a_call<T: JsonSchema>(self) -> Self {
        let statuses: BTreeSet<u16> = Code::ALL.iter().map(|code| code.http_status()).collect();
        let statuses = statuses.into_iter().filter_map(|status| StatusCode::from_u16(status).ok());
        statuses.fold(self.gives::<T>("the call succeeded, or its tool said no"), |endpoint, status| {
            match status {
                StatusCode::OK => endpoint,
                status => endpoint.also(
                    status,
                    "the call did not succeed: `error.code` says why",
                    Content::Json(shape::<T>),
                ),
            }
        })
    }

    /// The same as text.
    pub(crate) fn gives_text(self, when: &'static str, kind: &'static str) -> Self {
        self.also(StatusCode::OK, when, Content::Text(kind))
    }

    /// The store is asked for it, and may not answer.
    pub(crate) fn reads_the_store(self) -> Self {
        self.also(StatusCode::SERVICE_UNAVAILABLE, "the store does not answer", Content::Json(shape::<Wrong>))
    }

    /// Another answer.
    pub(crate) fn also(mut self, status: StatusCode, when: &'static str, content: Content) -> Self {
        self.gives.push(Gives { status, when, content });
        self
    }
}

fn wrong(status: StatusCode, when: &'static str) -> Gives {
    Gives { status, when, content: Content::Json(shape::<Wrong>) }
}
