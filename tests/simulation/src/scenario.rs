//! The scenario that a seed draws: the size of the world, its policy, and the rates of its faults.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::call::AttemptEndVisibility;
use steadfast_core::policy::{
    AmbiguousOutcomePolicy, ApprovalTrigger, BudgetPolicy, CallPolicy, EffectLocation, EnforcementMode,
    FailureReplayPolicy, GrowthFactor, PolicyProfile, RateLimit, RateRule, Ratio, SettlingPolicy, SlowRule,
    StoreFailurePolicy, ToolClass, UnknownOutcomePolicy,
};

use crate::rng::Rng;

/// Evidence that an owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerLiveness {
    /// One machine: the owner's process has ended.
    Process,
    /// Several machines: the lease has ended.
    Time,
}

/// The way a client treats responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientBehavior {
    /// Repeats a call at will.
    Naive,
    /// Follows the response.
    Obedient,
    /// Follows the response and verifies before it repeats anything, whatever the response says.
    Careful,
}

/// Everything that a seed decides before the first event.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) processes: usize,
    pub(crate) clients: usize,
    pub(crate) goal_count: u64,
    pub(crate) arguments: u64,
    pub(crate) leases: OwnerLiveness,
    /// `Seen` if tools are child processes, whose end can be observed; `Unseen` if they are remote.
    pub(crate) end: AttemptEndVisibility,
    /// Behavior of each client.
    pub(crate) agents: Vec<ClientBehavior>,
    pub(crate) policy: Arc<CallPolicy>,
    /// End of the faults, in milliseconds.
    pub(crate) storm: u64,
    pub(crate) pauses: [u64; 2],
    // Percentages.
    pub(crate) crash: u64,
    /// Rate of orderly shutdowns of a process.
    pub(crate) stops: u64,
    pub(crate) freeze: u64,
    pub(crate) store_lost: u64,
    pub(crate) store_unanswered: u64,
    pub(crate) wake_lost: u64,
    pub(crate) connection_breaks: u64,
    pub(crate) answer_breaks: u64,
    pub(crate) cancels: u64,
    pub(crate) double: u64,
    pub(crate) tool_fails: u64,
    pub(crate) tool_hangs: u64,
    pub(crate) tool_lost: u64,
    /// Rate of tool answers with an error that proves nothing.
    pub(crate) tool_doubts: u64,
    /// Rate of error answers to a cancellation, where the tool does not succeed.
    pub(crate) cut_errors: u64,
    /// Rate of successes despite a cancellation.
    pub(crate) cut_successes: u64,
    /// Rate of effects that never come although the answer leaves them open.
    pub(crate) effects_missing: u64,
    /// Rate of effects that come after the answer, where they come.
    pub(crate) effects_after: u64,
    /// Rate at which an operator resolves an unknown outcome while its client waits.
    pub(crate) resolved: u64,
    /// Rate at which an operator approves one call.
    pub(crate) approvals: u64,
    /// Rate at which no operator is available, where none approved.
    pub(crate) absences: u64,
    /// Rate of callers with a deadline.
    pub(crate) deadlines: u64,
    /// Rate at which a tool asks for input before it does anything.
    pub(crate) tool_input_requests: u64,
    pub(crate) operator: u64,
    pub(crate) jump: u64,
    /// Rate at which the store loses everything.
    pub(crate) emptyings: u64,
    /// True if the processes share the state of their breakers.
    pub(crate) shared_breakers: bool,
    /// Rate at which a failing store takes seconds to report its failure.
    pub(crate) slow_failures: u64,
    /// Rate at which a tool reports progress while it works or hangs.
    pub(crate) progress: u64,
    /// Rate of callers that prefer a refusal to waiting for an equal call.
    pub(crate) best_effort: u64,
    /// Rate of callers that limit the attempts or their time.
    pub(crate) caller_limits: u64,
    /// Rate at which an operator blocks the tool, at any time.
    pub(crate) blocks: u64,
    /// Rate of approvals that are not a grant for one call.
    pub(crate) other_answers: u64,
    /// True if frozen processes thaw while what they wait for is still to come.
    pub(crate) naps: bool,
    /// Rate of callers that leave at once.
    pub(crate) hasty: u64,
    /// Rate of commands that are slow to reach the store.
    pub(crate) slow_store: u64,
    /// Rate at which a tool takes far longer than usual.
    pub(crate) slow_tools: u64,
    /// Rate at which a tool returns a retry-after delay.
    pub(crate) retry_afters: u64,
    /// True if all tools share a dependency that has its own breaker.
    pub(crate) dependency: bool,
    /// Percentage of naive clients' calls that are safety-critical.
    pub(crate) critical: u64,
    /// True if all clients use one key, for different calls.
    pub(crate) one_key: bool,
    /// True if the tool refuses calls with the first arguments as malformed until the faults end.
    pub(crate) mistaken: bool,
    /// True if the first two are engines of one process.
    pub(crate) twins: bool,
    /// Rate at which a client uses its second connection to a process.
    pub(crate) second_lines: u64,
    /// Number of turns that each client wants.
    pub(crate) turns: u64,
    /// Rate of resubmissions of a turn with another plan.
    pub(crate) replans: u64,
}

