//! The stored document of a turn: its current runner and the choices made in it. [`steadfast_turn::TurnHold`] decides
//! the content of the document and its meaning.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::CallerKeyScope;
use steadfast_core::dedupe::ProcessIdentity;
use steadfast_core::id::{Digest, ToolCallId, TurnId};
use steadfast_store::{
    Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, LocalProcessMonitor,
    ProcessMonitor as _, StateStore, StoreError, StoreErrorKind,
};
use steadfast_turn::{
    CandidateChoice, SubmissionHistory, TurnAcquisition, TurnDocument, TurnHolder, TurnLease as Held,
    TurnWriteConflict,
};

use super::options::TurnOptions;

/// Time that a turn is held beyond its deadline, because the clock of the store may differ from the local one.
const SLACK: Duration = Duration::from_secs(1);

/// A request to run a turn, with its deadline.
#[derive(Clone, Debug)]
pub(super) struct HoldRequest {
    pub(super) process: ProcessIdentity,
    pub(super) number: u64,
    pub(super) deadline: Duration,
    /// Time for which the document is stored after its last write.
    pub(super) lasts: Duration,
}

/// A turn that this process runs, or may run.
#[derive(Debug)]
pub(super) struct TurnHold {
    store: Arc<dyn StateStore>,
    name: DocumentName,
    state: Held,
    lasts: Duration,
}

/// Result of a request to run a turn.
#[derive(Debug)]
pub(super) enum HoldResult {
    /// This process runs it.
    Ours(SubmissionHistory),
    /// Another process runs it, and may do so until this time.
    Busy(Timestamp),
}

/// Returns the document name of a turn. It is unique per tenant and actor, and per session if that is the scope of
/// keys.
pub(super) fn name(turn: &TurnId, options: &TurnOptions) -> DocumentName {
    let target = &options.target;
    let session = match options.key_scope {
        CallerKeyScope::Conversation => Some(&target.session_key),
        CallerKeyScope::Actor => None,
    };
    let identity = (&target.tenant_id, session, &target.actor_id, turn);
    let text = serde_json::to_vec(&identity).unwrap_or_default();
    DocumentName { kind: DocumentKind::Turn, id: Digest::of(&text).to_hex().into() }
}

impl TurnHold {
    /// Takes the turn, unless another process runs it. The hold is in `place` before the store operation starts, so
    /// that the owner of `place` can release it whatever happens from then on.
    pub(super) async fn take(
        place: &mut Option<Self>,
        store: Arc<dyn StateStore>,
        name: DocumentName,
        wish: HoldRequest,
    ) -> Result<HoldResult, StoreError> {
        let mut found = store.read(&name).await?;
        loop {
            let now = store.now();
            let HoldRequest { process, number, deadline, lasts } = wish.clone();
            let sight = LocalProcessMonitor::of(process.clone());
            let me = TurnHolder { process, number, until: now + deadline + SLACK };
            let before = found.as_ref().map(read).transpose()?;
            let (state, submitted) = match Held::take(before, me, |process| sight.check_process(process), now)
            {
                TurnAcquisition::Busy(until) => return Ok(HoldResult::Busy(until)),
                TurnAcquisition::Acquired(state, submitted) => (state, submitted),
            };
            let hold = place.insert(Self { store: store.clone(), name: name.clone(), state, lasts });
            let document = hold.state.document().clone();
            match hold.put(&document).await? {
                DocumentWriteOutcome::Written(version) => {
                    hold.state.record_write(document, version);
                    return Ok(HoldResult::Ours(submitted));
                }
                DocumentWriteOutcome::Stale(there) => {
                    *place = None;
                    found = there;
                }
            }
        }
    }

    /// Stores the choice for a call before the call is sent.
    pub(super) async fn choose(
        &mut self,
        call: &ToolCallId,
        choice: &CandidateChoice,
    ) -> Result<(), StoreError> {
        match self.state.document_with_choice(call, choice) {
            None => Ok(()),
            Some(document) => match self.write(document).await? {
                TurnWriteConflict::Retry => Ok(()),
                TurnWriteConflict::Lost => Err(StoreError::not_done(
                    StoreErrorKind::Refused,
                    "another process has taken over this turn",
                )),
            },
        }
    }

    /// Releases the turn for its next submission.
    pub(super) async fn release(&mut self) -> Result<(), StoreError> {
        self.write(self.state.released_document()).await.map(drop)
    }

    /// Returns the time for which the hold would still keep others from the turn.
    pub(super) fn remaining_time(&self) -> Duration {
        self.state.holder().until.since(self.store.now())
    }

    /// Writes the document, and retries if the stored one still belongs to this hold. Returns the comparison of the
    /// two.
    async fn write(&mut self, document: TurnDocument) -> Result<TurnWriteConflict, StoreError> {
        for _ in 0..2 {
            match self.put(&document).await? {
                DocumentWriteOutcome::Written(version) => {
                    self.state.record_write(document, version);
                    return Ok(TurnWriteConflict::Retry);
                }
                DocumentWriteOutcome::Stale(there) => {
                    let there = there.as_ref().map(read).transpose()?;
                    let there = there.as_ref().map(|(version, document)| (*version, document));
                    if self.state.resolve_conflict(there) == TurnWriteConflict::Lost {
                        break;
                    }
                }
            }
        }
        Ok(TurnWriteConflict::Lost)
    }

