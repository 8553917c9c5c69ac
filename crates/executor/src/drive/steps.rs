//! The driver of one call: performs the steps of the core's call machine.
//!
//! The machine decides. This file acts, one step at a time, and reports the result to the machine. Store operations are
//! awaited to their end before any other event is handled, so that the machine never gets the result of a step that it
//! has left. During longer activities (an attempt, a wait, a pending approval) the driver also handles the caller's
//! signals, the machine's timer and the renewal of the lease.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{
    self, ApprovalDecision, ApprovalSubject, Grantor, ParkedRequest, ParkedRequestId, SpendVerdict,
};
use steadfast_core::call::{
    ApprovalOutcome, ApprovalRequest, AttemptCommand, AttemptReport, BreakerScope, Call, CallEvent,
    CallNotice, CallResult, CutReason, DeferredWrite, NextStep, OtherWaiters, Provenance, UpstreamSignal,
    WakeReason,
};
use steadfast_core::classify::record::detect_severity;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::dedupe::{Claim, ClaimOwner, ClaimVerdict, RenewVerdict, ReplayReason};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Domain;
use steadfast_core::key::RecordKey;
use steadfast_core::policy::{EnforcementMode, ToolClass};
use steadfast_core::trust::TrustTarget;
use steadfast_replay::{EventTrail, RecordedEvent, RecordedEventKind};
use steadfast_store::{StateStore, StoreError};
use tokio::sync::watch;

use crate::call::registry::ToolRegistry;
use crate::call::signals::CallSignal;
use crate::call::tool::{
    Attempt, AttemptEndFuture, AttemptError, AttemptFuture, DynTool, ToolFault, ToolResult,
};
use crate::engine::api::{CallerSlot, EngineInner, coarser};
use crate::observe::audit::{OperatorIdentity, OperatorSurface};
use crate::observe::history::{FinishedCall, SurfaceFacts};
use crate::observe::listener::EngineListener;
use crate::shared::approvals::{ApprovalPrompter, ClientDecision, ClientDecisionFuture};
use crate::shared::cells::{CallMachines, SessionId};
use crate::shared::followers::{self, RunRegistration};
use crate::shared::persistence::DirtyDocument;
use crate::writes::deferred::StoreRetry;

/// Time that an attempt has to return a result after it was cancelled.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The driver of one call.
pub(crate) struct CallDriver {
    pub(crate) inner: Arc<EngineInner>,
    pub(crate) envelope: Arc<CallEnvelope>,
    pub(crate) call: Call,
    pub(crate) cells: CallMachines,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) tool: Arc<dyn DynTool>,
    pub(crate) desk: Arc<CallerSlot>,
    asker: Option<Arc<dyn ApprovalPrompter>>,
    /// The listener for this call alone.
    pub(crate) listener: Option<Arc<dyn EngineListener>>,
    pub(crate) notices: Vec<CallNotice>,
    /// All events that were fed to the machine, for a later replay.
    pub(crate) trail: EventTrail,
    pub(crate) surface: SurfaceFacts,
    going: DriverActivity,
    /// The future that ends an attempt with an unknown outcome, if its end is visible.
    ending: Option<AttemptEndFuture>,
    is_settling: bool,
    entered: Option<(RecordKey, RunRegistration)>,
    renewal: LeaseRenewal,
    /// Owner of the run, if its result could not be saved.
    unsaved: Option<ClaimOwner>,
    pub(crate) stopped: bool,
    /// Notice of an unknown outcome. Operators are notified if the outcome is still unknown at the end of the call.
    unnotified: Option<CallNotice>,
    /// Sequence number of the call's arrival.
    pub(crate) received: u64,
    /// Runs with an unknown outcome that this call verifies, if it is a read that succeeds.
    looks_into: Vec<ClaimOwner>,
    /// Registry with the tool that verifies if this call took effect. Used once.
    pub(crate) shelf: Option<Arc<dyn ToolRegistry>>,
}

/// The activity that the machine waits for.
enum DriverActivity {
    Nothing,
    Attempt { running: AttemptFuture, number: u32, started: Timestamp },
    Following { key: RecordKey, changed: Pin<Box<dyn Future<Output = WakeReason> + Send>> },
    Asking { id: ParkedRequestId, ask: Box<ApprovalRequest>, caller: Option<ClientDecisionFuture> },
}

