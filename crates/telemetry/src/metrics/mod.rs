//! Metrics: updated by notices, scraped by Prometheus, pushed by OpenTelemetry.

mod catalogue;
mod census;
mod instrument;

use std::sync::Arc;

use opentelemetry::metrics::Meter;
use prometheus_client::registry::Registry;
use steadfast_core::breaker;
use steadfast_core::id::ToolRef;
use steadfast_core::policy::RecordLifetimes;
use steadfast_core::trust::TrustState;

pub use catalogue::{CATALOGUE, MetricDescription, MetricKind};
pub use census::StoreCensus;

use self::catalogue::Instruments;
use self::instrument::InstrumentRegistrar;
use crate::labels::{Label, LabelNames, ToolEntries, ToolEntry};
use crate::names;
use crate::tool_status::{StateChange, ToolPolicySummary};

/// The prefix of metric names: letters, digits and `_`, starting with a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(Box<str>);

/// The error for a text that is not a valid prefix of metric names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the namespace of metrics must be letters, digits and `_`, not beginning with a digit, and at most 64 of them; \
     the default is `steadfast`"
)]
pub struct InvalidNamespace;

impl Namespace {
    /// Creates a namespace, if the text is valid.
    pub fn new(text: &str) -> Result<Self, InvalidNamespace> {
        let fits = text.len() <= 64
            && text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if fits { Ok(Self(text.into())) } else { Err(InvalidNamespace) }
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("steadfast".into())
    }
}

/// All metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    tools: ToolEntries,
    /// Rules and stores.
    names: LabelNames,
    pub(crate) on: Instruments,
}

impl Metrics {
    /// The content type of [`Metrics::encode`].
    pub const CONTENT_TYPE: &'static str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    pub(crate) fn new(namespace: &Namespace, most_tools: usize, meter: Option<&Meter>) -> Self {
        let mut registry = Registry::with_prefix(&*namespace.0);
        let mut at = InstrumentRegistrar { registry: &mut registry, meter, namespace: &namespace.0 };
        let on = Instruments::register(&mut at);
        // An unset gauge would be missing, which cannot be distinguished from a broken one.
        on.approvals_pending.set([], 0);
        for status in names::TURN_STATUSES {
            on.turns.show([names::turn_status(status).into()]);
        }
        for strategy in names::STRATEGIES {
            on.turn_decisions.show([names::strategy(strategy).into()]);
        }
        Self { registry, tools: ToolEntries::at_most(most_tools), names: LabelNames::default(), on }
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail, and every instrument can be encoded.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    /// Updates the state of a server's process, by name before and after. `None` means that there is no process.
    /// `restarts` is the number of restarts since the last update.
    pub fn server_changed(
        &self,
        server: &str,
        from: Option<&'static str>,
        to: Option<&'static str>,
        restarts: u64,
    ) {
        let server = self.names.get(server);
        for (state, by) in [(from, -1), (to, 1)] {
            if let Some(state) = state {
                self.on.server_processes.shift([server.clone(), state.into()], by);
            }
        }
        self.on.server_restarts.show([server.clone()]);
        for _ in 0..restarts {
            self.on.server_restarts.add([server.clone()]);
        }
    }

    /// Updates the gauges for the content of the store.
    pub fn show(&self, census: &StoreCensus) {
        self.on.tool_dedupe_cache_size.clear();
        self.on.tool_dedupe_inflight.clear();
        self.on.tool_dedupe_inflight_stale.clear();
        for (tool, counted) in census.tools() {
            let tool = self.tools.get(tool);
            let label = || tool.label.clone();
            // Tools with the label `other` share a series, so their counts are added.
            self.on
                .tool_dedupe_cache_size
                .shift([label(), tool.status.scope().into()], whole(counted.records));
            self.on.tool_dedupe_inflight.shift([label()], whole(counted.inflight));
            self.on.tool_dedupe_inflight_stale.shift([label()], whole(counted.stale));
        }
    }

    pub(crate) fn tool(&self, tool: &ToolRef) -> Arc<ToolEntry> {
        self.tools.get(tool)
    }

    /// Returns the label of a rule that classified a failure.
    pub(crate) fn rule(&self, rule: &str) -> Label {
        self.names.get(rule)
    }

    /// Returns the label of a store. There are few kinds, and the name of a custom one is handled like any other
    /// name.
    pub(crate) fn store(&self, kind: &str) -> Label {
        self.names.get(kind)
    }

