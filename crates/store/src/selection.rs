//! Selection of records, for listing or removal.

use steadfast_core::dedupe::DedupeRecord;
use steadfast_core::id::{SessionKey, TenantId, ToolRef};
use steadfast_core::key::RecordKey;

/// A filter for records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// The tool.
    pub tool: Option<ToolRef>,
    /// The session.
    pub session: Option<SessionKey>,
    /// The tenant.
    pub tenant: Option<TenantId>,
    /// Only records that are in flight or whose outcome is unknown.
    pub open: bool,
}

impl RecordFilter {
    /// Returns true if a record matches.
    pub fn matches(&self, record: &DedupeRecord) -> bool {
        self.tool.as_ref().is_none_or(|tool| record.tool == *tool)
            && self.session.as_ref().is_none_or(|session| record.session.as_ref() == Some(session))
            && self.tenant.as_ref().is_none_or(|tenant| record.tenant.as_ref() == Some(tenant))
            && (!self.open || record.is_open())
    }
}

/// A page of a long list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPage {
    /// The key after which the page starts, or `None` for the first page.
    pub after: Option<RecordKey>,
    /// The most records.
    pub limit: usize,
}

/// The records to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushTarget {
    /// The record under this key, whatever its state. The operator has named it on purpose.
    Key(RecordKey),
    /// The finished records of this selection. Open ones stay, because a run that is in flight or may have happened
    /// must not be removed by accident.
    Finished(RecordFilter),
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepResult {
    /// Number of removed records, documents and entries.
    pub removed: u64,
    /// True if there is more to remove than one sweep does.
    pub more: bool,
}
