//! The interface of a call: user code, and the signals between a call and its caller.

pub(crate) mod hooks;
pub(crate) mod options;
pub(crate) mod panics;
pub(crate) mod pending;
pub(crate) mod policy_source;
pub(crate) mod prompter;
pub(crate) mod registry;
pub(crate) mod signals;
pub(crate) mod slot;
pub(crate) mod task;
pub(crate) mod tool;
pub(crate) mod tool_info;
