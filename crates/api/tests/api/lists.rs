//! Lists: pagination to the end, and filters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::{Value, json};
use steadfast::admin::{BreakerOverride, OperatorIdentity, OperatorSurface};
use steadfast::call::classify::{AttemptFault, FaultSource};
use steadfast::call::id::{Namespace, TenantId};
use steadfast::call::{EnvelopeBuilder, ToolResult, output::ToolOutput};
use steadfast::store::RuntimeClock;
use steadfast::{Attempt, Steadfast, ToolHandler};
use steadfast_api::{AccessRules, AdminToken, Api, GatewayParts};
use steadfast_executor::ToolRegistry;
use steadfast_gateway::{Backend, ConfiguredServer, ServerSharing};
use steadfast_store::{Journal, JournalEntry, JournalLimits, JournalQuery};
use steadfast_testkit::effort::TestEffort;

use crate::support::{TestTools, fits, gathered_is_written, send_request};

/// A gateway with data in every list, which can add more.
struct ListTestWorld {
    api: Api,
    steadfast: Steadfast,
    document: Value,
}

/// A list: its path, the position of its rows in the response, and the key of a row.
struct ListCase {
    path: &'static str,
    rows: &'static [&'static str],
    key: &'static [&'static str],
}

const LISTS: &[ListCase] = &[
    ListCase { path: "/v1/tools", rows: &["tools"], key: &["/tool"] },
    ListCase { path: "/v1/breakers", rows: &["breakers"], key: &["/key"] },
    ListCase {
        path: "/v1/trust",
        rows: &["trust"],
        key: &["/scope", "/pluginName", "/toolName", "/signature", "/domain"],
    },
    ListCase { path: "/v1/approvals", rows: &["approvals"], key: &["/id"] },
    ListCase {
        path: "/v1/guard",
        rows: &["stopped", "trips"],
        key: &["/session", "/tool", "/digest", "/arguments", "/layer", "/times"],
    },
    ListCase { path: "/v1/records", rows: &["records"], key: &["/key"] },
    ListCase { path: "/v1/history", rows: &["calls"], key: &["/requestId"] },
    ListCase { path: "/v1/running", rows: &["calls"], key: &["/call"] },
    ListCase { path: "/v1/servers", rows: &["servers"], key: &["/name"] },
    ListCase { path: "/v1/sessions", rows: &["sessions"], key: &["/session"] },
    ListCase { path: "/v1/config", rows: &["settings"], key: &["/name"] },
    ListCase { path: "/v1/audit", rows: &["audit"], key: &["/on"] },
];

impl ListCase {
    fn rows(&self, answer: &Value) -> Vec<Value> {
        let all = self.rows.iter().flat_map(|name| answer[name].as_array().unwrap().clone());
        all.collect()
    }

    fn key(&self, row: &Value) -> String {
        self.key.iter().map(|part| format!("{} ", row.pointer(part).unwrap_or(&Value::Null))).collect()
    }
}

impl ListTestWorld {
    async fn new() -> Self {
        let steadfast = Steadfast::builder()
            .clock(Arc::new(RuntimeClock::new()))
            .set("store.kind", "memory")
            .set("retry.attempts", "1")
            // No client answers, and the running call goes on.
            .set("approval_timeout", "1s")
            .set("timeout", "20m")
            .build()
            .await
            .unwrap();
        let access = AccessRules { admin: AdminToken::new("person"), ..AccessRules::default() };
        let tools = Arc::new(TestTools::default());
        for name in ["bank/never", "bank/pay 1", "files/never"] {
            tools.works(name);
        }
        let servers = ["bank", "files", "mail", "maps", "music"].map(server).to_vec();
        let around =
            GatewayParts { tools: tools as Arc<dyn ToolRegistry>, servers, ..GatewayParts::default() };
        let api = Api::with_gateway(steadfast.clone(), access, around);
        let mut world = Self { api, steadfast, document: Value::Null };
        world.document = world.get("/openapi.json").await;
        for number in [1, 3, 5, 7, 9] {
            world.happens(number).await;
        }
        world
    }

    /// Sends a request as the admin, and checks the response against the document.
    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.query(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        let operation = &self.document["paths"][path.split('?').next().unwrap()]["get"];
        if !self.document.is_null() {
            fits(&self.document, operation, status, &body);
        }
        body
    }

    async fn query(&self, path: &str) -> (StatusCode, Value) {
        send_request(&self.api, Request::get(path).header("authorization", "Bearer person"), "").await
    }

