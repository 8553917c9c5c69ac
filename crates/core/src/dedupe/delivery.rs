//! When an answer counts as delivered.
//!
//! Delivered is a fact about one answer: the connection that carried it later brings any message but a cancel
//! of that call, or it is still open some seconds after the write. A message on another connection proves
//! nothing; the resend after a broken connection is such a message. So that "still open" means
//! "acknowledged", connections get a user time-out below [`Delivery::STILL_OPEN`].

use std::time::Duration;

use crate::Timestamp;

/// An answer that was written to a connection, and whether it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    written: Timestamp,
}

/// What the connection that carried the answer did next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It brought a message, and not a cancel of this call.
    Message,
    /// It brought a cancel of this call: the two crossed, and nobody reads the answer.
    CancelOfThisCall,
    /// Nothing; it is still open.
    StillOpen,
    /// It is closed or broken.
    Closed,
}

impl Delivery {
    /// After so long on an open connection an answer counts as delivered.
    pub const STILL_OPEN: Duration = Duration::from_secs(5);

    /// An answer that was written now.
    pub const fn written(now: Timestamp) -> Self {
        Self { written: now }
    }

    /// Whether the answer has arrived; nothing while that is open, `Some(false)` if it never will.
    pub fn arrived(self, heard: Heard, now: Timestamp) -> Option<bool> {
        match heard {
            Heard::Message => Some(true),
            Heard::CancelOfThisCall | Heard::Closed => Some(false),
            Heard::StillOpen => (now.since(self.written) >= Self::STILL_OPEN).then_some(true),
        }
    }

    /// When to look again if nothing is heard.
    pub fn look_at(self) -> Timestamp {
        self.written + Self::STILL_OPEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_arrived_when_its_connection_speaks_again_or_stays_open() {
        let at = Timestamp::from_millis;
        let delivery = Delivery::written(at(1000));
        for (heard, now, arrived) in [
            (Heard::Message, 1001, Some(true)),
            (Heard::CancelOfThisCall, 1001, Some(false)),
            (Heard::Closed, 9000, Some(false)),
            (Heard::StillOpen, 5999, None),
            (Heard::StillOpen, 6000, Some(true)),
        ] {
            assert_eq!(delivery.arrived(heard, at(now)), arrived, "{heard:?} at {now}");
        }
        assert_eq!(delivery.look_at(), at(6000));
    }
}
