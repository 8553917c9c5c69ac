//! The driver of one call.

pub(crate) mod steps;
pub(crate) mod verification;
