//! The builder of a running instance, from a configuration.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use steadfast_config::{
    CommandLineFlag, Config, ConfigErrors, LiveConfig, LossPolicy, PolicyStart, ProgramText, Reload, Sources,
    SwitchChange, Switches,
};
use steadfast_core::dedupe::RecordLoss;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Digest;
use steadfast_core::key::RecordKey;
use steadfast_executor::{
    Engine, EngineListener, Hooks, PendingCall, RecentActivity, ShutdownReport, ToolHandler,
};
use steadfast_store::{StateStore, StoreError, SystemClock, TimeSource};
use steadfast_store_sqlite::FileDamagePolicy;
use steadfast_telemetry::{LogSink, Options, StoreCensus, Telemetry};
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::usual_sources;
use crate::live_config::{ConfigChange, ConfigEvent, ConfigEventSender, LivePolicies, follow};
use crate::open_error::OpenError;
use crate::plan::{OpenStore, StartupPlan};
use crate::settings::{self, SettingList, ToolPolicy};
use crate::telemetry::LogOutput;
use crate::webhooks::Webhooks;

/// A running instance: configuration, store, telemetry and engine. Cheap to clone; all clones are one instance.
///
/// ```
/// use std::time::Duration;
/// use steadfast::{Attempt, Steadfast, Store, ToolFault};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let add = async |attempt: Attempt| {
///     let (a, b): (i64, i64) = serde_json::from_str::<[i64; 2]>("[1, 2]").map(|[a, b]| (a, b))?;
///     Ok::<_, serde_json::Error>(a + b)
/// };
/// let sum = steadfast.call("math/add").run(add).await?;
/// assert_eq!(sum.output::<i64>()?, 3);
/// steadfast.shutdown(Duration::from_secs(5)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Steadfast {
    engine: Engine,
    store: Arc<dyn StateStore>,
    live: Arc<LiveConfig>,
    herald: ConfigEventSender,
    telemetry: Arc<Telemetry>,
    recent: Arc<RecentActivity>,
    webhooks: Arc<Webhooks>,
    set_aside: Option<PathBuf>,
    /// Time of the last count of the store's records.
    counted: Arc<Mutex<Option<Instant>>>,
    /// The result of the last store check.
    checked: Arc<tokio::sync::Mutex<Option<StoreCheck>>>,
    only_looks: bool,
    /// Stops the file checks when the last clone is dropped.
    _life: Arc<DropGuard>,
}

/// The result of a store check, and its time.
struct StoreCheck {
    at: Instant,
    outcome: Result<(), StoreError>,
}

/// A builder of instances.
///
/// It reads no file and no environment variable unless [`sources`](Self::sources) name them. What the builder sets has
/// precedence over all sources.
///
/// ```
/// use std::time::Duration;
/// use steadfast::{Steadfast, Store, ToolPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder()
///     .store(Store::memory())
///     .defaults(ToolPolicy::new().timeout(Duration::from_secs(10)))
///     .tool("bank/pay", ToolPolicy::mutating())
///     .set("metrics.namespace", "shop")
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing before `build`"]
pub struct SteadfastBuilder {
    sources: Sources,
    program: Option<ProgramText>,
    /// Settings of the program, in order. The last value of a setting counts.
    settings: SettingList,
    is_path_unusable: bool,
    logging: LogOutput,
    owns_process: bool,
    only_looks: bool,
    on_damage: FileDamagePolicy,
    hooks: Option<Arc<dyn Hooks>>,
    listeners: Vec<Arc<dyn EngineListener>>,
    clock: Arc<dyn TimeSource>,
}

