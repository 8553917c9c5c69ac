//! The connections of a listener: admission to connection slots, and eviction.
//!
//! A listener has a number of connection slots, and a small reserve beyond them. A connection that finds no free slot
//! takes that of a connection without a request: the oldest unauthenticated one, or else the one that has been idle
//! longest. So half-open connections cannot lock out other clients. If every connection has a request in flight, the
//! new one is accepted into the reserve. Its purpose is known once the head of its request was read: requests for
//! health and administration are served there, and every other request is answered with 503 and `Retry-After`.
//!
//! The number of unauthenticated connections from one remote address is limited. One more takes the slot of the
//! oldest of them. All clients of this machine share the loopback address, so it is exempt.
//!
//! A connection whose request was received keeps its slot until the request is answered. So does a connection whose
//! last response may not have arrived yet.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::guarded_connection::ConnectionActivity;
use crate::delivery::DeliveryLink;

/// The connections of one listener.
#[derive(Debug)]
pub(super) struct Connections {
    /// Slots for every kind of request.
    slots: usize,
    /// Slots beyond them, for essential requests.
    reserve: usize,
    /// The most unauthenticated connections of one address.
    unauthenticated: usize,
    table: Mutex<ConnectionTable>,
    /// Notified when a connection ends.
    freed: Notify,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    /// Ordered by number, so that the oldest come first.
    entries: BTreeMap<u64, ConnectionEntry>,
    next: u64,
}

#[derive(Debug)]
struct ConnectionEntry {
    /// The network of the remote address, unless it is exempt.
    network: Option<IpAddr>,
    activity: ConnectionActivity,
    link: DeliveryLink,
    is_reserved: Arc<AtomicBool>,
}

/// The slot of one connection, freed on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    is_reserved: Arc<AtomicBool>,
}

/// Interval at which the slots are checked while every connection has a request in flight.
const RECHECK: Duration = Duration::from_millis(100);

impl Connections {
    pub(super) fn new(slots: usize, reserve: usize, unauthenticated: usize) -> Arc<Self> {
        let (slots, unauthenticated) = (slots.max(1), unauthenticated.max(1));
        Arc::new(Self { slots, reserve, unauthenticated, table: Mutex::default(), freed: Notify::new() })
    }

    /// Waits until one more connection may be accepted. This only waits if the reserve is full too, which does not
    /// last: connections in the reserve close after their response.
    pub(super) async fn wait_for_slot(&self) {
        loop {
            let freed = self.freed.notified();
            {
                let table = self.table.lock();
                if table.entries.len() < self.slots + self.reserve {
                    return;
                }
                // An evicted connection closes within moments. This waits for its end.
                table.evict(|_| true);
            }
            let _ = tokio::time::timeout(RECHECK, freed).await;
        }
    }

    /// Evicts a connection without a request, because accepting failed: most likely there are no file descriptors left.
    pub(super) fn evict_one(&self) {
        self.table.lock().evict(|_| true);
    }

    /// Gives a slot to a connection that was accepted.
    pub(super) fn add(
        self: &Arc<Self>,
        address: IpAddr,
        activity: &ConnectionActivity,
        link: &DeliveryLink,
    ) -> ConnectionSlot {
        let network = network(address);
        let mut table = self.table.lock();
        let is_reserved = Arc::new(AtomicBool::new(!self.find_slot(&table, network)));
        let number = table.next;
        table.next += 1;
        let entry = ConnectionEntry {
            network,
            activity: activity.clone(),
            link: link.clone(),
            is_reserved: Arc::clone(&is_reserved),
        };
        table.entries.insert(number, entry);
        ConnectionSlot { connections: Arc::clone(self), number, is_reserved }
    }

