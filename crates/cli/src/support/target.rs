//! Connects the operator commands to a running gateway, or to the store if no gateway runs.
//!
//! Both accept the same requests, those of the HTTP API. Without a gateway, the API is opened in this process on the
//! store for the time of one command. So there is one request path, and `--json` prints the same as the API returns.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use steadfast::admin::{CallFacts, Recording};
use steadfast::call::redact::Redacted;
use steadfast::config::{Config, StartupPlan, StoreKind};
use steadfast::telemetry::LogOutput;
use steadfast::{Steadfast, Timestamp};
use steadfast_api::{AccessRules, AdminToken, Api};
use steadfast_mcp::http::upstream::{
    HttpOrigin, HttpUpstreamSettings, OriginRequest, RequestProgress, SseStream,
};

use crate::support::admin_token;
use crate::support::failure::CommandFailure;
use crate::support::gateways::{self, AnnouncedGateway};
use crate::support::output;
use crate::support::setup::{by_operator, runtime};
use crate::support::sources::ConfigFileOptions;

/// Connection and output options of the operator commands.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectionOptions {
    #[command(flatten)]
    pub(crate) chosen: ConfigFileOptions,
    /// The gateway to use, if several run or it is remote: ADDRESS:PORT or a URL. `none` uses the store directly.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gateway: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPurpose {
    /// Read or change existing state. State that does not exist is not created.
    ExistingState,
    /// Set something that applies to future calls. State is created if necessary.
    FutureCalls,
}

/// A connection to a gateway or to the store.
pub(crate) struct OperatorConnection {
    target: ConnectionTarget,
    /// Other gateways that run on the same state, or announce it.
    pub(crate) others: Vec<Arc<RunningGateway>>,
    /// Other gateways on this machine that do not respond.
    pub(crate) silent: Vec<RunningGateway>,
    /// Description of the store.
    pub(crate) store: String,
    /// True if there is no state yet and none was created.
    pub(crate) is_unused: bool,
}

enum ConnectionTarget {
    Gateway(Arc<RunningGateway>),
    Store(Box<LocalApi>),
}

/// A running gateway.
pub(crate) struct RunningGateway {
    /// Contents of its announcement file. A gateway that was named on the command line may have none.
    pub(crate) announced: Option<AnnouncedGateway>,
    pub(crate) name: String,
    origin: HttpOrigin,
    token: Option<Redacted<String>>,
}

/// A store that this process opened.
struct LocalApi {
    steadfast: Steadfast,
    api: Api,
    token: String,
}

/// A request to the HTTP API.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    method: Method,
    target: String,
    body: Option<Value>,
}

impl ApiRequest {
    pub(crate) fn get(path: &str) -> Self {
        Self { method: Method::GET, target: path.to_owned(), body: None }
    }

    pub(crate) fn delete(path: &str) -> Self {
        Self { method: Method::DELETE, target: path.to_owned(), body: None }
    }

    pub(crate) fn post(path: &str, body: Option<Value>) -> Self {
        Self { method: Method::POST, target: path.to_owned(), body }
    }

    /// Adds a query parameter, if it has a value.
    pub(crate) fn with(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            let sign = if self.target.contains('?') { '&' } else { '?' };
            self.target.push(sign);
            self.target.push_str(&format!("{name}={}", encoded(value)));
        }
        self
    }
}

/// Percent-encodes text as one part of a path or query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let letter = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(letter).collect()
}

/// Reason for which a request failed.
#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// An error response.
    Answer { status: StatusCode, message: String },
    /// No response.
    NoResponse(String),
}

impl RequestError {
    pub(crate) fn is(&self, expected: StatusCode) -> bool {
        matches!(self, Self::Answer { status, .. } if *status == expected)
    }

    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Answer { message, .. } | Self::NoResponse(message) => message,
        }
    }
}

impl From<RequestError> for CommandFailure {
    fn from(refused: RequestError) -> Self {
        match refused {
            RequestError::Answer { status: StatusCode::BAD_REQUEST, message } => Self::Usage(message),
            RequestError::Answer { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, message } => {
                Self::Environment(format!(
                    "{message}\nset {} to the token of that gateway, or use the store directly with `--gateway none`",
                    admin_token::VARIABLE
                ))
            }
            RequestError::Answer { message, .. } | RequestError::NoResponse(message) => {
                Self::Environment(message)
            }
        }
    }
}

