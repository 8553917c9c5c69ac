//! Tests of what only this store guarantees: its limits, the order of eviction, and its counters.

#![expect(clippy::wildcard_enum_match_arm, reason = "tests name what they expect")]

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use steadfast_core::call::StoreFault;
use steadfast_core::dedupe::{
    ClaimIntent, DedupeRules, DedupeState, RecordAddress, RunOutcome, SettleDelay, UnknownOutcomeReason,
    UnknownOutcomeReport,
};
use steadfast_core::id::{Digest, Namespace, RequestId, RunId, ToolName, ToolRef};
use steadfast_core::key::run_key;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{DedupePolicy, PolicyProfile, ToolClass};
use steadfast_json::RawJson;

use super::*;
use crate::clock::ManualClock;

const SECOND: Duration = Duration::from_secs(1);

fn store(most: usize) -> (MemoryStore, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
    (MemoryStore::new(MemoryOptions { most, ..MemoryOptions::new(clock.clone()) }), clock)
}

/// Every future of this store is ready at once.
fn now<T>(future: StoreFuture<'_, T>) -> Result<T, StoreError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a future of the memory store waits"),
    }
}

fn key(text: &str) -> RecordKey {
    RecordKey(Digest::of(text.as_bytes()))
}

fn claim(address: RecordAddress, arguments: &str, call: u64) -> Claim {
    let (namespace, tool) = (Namespace::new("bank").unwrap(), ToolName::new("pay").unwrap());
    Claim {
        address,
        intent: ClaimIntent::Take { started: true },
        role: ClaimRole::Fresh,
        owner: ClaimOwner { process: this_process(), call, claim: 1 },
        digest: Digest::of(arguments.as_bytes()),
        retry_safe: false,
        best_effort: false,
        arrived: Timestamp::ZERO,
        age: Duration::ZERO,
        end_observed_within: None,
        run: RunId("run".into()),
        rules: DedupeRules::from(&PolicyProfile::Standard.policy(ToolClass::Mutating)),
        tool: ToolRef { namespace, tool },
        request: RequestId::new("request").unwrap(),
        tool_call: None,
        context: None,
        session: None,
        actor: None,
        tenant: None,
    }
}

fn explicit(text: &str) -> Claim {
    claim(RecordAddress::Explicit(key(text)), "arguments", 1)
}

fn keyless(arguments: &str) -> Claim {
    let index = key(arguments);
    let run = run_key(index, &RunId(arguments.into()));
    claim(RecordAddress::Keyless { run, index }, arguments, 1)
}

fn take(store: &MemoryStore, claim: &Claim) -> Arc<DedupeRecord> {
    match now(store.claim(claim, &LocalKnowledge::default())).unwrap() {
        ClaimVerdict::Acquired(record) => record,
        verdict => panic!("{verdict:?}"),
    }
}

fn saving(record: Arc<DedupeRecord>, output: &str) -> SaveRequest {
    let output = ToolOutput { content: RawJson::string(output), metadata: None };
    let keep = DedupePolicy::default().keep;
    let ending = RunOutcome::Done(Some(output));
    SaveRequest { claimed: record, ending, attempts: Vec::new(), delivered: None, hold: false, keep }
}

/// A call with a delivered result.
fn answered(store: &MemoryStore, claim: &Claim, output: &str) -> RecordKey {
    let record = take(store, claim);
    let key = record.key;
    let SaveVerdict::Saved(receipt) = now(store.save(&saving(record, output))).unwrap() else {
        panic!("the fence is lost")
    };
    now(store.delivered(&receipt, store.now())).unwrap();
    key
}

fn holds(store: &MemoryStore, key: RecordKey) -> bool {
    now(store.record(key)).unwrap().is_some()
}

#[test]
fn the_least_useful_records_are_evicted_first() {
    let (store, clock) = store(20);
    let of_keys: Vec<RecordKey> =
        (0..10).map(|n| answered(&store, &explicit(&n.to_string()), "paid")).collect();
    clock.advance(SECOND);
    let of_runs: Vec<RecordKey> =
        (0..10).map(|n| answered(&store, &keyless(&n.to_string()), "paid")).collect();
    for number in 0..10 {
        take(&store, &explicit(&format!("new {number}")));
    }
    assert!(of_keys.iter().all(|key| holds(&store, *key)), "whoever gave a key may come again");
    assert!(!of_runs.iter().any(|key| holds(&store, *key)), "nobody comes again for what has arrived");
}

#[test]
fn among_equals_the_oldest_is_evicted_first() {
    let (store, clock) = store(20);
    let keys: Vec<RecordKey> = (0..20)
        .map(|number| {
            clock.advance(SECOND);
            answered(&store, &explicit(&number.to_string()), "paid")
        })
        .collect();
    for (number, oldest) in keys.iter().enumerate() {
        take(&store, &explicit(&format!("new {number}")));
        assert!(!holds(&store, *oldest), "the {number}th");
        assert!(keys[number + 1..].iter().all(|newer| holds(&store, *newer)), "the {number}th");
    }
    assert_eq!(
        now(store.claim(&explicit("one too many"), &LocalKnowledge::default())).unwrap(),
        ClaimVerdict::Full
    );
}

