//! The documents of the shared machines: their names, and the marks of those that are out of date.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast_core::call::{BreakerScope, CallNotice, CallRequest};
use steadfast_core::id::{Namespace, SessionKey, TenantId, ToolName};
use steadfast_store::{DocumentKind, DocumentName, StoreError, StoreErrorKind};
use tokio::sync::Notify;

use crate::keys::{BreakerKey, DependencyKey, SessionId, ToolKey};

/// The documents to write.
#[derive(Debug, Default)]
pub(crate) struct DirtyDocuments {
    pub(super) marked: Mutex<BTreeSet<DirtyDocument>>,
    pub(super) changed: Notify,
    /// Held by the only writer, so that a shutdown also waits for a write by the background task.
    pub(super) writing: tokio::sync::Mutex<()>,
}

/// A document whose stored version is out of date.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DirtyDocument {
    Tool(ToolKey),
    Dependency(DependencyKey),
    Trust(Option<TenantId>),
    Session(SessionId),
}

/// The name of a document: readable and unambiguous.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DocumentId {
    Tool(Option<TenantId>, Namespace, ToolName),
    Dependency(Option<TenantId>, Arc<str>),
    Tenant(Option<TenantId>),
    Session(Option<TenantId>, Option<SessionKey>),
}

impl DirtyDocuments {
    /// Marks the documents that these notices change.
    pub(crate) fn note(
        &self,
        request: &CallRequest,
        coarser: impl Fn() -> Option<DependencyKey>,
        notices: &[CallNotice],
    ) {
        for notice in notices {
            let marked = match notice {
                CallNotice::BreakerChanged { scope, .. } | CallNotice::ProbeMoved { scope } => {
                    match DirtyDocument::breaker(*scope, request, &coarser) {
                        Some(marked) => marked,
                        None => continue,
                    }
                }
                CallNotice::TrustChanged(_) => DirtyDocument::Trust(request.tenant.clone()),
                CallNotice::GuardTripped { .. } => DirtyDocument::Session(SessionId {
                    tenant: request.tenant.clone(),
                    session: request.session.clone(),
                }),
                CallNotice::CallStarted { .. }
                | CallNotice::CallBlocked { .. }
                | CallNotice::Following
                | CallNotice::Replayed { .. }
                | CallNotice::TookOver
                | CallNotice::KeyConflict
                | CallNotice::ApprovalRequested
                | CallNotice::ApprovalEnded { .. }
                | CallNotice::AttemptStarted { .. }
                | CallNotice::AttemptEnded { .. }
                | CallNotice::InputRequired
                | CallNotice::RetryScheduled { .. }
                | CallNotice::RetryStopped { .. }
                | CallNotice::AttemptCut { .. }
                | CallNotice::AnsweredEarly { .. }
                | CallNotice::OutcomeUnknown { .. }
                | CallNotice::Verified { .. }
                | CallNotice::FenceLost
                | CallNotice::StoreFailed { .. }
                | CallNotice::Shadowed(_)
                | CallNotice::CallFinished { .. } => continue,
            };
            self.mark(marked);
        }
    }

    pub(crate) fn mark(&self, marked: DirtyDocument) {
        self.marked.lock().insert(marked);
        self.changed.notify_one();
    }
}

impl DirtyDocument {
    /// Returns the document of one of the breakers of a call.
    pub(crate) fn breaker(
        scope: BreakerScope,
        request: &CallRequest,
        coarser: impl Fn() -> Option<DependencyKey>,
    ) -> Option<Self> {
        match scope {
            BreakerScope::Tool => {
                Some(Self::Tool(ToolKey { tenant: request.tenant.clone(), tool: request.tool.clone() }))
            }
            BreakerScope::Dependency => coarser().map(Self::Dependency),
        }
    }

    pub(super) fn name(&self) -> Result<DocumentName, StoreError> {
        let (kind, name) = match self {
            Self::Tool(key) => (
                DocumentKind::Breaker,
                DocumentId::Tool(key.tenant.clone(), key.tool.namespace.clone(), key.tool.tool.clone()),
            ),
            Self::Dependency(key) => {
                (DocumentKind::Breaker, DocumentId::Dependency(key.tenant.clone(), key.name.clone()))
            }
            Self::Trust(tenant) => (DocumentKind::Trust, DocumentId::Tenant(tenant.clone())),
            Self::Session(session) => {
                (DocumentKind::Session, DocumentId::Session(session.tenant.clone(), session.session.clone()))
            }
        };
        let id = serde_json::to_string(&name).map_err(|error| unreadable(&error))?;
        Ok(DocumentName { kind, id: id.into() })
    }

    /// Returns the document of a breaker.
    pub(crate) fn of_breaker(key: &BreakerKey, tenant: &Option<TenantId>) -> Self {
        let tenant = tenant.clone();
        match key {
            BreakerKey::Tool(tool) => Self::Tool(ToolKey { tenant, tool: tool.clone() }),
            BreakerKey::Dependency(name) => Self::Dependency(DependencyKey { tenant, name: name.clone() }),
        }
    }
}

pub(super) fn unreadable(error: &serde_json::Error) -> StoreError {
    StoreError::not_done(StoreErrorKind::Unreadable, error.to_string())
}
