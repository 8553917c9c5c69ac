//! Names of servers: different servers with the same name get different names.

use steadfast_core::id::Namespace;
use steadfast_core::server_name::{RETENTION, ServerClaim, ServerFailure, ServerIdentity, ServerNameRecord};
use steadfast_store::{
    Document, DocumentKind, DocumentName, LocalProcessMonitor, ProcessMonitor as _, StateStore, StoreError,
    this_process, update_document,
};

use super::api::Engine;

impl Engine {
    /// Claims a name for a server that starts here, and returns the name for its tools. If the store fails, it is the
    /// requested name.
    pub async fn claim_server(&self, name: &Namespace, server: &ServerIdentity) -> Namespace {
        match self.try_claim_server(name, server).await {
            Ok(named) => named,
            Err(error) => {
                tracing::warn!(event = "server.name_not_claimed", server = %name, "why" = %error);
                name.clone()
            }
        }
    }

    async fn try_claim_server(
        &self,
        name: &Namespace,
        server: &ServerIdentity,
    ) -> Result<Namespace, StoreError> {
        let calls = &self.inner.calls;
        let document = document_of(name);
        let (neighbours, now) = (LocalProcessMonitor::of(calls.state.process.clone()), calls.store.now());
        let mut named = name.clone();
        update_document(&*calls.store, &document, now + RETENTION, |found| {
            let mut names = read(found);
            named = names.claim(
                name,
                server,
                &calls.state.process,
                |process| neighbours.check_process(process),
                now,
            );
            serde_json::to_string(&names).unwrap_or_default().into()
        })
        .await?;
        Ok(named)
    }

    /// Stores the last failure of a server, or its recovery, for commands that only read the store. `name` is the name
    /// that its tools have.
    pub async fn note_server(&self, name: &Namespace, failure: Option<&ServerFailure>) {
        if let Err(error) = self.try_note_server(name, failure).await {
            tracing::warn!(event = "server.state_not_stored", server = %name, "why" = %error);
        }
    }

    async fn try_note_server(
        &self,
        name: &Namespace,
        failure: Option<&ServerFailure>,
    ) -> Result<(), StoreError> {
        let calls = &self.inner.calls;
        let (document, now) = (document_of(&name.configured()), calls.store.now());
        // Most servers work, and then nothing else is stored of them.
        let found = calls.store.read(&document).await?;
        if read(found.as_ref()).failure(name) == failure {
            return Ok(());
        }
        update_document(&*calls.store, &document, now + RETENTION, |found| {
            let mut names = read(found);
            names.set_failure(name, failure, now);
            serde_json::to_string(&names).unwrap_or_default().into()
        })
        .await
    }
}

fn document_of(name: &Namespace) -> DocumentName {
    DocumentName { kind: DocumentKind::Server, id: name.as_str().into() }
}

fn read(found: Option<&Document>) -> ServerNameRecord {
    found.and_then(|document| serde_json::from_str(&document.body).ok()).unwrap_or_default()
}

/// Returns the servers that failed recently and have not recovered, by the names of their tools.
pub async fn failed_servers(store: &dyn StateStore) -> Result<Vec<(Namespace, ServerFailure)>, StoreError> {
    let documents = store.documents(DocumentKind::Server).await?;
    let failed = |(_, document): (DocumentName, Document)| {
        let names = read(Some(&document));
        names.failed(store.now()).map(|(name, failure)| (name.clone(), failure.clone())).collect::<Vec<_>>()
    };
    Ok(documents.into_iter().flat_map(failed).collect())
}

/// Returns the running servers that share a requested name but are different servers, by that name.
pub async fn servers_of_one_name(
    store: &dyn StateStore,
) -> Result<Vec<(String, Vec<ServerClaim>)>, StoreError> {
    let (neighbours, now) = (LocalProcessMonitor::of(this_process()), store.now());
    let documents = store.documents(DocumentKind::Server).await?;
    let clash = |(name, document): (DocumentName, Document)| {
        let names: ServerNameRecord = serde_json::from_str(&document.body).ok()?;
        let clash = names.clash(|process| neighbours.check_process(process), now)?;
        Some((name.id.as_ref().to_owned(), clash.into_iter().cloned().collect()))
    };
    Ok(documents.into_iter().filter_map(clash).collect())
}
