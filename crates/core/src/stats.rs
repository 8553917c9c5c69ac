//! Scores of tools and models, by which an agent can choose.
//!
//! Scores are about the recent past: an outcome loses a tenth of its weight per hour, down to a tenth, so that an old
//! failure fades and still counts. This decay is for scores only; trust counts in full.
//!
//! Outcomes are stored as counts per hour of age, not one by one, and durations in buckets a quarter of an octave wide.
//! The memory per tool does not depend on its use. Beyond a maximum number of tools or models, the rest share one entry
//! called `other`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::classify::{ModelMistake, Severity};
use crate::id::{ModelId, ToolRef};
use crate::{Timestamp, millis};

/// The outcome of a finished call, for scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScoreOutcome {
    /// The call succeeded.
    Success,
    /// The tool failed.
    Failure,
    /// The model failed: arguments that the tool cannot accept, or a tool that does not exist. It says nothing about
    /// the tool.
    Mistake,
}

impl ScoreOutcome {
    /// Returns the outcome of a call with a fault of this kind, or with a result that reports one in its structure.
    pub const fn of(severity: Option<Severity>, mistake: Option<ModelMistake>) -> Self {
        match (severity, mistake) {
            (_, Some(ModelMistake::Arguments | ModelMistake::UnknownTool))
            | (Some(Severity::InvalidInput), None) => Self::Mistake,
            (Some(_), None) => Self::Failure,
            (None, None) => Self::Success,
        }
    }
}

/// Success rate and duration of a tool, or of a model with a tool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PerformanceScore {
    /// Share of calls that succeeded. Recent calls count more.
    pub success_rate: f64,
    /// Lower bound of the rate with 95 % confidence (Wilson). Use it for a careful choice.
    pub low: f64,
    /// Upper bound of the rate with 95 % confidence.
    pub high: f64,
    /// Duration that 95 % of the calls did not exceed, accurate to about a fifth; absent if no duration is known.
    #[serde(rename = "p95Ms", default, skip_serializing_if = "Option::is_none", with = "whole_millis")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub p95: Option<Duration>,
    /// Number of calls, without any decay.
    pub samples: u64,
}

/// Serialization of a duration as whole milliseconds, the unit on the wire.
mod whole_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(crate::millis).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

/// The statistics of a tenant, per tool and per model and tool.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    tools: BTreeMap<StatsKey<ToolRef>, ScoreRecord>,
    models: BTreeMap<StatsKey<ModelId>, BTreeMap<StatsKey<ToolRef>, ScoreRecord>>,
}

/// A name, or the entry that all names beyond the maximum share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatsKey<T> {
    /// A name with its own statistics.
    Named(T),
    /// All other names.
    Other,
}

impl Statistics {
    /// Records a finished call. `model` is the model that made it, if known.
    pub fn record(
        &mut self,
        tool: &ToolRef,
        model: Option<&ModelId>,
        outcome: ScoreOutcome,
        took: Option<Duration>,
        now: Timestamp,
    ) {
        if let Some(model) = model {
            let tools = room_for(&mut self.models, model, MOST_MODELS);
            room_for(tools, tool, MOST_TOOLS_PER_MODEL).add(outcome == ScoreOutcome::Success, took, now);
        }
        // A mistake still adds the tool, so that `other` does not depend on which model makes one first.
        let record = room_for(&mut self.tools, tool, MOST_TOOLS);
        match outcome {
            ScoreOutcome::Success => record.add(true, took, now),
            ScoreOutcome::Failure => record.add(false, took, now),
            ScoreOutcome::Mistake => {}
        }
    }

    /// Returns the score of a tool; `None` if it was never used.
    pub fn score(&self, tool: &ToolRef, now: Timestamp) -> Option<PerformanceScore> {
        self.tools.get(&StatsKey::Named(tool.clone()))?.score(now)
    }

