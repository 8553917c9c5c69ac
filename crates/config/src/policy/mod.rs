//! The settings of a policy, and the draft that holds them.
//!
//! A [`PolicyDraft`] is a policy in the pieces that are written one by one. The policy joins some of them into one value
//! (a backoff, a rate rule). A draft is always complete and always finishes into a valid policy, whatever subset of
//! settings was written over it.

pub(crate) mod faults;
mod settings;
pub(crate) mod shapes;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::danger::{CommandShape, DangerousShapes};
use steadfast_core::classify::{FaultNature, OverrideRule, Overrides};
use steadfast_core::policy::{
    ApprovalPolicy, ArgumentCheck, Backoff, BreakerCooldown, BudgetPolicy, CallPolicy, DedupePolicy,
    DelayOrigin, EnforcementMode, GrowthFactor, GuardPolicy, Jitter, LimitPolicy, MechanismModes, RateRule,
    Ratio, RepeatPolicy, RepeatedSuccessPolicy, RetryPolicy, SettlingPolicy, SlowRule, TimePolicy, ToolClass,
    TrustRule,
};
use steadfast_core::verification::VerificationMethod;

pub(crate) use settings::{CLASS, class_name, classes, settings};

/// A policy in the pieces that are written one by one.
#[derive(Clone, Debug)]
pub(crate) struct PolicyDraft {
    /// Class of the tool. It is decided before any rule is applied, because it decides which rules apply.
    pub(crate) class: ToolClass,
    mode: EnforcementMode,
    pub(crate) modes: MechanismModes,
    time: TimePolicy,
    retry: RetryDraft,
    repeat: RepeatPolicy,
    pub(crate) dedupe: DedupePolicy,
    settling: SettlingPolicy,
    breaker: BreakerDraft,
    limits: LimitPolicy,
    dependency_limits: LimitPolicy,
    guard: GuardDraft,
    pub(crate) trust: TrustRule,
    approval: ApprovalPolicy,
    arguments: ArgumentCheck,
    verify: Option<VerificationMethod>,
    result_limit: Option<usize>,
    classify: ClassifyDraft,
    danger: DangerDraft,
}

#[derive(Clone, Debug)]
struct RetryDraft {
    attempts: NonZeroU32,
    base: Duration,
    factor: GrowthFactor,
    cap: Duration,
    /// Explicit waits. If set, they replace base, factor and cap.
    waits: Option<Arc<[Duration]>>,
    jitter: Jitter,
    total: Option<Duration>,
    counted_from: DelayOrigin,
    longest_retry_after: Duration,
    budget_share: Ratio,
    budget_floor: u32,
}

#[derive(Clone, Debug)]
struct BreakerDraft {
    consecutive: Option<NonZeroU32>,
    rate: Option<Ratio>,
    rate_last: NonZeroU32,
    rate_at_least: NonZeroU32,
    slow_rate: Option<Ratio>,
    slower_than: Duration,
    window: Duration,
    cooldown: Duration,
    cooldown_growth: GrowthFactor,
    /// Maximum cooldown. Equal to the first cooldown if not set.
    cooldown_cap: Option<Duration>,
    close_after: NonZeroU32,
    neutral_close_after: NonZeroU32,
    /// Lease of a probe. Defaults to the attempt timeout, but at least two minutes.
    probe_lease: Option<Duration>,
    force: BreakerForce,
}

/// A breaker that is forced open by the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerForce {
    No,
    Open,
}

#[derive(Clone, Debug)]
struct GuardDraft {
    policy: GuardPolicy,
    repeated: RepeatedSuccessMode,
    repeated_after: NonZeroU32,
}

/// Reaction to the same success repeated many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepeatedSuccessMode {
    Ignore,
    Warn,
    Refuse,
}

#[derive(Clone, Debug)]
struct ClassifyDraft {
    unknown: FaultNature,
    rules: FaultRules,
}

/// Rules as they are written, and the same rules after checking.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultRules {
    pub(crate) written: Arc<[OverrideRule]>,
    pub(crate) checked: Arc<Overrides>,
}

#[derive(Clone, Debug)]
struct DangerDraft {
    allow: Arc<[Arc<str>]>,
    add: Arc<[CommandShape]>,
}

