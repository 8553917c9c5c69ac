//! Settings of attempts: retries, circuit breaker, limits.

use serde_json::{Value as Json, json};
use steadfast_core::policy::{DelayOrigin, Jitter, RateRule, Ratio};

use super::super::{BreakerForce, PolicyDraft};
use super::{MODES, count, span, span_or_zero};
use crate::kind::{Count, Growth, ListKind, OptionalKind, RateKind, SettingKind, ShareKind, WordKind};
use crate::node::{ConfigNode, RawNode};
use crate::read_context::ReadContext;
use crate::setting::{Setting, setting};

pub(super) fn retry() -> Vec<Setting<PolicyDraft>> {
    vec![
        setting!(PolicyDraft, "retry.mode", modes.retry, MODES, "The mode of retries."),
        setting!(
            PolicyDraft,
            "retry.attempts",
            retry.attempts,
            Count(1..=100),
            "Maximum number of attempts, including the first. Raising it adds load to a failing tool."
        ),
        setting!(PolicyDraft, "retry.base", retry.base, span_or_zero(), "The wait before the first retry.")
            .also(|draft| draft.retry.waits = None)
            .shown_if(|draft| draft.retry.waits.is_none()),
        setting!(
            PolicyDraft,
            "retry.factor",
            retry.factor,
            Growth,
            "The factor by which the wait grows with each retry."
        )
        .also(|draft| draft.retry.waits = None)
        .shown_if(|draft| draft.retry.waits.is_none()),
        setting!(PolicyDraft, "retry.cap", retry.cap, span_or_zero(), "The longest wait.")
            .also(|draft| draft.retry.waits = None)
            .shown_if(|draft| draft.retry.waits.is_none()),
        setting!(
            PolicyDraft,
            "retry.waits",
            retry.waits,
            OptionalKind(ListKind { item: span_or_zero(), least: 1, most: 32 }),
            "Explicit waits, instead of base, factor and cap; the last one repeats."
        )
        .shown_if(|draft| draft.retry.waits.is_some())
        .excludes(&["retry.base", "retry.factor", "retry.cap"]),
        setting!(
            PolicyDraft,
            "retry.jitter",
            retry.jitter,
            JitterKind,
            "How waits are randomised, so that many clients do not retry at the same moment: \"full\" is anything up \
             to the whole wait, 0.1 is the wait plus or minus a tenth."
        ),
        setting!(
            PolicyDraft,
            "retry.total",
            retry.total,
            OptionalKind(span_or_zero()),
            "No attempt starts later than this after the first one."
        ),
        setting!(
            PolicyDraft,
            "retry.counted_from",
            retry.counted_from,
            WordKind(&[
                ("attempt_end", DelayOrigin::AttemptEnd),
                ("attempt_start", DelayOrigin::AttemptStart)
            ]),
            "The start of a wait. If it is the start of the attempt, a slow failure is retried at once."
        ),
        setting!(
            PolicyDraft,
            "retry.longest_retry_after",
            retry.longest_retry_after,
            span_or_zero(),
            "The longest `Retry-After` that is honoured; a longer one ends the call."
        ),
        setting!(
            PolicyDraft,
            "retry.budget_share",
            retry.budget_share,
            ShareKind,
            "The retry budget of one dependency: retries per first attempt, over all its calls. Raising it turns an \
             outage into more load."
        ),
        setting!(
            PolicyDraft,
            "retry.budget_floor",
            retry.budget_floor,
            Count(0..=10_000),
            "Retries per second that are always allowed, so that a rarely used tool can be retried."
        ),
    ]
}

