//! Requests and grants: in the store, with a copy here for the decisions that must not wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfast_core::approval::{
    Approvals, Decided, Decision, Grantor, NotDecided, Parked, ParkedId, Spend, Wanted,
};
use steadfast_core::id::{Digest, RequestId, SessionKey, TenantId, ToolRef};
use steadfast_core::notification::Notification;
use steadfast_core::output::Output;
use steadfast_core::policy::Annotations;
use steadfast_core::trust::{Escalation, Signature, Target};
use steadfast_store::{DocumentKind, DocumentName, DocumentWrite, StoreError, Trouble, Written};
use tokio::sync::OwnedMutexGuard;

use crate::audit::{By, Deed, Done};
use crate::cells::Tenant;
use crate::engine::{Engine, Inner};
use crate::telling::Outside;

/// Why a person's answer could not be taken.
#[derive(Debug)]
pub enum AnswerError {
    /// It does not fit the request.
    NotDecided(NotDecided),
    /// The store failed; it may be tried again.
    Store(StoreError),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDecided(why) => why.fmt(f),
            Self::Store(error) => write!(f, "the answer could not be stored: {error}"),
        }
    }
}

impl std::error::Error for AnswerError {}

/// Puts questions to the person at the end of a caller.
pub trait Asker: fmt::Debug + Send + Sync {
    /// A call waits for this request. What comes back first counts, this or an operator's answer; it is dropped when
    /// nobody wants to hear of it any more.
    fn ask(&self, id: ParkedId, request: Parked) -> Asking;
}

/// A question on its way.
pub type Asking = Pin<Box<dyn Future<Output = Asked> + Send>>;

/// What came of asking the caller's end.
#[derive(Clone, Debug)]
pub enum Asked {
    /// The person has decided. Counts as the word of the client, which is not that of an operator.
    Decided(Decision),
    /// Nobody there can be asked.
    Nobody,
    /// The caller gets this question as the answer to its call, and brings the decision when it calls again.
    PutToCaller(Output),
}

/// What a person is asked for that is no call.
#[derive(Debug)]
pub struct Wish<'a> {
    /// Whose data it is about.
    pub tenant: Option<&'a TenantId>,
    /// The session that wants it.
    pub session: Option<&'a SessionKey>,
    /// What is wanted, under the name of a tool.
    pub tool: &'a ToolRef,
    /// What it is wanted for. A yes holds for the same alone.
    pub shown: &'a str,
    /// What the person reads.
    pub prompt: Escalation,
    /// True if only an operator may approve.
    pub operator_only: bool,
    /// Who asks the person at the client, where one can be asked.
    pub asker: Option<Arc<dyn Asker>>,
}

/// What came of a wish.
#[derive(Debug)]
pub enum Granted {
    /// A person said yes, to this once.
    Yes(Grantor),
    /// A person said no.
    No,
    /// Nobody could be asked: it waits for an operator, under this number.
    Waits(ParkedId),
    /// The caller gets this question as its answer, and brings the decision when it asks again.
    PutToCaller(Output),
}

/// How often a change is tried again because somebody else was faster.
const TRIES: u32 = 32;

impl Engine {
    /// The requests of a tenant that wait for an answer.
    pub fn approvals(&self, tenant: Option<&TenantId>) -> Vec<(ParkedId, Parked)> {
        let cell = self.inner.machines.tenants.get(&tenant.cloned());
        let now = self.inner.clock.now();
        let judged = cell.judged.lock();
        judged.approvals.parked(now).map(|(id, parked)| (id, parked.clone())).collect()
    }

    /// A person's answer to a request.
    pub async fn decide(
        &self,
        tenant: Option<&TenantId>,
        request: ParkedId,
        decision: Decision,
        grantor: Grantor,
        by: &By,
    ) -> Result<Decided, AnswerError> {
        let (inner, now) = (&self.inner, self.inner.clock.now());
        let owner = tenant.cloned();
        let (mut about, mut recovers) = (None, None);
        let decided = inner.change_approvals(&owner, |approvals| {
            let asked = approvals.parked(now).find(|(id, _)| *id == request);
            about = asked.as_ref().map(|(_, parked)| parked.tool.to_string());
            recovers = asked.map(|(_, parked)| (parked.tool.clone(), parked.prompt.domain.clone()));
            approvals.decide(request, decision, grantor, now)
        });
        let decided = decided.await.map_err(AnswerError::Store)?.map_err(AnswerError::NotDecided)?;
        let deed = match decided {
            Decided::Granted { .. } => Deed::Approved,
            Decided::Denied => Deed::Denied,
        };
        let on = format!("request {} of {}", request.0, about.as_deref().unwrap_or("an unknown tool"));
        let after = Some(match decision {
            Decision::Once => "once".to_owned(),
            Decision::Session => "for the session".to_owned(),
            Decision::Time { until } => format!("until {until}"),
            Decision::Recover => "once, and it recovers".to_owned(),
            Decision::Deny => "denied".to_owned(),
        });
        inner.audited(by, Done { deed, tenant, on, before: None, after }).await;
        if let (Decision::Recover, Some((tool, domain))) = (decision, recovers) {
            let target = domain.as_ref().map_or(Target::Tool(&tool), Target::Domain);
            self.approve_recovery(tenant, target, by).await.map_err(AnswerError::Store)?;
        }
        Ok(decided)
    }
}

