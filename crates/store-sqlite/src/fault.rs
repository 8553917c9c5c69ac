//! What can go wrong with the file while we work, and what callers are told about it.

use rusqlite::ErrorCode;
use steadfast_core::key::Key;
use steadfast_store::{StoreError, Trouble, Unreadable};

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// SQLite said no.
    Sql(rusqlite::Error),
    /// A record is there and cannot be read.
    Record(Key, Unreadable),
    /// Everything else, ready to be told.
    Told(Trouble, String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Fault {
    /// Whether somebody else holds the file, which passes.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Self::Sql(error) => is_busy(error),
            Self::Record(..) | Self::Told(..) => false,
        }
    }

    /// Whether it concerns one operation, and the transaction around it is as good as before.
    pub(crate) fn is_about_one_record(&self) -> bool {
        match self {
            Self::Record(..) | Self::Told(..) => true,
            Self::Sql(_) => false,
        }
    }

    /// Whether the connection should be made anew before the next try.
    pub(crate) fn breaks_connection(&self) -> bool {
        match self {
            Self::Record(..) | Self::Told(..) => false,
            Self::Sql(error) => trouble(error) != Trouble::Full && !is_busy(error),
        }
    }

    pub(crate) fn trouble(&self) -> Trouble {
        match self {
            Self::Sql(error) => trouble(error),
            Self::Record(..) => Trouble::Unreadable,
            Self::Told(trouble, _) => *trouble,
        }
    }

    /// For a caller whose operation certainly did not happen.
    pub(crate) fn not_done(&self) -> StoreError {
        StoreError::not_done(self.trouble(), self.message())
    }

    /// For a caller whose operation may have happened.
    pub(crate) fn unanswered(&self) -> StoreError {
        StoreError::unanswered(self.trouble(), self.message())
    }

    fn message(&self) -> String {
        match self {
            Self::Sql(error) => sql_message(error),
            Self::Record(key, why) => format!("record {}: {why}", key.fingerprint()),
            Self::Told(_, message) => message.clone(),
        }
    }
}

fn sql_message(error: &rusqlite::Error) -> String {
    let (what, advice) = match trouble(error) {
        Trouble::Full => ("cannot grow", "make room on its disk"),
        Trouble::Refused => ("cannot be written", "check that its folder and the file belong to this user"),
        Trouble::Unreadable => ("is damaged", "start again with a copy of it, or let it be set aside"),
        Trouble::Unreachable | Trouble::Closed | _ if is_busy(error) => {
            ("is held by another process for too long", "look for one that hangs")
        }
        Trouble::Unreachable | Trouble::Closed | _ => ("does not answer", "look at its disk"),
    };
    format!("the state file {what}: {error}; {advice}")
}

pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn trouble(error: &rusqlite::Error) -> Trouble {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::TooBig) => Trouble::Full,
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied
            | ErrorCode::CannotOpen,
        ) => Trouble::Refused,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged) => {
            Trouble::Unreadable
        }
        Some(_) => Trouble::Unreachable,
        // A column that does not hold what we wrote there, or a table that is not ours.
        None => Trouble::Unreadable,
    }
}