#[test]
fn outputs_are_bounded_in_bytes() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
    let store = MemoryStore::new(MemoryOptions { most_bytes: 10_000, ..MemoryOptions::new(clock) });
    let large = "x".repeat(998);
    let keys: Vec<RecordKey> =
        (0..50).map(|number| answered(&store, &explicit(&number.to_string()), &large)).collect();
    let left = keys.iter().filter(|key| holds(&store, **key)).count();
    assert_eq!(left, 10, "as many as fit");
    assert!(holds(&store, keys[49]));
}

/// The output of a call with an unknown outcome is stored like a result and counts the same, but it is not evicted.
#[test]
fn open_records_evict_finished_ones() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
    let store = MemoryStore::new(MemoryOptions { most_bytes: 10_000, ..MemoryOptions::new(clock) });
    let large = "x".repeat(998);
    let answers: Vec<RecordKey> =
        (0..10).map(|number| answered(&store, &explicit(&number.to_string()), &large)).collect();
    let save = saving(take(&store, &explicit("cut")), &large);
    let RunOutcome::Done(output) = save.ending.clone() else { panic!("it says what was answered") };
    let cut = |settles| {
        let unknown = UnknownOutcomeReport {
            settles,
            output: output.clone(),
            ..UnknownOutcomeReport::settled(UnknownOutcomeReason::ErrorAnswer)
        };
        SaveRequest { ending: RunOutcome::Unknown(unknown), ..save.clone() }
    };
    for settles in [SettleDelay::WhenOwnerReports, SettleDelay::Settled] {
        now(store.save(&cut(settles))).unwrap();
        let left = answers.iter().filter(|key| holds(&store, **key)).count();
        assert_eq!(left, 9, "the oldest has made room, and no other one: {settles:?}");
        check_counts(&store);
    }
    let record = now(store.record(save.claimed.key)).unwrap().unwrap();
    assert!(matches!(record.state, DedupeState::Unknown(unknown) if unknown.output == output));
}

#[test]
fn a_full_store_evicts_expired_records() {
    let (store, clock) = store(10);
    let mut expiring = keyless("0");
    expiring.rules.keep.open = 5 * SECOND;
    take(&store, &expiring);
    for number in 1..10 {
        take(&store, &keyless(&number.to_string()));
    }
    assert_eq!(now(store.claim(&explicit("new"), &LocalKnowledge::default())).unwrap(), ClaimVerdict::Full);
    clock.advance(6 * SECOND);
    take(&store, &explicit("new"));
}

#[test]
fn a_result_without_a_record_and_without_room_is_not_saved() {
    let (store, _) = store(10);
    let lost = take(&store, &explicit("lost"));
    now(store.flush(&FlushTarget::Key(lost.key))).unwrap();
    let open: Vec<_> = (0..10).map(|number| take(&store, &keyless(&number.to_string()))).collect();
    let save = saving(lost, "paid");
    let refused = now(store.save(&save)).unwrap_err();
    assert_eq!((refused.fault(), refused.kind()), (StoreFault::NotDone, StoreErrorKind::Full));
    let [first, ..] = open.as_slice() else { panic!() };
    now(store.flush(&FlushTarget::Key(first.key))).unwrap();
    assert!(
        matches!(now(store.save(&save)), Ok(SaveVerdict::Saved(_))),
        "it is kept, and saved when there is room"
    );
}

/// Counts wake-ups.
#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_follower_in_this_process_is_woken_by_the_end_and_by_nothing_else() {
    let (store, _) = store(10);
    let save =
        |record: &DedupeRecord| drop(now(store.save(&saving(Arc::new(record.clone()), "paid"))).unwrap());
    let release = |record: &DedupeRecord| {
        let release = ReleaseRequest { key: record.key, index: record.index, owner: record.owner.clone() };
        now(store.release(&release)).unwrap();
    };
    let flush =
        |record: &DedupeRecord| assert_eq!(now(store.flush(&FlushTarget::Key(record.key))).unwrap(), 1);
    let ends: [&dyn Fn(&DedupeRecord); 3] = [&save, &release, &flush];
    for (number, end) in ends.into_iter().enumerate() {
        let record = take(&store, &explicit(&number.to_string()));
        let alarm = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&alarm));
        let mut context = Context::from_waker(&waker);
        // There is no runtime here, so a timer would panic.
        let mut follower = store.settled(record.key);
        assert!(follower.as_mut().poll(&mut context).is_pending());
        now(store.renew(&record, &DedupePolicy::default().keep)).unwrap();
        assert_eq!(alarm.0.load(Ordering::SeqCst), 0, "a renewal is nothing to wake up for");
        end(&record);
        assert_eq!(alarm.0.load(Ordering::SeqCst), 1, "end {number}");
        assert!(follower.as_mut().poll(&mut context).is_ready());
    }
}

