//! Tests with callers that share the writer, and with other processes that hold the file.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rusqlite::Connection;
use steadfast_core::Timestamp;
use steadfast_core::call::StoreFault;
use steadfast_core::dedupe::{Claim, ClaimIntent, ClaimVerdict, LocalKnowledge, ReleaseRequest};
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, ManualClock, StateStore, StoreError, StoreErrorKind,
    StoreEvent,
};

use super::steps::HangingDisk;
use super::world::{
    SqliteTestFolder, TEST_TIMEOUT, acquired, begin, claim, is_replay, key, patient, run, save, take,
};
use crate::transaction::{SWEEP, WriteTransaction};
use crate::view::FileView;
use crate::{SqliteOptions, SqliteStore};

/// Another process that holds the write lock until it is dropped.
struct WriteLockHolder(#[expect(dead_code, reason = "holds its transaction")] Connection);

impl WriteLockHolder {
    fn new(folder: &SqliteTestFolder) -> Self {
        let file = folder.bare();
        file.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(file)
    }
}

#[tokio::test]
async fn callers_share_one_commit() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let mut saves = Vec::new();
    for n in 0..64 {
        saves.push(save(&take(&store, &format!("call {n}")).await, "paid"));
    }
    let hog = WriteLockHolder::new(&folder);
    let mut waiting: Vec<_> = saves.iter().map(|save| store.save(save)).collect();
    for future in &mut waiting {
        begin(future).await;
    }
    let before = store.shared.steps.commits();
    drop(hog);
    for future in waiting {
        future.await.unwrap();
    }
    // The last one may come when the writer has just taken the others.
    let commits = store.shared.steps.commits() - before;
    assert!(commits <= 2, "{commits} commits for 64 answers");
}

#[tokio::test]
async fn operations_without_writes_do_not_wait_and_do_not_change_the_wal() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    run(&store, "done").await;
    let record = take(&store, "held").await;
    let log = || std::fs::metadata(folder.path.join("state.db-wal")).unwrap().modified().unwrap();
    let before = (log(), store.shared.steps.commits());
    let hog = WriteLockHolder::new(&folder);
    assert!(is_replay(&store.claim(&claim("done"), &LocalKnowledge::default()).await.unwrap()));
    assert_eq!(
        store.claim(&claim("held"), &LocalKnowledge::default()).await.unwrap(),
        ClaimVerdict::Follow(record.key)
    );
    let lookup = Claim { intent: ClaimIntent::Look, ..claim("nothing") };
    assert_eq!(store.claim(&lookup, &LocalKnowledge::default()).await.unwrap(), ClaimVerdict::Nothing);
    assert!(store.record(key("done")).await.unwrap().is_some());

    // Also while the writer waits for the other process.
    let stuck_claim = claim("stuck");
    let nothing = LocalKnowledge::default();
    let mut stuck = store.claim(&stuck_claim, &nothing);
    begin(&mut stuck).await;
    assert!(is_replay(&store.claim(&claim("done"), &LocalKnowledge::default()).await.unwrap()));
    assert_eq!((log(), store.shared.steps.commits()), before, "nothing was written");
    drop(hog);
    acquired(stuck.await.unwrap());
}

#[tokio::test]
async fn an_operation_does_not_wait_for_ever_for_another_process() {
    let folder = SqliteTestFolder::new();
    let options = SqliteOptions { patience: Duration::from_millis(50), ..patient(folder.state()) };
    let store = SqliteStore::open(options).unwrap();
    let mut events = store.events();
    let hog = WriteLockHolder::new(&folder);
    let error = store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.fault()), (StoreErrorKind::Unreachable, StoreFault::NotDone));
    assert!(error.to_string().contains("another process"), "{error}");
    drop(hog);
    // With such a short timeout, several tries may be needed.
    let again = claim("a");
    while store.claim(&again, &LocalKnowledge::default()).await.is_err() {}
    assert!(matches!(events.recv().await.unwrap(), StoreEvent::Unavailable(_)));
    assert_eq!(events.recv().await.unwrap(), StoreEvent::Available);
}

