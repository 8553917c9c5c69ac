//! The vocabulary of the tests.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;
use std::{env, fs, process};

use rusqlite::Connection;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, LocalKnowledge,
    RecordAddress, RunOutcome, SaveRequest,
};
use steadfast_core::id::{Digest, Namespace, RequestId, RunId, SessionKey, ToolName, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{DedupePolicy, PolicyProfile, ToolClass};
use steadfast_json::RawJson;
use steadfast_store::{StateStore, this_process};

use crate::{SqliteOptions, SqliteStore};

/// A guard against hanging tests, not a measured limit.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Options of a state file for which no working disk is too slow.
pub(crate) fn patient(path: impl Into<PathBuf>) -> SqliteOptions {
    SqliteOptions { patience: TEST_TIMEOUT, ..SqliteOptions::at(path) }
}

/// A folder that is removed after the test.
pub(crate) struct SqliteTestFolder {
    pub(crate) path: PathBuf,
}

impl SqliteTestFolder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("steadfast-sqlite-unit-{}-{number}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path.join("state.db")
    }

    pub(crate) fn open(&self) -> SqliteStore {
        SqliteStore::open(patient(self.state())).unwrap()
    }

    /// Opens the file without the store.
    pub(crate) fn bare(&self) -> Connection {
        let file = Connection::open(self.state()).unwrap();
        file.busy_timeout(TEST_TIMEOUT).unwrap();
        file
    }

    /// Returns the names of the files in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for SqliteTestFolder {
    fn drop(&mut self) {
        // A folder that remains does no harm.
        let _ = fs::remove_dir_all(&self.path);
    }
}

pub(crate) fn key(name: &str) -> RecordKey {
    RecordKey(Digest::of(name.as_bytes()))
}

/// A call with a key of its own, to a tool that must not run twice.
pub(crate) fn claim(name: &str) -> Claim {
    static CALL: AtomicU32 = AtomicU32::new(1);
    let call = CALL.fetch_add(1, Ordering::Relaxed).into();
    Claim {
        address: RecordAddress::Explicit(key(name)),
        intent: ClaimIntent::Take { started: true },
        role: ClaimRole::Fresh,
        owner: ClaimOwner { process: this_process(), call, claim: 1 },
        digest: Digest::of(b"arguments"),
        retry_safe: false,
        best_effort: false,
        arrived: steadfast_core::Timestamp::from_millis(1),
        age: Duration::ZERO,
        end_observed_within: None,
        run: RunId(format!("run-{name}").into()),
        rules: DedupeRules::from(&PolicyProfile::Standard.policy(ToolClass::Mutating)),
        tool: ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() },
        request: RequestId::new(format!("request-{name}")).unwrap(),
        tool_call: None,
        context: None,
        session: Some(SessionKey::new("conversation").unwrap()),
        actor: None,
        tenant: None,
    }
}

pub(crate) fn save(record: &DedupeRecord, text: &str) -> SaveRequest {
    SaveRequest {
        claimed: std::sync::Arc::new(record.clone()),
        ending: RunOutcome::Done(Some(ToolOutput { content: RawJson::string(text), metadata: None })),
        attempts: Vec::new(),
        delivered: None,
        hold: false,
        keep: DedupePolicy::default().keep,
    }
}

pub(crate) async fn take(store: &SqliteStore, name: &str) -> DedupeRecord {
    acquired(store.claim(&claim(name), &LocalKnowledge::default()).await.unwrap())
}

pub(crate) async fn run(store: &SqliteStore, name: &str) -> DedupeRecord {
    let record = take(store, name).await;
    store.save(&save(&record, "paid")).await.unwrap();
    record
}

pub(crate) fn acquired(verdict: ClaimVerdict) -> DedupeRecord {
    let ClaimVerdict::Acquired(record) = verdict else { panic!("expected mine, got {verdict:?}") };
    std::sync::Arc::unwrap_or_clone(record)
}

pub(crate) fn is_replay(verdict: &ClaimVerdict) -> bool {
    matches!(verdict, ClaimVerdict::Replay(_))
}

/// Polls a future once, so that its operation is queued whatever happens to the future.
pub(crate) async fn begin<F: Future + Unpin>(future: &mut F) {
    poll_fn(|context| {
        assert!(std::pin::Pin::new(&mut *future).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}
