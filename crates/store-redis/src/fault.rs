//! What an error of the server or the wire means to whoever asked: whether it may have been done, and what to do.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use steadfast_store::{StoreError, Trouble};

/// How far a command had got when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There was no connection to send it on.
    Connecting,
    /// It was given to a connection.
    Sent,
}

/// The error for the caller. `place` says where the server is, without user and password.
#[expect(clippy::wildcard_enum_match_arm, reason = "the enums of the client library grow")]
pub(crate) fn store_error(error: &RedisError, stage: Stage, place: &str) -> StoreError {
    let not_done = |trouble, message: String| StoreError::not_done(trouble, message);
    match error.kind() {
        ErrorKind::AuthenticationFailed => not_done(Trouble::Refused, wrong_password(place)),
        ErrorKind::Server(ServerErrorKind::NoPerm) => not_done(
            Trouble::Refused,
            format!(
                "redis at {place} does not let this user do that: {error}; give it the rights that the documentation lists"
            ),
        ),
        ErrorKind::Server(ServerErrorKind::ReadOnly) => not_done(
            Trouble::Unreachable,
            format!(
                "redis at {place} is a replica and takes no writes: connect to the primary, or let sentinel or cluster find it"
            ),
        ),
        ErrorKind::Server(_) | ErrorKind::Extension => said(error, place),
        ErrorKind::MasterNameNotFoundBySentinel => not_done(
            Trouble::Unreachable,
            format!(
                "no sentinel of {place} knows a primary of that name that takes writes: check the name, or wait for the failover"
            ),
        ),
        ErrorKind::ClusterConnectionNotFound => not_done(
            Trouble::Unreachable,
            format!(
                "no node of the cluster at {place} can be reached: {error}; check that it runs, the address, and TLS"
            ),
        ),
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList | ErrorKind::RESP3NotSupported => {
            not_done(Trouble::Refused, format!("the settings for redis at {place} cannot be used: {error}"))
        }
        _ => match stage {
            // A Cluster of which no node lets us in is told as one that cannot be reached, with the reason in the text.
            Stage::Connecting if error.to_string().contains("AuthenticationFailed") => {
                not_done(Trouble::Refused, wrong_password(place))
            }
            Stage::Connecting => not_done(
                Trouble::Unreachable,
                format!(
                    "redis at {place} cannot be reached: {error}; check that it runs, the address, and TLS"
                ),
            ),
            Stage::Sent => StoreError::unanswered(
                Trouble::Unreachable,
                format!("redis at {place} did not answer: {error}"),
            ),
        },
    }
}

/// Whether the server has shown that it cannot be used at the moment, whatever is asked.
#[expect(clippy::wildcard_enum_match_arm, reason = "the enums of the client library grow")]
pub(crate) fn is_outage(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io
        | ErrorKind::Parse
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::ClusterConnectionNotFound => true,
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown
        ),
        _ => false,
    }
}

/// Returns true if the server responds but refuses writes: it is a replica, out of memory, or cannot write to its disk.
pub(crate) fn refuses_writes(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "OOM" | "MISCONF" | "NOREPLICAS"))
}

/// Whether the connection that gave this error is of no use any more.
pub(crate) fn spoils_connection(error: &RedisError) -> bool {
    // A server that was made a replica keeps its connections; the primary is elsewhere.
    error.is_unrecoverable_error() || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly))
}

/// What the server answered instead of doing it.
fn said(error: &RedisError, place: &str) -> StoreError {
    let code = error.code().unwrap_or_default();
    let (trouble, advice) = match code {
        "NOAUTH" | "WRONGPASS" => return StoreError::not_done(Trouble::Refused, wrong_password(place)),
        "OOM" => (Trouble::Full, "it is out of memory: raise maxmemory, or let records live shorter"),
        "MISCONF" => (Trouble::Refused, "it cannot write to its disk and takes no writes: see its log"),
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "NOREPLICAS" => {
            (Trouble::Unreachable, "it does not serve at the moment; this heals by itself")
        }
        _ => (Trouble::Refused, "it did not understand; redis 6.2 or newer, or valkey, is needed"),
    };
    StoreError::not_done(trouble, format!("redis at {place} refused: {error}; {advice}"))
}

fn wrong_password(place: &str) -> String {
    format!(
        "redis at {place} refused the user or the password: set both in the url, redis://user:password@host, or leave the user out for the default one"
    )
}
