//! Settings that judge models, tools and faults: loop guard, trust, classification.

use std::time::Duration;

use steadfast_core::classify::FaultNature;
use steadfast_core::policy::TrustRecovery;

use super::super::faults::{FaultRuleList, SEVERITIES};
use super::super::shapes::{NewShapes, ShapeName};
use super::super::{PolicyDraft, RepeatedSuccessMode};
use super::{MODES, YEAR, count, lifetime, span};
use crate::kind::{BoolKind, Count, DurationKind, ListKind, OptionalKind, ShareKind, WordKind};
use crate::setting::{Setting, setting};

pub(super) fn guard() -> Vec<Setting<PolicyDraft>> {
    vec![
        setting!(PolicyDraft, "guard.mode", modes.guard, MODES, "The mode of the loop guard."),
        setting!(
            PolicyDraft,
            "guard.identical",
            guard.policy.identical,
            Count(1..=1000),
            "Identical failures after which the model is told to stop."
        ),
        setting!(
            PolicyDraft,
            "guard.per_turn",
            guard.policy.per_turn,
            Count(1..=10_000),
            "Failures in one turn after which no more calls run in it."
        ),
        setting!(
            PolicyDraft,
            "guard.hold",
            guard.policy.hold,
            span(),
            "After a refusal, one call runs when this much time has passed; the time doubles each time."
        ),
        setting!(
            PolicyDraft,
            "guard.longest_hold",
            guard.policy.longest_hold,
            span(),
            "The longest such time."
        ),
        setting!(
            PolicyDraft,
            "guard.turn_gap",
            guard.policy.turn_gap,
            span(),
            "Calls further apart than this, with none in flight, belong to different turns if the caller does not \
             name the turn."
        ),
        setting!(
            PolicyDraft,
            "guard.repeated_success",
            guard.repeated,
            WordKind(&[
                ("ignore", RepeatedSuccessMode::Ignore),
                ("warn", RepeatedSuccessMode::Warn),
                ("refuse", RepeatedSuccessMode::Refuse)
            ]),
            "The same success with the same result, repeated. Polling is legitimate, so nothing is done by default."
        ),
        setting!(
            PolicyDraft,
            "guard.repeated_success_after",
            guard.repeated_after,
            Count(2..=10_000),
            "Number of equal successes that are reported as a repetition."
        ),
    ]
}

pub(super) fn trust() -> Vec<Setting<PolicyDraft>> {
    vec![
        setting!(PolicyDraft, "trust.mode", modes.trust, MODES, "The mode of trust."),
        setting!(
            PolicyDraft,
            "trust.count",
            trust.count,
            OptionalKind(count()),
            "Number of counted failures in the window after which a tool loses trust. If several thresholds are set, \
             any of them is enough."
        ),
        setting!(
            PolicyDraft,
            "trust.consecutive",
            trust.consecutive,
            OptionalKind(count()),
            "Number of counted failures in a row after which a tool loses trust."
        ),
        setting!(
            PolicyDraft,
            "trust.rate",
            trust.rate,
            OptionalKind(ShareKind),
            "Rate of counted failures in the window at which a tool loses trust."
        ),
        setting!(
            PolicyDraft,
            "trust.rate_at_least",
            trust.rate_at_least,
            count(),
            "Minimum number of finished calls for the rate."
        ),
        setting!(
            PolicyDraft,
            "trust.expected_failure_rate",
            trust.expected_failure_rate,
            ShareKind,
            "The expected failure rate of the tool. It does not count towards the rate."
        ),
        setting!(PolicyDraft, "trust.window", trust.window, lifetime(), "Older failures do not count."),
        setting!(
            PolicyDraft,
            "trust.severities",
            trust.severities,
            ListKind { item: SEVERITIES, least: 1, most: 12 },
            "Which failures count. A security failure counts at once in any case."
        ),
        setting!(
            PolicyDraft,
            "trust.duration",
            trust.duration,
            lifetime(),
            "The minimum duration of an escalation."
        ),
        setting!(
            PolicyDraft,
            "trust.cooldown",
            trust.cooldown,
            DurationKind(Duration::ZERO..=YEAR),
            "How long no counted failure may occur before recovery can start."
        ),
        setting!(
            PolicyDraft,
            "trust.successes_to_recover",
            trust.successes_to_recover,
            count(),
            "Number of successes after which a tool is trusted again."
        ),
        setting!(
            PolicyDraft,
            "trust.block_after",
            trust.block_after,
            count(),
            "Number of counted failures while escalated after which the tool is blocked."
        ),
        setting!(
            PolicyDraft,
            "trust.recovery",
            trust.recovery,
            WordKind(&[("auto", TrustRecovery::Auto), ("ask", TrustRecovery::Ask)]),
            "Recovery starts automatically after the cooldown, or only after approval."
        ),
        setting!(
            PolicyDraft,
            "trust.notify",
            trust.notify,
            BoolKind,
            "True: notifications are sent when trust is lost or restored."
        ),
    ]
}

pub(super) fn faults() -> Vec<Setting<PolicyDraft>> {
    const NATURES: WordKind<FaultNature> =
        WordKind(&[("transient", FaultNature::Transient), ("permanent", FaultNature::Permanent)]);
    vec![
        setting!(
            PolicyDraft,
            "classify.unknown",
            classify.unknown,
            NATURES,
            "The meaning of a transport error that no rule matches."
        ),
        setting!(
            PolicyDraft,
            "classify.rules",
            classify.rules,
            FaultRuleList,
            "Faults with a different meaning for this tool, with examples that must and must not match. The rules of \
             a more specific place replace all of a less specific one."
        ),
        setting!(
            PolicyDraft,
            "shapes.allow",
            danger.allow,
            ListKind { item: ShapeName, least: 0, most: 64 },
            "Built-in shapes of dangerous commands that are allowed here."
        ),
        setting!(
            PolicyDraft,
            "shapes.add",
            danger.add,
            NewShapes,
            "Additional shapes of dangerous commands."
        ),
    ]
}
