//! A summary of all problems.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::config::Switches;
use steadfast::store::StateStore;
use steadfast::{Engine, Steadfast};
use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::dedupe::{DedupeState, RecordLoss};
use steadfast_core::id::{Namespace, TenantId};
use steadfast_core::policy::EnforcementMode;
use steadfast_core::server_name::{ServerClaim, ServerFailure};
use steadfast_core::trust::TrustState;
use steadfast_executor::{DomainView, failed_servers, servers_of_one_name};
use steadfast_gateway::{ConfiguredServer, InstanceState, InstanceView, ServerView};
use steadfast_store::{RecordFilter, RecordPage};

use crate::GatewayParts;
use crate::problem::RECORDS_LOST_ADVICE;

/// The status of the whole process.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SystemStatus {
    /// The version of Steadfast.
    pub version: String,
    /// Time of this status.
    pub at_ms: Timestamp,
    /// The summary in one word.
    pub verdict: StatusVerdict,
    /// Problems and pending decisions, the worst first.
    pub findings: Vec<StatusFinding>,
    /// The switches, which limit the configured modes.
    pub switches: Switches,
    /// The store.
    pub store: StoreStatus,
    /// Counts.
    pub counts: IssueCounts,
    /// The hosts and servers with failed calls, those with the most failures first, at most twenty.
    pub domains: Vec<FailedDomain>,
    /// The tenants with any data here, in the order of their names.
    pub tenants: Vec<TenantId>,
}

/// A host or server with failed calls.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedDomain {
    /// The tenant whose calls are counted, if they belong to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The results of the calls.
    #[serde(flatten)]
    pub view: DomainView,
}

/// The status in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatusVerdict {
    /// No action is needed.
    Fine,
    /// The findings need attention.
    Attention,
    /// Calls fail because of a finding.
    Trouble,
}

/// A problem or a pending decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StatusFinding {
    /// The severity.
    pub level: FindingLevel,
    /// The description.
    #[serde(rename = "what")]
    pub description: String,
    /// The action to take.
    pub todo: String,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingLevel {
    /// Calls fail because of it.
    Trouble,
    /// It needs attention.
    Attention,
}

/// The state of the store.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// `memory`, `sqlite` or `redis`.
    pub kind: String,
    /// The error, if the store does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Committed records that are lost, until an operator accepts the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records_lost: Option<RecordLoss>,
}

/// Counts of open issues.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssueCounts {
    /// Calls in flight in this process.
    pub open_calls: usize,
    /// Pending approvals.
    pub approvals: usize,
    /// Tools, signatures or domains whose calls need approval.
    pub escalated: usize,
    /// Tools, signatures or domains that recover trust.
    pub recovering: usize,
    /// Tools, signatures or domains that stay blocked until a reset.
    pub blocked: usize,
    /// Open circuit breakers.
    pub open_breakers: usize,
    /// Circuit breakers that an operator or the configuration forced open.
    pub forced_breakers: usize,
    /// Sessions in which the loop guard refuses calls.
    pub stopped_sessions: usize,
    /// Calls with an unknown outcome, counted up to a thousand.
    pub unknown_outcomes: usize,
    /// Servers that are down or cannot start.
    pub servers_down: usize,
}