impl Scenario {
    /// Draws a scenario. `side` decides everything that must not disturb the rest.
    pub(crate) fn of(rng: &mut Rng, side: &mut Rng) -> Self {
        // Half of the faults are absent in a given world, because frequent faults hide rare ones.
        let mut danger = |most: u64| if rng.chance(50) { 0 } else { rng.between(1, most) };
        let crash = danger(60);
        let freeze = danger(50);
        let store_lost = danger(30);
        let store_unanswered = danger(30);
        let wake_lost = danger(80);
        let connection_breaks = danger(40);
        let answer_breaks = danger(50);
        let cancels = danger(30);
        let double = danger(30);
        let tool_fails = danger(60);
        let tool_hangs = danger(40);
        let tool_lost = danger(40);
        let tool_doubts = danger(40);
        let deadlines = danger(30);
        let stops = danger(30);
        let operator = danger(40);
        let jump = danger(30);
        let clients = usize::try_from(rng.between(1, 4)).unwrap_or(1);
        Self {
            processes: usize::try_from(rng.between(1, 3)).unwrap_or(1),
            clients,
            end: if rng.chance(50) { AttemptEndVisibility::Visible } else { AttemptEndVisibility::Hidden },
            agents: (0..clients)
                .map(|_| if rng.chance(60) { ClientBehavior::Obedient } else { ClientBehavior::Naive })
                .collect(),
            goal_count: rng.between(2, 8),
            arguments: rng.between(1, 3),
            leases: if rng.chance(50) { OwnerLiveness::Process } else { OwnerLiveness::Time },
            policy: Arc::new(policy(rng)),
            storm: rng.between(30_000, 900_000),
            pauses: if rng.chance(50) { [0, 400] } else { [0, 60_000] },
            crash,
            stops,
            freeze,
            store_lost,
            store_unanswered,
            wake_lost,
            connection_breaks,
            answer_breaks,
            cancels,
            double,
            tool_fails,
            tool_hangs,
            tool_lost,
            tool_doubts,
            cut_errors: 50,
            cut_successes: 33,
            effects_missing: 20,
            effects_after: 37,
            resolved: 30,
            approvals: 60,
            absences: 50,
            deadlines,
            operator,
            jump,
            emptyings: if side.chance(30) { side.between(1, 2) } else { 0 },
            shared_breakers: false,
            tool_input_requests: 0,
            slow_failures: 0,
            progress: 0,
            best_effort: 0,
            caller_limits: 0,
            blocks: 0,
            other_answers: 0,
            naps: false,
            hasty: 0,
            slow_store: 0,
            slow_tools: 0,
            retry_afters: 0,
            dependency: false,
            critical: 0,
            one_key: false,
            mistaken: false,
            twins: false,
            second_lines: 0,
            turns: 0,
            replans: 0,
        }
    }

