//! What a store tells on its own.

use std::sync::Arc;

use crate::document::DocumentName;

/// Something that happened to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Another process wrote this document.
    DocumentChanged(DocumentName),
    /// The store has lost everything: what was finished is forgotten, and holders are writing their claims again.
    Emptied,
    /// It does not answer, or takes no writes; this says why.
    Lost(Arc<str>),
    /// It answers again, and takes writes.
    Back,
}
