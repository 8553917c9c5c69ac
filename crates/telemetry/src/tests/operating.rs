//! Checks that the files for operators only use metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use steadfast_core::approval::{ApprovalDecision, Grantor};
use steadfast_core::id::ToolName;
use steadfast_core::policy::{EnforcementMode, MechanismModes, SilencePolicy};
use steadfast_core::report::{ReportKind, ToolReport};
use steadfast_executor::{
    Attempt, BreakerKey, BreakerOverride, EngineListener as _, OperatorIdentity, OperatorSurface,
};
use steadfast_store::{MemoryOptions, MemoryStore, StoreError, StoreErrorKind, StoreEvent};

use super::*;
use crate::{CATALOGUE, MetricKind, StoreCensus};

const ALERTS: &str = include_str!("../../../../docs/operating/alerts.yml");
const ALERT_TESTS: &str = include_str!("../../../../docs/operating/alerts.test.yml");
const DASHBOARD: &str = include_str!("../../../../docs/operating/grafana.json");

const PAGE: &str = include_str!("../../../../docs/operating/telemetry.md");
const MAPPING: &str = include_str!("../mapping.rs");
const WORDS: &str = include_str!("../names.rs");

/// Returns the names of log lines, as the mapping writes them, and those of the events of turns.
fn events() -> BTreeSet<&'static str> {
    let quoted = [MAPPING, WORDS].into_iter().flat_map(|file| file.split('"').skip(1).step_by(2));
    let begins = ["tool_call_", "store_", "turn_"];
    quoted.filter(|text| begins.iter().any(|begin| text.starts_with(begin))).collect()
}

fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for metric in CATALOGUE {
        let name = format!("steadfast_{}", metric.name);
        match metric.kind {
            MetricKind::Counter | MetricKind::Gauge => {
                names.insert(name);
            }
            MetricKind::Histogram => {
                names.extend(["bucket", "count", "sum"].map(|part| format!("{name}_{part}")))
            }
        }
    }
    names
}

/// A query to Prometheus: its source, the expression, and the labels that a legend shows.
struct PrometheusQuery {
    by: String,
    expression: String,
    shown: Vec<String>,
}

fn queries() -> Vec<PrometheusQuery> {
    rules().into_iter().chain(dashboard()).collect()
}

/// Returns the expressions of the alerts. Reads only the subset of YAML that promtool guarantees for this file: a
/// block is indented deeper.
fn rules() -> Vec<PrometheusQuery> {
    let mut all = Vec::new();
    let mut lines = ALERTS.lines().peekable();
    let mut alert = "";
    while let Some(line) = lines.next() {
        if let Some(name) = line.trim().strip_prefix("- alert: ") {
            alert = name;
        }
        let Some(first) = line.trim().strip_prefix("expr: ") else { continue };
        let mut expression = first.trim_start_matches('|').to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with("          ")) {
            expression.push('\n');
            expression.push_str(more);
        }
        all.push(PrometheusQuery { by: alert.to_owned(), expression, shown: Vec::new() });
    }
    all
}

fn dashboard() -> Vec<PrometheusQuery> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| (panel["title"].as_str().unwrap(), &target["expr"], &target["legendFormat"]))
    });
    let notes = dashboard["annotations"]["list"].as_array().unwrap().iter();
    let notes = notes.filter(|note| note.get("expr").is_some());
    let notes = notes.map(|note| (note["name"].as_str().unwrap(), &note["expr"], &note["titleFormat"]));
    let query = |(by, expression, legend): (&str, &Value, &Value)| {
        let legend = legend.as_str().unwrap();
        let shown = legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap().to_owned());
        let expression =
            expression.as_str().unwrap().replace("$__rate_interval", "5m").replace("$tool", ".*");
        PrometheusQuery { by: by.to_owned(), expression, shown: shown.collect() }
    };
    targets.chain(notes).map(query).collect()
}

/// A label matcher: name, operator, value.
type LabelMatcher<'a> = (&'a str, &'a str, &'a str);

/// Returns the metrics in an expression, each with its label matchers.
fn selectors(expression: &str) -> Vec<(&str, Vec<LabelMatcher<'_>>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("steadfast_") {
        rest = &rest[at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let labels = after.strip_prefix('{').map_or("", |inside| &inside[..inside.find('}').unwrap()]);
        let matchers = labels.split("\",").filter(|matcher| !matcher.is_empty()).map(|matcher| {
            let (name, value) = matcher.trim_end_matches('"').split_once('"').unwrap();
            let label = name.trim_end_matches(['=', '~', '!']);
            (label, &name[label.len()..], value)
        });
        found.push((name, matchers.collect()));
        rest = after;
    }
    found
}

/// Returns the labels that an expression groups or matches by.
fn groups(expression: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for word in ["by (", "on ("] {
        for group in expression.split(word).skip(1) {
            found.extend(group.split(')').next().unwrap().split(',').map(str::trim));
        }
    }
    found
}

