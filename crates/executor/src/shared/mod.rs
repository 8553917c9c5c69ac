//! The state that calls share, its approvals, and its copy in the store.

pub(crate) mod approvals;
pub(crate) mod cells;
pub(crate) mod documents;
pub(crate) mod followers;
pub(crate) mod pauses;
pub(crate) mod persistence;
pub(crate) mod policies;
pub(crate) mod tool_lists;
pub(crate) mod trust_file;
pub(crate) mod verification_log;
