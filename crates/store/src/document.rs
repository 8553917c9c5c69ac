//! Small things with versions: the state of a breaker, the trust of a tenant, approvals, sessions, agreements, tools.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::id::Digest;

use crate::{Store, StoreError};

/// What a document is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    /// The state of a circuit breaker.
    Breaker,
    /// The failures that a tenant remembers.
    Trust,
    /// The requests and grants of a tenant.
    Approvals,
    /// What is known of a conversation.
    Session,
    /// What a client and a server agreed on.
    Agreement,
    /// Who runs a turn, and what was chosen in it.
    Turn,
    /// The servers of one name.
    Server,
    /// The tools that a server listed last.
    Tools,
    /// Test data, written to check that the store accepts writes.
    Probe,
    /// A loss of committed records that nobody has accepted.
    Loss,
}

impl DocumentKind {
    /// All of them.
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

    /// The word that is stored for it.
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

    /// The kind that is stored as this word.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Names a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentName {
    /// What it is about.
    pub kind: DocumentKind,
    /// Which one.
    pub id: Arc<str>,
}

impl fmt::Display for DocumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.name(), self.id)
    }
}

/// A document as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Grows with every write and is never given twice to one name, not even after it was removed.
    pub version: u64,
    /// What it says.
    pub body: Arc<str>,
}

/// A change of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentWrite {
    /// The version that it replaces; nothing if there must be none.
    pub replaces: Option<u64>,
    /// What it says from now on; nothing removes it.
    pub body: Option<Arc<str>>,
    /// When it is forgotten.
    pub expires: Option<Timestamp>,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is written, as this version.
    As(u64),
    /// Somebody else was faster; this is what is there now.
    Stale(Option<Document>),
}

/// Writes as much as an ordinary call does, and says why that is not possible: a store whose disk is full is read as before.
pub async fn probe(store: &dyn Store) -> Result<(), StoreError> {
    let name = DocumentName { kind: DocumentKind::Probe, id: "probe".into() };
    let now = store.now();
    // Text that is about as long stored as it is here.
    let blocks = (0..PROBE_BYTES / 64).map(|block| Digest::of(format!("{block} {now}").as_bytes()).to_hex());
    let body: Arc<str> = blocks.collect::<String>().into();
    update_document(store, &name, now + PROBE_KEPT, |_| body.clone()).await
}

/// The length of what is written to see whether a store takes writes.
const PROBE_BYTES: usize = 8192;
/// The lifetime of the test data.
const PROBE_KEPT: Duration = Duration::from_secs(3600);

/// How often a change is tried again because another process was faster.
const UPDATE_TRIES: u32 = 8;

/// Reads a document and writes what `change` makes of it, again if another process was faster. After several tries it is left as
/// it is.
pub async fn update_document(
    store: &dyn Store,
    name: &DocumentName,
    expires: Timestamp,
    mut change: impl FnMut(Option<&Document>) -> Arc<str>,
) -> Result<(), StoreError> {
    let mut found = store.read(name).await?;
    for _ in 0..UPDATE_TRIES {
        let replaces = found.as_ref().map(|document| document.version);
        let write = DocumentWrite { replaces, body: Some(change(found.as_ref())), expires: Some(expires) };
        match store.write(name, write).await? {
            Written::As(_) => break,
            Written::Stale(there) => found = there,
        }
    }
    Ok(())
}
