//! Shared setup of the commands: the runtime, the operator and the time.

use std::time::{SystemTime, UNIX_EPOCH};

use steadfast::Timestamp;
use steadfast::admin::{OperatorIdentity, OperatorSurface};
use steadfast_core::millis;
use tokio::runtime::{Builder, Runtime};

use crate::support::failure::CommandFailure;

/// Returns a runtime for one command.
pub(crate) fn runtime() -> Result<Runtime, CommandFailure> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|error| CommandFailure::Environment(format!("the runtime cannot be started: {error}")))
}

/// Returns the operator for the audit log: the user name on this machine.
pub(crate) fn by_operator() -> OperatorIdentity {
    let name = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    OperatorIdentity::new(
        name.as_deref().filter(|name| !name.is_empty()).unwrap_or("unknown"),
        OperatorSurface::Cli,
    )
}

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_millis(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}
