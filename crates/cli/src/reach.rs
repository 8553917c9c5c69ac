//! Whom the commands ask that look after things: a gateway that runs, or the store itself where none does.
//!
//! Both are asked the same in the same words, those of the HTTP API. Without a gateway the API is opened here, on the store, for
//! the time of one command. So there is one way to ask, and `--json` says what everybody else is told.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use steadfast::redact::Redacted;
use steadfast::{CallFacts, Config, Logging, Plan, Recording, Steadfast, StoreKind, Timestamp};
use steadfast_api::{Access, AdminToken, Api};
use steadfast_mcp::http::back::{Asked, EventFlow, Origin, Settings, UnderWay};

use crate::admin_token;
use crate::failure::Failure;
use crate::gateways::{self, Announced};
use crate::output;
use crate::sources::Chosen;
use crate::state::{by_operator, runtime};

/// Whom to ask, and how to say what was answered.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ways {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    /// The gateway to ask, where several run or it runs elsewhere: ADDRESS:PORT or a URL; `none` goes straight to the
    /// store.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gateway: Option<String>,
    /// Says it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is wanted of whoever is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// To see or change what is there: where there is nothing yet, nothing is made.
    WhatIsThere,
    /// To say something that holds for what is still to come.
    WhatComes,
}

/// Whom the commands ask.
pub(crate) struct Reach {
    way: Way,
    /// Others that run on the same state, or say so.
    pub(crate) others: Vec<Arc<Gateway>>,
    /// Others that run here and do not even greet.
    pub(crate) silent: Vec<Gateway>,
    /// The store, in words.
    pub(crate) store: String,
    /// There is no state yet, and none was made.
    pub(crate) is_untouched: bool,
}

enum Way {
    Gateway(Arc<Gateway>),
    Store(Box<Held>),
}

/// A gateway that runs.
pub(crate) struct Gateway {
    /// What its file says of it. One that was named need not have any.
    pub(crate) announced: Option<Announced>,
    pub(crate) name: String,
    origin: Origin,
    token: Option<Redacted<String>>,
}

/// The store, opened by ourselves.
struct Held {
    steadfast: Steadfast,
    api: Api,
    token: String,
}

/// A question, in the words of the HTTP API.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    method: Method,
    target: String,
    body: Option<Value>,
}

impl Ask {
    pub(crate) fn get(path: &str) -> Self {
        Self { method: Method::GET, target: path.to_owned(), body: None }
    }

    pub(crate) fn delete(path: &str) -> Self {
        Self { method: Method::DELETE, target: path.to_owned(), body: None }
    }

    pub(crate) fn post(path: &str, body: Option<Value>) -> Self {
        Self { method: Method::POST, target: path.to_owned(), body }
    }

    /// With this in its query, if it is given.
    pub(crate) fn with(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            let sign = if self.target.contains('?') { '&' } else { '?' };
            self.target.push(sign);
            self.target.push_str(&format!("{name}={}", encoded(value)));
        }
        self
    }
}

/// As one part of a path or query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let letter = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(letter).collect()
}

/// Why something was not answered.
#[derive(Clone, Debug)]
pub(crate) enum Refused {
    /// It was, with this.
    Answer { status: StatusCode, message: String },
    /// Nobody answered.
    Silence(String),
}

impl Refused {
    pub(crate) fn is(&self, wanted: StatusCode) -> bool {
        matches!(self, Self::Answer { status, .. } if *status == wanted)
    }

    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Answer { message, .. } | Self::Silence(message) => message,
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Answer { status: StatusCode::BAD_REQUEST, message } => Self::Usage(message),
            Refused::Answer { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, message } => {
                Self::World(format!(
                    "{message}\nset {} to the token of that gateway, or go straight to the store with `--gateway none`",
                    admin_token::VARIABLE
                ))
            }
            Refused::Answer { message, .. } | Refused::Silence(message) => Self::World(message),
        }
    }
}

/// Does something with whoever can be asked.
pub(crate) fn with<T>(
    ways: &Ways,
    need: Need,
    work: impl AsyncFnOnce(&Reach) -> Result<T, Failure>,
) -> Result<T, Failure> {
    runtime()?.block_on(async {
        let reach = Reach::find(ways, need).await?;
        let done = work(&reach).await;
        reach.close().await;
        done
    })
}