    /// Returns true if there is a slot for one more connection of this network, perhaps that of an evicted connection.
    fn find_slot(&self, table: &ConnectionTable, network: Option<IpAddr>) -> bool {
        let is_unauthenticated = |one: &ConnectionEntry| one.network == network && !one.link.is_admitted();
        let has_too_many = network.is_some() && table.count(is_unauthenticated) >= self.unauthenticated;
        if has_too_many && !table.evict(is_unauthenticated) {
            return false;
        }
        let is_ordinary = |one: &ConnectionEntry| !one.is_reserved.load(Ordering::Relaxed);
        table.count(is_ordinary) < self.slots || table.evict(is_ordinary)
    }
}

impl ConnectionTable {
    /// Counts the matching connections that are not being closed.
    fn count(&self, matches: impl Fn(&ConnectionEntry) -> bool) -> usize {
        self.entries.values().filter(|one| !one.activity.is_evicted() && matches(one)).count()
    }

    /// Evicts a matching connection that has no request: the oldest unauthenticated one, or else the one that has
    /// been idle longest. Returns false if there is none.
    fn evict(&self, matches: impl Fn(&ConnectionEntry) -> bool) -> bool {
        let waiting = self.entries.values().filter(|one| matches(one) && !one.link.is_in_doubt());
        let since = waiting.filter_map(|one| Some((one, one.activity.waits_since()?)));
        let least = since.min_by_key(|(one, since)| (one.link.is_admitted(), *since));
        if let Some((one, _)) = least {
            one.activity.evict();
        }
        least.is_some()
    }
}

impl ConnectionSlot {
    /// Returns true if the connection is in the reserve. It moves to an ordinary slot if one has become free.
    pub(super) fn is_in_reserve(&self) -> bool {
        if !self.is_reserved.load(Ordering::Relaxed) {
            return false;
        }
        let table = self.connections.table.lock();
        let own = table.entries.get(&self.number).and_then(|one| one.network);
        let is_unauthenticated =
            |one: &ConnectionEntry| own.is_some() && one.network == own && !one.link.is_admitted();
        let is_ordinary = |one: &ConnectionEntry| !one.is_reserved.load(Ordering::Relaxed);
        // The connection itself is counted too.
        let has_slot = table.count(is_unauthenticated) <= self.connections.unauthenticated
            && (table.count(is_ordinary) < self.connections.slots || table.evict(is_ordinary));
        self.is_reserved.store(!has_slot, Ordering::Relaxed);
        !has_slot
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.table.lock().entries.remove(&self.number);
        self.connections.freed.notify_waiters();
    }
}

