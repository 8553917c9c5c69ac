//! The steps of one call: performs what the core's call machine orders.
//!
//! The machine decides. This file acts, one step at a time, and reports the result to the machine. Store operations are
//! awaited to their end before any other event is handled, so that the machine never gets the result of a step that it
//! has left. During longer activities (an attempt, a wait, a pending approval) the driver also handles the caller's
//! signals, the machine's timer and the renewal of the lease.

use std::future::Future;
use std::pin::Pin;

use steadfast_core::Timestamp;
use steadfast_core::approval::SpendVerdict;
use steadfast_core::call::{
    BreakerScope, CallEvent, CallResult, DeferredWrite, NextStep, UpstreamSignal, WakeReason,
};
use steadfast_core::dedupe::{Claim, ClaimVerdict, ReplayReason};
use steadfast_core::key::RecordKey;
use steadfast_replay::{RecordedEvent, RecordedEventKind};
use steadfast_store::StoreError;
use tokio::sync::watch;

use super::approval::{DecisionSource, approval_subject};
use super::deferred::StoreOperation;
use super::driver::{CallDriver, DriverActivity, LeaseRenewal};
use super::lease::answered;
use crate::keys::{DependencyKey, SessionId};
use crate::shared::documents::DirtyDocument;
use crate::shared::followers;

impl CallDriver {
    /// Claims the key in the store. If the store replays a response that is not known to be delivered, and the delivery
    /// is confirmed meanwhile, it claims once more: then this is a new call.
    async fn claim(&mut self, claim: &Claim) -> Result<ClaimVerdict, StoreError> {
        let session = SessionId::of(self.call.request());
        let known = self.calls.known_to(claim, &session, self.received);
        let verdict = self.store.claim(claim, &known).await?;
        let ClaimVerdict::Replay(replay) = &verdict else { return Ok(verdict) };
        // The response may have been handed over during the store operation.
        let known = self.calls.known_to(claim, &session, self.received);
        let is_in_doubt =
            replay.reason == ReplayReason::Undelivered && !known.overlapped.contains(&replay.receipt.owner);
        if is_in_doubt && self.calls.deliveries.arrives(&replay.receipt).await {
            let known = self.calls.known_to(claim, &session, self.received);
            return self.store.claim(claim, &known).await;
        }
        Ok(verdict)
    }

    /// Performs the steps until the call ends, and returns its result. It borrows the driver instead of taking it: a
    /// call that was moved into its own future would be stored in it twice.
    pub(super) async fn run(&mut self, first: NextStep) -> Box<CallResult> {
        let mut step = first;
        loop {
            self.tell();
            let event = match step {
                NextStep::Claim(claim) => match self.claim(&claim).await {
                    Ok(verdict @ ClaimVerdict::Acquired(_)) => self.unless_left(CallEvent::Claimed(verdict)),
                    Ok(verdict) => CallEvent::Claimed(verdict),
                    Err(error) => self.store_failed(&error),
                },
                NextStep::Follow(key) => {
                    self.activity = DriverActivity::Following { key, changed: self.follow(key) };
                    self.wait().await
                }
                NextStep::AwaitEnd(key) => {
                    let run = self.calls.runs.follow(key);
                    let changed: Pin<Box<dyn Future<Output = WakeReason> + Send>> = match run {
                        Some(run) => Box::pin(over(run, None)),
                        // The machine's timer wakes the call.
                        None => Box::pin(std::future::pending()),
                    };
                    self.activity = DriverActivity::Following { key, changed };
                    self.wait().await
                }
                NextStep::Ask(ask) => {
                    self.ask(ask).await;
                    self.wait().await
                }
                NextStep::Spend { grant, owner } => {
                    let spender = owner.digest();
                    let now = self.calls.clock.now();
                    let subject = approval_subject(&self.call, DecisionSource::Anyone);
                    let spent = self.calls.approvals.change(&self.call.request().tenant, |approvals| {
                        if approvals.is_for(grant, subject) {
                            approvals.spend(grant, spender, now)
                        } else {
                            SpendVerdict::Gone
                        }
                    });
                    match spent.await {
                        Ok(spend) => CallEvent::Spent(spend),
                        Err(error) => self.store_failed(&error),
                    }
                }
                NextStep::Start { key, owner } => {
                    self.finish_renewal().await;
                    match self.store.start(key, &owner).await {
                        Ok(verdict) => self.unless_left(CallEvent::Started(verdict)),
                        Err(error) => self.store_failed(&error),
                    }
                }
                NextStep::Probe(scope) => match self.share_probe(scope).await {
                    Ok(()) => CallEvent::Probed,
                    Err(error) => self.store_failed(&error),
                },
                NextStep::Renew => {
                    self.finish_renewal().await;
                    self.ask_renewal();
                    match answered(&mut self.renewal).await {
                        Ok(renewed) => self.renewed(renewed),
                        Err(error) => {
                            self.renewal = LeaseRenewal::None;
                            self.store_failed(&error)
                        }
                    }
                }
                NextStep::Run(run) => {
                    self.activity = self.start(&run);
                    self.wait().await
                }
                NextStep::Cut(cut) => self.cut(cut).await,
                NextStep::Wait | NextStep::Stay => self.wait().await,
                NextStep::Save(save) => {
                    self.finish_renewal().await;
                    match self.store.save(&save).await {
                        Ok(verdict) => CallEvent::Saved(verdict),
                        Err(error) => self.store_failed(&error),
                    }
                }
                NextStep::Release(release) => {
                    self.finish_renewal().await;
                    match self.store.release(&release).await {
                        Ok(()) => CallEvent::Released,
                        Err(error) => self.store_failed(&error),
                    }
                }
                NextStep::Answer { result, upstream } => {
                    let result = self.verified(result).await;
                    self.answer(*result);
                    match upstream {
                        UpstreamSignal::Cancel => self.cancel_attempt(),
                        UpstreamSignal::NoSignal => {}
                    }
                    self.wait().await
                }
                NextStep::CancelUpstream => {
                    self.cancel_attempt();
                    self.wait().await
                }
                NextStep::Finish { result, deferred } => {
                    self.unsaved = deferred.iter().find_map(|write| match write {
                        DeferredWrite::Save(save) => Some(save.claimed.owner.clone()),
                        DeferredWrite::Release(_)
                        | DeferredWrite::Park(_)
                        | DeferredWrite::GiveBack { .. } => None,
                    });
                    let operations = deferred.into_iter().map(|write| {
                        let now = self.calls.clock.now();
                        StoreOperation::of(write, &self.store, &self.call, &self.envelope, now)
                    });
                    let (first, later): (Vec<_>, Vec<_>) =
                        operations.partition(|retry| retry.operation().precedes_response());
                    self.calls.retries.keep(later.into_iter());
                    for retry in first {
                        self.calls.retries.try_now(retry).await;
                    }
                    let result = self.verified(result).await;
                    self.notify_of_end(&result).await;
                    return result;
                }
            };
            step = self.feed(event);
        }
    }

