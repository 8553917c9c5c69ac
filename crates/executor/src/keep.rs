//! What did not get through to the store, repeated until it does.
//!
//! A result that could not be saved, a claim that could not be given back and a request for approval outlive their
//! call. They are kept in memory, in order and bounded; the oldest makes room, and that is told.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::approval::{Approvals, Wanted};
use steadfast_core::call::{Ask, Kept, Request};
use steadfast_core::dedupe::{Release, Save};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::TenantId;
use steadfast_core::policy::ApprovalPolicy;
use steadfast_core::redact;
use steadfast_store::{Clock, Store, StoreError};
use tokio::sync::Notify;

use crate::engine::Inner;

/// The operations that are repeated.
#[derive(Debug)]
pub(crate) struct Keeper {
    queue: Mutex<VecDeque<Keeping>>,
    added: Notify,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Keeping {
    what: What,
    tries: u32,
    /// Not before this moment. A release must not overtake its own claim, which is void by then.
    due: Timestamp,
}

enum What {
    Save(Arc<dyn Store>, Box<Save>),
    Release(Arc<dyn Store>, Release),
    Park(Box<Parking>),
}

/// A request for approval that outlives its call.
pub(crate) struct Parking {
    pub(crate) tenant: Option<TenantId>,
    request: Arc<Request>,
    ask: Ask,
    shown: String,
    policy: ApprovalPolicy,
}

/// The most operations that wait.
const MOST: usize = 10_000;
/// A command that was sent is void after this long at the latest.
const COMMAND_LIVES: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Keeper {
    pub(crate) fn new() -> Self {
        Self { queue: Mutex::default(), added: Notify::new() }
    }

    pub(crate) fn keep(&self, kept: impl Iterator<Item = Keeping>) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.extend(kept);
        if queue.len() == before {
            return;
        }
        while queue.len() > MOST {
            if let Some(dropped) = queue.pop_front() {
                tracing::error!(event = "store.gave_up", what = ?dropped.what, "too much waits for the store");
            }
        }
        drop(queue);
        self.added.notify_one();
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Repeats them for as long as the engine lives.
    pub(crate) async fn run(&self, inner: &Inner) {
        loop {
            let added = self.added.notified();
            match self.next(&*inner.clock) {
                Next::Nothing => added.await,
                Next::At(pause) => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = added => {}
                    }
                }
                Next::Now(keeping) => self.repeat(inner, keeping).await,
            }
        }
    }

    /// Tries everything once more, due or not; for the end of the engine.
    pub(crate) async fn drain(&self, inner: &Inner) {
        let all: Vec<_> = self.queue.lock().drain(..).collect();
        for keeping in all {
            self.repeat(inner, keeping).await;
        }
    }

    async fn repeat(&self, inner: &Inner, mut keeping: Keeping) {
        if let Err(error) = keeping.what.carry_out(inner).await {
            keeping.tries += 1;
            let pause = FIRST_PAUSE.saturating_mul(1 << keeping.tries.min(6)).min(LONGEST_PAUSE);
            keeping.due = inner.clock.now() + pause;
            tracing::debug!(event = "store.repeat", what = ?keeping.what, tries = keeping.tries, %error);
            self.queue.lock().push_back(keeping);
        }
    }

    fn next(&self, clock: &dyn Clock) -> Next {
        let mut queue = self.queue.lock();
        let now = clock.now();
        match queue.iter().position(|keeping| keeping.due <= now) {
            Some(due) => queue.remove(due).map_or(Next::Nothing, Next::Now),
            None => queue
                .iter()
                .map(|keeping| keeping.due)
                .min()
                .map_or(Next::Nothing, |due| Next::At(due.since(now))),
        }
    }
}

enum Next {
    Nothing,
    At(Duration),
    Now(Keeping),
}

impl Keeping {
    pub(crate) fn of(kept: Kept, drive: &crate::drive::Drive) -> Self {
        let now = drive.inner.clock.now();
        let (what, due) = match kept {
            Kept::Save(save) => (What::Save(drive.store.clone(), save), now + FIRST_PAUSE),
            Kept::Release(release) => (What::Release(drive.store.clone(), release), now + COMMAND_LIVES),
            Kept::Park(ask) => {
                let request = drive.call.request();
                let parking = Parking {
                    tenant: request.tenant.clone(),
                    request: Arc::new(request.clone()),
                    ask: *ask,
                    shown: shown(&drive.envelope),
                    policy: drive.call.policy().approval,
                };
                (What::Park(Box::new(parking)), now)
            }
        };
        Self { what, tries: 0, due }
    }
}

impl What {
    async fn carry_out(&self, inner: &Inner) -> Result<(), StoreError> {
        match self {
            Self::Save(store, save) => store.save(save).await.map(drop),
            Self::Release(store, release) => store.release(release).await,
            Self::Park(parking) => {
                let now = inner.clock.now();
                inner.change_approvals(&parking.tenant, |approvals| parking.ask(approvals, now)).await
            }
        }
    }
}

impl Parking {
    fn ask(&self, approvals: &mut Approvals, now: Timestamp) {
        let wanted = Wanted {
            tool: &self.request.tool,
            arguments: self.request.digest,
            signature: &self.request.signature,
            session: self.request.session.as_ref(),
            blocked: self.ask.operator_only,
        };
        approvals.ask(wanted, &self.ask.escalation, Some(&self.shown), &self.policy, now);
    }
}

/// What a person may see of the arguments.
pub(crate) fn shown(envelope: &CallEnvelope) -> String {
    redact::excerpt(envelope.payload.params.as_str(), Approvals::MOST_SHOWN)
}

/// Neither answers nor arguments are shown.
impl fmt::Debug for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Save(_, save) => write!(f, "save {}", save.claimed.key.fingerprint()),
            Self::Release(_, release) => write!(f, "release {}", release.key.fingerprint()),
            Self::Park(parking) => write!(f, "park a call of {}", parking.request.tool),
        }
    }
}
