//! Texts of results that were too long for their callers, in pages. Whoever made the call reads them, and nobody else.

use axum::extract::{Extension, State as Shared};
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::envelope::Target;
use steadfast_core::large_result::Reader;
use steadfast_gateway::{ReadError, ResultPage};
use steadfast_mcp::http::front::Principal;

use crate::access::{Caller, Who};
use crate::answer::json;
use crate::asked::{Asked, Named};
use crate::endpoint::Endpoint;
use crate::problem::Problem;
use crate::{Answered, State};

/// What callers ask for to read the whole of a result.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/results/{id}",
            "result",
            "Gives a page of the text of a result that was shortened",
            Who::Caller,
            result,
        )
        .asks::<ResultAsked>()
        .gives::<ResultView>("a page of it"),
    ]
}

/// Which page of a text is wanted.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultAsked {
    /// Where it begins, in bytes: `next` of the page before, or 0.
    #[schemars(range(max = 1073741824))]
    offset: Option<usize>,
}

/// A page of the text of a result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResultView {
    /// The name of the result.
    pub id: String,
    /// The bytes of the whole text.
    pub bytes: usize,
    /// Where this page begins, in bytes.
    pub offset: usize,
    /// What to ask for as `offset` next; nothing at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<usize>,
    /// When the text is dropped.
    pub expires_at_ms: Timestamp,
    /// The text of this page, as the tool gave it.
    pub text: String,
}

/// Who reads the result of a call with this target.
pub(crate) fn reader(target: &Target) -> Reader {
    Reader { tenant: target.tenant_id.clone(), actor: target.actor_id.clone() }
}

/// `GET /v1/results/{id}`.
async fn result(
    Shared(State(inner)): Shared<State>,
    caller: Extension<Caller>,
    Named(id): Named,
    Asked(asked): Asked<ResultAsked>,
) -> Answered {
    let may_read = |own: &Reader| match &*caller {
        Caller::Client(Principal { actor, tenant }) => own.actor == *actor && own.tenant == *tenant,
        // Who they call for stands in their envelopes, so all of these calls are theirs.
        Caller::Admin | Caller::Local => true,
        Caller::Viewer(_) | Caller::Stranger => false,
    };
    let now = inner.steadfast.engine().now();
    let read = inner.around.large_results.read(&id, may_read, asked.offset.unwrap_or(0), now);
    match read {
        Ok(ResultPage { text, offset, next, bytes, expires }) => {
            Ok(json(StatusCode::OK, &ResultView { id, bytes, offset, next, expires_at_ms: expires, text }))
        }
        Err(ReadError::NoPage(why)) => Err(Problem::bad_request(why.to_string())),
        Err(ReadError::NotKept) => {
            let why = "it was never yours, or is kept no longer; make the call again to get it anew";
            Err(Problem::no_such("result", &id).because(&why))
        }
    }
}
