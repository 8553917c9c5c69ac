//! What is allowed, resolved and always valid.
//!
//! A [`Policy`] is complete: every setting has a value, and its field types admit no wrong one. Files,
//! layers and environment are the business of the config crate; it ends in the types of this module.

mod values;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use values::{Factor, InvalidValue, Ratio};

use crate::classify::danger::Shapes;
use crate::classify::{Overrides, Severity};
use crate::key::KeyTemplate;
use crate::verify::{Verify, VerifyCall};

/// What running a tool twice would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolClass {
    /// It changes nothing.
    ReadOnly,
    /// A second run with the same arguments has no further effect.
    Idempotent,
    /// Each run has its own effect.
    Mutating,
    /// Nobody said.
    Unknown,
}

/// What an MCP server says of its tool. Hints, not facts: who decides the class of a tool decides what to believe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `readOnlyHint`.
    pub read_only: Option<bool>,
    /// `destructiveHint`.
    pub destructive: Option<bool>,
    /// `idempotentHint`.
    pub idempotent: Option<bool>,
}

impl Annotations {
    /// Without the claims that a tool is safe to repeat, for servers whose word is not enough for that. That a tool is not
    /// safe to repeat is believed of everybody.
    #[must_use]
    pub fn distrusted(self) -> Self {
        match self.read_only {
            // A tool that is said to read only cannot destroy, whatever the other hint says.
            Some(true) => Self::default(),
            Some(false) | None => Self { idempotent: None, ..self },
        }
    }
}

/// How far a mechanism may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It does nothing at all.
    Off,
    /// It decides and tells what it would have done, and changes nothing.
    Shadow,
    /// It does what it decides.
    Enforce,
}

/// The mode of each mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the mechanisms by name")]
pub struct Modes {
    pub dedupe: Mode,
    pub retry: Mode,
    pub breaker: Mode,
    pub guard: Mode,
    pub trust: Mode,
}

impl Modes {
    /// Whether nothing decides at all, time limits included.
    pub fn are_off(&self) -> bool {
        self.furthest() == Mode::Off
    }

    /// How far everything may go that no mechanism is named for: limits of time and of number, the check of arguments,
    /// what is sent along to the tool. As far as the mechanism that goes furthest.
    pub fn furthest(&self) -> Mode {
        self.dedupe.max(self.retry).max(self.breaker).max(self.guard).max(self.trust)
    }

    /// Whether every call goes to its tool, and every answer to its caller, as it came: nothing does what it decides.
    pub fn leave_alone(&self) -> bool {
        self.furthest() != Mode::Enforce
    }

    /// The same mode for all of them.
    pub const fn all(mode: Mode) -> Self {
        Self { dedupe: mode, retry: mode, breaker: mode, guard: mode, trust: mode }
    }
}

/// Everything that was decided for a tool before the call came.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What running it twice would do.
    pub class: ToolClass,
    /// Which mechanisms act.
    pub modes: Modes,
    /// How long it may take.
    pub time: TimePolicy,
    /// When and how often to try again.
    pub retry: RetryPolicy,
    /// Whether trying again is safe where the outcome is unknown.
    pub repeat: RepeatPolicy,
    /// What counts as the same call, and for how long.
    pub dedupe: DedupePolicy,
    /// When an attempt whose outcome is unknown can take no effect any more.
    pub settling: SettlingPolicy,
    /// When to stop bothering a tool that is down.
    pub breaker: BreakerPolicy,
    /// How much at once.
    pub limits: LimitPolicy,
    /// How much at once of everything that depends on the same host or server.
    pub dependency_limits: LimitPolicy,
    /// When a model loops.
    pub guard: GuardPolicy,
    /// When a tool has lost trust.
    pub trust: TrustRule,
    /// When everything of its domain has, where a rule for the domain exists.
    pub domain_trust: Option<TrustRule>,
    /// Whom to ask.
    pub approval: ApprovalPolicy,
    /// What to do with arguments that break the tool's schema.
    pub arguments: ArgumentCheck,
    /// How a person or a model finds out whether a call had its effect.
    pub verify: Option<Verify>,
    /// The most bytes of text that a caller is given of one result; the rest is kept for it to read. Lowering it costs callers that
    /// need the whole a request for each page.
    pub result_limit: Option<usize>,
    /// Faults that this tool means differently.
    pub classify: Arc<Overrides>,
    /// Commands that count as dangerous when this tool is asked to run them.
    pub shapes: Arc<Shapes>,
}

