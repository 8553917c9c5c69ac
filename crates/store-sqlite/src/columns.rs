//! Values of single columns: numbers without a sign, and the last commit.

use rusqlite::Connection;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{Commit, StoreMarker};

/// SQLite has no unsigned numbers. These stay far below the difference, except for "for ever".
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Returns the last commit in the file. Call it inside a transaction.
pub(crate) fn last_commit(sql: &Connection) -> rusqlite::Result<Commit> {
    let mut find = sql.prepare_cached(
        "SELECT (SELECT value FROM meta WHERE name = 'marker'), (SELECT value FROM meta WHERE name = 'commits'),
                (SELECT value FROM meta WHERE name = 'committed')",
    )?;
    find.query_row([], |row| {
        Ok(Commit {
            marker: StoreMarker(row.get::<_, i64>(0)?.cast_unsigned()),
            number: unsigned(row.get(1)?),
            at: Timestamp::from_millis(unsigned(row.get(2)?)),
        })
    })
}
