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
use steadfast_core::approval::{self, Decision, Grantor, Parked, ParkedId, Spend, Wanted};
use steadfast_core::call::{
    Approval, Ask, BreakerScope, Call, CallResult, Cut, Event, Kept, Notice, Others, Outcome, Provenance,
    Run, Step, Upstream, Wake,
};
use steadfast_core::classify::record::concern;
use steadfast_core::classify::{Fault, Source, Transport};
use steadfast_core::dedupe::{Claim, ClaimVerdict, Owner, RenewVerdict, ReplayReason};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Domain;
use steadfast_core::key::Key;
use steadfast_core::policy::{Mode, ToolClass};
use steadfast_core::rehearse::{Moment, Trail, What};
use steadfast_core::trust::Target;
use steadfast_store::{Store, StoreError};
use tokio::sync::watch;

use crate::approvals::{Asked, Asker, Asking};
use crate::audit::{By, Surface};
use crate::cells::{Cells, SessionId};
use crate::control::Signal;
use crate::engine::{Desk, Inner, coarser};
use crate::followers::{self, Entered};
use crate::history::{Finished, OfSurface};
use crate::keep::Keeping;
use crate::persist::Marked;
use crate::shelf::Shelf;
use crate::telling::Listener;
use crate::tool::{Answer, AnyTool, Attempt, Ending, NotDone, Running, ToolFault};

/// Time that an attempt has to return a result after it was cancelled.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The driver of one call.
pub(crate) struct Drive {
    pub(crate) inner: Arc<Inner>,
    pub(crate) envelope: Arc<CallEnvelope>,
    pub(crate) call: Call,
    pub(crate) cells: Cells,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tool: Arc<dyn AnyTool>,
    pub(crate) desk: Arc<Desk>,
    asker: Option<Arc<dyn Asker>>,
    /// The listener for this call alone.
    pub(crate) listener: Option<Arc<dyn Listener>>,
    pub(crate) notices: Vec<Notice>,
    /// All events that were fed to the machine, for a later replay.
    pub(crate) trail: Trail,
    pub(crate) surface: OfSurface,
    going: Going,
    /// The future that ends an attempt with an unknown outcome, if its end is visible.
    ending: Option<Ending>,
    is_settling: bool,
    entered: Option<(Key, Entered)>,
    renewal: Renewal,
    /// Owner of the run, if its result could not be saved.
    unsaved: Option<Owner>,
    pub(crate) stopped: bool,
    /// Notice of an unknown outcome. Operators are notified if the outcome is still unknown at the end of the call.
    unnotified: Option<Notice>,
    /// Sequence number of the call's arrival.
    pub(crate) received: u64,
    /// Runs with an unknown outcome that this call verifies, if it is a read that succeeds.
    looks_into: Vec<Owner>,
    /// Registry with the tool that verifies if this call took effect. Used once.
    pub(crate) shelf: Option<Arc<dyn Shelf>>,
}

/// The activity that the machine waits for.
enum Going {
    Nothing,
    Attempt { running: Running, number: u32, started: Timestamp },
    Following { key: Key, changed: Pin<Box<dyn Future<Output = Wake> + Send>> },
    Asking { id: ParkedId, ask: Box<Ask>, caller: Option<Asking> },
}

/// State of the lease renewal.
enum Renewal {
    /// There is no lease to renew.
    None,
    /// The renewal is due at this time.
    Due(Timestamp),
    /// The renewal is in flight.
    Asked(Pin<Box<dyn Future<Output = Result<Renewed, StoreError>> + Send>>),
}

/// Result of a renewal.
struct Renewed {
    owner: Owner,
    sent: Timestamp,
    verdict: RenewVerdict,
}

