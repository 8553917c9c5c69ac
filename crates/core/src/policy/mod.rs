//! The resolved policy of a tool, complete and always valid.
//!
//! Every setting of a [`CallPolicy`] has a value, and the types of its fields admit no invalid one. Files, layers and
//! environment variables belong to the config crate, which produces the types of this module.

mod values;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use values::{GrowthFactor, InvalidValue, Ratio};

use crate::classify::danger::DangerousShapes;
use crate::classify::{Overrides, Severity};
use crate::template::KeyTemplate;
use crate::verification::{VerificationCall, VerificationMethod};

/// The class of a tool: the effect of running it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolClass {
    /// A run changes nothing.
    ReadOnly,
    /// A second run with the same arguments has no further effect.
    Idempotent,
    /// Each run has its own effect.
    Mutating,
    /// The class is not known.
    Unknown,
}

/// The annotations of an MCP server about its tool. They are hints, not facts: the code that decides the class of a
/// tool decides which of them to trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnnotationHints {
    /// `readOnlyHint`.
    pub read_only: Option<bool>,
    /// `destructiveHint`.
    pub destructive: Option<bool>,
    /// `idempotentHint`.
    pub idempotent: Option<bool>,
}

impl AnnotationHints {
    /// Returns the annotations without the claims that a tool is safe to repeat, for servers that are not trusted. The
    /// claim that a tool is not safe to repeat is accepted from every server.
    #[must_use]
    pub fn without_safe_claims(self) -> Self {
        match self.read_only {
            // A tool that is marked as read-only cannot be destructive, whatever the other hint.
            Some(true) => Self::default(),
            Some(false) | None => Self { idempotent: None, ..self },
        }
    }
}

/// The mode of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EnforcementMode {
    /// The mechanism does nothing.
    Off,
    /// The mechanism decides and reports its decisions, but changes nothing.
    Shadow,
    /// The mechanism acts on its decisions.
    Enforce,
}

/// The mode of each mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the mechanisms by name")]
pub struct MechanismModes {
    pub dedupe: EnforcementMode,
    pub retry: EnforcementMode,
    pub breaker: EnforcementMode,
    pub guard: EnforcementMode,
    pub trust: EnforcementMode,
}

impl MechanismModes {
    /// Returns true if all mechanisms are off, time limits included.
    pub fn are_off(&self) -> bool {
        self.strongest() == EnforcementMode::Off
    }

    /// Returns the mode of everything that belongs to no single mechanism: limits of time and number, the check of
    /// arguments, and additions to the request. It is the strongest mode of all mechanisms.
    pub fn strongest(&self) -> EnforcementMode {
        self.dedupe.max(self.retry).max(self.breaker).max(self.guard).max(self.trust)
    }

    /// Returns true if every call and every response passes unchanged, because no mechanism acts on its decisions.
    pub fn is_pass_through(&self) -> bool {
        self.strongest() != EnforcementMode::Enforce
    }

    /// Returns the same mode for all mechanisms.
    pub const fn all(mode: EnforcementMode) -> Self {
        Self { dedupe: mode, retry: mode, breaker: mode, guard: mode, trust: mode }
    }
}

