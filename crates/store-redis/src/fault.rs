//! Conversion of errors of the server or the network: if the command may have run, and how to fix the cause.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use steadfast_store::{StoreError, StoreErrorKind};

/// The progress of a command when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandStage {
    /// There was no connection to send it on.
    Connecting,
    /// It was handed to a connection.
    Sent,
}

/// Returns the error for the caller. `place` is the address of the server, without user and password.
#[expect(clippy::wildcard_enum_match_arm, reason = "the enums of the client library grow")]
pub(crate) fn store_error(error: &RedisError, stage: CommandStage, place: &str) -> StoreError {
    let not_done = |trouble, message: String| StoreError::not_done(trouble, message);
    match error.kind() {
        ErrorKind::AuthenticationFailed => not_done(StoreErrorKind::Refused, wrong_password(place)),
        ErrorKind::Server(ServerErrorKind::NoPerm) => not_done(
            StoreErrorKind::Refused,
            format!(
                "redis at {place} denied this user a permission: {error}; grant the permissions that the documentation lists"
            ),
        ),
        ErrorKind::Server(ServerErrorKind::ReadOnly) => not_done(
            StoreErrorKind::Unreachable,
            format!(
                "redis at {place} is a replica and takes no writes: connect to the primary, or let sentinel or cluster find it"
            ),
        ),
        ErrorKind::Server(_) | ErrorKind::Extension => server_error(error, place),
        ErrorKind::MasterNameNotFoundBySentinel => not_done(
            StoreErrorKind::Unreachable,
            format!(
                "no sentinel of {place} knows a primary of that name that takes writes: check the name, or wait for the failover"
            ),
        ),
        ErrorKind::ClusterConnectionNotFound => not_done(
            StoreErrorKind::Unreachable,
            format!(
                "no node of the cluster at {place} can be reached: {error}; check that it runs, the address, and TLS"
            ),
        ),
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList | ErrorKind::RESP3NotSupported => {
            not_done(
                StoreErrorKind::Refused,
                format!("the settings for redis at {place} cannot be used: {error}"),
            )
        }
        _ => match stage {
            // A Cluster in which every node refuses the login is reported as unreachable, with the reason in the
            // text.
            CommandStage::Connecting if error.to_string().contains("AuthenticationFailed") => {
                not_done(StoreErrorKind::Refused, wrong_password(place))
            }
            CommandStage::Connecting => not_done(
                StoreErrorKind::Unreachable,
                format!(
                    "redis at {place} cannot be reached: {error}; check that it runs, the address, and TLS"
                ),
            ),
            CommandStage::Sent => StoreError::outcome_unknown(
                StoreErrorKind::Unreachable,
                format!("redis at {place} did not respond: {error}"),
            ),
        },
    }
}

/// Returns true if the error shows that the server cannot be used at the moment, for any command.
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

/// Returns true if the connection that returned this error must be replaced.
pub(crate) fn breaks_connection(error: &RedisError) -> bool {
    // A server that became a replica keeps its connections, but the primary is elsewhere.
    error.is_unrecoverable_error() || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly))
}

/// Returns the error for an error reply of the server.
fn server_error(error: &RedisError, place: &str) -> StoreError {
    let code = error.code().unwrap_or_default();
    let (trouble, advice) = match code {
        "NOAUTH" | "WRONGPASS" => {
            return StoreError::not_done(StoreErrorKind::Refused, wrong_password(place));
        }
        "OOM" => (
            StoreErrorKind::Full,
            "it is out of memory: raise maxmemory, or shorten the lifetimes of records",
        ),
        "MISCONF" => {
            (StoreErrorKind::Refused, "it cannot write to its disk and takes no writes: see its log")
        }
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "NOREPLICAS" => {
            (StoreErrorKind::Unreachable, "it is temporarily unavailable and recovers without action")
        }
        _ => {
            (StoreErrorKind::Refused, "it does not support this; redis 6.2 or newer, or valkey, is required")
        }
    };
    StoreError::not_done(trouble, format!("redis at {place} refused: {error}; {advice}"))
}

fn wrong_password(place: &str) -> String {
    format!(
        "redis at {place} refused the user or the password: set both in the url, redis://user:password@host, or leave the user out for the default one"
    )
}
