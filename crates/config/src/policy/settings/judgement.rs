//! What is thought of models, tools and faults: guard, trust, classification.

use std::time::Duration;

use steadfast_core::classify::{Nature, Severity};
use steadfast_core::policy::Recovery;

use super::super::faults::FaultRuleList;
use super::super::shapes::{NewShapes, ShapeName};
use super::super::{Draft, Repeated};
use super::{MODES, YEAR, count, lifetime, span};
use crate::kind::{Count, Flag, ListOf, OrNone, Share, Span, Words};
use crate::setting::{Setting, setting};

pub(super) fn guard() -> Vec<Setting<Draft>> {
    vec![
        setting!(Draft, "guard.mode", modes.guard, MODES, "How far the guard against loops may go."),
        setting!(
            Draft,
            "guard.identical",
            guard.policy.identical,
            Count(1..=1000),
            "Identical failures after which the model is told to stop."
        ),
        setting!(
            Draft,
            "guard.per_turn",
            guard.policy.per_turn,
            Count(1..=10_000),
            "Failures in one turn after which nothing runs any more in it."
        ),
        setting!(
            Draft,
            "guard.hold",
            guard.policy.hold,
            span(),
            "After a refusal one try is let through when this much time has passed; doubles each \
             time."
        ),
        setting!(Draft, "guard.longest_hold", guard.policy.longest_hold, span(), "The longest such time."),
        setting!(
            Draft,
            "guard.turn_gap",
            guard.policy.turn_gap,
            span(),
            "Calls further apart than this, with none in flight, are of two turns where nobody \
             tells the turn."
        ),
        setting!(
            Draft,
            "guard.repeated_success",
            guard.repeated,
            Words(&[("ignore", Repeated::Ignore), ("warn", Repeated::Warn), ("refuse", Repeated::Refuse)]),
            "The same success with the same result, again and again. Polling is legitimate, so \
             that nothing is done unless asked for."
        ),
        setting!(
            Draft,
            "guard.repeated_success_after",
            guard.repeated_after,
            Count(2..=10_000),
            "From how many on."
        ),
    ]
}

pub(super) fn trust() -> Vec<Setting<Draft>> {
    vec![
        setting!(Draft, "trust.mode", modes.trust, MODES, "How far trust may go."),
        setting!(
            Draft,
            "trust.count",
            trust.count,
            OrNone(count()),
            "So many counted failures in the window cost a tool its trust. Several thresholds \
             mean any of them."
        ),
        setting!(
            Draft,
            "trust.consecutive",
            trust.consecutive,
            OrNone(count()),
            "So many counted failures in a row."
        ),
        setting!(
            Draft,
            "trust.rate",
            trust.rate,
            OrNone(Share),
            "So large a share of counted failures in the window."
        ),
        setting!(
            Draft,
            "trust.rate_at_least",
            trust.rate_at_least,
            count(),
            "The rate says nothing below this many finished calls."
        ),
        setting!(
            Draft,
            "trust.expected_failure_rate",
            trust.expected_failure_rate,
            Share,
            "This share of failures is expected of the tool and does not count towards the rate."
        ),
        setting!(Draft, "trust.window", trust.window, lifetime(), "What is older does not count."),
        setting!(
            Draft,
            "trust.severities",
            trust.severities,
            ListOf { item: SEVERITIES, least: 1, most: 12 },
            "Which failures count. Security counts at once, whatever is written here."
        ),
        setting!(
            Draft,
            "trust.duration",
            trust.duration,
            lifetime(),
            "How long an escalation lasts at least."
        ),
        setting!(
            Draft,
            "trust.cooldown",
            trust.cooldown,
            Span(Duration::ZERO..=YEAR),
            "How long without a counted failure before recovery may start."
        ),
        setting!(
            Draft,
            "trust.successes_to_recover",
            trust.successes_to_recover,
            count(),
            "Successes that earn trust back."
        ),
        setting!(
            Draft,
            "trust.block_after",
            trust.block_after,
            count(),
            "Counted failures while escalated that block the tool."
        ),
        setting!(
            Draft,
            "trust.recovery",
            trust.recovery,
            Words(&[("auto", Recovery::Auto), ("ask", Recovery::Ask)]),
            "Who lets recovery start: time, or a person."
        ),
        setting!(
            Draft,
            "trust.notify",
            trust.notify,
            Flag,
            "Whether people are told when trust is lost or won."
        ),
    ]
}

pub(super) fn faults() -> Vec<Setting<Draft>> {
    const NATURES: Words<Nature> =
        Words(&[("transient", Nature::Transient), ("permanent", Nature::Permanent)]);
    vec![
        setting!(
            Draft,
            "classify.unknown",
            classify.unknown,
            NATURES,
            "What an error of the transport means that no rule knows."
        ),
        setting!(
            Draft,
            "classify.rules",
            classify.rules,
            FaultRuleList,
            "Faults that mean something else for this tool, with examples that must and must not \
             match. The rules of a more specific place replace all of a less specific one."
        ),
        setting!(
            Draft,
            "shapes.allow",
            danger.allow,
            ListOf { item: ShapeName, least: 0, most: 64 },
            "Shapes of dangerous commands that are not dangerous here."
        ),
        setting!(Draft, "shapes.add", danger.add, NewShapes, "Further shapes of dangerous commands."),
    ]
}

pub(crate) const SEVERITIES: Words<Severity> = Words(Severity::WORDS);
