//! Selection of records, for listing or removal.

use steadfast_core::dedupe::Record;
use steadfast_core::id::{SessionKey, TenantId, ToolRef};
use steadfast_core::key::Key;

/// A filter for records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The tool.
    pub tool: Option<ToolRef>,
    /// The session.
    pub session: Option<SessionKey>,
    /// The tenant.
    pub tenant: Option<TenantId>,
    /// Only records that are in flight or whose outcome is unknown.
    pub open: bool,
}

impl Selection {
    /// Returns true if a record matches.
    pub fn holds(&self, record: &Record) -> bool {
        self.tool.as_ref().is_none_or(|tool| record.tool == *tool)
            && self.session.as_ref().is_none_or(|session| record.session.as_ref() == Some(session))
            && self.tenant.as_ref().is_none_or(|tenant| record.tenant.as_ref() == Some(tenant))
            && (!self.open || record.is_open())
    }
}

/// A page of a long list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The key after which the page starts, or `None` for the first page.
    pub after: Option<Key>,
    /// The most records.
    pub limit: usize,
}

/// The records to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flush {
    /// The record under this key, whatever its state. The operator has named it on purpose.
    Key(Key),
    /// The finished records of this selection. Open ones stay, because a run that is in flight or may have happened
    /// must not be removed by accident.
    Finished(Selection),
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Number of removed records, documents and entries.
    pub removed: u64,
    /// True if there is more to remove than one sweep does.
    pub more: bool,
}
