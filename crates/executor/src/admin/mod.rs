//! State that operators read, and the changes that they make.

pub(crate) mod breakers;
pub(crate) mod guards;
pub(crate) mod records;
pub(crate) mod tools;
pub(crate) mod trust;
