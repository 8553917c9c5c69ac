//! Losses of committed records: files deleted, overwritten, truncated, replaced by an older copy. Each loss is
//! detected when the file is opened, and no crash of a process is mistaken for one.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimVerdict, Commit, LocalKnowledge, LossCause, RecordAddress, RecordLoss, StoreMarker,
};
use steadfast_store::{ManualClock, StateStore, accept_loss, record_loss};

use super::world::{SqliteTestFolder, acquired, claim, is_replay, key, patient, run, take};
use crate::commit_note::{BootId, CommitNoteContent};
use crate::{CommitLossPolicy, FileDamagePolicy, SqliteOptions, SqliteStore};

const KEYS: [&str; 3] = ["a", "b", "c"];

fn options(folder: &SqliteTestFolder) -> SqliteOptions {
    SqliteOptions { on_damage: FileDamagePolicy::SetAside, ..patient(folder.state()) }
}

fn open(folder: &SqliteTestFolder) -> SqliteStore {
    SqliteStore::open(options(folder)).unwrap()
}

/// Opens the file after a restart of the machine.
fn open_after_boot(folder: &SqliteTestFolder) -> SqliteStore {
    let mut options = options(folder);
    options.process.boot = "the next boot".into();
    SqliteStore::open(options).unwrap()
}

fn file(folder: &SqliteTestFolder, suffix: &str) -> std::path::PathBuf {
    folder.path.join(format!("state.db{suffix}"))
}

/// Copies the file with the files beside it. For an open store, this is the state after `kill -9`.
fn copied(from: &SqliteTestFolder) -> SqliteTestFolder {
    let to = SqliteTestFolder::new();
    for suffix in ["", "-wal", "-commits"] {
        if file(from, suffix).exists() {
            fs::copy(file(from, suffix), file(&to, suffix)).unwrap();
        }
    }
    to
}

/// The files after three finished calls: of a process that was killed, or of one that closed the file.
async fn prepared_folder(killed: bool) -> SqliteTestFolder {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    for name in KEYS {
        run(&store, name).await;
    }
    if killed {
        return copied(&folder);
    }
    close(store, &folder);
    folder
}

/// Closes the file. Then no WAL is left that could be mixed with a restored copy.
fn close(store: SqliteStore, folder: &SqliteTestFolder) {
    drop(store);
    assert!(!file(folder, "-wal").exists());
}

fn noted(folder: &SqliteTestFolder) -> CommitNoteContent {
    options(folder).place().note().read().unwrap().noted().cloned().unwrap()
}

async fn verdict(store: &SqliteStore, claim: &Claim) -> ClaimVerdict {
    store.claim(claim, &LocalKnowledge::default()).await.unwrap()
}

/// Until the loss is accepted, no acknowledged key runs again. Safe calls continue.
async fn is_reported_and_refused(store: &SqliteStore, case: &str) -> RecordLoss {
    static CALL: AtomicU32 = AtomicU32::new(0);
    let call = CALL.fetch_add(1, Ordering::Relaxed);
    acquired(verdict(store, &Claim { retry_safe: true, ..claim(&format!("safe {call}")) }).await);
    let address =
        RecordAddress::Keyless { run: key(&format!("run {call}")), index: key(&format!("index {call}")) };
    acquired(verdict(store, &Claim { address, ..claim("keyless") }).await);
    is_refused(store, case).await
}

