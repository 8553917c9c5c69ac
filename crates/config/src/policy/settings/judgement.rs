//! Settings that judge models, tools and faults: loop guard, trust, classification.

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
        setting!(Draft, "guard.mode", modes.guard, MODES, "The mode of the loop guard."),
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
            "Failures in one turn after which no more calls run in it."
        ),
        setting!(
            Draft,
            "guard.hold",
            guard.policy.hold,
            span(),
            "After a refusal, one call runs when this much time has passed; the time doubles each time."
        ),
        setting!(Draft, "guard.longest_hold", guard.policy.longest_hold, span(), "The longest such time."),
        setting!(
            Draft,
            "guard.turn_gap",
            guard.policy.turn_gap,
            span(),
            "Calls further apart than this, with none in flight, belong to different turns if the caller does not \
             name the turn."
        ),
        setting!(
            Draft,
            "guard.repeated_success",
            guard.repeated,
            Words(&[("ignore", Repeated::Ignore), ("warn", Repeated::Warn), ("refuse", Repeated::Refuse)]),
            "The same success with the same result, repeated. Polling is legitimate, so nothing is done by default."
        ),
        setting!(
            Draft,
            "guard.repeated_success_after",
            guard.repeated_after,
            Count(2..=10_000),
            "Number of equal successes from which on this applies."
        ),
    ]
}

pub(super) fn trust() -> Vec<Setting<Draft>> {
    vec![
        setting!(Draft, "trust.mode", modes.trust, MODES, "The mode of trust."),
        setting!(
            Draft,
            "trust.count",
            trust.count,
            OrNone(count()),
            "Number of counted failures in the window after which a tool loses trust. If several thresholds are set, \
             any of them is enough."
        ),
        setting!(
            Draft,
            "trust.consecutive",
            trust.consecutive,
            OrNone(count()),
            "Number of counted failures in a row after which a tool loses trust."
        ),
        setting!(
            Draft,
            "trust.rate",
            trust.rate,
            OrNone(Share),
            "Rate of counted failures in the window at which a tool loses trust."
        ),
        setting!(
            Draft,
            "trust.rate_at_least",
            trust.rate_at_least,
            count(),
            "Minimum number of finished calls for the rate."
        ),
        setting!(
            Draft,
            "trust.expected_failure_rate",
            trust.expected_failure_rate,
            Share,
            "The expected failure rate of the tool. It does not count towards the rate."
        ),
        setting!(Draft, "trust.window", trust.window, lifetime(), "Older failures do not count."),
        setting!(
            Draft,
            "trust.severities",
            trust.severities,
            ListOf { item: SEVERITIES, least: 1, most: 12 },
            "Which failures count. A security failure counts at once, whatever is written here."
        ),
        setting!(
            Draft,
            "trust.duration",
            trust.duration,
            lifetime(),
            "The minimum duration of an escalation."
        ),
        setting!(
            Draft,
            "trust.cooldown",
            trust.cooldown,
            Span(Duration::ZERO..=YEAR),
            "How long no counted failure may occur before recovery can start."
        ),
        setting!(
            Draft,
            "trust.successes_to_recover",
            trust.successes_to_recover,
            count(),
            "Number of successes after which a tool is trusted again."
        ),
        setting!(
            Draft,
            "trust.block_after",
            trust.block_after,
            count(),
            "Number of counted failures while escalated after which the tool is blocked."
        ),
        setting!(
            Draft,
            "trust.recovery",
            trust.recovery,
            Words(&[("auto", Recovery::Auto), ("ask", Recovery::Ask)]),
            "Recovery starts automatically after the cooldown, or only after approval."
        ),
        setting!(
            Draft,
            "trust.notify",
            trust.notify,
            Flag,
            "True: notifications are sent when trust is lost or restored."
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
            "The meaning of a transport error that no rule matches."
        ),
        setting!(
            Draft,
            "classify.rules",
            classify.rules,
            FaultRuleList,
            "Faults with a different meaning for this tool, with examples that must and must not match. The rules of \
             a more specific place replace all of a less specific one."
        ),
        setting!(
            Draft,
            "shapes.allow",
            danger.allow,
            ListOf { item: ShapeName, least: 0, most: 64 },
            "Built-in shapes of dangerous commands that are allowed here."
        ),
        setting!(Draft, "shapes.add", danger.add, NewShapes, "Additional shapes of dangerous commands."),
    ]
}

pub(crate) const SEVERITIES: Words<Severity> = Words(Severity::WORDS);
