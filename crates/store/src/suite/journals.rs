//! Journals: newest first, and bounded.

use std::time::Duration;

use steadfast_core::Timestamp;

use super::world::{LONG, SuiteWorld};
use crate::journal::{Journal, JournalEntry, JournalLimits, JournalPosition, JournalQuery, filter_entries};

const KEEP: JournalLimits = JournalLimits { most: 1000, most_per_subject: None, age: LONG };

pub(super) async fn a_journal_is_read_newest_first(world: SuiteWorld) {
    let begin = world.now();
    let mut all: Vec<JournalEntry> = (0..30).map(|number| entry(begin, number)).collect();
    for some in all.chunks(4) {
        world.append(Journal::History, some, KEEP).await.unwrap();
    }
    all.reverse();
    let query = everything(Journal::History);
    assert_eq!(read(&world, &query).await, all);
    let last = JournalQuery { limit: 7, ..query.clone() };
    assert_eq!(read(&world, &last).await, all[..7]);
    let none = JournalQuery { limit: 0, ..query.clone() };
    assert_eq!(read(&world, &none).await, []);
    let since = JournalQuery { since: all[9].at, ..query.clone() };
    assert_eq!(read(&world, &since).await, all[..10], "the moment itself included");
    let subject = JournalQuery { subject: Some("odd".into()), limit: 3, ..query };
    let odd: Vec<JournalEntry> =
        all.iter().filter(|entry| &*entry.subject == "odd").take(3).cloned().collect();
    assert_eq!(read(&world, &subject).await, odd);
}

/// Several entries have the same time, so time alone cannot be a position. Also, entries are written during the
/// reads.
pub(super) async fn a_journal_is_read_page_by_page(world: SuiteWorld) {
    let begin = world.now();
    let mut all: Vec<JournalEntry> = (0..30).map(|number| entry(begin, number)).collect();
    for some in all.chunks(8) {
        world.append(Journal::History, some, KEEP).await.unwrap();
    }
    all.reverse();
    let about = |subject: Option<&str>| {
        let fits = |entry: &&JournalEntry| subject.is_none_or(|subject| *entry.subject == *subject);
        all.iter().filter(fits).cloned().collect::<Vec<_>>()
    };
    for (subject, limit) in [(None, 7), (None, 1), (None, 30), (Some("odd"), 4), (Some("even"), 15)] {
        let mut query = JournalQuery {
            subject: subject.map(Into::into),
            limit,
            ..JournalQuery::newest(Journal::History, limit)
        };
        let mut paged: Vec<(JournalPosition, JournalEntry)> = Vec::new();
        loop {
            let page = world.entries(&query).await.unwrap();
            assert!(page.len() <= limit);
            let Some((last, _)) = page.last() else { break };
            // The text form of a position is parsed back to the same position.
            query.before = Some(last.to_string().parse().unwrap());
            paged.extend(page);
            assert!(paged.len() < 500, "it comes to an end");
            let new = JournalEntry { subject: "new".into(), ..entry(begin, 30) };
            world.append(Journal::History, &[new], KEEP).await.unwrap();
        }
        let places: Vec<JournalPosition> = paged.iter().map(|(place, _)| *place).collect();
        assert!(places.is_sorted_by(|newer, older| newer > older), "each has its own place, in order");
        let entries: Vec<JournalEntry> = paged.into_iter().map(|(_, entry)| entry).collect();
        let known: Vec<JournalEntry> = entries.into_iter().filter(|entry| &*entry.subject != "new").collect();
        assert_eq!(known, about(subject), "each once, {limit} at a time");
    }
}

pub(super) async fn a_page_of_a_journal_continues_after_a_removed_position(world: SuiteWorld) {
    let begin = world.now();
    let keep = JournalLimits { most: 10, ..KEEP };
    let all: Vec<JournalEntry> = (0..25).map(|number| entry(begin, number)).collect();
    world.append(Journal::Audit, &all[..10], keep).await.unwrap();
    let page = world.entries(&JournalQuery::newest(Journal::Audit, 4)).await.unwrap();
    let behind = JournalQuery { before: Some(page[3].0), ..everything(Journal::Audit) };
    world.append(Journal::Audit, &all[10..13], keep).await.unwrap();
    assert_eq!(
        read(&world, &behind).await,
        [5, 4, 3].map(|number| all[number].clone()),
        "what is left of it"
    );
    world.append(Journal::Audit, &all[13..], keep).await.unwrap();
    assert_eq!(read(&world, &behind).await, [], "and nothing that is newer");
}

