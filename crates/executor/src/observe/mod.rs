//! Facts about calls for logs, metrics and views, and the journals of calls and changes.

pub(crate) mod audit;
pub(crate) mod failures;
pub(crate) mod history;
pub(crate) mod listener;
pub(crate) mod recent;
pub(crate) mod recording;
