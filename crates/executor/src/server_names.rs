//! The names that servers have: two of one name that run something else are told apart.

use std::time::Duration;

use steadfast_core::id::Namespace;
use steadfast_core::server_name::{ServerClaim, ServerIdentity, ServersOfName};
use steadfast_store::{
    Document, DocumentKind, DocumentName, Neighbours, Sight as _, Store, StoreError, this_process,
    update_document,
};

use crate::engine::Engine;

/// How long the servers of a name are remembered after one was started.
const KEPT: Duration = Duration::from_secs(60 * 24 * 60 * 60);

impl Engine {
    /// A server of this name is started here: the name that its tools have. Where the store does not answer, it is the name
    /// that was asked for.
    pub async fn claim_server(&self, name: &Namespace, server: &ServerIdentity) -> Namespace {
        match self.try_claim_server(name, server).await {
            Ok(named) => named,
            Err(error) => {
                tracing::warn!(event = "server.name_not_claimed", server = %name, why = %error);
                name.clone()
            }
        }
    }

    async fn try_claim_server(
        &self,
        name: &Namespace,
        server: &ServerIdentity,
    ) -> Result<Namespace, StoreError> {
        let inner = &self.inner;
        let document = DocumentName { kind: DocumentKind::Server, id: name.as_str().into() };
        let (neighbours, now) = (Neighbours::of(inner.process.clone()), inner.store.now());
        let mut named = name.clone();
        update_document(&*inner.store, &document, now + KEPT, |found| {
            let body = found.and_then(|document| serde_json::from_str(&document.body).ok());
            let mut names: ServersOfName = body.unwrap_or_default();
            named = names.claim(name, server, &inner.process, |process| neighbours.sight(process), now);
            serde_json::to_string(&names).unwrap_or_default().into()
        })
        .await?;
        Ok(named)
    }
}

/// Servers that run now, are called the same, and are not the same; by that name.
pub async fn servers_of_one_name(store: &dyn Store) -> Result<Vec<(String, Vec<ServerClaim>)>, StoreError> {
    let (neighbours, now) = (Neighbours::of(this_process()), store.now());
    let documents = store.documents(DocumentKind::Server).await?;
    let clash = |(name, document): (DocumentName, Document)| {
        let names: ServersOfName = serde_json::from_str(&document.body).ok()?;
        let clash = names.clash(|process| neighbours.sight(process), now)?;
        Some((name.id.as_ref().to_owned(), clash.into_iter().cloned().collect()))
    };
    Ok(documents.into_iter().filter_map(clash).collect())
}
