//! The commands, one file or folder each.

pub(crate) mod approvals;
pub(crate) mod bench;
pub(crate) mod breaker;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod failures;
pub(crate) mod flush;
pub(crate) mod import;
pub(crate) mod rehearse;
pub(crate) mod resolve;
pub(crate) mod serve;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod trace;
pub(crate) mod trust;
pub(crate) mod unknown;
pub(crate) mod wrap;