    /// Updates the gauges for the policy of a tool, if it is new. Tools with the label `other` have no common policy
    /// that could be shown.
    pub(crate) fn profile(&self, tool: &ToolEntry, now: ToolPolicySummary) {
        if tool.label == crate::labels::OTHER {
            return;
        }
        let Some(StateChange { from, to }) = tool.status.profile(now) else { return };
        let label = || tool.label.clone();
        if let Some(from) = from {
            self.on.tool_info.remove([label(), names::class(from.class).into()]);
        }
        self.on.tool_info.set([label(), names::class(to.class).into()], 1);
        let RecordLifetimes { done, failed, open, lease } = to.keep;
        for (state, span) in [("done", done), ("failed", failed), ("inflight", open), ("lease", lease)] {
            self.on.tool_dedupe_ttl_seconds.set([label(), state.into()], whole(span.as_secs()));
        }
        if from.is_none() {
            self.breaker_state(tool, breaker::State::Closed);
            self.trust_state(tool, TrustState::Trusted);
            // Alerts use the growth of these counters, and the first count matters.
            self.on.tool_idempotency_conflicts.show([label()]);
            self.on.tool_events.show([label(), "tool_call_outcome_unknown".into()]);
            for [from, to] in
                [["CLOSED", "OPEN"], ["OPEN", "HALF_OPEN"], ["HALF_OPEN", "OPEN"], ["HALF_OPEN", "CLOSED"]]
            {
                self.on.tool_circuit_breaker_transitions.show([label(), from.into(), to.into()]);
            }
        }
    }

    pub(crate) fn breaker_state(&self, tool: &ToolEntry, now: breaker::State) {
        for state in names::BREAKER_STATES {
            let labels = [tool.label.clone(), names::breaker_state(state).into()];
            self.on.tool_circuit_breaker_state.set(labels, i64::from(state == now));
        }
    }

    pub(crate) fn trust_state(&self, tool: &ToolEntry, now: TrustState) {
        for state in names::TRUST_STATES {
            let labels = [tool.label.clone(), names::trust_state(state).into()];
            self.on.tool_trust_state.set(labels, i64::from(state == now));
        }
    }

    pub(crate) fn record_end(
        &self,
        tool: &ToolEntry,
        status: &'static str,
        scope: &'static str,
        took: std::time::Duration,
    ) {
        self.on.tool_calls.add([tool.label.clone(), status.into(), scope.into()]);
        self.on.tool_call_duration_ms.observe([tool.label.clone(), status.into()], took);
    }
}

/// Returns the reference page of all metrics.
pub fn reference() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Written by `cargo xtask gen` from `crates/telemetry/src/metrics/catalogue.rs`.\n\n\
         Every name begins with the namespace (`metrics.namespace`, default `steadfast`) and `_`. The label `tool` is `namespace/tool`. \
         Tools beyond the limit (`metrics.tools`, default 500) are all counted as `other`. Label values are redacted and never contain idempotency keys.\n\n\
         | name | kind | labels | description |\n| --- | --- | --- | --- |\n",
    );
    for metric in CATALOGUE {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        page.push_str(&format!("| `{}` | {kind} | {} | {} |\n", metric.name, labels.join(", "), metric.help));
    }
    let buckets: Vec<String> = instrument::BUCKETS.iter().map(ToString::to_string).collect();
    page.push_str(&format!(
        "\nBuckets of the histograms, in milliseconds: {}. Metrics whose names end in `_seconds` have the same buckets in seconds.\n\n\
         With OTLP the same metrics are pushed under the same names, without `_total`.\n\n\
         [Alert rules](../operating/alerts.yml) and a [Grafana dashboard](../operating/grafana.json) use them.\n",
        buckets.join(", ")
    ));
    page
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use steadfast_core::id;

    use super::*;

    fn tool(name: &str) -> ToolRef {
        ToolRef { namespace: id::Namespace::new("bank").unwrap(), tool: id::ToolName::new(name).unwrap() }
    }

    #[test]
    fn names_begin_with_the_namespace_that_is_set() {
        let metrics = Metrics::new(&Namespace::new("openclaw").unwrap(), 10, None);
        let pay = metrics.tool(&tool("pay"));
        metrics.record_end(&pay, "success", "session", std::time::Duration::from_millis(7));
        let text = metrics.encode();
        let line = "openclaw_tool_calls_total{tool=\"bank/pay\",status=\"success\",scope=\"session\"} 1";
        assert!(text.contains(line), "{text}");
        let bucket =
            "openclaw_tool_call_duration_ms_bucket{le=\"10.0\",tool=\"bank/pay\",status=\"success\"} 1";
        assert!(text.contains(bucket), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_namespace_that_would_break_every_name_is_refused() {
        for bad in ["", "9lives", "a-b", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(Namespace::new(bad), Err(InvalidNamespace), "{bad}");
        }
    }

    #[test]
    fn a_gauge_does_not_fall_below_zero() {
        let metrics = Metrics::new(&Namespace::default(), 10, None);
        metrics.on.approvals_pending.shift([], -1);
        metrics.on.approvals_pending.shift([], 1);
        assert!(metrics.encode().contains("steadfast_approvals_pending{} 1\n"), "{}", metrics.encode());
    }
}
