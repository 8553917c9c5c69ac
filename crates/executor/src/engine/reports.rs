//! Reports of hosts about tools that they ran themselves.

use steadfast_core::id::TenantId;
use steadfast_core::policy::{AnnotationHints, EnforcementMode};
use steadfast_core::report::ToolReport;
use steadfast_core::trust::{TrustChange, TrustRules};

use super::api::Engine;
use crate::observe::listener::SystemEvent;
use crate::shared::documents::DirtyDocument;

impl Engine {
    /// Processes the report of a host about a tool. It counts for trust and scores like a finished call of that tool.
    /// The changes of trust are reported to listeners and returned.
    pub fn record_report(&self, tenant: Option<&TenantId>, report: &ToolReport) -> Vec<TrustChange> {
        let (calls, now) = (&self.inner.calls, self.now());
        let owner = tenant.cloned();
        let about = report.about();
        let policy =
            calls.policies.of_blank(&owner, Some(about.tool), about.depends_on(), AnnotationHints::default());
        if policy.modes.are_off() {
            return Vec::new();
        }
        let failure = report.failure(&policy.classify, now);
        if let Some(record) = report.failure_record(tenant, &policy.classify, now) {
            calls.failures.add(record);
        }
        let cell = calls.machines.tenants.get(&owner);
        let changes = match policy.modes.trust {
            EnforcementMode::Off => Vec::new(),
            EnforcementMode::Shadow | EnforcementMode::Enforce => {
                let rules = TrustRules { signature: &policy.trust, domain: policy.domain_trust.as_ref() };
                let trust = &mut cell.judged.lock().trust;
                match failure {
                    Some(failure) => trust.report_failure(rules, about, failure, now),
                    None => trust.report_success(rules, about, now),
                }
            }
        };
        let outcome = report.outcome(failure);
        cell.scores.lock().record(about.tool, report.model.as_ref(), outcome, report.took, now);
        if !changes.is_empty() {
            calls.persister.marks.mark(DirtyDocument::Trust(owner));
        }
        for change in &changes {
            calls.telemetry.outside(&SystemEvent::Trust { tenant, change });
        }
        changes
    }
}
