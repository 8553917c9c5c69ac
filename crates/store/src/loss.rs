//! A loss of committed records, as all processes on a store see it until an operator accepts it.

use steadfast_core::dedupe::RecordLoss;

use crate::StateStore;
use crate::document::{DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome};
use crate::error::{StoreError, StoreErrorKind};

/// Returns the name of the document that describes the loss.
pub fn loss_name() -> DocumentName {
    DocumentName { kind: DocumentKind::Loss, id: "records".into() }
}

/// Returns the loss of committed records that no operator has accepted yet.
pub async fn record_loss(store: &dyn StateStore) -> Result<Option<RecordLoss>, StoreError> {
    let found = store.read(&loss_name()).await?;
    found.map(|document| RecordLoss::from_text(&document.body).ok_or_else(unreadable)).transpose()
}

/// Accepts the loss of committed records: calls whose records are lost may run again. Returns what was accepted.
pub async fn accept_loss(store: &dyn StateStore) -> Result<Option<RecordLoss>, StoreError> {
    let Some(found) = store.read(&loss_name()).await? else { return Ok(None) };
    let write = DocumentWrite { replaces: Some(found.version), body: None, expires: None };
    match store.write(&loss_name(), write).await? {
        DocumentWriteOutcome::Written(_) => {
            RecordLoss::from_text(&found.body).ok_or_else(unreadable).map(Some)
        }
        DocumentWriteOutcome::Stale(None) => Ok(None),
        DocumentWriteOutcome::Stale(Some(_)) => Err(StoreError::not_done(
            StoreErrorKind::Unreachable,
            "more records were lost meanwhile: check the loss again before you accept it",
        )),
    }
}

fn unreadable() -> StoreError {
    StoreError::not_done(StoreErrorKind::Unreadable, "the description of the lost records cannot be read")
}