/// Returns the metrics of an engine for which everything has happened that can happen, one line of each kind. Its
/// store and the servers of its gateway are healthy, so those events are added here.
async fn metrics_after_calls() -> String {
    let harness = TestTelemetry::new();
    let fault = |status| {
        move |_: Attempt| {
            std::future::ready::<ToolResult>(
                Err(AttemptFault::new(FaultSource::Http { status }, "no").into()),
            )
        }
    };
    let called = |tool: &str, amount: u32, key: Option<&str>| {
        let mut call = pay(amount, key.unwrap_or("none"));
        call.tool_name = ToolName::new(tool).unwrap();
        if key.is_none() {
            call.payload.idempotency_key = None;
        }
        call
    };
    let by = OperatorIdentity::new("ann", OperatorSurface::Library);

    let mut policy = standard(ToolClass::Idempotent);
    policy.modes.guard = EnforcementMode::Off;
    let clock: Arc<RuntimeClock> = Arc::new(RuntimeClock::new());
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(clock.clone())));
    let builder = Engine::builder().clock(clock.clone()).store(store.clone()).policies(Arc::new(policy));
    let engine = builder.listener(harness.telemetry.clone()).start().await;
    let succeeding = async |_: Attempt| paid();
    engine.call(called("pay", 1, Some("a")), succeeding).await;
    engine.call(called("pay", 1, Some("a")), succeeding).await;
    engine.call(called("pay", 2, Some("a")), succeeding).await;
    // Fails until its breaker opens, and again when it is tried. That costs it its trust, so approval is needed.
    for amount in 0..4 {
        engine.call(called("pay", amount, None), fault(503)).await;
        tokio::time::advance(Duration::from_secs(31)).await;
    }
    let key = BreakerKey::Tool(pay(1, "k").tool());
    engine.admin().update_breaker(None, &key, BreakerOverride::Reset, &by).await;
    engine.call(called("pay", 9, None), succeeding).await;
    while engine.admin().approvals(None).is_empty() {
        tokio::task::yield_now().await;
    }
    harness.assert_counted("steadfast_approvals_pending{} 1");
    let (id, _) = engine.admin().approvals(None).pop().unwrap();
    engine.admin().decide(None, id, ApprovalDecision::Once, Grantor::Operator, &by).await.unwrap();
    harness.assert_counted("steadfast_approvals_pending{} 0");
    harness.assert_counted("steadfast_by_hand_total{deed=\"approved\"} 1");
    engine.admin().update_breaker(None, &key, BreakerOverride::Open { until: None }, &by).await;
    harness.assert_counted("steadfast_tool_circuit_breaker_state{tool=\"bank/pay\",state=\"FORCED_OPEN\"} 1");
    let report = br#"{"toolName":"pay","pluginName":"bank","error":"x","severity":"security"}"#;
    engine.record_report(None, &ToolReport::parse(report, ReportKind::Failure).unwrap());
    harness.telemetry.metrics().show(&StoreCensus::take(&*store, 100).await.unwrap());
    engine.shutdown(Duration::ZERO).await;
    engine.call(called("pay", 1, None), succeeding).await;

    let mut policy = standard(ToolClass::Mutating);
    policy.modes.trust = EnforcementMode::Off;
    let engine = harness.engine(policy.clone()).await;
    engine.call(called("send", 1, Some("lost")), async |_: Attempt| reset()).await;
    for _ in 0..3 {
        engine.call(called("send", 2, None), fault(404)).await;
    }
    policy.class = ToolClass::ReadOnly;
    policy.time.silence = SilencePolicy::Stuck;
    harness
        .engine(policy.clone())
        .await
        .call(called("get", 1, None), async |_: Attempt| std::future::pending().await)
        .await;
    policy.modes = MechanismModes::all(EnforcementMode::Shadow);
    let engine = harness.engine(policy).await;
    for _ in 0..2 {
        engine.call(called("get", 1, Some("twice")), succeeding).await;
    }

    let engine = harness.engine(standard(ToolClass::ReadOnly)).await;
    turns::turn(&engine, None, turns::TRIP).await;
    harness.telemetry.store_failed("redis", &StoreError::not_done(StoreErrorKind::Unreachable, "gone"));
    harness.telemetry.store_event("redis", &StoreEvent::Emptied);
    for state in ["up", "backing_off", "down"] {
        harness.telemetry.metrics().server_changed("files", None, Some(state), 1);
    }
    harness.metrics()
}

/// Returns the series by metric name, each as its labels.
fn series(metrics: &str) -> BTreeMap<&str, Vec<BTreeMap<&str, &str>>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, _) = rest.rsplit_once('}').unwrap();
        let labels = labels.split("\",").filter(|label| !label.is_empty());
        let labels = labels.map(|label| label.trim_end_matches('"').split_once("=\"").unwrap());
        all.entry(name).or_default().push(labels.collect());
    }
    all
}

