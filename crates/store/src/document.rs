//! Versioned documents: states of breakers, trust of tenants, approvals, sessions, agreements, tools.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::id::Digest;

use crate::{StateStore, StoreError};

/// The kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    /// The state of a circuit breaker.
    Breaker,
    /// The failures that count against the trust of a tenant.
    Trust,
    /// The approval requests and grants of a tenant.
    Approvals,
    /// The state of a conversation.
    Session,
    /// The agreement between a client and a server.
    Agreement,
    /// The runner of a turn, and the candidates chosen in it.
    Turn,
    /// The servers that share a name.
    Server,
    /// The latest list of tools of a server.
    Tools,
    /// Test data, written to check that the store accepts writes.
    Probe,
    /// A loss of committed records that no operator has accepted.
    Loss,
}

impl DocumentKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Breaker,
        Self::Trust,
        Self::Approvals,
        Self::Session,
        Self::Agreement,
        Self::Turn,
        Self::Server,
        Self::Tools,
        Self::Probe,
        Self::Loss,
    ];

    /// Returns the stored name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Breaker => "breaker",
            Self::Trust => "trust",
            Self::Approvals => "approvals",
            Self::Session => "session",
            Self::Agreement => "agreement",
            Self::Turn => "turn",
            Self::Server => "server",
            Self::Tools => "tools",
            Self::Probe => "probe",
            Self::Loss => "loss",
        }
    }

    /// Returns the kind with this stored name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The name of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentName {
    /// The kind.
    pub kind: DocumentKind,
    /// The id within the kind.
    pub id: Arc<str>,
}

impl fmt::Display for DocumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.name(), self.id)
    }
}

/// A stored document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Grows with every write. A name never gets the same version twice, not even after a removal.
    pub version: u64,
    /// The content.
    pub body: Arc<str>,
}

/// A change of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentWrite {
    /// The version to replace, or `None` if the document must not exist.
    pub replaces: Option<u64>,
    /// The new content, or `None` to remove the document.
    pub body: Option<Arc<str>>,
    /// Time at which the document expires.
    pub expires: Option<Timestamp>,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentWriteOutcome {
    /// The document was written, with this version.
    Written(u64),
    /// Another writer was faster. Contains the current document.
    Stale(Option<Document>),
}

/// Writes as much as an ordinary call, or returns the error. A store whose disk is full can still be read, so only a
/// write detects it.
pub async fn probe(store: &dyn StateStore) -> Result<(), StoreError> {
    let name = DocumentName { kind: DocumentKind::Probe, id: "probe".into() };
    let now = store.now();
    // The text is nearly incompressible.
    let blocks = (0..PROBE_BYTES / 64).map(|block| Digest::of(format!("{block} {now}").as_bytes()).to_hex());
    let body: Arc<str> = blocks.collect::<String>().into();
    update_document(store, &name, now + PROBE_LIFETIME, |_| body.clone()).await
}

/// Size of the test data.
const PROBE_BYTES: usize = 8192;
/// The lifetime of the test data.
const PROBE_LIFETIME: Duration = Duration::from_secs(3600);

/// Tries of an update if other processes are faster.
const UPDATE_ATTEMPTS: u32 = 8;

/// Reads a document and writes the result of `change`. Tries again if another process was faster, and gives up after
/// several tries.
pub async fn update_document(
    store: &dyn StateStore,
    name: &DocumentName,
    expires: Timestamp,
    mut change: impl FnMut(Option<&Document>) -> Arc<str>,
) -> Result<(), StoreError> {
    let mut found = store.read(name).await?;
    for _ in 0..UPDATE_ATTEMPTS {
        let replaces = found.as_ref().map(|document| document.version);
        let write = DocumentWrite { replaces, body: Some(change(found.as_ref())), expires: Some(expires) };
        match store.write(name, write).await? {
            DocumentWriteOutcome::Written(_) => break,
            DocumentWriteOutcome::Stale(there) => found = there,
        }
    }
    Ok(())
}
