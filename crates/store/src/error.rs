//! How a store fails, and what its caller has to know about that.

use std::fmt;

use steadfast_core::call::StoreFault;

/// A store did not do what it was asked for.
#[derive(Clone, Debug)]
pub struct StoreError {
    fault: StoreFault,
    trouble: Trouble,
    message: String,
}

/// What is wrong, for whoever decides what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// It cannot be reached, or did not answer in time. Heals by itself.
    Unreachable,
    /// It refused us: wrong password, no right to write, read-only file.
    Refused,
    /// What it holds cannot be read: a foreign or damaged file, a record of a newer version, a wrong secret.
    Unreadable,
    /// It has no room.
    Full,
    /// It is being shut down.
    Closed,
}

impl StoreError {
    /// Nothing was done, for sure.
    pub fn not_done(trouble: Trouble, message: impl Into<String>) -> Self {
        Self { fault: StoreFault::NotDone, trouble, message: message.into() }
    }

    /// It may have been done; the answer was lost.
    pub fn unanswered(trouble: Trouble, message: impl Into<String>) -> Self {
        Self { fault: StoreFault::Unanswered, trouble, message: message.into() }
    }

    /// Whether it may have been done.
    pub fn fault(&self) -> StoreFault {
        self.fault
    }

    /// What is wrong.
    pub fn trouble(&self) -> Trouble {
        self.trouble
    }

    /// Whether nothing was done, and the same may work later of itself.
    pub fn is_for_later(&self) -> bool {
        self.fault == StoreFault::NotDone && self.trouble == Trouble::Unreachable
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}
