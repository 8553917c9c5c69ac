//! What the commands work on that look after the state: the store of the configuration, whether a gateway runs or not.

use std::sync::Arc;

use steadfast::{Engine, Plan, Store};
use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;
use crate::sources::Chosen;

/// A place for one command to work in.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::World(format!("this machine gives no room to work in: {error}")))
}

/// The store of the configuration.
pub(crate) async fn store(chosen: &Chosen) -> Result<Arc<dyn Store>, Failure> {
    Ok(plan(chosen)?.open().await?)
}

/// An engine on the store of the configuration, which makes no calls.
pub(crate) async fn engine(chosen: &Chosen) -> Result<Engine, Failure> {
    Ok(plan(chosen)?.open_engine().await?)
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
