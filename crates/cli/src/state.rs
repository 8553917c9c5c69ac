//! What the commands work in that look after the state.

use steadfast::{By, Surface};
use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;

/// A place for one command to work in.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::World(format!("this machine gives no room to work in: {error}")))
}

/// Whoever runs this command, for the audit: the user as the machine names them.
pub(crate) fn by_operator() -> By {
    let name = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    By::new(name.as_deref().filter(|name| !name.is_empty()).unwrap_or("somebody"), Surface::Cli)
}