pub(super) async fn filtering_a_journal_returns_the_position_to_continue(world: SuiteWorld) {
    let begin = world.now();
    let all: Vec<JournalEntry> = (0..30).map(|number| entry(begin, number)).collect();
    world.append(Journal::Traces, &all, KEEP).await.unwrap();
    let odd = |entry: &JournalEntry| (&*entry.subject == "odd").then(|| entry.clone());
    let store = world.first();
    for (limit, most) in [(1, 100), (4, 100), (15, 100), (30, 100), (4, 1), (4, 3), (30, 7)] {
        let mut query = JournalQuery::newest(Journal::Traces, limit);
        let mut found = Vec::new();
        for round in 0.. {
            assert!(round < 100, "it comes to an end");
            let part = filter_entries(&*store, &query, most, odd).await.unwrap();
            assert!(part.found.len() <= limit.min(most), "{limit} of {most}");
            found.extend(part.found);
            let Some(next) = part.next else { break };
            query.before = Some(next);
        }
        let expected: Vec<JournalEntry> = all.iter().rev().filter_map(odd).collect();
        assert_eq!(found, expected, "{limit} at a time, looking through {most}");
    }
    let whole = filter_entries(&*store, &JournalQuery::newest(Journal::Traces, 30), 30, odd).await.unwrap();
    assert_eq!(whole.next, None, "nothing is behind the last one");
}

pub(super) async fn a_journal_is_bounded_in_number(world: SuiteWorld) {
    let begin = world.now();
    let all: Vec<JournalEntry> = (0..50).map(|number| entry(begin, number)).collect();
    let keep = JournalLimits { most: 12, ..KEEP };
    for (number, some) in all.chunks(5).enumerate() {
        world.append(Journal::Audit, some, keep).await.unwrap();
        let stored = read(&world, &everything(Journal::Audit)).await;
        assert_eq!(stored.len(), (5 * (number + 1)).min(12));
    }
    let newest: Vec<JournalEntry> = all.iter().rev().take(12).cloned().collect();
    assert_eq!(read(&world, &everything(Journal::Audit)).await, newest);
}

pub(super) async fn a_journal_is_bounded_by_subject(world: SuiteWorld) {
    let begin = world.now();
    let about = |subject: &str, number| JournalEntry { subject: subject.into(), ..entry(begin, number) };
    let keep = JournalLimits { most_per_subject: Some(3), ..KEEP };
    let (quiet, loud) = (about("quiet", 0), (1..9).map(|number| about("loud", number)).collect::<Vec<_>>());
    world.append(Journal::Failures, std::slice::from_ref(&quiet), keep).await.unwrap();
    for some in loud.chunks(5) {
        world.append(Journal::Failures, some, keep).await.unwrap();
    }
    let mut stored: Vec<JournalEntry> = loud.iter().rev().take(3).cloned().collect();
    let of_loud = JournalQuery { subject: Some("loud".into()), ..everything(Journal::Failures) };
    assert_eq!(read(&world, &of_loud).await, stored);
    stored.push(quiet);
    assert_eq!(read(&world, &everything(Journal::Failures)).await, stored, "one that is loud costs no other");
    // Positions stay the same, also if entries between them are gone.
    let first = world.entries(&JournalQuery { limit: 1, ..everything(Journal::Failures) }).await.unwrap();
    let behind = JournalQuery { before: Some(first[0].0), ..everything(Journal::Failures) };
    assert_eq!(read(&world, &behind).await, stored[1..]);
}

pub(super) async fn a_journal_is_bounded_in_age(world: SuiteWorld) {
    let append = async |number, keep| {
        let entry = entry(world.now(), number);
        world.append(Journal::Traces, std::slice::from_ref(&entry), keep).await.unwrap();
        world.pass(2).await;
        entry
    };
    let (oldest, old) = (append(0, KEEP).await, append(1, KEEP).await);
    let stored = async || read(&world, &everything(Journal::Traces)).await;
    assert_eq!(stored().await, [old.clone(), oldest.clone()], "neither is too old yet");
    // The next append limits the age to a moment.
    let short = JournalLimits { age: world.moment(), ..KEEP };
    let new = entry(world.now(), 2);
    world.append(Journal::Traces, std::slice::from_ref(&new), short).await.unwrap();
    let left = stored().await;
    assert!(!left.contains(&oldest) && !left.contains(&old), "by the next entry: {left:?}");
    if world.has_manual_clock() {
        assert_eq!(left, [new], "which is not too old itself");
    }
    world.pass(2).await;
    world.sweep().await.unwrap();
    assert_eq!(stored().await, [], "by a sweep");
}

pub(super) async fn journals_are_apart(world: SuiteWorld) {
    for (number, journal) in (0..).zip(Journal::ALL) {
        world.append(journal, &[entry(world.now(), number)], KEEP).await.unwrap();
    }
    for (number, journal) in (0..).zip(Journal::ALL) {
        let stored = read(&world, &everything(journal)).await;
        assert_eq!(stored.len(), 1);
        assert_eq!(*stored[0].body, *format!(r#"{{"number":{number}}}"#));
    }
}

fn entry(begin: Timestamp, number: u64) -> JournalEntry {
    JournalEntry {
        at: begin + Duration::from_millis(number / 2),
        subject: if number.is_multiple_of(2) { "even" } else { "odd" }.into(),
        body: format!(r#"{{"number":{number}}}"#).into(),
    }
}

fn everything(journal: Journal) -> JournalQuery {
    JournalQuery::newest(journal, 1000)
}

async fn read(world: &SuiteWorld, query: &JournalQuery) -> Vec<JournalEntry> {
    world.entries(query).await.unwrap().into_iter().map(|(_, entry)| entry).collect()
}