/// A thread that waits for its disk in the kernel cannot be cancelled. Its callers continue. Their operations happen
/// when the disk responds, or never.
#[tokio::test]
async fn an_operation_does_not_wait_for_ever_for_its_disk() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let mut events = store.events();
    let record = take(&store, "held").await;
    store.shared.steps.disk.hang();
    // Time passes only while all tasks wait.
    tokio::time::pause();
    let error = store.save(&save(&record, "paid")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.fault()),
        (StoreErrorKind::Unreachable, StoreFault::Unanswered),
        "{error}"
    );
    assert!(error.to_string().contains("disk"), "{error}");
    tokio::time::resume();
    assert!(matches!(events.recv().await.unwrap(), StoreEvent::Unavailable(_)));
    store.shared.steps.disk.go_on();
    take(&store, "next").await;
    assert!(is_replay(&store.claim(&claim("held"), &LocalKnowledge::default()).await.unwrap()));
    assert_eq!(events.recv().await.unwrap(), StoreEvent::Available);
}

#[tokio::test]
async fn a_lookup_does_not_wait_for_ever_for_the_disk() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let disk = Arc::new(HangingDisk::default());
    disk.hang();
    tokio::time::pause();
    let reads = disk.clone();
    let lookup = move |_: FileView<'_>| {
        reads.wait();
        Ok(())
    };
    let error = store.run_query(lookup).await.unwrap_err();
    assert_eq!((error.kind(), error.fault()), (StoreErrorKind::Unreachable, StoreFault::NotDone), "{error}");
    disk.go_on();
}

#[tokio::test]
async fn an_operation_completes_although_its_caller_has_dropped_it() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let answer = save(&take(&store, "gone").await, "paid");
    let hog = WriteLockHolder::new(&folder);
    let mut pending = store.save(&answer);
    begin(&mut pending).await;
    drop(pending);
    drop(hog);
    take(&store, "next").await;
    assert!(is_replay(&store.claim(&claim("gone"), &LocalKnowledge::default()).await.unwrap()));
}

#[tokio::test]
async fn queued_operations_are_done_before_the_store_is_closed() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let record = run(&store, "a").await;
    let receipt = store.record(record.key).await.unwrap().unwrap().receipt();
    let answer = save(&take(&store, "last").await, "paid");
    let hog = WriteLockHolder::new(&folder);
    let mut last = store.save(&answer);
    begin(&mut last).await;
    let mut mark = store.delivered(&receipt, store.now());
    begin(&mut mark).await;
    drop((last, mark));
    drop(hog);
    drop(store);
    let store = folder.open();
    assert!(is_replay(&store.claim(&claim("last"), &LocalKnowledge::default()).await.unwrap()));
    assert!(store.record(key("a")).await.unwrap().unwrap().delivered.is_some());
}

#[tokio::test]
async fn too_many_operations_are_refused_at_once() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let not_started = Claim { intent: ClaimIntent::Take { started: false }, ..claim("a") };
    let record = acquired(store.claim(&not_started, &LocalKnowledge::default()).await.unwrap());
    let hog = WriteLockHolder::new(&folder);
    let mut waiting = Vec::new();
    let refused: StoreError = loop {
        assert!(waiting.len() <= crate::MOST_OPERATIONS + crate::writer::BATCH, "nobody is refused");
        let mut future = store.start(record.key, &record.owner);
        match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            Poll::Pending => waiting.push(future),
            Poll::Ready(Err(error)) => break error,
            Poll::Ready(Ok(verdict)) => panic!("{verdict:?}"),
        }
    };
    assert_eq!((refused.kind(), refused.fault()), (StoreErrorKind::Full, StoreFault::NotDone));
    drop(hog);
}

#[tokio::test]
async fn a_failed_operation_does_not_affect_others() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let failing = take(&store, "victim").await;
    let corrupt = take(&store, "spoilt").await;
    let too_large = take(&store, "too large").await;
    folder
        .bare()
        .execute("UPDATE record SET body = x'00' WHERE key = ?1", [corrupt.key.0.as_bytes()])
        .unwrap();
    let pages: i64 = folder.bare().pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    store.operate(move |tx| Ok(tx.sql.pragma_update(None, "max_page_count", pages + 20)?)).await.unwrap();

    let hog = WriteLockHolder::new(&folder);
    let large: String =
        (0_u64..4000).map(|n| steadfast_core::id::Digest::of(&n.to_le_bytes()).to_hex()).collect();
    let saves = [save(&failing, "paid"), save(&corrupt, "paid"), save(&too_large, &large)];
    let mut waiting: Vec<_> = saves.iter().map(|save| store.save(save)).collect();
    for future in &mut waiting {
        begin(future).await;
    }
    drop(hog);
    let mut answers = Vec::new();
    for future in waiting {
        answers.push(future.await.map(drop).map_err(|error| error.kind()));
    }
    assert_eq!(answers, [Ok(()), Err(StoreErrorKind::Unreadable), Err(StoreErrorKind::Full)]);
    assert!(is_replay(&store.claim(&claim("victim"), &LocalKnowledge::default()).await.unwrap()));
}