/// Runs an action with a connection.
pub(crate) fn with<T>(
    connection: &ConnectionOptions,
    need: ConnectionPurpose,
    work: impl AsyncFnOnce(&OperatorConnection) -> Result<T, CommandFailure>,
) -> Result<T, CommandFailure> {
    runtime()?.block_on(async {
        let reach = OperatorConnection::find(connection, need).await?;
        let done = work(&reach).await;
        reach.close().await;
        done
    })
}

/// Returns true if a gateway can be reached now that was not there before.
pub(crate) fn is_gateway_running(connection: &ConnectionOptions) -> bool {
    let folder = connection.chosen.load().ok().as_ref().and_then(gateways::folder);
    connection.gateway.is_none() && folder.is_some_and(|folder| !gateways::running(&folder).is_empty())
}

impl OperatorConnection {
    /// Connects to the gateway that was named, to the youngest that runs, or to the store.
    pub(crate) async fn find(
        connection: &ConnectionOptions,
        need: ConnectionPurpose,
    ) -> Result<Self, CommandFailure> {
        let config = connection.chosen.load()?;
        let folder = gateways::folder(&config);
        let running = folder.as_deref().map(gateways::running).unwrap_or_default();
        for reason in folder.as_deref().map(gateways::distrusted).unwrap_or_default() {
            output::print_message(&format!("note: a gateway may run here: {reason}"));
        }
        match connection.gateway.as_deref() {
            Some("none") => Self::open_store(connection, &config, need).await,
            Some(named) => {
                let gateway = RunningGateway::named(named, &config, running)?;
                let store =
                    gateway.announced.as_ref().map_or("its own", |announced| &announced.store).to_owned();
                Ok(Self {
                    target: ConnectionTarget::Gateway(Arc::new(gateway)),
                    others: Vec::new(),
                    silent: Vec::new(),
                    store,
                    is_unused: false,
                })
            }
            None => Self::of_running(connection, &config, need, running).await,
        }
    }

    async fn of_running(
        connection: &ConnectionOptions,
        config: &Config,
        need: ConnectionPurpose,
        running: Vec<AnnouncedGateway>,
    ) -> Result<Self, CommandFailure> {
        let token = admin_token::find(config);
        let (mut answering, mut silent) = (Vec::new(), Vec::new());
        for announced in running {
            let gateway = RunningGateway::announced(announced, token.clone())?;
            match output::wait_with_spinner(
                &format!("asking the gateway at {}", gateway.name),
                gateway.is_responding(),
            )
            .await
            {
                true => answering.push(Arc::new(gateway)),
                false => {
                    output::print_message(&format!("note: the gateway at {} does not answer", gateway.name));
                    silent.push(gateway);
                }
            }
        }
        let mut answering = answering.into_iter();
        let Some(first) = answering.next() else {
            // No state is created for an action that will not be done.
            let need = if silent.is_empty() { need } else { ConnectionPurpose::ExistingState };
            return Ok(Self { silent, ..Self::open_store(connection, config, need).await? });
        };
        let others: Vec<_> = answering.collect();
        let store = first.store().to_owned();
        if others.iter().any(|other| other.store() != store) {
            let names: Vec<_> = std::iter::once(&first)
                .chain(&others)
                .map(|gateway| format!("{} ({})", gateway.name, gateway.store()))
                .collect();
            return Err(CommandFailure::Usage(format!(
                "several gateways run here, each with its own state: choose one with --gateway: {}",
                names.join(", ")
            )));
        }
        Ok(Self { target: ConnectionTarget::Gateway(first), others, silent, store, is_unused: false })
    }

