//! Tests with a user that has only the permissions in `docs/operating/redis.md`: on one server, behind Sentinel, and
//! in a Cluster.

use std::time::Duration;

use steadfast_core::call::StoreFault;
use steadfast_core::dedupe::LocalKnowledge;
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, FlushTarget, Journal, JournalEntry,
    JournalLimits, JournalQuery, RecordFilter, RecordPage, StateStore, StoreError, StoreErrorKind,
};
use steadfast_store_redis::{Options, RedisLogin, RedisStore, WriteConfirmation};
use steadfast_testkit::redis::{RedisCluster, RedisSentinel, RedisServer};

use crate::world::{TEST_TIMEOUT, claim, patient, release, run, save, take, within};

const USER: &str = "steadfast";
const PASSWORD: &str = "correct horse";

fn add_user(server: &RedisServer, rights: &[&str]) {
    let mut words = vec!["ACL", "SETUSER", USER, "reset", "on", ">correct horse"];
    words.extend(["~steadfast:*", "&steadfast:*"]);
    words.extend(["+@read", "+@write", "+@scripting", "+@pubsub", "+time", "+wait", "+ping", "-@dangerous"]);
    words.extend(rights);
    assert_eq!(server.command(&words), "OK");
}

fn as_user(url: &str, password: &str) -> Options {
    let login = RedisLogin { user: Some(USER.to_owned()), password: Some(password.to_owned()) };
    Options { login, ..patient(url) }
}

/// Uses every operation of a store.
async fn run_all_operations(options: Options) {
    let (store, other) = (RedisStore::connect(options.clone()).await.unwrap(), RedisStore::open(options));
    let record = take(&store, &claim("a")).await;
    let follower = tokio::spawn({
        let (other, key) = (other.clone(), record.key);
        async move { other.settled(key).await }
    });
    store.renew(&record, &claim("a").rules.keep).await.unwrap();
    store.save(&save(&record, "paid")).await.unwrap();
    within("the follower", follower).await.unwrap();
    let released = take(&other, &claim("b")).await;
    other.release(&release(&released)).await.unwrap();

    let listed =
        store.records(&RecordFilter::default(), RecordPage { after: None, limit: 10 }).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(store.flush(&FlushTarget::Finished(RecordFilter::default())).await.unwrap(), 1);
    store.sweep().await.unwrap();

    let name = DocumentName { kind: DocumentKind::Breaker, id: "bank/pay".into() };
    let write = DocumentWrite { replaces: None, body: Some("{}".into()), expires: None };
    let DocumentWriteOutcome::Written(version) = store.write(&name, write).await.unwrap() else {
        panic!("it was not there")
    };
    assert_eq!(other.read(&name).await.unwrap().unwrap().version, version);
    assert_eq!(other.documents(DocumentKind::Breaker).await.unwrap().len(), 1);
    let entry = JournalEntry { at: store.now(), subject: "a".into(), body: "{}".into() };
    let keep = JournalLimits { most: 10, most_per_subject: None, age: Duration::from_secs(60) };
    store.append(Journal::History, std::slice::from_ref(&entry), keep).await.unwrap();
    let query = JournalQuery { subject: Some("a".into()), ..JournalQuery::newest(Journal::History, 9) };
    let entries: Vec<JournalEntry> =
        store.entries(&query).await.unwrap().into_iter().map(|(_, entry)| entry).collect();
    assert_eq!(entries, [entry]);
}

async fn refused(options: Options) -> StoreError {
    match RedisStore::connect(options).await {
        Ok(_) => panic!("this must not connect"),
        Err(error) => error,
    }
}

async fn assert_wrong_password_reported(options: Options) {
    let error = refused(options).await;
    assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Refused), "{error}");
    assert!(error.to_string().contains("refused the user or the password: set both in the url"), "{error}");
}

#[tokio::test]
async fn the_rights_that_the_documentation_names_are_enough() {
    let server = RedisServer::start();
    add_user(&server, &[]);
    run_all_operations(as_user(&server.url(), PASSWORD)).await;
    assert_wrong_password_reported(as_user(&server.url(), "wrong")).await;

    // A user without a permission gets an error that names it.
    add_user(&server, &["-@scripting"]);
    let store = RedisStore::connect(as_user(&server.url(), PASSWORD)).await.unwrap();
    let error = store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Refused), "{error}");
    assert!(error.to_string().contains("grant the permissions that the documentation lists"), "{error}");
    // The user has no access to another prefix.
    add_user(&server, &[]);
    let foreign = crate::world::options(&server.url());
    let error = refused(Options { prefix: foreign.prefix, ..as_user(&server.url(), PASSWORD) }).await;
    assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Refused), "{error}");
    run(&RedisStore::connect(as_user(&server.url(), PASSWORD)).await.unwrap(), &claim("b"), "paid").await;
}

#[tokio::test]
async fn a_user_is_let_into_a_cluster_with_the_rights_that_the_documentation_names() {
    let cluster = RedisCluster::start();
    for node in cluster.nodes() {
        add_user(node, &["+cluster|slots"]);
    }
    run_all_operations(as_user(&cluster.url(), PASSWORD)).await;
    assert_wrong_password_reported(as_user(&cluster.url(), "wrong")).await;
}

#[tokio::test]
async fn a_user_is_let_in_behind_sentinels_that_want_a_password_of_their_own() {
    let mut pair = RedisSentinel::start(&[]);
    add_user(pair.primary(), &["+role"]);
    pair.sentinel().command(&["ACL", "SETUSER", "watch", "on", ">sentry", "+@all"]);
    pair.sentinel().command(&["ACL", "SETUSER", "default", "resetpass", ">closed"]);
    let login =
        |password: &str| RedisLogin { user: Some("watch".to_owned()), password: Some(password.to_owned()) };
    let url = pair.url();
    let confirm = WriteConfirmation::Replicas { count: 1, within: TEST_TIMEOUT };
    let right = Options { sentinel_login: login("sentry"), confirm, ..as_user(&url, PASSWORD) };
    run_all_operations(right.clone()).await;
    assert_wrong_password_reported(Options { login: as_user(&url, "wrong").login, ..right.clone() }).await;
    assert_wrong_password_reported(Options { sentinel_login: login("wrong"), ..right.clone() }).await;

    let url = url.replace(RedisSentinel::SERVICE, "another");
    let error = refused(Options { place: as_user(&url, PASSWORD).place, ..right }).await;
    assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Unreachable), "{error}");
    assert!(error.to_string().contains("check the name"), "{error}");
}