#[tokio::test(start_paused = true)]
async fn alerts_and_dashboard_query_existing_series() {
    let metrics = metrics_after_calls().await;
    let series = series(&metrics);
    let queries = queries();
    assert!(queries.len() > 40, "{}", queries.len());
    for PrometheusQuery { by, expression, shown } in &queries {
        let selectors = selectors(expression);
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for (name, matchers) in &selectors {
            let Some(found) = series.get(name) else { panic!("{by}: nobody counts {name}\n{metrics}") };
            known.extend(found.iter().flat_map(|labels| labels.keys().copied()));
            for (label, operator, value) in matchers {
                let values: BTreeSet<&str> =
                    found.iter().filter_map(|labels| labels.get(label).copied()).collect();
                assert!(!values.is_empty(), "{by}: {name} has no label {label}");
                let expected = value.split('|').filter(|value| *value != ".*");
                for value in expected {
                    assert!(
                        values.contains(value),
                        "{by}: {name} has no {label}{operator}{value:?}, only {values:?}"
                    );
                }
            }
        }
        for label in groups(expression).into_iter().chain(shown.iter().map(String::as_str)) {
            assert!(known.contains(label), "{by}: no metric of it has a label {label}");
        }
    }
}

#[test]
fn expressions_of_the_dashboard_are_some_that_prometheus_reads() {
    let rule = |(number, query): (usize, &PrometheusQuery)| {
        format!(
            "      - record: dashboard:expression:{number}\n        expr: {}\n",
            serde_json::json!(query.expression)
        )
    };
    let rules: String = dashboard().iter().enumerate().map(rule).collect();
    let file = std::env::temp_dir().join(format!("steadfast-dashboard-{}.yml", std::process::id()));
    std::fs::write(&file, format!("groups:\n  - name: dashboard\n    rules:\n{rules}")).unwrap();
    let (output, works) = promtool(&["check", "rules", &file.display().to_string()], "");
    std::fs::remove_file(&file).unwrap();
    assert!(works, "{output}");
}

#[tokio::test(start_paused = true)]
async fn promtool_has_one_remark_on_the_metrics() {
    let metrics = metrics_after_calls().await;
    // It reads the older text format, in which the name of a counter ends like its samples.
    let counters: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let older = |line: &str| {
        let Some((word, name, rest)) = line.strip_prefix("# ").and_then(|line| {
            let (word, rest) = line.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            Some((word, name, rest))
        }) else {
            return line.to_owned();
        };
        let total = if counters.contains(name) { "_total" } else { "" };
        format!("# {word} {name}{total} {rest}")
    };
    let older: Vec<String> = metrics.lines().map(older).collect();
    let (output, _) = promtool(&["check", "metrics"], &format!("{}\n", older.join("\n")));
    let accepted = "steadfast_tool_call_duration_ms metric names should not contain abbreviated units";
    assert_eq!(output.trim(), accepted, "the seed names it so");
}

/// Runs promtool. Returns its output, and true if it succeeded.
fn promtool(arguments: &[&str], input: &str) -> (String, bool) {
    let started = std::process::Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool =
        started.expect("promtool is missing: `cargo xtask check` installs it, or Debian's prometheus");
    promtool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let finished = promtool.wait_with_output().unwrap();
    let output = [finished.stdout, finished.stderr].concat();
    (String::from_utf8(output).unwrap(), finished.status.success())
}

fn used(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let namespace = "steadfast_";
    text.split(word).filter(|name| name.starts_with(namespace) && *name != namespace).collect()
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let known = names();
    for (file, text) in [("alerts", ALERTS), ("tests of alerts", ALERT_TESTS), ("dashboard", DASHBOARD)] {
        let used = used(text);
        assert!(used.len() > 5, "{file}: {used:?}");
        for name in used {
            assert!(known.contains(name), "{file}: there is no {name}");
        }
    }
}

#[test]
fn every_alert_is_tested() {
    let alerts: Vec<&str> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 6, "{alerts:?}");
    for alert in alerts {
        assert!(ALERT_TESTS.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
}

#[test]
fn the_dashboard_can_be_imported_and_read() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert_eq!((&dashboard["uid"], &dashboard["id"]), (&"steadfast".into(), &Value::Null));
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 39));
    let source = serde_json::json!({ "type": "prometheus", "uid": "${datasource}" });
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let named = |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap();
    assert_eq!((&named("datasource")["type"], &named("tool")["datasource"]), (&"datasource".into(), &source));

    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title} is wider than the page");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{title} lies over another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"], source, "{title}");
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{title}");
        let defaults = &panel["fieldConfig"]["defaults"];
        assert!(defaults["unit"].is_string() && defaults["thresholds"]["steps"].is_array(), "{title}");
        for link in panel["links"].as_array().unwrap() {
            let alert = link["url"].as_str().unwrap().strip_prefix("${runbook}#").unwrap();
            assert!(
                ALERTS.to_lowercase().contains(&format!("- alert: {alert}\n")),
                "{title}: there is no {alert}"
            );
        }
    }
    let linked =
        panels.iter().filter(|panel| panel["links"].as_array().is_some_and(|links| !links.is_empty()));
    assert!(linked.count() >= 15);
}

#[test]
fn every_line_of_the_log_is_on_its_page() {
    let events = events();
    assert!(events.len() >= 44, "{events:?}");
    for event in events {
        assert!(PAGE.contains(&format!("`{event}`")), "{event} is not on the page");
    }
}