    /// Opens the store.
    async fn open_store(
        connection: &ConnectionOptions,
        config: &Config,
        need: ConnectionPurpose,
    ) -> Result<Self, CommandFailure> {
        let plan = StartupPlan::of(config)?;
        if !plan.is_shared() {
            return Err(CommandFailure::Usage(
                "no gateway responds here, and the configuration keeps state in the memory of the gateway, where other processes cannot read it: start it with --listen, or set `store.kind` to \"sqlite\" or \"redis\""
                    .to_owned(),
            ));
        }
        let settings = &config.global().store;
        let is_there =
            settings.kind != StoreKind::Sqlite || settings.path.as_deref().is_none_or(Path::exists);
        let is_unused = !is_there && need == ConnectionPurpose::ExistingState;
        let mut opening = Steadfast::builder()
            .sources(connection.chosen.sources())
            .logging(LogOutput::Disabled)
            .maintenance_only();
        if is_unused {
            opening = opening.set("store.kind", "memory");
        }
        let steadfast = output::wait_with_spinner("opening the store", opening.build()).await?;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            CommandFailure::Environment(format!("no random numbers are available: {error}"))
        })?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let access = AccessRules { admin: AdminToken::new(&token), ..AccessRules::default() };
        let api = Api::new(steadfast.clone(), access);
        let local_api = Box::new(LocalApi { steadfast, api, token });
        let (others, silent) = (Vec::new(), Vec::new());
        Ok(Self {
            target: ConnectionTarget::Store(local_api),
            others,
            silent,
            store: plan.store(),
            is_unused,
        })
    }

    /// Returns the connected gateway, if there is one.
    pub(crate) fn gateway(&self) -> Option<&Arc<RunningGateway>> {
        match &self.target {
            ConnectionTarget::Gateway(gateway) => Some(gateway),
            ConnectionTarget::Store(_) => None,
        }
    }

    /// Returns true if the connection is to a store that exists.
    pub(crate) fn is_store(&self) -> bool {
        self.gateway().is_none() && !self.is_unused
    }

    /// Sends a request and returns the response.
    pub(crate) async fn send(&self, ask: ApiRequest) -> Result<Value, RequestError> {
        if let Some(passed_over) = self.unresponsive_gateway().filter(|_| ask.method != Method::GET) {
            return Err(RequestError::NoResponse(format!(
                "nothing was changed: a gateway runs at {} and does not answer; try again, select a gateway with `--gateway ADDRESS`, or use the store directly with `--gateway none`",
                passed_over.name
            )));
        }
        match &self.target {
            ConnectionTarget::Gateway(gateway) => gateway.ask(ask).await,
            ConnectionTarget::Store(local_api) => {
                output::wait_with_spinner("reading the store", local_api.ask(ask)).await
            }
        }
    }

    /// Returns the calls that ended and arrived since then, in order of arrival.
    pub(crate) async fn recording(&self, since: Timestamp) -> Result<Recording, CommandFailure> {
        match &self.target {
            ConnectionTarget::Store(local_api) => {
                let reading = Recording::read(&**local_api.steadfast.store(), since, usize::MAX);
                let read = output::wait_with_spinner("reading the history", reading).await;
                read.map_err(|error| {
                    CommandFailure::Environment(format!("the history cannot be read: {error}"))
                })
            }
            ConnectionTarget::Gateway(_) => {
                let since = since.as_millis().to_string();
                let ask = ApiRequest::get("/v1/history").with("since", Some(&since));
                let mut answer = self.fetch_all(ask).await?;
                let calls = match answer.get_mut("calls").map(Value::take) {
                    Some(Value::Array(calls)) => calls,
                    Some(_) | None => Vec::new(),
                };
                let total = calls.len();
                let facts: Vec<CallFacts> =
                    calls.into_iter().filter_map(|call| serde_json::from_value(call).ok()).collect();
                let recording = Recording::of(facts);
                Ok(Recording { unreadable: total - recording.facts.len(), ..recording })
            }
        }
    }

    /// Requests a whole list, page by page. Returns it as one response.
    pub(crate) async fn fetch_all(&self, ask: ApiRequest) -> Result<Value, RequestError> {
        let ask = ask.with("limit", Some(PAGE));
        let mut whole = self.send(ask.clone()).await?;
        while let Some(next) = whole.get("next").and_then(Value::as_str) {
            let page = self.send(ask.clone().with("after", Some(next))).await?;
            add_page(&mut whole, page);
        }
        Ok(whole)
    }

    /// Returns the tenants to list: this one, or no tenant and then every known tenant.
    pub(crate) async fn tenants(&self, only: Option<&str>) -> Result<TenantNames, RequestError> {
        match only {
            Some(tenant) => Ok(vec![Some(tenant.to_owned())]),
            None => Ok(tenants_of(&self.send(ApiRequest::get("/v1/status")).await?)),
        }
    }

    /// Requests a list that the API returns for one tenant at a time. Returns one response in which each row names its
    /// tenant.
    pub(crate) async fn fetch_for_tenants(
        &self,
        ask: ApiRequest,
        tenants: &TenantNames,
    ) -> Result<Value, RequestError> {
        let mut whole = None;
        for tenant in tenants {
            let mut part = self.fetch_all(ask.clone().with("tenant", tenant.as_deref())).await?;
            if let Some(tenant) = tenant {
                name_tenant(&mut part, tenant);
            }
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => add_page(whole, part),
            }
        }
        Ok(whole.unwrap_or_default())
    }

    /// Returns a gateway that may be the intended one but does not respond.
    fn unresponsive_gateway(&self) -> Option<&RunningGateway> {
        let is_another =
            |gateway: &&RunningGateway| self.gateway().is_none() || gateway.store() != self.store;
        self.silent.iter().find(is_another)
    }

    /// Closes the connection, after pending writes.
    pub(crate) async fn close(self) {
        if let ConnectionTarget::Store(local_api) = self.target {
            local_api.steadfast.shutdown(Duration::ZERO).await;
        }
    }
}