/// Returns the status for all tenants together.
pub async fn status(steadfast: &Steadfast, gateway: &GatewayParts) -> SystemStatus {
    let engine = steadfast.engine();
    let store = &**steadfast.store();
    let (mut counts, mut findings) =
        (IssueCounts { open_calls: engine.in_flight_calls(), ..IssueCounts::default() }, Vec::new());
    let mut domains = Vec::new();
    let mut tenants: BTreeSet<_> = engine.admin().tenants().into_iter().collect();
    for tenant in &tenants {
        let failed = engine.admin().domains(tenant.as_ref()).into_iter().filter(|view| view.failures > 0);
        domains.extend(failed.map(|view| FailedDomain { tenant: tenant.clone(), view }));
        let own = IssueCounts::of(engine, tenant.as_ref()).await;
        findings.extend(own.findings(tenant.as_ref()));
        counts.add(&own);
    }
    for (tenant, unknown) in unknown_outcomes(engine).await {
        let own = IssueCounts { unknown_outcomes: unknown, ..IssueCounts::default() };
        findings.extend(own.findings(tenant.as_ref()));
        counts.add(&own);
        tenants.insert(tenant);
    }
    let servers: Vec<_> = gateway.servers.iter().map(ConfiguredServer::view).collect();
    let before = failed_before(store, &servers).await;
    let down: Vec<_> = servers.iter().filter_map(down).chain(before).collect();
    counts.servers_down = down.len();
    findings.extend(down);
    findings.extend(same_names(store).await);
    // The result of the check may be a second old, and the store unreadable since then.
    let (checked, lost) = (steadfast.check_store().await, steadfast.record_loss().await);
    let (records_lost, unread) = match lost {
        Ok(lost) => (lost, None),
        Err(error) => (None, Some(error)),
    };
    let store_status = StoreStatus {
        kind: store.kind().to_owned(),
        trouble: checked.err().or(unread).map(|error| error.to_string()),
        records_lost,
    };
    let switches = steadfast.config().switches();
    findings.extend(store_and_switches(&store_status, &switches));
    findings.sort_by_key(|finding| finding.level);
    domains.sort_by_key(|domain| Reverse(domain.view.failures));
    domains.truncate(MOST_DOMAINS);
    SystemStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at_ms: engine.now(),
        verdict: findings.first().map_or(StatusVerdict::Fine, |worst| match worst.level {
            FindingLevel::Trouble => StatusVerdict::Trouble,
            FindingLevel::Attention => StatusVerdict::Attention,
        }),
        findings,
        switches,
        store: store_status,
        counts,
        domains,
        tenants: tenants.into_iter().flatten().collect(),
    }
}