    /// Feeds an event to the machine and returns the next step.
    fn feed(&mut self, event: CallEvent) -> NextStep {
        let now = self.calls.clock.now();
        let kind = RecordedEventKind::of(&event);
        let after_ms = steadfast_core::millis(now.since(self.call.arrived()));
        let step = self.cells.with(|shared| {
            self.trail.add(RecordedEvent { order: self.calls.state.next_sequence(), after_ms, kind });
            self.call.handle_event(shared, now, event, &mut self.notices)
        });
        self.track_claim(now);
        self.track_end();
        step.unwrap_or_else(|misuse| {
            // A bug in this file: the call keeps waiting, and the log reports it.
            tracing::error!(event = "engine.misuse", %misuse);
            debug_assert!(false, "{misuse}");
            NextStep::Stay
        })
    }

    /// Registers the run and schedules the lease renewal when the call holds a claim for the first time, or a new one.
    fn track_claim(&mut self, now: Timestamp) {
        let record_key = self.call.record().map(|record| record.key);
        match (record_key, &self.entered) {
            (Some(key), Some((entered, _))) if key == *entered => {}
            (Some(key), _) => self.entered = Some((key, self.calls.runs.enter(key, &self.slot))),
            (None, _) => {}
        }
        match (record_key, &self.renewal) {
            (Some(_), LeaseRenewal::None) => self.renewal = LeaseRenewal::Due(now + self.lease() / 3),
            (None, LeaseRenewal::Due(_)) => self.renewal = LeaseRenewal::None,
            (Some(_), LeaseRenewal::Due(_) | LeaseRenewal::Asked(_))
            | (None, LeaseRenewal::None | LeaseRenewal::Asked(_)) => {}
        }
    }

    /// Starts to end the attempt if the machine waits for its end, and wakes followers when its outcome becomes
    /// unknown.
    fn track_end(&mut self) {
        if self.call.awaits_end() {
            let settling = self.call.policy().settling;
            self.ending.get_or_insert_with(|| self.tool.any_end(settling));
        } else {
            self.ending = None;
        }
        let was_settling = std::mem::replace(&mut self.is_settling, self.call.is_recorded_as_unknown());
        if self.is_settling
            && !was_settling
            && let Some((_, entered)) = &self.entered
        {
            entered.changed();
        }
    }

    /// Waits for the run of another call. A run of this process is followed without the store.
    fn follow(&self, key: RecordKey) -> Pin<Box<dyn Future<Output = WakeReason> + Send>> {
        match self.calls.runs.follow(key) {
            // Its outcome may have been recorded as unknown since the store operation.
            Some(run) => Box::pin(over(run, Some(0))),
            None => {
                let store = self.store.clone();
                Box::pin(async move {
                    store.settled(key).await;
                    WakeReason::Changed
                })
            }
        }
    }

    /// Writes the probe of a half-open circuit breaker to the store before it starts. If another process has a probe,
    /// the write changes the breaker here.
    fn share_probe(
        &self,
        scope: BreakerScope,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let (calls, request) = (self.calls.clone(), self.call.request());
        let breaker =
            DirtyDocument::breaker(scope, request, || DependencyKey::coarser(&self.envelope, request));
        async move {
            match breaker {
                Some(breaker) => calls.persister.write(&breaker).await,
                None => Ok(()),
            }
        }
    }
}

/// Waits until a run changes. `known_changes` is the number of changes that are known already.
async fn over(mut run: watch::Receiver<followers::RunState>, mut known_changes: Option<u32>) -> WakeReason {
    loop {
        match &*run.borrow_and_update() {
            followers::RunState::Open(changes) if known_changes.is_none_or(|known| known == *changes) => {
                known_changes = Some(*changes)
            }
            followers::RunState::Open(_) | followers::RunState::Over => return WakeReason::Changed,
            followers::RunState::Refused(failure) => return WakeReason::LeaderRefused(failure.clone()),
        }
        if run.changed().await.is_err() {
            return WakeReason::Changed;
        }
    }
}