impl Drive {
    #[expect(clippy::too_many_arguments, reason = "the parts of a call, named once")]
    pub(crate) fn new(
        inner: Arc<Inner>,
        envelope: Arc<CallEnvelope>,
        call: Call,
        cells: Cells,
        store: Arc<dyn Store>,
        tool: Arc<dyn AnyTool>,
        desk: Arc<Desk>,
        asker: Option<Arc<dyn Asker>>,
        notices: Vec<Notice>,
    ) -> Self {
        let (going, renewal) = (Going::Nothing, Renewal::None);
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
            trail: Trail::default(),
            surface: OfSurface::default(),
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
    pub(crate) async fn run(&mut self, first: Step) -> Box<CallResult> {
        let mut step = first;
        loop {
            self.tell();
            let event = match step {
                Step::Claim(claim) => match self.claim(&claim).await {
                    Ok(verdict @ ClaimVerdict::Mine(_)) => self.unless_left(Event::Claimed(verdict)),
                    Ok(verdict) => Event::Claimed(verdict),
                    Err(error) => self.store_failed(&error),
                },
                Step::Follow(key) => {
                    self.going = Going::Following { key, changed: self.follow(key) };
                    self.wait().await
                }
                Step::AwaitEnd(key) => {
                    let run = self.inner.runs.follow(key);
                    let changed: Pin<Box<dyn Future<Output = Wake> + Send>> = match run {
                        Some(run) => Box::pin(over(run, None)),
                        // The machine's timer wakes the call.
                        None => Box::pin(std::future::pending()),
                    };
                    self.going = Going::Following { key, changed };
                    self.wait().await
                }
                Step::Ask(ask) => {
                    self.ask(ask).await;
                    self.wait().await
                }
                Step::Spend { grant, owner } => {
                    let spender = owner.digest();
                    let now = self.inner.clock.now();
                    let wanted = wanted(&self.call, Answers::Anyone);
                    let spent = self.inner.change_approvals(&self.call.request().tenant, |approvals| {
                        if approvals.is_for(grant, wanted) {
                            approvals.spend(grant, spender, now)
                        } else {
                            Spend::Gone
                        }
                    });
                    match spent.await {
                        Ok(spend) => Event::Spent(spend),
                        Err(error) => self.store_failed(&error),
                    }
                }
                Step::Start { key, owner } => {
                    self.finish_renewal().await;
                    match self.store.start(key, &owner).await {
                        Ok(verdict) => self.unless_left(Event::Started(verdict)),
                        Err(error) => self.store_failed(&error),
                    }
                }
                Step::Probe(scope) => match self.share_probe(scope).await {
                    Ok(()) => Event::Probed,
                    Err(error) => self.store_failed(&error),
                },
                Step::Renew => {
                    self.finish_renewal().await;
                    self.ask_renewal();
                    match answered(&mut self.renewal).await {
                        Ok(renewed) => self.renewed(renewed),
                        Err(error) => {
                            self.renewal = Renewal::None;
                            self.store_failed(&error)
                        }
                    }
                }
                Step::Run(run) => {
                    self.going = self.start(&run);
                    self.wait().await
                }
                Step::Cut(cut) => self.cut(cut).await,
                Step::Wait | Step::Stay => self.wait().await,
                Step::Save(save) => {
                    self.finish_renewal().await;
                    match self.store.save(&save).await {
                        Ok(verdict) => Event::Saved(verdict),
                        Err(error) => self.store_failed(&error),
                    }
                }
                Step::Release(release) => {
                    self.finish_renewal().await;
                    match self.store.release(&release).await {
                        Ok(()) => Event::Released,
                        Err(error) => self.store_failed(&error),
                    }
                }
                Step::Answer { result, upstream } => {
                    let result = self.verified(result).await;
                    self.answer(*result);
                    match upstream {
                        Upstream::Cancel => self.cancel_attempt(),
                        Upstream::LeaveAlone => {}
                    }
                    self.wait().await
                }
                Step::CancelUpstream => {
                    self.cancel_attempt();
                    self.wait().await
                }
                Step::Finish { result, kept } => {
                    self.unsaved = kept.iter().find_map(|kept| match kept {
                        Kept::Save(save) => Some(save.claimed.owner.clone()),
                        Kept::Release(_) | Kept::Park(_) | Kept::GiveBack { .. } => None,
                    });
                    let kept = kept.into_iter().map(|kept| Keeping::of(kept, self));
                    let (first, later): (Vec<_>, Vec<_>) = kept.partition(Keeping::goes_before_the_answer);
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
    fn feed(&mut self, event: Event) -> Step {
        let now = self.inner.clock.now();
        let what = What::of(&event);
        let after_ms = steadfast_core::millis(now.since(self.call.arrived()));
        let step = self.cells.with(|shared| {
            self.trail.add(Moment { order: self.inner.next_told(), after_ms, what });
            self.call.on(shared, now, event, &mut self.notices)
        });
        self.see_claim(now);
        self.see_end();
        step.unwrap_or_else(|misuse| {
            // A bug in this file: the call keeps waiting, and the log reports it.
            tracing::error!(event = "engine.misuse", %misuse);
            debug_assert!(false, "{misuse}");
            Step::Stay
        })
    }

    /// Registers the run and schedules the lease renewal when the call holds a claim for the first time, or a new one.
    fn see_claim(&mut self, now: Timestamp) {
        let held = self.call.record().map(|record| record.key);
        match (held, &self.entered) {
            (Some(key), Some((entered, _))) if key == *entered => {}
            (Some(key), _) => self.entered = Some((key, self.inner.runs.enter(key, &self.desk))),
            (None, _) => {}
        }
        match (held, &self.renewal) {
            (Some(_), Renewal::None) => self.renewal = Renewal::Due(now + self.lease() / 3),
            (None, Renewal::Due(_)) => self.renewal = Renewal::None,
            (Some(_), Renewal::Due(_) | Renewal::Asked(_)) | (None, Renewal::None | Renewal::Asked(_)) => {}
        }
    }

    /// Starts to end the attempt if the machine waits for its end, and wakes followers when its outcome becomes
    /// unknown.
    fn see_end(&mut self) {
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
    async fn wait(&mut self) -> Event {
        if self.stopped {
            if self.call.is_settling() {
                return Event::DriverEnds;
            }
            if matches!(self.going, Going::Attempt { .. }) {
                return self.lost().await;
            }
        }
        loop {
            let now = self.inner.clock.now();
            if let Renewal::Due(at) = self.renewal
                && at <= now
                && self.call.record().is_some()
            {
                self.ask_renewal();
            }
            let wake = self.call.wake_at().map(|at| at.since(now));
            let renew = match self.renewal {
                Renewal::Due(at) if self.call.record().is_some() => Some(at.since(now)),
                Renewal::Due(_) | Renewal::None | Renewal::Asked(_) => None,
            };
            let heard = tokio::select! {
                biased;
                ended = self.going.ended(&self.inner, &self.call) => Heard::Ended(ended),
                signal = self.desk.control.heard() => Heard::Signal(signal),
                () = self.inner.stopping.cancelled(), if !self.stopped => Heard::Stop,
                () = ended(&mut self.ending) => Heard::Settled,
                verdict = answered(&mut self.renewal) => Heard::Renewed(verdict),
                () = sleep(wake) => Heard::Time,
                () = sleep(renew) => continue,
            };
            match heard {
                Heard::Ended(Ended::Ran(answer)) => return self.ran(answer).await,
                Heard::Ended(Ended::Woke(wake)) => {
                    self.going = Going::Nothing;
                    return Event::Woke(wake);
                }
                Heard::Ended(Ended::Answered(approval)) => {
                    self.going = Going::Nothing;
                    return Event::Answered(approval);
                }
                Heard::Ended(Ended::Asked(id, decision)) => self.decided(id, decision).await,
                Heard::Signal(Signal::Progress) => return Event::Progressed,
                Heard::Signal(Signal::Cancel) => {
                    self.withdraw();
                    return Event::Cancelled(self.others());
                }
                // A caller with a response does not count as gone, even if all others have left.
                Heard::Signal(Signal::Alone) if self.desk.is_given() => {
                    return Event::Cancelled(self.others());
                }
                Heard::Signal(Signal::Alone) => {}
                Heard::Signal(Signal::Gone) => return Event::Disconnected(self.others()),
                Heard::Stop => {
                    self.stopped = true;
                    return Event::Cancelled(Others::None);
                }
                Heard::Renewed(Ok(renewed)) => return self.renewed(renewed),
                Heard::Renewed(Err(error)) => {
                    self.renewal = Renewal::Due(now + self.lease() / 3);
                    self.inner.store_trouble(&*self.store, &error);
                }
                Heard::Settled => {
                    self.ending = None;
                    self.going = Going::Nothing;
                    return Event::Settled;
                }
                Heard::Time => return Event::Woke(Wake::Time),
            }
        }
    }

    /// Returns the event, or the caller's cancellation or disconnect if there is one. An attempt would follow this
    /// event, and signals are not read again before it has started. A caller that has left by now must not cause an
    /// attempt.
    fn unless_left(&self, event: Event) -> Event {
        match self.desk.control.left() {
            Some(Signal::Cancel) => Event::Cancelled(self.others()),
            Some(Signal::Gone) => Event::Disconnected(self.others()),
            Some(Signal::Progress | Signal::Alone) | None => event,
        }
    }

    /// Stops following a run because the caller cancelled. The leader of that run may be the only one left now.
    fn withdraw(&mut self) {
        if let Going::Following { key, .. } = &self.going {
            let key = *key;
            self.going = Going::Nothing;
            self.inner.runs.withdrew(key);
        }
    }

    fn others(&self) -> Others {
        self.entered.as_ref().map_or(Others::None, |(_, entered)| entered.others())
    }

    // ---- attempts ----

    fn start(&self, run: &Run) -> Going {
        let about = || self.inner.about(&self.envelope, &self.call);
        let own = self.inner.telling.traceparent(about, run.attempt);
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
            Running::of(|| async move {
                hooks.before_attempt(&envelope, attempt.number).await;
                tool.start(attempt).await
            })
        };
        Going::Attempt { running, number: run.attempt, started: self.inner.clock.now() }
    }

    async fn ran(&mut self, answer: Answer) -> Event {
        if let Going::Attempt { number, .. } = self.going {
            self.inner.hooks.after_attempt(&self.envelope, number, &answer).await;
        }
        self.going = Going::Nothing;
        Event::Ran(match answer {
            Ok(output) => {
                let policy = self.call.policy();
                let concern = match policy.modes.trust {
                    Mode::Off => None,
                    Mode::Shadow | Mode::Enforce => {
                        concern(&output, &policy.classify, self.inner.clock.now())
                    }
                };
                Outcome::Success { output, concern }
            }
            Err(NotDone::InputRequired(output)) => Outcome::InputRequired { output },
            Err(NotDone::NotRun(fault)) => Outcome::NotRun { fault },
            Err(NotDone::Failed(ToolFault { fault, output })) => Outcome::Failure { fault, output },
        })
    }

    /// Signals to the attempt that its result is no longer wanted.
    fn cancel_attempt(&self) {
        if let Going::Attempt { number, .. } = self.going {
            self.desk.unwanted.cancel(number);
        }
    }

    async fn cut(&mut self, cut: Cut) -> Event {
        let Going::Attempt { started, .. } = &self.going else { return Event::Woke(Wake::Time) };
        let after = self.inner.clock.now().since(*started);
        let why = match cut {
            Cut::Silent(_) | Cut::TooLong => "the tool did not answer in time",
            Cut::Deadline => "the deadline of the call has passed",
            Cut::Cancelled => "the call was withdrawn",
        };
        self.end_attempt(Fault::new(Source::Timeout { after }, why)).await
    }

    /// Ends the attempt because the engine stops. Its outcome stays unknown.
    async fn lost(&mut self) -> Event {
        let source = Source::Transport { error: Transport::ConnectionClosed, written: true };
        self.end_attempt(Fault::new(source, "the engine was shut down while the tool was at work")).await
    }

    /// Ends the attempt. It is signalled first, and a result that it returns within the grace period still counts.
    async fn end_attempt(&mut self, silent: Fault) -> Event {
        self.cancel_attempt();
        let Going::Attempt { running, .. } = &mut self.going else {
            return Event::Woke(Wake::Time);
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
    fn follow(&self, key: Key) -> Pin<Box<dyn Future<Output = Wake> + Send>> {
        match self.inner.runs.follow(key) {
            // Its outcome may have been recorded as unknown since the store operation.
            Some(run) => Box::pin(over(run, Some(0))),
            None => {
                let store = self.store.clone();
                Box::pin(async move {
                    store.settled(key).await;
                    Wake::Changed
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
        let breaker = Marked::breaker(scope, request, || coarser(&self.envelope, request));
        async move {
            match breaker {
                Some(breaker) => inner.write(&breaker).await,
                None => Ok(()),
            }
        }
    }

    /// Requests approval for the call.
    async fn ask(&mut self, ask: Box<Ask>) {
        let shown = crate::keep::shown(&self.envelope);
        let now = self.inner.clock.now();
        let asked = self.inner.change_approvals_at_least_here(&self.call.request().tenant, |approvals| {
            let policy = &self.call.policy().approval;
            approvals.ask(wanted(&self.call, Answers::of(&ask)), &ask.escalation, Some(&shown), policy, now)
        });
        let id = asked.await.id;
        let request = self.call.request();
        self.inner.tell_asked(&request.tenant, id, Some(&request.id), self.call.policy().trust.notify);
        // Requests that only an operator may approve are not sent to the client.
        let caller = match (&self.asker, self.parked(id)) {
            (Some(asker), Some(parked)) if !ask.operator_only => Some(asker.ask(id, parked)),
            (Some(_) | None, Some(_) | None) => None,
        };
        self.going = Going::Asking { id, ask, caller };
    }

    /// Returns the pending request from the copy in this process.
    fn parked(&self, id: ParkedId) -> Option<Parked> {
        let tenant = self.inner.machines.tenants.get(&self.call.request().tenant);
        let judged = tenant.judged.lock();
        let mut parked = judged.approvals.parked(self.inner.clock.now());
        parked.find(|(other, _)| *other == id).map(|(_, parked)| parked.clone())
    }

    /// Records the decision of the user at the client. The next check of the request shows if it counts: another
    /// decision may have been faster, and a tool that was blocked meanwhile cannot be allowed by a client.
    async fn decided(&mut self, id: ParkedId, decision: Decision) {
        let now = self.inner.clock.now();
        let recovers = self.parked(id).and_then(|parked| parked.prompt.domain);
        let decided = self.inner.change_approvals_at_least_here(&self.call.request().tenant, |approvals| {
            approvals.decide(id, decision, Grantor::Client, now)
        });
        match decided.await {
            Ok(_) if decision == Decision::Recover => self.recover(recovers).await,
            Ok(_) => {}
            Err(why) => tracing::info!(event = "approval.not_taken", %why),
        }
    }

    /// Starts the recovery of trust after the user at the client approved it: for the host if one is named, else the
    /// tool.
    async fn recover(&mut self, domain: Option<Domain>) {
        let request = self.call.request();
        let target = domain.as_ref().map_or(Target::Tool(&request.tool), Target::Domain);
        let by = By::new("client", Surface::Mcp);
        if let Err(error) = self.inner.approve_recovery(request.tenant.as_ref(), target, &by).await {
            self.inner.store_trouble(&*self.store, &error);
        }
    }

    // ---- the lease ----

    fn lease(&self) -> Duration {
        self.call.policy().dedupe.keep.lease
    }

    fn ask_renewal(&mut self) {
        let Some(record) = self.call.claimed().cloned() else {
            self.renewal = Renewal::None;
            return;
        };
        let (store, keep) = (self.store.clone(), self.call.policy().dedupe.keep);
        let sent = self.inner.clock.now();
        self.renewal = Renewal::Asked(Box::pin(async move {
            let verdict = store.renew(&record, &keep).await?;
            Ok(Renewed { owner: record.owner, sent, verdict })
        }));
    }

    fn renewed(&mut self, Renewed { owner, sent, verdict }: Renewed) -> Event {
        self.renewal = Renewal::Due(sent + self.lease() / 3);
        Event::Renewed { owner, sent, verdict }
    }

    /// Waits for a renewal in flight, so that the next store operation does not overtake it.
    async fn finish_renewal(&mut self) {
        if let Renewal::Asked(renewal) = &mut self.renewal {
            if let Err(error) = renewal.await {
                self.inner.store_trouble(&*self.store, &error);
            }
            self.renewal = Renewal::None;
        }
    }

    // ---- the end ----

    fn answer(&self, result: CallResult) {
        let at = self.inner.next_told();
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
            self.inner.telling.notify_of_unknown(&about, &unknown);
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
        self.inner.telling.finished(|| self.inner.about(&self.envelope, &self.call), result);
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
        let finished = Finished::new(self.call, self.trail, self.surface, hint, result);
        let at = self.inner.next_told();
        if let Some(owner) = self.unsaved {
            self.inner.deliveries.hand_over_unsaved(owner, at);
        }
        self.desk.answer(result, finished.request(), limit, &self.store, &self.inner.deliveries, at);
        self.inner.remember(finished);
    }

    fn store_failed(&self, error: &StoreError) -> Event {
        self.inner.store_trouble(&*self.store, error);
        Event::StoreFailed(error.fault())
    }

    fn tell(&mut self) {
        let unknown = self.notices.iter().find(|notice| matches!(notice, Notice::OutcomeUnknown { .. }));
        if let Some(unknown) = unknown {
            self.unnotified = Some(unknown.clone());
        }
        self.inner.tell(&self.envelope, &self.call, self.listener.as_deref(), &mut self.notices);
    }
}

/// Something that ended a wait of the driver.
enum Heard {
    Ended(Ended),
    Signal(Signal),
    Stop,
    Settled,
    Renewed(Result<Renewed, StoreError>),
    Time,
}

/// Result of an activity.
enum Ended {
    Ran(Answer),
    Woke(Wake),
    Answered(Approval),
    /// The user at the client has decided.
    Asked(ParkedId, Decision),
}

impl Going {
    async fn ended(&mut self, inner: &Inner, call: &Call) -> Ended {
        match self {
            Self::Nothing => std::future::pending().await,
            Self::Attempt { running, .. } => Ended::Ran(running.await),
            Self::Following { changed, .. } => Ended::Woke(changed.await),
            Self::Asking { id, ask, caller } => {
                let tenant = inner.machines.tenants.get(&call.request().tenant);
                loop {
                    let changed = tenant.approvals_changed.notified();
                    let answer = tenant.judged.lock().approvals.answer(
                        *id,
                        wanted(call, Answers::of(ask)),
                        inner.clock.now(),
                    );
                    match answer {
                        approval::Answer::Pending => {
                            let asked = tokio::select! {
                                asked = answer_of(caller) => asked,
                                () = changed => continue,
                            };
                            *caller = None;
                            return match asked {
                                Asked::Decided(decision) => Ended::Asked(*id, decision),
                                Asked::Nobody => Ended::Answered(Approval::Nobody),
                                Asked::PutToCaller(question) => {
                                    Ended::Answered(Approval::PutToCaller(question))
                                }
                            };
                        }
                        approval::Answer::Granted(grant) => {
                            return Ended::Answered(Approval::Granted(Some(grant)));
                        }
                        approval::Answer::Denied => return Ended::Answered(Approval::Denied),
                        approval::Answer::Gone => return Ended::Answered(Approval::Nobody),
                    }
                }
            }
        }
    }
}

/// Returns the description of the call that approvals are matched against.
fn wanted(call: &Call, answers: Answers) -> Wanted<'_> {
    let request = call.request();
    Wanted {
        tool: &request.tool,
        arguments: request.digest,
        signature: &request.signature,
        session: request.session.as_ref(),
        blocked: matches!(answers, Answers::Operator),
    }
}

/// Source of the decisions that count.
#[derive(Clone, Copy)]
enum Answers {
    Anyone,
    Operator,
}

impl Answers {
    fn of(ask: &Ask) -> Self {
        if ask.operator_only { Self::Operator } else { Self::Anyone }
    }
}

/// Waits until a run changes. `seen` is the number of changes that are known already.
async fn over(mut run: watch::Receiver<followers::Run>, mut seen: Option<u32>) -> Wake {
    loop {
        match &*run.borrow_and_update() {
            followers::Run::Open(changes) if seen.is_none_or(|seen| seen == *changes) => {
                seen = Some(*changes)
            }
            followers::Run::Open(_) | followers::Run::Over => return Wake::Changed,
            followers::Run::Refused(failure) => return Wake::LeaderRefused(failure.clone()),
        }
        if run.changed().await.is_err() {
            return Wake::Changed;
        }
    }
}

async fn ended(ending: &mut Option<Ending>) {
    match ending {
        Some(ending) => ending.await,
        None => std::future::pending().await,
    }
}

async fn answer_of(caller: &mut Option<Asking>) -> Asked {
    match caller {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn answered(renewal: &mut Renewal) -> Result<Renewed, StoreError> {
    match renewal {
        Renewal::Asked(future) => future.await,
        Renewal::None | Renewal::Due(_) => std::future::pending().await,
    }
}

async fn sleep(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}
