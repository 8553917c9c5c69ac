//! The trust ledger of one tenant: the accounts that a call affects, and the worst of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::account::{AccountFailure, AccountTransition, BlockedState, State, TrustAccount};
use super::bounded_map::BoundedMap;
use super::entries::{DomainStats, HistoryEntry, ToolReliabilityState};
use super::prompt::PromptFacts;
use super::{
    Escalation, FinishedOutcome, ReportedFailure, TrustChange, TrustDecision, TrustReport, TrustRules,
    TrustScope, TrustState, TrustSubject, TrustTarget,
};
use crate::Timestamp;
use crate::classify::Severity;
use crate::classify::signature::Signature;
use crate::id::{Domain, ToolRef};
use crate::policy::TrustRule;

/// The size limits of a ledger. Higher values cost memory, up to some kilobytes per account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustBounds {
    /// Accounts of tools as a whole.
    pub tools: usize,
    /// Accounts of signatures.
    pub signatures: usize,
    /// Accounts of domains, and statistics of domains.
    pub domains: usize,
    /// Failures in the history.
    pub history: usize,
}

impl Default for TrustBounds {
    fn default() -> Self {
        Self { tools: 1024, signatures: 2048, domains: 512, history: 1000 }
    }
}

/// The trust ledger of one tenant: all its accounts and their failures.
#[derive(Clone, Debug)]
pub struct TrustLedger {
    pub(super) tools: BoundedMap<ToolRef, TrustAccount>,
    pub(super) signatures: BoundedMap<(ToolRef, Signature), TrustAccount>,
    pub(super) domains: BoundedMap<Domain, TrustAccount>,
    /// Set if a tool had to be blocked and there was no room for its account.
    pub(super) all_blocked: Option<BlockedState>,
    pub(super) stats: BoundedMap<Domain, DomainStats>,
    pub(super) history: VecDeque<HistoryEntry>,
    pub(super) most_history: usize,
    pub(super) created: Option<Timestamp>,
}

impl Default for TrustLedger {
    fn default() -> Self {
        Self::new(TrustBounds::default())
    }
}

impl TrustLedger {
    /// Creates an empty ledger. All tools are trusted.
    pub const fn new(bounds: TrustBounds) -> Self {
        Self {
            tools: BoundedMap::new(bounds.tools),
            signatures: BoundedMap::new(bounds.signatures),
            domains: BoundedMap::new(bounds.domains),
            all_blocked: None,
            stats: BoundedMap::new(bounds.domains),
            history: VecDeque::new(),
            most_history: bounds.history,
            created: None,
        }
    }

    /// Returns the trust decision for a call. The worst of tool, signature and domain counts.
    pub fn check(&self, rules: TrustRules<'_>, subject: TrustSubject<'_>, now: Timestamp) -> TrustDecision {
        let TrustSubject { tool, signature, domain } = subject;
        if let Some(blocked) = &self.all_blocked {
            return TrustDecision::Blocked(escalation(tool, None, &account_of(blocked), rules.signature));
        }
        let of_tool = self.tools.items.get(tool).map(|account| (account, rules.signature, None));
        let of_name = self.of_any_namespace(tool).map(|account| (account, rules.signature, None));
        // An empty map needs no lookup. This runs several times per call.
        let of_signature = (!self.signatures.items.is_empty())
            .then(|| self.signatures.items.get(&(tool.clone(), signature.clone())))
            .flatten()
            .map(|account| (account, rules.signature, None));
        let of_domain = domain.zip(rules.domain).and_then(|(domain, rule)| {
            self.domains.items.get(domain).map(|account| (account, rule, Some(domain)))
        });
        let mut worst = TrustState::Trusted;
        let mut held_by = None;
        for candidate in [of_tool, of_name, of_signature, of_domain].into_iter().flatten() {
            let state = candidate.0.state(candidate.1, now);
            if state > worst {
                worst = state;
                held_by = Some(candidate);
            }
        }
        match (worst, held_by) {
            (TrustState::Blocked, Some((account, rule, domain))) => {
                TrustDecision::Blocked(escalation(tool, domain, account, rule))
            }
            (TrustState::Escalated, Some((account, rule, domain))) => {
                TrustDecision::NeedsApproval(escalation(tool, domain, account, rule))
            }
            (
                TrustState::Trusted | TrustState::Recovering | TrustState::Escalated | TrustState::Blocked,
                _,
            ) => TrustDecision::Allowed(worst),
        }
    }

