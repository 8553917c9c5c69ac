//! Delivery of responses: the rules by which a response counts as delivered.
//!
//! Delivery is a fact about one response. It is delivered if the connection that carried it later brings any message
//! other than a cancellation of that call, or is still open some seconds after the write. A message on another
//! connection proves nothing: a resend after a broken connection is such a message. Connections get a user timeout
//! below [`Delivery::DELIVERED_AFTER`], so that "still open" means "acknowledged".

use std::time::Duration;

use crate::Timestamp;

/// The delivery state of a response that was written to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    written: Timestamp,
}

/// The next event on the connection that carried the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliverySignal {
    /// A message other than a cancellation of this call.
    Message,
    /// A cancellation of this call. It crossed the response, and the client ignores the response.
    CancelOfThisCall,
    /// No event. The connection is still open.
    StillOpen,
    /// The connection is closed or broken.
    Closed,
}

impl Delivery {
    /// The time after which a response on an open connection counts as delivered.
    pub const DELIVERED_AFTER: Duration = Duration::from_secs(5);

    /// Returns the state of a response that is written now.
    pub const fn written(now: Timestamp) -> Self {
        Self { written: now }
    }

    /// Returns `Some(true)` if the response has arrived, `Some(false)` if it never will, and `None` while that is open.
    pub fn has_arrived(self, signal: DeliverySignal, now: Timestamp) -> Option<bool> {
        match signal {
            DeliverySignal::Message => Some(true),
            DeliverySignal::CancelOfThisCall | DeliverySignal::Closed => Some(false),
            DeliverySignal::StillOpen => (now.since(self.written) >= Self::DELIVERED_AFTER).then_some(true),
        }
    }

    /// Returns the time of the next check if there is no event.
    pub fn next_check(self) -> Timestamp {
        self.written + Self::DELIVERED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_has_arrived_when_its_connection_sends_again_or_stays_open() {
        let at = Timestamp::from_millis;
        let delivery = Delivery::written(at(1000));
        for (signal, now, arrived) in [
            (DeliverySignal::Message, 1001, Some(true)),
            (DeliverySignal::CancelOfThisCall, 1001, Some(false)),
            (DeliverySignal::Closed, 9000, Some(false)),
            (DeliverySignal::StillOpen, 5999, None),
            (DeliverySignal::StillOpen, 6000, Some(true)),
        ] {
            assert_eq!(delivery.has_arrived(signal, at(now)), arrived, "{signal:?} at {now}");
        }
        assert_eq!(delivery.next_check(), at(6000));
    }
}