/// State of the lease renewal.
enum LeaseRenewal {
    /// There is no lease to renew.
    None,
    /// The renewal is due at this time.
    Due(Timestamp),
    /// The renewal is in flight.
    Asked(Pin<Box<dyn Future<Output = Result<RenewalResult, StoreError>> + Send>>),
}

/// Result of a renewal.
struct RenewalResult {
    owner: ClaimOwner,
    sent: Timestamp,
    verdict: RenewVerdict,
}

impl CallDriver {
    #[expect(clippy::too_many_arguments, reason = "the parts of a call, named once")]
    pub(crate) fn new(
        inner: Arc<EngineInner>,
        envelope: Arc<CallEnvelope>,
        call: Call,
        cells: CallMachines,
        store: Arc<dyn StateStore>,
        tool: Arc<dyn DynTool>,
        desk: Arc<CallerSlot>,
        asker: Option<Arc<dyn ApprovalPrompter>>,
        notices: Vec<CallNotice>,
    ) -> Self {
        let (going, renewal) = (DriverActivity::Nothing, LeaseRenewal::None);
        Self {
            inner,
            envelope,
            call,
            cells,
            store,
            tool,
            desk,
            asker,
            listener: None,
            notices,
            trail: EventTrail::default(),
            surface: SurfaceFacts::default(),
            going,
            ending: None,
            is_settling: false,
            entered: None,
            renewal,
            unsaved: None,
            stopped: false,
            unnotified: None,
            received: 0,
            looks_into: Vec::new(),
            shelf: None,
        }
    }

    /// Notes a read-only call that can show if earlier calls of this session at the same server took effect.
    pub(crate) fn note_read(&mut self) {
        let (request, policy) = (self.call.request(), self.call.policy());
        if policy.class == ToolClass::ReadOnly {
            let session = SessionId::of(request);
            self.looks_into = self.inner.verifications.read_begins(&session, &request.tool.namespace);
        }
    }

    /// Claims the key in the store. If the store replays a response that is not known to be delivered, and the delivery
    /// is confirmed meanwhile, it claims once more: then this is a new call.
    async fn claim(&mut self, claim: &Claim) -> Result<ClaimVerdict, StoreError> {
        let session = SessionId::of(self.call.request());
        let known = self.inner.known_to(claim, &session, self.received);
        let verdict = self.store.claim(claim, &known).await?;
        let ClaimVerdict::Replay(replay) = &verdict else { return Ok(verdict) };
        // The response may have been handed over during the store operation.
        let known = self.inner.known_to(claim, &session, self.received);
        let is_in_doubt =
            replay.reason == ReplayReason::Undelivered && !known.overlapped.contains(&replay.receipt.owner);
        if is_in_doubt && self.inner.deliveries.arrives(&replay.receipt).await {
            let known = self.inner.known_to(claim, &session, self.received);
            return self.store.claim(claim, &known).await;
        }
        Ok(verdict)
    }

