//! Store operations that failed, retried until they succeed.
//!
//! A result that could not be saved, a claim or grant that could not be released and a request for approval outlive
//! their call. They are queued in memory, in order and bounded. If the queue is full, the oldest is dropped and that is
//! logged.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalLedger, ApprovalSubject, GrantId, ParkedRequestId};
use steadfast_core::call::{ApprovalRequest, CallRequest, DeferredWrite};
use steadfast_core::dedupe::{ReleaseRequest, SaveRequest};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{Digest, TenantId};
use steadfast_core::policy::ApprovalPolicy;
use steadfast_store::{StateStore, StoreError, TimeSource};
use tokio::sync::Notify;

use crate::engine::api::EngineInner;

/// The retry queue of store operations.
#[derive(Debug)]
pub(crate) struct RetryQueue {
    queue: Mutex<RetryState>,
    /// Notified when an operation was added or has become due.
    added: Notify,
    /// Notified when an operation in flight has ended.
    settled: Notify,
}

#[derive(Debug, Default)]
struct RetryState {
    waiting: VecDeque<StoreRetry>,
    /// Number of operations that are being retried right now. They count as pending until the store has confirmed them.
    under_way: usize,
}

/// A store operation to retry.
#[derive(Debug)]
pub(crate) struct StoreRetry {
    what: StoreOperation,
    tries: u32,
    /// Time of the next try. A release must not overtake its own claim, which is void by then.
    due: Timestamp,
}

enum StoreOperation {
    Save(Arc<dyn StateStore>, Box<SaveRequest>),
    Release(Arc<dyn StateStore>, ReleaseRequest),
    Park(Box<DeferredApproval>),
    GiveBack { tenant: Option<TenantId>, grant: GrantId, spender: Digest },
}

/// A request for approval that outlives its call.
pub(crate) struct DeferredApproval {
    pub(crate) tenant: Option<TenantId>,
    request: Arc<CallRequest>,
    ask: ApprovalRequest,
    shown: String,
    policy: ApprovalPolicy,
    /// True if clients are notified of it.
    for_client: bool,
}

/// Maximum number of queued operations.
const MOST: usize = 10_000;
/// Time after which a command that was sent to the store is void.
const COMMAND_LIVES: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl RetryQueue {
    pub(crate) fn new() -> Self {
        Self { queue: Mutex::default(), added: Notify::new(), settled: Notify::new() }
    }

    pub(crate) fn keep(&self, kept: impl Iterator<Item = StoreRetry>) {
        let mut kept = kept.peekable();
        // The usual case: it avoids the lock if there is nothing to add.
        if kept.peek().is_none() {
            return;
        }
        let mut queue = self.queue.lock();
        queue.waiting.extend(kept);
        while queue.waiting.len() > MOST {
            if let Some(dropped) = queue.waiting.pop_front() {
                tracing::error!(event = "store.gave_up", what = ?dropped.what, "too many operations wait for the store; the oldest was dropped");
            }
        }
        drop(queue);
        self.added.notify_one();
    }

    /// Tries the operation at once. If that fails, it is queued like the others.
    pub(crate) async fn try_now(&self, keeping: StoreRetry, inner: &EngineInner) {
        self.queue.lock().under_way += 1;
        InFlightRetry { keeper: self, keeping: Some(keeping) }.repeat(inner).await;
        self.added.notify_one();
    }

    /// Returns the number of operations that have not succeeded yet.
    pub(crate) fn len(&self) -> usize {
        let queue = self.queue.lock();
        queue.waiting.len() + queue.under_way
    }

    /// Makes operations due because the store is back. An exception is a release that was never tried: its own claim
    /// may still be in flight.
    pub(crate) fn make_due(&self, now: Timestamp) {
        for keeping in &mut self.queue.lock().waiting {
            if keeping.tries > 0
                || matches!(
                    keeping.what,
                    StoreOperation::Save(..) | StoreOperation::Park(_) | StoreOperation::GiveBack { .. }
                )
            {
                keeping.due = keeping.due.min(now);
            }
        }
        self.added.notify_one();
    }

    /// Retries operations for as long as the engine lives.
    pub(crate) async fn run(&self, inner: &EngineInner) {
        loop {
            let added = self.added.notified();
            match self.next(&*inner.clock) {
                NextRetry::Nothing => added.await,
                NextRetry::At(pause) => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = added => {}
                    }
                }
                NextRetry::Now(first) => {
                    let mut taken = vec![first];
                    while taken.len() < HANDS
                        && let NextRetry::Now(another) = self.next(&*inner.clock)
                    {
                        taken.push(another);
                    }
                    join_all(taken.into_iter().map(|under_way| under_way.repeat(inner))).await;
                }
            }
        }
    }

    /// Tries all operations once more, due or not, and waits for those in flight. Used at the end of the engine.
    pub(crate) async fn drain(&self, inner: &EngineInner) {
        let mut left = self.queue.lock().waiting.len();
        while left > 0 {
            let taken: Vec<_> = (0..left.min(HANDS)).map_while(|_| self.take(0)).collect();
            left = if taken.is_empty() { 0 } else { left - taken.len() };
            join_all(taken.into_iter().map(|under_way| under_way.repeat(inner))).await;
        }
        loop {
            let settled = self.settled.notified();
            if self.queue.lock().under_way == 0 {
                return;
            }
            settled.await;
        }
    }

    fn next(&self, clock: &dyn TimeSource) -> NextRetry<'_> {
        let now = clock.now();
        let queue = self.queue.lock();
        let due = queue.waiting.iter().position(|keeping| keeping.due <= now);
        let soonest = queue.waiting.iter().map(|keeping| keeping.due).min();
        drop(queue);
        match due {
            Some(due) => self.take(due).map_or(NextRetry::Nothing, NextRetry::Now),
            None => soonest.map_or(NextRetry::Nothing, |due| NextRetry::At(due.since(now))),
        }
    }

    fn take(&self, position: usize) -> Option<InFlightRetry<'_>> {
        let mut queue = self.queue.lock();
        let keeping = queue.waiting.remove(position)?;
        queue.under_way += 1;
        Some(InFlightRetry { keeper: self, keeping: Some(keeping) })
    }
}

