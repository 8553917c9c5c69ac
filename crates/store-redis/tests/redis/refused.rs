//! Servers that refuse the login or cannot be used, each with a message that contains a solution.

use std::path::PathBuf;
use std::time::Duration;

use steadfast_core::call::StoreFault;
use steadfast_core::dedupe::LocalKnowledge;
use steadfast_store::{FlushTarget, StateStore, StoreError, StoreErrorKind};
use steadfast_store_redis::{Options, RedisLogin, RedisStore, RedisTls};
use steadfast_testkit::redis::RedisServer;

use crate::world::{claim, options, run, take};

async fn refused(options: Options) -> StoreError {
    match RedisStore::connect(options).await {
        Ok(_) => panic!("this must not connect"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_wrong_password_is_refused_with_a_solution_and_never_shown() {
    let server = RedisServer::with(&["--requirepass", "correct horse"]);
    let url = |login: &str| format!("redis://{login}127.0.0.1:{}", server.port());
    for login in ["", ":hunter2@", "nobody:hunter2@"] {
        let error = refused(options(&url(login))).await;
        assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Refused), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(
            shown.contains("password") && !shown.contains("hunter2") && !shown.contains("nobody"),
            "{shown}"
        );
    }
    for login in [":correct%20horse@", "default:correct%20horse@"] {
        let store = RedisStore::connect(options(&url(login))).await.unwrap();
        run(&store, &claim("a"), "paid").await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_and_nothing_was_done() {
    let port = RedisServer::free_port();
    for url in [
        format!("redis://127.0.0.1:{port}"),
        format!("redis+cluster://127.0.0.1:{port}"),
        format!("redis+sentinel://127.0.0.1:{port}/main"),
        "redis://no-such-host.invalid".to_owned(),
    ] {
        // A refused connection and a timeout have the same effect here.
        let hasty = || Options { connect_timeout: Duration::from_secs(2), ..options(&url) };
        let error = refused(hasty()).await;
        assert_eq!(
            (error.fault(), error.kind()),
            (StoreFault::NotDone, StoreErrorKind::Unreachable),
            "{url}: {error}"
        );
        let message = error.to_string();
        assert!(message.contains("check that it runs, the address"), "{url}: {message}");
        // A store that is opened nevertheless reports the error with every call.
        let error =
            RedisStore::open(hasty()).claim(&claim("a"), &LocalKnowledge::default()).await.unwrap_err();
        assert_eq!(
            (error.fault(), error.kind()),
            (StoreFault::NotDone, StoreErrorKind::Unreachable),
            "{url}: {error}"
        );
    }
}

#[tokio::test]
async fn tls_accepts_only_a_known_authority() {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = RefusalTestFolder::new();
    let (cert, key) = (folder.0.join("cert.pem"), folder.0.join("key.pem"));
    std::fs::write(&cert, certificate.cert.pem()).unwrap();
    std::fs::write(&key, certificate.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let port = RedisServer::free_port();
    let server = RedisServer::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "correct horse",
    ]);
    let url = format!("rediss://:correct%20horse@localhost:{port}");
    let known = Options { tls: RedisTls::Authority(certificate.cert.pem().into_bytes()), ..options(&url) };
    let store = RedisStore::connect(known.clone()).await.unwrap();
    run(&store, &claim("a"), "paid").await;

    let elsewhere = Options { tls: known.tls.clone(), ..options(&url.replace("localhost", "127.0.0.1")) };
    for (case, options) in [("nobody vouches for it", options(&url)), ("it is for another name", elsewhere)] {
        let error = refused(options).await;
        assert_eq!(
            (error.fault(), error.kind()),
            (StoreFault::NotDone, StoreErrorKind::Unreachable),
            "{case}: {error}"
        );
        assert!(
            error.to_string().contains("certificate") && error.to_string().contains("and TLS"),
            "{error}"
        );
    }
    let wrong = Options { login: RedisLogin::default(), ..known };
    assert_eq!(refused(wrong).await.kind(), StoreErrorKind::Refused, "a password is wanted here too");
    // A server without TLS may wait for more input.
    let plain = Options {
        connect_timeout: Duration::from_millis(300),
        ..options(&format!("rediss://localhost:{}", server.port()))
    };
    assert_eq!(refused(plain).await.fault(), StoreFault::NotDone);
}

/// A folder that is removed after the test.
struct RefusalTestFolder(PathBuf);

impl RefusalTestFolder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("steadfast-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for RefusalTestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_server_without_memory_is_full_and_nothing_was_done() {
    let server = RedisServer::start();
    let store = RedisStore::connect(options(&server.url())).await.unwrap();
    let record = take(&store, &claim("before")).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = store.claim(&claim("a"), &LocalKnowledge::default()).await.unwrap_err();
    assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Full), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.record(claim("a").address.own()).await.unwrap(), None);
    assert!(store.record(record.key).await.unwrap().is_some());
}

#[tokio::test]
async fn a_replica_takes_no_claims() {
    let primary = RedisServer::start();
    let replica = RedisServer::with(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    let error = refused(options(&replica.url())).await;
    assert_eq!((error.fault(), error.kind()), (StoreFault::NotDone, StoreErrorKind::Unreachable), "{error}");
}

#[tokio::test]
async fn a_foreign_value_is_reported_and_only_a_flush_of_its_key_removes_it() {
    let server = RedisServer::start();
    let store = RedisStore::connect(options(&server.url())).await.unwrap();
    let record = run(&store, &claim("a"), "paid").await;
    let name = server.command(&["KEYS", "*:r:*"]);
    server.command(&["SET", &name, "somebody else's"]);
    for error in [
        store.claim(&claim("a"), &LocalKnowledge::default()).await.err(),
        store.record(record.key).await.err(),
    ] {
        let error = error.unwrap();
        assert_eq!(
            (error.fault(), error.kind()),
            (StoreFault::NotDone, StoreErrorKind::Unreadable),
            "{error}"
        );
    }
    let everything = FlushTarget::Finished(steadfast_store::RecordFilter::default());
    assert_eq!(store.flush(&everything).await.unwrap(), 0);
    assert_eq!(store.flush(&FlushTarget::Key(record.key)).await.unwrap(), 1);
    run(&store, &claim("a"), "paid").await;
}
