//! Trust in tools, signatures and domains: its loss, the duration of that, and its recovery.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::classify::Severity;
use steadfast_core::classify::signature::Signature;
use steadfast_core::id::{Domain, Namespace, ToolName, ToolRef};
use steadfast_core::policy::{Ratio, TrustRecovery, TrustRule};
use steadfast_core::trust::{
    DomainStats, FinishedOutcome, NotifyChoice, ReportedFailure, TrustChange, TrustDecision, TrustLedger,
    TrustReport, TrustRules, TrustScope, TrustState, TrustSubject, TrustTarget,
};

use super::{MachineTrace, agree, few, millis, next_moment, optional};
use crate::invariants::InvariantViolation;
use crate::rng::Rng;

const PROMISE: &str = "trust has reasons";

const SEVERITIES: [Severity; 7] = [
    Severity::ServerError,
    Severity::ServerError,
    Severity::Timeout,
    Severity::InvalidInput,
    Severity::Permission,
    Severity::Crash,
    Severity::Informational,
];

/// The subject of trust.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JudgedSubject {
    Tool(ToolRef),
    Signature(ToolRef, Signature),
    Domain(Domain),
}

/// The end of a call, as one subject counts it.
#[derive(Clone, Copy, Debug)]
struct JudgedOutcome {
    at: Timestamp,
    failed: Option<(Severity, bool)>,
}

#[derive(Clone, Debug)]
enum ReferenceTrustState {
    Trusted,
    Escalated {
        at: Timestamp,
        expires: Timestamp,
        failures: u32,
        further: u32,
        last: Timestamp,
        needed: u32,
        by_hand: bool,
    },
    Recovering {
        failures: u32,
        successes: u32,
        needed: u32,
    },
    Blocked {
        failures: u32,
    },
}

#[derive(Clone, Debug)]
struct ReferenceAccount {
    state: ReferenceTrustState,
    /// Everything since trust was last restored.
    outcomes: Vec<JudgedOutcome>,
}

/// An expected change: from, to, failures, until, successes needed.
type ExpectedTrustChange = (TrustState, TrustState, u32, Option<Timestamp>, u32);

impl ReferenceAccount {
    fn name(&self) -> TrustState {
        match self.state {
            ReferenceTrustState::Trusted => TrustState::Trusted,
            ReferenceTrustState::Escalated { .. } => TrustState::Escalated,
            ReferenceTrustState::Recovering { .. } => TrustState::Recovering,
            ReferenceTrustState::Blocked { .. } => TrustState::Blocked,
        }
    }

    /// Returns the time at which recovery begins by itself.
    fn recovers_at(&self, rule: &TrustRule) -> Option<Timestamp> {
        match self.state {
            ReferenceTrustState::Escalated { expires, last, by_hand: false, .. }
                if rule.recovery == TrustRecovery::Auto =>
            {
                Some(expires.max(last + rule.cooldown))
            }
            _ => None,
        }
    }

    fn stands(&self, rule: &TrustRule, now: Timestamp) -> TrustState {
        if self.recovers_at(rule).is_some_and(|at| at <= now) { TrustState::Recovering } else { self.name() }
    }

    /// Ends an escalation whose time is over.
    fn apply_time(&mut self, rule: &TrustRule, now: Timestamp) -> Option<ExpectedTrustChange> {
        let ReferenceTrustState::Escalated { failures, needed, .. } = self.state else { return None };
        self.recovers_at(rule).filter(|at| *at <= now)?;
        self.state = ReferenceTrustState::Recovering { failures, successes: 0, needed };
        Some((TrustState::Escalated, TrustState::Recovering, failures, None, needed))
    }

    fn succeeds(&mut self, rule: &TrustRule, now: Timestamp) -> Vec<ExpectedTrustChange> {
        let mut steps: Vec<ExpectedTrustChange> = self.apply_time(rule, now).into_iter().collect();
        self.outcomes.push(JudgedOutcome { at: now, failed: None });
        if let ReferenceTrustState::Recovering { failures, successes, needed } = &mut self.state {
            *successes += 1;
            if successes >= needed {
                steps.push((TrustState::Recovering, TrustState::Trusted, *failures, None, 0));
                *self = Self { state: ReferenceTrustState::Trusted, outcomes: Vec::new() };
            }
        }
        steps
    }

