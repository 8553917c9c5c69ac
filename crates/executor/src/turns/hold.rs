//! Who runs a turn that has a name, and what was chosen in it: one document in the store.
//!
//! The calls of a turn are known by their own records, so nothing of what they did is here. What a turn chose
//! ([`Choice`]) is written before the call is sent that it leads to. Two submissions of one turn do not run at once: they
//! could choose differently.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_core::Timestamp;
use steadfast_core::call::KeysOf;
use steadfast_core::dedupe::{LeaseSight, Process};
use steadfast_core::id::{Digest, ToolCallId, TurnId};
use steadfast_core::turn::{Choice, Submitted};
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, Neighbours, Sight as _, Store, StoreError, Trouble, Written,
};

use super::TurnOptions;

/// How long a holder may be silent before another one may go on, where its process cannot be judged.
const LEASE: Duration = Duration::from_secs(30);
/// How often it says that it lives.
pub(super) const RENEWAL: Duration = Duration::from_secs(10);

/// A turn that is ours to run.
#[derive(Debug)]
pub(super) struct Hold {
    store: Arc<dyn Store>,
    name: DocumentName,
    version: u64,
    kept: Kept,
    /// How long the document stays after the turn was last heard of.
    lasts: Duration,
}

/// What came of the wish to run it.
#[derive(Debug)]
pub(super) enum Taken {
    /// It is ours.
    Ours(Box<Hold>, Submitted),
    /// Somebody runs it, and may do so until then.
    Busy(Timestamp),
}

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    format: u32,
    /// Who runs it; nobody between submissions.
    holder: Option<Holder>,
    #[serde(default)]
    choices: BTreeMap<ToolCallId, Choice>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Holder {
    process: Process,
    /// The submission within the process.
    number: u64,
    /// When it counts as gone, unless it is heard of.
    until: Timestamp,
}

const FORMAT: u32 = 1;

/// The document of a turn: of one tenant and actor, and of one conversation where the keys of its calls are.
pub(super) fn name(turn: &TurnId, options: &TurnOptions) -> DocumentName {
    let target = &options.target;
    let session = match options.keys_of {
        KeysOf::Conversation => Some(&target.session_key),
        KeysOf::Actor => None,
    };
    let whose = (&target.tenant_id, session, &target.actor_id, turn);
    let text = serde_json::to_vec(&whose).unwrap_or_default();
    DocumentName { kind: DocumentKind::Turn, id: Digest::of(&text).to_hex().into() }
}

impl Hold {
    /// Takes the turn, unless somebody runs it.
    pub(super) async fn take(
        store: Arc<dyn Store>,
        name: DocumentName,
        (process, number): (Process, u64),
        lasts: Duration,
    ) -> Result<Taken, StoreError> {
        let mut found = store.read(&name).await?;
        loop {
            let now = store.now();
            let before: Option<Kept> = match &found {
                None => None,
                Some(document) => Some(serde_json::from_str(&document.body).map_err(unreadable)?),
            };
            if let Some(until) = before.as_ref().and_then(|kept| kept.busy(&process, now)) {
                return Ok(Taken::Busy(until));
            }
            let submitted = match &before {
                None => Submitted::First,
                Some(kept) => Submitted::Again(kept.choices.clone()),
            };
            let choices = before.map(|kept| kept.choices).unwrap_or_default();
            let holder = Some(Holder { process: process.clone(), number, until: now + LEASE });
            let kept = Kept { format: FORMAT, holder, choices };
            let replaces = found.as_ref().map(|document| document.version);
            let write = DocumentWrite { replaces, body: Some(kept.body()?), expires: Some(now + lasts) };
            match store.write(&name, write).await? {
                Written::As(version) => {
                    let hold = Self { store, name, version, kept, lasts };
                    return Ok(Taken::Ours(Box::new(hold), submitted));
                }
                Written::Stale(there) => found = there,
            }
        }
    }

    /// Writes down what was chosen for a call, before it is sent.
    pub(super) async fn choose(&mut self, call: ToolCallId, choice: Choice) -> Result<(), StoreError> {
        if self.kept.choices.get(&call) == Some(&choice) {
            return Ok(());
        }
        let mut kept = self.kept.clone();
        kept.choices.insert(call, choice);
        self.write(kept).await
    }

    /// Says that it lives.
    pub(super) async fn renew(&mut self) -> Result<(), StoreError> {
        let mut kept = self.kept.clone();
        if let Some(holder) = &mut kept.holder {
            holder.until = self.store.now() + LEASE;
        }
        self.write(kept).await
    }

    /// Leaves the turn to whoever submits it next.
    pub(super) async fn release(mut self) -> Result<(), StoreError> {
        let kept = Kept { holder: None, ..self.kept.clone() };
        self.write(kept).await
    }

    async fn write(&mut self, kept: Kept) -> Result<(), StoreError> {
        let expires = Some(self.store.now() + self.lasts);
        // After a write whose answer was lost, what is there is ours with a later version.
        for _ in 0..2 {
            let write = DocumentWrite { replaces: Some(self.version), body: Some(kept.body()?), expires };
            match self.store.write(&self.name, write).await? {
                Written::As(version) => {
                    (self.version, self.kept) = (version, kept);
                    return Ok(());
                }
                Written::Stale(Some(there)) if self.is_ours(&there.body) => self.version = there.version,
                Written::Stale(_) => break,
            }
        }
        Err(StoreError::not_done(Trouble::Refused, "another process has gone on with this turn"))
    }

    fn is_ours(&self, body: &str) -> bool {
        let whose = |kept: &Kept| kept.holder.as_ref().map(|holder| (holder.process.clone(), holder.number));
        serde_json::from_str(body).is_ok_and(|kept: Kept| whose(&kept) == whose(&self.kept))
    }
}

impl Kept {
    /// Until when somebody may be running it.
    fn busy(&self, own: &Process, now: Timestamp) -> Option<Timestamp> {
        let holder = self.holder.as_ref().filter(|holder| now < holder.until)?;
        let sight = Neighbours::of(own.clone()).sight(&holder.process);
        (sight != LeaseSight::Gone).then_some(holder.until)
    }

    fn body(&self) -> Result<Arc<str>, StoreError> {
        Ok(serde_json::to_string(self).map_err(unreadable)?.into())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it stands where errors are mapped")]
fn unreadable(error: serde_json::Error) -> StoreError {
    StoreError::not_done(Trouble::Unreadable, format!("what is kept of the turn cannot be used: {error}"))
}
