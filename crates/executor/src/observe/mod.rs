//! Facts about calls for logs, metrics and views, and the journals of calls and changes.

pub(crate) mod audit;
pub(crate) mod audit_entry;
pub(crate) mod failures;
pub(crate) mod history;
pub(crate) mod listener;
pub(crate) mod recent;
pub(crate) mod recording;
pub(crate) mod telemetry_hooks;
pub(crate) mod turn_summary;
