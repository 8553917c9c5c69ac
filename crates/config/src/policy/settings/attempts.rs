//! How often and how much: retries, breaker, limits.

use serde_json::{Value as Json, json};
use steadfast_core::policy::{CountedFrom, Jitter, RateRule, Ratio};

use super::super::{Draft, Force};
use super::{MODES, count, span, span_or_zero};
use crate::kind::{Count, Growth, Kind, ListOf, OrNone, PerTime, Share, Words};
use crate::node::{Node, Raw};
use crate::setting::{Context, Setting, setting};

pub(super) fn retry() -> Vec<Setting<Draft>> {
    vec![
        setting!(Draft, "retry.mode", modes.retry, MODES, "How far retries may go."),
        setting!(
            Draft,
            "retry.attempts",
            retry.attempts,
            Count(1..=100),
            "Attempts in all, the first one included. Raising it loads a tool that is in trouble."
        ),
        setting!(Draft, "retry.base", retry.base, span_or_zero(), "The wait before the first retry.")
            .also(|draft| draft.retry.waits = None)
            .shown_if(|draft| draft.retry.waits.is_none()),
        setting!(Draft, "retry.factor", retry.factor, Growth, "By how much the wait grows with each retry.")
            .also(|draft| draft.retry.waits = None)
            .shown_if(|draft| draft.retry.waits.is_none()),
        setting!(Draft, "retry.cap", retry.cap, span_or_zero(), "The longest wait.")
            .also(|draft| draft.retry.waits = None)
            .shown_if(|draft| draft.retry.waits.is_none()),
        setting!(
            Draft,
            "retry.waits",
            retry.waits,
            OrNone(ListOf { item: span_or_zero(), least: 1, most: 32 }),
            "The waits one by one, instead of base, factor and cap; the last one repeats."
        )
        .shown_if(|draft| draft.retry.waits.is_some())
        .excludes(&["retry.base", "retry.factor", "retry.cap"]),
        setting!(
            Draft,
            "retry.jitter",
            retry.jitter,
            JitterKind,
            "How waits are spread, so that a fleet does not retry in step: \"full\" is anything \
             up to the whole wait, 0.1 is the wait give or take a tenth."
        ),
        setting!(
            Draft,
            "retry.total",
            retry.total,
            OrNone(span_or_zero()),
            "No attempt starts later than this after the first one."
        ),
        setting!(
            Draft,
            "retry.counted_from",
            retry.counted_from,
            Words(&[("attempt_end", CountedFrom::AttemptEnd), ("attempt_start", CountedFrom::AttemptStart)]),
            "From where a wait is counted. From the start, a slow failure is followed at once."
        ),
        setting!(
            Draft,
            "retry.longest_retry_after",
            retry.longest_retry_after,
            span_or_zero(),
            "The longest `Retry-After` that is waited for; a longer one ends the call."
        ),
        setting!(
            Draft,
            "retry.budget_share",
            retry.budget_share,
            Share,
            "What retries of all calls of one dependency may add to its first attempts. Raising \
             it turns an outage into more load."
        ),
        setting!(
            Draft,
            "retry.budget_floor",
            retry.budget_floor,
            Count(0..=10_000),
            "Retries per second that are always free, so that a quiet tool can retry."
        ),
    ]
}