/// The settings of a tool, resolved before the call.
#[derive(Clone, Debug)]
pub struct CallPolicy {
    /// Class of the tool.
    pub class: ToolClass,
    /// Modes of the mechanisms.
    pub modes: MechanismModes,
    /// Time limits.
    pub time: TimePolicy,
    /// Retry settings.
    pub retry: RetryPolicy,
    /// Safety of repeating a call with an unknown outcome.
    pub repeat: RepeatPolicy,
    /// Deduplication settings.
    pub dedupe: DedupePolicy,
    /// Time after which an attempt with an unknown outcome can no longer take effect.
    pub settling: SettlingPolicy,
    /// Circuit breaker settings.
    pub breaker: BreakerPolicy,
    /// Rate and concurrency limits of the tool.
    pub limits: LimitPolicy,
    /// Rate and concurrency limits of all calls that depend on the same host or server.
    pub dependency_limits: LimitPolicy,
    /// Loop guard settings.
    pub guard: GuardPolicy,
    /// Rule by which the tool loses trust.
    pub trust: TrustRule,
    /// Rule by which everything in its domain loses trust, if the domain has a rule.
    pub domain_trust: Option<TrustRule>,
    /// Approval settings.
    pub approval: ApprovalPolicy,
    /// Handling of arguments that violate the tool's schema.
    pub arguments: ArgumentCheck,
    /// Instructions or a call by which the caller can check if a call took effect.
    pub verify: Option<VerificationMethod>,
    /// Maximum bytes of text of one result that a caller receives. The rest is stored and can be read page by page. A
    /// lower value costs callers that need the whole text a request per page.
    pub result_limit: Option<usize>,
    /// Faults that have another meaning for this tool.
    pub classify: Arc<Overrides>,
    /// Commands that count as dangerous for this tool.
    pub shapes: Arc<DangerousShapes>,
}

/// The time limits of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimePolicy {
    /// Timeout of one attempt without progress. A higher value makes agents wait longer for a dead tool.
    pub attempt: Duration,
    /// Timeout of the whole call, with or without progress.
    pub total: Duration,
    /// No retry starts later than this after the first attempt.
    pub last_retry: Option<Duration>,
    /// Time after which the caller is told that the call is still running. The attempt continues.
    pub answer_by: Option<Duration>,
    /// Handling of an attempt without progress.
    pub silence: SilencePolicy,
}

impl TimePolicy {
    /// Returns the latest time after the first attempt at which a retry may start. A retry that starts when the whole
    /// call is over would be cut at once, and its outcome would be unknown.
    pub fn latest_retry(&self) -> Duration {
        let before_the_end = self.total.saturating_sub(Duration::from_millis(1));
        self.last_retry.map_or(before_the_end, |last| last.min(before_the_end))
    }
}

/// The handling of an attempt without progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SilencePolicy {
    /// A timeout of the tool. The call may be retried.
    Timeout,
    /// A stuck call. The watchdog ends it.
    Stuck,
}

/// The retry settings of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Total number of attempts, including the first one.
    pub attempts: NonZeroU32,
    /// Delay between attempts.
    pub backoff: Backoff,
    /// Random spread of delays.
    pub jitter: Jitter,
    /// No attempt starts later than this after the first one.
    pub total: Option<Duration>,
    /// Start of each delay.
    pub counted_from: DelayOrigin,
    /// Longest `Retry-After` that is waited for. A longer one ends the call.
    pub longest_retry_after: Duration,
    /// Retry budget of all calls to one dependency.
    pub budget: BudgetPolicy,
}

/// The delay before the nth retry.
#[derive(Clone, Debug, PartialEq)]
pub enum Backoff {
    /// `base`, then `factor` times as much each time, up to `cap`.
    Exponential {
        /// Delay before the first retry.
        base: Duration,
        /// Growth per retry.
        factor: GrowthFactor,
        /// Maximum delay.
        cap: Duration,
    },
    /// `first`, then the rest in order. The last one repeats.
    List {
        /// Delay before the first retry.
        first: Duration,
        /// Delays before the retries after it.
        rest: Vec<Duration>,
    },
    /// The same delay each time.
    Constant(Duration),
}

/// The random spread of delays, so that a fleet does not retry at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Any delay from zero to the full one.
    Full,
    /// The delay, plus or minus this share of it.
    Proportional(Ratio),
    /// The exact delay.
    None,
}

/// The start of a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayOrigin {
    /// The end of the failed attempt.
    AttemptEnd,
    /// The start of the failed attempt, so that a slow failure is retried at once.
    AttemptStart,
}