/// Everything succeeds up to the commit: a deferred constraint fails only then.
#[tokio::test]
async fn no_caller_gets_a_result_before_the_commit() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let record = take(&store, "held").await;
    let dangling = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
        CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER orphan AFTER UPDATE ON record BEGIN INSERT INTO child VALUES (1); END";
    folder.bare().execute_batch(dangling).unwrap();
    let error = store.save(&save(&record, "paid")).await.unwrap_err();
    assert_eq!(error.fault(), StoreFault::Unanswered, "only the file knows: {error}");
    assert_eq!(store.record(record.key).await.unwrap().as_ref(), Some(&record));

    folder.bare().execute_batch("DROP TRIGGER orphan").unwrap();
    store.save(&save(&record, "paid")).await.unwrap();
    assert!(is_replay(&store.claim(&claim("held"), &LocalKnowledge::default()).await.unwrap()));
}

/// Delivery marks and journals may be lost in a power cut, and get no sync of their own. Results do. Twice, because
/// one kind must not change how the other is written.
#[tokio::test]
async fn only_writes_that_may_be_lost_are_not_synced() {
    const NORMAL: i64 = 1;
    const FULL: i64 = 2;
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let level = |tx: &mut WriteTransaction<'_>| {
        Ok(tx.sql.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0))?)
    };
    for _ in 0..2 {
        assert_eq!(store.operate(level).await.unwrap(), FULL);
        assert_eq!(store.operate_later(level).await.unwrap(), NORMAL);
    }
}

/// The change counter of the file shows only one change for many.
#[tokio::test]
async fn every_document_that_another_process_wrote_causes_an_event() {
    const MANY: usize = 600;
    let folder = SqliteTestFolder::new();
    let (store, other) = (folder.open(), folder.open());
    let mut events = store.events();
    let name = |n: usize| DocumentName { kind: DocumentKind::Breaker, id: format!("tool {n:03}").into() };
    let written = other.operate(move |tx| {
        (0..MANY).try_for_each(|n| {
            let write = DocumentWrite { replaces: None, body: Some("open".into()), expires: None };
            tx.write(&name(n), &write).map(drop)
        })
    });
    written.await.unwrap();
    let last = StoreEvent::DocumentChanged(name(MANY - 1));
    tokio::time::timeout(TEST_TIMEOUT, async {
        // A receiver that lags gets an error, and continues with the newest event.
        while events.recv().await.ok().as_ref() != Some(&last) {}
    })
    .await
    .expect("the last one is told");
}

/// A panic must not leave callers waiting for a dead thread.
#[tokio::test]
async fn no_caller_waits_for_a_dead_thread() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let record = take(&store, "held").await;
    let unanswered = store.operate(|_| -> Result<(), _> { panic!("as a test") }).await.unwrap_err();
    assert_eq!((unanswered.kind(), unanswered.fault()), (StoreErrorKind::Closed, StoreFault::Unanswered));
    assert_eq!(
        store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap_err().kind(),
        StoreErrorKind::Closed
    );

    assert!(store.run_query(|_| -> Result<(), _> { panic!("as a test") }).await.is_err());
    // The other reader may still respond while the first one ends.
    let closed = loop {
        match store.record(record.key).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert_eq!(closed.kind(), StoreErrorKind::Closed);
    store.settled(record.key).await;
}

#[tokio::test]
async fn sweeps_bound_the_size_of_the_file() {
    let folder = SqliteTestFolder::new();
    let store = SqliteStore::open(SqliteOptions { most_bytes: 1, ..patient(folder.state()) }).unwrap();
    let record = take(&store, "held").await;
    for n in 0..3 {
        run(&store, &format!("done {n}")).await;
    }
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.removed, swept.more), (3, false));
    assert_eq!(store.record(record.key).await.unwrap(), Some(record), "what is open stays");
}

