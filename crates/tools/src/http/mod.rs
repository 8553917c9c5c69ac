//! A tool that is one HTTP request.

mod request;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use steadfast_config::{HttpMethod, HttpToolSettings, UrlTemplate};
use steadfast_core::classify::{AttemptFault, FaultSource, RetryAfter, TransportError};
use steadfast_core::envelope::write_baggage;
use steadfast_core::id::{Domain, ToolRef};
use steadfast_core::output::ToolOutput;
use steadfast_executor::{Attempt, AttemptError, ToolHandler, ToolResult};
use steadfast_json::RawJson;
use steadfast_mcp::http::encode_value;
use steadfast_mcp::http::upstream::{HttpOrigin, OriginRequest, OriginResponse, RequestProgress};
use tokio::time::Instant;

use self::request::{FilledRequest, fill};
use crate::output::{Secrets, content, excerpt};
use crate::problem::UnusableReason;

/// A tool that is one HTTP request. Clones share their connections. Its debug output has neither its headers nor its
/// path, which may be secret.
#[derive(Clone)]
pub struct HttpTool {
    parts: Arc<HttpParts>,
}

struct HttpParts {
    tool: ToolRef,
    domain: Option<Domain>,
    origin: HttpOrigin,
    method: HttpMethod,
    url: UrlTemplate,
    /// Headers of every request.
    headers: HeaderMap,
    secrets: Secrets,
}

impl HttpTool {
    pub(crate) fn new(
        tool: ToolRef,
        settings: &HttpToolSettings,
        origin: HttpOrigin,
    ) -> Result<Self, UnusableReason> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/plain;q=0.9, */*;q=0.8"));
        // Compressed responses are not supported.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // Some services refuse requests without a user agent.
        headers
            .insert(USER_AGENT, HeaderValue::from_static(concat!("steadfast/", env!("CARGO_PKG_VERSION"))));
        if has_body(settings.method) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for (name, value) in &settings.headers {
            let wrong = || UnusableReason::Header(name.clone());
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let parts = HttpParts {
            tool,
            domain: Domain::new(settings.url.host().to_ascii_lowercase()).ok(),
            origin,
            method: settings.method,
            url: settings.url.clone(),
            headers,
            secrets: Secrets::among(&settings.headers),
        };
        Ok(Self { parts: Arc::new(parts) })
    }

    /// Returns its name.
    pub fn tool(&self) -> &ToolRef {
        &self.parts.tool
    }

    /// Returns the host of its requests.
    pub fn domain(&self) -> Option<&Domain> {
        self.parts.domain.as_ref()
    }
}

impl fmt::Debug for HttpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTool")
            .field("tool", &self.parts.tool)
            .field("method", &self.parts.method)
            .field("url", &self.parts.url)
            .finish_non_exhaustive()
    }
}

impl ToolHandler for HttpTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let parts = Arc::clone(&self.parts);
        async move {
            let (begin, under_way) = (Instant::now(), RequestProgress::default());
            let request = parts.request(&attempt)?;
            tokio::select! {
                biased;
                replied = parts.origin.send(request, &under_way) => match replied {
                    Ok(replied) => parts.answer(&replied),
                    Err(failure) => Err(failure.fault().into()),
                },
                // Dropping the future drops the request and closes its connection.
                () = attempt.cancelled() => Err(cancelled_fault(begin, &under_way)),
            }
        }
    }
}

impl HttpParts {
    fn request(&self, attempt: &Attempt) -> Result<OriginRequest, AttemptFault> {
        let filled = fill(self.method, &self.url, attempt.params());
        let FilledRequest { target, body } = filled.map_err(request::ParameterError::fault)?;
        let mut headers = self.headers.clone();
        if !attempt.modes.is_pass_through() {
            headers.insert(IDEMPOTENCY_KEY, encode_value(attempt.idempotency_key()));
        }
        if let Some(trace) = attempt.traceparent.as_deref().and_then(|text| HeaderValue::from_str(text).ok())
        {
            headers.insert(TRACEPARENT, trace);
        }
        let baggage = write_baggage(&attempt.envelope.trace.baggage);
        if let Some(baggage) = baggage.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(BAGGAGE, baggage);
        }
        Ok(OriginRequest { method: method(self.method), target, headers, body: body.unwrap_or_default() })
    }

    fn answer(&self, replied: &OriginResponse) -> ToolResult {
        let OriginResponse { status, headers, body } = replied;
        if !status.is_success() {
            return Err(self.refusal(*status, headers, body).into());
        }
        let packed = text_of(headers, &CONTENT_ENCODING).filter(|packed| *packed != "identity");
        if let Some(packed) = packed {
            let message = format!("the response is compressed ({packed}), which was not requested");
            return Err(AttemptFault::new(FaultSource::BadAnswer, message).into());
        }
        // Only the status shows that a request was accepted but not completed yet.
        let metadata = RawJson::from_trusted(format!("{{\"status\":{}}}", status.as_u16()));
        Ok(ToolOutput { content: content(body), metadata: Some(metadata) })
    }

    /// Returns the fault for an unsuccessful response.
    fn refusal(&self, status: StatusCode, headers: &HeaderMap, body: &Bytes) -> AttemptFault {
        let text = |name: &HeaderName| text_of(headers, name);
        let number = status.as_u16();
        let body_text = excerpt(&String::from_utf8_lossy(body), &self.secrets);
        let message = if status.is_redirection() {
            let place = text(&LOCATION).map_or(String::new(), |place| format!(" to {}", shown(place)));
            format!("the server redirects{place} with the status {number}, and redirects are not followed")
        } else if body_text.starts_with('{') {
            // The core classifies such a body by its text.
            body_text
        } else {
            let reason = status.canonical_reason().map_or(String::new(), |reason| format!(" ({reason})"));
            let body_text = if body_text.is_empty() { body_text } else { format!(": {body_text}") };
            format!("the server answered with the status {number}{reason}{body_text}")
        };
        let retry_after = RetryAfter::from_headers(text(&RETRY_AFTER), text(&RETRY_AFTER_MS));
        AttemptFault { retry_after, ..AttemptFault::new(FaultSource::Http { status: number }, message) }
    }
}

/// Returns the fault of a cancelled attempt.
fn cancelled_fault(begin: Instant, under_way: &RequestProgress) -> AttemptError {
    let fault = if under_way.is_sent() {
        let source = FaultSource::Timeout { after: begin.elapsed() };
        AttemptFault::new(source, "the server had not responded when the request was cancelled")
    } else {
        let source = FaultSource::Transport { error: TransportError::TimedOut, written: false };
        AttemptFault::new(source, "there was no connection yet when the request was cancelled")
    };
    fault.into()
}

fn text_of<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the target of a redirect without parts that may be secret.
fn shown(place: &str) -> String {
    let uri = place.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.host()?)));
    host.map_or_else(|| "another path".to_owned(), |(scheme, host)| format!("{scheme}://{host}"))
}

fn has_body(method: HttpMethod) -> bool {
    match method {
        HttpMethod::Post | HttpMethod::Put | HttpMethod::Patch => true,
        HttpMethod::Get | HttpMethod::Head | HttpMethod::Delete => false,
    }
}

fn method(method: HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Head => Method::HEAD,
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Delete => Method::DELETE,
    }
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