/// Whether a gateway would be asked now that was not there before.
pub(crate) fn somebody_listens(ways: &Ways) -> bool {
    let folder = ways.chosen.load().ok().as_ref().and_then(gateways::folder);
    ways.gateway.is_none() && folder.is_some_and(|folder| !gateways::running(&folder).is_empty())
}

impl Reach {
    /// The gateway that was named, the youngest of those that run, or the store.
    pub(crate) async fn find(ways: &Ways, need: Need) -> Result<Self, Failure> {
        let config = ways.chosen.load()?;
        let folder = gateways::folder(&config);
        let running = folder.as_deref().map(gateways::running).unwrap_or_default();
        for why in folder.as_deref().map(gateways::distrusted).unwrap_or_default() {
            output::remark(&format!("note: a gateway may run here: {why}"));
        }
        match ways.gateway.as_deref() {
            Some("none") => Self::hold(ways, &config, need).await,
            Some(named) => {
                let gateway = Gateway::named(named, &config, running)?;
                let store =
                    gateway.announced.as_ref().map_or("its own", |announced| &announced.store).to_owned();
                Ok(Self {
                    way: Way::Gateway(Arc::new(gateway)),
                    others: Vec::new(),
                    silent: Vec::new(),
                    store,
                    is_untouched: false,
                })
            }
            None => Self::of_running(ways, &config, need, running).await,
        }
    }

    async fn of_running(
        ways: &Ways,
        config: &Config,
        need: Need,
        running: Vec<Announced>,
    ) -> Result<Self, Failure> {
        let token = admin_token::find(config);
        let (mut answering, mut silent) = (Vec::new(), Vec::new());
        for announced in running {
            let gateway = Gateway::announced(announced, token.clone())?;
            match output::during(&format!("asking the gateway at {}", gateway.name), gateway.greet()).await {
                true => answering.push(Arc::new(gateway)),
                false => {
                    output::remark(&format!(
                        "note: a gateway should run at {} and does not answer",
                        gateway.name
                    ));
                    silent.push(gateway);
                }
            }
        }
        let mut answering = answering.into_iter();
        let Some(first) = answering.next() else {
            // Nothing is made for what will not be done.
            let need = if silent.is_empty() { need } else { Need::WhatIsThere };
            return Ok(Self { silent, ..Self::hold(ways, config, need).await? });
        };
        let others: Vec<_> = answering.collect();
        let store = first.store().to_owned();
        if others.iter().any(|other| other.store() != store) {
            let names: Vec<_> = std::iter::once(&first)
                .chain(&others)
                .map(|gateway| format!("{} ({})", gateway.name, gateway.store()))
                .collect();
            return Err(Failure::Usage(format!(
                "several gateways run here, each with its own state: choose one with --gateway: {}",
                names.join(", ")
            )));
        }
        Ok(Self { way: Way::Gateway(first), others, silent, store, is_untouched: false })
    }