/// Limits of time for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimePolicy {
    /// One attempt without sign of life. Raising it keeps agents waiting longer for a dead tool.
    pub attempt: Duration,
    /// One call in all, however much progress it reports.
    pub total: Duration,
    /// No retry starts later than this after the first attempt.
    pub last_retry: Option<Duration>,
    /// After this long the caller is told that the call is still running, and the attempt goes on.
    pub answer_by: Option<Duration>,
    /// What an attempt without sign of life is called.
    pub silence: Silence,
}

impl TimePolicy {
    /// How long after the first attempt a retry may start at the latest. One that starts when the whole call is over would be
    /// cut at once, and nobody could say what came of it.
    pub fn latest_retry(&self) -> Duration {
        let before_the_end = self.total.saturating_sub(Duration::from_millis(1));
        self.last_retry.map_or(before_the_end, |last| last.min(before_the_end))
    }
}

/// What an attempt without sign of life is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Silence {
    /// A time-out of the tool: it may be tried again.
    Timeout,
    /// A stuck call: the watchdog ends it.
    Stuck,
}

/// When and how often to try again.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all, the first one included.
    pub attempts: NonZeroU32,
    /// How long to wait between them.
    pub backoff: Backoff,
    /// How waits are spread.
    pub jitter: Jitter,
    /// No attempt starts later than this after the first one.
    pub total: Option<Duration>,
    /// From where a wait is counted.
    pub counted_from: CountedFrom,
    /// The longest `Retry-After` that is waited for; a longer one ends the call.
    pub longest_retry_after: Duration,
    /// What retries of all calls of one dependency may add.
    pub budget: BudgetPolicy,
}

/// The wait before the nth retry.
#[derive(Clone, Debug, PartialEq)]
pub enum Backoff {
    /// `base`, then `factor` times as much each time, up to `cap`.
    Exponential {
        /// Before the first retry.
        base: Duration,
        /// Growth per retry.
        factor: Factor,
        /// Never more than this.
        cap: Duration,
    },
    /// `first`, then the rest in order; the last one repeats.
    List {
        /// Before the first retry.
        first: Duration,
        /// Before the ones after it.
        rest: Vec<Duration>,
    },
    /// Always the same.
    Constant(Duration),
}

/// How waits are spread, so that a fleet does not retry in step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Anything from nothing to the whole wait.
    Full,
    /// The wait, give or take this share of it.
    Proportional(Ratio),
    /// The wait as it is.
    None,
}

/// From where a wait is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedFrom {
    /// From the end of the failed attempt.
    AttemptEnd,
    /// From its start, so that a slow failure is followed at once.
    AttemptStart,
}

/// Retries of one dependency may add this much to its first attempts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetPolicy {
    /// Retries per first attempt.
    pub share: Ratio,
    /// Retries per second that are always free, so that a quiet tool can retry.
    pub floor_per_second: u32,
}

/// Whether trying again is safe where nobody knows if the tool ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatPolicy {
    /// The operator vouches that the tool may run again.
    pub retry_safe: bool,
    /// The tool itself recognises the key that we send along.
    pub honours_key: bool,
    /// What to do for class `unknown`.
    pub ambiguous: Ambiguous,
}

/// What to do when a tool of unknown class has an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ambiguous {
    /// Try again.
    Retry,
    /// Stop and say so.
    Stop,
}

/// What counts as the same call, and for how long its answer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupePolicy {
    /// A key that comes again with other parameters.
    pub conflict: Conflict,
    /// Which failures are given again to the same key.
    pub cache_failures: CacheFailures,
    /// What a keyless call gets after an unknown outcome.
    pub after_unknown: AfterUnknown,
    /// Whether a call without a key is given a computed one.
    pub computed_keys: ComputedKeys,
    /// Whose calls share a computed key.
    pub scope: KeyScope,
    /// How strings are compared; by class if not set.
    pub strings: Option<StringRule>,
    /// How the key of a call is made of its arguments, where its caller gave none.
    pub key: Option<Arc<KeyTemplate>>,
    /// The argument by which the tool itself is given the key.
    pub key_argument: Option<Arc<str>>,
    /// Top-level parameters that do not make a call different.
    pub volatile: Arc<[Box<str>]>,
    /// How long things are kept.
    pub keep: Lifetimes,
    /// Whether identical keyless calls are one that was dispatched twice where the second came before the first was answered.
    pub double_dispatch: bool,
    /// How long an answer that was not delivered waits for a keyless resend.
    pub undelivered: Duration,
    /// After the final answer that an outcome is unknown, a keyless repeat runs no sooner than this, unless its caller has
    /// looked meanwhile.
    pub after_telling: Duration,
    /// An answer later than this may have missed its caller: it does not count as delivered.
    pub late_after: Duration,
    /// Calls of class `unknown` when the store is down.
    pub on_store_failure: OnStoreFailure,
    /// Calls with an explicit key when the store is down, whatever their class.
    pub explicit_key_on_store_failure: OnStoreFailure,
    /// Answers larger than this are not kept.
    pub largest_output: usize,
}