    fn fails(
        &mut self,
        rule: &TrustRule,
        severity: Severity,
        recoverable: bool,
        began: Timestamp,
        now: Timestamp,
    ) -> Vec<ExpectedTrustChange> {
        let mut steps: Vec<ExpectedTrustChange> = self.apply_time(rule, now).into_iter().collect();
        self.outcomes.push(JudgedOutcome { at: now, failed: Some((severity, recoverable)) });
        if !counts(rule, severity) {
            return steps;
        }
        let (from, has_lost) = (self.name(), self.has_lost(rule, severity, now));
        let (failures, by_hand) = match &mut self.state {
            ReferenceTrustState::Trusted if has_lost => {
                let lately: Vec<bool> = self
                    .lately(rule, now)
                    .filter(|(severity, _)| counts(rule, *severity))
                    .map(|(_, heals)| heals)
                    .collect();
                (u32::try_from(lately.len()).unwrap_or(0), lately.contains(&false))
            }
            ReferenceTrustState::Trusted => return steps,
            ReferenceTrustState::Recovering { failures, .. } => (*failures + 1, !recoverable),
            ReferenceTrustState::Escalated { at, failures, further, last, by_hand, .. } => {
                (*failures, *last, *by_hand) = (*failures + 1, now, *by_hand || !recoverable);
                // A call that was in flight when trust was lost does not bring a block nearer.
                *further += u32::from(began >= *at);
                if began >= *at && *further >= rule.block_after.get() {
                    let failures = *failures;
                    self.state = ReferenceTrustState::Blocked { failures };
                    steps.push((TrustState::Escalated, TrustState::Blocked, failures, None, 0));
                }
                return steps;
            }
            ReferenceTrustState::Blocked { failures } => {
                *failures += 1;
                return steps;
            }
        };
        let needed = rule.successes_to_recover.get();
        let expires = now + rule.duration;
        self.state = ReferenceTrustState::Escalated {
            at: now,
            expires,
            failures,
            further: 0,
            last: now,
            needed,
            by_hand,
        };
        steps.push((from, TrustState::Escalated, failures, self.recovers_at(rule), needed));
        steps
    }

    /// Returns failures within the window, and whether time heals them.
    fn lately(&self, rule: &TrustRule, now: Timestamp) -> impl Iterator<Item = (Severity, bool)> {
        let from = now.before(rule.window);
        self.outcomes.iter().filter(move |outcome| outcome.at >= from).filter_map(|outcome| outcome.failed)
    }

    fn has_lost(&self, rule: &TrustRule, severity: Severity, now: Timestamp) -> bool {
        let from = now.before(rule.window);
        let counted = self.lately(rule, now).filter(|(severity, _)| counts(rule, *severity)).count();
        let row =
            self.outcomes.iter().rev().map_while(|outcome| outcome.failed.map(|failed| (outcome.at, failed)));
        let row = row.filter(|(at, (severity, _))| *at >= from && counts(rule, *severity)).count();
        let (failed, calls) = self.share(rule, now);
        severity == Severity::RepeatedAuth
            || rule.count.is_some_and(|most| counted >= most.get() as usize)
            || rule.consecutive.is_some_and(|most| row >= most.get() as usize)
            || rule.rate.is_some_and(|rate| {
                let most = (rate.get() + rule.expected_failure_rate.get()).min(1.0) * calls as f64;
                calls >= rule.rate_at_least.get() as usize && failed as f64 + 1e-9 >= most
            })
    }

    /// Returns counted failures and all calls, summed in slots of a 64th of the window.
    fn share(&self, rule: &TrustRule, now: Timestamp) -> (usize, usize) {
        let width = rule.window / 64;
        let mut slots: Vec<(Timestamp, Timestamp, usize, usize)> = Vec::new();
        for outcome in &self.outcomes {
            match slots.last_mut().filter(|(first, ..)| outcome.at.since(*first) <= width) {
                Some((_, last, ..)) => *last = outcome.at,
                None => slots.push((outcome.at, outcome.at, 0, 0)),
            }
            if let Some((.., failed, calls)) = slots.last_mut() {
                *failed += usize::from(outcome.failed.is_some_and(|(severity, _)| counts(rule, severity)));
                *calls += 1;
            }
        }
        let recent = slots.iter().filter(|(_, last, ..)| *last >= now.before(rule.window));
        recent.fold((0, 0), |(failed, calls), slot| (failed + slot.2, calls + slot.3))
    }
}

