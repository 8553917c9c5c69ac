//! Events of a store.

use std::sync::Arc;

use crate::document::DocumentName;

/// An event of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Another process wrote this document.
    DocumentChanged(DocumentName),
    /// The store has lost all data: finished records are gone, and owners write their claims again.
    Emptied,
    /// The store does not respond, or takes no writes. Contains the reason.
    Unavailable(Arc<str>),
    /// The store responds again, and takes writes.
    Available,
}