    /// Draws a world in which calls reach the store long after they arrived, and find answers that were given
    /// meanwhile.
    fn set_late_claims(&mut self) {
        self.agents.fill(ClientBehavior::Naive);
        (self.arguments, self.emptyings) = (1, 0);
        (self.answer_breaks, self.connection_breaks) = (0, 0);
        self.double = self.double.max(60);
        self.store_lost = self.store_lost.max(30);
        self.slow_failures = 80;
        self.storm = self.storm.min(120_000);
        let policy = Arc::make_mut(&mut self.policy);
        policy.approval.when = ApprovalTrigger::Escalated;
        policy.dedupe.double_dispatch = true;
    }

    /// Draws a world in which the tool loses trust while calls are in flight and their callers leave.
    fn set_trust_lost_in_flight(&mut self) {
        (self.blocks, self.slow_store, self.hasty) = (30, 95, 60);
        self.store_unanswered = self.store_unanswered.max(20);
        self.store_lost = self.store_lost.max(20);
        self.cancels = self.cancels.max(40);
        self.tool_fails = self.tool_fails.max(50);
        self.goal_count = 8;
        self.arguments = 3;
        self.storm = self.storm.min(30_000);
        let policy = Arc::make_mut(&mut self.policy);
        policy.approval.when = ApprovalTrigger::Escalated;
        policy.modes.breaker = EnforcementMode::Off;
        policy.trust.count = Some(NonZeroU32::MIN);
        policy.trust.block_after = NonZeroU32::MAX;
        (policy.trust.duration, policy.trust.cooldown) = (Duration::from_secs(1), Duration::from_secs(1));
        policy.trust.successes_to_recover = NonZeroU32::MIN;
    }

    /// Draws a world in which processes sleep while they wait for the next attempt, and others look for them.
    fn set_sleeping_processes(&mut self) {
        self.leases = OwnerLiveness::Time;
        self.arguments = 1;
        (self.freeze, self.retry_afters, self.naps) = (95, 95, true);
        self.tool_fails = self.tool_fails.max(60);
        self.cancels = self.cancels.max(60);
        self.store_lost = self.store_lost.max(10);
        self.store_unanswered = self.store_unanswered.max(10);
        self.slow_store = self.slow_store.max(80);
        self.storm = self.storm.min(200_000);
        let policy = Arc::make_mut(&mut self.policy);
        policy.class = ToolClass::Mutating;
        policy.repeat.retry_safe = false;
        policy.dedupe.keep.lease = Duration::from_secs(8);
    }

    /// Draws the faults that were added later, each in a part of the worlds.
    pub(crate) fn draw_more(&mut self, rng: &mut Rng) {
        let mut danger = |share: u64, most: u64| if rng.chance(share) { rng.between(1, most) } else { 0 };
        self.slow_failures = danger(30, 80);
        self.progress = danger(30, 60);
        self.best_effort = danger(30, 60);
        self.caller_limits = danger(30, 60);
        self.blocks = danger(25, 90);
        self.other_answers = danger(30, 60);
        self.retry_afters = danger(50, 90);
        self.hasty = danger(30, 40);
        self.slow_store = danger(30, 60);
        self.slow_tools = danger(30, 60);
        let (places, rate, lease) = (danger(15, 3), danger(15, 4), danger(50, 60));
        let shadow = danger(15, 3);
        let number = |number: u64| NonZeroU32::new(u32::try_from(number).unwrap_or(0));
        let policy = Arc::make_mut(&mut self.policy);
        if lease > 0 {
            policy.dedupe.keep.lease = Duration::from_secs(5 + lease);
        }
        match shadow {
            1 => policy.modes.guard = EnforcementMode::Shadow,
            2 => policy.modes.trust = EnforcementMode::Shadow,
            3 => policy.modes.retry = EnforcementMode::Shadow,
            _ => {}
        }
        policy.limits.concurrency = number(places);
        policy.limits.rate =
            number(rate).map(|attempts| RateLimit { attempts, per: Duration::from_secs(10) });
        match rng.between(0, 11) {
            0 => self.set_late_claims(),
            1 => self.set_trust_lost_in_flight(),
            2 => self.set_sleeping_processes(),
            _ => {}
        }
    }

