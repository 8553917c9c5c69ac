//! Errors of stores.

use steadfast_core::call::StoreFault;

/// The error of a store operation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    fault: StoreFault,
    trouble: StoreErrorKind,
    message: String,
}

/// The cause of a store error, as needed to handle it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store cannot be reached, or did not respond in time. This may recover without action.
    Unreachable,
    /// The store refused access: wrong password, no permission to write, read-only file.
    Refused,
    /// The content cannot be read: a foreign or damaged file, a record of a newer version, a wrong secret.
    Unreadable,
    /// The store is full.
    Full,
    /// The store is being shut down.
    Closed,
}

impl StoreError {
    /// Creates the error for an operation that was certainly not done.
    pub fn not_done(trouble: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { fault: StoreFault::NotDone, trouble, message: message.into() }
    }

    /// Creates the error for an operation that may have been done, because the response was lost.
    pub fn outcome_unknown(trouble: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { fault: StoreFault::Unanswered, trouble, message: message.into() }
    }

    /// Returns if the operation may have been done.
    pub fn fault(&self) -> StoreFault {
        self.fault
    }

    /// Returns the cause.
    pub fn kind(&self) -> StoreErrorKind {
        self.trouble
    }

    /// Returns true if the operation was not done, and may work later without action.
    pub fn is_retryable(&self) -> bool {
        self.fault == StoreFault::NotDone && self.trouble == StoreErrorKind::Unreachable
    }
}
