//! The whole texts of large results, in pages. Only the caller that made the call can read them.

use axum::extract::{Extension, State as Shared};
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::envelope::CallerIdentity;
use steadfast_core::large_result::ResultReader;
use steadfast_gateway::{ResultPage, ResultReadError};
use steadfast_mcp::http::server::Principal;

use crate::access::{Permission, Requester};
use crate::encoding::json;
use crate::endpoint::Endpoint;
use crate::extractors::{PathParam, QueryParams};
use crate::problem::ApiProblem;
use crate::{HandlerResult, State};

/// The endpoints for large results.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/results/{id}",
            "result",
            "Returns a page of the text of a shortened result",
            Permission::Caller,
            result,
        )
        .takes_query::<ResultQuery>()
        .gives::<ResultView>("a page of it"),
    ]
}

/// Query parameters of a page.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultQuery {
    /// The offset of the page, in bytes: `next` of the previous page. The default is 0.
    #[schemars(range(max = 1073741824))]
    offset: Option<usize>,
}

/// A page of the text of a result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResultView {
    /// The id of the result.
    pub id: String,
    /// The size of the whole text, in bytes.
    pub bytes: usize,
    /// The offset of this page, in bytes.
    pub offset: usize,
    /// The `offset` of the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<usize>,
    /// Time at which the text is dropped.
    pub expires_at_ms: Timestamp,
    /// The text of this page, as the tool returned it.
    pub text: String,
}

/// Returns the reader of the result of a call with this target.
pub(crate) fn reader(target: &CallerIdentity) -> ResultReader {
    ResultReader { tenant: target.tenant_id.clone(), actor: target.actor_id.clone() }
}

/// `GET /v1/results/{id}`.
async fn result(
    Shared(State(inner)): Shared<State>,
    caller: Extension<Requester>,
    PathParam(id): PathParam,
    QueryParams(query): QueryParams<ResultQuery>,
) -> HandlerResult {
    let may_read = |own: &ResultReader| match &*caller {
        Requester::Client(Principal { actor, tenant }) => own.actor == *actor && own.tenant == *tenant,
        // They choose the actor of each envelope, so they may read the results of all actors.
        Requester::Admin | Requester::Local => true,
        Requester::Viewer(_) | Requester::Unauthenticated => false,
    };
    let now = inner.steadfast.engine().now();
    let read = inner.gateway.large_results.read(&id, may_read, query.offset.unwrap_or(0), now);
    match read {
        Ok(ResultPage { text, offset, next, bytes, expires }) => {
            Ok(json(StatusCode::OK, &ResultView { id, bytes, offset, next, expires_at_ms: expires, text }))
        }
        Err(ResultReadError::NoPage(reason)) => Err(ApiProblem::bad_request(reason.to_string())),
        Err(ResultReadError::NotKept) => {
            let reason = "it belongs to another caller or has expired; make the call again";
            Err(ApiProblem::no_such("result", &id).because(&reason))
        }
    }
}
