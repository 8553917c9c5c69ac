//! When we are asked to end.

use tokio_util::sync::CancellationToken;

/// Is cancelled when somebody wants this process to end: Ctrl-C, or the signal that service managers send.
pub(crate) fn asked() -> CancellationToken {
    let token = CancellationToken::new();
    let asked = token.clone();
    tokio::spawn(async move {
        signal().await;
        asked.cancel();
    });
    token
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without a handler the system's own way of ending us is left.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(not(unix))]
async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
