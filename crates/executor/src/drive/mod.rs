//! The driver of one call.

pub(crate) mod answered;
mod approval;
mod attempt;
pub(crate) mod deferred;
mod driver;
mod ending;
pub(crate) mod gate;
pub(crate) mod host_calls;
mod intake;
mod lease;
pub(crate) mod services;
mod steps;
mod verification;
mod waits;
