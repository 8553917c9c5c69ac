//! State that operators read, and the changes that they make.

pub(crate) mod approvals;
pub(crate) mod breakers;
pub(crate) mod engine_admin;
pub(crate) mod guard_trips;
pub(crate) mod guards;
pub(crate) mod journals;
pub(crate) mod records;
pub(crate) mod tools;
pub(crate) mod trust;