/// When an attempt whose outcome is unknown can take no effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettlingPolicy {
    /// Where the effects of a child of ours take place.
    pub effects: Effects,
    /// How long an attempt may still take effect whose end nobody can see.
    pub linger: Duration,
    /// How long work may still take effect that was handed on to somebody else.
    pub settle: Duration,
    /// How long a child of ours may take to answer after an attempt was cancelled, before it counts as hung.
    pub grace: Duration,
    /// How long the other calls of a child that hangs may take before it is ended.
    pub drain: Duration,
}

impl SettlingPolicy {
    /// How long work may still take effect after a child of ours was ended.
    pub fn after_child(&self) -> Duration {
        match self.effects {
            Effects::Local => Duration::ZERO,
            Effects::Remote => self.settle,
        }
    }

    /// How long it takes at most until a child that hangs has been ended.
    pub fn to_end_child(&self) -> Duration {
        self.grace + self.drain + KILLED
    }
}

/// How long it takes at most to end a child and all that it started.
const KILLED: Duration = Duration::from_secs(10);

/// Where the effects of a child of ours take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effects {
    /// In the child and what it starts: nothing happens any more once they are gone.
    Local,
    /// Perhaps elsewhere: what it had handed on may go on without it.
    Remote,
}

/// What a key that comes again with other parameters gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conflict {
    /// An error; nothing runs.
    Reject,
    /// The parameters join the key: it is another call.
    Separate,
}

/// Which failures are given again to the same explicit key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheFailures {
    /// Those that will not change.
    Terminal,
    /// All.
    All,
    /// None.
    None,
}

/// What a keyless call gets after an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterUnknown {
    /// It is told until that arrived; a later repeat runs.
    TellOnce,
    /// It is told until someone settles it.
    Hold,
}

/// Whether a call without a key is given a computed one. The switch for an incident in which calls that are not the
/// same look alike: keys and call ids that the callers give still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputedKeys {
    /// It is, from tool, arguments and who asks.
    Derive,
    /// It is not: each such call is a call of its own, whatever the caller asks for.
    Never,
}

/// Whose calls share a computed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyScope {
    /// Those of one session and actor.
    Session,
    /// Everybody's, within the tenant. Only heeded for read-only tools.
    Global,
}

/// How strings are compared when a key is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StringRule {
    /// As they are, save that CRLF equals LF.
    Exact,
    /// Without white space at the ends (single lines only).
    Trim,
    /// And with runs of white space as one space (single lines only).
    Collapse,
}

/// What calls get when the store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStoreFailure {
    /// They run, and the answer says that they were not recorded.
    GoOn,
    /// They are refused.
    Refuse,
}

/// How long records are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// An answer.
    pub done: Duration,
    /// A failure.
    pub failed: Duration,
    /// A record in flight, or with an unknown outcome.
    pub open: Duration,
    /// How long a holder across machines may be silent before it counts as gone.
    pub lease: Duration,
}

/// When to stop bothering a tool that is down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it.
    pub consecutive: Option<NonZeroU32>,
    /// A share of failures that opens it.
    pub rate: Option<RateRule>,
    /// A share of slow answers that opens it.
    pub slow: Option<SlowRule>,
    /// What is older than this does not count.
    pub window: Duration,
    /// How long it stays open.
    pub cooldown: Cooldown,
    /// Good probes in a row that close it.
    pub close_after: NonZeroU32,
    /// Neutral answers to probes in a row that close it too: the tool is there.
    pub neutral_close_after: NonZeroU32,
    /// A probe that is silent for longer gives its place to another.
    pub probe_lease: Duration,
    /// Open by configuration, whatever happens.
    pub forced_open: bool,
}

/// A share of failures among the last calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRule {
    /// The share.
    pub threshold: Ratio,
    /// Among how many; at most [`RateRule::MOST`] are kept.
    pub last: NonZeroU32,
    /// Fewer than this say nothing.
    pub at_least: NonZeroU32,
}

impl RateRule {
    /// The longest run of calls that a breaker remembers.
    pub const MOST: u32 = 1024;
}

