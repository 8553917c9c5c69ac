//! Room for connections: who has a place, who has to make room, and what is left for those who look after the gateway.
//!
//! A listener has so many places for connections, and beyond them a small reserve. A connection that finds no place takes one
//! from a connection that brings nothing: the oldest on which nobody was admitted yet, else the one that is idle for the
//! longest time. So half-open connections, however many there are, keep nobody out. If every connection is being answered, the
//! newcomer is accepted into the reserve. What it wants is known when the head of its request was read: health and
//! administration are served there, and everything else is answered with 503 and `Retry-After`.
//!
//! From one address beyond this machine there may be so many connections on which nobody was admitted. One more takes the
//! place of the oldest of them. All clients of this machine share its address, so none is counted there.
//!
//! A connection whose request was received keeps its place until that is answered, and so does one whose answer may not have
//! arrived yet.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::guard::Activity;
use crate::delivery::Link;

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Room {
    /// Places for every kind of request.
    connections: usize,
    /// Places beyond them.
    reserve: usize,
    /// Connections of one address on which nobody was admitted.
    strangers: usize,
    table: Mutex<Table>,
    /// A connection has ended.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// By number, so that the oldest come first.
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

#[derive(Debug)]
struct Connection {
    /// Where it comes from; nothing where that is not counted.
    network: Option<IpAddr>,
    activity: Activity,
    link: Link,
    is_reserved: Arc<AtomicBool>,
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    number: u64,
    is_reserved: Arc<AtomicBool>,
}

/// How often it is looked for a place while every connection is being answered.
const LOOK: Duration = Duration::from_millis(100);

impl Room {
    pub(super) fn new(connections: usize, reserve: usize, strangers: usize) -> Arc<Self> {
        let (connections, strangers) = (connections.max(1), strangers.max(1));
        Arc::new(Self { connections, reserve, strangers, table: Mutex::default(), freed: Notify::new() })
    }

    /// Waits until one more connection may be accepted. Only where the reserve is taken as well, which is short: what is served
    /// there ends with its answer.
    pub(super) async fn has_place(&self) {
        loop {
            let freed = self.freed.notified();
            {
                let table = self.table.lock();
                if table.connections.len() < self.connections + self.reserve {
                    return;
                }
                // Ends within moments, and is waited for.
                table.evict(|_| true);
            }
            let _ = tokio::time::timeout(LOOK, freed).await;
        }
    }

    /// Ends the connection that is missed least, where no more can be accepted for another reason.
    pub(super) fn make_room(&self) {
        self.table.lock().evict(|_| true);
    }

    /// Gives a place to a connection that was accepted.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, activity: &Activity, link: &Link) -> Place {
        let network = network(address);
        let mut table = self.table.lock();
        let is_reserved = Arc::new(AtomicBool::new(!self.finds_place(&table, network)));
        let number = table.next;
        table.next += 1;
        let connection = Connection {
            network,
            activity: activity.clone(),
            link: link.clone(),
            is_reserved: Arc::clone(&is_reserved),
        };
        table.connections.insert(number, connection);
        Place { room: Arc::clone(self), number, is_reserved }
    }

    /// Whether there is a place for one more connection of this network, perhaps that of another one.
    fn finds_place(&self, table: &Table, network: Option<IpAddr>) -> bool {
        let is_stranger = |one: &Connection| one.network == network && !one.link.is_admitted();
        let has_too_many = network.is_some() && table.count(is_stranger) >= self.strangers;
        if has_too_many && !table.evict(is_stranger) {
            return false;
        }
        let is_ordinary = |one: &Connection| !one.is_reserved.load(Ordering::Relaxed);
        table.count(is_ordinary) < self.connections || table.evict(is_ordinary)
    }
}

impl Table {
    /// The connections of this kind that do not end already.
    fn count(&self, is_meant: impl Fn(&Connection) -> bool) -> usize {
        self.connections.values().filter(|one| !one.activity.is_evicted() && is_meant(one)).count()
    }

    /// Ends one connection of this kind that brings nothing: the oldest on which nobody was admitted, else the one that is idle
    /// for the longest time. Says whether there is one.
    fn evict(&self, is_meant: impl Fn(&Connection) -> bool) -> bool {
        let waiting = self.connections.values().filter(|one| is_meant(one) && !one.link.is_in_doubt());
        let since = waiting.filter_map(|one| Some((one, one.activity.waits_since()?)));
        let least = since.min_by_key(|(one, since)| (one.link.is_admitted(), *since));
        if let Some((one, _)) = least {
            one.activity.evict();
        }
        least.is_some()
    }
}

impl Place {
    /// Whether the connection is in the reserve. One that was accepted there takes an ordinary place if there is one by now.
    pub(super) fn is_in_reserve(&self) -> bool {
        if !self.is_reserved.load(Ordering::Relaxed) {
            return false;
        }
        let table = self.room.table.lock();
        // It is counted itself otherwise.
        let own = table.connections.get(&self.number).and_then(|one| one.network);
        let is_stranger = |one: &Connection| own.is_some() && one.network == own && !one.link.is_admitted();
        let is_ordinary = |one: &Connection| !one.is_reserved.load(Ordering::Relaxed);
        let has_place = table.count(is_stranger) <= self.room.strangers
            && (table.count(is_ordinary) < self.room.connections || table.evict(is_ordinary));
        self.is_reserved.store(!has_place, Ordering::Relaxed);
        !has_place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.table.lock().connections.remove(&self.number);
        self.room.freed.notify_waiters();
    }
}