    /// Records a finished call with an unknown start. It is assumed to have started now.
    pub fn record(
        &mut self,
        rules: TrustRules<'_>,
        subject: TrustSubject<'_>,
        finished: FinishedOutcome,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        self.record_with_start(rules, subject, finished, now, now)
    }

    /// Records a finished call with a known start. Failures of calls that were in flight when trust was lost do not
    /// count towards a block: a burst of parallel calls to a dead host must not end in a state that only an operator
    /// can end.
    pub fn record_with_start(
        &mut self,
        rules: TrustRules<'_>,
        subject: TrustSubject<'_>,
        finished: FinishedOutcome,
        began: Timestamp,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        let TrustSubject { tool, signature, domain } = subject;
        self.take(
            rules,
            CallSubject { tool, signature: Some(signature), domain, service: None },
            finished,
            began,
            now,
        )
    }

    /// Records a failure that was reported from outside a call.
    pub fn report_failure(
        &mut self,
        rules: TrustRules<'_>,
        report: TrustReport<'_>,
        failure: ReportedFailure,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        let severity = failure.severity.unwrap_or(failure.classified);
        let finished = FinishedOutcome::Failure { severity, recoverable: failure.recoverable };
        self.take(rules, CallSubject::from(report), finished, now, now)
    }

    /// Records a success that was reported from outside a call.
    pub fn report_success(
        &mut self,
        rules: TrustRules<'_>,
        report: TrustReport<'_>,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        self.take(rules, CallSubject::from(report), FinishedOutcome::Success, now, now)
    }

    /// Blocks a whole tool at once, with a reason that operators read.
    pub fn block_tool(
        &mut self,
        tool: &ToolRef,
        reason: &str,
        notify: NotifyChoice,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        if self.is_blocked(tool) {
            return Vec::new();
        }
        let context = ChangeContext {
            scope: TrustScope::Tool,
            tool: Some(tool),
            signature: None,
            domain: None,
            notify,
        };
        let reason: Arc<str> = reason.into();
        let step = match self.tools.get_or_insert(tool.clone(), now) {
            Some(account) => account.block(reason, 1, now),
            None => {
                // There is no room for the account of the tool, and a lost block would be worse.
                let reason =
                    format!("{reason} (too many blocked tools to track them separately; reset all)").into();
                let mut account = TrustAccount::default();
                let step = account.block(reason, 1, now);
                if let State::Blocked(blocked) = account.state {
                    self.all_blocked = Some(blocked);
                }
                step
            }
        };
        vec![context.change(step, now)]
    }

    /// Starts the recovery of escalated accounts, by approval of an operator. Blocked accounts stay blocked.
    pub fn approve_recovery(&mut self, target: TrustTarget<'_>, now: Timestamp) -> Vec<TrustChange> {
        let mut changes = Vec::new();
        for (context, account) in self.accounts_of(target) {
            changes.extend(account.approve_recovery(now).map(|step| context.change(step, now)));
        }
        changes
    }

    /// Restores trust in the target: clears its state, its counters, and the failures in its window.
    pub fn reset(&mut self, target: TrustTarget<'_>, now: Timestamp) -> Vec<TrustChange> {
        let mut changes = Vec::new();
        for (context, account) in self.accounts_of(target) {
            let from = account.state.name();
            *account = TrustAccount { trust_restored_at: Some(now), ..TrustAccount::default() };
            if from != TrustState::Trusted {
                changes.push(context.change(AccountTransition::restored(from, "reset by an operator"), now));
            }
        }
        match target {
            TrustTarget::Signature(tool, signature) => {
                self.fence_calls(|entry| entry.is_about(tool) && entry.signature.as_ref() == Some(signature));
            }
            TrustTarget::Tool(tool) => {
                let any = ToolRef::in_any_namespace(tool.tool.clone());
                self.fence_calls(|entry| {
                    entry.is_about(tool) || (entry.is_about(&any) && entry.signature.is_none())
                });
            }
            TrustTarget::Domain(domain) => self.fence_domain(|entry| entry.domain.as_ref() == Some(domain)),
            TrustTarget::All => {
                self.fence_calls(|_| true);
                self.fence_domain(|_| true);
                if self.all_blocked.take().is_some() {
                    let context = ChangeContext {
                        scope: TrustScope::Tool,
                        tool: None,
                        signature: None,
                        domain: None,
                        notify: NotifyChoice::Yes,
                    };
                    changes.push(context.change(
                        AccountTransition::restored(TrustState::Blocked, "reset by an operator"),
                        now,
                    ));
                }
            }
        }
        changes
    }