pub(super) fn breaker() -> Vec<Setting<Draft>> {
    vec![
        setting!(Draft, "breaker.mode", modes.breaker, MODES, "How far the breaker may go."),
        setting!(
            Draft,
            "breaker.consecutive",
            breaker.consecutive,
            OrNone(count()),
            "Failures in a row that open it."
        ),
        setting!(Draft, "breaker.rate", breaker.rate, OrNone(Share), "The share of failures that opens it."),
        setting!(
            Draft,
            "breaker.rate_last",
            breaker.rate_last,
            Count(1..=RateRule::MOST),
            "Among how many of the last attempts the shares are taken."
        ),
        setting!(
            Draft,
            "breaker.rate_at_least",
            breaker.rate_at_least,
            Count(1..=RateRule::MOST),
            "Fewer attempts than this say nothing about a share."
        ),
        setting!(
            Draft,
            "breaker.slow_rate",
            breaker.slow_rate,
            OrNone(Share),
            "The share of slow answers that opens it."
        ),
        setting!(Draft, "breaker.slower_than", breaker.slower_than, span(), "What counts as slow."),
        setting!(Draft, "breaker.window", breaker.window, span(), "What is older does not count."),
        setting!(
            Draft,
            "breaker.cooldown",
            breaker.cooldown,
            span(),
            "How long it stays open before it tries. Raising it keeps a tool that is well again \
             unused."
        ),
        setting!(
            Draft,
            "breaker.cooldown_growth",
            breaker.cooldown_growth,
            Growth,
            "By how much that grows each time a probe fails."
        ),
        setting!(
            Draft,
            "breaker.cooldown_cap",
            breaker.cooldown_cap,
            OrNone(span()),
            "The longest time it stays open; without one it does not grow."
        ),
        setting!(
            Draft,
            "breaker.close_after",
            breaker.close_after,
            Count(1..=1000),
            "Good probes in a row that close it."
        ),
        setting!(
            Draft,
            "breaker.neutral_close_after",
            breaker.neutral_close_after,
            Count(1..=1000),
            "Neutral answers to probes in a row that close it too: the tool is there."
        ),
        setting!(
            Draft,
            "breaker.probe_lease",
            breaker.probe_lease,
            OrNone(span()),
            "A probe that is silent for longer gives its place to another; without one, as long \
             as an attempt may be silent and at least two minutes."
        ),
        setting!(
            Draft,
            "breaker.force",
            breaker.force,
            Words(&[("no", Force::No), ("open", Force::Open)]),
            "Open by configuration, whatever happens."
        ),
    ]
}

pub(super) fn limits() -> Vec<Setting<Draft>> {
    vec![
        setting!(
            Draft,
            "limits.concurrency",
            limits.concurrency,
            OrNone(count()),
            "Attempts at the same time; one more is answered with `overloaded` at once."
        ),
        setting!(
            Draft,
            "limits.rate",
            limits.rate,
            OrNone(PerTime),
            "Attempts per time, refilled evenly; also the largest burst."
        ),
        setting!(
            Draft,
            "limits.dependency_concurrency",
            dependency_limits.concurrency,
            OrNone(count()),
            "Attempts at the same time over all tools of the same host or server."
        ),
        setting!(
            Draft,
            "limits.dependency_rate",
            dependency_limits.rate,
            OrNone(PerTime),
            "Attempts per time over all tools of the same host or server."
        ),
    ]
}

/// `"full"`, `"none"`, or a share.
struct JitterKind;

impl Kind<Jitter> for JitterKind {
    fn read(&self, node: &Node, cx: &mut Context<'_>) -> Option<Jitter> {
        match node.text() {
            Some("full") => return Some(Jitter::Full),
            Some("none") => return Some(Jitter::None),
            Some(_) | None => {}
        }
        let share = match &node.raw {
            Raw::Float(share) => Some(*share),
            Raw::Integer(0) => Some(0.0),
            Raw::Integer(1) => Some(1.0),
            Raw::Loose(text) => text.trim().parse().ok(),
            Raw::Integer(_)
            | Raw::Boolean(_)
            | Raw::String(_)
            | Raw::Foreign(_)
            | Raw::Array(_)
            | Raw::Table(_) => None,
        };
        let ratio = share.and_then(|share| Ratio::new(share).ok());
        if ratio.is_none() {
            cx.wrong(node, &self.takes(), "for ten percent write `jitter = 0.1`");
        }
        ratio.map(Jitter::Proportional)
    }

    fn show(&self, value: &Jitter) -> String {
        match value {
            Jitter::Full => "\"full\"".to_owned(),
            Jitter::None => "\"none\"".to_owned(),
            Jitter::Proportional(share) => Share.show(share),
        }
    }

    fn takes(&self) -> String {
        "\"full\", \"none\" or a share from 0 to 1".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "anyOf": [{ "enum": ["full", "none"] }, Share.schema()] })
    }
}
