//! Servers that are killed, paused, emptied and failed over while they are in use.

use std::time::Duration;

use steadfast_core::call::StoreFault;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimRole, ClaimVerdict, LocalKnowledge, RenewVerdict, SaveRequest, SaveVerdict,
    SettleDelay,
};
use steadfast_core::id::Digest;
use steadfast_store::{StateStore, StoreErrorKind, StoreEvent};
use steadfast_store_redis::{Options, RedisStore, WriteConfirmation};
use steadfast_testkit::redis::{RedisCluster, RedisSentinel, RedisServer};

use crate::world::{
    LONG, TEST_TIMEOUT, claim, eventually, keyless, options, release, run, save, take, unknown, verdict,
    wait_for_event, wait_for_outage, with_lease, within,
};

/// Two processes with the same data.
async fn two(options: Options) -> (RedisStore, RedisStore) {
    (RedisStore::connect(options.clone()).await.unwrap(), RedisStore::connect(options).await.unwrap())
}

#[tokio::test]
async fn sf_3_a_killed_server_is_reported_and_recovers() {
    let mut server = RedisServer::durable();
    let store = RedisStore::connect(options(&server.url())).await.unwrap();
    let mut events = store.events();
    let record = take(&store, &claim("a")).await;
    server.kill();
    wait_for_outage(&mut events).await;
    for _ in 0..20 {
        let error = store.claim(&claim("b"), &LocalKnowledge::default()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    }
    let error = store.claim(&claim("b"), &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!(error.fault(), StoreFault::NotDone, "nobody is there to do it: {error}");
    within("a follower does not wait for a dead server", store.settled(record.key)).await;
    server.restart();
    wait_for_event(&mut events, StoreEvent::Available).await;
    eventually(|| async { store.save(&save(&record, "paid")).await }).await;
    assert_eq!(verdict(&store, &claim("a")).await, "replay", "what was acknowledged is there");
    assert!(events.try_recv().is_err(), "lost and back, each told once");
}

#[tokio::test]
async fn sf_3_a_paused_server_is_reported_and_recovers() {
    let server = RedisServer::start();
    let store = RedisStore::connect(options(&server.url())).await.unwrap();
    let mut events = store.events();
    let record = take(&store, &claim("a")).await;
    server.pause();
    // The server cannot reply now, so the timeout is over as soon as all tasks wait.
    tokio::time::pause();
    let error = store.save(&save(&record, "paid")).await.unwrap_err();
    tokio::time::resume();
    assert_eq!(
        (error.fault(), error.kind()),
        (StoreFault::Unanswered, StoreErrorKind::Unreachable),
        "{error}"
    );
    wait_for_outage(&mut events).await;
    server.resume();
    wait_for_event(&mut events, StoreEvent::Available).await;
    eventually(|| async { store.save(&save(&record, "paid")).await }).await;
    assert_eq!(verdict(&store, &claim("a")).await, "replay");
}

#[tokio::test]
async fn sf_3_an_emptied_server_is_noticed_and_holders_come_first() {
    let mut server = RedisServer::start();
    let options = options(&server.url());
    let (holder, other) = two(options.clone()).await;
    let mut events = other.events();
    // A process that knows only short leases waits no longer than those.
    let brief = RedisStore::connect(options).await.unwrap();
    run(&brief, &with_lease(claim("brief"), Duration::from_millis(1)), "paid").await;
    let claim = |key: &str| with_lease(claim(key), LONG);
    let record = take(&holder, &claim("held")).await;
    run(&other, &claim("done"), "paid").await;

    server.restart_empty();
    eventually(|| async { other.record(record.key).await }).await;
    assert_eq!(verdict(&other, &claim("held")).await, "closed", "its holder has not claimed it again yet");
    assert_eq!(verdict(&other, &claim("new")).await, "closed", "and nobody knows what else was held");
    let harmless = Claim { retry_safe: true, ..claim("harmless") };
    assert_eq!(verdict(&other, &harmless).await, "mine");
    wait_for_event(&mut events, StoreEvent::Emptied).await;

    let keep = claim("held").rules.keep;
    let renewed = eventually(|| async { holder.renew(&record, &keep).await }).await;
    assert_eq!(renewed, RenewVerdict::Renewed, "the holder writes its claim again");
    assert_eq!(verdict(&other, &claim("held")).await, "follow");

    let opened = async {
        let new = with_lease(crate::world::claim("new"), Duration::from_millis(1));
        // Until it has reconnected, it reports nothing.
        while !matches!(brief.claim(&new, &LocalKnowledge::default()).await, Ok(ClaimVerdict::Acquired(_))) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the pause ends after one lease", opened).await;
    assert_eq!(
        verdict(&other, &claim("newer")).await,
        "closed",
        "which is longer for who has claimed for longer"
    );
    holder.save(&save(&record, "paid")).await.unwrap();
    assert_eq!(verdict(&other, &claim("held")).await, "replay");
    while let Ok(event) = events.try_recv() {
        assert_ne!(event, StoreEvent::Emptied, "told once");
    }
}

/// Only calls that might not be the first are refused. Existing records are used, also meanwhile.
#[tokio::test]
async fn sf_3_an_emptied_store_still_uses_existing_records() {
    let mut server = RedisServer::start();
    let (holder, other) = two(options(&server.url())).await;
    let claim = |key: &str| with_lease(claim(key), LONG);
    let keep = claim("").rules.keep;
    let mut records = Vec::new();
    for key in ["done", "told", "followed", "released"] {
        records.push(take(&holder, &claim(key)).await);
    }
    let finished = run(&other, &claim("kept"), "paid").await;
    let [done, reported, followed, released] = records.as_slice() else { panic!("four were held") };

    server.restart_empty();
    eventually(|| async { holder.save(&save(done, "paid")).await }).await;
    holder.save(&SaveRequest { ending: unknown(SettleDelay::Settled), ..save(reported, "") }).await.unwrap();
    for record in [followed, released] {
        assert_eq!(holder.renew(record, &keep).await.unwrap(), RenewVerdict::Renewed);
    }
    eventually(|| async { other.record(finished.key).await }).await;

    assert_eq!(verdict(&other, &claim("done")).await, "replay");
    assert_eq!(verdict(&other, &claim("told")).await, "tell");
    assert_eq!(verdict(&other, &claim("followed")).await, "follow");
    let others = Claim { digest: Digest::of(b"other arguments"), ..claim("done") };
    assert_eq!(verdict(&other, &others).await, "conflict");
    let looking = |key: &str| Claim { intent: ClaimIntent::Look, ..claim(key) };
    assert_eq!(verdict(&other, &looking("done")).await, "replay");
    assert_eq!(verdict(&other, &looking("kept")).await, "nothing", "a look runs nothing");
    let waiter = Claim { role: ClaimRole::Waiter { followed: done.key }, ..claim("done") };
    assert_eq!(verdict(&other, &waiter).await, "replay", "who has waited gets the answer");

    // Every call that would run is refused, in any form, unless it may run twice.
    assert_eq!(verdict(&other, &claim("kept")).await, "closed");
    assert_eq!(verdict(&other, &keyless("new")).await, "closed");
    let waiter = Claim { role: ClaimRole::Waiter { followed: finished.key }, ..claim("kept") };
    assert_eq!(verdict(&other, &waiter).await, "closed");
    holder.release(&release(released)).await.unwrap();
    assert_eq!(verdict(&other, &claim("released")).await, "closed");
    assert_eq!(other.record(finished.key).await.unwrap(), None, "a refusal writes nothing");
    assert_eq!(verdict(&other, &Claim { retry_safe: true, ..claim("kept") }).await, "mine");
    // Its owner continues as usual.
    assert!(matches!(holder.save(&save(followed, "paid")).await, Ok(SaveVerdict::Saved(_))));
    assert_eq!(verdict(&other, &claim("followed")).await, "replay");
}

#[tokio::test]
async fn sf_3_one_shard_of_a_cluster_that_is_emptied_is_noticed() {
    let cluster = RedisCluster::start();
    let (holder, other) = two(options(&cluster.url())).await;
    let mut events = other.events();
    // Claims that are spread over all shards. `other` has used none of them.
    let claim = |key: &str| with_lease(claim(key), LONG);
    let mut records = Vec::new();
    for number in 0..48 {
        records.push(take(&holder, &claim(&format!("held {number}"))).await);
    }
    cluster.nodes()[1].command(&["FLUSHALL"]);
    let mut verdicts = Vec::new();
    for number in 0..48 {
        verdicts.push(verdict(&other, &claim(&format!("held {number}"))).await);
    }
    wait_for_event(&mut events, StoreEvent::Emptied).await;
    assert!(
        verdicts.iter().all(|verdict| ["closed", "follow"].contains(verdict)),
        "none runs twice: {verdicts:?}"
    );
    for word in ["closed", "follow"] {
        assert!(verdicts.contains(&word), "one of three shards was emptied: {verdicts:?}");
    }
    for (number, record) in records.iter().enumerate() {
        let keep = claim("").rules.keep;
        assert_eq!(holder.renew(record, &keep).await.unwrap(), RenewVerdict::Renewed);
        assert_eq!(verdict(&other, &claim(&format!("held {number}"))).await, "follow");
    }
}

#[tokio::test]
async fn sf_3_nothing_that_was_acknowledged_is_lost_in_a_failover() {
    let mut pair = RedisSentinel::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let confirm = WriteConfirmation::Replicas { count: 1, within: TEST_TIMEOUT };
    let options = Options { confirm, ..options(&pair.url()) };
    let store = RedisStore::connect(options).await.unwrap();
    let mut events = store.events();

    // Load, until the primary is killed.
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (count, mut counted) = tokio::sync::watch::channel(0_usize);
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (store, stopped, count) = (store.clone(), stopped.clone(), count.clone());
            tokio::spawn(async move {
                let (mut claimed, mut saved) = (Vec::new(), Vec::new());
                for number in 0.. {
                    if *stopped.borrow() {
                        break;
                    }
                    let name = format!("{worker}/{number}");
                    let Ok(ClaimVerdict::Acquired(record)) =
                        store.claim(&claim(&name), &LocalKnowledge::default()).await
                    else {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    };
                    if store.save(&save(&record, "paid")).await.is_ok() {
                        saved.push(name);
                        count.send_modify(|count| *count += 1);
                    } else {
                        claimed.push(name);
                    }
                }
                (claimed, saved)
            })
        })
        .collect();
    within("there is something to lose", counted.wait_for(|count| *count >= ENOUGH)).await.unwrap();
    // The new primary needs a replica of its own before a write counts.
    let (_pair, _replica) = tokio::task::spawn_blocking(move || {
        pair.fail_over();
        let primary = format!("127.0.0.1 {}", pair.primary().port());
        let replica = RedisServer::with(&["--repl-diskless-sync-delay", "0", "--replicaof", &primary]);
        (pair, replica)
    })
    .await
    .unwrap();
    wait_for_event(&mut events, StoreEvent::Available).await;
    stop.send_replace(true);
    let mut checked = 0;
    for worker in workers {
        let (claimed, saved) = worker.await.unwrap();
        checked += saved.len();
        for name in saved {
            let found = eventually(|| async { store.record(claim(&name).address.own()).await }).await;
            assert!(found.is_some_and(|record| !record.is_open()), "the answer of {name} is lost");
        }
        for name in claimed {
            let found = eventually(|| async { store.record(claim(&name).address.own()).await }).await;
            assert!(found.is_some(), "the claim of {name} is lost");
        }
    }
    assert!(checked >= ENOUGH, "only {checked} answers were looked for");
}

/// Number of acknowledged results before a server fails.
const ENOUGH: usize = 100;

/// A server that became a replica keeps its connections and refuses writes on them.
#[tokio::test]
async fn sf_3_a_primary_that_became_a_replica_is_left() {
    let mut pair = RedisSentinel::start(&[]);
    let store = RedisStore::connect(options(&pair.url())).await.unwrap();
    let before = run(&store, &claim("before"), "paid").await;
    let record = take(&store, &claim("held")).await;
    pair.wait_until_replicated();
    let mut pair = tokio::task::spawn_blocking(move || {
        pair.swap();
        pair
    })
    .await
    .unwrap();
    eventually(|| async { store.save(&save(&record, "paid")).await }).await;
    run(&store, &claim("after"), "paid").await;
    assert!(store.record(before.key).await.unwrap().is_some());
    let names = pair.primary().command(&["KEYS", "*:r:*"]);
    assert_eq!(names.split(' ').count(), 3, "all of them are with the new primary: {names}");
}

#[tokio::test]
async fn a_write_that_no_replica_confirms_has_an_unknown_outcome() {
    let server = RedisServer::start();
    let options = options(&server.url());
    let confirmed = async |within| {
        let confirm = WriteConfirmation::Replicas { count: 1, within };
        RedisStore::connect(Options { confirm, ..options.clone() }).await.unwrap()
    };
    let call = claim("a");
    let error =
        confirmed(Duration::from_millis(1)).await.claim(&call, &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!(
        (error.fault(), error.kind()),
        (StoreFault::Unanswered, StoreErrorKind::Unreachable),
        "{error}"
    );
    let replica = RedisServer::with(&["--replicaof", &format!("127.0.0.1 {}", server.port())]);
    let repeated = confirmed(TEST_TIMEOUT).await.claim(&call, &LocalKnowledge::default()).await.unwrap();
    assert!(matches!(repeated, ClaimVerdict::Acquired(_)), "repeated under its own token");
    drop(replica);
}