/// Minimum of the default probe lease.
const PROBE_LEASE: Duration = Duration::from_secs(120);
/// Default threshold for a slow call.
const SLOW: Duration = Duration::from_secs(10);
/// Default number of equal successes that count as repeated.
const MANY: NonZeroU32 = NonZeroU32::new(10).unwrap();

impl PolicyDraft {
    pub(crate) fn of(policy: CallPolicy) -> Self {
        let CallPolicy {
            class, modes, time, retry, repeat, dedupe, settling, breaker, limits, guard, ..
        } = policy;
        let CallPolicy { dependency_limits, trust, approval, arguments, verify, result_limit, .. } = policy;
        let rate = breaker.rate.unwrap_or(RateRule {
            threshold: Ratio::percent(50),
            last: NonZeroU32::MIN,
            at_least: NonZeroU32::MIN,
        });
        Self {
            class,
            mode: EnforcementMode::Enforce,
            modes,
            time,
            retry: RetryDraft::of(retry),
            repeat,
            dedupe,
            settling,
            breaker: BreakerDraft {
                consecutive: breaker.consecutive,
                rate: breaker.rate.map(|rate| rate.threshold),
                rate_last: rate.last,
                rate_at_least: rate.at_least,
                slow_rate: breaker.slow.map(|slow| slow.rate.threshold),
                slower_than: breaker.slow.map_or(SLOW, |slow| slow.slower_than),
                window: breaker.window,
                cooldown: breaker.cooldown.first,
                cooldown_growth: breaker.cooldown.growth,
                cooldown_cap: None,
                close_after: breaker.close_after,
                neutral_close_after: breaker.neutral_close_after,
                probe_lease: None,
                force: if breaker.forced_open { BreakerForce::Open } else { BreakerForce::No },
            },
            limits,
            dependency_limits,
            guard: GuardDraft { policy: guard, repeated: RepeatedSuccessMode::Ignore, repeated_after: MANY },
            trust,
            approval,
            arguments,
            verify,
            result_limit,
            classify: ClassifyDraft { unknown: FaultNature::Transient, rules: FaultRules::default() },
            danger: DangerDraft { allow: Arc::default(), add: Arc::default() },
        }
    }

    /// Returns the policy. Every draft has one.
    pub(crate) fn finish(self) -> CallPolicy {
        let Self { class, modes, time, retry, repeat, dedupe, settling, breaker, limits, guard, .. } = self;
        let Self { dependency_limits, trust, approval, arguments, verify, result_limit, .. } = self;
        let Self { classify, danger, .. } = self;
        let rate = |threshold| RateRule {
            threshold,
            last: breaker.rate_last,
            at_least: breaker.rate_at_least.min(breaker.rate_last),
        };
        CallPolicy {
            class,
            modes,
            time,
            retry: retry.finish(),
            repeat,
            dedupe,
            settling,
            breaker: steadfast_core::policy::BreakerPolicy {
                consecutive: breaker.consecutive,
                rate: breaker.rate.map(rate),
                slow: breaker
                    .slow_rate
                    .map(|threshold| SlowRule { slower_than: breaker.slower_than, rate: rate(threshold) }),
                window: breaker.window,
                cooldown: BreakerCooldown {
                    first: breaker.cooldown,
                    growth: breaker.cooldown_growth,
                    cap: breaker.cooldown_cap.unwrap_or(breaker.cooldown).max(breaker.cooldown),
                },
                close_after: breaker.close_after,
                neutral_close_after: breaker.neutral_close_after,
                // A probe is a call like any other, so it may be silent for as long as an attempt.
                probe_lease: breaker.probe_lease.unwrap_or(PROBE_LEASE.max(time.attempt)),
                forced_open: breaker.force == BreakerForce::Open,
            },
            limits,
            dependency_limits,
            guard: GuardPolicy {
                longest_hold: guard.policy.longest_hold.max(guard.policy.hold),
                repeated_success: match guard.repeated {
                    RepeatedSuccessMode::Ignore => RepeatedSuccessPolicy::Ignore,
                    RepeatedSuccessMode::Warn => RepeatedSuccessPolicy::Warn(guard.repeated_after),
                    RepeatedSuccessMode::Refuse => RepeatedSuccessPolicy::Refuse(guard.repeated_after),
                },
                ..guard.policy
            },
            trust,
            domain_trust: None,
            approval,
            arguments,
            verify,
            result_limit,
            classify: match classify.unknown {
                FaultNature::Transient => classify.rules.checked,
                FaultNature::Permanent => {
                    Arc::new((*classify.rules.checked).clone().with_unknown(FaultNature::Permanent))
                }
            },
            shapes: danger.finish(),
        }
    }
}