    /// Adds a row to every list that can grow, in the middle or at an end.
    async fn happens(&self, number: u32) {
        let session = format!("s-{number}");
        let works = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) };
        let (tool, key) = (format!("pay {number}"), format!("invoice {number}"));
        let pay = EnvelopeBuilder::new(format!("bank/{tool}")).key(&key).session(&session).build().unwrap();
        self.steadfast.call_envelope(pay, works).await;
        // It loses trust, and then needs approval.
        let fails = async |_: Attempt| -> ToolResult {
            Err(AttemptFault::new(FaultSource::Http { status: 500 }, "no").into())
        };
        let tool = format!("fails {number}");
        for amount in 0..3 {
            self.call(&tool, amount, &format!("{session} of {amount}"), None, fails).await;
        }
        self.call(&tool, 9, &session, None, works).await;
        // A model in a loop.
        let wrong = async |_: Attempt| -> ToolResult {
            Err(AttemptFault::new(FaultSource::JsonRpc { code: -32602 }, "`to` is missing").into())
        };
        for _ in 0..4 {
            self.call(&format!("asked {number}"), number, &session, None, wrong).await;
        }
        // A call that keeps running.
        let tool = format!("runs {number}");
        let envelope =
            EnvelopeBuilder::new(format!("files/{tool}")).key(&tool).session(&tool).build().unwrap();
        let calling = self.steadfast.call_envelope(envelope, async |_: Attempt| -> ToolResult {
            std::future::pending::<()>().await;
            Ok(ToolOutput::text("never"))
        });
        tokio::spawn(calling);
        let by = OperatorIdentity::new(if number == 1 { "bob" } else { "ann" }, OperatorSurface::Library);
        let key = format!("dependency:host-{number}").parse().unwrap();
        self.steadfast
            .engine()
            .admin()
            .update_breaker(None, &key, BreakerOverride::Open { until: None }, &by)
            .await;
        gathered_is_written().await;
    }

    async fn call(
        &self,
        tool: &str,
        amount: u32,
        session: &str,
        tenant: Option<&str>,
        run: impl ToolHandler,
    ) {
        let params = [("amount", amount)];
        let mut envelope =
            EnvelopeBuilder::new(format!("bank/{tool}")).args(&params).session(session).build().unwrap();
        envelope.target.tenant_id = tenant.map(|tenant| TenantId::new(tenant).unwrap());
        self.steadfast.call_envelope(envelope, run).await;
    }

    /// Returns the keys of all rows that match.
    async fn keys(&self, list: &ListCase, query: &str) -> Vec<String> {
        let answer = self.get(&format!("{}?limit=1000&{query}", list.path)).await;
        assert_eq!(answer["next"], Value::Null);
        list.rows(&answer).iter().map(|row| list.key(row)).collect()
    }
}

/// A server that must not be started by a query.
#[expect(clippy::panic, reason = "which is how the test says it")]
fn server(name: &str) -> ConfiguredServer {
    let start = || -> Backend { panic!("nobody asked for a tool of it") };
    ConfiguredServer::new(Namespace::new(name).unwrap(), ServerSharing::Shared, Arc::new(start))
}

