//! Journals for operators: the audit log, and the last failures of tools.

use steadfast_core::classify::record::FailureRecord;
use steadfast_store::{JournalPage, StoreError};

use super::engine_admin::EngineAdmin;
use crate::observe::audit::AuditQuery;
use crate::observe::audit_entry::{AuditChange, AuditEntry, OperatorIdentity};
use crate::observe::failures::FailureQuery;

impl EngineAdmin {
    /// Returns the entries of the audit log, newest first.
    pub async fn audit(&self, page: &AuditQuery) -> Result<JournalPage<AuditEntry>, StoreError> {
        self.audit.page(page).await
    }

    /// Records a change that a surface made itself, such as a switch of modes.
    pub async fn audited(&self, by: &OperatorIdentity, done: AuditChange<'_>) {
        self.audit.record(by, done).await;
    }

    /// Returns the failed calls of tools, newest first.
    pub async fn failures(&self, page: &FailureQuery) -> Result<JournalPage<FailureRecord>, StoreError> {
        self.failures.page(page).await
    }
}