fn counts(rule: &TrustRule, severity: Severity) -> bool {
    matches!(severity, Severity::Security | Severity::RepeatedAuth) || rule.severities.contains(&severity)
}

#[derive(Debug)]
struct ReferenceTrustLedger {
    rule: TrustRule,
    domain_rule: Option<TrustRule>,
    accounts: BTreeMap<JudgedSubject, ReferenceAccount>,
    stats: BTreeMap<Domain, DomainStats>,
    /// Failures so far: tool, severity, and whether they still count for the call and for its domain.
    history: Vec<ReferenceFailure>,
}

#[derive(Clone, Debug, PartialEq)]
struct ReferenceFailure {
    call: JudgedCall,
    severity: Severity,
    at: Timestamp,
    for_call: bool,
    for_domain: bool,
}

/// The subjects of a call or a report.
#[derive(Clone, Debug, PartialEq)]
struct JudgedCall {
    tool: ToolRef,
    signature: Option<Signature>,
    domain: Option<Domain>,
}

/// An expected change with its scope.
type ExpectedTrustNotice = (TrustScope, ExpectedTrustChange, bool);

impl ReferenceTrustLedger {
    fn rule_of(&self, subject: &JudgedSubject) -> &TrustRule {
        match subject {
            JudgedSubject::Tool(_) | JudgedSubject::Signature(..) => &self.rule,
            JudgedSubject::Domain(_) => self.domain_rule.as_ref().unwrap_or(&self.rule),
        }
    }

    /// Returns the accounts of the whole tool, including those for which a host left out its namespace.
    fn whole(tool: &ToolRef) -> Vec<JudgedSubject> {
        let any = ToolRef::in_any_namespace(tool.tool.clone());
        let mut all = vec![JudgedSubject::Tool(tool.clone())];
        if any != *tool {
            all.push(JudgedSubject::Tool(any));
        }
        all
    }

    fn is_blocked(&self, tool: &ToolRef) -> bool {
        let blocked = |subject: &JudgedSubject| {
            self.accounts.get(subject).is_some_and(|account| account.name() == TrustState::Blocked)
        };
        Self::whole(tool).iter().any(blocked)
    }

    fn account(&mut self, subject: &JudgedSubject) -> &mut ReferenceAccount {
        self.accounts
            .entry(subject.clone())
            .or_insert(ReferenceAccount { state: ReferenceTrustState::Trusted, outcomes: Vec::new() })
    }

    fn touch(
        &mut self,
        subject: &JudgedSubject,
        act: impl FnOnce(&mut ReferenceAccount, &TrustRule) -> Vec<ExpectedTrustChange>,
    ) -> Vec<ExpectedTrustNotice> {
        let rule = self.rule_of(subject).clone();
        let scope = scope_of(subject);
        act(self.account(subject), &rule)
            .into_iter()
            .map(|step| (scope, step, rule.notify && step.1 != TrustState::Recovering))
            .collect()
    }

    fn ends(
        &mut self,
        call: &JudgedCall,
        finished: FinishedOutcome,
        began: Timestamp,
        now: Timestamp,
    ) -> Vec<ExpectedTrustNotice> {
        if let Some(domain) = &call.domain {
            let stats = self.stats.entry(domain.clone()).or_default();
            match finished {
                FinishedOutcome::Success => {
                    stats.total_successes += 1;
                    stats.last_success = Some(now);
                }
                FinishedOutcome::Failure { severity, .. } => {
                    stats.total_failures += 1;
                    *stats.failures_by_severity.entry(severity).or_default() += 1;
                    stats.last_failure = Some(now);
                }
            }
        }
        let blocked = self.is_blocked(&call.tool);
        match finished {
            FinishedOutcome::Success if blocked => Vec::new(),
            FinishedOutcome::Success => self.succeeds(call, now),
            FinishedOutcome::Failure { severity: Severity::Security, .. } => {
                self.remembers(call, Severity::Security, (false, false), now);
                self.blocks(&call.tool, self.rule.notify)
            }
            FinishedOutcome::Failure { severity, .. } if blocked => {
                self.remembers(call, severity, (false, false), now);
                Vec::new()
            }
            FinishedOutcome::Failure { severity, recoverable } => {
                self.fails(call, severity, recoverable, began, now)
            }
        }
    }