impl Steadfast {
    /// Returns a builder that reads nothing: the program sets everything.
    pub fn builder() -> SteadfastBuilder {
        SteadfastBuilder {
            sources: Sources::default(),
            program: None,
            settings: SettingList::default(),
            is_path_unusable: false,
            logging: LogOutput::Disabled,
            owns_process: false,
            only_looks: false,
            on_damage: FileDamagePolicy::Refuse,
            hooks: None,
            listeners: Vec::new(),
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// Returns a builder that reads the usual sources: the user's file, `steadfast.toml` in the working folder, and the
    /// environment.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), steadfast::OpenError> {
    /// use steadfast::{Steadfast, ToolPolicy};
    ///
    /// let steadfast = Steadfast::from_env().tool("bank/pay", ToolPolicy::mutating()).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> SteadfastBuilder {
        Self::builder().sources(usual_sources(PolicyStart::Library))
    }

    /// Opens an instance as configured by these sources.
    ///
    /// Needs a tokio runtime whose time and IO drivers are enabled.
    pub async fn open(sources: Sources) -> Result<Self, OpenError> {
        Self::builder().sources(sources).build().await
    }

    /// Makes a call in the form of an envelope; see [`Engine::call`].
    pub fn call_envelope(&self, envelope: CallEnvelope, tool: impl ToolHandler) -> PendingCall {
        self.engine.call(envelope, tool)
    }

    /// Returns the engine, with all other ways to make a call.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the store of the call records.
    pub fn store(&self) -> &Arc<dyn StateStore> {
        &self.store
    }

    /// Checks that the store responds and accepts writes, by writing test data at most once a second. A store opened
    /// [for maintenance only](SteadfastBuilder::maintenance_only) is only read.
    pub async fn check_store(&self) -> Result<(), StoreError> {
        let mut checked = self.checked.lock().await;
        if let Some(last) = &*checked
            && last.at.elapsed() < CHECK_EVERY
        {
            return last.outcome.clone();
        }
        let outcome = match self.only_looks {
            true => self.store.record(RecordKey(Digest::of(b"is anybody there"))).await.map(drop),
            false => steadfast_store::probe(&*self.store).await,
        };
        *checked = Some(StoreCheck { at: Instant::now(), outcome: outcome.clone() });
        outcome
    }

    /// Returns the loss of committed records that no operator has accepted yet.
    pub async fn record_loss(&self) -> Result<Option<RecordLoss>, StoreError> {
        steadfast_store::record_loss(&*self.store).await
    }

    /// Returns the new path of an unusable file that was found in place of the store's file.
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Returns the current configuration.
    pub fn config(&self) -> Arc<Config> {
        self.live.current()
    }

    /// Subscribes to changes of the configuration. A reader that is too slow misses some and gets an error that says so.
    pub fn config_events(&self) -> broadcast::Receiver<ConfigEvent> {
        self.herald.listen()
    }

    /// Checks the files at once instead of within two seconds. It reads the files, so do not use it on a hot path.
    pub fn reload(&self) -> Reload {
        let reload = self.live.check_now();
        self.herald.reloaded(&reload);
        reload
    }

    /// Replaces the settings that the program passes as text, in the format of `steadfast.toml`. If the text has errors,
    /// all of them are returned and nothing changes. Calls in flight keep their policy.
    ///
    /// The text replaces that of [`program_text`](SteadfastBuilder::program_text) and that of an earlier call. Files stay
    /// weaker and the environment stronger.
    ///
    /// ```
    /// use steadfast::{Steadfast, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
    /// let change = steadfast.reconfigure("[tools.\"bank/pay\"]\ntimeout = \"5s\"")?;
    /// assert!(change.after_restart.is_empty());
    /// assert!(steadfast.reconfigure("timeout = 5\nretries = 2").unwrap_err().problems().len() > 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reconfigure(&self, toml: &str) -> Result<ConfigChange, ConfigErrors> {
        let changed = self.live.reconfigure(program_text(toml))?;
        Ok(self.herald.replaced(&changed))
    }

    /// Changes switches for all calls from now on: `turn` maps the current ones to the new ones. They stay in effect
    /// when files change.
    pub fn switch(&self, turn: impl FnOnce(Switches) -> Switches) -> SwitchChange {
        let switched = self.live.switch(turn);
        self.herald.switched(switched.after);
        switched
    }

    /// Returns the telemetry.
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    /// Returns the last calls of this process step by step, and the figures of its last hour.
    pub fn recent(&self) -> &RecentActivity {
        &self.recent
    }

    /// Returns the metrics in the Prometheus format. The records of the store are counted at most once a minute.
    pub async fn metrics(&self) -> String {
        if self.is_count_due()
            && let Ok(census) = StoreCensus::take(&*self.store, MOST_COUNTED).await
        {
            self.telemetry.metrics().show(&census);
        }
        self.telemetry.metrics().encode()
    }

    /// Returns true if a count is due, and marks it as done by the caller.
    fn is_count_due(&self) -> bool {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let due = counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        if due {
            *counted = Some(Instant::now());
        }
        due
    }

