//! Documents in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;

use crate::document::{Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome};
use crate::error::{StoreError, StoreErrorKind};

/// The most documents. There are far fewer breakers, tenants and sessions. The limit stops a caller that invents
/// endless names.
const MOST: usize = 25_000;

#[derive(Debug, Default)]
pub(super) struct DocumentMap {
    state: Mutex<DocumentMapState>,
}

#[derive(Debug, Default)]
struct DocumentMapState {
    documents: BTreeMap<DocumentName, DocumentSlot>,
    /// A single counter for all documents. So no name gets a version twice, and no data of removed documents is
    /// needed.
    versions: u64,
}

#[derive(Debug)]
struct DocumentSlot {
    document: Document,
    expires: Option<Timestamp>,
}

impl DocumentMap {
    pub(super) fn read(&self, name: &DocumentName, now: Timestamp) -> Option<Document> {
        self.state.lock().current(name, now).cloned()
    }

    pub(super) fn write(
        &self,
        name: &DocumentName,
        write: DocumentWrite,
        now: Timestamp,
    ) -> Result<DocumentWriteOutcome, StoreError> {
        let mut shelf = self.state.lock();
        let current = shelf.current(name, now);
        if current.map(|document| document.version) != write.replaces {
            return Ok(DocumentWriteOutcome::Stale(current.cloned()));
        }
        if write.body.is_some() && current.is_none() && shelf.documents.len() >= MOST {
            shelf.sweep(now);
            if shelf.documents.len() >= MOST {
                return Err(StoreError::not_done(
                    StoreErrorKind::Full,
                    "the memory store is full of documents",
                ));
            }
        }
        shelf.versions += 1;
        let version = shelf.versions;
        match write.body {
            Some(body) => {
                let stored = DocumentSlot { document: Document { version, body }, expires: write.expires };
                shelf.documents.insert(name.clone(), stored);
            }
            None => {
                shelf.documents.remove(name);
            }
        }
        Ok(DocumentWriteOutcome::Written(version))
    }

    pub(super) fn of(&self, kind: DocumentKind, now: Timestamp) -> Vec<(DocumentName, Document)> {
        let shelf = self.state.lock();
        let first = DocumentName { kind, id: Arc::from("") };
        let from_first = shelf.documents.range((Bound::Included(first), Bound::Unbounded));
        from_first
            .take_while(|(name, _)| name.kind == kind)
            .filter(|(_, stored)| !stored.is_expired(now))
            .map(|(name, stored)| (name.clone(), stored.document.clone()))
            .collect()
    }

    pub(super) fn sweep(&self, now: Timestamp) -> u64 {
        self.state.lock().sweep(now)
    }
}

impl DocumentMapState {
    fn current(&self, name: &DocumentName, now: Timestamp) -> Option<&Document> {
        self.documents.get(name).filter(|stored| !stored.is_expired(now)).map(|stored| &stored.document)
    }

    fn sweep(&mut self, now: Timestamp) -> u64 {
        let before = self.documents.len();
        self.documents.retain(|_, stored| !stored.is_expired(now));
        (before - self.documents.len()) as u64
    }
}

impl DocumentSlot {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}
