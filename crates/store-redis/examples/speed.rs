//! What claim and save cost beside two bare scripts that do the same with the bare client.
//!
//! `cargo run --release -p steadfast-store-redis --example speed` starts a server of its own, measures both in turns,
//! and prints pairs per second at 1, 64 and 512 callers.
//!
//! The bare scripts check the same things, written out for the one case: the marker, the time, that nothing is there,
//! or that the record is the one that was claimed. They write as many bytes and tell as many listeners.
#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Address, Claim, ClaimVerdict, Ending, Intent, Owner, Process, Role, Rules, RunId, Save, SaveVerdict,
};
use steadfast_core::id::{Digest, Namespace, RequestId, ToolName, ToolRef};
use steadfast_core::key::Key;
use steadfast_core::output::{Output, RawJson};
use steadfast_core::policy::DedupePolicy;
use steadfast_store::Store;
use steadfast_store_redis::{Options, RedisStore};
use steadfast_testkit::redis::Server;

const CLAIM: &str = r"
local time = redis.call('TIME')
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return { 2, time[1], time[2] } end
if time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[2]) then return { 3, time[1], time[2] } end
if redis.call('EXISTS', KEYS[2]) ~= 0 then return { 1, time[1], time[2], redis.call('GET', KEYS[2]) } end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return { 0, time[1], time[2] }
";

const SAVE: &str = r"
local time = redis.call('TIME')
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return { 2, time[1], time[2] } end
if time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[2]) then return { 3, time[1], time[2] } end
if redis.call('GETRANGE', KEYS[2], 0, 23) ~= ARGV[3] then return { 1, time[1], time[2], redis.call('GET', KEYS[2]) } end
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
redis.call('PUBLISH', KEYS[2], '')
return { 0, time[1], time[2] }
";

const CALLERS: [usize; 3] = [1, 64, 512];
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(600);

static NUMBER: AtomicU64 = AtomicU64::new(0);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let server = Server::start();
    let store = RedisStore::connect(Options::parse(&server.url()).unwrap()).await.unwrap();
    let ours = Ours { store, claim: Arc::new(claim()), output: output() };
    ours.pair().await;
    let bare = Bare::new(&server).await;
    println!("pairs of claim and save per second: median of {ROUNDS} rounds, taken in turns");
    for callers in CALLERS {
        let (mut rates, mut ratios) = ((Vec::new(), Vec::new()), Vec::new());
        for _ in 0..ROUNDS {
            let rate = (rate(callers, &bare).await, rate(callers, &ours).await);
            ratios.push(rate.1 / rate.0);
            rates.0.push(rate.0);
            rates.1.push(rate.1);
        }
        let (bare, ours, ratio) = (median(rates.0), median(rates.1), median(ratios));
        println!("{callers:>4} callers: bare {bare:>7.0}, steadfast {ours:>7.0}, {:.0} %", 100.0 * ratio);
        server.command(&["FLUSHALL"]);
        server.command(&["SET", "m", "0123456789abcdef"]);
    }
}

trait Pairs: Clone + Send + 'static {
    fn pair(&self) -> impl Future<Output = ()> + Send;
}

/// How many pairs so many callers get through in a second.
async fn rate(callers: usize, pairs: &impl Pairs) -> f64 {
    // What an emptied server asks for is not measured.
    pairs.pair().await;
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (pairs, stop) = (pairs.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut made = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    pairs.pair().await;
                    made += 1;
                }
                made
            })
        })
        .collect();
    tokio::time::sleep(ROUND).await;
    stop.store(true, Ordering::Relaxed);
    let mut made = 0;
    for caller in callers {
        made += caller.await.unwrap();
    }
    f64::from(made) / begun.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

#[derive(Clone)]
struct Ours {
    store: RedisStore,
    claim: Arc<Claim>,
    output: Output,
}