/// The retry budget: the number of retries that one dependency may add to its first attempts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetPolicy {
    /// Retries per first attempt.
    pub share: Ratio,
    /// Retries per second that are always allowed, so that a quiet tool can retry.
    pub floor_per_second: u32,
}

/// The safety of repeating a call when it is unknown if the tool ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatPolicy {
    /// True if the operator guarantees that the tool may run again.
    pub retry_safe: bool,
    /// True if the tool itself recognises the idempotency key that is sent along.
    pub honours_key: bool,
    /// Handling of tools of class `unknown`.
    pub ambiguous: AmbiguousOutcomePolicy,
}

/// The handling of an unknown outcome for a tool of unknown class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AmbiguousOutcomePolicy {
    /// Retry the call.
    Retry,
    /// Stop and report the unknown outcome.
    Stop,
}

/// The deduplication settings of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupePolicy {
    /// Handling of a key that is used again with other parameters.
    pub conflict: KeyConflictPolicy,
    /// Failures that are replayed for the same key.
    pub cache_failures: FailureReplayPolicy,
    /// Handling of a call without a key after an unknown outcome.
    pub after_unknown: UnknownOutcomePolicy,
    /// Computed keys for calls without a key.
    pub computed_keys: ComputedKeyPolicy,
    /// Scope of computed keys.
    pub scope: KeyScope,
    /// Comparison of strings. By class if not set.
    pub strings: Option<StringRule>,
    /// Template of the key, for calls without a key.
    pub key: Option<Arc<KeyTemplate>>,
    /// Argument in which the tool itself receives the key.
    pub key_argument: Option<Arc<str>>,
    /// Top-level parameters that are ignored in the comparison.
    pub volatile: Arc<[Box<str>]>,
    /// Lifetimes of records.
    pub keep: RecordLifetimes,
    /// True if identical calls without a key are one dispatch when the second one came before the response to the first
    /// one.
    pub double_dispatch: bool,
    /// Time for which an undelivered result is kept for a resend without a key.
    pub undelivered: Duration,
    /// Time after the final response about an unknown outcome before which a repeat without a key does not run, unless
    /// its caller has verified the outcome.
    pub after_telling: Duration,
    /// Age from which a response may have missed its caller. It does not count as delivered.
    pub late_after: Duration,
    /// Handling of calls of class `unknown` when the store is down.
    pub on_store_failure: StoreFailurePolicy,
    /// Handling of calls with an explicit key when the store is down, for all classes.
    pub explicit_key_on_store_failure: StoreFailurePolicy,
    /// Largest output that is stored.
    pub largest_output: usize,
}

/// The settings for an attempt with an unknown outcome: the time after which it can no longer take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettlingPolicy {
    /// Location of the effects of a child process.
    pub effects: EffectLocation,
    /// Time for which an attempt may still take effect if its end cannot be observed.
    pub linger: Duration,
    /// Time for which work may still take effect that was handed on to another service.
    pub settle: Duration,
    /// Time in which a child process must respond after an attempt was cancelled, before it counts as hung.
    pub grace: Duration,
    /// Time for the other calls of a hung child process before it is ended.
    pub drain: Duration,
}

impl SettlingPolicy {
    /// Returns the time for which work may still take effect after a child process was ended.
    pub fn after_child(&self) -> Duration {
        match self.effects {
            EffectLocation::Local => Duration::ZERO,
            EffectLocation::Remote => self.settle,
        }
    }

    /// Returns the longest time until a hung child process has been ended.
    pub fn child_stop_time(&self) -> Duration {
        self.grace + self.drain + KILLED
    }
}

/// The longest time to end a child process and everything that it started.
const KILLED: Duration = Duration::from_secs(10);

/// The location of the effects of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectLocation {
    /// In the child process and its own children: there are no effects once they are gone.
    Local,
    /// Possibly elsewhere: work that was handed on may continue.
    Remote,
}

/// The handling of a key that is used again with other parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyConflictPolicy {
    /// An error. Nothing runs.
    Reject,
    /// The parameters become a part of the key, so it is another call.
    Separate,
}

