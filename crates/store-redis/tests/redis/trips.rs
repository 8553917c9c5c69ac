//! Commands to the server: their content, their number, and the effect of late ones.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::StoreFault;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimRole, ClaimVerdict, DedupeRecord, DedupeState, DeliveryReceipt, LocalKnowledge,
    RunOutcome, SaveRequest, SaveVerdict, SettleDelay, SettleStatus, SettleTime, StartVerdict,
};
use steadfast_store::{FlushTarget, RecordCodec, RecordFilter, RecordPage, StateStore, StoreErrorKind};
use steadfast_store_redis::{KeyPrefix, Options, RedisStore};
use steadfast_testkit::redis::RedisServer;

use crate::world::{
    LONG, claim, done, eventually, failed, keyless, options, release, run, save, take, unknown, verdict,
    with_lease, within,
};

/// Returns how often the server has run a command.
fn runs(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    line.and_then(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn the_usual_ways_are_one_round_trip_and_the_others_two() {
    let server = RedisServer::start();
    let options = options(&server.url());
    let (store, other) =
        (RedisStore::connect(options.clone()).await.unwrap(), RedisStore::connect(options).await.unwrap());
    run(&store, &claim("the script is known from here on"), "x").await;
    let before = std::cell::Cell::new(runs(&server, "evalsha"));
    let trips = || {
        let now = runs(&server, "evalsha");
        now - before.replace(now)
    };

    for fresh in [claim("a"), keyless("a")] {
        let waiting = Claim { intent: ClaimIntent::Take { started: false }, ..fresh.clone() };
        let record = take(&store, &waiting).await;
        assert_eq!(trips(), 1, "a claim");
        assert_eq!(store.start(record.key, &record.owner).await.unwrap(), StartVerdict::Started);
        assert_eq!(trips(), 1, "a start");
        store.renew(&record, &waiting.rules.keep).await.unwrap();
        assert_eq!(trips(), 1, "a renewal");
        let duplicate = || if fresh.address.index().is_some() { keyless("a") } else { claim("a") };
        assert_eq!(verdict(&other, &duplicate()).await, "follow");
        assert_eq!(trips(), 1, "a follower");
        let receipt = saved(store.save(&save(&record, "paid")).await.unwrap());
        assert_eq!(trips(), 1, "a save");
        assert_eq!(verdict(&other, &duplicate()).await, "replay");
        assert_eq!(trips(), 1, "a replay");
        let woken = Claim { role: ClaimRole::Waiter { followed: record.key }, ..duplicate() };
        assert_eq!(verdict(&other, &woken).await, "replay");
        assert_eq!(trips(), 1, "a waiter that was woken");
        store.delivered(&receipt, store.now()).await.unwrap();
        assert_eq!(trips(), 1, "a delivery");
    }
    let record = take(&store, &claim("b")).await;
    trips();
    store.release(&release(&record)).await.unwrap();
    assert_eq!(trips(), 1, "a release");

    let lapsed = Claim { retry_safe: true, ..with_lease(claim("c"), Duration::ZERO) };
    take(&store, &lapsed).await;
    trips();
    assert_eq!(verdict(&other, &claim("c")).await, "mine");
    assert_eq!(trips(), 2, "a take-over");
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_caller_gave_up_is_void() {
    let server = RedisServer::start();
    let patient = options(&server.url());
    let hasty = Options { command_timeout: Duration::from_millis(100), ..patient.clone() };
    let patient = RedisStore::connect(patient).await.unwrap();
    run(&patient, &claim("before"), "x").await;
    // The first tries may fail, but afterwards it has a connection and knows the time.
    let hasty = eventually(|| RedisStore::connect(hasty.clone())).await;

    server.pause();
    let late = claim("late");
    let error = hasty.claim(&late, &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!((error.fault(), error.kind()), (StoreFault::Unanswered, StoreErrorKind::Unreachable));
    let waiting = claim("waiting");
    let waited = tokio::spawn({
        let (store, waiting) = (patient.clone(), waiting.clone());
        async move { take(&store, &waiting).await }
    });
    tokio::task::yield_now().await;
    server.resume();
    let record = within("a claim that was only delayed", waited).await.unwrap();
    assert_eq!(patient.record(record.key).await.unwrap(), Some(record), "its caller was still there");
    assert_eq!(patient.record(late.address.own()).await.unwrap(), None, "its caller was not");
}

#[tokio::test]
async fn a_server_without_the_script_gets_it_again() {
    let server = RedisServer::start();
    let store = RedisStore::connect(options(&server.url())).await.unwrap();
    run(&store, &claim("a"), "x").await;
    server.command(&["SCRIPT", "FLUSH"]);
    run(&store, &claim("b"), "x").await;
}

#[tokio::test]
async fn many_followers_read_once_and_a_broken_subscription_leaves_none_waiting() {
    let server = RedisServer::start();
    let options = options(&server.url());
    let (store, other) =
        (RedisStore::connect(options.clone()).await.unwrap(), RedisStore::connect(options).await.unwrap());
    let record = take(&store, &claim("a")).await;
    let follow = || {
        let (other, key) = (other.clone(), record.key);
        tokio::spawn(async move { other.settled(key).await })
    };
    let waiters: Vec<_> = (0..200).map(|_| follow()).collect();
    while runs(&server, "getrange") == 0 {
        tokio::task::yield_now().await;
    }
    // The script reads with the same command. A follower has read once.
    let lookups = runs(&server, "getrange");
    assert!(lookups <= 2, "{lookups} looks for 200 followers");
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert!(matches!(store.save(&save(&record, "paid")).await, Ok(SaveVerdict::Saved(_))));
    for follower in waiters {
        within("a follower whose subscription broke", follower).await.unwrap();
    }
}

/// Polling alone would wake all followers too, only later. So this tests what only a message can do.
#[tokio::test]
async fn followers_are_woken_by_a_message_and_every_end_sends_one() {
    let server = RedisServer::start();
    let options = options(&server.url());
    let (store, other) =
        (RedisStore::connect(options.clone()).await.unwrap(), RedisStore::connect(options).await.unwrap());
    let follow = |key| {
        let other = other.clone();
        tokio::spawn(async move { other.settled(key).await })
    };
    let listens = |name: &str| server.command(&["PUBSUB", "NUMSUB", name]) == format!("{name} 1");
    let until_listening = async |name: &str, expected: bool| {
        within("the subscription", async {
            while listens(name) != expected {
                tokio::task::yield_now().await;
            }
        })
        .await;
    };

    // The record stays in flight for minutes, so reading it wakes no follower.
    let record = take(&store, &claim("a")).await;
    let name = server.command(&["KEYS", "*:r:*"]);
    let follower = follow(record.key);
    until_listening(&name, true).await;
    server.command(&["PUBLISH", &name, ""]);
    within("a follower that was told", follower).await.unwrap();
    until_listening(&name, false).await;

    let published = || runs(&server, "publish");
    let before = published();
    store.renew(&record, &claim("a").rules.keep).await.unwrap();
    assert_eq!(published(), before, "nothing has ended");
    store.save(&save(&record, "paid")).await.unwrap();
    assert_eq!(published(), before + 1, "an answer");
    let endings: [(&str, RunOutcome); 3] = [
        ("failed", failed()),
        ("unknown", unknown(SettleDelay::Settled)),
        ("cut", unknown(SettleDelay::WhenOwnerReports)),
    ];
    for (key, ending) in endings {
        let record = take(&store, &claim(key)).await;
        let before = published();
        store.save(&SaveRequest { ending, ..save(&record, "") }).await.unwrap();
        assert_eq!(published(), before + 1, "{key}");
    }
    let record = take(&store, &claim("released")).await;
    let before = published();
    store.release(&release(&record)).await.unwrap();
    assert_eq!(published(), before + 1, "released");
}

/// A record with an unknown outcome is also written by processes other than its owner. Each write has another
/// version, and a process that expected an earlier one detects that.
#[tokio::test]
async fn an_unknown_outcome_that_is_written_again_is_another_result() {
    let server = RedisServer::start();
    let options = options(&server.url());
    let (owner, other) =
        (RedisStore::connect(options.clone()).await.unwrap(), RedisStore::connect(options).await.unwrap());
    let published = || runs(&server, "publish");
    for fresh in [|| claim("a"), || keyless("a")] {
        let record = take(&owner, &with_lease(fresh(), Duration::ZERO)).await;
        let ends = async |ending: RunOutcome| {
            let before = published();
            let receipt = saved(owner.save(&SaveRequest { ending, ..save(&record, "") }).await.unwrap());
            assert_eq!(published(), before + 1, "who waits for it is told");
            receipt
        };
        let cut = ends(unknown(SettleDelay::WhenOwnerReports)).await;
        assert_eq!(settles(&owner, &cut).await, (SettleTime::WhenOwnerReports, None));

        // Its lease has expired: another process records when it will be settled.
        let before = published();
        let ClaimVerdict::Unknown(status) = other.claim(&fresh(), &LocalKnowledge::default()).await.unwrap()
        else {
            panic!("it is unknown")
        };
        assert_eq!(published(), before + 1, "who waits for it is told");
        assert!(matches!(status.end, SettleStatus::NotYet(Some(_))), "{status:?}");
        assert_eq!(status.receipt, DeliveryReceipt { version: cut.version + 1, ..cut.clone() });
        assert!(matches!(settles(&owner, &status.receipt).await, (SettleTime::By(_), None)));
        // The owner expects the version that it wrote itself, and its mark for that has no effect.
        owner.delivered(&cut, long_after(&owner)).await.unwrap();
        assert!(matches!(settles(&owner, &status.receipt).await, (SettleTime::By(_), None)));

        // The owner has seen the end, and the response about it is delivered. Then only the mark is written.
        let over = ends(unknown(SettleDelay::Settled)).await;
        assert_eq!(over.version, status.receipt.version + 1);
        let at = owner.now();
        owner.delivered(&over, at).await.unwrap();
        let marked = DeliveryReceipt { version: over.version + 1, ..over };
        assert_eq!(settles(&other, &marked).await, (SettleTime::Settled, Some(at)));

        let answer = ends(done("paid after all")).await;
        assert_eq!(answer.version, marked.version + 1);
        let found = other.record(answer.key).await.unwrap().unwrap();
        assert_eq!(found.delivered, None, "it is another answer");
        assert_eq!(verdict(&other, &fresh()).await, "replay");
    }
}

/// Returns the settling time of the unknown outcome with this receipt, and the time of its delivery. Checks that the
/// output of the tool is kept exactly.
async fn settles(store: &RedisStore, receipt: &DeliveryReceipt) -> (SettleTime, Option<Timestamp>) {
    let found = store.record(receipt.key).await.unwrap().unwrap();
    assert_eq!(found.receipt(), *receipt);
    let DedupeRecord { state: DedupeState::Unknown(found), delivered, .. } = found else {
        panic!("{found:?}")
    };
    let RunOutcome::Unknown(expected) = unknown(SettleDelay::Settled) else {
        panic!("it says that it is unknown")
    };
    assert_eq!((found.observed, found.output), (expected.observed, expected.output));
    (found.settles, delivered)
}

fn saved(verdict: SaveVerdict) -> DeliveryReceipt {
    match verdict {
        SaveVerdict::Saved(receipt) => receipt,
        SaveVerdict::FenceLost => panic!("the fence is lost"),
    }
}

/// A time at which everything is over.
fn long_after(store: &RedisStore) -> Timestamp {
    store.now() + LONG + LONG
}

#[tokio::test]
async fn two_prefixes_on_one_server_are_separate() {
    let server = RedisServer::start();
    let prefixed =
        |prefix: &str| Options { prefix: KeyPrefix::new(prefix).unwrap(), ..options(&server.url()) };
    let (one, other) = (
        RedisStore::connect(prefixed("one:")).await.unwrap(),
        RedisStore::connect(prefixed("other:")).await.unwrap(),
    );
    run(&one, &claim("a"), "paid").await;
    assert_eq!(verdict(&other, &claim("a")).await, "mine");
    let everything = FlushTarget::Finished(RecordFilter::default());
    assert_eq!(other.flush(&everything).await.unwrap(), 0, "its own is in flight, the other's not its own");
    assert_eq!(verdict(&one, &claim("a")).await, "replay");
    let names = server.command(&["KEYS", "*"]);
    assert!(names.split(' ').all(|name| name.starts_with("one:{") || name.starts_with("other:{")), "{names}");
}

#[tokio::test]
async fn with_a_secret_no_output_is_unencrypted_on_the_server() {
    let server = RedisServer::start();
    let codec = RecordCodec::encrypted(&[7; 32]).unwrap();
    let options = Options { codec, ..options(&server.url()) };
    let store = RedisStore::connect(options.clone()).await.unwrap();
    let record = run(&store, &claim("a"), "a very secret answer").await;
    let names = server.command(&["KEYS", "*:r:*"]);
    let stored = server.command(&["GET", &names]);
    assert!(stored.len() > 100 && !stored.contains("secret"), "{stored}");
    assert!(store.record(record.key).await.unwrap().is_some());

    let blind = RedisStore::connect(Options { codec: RecordCodec::default(), ..options }).await.unwrap();
    let error = blind.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Unreadable));
    let listed =
        blind.records(&RecordFilter::default(), RecordPage { after: None, limit: 10 }).await.unwrap();
    assert_eq!(listed, [], "a list does not fail for one that cannot be read");
}

#[tokio::test]
async fn keys_expire_with_the_lifetime_of_their_records() {
    let server = RedisServer::start();
    let store = RedisStore::connect(options(&server.url())).await.unwrap();
    let claim = keyless("a");
    let started = clock(&server);
    let record = take(&store, &claim).await;
    assert_lives(&server, started, claim.rules.keep.open, "in flight");
    let finished =
        [("done", done("paid"), claim.rules.keep.done), ("failed", failed(), claim.rules.keep.failed)];
    for (arguments, ending, keep) in finished {
        let server = RedisServer::start();
        let store = RedisStore::connect(options(&server.url())).await.unwrap();
        let record = take(&store, &keyless(arguments)).await;
        let started = clock(&server);
        store.save(&SaveRequest { ending, ..save(&record, "") }).await.unwrap();
        assert_lives(&server, started, keep, arguments);
    }
    let request = SaveRequest { ending: unknown(SettleDelay::Settled), hold: true, ..save(&record, "") };
    store.save(&request).await.unwrap();
    for pattern in ["*:r:*", "*:i:*"] {
        assert_eq!(lives(&server, pattern), -1, "held until somebody settles it: {pattern}");
    }
}

/// Returns the remaining lifetime of the only key that matches this pattern, in milliseconds.
fn lives(server: &RedisServer, pattern: &str) -> i64 {
    let name = server.command(&["KEYS", pattern]);
    server.command(&["PTTL", &name]).parse().unwrap()
}

/// Returns the time of the server, in milliseconds.
fn clock(server: &RedisServer) -> i64 {
    let time = server.command(&["TIME"]);
    let (seconds, micros) = time.split_once(' ').unwrap();
    seconds.parse::<i64>().unwrap() * 1000 + micros.parse::<i64>().unwrap() / 1000
}

/// The record and its index entry were written after this time with this lifetime. So the rest is shorter by at most
/// the time that has passed on the server's clock.
fn assert_lives(server: &RedisServer, started: i64, span: Duration, case: &str) {
    let span = i64::try_from(span.as_millis()).unwrap();
    for pattern in ["*:r:*", "*:i:*"] {
        let lives = lives(server, pattern);
        // The estimate of the server's time may have been a little behind, and milliseconds are rounded.
        let passed = clock(server) - started;
        assert!(
            (span - passed - 2..=span + 2).contains(&lives),
            "{case}: {pattern} lives {lives} of {span} ms"
        );
    }
}