/// A follower reads the record and then registers. In between, the change that it waits for may be written and seen
/// by the watcher, which does not see the same change twice.
#[tokio::test]
async fn a_follower_that_registers_during_the_write_is_woken() {
    let folder = SqliteTestFolder::new();
    let (here, elsewhere) = (folder.open(), folder.open());
    let (awaited, other) = (take(&elsewhere, "awaited").await, take(&elsewhere, "other").await);
    let mut settled = here.settled(other.key);
    begin(&mut settled).await;
    let lookup = async || {
        let key = awaited.key;
        let holder = here.run_query(move |view| view.holder(key)).await.unwrap();
        for record in [&awaited, &other] {
            elsewhere.save(&save(record, "paid")).await.unwrap();
        }
        // The watcher has seen both by now.
        settled.await;
        holder
    };
    let woken = here.shared.followers.join(awaited.key).settled(lookup);
    tokio::time::timeout(TEST_TIMEOUT, woken).await.expect("it is woken");
}

/// No index contains them: sweeps scan the file in portions, and restart at its end.
#[tokio::test]
async fn an_open_record_that_ended_is_found_behind_many_others() {
    let folder = SqliteTestFolder::new();
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_794_770_526_000)));
    let options = SqliteOptions { clock: clock.clone(), ..patient(folder.state()) };
    let store = SqliteStore::open(options).unwrap();
    let first = take(&store, "first").await;
    // These never expire.
    folder
        .bare()
        .execute_batch(
            "WITH RECURSIVE number (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM number WHERE n < 3000)
             INSERT INTO record (id, key, open, version, namespace, tool, body)
             SELECT n, randomblob(32), 1, 1, 'a', 'b', x'' FROM number",
        )
        .unwrap();
    let last = take(&store, "last").await;
    clock.advance(Duration::from_secs(10 * 365 * 24 * 3600));
    for (expired, stays) in [(&first, Some(&last)), (&last, None)] {
        let swept = store.sweep().await.unwrap();
        assert_eq!((swept.removed, swept.more), (1, false), "{}", expired.key.fingerprint());
        let left: i64 = folder
            .bare()
            .query_row("SELECT count(*) FROM record WHERE expires IS NOT NULL", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, i64::from(stays.is_some()));
    }
    take(&store, "first").await;
    clock.advance(Duration::from_secs(10 * 365 * 24 * 3600));
    let swept = [store.sweep().await.unwrap().removed, store.sweep().await.unwrap().removed];
    assert_eq!(swept, [0, 1], "the new one lies at the end");
}

/// Expired records are found in one transaction and removed in another.
#[tokio::test]
async fn a_record_that_lives_again_when_the_sweep_comes_to_it_stays() {
    let folder = SqliteTestFolder::new();
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_794_770_526_000)));
    let options = SqliteOptions { clock: clock.clone(), ..patient(folder.state()) };
    let store = SqliteStore::open(options).unwrap();
    for name in ["claimed again", "run again", "gone"] {
        take(&store, name).await;
    }
    clock.advance(Duration::from_secs(10 * 365 * 24 * 3600));
    let (expired, _) = store.run_query(|view| view.expired(0, SWEEP)).await.unwrap();
    assert_eq!(expired, ["claimed again", "run again", "gone"].map(key));

    let record = take(&store, "claimed again").await;
    run(&store, "run again").await;
    let swept = store.operate(move |tx| tx.sweep(&expired)).await.unwrap();
    assert_eq!((swept.removed, swept.more), (1, false));
    assert_eq!(
        store.claim(&claim("claimed again"), &LocalKnowledge::default()).await.unwrap(),
        ClaimVerdict::Follow(record.key)
    );
    assert!(is_replay(&store.claim(&claim("run again"), &LocalKnowledge::default()).await.unwrap()));
}

/// The number of records is read once for all operations in a commit.
#[tokio::test]
async fn a_released_record_is_room_for_the_next_claim_in_the_same_commit() {
    let folder = SqliteTestFolder::new();
    let store = SqliteStore::open(SqliteOptions { most_records: 2, ..patient(folder.state()) }).unwrap();
    let first = take(&store, "first").await;
    let release = ReleaseRequest { key: first.key, index: first.index, owner: first.owner };
    take(&store, "second").await;
    let shared = store.operate(move |tx| {
        let before = tx.claim(&claim("before"), &LocalKnowledge::default())?;
        tx.release(&release)?;
        Ok([
            before,
            tx.claim(&claim("after"), &LocalKnowledge::default())?,
            tx.claim(&claim("one too many"), &LocalKnowledge::default())?,
        ])
    });
    let [before, after, too_many] = shared.await.unwrap();
    assert_eq!((before, too_many), (ClaimVerdict::Full, ClaimVerdict::Full));
    acquired(after);
}