/// A share of slow answers among the last calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowRule {
    /// What counts as slow.
    pub slower_than: Duration,
    /// Share, number and minimum as for failures.
    pub rate: RateRule,
}

/// How long a breaker stays open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cooldown {
    /// The first time.
    pub first: Duration,
    /// Growth each time that a probe fails.
    pub growth: Factor,
    /// Never more than this.
    pub cap: Duration,
}

impl Cooldown {
    /// Always the same.
    pub const fn constant(span: Duration) -> Self {
        Self { first: span, growth: Factor::ONE, cap: span }
    }
}

/// How much at once. Nothing set means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitPolicy {
    /// Attempts at the same time.
    pub concurrency: Option<NonZeroU32>,
    /// Attempts per time.
    pub rate: Option<RateLimit>,
}

/// So many attempts in so long, refilled evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// How many; also the largest burst.
    pub attempts: NonZeroU32,
    /// In how long.
    pub per: Duration,
}

/// When a model loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardPolicy {
    /// Identical failures after which the model is told to stop.
    pub identical: NonZeroU32,
    /// Failures in one turn after which nothing runs any more in it.
    pub per_turn: NonZeroU32,
    /// After a refusal one try is let through when this much time has passed; doubles each time.
    pub hold: Duration,
    /// The longest such time.
    pub longest_hold: Duration,
    /// Calls further apart than this, with none in flight, are of two turns where nobody tells the turn.
    pub turn_gap: Duration,
    /// The same success with the same result, again and again.
    pub repeated_success: RepeatedSuccess,
}

/// What to do about the same success with the same result, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedSuccess {
    /// Nothing: polling is legitimate.
    Ignore,
    /// From this many on, say so beside the answer.
    Warn(NonZeroU32),
    /// From this many on, refuse.
    Refuse(NonZeroU32),
}

/// When a tool has lost trust, and how it earns it back.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustRule {
    /// So many counted failures in the window.
    pub count: Option<NonZeroU32>,
    /// So many counted failures in a row.
    pub consecutive: Option<NonZeroU32>,
    /// So large a share of counted failures in the window.
    pub rate: Option<Ratio>,
    /// The rate says nothing below this many finished calls in the window.
    pub rate_at_least: NonZeroU32,
    /// This share of failures is expected of the tool and does not count towards the rate.
    pub expected_failure_rate: Ratio,
    /// What is older does not count.
    pub window: Duration,
    /// Which failures count.
    pub severities: Arc<[Severity]>,
    /// How long an escalation lasts at least.
    pub duration: Duration,
    /// How long without a counted failure before recovery may start.
    pub cooldown: Duration,
    /// Successes that earn trust back.
    pub successes_to_recover: NonZeroU32,
    /// Counted failures while escalated that block the tool.
    pub block_after: NonZeroU32,
    /// Who lets recovery start.
    pub recovery: Recovery,
    /// Whether people are told.
    pub notify: bool,
}

/// Who lets the recovery of a tool start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Time does.
    Auto,
    /// A person does.
    Ask,
}

/// Whom to ask, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApprovalPolicy {
    /// When to ask.
    pub when: AskWhen,
    /// How long a call waits for an answer.
    pub timeout: Duration,
    /// How long a request that nobody answered is kept for an operator.
    pub parked: Duration,
    /// What to do about a command of a dangerous shape.
    pub dangerous: Dangerous,
}

/// When a person is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskWhen {
    /// Never, even if trust is lost.
    Never,
    /// When trust is lost.
    Escalated,
    /// Before every call.
    Always,
}

/// What to do about a command of a dangerous shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dangerous {
    /// It runs, and then the tool is blocked whatever came of it.
    Record,
    /// A person is asked first.
    Ask,
}

/// What to do with arguments that break the tool's own input schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentCheck {
    /// The tool answers, and its refusal is explained from the schema.
    Assist,
    /// The call is refused before the tool is bothered.
    Enforce,
    /// Nothing.
    Off,
}

/// The named starting points of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Four attempts, exponential from 200 ms with full jitter. The default.
    Standard,
    /// Five attempts within two seconds, delays counted from start to start.
    Measured,
    /// Three attempts after fixed waits.
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