/// Maximum number of rows in one response.
pub(crate) const PAGE: &str = "1000";

/// Tenants by name. `None` stands for the calls of no tenant.
pub(crate) type TenantNames = Vec<Option<String>>;

/// Maximum number of tenants. Each needs a request of its own.
const MOST_TENANTS: usize = 1000;

/// Returns the tenants in a status response, after the calls of no tenant.
pub(crate) fn tenants_of(status: &Value) -> TenantNames {
    let named = status.get("tenants").and_then(Value::as_array).into_iter().flatten();
    let named = named.filter_map(Value::as_str).take(MOST_TENANTS).map(|name| Some(name.to_owned()));
    std::iter::once(None).chain(named).collect()
}

/// Writes the tenant into each row of a response.
fn name_tenant(answer: &mut Value, tenant: &str) {
    let lists = answer.as_object_mut().into_iter().flat_map(|answer| answer.values_mut());
    for row in lists.filter_map(Value::as_array_mut).flatten().filter_map(Value::as_object_mut) {
        row.insert("tenant".to_owned(), tenant.into());
    }
}

/// Appends the rows and the cursor of the next page.
pub(crate) fn add_page(whole: &mut Value, page: Value) {
    let (Some(whole), Value::Object(page)) = (whole.as_object_mut(), page) else { return };
    // A page without a cursor is the last one.
    whole.insert("next".to_owned(), Value::Null);
    for (name, value) in page {
        match (whole.get_mut(&name), value) {
            (Some(Value::Array(rows)), Value::Array(more)) => rows.extend(more),
            (_, value) => {
                whole.insert(name, value);
            }
        }
    }
}

/// Timeout for the greeting and the responses of a gateway. A gateway responds at once unless the machine is busy.
/// State must not be changed beside a gateway that was only slow.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

impl RunningGateway {
    fn announced(
        announced: AnnouncedGateway,
        token: Option<Redacted<String>>,
    ) -> Result<Self, CommandFailure> {
        let name = announced.near().to_string();
        let origin = origin(&format!("http://{name}"))?;
        Ok(Self { announced: Some(announced), name, origin, token })
    }

    /// Returns the gateway with this name. The local admin token is used only for gateways that are known to run here:
    /// any process may own the port of another, or forward what it receives.
    fn named(named: &str, config: &Config, running: Vec<AnnouncedGateway>) -> Result<Self, CommandFailure> {
        let url = if named.contains("://") { named.to_owned() } else { format!("http://{named}") };
        let uri: Uri = url.parse().map_err(|_| {
            CommandFailure::Usage(format!(
                "`--gateway {named}` is not a valid address: write 127.0.0.1:8080, a URL, or none"
            ))
        })?;
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let announced = running.into_iter().find(|announced| {
            let (near, address) = (announced.near(), announced.address);
            let by_name = near.ip().is_loopback().then(|| format!("localhost:{}", near.port()));
            let is_named = [Some(near.to_string()), Some(address.to_string()), by_name]
                .contains(&Some(authority.to_ascii_lowercase()));
            uri.scheme_str() == Some("http") && is_named
        });
        match announced {
            // Uses the address from its own announcement, because a name may lead to another process.
            Some(announced) => Self::announced(announced, admin_token::find(config)),
            None => Ok(Self {
                announced: None,
                name: authority,
                origin: origin(&url)?,
                token: admin_token::given(),
            }),
        }
    }

    pub(crate) fn store(&self) -> &str {
        self.announced.as_ref().map_or("", |announced| &announced.store)
    }