    /// Returns the stored failures of one tool or of all, oldest first.
    pub fn history<'a>(&'a self, tool: Option<&'a ToolRef>) -> impl Iterator<Item = &'a HistoryEntry> {
        self.history.iter().filter(move |entry| tool.is_none_or(|tool| entry.is_about(tool)))
    }

    /// Returns the statistics of a domain. They exist without a rule for the domain.
    pub fn domain_stats(&self, domain: &Domain) -> Option<&DomainStats> {
        self.stats.items.get(domain)
    }

    /// Returns the statistics of all domains, ordered by name.
    pub fn all_domain_stats(&self) -> impl Iterator<Item = (&Domain, &DomainStats)> {
        self.stats.items.iter()
    }

    /// Returns the state and the account of everything that is not trusted, for status and snapshot.
    pub(super) fn not_trusted(&self) -> impl Iterator<Item = (ToolReliabilityState, &TrustAccount)> {
        let tools = self
            .tools
            .items
            .iter()
            .map(|(tool, account)| (TrustScope::Tool, Some(tool), None, None, account));
        let signatures = self.signatures.items.iter().map(|((tool, signature), account)| {
            (TrustScope::Signature, Some(tool), Some(signature), account.domain.as_ref(), account)
        });
        let domains = self
            .domains
            .items
            .iter()
            .map(|(domain, account)| (TrustScope::Domain, None, None, Some(domain), account));
        tools.chain(signatures).chain(domains).filter(|(.., account)| account.state != State::Trusted).map(
            |(scope, tool, signature, domain, account)| {
                (ToolReliabilityState::of(scope, tool, signature, domain, account), account)
            },
        )
    }

    fn take(
        &mut self,
        rules: TrustRules<'_>,
        subject: CallSubject<'_>,
        finished: FinishedOutcome,
        began: Timestamp,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        self.created.get_or_insert(now);
        if let Some(stats) = subject.domain.and_then(|domain| self.stats.get_or_insert(domain.clone(), now)) {
            stats.count(finished, now);
        }
        match finished {
            FinishedOutcome::Success if self.is_blocked(subject.tool) => Vec::new(),
            FinishedOutcome::Success => self.succeeded(rules, subject, now),
            FinishedOutcome::Failure { severity: Severity::Security, recoverable } => {
                self.remember(subject.entry(Severity::Security, recoverable, now));
                self.block_tool(subject.tool, "security concern", NotifyChoice::by(rules.signature), now)
            }
            FinishedOutcome::Failure { severity, recoverable } if self.is_blocked(subject.tool) => {
                self.remember(subject.entry(severity, recoverable, now));
                Vec::new()
            }
            FinishedOutcome::Failure { severity, recoverable } => {
                self.failed(rules, subject, AccountFailure { severity, recoverable, began }, now)
            }
        }
    }

