//! Logs and metrics of events outside calls: actions of operators, reports of hosts, pending requests.

use steadfast_core::breaker;
use steadfast_core::id::TenantId;
use steadfast_core::notification::Notification;
use steadfast_core::trust::{self, TrustChange, TrustScope};
use steadfast_executor::{AuditEntry, BreakerKey, SystemEvent};

use crate::Telemetry;
use crate::feed::NOTIFICATION;
use crate::logs::{LogField, LogLineLevel};
use crate::names;

impl Telemetry {
    pub(crate) fn record_outside(&self, fact: &SystemEvent<'_>) {
        match fact {
            SystemEvent::Breaker { tenant, key, change } => {
                if let BreakerKey::Tool(name) = key {
                    let tool = self.metrics.tool(name);
                    self.count_breaker(&tool, change);
                    let now = tool.status.breaker(name, *tenant, change.to);
                    self.metrics.breaker_state(&tool, now);
                }
                self.log_breaker(*tenant, key, change);
            }
            SystemEvent::Trust { tenant, change } => {
                if let Some(name) = &change.tool {
                    let tool = self.metrics.tool(name);
                    let (from, to) = (names::trust_state(change.from), names::trust_state(change.to));
                    self.metrics.on.tool_trust_transitions.add([tool.label.clone(), from.into(), to.into()]);
                    match change.scope {
                        TrustScope::Tool | TrustScope::Signature => {
                            let now = tool.status.trust(&change.subject, change.to);
                            self.metrics.trust_state(&tool, now);
                        }
                        TrustScope::Domain => {}
                    }
                }
                self.log_trust(*tenant, change);
            }
            SystemEvent::Waiting { before, now } => {
                self.metrics.on.approvals_pending.shift([], count(*now) - count(*before));
            }
            SystemEvent::ByHand(entry) => self.record_operator_action(entry),
        }
    }

    /// Logs and counts a notification, and adds it to the feed.
    pub(crate) fn record_notification(&self, notification: &Notification) {
        let level = match notification.level {
            trust::PromptLevel::Info => LogLineLevel::Info,
            trust::PromptLevel::Warning => LogLineLevel::Warn,
            trust::PromptLevel::Error => LogLineLevel::Error,
        };
        let (tool, trust) = (notification.tool.as_ref(), notification.trust.as_ref());
        let approval = notification.approval.as_ref();
        let number = |number: Option<u64>| number.map_or(LogField::Absent, LogField::Number);
        let fields = [
            ("notification", LogField::Own(notification.event.as_str())),
            ("message", LogField::Text(&notification.message)),
            ("requestId", LogField::text(notification.request_id.as_ref().map(|id| id.as_str()))),
            ("toolName", LogField::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", LogField::text(tool.map(|tool| tool.namespace.as_str()))),
            ("tenantId", LogField::text(notification.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("sessionKey", LogField::text(notification.session.as_ref().map(|session| session.as_str()))),
            ("fromState", LogField::own(trust.map(|trust| names::trust_state(trust.from)))),
            ("trustState", LogField::own(trust.map(|trust| names::trust_state(trust.to)))),
            ("reason", LogField::text(trust.map(|trust| trust.reason.as_str()))),
            ("untilMs", number(trust.and_then(|trust| trust.until).map(|until| until.as_millis()))),
            ("successesNeeded", number(trust.map(|trust| trust.successes_needed.into()))),
            ("approvalId", number(approval.map(|approval| approval.id.0))),
            ("key", LogField::own(notification.key.as_deref())),
            (
                "fromElsewhere",
                if notification.is_from_elsewhere { LogField::Flag(true) } else { LogField::Absent },
            ),
        ];
        self.write(level, NOTIFICATION, notification.at, &[&fields]);
    }

    fn record_operator_action(&self, entry: &AuditEntry) {
        let action = names::operator_action(entry.deed);
        self.metrics.on.by_hand.add([action.into()]);
        let by = entry.by.to_string();
        let fields = [
            ("by", LogField::Text(&by)),
            ("deed", LogField::Own(action)),
            ("on", LogField::Text(&entry.on)),
            ("tenantId", LogField::text(entry.tenant.as_ref().map(|tenant| tenant.as_str()))),
            ("before", LogField::text(entry.before.as_deref())),
            ("after", LogField::text(entry.after.as_deref())),
        ];
        // A warning, so that operators who read only important lines see which actions were taken.
        self.write(LogLineLevel::Warn, "audit", entry.at, &[&fields]);
    }

    fn log_breaker(&self, tenant: Option<&TenantId>, key: &BreakerKey, change: &breaker::BreakerTransition) {
        let (tool, dependency) = match key {
            BreakerKey::Tool(tool) => (Some(tool), None),
            BreakerKey::Dependency(name) => (None, Some(&**name)),
        };
        let fields = [
            ("toolName", LogField::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", LogField::text(tool.map(|tool| tool.namespace.as_str()))),
            ("dependency", LogField::text(dependency)),
            ("tenantId", LogField::text(tenant.map(|tenant| tenant.as_str()))),
            ("fromState", LogField::Own(names::breaker_state(change.from))),
            ("breakerState", LogField::Own(names::breaker_state(change.to))),
            ("reason", LogField::Own(names::breaker_reason(change.reason))),
        ];
        self.write(LogLineLevel::Warn, "tool_call_circuit_state", change.at, &[&fields]);
    }

    fn log_trust(&self, tenant: Option<&TenantId>, change: &TrustChange) {
        let tool = change.tool.as_ref();
        let level = if change.to > change.from { LogLineLevel::Warn } else { LogLineLevel::Info };
        let fields = [
            ("toolName", LogField::text(tool.map(|tool| tool.tool.as_str()))),
            ("toolNamespace", LogField::text(tool.map(|tool| tool.namespace.as_str()))),
            ("tenantId", LogField::text(tenant.map(|tenant| tenant.as_str()))),
            ("fromState", LogField::Own(names::trust_state(change.from))),
            ("trustState", LogField::Own(names::trust_state(change.to))),
            ("subject", LogField::Text(&change.subject)),
            ("reason", LogField::Text(&change.reason)),
            ("failures", LogField::Number(change.failures.into())),
        ];
        self.write(level, "tool_call_trust_state", change.at, &[&fields]);
    }
}

fn count(requests: usize) -> i64 {
    i64::try_from(requests).unwrap_or(i64::MAX)
}