    /// Returns true if the gateway responds. Sends no secret.
    async fn is_responding(&self) -> bool {
        if self.announced.as_ref().is_some_and(AnnouncedGateway::is_stopped) {
            return false;
        }
        let request = OriginRequest {
            method: Method::GET,
            target: Uri::from_static("/healthz"),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        };
        let reply =
            tokio::time::timeout(GREETING_TIMEOUT, self.origin.send(request, &RequestProgress::default()))
                .await;
        matches!(reply, Ok(Ok(replied)) if replied.status.is_success())
    }

    pub(crate) async fn ask(&self, ask: ApiRequest) -> Result<Value, RequestError> {
        let mut request = self.build_request(ask)?;
        let is_read = request.method == Method::GET;
        match self.exchange(request.clone()).await {
            // A gateway with another token may still allow reads from its own machine, but not with a wrong token.
            Err(refused) if is_read && self.token.is_some() && refused.is(StatusCode::UNAUTHORIZED) => {
                request.headers.remove(AUTHORIZATION);
                self.exchange(request).await
            }
            done => done,
        }
    }

    async fn exchange(&self, request: OriginRequest) -> Result<Value, RequestError> {
        let under_way = RequestProgress::default();
        let waiting = tokio::time::timeout(RESPONSE_TIMEOUT, self.origin.send(request, &under_way));
        let replied =
            output::wait_with_spinner(&format!("asking the gateway at {}", self.name), waiting).await;
        let silent = |reason: String| {
            RequestError::NoResponse(format!("the gateway at {} does not answer: {reason}", self.name))
        };
        match replied {
            Err(_) => Err(silent(format!("nothing for {} seconds", RESPONSE_TIMEOUT.as_secs()))),
            Ok(Err(failure)) => Err(silent(failure.fault().message)),
            Ok(Ok(replied)) => read(replied.status, &replied.body),
        }
    }

    /// Returns events as they happen, starting after the event with this id.
    pub(crate) async fn events(
        &self,
        ask: ApiRequest,
        after: Option<&str>,
    ) -> Result<SseStream, RequestError> {
        let mut request = self.build_request(ask)?;
        request.headers.insert(http::header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(after) = after.and_then(|after| HeaderValue::from_str(after).ok()) {
            request.headers.insert("last-event-id", after);
        }
        match self.origin.follow(request).await {
            Err(failure) => Err(RequestError::NoResponse(failure.fault().message)),
            Ok(Err(replied)) => Err(match read(replied.status, &replied.body) {
                Err(refused) => refused,
                Ok(_) => RequestError::NoResponse("the response is not an event stream".to_owned()),
            }),
            Ok(Ok(flow)) => Ok(flow),
        }
    }

    fn build_request(&self, ask: ApiRequest) -> Result<OriginRequest, RequestError> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, bearer(token.expose())?);
        }
        if let Ok(name) = HeaderValue::from_str(&by_operator().name) {
            headers.insert("x-operator", name);
        }
        headers.insert("steadfast-surface", HeaderValue::from_static("cli"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let target = ask.target.parse().map_err(|_| invalid_target(&ask.target))?;
        let body = ask.body.map(|body| body.to_string().into()).unwrap_or_default();
        Ok(OriginRequest { method: ask.method, target, headers, body })
    }
}

fn origin(url: &str) -> Result<HttpOrigin, CommandFailure> {
    HttpOrigin::new(url, HttpUpstreamSettings::default())
        .map_err(|error| CommandFailure::Usage(format!("`--gateway {url}` is not a valid address: {error}")))
}

impl LocalApi {
    async fn ask(&self, ask: ApiRequest) -> Result<Value, RequestError> {
        let body = ask.body.map(|body| body.to_string()).unwrap_or_default();
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = ask.method;
        *request.uri_mut() = ask.target.parse().map_err(|_| invalid_target(&ask.target))?;
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        request.headers_mut().insert(AUTHORIZATION, bearer(&self.token)?);
        request.extensions_mut().insert(by_operator());
        let response = self.api.respond(request).await;
        let status = response.status();
        let body = response.into_body().collect().await;
        let body =
            body.map_err(|error| RequestError::NoResponse(format!("the response ended early: {error}")))?;
        read(status, &body.to_bytes())
    }
}