/// The failures that are replayed for the same explicit key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureReplayPolicy {
    /// Failures that will not change.
    Terminal,
    /// All failures.
    All,
    /// No failures.
    None,
}

/// The handling of a call without a key after an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownOutcomePolicy {
    /// The unknown outcome is reported until the response arrived. A later repeat runs.
    TellOnce,
    /// The unknown outcome is reported until it is resolved.
    Hold,
}

/// Computed keys for calls without a key. A switch for incidents in which different calls look alike: keys and call ids
/// from callers still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputedKeyPolicy {
    /// The key is computed from tool, arguments and caller.
    Derive,
    /// No key is computed: each such call is separate, whatever the caller requests.
    Never,
}

/// The scope of a computed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyScope {
    /// Calls of one session and actor.
    Session,
    /// All calls of the tenant. Used only for read-only tools.
    Global,
}

/// The comparison of strings for a computed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StringRule {
    /// Exact, except that CRLF equals LF.
    Exact,
    /// Without white space at the ends (single lines only).
    Trim,
    /// Like `Trim`, and with runs of white space as one space (single lines only).
    Collapse,
}

/// The handling of calls when the store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreFailurePolicy {
    /// The calls run, and the response shows that they were not recorded.
    GoOn,
    /// The calls are refused.
    Refuse,
}

/// The lifetimes of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLifetimes {
    /// Lifetime of a result.
    pub done: Duration,
    /// Lifetime of a failure.
    pub failed: Duration,
    /// Lifetime of a record in flight or with an unknown outcome.
    pub open: Duration,
    /// Time for which an owner on another machine may be silent before it counts as gone.
    pub lease: Duration,
}

/// The circuit breaker settings of a tool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerPolicy {
    /// Failures in a row that open the breaker.
    pub consecutive: Option<NonZeroU32>,
    /// Share of failures that opens the breaker.
    pub rate: Option<RateRule>,
    /// Share of slow responses that opens the breaker.
    pub slow: Option<SlowRule>,
    /// Age from which outcomes no longer count.
    pub window: Duration,
    /// Time for which the breaker stays open.
    pub cooldown: BreakerCooldown,
    /// Successful probes in a row that close the breaker.
    pub close_after: NonZeroU32,
    /// Neutral results of probes in a row that also close the breaker, because the tool responds.
    pub neutral_close_after: NonZeroU32,
    /// Time after which a silent probe gives up its slot.
    pub probe_lease: Duration,
    /// True if the configuration keeps the breaker open.
    pub forced_open: bool,
}

/// A failure rate among the last calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRule {
    /// Share of failures.
    pub threshold: Ratio,
    /// Number of calls in the window. At most [`RateRule::MOST`] are kept.
    pub last: NonZeroU32,
    /// Minimum number of calls. The rule does not apply to fewer.
    pub at_least: NonZeroU32,
}

impl RateRule {
    /// The maximum number of calls that a breaker keeps.
    pub const MOST: u32 = 1024;
}

/// A rate of slow responses among the last calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowRule {
    /// Duration from which a response counts as slow.
    pub slower_than: Duration,
    /// Share, number and minimum, as for failures.
    pub rate: RateRule,
}

/// The time for which a breaker stays open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerCooldown {
    /// First cool-down.
    pub first: Duration,
    /// Growth with each failed probe.
    pub growth: GrowthFactor,
    /// Maximum cool-down.
    pub cap: Duration,
}

impl BreakerCooldown {
    /// Returns a cool-down that never grows.
    pub const fn constant(span: Duration) -> Self {
        Self { first: span, growth: GrowthFactor::ONE, cap: span }
    }
}

/// Rate and concurrency limits. Without a value there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitPolicy {
    /// Number of attempts at the same time.
    pub concurrency: Option<NonZeroU32>,
    /// Number of attempts per time.
    pub rate: Option<RateLimit>,
}

