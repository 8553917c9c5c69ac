//! Global settings: state, listening address, logs, metrics and traces.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use steadfast_core::policy::PolicyProfile;
use steadfast_redact::Redacted;

use crate::kind::{BoolKind, Count, DurationKind, FilePath, NameKind, OptionalKind, Size, Url, WordKind};
use crate::setting::{Setting, setting};

/// The global settings.
#[derive(Clone, Debug)]
pub struct GlobalSettings {
    /// Profile that policies start from.
    pub profile: PolicyProfile,
    /// Address that the gateway listens on.
    pub listen: SocketAddr,
    /// Features that the gateway itself offers.
    pub gateway: GatewaySettings,
    /// Storage of state.
    pub store: StoreSettings,
    /// Retention of past calls.
    pub history: HistorySettings,
    /// Retention of the traces of turns.
    pub traces: TracesSettings,
    /// Retention of the text of large results.
    pub results: ResultsSettings,
    /// Storage of trust.
    pub trust_state: TrustStateSettings,
    /// Metrics.
    pub metrics: MetricsSettings,
    /// Logging.
    pub log: LogSettings,
    /// Destination of traces and metrics.
    pub otlp: OtlpSettings,
}

/// Features that the gateway itself offers.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// True if clients see the tools `reliability_status` and `reliability_reset`.
    pub reliability_tools: bool,
    /// True if clients see the tool `run_turn`.
    pub run_turn: bool,
    /// Maximum number of concurrent HTTP connections.
    pub connections: NonZeroU32,
    /// Maximum number of connections from one remote address that have not authenticated a request yet.
    pub unauthenticated_per_address: NonZeroU32,
    /// Maximum number of event streams of one principal.
    pub streams_per_principal: NonZeroU32,
}

/// Storage of state.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Kind of store.
    pub kind: StoreKind,
    /// File of the embedded store. `None` if the home folder is unknown and no path is written.
    pub path: Option<PathBuf>,
    /// Server of the shared store.
    pub url: Option<Redacted<String>>,
    /// Prefix of the keys in a shared store.
    pub prefix: String,
    /// File with the key that outputs are encrypted with.
    pub key_file: Option<PathBuf>,
    /// Maximum number of records that are kept in memory.
    pub records: NonZeroU32,
    /// Timeout of one command to a shared store.
    pub timeout: Duration,
    /// Number of replicas that must have a write before it counts.
    pub wait_replicas: u32,
    /// Behaviour after committed records of the embedded store are lost.
    pub on_damage: LossPolicy,
}

/// Behaviour after committed records are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPolicy {
    /// Calls with an explicit key to tools that are not safe to repeat are refused until an operator accepts the loss.
    RefuseKeyed,
    /// Calls continue, and may run a second time.
    StartAnew,
}

/// Kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In the memory of this process. The state is gone when the process ends.
    Memory,
    /// In a file on this machine.
    Sqlite,
    /// On a server that several machines share.
    Redis,
}

/// Retention of past calls.
#[derive(Clone, Debug)]
pub struct HistorySettings {
    /// Retention period.
    pub keep: Duration,
    /// Maximum number of calls.
    pub entries: NonZeroU32,
}

/// Retention of the traces of turns.
#[derive(Clone, Debug)]
pub struct TracesSettings {
    /// Retention period.
    pub keep: Duration,
    /// Maximum number of lines: one for each event, two or three for each call.
    pub entries: NonZeroU32,
}

/// Retention of the text of large results beyond the part that callers were given.
#[derive(Clone, Debug)]
pub struct ResultsSettings {
    /// Retention period.
    pub keep: Duration,
    /// Maximum number of results.
    pub entries: NonZeroU32,
    /// Maximum number of bytes of all results together.
    pub bytes: usize,
}