/// The addresses that count as one: a host with IPv6 has a whole network of them. Those of this machine are shared by all of its
/// clients, and are not counted.
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

    struct Client {
        place: Place,
        activity: Activity,
        link: Link,
    }

    impl Client {
        fn is_out(&self) -> bool {
            self.activity.is_evicted()
        }
    }

    async fn comes(room: &Arc<Room>, address: &str) -> Client {
        // No two come at the same time.
        tokio::time::advance(Duration::from_millis(1)).await;
        let (activity, link) = (Activity::new(), Link::new());
        let place = room.enter(address.parse().unwrap(), &activity, &link);
        Client { place, activity, link }
    }

    const HERE: &str = "127.0.0.1";

    #[tokio::test(start_paused = true)]
    async fn the_oldest_that_brings_nothing_makes_room_and_strangers_go_first() {
        let room = Room::new(3, 1, 99);
        let idle = comes(&room, HERE).await;
        idle.activity.busy();
        idle.link.admit();
        idle.activity.idle();
        let (first, second) = (comes(&room, HERE).await, comes(&room, HERE).await);
        let third = comes(&room, HERE).await;
        assert!(first.is_out() && !second.is_out() && !idle.is_out());
        let fourth = comes(&room, HERE).await;
        assert!(second.is_out() && !idle.is_out());
        for one in [&third, &fourth] {
            one.activity.busy();
        }
        let fifth = comes(&room, HERE).await;
        assert!(idle.is_out(), "nobody else can go");
        assert!([&third, &fourth, &fifth].iter().all(|one| !one.place.is_in_reserve() && !one.is_out()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_being_answered_keeps_its_place_and_who_comes_then_is_in_the_reserve() {
        let room = Room::new(2, 1, 99);
        let (busy, in_doubt) = (comes(&room, HERE).await, comes(&room, HERE).await);
        busy.activity.busy();
        in_doubt.activity.busy();
        let (tracker, _delivery) = crate::delivery::Tracker::new(None);
        in_doubt.link.handed(tracker);
        in_doubt.link.flushed();
        in_doubt.activity.idle();
        let late = comes(&room, HERE).await;
        late.activity.busy();
        assert!(late.place.is_in_reserve(), "nobody knows yet whether an answer has arrived");
        assert!(!busy.is_out() && !in_doubt.is_out());
        in_doubt.link.taken();
        assert!(!late.place.is_in_reserve() && in_doubt.is_out(), "now it does");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_arrives_in_the_last_moment_keeps_its_connection() {
        let room = Room::new(1, 1, 99);
        let first = comes(&room, HERE).await;
        let _second = comes(&room, HERE).await;
        assert!(first.is_out());
        first.activity.busy();
        assert!(!first.is_out());
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_has_so_many_strangers_and_takes_no_place_of_others() {
        let room = Room::new(99, 9, 2);
        let (other, here) = (comes(&room, "192.0.2.9").await, comes(&room, HERE).await);
        let (first, second) = (comes(&room, "192.0.2.1").await, comes(&room, "::ffff:192.0.2.1").await);
        let third = comes(&room, "192.0.2.1").await;
        assert!(first.is_out() && !second.is_out() && !other.is_out());
        for _ in 0..5 {
            assert!(!comes(&room, HERE).await.is_out());
        }
        assert!(!here.is_out(), "clients of this machine are not counted");
        // Who was admitted is no stranger.
        second.link.admit();
        let fourth = comes(&room, "192.0.2.1").await;
        assert!(!second.is_out() && !third.is_out());
        for one in [&third, &fourth] {
            one.activity.busy();
        }
        let fifth = comes(&room, "192.0.2.1").await;
        assert!(fifth.place.is_in_reserve(), "its requests are being answered, and it was not admitted yet");
        drop(third);
        assert!(!fifth.place.is_in_reserve());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_has_one_network_of_ipv6() {
        let room = Room::new(99, 9, 1);
        let first = comes(&room, "2001:db8:1:2::1").await;
        let _other = comes(&room, "2001:db8:1:3::1").await;
        assert!(!first.is_out());
        let _same = comes(&room, "2001:db8:1:2:ffff::1").await;
        assert!(first.is_out());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_accepted_than_places_and_reserve_have_room_for() {
        let room = Room::new(1, 1, 99);
        room.has_place().await;
        let first = comes(&room, HERE).await;
        first.activity.busy();
        room.has_place().await;
        let second = comes(&room, HERE).await;
        second.activity.busy();
        assert!(second.place.is_in_reserve());
        {
            let mut waiting = std::pin::pin!(room.has_place());
            assert!(tokio::time::timeout(LOOK * 3, waiting.as_mut()).await.is_err(), "both are served");
            second.activity.idle();
            tokio::time::advance(LOOK).await;
            assert!(tokio::time::timeout(LOOK * 3, waiting.as_mut()).await.is_err(), "it has not ended yet");
            assert!(second.is_out());
            drop(second);
            waiting.await;
        }
        assert!(!first.is_out());
    }
}
