//! What a store tells on its own.

use crate::document::DocumentName;

/// Something that happened to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Another process wrote this document.
    DocumentChanged(DocumentName),
    /// The store has lost everything: what was finished is forgotten, and holders are writing their claims again.
    Emptied,
    /// It stopped answering.
    Lost,
    /// It answers again.
    Back,
}
