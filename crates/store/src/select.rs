//! Choosing records: to look at, or to forget.

use steadfast_core::dedupe::Record;
use steadfast_core::id::{SessionKey, TenantId, ToolRef};
use steadfast_core::key::Key;

/// Which records to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Of this tool.
    pub tool: Option<ToolRef>,
    /// Of this conversation.
    pub session: Option<SessionKey>,
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// Only those whose run is going on or whose outcome is unknown.
    pub open: bool,
}

impl Selection {
    /// Whether a record belongs to it.
    pub fn holds(&self, record: &Record) -> bool {
        self.tool.as_ref().is_none_or(|tool| record.tool == *tool)
            && self.session.as_ref().is_none_or(|session| record.session.as_ref() == Some(session))
            && self.tenant.as_ref().is_none_or(|tenant| record.tenant.as_ref() == Some(tenant))
            && (!self.open || record.is_open())
    }
}

/// A piece of a long list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Behind this key; nothing means from the start.
    pub after: Option<Key>,
    /// The most records.
    pub limit: usize,
}

/// Which records to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flush {
    /// This one, whatever became of it: whoever names it knows what they do.
    Key(Key),
    /// The finished ones of this selection. Open ones stay: a run that is going on, or may have happened, must not
    /// be forgotten by accident.
    Finished(Selection),
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Records, documents and entries that were removed.
    pub removed: u64,
    /// Whether there is more to remove than one sweep does.
    pub more: bool,
}
