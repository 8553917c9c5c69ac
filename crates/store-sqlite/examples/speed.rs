//! Cost of a durable step, compared with a single sync and with plain SQLite with one transaction per step.
//!
//! `cargo run --release -p steadfast-store-sqlite --example speed -- <folder on the disk to measure>`

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a measurement that fails should stop"
)]

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRules, LocalKnowledge, RecordAddress,
    RunOutcome, SaveRequest, SaveVerdict,
};
use steadfast_core::id::{Digest, Namespace, RequestId, RunId, ToolName, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{DedupePolicy, PolicyProfile, ToolClass};
use steadfast_json::RawJson;
use steadfast_store::{StateStore, this_process};
use steadfast_store_sqlite::{SqliteOptions, SqliteStore};

const STEPS: u64 = 2_000;
const CALLERS: u64 = 64;

fn main() {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let folder = Path::new(&folder).join(format!("speed-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    for round in 0..3 {
        let sync = bare_sync(&folder.join("sync"));
        println!("round {round}: one fdatasync of 12 KiB: {sync:?}");
        let store = SqliteStore::open(SqliteOptions::at(folder.join(format!("store-{round}.db")))).unwrap();
        let store = Arc::new(store);
        let (claims, saves) = runtime.block_on(one_caller(&store, round));
        println!(
            "  one caller: claim {claims:?} ({:.2}x), save {saves:?} ({:.2}x)",
            ratio(claims, sync),
            ratio(saves, sync)
        );
        let replay = runtime.block_on(replays(&store, round));
        println!("  replay: {replay:?}");
        let together = runtime.block_on(many_callers(&store, round));
        let alone = bare_sqlite(&folder.join(format!("bare-{round}.db")));
        println!(
            "  {CALLERS} callers: {together:.0} steps/s; bare SQLite, one transaction each: {alone:.0}/s ({:.2}x)",
            together / alone
        );
        let records = runtime.block_on(fill(&store, round));
        drop(store);
        let started = Instant::now();
        drop(SqliteStore::open(SqliteOptions::at(folder.join(format!("store-{round}.db")))).unwrap());
        println!("  opened and closed with about {records} records: {:?}", started.elapsed());
    }
    fs::remove_dir_all(&folder).unwrap();
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Syncs a file that does not grow, like a WAL most of the time.
fn bare_sync(path: &Path) -> Duration {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    let block = [7_u8; 4096];
    for _ in 0..1024 {
        file.write_all(&block).unwrap();
    }
    file.sync_all().unwrap();
    let mut times = Vec::new();
    for n in 0..STEPS {
        let started = Instant::now();
        file.seek(SeekFrom::Start(n * 3 % 1020 * 4096)).unwrap();
        for _ in 0..3 {
            file.write_all(&block).unwrap();
        }
        file.sync_data().unwrap();
        times.push(started.elapsed());
    }
    median(times)
}

async fn one_caller(store: &SqliteStore, round: u64) -> (Duration, Duration) {
    let (mut claims, mut saves) = (Vec::new(), Vec::new());
    for n in 0..STEPS {
        let claim = claim(round, 1_000_000 + n);
        let started = Instant::now();
        let verdict = store.claim(&claim, &LocalKnowledge::default()).await.unwrap();
        claims.push(started.elapsed());
        let save = save(verdict);
        let started = Instant::now();
        let saved = store.save(&save).await.unwrap();
        saves.push(started.elapsed());
        assert!(matches!(saved, SaveVerdict::Saved(_)));
    }
    let mean = |times: &[Duration]| times.iter().sum::<Duration>() / u32::try_from(times.len()).unwrap();
    println!("  means: claim {:?}, save {:?}", mean(&claims), mean(&saves));
    (median(claims), median(saves))
}

async fn replays(store: &SqliteStore, round: u64) -> Duration {
    let mut times = Vec::new();
    for n in 0..STEPS {
        let claim = claim(round, 1_000_000 + n);
        let started = Instant::now();
        let verdict = store.claim(&claim, &LocalKnowledge::default()).await.unwrap();
        times.push(started.elapsed());
        assert!(matches!(verdict, ClaimVerdict::Replay(_)));
    }
    median(times)
}

/// Returns the steps per second.
async fn many_callers(store: &Arc<SqliteStore>, round: u64) -> f64 {
    let each = 2 * STEPS / CALLERS * 4;
    let started = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..each / 2 {
                    let claim = claim(round, 2_000_000 + caller * 10_000 + n);
                    let verdict = store.claim(&claim, &LocalKnowledge::default()).await.unwrap();
                    store.save(&save(verdict)).await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    (CALLERS * each) as f64 / started.elapsed().as_secs_f64()
}

/// Writes many records, as after a busy day.
async fn fill(store: &Arc<SqliteStore>, round: u64) -> u64 {
    let callers = (0..CALLERS).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..300 {
                let claim = claim(round, 4_000_000 + caller * 10_000 + n);
                store.claim(&claim, &LocalKnowledge::default()).await.unwrap();
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    CALLERS * 300 + 3 * STEPS
}

/// The least that a store could do: find, then write, one transaction for each, 64 threads on one connection.
fn bare_sqlite(path: &Path) -> f64 {
    let file = Connection::open(path).unwrap();
    file.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; 
         CREATE TABLE record (key BLOB PRIMARY KEY, expires INTEGER, body BLOB) WITHOUT ROWID;
         CREATE INDEX life ON record (expires);",
    )
    .unwrap();
    let file = Mutex::new(file);
    let body = claim_body();
    let each = 2 * STEPS / CALLERS * 4;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (file, body) = (&file, &body);
            scope.spawn(move || {
                for n in 0..each {
                    let key = Digest::of(format!("{caller} {}", n / 2).as_bytes());
                    let file = file.lock().unwrap();
                    file.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
                    let mut find = file.prepare_cached("SELECT body FROM record WHERE key = ?1").unwrap();
                    let _ = find.exists([key.as_bytes()]).unwrap();
                    file.prepare_cached(
                        "INSERT INTO record VALUES (?1, ?2, ?3)
                         ON CONFLICT (key) DO UPDATE SET expires = ?2, body = ?3",
                    )
                    .unwrap()
                    .execute(params![key.as_bytes(), i64::try_from(n).unwrap(), body])
                    .unwrap();
                    file.prepare_cached("COMMIT").unwrap().execute([]).unwrap();
                }
            });
        }
    });
    (CALLERS * each) as f64 / started.elapsed().as_secs_f64()
}

fn claim_body() -> Vec<u8> {
    vec![b'x'; 900]
}

fn claim(round: u64, n: u64) -> Claim {
    Claim {
        address: RecordAddress::Explicit(RecordKey(Digest::of(format!("{round} {n}").as_bytes()))),
        intent: ClaimIntent::Take { started: true },
        role: ClaimRole::Fresh,
        owner: ClaimOwner { process: this_process_once(), call: n, claim: 1 },
        digest: Digest::of(b"arguments"),
        retry_safe: false,
        best_effort: false,
        arrived: steadfast_core::Timestamp::from_millis(1),
        age: Duration::ZERO,
        end_observed_within: None,
        run: RunId(format!("run-{n}").into()),
        rules: DedupeRules::from(&PolicyProfile::Standard.policy(ToolClass::Mutating)),
        tool: ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() },
        request: RequestId::new(format!("request-{n}")).unwrap(),
        tool_call: None,
        context: None,
        session: None,
        actor: None,
        tenant: None,
    }
}

fn this_process_once() -> steadfast_core::dedupe::ProcessIdentity {
    static PROCESS: std::sync::OnceLock<steadfast_core::dedupe::ProcessIdentity> = std::sync::OnceLock::new();
    PROCESS.get_or_init(this_process).clone()
}

fn save(verdict: ClaimVerdict) -> SaveRequest {
    let ClaimVerdict::Acquired(claimed) = verdict else { panic!("{verdict:?}") };
    let output = ToolOutput { content: RawJson::string(&"paid ".repeat(50)), metadata: None };
    SaveRequest {
        claimed,
        ending: RunOutcome::Done(Some(output)),
        attempts: Vec::new(),
        delivered: None,
        hold: false,
        keep: DedupePolicy::default().keep,
    }
}