    /// Returns the score of a model with a tool. Invalid calls by the model count.
    pub fn model_score(&self, model: &ModelId, tool: &ToolRef, now: Timestamp) -> Option<PerformanceScore> {
        let tools = self.models.get(&StatsKey::Named(model.clone()))?;
        tools.get(&StatsKey::Named(tool.clone()))?.score(now)
    }

    /// Returns the scores of all tools by name, `other` last.
    pub fn tools(&self, now: Timestamp) -> impl Iterator<Item = (&StatsKey<ToolRef>, PerformanceScore)> {
        self.tools.iter().filter_map(move |(tool, record)| Some((tool, record.score(now)?)))
    }

    /// Returns the scores of all models with their tools by name, `other` last.
    pub fn models(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&StatsKey<ModelId>, &StatsKey<ToolRef>, PerformanceScore)> {
        let pairs = self
            .models
            .iter()
            .flat_map(|(model, tools)| tools.iter().map(move |(tool, record)| (model, tool, record)));
        pairs.filter_map(move |(model, tool, record)| Some((model, tool, record.score(now)?)))
    }
}

/// Returns the entry of a name: its own as long as there is room, else the shared one.
fn room_for<'m, K: Clone + Ord, V: Default>(
    map: &'m mut BTreeMap<StatsKey<K>, V>,
    name: &K,
    most: usize,
) -> &'m mut V {
    let named = StatsKey::Named(name.clone());
    let place = if map.len() < most || map.contains_key(&named) { named } else { StatsKey::Other };
    map.entry(place).or_default()
}

/// Outcomes by age: one slot per hour while the weight still changes, and one for everything older.
#[derive(Clone, Debug, Default)]
struct ScoreRecord {
    /// Newest hour first.
    hours: VecDeque<HourSlot>,
    old: OutcomeCounts,
}

#[derive(Clone, Debug)]
struct HourSlot {
    /// Hours since the epoch.
    hour: u64,
    counts: OutcomeCounts,
}

#[derive(Clone, Debug, Default)]
struct OutcomeCounts {
    successes: u64,
    failures: u64,
    /// Number of calls per duration [`bucket`].
    durations: BTreeMap<u8, u64>,
}

impl ScoreRecord {
    fn add(&mut self, worked: bool, took: Option<Duration>, now: Timestamp) {
        let hour = hour_of(now);
        // A clock that went back must not add a slot out of order; the newest slot takes the call.
        if self.hours.front().is_none_or(|newest| newest.hour < hour) {
            self.hours.push_front(HourSlot { hour, counts: OutcomeCounts::default() });
            while self.hours.len() > DECAYING_HOURS {
                if let Some(slot) = self.hours.pop_back() {
                    self.old.absorb(slot.counts);
                }
            }
        }
        if let Some(newest) = self.hours.front_mut() {
            newest.counts.add(worked, took);
        }
    }

    fn score(&self, now: Timestamp) -> Option<PerformanceScore> {
        let hour = hour_of(now);
        let slots = self.hours.iter().map(|slot| (weight(hour.saturating_sub(slot.hour)), &slot.counts));
        let slots: Vec<_> = slots.chain([(weight(u64::MAX), &self.old)]).collect();
        let samples: u64 =
            slots.iter().map(|(_, counts)| counts.successes.saturating_add(counts.failures)).sum();
        if samples == 0 {
            return None;
        }
        let weighed = |of: fn(&OutcomeCounts) -> u64| -> f64 {
            slots.iter().map(|(weight, counts)| f64::from(*weight) / 10.0 * as_f64(of(counts))).sum()
        };
        let (successes, failures) = (weighed(|counts| counts.successes), weighed(|counts| counts.failures));
        let all = successes + failures;
        let (low, high) = wilson(successes / all, all);
        Some(PerformanceScore { success_rate: successes / all, low, high, p95: p95(&slots), samples })
    }
}