fn list(path: &str) -> &'static ListCase {
    LISTS.iter().find(|list| list.path == path).unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_list_is_read_page_by_page_each_row_once_while_rows_are_added() {
    let world = ListTestWorld::new().await;
    let lists = TestEffort::of_this_run().cases(LISTS.iter().collect());
    let mut new = 0;
    for list in &lists {
        let before = world.keys(list, "").await;
        assert!(before.len() >= 5 || list.path == "/v1/sessions", "{}: {before:?}", list.path);
        let (mut keys, mut after) = (Vec::new(), String::new());
        loop {
            let page = world.get(&format!("{}?limit=2{after}", list.path)).await;
            let rows = list.rows(&page);
            assert!(rows.len() <= 2, "{}", list.path);
            keys.extend(rows.iter().map(|row| list.key(row)));
            let Some(next) = page["next"].as_str() else { break };
            assert_eq!(rows.len(), 2, "{}: a page before the last one is full", list.path);
            after = format!("&after={}", encoded(next));
            // Between the existing rows, after them, and before them.
            if keys.len() <= 6 {
                world.happens([2, 99, 0][new % 3] + 10 * u32::try_from(new / 3).unwrap()).await;
                new += 1;
            }
        }
        let once: BTreeSet<_> = keys.iter().collect();
        assert_eq!(once.len(), keys.len(), "{}: none comes twice: {keys:?}", list.path);
        let missing: Vec<_> = before.iter().filter(|key| !once.contains(key)).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", list.path);
    }
    assert!(new >= 20 || lists.len() < LISTS.len(), "{new}");
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test(start_paused = true)]
async fn every_list_applies_its_filters() {
    let world = ListTestWorld::new().await;
    let works = async |_: Attempt| -> ToolResult { Ok(ToolOutput::text("paid")) };
    world.call("pay 1", 1, "s-1", Some("acme"), works).await;
    gathered_is_written().await;
    let by = OperatorIdentity::new("ann", OperatorSurface::Library);
    let (acme, key) = (TenantId::new("acme").unwrap(), "tool:bank:pay".parse().unwrap());
    world.steadfast.engine().admin().update_breaker(Some(&acme), &key, BreakerOverride::Reset, &by).await;
    let mut wrong = Vec::new();
    for (path, query, count) in [
        ("/v1/tools", "prefix=bank/pay", 5),
        ("/v1/tools", "prefix=bank/pay%201", 1),
        ("/v1/tools", "namespace=files", 1),
        ("/v1/tools", "called=false", 2),
        ("/v1/tools", "called=true&namespace=bank", 15),
        ("/v1/tools", "tenant=acme&called=true", 1),
        ("/v1/tools", "tenant=nobody", 3),
        ("/v1/breakers", "tool=bank/pay%201", 1),
        ("/v1/breakers", "namespace=bank", 15),
        ("/v1/breakers", "state=FORCED_OPEN", 5),
        ("/v1/breakers", "state=FORCED_OPEN&namespace=bank", 0),
        ("/v1/breakers", "tenant=acme", 2),
        ("/v1/trust", "tool=bank/fails%201&state=escalated", 1),
        ("/v1/trust", "namespace=files", 0),
        ("/v1/trust", "state=blocked", 0),
        ("/v1/trust", "tenant=acme", 0),
        ("/v1/approvals", "", 5),
        ("/v1/approvals", "tool=bank/fails%203", 1),
        ("/v1/approvals", "session=s-5", 1),
        ("/v1/approvals", "session=s-5&tool=bank/fails%203", 0),
        ("/v1/approvals", "tenant=acme", 0),
        ("/v1/guard", "session=s-7", 3),
        ("/v1/guard", "tool=bank/asked%207", 2),
        ("/v1/guard", "tool=bank/asked%207&session=s-1", 0),
        ("/v1/guard", "tenant=acme", 0),
        ("/v1/records", "session=s-9&tool=bank/pay%209", 1),
        ("/v1/records", "tenant=acme", 0),
        ("/v1/records", "open=true", 5),
        ("/v1/history", "tenant=acme", 1),
        ("/v1/history", "tool=bank/pay%201", 2),
        ("/v1/history", "tool=bank/pay%201&tenant=acme&session=s-1&status=success", 1),
        ("/v1/history", "tenant=nobody", 0),
        ("/v1/running", "session=runs%201", 1),
        ("/v1/running", "tool=files/runs%203", 1),
        ("/v1/running", "tenant=acme", 0),
        ("/v1/servers", "prefix=m", 3),
        ("/v1/sessions", "server=bank", 0),
        ("/v1/config", "prefix=store.kind", 1),
        ("/v1/audit", "by=bob", 1),
        ("/v1/audit", "by=ann&deed=breaker_forced_open", 4),
        ("/v1/audit", "deed=breaker_reset", 1),
        ("/v1/audit", "tenant=acme", 1),
        ("/v1/audit", "since=99999999999999", 0),
    ] {
        let found = world.keys(list(path), query).await;
        if found.len() != count {
            wrong.push(format!("{path}?{query}: {count} wanted, {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_list_query_is_refused_with_the_reason() {
    let world = ListTestWorld::new().await;
    for list in LISTS {
        for limit in [0, 1001] {
            let (status, body) = world.query(&format!("{}?limit={limit}", list.path)).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{}", list.path);
            let message = body["error"]["message"].as_str().unwrap();
            assert_eq!(message, format!("limit={limit}: must be from 1 to 1000"), "{}", list.path);
        }
        let (status, body) = world.query(&format!("{}?colour=red", list.path)).await;
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{}", list.path);
        assert!(message.contains("`colour`") && message.contains("`limit`"), "{}: {message}", list.path);
    }
    for path in ["/v1/breakers", "/v1/approvals", "/v1/records", "/v1/history", "/v1/running", "/v1/audit"] {
        let (status, body) = world.query(&format!("{path}?after=nowhere")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        assert!(
            body["error"]["message"].as_str().unwrap().starts_with("after=nowhere is not a cursor"),
            "{body}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_history_goes_back_as_far_as_the_store_does_and_names_where_the_search_stopped() {
    let world = ListTestWorld::new().await;
    let store = world.steadfast.store();
    let before = world.keys(list("/v1/history"), "").await.len();
    let newest = store.entries(&JournalQuery::newest(Journal::History, 1)).await.unwrap();
    let other: Vec<JournalEntry> = vec![newest[0].1.clone(); 20_100];
    let keep = JournalLimits { most: 25_000, most_per_subject: None, age: Duration::from_secs(3600) };
    store.append(Journal::History, &other, keep).await.unwrap();
    let first = world.get("/v1/history?tool=bank/pay%201").await;
    assert_eq!(first["calls"], json!([]), "it lies further back than is looked at once");
    let next = first["next"].as_str().expect("which is said");
    let second = world.get(&format!("/v1/history?tool=bank/pay%201&after={next}")).await;
    assert_eq!((second["calls"].as_array().unwrap().len(), &second["next"]), (1, &Value::Null), "{second}");
    let (mut count, mut after) = (0, String::new());
    loop {
        let page = world.get(&format!("/v1/history?limit=1000{after}")).await;
        count += page["calls"].as_array().unwrap().len();
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(count, 20_100 + before);
}