impl IssueCounts {
    /// Counts the issues of one tenant.
    async fn of(engine: &Engine, tenant: Option<&TenantId>) -> Self {
        let (trust, breakers) = (engine.admin().trust(tenant), engine.admin().breakers(tenant).await);
        let count = |state| trust.iter().filter(|one| one.standing.state == state).count();
        let stopped = engine.admin().guard(tenant).stopped.into_iter().map(|stopped| stopped.session);
        Self {
            open_calls: 0,
            approvals: engine.admin().approvals(tenant).len(),
            escalated: count(TrustState::Escalated),
            recovering: count(TrustState::Recovering),
            blocked: count(TrustState::Blocked),
            // A half-open breaker lets the next call through.
            open_breakers: breakers
                .iter()
                .filter(|breaker| matches!(breaker.view.state, State::Open | State::ForcedOpen))
                .count(),
            forced_breakers: breakers.iter().filter(|breaker| breaker.view.forced.is_some()).count(),
            stopped_sessions: stopped.collect::<BTreeSet<_>>().len(),
            unknown_outcomes: 0,
            servers_down: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        self.open_calls += other.open_calls;
        self.approvals += other.approvals;
        self.escalated += other.escalated;
        self.recovering += other.recovering;
        self.blocked += other.blocked;
        self.open_breakers += other.open_breakers;
        self.forced_breakers += other.forced_breakers;
        self.stopped_sessions += other.stopped_sessions;
        self.unknown_outcomes += other.unknown_outcomes;
        self.servers_down += other.servers_down;
    }

    /// Returns the findings for these counts.
    fn findings(&self, tenant: Option<&TenantId>) -> Vec<StatusFinding> {
        let tenant_prefix = tenant.map_or_else(String::new, |tenant| format!("tenant {tenant}: "));
        let flag = tenant.map_or_else(String::new, |tenant| format!(" {}", tenant.flag()));
        let mut found = Vec::new();
        let failing = self.open_breakers.saturating_sub(self.forced_breakers);
        for (count, level, one, more, todo) in [
            (
                failing,
                FindingLevel::Trouble,
                "tool keeps failing and its circuit breaker is open",
                "tools keep failing and their circuit breakers are open",
                format!(
                    "`steadfast breaker{flag}` lists them; a probe closes a breaker when its tool works again"
                ),
            ),
            (
                self.blocked,
                FindingLevel::Trouble,
                "tool is blocked",
                "tools are blocked",
                format!("steadfast reset TOOL{flag}"),
            ),
            (
                self.unknown_outcomes,
                FindingLevel::Attention,
                "call has an unknown outcome",
                "calls have an unknown outcome",
                format!("steadfast unknown{flag}"),
            ),
            (
                self.approvals,
                FindingLevel::Attention,
                "call waits for approval",
                "calls wait for approval",
                format!("steadfast approvals{flag}"),
            ),
            (
                self.escalated,
                FindingLevel::Attention,
                "tool has lost trust",
                "tools have lost trust",
                format!("its calls need approval; `steadfast reset TOOL{flag}` restores trust"),
            ),
            (
                self.forced_breakers,
                FindingLevel::Attention,
                "breaker is forced open",
                "breakers are forced open",
                format!("`steadfast breaker reset KEY{flag}` when its calls may run again"),
            ),
            (
                self.stopped_sessions,
                FindingLevel::Attention,
                "session is in a loop and is stopped",
                "sessions are in a loop and are stopped",
                "`GET /v1/guard` shows the arguments that the model sent".to_owned(),
            ),
        ] {
            match count {
                0 => {}
                1 => {
                    found.push(StatusFinding { level, description: format!("{tenant_prefix}1 {one}"), todo })
                }
                _ => found.push(StatusFinding {
                    level,
                    description: format!("{tenant_prefix}{count} {more}"),
                    todo,
                }),
            }
        }
        found
    }
}

/// Counts the calls with an unknown outcome, by tenant. Empty if the store does not answer: the status reports that
/// separately.
async fn unknown_outcomes(engine: &Engine) -> BTreeMap<Option<TenantId>, usize> {
    let open = RecordFilter { open: true, ..RecordFilter::default() };
    let found = engine
        .admin()
        .records(&open, RecordPage { after: None, limit: MOST_COUNTED })
        .await
        .unwrap_or_default();
    let mut unknown = BTreeMap::new();
    for record in found.into_iter().filter(|record| matches!(record.state, DedupeState::Unknown(_))) {
        *unknown.entry(record.tenant).or_default() += 1;
    }
    unknown
}

/// The maximum number of domains that are shown.
const MOST_DOMAINS: usize = 20;

/// The maximum number of open records that are searched.
const MOST_COUNTED: usize = 1000;

/// Returns findings about different servers with the same name. Empty if the store does not answer.
async fn same_names(store: &dyn StateStore) -> Vec<StatusFinding> {
    let found = servers_of_one_name(store).await.unwrap_or_default();
    let finding = |(name, servers): (String, Vec<ServerClaim>)| {
        let servers: Vec<_> = servers.iter().map(|one| format!("{} runs `{}`", one.name, one.runs)).collect();
        StatusFinding {
            level: FindingLevel::Attention,
            description: format!("{} servers have the name {name}: {}", servers.len(), servers.join(", ")),
            todo: "give one of them another name; until then each has its own trust, breakers and history"
                .to_owned(),
        }
    };
    found.into_iter().map(finding).collect()
}

/// Returns the finding about a failed server, with its last error.
fn down(server: &ServerView) -> Option<StatusFinding> {
    let reason = &server.last_failure.as_ref()?.reason;
    let (description, todo) = match server.instances.as_slice() {
        [] => (format!("server {} failed when it was last used: {reason}", server.name), RUN_MANUALLY),
        some if some.iter().any(|one| one.state == InstanceState::Elsewhere) => (
            format!("server {} cannot be reached: {reason}", server.name),
            "check that it runs and that its URL is correct; the next call tries again",
        ),
        _ => (
            format!("server {} is down: {reason}", server.name),
            "run its command manually; `GET /v1/servers` shows its stderr",
        ),
    };
    Some(StatusFinding { level: FindingLevel::Trouble, description, todo: todo.to_owned() })
}

/// Returns findings about servers that failed in other or earlier processes, unless this process has newer information.
/// Empty if the store does not answer.
async fn failed_before(store: &dyn StateStore, here: &[ServerView]) -> Vec<StatusFinding> {
    let is_known_here = |name: &Namespace| {
        let server = here.iter().find(|server| server.name == name.as_str());
        server.is_some_and(|server| {
            let is_up = |one: &InstanceView| one.state == InstanceState::Up;
            server.last_failure.is_some() || server.instances.iter().any(is_up)
        })
    };
    let failed = failed_servers(store).await.unwrap_or_default().into_iter();
    let finding = |(name, failure): (Namespace, ServerFailure)| StatusFinding {
        level: FindingLevel::Trouble,
        description: format!("server {name} failed when it was last used: {}", failure.reason),
        todo: RUN_MANUALLY.to_owned(),
    };
    failed.filter(|(name, _)| !is_known_here(name)).map(finding).collect()
}

const RUN_MANUALLY: &str = "run its command manually, or check that its URL can be reached; this finding remains until it works again, for a day at most";

fn store_and_switches(store: &StoreStatus, switches: &Switches) -> Vec<StatusFinding> {
    let mut found = Vec::new();
    let mut find = |level, description: String, todo: &str| {
        found.push(StatusFinding { level, description, todo: todo.to_owned() })
    };
    if let Some(trouble) = &store.trouble {
        find(
            FindingLevel::Trouble,
            format!("the {} store does not answer: {trouble}", store.kind),
            "calls that must not run twice are refused until it does",
        );
    }
    if let Some(loss) = &store.records_lost {
        find(FindingLevel::Trouble, loss.to_string(), RECORDS_LOST_ADVICE);
    }
    let lowered: Vec<_> = [
        ("everything", switches.all),
        ("duplicates", switches.dedupe),
        ("retries", switches.retry),
        ("breakers", switches.breaker),
        ("the guard", switches.guard),
        ("trust", switches.trust),
    ]
    .into_iter()
    .filter(|(_, mode)| *mode != EnforcementMode::Enforce)
    .map(|(feature, mode)| match mode {
        EnforcementMode::Off => format!("{feature} off"),
        EnforcementMode::Shadow => format!("{feature} in shadow mode"),
        EnforcementMode::Enforce => feature.to_owned(),
    })
    .collect();
    if !lowered.is_empty() {
        find(
            FindingLevel::Attention,
            format!("switched: {}", lowered.join(", ")),
            "turn it on again when you are done",
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_action_of_a_finding_quotes_the_tenant_for_a_shell() {
        for (tenant, flag) in [
            ("acme", "--tenant acme"),
            ("of acme", "--tenant='of acme'"),
            ("-rf", "--tenant='-rf'"),
            ("a'b;c", "--tenant='a'\\''b;c'"),
        ] {
            let waiting = IssueCounts { approvals: 1, ..IssueCounts::default() };
            let found = waiting.findings(Some(&TenantId::new(tenant).unwrap()));
            assert_eq!(found[0].todo, format!("steadfast approvals {flag}"));
        }
    }

    #[test]
    fn an_unavailable_store_and_lowered_switches_are_findings() {
        let findings = |trouble: Option<&str>, switches| {
            let trouble = trouble.map(str::to_owned);
            let store = StoreStatus { kind: "redis".to_owned(), trouble, records_lost: None };
            store_and_switches(&store, &switches)
                .into_iter()
                .map(|found| (found.level, found.description))
                .collect::<Vec<_>>()
        };
        assert_eq!(findings(None, Switches::default()), []);
        let silent = (FindingLevel::Trouble, "the redis store does not answer: gone".to_owned());
        assert_eq!(findings(Some("gone"), Switches::default()), [silent]);
        let turned =
            Switches { all: EnforcementMode::Shadow, breaker: EnforcementMode::Off, ..Switches::default() };
        let switched = "switched: everything in shadow mode, breakers off".to_owned();
        assert_eq!(findings(None, turned), [(FindingLevel::Attention, switched)]);
    }
}