impl Profile {
    /// The policy of this profile for a tool of this class, before any setting changes it.
    pub fn policy(self, class: ToolClass) -> Policy {
        Policy {
            class,
            modes: Modes::all(Mode::Enforce),
            time: TimePolicy {
                attempt: 30 * SECOND,
                total: 30 * MINUTE,
                last_retry: None,
                answer_by: None,
                silence: Silence::Timeout,
            },
            retry: self.retry(),
            repeat: RepeatPolicy { retry_safe: false, honours_key: false, ambiguous: Ambiguous::Retry },
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
                Backoff::Exponential { base: ms(200), factor: Factor::TWO, cap: ms(4000) },
                Jitter::Full,
                Some(30 * SECOND),
                CountedFrom::AttemptEnd,
            ),
            Self::Measured => (
                5,
                Backoff::Exponential { base: ms(100), factor: Factor::TWO, cap: ms(800) },
                Jitter::Proportional(Ratio::percent(10)),
                Some(2 * SECOND),
                CountedFrom::AttemptStart,
            ),
            Self::Stepped => (
                3,
                Backoff::List { first: ms(100), rest: vec![ms(500), ms(2000)] },
                Jitter::None,
                None,
                CountedFrom::AttemptEnd,
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
            cooldown: Cooldown::constant(cooldown * SECOND),
            close_after: count(if self == Self::Measured { 1 } else { 2 }),
            neutral_close_after: count(5),
            probe_lease: 120 * SECOND,
            forced_open: false,
        }
    }
}

impl Policy {
    /// How a person or a model finds out whether a call took effect.
    pub fn verify_hint(&self) -> Option<Arc<str>> {
        self.verify.as_ref().map(Verify::hint)
    }

    /// The call that shows whether another one took effect.
    pub fn verify_call(&self) -> Option<&Arc<VerifyCall>> {
        match &self.verify {
            Some(Verify::Call(call)) => Some(call),
            Some(Verify::Hint(_)) | None => None,
        }
    }

    /// The most bytes of text that a caller is given of one result. None where nothing of ours changes results.
    pub fn text_limit(&self) -> Option<usize> {
        self.result_limit.filter(|_| !self.modes.leave_alone())
    }

    /// The same for a call of a turn that may be submitted again: all that it came to is kept, so that nothing of it runs
    /// twice, and a key stands for one call only. What nobody can look up is not run on a guess.
    pub fn in_turn(&self) -> Self {
        let mut policy = self.clone();
        policy.dedupe.cache_failures = CacheFailures::All;
        policy.dedupe.conflict = Conflict::Reject;
        policy.dedupe.on_store_failure = OnStoreFailure::Refuse;
        policy.dedupe.keep.failed = policy.dedupe.keep.failed.max(policy.dedupe.keep.done);
        policy
    }

    /// The same policy as the gateway starts from: calls may be long, writes are not repeated on a guess.
    pub fn for_gateway(mut self) -> Self {
        self.time = TimePolicy {
            attempt: 300 * SECOND,
            total: 30 * MINUTE,
            last_retry: Some(45 * SECOND),
            answer_by: Some(55 * SECOND),
            silence: Silence::Stuck,
        };
        self.dedupe.explicit_key_on_store_failure = OnStoreFailure::Refuse;
        self.repeat.ambiguous = Ambiguous::Stop;
        // A probe is a call like any other: it may be silent for as long as one.
        self.breaker.probe_lease = self.breaker.probe_lease.max(self.time.attempt);
        self
    }
}

impl Default for DedupePolicy {
    fn default() -> Self {
        Self {
            conflict: Conflict::Reject,
            cache_failures: CacheFailures::Terminal,
            after_unknown: AfterUnknown::TellOnce,
            computed_keys: ComputedKeys::Derive,
            scope: KeyScope::Session,
            strings: None,
            key: None,
            key_argument: None,
            volatile: ["clientTs", "retryCount", "traceparent"].map(Box::from).into(),
            keep: Lifetimes { done: 24 * HOUR, failed: 5 * MINUTE, open: 24 * HOUR, lease: 2 * MINUTE },
            double_dispatch: true,
            undelivered: 10 * MINUTE,
            after_telling: 10 * SECOND,
            late_after: 25 * SECOND,
            on_store_failure: OnStoreFailure::GoOn,
            explicit_key_on_store_failure: OnStoreFailure::GoOn,
            largest_output: 8 << 20,
        }
    }
}

impl Default for SettlingPolicy {
    fn default() -> Self {
        Self {
            effects: Effects::Remote,
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
            repeated_success: RepeatedSuccess::Ignore,
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
            recovery: Recovery::Auto,
            notify: true,
        }
    }
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self {
            when: AskWhen::Escalated,
            timeout: 45 * SECOND,
            parked: 24 * HOUR,
            dangerous: Dangerous::Record,
        }
    }
}