    fn succeeded(
        &mut self,
        rules: TrustRules<'_>,
        subject: CallSubject<'_>,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        let mut changes = Vec::new();
        let mut steps = Vec::new();
        for name in self.whole_tool(subject.tool) {
            if let Some(account) = self.tools.items.get_mut(&name) {
                account.succeed(rules.signature, now, &mut steps);
                if steps.iter().any(|step| step.to == TrustState::Trusted) {
                    self.fence_calls(|entry| entry.is_about(&name) && entry.signature.is_none());
                }
                subject.change_context(TrustScope::Tool, rules.signature).append(
                    &mut steps,
                    &mut changes,
                    now,
                );
            }
        }
        if let Some(signature) = subject.signature {
            let key = (subject.tool.clone(), signature.clone());
            if let Some(account) = known_or_rated(&mut self.signatures, key, rules.signature, now) {
                account.succeed(rules.signature, now, &mut steps);
                subject.change_context(TrustScope::Signature, rules.signature).append(
                    &mut steps,
                    &mut changes,
                    now,
                );
            }
        }
        if let Some((domain, rule)) = subject.domain.zip(rules.domain)
            && let Some(account) = known_or_rated(&mut self.domains, domain.clone(), rule, now)
        {
            account.succeed(rule, now, &mut steps);
            subject.change_context(TrustScope::Domain, rule).append(&mut steps, &mut changes, now);
        }
        for change in changes.iter().filter(|change| change.to == TrustState::Trusted) {
            match change.scope {
                // Cleared above, under the name of its account.
                TrustScope::Tool => {}
                TrustScope::Signature => {
                    self.fence_calls(|entry| {
                        entry.is_about(subject.tool) && entry.signature.as_ref() == subject.signature
                    });
                }
                TrustScope::Domain => self.fence_domain(|entry| entry.domain.as_ref() == subject.domain),
            }
        }
        changes
    }

    fn failed(
        &mut self,
        rules: TrustRules<'_>,
        subject: CallSubject<'_>,
        failure: AccountFailure,
        now: Timestamp,
    ) -> Vec<TrustChange> {
        let rule = rules.signature;
        let mut changes = Vec::new();
        let mut steps = Vec::new();
        let mut severity = failure.severity;
        let holder = match subject.signature {
            Some(signature) => self.signatures.get_or_insert((subject.tool.clone(), signature.clone()), now),
            None => self.tools.get_or_insert(subject.tool.clone(), now),
        };
        // If all accounts are escalated or blocked, there is no room for another account.
        if let Some(account) = holder {
            if severity == Severity::Permission && account.is_repeated_refusal(rule, now) {
                severity = Severity::RepeatedAuth;
            }
            account.domain = subject.domain.cloned();
            account.fail(rule, AccountFailure { severity, ..failure }, now, &mut steps);
            let scope = if subject.signature.is_some() { TrustScope::Signature } else { TrustScope::Tool };
            subject.change_context(scope, rule).append(&mut steps, &mut changes, now);
        }
        // If the tool as a whole was reported and has not recovered, each call of its signatures counts.
        if subject.signature.is_some() {
            for name in self.whole_tool(subject.tool) {
                if let Some(account) = self.tools.items.get_mut(&name)
                    && account.state(rule, now) != TrustState::Trusted
                {
                    account.fail(rule, AccountFailure { severity, ..failure }, now, &mut steps);
                    subject.change_context(TrustScope::Tool, rule).append(&mut steps, &mut changes, now);
                }
            }
        }
        if let Some((domain, rule)) = subject.domain.zip(rules.domain)
            && let Some(account) = self.domains.get_or_insert(domain.clone(), now)
        {
            account.fail(rule, failure, now, &mut steps);
            subject.change_context(TrustScope::Domain, rule).append(&mut steps, &mut changes, now);
        }
        let entry = subject.entry(severity, failure.recoverable, now);
        self.remember(HistoryEntry {
            counts_for_call: true,
            counts_for_domain: rules.domain.is_some(),
            ..entry
        });
        changes
    }

    fn remember(&mut self, entry: HistoryEntry) {
        self.history.push_back(entry);
        while self.history.len() > self.most_history {
            self.history.pop_front();
        }
    }

    fn is_blocked(&self, tool: &ToolRef) -> bool {
        let of_tool = self.tools.items.get(tool).into_iter().chain(self.of_any_namespace(tool));
        self.all_blocked.is_some()
            || of_tool.map(|account| account.state.name()).any(|state| state == TrustState::Blocked)
    }

    /// Returns the account of a tool that a host named without its namespace.
    fn of_any_namespace(&self, tool: &ToolRef) -> Option<&TrustAccount> {
        // An empty map needs no lookup. This runs several times per call.
        if self.tools.items.is_empty() || tool.is_in_any_namespace() {
            return None;
        }
        self.tools.items.get(&ToolRef::in_any_namespace(tool.tool.clone()))
    }

