//! Reports of hosts about tools that they ran themselves.

use steadfast_core::id::TenantId;
use steadfast_core::policy::{Annotations, Mode};
use steadfast_core::report::ToolReport;
use steadfast_core::trust::{Rules, TrustChange};

use crate::engine::Engine;
use crate::persist::Marked;
use crate::telling::Outside;

impl Engine {
    /// Processes the report of a host about a tool. It counts for trust and scores like a finished call of that tool.
    /// The changes of trust are reported to listeners and returned.
    pub fn take_report(&self, tenant: Option<&TenantId>, report: &ToolReport) -> Vec<TrustChange> {
        let (inner, now) = (&self.inner, self.inner.clock.now());
        let owner = tenant.cloned();
        let about = report.about();
        let policy =
            inner.policy_of_blank(&owner, Some(about.tool), about.depends_on(), Annotations::default());
        if policy.modes.are_off() {
            return Vec::new();
        }
        let failure = report.failure(&policy.classify, now);
        if let Some(record) = report.failure_record(tenant, &policy.classify, now) {
            inner.failed(record);
        }
        let cell = inner.machines.tenants.get(&owner);
        let changes = match policy.modes.trust {
            Mode::Off => Vec::new(),
            Mode::Shadow | Mode::Enforce => {
                let rules = Rules { signature: &policy.trust, domain: policy.domain_trust.as_ref() };
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
            inner.marks.mark(Marked::Trust(owner));
        }
        for change in &changes {
            inner.telling.outside(&Outside::Trust { tenant, change });
        }
        changes
    }
}
