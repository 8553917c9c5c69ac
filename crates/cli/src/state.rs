//! Shared setup of the commands for operators.

use steadfast::admin::{OperatorIdentity, OperatorSurface};
use tokio::runtime::{Builder, Runtime};

use crate::failure::CommandFailure;

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