impl OutcomeCounts {
    fn add(&mut self, worked: bool, took: Option<Duration>) {
        let count = if worked { &mut self.successes } else { &mut self.failures };
        *count = count.saturating_add(1);
        if let Some(took) = took {
            let count = self.durations.entry(bucket(millis(took))).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn absorb(&mut self, other: Self) {
        self.successes = self.successes.saturating_add(other.successes);
        self.failures = self.failures.saturating_add(other.failures);
        for (bucket, count) in other.durations {
            let sum = self.durations.entry(bucket).or_default();
            *sum = sum.saturating_add(count);
        }
    }
}

/// Returns the weight of an outcome of this age, in tenths.
fn weight(age_hours: u64) -> u8 {
    u8::try_from(age_hours).map_or(1, |age| 10_u8.saturating_sub(age).max(1))
}

fn hour_of(now: Timestamp) -> u64 {
    now.as_millis() / 3_600_000
}

/// Returns the interval of the true rate with 95 % confidence. Unlike the plain interval, it is valid for few samples
/// and near the ends: one success out of one does not mean 100 %.
fn wilson(rate: f64, samples: f64) -> (f64, f64) {
    const Z: f64 = 1.96;
    let z2 = Z * Z / samples;
    let middle = rate + z2 / 2.0;
    let spread = Z * (rate * (1.0 - rate) / samples + z2 / (4.0 * samples)).max(0.0).sqrt();
    (((middle - spread) / (1.0 + z2)).clamp(0.0, 1.0), ((middle + spread) / (1.0 + z2)).clamp(0.0, 1.0))
}

/// Returns the upper end of the bucket of the 95th percentile.
fn p95(slots: &[(u8, &OutcomeCounts)]) -> Option<Duration> {
    let mut buckets: BTreeMap<u8, u64> = BTreeMap::new();
    for (weight, counts) in slots {
        for (bucket, count) in &counts.durations {
            let sum = buckets.entry(*bucket).or_default();
            *sum = sum.saturating_add(count.saturating_mul(u64::from(*weight)));
        }
    }
    let all = buckets.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
    // Rounded up, so that among few calls the slowest one counts.
    let rank = all.saturating_sub(all / 20);
    let mut below = 0_u64;
    let found = buckets.iter().find(|(_, count)| {
        below = below.saturating_add(**count);
        below >= rank
    });
    found.map(|(bucket, _)| Duration::from_millis(upper_end(*bucket)))
}

/// Returns the bucket of a duration: four per octave of milliseconds. The last one has everything over an hour.
fn bucket(millis: u64) -> u8 {
    let millis = millis.clamp(1, LONGEST_MILLIS);
    let octave = millis.ilog2();
    let quarter = if octave < 2 { (millis << (2 - octave)) & 3 } else { (millis >> (octave - 2)) & 3 };
    u8::try_from(u64::from(octave) * 4 + quarter).unwrap_or(u8::MAX)
}

fn upper_end(bucket: u8) -> u64 {
    let (octave, quarter) = (u32::from(bucket / 4), u64::from(bucket % 4));
    let next = (4 + quarter + 1) << octave;
    // Divided last, so that the narrow buckets below four milliseconds are exact.
    (next.div_ceil(4)).saturating_sub(1).max(1)
}

#[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 need not be exact in a rate")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Hours in which the weight still falls; after them it stays at a tenth.
const DECAYING_HOURS: usize = 9;
/// Maximum number of tools with their own statistics.
const MOST_TOOLS: usize = 256;
/// Maximum number of models with their own statistics.
const MOST_MODELS: usize = 16;
/// Maximum number of tools with their own statistics, for each model.
const MOST_TOOLS_PER_MODEL: usize = 64;
/// Longest distinct duration; a little more than an hour.
const LONGEST_MILLIS: u64 = 1 << 22;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::{Namespace, ToolName};

    fn tool(name: &str) -> ToolRef {
        ToolRef { namespace: Namespace::new("server").unwrap(), tool: ToolName::new(name).unwrap() }
    }

    fn hour(hours: u64) -> Timestamp {
        Timestamp::from_millis(hours * 3_600_000)
    }

    fn close(one: f64, another: f64) -> bool {
        (one - another).abs() < 1e-3
    }

    fn recorded(outcomes: &[(u64, ScoreOutcome)]) -> Statistics {
        let mut statistics = Statistics::default();
        for (at, outcome) in outcomes {
            statistics.record(&tool("a"), None, *outcome, None, hour(*at));
        }
        statistics
    }

    #[test]
    fn a_rate_comes_with_its_confidence() {
        let score = |good: usize, bad: usize| {
            let outcomes: Vec<_> = std::iter::repeat_n((0, ScoreOutcome::Success), good)
                .chain(std::iter::repeat_n((0, ScoreOutcome::Failure), bad))
                .collect();
            recorded(&outcomes).score(&tool("a"), hour(0)).unwrap()
        };
        // Values of the Wilson interval from a table.
        let one = score(1, 0);
        assert!(close(one.success_rate, 1.0) && close(one.low, 0.2065) && close(one.high, 1.0), "{one:?}");
        let half = score(5, 5);
        assert!(
            close(half.success_rate, 0.5) && close(half.low, 0.2366) && close(half.high, 0.7634),
            "{half:?}"
        );
        let many = score(900, 100);
        assert!(close(many.low, 0.8799) && close(many.high, 0.9171) && many.samples == 1000, "{many:?}");
        assert!(score(0, 3).low.abs() < f64::EPSILON);
    }

    #[test]
    fn outcomes_lose_a_tenth_per_hour_down_to_a_tenth() {
        for (age, rate) in [
            (0, 0.5),
            (1, 10.0 / 19.0),
            (5, 10.0 / 15.0),
            (9, 10.0 / 11.0),
            (10, 10.0 / 11.0),
            (900, 10.0 / 11.0),
        ] {
            let statistics = recorded(&[(0, ScoreOutcome::Failure), (age, ScoreOutcome::Success)]);
            let score = statistics.score(&tool("a"), hour(age)).unwrap();
            assert!(close(score.success_rate, rate), "after {age} h: {score:?}");
            assert_eq!(score.samples, 2, "nothing is forgotten");
        }
    }

    #[test]
    fn an_unused_tool_has_no_score() {
        let statistics = recorded(&[(0, ScoreOutcome::Mistake)]);
        assert_eq!(statistics.score(&tool("b"), hour(0)), None);
        assert_eq!(
            statistics.score(&tool("a"), hour(0)),
            None,
            "the model's mistake says nothing about the tool"
        );
    }

    #[test]
    fn the_end_of_a_call_decides_how_it_counts() {
        for (severity, mistake, outcome) in [
            (None, None, ScoreOutcome::Success),
            (Some(Severity::ServerError), None, ScoreOutcome::Failure),
            (Some(Severity::Informational), None, ScoreOutcome::Failure),
            (Some(Severity::InvalidInput), None, ScoreOutcome::Mistake),
            (Some(Severity::Validation), Some(ModelMistake::Arguments), ScoreOutcome::Mistake),
            (None, Some(ModelMistake::UnknownTool), ScoreOutcome::Mistake),
        ] {
            assert_eq!(ScoreOutcome::of(severity, mistake), outcome, "{severity:?} {mistake:?}");
        }
    }

    #[test]
    fn a_score_is_written_in_milliseconds() {
        let mut statistics = Statistics::default();
        statistics.record(&tool("a"), None, ScoreOutcome::Success, Some(Duration::from_millis(100)), hour(0));
        let written = serde_json::to_value(statistics.score(&tool("a"), hour(0)).unwrap()).unwrap();
        assert_eq!(
            (&written["p95Ms"], &written["samples"]),
            (&serde_json::json!(111), &serde_json::json!(1))
        );
        assert_eq!(written["successRate"], serde_json::json!(1.0));
    }

    #[test]
    fn a_models_mistakes_count_against_the_model_and_not_the_tool() {
        let (mut statistics, model) = (Statistics::default(), ModelId::new("m").unwrap());
        statistics.record(&tool("a"), Some(&model), ScoreOutcome::Success, None, hour(0));
        statistics.record(&tool("a"), Some(&model), ScoreOutcome::Mistake, None, hour(0));
        let tool_score = statistics.score(&tool("a"), hour(0)).unwrap();
        let model_score = statistics.model_score(&model, &tool("a"), hour(0)).unwrap();
        assert!(close(tool_score.success_rate, 1.0) && close(model_score.success_rate, 0.5));
        assert_eq!(statistics.models(hour(0)).count(), 1);
    }

    #[test]
    fn p95_is_the_upper_end_of_its_bucket() {
        let mut statistics = Statistics::default();
        for number in 0..100 {
            let took = Duration::from_millis(if number < 95 { 100 } else { 5000 });
            statistics.record(&tool("a"), None, ScoreOutcome::Success, Some(took), hour(0));
        }
        let p95 = |statistics: &Statistics| statistics.score(&tool("a"), hour(0)).unwrap().p95.unwrap();
        assert_eq!(p95(&statistics), Duration::from_millis(111));
        statistics.record(&tool("a"), None, ScoreOutcome::Failure, Some(Duration::from_secs(5)), hour(0));
        assert_eq!(p95(&statistics), Duration::from_millis(5119), "six of 101 are slow now");
        let one = recorded(&[(0, ScoreOutcome::Success)]);
        assert_eq!(one.score(&tool("a"), hour(0)).unwrap().p95, None, "no duration, no guess");
    }

    #[test]
    fn memory_stays_bounded_and_the_rest_is_called_other() {
        let mut statistics = Statistics::default();
        for number in 0..2000_u64 {
            let model = ModelId::new(format!("m{}", number % 40)).unwrap();
            let took = Some(Duration::from_millis(number * number));
            statistics.record(
                &tool(&format!("t{number}")),
                Some(&model),
                ScoreOutcome::Success,
                took,
                hour(number),
            );
        }
        assert_eq!(statistics.tools.len(), MOST_TOOLS + 1);
        assert_eq!(statistics.models.len(), MOST_MODELS + 1);
        assert!(statistics.models.values().all(|tools| tools.len() <= MOST_TOOLS_PER_MODEL + 1));
        let other = statistics.tools.get(&StatsKey::Other).unwrap();
        assert_eq!(other.hours.len(), DECAYING_HOURS);
        assert!(other.old.durations.len() <= 92);
        assert_eq!(other.score(hour(2000)).unwrap().samples, 2000 - 256);
        assert_eq!(statistics.tools(hour(2000)).last().unwrap().0, &StatsKey::Other);
        statistics.record(&tool("t3"), None, ScoreOutcome::Failure, None, hour(2000));
        assert_eq!(
            statistics.score(&tool("t3"), hour(2000)).unwrap().samples,
            2,
            "a known tool keeps its place"
        );
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_duration_within_a_quarter(millis in 1_u64..LONGEST_MILLIS) {
            let end = upper_end(bucket(millis));
            prop_assert!(end >= millis, "{millis} above {end}");
            prop_assert!(end <= millis + millis / 4, "{millis} far below {end}");
            prop_assert!(bucket(end) == bucket(millis) || millis < 4);
        }

        #[test]
        fn a_score_is_always_between_its_bounds(
            outcomes in prop::collection::vec((0_u64..30, any::<bool>()), 1..40),
            later in 0_u64..40,
        ) {
            let mut statistics = Statistics::default();
            for (at, worked) in &outcomes {
                let outcome = if *worked { ScoreOutcome::Success } else { ScoreOutcome::Failure };
                statistics.record(&tool("a"), None, outcome, None, hour(*at));
            }
            let score = statistics.score(&tool("a"), hour(later)).unwrap();
            prop_assert!(0.0 <= score.low && score.low <= score.success_rate + 1e-9);
            prop_assert!(score.success_rate <= score.high + 1e-9 && score.high <= 1.0);
            prop_assert_eq!(score.samples, outcomes.len() as u64);
        }
    }
}