    /// Draws a world in which many calls arrive at once with one key, sometimes with other arguments, and most of them
    /// fail.
    fn set_one_key(&mut self) {
        (self.one_key, self.arguments, self.clients, self.goal_count) = (true, 2, 3, 8);
        self.agents = vec![ClientBehavior::Naive; 3];
        self.storm = self.storm.min(8_000);
        self.tool_fails = self.tool_fails.max(60);
        self.slow_store = self.slow_store.max(40);
        let policy = Arc::make_mut(&mut self.policy);
        policy.dedupe.cache_failures = FailureReplayPolicy::None;
        (policy.modes.guard, policy.modes.breaker) = (EnforcementMode::Off, EnforcementMode::Off);
    }

    /// Draws a world in which a call is sent to two processes, and one claim is lost and repeated late.
    fn set_late_second_claims(&mut self) {
        (self.processes, self.arguments, self.double, self.slow_store) = (2, 1, 95, 50);
        self.agents.fill(ClientBehavior::Naive);
        (self.tool_fails, self.tool_hangs, self.tool_lost, self.tool_doubts) = (0, 0, 0, 0);
        (self.store_lost, self.slow_failures) = (30, 95);
        (self.crash, self.freeze, self.jump, self.connection_breaks) = (0, 0, 0, 0);
        self.storm = self.storm.max(200_000);
        Arc::make_mut(&mut self.policy).dedupe.double_dispatch = true;
    }

    /// Draws a world in which models repeat failing calls between calls that work.
    fn set_looping_models(&mut self) {
        (self.mistaken, self.arguments, self.clients, self.goal_count) = (true, 2, 2, 14);
        self.agents = vec![ClientBehavior::Naive; 2];
        self.storm = 60_000;
        (self.tool_fails, self.tool_hangs, self.tool_lost, self.tool_doubts) = (0, 0, 0, 0);
        (self.crash, self.stops, self.freeze, self.blocks) = (0, 0, 0, 0);
        let policy = Arc::make_mut(&mut self.policy);
        (policy.modes.guard, policy.modes.breaker) = (EnforcementMode::Enforce, EnforcementMode::Off);
        policy.approval.when = ApprovalTrigger::Escalated;
    }

    /// Draws the faults that were added last. A dependency is also tested where nothing else is shared.
    pub(crate) fn draw_last(&mut self, rng: &mut Rng) {
        self.dependency = rng.chance(30);
        if self.dependency && rng.chance(30) {
            let places = NonZeroU32::new(u32::try_from(rng.between(1, 3)).unwrap_or(1));
            Arc::make_mut(&mut self.policy).dependency_limits.concurrency = places;
        }
        let few =
            |number: u64| NonZeroU32::new(u32::try_from(number).unwrap_or(1)).unwrap_or(NonZeroU32::MIN);
        let policy = Arc::make_mut(&mut self.policy);
        if rng.chance(40) {
            let breaker = &mut policy.breaker;
            breaker.consecutive = Some(few(rng.between(1, 4)));
            breaker.cooldown.first = Duration::from_secs(rng.between(1, 30));
            breaker.close_after = few(rng.between(1, 3));
            if let Some(growth) = GrowthFactor::new(2.0).ok().filter(|_| rng.chance(50)) {
                (breaker.cooldown.growth, breaker.cooldown.cap) =
                    (growth, Duration::from_secs(rng.between(30, 200)));
            }
            if rng.chance(50) {
                breaker.probe_lease = Duration::from_secs(rng.between(5, 40));
            }
        } else if rng.chance(30) {
            let (last, at_least) = (few(rng.between(2, 8)), few(rng.between(1, 4)));
            let rate = RateRule { threshold: Ratio::percent(50), last, at_least };
            policy.breaker.consecutive = None;
            policy.breaker.rate = Some(rate);
            let slower_than = Duration::from_secs(rng.between(1, 5));
            policy.breaker.slow = rng.chance(50).then_some(SlowRule { slower_than, rate });
        }
        if rng.chance(30) {
            policy.retry.budget.floor_per_second = u32::try_from(rng.between(0, 1)).unwrap_or(0);
        }
        if rng.chance(30) {
            let trust = &mut policy.trust;
            (trust.count, trust.block_after) = (Some(few(rng.between(1, 3))), few(rng.between(1, 3)));
            trust.duration = Duration::from_secs(rng.between(1, 60));
            trust.cooldown = Duration::from_secs(rng.between(1, 60));
            trust.successes_to_recover = few(rng.between(1, 3));
        }
        self.twins = self.processes > 1 && rng.chance(25);
        if rng.chance(20) {
            self.critical = rng.between(1, 60);
        }
        match rng.between(0, 19) {
            0 => self.set_one_key(),
            1 => self.set_late_second_claims(),
            2 | 3 => self.set_looping_models(),
            _ => {}
        }
        self.second_lines = if rng.chance(20) { rng.between(10, 50) } else { 0 };
    }