    /// Returns the names that an account of the tool as a whole may have.
    fn whole_tool(&self, tool: &ToolRef) -> impl Iterator<Item = ToolRef> + use<> {
        let any = (!self.tools.items.is_empty()).then(|| ToolRef::in_any_namespace(tool.tool.clone()));
        let any = any.filter(|any| any != tool);
        let own = (!self.tools.items.is_empty()).then(|| tool.clone());
        own.into_iter().chain(any)
    }

    /// Returns the accounts of a target, with the data of their changes.
    fn accounts_of<'a>(
        &'a mut self,
        target: TrustTarget<'a>,
    ) -> impl Iterator<Item = (ChangeContext<'a>, &'a mut TrustAccount)> {
        let tools = self.tools.items.iter_mut().filter(move |(tool, _)| match target {
            TrustTarget::Tool(named) => {
                *tool == named || (tool.is_in_any_namespace() && tool.tool == named.tool)
            }
            TrustTarget::All => true,
            TrustTarget::Signature(..) | TrustTarget::Domain(_) => false,
        });
        let signatures =
            self.signatures.items.iter_mut().filter(move |((tool, signature), _)| match target {
                TrustTarget::Signature(of, named) => tool == of && signature == named,
                TrustTarget::Tool(named) => tool == named,
                TrustTarget::All => true,
                TrustTarget::Domain(_) => false,
            });
        let domains = self.domains.items.iter_mut().filter(move |(domain, _)| match target {
            TrustTarget::Domain(named) => *domain == named,
            TrustTarget::All => true,
            TrustTarget::Signature(..) | TrustTarget::Tool(_) => false,
        });
        let context = |scope, tool, signature, domain| ChangeContext {
            scope,
            tool,
            signature,
            domain,
            notify: NotifyChoice::Yes,
        };
        let tools =
            tools.map(move |(tool, account)| (context(TrustScope::Tool, Some(tool), None, None), account));
        let signatures = signatures.map(move |((tool, signature), account)| {
            (context(TrustScope::Signature, Some(tool), Some(signature), None), account)
        });
        let domains = domains
            .map(move |(domain, account)| (context(TrustScope::Domain, None, None, Some(domain)), account));
        tools.chain(signatures).chain(domains)
    }

    /// Marks failures of calls so that they do not count again after a restart.
    fn fence_calls(&mut self, hit: impl Fn(&HistoryEntry) -> bool) {
        self.history.iter_mut().filter(|entry| hit(entry)).for_each(|entry| entry.counts_for_call = false);
    }

    /// Marks failures of a domain so that they do not count again after a restart.
    fn fence_domain(&mut self, hit: impl Fn(&HistoryEntry) -> bool) {
        self.history.iter_mut().filter(|entry| hit(entry)).for_each(|entry| entry.counts_for_domain = false);
    }
}

/// The notification setting of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyChoice {
    /// A notification is sent.
    Yes,
    /// The change is for metrics and logs only.
    No,
}

impl NotifyChoice {
    fn by(rule: &TrustRule) -> Self {
        if rule.notify { Self::Yes } else { Self::No }
    }
}

impl<'a> TrustReport<'a> {
    /// Returns the domain of the report. The rules of the call are looked up with it.
    pub fn depends_on(&self) -> Option<&'a Domain> {
        self.domain.or(self.service)
    }
}

/// The subject of a call.
#[derive(Clone, Copy)]
struct CallSubject<'a> {
    tool: &'a ToolRef,
    signature: Option<&'a Signature>,
    domain: Option<&'a Domain>,
    service: Option<&'a Domain>,
}

impl<'a> From<TrustReport<'a>> for CallSubject<'a> {
    fn from(report: TrustReport<'a>) -> Self {
        let TrustReport { tool, signature, service, .. } = report;
        Self { tool, signature, domain: report.depends_on(), service }
    }
}