/// Storage of trust.
#[derive(Clone, Debug)]
pub struct TrustStateSettings {
    /// True if trust outlives the session.
    pub persist: bool,
    /// Maximum number of failures that are kept.
    pub entries: NonZeroU32,
    /// JSON file to keep trust in, instead of the store.
    pub file: Option<PathBuf>,
    /// File in which a host keeps trust. It is used if no file is set.
    pub host_file: Option<PathBuf>,
}

/// Metrics.
#[derive(Clone, Debug)]
pub struct MetricsSettings {
    /// Prefix of the names of metrics.
    pub namespace: String,
    /// Maximum number of tools with metrics of their own. The others are counted together.
    pub tools: NonZeroU32,
}

/// Logging.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Minimum level.
    pub level: LogLevel,
    /// Format of the lines.
    pub format: LogFormat,
    /// File with one line for each malformed call of a model.
    pub malformed_calls: Option<PathBuf>,
    /// True if that is the file beside the state, because none is set.
    pub malformed_calls_beside_state: bool,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the levels are known by their names")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object in each line.
    Json,
    /// Readable text.
    Text,
}

/// Destination of traces and metrics.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// URL of the collector. Nothing is sent without one.
    pub endpoint: Option<Redacted<String>>,
}

/// Placeholder values, until the embedded defaults are read over them.
impl Default for GlobalSettings {
    fn default() -> Self {
        Self {
            profile: PolicyProfile::Standard,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8931)),
            gateway: GatewaySettings {
                reliability_tools: false,
                run_turn: false,
                connections: NonZeroU32::MIN,
                unauthenticated_per_address: NonZeroU32::MIN,
                streams_per_principal: NonZeroU32::MIN,
            },
            store: StoreSettings {
                kind: StoreKind::Memory,
                path: None,
                url: None,
                prefix: String::new(),
                key_file: None,
                records: NonZeroU32::MIN,
                timeout: Duration::ZERO,
                wait_replicas: 0,
                on_damage: LossPolicy::RefuseKeyed,
            },
            history: HistorySettings { keep: Duration::ZERO, entries: NonZeroU32::MIN },
            traces: TracesSettings { keep: Duration::ZERO, entries: NonZeroU32::MIN },
            results: ResultsSettings { keep: Duration::ZERO, entries: NonZeroU32::MIN, bytes: 0 },
            trust_state: TrustStateSettings {
                persist: true,
                entries: NonZeroU32::MIN,
                file: None,
                host_file: None,
            },
            metrics: MetricsSettings { namespace: String::new(), tools: NonZeroU32::MIN },
            log: LogSettings {
                level: LogLevel::Info,
                format: LogFormat::Json,
                malformed_calls: None,
                malformed_calls_beside_state: false,
            },
            otlp: OtlpSettings { endpoint: None },
        }
    }
}

