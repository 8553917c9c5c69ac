//! The engines of this process. Module instances and threads that open the same state file share one.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast::Steadfast;
use steadfast::config::{
    CommandLineFlag, Config, ConfigFile, FileRequirement, PolicyStart, Reload, Sources, StoreKind,
    usual_sources,
};
use steadfast_api::{AccessRules, AdminToken, Api};

use crate::failure::Failure;
use crate::runtime;

/// The options of `open`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct OpenOptions {
    state_file: Option<PathBuf>,
    in_memory: bool,
    config: Option<String>,
    config_file: Option<PathBuf>,
    environment: bool,
    name: Option<String>,
    if_open: IfOpen,
}

/// The handling of an engine that is open with other settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum IfOpen {
    #[default]
    Refuse,
    Join,
    Reconfigure,
}

/// The settings that a program passed to `open`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProgramSettings {
    config: Option<String>,
    config_file: Option<PathBuf>,
    environment: bool,
}

/// The identity of an engine in this process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum EngineKey {
    File(PathBuf),
    Named(String),
}

/// A place for an engine that is shared. It stays when the engine is closed.
#[derive(Default)]
struct EngineSlot(tokio::sync::Mutex<Option<OpenEngine>>);

struct OpenEngine {
    engine: Arc<RunningEngine>,
    users: usize,
    settings: ProgramSettings,
}

static SLOTS: Mutex<Option<HashMap<EngineKey, Arc<EngineSlot>>>> = Mutex::new(None);

/// All engines that run, by number, for the flush at the exit of the process.
static RUNNING: Mutex<BTreeMap<u64, Arc<RunningEngine>>> = Mutex::new(BTreeMap::new());

/// An engine that runs.
pub(crate) struct RunningEngine {
    number: u64,
    pub(crate) steadfast: Steadfast,
    pub(crate) state_file: Option<PathBuf>,
    /// The HTTP API in this process, for operators, and its token.
    pub(crate) api: Api,
    pub(crate) token: String,
    settings_file: SettingsFile,
    is_closed: AtomicBool,
}

/// The result of a close.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CloseReport {
    /// True if others still use the engine.
    shared: bool,
    ended: usize,
    lost: usize,
}

/// One use of an engine, by one `open`.
pub(crate) struct EngineUse {
    engine: Mutex<Option<Arc<RunningEngine>>>,
    /// `None` for an engine that nothing else can open.
    slot: Option<Arc<EngineSlot>>,
}

/// Opens an engine, or joins the one that is open.
pub(crate) async fn open(options: OpenOptions) -> Result<EngineUse, Failure> {
    let settings = ProgramSettings {
        config: options.config.clone(),
        config_file: options.config_file.clone(),
        environment: options.environment,
    };
    let settings_file = SettingsFile::create(options.config.as_deref())?;
    let sources = sources(&options, &settings_file);
    let reading = sources.clone();
    let config = tokio::task::spawn_blocking(move || Config::load(&reading)).await;
    let config = config.map_err(|_| Failure::open("open_failed", "the configuration could not be read"))?;
    let config = config.map_err(steadfast::OpenError::Configuration)?;
    let store = &config.global().store;
    let state_file = match (store.kind, &store.path) {
        (StoreKind::Sqlite, Some(path)) => Some(path.clone()),
        (StoreKind::Sqlite, None) | (StoreKind::Memory | StoreKind::Redis, _) => None,
    };
    let key = match &state_file {
        Some(path) => Some(EngineKey::File(canonical(path))),
        None => options.name.clone().map(EngineKey::Named),
    };
    let Some(key) = key else {
        let engine = RunningEngine::start(sources, settings_file, state_file).await?;
        return Ok(EngineUse { engine: Mutex::new(Some(engine)), slot: None });
    };
    let slot = SLOTS.lock().get_or_insert_default().entry(key).or_default().clone();
    let mut place = slot.0.lock().await;
    let engine = match &mut *place {
        Some(open) => {
            open.join(&options, settings).await?;
            open.engine.clone()
        }
        None => {
            let engine = RunningEngine::start(sources, settings_file, state_file).await?;
            *place = Some(OpenEngine { engine: engine.clone(), users: 1, settings });
            engine
        }
    };
    drop(place);
    Ok(EngineUse { engine: Mutex::new(Some(engine)), slot: Some(slot) })
}

impl OpenEngine {
    /// Adds a user, if its settings fit.
    async fn join(&mut self, options: &OpenOptions, settings: ProgramSettings) -> Result<(), Failure> {
        let has_settings = settings.config.is_some() || settings.config_file.is_some() || settings.environment;
        if has_settings && settings != self.settings {
            match (options.if_open, settings.config) {
                (IfOpen::Join, _) => {}
                (IfOpen::Reconfigure, Some(config)) => {
                    self.engine.reconfigure(config.clone()).await?;
                    self.settings.config = Some(config);
                }
                (IfOpen::Reconfigure, None) | (IfOpen::Refuse, _) => {
                    return Err(Failure::open(
                        "already_open",
                        "this state file is already open in this process with other settings; open it with \
                         ifOpen: \"join\" or \"reconfigure\", or with the same settings",
                    ));
                }
            }
        }
        self.users += 1;
        Ok(())
    }
}