    fn remembers(
        &mut self,
        call: &JudgedCall,
        severity: Severity,
        (for_call, for_domain): (bool, bool),
        now: Timestamp,
    ) {
        self.history.push(ReferenceFailure { call: call.clone(), severity, at: now, for_call, for_domain });
    }

    fn blocks(&mut self, tool: &ToolRef, notify: bool) -> Vec<ExpectedTrustNotice> {
        if self.is_blocked(tool) {
            return Vec::new();
        }
        let account = self.account(&JudgedSubject::Tool(tool.clone()));
        let from = account.name();
        account.state = ReferenceTrustState::Blocked { failures: 1 };
        vec![(TrustScope::Tool, (from, TrustState::Blocked, 1, None, 0), notify)]
    }

    fn succeeds(&mut self, call: &JudgedCall, now: Timestamp) -> Vec<ExpectedTrustNotice> {
        let mut notices = Vec::new();
        let known = |reference: &Self, subject: &JudgedSubject| reference.accounts.contains_key(subject);
        let mut subjects: Vec<JudgedSubject> =
            Self::whole(&call.tool).into_iter().filter(|subject| known(self, subject)).collect();
        // A success adds nothing about an unknown subject, unless a failure rate has to count it.
        let signature =
            call.signature.clone().map(|signature| JudgedSubject::Signature(call.tool.clone(), signature));
        let domain = call.domain.clone().filter(|_| self.domain_rule.is_some()).map(JudgedSubject::Domain);
        let judged = signature.into_iter().chain(domain);
        subjects
            .extend(judged.filter(|subject| known(self, subject) || self.rule_of(subject).rate.is_some()));
        for subject in subjects {
            let changes = self.touch(&subject, |account, rule| account.succeeds(rule, now));
            if changes.iter().any(|(_, step, _)| step.1 == TrustState::Trusted) {
                self.clear_failures(&subject);
            }
            notices.extend(changes);
        }
        notices
    }

    fn fails(
        &mut self,
        call: &JudgedCall,
        severity: Severity,
        recoverable: bool,
        began: Timestamp,
        now: Timestamp,
    ) -> Vec<ExpectedTrustNotice> {
        let own = match &call.signature {
            Some(signature) => JudgedSubject::Signature(call.tool.clone(), signature.clone()),
            None => JudgedSubject::Tool(call.tool.clone()),
        };
        let rule = self.rule.clone();
        let refused = |(severity, _): &(Severity, bool)| {
            matches!(severity, Severity::Permission | Severity::RepeatedAuth)
        };
        let refusals = self.account(&own).lately(&rule, now).filter(refused).count();
        let counted_severity = if severity == Severity::Permission && refusals + 1 >= 3 {
            Severity::RepeatedAuth
        } else {
            severity
        };
        let mut notices =
            self.touch(&own, |account, rule| account.fails(rule, counted_severity, recoverable, began, now));
        if call.signature.is_some() {
            for subject in Self::whole(&call.tool) {
                let stands = self.accounts.get(&subject).map(|account| account.stands(&rule, now));
                if stands.is_some_and(|state| state != TrustState::Trusted) {
                    notices.extend(self.touch(&subject, |account, rule| {
                        account.fails(rule, counted_severity, recoverable, began, now)
                    }));
                }
            }
        }
        if let Some(domain) = call.domain.clone().filter(|_| self.domain_rule.is_some()) {
            notices.extend(self.touch(&JudgedSubject::Domain(domain), |account, rule| {
                account.fails(rule, severity, recoverable, began, now)
            }));
        }
        self.remembers(call, counted_severity, (true, self.domain_rule.is_some()), now);
        notices
    }

    /// Clears the failures that led to the loss of trust. They do not count again, not even after a restart.
    fn clear_failures(&mut self, subject: &JudgedSubject) {
        for old in &mut self.history {
            match subject {
                JudgedSubject::Tool(tool) => {
                    old.for_call &= !(old.call.tool == *tool && old.call.signature.is_none())
                }
                JudgedSubject::Signature(tool, signature) => {
                    let is_it = old.call.tool == *tool && old.call.signature.as_ref() == Some(signature);
                    old.for_call &= !is_it;
                }
                JudgedSubject::Domain(domain) => old.for_domain &= old.call.domain.as_ref() != Some(domain),
            }
        }
    }

