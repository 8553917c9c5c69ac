//! The audit log.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::Engine;
use steadfast::store::StoreError;
use steadfast_core::Timestamp;
use steadfast_core::id::TenantId;
use steadfast_executor::{AuditAction, AuditEntry, AuditQuery, TenantFilter};
use steadfast_store::JournalPosition;

use super::paging::list_query;

list_query! {
    /// Filters for the audit log.
    AuditLogQuery by Reverse<JournalPosition> {
        /// Only changes to data of this tenant.
        tenant: TenantId,
        /// Only changes by this operator.
        by: String,
        /// Only changes of this kind.
        deed: AuditAction,
        /// Only changes since this time, in milliseconds since 1970.
        since: u64,
    }
}

impl AuditLogQuery {
    /// Returns the query, or a description of the error.
    pub fn read(self) -> Result<AuditQuery, String> {
        let page = self.page()?;
        Ok(AuditQuery {
            tenants: self.tenant.map_or(TenantFilter::All, |tenant| TenantFilter::One(Some(tenant))),
            since: Timestamp::from_millis(self.since.unwrap_or(0)),
            by: self.by,
            deed: self.deed,
            behind: page.after.map(|Reverse(place)| place),
            limit: page.limit,
        })
    }
}

/// A page of the audit log.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Audit {
    /// The changes, newest first.
    pub audit: Vec<AuditEntry>,
    /// Cursor of the next page, for `after`. `null` on the last page.
    pub next: Option<String>,
}

/// Returns a page of the audit log.
pub async fn audit(engine: &Engine, query: &AuditQuery) -> Result<Audit, StoreError> {
    let part = engine.admin().audit(query).await?;
    Ok(Audit { audit: part.found, next: part.next.map(|place| place.to_string()) })
}
