//! The meaning of the settings for store and telemetry, computed before anything is opened.
//!
//! A setting can have a valid form and still be unusable: a URL that the client does not accept, a name that no metric
//! can have. These errors are found here, so that a start that cannot succeed creates nothing on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfast_config::{Config, LogFormat, LogLevel, LossPolicy, StoreKind, StoreSettings, plain_json};
use steadfast_core::dedupe::RecordLoss;
use steadfast_executor::{EngineBuilder, TrustFile, TrustStorage};
use steadfast_redact::Redacted;
use steadfast_store::{JournalLimits, MemoryOptions, MemoryStore, RecordCodec, StateStore, TimeSource};
use steadfast_store_redis::{KeyPrefix, Options as RedisOptions, RedisStore, WriteConfirmation};
use steadfast_store_sqlite::{CommitLossPolicy, FileDamagePolicy, SqliteOptions, SqliteStore};
use steadfast_telemetry::{LogLineFormat, LogLineLevel, MalformedCallLog, Namespace, OtlpOptions};

use crate::open_error::OpenError;
use crate::webhooks;

/// The parts to open and start, as far as the configuration determines them.
///
/// ```
/// use steadfast::config::{Config, CommandLineFlag, Sources, StartupPlan};
///
/// let mut sources = Sources::default();
/// let (setting, value) = ("store.kind".to_owned(), "memory".to_owned());
/// sources.flags.push(CommandLineFlag { name: "--store".to_owned(), setting, value });
/// let plan = StartupPlan::of(&Config::load(&sources)?)?;
/// assert_eq!(plan.store(), "memory of this process");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StartupPlan {
    store: StorePlan,
    key_file: Option<PathBuf>,
    pub(crate) metrics: (Namespace, usize),
    pub(crate) log: (LogLineLevel, LogLineFormat),
    otlp: Option<Redacted<String>>,
    trust: TrustStorage,
    trust_history: usize,
    records: usize,
    history: JournalLimits,
    traces: JournalLimits,
    malformed_calls: Option<PathBuf>,
    malformed_calls_beside_state: bool,
}

/// Type of the store, and its connection.
#[derive(Debug)]
enum StorePlan {
    Memory,
    Sqlite(PathBuf, CommitLossPolicy),
    Redis(Box<RedisOptions>),
}

/// An open store.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn StateStore>,
    /// New path of an unusable file that was in its place.
    pub(crate) set_aside: Option<PathBuf>,
    /// The loss of committed records that was noticed.
    pub(crate) loss: Option<RecordLoss>,
}

impl OpenStore {
    fn sound(store: Arc<dyn StateStore>) -> Self {
        Self { store, set_aside: None, loss: None }
    }
}

impl StartupPlan {
    /// Computes the plan of a configuration. Reads nothing else.
    pub fn of(config: &Config) -> Result<Self, OpenError> {
        let global = config.global();
        let namespace = metrics_namespace(&global.metrics.namespace)?;
        Ok(Self {
            store: StorePlan::of(&global.store)?,
            key_file: global.store.key_file.clone(),
            metrics: (namespace, count(global.metrics.tools.get())),
            log: (level(global.log.level), format(global.log.format)),
            otlp: global.otlp.endpoint.clone(),
            trust: match (
                global.trust_state.file.as_ref().or(global.trust_state.host_file.as_ref()),
                global.trust_state.persist,
            ) {
                (_, false) => TrustStorage::NotStored,
                (Some(file), true) => TrustStorage::InFile(TrustFile::at(file).read_by(plain_json)),
                (None, true) => TrustStorage::InStore,
            },
            trust_history: count(global.trust_state.entries.get()),
            records: count(global.store.records.get()),
            history: JournalLimits {
                most: global.history.entries.get().into(),
                most_per_subject: None,
                age: global.history.keep,
            },
            traces: JournalLimits {
                most: global.traces.entries.get().into(),
                most_per_subject: None,
                age: global.traces.keep,
            },
            malformed_calls: global.log.malformed_calls.clone(),
            malformed_calls_beside_state: global.log.malformed_calls_beside_state,
        })
    }

    /// Returns the reason why the store of a configuration cannot be opened, as far as it shows without opening or
    /// creating anything. A remote store is not contacted.
    pub fn store_problem(config: &Config, on_damage: FileDamagePolicy) -> Option<OpenError> {
        match StorePlan::of(&config.global().store) {
            Ok(StorePlan::Memory | StorePlan::Redis(_)) => None,
            Ok(StorePlan::Sqlite(path, on_loss)) => {
                let options = SqliteOptions { on_damage, on_loss, ..SqliteOptions::at(path) };
                SqliteStore::inspect(&options).err().map(OpenError::Sqlite)
            }
            Err(error) => Some(error),
        }
    }

