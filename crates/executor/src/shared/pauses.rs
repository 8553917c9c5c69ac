//! The last time at which deduplication was off for a tool.
//!
//! If deduplication is turned off and on again, the results from before are old: calls have run meanwhile that left no
//! record, and their effects may have made the old results wrong. Results with a caller's idempotency key stay valid,
//! because the key says that the same call is meant. Results that only a computed key finds are not replayed. Each
//! process considers only the calls that it has seen itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::call::CallRequest;
use steadfast_core::id::{Domain, TenantId, ToolRef};
use steadfast_core::policy::EnforcementMode;

/// The last call of each tool while deduplication was off.
#[derive(Debug, Default)]
pub(crate) struct DedupePauses {
    /// True if there was any. Most engines never have one.
    any: AtomicBool,
    last: Mutex<BTreeMap<PolicySubject, Timestamp>>,
}

/// The parts of a call that its policy, and so its modes, may depend on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PolicySubject {
    tenant: Option<TenantId>,
    tool: ToolRef,
    domain: Option<Domain>,
}

/// Maximum number of entries. Beyond it, the one with the oldest call is removed.
const MOST: usize = 1024;

impl DedupePauses {
    /// Notes a call without deduplication. For any other call, returns the last time at which it was off.
    pub(crate) fn before(
        &self,
        request: &CallRequest,
        dedupe: EnforcementMode,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Timestamp> {
        let subject = || PolicySubject {
            tenant: request.tenant.clone(),
            tool: request.tool.clone(),
            domain: request.domain.clone(),
        };
        match dedupe {
            EnforcementMode::Off => {
                self.note(subject(), now());
                None
            }
            EnforcementMode::Shadow | EnforcementMode::Enforce => {
                self.any.load(Ordering::Acquire).then(|| self.last.lock().get(&subject()).copied()).flatten()
            }
        }
    }

    fn note(&self, subject: PolicySubject, now: Timestamp) {
        let mut last = self.last.lock();
        last.insert(subject, now);
        if last.len() > MOST
            && let Some(oldest) = last.iter().min_by_key(|(_, at)| **at).map(|(subject, _)| subject.clone())
        {
            last.remove(&oldest);
        }
        self.any.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::{Namespace, ToolName};

    use super::*;

    fn subject(number: usize) -> PolicySubject {
        let tool = ToolName::new(format!("tool-{number}")).unwrap();
        let tool = ToolRef { namespace: Namespace::new("bank").unwrap(), tool };
        PolicySubject { tenant: None, tool, domain: None }
    }

    #[test]
    fn where_too_many_were_off_the_one_that_was_so_the_longest_time_ago_makes_room() {
        let pauses = DedupePauses::default();
        // The first key is off once more before there is one too many, so that the second is removed.
        for (number, at) in (0..MOST).chain([0, MOST]).zip(1..) {
            pauses.note(subject(number), Timestamp::from_millis(at));
        }
        let last = pauses.last.lock();
        let forgotten: Vec<_> = (0..=MOST).filter(|number| !last.contains_key(&subject(*number))).collect();
        assert_eq!((last.len(), forgotten), (MOST, vec![1]));
    }
}