fn bearer(token: &str) -> Result<HeaderValue, RequestError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
        RequestError::NoResponse("the admin token cannot be sent: it is not plain text".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn invalid_target(target: &str) -> RequestError {
    RequestError::NoResponse(format!("`{target}` is not a valid request target"))
}

fn read(status: StatusCode, body: &[u8]) -> Result<Value, RequestError> {
    let value = serde_json::from_slice::<Value>(body);
    match (status.is_success(), value) {
        (true, Ok(value)) => Ok(value),
        (true, Err(error)) => Err(RequestError::NoResponse(format!("the response cannot be read: {error}"))),
        (false, value) => {
            let body = value.ok();
            let message = || Some(body.as_ref()?.pointer("/error/message")?.as_str()?.to_owned());
            let message = message().unwrap_or_else(|| format!("the response has the status {status}"));
            Err(RequestError::Answer { status, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sf_7_the_local_admin_token_is_not_sent_to_other_hosts() {
        let folder = std::env::temp_dir().join(format!("steadfast-reach-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut file = admin_token::private_file().open(folder.join("admin-token")).unwrap();
        std::io::Write::write_all(&mut file, b"secret-of-this-machine").unwrap();
        let path = folder.join("state.db").display().to_string();
        let flag = steadfast::config::CommandLineFlag {
            name: "test".to_owned(),
            setting: "store.path".to_owned(),
            value: path,
        };
        let sources =
            steadfast::config::Sources { flags: vec![flag], ..steadfast::config::Sources::default() };
        let config = Config::load(&sources).unwrap();
        let announced = ["127.0.0.1:8080", "0.0.0.0:8081", "[::1]:8082"].map(|address| AnnouncedGateway {
            address: address.parse().unwrap(),
            process: steadfast_store::this_process(),
            started_at_ms: 0,
            version: String::new(),
            store: String::new(),
        });
        let named = |named: &str| RunningGateway::named(named, &config, announced.to_vec()).unwrap();
        for (own, expected) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("http://127.0.0.1:8081", "127.0.0.1:8081"),
            ("0.0.0.0:8081", "127.0.0.1:8081"),
            ("http://[::1]:8082", "[::1]:8082"),
            ("LOCALHOST:8082", "[::1]:8082"),
        ] {
            let gateway = named(own);
            assert_eq!((gateway.token.is_some(), &*gateway.name), (true, expected), "{own}");
        }
        for strange in [
            "127.0.0.1:8083",
            "localhost:8083",
            "http://[::1]:8080",
            "https://127.0.0.1:8080",
            "http://somebody@127.0.0.1:8080",
            "192.0.2.1:8080",
            "https://gateway.example",
            "localhost.example:8080",
        ] {
            let is_sent = RunningGateway::named(strange, &config, announced.to_vec());
            assert!(!is_sent.is_ok_and(|gateway| gateway.token.is_some()), "{strange}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn pages_are_put_together_in_their_order() {
        let mut whole = json!({ "stopped": [1], "trips": [2], "next": "a" });
        add_page(&mut whole, json!({ "stopped": [], "trips": [3, 4], "next": "b" }));
        assert_eq!(whole, json!({ "stopped": [1], "trips": [2, 3, 4], "next": "b" }));
        add_page(&mut whole, json!({ "stopped": [], "trips": [5] }));
        assert_eq!(whole, json!({ "stopped": [1], "trips": [2, 3, 4, 5], "next": null }));
    }

    #[test]
    fn each_row_names_its_tenant() {
        let status = json!({ "tenants": ["acme", "umbra"] });
        assert_eq!(tenants_of(&status), [None, Some("acme".to_owned()), Some("umbra".to_owned())]);
        assert_eq!(tenants_of(&json!({})), [None]);
        let mut part = json!({ "breakers": [{ "key": "a" }], "next": null });
        name_tenant(&mut part, "acme");
        assert_eq!(part, json!({ "breakers": [{ "key": "a", "tenant": "acme" }], "next": null }));
    }

    #[test]
    fn request_parameters_are_encoded() {
        let ask = ApiRequest::get("/v1/records").with("tool", Some("a/b&c=d ü")).with("session", None);
        assert_eq!(ask.target, "/v1/records?tool=a%2Fb%26c%3Dd%20%C3%BC");
        assert_eq!(
            ask.with("open", Some("true")).target,
            "/v1/records?tool=a%2Fb%26c%3Dd%20%C3%BC&open=true"
        );
    }
}
