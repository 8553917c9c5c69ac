//! The background tasks of an engine that belong to no single component.

use std::sync::Arc;
use std::time::Duration;

use steadfast_store::StoreEvent;
use tokio::sync::broadcast::error::RecvError;

use crate::drive::services::CallServices;

/// Interval of the sweeps, and the shorter one after a sweep that left work.
const SWEEP: Duration = Duration::from_secs(30);
const SWEEP_MORE: Duration = Duration::from_millis(100);
/// Interval of the search of open records for calls whose process has ended.
const JUDGE_EVERY: Duration = Duration::from_secs(5 * 60);
/// The interval at which an unavailable store is probed, so that its recovery is noticed.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// Removes expired records from the stores, counts the pending approvals, and finds calls whose process is gone, for as
/// long as the engine lives.
pub(super) async fn sweep(calls: Arc<CallServices>, judges: bool) {
    let mut pause = SWEEP;
    let mut judge_at = calls.clock.now();
    loop {
        if judges && judge_at <= calls.clock.now() {
            judge_at = calls.clock.now() + JUDGE_EVERY;
            // A shutdown waits for it: recording an unknown outcome includes the notification of operators.
            let judging = calls.clone();
            let judged =
                calls.state.background_tasks.spawn(async move { judging.admin.judge_open_records().await });
            _ = judged.await;
        }
        tokio::time::sleep(pause).await;
        pause = SWEEP;
        for store in [&calls.store, &calls.local] {
            match store.sweep().await {
                Ok(swept) if swept.more => pause = SWEEP_MORE,
                Ok(_) => {}
                Err(error) => calls.telemetry.store_failed(store.kind(), &error),
            }
        }
        calls.approvals.recount_waiting();
    }
}

/// Handles events of the store, for as long as the engine lives.
pub(super) async fn listen_to_store(calls: Arc<CallServices>) {
    let mut store_events = calls.store.events();
    let mut is_lost = false;
    loop {
        let received = tokio::select! {
            received = store_events.recv() => received,
            // If no other process writes, only a probe shows that the store accepts writes again.
            () = tokio::time::sleep(PROBE_EVERY), if is_lost => {
                _ = steadfast_store::probe(&*calls.store).await;
                continue;
            }
        };
        match received {
            Ok(event) => {
                match &event {
                    StoreEvent::Unavailable(_) => is_lost = true,
                    StoreEvent::Available => is_lost = false,
                    StoreEvent::DocumentChanged(_) | StoreEvent::Emptied => {}
                }
                calls.telemetry.store_event(calls.store.kind(), &event);
                match event {
                    StoreEvent::DocumentChanged(name) => calls.persister.reload(&name).await,
                    StoreEvent::Available => {
                        calls.retries.make_due();
                        calls.persister.load().await;
                    }
                    StoreEvent::Emptied => calls.persister.mark_everything(),
                    StoreEvent::Unavailable(_) => {}
                }
            }
            Err(RecvError::Lagged(_)) => calls.persister.load().await,
            Err(RecvError::Closed) => return,
        }
    }
}
