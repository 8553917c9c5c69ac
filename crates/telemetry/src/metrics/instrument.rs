//! The three kinds of instruments. Each value goes into the registry for Prometheus and, if metrics are pushed, into
//! the OpenTelemetry instrument with the same name.

use std::fmt;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{counter, gauge, histogram};
use prometheus_client::registry::Registry;

use crate::labels::Label;

/// The registration of instruments.
pub(super) struct InstrumentRegistrar<'a> {
    pub(super) registry: &'a mut Registry,
    pub(super) meter: Option<&'a Meter>,
    pub(super) namespace: &'a str,
}

impl InstrumentRegistrar<'_> {
    fn pushed<I>(&self, name: &str, make: impl FnOnce(&Meter, String) -> I) -> Option<I> {
        self.meter.map(|meter| make(meter, format!("{}_{name}", self.namespace)))
    }
}

type LabelPairs<const N: usize> = [(&'static str, Label); N];

fn label<const N: usize>(names: [&'static str; N], values: [Label; N]) -> LabelPairs<N> {
    let mut names = names.into_iter();
    values.map(|value| (names.next().unwrap_or_default(), value))
}

fn attributes<const N: usize>(labels: LabelPairs<N>) -> [KeyValue; N] {
    labels.map(|(name, value)| KeyValue::new(name, value))
}

/// A counter.
pub(crate) struct Counter<const N: usize> {
    names: [&'static str; N],
    family: Family<LabelPairs<N>, counter::Counter>,
    pushed: Option<opentelemetry::metrics::Counter<u64>>,
}

impl<const N: usize> Counter<N> {
    pub(super) fn register(
        at: &mut InstrumentRegistrar<'_>,
        name: &str,
        names: [&'static str; N],
        help: &'static str,
    ) -> Self {
        let family = Family::default();
        at.registry.register(name, help, family.clone());
        let pushed = at.pushed(name, |meter, name| meter.u64_counter(name).with_description(help).build());
        Self { names, family, pushed }
    }

    pub(crate) fn add(&self, values: [Label; N]) {
        let labels = label(self.names, values);
        self.family.get_or_create(&labels).inc();
        if let Some(pushed) = &self.pushed {
            pushed.add(1, &attributes(labels));
        }
    }

    /// Shows the series before its first count. For Prometheus, a counter that starts at one has not grown.
    pub(crate) fn show(&self, values: [Label; N]) {
        let labels = label(self.names, values);
        drop(self.family.get_or_create(&labels));
        if let Some(pushed) = &self.pushed {
            pushed.add(0, &attributes(labels));
        }
    }
}

/// A gauge.
pub(crate) struct Gauge<const N: usize> {
    names: [&'static str; N],
    family: Family<LabelPairs<N>, gauge::Gauge>,
    pushed: Option<opentelemetry::metrics::Gauge<i64>>,
}

impl<const N: usize> Gauge<N> {
    pub(super) fn register(
        at: &mut InstrumentRegistrar<'_>,
        name: &str,
        names: [&'static str; N],
        help: &'static str,
    ) -> Self {
        let family = Family::default();
        at.registry.register(name, help, family.clone());
        let pushed = at.pushed(name, |meter, name| meter.i64_gauge(name).with_description(help).build());
        Self { names, family, pushed }
    }

    pub(crate) fn set(&self, values: [Label; N], to: i64) {
        let labels = label(self.names, values);
        self.family.get_or_create(&labels).set(to);
        self.push(labels, to);
    }

    /// Changes the value by this amount, but not below zero: the end of something may be seen without its start.
    pub(crate) fn shift(&self, values: [Label; N], by: i64) {
        let labels = label(self.names, values);
        let gauge = self.family.get_or_create_owned(&labels);
        let mut now = gauge.inc_by(by) + by;
        if now < 0 {
            now = 0;
            gauge.set(now);
        }
        self.push(labels, now);
    }

    /// Removes a series. OpenTelemetry cannot remove it, so it becomes zero there.
    pub(crate) fn remove(&self, values: [Label; N]) {
        let labels = label(self.names, values);
        self.family.remove(&labels);
        self.push(labels, 0);
    }

    /// Removes all series, before they are set again.
    pub(crate) fn clear(&self) {
        self.family.clear();
    }

    fn push(&self, labels: LabelPairs<N>, value: i64) {
        if let Some(pushed) = &self.pushed {
            pushed.record(value, &attributes(labels));
        }
    }
}

/// A histogram of durations.
pub(crate) struct Histogram<const N: usize> {
    names: [&'static str; N],
    unit: DurationUnit,
    family: Family<LabelPairs<N>, histogram::Histogram>,
    pushed: Option<opentelemetry::metrics::Histogram<f64>>,
}

impl<const N: usize> Histogram<N> {
    pub(super) fn register(
        at: &mut InstrumentRegistrar<'_>,
        name: &str,
        names: [&'static str; N],
        help: &'static str,
    ) -> Self {
        let unit = DurationUnit::of(name);
        let new: fn() -> histogram::Histogram = match unit {
            DurationUnit::Milliseconds => || histogram::Histogram::new(DurationUnit::Milliseconds.buckets()),
            DurationUnit::Seconds => || histogram::Histogram::new(DurationUnit::Seconds.buckets()),
        };
        let family = Family::new_with_constructor(new);
        at.registry.register(name, help, family.clone());
        let pushed = at.pushed(name, |meter, name| {
            let builder = meter.f64_histogram(name).with_description(help).with_unit(unit.short());
            builder.with_boundaries(unit.buckets().to_vec()).build()
        });
        Self { names, unit, family, pushed }
    }

    pub(crate) fn observe(&self, values: [Label; N], took: Duration) {
        let (labels, took) = (label(self.names, values), self.unit.number(took));
        self.family.get_or_create(&labels).observe(took);
        if let Some(pushed) = &self.pushed {
            pushed.record(took, &attributes(labels));
        }
    }
}

/// The unit of a duration, as in the name of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DurationUnit {
    /// Only for names that are prescribed.
    Milliseconds,
    /// The convention of Prometheus.
    Seconds,
}

impl DurationUnit {
    fn of(name: &str) -> Self {
        if name.ends_with("_ms") { Self::Milliseconds } else { Self::Seconds }
    }

    const fn short(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
        }
    }

    /// Whole milliseconds, the precision of the engine.
    fn number(self, took: Duration) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "what takes longer than 2^53 ms has other problems")]
        let millis = steadfast_core::millis(took) as f64;
        self.of_millis(millis)
    }

    fn of_millis(self, millis: f64) -> f64 {
        match self {
            Self::Milliseconds => millis,
            Self::Seconds => millis / 1000.0,
        }
    }

    fn buckets(self) -> [f64; 15] {
        BUCKETS.map(|millis| self.of_millis(millis))
    }
}

macro_rules! debug_by_names {
    ($($kind:ident),*) => {$(
        impl<const N: usize> fmt::Debug for $kind<N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($kind)).field("labels", &self.names).finish_non_exhaustive()
            }
        }
    )*};
}
debug_by_names!(Counter, Gauge, Histogram);

/// Milliseconds, from a refusal to a call without a time limit. 2500 is the threshold of the latency alert.
pub(super) const BUCKETS: [f64; 15] = [
    1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0,
    300_000.0,
];
