//! Logs and metrics of events outside calls: actions of operators, reports of hosts, pending requests.

use steadfast_core::breaker;
use steadfast_core::id::TenantId;
use steadfast_core::notification::Notification;
use steadfast_core::trust::{self, Scope, TrustChange};
use steadfast_executor::{AuditEntry, BreakerKey, Outside};

use crate::Telemetry;
use crate::feed::NOTIFICATION;
use crate::logs::{Field, Level};
use crate::words;

impl Telemetry {
    pub(crate) fn tell_outside(&self, fact: &Outside<'_>) {
        match fact {
            Outside::Breaker { tenant, key, change } => {
                if let BreakerKey::Tool(name) = key {
                    let tool = self.metrics.tool(name);
                    self.count_breaker(&tool, change);
                    let now = tool.standing.breaker(name, *tenant, change.to);
                    self.metrics.breaker_state(&tool, now);
                }
                self.log_breaker(*tenant, key, change);
            }
            Outside::Trust { tenant, change } => {
                if let Some(name) = &change.tool {
                    let tool = self.metrics.tool(name);
                    let (from, to) = (words::trust_state(change.from), words::trust_state(change.to));
                    self.metrics.on.tool_trust_transitions.add([tool.label.clone(), from.into(), to.into()]);
                    match change.scope {
                        Scope::Tool | Scope::Signature => {
                            let now = tool.standing.trust(&change.subject, change.to);
                            self.metrics.trust_state(&tool, now);
                        }
                        Scope::Domain => {}
                    }
                }
                self.log_trust(*tenant, change);
            }
            Outside::Waiting { before, now } => {
                self.metrics.on.approvals_pending.shift([], count(*now) - count(*before));
            }
            Outside::ByHand(entry) => self.tell_by_hand(entry),
        }
    }

    /// Logs and counts a notification, and adds it to the feed.
    pub(crate) fn tell_notification(&self, notification: &Notification) {
        let level = match notification.level {
            trust::Level::Info => Level::Info,
            trust::Level::Warning => Level::Warn,
            trust::Level::Error => Level::Error,
        };
        let (tool, trust) = (notification.tool.as_ref(), notification.trust.as_ref());
        let approval = notification.approval.as_ref();
        let number = |number: Option<u64>| number.map_or(Field::Absent, Field::Number);
        let fields = [
            ("notification", Field::Own(notification.event.as_str())),
            ("message", Field::Text(&notification.message)),
            ("requestId", Field::text(notification.request_id.as_ref().map(|id| id.as_str()))),
            ("toolName", Field::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", Field::text(tool.map(|tool| tool.namespace.as_str()))),
            ("tenantId", Field::text(notification.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", Field::text(notification.session.as_ref().map(|session| session.as_str()))),
            ("fromState", Field::own(trust.map(|trust| words::trust_state(trust.from)))),
            ("trustState", Field::own(trust.map(|trust| words::trust_state(trust.to)))),
            ("reason", Field::text(trust.map(|trust| trust.reason.as_str()))),
            ("untilMs", number(trust.and_then(|trust| trust.until).map(|until| until.as_millis()))),
            ("successesNeeded", number(trust.map(|trust| trust.successes_needed.into()))),
            ("approvalId", number(approval.map(|approval| approval.id.0))),
            ("key", Field::own(notification.key.as_deref())),
            ("fromElsewhere", if notification.is_from_elsewhere { Field::Flag(true) } else { Field::Absent }),
        ];
        self.write(level, NOTIFICATION, notification.at, &[&fields]);
    }

    fn tell_by_hand(&self, entry: &AuditEntry) {
        let deed = words::deed(entry.deed);
        self.metrics.on.by_hand.add([deed.into()]);
        let by = entry.by.to_string();
        let fields = [
            ("by", Field::Text(&by)),
            ("deed", Field::Own(deed)),
            ("on", Field::Text(&entry.on)),
            ("tenantId", Field::text(entry.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("before", Field::text(entry.before.as_deref())),
            ("after", Field::text(entry.after.as_deref())),
        ];
        // A warning, so that operators who read only important lines see which actions were taken.
        self.write(Level::Warn, "audit", entry.at, &[&fields]);
    }

    fn log_breaker(&self, tenant: Option<&TenantId>, key: &BreakerKey, change: &breaker::Transition) {
        let (tool, dependency) = match key {
            BreakerKey::Tool(tool) => (Some(tool), None),
            BreakerKey::Dependency(name) => (None, Some(&**name)),
        };
        let fields = [
            ("toolName", Field::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", Field::text(tool.map(|tool| tool.namespace.as_str()))),
            ("dependency", Field::text(dependency)),
            ("tenantId", Field::text(tenant.map(|tenant| tenant.as_str()))),
            ("fromState", Field::Own(words::breaker_state(change.from))),
            ("breakerState", Field::Own(words::breaker_state(change.to))),
            ("reason", Field::Own(words::breaker_reason(change.reason))),
        ];
        self.write(Level::Warn, "tool_call_circuit_state", change.at, &[&fields]);
    }

    fn log_trust(&self, tenant: Option<&TenantId>, change: &TrustChange) {
        let tool = change.tool.as_ref();
        let level = if change.to > change.from { Level::Warn } else { Level::Info };
        let fields = [
            ("toolName", Field::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", Field::text(tool.map(|tool| tool.namespace.as_str()))),
            ("tenantId", Field::text(tenant.map(|tenant| tenant.as_str()))),
            ("fromState", Field::Own(words::trust_state(change.from))),
            ("trustState", Field::Own(words::trust_state(change.to))),
            ("subject", Field::Text(&change.subject)),
            ("reason", Field::Text(&change.reason)),
            ("failures", Field::Number(change.failures.into())),
        ];
        self.write(level, "tool_call_trust_state", change.at, &[&fields]);
    }
}

fn count(requests: usize) -> i64 {
    i64::try_from(requests).unwrap_or(i64::MAX)
}