    /// The store itself.
    async fn hold(ways: &Ways, config: &Config, need: Need) -> Result<Self, Failure> {
        let plan = Plan::of(config)?;
        if !plan.is_shared() {
            return Err(Failure::Usage(
                "no gateway answers here, and the configuration keeps state in the memory of the gateway, where nobody else can see it: start it with --listen, or set `store.kind` to \"sqlite\" or \"redis\""
                    .to_owned(),
            ));
        }
        let settings = &config.global().store;
        let is_there =
            settings.kind != StoreKind::Sqlite || settings.path.as_deref().is_none_or(Path::exists);
        let is_untouched = !is_there && need == Need::WhatIsThere;
        let mut opening = Steadfast::opening(ways.chosen.sources()).logging(Logging::Nowhere).only_looks();
        if is_untouched {
            opening = opening.set("store.kind", "memory");
        }
        let steadfast = output::during("opening the store", opening.open()).await?;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| Failure::World(format!("this machine draws no random numbers: {error}")))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let access = Access { admin: AdminToken::new(&token), ..Access::default() };
        let api = Api::new(steadfast.clone(), access);
        let held = Box::new(Held { steadfast, api, token });
        let (others, silent) = (Vec::new(), Vec::new());
        Ok(Self { way: Way::Store(held), others, silent, store: plan.store(), is_untouched })
    }

    /// The gateway that is asked, if one is.
    pub(crate) fn gateway(&self) -> Option<&Arc<Gateway>> {
        match &self.way {
            Way::Gateway(gateway) => Some(gateway),
            Way::Store(_) => None,
        }
    }

    /// Whether it is the store that is asked, and there is one.
    pub(crate) fn is_store(&self) -> bool {
        self.gateway().is_none() && !self.is_untouched
    }

    /// Asks, and gives the answer.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Value, Refused> {
        if let Some(passed_over) = self.passed_over().filter(|_| ask.method != Method::GET) {
            return Err(Refused::Silence(format!(
                "nothing was changed: a gateway runs at {} and does not answer; try again, name the one to ask with \
                 `--gateway ADDRESS`, or go straight to the store with `--gateway none`",
                passed_over.name
            )));
        }
        match &self.way {
            Way::Gateway(gateway) => gateway.ask(ask).await,
            Way::Store(held) => output::during("reading the store", held.ask(ask)).await,
        }
    }

    /// The calls that ended and came since then, in the order in which they came.
    pub(crate) async fn recording(&self, since: Timestamp) -> Result<Recording, Failure> {
        match &self.way {
            Way::Store(held) => {
                let reading = Recording::read(&**held.steadfast.store(), since, usize::MAX);
                let read = output::during("reading the history", reading).await;
                read.map_err(|error| Failure::World(format!("the history cannot be read: {error}")))
            }
            Way::Gateway(_) => {
                let since = since.as_millis().to_string();
                let ask = Ask::get("/v1/history").with("since", Some(&since));
                let mut answer = self.ask_all(ask).await?;
                let calls = match answer.get_mut("calls").map(Value::take) {
                    Some(Value::Array(calls)) => calls,
                    Some(_) | None => Vec::new(),
                };
                let told = calls.len();
                let facts: Vec<CallFacts> =
                    calls.into_iter().filter_map(|call| serde_json::from_value(call).ok()).collect();
                let recording = Recording::of(facts);
                Ok(Recording { unreadable: told - recording.facts.len(), ..recording })
            }
        }
    }

    /// Asks for a whole list, page after page. What is given is one answer with everything in it.
    pub(crate) async fn ask_all(&self, ask: Ask) -> Result<Value, Refused> {
        let ask = ask.with("limit", Some(PAGE));
        let mut whole = self.ask(ask.clone()).await?;
        while let Some(next) = whole.get("next").and_then(Value::as_str) {
            let page = self.ask(ask.clone().with("after", Some(next))).await?;
            add_page(&mut whole, page);
        }
        Ok(whole)
    }

    /// The tenants that a list is asked for: this one, or each that is known after the calls of no tenant.
    pub(crate) async fn tenants(&self, only: Option<&str>) -> Result<Tenants, Refused> {
        match only {
            Some(tenant) => Ok(vec![Some(tenant.to_owned())]),
            None => Ok(tenants_of(&self.ask(Ask::get("/v1/status")).await?)),
        }
    }

    /// Asks for a list that the API gives for one tenant at a time. What is given is one answer, in which each row names its
    /// tenant.
    pub(crate) async fn ask_each(&self, ask: Ask, tenants: &Tenants) -> Result<Value, Refused> {
        let mut whole = None;
        for tenant in tenants {
            let mut part = self.ask_all(ask.clone().with("tenant", tenant.as_deref())).await?;
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

    /// One that may be the one that was meant, and does not answer.
    fn passed_over(&self) -> Option<&Gateway> {
        let is_another = |gateway: &&Gateway| self.gateway().is_none() || gateway.store() != self.store;
        self.silent.iter().find(is_another)
    }

    /// Writes what is left to write.
    pub(crate) async fn close(self) {
        if let Way::Store(held) = self.way {
            held.steadfast.shutdown(Duration::ZERO).await;
        }
    }
}

/// The most rows that are given at once.
pub(crate) const PAGE: &str = "1000";

/// Tenants, by name; nothing stands for the calls of no tenant.
pub(crate) type Tenants = Vec<Option<String>>;

/// Each of them is asked for by itself.
const MOST_TENANTS: usize = 1000;

/// The tenants that a status names, after the calls of no tenant.
pub(crate) fn tenants_of(status: &Value) -> Tenants {
    let named = status.get("tenants").and_then(Value::as_array).into_iter().flatten();
    let named = named.filter_map(Value::as_str).take(MOST_TENANTS).map(|name| Some(name.to_owned()));
    std::iter::once(None).chain(named).collect()
}

/// Writes the tenant into each row of an answer.
fn name_tenant(answer: &mut Value, tenant: &str) {
    let lists = answer.as_object_mut().into_iter().flat_map(|answer| answer.values_mut());
    for row in lists.filter_map(Value::as_array_mut).flatten().filter_map(Value::as_object_mut) {
        row.insert("tenant".to_owned(), tenant.into());
    }
}

/// Adds the rows of the next page to those before, and where it goes on.
pub(crate) fn add_page(whole: &mut Value, page: Value) {
    let (Some(whole), Value::Object(page)) = (whole.as_object_mut(), page) else { return };
    // A page that does not say so is the last one.
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

/// How long a gateway may take to say that it is there, and to answer. One that is there says so at once, but for a machine
/// that has much to do; and nothing may be changed beside a gateway that was only slow.
const GREETING: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);

impl Gateway {
    fn announced(announced: Announced, token: Option<Redacted<String>>) -> Result<Self, Failure> {
        let name = announced.near().to_string();
        let origin = origin(&format!("http://{name}"))?;
        Ok(Self { announced: Some(announced), name, origin, token })
    }

    /// The one that was named. The token that lies here is for those that are known to run here: anybody may have the port
    /// of another, or pass on what comes to it.
    fn named(named: &str, config: &Config, running: Vec<Announced>) -> Result<Self, Failure> {
        let url = if named.contains("://") { named.to_owned() } else { format!("http://{named}") };
        let uri: Uri = url.parse().map_err(|_| {
            Failure::Usage(format!("`--gateway {named}` is no address: write 127.0.0.1:8080, a URL, or none"))
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
            // At the address that it says itself: a name may lead to another.
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

    /// Whether it is there. Says nothing that only it may hear.
    async fn greet(&self) -> bool {
        if self.announced.as_ref().is_some_and(Announced::is_stopped) {
            return false;
        }
        let asked = Asked {
            method: Method::GET,
            target: Uri::from_static("/healthz"),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        };
        let greeted = tokio::time::timeout(GREETING, self.origin.send(asked, &UnderWay::default())).await;
        matches!(greeted, Ok(Ok(replied)) if replied.status.is_success())
    }

    pub(crate) async fn ask(&self, ask: Ask) -> Result<Value, Refused> {
        let mut asked = self.asked(ask)?;
        let looks = asked.method == Method::GET;
        match self.exchange(asked.clone()).await {
            // One that was given another token may still let everybody on its machine look, but nobody with a wrong one.
            Err(refused) if looks && self.token.is_some() && refused.is(StatusCode::UNAUTHORIZED) => {
                asked.headers.remove(AUTHORIZATION);
                self.exchange(asked).await
            }
            done => done,
        }
    }

    async fn exchange(&self, asked: Asked) -> Result<Value, Refused> {
        let under_way = UnderWay::default();
        let waiting = tokio::time::timeout(PATIENCE, self.origin.send(asked, &under_way));
        let replied = output::during(&format!("asking the gateway at {}", self.name), waiting).await;
        let silent =
            |why: String| Refused::Silence(format!("the gateway at {} does not answer: {why}", self.name));
        match replied {
            Err(_) => Err(silent(format!("nothing for {} seconds", PATIENCE.as_secs()))),
            Ok(Err(failure)) => Err(silent(failure.fault().message)),
            Ok(Ok(replied)) => read(replied.status, &replied.body),
        }
    }

    /// Events as they happen, from behind the one of this id on.
    pub(crate) async fn events(&self, ask: Ask, after: Option<&str>) -> Result<EventFlow, Refused> {
        let mut asked = self.asked(ask)?;
        asked.headers.insert(http::header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(after) = after.and_then(|after| HeaderValue::from_str(after).ok()) {
            asked.headers.insert("last-event-id", after);
        }
        match self.origin.follow(asked).await {
            Err(failure) => Err(Refused::Silence(failure.fault().message)),
            Ok(Err(replied)) => Err(match read(replied.status, &replied.body) {
                Err(refused) => refused,
                Ok(_) => Refused::Silence("the answer is no stream of events".to_owned()),
            }),
            Ok(Ok(flow)) => Ok(flow),
        }
    }

    fn asked(&self, ask: Ask) -> Result<Asked, Refused> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, bearer(token.expose())?);
        }
        if let Ok(name) = HeaderValue::from_str(&by_operator().name) {
            headers.insert("x-operator", name);
        }
        headers.insert("steadfast-surface", HeaderValue::from_static("cli"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let target = ask.target.parse().map_err(|_| unaskable(&ask.target))?;
        let body = ask.body.map(|body| body.to_string().into()).unwrap_or_default();
        Ok(Asked { method: ask.method, target, headers, body })
    }
}

fn origin(url: &str) -> Result<Origin, Failure> {
    Origin::new(url, Settings::default())
        .map_err(|error| Failure::Usage(format!("`--gateway {url}` is no address: {error}")))
}

impl Held {
    async fn ask(&self, ask: Ask) -> Result<Value, Refused> {
        let body = ask.body.map(|body| body.to_string()).unwrap_or_default();
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = ask.method;
        *request.uri_mut() = ask.target.parse().map_err(|_| unaskable(&ask.target))?;
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        request.headers_mut().insert(AUTHORIZATION, bearer(&self.token)?);
        request.extensions_mut().insert(by_operator());
        let response = self.api.respond(request).await;
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| Refused::Silence(format!("the answer broke off: {error}")))?;
        read(status, &body.to_bytes())
    }
}

fn bearer(token: &str) -> Result<HeaderValue, Refused> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| Refused::Silence("the admin token cannot be sent: it is no plain text".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn unaskable(target: &str) -> Refused {
    Refused::Silence(format!("`{target}` cannot be asked for"))
}

fn read(status: StatusCode, body: &[u8]) -> Result<Value, Refused> {
    let value = serde_json::from_slice::<Value>(body);
    match (status.is_success(), value) {
        (true, Ok(value)) => Ok(value),
        (true, Err(error)) => Err(Refused::Silence(format!("the answer cannot be read: {error}"))),
        (false, value) => {
            let said = value.ok();
            let said = || Some(said.as_ref()?.pointer("/error/message")?.as_str()?.to_owned());
            let message = said().unwrap_or_else(|| format!("the answer has the status {status}"));
            Err(Refused::Answer { status, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sf_7_the_token_of_this_machine_is_given_to_nobody_elsewhere() {
        let folder = std::env::temp_dir().join(format!("steadfast-reach-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut file = admin_token::private_file().open(folder.join("admin-token")).unwrap();
        std::io::Write::write_all(&mut file, b"secret-of-this-machine").unwrap();
        let path = folder.join("state.db").display().to_string();
        let flag = steadfast::Flag { name: "test".to_owned(), setting: "store.path".to_owned(), value: path };
        let sources = steadfast::Sources { flags: vec![flag], ..steadfast::Sources::default() };
        let config = Config::load(&sources).unwrap();
        let announced = ["127.0.0.1:8080", "0.0.0.0:8081", "[::1]:8082"].map(|address| Announced {
            address: address.parse().unwrap(),
            process: steadfast_store::this_process(),
            started_at_ms: 0,
            version: String::new(),
            store: String::new(),
        });
        let named = |named: &str| Gateway::named(named, &config, announced.to_vec()).unwrap();
        for (ours, asked) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("http://127.0.0.1:8081", "127.0.0.1:8081"),
            ("0.0.0.0:8081", "127.0.0.1:8081"),
            ("http://[::1]:8082", "[::1]:8082"),
            ("LOCALHOST:8082", "[::1]:8082"),
        ] {
            let gateway = named(ours);
            assert_eq!((gateway.token.is_some(), &*gateway.name), (true, asked), "{ours}");
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
            let is_sent = Gateway::named(strange, &config, announced.to_vec());
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
    fn what_is_asked_for_stays_in_its_place() {
        let ask = Ask::get("/v1/records").with("tool", Some("a/b&c=d ü")).with("session", None);
        assert_eq!(ask.target, "/v1/records?tool=a%2Fb%26c%3Dd%20%C3%BC");
        assert_eq!(
            ask.with("open", Some("true")).target,
            "/v1/records?tool=a%2Fb%26c%3Dd%20%C3%BC&open=true"
        );
    }
}
