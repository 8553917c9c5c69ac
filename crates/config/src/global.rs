//! The settings of the whole: where state is kept, where to listen, what is told.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use steadfast_core::policy::Profile;
use steadfast_core::redact::Redacted;

use crate::kind::{Count, FilePath, Flag, Name, OrNone, Size, Span, Url, Words};
use crate::setting::{Setting, setting};

/// The settings of the whole.
#[derive(Clone, Debug)]
pub struct Global {
    /// What policies start from.
    pub profile: Profile,
    /// Where the gateway listens.
    pub listen: SocketAddr,
    /// What the gateway offers of its own.
    pub gateway: GatewaySettings,
    /// Where state is kept.
    pub store: StoreSettings,
    /// How much of past calls is kept.
    pub history: HistorySettings,
    /// How much of the traces of turns is kept.
    pub traces: TracesSettings,
    /// How much text of large results is kept.
    pub results: ResultsSettings,
    /// How trust is kept.
    pub trust_state: TrustStateSettings,
    /// The numbers that are told.
    pub metrics: MetricsSettings,
    /// What is logged.
    pub log: LogSettings,
    /// Where traces and metrics are sent.
    pub otlp: OtlpSettings,
}

/// What the gateway offers of its own.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Whether clients see the tools `reliability_status` and `reliability_reset`.
    pub reliability_tools: bool,
    /// Whether clients see the tool `run_turn`.
    pub run_turn: bool,
    /// Connections over HTTP at a time.
    pub connections: NonZeroU32,
    /// Connections of one remote address on which no request was authenticated yet.
    pub unauthenticated_per_address: NonZeroU32,
    /// Event streams of one principal.
    pub streams_per_principal: NonZeroU32,
}

/// Where state is kept.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Which store.
    pub kind: StoreKind,
    /// The file of the embedded store. Nothing where the home folder is not known and no path is written.
    pub path: Option<PathBuf>,
    /// The server of the shared store.
    pub url: Option<Redacted<String>>,
    /// What the keys in a shared store begin with.
    pub prefix: String,
    /// The file with the key that outputs are encrypted with.
    pub key_file: Option<PathBuf>,
    /// The most records that are kept in memory.
    pub records: NonZeroU32,
    /// How long one command of a shared store may take.
    pub timeout: Duration,
    /// Replicas that must have a write before it counts.
    pub wait_replicas: u32,
    /// What follows when committed records of the embedded store are lost.
    pub on_damage: AfterLoss,
}

/// What follows when committed records are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLoss {
    /// Calls with an explicit key for tools that are not safe to repeat are refused until an operator accepts the loss.
    RefuseKeyed,
    /// Calls go on, and may run a second time.
    StartAnew,
}

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process; gone with it.
    Memory,
    /// In a file of this machine.
    Sqlite,
    /// On a server that several machines share.
    Redis,
}

/// How much of past calls is kept.
#[derive(Clone, Debug)]
pub struct HistorySettings {
    /// For how long.
    pub keep: Duration,
    /// How many at most.
    pub entries: NonZeroU32,
}

/// How much of the traces of turns is kept.
#[derive(Clone, Debug)]
pub struct TracesSettings {
    /// For how long.
    pub keep: Duration,
    /// How many lines at most: one for each event, two or three for each call.
    pub entries: NonZeroU32,
}

/// How much text of large results is kept, beyond what their callers were given.
#[derive(Clone, Debug)]
pub struct ResultsSettings {
    /// For how long.
    pub keep: Duration,
    /// How many results at most.
    pub entries: NonZeroU32,
    /// How many bytes of them at most.
    pub bytes: usize,
}

/// How trust is kept.
#[derive(Clone, Debug)]
pub struct TrustStateSettings {
    /// Whether it outlives the session.
    pub persist: bool,
    /// How many failures are remembered.
    pub entries: NonZeroU32,
    /// A JSON file to keep it in, instead of the store.
    pub file: Option<PathBuf>,
    /// The file in which a host keeps it, which is used where no file is set.
    pub host_file: Option<PathBuf>,
}

/// The numbers that are told.
#[derive(Clone, Debug)]
pub struct MetricsSettings {
    /// What their names begin with.
    pub namespace: String,
    /// Tools with numbers of their own; the others are counted together.
    pub tools: NonZeroU32,
}

/// What is logged.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// From which level on.
    pub level: LogLevel,
    /// In which form.
    pub format: LogFormat,
    /// A file with one line for each malformed call of a model.
    pub malformed_calls: Option<PathBuf>,
    /// Whether that is the file beside the state, because none is set.
    pub malformed_calls_beside_state: bool,
}