    fn is_target(target: &TrustTarget<'_>, subject: &JudgedSubject) -> bool {
        match (target, subject) {
            (TrustTarget::All, _) => true,
            (TrustTarget::Tool(expected), JudgedSubject::Tool(tool)) => {
                tool == *expected || tool.is_in_any_namespace() && tool.tool == expected.tool
            }
            (TrustTarget::Tool(expected), JudgedSubject::Signature(tool, _)) => tool == *expected,
            (TrustTarget::Signature(tool, signature), JudgedSubject::Signature(of, one)) => {
                of == *tool && one == *signature
            }
            (TrustTarget::Domain(expected), JudgedSubject::Domain(domain)) => domain == *expected,
            (TrustTarget::Tool(_) | TrustTarget::Signature(..) | TrustTarget::Domain(_), _) => false,
        }
    }

    fn approves(&mut self, target: &TrustTarget<'_>) -> Vec<ExpectedTrustNotice> {
        let mut notices = Vec::new();
        for (subject, account) in
            self.accounts.iter_mut().filter(|(subject, _)| Self::is_target(target, subject))
        {
            if let ReferenceTrustState::Escalated { failures, needed, .. } = account.state {
                account.state = ReferenceTrustState::Recovering { failures, successes: 0, needed };
                notices.push((
                    scope_of(subject),
                    (TrustState::Escalated, TrustState::Recovering, failures, None, needed),
                    false,
                ));
            }
        }
        notices
    }

    fn resets(&mut self, target: &TrustTarget<'_>) -> Vec<ExpectedTrustNotice> {
        let mut notices = Vec::new();
        for (subject, account) in
            self.accounts.iter_mut().filter(|(subject, _)| Self::is_target(target, subject))
        {
            if account.name() != TrustState::Trusted {
                notices.push((scope_of(subject), (account.name(), TrustState::Trusted, 0, None, 0), true));
            }
            *account = ReferenceAccount { state: ReferenceTrustState::Trusted, outcomes: Vec::new() };
        }
        for old in &mut self.history {
            let (for_call, for_domain) = match target {
                TrustTarget::All => (true, true),
                TrustTarget::Tool(tool) => {
                    let any = ToolRef::in_any_namespace(tool.tool.clone());
                    let whole = old.call.tool == any && old.call.signature.is_none();
                    (old.call.tool == **tool || whole, false)
                }
                TrustTarget::Signature(tool, signature) => {
                    (old.call.tool == **tool && old.call.signature.as_ref() == Some(*signature), false)
                }
                TrustTarget::Domain(domain) => (false, old.call.domain.as_ref() == Some(*domain)),
            };
            old.for_call &= !for_call;
            old.for_domain &= !for_domain;
        }
        notices
    }

    fn standing(&self, call: &JudgedCall, now: Timestamp) -> TrustState {
        let signature =
            call.signature.clone().map(|signature| JudgedSubject::Signature(call.tool.clone(), signature));
        let domain = call.domain.clone().filter(|_| self.domain_rule.is_some()).map(JudgedSubject::Domain);
        let subjects = Self::whole(&call.tool).into_iter().chain(signature).chain(domain);
        let states = subjects
            .filter_map(|subject| Some(self.accounts.get(&subject)?.stands(self.rule_of(&subject), now)));
        states.max().unwrap_or(TrustState::Trusted)
    }

    fn moments(&self) -> Vec<Timestamp> {
        let recover =
            self.accounts.iter().filter_map(|(subject, account)| account.recovers_at(self.rule_of(subject)));
        let leave = self
            .accounts
            .values()
            .flat_map(|account| account.outcomes.iter().map(|outcome| outcome.at + self.rule.window));
        recover.chain(leave).collect()
    }
}

fn scope_of(subject: &JudgedSubject) -> TrustScope {
    match subject {
        JudgedSubject::Tool(_) => TrustScope::Tool,
        JudgedSubject::Signature(..) => TrustScope::Signature,
        JudgedSubject::Domain(_) => TrustScope::Domain,
    }
}

