//! The schema of the file, and the migrations from older versions.
//!
//! Only the columns that SQL needs are unencrypted: keys (fingerprints of fingerprints), the columns that records are
//! selected by, and expiry times. Everything else of a record is in its body, as the codec encoded it.
//!
//! Records are stored in the order in which they were first written, and found through an index of their keys. So the
//! records of one batch share pages, although their keys are random. A pointer leads from a computed key to the
//! newest record with equal arguments. It never outlives that record.
//!
//! Callers wait for claims and saves, so these write as few pages as possible: beside the record itself, a claim
//! writes the index of keys, and a save writes the index of lifetimes, which is for finished records only. The number
//! of records needs no counting and no counter: no id is used twice, so it is the last id minus the number of removed
//! records.
//!
//! Each synced commit has a number, `commits`, and a time, `committed`. The note beside the file has them too. They
//! are used to detect a loss of commits.

use rusqlite::Connection;

/// Written into the header of the file to identify it: `STDF`.
pub(crate) const APPLICATION: i32 = 0x5354_4446;

/// The version that this program writes.
pub(crate) const VERSION: usize = STEPS.len();

/// Step n migrates version n to version n + 1. A released step never changes.
const STEPS: [&str; 3] = [VERSION_1, VERSION_2, VERSION_3];

const VERSION_1: &str = "
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO meta VALUES ('marker', random()), ('document', 0), ('records', 0);

    CREATE TABLE record (
        id INTEGER PRIMARY KEY,
        key BLOB NOT NULL UNIQUE,
        entry BLOB,
        open INTEGER NOT NULL,
        expires INTEGER,
        version INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        tool TEXT NOT NULL,
        session TEXT,
        tenant TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX record_life ON record (open, expires);

    CREATE TABLE pointer (
        entry BLOB PRIMARY KEY,
        key BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE document (
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        version INTEGER NOT NULL,
        expires INTEGER,
        writer INTEGER NOT NULL,
        body TEXT,
        PRIMARY KEY (kind, id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX document_version ON document (version);
    CREATE INDEX document_life ON document (expires) WHERE expires IS NOT NULL;

    CREATE TABLE journal (
        name TEXT PRIMARY KEY,
        next INTEGER NOT NULL,
        most INTEGER NOT NULL,
        age INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE entry (
        journal TEXT NOT NULL,
        seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        subject TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (journal, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX entry_subject ON entry (journal, subject, seq);
";

const VERSION_2: &str = "
    DROP INDEX record_life;
    CREATE INDEX record_life ON record (expires) WHERE open = 0;

    DELETE FROM meta WHERE name = 'records';
    INSERT INTO meta SELECT 'removed', coalesce(max(id), 0) - count(*) FROM record;
    INSERT INTO meta VALUES ('last_removed', 0);
";

/// Commits are counted. The content of an older version counts as one commit, if it has any record.
const VERSION_3: &str = "
    INSERT INTO meta SELECT 'commits', EXISTS (SELECT 1 FROM record);
    INSERT INTO meta VALUES ('committed', 0);
";

/// Migrates a file of this version to the current one. Call it inside a transaction.
pub(crate) fn migrate(file: &Connection, from: usize) -> rusqlite::Result<()> {
    migrate_by(file, from, &STEPS)
}

fn migrate_by(file: &Connection, from: usize, steps: &[&str]) -> rusqlite::Result<()> {
    for step in steps.iter().skip(from) {
        file.execute_batch(step)?;
    }
    file.pragma_update(None, "application_id", APPLICATION)?;
    file.pragma_update(None, "user_version", i64::try_from(steps.len()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_an_older_version_takes_only_the_steps_that_it_lacks() {
        let file = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x); INSERT INTO a VALUES (1)", "ALTER TABLE a ADD COLUMN y"];
        migrate_by(&file, 0, &steps[..1]).unwrap();
        migrate_by(&file, 1, &steps).unwrap();
        let values: (i64, Option<i64>) =
            file.query_row("SELECT x, y FROM a", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(values, (1, None));
        assert_eq!(file.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap(), 2);
    }
}