/// A number of attempts per time, refilled evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Number of attempts. Also the largest burst.
    pub attempts: NonZeroU32,
    /// Time in which they are refilled.
    pub per: Duration,
}

/// The loop guard settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardPolicy {
    /// Identical failures after which the model is told to stop.
    pub identical: NonZeroU32,
    /// Failures in one turn after which no more calls run in it.
    pub per_turn: NonZeroU32,
    /// Time after a refusal until one call runs as a probe. Doubles each time.
    pub hold: Duration,
    /// Longest such time.
    pub longest_hold: Duration,
    /// Time between two calls, with none in flight, after which a new turn begins if the host does not report turns.
    pub turn_gap: Duration,
    /// Handling of the same success with the same result, repeatedly.
    pub repeated_success: RepeatedSuccessPolicy,
}

/// The handling of the same success with the same result, repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedSuccessPolicy {
    /// No action: polling is legitimate.
    Ignore,
    /// From this many on, add a warning to the response.
    Warn(NonZeroU32),
    /// From this many on, refuse the call.
    Refuse(NonZeroU32),
}

/// The rule by which a tool loses trust and regains it.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustRule {
    /// Number of counted failures in the window.
    pub count: Option<NonZeroU32>,
    /// Number of counted failures in a row.
    pub consecutive: Option<NonZeroU32>,
    /// Share of counted failures in the window.
    pub rate: Option<Ratio>,
    /// Minimum number of finished calls in the window. The rate does not apply to fewer.
    pub rate_at_least: NonZeroU32,
    /// Share of failures that is expected of the tool and does not count for the rate.
    pub expected_failure_rate: Ratio,
    /// Age from which failures no longer count.
    pub window: Duration,
    /// Severities of the failures that count.
    pub severities: Arc<[Severity]>,
    /// Minimum duration of an escalation.
    pub duration: Duration,
    /// Time without a counted failure before recovery may start.
    pub cooldown: Duration,
    /// Successes that restore trust.
    pub successes_to_recover: NonZeroU32,
    /// Counted failures while escalated that block the tool.
    pub block_after: NonZeroU32,
    /// Start of recovery.
    pub recovery: TrustRecovery,
    /// True if notifications are sent.
    pub notify: bool,
}

/// The start of a tool's recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrustRecovery {
    /// Recovery starts after a time.
    Auto,
    /// Recovery starts after approval.
    Ask,
}

/// The approval settings of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApprovalPolicy {
    /// Calls that need approval.
    pub when: ApprovalTrigger,
    /// Time for which a call waits for approval.
    pub timeout: Duration,
    /// Time for which an unanswered request is kept for an operator.
    pub parked: Duration,
    /// Handling of a dangerous command.
    pub dangerous: DangerousCommandPolicy,
}

/// The calls that need approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalTrigger {
    /// None, even after a loss of trust.
    Never,
    /// Calls after a loss of trust.
    Escalated,
    /// Every call.
    Always,
}

/// The handling of a dangerous command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DangerousCommandPolicy {
    /// The command runs. Then the tool is blocked, whatever the result.
    Record,
    /// The command needs approval.
    Ask,
}

/// The handling of arguments that violate the tool's own input schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentCheck {
    /// The tool responds, and its refusal is explained by the schema.
    Assist,
    /// The call is refused before it reaches the tool.
    Enforce,
    /// No check.
    Off,
}

/// The named presets of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyProfile {
    /// Four attempts, exponential from 200 ms with full jitter. The default.
    Standard,
    /// Five attempts within two seconds, with delays counted from start to start.
    Measured,
    /// Three attempts with fixed delays.
    Stepped,
}

