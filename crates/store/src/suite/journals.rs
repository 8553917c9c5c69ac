//! Journals: newest first, and bounded.

use std::time::Duration;

use steadfast_core::Timestamp;

use super::world::{LONG, World};
use crate::journal::{Entry, Journal, Keep, Query};

const KEEP: Keep = Keep { most: 1000, age: LONG };

pub(super) async fn a_journal_is_read_newest_first(world: World) {
    let begin = world.now();
    let mut all: Vec<Entry> = (0..30).map(|number| entry(begin, number)).collect();
    for some in all.chunks(4) {
        world.append(Journal::History, some, KEEP).await.unwrap();
    }
    all.reverse();
    let query = everything(Journal::History);
    assert_eq!(world.entries(&query).await.unwrap(), all);
    let last = Query { limit: 7, ..query.clone() };
    assert_eq!(world.entries(&last).await.unwrap(), all[..7]);
    let none = Query { limit: 0, ..query.clone() };
    assert_eq!(world.entries(&none).await.unwrap(), []);
    let since = Query { since: all[9].at, ..query.clone() };
    assert_eq!(world.entries(&since).await.unwrap(), all[..10], "the moment itself included");
    let subject = Query { subject: Some("odd".into()), limit: 3, ..query };
    let odd: Vec<Entry> = all.iter().filter(|entry| &*entry.subject == "odd").take(3).cloned().collect();
    assert_eq!(world.entries(&subject).await.unwrap(), odd);
}

pub(super) async fn a_journal_is_bounded_in_number(world: World) {
    let begin = world.now();
    let all: Vec<Entry> = (0..50).map(|number| entry(begin, number)).collect();
    let keep = Keep { most: 12, ..KEEP };
    for (number, some) in all.chunks(5).enumerate() {
        world.append(Journal::Audit, some, keep).await.unwrap();
        let kept = world.entries(&everything(Journal::Audit)).await.unwrap();
        assert_eq!(kept.len(), (5 * (number + 1)).min(12));
    }
    let newest: Vec<Entry> = all.iter().rev().take(12).cloned().collect();
    assert_eq!(world.entries(&everything(Journal::Audit)).await.unwrap(), newest);
}

pub(super) async fn a_journal_is_bounded_in_age(world: World) {
    let keep = Keep { age: 16 * world.moment(), ..KEEP };
    let old = entry(world.now(), 0);
    world.append(Journal::Traces, std::slice::from_ref(&old), keep).await.unwrap();
    assert_eq!(world.entries(&everything(Journal::Traces)).await.unwrap(), [old]);
    world.pass(18).await;
    let new = entry(world.now(), 1);
    world.append(Journal::Traces, std::slice::from_ref(&new), keep).await.unwrap();
    assert_eq!(world.entries(&everything(Journal::Traces)).await.unwrap(), [new], "by the next entry");
    world.pass(18).await;
    world.sweep().await.unwrap();
    assert_eq!(world.entries(&everything(Journal::Traces)).await.unwrap(), [], "by a sweep");
}

pub(super) async fn journals_are_apart(world: World) {
    for (number, journal) in (0..).zip(Journal::ALL) {
        world.append(journal, &[entry(world.now(), number)], KEEP).await.unwrap();
    }
    for (number, journal) in (0..).zip(Journal::ALL) {
        let kept = world.entries(&everything(journal)).await.unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(*kept[0].body, *format!(r#"{{"number":{number}}}"#));
    }
}

fn entry(begin: Timestamp, number: u64) -> Entry {
    Entry {
        at: begin + Duration::from_millis(number / 2),
        subject: if number.is_multiple_of(2) { "even" } else { "odd" }.into(),
        body: format!(r#"{{"number":{number}}}"#).into(),
    }
}

fn everything(journal: Journal) -> Query {
    Query { journal, subject: None, since: Timestamp::ZERO, limit: 1000 }
}