/// Returns the table of global settings.
pub(crate) fn settings() -> &'static [Setting<GlobalSettings>] {
    const SECOND: Duration = Duration::from_secs(1);
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    static SETTINGS: LazyLock<Vec<Setting<GlobalSettings>>> = LazyLock::new(|| {
        vec![
            setting!(
                GlobalSettings,
                "profile",
                profile,
                WordKind(&[
                    ("standard", PolicyProfile::Standard),
                    ("measured", PolicyProfile::Measured),
                    ("stepped", PolicyProfile::Stepped)
                ]),
                "The named set of defaults that policies start from."
            ),
            setting!(
                GlobalSettings,
                "listen",
                listen,
                crate::kind::Socket,
                "The address that the gateway listens on. Any address other than a loopback address needs a token."
            ),
            setting!(
                GlobalSettings,
                "gateway.reliability_tools",
                gateway.reliability_tools,
                BoolKind,
                "True: clients see two tools of the gateway itself. `reliability_status` lists the tools that are \
                 not trusted, `reliability_reset` restores trust in one and requires an operator."
            ),
            setting!(
                GlobalSettings,
                "gateway.run_turn",
                gateway.run_turn,
                BoolKind,
                "True: clients see a tool of the gateway itself, `run_turn`, which makes several calls that depend \
                 on each other."
            ),
            setting!(
                GlobalSettings,
                "gateway.connections",
                gateway.connections,
                Count(1..=65_536),
                "Maximum number of HTTP connections. One more takes the slot of a connection without a request; if \
                 all have a request in flight, it gets 503 with `Retry-After`. 64 more are reserved for health and \
                 administration. Each connection takes one file descriptor, and may take 16 MiB of memory while it \
                 sends a message. Event streams take at most three quarters of them. Read at the start."
            ),
            setting!(
                GlobalSettings,
                "gateway.unauthenticated_per_address",
                gateway.unauthenticated_per_address,
                Count(1..=65_536),
                "Maximum number of connections from one remote address that have not authenticated a request yet. \
                 One more takes the slot of the oldest of them. Loopback addresses are exempt, and an IPv6 /64 \
                 network counts as one address. Raise it behind a reverse proxy that opens many connections in \
                 advance; the higher it is, the more slots one host can hold. Read at the start."
            ),
            setting!(
                GlobalSettings,
                "gateway.streams_per_principal",
                gateway.streams_per_principal,
                Count(1..=65_536),
                "Maximum number of event streams of one principal: streams on which MCP clients listen, and \
                 `/v1/events`. One more gets 503 with `Retry-After`. Clients without a token are one principal. Each \
                 takes a connection. Read at the start."
            ),
            setting!(
                GlobalSettings,
                "store.kind",
                store.kind,
                WordKind(&[
                    ("memory", StoreKind::Memory),
                    ("sqlite", StoreKind::Sqlite),
                    ("redis", StoreKind::Redis)
                ]),
                "Where state is stored: in this process, in a file on this machine, or on a server that several \
                 machines share."
            ),
            setting!(GlobalSettings, "store.path", store.path, FilePath, "The file of the sqlite store."),
            setting!(
                GlobalSettings,
                "store.url",
                store.url,
                OptionalKind(Url {
                    schemes: &[
                        "redis",
                        "rediss",
                        "redis+sentinel",
                        "rediss+sentinel",
                        "redis+cluster",
                        "rediss+cluster"
                    ]
                }),
                "The server of the redis store. `${NAME}` is replaced by an environment variable, so that the \
                 password need not be written here."
            ),
            setting!(
                GlobalSettings,
                "store.prefix",
                store.prefix,
                NameKind { extra: ":.-" },
                "The prefix of keys in redis. Two deployments with the same prefix share their state."
            ),
            setting!(
                GlobalSettings,
                "store.key_file",
                store.key_file,
                FilePath,
                "A file with the key that outputs are encrypted with at rest. Without one they are not encrypted."
            ),
            setting!(
                GlobalSettings,
                "store.records",
                store.records,
                Count(16..=10_000_000),
                "Maximum number of records in memory. Each takes about as much memory as its result."
            ),
            setting!(
                GlobalSettings,
                "store.timeout",
                store.timeout,
                DurationKind(Duration::from_millis(10)..=60 * SECOND),
                "How long one command of the redis store may take before the store counts as down."
            ),
            setting!(
                GlobalSettings,
                "store.wait_replicas",
                store.wait_replicas,
                Count(0..=16),
                "Replicas that must have a write of the redis store before it counts. Each write \
                 waits for them."
            ),
            setting!(
                GlobalSettings,
                "store.on_damage",
                store.on_damage,
                WordKind(&[("refuse_keyed", LossPolicy::RefuseKeyed), ("start_anew", LossPolicy::StartAnew)]),
                "When committed records of the sqlite store are lost, because its file was damaged, deleted or \
                 replaced by an older copy: `refuse_keyed` refuses calls with an explicit key to tools that are not \
                 safe to repeat, until `steadfast state accept` or until the lost records would have expired; \
                 `start_anew` logs a warning and lets them run, possibly a second time."
            ),
            setting!(
                GlobalSettings,
                "history.keep",
                history.keep,
                DurationKind(SECOND..=YEAR),
                "How long past calls are kept for `explain` and `rehearse`."
            ),
            setting!(
                GlobalSettings,
                "history.entries",
                history.entries,
                Count(1..=10_000_000),
                "Maximum number of past calls that are kept."
            ),
            setting!(
                GlobalSettings,
                "traces.keep",
                traces.keep,
                DurationKind(SECOND..=YEAR),
                "How long the traces of turns are kept."
            ),
            setting!(
                GlobalSettings,
                "traces.entries",
                traces.entries,
                Count(1..=10_000_000),
                "Maximum number of lines of traces. A turn has one for each of its events, and some for each call; \
                 each takes about half a kilobyte."
            ),
            setting!(
                GlobalSettings,
                "results.keep",
                results.keep,
                DurationKind(Duration::from_millis(1)..=YEAR),
                "How long the full text of a result that exceeds `result_limit` can be read."
            ),
            setting!(
                GlobalSettings,
                "results.entries",
                results.entries,
                Count(1..=1_000_000),
                "Maximum number of such texts. One more replaces the oldest text of the caller that has most."
            ),
            setting!(
                GlobalSettings,
                "results.bytes",
                results.bytes,
                Size(1 << 10..=1 << 30),
                "Maximum total size of these texts, in memory or, for clients on stdio without resources, in files. \
                 A larger text cannot be kept, and is passed on whole."
            ),
            setting!(
                GlobalSettings,
                "trust_state.persist",
                trust_state.persist,
                BoolKind,
                "True: lost trust stays lost in the next session."
            ),
            setting!(
                GlobalSettings,
                "trust_state.entries",
                trust_state.entries,
                Count(1..=1_000_000),
                "Maximum number of failures in the history of trust."
            ),
            setting!(
                GlobalSettings,
                "trust_state.file",
                trust_state.file,
                FilePath,
                "A JSON file to keep trust in, instead of the store. If not set, `.jaato/reliability.json` of the \
                 working folder is used if it exists, else that of the home folder, else the store."
            ),
            setting!(
                GlobalSettings,
                "metrics.namespace",
                metrics.namespace,
                NameKind { extra: "" },
                "The prefix of metric names."
            ),
            setting!(
                GlobalSettings,
                "metrics.tools",
                metrics.tools,
                Count(1..=100_000),
                "Maximum number of tools with metrics of their own; the others are counted together as `other`. \
                 Raising it costs memory here and in the metrics database."
            ),
            setting!(
                GlobalSettings,
                "log.level",
                log.level,
                WordKind(&[
                    ("error", LogLevel::Error),
                    ("warn", LogLevel::Warn),
                    ("info", LogLevel::Info),
                    ("debug", LogLevel::Debug),
                    ("trace", LogLevel::Trace)
                ]),
                "The minimum level of log lines."
            ),
            setting!(
                GlobalSettings,
                "log.format",
                log.format,
                WordKind(&[("json", LogFormat::Json), ("text", LogFormat::Text)]),
                "One JSON object in each line, or readable text."
            ),
            setting!(
                GlobalSettings,
                "log.malformed_calls",
                log.malformed_calls,
                FilePath,
                "A file with one JSON line for each model call that was malformed or refused as a loop, for \
                 comparing models. If not set, it is `malformed-calls.jsonl` in the state folder, unless the store \
                 is `memory`; `none` turns it off. At 10 MiB it becomes `malformed-calls.jsonl.1`."
            ),
            setting!(
                GlobalSettings,
                "otlp.endpoint",
                otlp.endpoint,
                OptionalKind(Url { schemes: &["http", "https"] }),
                "The OpenTelemetry collector that receives traces and metrics. Nothing is sent without one. On \
                 https, its certificate is checked with the root certificates of this machine."
            ),
        ]
    });
    &SETTINGS
}
