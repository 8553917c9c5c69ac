//! Documents: compare and set, and unique versions.

use std::collections::BTreeSet;
use std::sync::Arc;

use steadfast_core::Timestamp;

use super::world::{SuiteWorld, within};
use crate::StateStore;
use crate::document::{Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome};
use crate::event::StoreEvent;

pub(super) async fn a_document_is_replaced_only_by_a_writer_that_has_read_it(world: SuiteWorld) {
    let name = name(DocumentKind::Breaker, "bank/pay");
    assert_eq!(world.read(&name).await.unwrap(), None);
    assert_eq!(
        put(&*world.first(), &name, Some(1), "early").await,
        DocumentWriteOutcome::Stale(None),
        "there is none"
    );

    let first = written(put(&*world.first(), &name, None, "closed").await);
    let closed = Document { version: first, body: "closed".into() };
    assert_eq!(world.second().read(&name).await.unwrap(), Some(closed.clone()));
    let stale = DocumentWriteOutcome::Stale(Some(closed));
    assert_eq!(put(&*world.second(), &name, None, "open").await, stale, "there is one already");
    assert_eq!(put(&*world.second(), &name, Some(first + 1), "open").await, stale);

    let second = written(put(&*world.second(), &name, Some(first), "open").await);
    assert!(second > first);
    let open = Document { version: second, body: "open".into() };
    assert_eq!(
        put(&*world.first(), &name, Some(first), "half").await,
        DocumentWriteOutcome::Stale(Some(open.clone()))
    );
    assert_eq!(world.read(&name).await.unwrap(), Some(open), "who comes late changes nothing");
}

pub(super) async fn a_version_is_never_given_twice(world: SuiteWorld) {
    let name = name(DocumentKind::Approvals, "tenant");
    let mut given = BTreeSet::new();
    let mut latest = 0;
    for round in 0..5 {
        let first = written(put(&*world.handle(round), &name, None, "a").await);
        let second = written(put(&*world.handle(round + 1), &name, Some(first), "a").await);
        let removed = written(remove(&*world.handle(round), &name, Some(second)).await);
        assert_eq!(world.second().read(&name).await.unwrap(), None, "it is removed");
        assert!(latest < first && first < second && second <= removed, "versions grow");
        latest = second;
        assert!(given.insert(first) && given.insert(second), "after a removal too");
        // A holder of an old version must not mistake the new document for the one it knows.
        let recreated = written(put(&*world.first(), &name, None, "b").await);
        for old in &given {
            assert!(matches!(
                put(&*world.second(), &name, Some(*old), "c").await,
                DocumentWriteOutcome::Stale(Some(_))
            ));
        }
        written(remove(&*world.second(), &name, Some(recreated)).await);
        given.insert(recreated);
        latest = latest.max(recreated);
        assert!(matches!(
            remove(&*world.first(), &name, Some(recreated)).await,
            DocumentWriteOutcome::Stale(None)
        ));
    }
}

pub(super) async fn a_document_is_removed_when_it_expires(world: SuiteWorld) {
    let name = name(DocumentKind::Session, "conversation");
    let write =
        |replaces, expires: Option<Timestamp>| DocumentWrite { replaces, body: Some("x".into()), expires };
    let expires = Some(world.now() + 4 * world.moment());
    let first = written(world.write(&name, write(None, expires)).await.unwrap());
    if world.has_manual_clock() {
        assert!(world.read(&name).await.unwrap().is_some(), "it lives until then");
    }
    world.pass(5).await;
    assert_eq!(world.second().read(&name).await.unwrap(), None);
    assert_eq!(world.documents(DocumentKind::Session).await.unwrap(), []);
    assert_eq!(
        world.write(&name, write(Some(first), None)).await.unwrap(),
        DocumentWriteOutcome::Stale(None)
    );
    world.sweep().await.unwrap();
    let second = written(world.write(&name, write(None, None)).await.unwrap());
    assert!(second > first);
    world.pass(5).await;
    assert!(world.read(&name).await.unwrap().is_some(), "one without an end stays");
}

