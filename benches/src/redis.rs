//! The store for many machines beside the bare client and two scripts that do the same.
//!
//! The bare scripts check the same conditions, written out for the one case: the marker, the time, that there is no
//! record, or that the record is the claimed one. They write as many bytes and notify as many listeners. Both sides
//! have one connection, and a server of their own on this machine.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, Value};
use steadfast_core::id::Digest;
use steadfast_store_redis::{Options, RedisStore};
use steadfast_testkit::redis::RedisServer;

use crate::engine::{MeasurementError, runtime};
use crate::report::{BenchBudget, BenchReport};
use crate::stores::{ClaimAndSave, StoreSteps, next_number, race};

const CALLERS: [usize; 3] = [1, 64, 512];
const MARKER: &str = "0123456789abcdef";
/// A time in the far future.
const VALID_UNTIL: u64 = u32::MAX as u64 * 1000;
const LIFETIME_MS: u64 = 86_400_000;

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
if redis.call('GETRANGE', KEYS[2], 0, 35) ~= ARGV[3] then return { 1, time[1], time[2], redis.call('GET', KEYS[2]) } end
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
redis.call('PUBLISH', KEYS[2], '')
return { 0, time[1], time[2] }
";

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    let titles = CALLERS.map(|callers| (callers, format!("{callers} callers, claim and save")));
    if !titles.iter().any(|(_, title)| report.is_selected(title)) {
        return Ok(());
    }
    let runtime = runtime()?;
    let server = RedisServer::start();
    let (steadfast, bare) = runtime.block_on(async {
        let options =
            Options::parse(&server.url()).map_err(|error| MeasurementError::because(error.to_string()))?;
        let store = RedisStore::connect(options)
            .await
            .map_err(|error| MeasurementError::because(error.to_string()))?;
        let steadfast = StoreSteps::of(store)?;
        // The bare client sends as many bytes as the store: of a call in flight, and of one with its answer.
        let claimed = steadfast.claim().await?;
        let name = server.command(&["KEYS", "*:r:*"]);
        let length =
            || server.command(&["STRLEN", &name]).parse().map_err(|_| MeasurementError::because("no record"));
        let inflight = length()?;
        steadfast.save(claimed).await?;
        let bare = BareRedis::new(&server, inflight, length()?).await?;
        Ok::<_, MeasurementError>((Arc::new(steadfast), Arc::new(bare)))
    })?;
    for (callers, title) in titles {
        if report.is_selected(&title) {
            let name = "redis 1.8.1, two scripts that do the same";
            race(
                report,
                &runtime,
                title,
                (callers, &steadfast),
                (callers, &bare, name),
                BenchBudget::AtLeast(0.9),
            )?;
        }
    }
    Ok(())
}

struct BareRedis {
    connection: MultiplexedConnection,
    claim: Script,
    save: Script,
    inflight: Vec<u8>,
    done: Vec<u8>,
}

impl BareRedis {
    async fn new(server: &RedisServer, inflight: usize, done: usize) -> Result<Self, MeasurementError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(1)));
        let client = Client::open(server.url()).map_err(failed)?;
        let connection =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        server.command(&["SET", "m", MARKER]);
        Ok(Self {
            connection,
            claim: Script::new(CLAIM),
            save: Script::new(SAVE),
            inflight: vec![b'x'; inflight],
            done: vec![b'x'; done],
        })
    }
}

impl ClaimAndSave for BareRedis {
    async fn pair(&self) -> Result<(), MeasurementError> {
        let mut connection = self.connection.clone();
        // As in the store, a call is identified by the fingerprint of its key.
        let number = next_number();
        let key = Digest::of(&number.to_be_bytes());
        let name = format!("steadfast:{{{:02x}}}:r:{}", number % 256, key.to_hex());
        let mut claim = self.claim.key("m");
        claim.key(&name).arg(MARKER).arg(VALID_UNTIL).arg(self.inflight.as_slice()).arg(LIFETIME_MS);
        let claimed: Vec<Value> = claim.invoke_async(&mut connection).await.map_err(failed)?;
        let mut save = self.save.key("m");
        save.key(&name).arg(MARKER).arg(VALID_UNTIL).arg([b'x'; 36].as_slice());
        save.arg(self.done.as_slice()).arg(LIFETIME_MS);
        let saved: Vec<Value> = save.invoke_async(&mut connection).await.map_err(failed)?;
        let well = Some(&Value::Int(0));
        if claimed.first() == well && saved.first() == well {
            Ok(())
        } else {
            Err(MeasurementError::because(format!("the bare scripts returned {claimed:?} and {saved:?}")))
        }
    }
}

fn failed(error: redis::RedisError) -> MeasurementError {
    MeasurementError::because(error.to_string())
}
