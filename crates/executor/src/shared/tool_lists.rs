//! The last tool list of each server, with annotations.
//!
//! The lists are stored, so that a tool can be explained while no server runs. No decision depends on them: a call is
//! judged by the current annotations of its server.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::id::{Digest, Namespace, ToolName, ToolRef};
use steadfast_core::policy::AnnotationHints;
use steadfast_store::{
    DocumentKind, DocumentName, Journal, JournalQuery, StateStore, StoreError, TimeSource, update_document,
};

use super::policies::PolicyResolver;
use crate::observe::history::CallFacts;

/// The last known annotations of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAnnotations {
    /// The annotations.
    pub annotations: AnnotationHints,
    /// True if the server's claim that a tool is safe to repeat is trusted.
    pub are_trusted: bool,
    /// Time at which they were received.
    pub at: Timestamp,
}

/// The tool lists of all servers.
#[derive(Debug)]
pub(crate) struct ToolLists {
    store: Arc<dyn StateStore>,
    clock: Arc<dyn TimeSource>,
    policies: Arc<PolicyResolver>,
    /// Digests of the lists that this process has written, by server.
    written: Mutex<HashMap<Namespace, (Digest, Timestamp)>>,
}

impl ToolLists {
    pub(crate) fn new(
        store: Arc<dyn StateStore>,
        clock: Arc<dyn TimeSource>,
        policies: Arc<PolicyResolver>,
    ) -> Self {
        Self { store, clock, policies, written: Mutex::default() }
    }

    /// Stores the tools that a server listed. A list that was written recently is not written again. A failure of the
    /// store is only logged.
    pub(crate) async fn write(&self, server: &Namespace, tools: Vec<(ToolName, AnnotationHints)>) {
        let now = self.clock.now();
        let tools: BTreeMap<ToolName, ToolHints> =
            tools.into_iter().take(MOST_TOOLS).map(|(name, of)| (name, ToolHints::of(of))).collect();
        let are_trusted = self.policies.trusts_annotations(server);
        let Ok(text) = serde_json::to_string(&(are_trusted, &tools)) else { return };
        let digest = Digest::of(text.as_bytes());
        {
            let mut written = self.written.lock();
            let is_fresh = |(known, at): &(Digest, Timestamp)| *known == digest && now.since(*at) < AGAIN;
            if written.get(server).is_some_and(is_fresh) {
                return;
            }
            if written.len() >= MOST_SERVERS {
                written.clear();
            }
            written.insert(server.clone(), (digest, now));
        }
        let Ok(body) = serde_json::to_string(&ToolList { format: FORMAT, at: now, are_trusted, tools })
        else {
            return;
        };
        let body: Arc<str> = body.into();
        let stored = update_document(&*self.store, &name(server), now + KEPT, |_| body.clone()).await;
        if let Err(error) = stored {
            tracing::debug!(event = "tools.not_kept", server = %server, "why" = %error);
            self.written.lock().remove(server);
        }
    }

    /// Returns the last known annotations of a tool, from a list or a call. Returns `None` if it was never seen.
    pub(crate) async fn last_annotations(
        &self,
        tool: &ToolRef,
    ) -> Result<Option<LastAnnotations>, StoreError> {
        let store = &self.store;
        let document = store.read(&name(&tool.namespace)).await?;
        let listed = document.and_then(|document| serde_json::from_str::<ToolList>(&document.body).ok());
        let listed = listed.filter(|listed| listed.format == FORMAT);
        let are_trusted = listed.as_ref().is_none_or(|listed| listed.are_trusted);
        let listed = listed.and_then(|listed| {
            let annotations = listed.tools.get(&tool.tool)?.read();
            Some(LastAnnotations { annotations, are_trusted, at: listed.at })
        });
        let history = store.entries(&JournalQuery::newest(Journal::History, LOOKED_THROUGH)).await?;
        let called = history.iter().find_map(|(_, entry)| {
            let facts: CallFacts = serde_json::from_str(&entry.body).ok()?;
            let request = facts.request.filter(|_| facts.tool == *tool)?;
            let annotations = AnnotationHints {
                read_only: request.read_only_hint,
                destructive: request.destructive_hint,
                idempotent: request.idempotent_hint,
            };
            // A call that arrived before its server had listed the tool has no annotations.
            let has_hints = annotations != AnnotationHints::default();
            has_hints.then_some(LastAnnotations { annotations, are_trusted, at: facts.arrived })
        });
        Ok([listed, called].into_iter().flatten().max_by_key(|last| last.at))
    }
}

/// A list as it is stored.
#[derive(Deserialize, Serialize)]
struct ToolList {
    format: u32,
    #[serde(rename = "atMs")]
    at: Timestamp,
    #[serde(rename = "trusted")]
    are_trusted: bool,
    tools: BTreeMap<ToolName, ToolHints>,
}

/// The annotations of one tool, with the names of the protocol.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolHints {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_only_hint: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    destructive_hint: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotent_hint: Option<bool>,
}

impl ToolHints {
    fn of(annotations: AnnotationHints) -> Self {
        let AnnotationHints { read_only, destructive, idempotent } = annotations;
        Self { read_only_hint: read_only, destructive_hint: destructive, idempotent_hint: idempotent }
    }

    fn read(self) -> AnnotationHints {
        let Self { read_only_hint, destructive_hint, idempotent_hint } = self;
        AnnotationHints {
            read_only: read_only_hint,
            destructive: destructive_hint,
            idempotent: idempotent_hint,
        }
    }
}

fn name(server: &Namespace) -> DocumentName {
    DocumentName { kind: DocumentKind::Tools, id: server.as_str().into() }
}

const FORMAT: u32 = 1;
/// Time for which a list is stored after its last write.
const KEPT: Duration = Duration::from_secs(90 * 86_400);
/// Interval after which an unchanged list is written again.
const AGAIN: Duration = Duration::from_secs(3600);
/// Maximum number of tools per server, and of servers whose last write this process remembers.
const MOST_TOOLS: usize = 5000;
const MOST_SERVERS: usize = 1000;
/// Number of the last calls to search for one of a tool.
const LOOKED_THROUGH: usize = 1000;