/// How important a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the levels are known by their names")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object in each line.
    Json,
    /// For people.
    Text,
}

/// Where traces and metrics are sent.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// The collector; nothing is sent without one.
    pub endpoint: Option<Redacted<String>>,
}

/// What stands here until the embedded defaults are read over it.
impl Default for Global {
    fn default() -> Self {
        Self {
            profile: Profile::Standard,
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
                on_damage: AfterLoss::RefuseKeyed,
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

/// The table.
pub(crate) fn settings() -> &'static [Setting<Global>] {
    const SECOND: Duration = Duration::from_secs(1);
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    static SETTINGS: LazyLock<Vec<Setting<Global>>> = LazyLock::new(|| {
        vec![
            setting!(
                Global,
                "profile",
                profile,
                Words(&[
                    ("standard", Profile::Standard),
                    ("measured", Profile::Measured),
                    ("stepped", Profile::Stepped)
                ]),
                "The named set of numbers that policies start from."
            ),
            setting!(
                Global,
                "listen",
                listen,
                crate::kind::Socket,
                "Where the gateway listens. Any address but this machine's own needs a token."
            ),
            setting!(
                Global,
                "gateway.reliability_tools",
                gateway.reliability_tools,
                Flag,
                "Whether clients see two tools of the gateway itself: `reliability_status` says which tools are not \
                 trusted, `reliability_reset` forgives one and needs an operator."
            ),
            setting!(
                Global,
                "gateway.run_turn",
                gateway.run_turn,
                Flag,
                "Whether clients see a tool of the gateway itself, `run_turn`, which makes several calls that depend on                  each other."
            ),
            setting!(
                Global,
                "gateway.connections",
                gateway.connections,
                Count(1..=65_536),
                "Connections over HTTP at a time. One more takes the slot of a connection without a request; if all have a request in \
                 flight, it gets 503 with `Retry-After`. 64 more are kept for health and administration. Each connection \
                 takes one file descriptor, and may take 16 MiB of memory while it sends a message. Event streams take at most \
                 three quarters of them. Read at the start."
            ),
            setting!(
                Global,
                "gateway.unauthenticated_per_address",
                gateway.unauthenticated_per_address,
                Count(1..=65_536),
                "Connections from one remote address on which no request was authenticated yet. One more takes the slot of the \
                 oldest of them. Loopback addresses are exempt, and an IPv6 /64 network counts as one address. Raise it behind a \
                 reverse proxy that opens many connections in advance; the higher it is, the more slots one host can hold. Read at the start."
            ),
            setting!(
                Global,
                "gateway.streams_per_principal",
                gateway.streams_per_principal,
                Count(1..=65_536),
                "Event streams that one principal follows at a time: streams on which MCP clients listen, and `/v1/events`. One \
                 more gets 503 with `Retry-After`. Clients without a token are one principal. Each takes a connection. Read at \
                 the start."
            ),
            setting!(
                Global,
                "store.kind",
                store.kind,
                Words(&[
                    ("memory", StoreKind::Memory),
                    ("sqlite", StoreKind::Sqlite),
                    ("redis", StoreKind::Redis)
                ]),
                "Where state is kept: in this process, in a file of this machine, or on a server that \
                 several machines share."
            ),
            setting!(Global, "store.path", store.path, FilePath, "The file of the sqlite store."),
            setting!(
                Global,
                "store.url",
                store.url,
                OrNone(Url {
                    schemes: &[
                        "redis",
                        "rediss",
                        "redis+sentinel",
                        "rediss+sentinel",
                        "redis+cluster",
                        "rediss+cluster"
                    ]
                }),
                "The server of the redis store. `${NAME}` stands for a variable of the environment, \
                 so that the password need not be written here."
            ),
            setting!(
                Global,
                "store.prefix",
                store.prefix,
                Name { extra: ":.-" },
                "What the keys in redis begin with. Two deployments with the same prefix share their \
                 state."
            ),
            setting!(
                Global,
                "store.key_file",
                store.key_file,
                FilePath,
                "A file with the key that outputs are encrypted with at rest; without one they are \
                 not."
            ),
            setting!(
                Global,
                "store.records",
                store.records,
                Count(16..=10_000_000),
                "The most records that are kept in memory. Each costs about as much as the answer \
                 that it keeps."
            ),
            setting!(
                Global,
                "store.timeout",
                store.timeout,
                Span(Duration::from_millis(10)..=60 * SECOND),
                "How long one command of the redis store may take before the store counts as down."
            ),
            setting!(
                Global,
                "store.wait_replicas",
                store.wait_replicas,
                Count(0..=16),
                "Replicas that must have a write of the redis store before it counts. Each write \
                 waits for them."
            ),
            setting!(
                Global,
                "store.on_damage",
                store.on_damage,
                Words(&[("refuse_keyed", AfterLoss::RefuseKeyed), ("start_anew", AfterLoss::StartAnew)]),
                "When committed records of the sqlite store are lost, because its file was damaged, deleted or replaced by \
                 an older copy: `refuse_keyed` refuses calls with an explicit key for tools that are not safe to repeat, \
                 until `steadfast state accept` or until what was lost would have expired; `start_anew` writes a line to \
                 the log and lets them run, perhaps a second time."
            ),
            setting!(
                Global,
                "history.keep",
                history.keep,
                Span(SECOND..=YEAR),
                "How long past calls are kept for `explain` and `rehearse`."
            ),
            setting!(
                Global,
                "history.entries",
                history.entries,
                Count(1..=10_000_000),
                "How many of them at most."
            ),
            setting!(
                Global,
                "traces.keep",
                traces.keep,
                Span(SECOND..=YEAR),
                "How long the traces of turns are kept."
            ),
            setting!(
                Global,
                "traces.entries",
                traces.entries,
                Count(1..=10_000_000),
                "How many lines of them at most. A turn has one for each thing that happened in it, and some for each call; \
                 each takes about half a kilobyte."
            ),
            setting!(
                Global,
                "results.keep",
                results.keep,
                Span(Duration::from_millis(1)..=YEAR),
                "How long the whole text of a result beyond its `result_limit` can be read."
            ),
            setting!(
                Global,
                "results.entries",
                results.entries,
                Count(1..=1_000_000),
                "How many such texts are kept at most. One more takes the place of the oldest of the caller who has most."
            ),
            setting!(
                Global,
                "results.bytes",
                results.bytes,
                Size(1 << 10..=1 << 30),
                "How many bytes of them are kept at most, in memory or, for clients on stdio without resources, in files. A text \
                 larger than this cannot be kept, and passes whole."
            ),
            setting!(
                Global,
                "trust_state.persist",
                trust_state.persist,
                Flag,
                "Whether trust that was lost stays lost in the next session."
            ),
            setting!(
                Global,
                "trust_state.entries",
                trust_state.entries,
                Count(1..=1_000_000),
                "How many failures are remembered in its history."
            ),
            setting!(
                Global,
                "trust_state.file",
                trust_state.file,
                FilePath,
                "A JSON file to keep trust in, instead of the store. Not set, `.jaato/reliability.json` of the working folder \
                 is used if it exists, else that of the home folder, else the store."
            ),
            setting!(
                Global,
                "metrics.namespace",
                metrics.namespace,
                Name { extra: "" },
                "What the names of metrics begin with."
            ),
            setting!(
                Global,
                "metrics.tools",
                metrics.tools,
                Count(1..=100_000),
                "Tools with numbers of their own; the others are counted together as `other`. Raising \
                 it costs memory here and where the metrics are kept."
            ),
            setting!(
                Global,
                "log.level",
                log.level,
                Words(&[
                    ("error", LogLevel::Error),
                    ("warn", LogLevel::Warn),
                    ("info", LogLevel::Info),
                    ("debug", LogLevel::Debug),
                    ("trace", LogLevel::Trace)
                ]),
                "From which level on something is logged."
            ),
            setting!(
                Global,
                "log.format",
                log.format,
                Words(&[("json", LogFormat::Json), ("text", LogFormat::Text)]),
                "One JSON object in each line, or text for people."
            ),
            setting!(
                Global,
                "log.malformed_calls",
                log.malformed_calls,
                FilePath,
                "A file with one JSON line for each call of a model that was malformed or refused as a loop, to compare models \
                 by. Not set, it is `malformed-calls.jsonl` in the state folder, unless the store is `memory`; `none` turns it \
                 off. At 10 MiB it becomes `malformed-calls.jsonl.1`."
            ),
            setting!(
                Global,
                "otlp.endpoint",
                otlp.endpoint,
                OrNone(Url { schemes: &["http"] }),
                "The OpenTelemetry collector that traces and metrics are sent to; nothing is sent \
                 without one. A collector on this machine takes plain http and passes things on."
            ),
        ]
    });
    &SETTINGS
}
