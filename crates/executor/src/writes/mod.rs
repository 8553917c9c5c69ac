//! Writes that reach the store beside the path of a call.

pub(crate) mod deferred;
pub(crate) mod deliveries;
pub(crate) mod queue;