/// The same if a process that knew the lost records writes its claims first. Calls without a key are refused too.
async fn is_refused(store: &SqliteStore, case: &str) -> RecordLoss {
    for name in KEYS {
        let found = verdict(store, &claim(name)).await;
        assert!(is_replay(&found) || found == ClaimVerdict::RecordsLost, "{case}: {name} is {found:?}");
    }
    let refused = verdict(store, &claim("never seen")).await;
    assert_eq!(refused, ClaimVerdict::RecordsLost, "{case}: nobody can tell whether it was");
    record_loss(store).await.unwrap().unwrap_or_else(|| panic!("{case}: nobody is told"))
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn garbage(path: &Path) {
    let length = usize::try_from(fs::metadata(path).unwrap().len()).unwrap();
    fs::write(path, vec![0xa5; length]).unwrap();
}

fn cut(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

#[tokio::test]
async fn every_loss_of_committed_records_is_detected_and_acknowledged_keys_do_not_run_again() {
    type FolderDamage = fn(&SqliteTestFolder);
    let killed: [(&str, LossCause, FolderDamage); 6] = [
        ("log deleted", LossCause::Behind, |folder| fs::remove_file(file(folder, "-wal")).unwrap()),
        ("log cut off", LossCause::Behind, |folder| cut(&file(folder, "-wal"), 5000)),
        ("log garbage", LossCause::Behind, |folder| garbage(&file(folder, "-wal"))),
        ("bits of the log flipped", LossCause::Behind, |folder| flip(&file(folder, "-wal"), 200)),
        ("database truncated to nothing", LossCause::Missing, |folder| cut(&file(folder, ""), 0)),
        ("database overwritten", LossCause::Unusable, |folder| garbage(&file(folder, ""))),
    ];
    let closed: [(&str, LossCause, FolderDamage); 5] = [
        ("database deleted", LossCause::Missing, |folder| fs::remove_file(file(folder, "")).unwrap()),
        ("database truncated to nothing", LossCause::Missing, |folder| cut(&file(folder, ""), 0)),
        ("database cut off", LossCause::Unusable, |folder| cut(&file(folder, ""), 5000)),
        ("database overwritten", LossCause::Unusable, |folder| garbage(&file(folder, ""))),
        ("another database in its place", LossCause::Replaced, |folder| {
            let other = SqliteTestFolder::new();
            close(other.open(), &other);
            fs::copy(file(&other, ""), file(folder, "")).unwrap();
        }),
    ];
    let cases = killed.map(|case| (true, case)).into_iter().chain(closed.map(|case| (false, case)));
    for (was_killed, (case, cause, damage)) in cases {
        let folder = prepared_folder(was_killed).await;
        damage(&folder);
        let store = open(&folder);
        let loss = is_reported_and_refused(&store, case).await;
        assert_eq!(loss.cause, cause, "{case}");
        assert_eq!(store.detected_loss(), Some(&loss), "{case}");
        // Two commits for each call.
        assert_eq!(loss.commits, Some(6), "{case}");
        assert!(loss.until.is_some(), "{case}");
        let aside = cause == LossCause::Unusable || (was_killed && cause == LossCause::Missing);
        assert_eq!(loss.set_aside.len(), usize::from(aside), "{case}: {loss:?}");
        drop(store);

        let store = open(&folder);
        assert_eq!(store.detected_loss(), None, "{case}: it is noticed once");
        assert_eq!(
            is_reported_and_refused(&store, case).await,
            loss,
            "{case}: and told until it is accepted"
        );
        assert_eq!(accept_loss(&store).await.unwrap(), Some(loss), "{case}");
        assert_eq!(record_loss(&store).await.unwrap(), None, "{case}");
        assert_eq!(noted(&folder).loss, None, "{case}");
        take(&store, "a").await;
    }
}

#[tokio::test]
async fn an_older_copy_is_detected_and_its_records_are_still_used() {
    let folder = prepared_folder(false).await;
    let older = copied(&folder);
    let store = folder.open();
    run(&store, "later").await;
    close(store, &folder);
    fs::copy(file(&older, ""), file(&folder, "")).unwrap();
    let store = open(&folder);
    let loss = is_reported_and_refused(&store, "older copy").await;
    assert_eq!((loss.cause, loss.commits), (LossCause::Behind, Some(2)));
    assert!(loss.after.is_some(), "since when");
    assert!(is_replay(&verdict(&store, &claim("a")).await));
    assert_eq!(verdict(&store, &claim("later")).await, ClaimVerdict::RecordsLost);
}

/// SQLite replays a leftover WAL into any file beside it. The number of the last commit is in the WAL.
#[tokio::test]
async fn an_older_copy_under_the_wal_of_the_newer_file_is_detected() {
    let folder = prepared_folder(false).await;
    let older = copied(&folder);
    let store = folder.open();
    run(&store, "later").await;
    close(store, &folder);
    let store = folder.open();
    run(&store, "last").await;
    let killed = copied(&folder);
    drop(store);
    assert_eq!(open(&copied(&killed)).detected_loss(), None, "its own log");
    fs::copy(file(&older, ""), file(&killed, "")).unwrap();
    let store = open(&killed);
    let loss = is_reported_and_refused(&store, "older copy under a log").await;
    assert_eq!((loss.cause, loss.commits), (LossCause::Behind, None));
}

/// The same if the WAL was checkpointed during the run.
#[tokio::test]
async fn an_older_copy_is_detected_after_a_checkpoint() {
    let folder = prepared_folder(false).await;
    let older = copied(&folder);
    let store = folder.open();
    let mut number = 0;
    while noted(&folder).in_file < 10 {
        run(&store, &format!("call {number}")).await;
        number += 1;
        assert!(number < 20_000, "the log is never brought into the file");
    }
    run(&store, "last").await;
    let killed = copied(&folder);
    drop(store);
    assert_eq!(open(&copied(&killed)).detected_loss(), None, "its own log");
    fs::copy(file(&older, ""), file(&killed, "")).unwrap();
    assert!(open(&killed).detected_loss().is_some());
}

#[tokio::test]
async fn neither_a_crash_nor_a_power_cut_is_reported_as_a_loss() {
    let killed = prepared_folder(true).await;
    let behind = copied(&killed);
    // The number that was synced with the first commit.
    let note = options(&behind).place().note();
    let first = Commit { number: 1, ..noted(&behind).last };
    note.replace(&CommitNoteContent { last: first, ..noted(&behind) }).unwrap();
    let closed = prepared_folder(false).await;
    assert!(!noted(&killed).exact);
    assert!(noted(&closed).exact);
    for (case, folder) in [("killed", &killed), ("power cut, note behind", &behind), ("closed", &closed)] {
        for first in [open, open_after_boot] {
            let folder = copied(folder);
            for reopen in [first, open_after_boot, open] {
                let store = reopen(&folder);
                assert_eq!(store.detected_loss(), None, "{case}");
                assert!(is_replay(&verdict(&store, &claim("c")).await), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_log_missing_after_a_power_cut_is_detected_although_the_note_is_older() {
    let folder = prepared_folder(true).await;
    let surviving = {
        // The content of the file itself, without the WAL.
        let bare = copied(&folder);
        fs::remove_file(file(&bare, "-wal")).unwrap();
        drop(open(&bare));
        Commit { number: 0, ..noted(&folder).last }
    };
    options(&folder)
        .place()
        .note()
        .replace(&CommitNoteContent { last: surviving, ..noted(&folder) })
        .unwrap();
    fs::remove_file(file(&folder, "-wal")).unwrap();
    let store = open_after_boot(&folder);
    let loss = is_reported_and_refused(&store, "power cut").await;
    assert_eq!((loss.cause, loss.commits), (LossCause::LogMissing, None));
}

#[tokio::test]
async fn an_unaccepted_loss_survives_the_next_one() {
    let folder = prepared_folder(false).await;
    fs::remove_file(file(&folder, "")).unwrap();
    close(open(&folder), &folder);
    fs::remove_file(file(&folder, "")).unwrap();
    let store = open(&folder);
    let both = is_reported_and_refused(&store, "second").await;
    // The second loss includes the commit that recorded the first one.
    assert_eq!(both.commits, Some(7));
    accept_loss(&store).await.unwrap().unwrap();
    run(&store, "after").await;
    close(store, &folder);
    fs::remove_file(file(&folder, "")).unwrap();
    let third = is_reported_and_refused(&open(&folder), "third").await;
    assert!(
        third.commits < both.commits.map(|commits| commits + 3),
        "what was accepted does not come back: {third:?}"
    );
}

/// A process may die after it has written the note and before it writes the file.
#[tokio::test]
async fn a_loss_is_reported_once_despite_a_crash_while_it_is_recorded() {
    let loss = {
        let folder = prepared_folder(false).await;
        fs::remove_file(file(&folder, "")).unwrap();
        open(&folder).detected_loss().unwrap().clone()
    };
    // The note was written, but not the file.
    let folder = prepared_folder(false).await;
    let note = options(&folder).place().note();
    let fresh = Commit { marker: StoreMarker(7), number: 0, at: Timestamp::from_millis(1) };
    note.replace(&CommitNoteContent {
        last: fresh,
        in_file: 0,
        exact: true,
        boot: note.boot(),
        loss: Some(loss.clone()),
    })
    .unwrap();
    let store = open(&folder);
    assert_eq!(store.detected_loss(), None, "it is no new one");
    assert_eq!(is_reported_and_refused(&store, "half").await, loss);
    drop(store);
    // Both were written, but the number was not raised.
    let last = Commit { number: 0, ..noted(&folder).last };
    note.replace(&CommitNoteContent {
        last,
        in_file: 0,
        exact: true,
        boot: note.boot(),
        loss: Some(loss.clone()),
    })
    .unwrap();
    let store = open(&folder);
    assert_eq!(store.detected_loss(), None);
    assert_eq!(is_reported_and_refused(&store, "nearly").await, loss);
}

#[tokio::test]
async fn processes_that_run_notice_a_loss_once_and_all_see_it() {
    let folder = prepared_folder(false).await;
    let older = copied(&folder);
    let stores = [open(&folder), open(&folder)];
    run(&stores[0], "later").await;
    verdict(&stores[1], &claim("a")).await;
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(file(&folder, suffix)).unwrap();
    }
    fs::rename(file(&older, ""), file(&folder, "")).unwrap();
    let mut losses = Vec::new();
    for store in &stores {
        losses.push(is_refused(store, "while running").await);
    }
    assert_eq!(losses[0], losses[1]);
    assert_eq!(losses[0].commits, Some(2));
    accept_loss(&stores[1]).await.unwrap().unwrap();
    assert_eq!(record_loss(&stores[0]).await.unwrap(), None);
    take(&open(&folder), "later").await;
}

/// `rm state.db*` deletes the note too, but a process with the file open still knows the last commit.
#[tokio::test]
async fn a_running_process_detects_a_loss_without_the_note() {
    let folder = prepared_folder(false).await;
    let store = open(&folder);
    assert!(is_replay(&verdict(&store, &claim("a")).await));
    for suffix in ["", "-wal", "-shm", "-commits"] {
        fs::remove_file(file(&folder, suffix)).unwrap();
    }
    let loss = is_refused(&store, "all deleted").await;
    assert_eq!(loss.cause, LossCause::Missing);
}

#[tokio::test]
async fn a_loss_refuses_until_everything_that_was_lost_would_have_expired() {
    let folder = prepared_folder(false).await;
    fs::remove_file(file(&folder, "")).unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_800_000_000_000)));
    let store = SqliteStore::open(SqliteOptions { clock: clock.clone(), ..options(&folder) }).unwrap();
    is_reported_and_refused(&store, "before").await;
    let keep = claim("a").rules.keep;
    clock.advance(keep.done.max(keep.failed).max(keep.open));
    take(&store, "a").await;
    assert!(record_loss(&store).await.unwrap().is_some(), "it is told until somebody accepts it");
}

#[tokio::test]
async fn the_report_only_policy_refuses_no_calls() {
    let folder = prepared_folder(false).await;
    fs::remove_file(file(&folder, "")).unwrap();
    let reopened_store = || {
        SqliteStore::open(SqliteOptions { on_loss: CommitLossPolicy::ReportOnly, ..options(&folder) })
            .unwrap()
    };
    let store = reopened_store();
    assert_eq!(store.detected_loss().map(|loss| loss.cause), Some(LossCause::Missing), "it is told once");
    take(&store, "a").await;
    assert_eq!(record_loss(&store).await.unwrap(), None);
    drop(store);
    assert_eq!(reopened_store().detected_loss(), None);
}

/// Without the note a loss would not be detected, so a lost note is reported like one. The remaining records are
/// still used.
#[tokio::test]
async fn a_lost_or_damaged_note_is_reported_and_recreated() {
    type NoteDamage = fn(&Path);
    let damages: [(&str, NoteDamage); 4] = [
        ("deleted", |note| fs::remove_file(note).unwrap()),
        ("emptied", |note| cut(note, 0)),
        ("garbage", garbage),
        ("a flipped bit", |note| flip(note, 20)),
    ];
    for (killed, (case, damage)) in
        [false, true].into_iter().flat_map(|killed| damages.map(|one| (killed, one)))
    {
        let folder = prepared_folder(killed).await;
        damage(&file(&folder, "-commits"));
        let store = open(&folder);
        let loss = is_reported_and_refused(&store, case).await;
        assert_eq!((loss.cause, loss.commits), (LossCause::NoteUnusable, None), "{case}");
        assert!(loss.to_string().contains("may be lost"), "nobody knows: {loss}");
        assert!(is_replay(&verdict(&store, &claim("a")).await), "{case}");
        accept_loss(&store).await.unwrap().unwrap();
        run(&store, "later").await;
        close(store, &folder);
        assert_eq!(open(&folder).detected_loss(), None, "{case}");
        fs::remove_file(file(&folder, "")).unwrap();
        assert!(open(&folder).detected_loss().is_some(), "{case}: the new note does its work");
    }
}

#[tokio::test]
async fn a_damaged_note_beside_a_missing_file_is_reported() {
    let folder = prepared_folder(false).await;
    fs::remove_file(file(&folder, "")).unwrap();
    flip(&file(&folder, "-commits"), 20);
    let loss = is_reported_and_refused(&open(&folder), "damaged").await;
    assert_eq!((loss.cause, loss.commits), (LossCause::Missing, None));
}

/// The WAL of a deleted file is evidence that there was a file.
#[tokio::test]
async fn a_wal_without_a_file_and_a_note_is_reported() {
    let folder = prepared_folder(true).await;
    cut(&file(&folder, ""), 0);
    fs::remove_file(file(&folder, "-commits")).unwrap();
    assert!(SqliteStore::held_records(&folder.state()));
    let loss = is_reported_and_refused(&open(&folder), "only a log").await;
    assert_eq!((loss.cause, loss.commits, loss.set_aside.len()), (LossCause::Unusable, None, 1));
}

/// A file of an older version has no note, and neither has one without commits.
#[tokio::test]
async fn a_file_without_a_note_gets_one_and_no_loss_is_reported() {
    let folder = prepared_folder(false).await;
    let older = folder.bare();
    older
        .execute_batch(
            "DELETE FROM meta WHERE name IN ('commits', 'committed'); PRAGMA user_version = 2;
             PRAGMA wal_checkpoint(TRUNCATE)",
        )
        .unwrap();
    older.close().unwrap();
    fs::remove_file(file(&folder, "-commits")).unwrap();
    let store = open(&folder);
    assert_eq!(store.detected_loss(), None, "so it is at the first start after an update");
    assert!(is_replay(&verdict(&store, &claim("a")).await));
    drop(store);
    assert_eq!(noted(&folder).boot, BootId::of(&options(&folder).process.boot));
    // A process that dies between the migration and the note causes no report of a loss.
    fs::remove_file(file(&folder, "-commits")).unwrap();
    assert_eq!(open(&folder).detected_loss(), None);
    fs::remove_file(file(&folder, "")).unwrap();
    assert!(open(&folder).detected_loss().is_some());

    let fresh = SqliteTestFolder::new();
    drop(fresh.open());
    for suffix in ["-commits", ""] {
        fs::remove_file(file(&fresh, suffix)).unwrap();
        assert_eq!(open(&fresh).detected_loss(), None, "nothing was committed");
    }
}

/// SQLite keeps its WAL beside the target of a link.
#[cfg(unix)]
#[tokio::test]
async fn a_file_behind_a_link_has_one_note_for_every_path() {
    let folder = prepared_folder(true).await;
    let links = SqliteTestFolder::new();
    let link = links.state();
    std::os::unix::fs::symlink(folder.state(), &link).unwrap();
    let options = || {
        let mut options = patient(&link);
        options.process.boot = "the next boot".into();
        options
    };
    assert_eq!(SqliteStore::open(options()).unwrap().detected_loss(), None, "its log is not gone");
    assert_eq!(links.names(), ["state.db"]);
    run(&open(&folder), "later").await;
    assert_eq!(SqliteStore::open(options()).unwrap().detected_loss(), None);
    assert_eq!(open(&folder).detected_loss(), None);
}

/// The number of the last commit is recorded before a claim returns. So no attempt can start whose claim could be
/// lost undetected.
#[tokio::test]
async fn a_commit_is_noted_before_it_is_acknowledged() {
    let folder = SqliteTestFolder::new();
    let store = folder.open();
    for number in 1..=5 {
        take(&store, &format!("call {number}")).await;
        assert_eq!(noted(&folder).last.number, number);
    }
}