fn rule(rng: &mut Rng) -> TrustRule {
    let count = optional(rng, |rng| few(rng, 1, 3));
    TrustRule {
        count,
        consecutive: optional(rng, |rng| few(rng, 1, 3)),
        rate: rng.chance(40).then(|| Ratio::percent(*rng.pick(&[20, 50, 100]))),
        rate_at_least: few(rng, 1, 4),
        expected_failure_rate: Ratio::percent(*rng.pick(&[0, 0, 30])),
        window: millis(*rng.pick(&[64, 6_400, 3_600_000])),
        severities: [Severity::ServerError, Severity::Timeout, Severity::Crash].into(),
        duration: millis(*rng.pick(&[0, 500, 5_000])),
        cooldown: millis(*rng.pick(&[0, 500, 8_000])),
        successes_to_recover: few(rng, 1, 3),
        block_after: few(rng, 1, 4),
        recovery: if rng.chance(85) { TrustRecovery::Auto } else { TrustRecovery::Ask },
        notify: rng.chance(80),
    }
}

pub(super) fn check(rng: &mut Rng, machine_trace: &mut MachineTrace) -> Result<(), InvariantViolation> {
    let (rule, domain_rule) = (rule(rng), optional(rng, rule));
    let mut reference = ReferenceTrustLedger {
        rule: rule.clone(),
        domain_rule: domain_rule.clone(),
        accounts: BTreeMap::new(),
        stats: BTreeMap::new(),
        history: Vec::new(),
    };
    let mut ledger = TrustLedger::default();
    let rules = TrustRules { signature: &rule, domain: domain_rule.as_ref() };
    let mut now = Timestamp::from_millis(100_000_000);
    machine_trace.log(|| format!("{rules:?}"));
    for _ in 0..50 {
        now = next_moment(rng, now, &reference.moments());
        let call = called(rng);
        let (at, signature) =
            (now.as_millis(), call.signature.clone().unwrap_or(Signature(Arc::from("signature 0"))));
        let began = now.before(millis(*rng.pick(&[0, 0, 1, 700, 20_000])));
        let finished = match rng.chance(45) {
            true => FinishedOutcome::Success,
            false => FinishedOutcome::Failure {
                severity: if rng.chance(2) { Severity::Security } else { *rng.pick(&SEVERITIES) },
                recoverable: rng.chance(95),
            },
        };
        let target = match rng.between(0, 3) {
            0 => TrustTarget::All,
            1 => TrustTarget::Tool(&call.tool),
            2 => TrustTarget::Signature(&call.tool, &signature),
            _ => call.domain.as_ref().map_or(TrustTarget::All, TrustTarget::Domain),
        };
        let (action, got, due) = match rng.between(0, 19) {
            0..14 => {
                let call = JudgedCall { signature: Some(signature.clone()), ..call.clone() };
                let subject =
                    TrustSubject { tool: &call.tool, signature: &signature, domain: call.domain.as_ref() };
                let due = reference.ends(&call, finished, began, now);
                (
                    format!("{call:?} {finished:?}"),
                    ledger.record_with_start(rules, subject, finished, began, now),
                    due,
                )
            }
            14..17 => {
                let report = TrustReport {
                    tool: &call.tool,
                    signature: call.signature.as_ref(),
                    domain: call.domain.as_ref(),
                    service: None,
                };
                let due = reference.ends(&call, finished, now, now);
                let got = match finished {
                    FinishedOutcome::Success => ledger.report_success(rules, report, now),
                    FinishedOutcome::Failure { severity, recoverable } => {
                        // The reporter's own classification takes precedence over the core's.
                        let (classified, reported) = if rng.chance(50) {
                            (severity, None)
                        } else {
                            (Severity::Transient, Some(severity))
                        };
                        ledger.report_failure(
                            rules,
                            report,
                            ReportedFailure { classified, severity: reported, recoverable },
                            now,
                        )
                    }
                };
                (format!("report of {call:?} {finished:?}"), got, due)
            }
            17 => {
                let due = reference.approves(&target);
                (format!("recovery of {target:?}"), ledger.approve_recovery(target, now), due)
            }
            18 => {
                let due = reference.resets(&target);
                (format!("reset of {target:?}"), ledger.reset(target, now), due)
            }
            _ if rng.chance(20) => {
                let due = reference.blocks(&call.tool, true);
                (
                    format!("block of {call:?}"),
                    ledger.block_tool(&call.tool, "by hand", NotifyChoice::Yes, now),
                    due,
                )
            }
            _ => continue,
        };
        machine_trace.log(|| format!("{at}: {action}: {got:?}"));
        let change_summary = |change: &TrustChange| {
            let step = (change.from, change.to, change.failures, change.until, change.successes_needed);
            (change.scope, step, change.notify, change.at)
        };
        let due: Vec<_> = due.into_iter().map(|(scope, step, notify)| (scope, step, notify, now)).collect();
        agree(PROMISE, &action, &got.iter().map(change_summary).collect(), &due)?;
        compare(&ledger, &reference, &called(rng), rules, now)?;
    }
    Ok(())
}

