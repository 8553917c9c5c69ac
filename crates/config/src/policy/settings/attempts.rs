//! Settings of attempts: retries, circuit breaker, limits.

use serde_json::{Value as Json, json};
use steadfast_core::policy::{CountedFrom, Jitter, RateRule, Ratio};

use super::super::{Draft, Force};
use super::{MODES, count, span, span_or_zero};
use crate::kind::{Count, Growth, Kind, ListOf, OrNone, PerTime, Share, Words};
use crate::node::{Node, Raw};
use crate::setting::{Context, Setting, setting};

pub(super) fn retry() -> Vec<Setting<Draft>> {
    vec![
        setting!(Draft, "retry.mode", modes.retry, MODES, "The mode of retries."),
        setting!(
            Draft,
            "retry.attempts",
            retry.attempts,
            Count(1..=100),
            "Maximum number of attempts, including the first. Raising it adds load to a failing tool."
        ),
        setting!(Draft, "retry.base", retry.base, span_or_zero(), "The wait before the first retry.")
            .also(|draft| draft.retry.waits = None)
            .shown_if(|draft| draft.retry.waits.is_none()),
        setting!(
            Draft,
            "retry.factor",
            retry.factor,
            Growth,
            "The factor by which the wait grows with each retry."
        )
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
            "Explicit waits, instead of base, factor and cap; the last one repeats."
        )
        .shown_if(|draft| draft.retry.waits.is_some())
        .excludes(&["retry.base", "retry.factor", "retry.cap"]),
        setting!(
            Draft,
            "retry.jitter",
            retry.jitter,
            JitterKind,
            "How waits are randomised, so that many clients do not retry at the same moment: \"full\" is anything up \
             to the whole wait, 0.1 is the wait plus or minus a tenth."
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
            "The start of a wait. If it is the start of the attempt, a slow failure is retried at once."
        ),
        setting!(
            Draft,
            "retry.longest_retry_after",
            retry.longest_retry_after,
            span_or_zero(),
            "The longest `Retry-After` that is honoured; a longer one ends the call."
        ),
        setting!(
            Draft,
            "retry.budget_share",
            retry.budget_share,
            Share,
            "The retry budget of one dependency: retries per first attempt, over all its calls. Raising it turns an \
             outage into more load."
        ),
        setting!(
            Draft,
            "retry.budget_floor",
            retry.budget_floor,
            Count(0..=10_000),
            "Retries per second that are always allowed, so that a rarely used tool can be retried."
        ),
    ]
}

pub(super) fn breaker() -> Vec<Setting<Draft>> {
    vec![
        setting!(Draft, "breaker.mode", modes.breaker, MODES, "The mode of the circuit breaker."),
        setting!(
            Draft,
            "breaker.consecutive",
            breaker.consecutive,
            OrNone(count()),
            "Failures in a row that open the breaker."
        ),
        setting!(
            Draft,
            "breaker.rate",
            breaker.rate,
            OrNone(Share),
            "The failure rate that opens the breaker."
        ),
        setting!(
            Draft,
            "breaker.rate_last",
            breaker.rate_last,
            Count(1..=RateRule::MOST),
            "Number of last attempts over which the rates are taken."
        ),
        setting!(
            Draft,
            "breaker.rate_at_least",
            breaker.rate_at_least,
            Count(1..=RateRule::MOST),
            "Minimum number of attempts for a rate."
        ),
        setting!(
            Draft,
            "breaker.slow_rate",
            breaker.slow_rate,
            OrNone(Share),
            "The rate of slow responses that opens the breaker."
        ),
        setting!(
            Draft,
            "breaker.slower_than",
            breaker.slower_than,
            span(),
            "The threshold for a slow response."
        ),
        setting!(Draft, "breaker.window", breaker.window, span(), "Older attempts do not count."),
        setting!(
            Draft,
            "breaker.cooldown",
            breaker.cooldown,
            span(),
            "How long the breaker stays open before a probe. Raising it keeps a recovered tool unused for longer."
        ),
        setting!(
            Draft,
            "breaker.cooldown_growth",
            breaker.cooldown_growth,
            Growth,
            "The factor by which the cooldown grows each time a probe fails."
        ),
        setting!(
            Draft,
            "breaker.cooldown_cap",
            breaker.cooldown_cap,
            OrNone(span()),
            "The maximum cooldown; without one it does not grow."
        ),
        setting!(
            Draft,
            "breaker.close_after",
            breaker.close_after,
            Count(1..=1000),
            "Successful probes in a row that close the breaker."
        ),
        setting!(
            Draft,
            "breaker.neutral_close_after",
            breaker.neutral_close_after,
            Count(1..=1000),
            "Neutral probe results in a row that also close the breaker: the tool responds."
        ),
        setting!(
            Draft,
            "breaker.probe_lease",
            breaker.probe_lease,
            OrNone(span()),
            "A probe that is silent for longer than this is replaced by another; without one, it is the attempt \
             timeout, but at least two minutes."
        ),
        setting!(
            Draft,
            "breaker.force",
            breaker.force,
            Words(&[("no", Force::No), ("open", Force::Open)]),
            "Keeps the breaker open, whatever happens."
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
            "Maximum number of concurrent attempts; one more is answered with `overloaded` at once."
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
            "Maximum number of concurrent attempts over all tools of the same host or server."
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
