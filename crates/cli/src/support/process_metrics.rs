//! Counts the server processes in each state, for the metrics.

use std::sync::Arc;

use steadfast::telemetry::Telemetry;
use steadfast_gateway::{Backend, ConfiguredServer};
use steadfast_process::{ServerStatus, State};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Returns the same server with its processes counted from their start on.
pub(crate) fn watched(server: ConfiguredServer, telemetry: &Arc<Telemetry>) -> ConfiguredServer {
    let (telemetry, name) = (telemetry.clone(), server.name.clone());
    server.map_start(|start| {
        Arc::new(move || {
            let backend = start();
            if let (Backend::Child(supervisor, _), Ok(runtime)) = (&backend, Handle::try_current()) {
                let (telemetry, name) = (telemetry.clone(), name.as_str().to_owned());
                runtime.spawn(follow(supervisor.status(), name, telemetry));
            }
            backend
        })
    })
}

async fn follow(mut status: watch::Receiver<ServerStatus>, server: String, telemetry: Arc<Telemetry>) {
    let (mut state, mut restarts) = (None, 0);
    loop {
        let (now, restart_count) = {
            let current = status.borrow_and_update();
            (word(&current.state), current.restarts)
        };
        telemetry.metrics().server_changed(&server, state, now, restart_count.saturating_sub(restarts));
        (state, restarts) = (now, restart_count);
        if status.changed().await.is_err() {
            telemetry.metrics().server_changed(&server, state, None, 0);
            return;
        }
    }
}

/// Returns the name of a state, or `None` after the process has ended.
fn word(state: &State) -> Option<&'static str> {
    match state {
        State::Idle => Some("idle"),
        State::Starting(_) => Some("starting"),
        State::Up(_) => Some("up"),
        State::Ending(_) => Some("ending"),
        State::BackingOff { .. } => Some("backing_off"),
        State::Down(_) => Some("down"),
        State::Closed => None,
    }
}

#[cfg(test)]
mod tests {
    use steadfast::Steadfast;
    use steadfast_core::Timestamp;

    use super::*;

    #[tokio::test]
    async fn a_server_is_counted_from_its_start_to_its_end() {
        let steadfast = Steadfast::builder().set("store.kind", "memory").build().await.unwrap();
        let telemetry = steadfast.telemetry();
        let server_status = |state, restarts| ServerStatus { state, restarts, last_end: None };
        let (status, receiver) = watch::channel(server_status(State::Idle, 0));
        let following = tokio::spawn(follow(receiver, "files".to_owned(), telemetry.clone()));
        let counted = async |line: &str| {
            while !telemetry.metrics().encode().contains(&format!("steadfast_server_{line}\n")) {
                tokio::task::yield_now().await;
            }
        };
        counted("processes{server=\"files\",state=\"idle\"} 1").await;
        counted("restarts_total{server=\"files\"} 0").await;
        let until = Timestamp::from_millis(1);
        status.send(server_status(State::BackingOff { until }, 2)).unwrap();
        counted("processes{server=\"files\",state=\"idle\"} 0").await;
        counted("processes{server=\"files\",state=\"backing_off\"} 1").await;
        counted("restarts_total{server=\"files\"} 2").await;
        drop(status);
        following.await.unwrap();
        counted("processes{server=\"files\",state=\"backing_off\"} 0").await;
    }
}
