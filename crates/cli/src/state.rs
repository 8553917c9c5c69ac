//! What the commands work on that look after the state: the store of the configuration, whether a gateway runs or not.

use steadfast::{By, Engine, Plan, Surface};
use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;
use crate::sources::Chosen;

/// A place for one command to work in.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::World(format!("this machine gives no room to work in: {error}")))
}

/// An engine on the store of the configuration, which makes no calls.
pub(crate) async fn engine(chosen: &Chosen) -> Result<Engine, Failure> {
    Ok(plan(chosen)?.open_engine().await?)
}

/// Whoever runs this command, for the audit: the user as the machine names them.
pub(crate) fn by_operator() -> By {
    let name = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    By::new(name.as_deref().filter(|name| !name.is_empty()).unwrap_or("somebody"), Surface::Cli)
}

fn plan(chosen: &Chosen) -> Result<Plan, Failure> {
    let plan = Plan::of(&chosen.load()?)?;
    if !plan.is_shared() {
        return Err(Failure::Usage(
            "the configuration keeps state in the memory of the gateway, where nobody else can see it; set `store.kind` to \"sqlite\" or \"redis\""
                .to_owned(),
        ));
    }
    Ok(plan)
}