    /// Accepts no more calls, waits for those in flight, ends them after `limit`, and flushes telemetry.
    pub async fn shutdown(&self, limit: Duration) -> ShutdownReport {
        let drained = self.engine.shutdown(limit).await;
        self.webhooks.finish(LAST_WORDS).await;
        let telemetry = self.telemetry.clone();
        // A failure to flush telemetry does not prevent the shutdown.
        let _ = tokio::task::spawn_blocking(move || telemetry.shutdown(LAST_WORDS)).await;
        // Tasks that wait for a client or a server keep the store from being dropped. A disk that hangs must not block
        // the end.
        let _ = tokio::time::timeout(CLOSING, self.store.close()).await;
        drained
    }
}

/// The minimum time between two store checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Minimum time between two counts of the store's records, and their maximum number: a count reads them.
const COUNT_EVERY: Duration = Duration::from_secs(60);
const MOST_COUNTED: usize = 25_000;
/// Maximum time to close the store.
const CLOSING: Duration = Duration::from_secs(30);
/// Maximum time to flush telemetry and webhooks.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl SteadfastBuilder {
    /// Sets the sources of the configuration: files, texts, environment variables and flags.
    pub fn sources(mut self, sources: Sources) -> Self {
        self.sources = sources;
        self
    }

    /// Sets settings as text, in the format of `steadfast.toml`. They are stronger than all files of the sources, and
    /// weaker than the environment and everything else that the builder sets. A running instance can
    /// [replace](Steadfast::reconfigure) them.
    pub fn program_text(mut self, toml: &str) -> Self {
        self.program = Some(program_text(toml));
        self
    }

    /// Sets the store of the call records.
    pub fn store(mut self, store: settings::Store) -> Self {
        self.is_path_unusable = store.is_path_unusable;
        self.settings.0.extend(store.settings.0);
        self
    }

    /// Sets the policy of a tool, named as `namespace/name`, or of several: `namespace/*`. Settings that the policy does
    /// not have keep their values.
    pub fn tool(mut self, tool: &str, policy: ToolPolicy) -> Self {
        let section = settings::tool_section(tool);
        let its = policy.settings.0.into_iter();
        self.settings.0.extend(its.map(|(setting, value)| (format!("{section}{setting}"), value)));
        self
    }

    /// Sets the policy of all tools. The policy of a single tool is stronger. A class cannot be set for all tools.
    pub fn defaults(mut self, policy: ToolPolicy) -> Self {
        self.settings.0.extend(policy.settings.0);
        self
    }

    /// Sets any setting in the form of a file, with precedence over all sources: `set("store.kind", "memory")`.
    pub fn set(mut self, setting: &str, value: &str) -> Self {
        self.settings.push(setting, value.to_owned());
        self
    }

    /// Sets the user code that runs at named points of a call.
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = Some(hooks);
        self
    }

    /// Adds a listener for all events. May be called more than once.
    pub fn listener(mut self, listener: Arc<dyn EngineListener>) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Sets the destination of the log.
    pub fn logging(mut self, logging: LogOutput) -> Self {
        self.logging = logging;
        self
    }

    /// Takes over the logging of the whole process: events of all its crates, and panics, go to the log too. For
    /// binaries. A library leaves this to its program.
    pub fn owns_process(mut self) -> Self {
        self.owns_process = true;
        self
    }

    /// Marks an instance that makes no calls and only reads or maintains stored data. It pushes nothing to a collector,
    /// which would count it as another gateway, and opens no file for calls.
    pub fn maintenance_only(mut self) -> Self {
        self.only_looks = true;
        self
    }

    /// Sets the handling of a state file that is damaged or belongs to another program. Default: an error with advice.
    pub fn on_damage(mut self, on_damage: FileDamagePolicy) -> Self {
        self.on_damage = on_damage;
        self
    }

    /// Sets the clock. Default: the system clock.
    pub fn clock(mut self, clock: Arc<dyn TimeSource>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the instance: reads the configuration, opens the store, and starts telemetry and the engine.
    ///
    /// Needs a tokio runtime whose time and IO drivers are enabled. Reports all errors in the configuration at once.
    pub async fn build(self) -> Result<Steadfast, OpenError> {
        if self.is_path_unusable {
            return Err(OpenError::setting("store", "a path is not UTF-8, and settings are text"));
        }
        let mut sources = self.sources;
        if self.program.is_some() {
            sources.program = self.program;
        }
        let flag = |(setting, value): (String, String)| CommandLineFlag {
            name: format!("{setting} (set by the program)"),
            setting,
            value,
        };
        sources.flags.extend(self.settings.0.into_iter().map(flag));
        let loaded = tokio::task::spawn_blocking(move || LiveConfig::start(sources)).await;
        let live = Arc::new(loaded.map_err(OpenError::Ended)?.map_err(OpenError::Configuration)?);
        let plan = StartupPlan::of(&live.current())?;
        let logs = logs(&plan, self.logging)?;
        if let (Some(logs), true) = (&logs, self.owns_process) {
            logs.take_panics();
            // An existing subscriber of the process stays. The telemetry writes its own events in either case.
            let _ = tracing_subscriber::registry().with(logs.layer()).try_init();
        }
        for note in live.current().notes() {
            tracing::warn!(event = "config.note", note);
        }
        let OpenStore { store, set_aside, loss } =
            plan.open_store(self.clock.clone(), self.on_damage).await?;
        if let Some(path) = &set_aside {
            tracing::error!(
                event = "store.set_aside",
                to = %path.display(),
                "the state file could not be used and was set aside"
            );
        }
        let refuses = live.current().global().store.on_damage == LossPolicy::RefuseKeyed;
        if !refuses && !self.only_looks {
            // A loss that was noticed before the setting was changed. If the store fails, the next start accepts it.
            let _ = steadfast_store::accept_loss(&*store).await;
        }
        if let Some(loss) = &loss {
            tracing::error!(
                event = "store.records_lost",
                %loss,
                "{}",
                if refuses {
                    "calls with a key for tools that are not safe to repeat are refused until `steadfast state accept`"
                } else {
                    "calls that ran may run again"
                }
            );
        }
        let (namespace, most_tools) = plan.metrics.clone();
        let options = Options { namespace, most_tools, logs, otlp: plan.otlp().filter(|_| !self.only_looks) };
        let telemetry = Arc::new(Telemetry::start(options).map_err(OpenError::Otlp)?);
        let recent = Arc::<RecentActivity>::default();
        let webhooks = Arc::new(Webhooks::of(live.clone(), self.clock.clone()));
        let mut engine = plan
            .prepare(Engine::builder())
            .clock(self.clock)
            .store(store.clone())
            .policies(LivePolicies(live.clone()))
            .listener(telemetry.clone())
            .listener(recent.clone())
            .listener(webhooks.clone());
        if !self.only_looks
            && let Some(malformed) = plan.malformed_calls()?
        {
            engine = engine.listener(Arc::new(malformed));
        }
        if self.only_looks {
            engine = engine.maintenance_only();
        }
        for listener in self.listeners {
            engine = engine.listener(listener);
        }
        if let Some(hooks) = self.hooks {
            engine = engine.hooks(hooks);
        }
        let engine = engine.start().await;
        let (herald, shutdown) = (ConfigEventSender::new(), CancellationToken::new());
        let following = shutdown.clone().run_until_cancelled_owned(follow(live.clone(), herald.clone()));
        tokio::spawn(following);
        let life = Arc::new(shutdown.drop_guard());
        let counted = Arc::default();
        Ok(Steadfast {
            engine,
            store,
            live,
            herald,
            telemetry,
            recent,
            webhooks,
            set_aside,
            counted,
            checked: Arc::default(),
            only_looks: self.only_looks,
            _life: life,
        })
    }
}

/// Returns settings of the program, with their name in messages.
fn program_text(toml: &str) -> ProgramText {
    ProgramText { name: "the settings of the program".to_owned(), toml: toml.to_owned() }
}

fn logs(plan: &StartupPlan, logging: LogOutput) -> Result<Option<LogSink>, OpenError> {
    let (level, format) = plan.log;
    match logging {
        LogOutput::Disabled => Ok(None),
        LogOutput::Stderr => LogSink::to_stderr(level, format).map(Some),
        LogOutput::To(sink) => LogSink::to(sink, level, format).map(Some),
    }
    .map_err(OpenError::Logs)
}

impl fmt::Debug for Steadfast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steadfast").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl fmt::Debug for SteadfastBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadfastBuilder").field("on_damage", &self.on_damage).finish_non_exhaustive()
    }
}
