//! The keys of a call in the store.

use super::record::RecordOrigin;
use crate::key::RecordKey;

/// The keys under which a call finds its record and writes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordAddress {
    /// An explicit idempotency key.
    Explicit(RecordKey),
    /// The client's id of this dispatch, or else the index of equal arguments.
    CallId {
        /// Key of the call id.
        id: RecordKey,
        /// Computed key.
        index: RecordKey,
    },
    /// The index of equal arguments. The record is written under the id of the run.
    Keyless {
        /// Key of the run id.
        run: RecordKey,
        /// Computed key.
        index: RecordKey,
    },
}

impl RecordAddress {
    /// Returns the key under which the record of this call is written.
    pub fn own(&self) -> RecordKey {
        match *self {
            Self::Explicit(key) => key,
            Self::CallId { id, .. } => id,
            Self::Keyless { run, .. } => run,
        }
    }

    /// Returns the index of equal arguments, if the call uses it.
    pub fn index(&self) -> Option<RecordKey> {
        match *self {
            Self::Explicit(_) => None,
            Self::CallId { index, .. } | Self::Keyless { index, .. } => Some(index),
        }
    }

    /// Returns the same address in the key space of shadow mode.
    pub fn shadowed(&self) -> Self {
        match *self {
            Self::Explicit(key) => Self::Explicit(key.shadowed()),
            Self::CallId { id, index } => Self::CallId { id: id.shadowed(), index: index.shadowed() },
            Self::Keyless { run, index } => Self::Keyless { run: run.shadowed(), index: index.shadowed() },
        }
    }

    /// Returns the kind of key under which the record is stored.
    pub fn origin(&self) -> RecordOrigin {
        match self {
            Self::Explicit(_) => RecordOrigin::Explicit,
            Self::CallId { .. } => RecordOrigin::CallId,
            Self::Keyless { .. } => RecordOrigin::Run,
        }
    }

    /// Returns the key of the call id, if the call has one.
    pub(super) fn call_id(&self) -> Option<RecordKey> {
        match *self {
            Self::CallId { id, .. } => Some(id),
            Self::Explicit(_) | Self::Keyless { .. } => None,
        }
    }
}
