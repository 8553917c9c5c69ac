//! Tests of the file: created, checked, migrated, refused, set aside, lost, full.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use rusqlite::Connection;
use steadfast_core::Timestamp;
use steadfast_core::call::StoreFault;
use steadfast_core::dedupe::{ClaimVerdict, DedupeState, LocalKnowledge, RenewVerdict};
use steadfast_core::policy::DedupePolicy;
use steadfast_store::{
    DocumentKind, DocumentName, Journal, JournalQuery, ManualClock, RecordCodec, RecordFilter, StateStore,
    StoreErrorKind, StoreEvent, accept_loss,
};

use super::processes::{output_lines, part, print_line, program_at};
use super::world::{SqliteTestFolder, acquired, claim, is_replay, key, patient, run, save, take};
use crate::{FileDamagePolicy, SqliteOpenError, SqliteOptions, SqliteStore, schema};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_folder_and_its_files_are_readable_only_by_their_user() {
    let folder = SqliteTestFolder::new();
    let state = folder.path.join("deep/er/state.db");
    let store = SqliteStore::open(patient(&state)).unwrap();
    run(&store, "a").await;
    assert_eq!(mode(&folder.path.join("deep")), 0o700);
    assert_eq!(mode(&folder.path.join("deep/er")), 0o700);
    for name in ["state.db", "state.db-wal", "state.db-shm", "state.db-commits", "state.db.lock"] {
        assert_eq!(mode(&state.with_file_name(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_file_that_was_open_to_all_is_closed_to_them() {
    let folder = SqliteTestFolder::new();
    fs::write(folder.state(), "").unwrap();
    for empty in [true, false] {
        fs::set_permissions(folder.state(), fs::Permissions::from_mode(0o644)).unwrap();
        run(&folder.open(), &format!("empty {empty}")).await;
        assert_eq!(mode(&folder.state()), 0o600, "empty {empty}");
    }
}

#[tokio::test]
async fn acknowledged_writes_are_there_after_a_restart() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    run(&store, "a").await;
    drop(store);
    assert!(is_replay(&folder.open().claim(&claim("a"), &LocalKnowledge::default()).await.unwrap()));
}

/// The fixture was written by the first version, and never changes.
#[tokio::test]
async fn a_file_of_the_first_version_is_read() {
    let folder = SqliteTestFolder::new();
    folder.bare().execute_batch(include_str!("../../tests/fixtures/version-1.sql")).unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_794_770_526_000)));
    let store = SqliteStore::open(SqliteOptions { clock, ..patient(folder.state()) }).unwrap();
    assert!(is_replay(&store.claim(&claim("done"), &LocalKnowledge::default()).await.unwrap()));
    let open = store.record(key("open")).await.unwrap().unwrap();
    assert_eq!(open.state, DedupeState::Inflight);
    let name = DocumentName { kind: DocumentKind::Breaker, id: "bank/pay".into() };
    assert_eq!(&*store.read(&name).await.unwrap().unwrap().body, r#"{"state":"open"}"#);
    let all = store.entries(&JournalQuery::newest(Journal::Audit, 9)).await.unwrap();
    assert_eq!(&*all[0].1.body, r#"{"did":"reset"}"#);
    let version: i64 = folder.bare().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(usize::try_from(version).unwrap(), schema::VERSION);
}

/// The repair that the message about a damaged file suggests. Such a copy is not in WAL mode.
#[tokio::test]
async fn a_copy_can_take_the_place_of_the_file() {
    let folder = SqliteTestFolder::new();
    run(&folder.open(), "a").await;
    let copy = folder.path.join("copy.db");
    folder.bare().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    fs::rename(&copy, folder.state()).unwrap();
    let store = folder.open();
    assert!(is_replay(&store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap()));
    let mode: String = folder.bare().pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

/// The program is updated while an older version still runs.
#[tokio::test]
async fn a_file_that_becomes_newer_while_it_is_open_is_not_changed() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let record = take(&store, "held").await;
    let version = |version: usize| {
        folder.bare().pragma_update(None, "user_version", i64::try_from(version).unwrap()).unwrap();
    };
    version(schema::VERSION + 1);
    let errors =
        [store.save(&save(&record, "paid")).await.unwrap_err(), store.record(record.key).await.unwrap_err()];
    for error in errors {
        assert_eq!((error.kind(), error.fault()), (StoreErrorKind::Unreadable, StoreFault::NotDone));
        assert!(error.to_string().contains("update steadfast"), "{error}");
    }
    version(schema::VERSION);
    store.save(&save(&record, "paid")).await.unwrap();
    assert!(is_replay(&store.claim(&claim("held"), &LocalKnowledge::default()).await.unwrap()));
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_not_changed() {
    let folder = SqliteTestFolder::new();
    drop(folder.open());
    folder.bare().pragma_update(None, "user_version", 99).unwrap();
    for on_damage in [FileDamagePolicy::Refuse, FileDamagePolicy::SetAside] {
        let options = SqliteOptions { on_damage, ..patient(folder.state()) };
        let error = SqliteStore::open(options).unwrap_err();
        assert!(matches!(error, SqliteOpenError::Newer { found: 99, .. }));
        assert!(error.to_string().contains("update steadfast"), "{error}");
    }
    assert!(!folder.names().iter().any(|name| name.contains("damaged")));
}

/// Creates each kind of unusable file, and returns the content that must not be lost.
fn unusable(kind: &str, path: &Path) -> Vec<u8> {
    match kind {
        "text" => fs::write(path, "my diary, not yours. ".repeat(100)).unwrap(),
        "another program" => {
            Connection::open(path).unwrap().execute_batch("CREATE TABLE diary (day, entry)").unwrap();
        }
        "damaged" => {
            drop(SqliteStore::open(patient(path)).unwrap());
            let mut file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            file.seek(SeekFrom::Start(4096)).unwrap();
            file.write_all(&[0xa5; 12288]).unwrap();
        }
        "cut off" => {
            drop(SqliteStore::open(patient(path)).unwrap());
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5000).unwrap();
        }
        other => panic!("{other}"),
    }
    fs::read(path).unwrap()
}

#[tokio::test]
async fn a_foreign_or_damaged_file_is_refused_and_set_aside_only_where_that_is_allowed() {
    for kind in ["text", "another program", "damaged", "cut off"] {
        let folder = SqliteTestFolder::new();
        let before = unusable(kind, &folder.state());

        let error = SqliteStore::open(patient(folder.state())).unwrap_err();
        assert!(
            matches!(error, SqliteOpenError::Foreign { .. } | SqliteOpenError::Damaged { .. }),
            "{kind}: {error:?}"
        );
        assert!(error.to_string().contains("move it away"), "{kind}: {error}");
        assert_eq!(fs::read(folder.state()).unwrap(), before, "{kind}: it was not touched");

        let options = SqliteOptions { on_damage: FileDamagePolicy::SetAside, ..patient(folder.state()) };
        let store = SqliteStore::open(options).unwrap();
        let aside = store.set_aside().expect("it says where the old one is").to_owned();
        assert!(aside.to_str().unwrap().contains("state.db.damaged-"), "{aside:?}");
        assert_eq!(fs::read(&aside).unwrap(), before, "{kind}: nothing of it is lost");
        let verdict = store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap();
        assert_eq!(verdict, ClaimVerdict::RecordsLost, "{kind}: it may have been in there");
        accept_loss(&store).await.unwrap().expect("somebody has to accept it");
        run(&store, "a").await;
    }
}

/// The WAL of a file that was set aside must not be replayed into the new one.
#[tokio::test]
async fn the_wal_of_a_damaged_file_is_moved_with_it() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    run(&store, "old").await;
    let mut log = Vec::new();
    fs::File::open(folder.path.join("state.db-wal")).unwrap().read_to_end(&mut log).unwrap();
    drop(store);
    fs::write(folder.state(), "no database").unwrap();
    fs::write(folder.path.join("state.db-wal"), &log).unwrap();
    let options = SqliteOptions { on_damage: FileDamagePolicy::SetAside, ..patient(folder.state()) };
    let store = SqliteStore::open(options).unwrap();
    assert_eq!(store.record(key("old")).await.unwrap(), None);
    let aside = store.set_aside().unwrap().to_str().unwrap().to_owned();
    assert_eq!(fs::read(format!("{aside}-wal")).unwrap(), log);
}

#[test]
fn an_unusable_state_folder_is_an_error_with_a_solution() {
    let folder = SqliteTestFolder::new();
    fs::write(folder.path.join("file"), "").unwrap();
    for path in
        [folder.path.join("file/state.db"), "/proc/no-such-folder/state.db".into(), folder.path.clone()]
    {
        let error = SqliteStore::open(patient(&path)).unwrap_err();
        assert!(matches!(error, SqliteOpenError::Folder { .. } | SqliteOpenError::File { .. }), "{error:?}");
        assert!(error.to_string().contains("`store.path`"), "{error}");
    }
}

/// In another process, because root may write everywhere.
#[test]
fn a_read_only_file_is_an_error_with_a_solution() {
    if let Some((path, _)) = part() {
        print_line(&SqliteStore::open(patient(path)).unwrap_err().to_string());
        return;
    }
    const NOBODY: u32 = 65534;
    let folder = SqliteTestFolder::new();
    let program = folder.path.join("test");
    // Copied by another process: a file that this process writes is also open in every child that another test forks
    // meanwhile, until that child calls exec, and so long it cannot be executed.
    let copied = Command::new("cp").arg(env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let test = "tests::files::a_read_only_file_is_an_error_with_a_solution";
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    for (case, folder_mode, file_mode) in [
        ("an empty folder", 0o500, None),
        ("a missing folder in it", 0o500, None),
        ("a folder with a file", 0o500, Some(0o600)),
        ("a file", 0o700, Some(0o400)),
    ] {
        let place = folder.path.join(case);
        let path = match case {
            "a missing folder in it" => place.join("deeper/state.db"),
            _ => place.join("state.db"),
        };
        fs::create_dir(&place).unwrap();
        if let Some(file_mode) = file_mode {
            // Closing removes the WAL, so that a new one must be created.
            drop(SqliteStore::open(patient(&path)).unwrap());
            fs::remove_file(place.join("state.db.lock")).unwrap();
            fs::remove_file(place.join("state.db-commits")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(file_mode)).unwrap();
        }
        let before: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(before.len(), usize::from(file_mode.is_some()), "{case}: {before:?}");
        fs::set_permissions(&place, fs::Permissions::from_mode(folder_mode)).unwrap();
        let mut command = program_at(&program, test, &path, "read-only");
        if root {
            for owned in before.iter().chain([&place]) {
                chown(owned, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            command.uid(NOBODY).gid(NOBODY);
        }
        let words = folder.path.join("stderr");
        let mut child = command.stderr(fs::File::create(&words).unwrap()).spawn().unwrap();
        let line = output_lines(&mut child).next();
        let status = child.wait().unwrap();
        let line =
            line.unwrap_or_else(|| panic!("{case}: {status}, {}", fs::read_to_string(&words).unwrap()));
        assert!(line.contains("`store.path`") && line.contains("writable for this user"), "{case}: {line}");
        let after: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(after, before, "{case}: nothing was made or taken away");
        // So that the folder can be removed.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_recovers() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let mut events = store.events();
    let first = take(&store, "a").await;
    let pages = |pages: i64| {
        move |tx: &mut crate::transaction::WriteTransaction<'_>| {
            Ok(tx.sql.pragma_update(None, "max_page_count", pages)?)
        }
    };
    store.operate(pages(1)).await.unwrap();
    let large = save(&first, &noise(200_000));
    let error = store.save(&large).await.unwrap_err();
    assert_eq!((error.kind(), error.fault()), (StoreErrorKind::Full, StoreFault::NotDone), "{error}");
    assert!(error.to_string().contains("make room"), "{error}");
    assert_eq!(store.record(first.key).await.unwrap().unwrap(), first, "nothing of it is there");
    // A successful read says nothing about the disk.
    assert!(matches!(
        store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap(),
        ClaimVerdict::Follow(_)
    ));
    assert!(matches!(events.try_recv(), Ok(StoreEvent::Unavailable(reason)) if reason.contains("ENOSPC")));
    assert!(events.try_recv().is_err(), "it is not back");

    store.operate(pages(1_000_000)).await.unwrap();
    store.save(&large).await.unwrap();
    assert!(is_replay(&store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap()));
    assert_eq!(events.recv().await.unwrap(), StoreEvent::Available);
}

/// Incompressible text.
fn noise(length: usize) -> String {
    let digest = |n: usize| steadfast_core::id::Digest::of(&n.to_le_bytes()).to_hex();
    (0..length / 64).map(digest).collect()
}

/// The folder is emptied while a store is open. Writes to the deleted file would be lost at the next start, and
/// invisible to other processes.
#[tokio::test]
async fn a_removed_file_is_detected_and_owners_come_first() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    let mut events = store.events();
    let record = take(&store, "held").await;
    run(&store, "done").await;
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        fs::remove_file(folder.path.join(name)).unwrap();
    }

    let verdict = store.claim(&claim("done"), &LocalKnowledge::default()).await.unwrap();
    assert_eq!(verdict, ClaimVerdict::RecordsLost, "it may have run, and must not run twice");
    assert_eq!(events.recv().await.unwrap(), StoreEvent::Emptied);
    let safe = steadfast_core::dedupe::Claim { retry_safe: true, ..claim("safe") };
    acquired(store.claim(&safe, &LocalKnowledge::default()).await.unwrap());
    let keep = DedupePolicy::default().keep;
    assert_eq!(store.renew(&record, &keep).await.unwrap(), RenewVerdict::Renewed);
    let verdict = folder.open().claim(&claim("held"), &LocalKnowledge::default()).await.unwrap();
    assert_eq!(verdict, ClaimVerdict::Follow(record.key), "everybody sees the claim again");
}

#[tokio::test]
async fn records_are_encrypted_where_a_secret_is_given_and_unreadable_with_another() {
    let folder = SqliteTestFolder::new();
    let open = |secret: u8| {
        let codec = RecordCodec::encrypted(&[secret; 32]).unwrap();
        SqliteStore::open(SqliteOptions { codec, ..patient(folder.state()) }).unwrap()
    };
    let store = open(1);
    let record = take(&store, "a").await;
    store.save(&save(&record, "the secret answer")).await.unwrap();
    drop(store);
    let bytes = fs::read(folder.state()).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"secret"));

    let store = open(2);
    let error = store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    assert!(error.to_string().contains("another secret"), "{error}");
    assert!(
        store
            .records(&RecordFilter::default(), steadfast_store::RecordPage { after: None, limit: 9 })
            .await
            .is_err()
    );
    // The readable records are returned, also if unreadable ones are between them. The first page is full.
    let page = |after| steadfast_store::RecordPage { after, limit: 2 };
    let names = ["d", "g", "i"].map(key);
    assert!(names[0] < key("a") && key("a") < names[1] && names[1] < names[2]);
    for name in ["d", "g", "i"] {
        take(&store, name).await;
    }
    let first = store.records(&RecordFilter::default(), page(None)).await.unwrap();
    let rest = store.records(&RecordFilter::default(), page(Some(first[1].key))).await.unwrap();
    assert_eq!(first.iter().chain(&rest).map(|record| record.key).collect::<Vec<_>>(), names);
    store.flush(&steadfast_store::FlushTarget::Key(names[1])).await.unwrap();
    store.flush(&steadfast_store::FlushTarget::Key(names[2])).await.unwrap();
    let last = store.records(&RecordFilter::default(), page(Some(names[0]))).await.unwrap();
    assert_eq!(last, [], "also where only such are left");

    let forgotten = steadfast_store::FlushTarget::Key(key("a"));
    assert_eq!(store.flush(&forgotten).await.unwrap(), 1, "what cannot be read can still be forgotten");
    take(&store, "a").await;
}