    async fn put(&self, document: &TurnDocument) -> Result<DocumentWriteOutcome, StoreError> {
        let body = serde_json::to_string(document).map_err(unreadable)?;
        let expires = Some(self.store.now() + self.lasts);
        let write =
            DocumentWrite { replaces: self.state.replaced_version(), body: Some(body.into()), expires };
        self.store.write(&self.name, write).await
    }
}

/// Parses the document. One of another version is refused: its choices would be lost and made differently.
fn read(document: &Document) -> Result<(u64, TurnDocument), StoreError> {
    let parsed: TurnDocument = serde_json::from_str(&document.body).map_err(unreadable)?;
    match parsed.format {
        TurnDocument::FORMAT => Ok((document.version, parsed)),
        other => Err(unreadable(format_args!(
            "its format is {other}, but this version reads format {}",
            TurnDocument::FORMAT
        ))),
    }
}

fn unreadable(error: impl fmt::Display) -> StoreError {
    StoreError::not_done(
        StoreErrorKind::Unreadable,
        format!("the stored state of the turn cannot be used: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::{ActorId, SessionKey, TenantId};
    use steadfast_store::{MemoryOptions, MemoryStore, this_process};
    use steadfast_turn::CandidateChoice;

    use super::*;
    use crate::RuntimeClock;

    const TURN: Duration = Duration::from_secs(300);

    async fn take(store: &Arc<dyn StateStore>, number: u64) -> (Option<TurnHold>, HoldResult) {
        let name = DocumentName { kind: DocumentKind::Turn, id: "trip".into() };
        let wish = HoldRequest { process: this_process(), number, deadline: TURN, lasts: 10 * TURN };
        let mut place = None;
        let taken = TurnHold::take(&mut place, store.clone(), name, wish).await.unwrap();
        (place, taken)
    }

    fn choice(candidate: usize) -> CandidateChoice {
        CandidateChoice { candidate, ..CandidateChoice::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_lost_a_turn_chooses_nothing_in_it_any_more() {
        let store: Arc<dyn StateStore> =
            Arc::new(MemoryStore::new(MemoryOptions::new(Arc::new(RuntimeClock::new()))));
        let call = ToolCallId::new("pay").unwrap();
        let (first, taken) = take(&store, 1).await;
        assert!(matches!(taken, HoldResult::Ours(SubmissionHistory::First)));
        let mut first = first.unwrap();
        // The response of the store was lost: the document is written, and the turn is still held by this process.
        let document = first.state.document_with_choice(&call, &choice(2)).unwrap();
        assert!(matches!(first.put(&document).await.unwrap(), DocumentWriteOutcome::Written(_)));
        first.choose(&call, &choice(1)).await.unwrap();
        // It is held for its deadline and a little longer, because the clocks of two machines differ.
        tokio::time::advance(TURN + SLACK - Duration::from_millis(1)).await;
        assert!(matches!(take(&store, 2).await, (None, HoldResult::Busy(_))));
        tokio::time::advance(Duration::from_millis(1)).await;
        let (second, taken) = take(&store, 2).await;
        let HoldResult::Ours(SubmissionHistory::Repeated(choices)) = taken else { panic!("{taken:?}") };
        assert_eq!(choices.get(&call), Some(&choice(1)));
        assert!(first.choose(&call, &choice(2)).await.is_err());
        // A hold does not release a turn that it has lost.
        first.release().await.unwrap();
        assert!(matches!(take(&store, 3).await, (None, HoldResult::Busy(_))));
        second.unwrap().choose(&call, &choice(3)).await.unwrap();
    }

    #[test]
    fn a_name_is_that_of_one_tenant_actor_and_conversation() {
        let target =
            |tenant: Option<&str>, session: &str, actor: &str| steadfast_core::envelope::CallerIdentity {
                tenant_id: tenant.map(|tenant| TenantId::new(tenant).unwrap()),
                session_key: SessionKey::new(session).unwrap(),
                actor_id: ActorId::new(actor).unwrap(),
                agent_id: None,
                workspace_id: None,
                correlation_id: None,
                turn_id: None,
                model_id: None,
                domain: None,
                unknown: steadfast_core::envelope::ExtraFields::new(),
            };
        let turn = TurnId::new("trip").unwrap();
        let named = |target, keys_of| {
            let options = TurnOptions { key_scope: keys_of, ..TurnOptions::of(target) };
            name(&turn, &options).id
        };
        let own = || target(Some("acme"), "s", "ann");
        let others = [
            target(None, "s", "ann"),
            target(Some("other"), "s", "ann"),
            target(Some("acme"), "t", "ann"),
            target(Some("acme"), "s", "bob"),
        ];
        for other in others {
            let same = other.session_key != own().session_key;
            assert_ne!(
                named(other.clone(), CallerKeyScope::Conversation),
                named(own(), CallerKeyScope::Conversation)
            );
            assert_eq!(named(other, CallerKeyScope::Actor) == named(own(), CallerKeyScope::Actor), same);
        }
    }
}