const fn count(value: u32) -> NonZeroU32 {
    match NonZeroU32::new(value) {
        Some(value) => value,
        None => NonZeroU32::MIN,
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl PolicyProfile {
    /// Returns the policy of this profile for a tool of this class, before any setting changes it.
    pub fn policy(self, class: ToolClass) -> CallPolicy {
        CallPolicy {
            class,
            modes: MechanismModes::all(EnforcementMode::Enforce),
            time: TimePolicy {
                attempt: 30 * SECOND,
                total: 30 * MINUTE,
                last_retry: None,
                answer_by: None,
                silence: SilencePolicy::Timeout,
            },
            retry: self.retry(),
            repeat: RepeatPolicy {
                retry_safe: false,
                honours_key: false,
                ambiguous: AmbiguousOutcomePolicy::Retry,
            },
            dedupe: DedupePolicy::default(),
            settling: SettlingPolicy::default(),
            breaker: self.breaker(class),
            limits: LimitPolicy::default(),
            dependency_limits: LimitPolicy::default(),
            guard: GuardPolicy::default(),
            trust: TrustRule::default(),
            domain_trust: None,
            approval: ApprovalPolicy::default(),
            arguments: ArgumentCheck::Assist,
            verify: None,
            result_limit: None,
            classify: Arc::default(),
            shapes: Arc::default(),
        }
    }

    fn retry(self) -> RetryPolicy {
        let ms = Duration::from_millis;
        let (attempts, backoff, jitter, total, counted_from) = match self {
            Self::Standard => (
                4,
                Backoff::Exponential { base: ms(200), factor: GrowthFactor::TWO, cap: ms(4000) },
                Jitter::Full,
                Some(30 * SECOND),
                DelayOrigin::AttemptEnd,
            ),
            Self::Measured => (
                5,
                Backoff::Exponential { base: ms(100), factor: GrowthFactor::TWO, cap: ms(800) },
                Jitter::Proportional(Ratio::percent(10)),
                Some(2 * SECOND),
                DelayOrigin::AttemptStart,
            ),
            Self::Stepped => (
                3,
                Backoff::List { first: ms(100), rest: vec![ms(500), ms(2000)] },
                Jitter::None,
                None,
                DelayOrigin::AttemptEnd,
            ),
        };
        RetryPolicy {
            attempts: count(attempts),
            backoff,
            jitter,
            total,
            counted_from,
            longest_retry_after: MINUTE,
            budget: BudgetPolicy { share: Ratio::percent(20), floor_per_second: 10 },
        }
    }

    fn breaker(self, class: ToolClass) -> BreakerPolicy {
        let rate =
            |percent| RateRule { threshold: Ratio::percent(percent), last: count(20), at_least: count(10) };
        let (consecutive, rate, cooldown) = match (self, class) {
            (Self::Measured, _) => (5, rate(50), 30),
            (_, ToolClass::ReadOnly) => (8, rate(50), 20),
            (_, ToolClass::Mutating) => (5, rate(40), 15),
            (_, ToolClass::Idempotent | ToolClass::Unknown) => (5, rate(50), 30),
        };
        BreakerPolicy {
            consecutive: Some(count(consecutive)),
            rate: Some(rate),
            slow: None,
            window: 120 * SECOND,
            cooldown: BreakerCooldown::constant(cooldown * SECOND),
            close_after: count(if self == Self::Measured { 1 } else { 2 }),
            neutral_close_after: count(5),
            probe_lease: 120 * SECOND,
            forced_open: false,
        }
    }
}

impl CallPolicy {
    /// Returns the instructions for checking if a call took effect.
    pub fn verify_hint(&self) -> Option<Arc<str>> {
        self.verify.as_ref().map(VerificationMethod::hint)
    }

    /// Returns the call that shows if another one took effect.
    pub fn verify_call(&self) -> Option<&Arc<VerificationCall>> {
        match &self.verify {
            Some(VerificationMethod::Call(call)) => Some(call),
            Some(VerificationMethod::Hint(_)) | None => None,
        }
    }

    /// Returns the maximum bytes of text of one result that a caller receives. `None` if Steadfast must not change
    /// results.
    pub fn text_limit(&self) -> Option<usize> {
        self.result_limit.filter(|_| !self.modes.is_pass_through())
    }

    /// Returns the policy for a call of a turn that may be submitted again. Every outcome is stored, so that nothing
    /// runs twice, and a key belongs to one call only. A call that cannot be looked up does not run.
    pub fn for_turn(&self) -> Self {
        let mut policy = self.clone();
        policy.dedupe.cache_failures = FailureReplayPolicy::All;
        policy.dedupe.conflict = KeyConflictPolicy::Reject;
        policy.dedupe.on_store_failure = StoreFailurePolicy::Refuse;
        policy.dedupe.keep.failed = policy.dedupe.keep.failed.max(policy.dedupe.keep.done);
        policy
    }

    /// Returns the policy adjusted for the gateway: calls may take long, and writes are not repeated without proof that
    /// they did not run.
    pub fn for_gateway(mut self) -> Self {
        self.time = TimePolicy {
            attempt: 300 * SECOND,
            total: 30 * MINUTE,
            last_retry: Some(45 * SECOND),
            answer_by: Some(55 * SECOND),
            silence: SilencePolicy::Stuck,
        };
        self.dedupe.explicit_key_on_store_failure = StoreFailurePolicy::Refuse;
        self.repeat.ambiguous = AmbiguousOutcomePolicy::Stop;
        // A probe is a call like any other, and may be silent for as long as one.
        self.breaker.probe_lease = self.breaker.probe_lease.max(self.time.attempt);
        self
    }
}

impl Default for DedupePolicy {
    fn default() -> Self {
        Self {
            conflict: KeyConflictPolicy::Reject,
            cache_failures: FailureReplayPolicy::Terminal,
            after_unknown: UnknownOutcomePolicy::TellOnce,
            computed_keys: ComputedKeyPolicy::Derive,
            scope: KeyScope::Session,
            strings: None,
            key: None,
            key_argument: None,
            volatile: ["clientTs", "retryCount", "traceparent"].map(Box::from).into(),
            keep: RecordLifetimes { done: 24 * HOUR, failed: 5 * MINUTE, open: 24 * HOUR, lease: 2 * MINUTE },
            double_dispatch: true,
            undelivered: 10 * MINUTE,
            after_telling: 10 * SECOND,
            late_after: 25 * SECOND,
            on_store_failure: StoreFailurePolicy::GoOn,
            explicit_key_on_store_failure: StoreFailurePolicy::GoOn,
            largest_output: 8 << 20,
        }
    }
}

impl Default for SettlingPolicy {
    fn default() -> Self {
        Self {
            effects: EffectLocation::Remote,
            linger: 30 * SECOND,
            settle: 5 * SECOND,
            grace: 5 * SECOND,
            drain: 10 * SECOND,
        }
    }
}

impl Default for GuardPolicy {
    fn default() -> Self {
        Self {
            identical: count(2),
            per_turn: count(5),
            hold: MINUTE,
            longest_hold: HOUR,
            turn_gap: 90 * SECOND,
            repeated_success: RepeatedSuccessPolicy::Ignore,
        }
    }
}

impl Default for TrustRule {
    fn default() -> Self {
        Self {
            count: Some(count(3)),
            consecutive: None,
            rate: None,
            rate_at_least: count(5),
            expected_failure_rate: Ratio::percent(0),
            window: HOUR,
            severities: [Severity::ServerError, Severity::Crash, Severity::Timeout, Severity::Corruption]
                .into(),
            duration: 30 * MINUTE,
            cooldown: 15 * MINUTE,
            successes_to_recover: count(3),
            block_after: count(10),
            recovery: TrustRecovery::Auto,
            notify: true,
        }
    }
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self {
            when: ApprovalTrigger::Escalated,
            timeout: 45 * SECOND,
            parked: 24 * HOUR,
            dangerous: DangerousCommandPolicy::Record,
        }
    }
}
