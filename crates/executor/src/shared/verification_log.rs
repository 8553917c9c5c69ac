//! Verification of unknown outcomes by callers.
//!
//! A caller that got a final response that an outcome is unknown may check it with any read-only tool of the same
//! server. If a read began after that response had arrived, and succeeded, the same call may run again. Only the
//! process that sent the response remembers this. If it is lost, that costs a wait, never a second effect.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use steadfast_core::dedupe::ClaimOwner;
use steadfast_core::id::Namespace;

use crate::keys::SessionId;
use crate::writes::deliveries::OutcomeRecipient;

/// The unknown outcomes that sessions were informed of.
#[derive(Debug, Default)]
pub(crate) struct VerificationLog {
    sessions: Mutex<SessionOutcomes>,
}

#[derive(Debug, Default)]
struct SessionOutcomes {
    outcomes: HashMap<SessionId, VecDeque<UnverifiedOutcome>>,
    /// Sessions in the order of their first unknown outcome.
    order: VecDeque<SessionId>,
}

#[derive(Debug)]
struct UnverifiedOutcome {
    owner: ClaimOwner,
    server: Namespace,
    verified: bool,
}

/// Maximum number of sessions. Beyond it, the oldest are removed.
const MOST_SESSIONS: usize = 4096;
/// Maximum number of unknown outcomes per session.
const MOST_OUTCOMES: usize = 64;

impl VerificationLog {
    /// Notes that a final response with an unknown outcome of this run has reached its caller.
    pub(crate) fn record_unknown_outcome(
        &self,
        OutcomeRecipient { session, server }: OutcomeRecipient,
        owner: ClaimOwner,
    ) {
        let mut sessions = self.sessions.lock();
        if !sessions.outcomes.contains_key(&session) {
            sessions.order.push_back(session.clone());
            if sessions.order.len() > MOST_SESSIONS
                && let Some(oldest) = sessions.order.pop_front()
            {
                sessions.outcomes.remove(&oldest);
            }
        }
        let outcomes = sessions.outcomes.entry(session).or_default();
        if outcomes.iter().all(|outcome| outcome.owner != owner) {
            outcomes.push_back(UnverifiedOutcome { owner, server, verified: false });
            if outcomes.len() > MOST_OUTCOMES {
                outcomes.pop_front();
            }
        }
    }

    /// Begins a read, and returns the runs that it verifies if it succeeds.
    pub(crate) fn read_begins(&self, session: &SessionId, server: &Namespace) -> Vec<ClaimOwner> {
        let sessions = self.sessions.lock();
        let outcomes = sessions.outcomes.get(session).into_iter().flatten();
        outcomes.filter(|outcome| outcome.server == *server).map(|outcome| outcome.owner.clone()).collect()
    }

    /// Marks these runs as verified after a successful read.
    pub(crate) fn read_succeeded(&self, session: &SessionId, owners: &[ClaimOwner]) {
        let mut sessions = self.sessions.lock();
        for outcome in sessions.outcomes.get_mut(session).into_iter().flatten() {
            outcome.verified |= owners.contains(&outcome.owner);
        }
    }

    /// Returns the runs that this session has verified.
    pub(crate) fn verified(&self, session: &SessionId) -> Vec<ClaimOwner> {
        let sessions = self.sessions.lock();
        let outcomes = sessions.outcomes.get(session).into_iter().flatten();
        outcomes.filter(|outcome| outcome.verified).map(|outcome| outcome.owner.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::SessionKey;
    use steadfast_store::this_process;

    use super::*;

    fn session(name: &str) -> SessionId {
        SessionId { tenant: None, session: Some(SessionKey::new(name).unwrap()) }
    }

    fn owner(call: u64) -> ClaimOwner {
        ClaimOwner { process: this_process(), call, claim: 1 }
    }

    fn server(name: &str) -> Namespace {
        Namespace::new(name).unwrap()
    }

    #[test]
    fn only_a_read_that_began_after_the_answer_arrived_counts() {
        let verifications = VerificationLog::default();
        let early = verifications.read_begins(&session("a"), &server("bank"));
        verifications.record_unknown_outcome(
            OutcomeRecipient { session: session("a"), server: server("bank") },
            owner(1),
        );
        verifications.read_succeeded(&session("a"), &early);
        assert!(verifications.verified(&session("a")).is_empty());
        let later = verifications.read_begins(&session("a"), &server("bank"));
        assert!(verifications.verified(&session("a")).is_empty(), "it has not succeeded yet");
        verifications.read_succeeded(&session("a"), &later);
        assert_eq!(verifications.verified(&session("a")), [owner(1)]);
    }

    #[test]
    fn another_conversation_or_another_server_does_not_count() {
        let verifications = VerificationLog::default();
        verifications.record_unknown_outcome(
            OutcomeRecipient { session: session("a"), server: server("bank") },
            owner(1),
        );
        for (name, at) in [("b", "bank"), ("a", "mail")] {
            let read = verifications.read_begins(&session(name), &server(at));
            assert!(read.is_empty(), "{name} {at}");
        }
        verifications.read_succeeded(&session("b"), &[owner(1)]);
        assert!(verifications.verified(&session("a")).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let verifications = VerificationLog::default();
        for call in 0..100 {
            verifications.record_unknown_outcome(
                OutcomeRecipient { session: session("a"), server: server("bank") },
                owner(call),
            );
        }
        assert_eq!(verifications.read_begins(&session("a"), &server("bank")).len(), MOST_OUTCOMES);
        for number in 0..MOST_SESSIONS {
            let recipient =
                OutcomeRecipient { session: session(&number.to_string()), server: server("bank") };
            verifications.record_unknown_outcome(recipient, owner(1));
        }
        assert!(verifications.read_begins(&session("a"), &server("bank")).is_empty());
    }
}