impl<'a> CallSubject<'a> {
    fn change_context(self, scope: TrustScope, rule: &TrustRule) -> ChangeContext<'a> {
        let notify = NotifyChoice::by(rule);
        ChangeContext { scope, tool: Some(self.tool), signature: self.signature, domain: self.domain, notify }
    }

    /// Returns an entry of the history that does not count for any account yet.
    fn entry(self, severity: Severity, recoverable: bool, now: Timestamp) -> HistoryEntry {
        HistoryEntry {
            tool_name: self.tool.tool.clone(),
            plugin_name: self.tool.namespace.clone(),
            signature: self.signature.cloned(),
            domain: self.domain.cloned(),
            service: self.service.cloned(),
            severity,
            recoverable,
            timestamp: now,
            counts_for_call: false,
            counts_for_domain: false,
        }
    }
}

/// The data of a change.
#[derive(Clone, Copy)]
struct ChangeContext<'a> {
    scope: TrustScope,
    tool: Option<&'a ToolRef>,
    signature: Option<&'a Signature>,
    domain: Option<&'a Domain>,
    notify: NotifyChoice,
}

impl ChangeContext<'_> {
    fn append(self, steps: &mut Vec<AccountTransition>, changes: &mut Vec<TrustChange>, now: Timestamp) {
        changes.extend(steps.drain(..).map(|step| self.change(step, now)));
    }

    fn change(self, step: AccountTransition, now: Timestamp) -> TrustChange {
        let AccountTransition { from, to, reason, failures, until, successes_needed } = step;
        TrustChange {
            subject: subject(self.scope, self.tool, self.signature, self.domain),
            scope: self.scope,
            tool: self.tool.cloned(),
            signature: self.signature.cloned(),
            domain: self.domain.cloned(),
            from,
            to,
            reason: reason.as_ref().to_owned(),
            failures,
            until,
            successes_needed,
            notify: self.notify == NotifyChoice::Yes && to != TrustState::Recovering,
            at: now,
        }
    }
}

/// Returns the account for a success. A success creates an account only if the rule has a share of failures.
fn known_or_rated<'a, K: Ord + Clone>(
    shelf: &'a mut BoundedMap<K, TrustAccount>,
    key: K,
    rule: &TrustRule,
    now: Timestamp,
) -> Option<&'a mut TrustAccount> {
    if rule.rate.is_some() { shelf.get_or_insert(key, now) } else { shelf.items.get_mut(&key) }
}

fn escalation(
    tool: &ToolRef,
    domain: Option<&Domain>,
    account: &TrustAccount,
    rule: &TrustRule,
) -> Escalation {
    let (state, reason, failures, successes_needed) = match &account.state {
        State::Trusted => (TrustState::Trusted, "", 0, 0),
        State::Escalated(it) => (TrustState::Escalated, it.reason.as_ref(), it.failures, it.successes_needed),
        State::Recovering(it) => {
            (TrustState::Recovering, it.reason.as_ref(), it.failures, it.successes_needed)
        }
        State::Blocked(it) => (TrustState::Blocked, it.reason.as_ref(), it.failures, 0),
    };
    let (window, recovers_at) = (rule.window, account.recovers_at(rule));
    Escalation::of(PromptFacts {
        tool,
        domain,
        state,
        reason,
        failures,
        window,
        recovers_at,
        successes_needed,
    })
}

/// Returns the account that all subjects share while everything is blocked.
pub(super) fn account_of(blocked: &BlockedState) -> TrustAccount {
    TrustAccount { state: State::Blocked(blocked.clone()), ..TrustAccount::default() }
}

/// Returns the name of the holder of an account.
pub(super) fn subject(
    scope: TrustScope,
    tool: Option<&ToolRef>,
    signature: Option<&Signature>,
    domain: Option<&Domain>,
) -> Arc<str> {
    match (scope, tool, signature, domain) {
        (TrustScope::Domain, _, _, Some(domain)) => domain.as_str().into(),
        (TrustScope::Signature, _, Some(signature), _) => Arc::clone(&signature.0),
        (TrustScope::Tool | TrustScope::Signature | TrustScope::Domain, Some(tool), _, _) => {
            tool.to_string().into()
        }
        (TrustScope::Tool | TrustScope::Signature | TrustScope::Domain, None, _, _) => "everything".into(),
    }
}
