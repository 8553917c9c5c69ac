//! Faults of the open file, and the errors that callers get for them.

use std::path::Path;

use rusqlite::ErrorCode;
use steadfast_core::key::RecordKey;
use steadfast_store::{DecodeError, StoreError, StoreErrorKind};

/// The reason why a step failed.
#[derive(Debug)]
pub(crate) enum SqliteFault {
    /// An error of SQLite.
    Sql(rusqlite::Error),
    /// A record exists, but cannot be read.
    Record(RecordKey, DecodeError),
    /// Any other error, as the caller will get it.
    Other(StoreErrorKind, String),
}

impl From<rusqlite::Error> for SqliteFault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl SqliteFault {
    /// Returns true if another process holds the file, which is temporary.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Self::Sql(error) => is_busy(error),
            Self::Record(..) | Self::Other(..) => false,
        }
    }

    /// Returns true if the fault concerns one operation, and the transaction around it is still usable.
    pub(crate) fn is_about_one_record(&self) -> bool {
        match self {
            Self::Record(..) | Self::Other(..) => true,
            Self::Sql(_) => false,
        }
    }

    /// Returns true if the connection must be reopened before the next try.
    pub(crate) fn breaks_connection(&self) -> bool {
        match self {
            Self::Record(..) | Self::Other(..) => false,
            Self::Sql(error) => trouble(error) != StoreErrorKind::Full && !is_busy(error),
        }
    }

    pub(crate) fn trouble(&self) -> StoreErrorKind {
        match self {
            Self::Sql(error) => trouble(error),
            Self::Record(..) => StoreErrorKind::Unreadable,
            Self::Other(trouble, _) => *trouble,
        }
    }

    /// Returns the error for an operation in this file that certainly did not happen.
    pub(crate) fn not_done(&self, file: &Path) -> StoreError {
        StoreError::not_done(self.trouble(), self.message(file))
    }

    /// Returns the error for an operation in this file that may have happened.
    pub(crate) fn unanswered(&self, file: &Path) -> StoreError {
        StoreError::outcome_unknown(self.trouble(), self.message(file))
    }

    fn message(&self, file: &Path) -> String {
        match self {
            Self::Sql(error) => sql_message(error, file),
            Self::Record(key, error) => format!("record {}: {error}", key.fingerprint()),
            Self::Other(_, message) => message.clone(),
        }
    }
}

fn sql_message(error: &rusqlite::Error, file: &Path) -> String {
    let (problem, advice) = match trouble(error) {
        StoreErrorKind::Full => {
            let free = free_bytes(file).map(|free| format!(", {free} bytes free")).unwrap_or_default();
            return format!(
                "the state file {} cannot grow: no space left (ENOSPC{free}); make room on its disk",
                file.display()
            );
        }
        StoreErrorKind::Refused => (
            "cannot be written",
            "check the quota of its disk (EDQUOT), and that its folder and the file belong to this user",
        ),
        StoreErrorKind::Unreadable => ("is damaged", "restore a backup of it, or let it be set aside"),
        StoreErrorKind::Unreachable | StoreErrorKind::Closed | _ if is_busy(error) => {
            ("is held by another process for too long", "check for a process that hangs")
        }
        StoreErrorKind::Unreachable | StoreErrorKind::Closed | _ => ("does not respond", "check its disk"),
    };
    format!("the state file {} {problem}: {error}; {advice}", file.display())
}

/// Returns the bytes that an unprivileged user can still write to the file system of this file.
#[cfg(unix)]
pub(crate) fn free_bytes(file: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(file).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_file: &Path) -> Option<u64> {
    None
}

pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn trouble(error: &rusqlite::Error) -> StoreErrorKind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::TooBig) => StoreErrorKind::Full,
        // An exceeded quota appears as a failed write. Reads still work.
        Some(ErrorCode::SystemIoFailure) if is_write(error) => StoreErrorKind::Refused,
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied
            | ErrorCode::CannotOpen,
        ) => StoreErrorKind::Refused,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged) => {
            StoreErrorKind::Unreadable
        }
        Some(_) => StoreErrorKind::Unreachable,
        // A column with foreign content, or a foreign table.
        None => StoreErrorKind::Unreadable,
    }
}

/// Returns true if the operating system refused a write.
fn is_write(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(
        code,
        Some(
            rusqlite::ffi::SQLITE_IOERR_WRITE
                | rusqlite::ffi::SQLITE_IOERR_FSYNC
                | rusqlite::ffi::SQLITE_IOERR_TRUNCATE
                | rusqlite::ffi::SQLITE_IOERR_SHMSIZE
        )
    )
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn write_error(code: i32) -> StoreError {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        SqliteFault::from(error).not_done(Path::new("/state/state.db"))
    }

    /// SQLite has an error code for a full disk only. A write over a quota fails like a write to a broken or
    /// read-only disk.
    #[test]
    fn a_write_over_quota_is_refused_and_the_message_names_file_and_quota() {
        for code in [
            ffi::SQLITE_IOERR_WRITE,
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_IOERR_TRUNCATE,
            ffi::SQLITE_IOERR_SHMSIZE,
            ffi::SQLITE_READONLY,
        ] {
            let error = write_error(code);
            assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
            let message = error.to_string();
            for part in ["/state/state.db", "cannot be written", "quota", "EDQUOT"] {
                assert!(message.contains(part), "{part} in {message}");
            }
        }
        assert_eq!(write_error(ffi::SQLITE_FULL).kind(), StoreErrorKind::Full);
        assert_eq!(write_error(ffi::SQLITE_IOERR_READ).kind(), StoreErrorKind::Unreachable);
    }
}