impl Pairs for Ours {
    async fn pair(&self) {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut key = [0; 32];
        for (place, byte) in
            key.iter_mut().zip(number.to_be_bytes().into_iter().chain(number.to_be_bytes()).cycle())
        {
            *place = byte;
        }
        let template = &*self.claim;
        let claim = Claim {
            address: Address::Explicit(Key(Digest::from_bytes(key))),
            owner: Owner { call: number, ..template.owner.clone() },
            arrived: self.store.now(),
            ..template.clone()
        };
        let Ok(ClaimVerdict::Mine(record)) = self.store.claim(&claim, &[]).await else {
            unreachable_verdict()
        };
        let save = Save {
            claimed: record,
            ending: Ending::Done(Some(self.output.clone())),
            attempts: Vec::new(),
            delivered: None,
            hold: false,
            keep: claim.rules.keep,
        };
        let Ok(SaveVerdict::Saved(_)) = self.store.save(&save).await else { unreachable_verdict() };
    }
}

#[derive(Clone)]
struct Bare {
    connection: MultiplexedConnection,
    claim: Arc<Script>,
    save: Arc<Script>,
    inflight: Arc<Vec<u8>>,
    done: Arc<Vec<u8>>,
}

impl Bare {
    async fn new(server: &Server) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(1)));
        let client = Client::open(server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        server.command(&["SET", "m", "0123456789abcdef"]);
        // As long as what the store writes: what was saved, and that without its answer.
        let name = server.command(&["KEYS", "*:r:*"]);
        let done: usize = server.command(&["STRLEN", &name]).parse().unwrap();
        let answer = output().content.as_str().len();
        Self {
            connection,
            claim: Arc::new(Script::new(CLAIM)),
            save: Arc::new(Script::new(SAVE)),
            inflight: Arc::new(vec![b'x'; done - answer.min(done)]),
            done: Arc::new(vec![b'x'; done]),
        }
    }
}

impl Pairs for Bare {
    async fn pair(&self) {
        let mut connection = self.connection.clone();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("steadfast:{{{:02x}}}:r:{number:064x}", number % 256);
        let mut claim = self.claim.key("m");
        claim.key(&name).arg("0123456789abcdef").arg(u64::from(u32::MAX) * 1000);
        claim.arg(self.inflight.as_slice()).arg(86_400_000);
        let claimed: Vec<redis::Value> = claim.invoke_async(&mut connection).await.unwrap();
        let mut save = self.save.key("m");
        save.key(&name).arg("0123456789abcdef").arg(u64::from(u32::MAX) * 1000).arg([b'x'; 24].as_slice());
        save.arg(self.done.as_slice()).arg(86_400_000);
        let saved: Vec<redis::Value> = save.invoke_async(&mut connection).await.unwrap();
        assert!(
            claimed.first() == Some(&redis::Value::Int(0)) && saved.first() == Some(&redis::Value::Int(0))
        );
    }
}

fn claim() -> Claim {
    Claim {
        address: Address::Explicit(Key(Digest::of(b""))),
        intent: Intent::Take { started: true },
        role: Role::Fresh,
        owner: Owner {
            process: Process { boot: "a boot of a machine".into(), pid: 1, started: 1 },
            call: 0,
            claim: 1,
        },
        digest: Digest::of(b"arguments"),
        // A server that was emptied between two rounds stays open for these.
        retry_safe: true,
        best_effort: false,
        arrived: Timestamp::ZERO,
        run: RunId("run-0123456789abcdef".into()),
        rules: Rules::from(&DedupePolicy::default()),
        tool: ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new("pay").unwrap() },
        request: RequestId::new("request-0123456789abcdef").unwrap(),
        tool_call: None,
        session: None,
        actor: None,
        tenant: None,
    }
}

/// An answer of about 300 bytes.
fn output() -> Output {
    Output { content: RawJson::string(&"an answer ".repeat(30)), metadata: None }
}

#[expect(clippy::panic, reason = "a measurement that cannot be made ends")]
fn unreachable_verdict() -> ! {
    panic!("a fresh claim is mine, and what is claimed is saved")
}