/// Returns the network whose addresses count as one, because an IPv6 host has a whole network of them. Loopback
/// addresses are exempt, because all clients of this machine share them.
fn network(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        address if address.is_loopback() => None,
        IpAddr::V4(address) => Some(address.into()),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Some(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SlotTestClient {
        slot: ConnectionSlot,
        activity: ConnectionActivity,
        link: DeliveryLink,
    }

    impl SlotTestClient {
        fn is_evicted(&self) -> bool {
            self.activity.is_evicted()
        }
    }

    async fn connect(connections: &Arc<Connections>, address: &str) -> SlotTestClient {
        // No two connections arrive at the same time.
        tokio::time::advance(Duration::from_millis(1)).await;
        let (activity, link) = (ConnectionActivity::new(), DeliveryLink::new());
        let slot = connections.add(address.parse().unwrap(), &activity, &link);
        SlotTestClient { slot, activity, link }
    }

    const HERE: &str = "127.0.0.1";

    #[tokio::test(start_paused = true)]
    async fn the_oldest_without_a_request_is_evicted_and_unauthenticated_ones_go_first() {
        let connections = Connections::new(3, 1, 99);
        let idle = connect(&connections, HERE).await;
        idle.activity.busy();
        idle.link.admit();
        idle.activity.idle();
        let (first, second) = (connect(&connections, HERE).await, connect(&connections, HERE).await);
        let third = connect(&connections, HERE).await;
        assert!(first.is_evicted() && !second.is_evicted() && !idle.is_evicted());
        let fourth = connect(&connections, HERE).await;
        assert!(second.is_evicted() && !idle.is_evicted());
        for one in [&third, &fourth] {
            one.activity.busy();
        }
        let fifth = connect(&connections, HERE).await;
        assert!(idle.is_evicted(), "nobody else can go");
        assert!([&third, &fourth, &fifth].iter().all(|one| !one.slot.is_in_reserve() && !one.is_evicted()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_in_flight_keeps_its_slot_and_a_new_connection_goes_to_the_reserve() {
        let connections = Connections::new(2, 1, 99);
        let (busy, in_doubt) = (connect(&connections, HERE).await, connect(&connections, HERE).await);
        busy.activity.busy();
        in_doubt.activity.busy();
        let (tracker, _delivery) = crate::delivery::DeliveryTracker::new(None);
        in_doubt.link.record_handed_over(tracker);
        in_doubt.link.record_flush();
        in_doubt.activity.idle();
        let late = connect(&connections, HERE).await;
        late.activity.busy();
        assert!(late.slot.is_in_reserve(), "nobody knows yet whether an answer has arrived");
        assert!(!busy.is_evicted() && !in_doubt.is_evicted());
        in_doubt.link.record_client_close();
        assert!(!late.slot.is_in_reserve() && in_doubt.is_evicted(), "now it does");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_arrives_in_the_last_moment_keeps_its_connection() {
        let connections = Connections::new(1, 1, 99);
        let first = connect(&connections, HERE).await;
        let _second = connect(&connections, HERE).await;
        assert!(first.is_evicted());
        first.activity.busy();
        assert!(!first.is_evicted());
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_has_a_limit_of_unauthenticated_connections_and_takes_no_slot_of_others() {
        let connections = Connections::new(99, 9, 2);
        let (other, here) = (connect(&connections, "192.0.2.9").await, connect(&connections, HERE).await);
        let (first, second) =
            (connect(&connections, "192.0.2.1").await, connect(&connections, "::ffff:192.0.2.1").await);
        let third = connect(&connections, "192.0.2.1").await;
        assert!(first.is_evicted() && !second.is_evicted() && !other.is_evicted());
        for _ in 0..5 {
            assert!(!connect(&connections, HERE).await.is_evicted());
        }
        assert!(!here.is_evicted(), "clients of this machine are not counted");
        // A connection that was admitted does not count.
        second.link.admit();
        let fourth = connect(&connections, "192.0.2.1").await;
        assert!(!second.is_evicted() && !third.is_evicted());
        for one in [&third, &fourth] {
            one.activity.busy();
        }
        let fifth = connect(&connections, "192.0.2.1").await;
        assert!(fifth.slot.is_in_reserve(), "its requests are being answered, and it was not admitted yet");
        drop(third);
        assert!(!fifth.slot.is_in_reserve());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_has_one_network_of_ipv6() {
        let connections = Connections::new(99, 9, 1);
        let first = connect(&connections, "2001:db8:1:2::1").await;
        let _other = connect(&connections, "2001:db8:1:3::1").await;
        assert!(!first.is_evicted());
        let _same = connect(&connections, "2001:db8:1:2:ffff::1").await;
        assert!(first.is_evicted());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_connections_are_accepted_than_there_are_slots_and_reserve() {
        let connections = Connections::new(1, 1, 99);
        connections.wait_for_slot().await;
        let first = connect(&connections, HERE).await;
        first.activity.busy();
        connections.wait_for_slot().await;
        let second = connect(&connections, HERE).await;
        second.activity.busy();
        assert!(second.slot.is_in_reserve());
        {
            let mut waiting = std::pin::pin!(connections.wait_for_slot());
            assert!(tokio::time::timeout(RECHECK * 3, waiting.as_mut()).await.is_err(), "both are served");
            second.activity.idle();
            tokio::time::advance(RECHECK).await;
            assert!(
                tokio::time::timeout(RECHECK * 3, waiting.as_mut()).await.is_err(),
                "it has not ended yet"
            );
            assert!(second.is_evicted());
            drop(second);
            waiting.await;
        }
        assert!(!first.is_evicted());
    }
}
