//! The durable store: the cost of a step for one caller beside the disk's own sync, and the throughput of many callers
//! beside SQLite with one transaction for each.
//!
//! The bare sync overwrites a page of an existing file, which is the cheapest durable write of a disk. Bare SQLite has
//! one uncontended connection, the same settings, and tables with the columns that a record of Steadfast needs. Each step
//! reads the record and writes in a transaction of its own.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use steadfast_core::dedupe::DedupeRecord;
use steadfast_core::id::Digest;
use steadfast_store_sqlite::{SqliteOptions, SqliteStore};

use crate::engine::{MeasurementError, runtime};
use crate::measure::contest_in;
use crate::report::{BenchBudget, BenchReport};
use crate::stores::{ClaimAndSave, StoreSteps, next_number, output, race};

const CLAIM: &str = "one caller, claim";
const SAVE: &str = "one caller, save";
const CALLERS: usize = 64;

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    let shared = format!("{CALLERS} callers, claim and save");
    let selected = [CLAIM, SAVE, &shared].map(|title| report.is_selected(title));
    if !selected.contains(&true) {
        return Ok(());
    }
    let folder = BenchFolder::make()?;
    let runtime = runtime()?;
    let store = SqliteStore::open(SqliteOptions::at(folder.0.join("state.db")))
        .map_err(|error| MeasurementError::because(error.to_string()))?;
    let steadfast = Arc::new(StoreSteps::of(store)?);

    let [claim_selected, save_selected, _] = selected;
    if claim_selected || save_selected {
        let mut disk = BareDisk::on(&folder.0)?;
        let claimed: RefCell<Vec<Arc<DedupeRecord>>> = RefCell::default();
        let claim = |count: u32| {
            let started = Instant::now();
            let made: Result<Vec<_>, _> = (0..count).map(|_| runtime.block_on(steadfast.claim())).collect();
            let took = started.elapsed();
            made.map(|made| claimed.borrow_mut().extend(made)).map(|()| took)
        };
        let save = |count: u32| {
            while claimed.borrow().len() < count as usize {
                claim(count)?;
            }
            let saved: Vec<_> = claimed.borrow_mut().drain(..count as usize).collect();
            let started = Instant::now();
            for claimed in saved {
                runtime.block_on(steadfast.save(claimed))?;
            }
            Ok::<_, MeasurementError>(started.elapsed())
        };
        const SYNC: &str = "write of a page and fdatasync";
        let budget = [(SYNC, BenchBudget::AtMost(2.5))];
        let rounds = 101;
        let mut sync = |count| disk.sync(count).unwrap_or(Duration::ZERO);
        let standing = contest_in(
            rounds,
            8,
            &mut [Box::new(|count| claim(count).unwrap_or(Duration::MAX)), Box::new(&mut sync)],
        );
        report.add_peers(CLAIM, &standing, &budget);
        let standing = contest_in(
            rounds,
            8,
            &mut [Box::new(|count| save(count).unwrap_or(Duration::MAX)), Box::new(&mut sync)],
        );
        report.add_peers(SAVE, &standing, &budget);
    }
    if report.is_selected(&shared) {
        let bare = Arc::new(BareSqlite::open(&folder.0)?);
        let name = "SQLite, one caller that never waits, a transaction for each";
        race(report, &runtime, shared, (CALLERS, &steadfast), (1, &bare, name), BenchBudget::AtLeast(1.4))?;
    }
    Ok(())
}

/// A folder on the disk of the program itself, because the temporary folder may be in memory.
struct BenchFolder(PathBuf);

impl BenchFolder {
    fn make() -> Result<Self, MeasurementError> {
        let program = std::env::current_exe()?;
        let name = format!("bench-data-{}", std::process::id());
        let folder = program.parent().unwrap_or(Path::new(".")).join(name);
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for BenchFolder {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the folder for builds.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The disk alone.
struct BareDisk {
    file: File,
    page: u64,
}

impl BareDisk {
    const PAGE: usize = 4096;
    const PAGES: u64 = 1024;

    fn on(folder: &Path) -> Result<Self, MeasurementError> {
        let mut file = File::create(folder.join("pages"))?;
        for _ in 0..Self::PAGES {
            file.write_all(&[1; Self::PAGE])?;
        }
        file.sync_all()?;
        Ok(Self { file, page: 0 })
    }

    fn sync(&mut self, count: u32) -> Result<Duration, MeasurementError> {
        let started = Instant::now();
        for _ in 0..count {
            self.page = (self.page + 1) % Self::PAGES;
            self.file.seek(SeekFrom::Start(self.page * Self::PAGE as u64))?;
            self.file.write_all(&[2; Self::PAGE])?;
            self.file.sync_data()?;
        }
        Ok(started.elapsed())
    }
}

/// SQLite without Steadfast.
struct BareSqlite(Mutex<Connection>);

impl BareSqlite {
    fn open(folder: &Path) -> Result<Self, MeasurementError> {
        let file = Connection::open(folder.join("bare.db")).map_err(sql)?;
        file.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(sql)?;
        file.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
        file.execute_batch(
            "CREATE TABLE record (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, open INTEGER NOT NULL,
                expires INTEGER, version INTEGER NOT NULL, namespace TEXT NOT NULL, tool TEXT NOT NULL,
                session TEXT, body BLOB NOT NULL) STRICT;
            CREATE INDEX record_life ON record (open, expires);",
        )
        .map_err(sql)?;
        Ok(Self(Mutex::new(file)))
    }

    fn step(&self, key: &[u8], step: SqliteWrite) -> rusqlite::Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = file.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: Option<i64> = transaction
            .prepare_cached("SELECT version FROM record WHERE key = ?")?
            .query_row([key], |row| row.get(0))
            .optional()?;
        match (step, found) {
            (SqliteWrite::Claim, None) => {
                transaction
                    .prepare_cached("INSERT INTO record VALUES (NULL, ?, 1, NULL, 1, ?, ?, ?, ?)")?
                    .execute(params![
                        key,
                        "accounts",
                        "update_entries",
                        "session-0123456789abcdef",
                        INFLIGHT
                    ])?;
            }
            (SqliteWrite::Save, Some(version)) => {
                let body = [INFLIGHT, output().content.as_str().as_bytes()].concat();
                transaction
                    .prepare_cached(
                        "UPDATE record SET open = 0, expires = ?, version = ?, body = ? WHERE key = ?",
                    )?
                    .execute(params![1_800_000_000_000_i64, version + 1, body, key])?;
            }
            (SqliteWrite::Claim, Some(_)) | (SqliteWrite::Save, None) => {
                return Err(rusqlite::Error::QueryReturnedNoRows);
            }
        }
        transaction.commit()
    }
}

#[derive(Clone, Copy)]
enum SqliteWrite {
    Claim,
    Save,
}

/// About as many bytes as a record of Steadfast without an answer.
const INFLIGHT: &[u8] = &[b'x'; 400];

impl ClaimAndSave for BareSqlite {
    async fn pair(&self) -> Result<(), MeasurementError> {
        let key = *Digest::of(&next_number().to_be_bytes()).as_bytes();
        // On this thread: a single caller blocks no other one, and a thread of its own would only cost time.
        self.step(&key, SqliteWrite::Claim).and_then(|()| self.step(&key, SqliteWrite::Save)).map_err(sql)
    }
}

fn sql(error: rusqlite::Error) -> MeasurementError {
    MeasurementError::because(error.to_string())
}