pub(super) fn breaker() -> Vec<Setting<PolicyDraft>> {
    vec![
        setting!(PolicyDraft, "breaker.mode", modes.breaker, MODES, "The mode of the circuit breaker."),
        setting!(
            PolicyDraft,
            "breaker.consecutive",
            breaker.consecutive,
            OptionalKind(count()),
            "Failures in a row that open the breaker."
        ),
        setting!(
            PolicyDraft,
            "breaker.rate",
            breaker.rate,
            OptionalKind(ShareKind),
            "The failure rate that opens the breaker."
        ),
        setting!(
            PolicyDraft,
            "breaker.rate_last",
            breaker.rate_last,
            Count(1..=RateRule::MOST),
            "Number of last attempts over which the rates are taken."
        ),
        setting!(
            PolicyDraft,
            "breaker.rate_at_least",
            breaker.rate_at_least,
            Count(1..=RateRule::MOST),
            "Minimum number of attempts for a rate."
        ),
        setting!(
            PolicyDraft,
            "breaker.slow_rate",
            breaker.slow_rate,
            OptionalKind(ShareKind),
            "The rate of slow responses that opens the breaker."
        ),
        setting!(
            PolicyDraft,
            "breaker.slower_than",
            breaker.slower_than,
            span(),
            "The threshold for a slow response."
        ),
        setting!(PolicyDraft, "breaker.window", breaker.window, span(), "Older attempts do not count."),
        setting!(
            PolicyDraft,
            "breaker.cooldown",
            breaker.cooldown,
            span(),
            "How long the breaker stays open before a probe. Raising it keeps a recovered tool unused for longer."
        ),
        setting!(
            PolicyDraft,
            "breaker.cooldown_growth",
            breaker.cooldown_growth,
            Growth,
            "The factor by which the cooldown grows each time a probe fails."
        ),
        setting!(
            PolicyDraft,
            "breaker.cooldown_cap",
            breaker.cooldown_cap,
            OptionalKind(span()),
            "The maximum cooldown; without one it does not grow."
        ),
        setting!(
            PolicyDraft,
            "breaker.close_after",
            breaker.close_after,
            Count(1..=1000),
            "Successful probes in a row that close the breaker."
        ),
        setting!(
            PolicyDraft,
            "breaker.neutral_close_after",
            breaker.neutral_close_after,
            Count(1..=1000),
            "Neutral probe results in a row that also close the breaker: the tool responds."
        ),
        setting!(
            PolicyDraft,
            "breaker.probe_lease",
            breaker.probe_lease,
            OptionalKind(span()),
            "A probe that is silent for longer than this is replaced by another; without one, it is the attempt \
             timeout, but at least two minutes."
        ),
        setting!(
            PolicyDraft,
            "breaker.force",
            breaker.force,
            WordKind(&[("no", BreakerForce::No), ("open", BreakerForce::Open)]),
            "Keeps the breaker open until this setting changes."
        ),
    ]
}

pub(super) fn limits() -> Vec<Setting<PolicyDraft>> {
    vec![
        setting!(
            PolicyDraft,
            "limits.concurrency",
            limits.concurrency,
            OptionalKind(count()),
            "Maximum number of concurrent attempts; one more is answered with `overloaded` at once."
        ),
        setting!(
            PolicyDraft,
            "limits.rate",
            limits.rate,
            OptionalKind(RateKind),
            "Attempts per time, refilled evenly; also the largest burst."
        ),
        setting!(
            PolicyDraft,
            "limits.dependency_concurrency",
            dependency_limits.concurrency,
            OptionalKind(count()),
            "Maximum number of concurrent attempts over all tools of the same host or server."
        ),
        setting!(
            PolicyDraft,
            "limits.dependency_rate",
            dependency_limits.rate,
            OptionalKind(RateKind),
            "Attempts per time over all tools of the same host or server."
        ),
    ]
}

/// `"full"`, `"none"`, or a share.
struct JitterKind;

impl SettingKind<Jitter> for JitterKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Jitter> {
        match node.text() {
            Some("full") => return Some(Jitter::Full),
            Some("none") => return Some(Jitter::None),
            Some(_) | None => {}
        }
        let share = match &node.raw {
            RawNode::Float(share) => Some(*share),
            RawNode::Integer(0) => Some(0.0),
            RawNode::Integer(1) => Some(1.0),
            RawNode::Loose(text) => text.trim().parse().ok(),
            RawNode::Integer(_)
            | RawNode::Boolean(_)
            | RawNode::String(_)
            | RawNode::Foreign(_)
            | RawNode::Array(_)
            | RawNode::Table(_) => None,
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
            Jitter::Proportional(share) => ShareKind.show(share),
        }
    }

    fn takes(&self) -> String {
        "\"full\", \"none\" or a share from 0 to 1".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "anyOf": [{ "enum": ["full", "none"] }, ShareKind.schema()] })
    }
}