pub(super) async fn documents_are_listed_by_kind(world: SuiteWorld) {
    for kind in DocumentKind::ALL {
        for id in ["b", "a/b", "a%b_", "ä\u{1f600}"] {
            written(put(&*world.first(), &name(kind, id), None, kind.name()).await);
        }
    }
    for kind in DocumentKind::ALL {
        let listed = world.second().documents(kind).await.unwrap();
        let names: BTreeSet<_> = listed.iter().map(|(name, _)| name.clone()).collect();
        let expected: BTreeSet<_> = ["b", "a/b", "a%b_", "ä\u{1f600}"].map(|id| name(kind, id)).into();
        assert_eq!((names, listed.len()), (expected, 4));
        assert!(listed.iter().all(|(_, document)| &*document.body == kind.name()));
    }
}

pub(super) async fn one_of_many_writers_of_a_document_wins(world: SuiteWorld) {
    let name = name(DocumentKind::Trust, "tenant");
    let mut replaces = None;
    for round in 0..4 {
        let mut writers = tokio::task::JoinSet::new();
        for number in 0..16 {
            let (store, name) = (world.handle(number), name.clone());
            let body = format!("{round}/{number}");
            writers.spawn(async move { (put(&*store, &name, replaces, &body).await, body) });
        }
        let mut winner = None;
        while let Some(result) = writers.join_next().await {
            if let (DocumentWriteOutcome::Written(version), body) = result.unwrap() {
                assert!(winner.is_none(), "two writers replaced one version");
                winner = Some(Document { version, body: body.into() });
            }
        }
        assert!(winner.is_some(), "nobody won");
        assert_eq!(world.read(&name).await.unwrap(), winner);
        replaces = winner.map(|document| document.version);
    }
}

pub(super) async fn other_processes_get_an_event_for_a_document(world: SuiteWorld) {
    if !world.is_shared() {
        return;
    }
    let mut events = world.second().events();
    let name = name(DocumentKind::Breaker, "bank/pay");
    let first = written(put(&*world.first(), &name, None, "open").await);
    within("news of a new document", wait_for_change(&mut events, &name)).await;
    let second = written(put(&*world.first(), &name, Some(first), "closed").await);
    within("news of a changed document", wait_for_change(&mut events, &name)).await;
    written(remove(&*world.first(), &name, Some(second)).await);
    within("news of a removed document", wait_for_change(&mut events, &name)).await;
}

async fn wait_for_change(events: &mut tokio::sync::broadcast::Receiver<StoreEvent>, name: &DocumentName) {
    loop {
        match events.recv().await.unwrap() {
            StoreEvent::DocumentChanged(changed) if changed == *name => return,
            StoreEvent::DocumentChanged(_)
            | StoreEvent::Emptied
            | StoreEvent::Unavailable(_)
            | StoreEvent::Available => {}
        }
    }
}

fn name(kind: DocumentKind, id: &str) -> DocumentName {
    DocumentName { kind, id: id.into() }
}

async fn put(
    store: &dyn StateStore,
    name: &DocumentName,
    replaces: Option<u64>,
    body: &str,
) -> DocumentWriteOutcome {
    let body = Some(Arc::from(body));
    store.write(name, DocumentWrite { replaces, body, expires: None }).await.unwrap()
}

async fn remove(store: &dyn StateStore, name: &DocumentName, replaces: Option<u64>) -> DocumentWriteOutcome {
    store.write(name, DocumentWrite { replaces, body: None, expires: None }).await.unwrap()
}

fn written(written: DocumentWriteOutcome) -> u64 {
    match written {
        DocumentWriteOutcome::Written(version) => version,
        DocumentWriteOutcome::Stale(found) => panic!("stale, there is {found:?}"),
    }
}