impl Engine {
    /// Asks a person for something that is no call: the one at the client, else an operator. What was granted before counts
    /// once.
    pub async fn ask_person(&self, wish: Wish<'_>) -> Result<Granted, StoreError> {
        let (inner, now, tenant) = (&self.inner, self.inner.clock.now(), wish.tenant.cloned());
        let signature = Signature(wish.shown.into());
        let wanted = Wanted {
            tool: wish.tool,
            arguments: Digest::of(wish.shown.as_bytes()),
            signature: &signature,
            session: wish.session,
            blocked: wish.operator_only,
        };
        let spender = Digest::of(format!("{} {}", inner.tag, inner.next_told()).as_bytes());
        let policy = inner.policy_of_blank(&tenant, Some(wish.tool), None, Annotations::default());
        let take = |approvals: &mut Approvals| {
            let grant = approvals.grant_for(wanted, now)?;
            let by = approvals.grants(now).find(|(id, _)| *id == grant).map(|(_, grant)| grant.by);
            match approvals.spend(grant, spender, now) {
                Spend::Spent | Spend::AlreadyMine | Spend::Holds => by,
                Spend::Lost | Spend::Gone => None,
            }
        };
        let asked = inner.change_approvals(&tenant, |approvals| {
            take(approvals).map_or_else(
                || Err(approvals.ask(wanted, &wish.prompt, Some(wish.shown), &policy.approval, now).id),
                Ok,
            )
        });
        let id = match asked.await? {
            Ok(by) => return Ok(Granted::Yes(by)),
            Err(id) => id,
        };
        inner.tell_asked(&tenant, id, None, policy.trust.notify);
        let parked = self.approvals(wish.tenant).into_iter().find(|(parked, _)| *parked == id);
        let decision = match (&wish.asker.filter(|_| !wish.operator_only), parked) {
            (Some(asker), Some((_, parked))) => match asker.ask(id, parked).await {
                Asked::Decided(Decision::Deny) => Decision::Deny,
                Asked::Decided(_) => Decision::Once,
                Asked::PutToCaller(question) => return Ok(Granted::PutToCaller(question)),
                Asked::Nobody => return Ok(Granted::Waits(id)),
            },
            (Some(_) | None, Some(_) | None) => return Ok(Granted::Waits(id)),
        };
        let decided = inner.change_approvals(&tenant, |approvals| {
            let decided = approvals.decide(id, decision, Grantor::Client, now);
            // Somebody else may have been faster.
            decided.is_ok().then(|| take(approvals)).flatten()
        });
        Ok(decided.await?.map_or(Granted::No, Granted::Yes))
    }

    /// A session is over, and with it what was approved for it, and its trust where that is its own.
    pub async fn end_session(
        &self,
        tenant: Option<&TenantId>,
        session: &SessionKey,
    ) -> Result<(), StoreError> {
        let tenant = tenant.cloned();
        self.inner.machines.tenants.get(&tenant).judged.lock().end_session(session);
        self.inner.change_approvals(&tenant, |approvals| approvals.end_session(session)).await
    }
}

impl Inner {
    /// Changes the approvals of a tenant in the store, and the copy here with it. `change` may be made more than
    /// once; only the last one counts.
    pub(crate) async fn change_approvals<R>(
        &self,
        tenant: &Option<TenantId>,
        mut change: impl FnMut(&mut Approvals) -> R,
    ) -> Result<R, StoreError> {
        let name = document(tenant);
        let _changing = self.machines.tenants.get(tenant).changing_approvals.clone().lock_owned().await;
        let mut found = self.store.read(&name).await?;
        for _ in 0..TRIES {
            let mut approvals =
                found.as_ref().map_or_else(|| Ok(Approvals::default()), |document| read(&document.body))?;
            self.tell_asked_elsewhere(tenant, &approvals);
            let before = approvals.clone();
            let result = change(&mut approvals);
            if approvals == before {
                self.take_approvals(tenant, approvals);
                return Ok(result);
            }
            let body = serde_json::to_string(&approvals)
                .map_err(|error| StoreError::not_done(Trouble::Unreadable, error.to_string()))?;
            let write = DocumentWrite {
                replaces: found.map(|document| document.version),
                body: Some(body.into()),
                expires: None,
            };
            match self.store.write(&name, write).await? {
                Written::As(_) => {
                    self.take_approvals(tenant, approvals);
                    return Ok(result);
                }
                Written::Stale(now) => found = now,
            }
        }
        Err(StoreError::not_done(
            Trouble::Full,
            "the approvals are being changed by too many at once; try again",
        ))
    }