fn called(rng: &mut Rng) -> JudgedCall {
    let name = ToolName::new(*rng.pick(&["pay", "pay", "look"])).expect("a name");
    let tool = match rng.between(0, 9) {
        0 => ToolRef::in_any_namespace(name),
        1 => ToolRef { namespace: Namespace::new("shop").expect("a name"), tool: name },
        _ => ToolRef { namespace: Namespace::new("bank").expect("a name"), tool: name },
    };
    let signature = optional(rng, |rng| Signature(format!("signature {}", rng.between(0, 1)).into()));
    let domain = optional(rng, |rng| Domain::new(format!("host{}", rng.between(0, 1))).expect("a name"));
    JudgedCall { tool, signature, domain }
}

fn compare(
    ledger: &TrustLedger,
    reference: &ReferenceTrustLedger,
    call: &JudgedCall,
    rules: TrustRules<'_>,
    now: Timestamp,
) -> Result<(), InvariantViolation> {
    let signature = call.signature.clone().unwrap_or(Signature(Arc::from("signature 0")));
    let call = JudgedCall { signature: Some(signature.clone()), ..call.clone() };
    let subject = TrustSubject { tool: &call.tool, signature: &signature, domain: call.domain.as_ref() };
    let standing = match ledger.check(rules, subject, now) {
        TrustDecision::Allowed(state) => state,
        TrustDecision::NeedsApproval(_) => TrustState::Escalated,
        TrustDecision::Blocked(_) => TrustState::Blocked,
    };
    agree(PROMISE, "how it stands", &standing, &reference.standing(&call, now))?;
    let history: Vec<ReferenceFailure> = ledger
        .history(None)
        .map(|entry| ReferenceFailure {
            call: JudgedCall {
                tool: ToolRef { namespace: entry.plugin_name.clone(), tool: entry.tool_name.clone() },
                signature: entry.signature.clone(),
                domain: entry.domain.clone(),
            },
            severity: entry.severity,
            at: entry.timestamp,
            for_call: entry.counts_for_call,
            for_domain: entry.counts_for_domain,
        })
        .collect();
    agree(PROMISE, "what is remembered", &history, &reference.history)?;
    let stats: BTreeMap<Domain, DomainStats> =
        ledger.all_domain_stats().map(|(domain, stats)| (domain.clone(), stats.clone())).collect();
    agree(PROMISE, "statistics", &stats, &reference.stats)?;
    let status = ledger.status(
        |tool, _| {
            if tool.is_some() {
                rules.signature.clone()
            } else {
                rules.domain.unwrap_or(rules.signature).clone()
            }
        },
        now,
    );
    let mut shown: Vec<_> = status
        .iter()
        .map(|one| {
            (
                one.standing.state,
                one.standing.scope,
                one.recovers_at,
                one.waits_for_approval,
                one.standing.failures_in_window,
            )
        })
        .collect();
    let mut due: Vec<_> = reference
        .accounts
        .iter()
        .filter(|(_, account)| account.name() != TrustState::Trusted)
        .map(|(judged, account)| {
            let rule = reference.rule_of(judged);
            let recovers = account.recovers_at(rule).filter(|at| *at > now);
            let state = account.stands(rule, now);
            let failures = match account.state {
                ReferenceTrustState::Trusted => 0,
                ReferenceTrustState::Escalated { failures, .. }
                | ReferenceTrustState::Recovering { failures, .. }
                | ReferenceTrustState::Blocked { failures } => failures,
            };
            (
                state,
                scope_of(judged),
                recovers,
                state == TrustState::Escalated && recovers.is_none(),
                failures,
            )
        })
        .collect();
    agree(PROMISE, "worst first", &shown.iter().map(|one| one.0).rev().is_sorted(), &true)?;
    shown.sort_unstable();
    due.sort_unstable();
    agree(PROMISE, "the status", &shown, &due)
}