    /// Draws limits and budgets that a single excess attempt breaks.
    pub(crate) fn draw_limits(&mut self, rng: &mut Rng) {
        let policy = Arc::make_mut(&mut self.policy);
        if rng.chance(10) {
            policy.retry.budget = BudgetPolicy { share: Ratio::percent(100), floor_per_second: 0 };
        }
        if self.dependency && rng.chance(40) {
            let attempts = NonZeroU32::new(u32::try_from(rng.between(1, 5)).unwrap_or(1));
            policy.dependency_limits.rate =
                attempts.map(|attempts| RateLimit { attempts, per: Duration::from_secs(10) });
        }
        match rng.between(0, 29) {
            0 => self.set_uncertain_stops(),
            1 => self.set_failures_without_trust(),
            _ => {}
        }
    }

    /// Draws the behavior of the clients and the rates of faults that occur in every world.
    pub(crate) fn draw_rates(&mut self, rng: &mut Rng) {
        let careful = if rng.chance(50) { rng.between(1, 100) } else { 0 };
        for agent in self.agents.iter_mut().filter(|agent| **agent == ClientBehavior::Obedient) {
            if rng.chance(careful) {
                *agent = ClientBehavior::Careful;
            }
        }
        let rates = [
            &mut self.cut_errors,
            &mut self.cut_successes,
            &mut self.effects_missing,
            &mut self.effects_after,
            &mut self.resolved,
            &mut self.approvals,
            &mut self.absences,
        ];
        for rate in rates {
            match rng.between(0, 3) {
                0 => *rate = 0,
                1 => {}
                _ => *rate = rng.between(1, 95),
            }
        }
    }

    /// Draws a world in which processes shut down while children are being ended, and the store is often down.
    fn set_uncertain_stops(&mut self) {
        self.end = AttemptEndVisibility::Visible;
        (self.stops, self.tool_hangs, self.store_lost, self.crash) = (95, 90, 40, 0);
        self.storm = self.storm.min(60_000);
        self.emptyings = 0;
        let policy = Arc::make_mut(&mut self.policy);
        policy.class = ToolClass::Mutating;
        (policy.repeat.retry_safe, policy.repeat.honours_key) = (false, false);
        policy.time.attempt = policy.time.attempt.min(Duration::from_secs(3));
        policy.approval.when = ApprovalTrigger::Escalated;
        policy.modes.breaker = EnforcementMode::Off;
        policy.settling.effects = EffectLocation::Remote;
    }