    /// The same where the change has to be made somewhere: if the store fails, only here.
    pub(crate) async fn change_approvals_at_least_here<R>(
        &self,
        tenant: &Option<TenantId>,
        mut change: impl FnMut(&mut Approvals) -> R,
    ) -> R {
        match self.change_approvals(tenant, &mut change).await {
            Ok(result) => result,
            Err(error) => {
                self.telling.store_failed(self.store.kind(), &error);
                let cell = self.machines.tenants.get(tenant);
                let result = change(&mut cell.judged.lock().approvals);
                self.approvals_changed(&cell);
                result
            }
        }
    }

    /// Tells people of a request, the first time that it is asked for; with the call that asks, where it is one.
    pub(crate) fn tell_asked(
        &self,
        tenant: &Option<TenantId>,
        id: ParkedId,
        request_id: Option<&RequestId>,
        for_client: bool,
    ) {
        let cell = self.machines.tenants.get(tenant);
        let now = self.clock.now();
        let asked = {
            let judged = cell.judged.lock();
            let mut open = judged.approvals.parked(now);
            let is_first = |(open, parked): &(ParkedId, &Parked)| *open == id && parked.askers == 1;
            open.find(is_first).map(|(_, parked)| Notification::approval(tenant.as_ref(), id, parked))
        };
        if let Some(asked) = asked {
            self.telling.notify(Notification { request_id: request_id.cloned(), for_client, ..asked });
        }
    }

    /// Takes what the store says about the approvals of a tenant, under the lock of changes.
    pub(crate) fn adopt_stored_approvals(&self, name: &DocumentName, body: &str) -> Result<(), StoreError> {
        let (tenant, approvals) = (TenantId::new(&name.id).ok(), read(body)?);
        self.tell_asked_elsewhere(&tenant, &approvals);
        self.take_approvals(&tenant, approvals);
        Ok(())
    }

    /// Notifies people here of requests that other processes parked. Numbers only grow, so the greatest one that was seen says
    /// which are new. Whoever calls this holds the lock of changes: a request of our own has been taken by then.
    fn tell_asked_elsewhere(&self, tenant: &Option<TenantId>, approvals: &Approvals) {
        let now = self.clock.now();
        let seen = self.machines.tenants.get(tenant).see_asked(approvals);
        if !self.is_loaded.load(Ordering::Acquire) {
            return;
        }
        for (id, parked) in approvals.parked(now).filter(|(id, _)| id.0 >= seen) {
            let for_client = self.policy_of_tool(tenant, &parked.tool).trust.notify;
            let asked = Notification::approval(tenant.as_ref(), id, parked);
            self.telling.notify(Notification { for_client, is_from_elsewhere: true, ..asked });
        }
    }

    /// Takes these approvals as the ones that hold.
    fn take_approvals(&self, tenant: &Option<TenantId>, approvals: Approvals) {
        let cell = self.machines.tenants.get(tenant);
        cell.see_asked(&approvals);
        cell.judged.lock().approvals = approvals;
        self.approvals_changed(&cell);
    }

    /// Keeps others from changing what a document says about approvals, in this process; nothing where it is no such document.
    pub(crate) async fn lock_approvals(&self, name: &DocumentName) -> Option<OwnedMutexGuard<()>> {
        if name.kind != DocumentKind::Approvals {
            return None;
        }
        let cell = self.machines.tenants.get(&TenantId::new(&name.id).ok());
        Some(cell.changing_approvals.clone().lock_owned().await)
    }

    /// Tells those who wait for an answer, and those who count them.
    fn approvals_changed(&self, cell: &Tenant) {
        self.count_waiting(cell);
        cell.approvals_changed.notify_waiters();
    }

    /// A request that expires does so by itself: nobody changes anything then.
    pub(crate) fn recount_waiting(&self) {
        for (_, cell) in self.machines.tenants.all() {
            self.count_waiting(&cell);
        }
    }

    fn count_waiting(&self, cell: &Tenant) {
        let at = self.clock.now();
        let (before, now) = {
            let judged = cell.judged.lock();
            let now = judged.approvals.parked(at).count();
            (cell.waiting.swap(now, Ordering::Relaxed), now)
        };
        if before != now {
            self.telling.outside(&Outside::Waiting { before, now });
        }
    }
}

fn document(tenant: &Option<TenantId>) -> DocumentName {
    let id: Arc<str> = tenant.as_ref().map_or_else(|| Arc::from(""), |tenant| Arc::from(tenant.as_str()));
    DocumentName { kind: DocumentKind::Approvals, id }
}

fn read(body: &str) -> Result<Approvals, StoreError> {
    serde_json::from_str(body).map_err(|error| {
        StoreError::not_done(Trouble::Unreadable, format!("the stored approvals cannot be read: {error}"))
    })
}