#[test]
fn a_follower_that_gives_up_leaves_nothing_behind() {
    let (store, _) = store(10);
    let record = take(&store, &explicit("k"));
    let waiting = |store: &MemoryStore| {
        let mut waiting = 0;
        store.shards.in_each_shard(|_, shard| waiting += shard.waiting.len());
        waiting
    };
    let mut followers: Vec<_> = (0..3).map(|_| store.settled(record.key)).collect();
    for follower in &mut followers {
        assert!(follower.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(waiting(&store), 1);
    followers.truncate(1);
    assert_eq!(waiting(&store), 1, "one still waits");
    followers.clear();
    assert_eq!(waiting(&store), 0);
}

#[test]
fn neither_the_index_nor_the_order_of_records_grows_with_one_that_changes() {
    let (store, _) = store(10);
    let id = key("dispatch");
    for number in 0..1000 {
        let arguments = number.to_string();
        take(&store, &claim(RecordAddress::CallId { id, index: key(&arguments) }, &arguments, number));
        answered(&store, &claim(RecordAddress::Explicit(key("again")), "arguments", number), "paid");
        now(store.flush(&FlushTarget::Key(key("again")))).unwrap();
    }
    store.shards.in_each_shard(|_, shard| {
        assert!(shard.index.len() <= 21 && shard.regular.len() <= 40 && shard.evictable.len() <= 40);
    });
    assert_eq!(check_counts(&store).records, 1);
}

#[test]
fn documents_are_bounded_and_make_room_for_those_that_expired() {
    let (store, clock) = store(10);
    let write = |number: u32, expires| {
        let name = DocumentName { kind: DocumentKind::Session, id: number.to_string().into() };
        now(store.write(&name, DocumentWrite { replaces: None, body: Some("x".into()), expires }))
    };
    write(0, Some(store.now() + SECOND)).unwrap();
    for number in 1..25_000 {
        write(number, None).unwrap();
    }
    assert_eq!(write(25_000, None).unwrap_err().kind(), StoreErrorKind::Full);
    clock.advance(2 * SECOND);
    write(25_000, None).unwrap();
}

#[test]
fn a_store_of_one_process_sends_no_events() {
    let (store, _) = store(10);
    let mut events = store.events();
    let name = DocumentName { kind: DocumentKind::Breaker, id: "bank/pay".into() };
    now(store.write(&name, DocumentWrite { replaces: None, body: Some("x".into()), expires: None })).unwrap();
    assert!(events.try_recv().is_err());
}

#[test]
fn the_books_are_right_after_many_threads() {
    let (store, clock) = store(24);
    std::thread::scope(|threads| {
        for thread in 0..4_u64 {
            let (store, clock) = (&store, &clock);
            threads.spawn(move || (0..3000).for_each(|step| act(store, clock, thread, step)));
        }
    });
    let counts = check_counts(&store);
    assert!(counts.records <= 24);
    clock.advance(Duration::from_secs(100_000));
    now(store.sweep()).unwrap();
    let counts = check_counts(&store);
    assert_eq!((counts.records, counts.pointers), (0, 0), "everything ends");
}

/// One step of one thread: calls on few keys, in every combination, some finished, some released, some left open.
fn act(store: &MemoryStore, clock: &ManualClock, thread: u64, step: u64) {
    let (arguments, id) = (step * 7 % 11, (step * 5 + thread) % 13);
    let index = key(&format!("arguments {arguments}"));
    let address = match step % 3 {
        0 => RecordAddress::Explicit(key(&format!("key {id}"))),
        1 => RecordAddress::CallId { id: key(&format!("id {id}")), index },
        _ => RecordAddress::Keyless { run: key(&format!("run {thread} {step}")), index },
    };
    let claim = claim(address, &arguments.to_string(), thread << 32 | step);
    if step.is_multiple_of(100) {
        clock.advance(SECOND);
    }
    match now(store.claim(&claim, &LocalKnowledge::default())).unwrap() {
        ClaimVerdict::Acquired(record) if step % 5 < 3 => {
            if let Ok(SaveVerdict::Saved(receipt)) = now(store.save(&saving(record, "paid"))) {
                now(store.delivered(&receipt, store.now())).unwrap();
            }
        }
        ClaimVerdict::Acquired(record) if step % 5 == 3 => {
            let release =
                ReleaseRequest { key: record.key, index: record.index, owner: record.owner.clone() };
            now(store.release(&release)).unwrap();
        }
        ClaimVerdict::Follow(key) if step.is_multiple_of(4) => {
            now(store.flush(&FlushTarget::Key(key))).unwrap();
        }
        ClaimVerdict::Full => {
            now(store.flush(&FlushTarget::Key(claim.address.own()))).unwrap();
        }
        _ => {}
    }
}

struct StoreCounts {
    records: usize,
    pointers: usize,
}

/// Checks that the counters match the content, and that every index entry points to a valid record.
fn check_counts(store: &MemoryStore) -> StoreCounts {
    let (mut records, mut bytes, mut pointers) = (0, 0, 0);
    store.shards.in_each_shard(|_, shard| {
        records += shard.records.len();
        bytes += shard.records.values().map(|record| shards::weight(record)).sum::<usize>();
        pointers += shard.index.len();
    });
    assert_eq!(store.shards.room.counted(), (records, bytes, pointers));
    StoreCounts { records, pointers }
}