    /// Draws a world in which no approval is requested although the tool has lost trust, so that it continues to fail.
    fn set_failures_without_trust(&mut self) {
        (self.blocks, self.tool_fails, self.goal_count, self.arguments) = (0, 60, 8, 3);
        self.storm = self.storm.min(200_000);
        let policy = Arc::make_mut(&mut self.policy);
        (policy.approval.when, policy.modes.trust) = (ApprovalTrigger::Never, EnforcementMode::Enforce);
        (policy.modes.breaker, policy.modes.guard) = (EnforcementMode::Off, EnforcementMode::Off);
        (policy.trust.count, policy.trust.block_after) = (Some(NonZeroU32::MIN), NonZeroU32::MAX);
        (policy.trust.duration, policy.trust.cooldown) = (Duration::from_secs(5), Duration::from_secs(30));
        policy.trust.successes_to_recover = NonZeroU32::MIN;
    }

    /// Draws a world in which equal calls arrive close together, some of them again after they have failed. Clients
    /// that make their calls one after the other never interfere with themselves.
    pub(crate) fn set_interfering_dispatches(&mut self) {
        self.agents.fill(ClientBehavior::Naive);
        self.arguments = 1;
        self.storm = self.storm.min(60_000);
        self.answer_breaks = self.answer_breaks.max(40);
        self.tool_fails = self.tool_fails.max(40);
    }

    /// Draws a world in which many outcomes are unknown and other faults do not hide their consequences.
    pub(crate) fn set_unknown_outcomes(&mut self) {
        self.tool_hangs = self.tool_hangs.max(30);
        self.tool_doubts = self.tool_doubts.max(10);
        self.arguments = 1;
        self.emptyings = 0;
        self.pauses = [0, 400];
        let policy = Arc::make_mut(&mut self.policy);
        policy.class = ToolClass::Mutating;
        policy.repeat.retry_safe = false;
        policy.dedupe.after_unknown = UnknownOutcomePolicy::TellOnce;
        policy.approval.when = ApprovalTrigger::Escalated;
        policy.time.attempt = policy.time.attempt.min(Duration::from_secs(20));
    }
}

fn policy(rng: &mut Rng) -> CallPolicy {
    let profile = *rng.pick(&[PolicyProfile::Standard, PolicyProfile::Measured, PolicyProfile::Stepped]);
    let class =
        *rng.pick(&[ToolClass::Mutating, ToolClass::Mutating, ToolClass::Unknown, ToolClass::Idempotent]);
    let mut policy = profile.policy(class);
    if rng.chance(50) {
        policy = policy.for_gateway();
    }
    policy.repeat.ambiguous =
        if rng.chance(70) { AmbiguousOutcomePolicy::Stop } else { AmbiguousOutcomePolicy::Retry };
    policy.repeat.retry_safe = rng.chance(15);
    if rng.chance(60) {
        policy.time.attempt = Duration::from_secs(rng.between(2, 20));
    }
    policy.time.total = Duration::from_secs(rng.between(60, 600));
    policy.dedupe.cache_failures =
        *rng.pick(&[FailureReplayPolicy::Terminal, FailureReplayPolicy::All, FailureReplayPolicy::None]);
    policy.dedupe.after_unknown =
        if rng.chance(80) { UnknownOutcomePolicy::TellOnce } else { UnknownOutcomePolicy::Hold };
    policy.dedupe.double_dispatch = rng.chance(85);
    if rng.chance(30) {
        policy.dedupe.late_after = Duration::from_secs(rng.between(2, 24));
    }
    policy.settling = settling(rng);
    policy.dedupe.on_store_failure =
        if rng.chance(50) { StoreFailurePolicy::GoOn } else { StoreFailurePolicy::Refuse };
    if rng.chance(25) {
        policy.approval.when = ApprovalTrigger::Always;
    }
    policy
}

fn settling(rng: &mut Rng) -> SettlingPolicy {
    let mut seconds = |least, most| Duration::from_secs(rng.between(least, most));
    let (linger, settle) = (seconds(2, 30), seconds(1, 5));
    let (grace, drain) = (seconds(1, 5), seconds(0, 10));
    let effects = if rng.chance(50) { EffectLocation::Local } else { EffectLocation::Remote };
    SettlingPolicy { effects, linger, settle, grace, drain }
}