/// Number of concurrent retries. A store that recovers gets as many operations as there were calls meanwhile, and each
/// may wait for a disk or a replica.
const HANDS: usize = 32;

/// An operation that is being retried. If it fails or is dropped, it goes back to the queue.
struct InFlightRetry<'a> {
    keeper: &'a RetryQueue,
    keeping: Option<StoreRetry>,
}

impl InFlightRetry<'_> {
    async fn repeat(mut self, inner: &EngineInner) {
        let Some(keeping) = &mut self.keeping else { return };
        match keeping.what.carry_out(inner).await {
            Ok(()) => self.keeping = None,
            Err(error) => {
                keeping.tries += 1;
                let pause = FIRST_PAUSE.saturating_mul(1 << keeping.tries.min(6)).min(LONGEST_PAUSE);
                keeping.due = inner.clock.now() + pause;
                tracing::debug!(event = "store.repeat", what = ?keeping.what, tries = keeping.tries, %error);
            }
        }
    }
}

impl Drop for InFlightRetry<'_> {
    fn drop(&mut self) {
        let mut queue = self.keeper.queue.lock();
        queue.under_way -= 1;
        queue.waiting.extend(self.keeping.take());
        drop(queue);
        self.keeper.settled.notify_waiters();
    }
}

enum NextRetry<'a> {
    Nothing,
    At(Duration),
    Now(InFlightRetry<'a>),
}

impl StoreRetry {
    pub(crate) fn of(kept: DeferredWrite, drive: &crate::drive::steps::CallDriver) -> Self {
        let now = drive.inner.clock.now();
        let (what, due) = match kept {
            DeferredWrite::Save(save) => (StoreOperation::Save(drive.store.clone(), save), now + FIRST_PAUSE),
            DeferredWrite::Release(release) => {
                (StoreOperation::Release(drive.store.clone(), release), now + COMMAND_LIVES)
            }
            DeferredWrite::Park(ask) => {
                let request = drive.call.request();
                let parking = DeferredApproval {
                    tenant: request.tenant.clone(),
                    request: Arc::new(request.clone()),
                    ask: *ask,
                    shown: shown(&drive.envelope),
                    policy: drive.call.policy().approval,
                    for_client: drive.call.policy().trust.notify,
                };
                (StoreOperation::Park(Box::new(parking)), now)
            }
            DeferredWrite::GiveBack { grant, owner } => {
                let tenant = drive.call.request().tenant.clone();
                (StoreOperation::GiveBack { tenant, grant, spender: owner.digest() }, now)
            }
        };
        Self { what, tries: 0, due }
    }

    /// Returns true if the caller relies on it: it may get the response and call again at once.
    pub(crate) fn precedes_response(&self) -> bool {
        match self.what {
            StoreOperation::GiveBack { .. } => true,
            StoreOperation::Save(..) | StoreOperation::Release(..) | StoreOperation::Park(_) => false,
        }
    }
}

impl StoreOperation {
    async fn carry_out(&self, inner: &EngineInner) -> Result<(), StoreError> {
        match self {
            Self::Save(store, save) => store.save(save).await.map(drop),
            Self::Release(store, release) => store.release(release).await,
            Self::Park(parking) => {
                let now = inner.clock.now();
                let ask = |approvals: &mut ApprovalLedger| parking.ask(approvals, now);
                let id = inner.change_approvals(&parking.tenant, ask).await?;
                inner.notify_approval_request(
                    &parking.tenant,
                    id,
                    Some(&parking.request.id),
                    parking.for_client,
                );
                Ok(())
            }
            Self::GiveBack { tenant, grant, spender } => {
                inner.change_approvals(tenant, |approvals| approvals.return_grant(*grant, *spender)).await
            }
        }
    }
}

impl DeferredApproval {
    fn ask(&self, approvals: &mut ApprovalLedger, now: Timestamp) -> ParkedRequestId {
        let wanted = ApprovalSubject {
            tool: &self.request.tool,
            arguments: self.request.digest,
            signature: &self.request.signature,
            session: self.request.session.as_ref(),
            blocked: self.ask.operator_only,
        };
        approvals.ask(wanted, &self.ask.escalation, Some(&self.shown), &self.policy, now).id
    }
}

/// Returns the excerpt of the arguments that an operator may see.
pub(crate) fn shown(envelope: &CallEnvelope) -> String {
    steadfast_redact::excerpt(envelope.payload.params.as_str(), ApprovalLedger::MOST_SHOWN)
}

/// Shows neither results nor arguments.
impl fmt::Debug for StoreOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Save(_, save) => write!(f, "save {}", save.claimed.key.fingerprint()),
            Self::Release(_, release) => write!(f, "release {}", release.key.fingerprint()),
            Self::Park(parking) => write!(f, "park a call of {}", parking.request.tool),
            Self::GiveBack { grant, .. } => write!(f, "give back grant {}", grant.0),
        }
    }
}