    /// Returns all other errors in a configuration that prevent its opening. An opening reports the first of them, with
    /// the same text.
    pub fn problems(config: &Config) -> Vec<OpenError> {
        let global = config.global();
        let mut problems = Vec::new();
        if let Err(error) = metrics_namespace(&global.metrics.namespace) {
            problems.push(error);
        }
        if let Some(Err(error)) = global.store.key_file.as_deref().map(secret) {
            problems.push(error);
        }
        let otlp = global.otlp.endpoint.as_ref().map(|endpoint| OtlpOptions::to(endpoint.expose().as_str()));
        problems.extend(otlp.and_then(|options| options.check().err()).map(OpenError::Otlp));
        let malformed =
            global.log.malformed_calls.as_ref().filter(|_| !global.log.malformed_calls_beside_state);
        if let Some(path) = malformed
            && let Err(error) = MalformedCallLog::check(path)
        {
            problems.push(malformed_calls(path, &error));
        }
        problems.extend(webhooks::unusable(config));
        problems
    }

    /// Returns a description of the store: its type and location.
    pub fn store(&self) -> String {
        match &self.store {
            StorePlan::Memory => "memory of this process".to_owned(),
            StorePlan::Sqlite(path, _) => format!("sqlite file {}", path.display()),
            StorePlan::Redis(options) if options.database != 0 => {
                format!("redis at {}, database {}", options.place, options.database)
            }
            StorePlan::Redis(options) => format!("redis at {}", options.place),
        }
    }

    /// Returns the trust file, if trust is not in the store.
    pub fn trust_file(&self) -> Option<&TrustFile> {
        match &self.trust {
            TrustStorage::InFile(file) => Some(file),
            TrustStorage::InStore | TrustStorage::NotStored => None,
        }
    }

    /// Opens only the store, to check that it is usable. Creates it if it is missing. Returns the new path of an
    /// unusable file that was in its place, which can only happen if `on_damage` allows it.
    pub async fn try_store(self, on_damage: FileDamagePolicy) -> Result<Option<PathBuf>, OpenError> {
        let clock: Arc<dyn TimeSource> = Arc::new(steadfast_store::SystemClock::default());
        Ok(self.open_store(clock, on_damage).await?.set_aside)
    }

    /// Returns true if other processes can read the stored data and it outlives this process.
    pub fn is_shared(&self) -> bool {
        match self.store {
            StorePlan::Memory => false,
            StorePlan::Sqlite(..) | StorePlan::Redis(_) => true,
        }
    }

    /// Opens only the store, for commands that maintain it. A damaged store is not changed.
    pub async fn open(&self) -> Result<Arc<dyn StateStore>, OpenError> {
        let clock: Arc<dyn TimeSource> = Arc::new(steadfast_store::SystemClock::default());
        Ok(self.open_store(clock, FileDamagePolicy::Refuse).await?.store)
    }

    pub(crate) async fn open_store(
        &self,
        clock: Arc<dyn TimeSource>,
        on_damage: FileDamagePolicy,
    ) -> Result<OpenStore, OpenError> {
        let codec = self.key_file.as_deref().map(secret).transpose()?.unwrap_or_default();
        match &self.store {
            StorePlan::Memory => {
                let options = MemoryOptions { most: self.records, ..MemoryOptions::new(clock) };
                Ok(OpenStore::sound(Arc::new(MemoryStore::new(options))))
            }
            StorePlan::Sqlite(path, on_loss) => {
                let options =
                    SqliteOptions { clock, codec, on_damage, on_loss: *on_loss, ..SqliteOptions::at(path) };
                // It reads the whole file, and the threads of the runtime are needed for other tasks.
                let opened = tokio::task::spawn_blocking(move || SqliteStore::open(options)).await;
                let store = opened.map_err(OpenError::Ended)?.map_err(OpenError::Sqlite)?;
                let set_aside = store.set_aside().map(Path::to_owned);
                let loss = store.detected_loss().cloned();
                Ok(OpenStore { store: Arc::new(store), set_aside, loss })
            }
            StorePlan::Redis(options) => {
                let options = RedisOptions { codec, ..(**options).clone() };
                let store = RedisStore::connect(options).await.map_err(OpenError::Redis)?;
                Ok(OpenStore::sound(Arc::new(store)))
            }
        }
    }

