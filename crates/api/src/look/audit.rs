//! What people changed by hand.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{Engine, StoreError};
use steadfast_core::Timestamp;
use steadfast_core::id::TenantId;
use steadfast_executor::{AuditEntry, AuditPage, Deed, Tenants};
use steadfast_store::Position;

use super::paging::asks;

asks! {
    /// Which changes are asked for.
    AuditAsked by Reverse<Position> {
        /// Those to what belongs to this tenant.
        tenant: TenantId,
        /// Those that this person made.
        by: String,
        /// Those of this kind.
        deed: Deed,
        /// Not older than this, in milliseconds since 1970.
        since: u64,
    }
}

impl AuditAsked {
    /// What is meant, or what is wrong with it.
    pub fn read(self) -> Result<AuditPage, String> {
        let page = self.page()?;
        Ok(AuditPage {
            tenants: self.tenant.map_or(Tenants::All, |tenant| Tenants::One(Some(tenant))),
            since: Timestamp::from_millis(self.since.unwrap_or(0)),
            by: self.by,
            deed: self.deed,
            behind: page.after.map(|Reverse(place)| place),
            limit: page.limit,
        })
    }
}

/// A page of what people changed by hand.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Audit {
    /// The newest first.
    pub audit: Vec<AuditEntry>,
    /// What to ask for `after` next; nothing at the end.
    pub next: Option<String>,
}

/// What people changed by hand.
pub async fn audit(engine: &Engine, wanted: &AuditPage) -> Result<Audit, StoreError> {
    let part = engine.audit(wanted).await?;
    Ok(Audit { audit: part.found, next: part.next.map(|place| place.to_string()) })
}