/// Returns the sources of the configuration. The settings of the program are the strongest.
fn sources(options: &OpenOptions, settings_file: &SettingsFile) -> Sources {
    let mut sources = match options.environment {
        true => usual_sources(PolicyStart::Library),
        false => Sources::default(),
    };
    let file = |path: &Path| ConfigFile { path: path.to_owned(), needed: FileRequirement::Always };
    sources.files.extend(options.config_file.as_deref().map(file));
    sources.files.push(file(&settings_file.0));
    let mut flag = |setting: &str, value: String| {
        let (name, setting) = ("stateFile".to_owned(), setting.to_owned());
        sources.flags.push(CommandLineFlag { name, setting, value });
    };
    match &options.state_file {
        Some(path) => {
            flag("store.kind", "sqlite".to_owned());
            flag("store.path", path.to_string_lossy().into_owned());
        }
        None if options.in_memory => flag("store.kind", "memory".to_owned()),
        None => {}
    }
    sources
}

/// Returns a path that is the same for all spellings of it.
fn canonical(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let whole = absolute.canonicalize();
    whole
        .or_else(|error| {
            // The file may not exist yet, nor its folder, which the store would create.
            let (folder, name) = absolute.parent().zip(absolute.file_name()).ok_or(error)?;
            let _ = std::fs::create_dir_all(folder);
            folder.canonicalize().map(|folder| folder.join(name))
        })
        .unwrap_or(absolute)
}

impl RunningEngine {
    async fn start(
        sources: Sources,
        settings_file: SettingsFile,
        state_file: Option<PathBuf>,
    ) -> Result<Arc<Self>, Failure> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let steadfast = Steadfast::open(sources).await?;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| Failure::open("open_failed", error.to_string()))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let access = AccessRules { admin: AdminToken::new(&token), ..AccessRules::default() };
        let api = Api::new(steadfast.clone(), access);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let engine = Arc::new(Self {
            number,
            steadfast,
            state_file,
            api,
            token,
            settings_file,
            is_closed: AtomicBool::new(false),
        });
        RUNNING.lock().insert(number, engine.clone());
        Ok(engine)
    }

    /// Replaces the settings of the program.
    pub(crate) async fn reconfigure(self: &Arc<Self>, config: String) -> Result<(), Failure> {
        let engine = self.clone();
        let reloading = tokio::task::spawn_blocking(move || {
            let before = engine.settings_file.replace(&config)?;
            match engine.steadfast.reload() {
                Reload::Unchanged | Reload::Replaced { .. } => Ok(()),
                Reload::Kept(errors) => {
                    engine.settings_file.replace(&before)?;
                    let _ = engine.steadfast.reload();
                    Err(Failure::from(steadfast::OpenError::Configuration(errors)))
                }
            }
        });
        reloading.await.map_err(|_| Failure::open("open_failed", "the configuration could not be read"))?
    }

    async fn close(&self, grace: Duration) -> CloseReport {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return CloseReport::default();
        }
        RUNNING.lock().remove(&self.number);
        let report = self.steadfast.shutdown(grace).await;
        CloseReport { shared: false, ended: report.ended, lost: report.lost }
    }
}

impl EngineUse {
    /// Returns the engine, if this use is not over.
    pub(crate) fn engine(&self) -> Result<Arc<RunningEngine>, Failure> {
        let engine = self.engine.lock().clone();
        engine.filter(|engine| !engine.is_closed.load(Ordering::Acquire)).ok_or_else(Failure::closed)
    }

    /// Ends this use. The last one closes the engine.
    pub(crate) async fn close(&self, grace: Duration) -> CloseReport {
        let Some(engine) = self.engine.lock().take() else { return CloseReport::default() };
        let Some(slot) = &self.slot else { return engine.close(grace).await };
        // Held until the engine is closed: who opens the file meanwhile waits.
        let mut place = slot.0.lock().await;
        if let Some(open) = &mut *place {
            open.users = open.users.saturating_sub(1);
            if open.users > 0 {
                return CloseReport { shared: true, ..CloseReport::default() };
            }
        }
        *place = None;
        engine.close(grace).await
    }

    /// Ends this use when its thread ends, and waits for it.
    pub(crate) fn close_now(&self) {
        let is_open = self.engine.lock().is_some();
        if let (true, Ok(runtime)) = (is_open, runtime::handle()) {
            let _ = runtime.block_on(async { tokio::time::timeout(LONGEST_FLUSH, self.close(Duration::ZERO)).await });
        }
    }
}

/// Closes all engines at the exit of the process.
pub(crate) fn flush_all() {
    let running: Vec<_> = RUNNING.lock().values().cloned().collect();
    if running.is_empty() {
        return;
    }
    let Ok(runtime) = runtime::handle() else { return };
    let closing = futures_util::future::join_all(running.iter().map(|engine| engine.close(Duration::ZERO)));
    let _ = runtime.block_on(async { tokio::time::timeout(LONGEST_FLUSH, closing).await });
}

/// Maximum time of the flush at the end of a thread or of the process: a disk that hangs must not keep it.
const LONGEST_FLUSH: Duration = Duration::from_secs(10);

/// The settings of the program, in a file that only this process reads.
struct SettingsFile(PathBuf);

impl SettingsFile {
    fn create(config: Option<&str>) -> Result<Self, Failure> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| Failure::open("open_failed", error.to_string()))?;
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = Self(std::env::temp_dir().join(format!("steadfast-{name}.toml")));
        file.replace(config.unwrap_or_default())?;
        Ok(file)
    }

    /// Writes the file. Returns its contents before.
    fn replace(&self, text: &str) -> Result<String, Failure> {
        let before = std::fs::read_to_string(&self.0).unwrap_or_default();
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // Settings may contain secrets.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(&self.0).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Failure::open("open_failed", format!("{}: {error}", self.0.display())))?;
        Ok(before)
    }
}

impl Drop for SettingsFile {
    fn drop(&mut self) {
        // A file of settings that stays behind does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}