    /// Performs the steps until the call ends, and returns its result. It borrows the driver instead of taking it: a
    /// call that was moved into its own future would be stored in it twice.
    pub(crate) async fn run(&mut self, first: NextStep) -> Box<CallResult> {
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
                    self.going = DriverActivity::Following { key, changed: self.follow(key) };
                    self.wait().await
                }
                NextStep::AwaitEnd(key) => {
                    let run = self.inner.runs.follow(key);
                    let changed: Pin<Box<dyn Future<Output = WakeReason> + Send>> = match run {
                        Some(run) => Box::pin(over(run, None)),
                        // The machine's timer wakes the call.
                        None => Box::pin(std::future::pending()),
                    };
                    self.going = DriverActivity::Following { key, changed };
                    self.wait().await
                }
                NextStep::Ask(ask) => {
                    self.ask(ask).await;
                    self.wait().await
                }
                NextStep::Spend { grant, owner } => {
                    let spender = owner.digest();
                    let now = self.inner.clock.now();
                    let wanted = wanted(&self.call, DecisionSource::Anyone);
                    let spent = self.inner.change_approvals(&self.call.request().tenant, |approvals| {
                        if approvals.is_for(grant, wanted) {
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
                    self.going = self.start(&run);
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
                NextStep::Finish { result, deferred: kept } => {
                    self.unsaved = kept.iter().find_map(|kept| match kept {
                        DeferredWrite::Save(save) => Some(save.claimed.owner.clone()),
                        DeferredWrite::Release(_)
                        | DeferredWrite::Park(_)
                        | DeferredWrite::GiveBack { .. } => None,
                    });
                    let kept = kept.into_iter().map(|kept| StoreRetry::of(kept, self));
                    let (first, later): (Vec<_>, Vec<_>) = kept.partition(StoreRetry::precedes_response);
                    self.inner.keeper.keep(later.into_iter());
                    for keeping in first {
                        self.inner.keeper.try_now(keeping, &self.inner).await;
                    }
                    let result = self.verified(result).await;
                    self.ended(&result).await;
                    return result;
                }
            };
            step = self.feed(event);
        }
    }

    /// Feeds an event to the machine and returns the next step.
    fn feed(&mut self, event: CallEvent) -> NextStep {
        let now = self.inner.clock.now();
        let what = RecordedEventKind::of(&event);
        let after_ms = steadfast_core::millis(now.since(self.call.arrived()));
        let step = self.cells.with(|shared| {
            self.trail.add(RecordedEvent { order: self.inner.next_sequence(), after_ms, what });
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
        let held = self.call.record().map(|record| record.key);
        match (held, &self.entered) {
            (Some(key), Some((entered, _))) if key == *entered => {}
            (Some(key), _) => self.entered = Some((key, self.inner.runs.enter(key, &self.desk))),
            (None, _) => {}
        }
        match (held, &self.renewal) {
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

    // ---- waiting ----

    /// Waits for the next event for the machine.
    async fn wait(&mut self) -> CallEvent {
        if self.stopped {
            if self.call.is_settling() {
                return CallEvent::DriverEnds;
            }
            if matches!(self.going, DriverActivity::Attempt { .. }) {
                return self.lost().await;
            }
        }
        loop {
            let now = self.inner.clock.now();
            if let LeaseRenewal::Due(at) = self.renewal
                && at <= now
                && self.call.record().is_some()
            {
                self.ask_renewal();
            }
            let wake = self.call.wake_at().map(|at| at.since(now));
            let renew = match self.renewal {
                LeaseRenewal::Due(at) if self.call.record().is_some() => Some(at.since(now)),
                LeaseRenewal::Due(_) | LeaseRenewal::None | LeaseRenewal::Asked(_) => None,
            };
            let heard = tokio::select! {
                biased;
                ended = self.going.ended(&self.inner, &self.call) => DriverEvent::Ended(ended),
                signal = self.desk.control.next_signal() => DriverEvent::Signal(signal),
                () = self.inner.stopping.cancelled(), if !self.stopped => DriverEvent::Stop,
                () = ended(&mut self.ending) => DriverEvent::Settled,
                verdict = answered(&mut self.renewal) => DriverEvent::Renewed(verdict),
                () = sleep(wake) => DriverEvent::Time,
                () = sleep(renew) => continue,
            };
            match heard {
                DriverEvent::Ended(ActivityResult::Ran(answer)) => return self.ran(answer).await,
                DriverEvent::Ended(ActivityResult::Woke(wake)) => {
                    self.going = DriverActivity::Nothing;
                    return CallEvent::Woke(wake);
                }
                DriverEvent::Ended(ActivityResult::Answered(approval)) => {
                    self.going = DriverActivity::Nothing;
                    return CallEvent::Answered(approval);
                }
                DriverEvent::Ended(ActivityResult::Asked(id, decision)) => self.decided(id, decision).await,
                DriverEvent::Signal(CallSignal::Progress) => return CallEvent::Progressed,
                DriverEvent::Signal(CallSignal::Cancel) => {
                    self.stop_following();
                    return CallEvent::Cancelled(self.others());
                }
                // A caller with a response does not count as gone, even if all others have left.
                DriverEvent::Signal(CallSignal::LastFollowerLeft) if self.desk.is_given() => {
                    return CallEvent::Cancelled(self.others());
                }
                DriverEvent::Signal(CallSignal::LastFollowerLeft) => {}
                DriverEvent::Signal(CallSignal::Disconnected) => {
                    return CallEvent::Disconnected(self.others());
                }
                DriverEvent::Stop => {
                    self.stopped = true;
                    return CallEvent::Cancelled(OtherWaiters::None);
                }
                DriverEvent::Renewed(Ok(renewed)) => return self.renewed(renewed),
                DriverEvent::Renewed(Err(error)) => {
                    self.renewal = LeaseRenewal::Due(now + self.lease() / 3);
                    self.inner.store_trouble(&*self.store, &error);
                }
                DriverEvent::Settled => {
                    self.ending = None;
                    self.going = DriverActivity::Nothing;
                    return CallEvent::Settled;
                }
                DriverEvent::Time => return CallEvent::Woke(WakeReason::Time),
            }
        }
    }

    /// Returns the event, or the caller's cancellation or disconnect if there is one. An attempt would follow this
    /// event, and signals are not read again before it has started. A caller that has left by now must not cause an
    /// attempt.
    fn unless_left(&self, event: CallEvent) -> CallEvent {
        match self.desk.control.left() {
            Some(CallSignal::Cancel) => CallEvent::Cancelled(self.others()),
            Some(CallSignal::Disconnected) => CallEvent::Disconnected(self.others()),
            Some(CallSignal::Progress | CallSignal::LastFollowerLeft) | None => event,
        }
    }

    /// Stops following a run because the caller cancelled. The leader of that run may be the only one left now.
    fn stop_following(&mut self) {
        if let DriverActivity::Following { key, .. } = &self.going {
            let key = *key;
            self.going = DriverActivity::Nothing;
            self.inner.runs.remove_follower(key);
        }
    }

    fn others(&self) -> OtherWaiters {
        self.entered.as_ref().map_or(OtherWaiters::None, |(_, entered)| entered.others())
    }

    // ---- attempts ----

    fn start(&self, run: &AttemptCommand) -> DriverActivity {
        let about = || self.inner.about(&self.envelope, &self.call);
        let own = self.inner.telemetry_hooks.traceparent(about, run.attempt);
        let attempt = Attempt {
            envelope: self.envelope.clone(),
            number: run.attempt,
            deadline: run.deadline,
            run: run.run.clone(),
            modes: self.call.policy().modes,
            in_turn: self.call.request().in_turn,
            made_key: None,
            keyed_params: None,
            traceparent: own.or_else(|| self.envelope.trace.traceparent.clone()),
            desk: self.desk.clone(),
        };
        let attempt = attempt.with_key(&self.call.policy().dedupe);
        let running = if self.inner.hooks.0.is_none() {
            self.tool.start(attempt)
        } else {
            let (tool, hooks, envelope) =
                (self.tool.clone(), self.inner.hooks.clone(), self.envelope.clone());
            AttemptFuture::of(|| async move {
                hooks.before_attempt(&envelope, attempt.number).await;
                tool.start(attempt).await
            })
        };
        DriverActivity::Attempt { running, number: run.attempt, started: self.inner.clock.now() }
    }

    async fn ran(&mut self, answer: ToolResult) -> CallEvent {
        if let DriverActivity::Attempt { number, .. } = self.going {
            self.inner.hooks.after_attempt(&self.envelope, number, &answer).await;
        }
        self.going = DriverActivity::Nothing;
        CallEvent::Ran(match answer {
            Ok(output) => {
                let policy = self.call.policy();
                let concern = match policy.modes.trust {
                    EnforcementMode::Off => None,
                    EnforcementMode::Shadow | EnforcementMode::Enforce => {
                        detect_severity(&output, &policy.classify, self.inner.clock.now())
                    }
                };
                AttemptReport::Success { output, concern }
            }
            Err(AttemptError::InputRequired(output)) => AttemptReport::InputRequired { output },
            Err(AttemptError::NotRun(fault)) => AttemptReport::NotRun { fault },
            Err(AttemptError::Failed(ToolFault { fault, output })) => {
                AttemptReport::Failure { fault, output }
            }
        })
    }

    /// Signals to the attempt that its result is no longer wanted.
    fn cancel_attempt(&self) {
        if let DriverActivity::Attempt { number, .. } = self.going {
            self.desk.unwanted.cancel(number);
        }
    }

    async fn cut(&mut self, cut: CutReason) -> CallEvent {
        let DriverActivity::Attempt { started, .. } = &self.going else {
            return CallEvent::Woke(WakeReason::Time);
        };
        let after = self.inner.clock.now().since(*started);
        let why = match cut {
            CutReason::Silent(_) | CutReason::TooLong => "the tool did not answer in time",
            CutReason::Deadline => "the deadline of the call has passed",
            CutReason::Cancelled => "the call was withdrawn",
        };
        self.end_attempt(AttemptFault::new(FaultSource::Timeout { after }, why)).await
    }

    /// Ends the attempt because the engine stops. Its outcome stays unknown.
    async fn lost(&mut self) -> CallEvent {
        let source = FaultSource::Transport { error: TransportError::ConnectionClosed, written: true };
        self.end_attempt(AttemptFault::new(source, "the engine was shut down while the tool was at work"))
            .await
    }

    /// Ends the attempt. It is signalled first, and a result that it returns within the grace period still counts.
    async fn end_attempt(&mut self, silent: AttemptFault) -> CallEvent {
        self.cancel_attempt();
        let DriverActivity::Attempt { running, .. } = &mut self.going else {
            return CallEvent::Woke(WakeReason::Time);
        };
        let answer = tokio::select! {
            biased;
            answer = running => answer,
            () = tokio::time::sleep(LAST_WORDS) => Err(silent.into()),
        };
        self.ran(answer).await
    }

    // ---- other calls, approvals, trust ----

    /// Waits for the run of another call. A run of this process is followed without the store.
    fn follow(&self, key: RecordKey) -> Pin<Box<dyn Future<Output = WakeReason> + Send>> {
        match self.inner.runs.follow(key) {
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
        let (inner, request) = (self.inner.clone(), self.call.request());
        let breaker = DirtyDocument::breaker(scope, request, || coarser(&self.envelope, request));
        async move {
            match breaker {
                Some(breaker) => inner.write(&breaker).await,
                None => Ok(()),
            }
        }
    }

    /// Requests approval for the call.
    async fn ask(&mut self, ask: Box<ApprovalRequest>) {
        let shown = crate::writes::deferred::shown(&self.envelope);
        let now = self.inner.clock.now();
        let asked = self.inner.change_approvals_at_least_here(&self.call.request().tenant, |approvals| {
            let policy = &self.call.policy().approval;
            approvals.ask(
                wanted(&self.call, DecisionSource::of(&ask)),
                &ask.escalation,
                Some(&shown),
                policy,
                now,
            )
        });
        let id = asked.await.id;
        let request = self.call.request();
        self.inner.notify_approval_request(
            &request.tenant,
            id,
            Some(&request.id),
            self.call.policy().trust.notify,
        );
        // Requests that only an operator may approve are not sent to the client.
        let caller = match (&self.asker, self.parked(id)) {
            (Some(asker), Some(parked)) if !ask.operator_only => Some(asker.ask(id, parked)),
            (Some(_) | None, Some(_) | None) => None,
        };
        self.going = DriverActivity::Asking { id, ask, caller };
    }

    /// Returns the pending request from the copy in this process.
    fn parked(&self, id: ParkedRequestId) -> Option<ParkedRequest> {
        let tenant = self.inner.machines.tenants.get(&self.call.request().tenant);
        let judged = tenant.judged.lock();
        let mut parked = judged.approvals.parked(self.inner.clock.now());
        parked.find(|(other, _)| *other == id).map(|(_, parked)| parked.clone())
    }

    /// Records the decision of the user at the client. The next check of the request shows if it counts: another
    /// decision may have been faster, and a tool that was blocked meanwhile cannot be allowed by a client.
    async fn decided(&mut self, id: ParkedRequestId, decision: ApprovalDecision) {
        let now = self.inner.clock.now();
        let recovers = self.parked(id).and_then(|parked| parked.prompt.domain);
        let decided = self.inner.change_approvals_at_least_here(&self.call.request().tenant, |approvals| {
            approvals.decide(id, decision, Grantor::Client, now)
        });
        match decided.await {
            Ok(_) if decision == ApprovalDecision::Recover => self.recover(recovers).await,
            Ok(_) => {}
            Err(why) => tracing::info!(event = "approval.not_taken", %why),
        }
    }

    /// Starts the recovery of trust after the user at the client approved it: for the host if one is named, else the
    /// tool.
    async fn recover(&mut self, domain: Option<Domain>) {
        let request = self.call.request();
        let target = domain.as_ref().map_or(TrustTarget::Tool(&request.tool), TrustTarget::Domain);
        let by = OperatorIdentity::new("client", OperatorSurface::Mcp);
        if let Err(error) = self.inner.approve_recovery(request.tenant.as_ref(), target, &by).await {
            self.inner.store_trouble(&*self.store, &error);
        }
    }

    // ---- the lease ----

    fn lease(&self) -> Duration {
        self.call.policy().dedupe.keep.lease
    }

    fn ask_renewal(&mut self) {
        let Some(record) = self.call.claimed_record().cloned() else {
            self.renewal = LeaseRenewal::None;
            return;
        };
        let (store, keep) = (self.store.clone(), self.call.policy().dedupe.keep);
        let sent = self.inner.clock.now();
        self.renewal = LeaseRenewal::Asked(Box::pin(async move {
            let verdict = store.renew(&record, &keep).await?;
            Ok(RenewalResult { owner: record.owner, sent, verdict })
        }));
    }

    fn renewed(&mut self, RenewalResult { owner, sent, verdict }: RenewalResult) -> CallEvent {
        self.renewal = LeaseRenewal::Due(sent + self.lease() / 3);
        CallEvent::Renewed { owner, sent, verdict }
    }

    /// Waits for a renewal in flight, so that the next store operation does not overtake it.
    async fn finish_renewal(&mut self) {
        if let LeaseRenewal::Asked(renewal) = &mut self.renewal {
            if let Err(error) = renewal.await {
                self.inner.store_trouble(&*self.store, &error);
            }
            self.renewal = LeaseRenewal::None;
        }
    }

    // ---- the end ----

    fn answer(&self, result: CallResult) {
        let at = self.inner.next_sequence();
        let limit = self.call.policy().text_limit();
        self.desk.answer(&result, self.call.request(), limit, &self.store, &self.inner.deliveries, at);
    }

    /// Informs operators, followers and hooks of the end of the call before its caller gets the response.
    async fn ended(&mut self, result: &CallResult) {
        self.tell();
        if let Some(unknown) = self.unnotified.take()
            && result.is_unknown_outcome()
        {
            let about = self.inner.about(&self.envelope, &self.call);
            self.inner.telemetry_hooks.notify_of_unknown(&about, &unknown);
        }
        if let (Some((_, entered)), Err(failure)) = (&self.entered, &result.ended)
            && result.is_refused_for_all()
        {
            entered.refused(failure);
        }
        if result.attempts == 0 {
            let code = result.ended.as_ref().err().map(|failure| failure.code);
            self.inner.hooks.short_circuit(&self.envelope, code).await;
        }
    }

    /// Records the end of the call and sends the response to its caller.
    pub(crate) fn finish(self, result: &CallResult) {
        self.inner.note_trip(&self.envelope, &self.call, result);
        self.inner.note_end(&self.cells, &self.call, result);
        self.inner.telemetry_hooks.finished(|| self.inner.about(&self.envelope, &self.call), result);
        let hint = self.envelope.transport.circuit_breaker_hint;
        let is_read = result.ended.is_ok() && result.attempts > 0 && result.provenance == Provenance::Fresh;
        if is_read && !self.looks_into.is_empty() {
            let session = SessionId::of(self.call.request());
            self.inner.verifications.read_succeeded(&session, &self.looks_into);
        }
        if let Some(record) = self.call.failure_record(result, self.inner.clock.now()) {
            self.inner.failed(record);
        }
        let limit = self.call.policy().text_limit();
        let finished = FinishedCall::new(self.call, self.trail, self.surface, hint, result);
        let at = self.inner.next_sequence();
        if let Some(owner) = self.unsaved {
            self.inner.deliveries.hand_over_unsaved(owner, at);
        }
        self.desk.answer(result, finished.request(), limit, &self.store, &self.inner.deliveries, at);
        self.inner.remember(finished);
    }

    fn store_failed(&self, error: &StoreError) -> CallEvent {
        self.inner.store_trouble(&*self.store, error);
        CallEvent::StoreFailed(error.fault())
    }

    fn tell(&mut self) {
        let unknown = self.notices.iter().find(|notice| matches!(notice, CallNotice::OutcomeUnknown { .. }));
        if let Some(unknown) = unknown {
            self.unnotified = Some(unknown.clone());
        }
        self.inner.tell(&self.envelope, &self.call, self.listener.as_deref(), &mut self.notices);
    }
}

/// Something that ended a wait of the driver.
enum DriverEvent {
    Ended(ActivityResult),
    Signal(CallSignal),
    Stop,
    Settled,
    Renewed(Result<RenewalResult, StoreError>),
    Time,
}

/// Result of an activity.
enum ActivityResult {
    Ran(ToolResult),
    Woke(WakeReason),
    Answered(ApprovalOutcome),
    /// The user at the client has decided.
    Asked(ParkedRequestId, ApprovalDecision),
}

impl DriverActivity {
    async fn ended(&mut self, inner: &EngineInner, call: &Call) -> ActivityResult {
        match self {
            Self::Nothing => std::future::pending().await,
            Self::Attempt { running, .. } => ActivityResult::Ran(running.await),
            Self::Following { changed, .. } => ActivityResult::Woke(changed.await),
            Self::Asking { id, ask, caller } => {
                let tenant = inner.machines.tenants.get(&call.request().tenant);
                loop {
                    let changed = tenant.approvals_changed.notified();
                    let answer = tenant.judged.lock().approvals.answer(
                        *id,
                        wanted(call, DecisionSource::of(ask)),
                        inner.clock.now(),
                    );
                    match answer {
                        approval::ApprovalStatus::Pending => {
                            let asked = tokio::select! {
                                asked = answer_of(caller) => asked,
                                () = changed => continue,
                            };
                            *caller = None;
                            return match asked {
                                ClientDecision::Decided(decision) => ActivityResult::Asked(*id, decision),
                                ClientDecision::Unavailable => {
                                    ActivityResult::Answered(ApprovalOutcome::Unreachable)
                                }
                                ClientDecision::PutToCaller(question) => {
                                    ActivityResult::Answered(ApprovalOutcome::PutToCaller(question))
                                }
                            };
                        }
                        approval::ApprovalStatus::Granted(grant) => {
                            return ActivityResult::Answered(ApprovalOutcome::Granted(Some(grant)));
                        }
                        approval::ApprovalStatus::Denied => {
                            return ActivityResult::Answered(ApprovalOutcome::Denied);
                        }
                        approval::ApprovalStatus::Gone => {
                            return ActivityResult::Answered(ApprovalOutcome::Unreachable);
                        }
                    }
                }
            }
        }
    }
}

/// Returns the description of the call that approvals are matched against.
fn wanted(call: &Call, answers: DecisionSource) -> ApprovalSubject<'_> {
    let request = call.request();
    ApprovalSubject {
        tool: &request.tool,
        arguments: request.digest,
        signature: &request.signature,
        session: request.session.as_ref(),
        blocked: matches!(answers, DecisionSource::Operator),
    }
}

/// Source of the decisions that count.
#[derive(Clone, Copy)]
enum DecisionSource {
    Anyone,
    Operator,
}

impl DecisionSource {
    fn of(ask: &ApprovalRequest) -> Self {
        if ask.operator_only { Self::Operator } else { Self::Anyone }
    }
}

/// Waits until a run changes. `seen` is the number of changes that are known already.
async fn over(mut run: watch::Receiver<followers::RunState>, mut seen: Option<u32>) -> WakeReason {
    loop {
        match &*run.borrow_and_update() {
            followers::RunState::Open(changes) if seen.is_none_or(|seen| seen == *changes) => {
                seen = Some(*changes)
            }
            followers::RunState::Open(_) | followers::RunState::Over => return WakeReason::Changed,
            followers::RunState::Refused(failure) => return WakeReason::LeaderRefused(failure.clone()),
        }
        if run.changed().await.is_err() {
            return WakeReason::Changed;
        }
    }
}

async fn ended(ending: &mut Option<AttemptEndFuture>) {
    match ending {
        Some(ending) => ending.await,
        None => std::future::pending().await,
    }
}

async fn answer_of(caller: &mut Option<ClientDecisionFuture>) -> ClientDecision {
    match caller {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn answered(renewal: &mut LeaseRenewal) -> Result<RenewalResult, StoreError> {
    match renewal {
        LeaseRenewal::Asked(future) => future.await,
        LeaseRenewal::None | LeaseRenewal::Due(_) => std::future::pending().await,
    }
}

async fn sleep(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}