    /// Opens the file of malformed calls, if it is enabled.
    pub(crate) fn malformed_calls(&self) -> Result<Option<MalformedCallLog>, OpenError> {
        let open = |path: &PathBuf| {
            let opened = match self.malformed_calls_beside_state {
                // It is on by default, so a folder that cannot be written does not prevent the start.
                true => MalformedCallLog::when_needed_at(path),
                false => MalformedCallLog::at(path),
            };
            opened.map_err(|error| malformed_calls(path, &error))
        };
        self.malformed_calls.as_ref().map(open).transpose()
    }

    pub(crate) fn otlp(&self) -> Option<OtlpOptions> {
        self.otlp.as_ref().map(|endpoint| OtlpOptions::to(endpoint.expose().as_str()))
    }

    /// Applies the engine settings of the configuration, except policies.
    pub(crate) fn prepare(&self, engine: EngineBuilder) -> EngineBuilder {
        engine
            .trust_storage(self.trust.clone())
            .trust_history(self.trust_history)
            .records_in_memory(self.records)
            .history(self.history)
            .traces(self.traces)
    }
}

fn metrics_namespace(text: &str) -> Result<Namespace, OpenError> {
    Namespace::new(text).map_err(|error| OpenError::setting("metrics.namespace", error))
}

fn malformed_calls(path: &Path, error: &io::Error) -> OpenError {
    OpenError::setting("log.malformed_calls", format!("{}: {error}", path.display()))
}

impl StorePlan {
    fn of(settings: &StoreSettings) -> Result<Self, OpenError> {
        match settings.kind {
            StoreKind::Memory => Ok(Self::Memory),
            StoreKind::Sqlite => settings.path.clone().map(|path| Self::Sqlite(path, on_loss(settings))).ok_or_else(|| {
                let reason = "the home folder is not known, so there is no usual place for the state file: name one, \
                              or choose another store";
                OpenError::setting("store.path", reason)
            }),
            StoreKind::Redis => {
                let url = settings.url.as_ref().map_or("", |url| url.expose().as_str());
                let mut options =
                    RedisOptions::parse(url).map_err(|error| OpenError::setting("store.url", error))?;
                options.prefix =
                    prefix(&settings.prefix).map_err(|error| OpenError::setting("store.prefix", error))?;
                options.command_timeout = settings.timeout;
                options.confirm = match settings.wait_replicas {
                    0 => WriteConfirmation::Primary,
                    count => WriteConfirmation::Replicas { count, within: settings.timeout },
                };
                Ok(Self::Redis(Box::new(options)))
            }
        }
    }
}

fn on_loss(settings: &StoreSettings) -> CommitLossPolicy {
    match settings.on_damage {
        LossPolicy::RefuseKeyed => CommitLossPolicy::RefuseKeyed,
        LossPolicy::StartAnew => CommitLossPolicy::ReportOnly,
    }
}

/// Returns the prefix of keys. It ends with a separator, so that `shop` is not a prefix of the keys of `shop2`.
fn prefix(text: &str) -> Result<KeyPrefix, steadfast_store_redis::InvalidKeyPrefix> {
    if text.is_empty() || text.ends_with(':') {
        KeyPrefix::new(text)
    } else {
        KeyPrefix::new(&format!("{text}:"))
    }
}

/// Reads the secret in a file: 32 raw bytes, or 64 hexadecimal digits.
fn secret(path: &Path) -> Result<RecordCodec, OpenError> {
    let bytes = fs::read(path)
        .map_err(|error| OpenError::setting("store.key_file", format!("{}: {error}", path.display())))?;
    let written =
        std::str::from_utf8(&bytes).ok().map(str::trim).filter(|text| text.len() == 64).and_then(digits);
    RecordCodec::encrypted(&written.unwrap_or(bytes)).map_err(|_| {
        let reason = format!(
            "{} holds no key: make one with `head -c 32 /dev/urandom`, or write 64 hexadecimal digits",
            path.display()
        );
        OpenError::setting("store.key_file", reason)
    })
}

fn digits(text: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(pair).collect()
}

fn level(level: LogLevel) -> LogLineLevel {
    match level {
        LogLevel::Error => LogLineLevel::Error,
        LogLevel::Warn => LogLineLevel::Warn,
        LogLevel::Info => LogLineLevel::Info,
        LogLevel::Debug => LogLineLevel::Debug,
        LogLevel::Trace => LogLineLevel::Trace,
    }
}

fn format(format: LogFormat) -> LogLineFormat {
    match format {
        LogFormat::Json => LogLineFormat::Json,
        LogFormat::Text => LogLineFormat::Human,
    }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