impl RetryDraft {
    fn of(policy: RetryPolicy) -> Self {
        let millis = Duration::from_millis;
        // Unused values stay available for a rule that changes the kind of backoff.
        let (base, factor, cap, waits) = match policy.backoff {
            Backoff::Exponential { base, factor, cap } => (base, factor, cap, None),
            Backoff::List { first, rest } => {
                let all: Arc<[Duration]> = std::iter::once(first).chain(rest).collect();
                (millis(200), GrowthFactor::TWO, millis(4000), Some(all))
            }
            Backoff::Constant(wait) => (wait, GrowthFactor::ONE, wait, None),
        };
        Self {
            attempts: policy.attempts,
            base,
            factor,
            cap,
            waits,
            jitter: policy.jitter,
            total: policy.total,
            counted_from: policy.counted_from,
            longest_retry_after: policy.longest_retry_after,
            budget_share: policy.budget.share,
            budget_floor: policy.budget.floor_per_second,
        }
    }

    fn finish(self) -> RetryPolicy {
        let backoff = match self.waits.as_deref().and_then(<[Duration]>::split_first) {
            Some((first, rest)) => Backoff::List { first: *first, rest: rest.to_vec() },
            None => {
                Backoff::Exponential { base: self.base, factor: self.factor, cap: self.cap.max(self.base) }
            }
        };
        RetryPolicy {
            attempts: self.attempts,
            backoff,
            jitter: self.jitter,
            total: self.total,
            counted_from: self.counted_from,
            longest_retry_after: self.longest_retry_after,
            budget: BudgetPolicy { share: self.budget_share, floor_per_second: self.budget_floor },
        }
    }
}

impl DangerDraft {
    fn finish(self) -> Arc<DangerousShapes> {
        let remaining =
            self.allow.iter().fold(DangerousShapes::default(), |shapes, name| shapes.without(name));
        Arc::new(self.add.iter().cloned().fold(remaining, DangerousShapes::with))
    }
}

/// Returns settings that are valid one by one but contradict each other: the name of one, and the reason.
pub(crate) fn contradictions(draft: &PolicyDraft) -> Vec<(&'static str, &'static str, String)> {
    use crate::kind::show_span;
    let mut found = Vec::new();
    let mut larger = |small: (&'static str, Duration), large: (&'static str, Duration)| {
        if small.1 > large.1 {
            let (a, b) = (show_span(small.1), show_span(large.1));
            found.push((small.0, large.0, format!("`{}` ({a}) is more than `{}` ({b})", small.0, large.0)));
        }
    };
    let PolicyDraft { retry, breaker, guard, dedupe, trust, class, .. } = draft;
    if retry.waits.is_none() {
        larger(("retry.base", retry.base), ("retry.cap", retry.cap));
    }
    larger(("guard.hold", guard.policy.hold), ("guard.longest_hold", guard.policy.longest_hold));
    if let Some(cap) = breaker.cooldown_cap {
        larger(("breaker.cooldown", breaker.cooldown), ("breaker.cooldown_cap", cap));
    }
    if breaker.rate_at_least > breaker.rate_last {
        let message = format!(
            "`breaker.rate_at_least` ({}) is more than `breaker.rate_last` ({}), so the rate never counts",
            breaker.rate_at_least, breaker.rate_last
        );
        found.push(("breaker.rate_at_least", "breaker.rate_last", message));
    }
    if let Some(rate) = trust.rate
        && trust.expected_failure_rate >= rate
        && trust.expected_failure_rate.get() > 0.0
    {
        let message = "`trust.expected_failure_rate` is not below `trust.rate`: a tool loses trust only when its failure rate reaches the sum of both";
        let message = message.to_owned();
        found.push(("trust.expected_failure_rate", "trust.rate", message));
    }
    if dedupe.scope == steadfast_core::policy::KeyScope::Global && *class == ToolClass::Mutating {
        let message = "`dedupe.scope` is \"global\" for a mutating tool, where it has no effect".to_owned();
        found.push(("dedupe.scope", "dedupe.scope", message));
    }
    found
}
