//! `steadfast doctor`: checks for common setup problems.
//!
//! Each check reports its result in one line, with advice if there is a problem. Nothing is changed: no state file is
//! created, and servers are started only to be initialized.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use steadfast::config::{Config, ServerSettings, ServerTarget, StartupPlan, StoreKind, TokenRole};
use steadfast::store::{FileDamagePolicy, SqliteStore};
use steadfast_api::queries::RECORDS_LOST_ADVICE;
use steadfast_executor::servers_of_one_name;
use steadfast_store::record_loss;

use crate::commands::check;
use crate::commands::import;
use crate::support::access;
use crate::support::admin_token;
use crate::support::failure::CommandFailure;
use crate::support::gateways;
use crate::support::output::{self, ColourPainter, TextStyle};
use crate::support::peer::{McpPeer, PeerTarget};
use crate::support::private_file;
use crate::support::setup::runtime;
use crate::support::sources::ConfigFileOptions;
use crate::support::upstream;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: ConfigFileOptions,
    /// Do not start or contact servers.
    #[arg(long)]
    no_servers: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Severity of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckLevel {
    Ok,
    /// It works, with a warning.
    Warn,
    Bad,
}

/// Result of one check.
struct DoctorCheck {
    name: String,
    level: CheckLevel,
    description: String,
    /// Advice, if there is a problem.
    todo: Option<String>,
}

#[derive(Default)]
struct Findings(Vec<DoctorCheck>);

impl Findings {
    fn ok(&mut self, name: &str, description: impl Into<String>) {
        self.0.push(DoctorCheck {
            name: name.to_owned(),
            level: CheckLevel::Ok,
            description: description.into(),
            todo: None,
        });
    }

    fn warn(&mut self, name: &str, description: impl Into<String>, todo: impl Into<String>) {
        let (description, todo) = (description.into(), Some(todo.into()));
        self.0.push(DoctorCheck { name: name.to_owned(), level: CheckLevel::Warn, description, todo });
    }

    fn bad(&mut self, name: &str, description: impl Into<String>, todo: impl Into<String>) {
        let (description, todo) = (description.into(), Some(todo.into()));
        self.0.push(DoctorCheck { name: name.to_owned(), level: CheckLevel::Bad, description, todo });
    }
}

/// Runs `steadfast doctor`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let found = runtime()?.block_on(examine(options));
    let worst = found.0.iter().map(|check| check.level).max().unwrap_or(CheckLevel::Ok);
    if options.json {
        let checks: Vec<_> = found.0.iter().map(DoctorCheck::to_json).collect();
        output::print_json(&json!({ "ok": worst != CheckLevel::Bad, "checks": checks }));
    } else {
        print(&found, worst);
    }
    match worst {
        CheckLevel::Ok => Ok(()),
        CheckLevel::Warn => Err(CommandFailure::AlreadyReported(3)),
        CheckLevel::Bad => Err(CommandFailure::AlreadyReported(4)),
    }
}

fn print(found: &Findings, worst: CheckLevel) {
    let paint = ColourPainter::of_stdout();
    let width = found.0.iter().map(|check| check.name.chars().count()).max().unwrap_or_default();
    for check in &found.0 {
        let (style, sign) = match check.level {
            CheckLevel::Ok => (TextStyle::Good, "ok  "),
            CheckLevel::Warn => (TextStyle::Warn, "warn"),
            CheckLevel::Bad => (TextStyle::Bad, "bad "),
        };
        let (name, description) = (output::clean(&check.name), output::clean(&check.description));
        output::print_data(&format!("{}  {name:width$}  {description}", paint.paint(style, sign)));
        if let Some(todo) = &check.todo {
            let before = " ".repeat(width + 8);
            output::print_data(&paint.paint(TextStyle::Dim, &format!("{before}→ {}", output::clean(todo))));
        }
    }
    let count = |level| found.0.iter().filter(|check| check.level == level).count();
    output::print_data(&match worst {
        CheckLevel::Ok => format!("\n{}", paint.paint(TextStyle::Good, "no problems found")),
        CheckLevel::Warn | CheckLevel::Bad => {
            format!("\nerrors: {}, warnings: {}", count(CheckLevel::Bad), count(CheckLevel::Warn))
        }
    });
}

impl DoctorCheck {
    fn to_json(&self) -> Value {
        let level = match self.level {
            CheckLevel::Ok => "ok",
            CheckLevel::Warn => "warn",
            CheckLevel::Bad => "bad",
        };
        json!({ "name": self.name, "level": level, "what": self.description, "todo": self.todo })
    }
}

async fn examine(options: &Options) -> Findings {
    let mut found = Findings::default();
    version(&mut found);
    clock(&mut found);
    let Some(config) = configuration(&options.chosen, &mut found) else { return found };
    state_folder(&config, &mut found);
    trust_file(&config, &mut found);
    store(&config, &mut found).await;
    gateways_that_run(&config, &mut found);
    check_access(&config, &mut found);
    if config.servers().is_empty() {
        found.ok("servers", "none are configured; `steadfast wrap -- COMMAND` needs none");
    }
    if !options.no_servers {
        for server in config.servers().values() {
            check_server(server, &mut found).await;
        }
    }
    clients(&mut found);
    found
}

fn version(found: &mut Findings) {
    let own = env!("CARGO_PKG_VERSION");
    match import::SteadfastProgram::find() {
        Ok(program) if program.in_path => found.ok("program", format!("steadfast {own}, found in PATH")),
        Ok(program) => match first_in_path() {
            Some(other) => found.warn(
                "program",
                format!("steadfast {own} is {}, but PATH finds {}", program.path, other.display()),
                "clients that start `steadfast` get the other one: put the folder of this program first in PATH",
            ),
            None => found.ok("program", format!("steadfast {own} at {}; its folder is not in PATH", program.path)),
        },
        Err(_) => {
            found.warn("program", format!("steadfast {own} cannot determine its own path"), "start it with its full path")
        }
    }
}

fn first_in_path() -> Option<PathBuf> {
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search).map(|folder| folder.join("steadfast")).find(|path| path.is_file())
}

/// A clock before this date (2025) is not set.
const EARLIEST: u64 = 1_735_689_600;

fn clock(found: &mut Findings) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    if now < EARLIEST {
        found.bad(
            "clock",
            "the clock of this machine is set before 2025",
            "set the clock; otherwise records expire too late",
        );
    } else {
        found.ok("clock", crate::support::setup::now().to_string());
    }
}

fn configuration(chosen: &ConfigFileOptions, found: &mut Findings) -> Option<Config> {
    let sources = chosen.sources();
    let config = match Config::load(&sources) {
        Ok(config) => config,
        Err(errors) => {
            let first =
                errors.problems().first().map(|problem| problem.message().to_owned()).unwrap_or_default();
            let count = errors.problems().len();
            found.bad(
                "configuration",
                format!("{count} errors, the first: {first}"),
                "`steadfast check` shows each with its line",
            );
            return None;
        }
    };
    let there = sources.files.iter().filter(|file| file.path.exists());
    let files: Vec<_> = there.map(|file| file.path.display().to_string()).collect();
    match (files.as_slice(), config.notes()) {
        ([], []) => found.ok("configuration", "no file; all settings have their defaults"),
        (files, []) => found.ok("configuration", files.join(", ")),
        (_, [first, ..]) => found.warn("configuration", first.clone(), "`steadfast check` shows all notes"),
    }
    if let Err(error) = StartupPlan::of(&config) {
        found.bad("configuration", error.to_string(), "change that setting");
        return None;
    }
    Some(config)
}

fn state_folder(config: &Config, found: &mut Findings) {
    let Some(file) = &config.global().store.path else {
        return found.warn("state folder", "there is no folder for the state", "set HOME or `store.path`");
    };
    let Some(folder) = file.parent() else { return };
    let Some(there) = folder.ancestors().find(|place| place.is_dir()) else { return };
    let shown = folder.display();
    if let Err(error) = is_writable(there) {
        return found.bad(
            "state folder",
            format!("{} cannot be written: {error}", there.display()),
            "make it writable for your user, or set `store.path` to another path",
        );
    }
    if there != folder {
        found.ok("state folder", format!("{shown} will be created"));
    } else if is_open_to_others(file) {
        found.warn(
            "state folder",
            format!("{} can be read by other users of this machine", file.display()),
            format!("chmod 600 {}", file.display()),
        );
    } else {
        found.ok("state folder", shown.to_string());
    }
    match free_space(there) {
        Some(free) if free < LITTLE => {
            found.bad(
                "disk",
                format!("only {} MiB are free", free >> 20),
                "make room: a full disk stops the store",
            );
        }
        Some(free) if free < SCARCE => {
            found.warn("disk", format!("only {} MiB are free", free >> 20), "make room soon")
        }
        Some(free) => found.ok("disk", format!("{} GiB are free", free >> 30)),
        None => {}
    }
}

/// Checks the trust file, if trust is not kept in the store.
fn trust_file(config: &Config, found: &mut Findings) {
    let Ok(plan) = StartupPlan::of(config) else { return };
    let Some(file) = plan.trust_file() else { return };
    let path = file.path().display();
    match file.check() {
        Ok(None) => found.ok("trust file", format!("{path} will be created")),
        Ok(Some(0)) => found.ok("trust file", format!("{path}: every tool is trusted")),
        Ok(Some(count)) => {
            found.ok("trust file", format!("{path}: {count} not trusted (`steadfast status` shows them)"));
        }
        Err(reason) => found.bad(
            "trust file",
            format!("{path} cannot be read: {reason}"),
            "correct or remove it; until then it is neither used nor written",
        ),
    }
}

/// Free space in bytes: too little for a store, and low.
const LITTLE: u64 = 64 << 20;
const SCARCE: u64 = 1 << 30;

fn is_writable(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".steadfast-doctor-{}", std::process::id()));
    admin_token::private_file().open(&probe)?;
    fs::remove_file(&probe)
}

#[cfg(unix)]
fn is_open_to_others(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &Path) -> bool {
    false
}

#[cfg(unix)]
fn free_space(folder: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(folder).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<u64> {
    None
}

async fn store(config: &Config, found: &mut Findings) {
    let settings = &config.global().store;
    let Ok(plan) = StartupPlan::of(config) else { return };
    let words = plan.store();
    match (settings.kind, settings.path.as_deref()) {
        (StoreKind::Memory, _) => {
            return found.warn(
                "store",
                words,
                "records of calls are lost when the process ends: set `store.kind` to \"sqlite\" to keep them",
            );
        }
        (StoreKind::Sqlite, Some(path)) if !path.exists() && SqliteStore::held_records(path) => {
            return found.bad(
                "store",
                format!("{words} is missing, and held committed records"),
                RECORDS_LOST_ADVICE,
            );
        }
        (StoreKind::Sqlite, Some(path)) if !path.exists() => {
            return found.ok("store", format!("{words} (created at the first start)"));
        }
        (StoreKind::Sqlite | StoreKind::Redis, _) => {}
    }
    let began = Instant::now();
    match output::wait_with_spinner("opening the store", plan.try_store(FileDamagePolicy::Refuse)).await {
        Ok(_) => {
            found.ok("store", format!("{words}, opened in {}", took(began)));
            inspect_config(config, found).await;
        }
        Err(error) => {
            found.bad("store", error.to_string(), "until then calls that must not run twice are refused")
        }
    }
}

/// Checks for lost records, and for running servers that have the same name but are different.
async fn inspect_config(config: &Config, found: &mut Findings) {
    let Ok(plan) = StartupPlan::of(config) else { return };
    let Ok(store) = plan.open().await else { return };
    if let Ok(Some(loss)) = record_loss(&*store).await {
        found.bad("store", loss.to_string(), RECORDS_LOST_ADVICE);
    }
    for (name, servers) in servers_of_one_name(&*store).await.unwrap_or_default() {
        let servers: Vec<_> = servers.iter().map(|one| format!("{} runs `{}`", one.name, one.runs)).collect();
        found.warn(
            "servers",
            format!("{} have the name {name}: {}", servers.len(), servers.join(", ")),
            "give one of them another name; until then each has its own trust, breakers and history",
        );
    }
}

fn gateways_that_run(config: &Config, found: &mut Findings) {
    let Some(folder) = gateways::folder(config) else { return };
    let left = gateways::left_behind(&folder);
    let running = gateways::running(&folder);
    for gateway in &running {
        let address = format!("{} (pid {})", gateway.address, gateway.process.pid);
        if gateway.version == env!("CARGO_PKG_VERSION") {
            found.ok("gateway", address);
        } else {
            found.warn(
                "gateway",
                format!(
                    "{address} is of version {}, this program of {}",
                    gateway.version,
                    env!("CARGO_PKG_VERSION")
                ),
                "restart the gateway, so that both have the same version",
            );
        }
    }
    if running.is_empty() {
        found.ok("gateway", "none is running here");
    }
    for reason in gateways::distrusted(&folder) {
        found.bad("gateway", reason, "until then the other commands cannot find it");
    }
    if left > 0 {
        found.warn(
            "gateway",
            format!("{left} ended unexpectedly"),
            format!("check their logs; their files are in {}", folder.display()),
        );
    }
}

fn check_access(config: &Config, found: &mut Findings) {
    match admin_token::place(config) {
        _ if admin_token::given().is_some() => {
            found.ok("admin token", format!("given by {}", admin_token::VARIABLE))
        }
        Some(place) => match private_file::read(&place) {
            Ok(_) => found.ok("admin token", place.display().to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                found.ok("admin token", "created when a gateway first listens")
            }
            Err(error) => found.bad("admin token", error.to_string(), "until then the admin API is disabled"),
        },
        None => found.warn(
            "admin token",
            "there is no folder to store it in",
            format!("set {}", admin_token::VARIABLE),
        ),
    }
    let listen = config.global().listen;
    let has_token = tokens(config, found);
    let is_own_gateway = gateways::folder(config).is_some_and(|folder| {
        gateways::running(&folder).iter().any(|one| one.address.port() == listen.port())
    });
    if !listen.ip().is_loopback() && !has_token {
        found.bad(
            "listener",
            format!("{listen} can be reached from other machines, and no token is set"),
            "give clients tokens in [tokens.NAME], or listen on 127.0.0.1; `steadfast serve` does not start like this",
        );
    } else if is_own_gateway {
        found.ok("listener", format!("{listen}, in use by a Steadfast gateway"));
    } else {
        match TcpListener::bind(listen) {
            Ok(_) => found.ok("listener", format!("{listen} is free")),
            Err(error) => found.warn(
                "listener",
                format!("{listen} cannot be used: {error}"),
                "`steadfast serve --listen 127.0.0.1:0` uses a free port; `listen` sets another address",
            ),
        }
    }
}

/// Minimum length of a token. A shorter one can be guessed.
const SHORT: usize = 16;

/// Reports the tokens. Returns true if any client has one.
fn tokens(config: &Config, found: &mut Findings) -> bool {
    let of_config = config.tokens().values();
    let has_client = of_config.clone().any(|token| token.role != TokenRole::Viewer);
    let given = access::given();
    if let Some(token) = given.as_ref().filter(|token| token.len() < SHORT) {
        found.warn(
            "tokens",
            format!("{} has {} characters, which can be guessed", access::VARIABLE, token.len()),
            "use a longer one, for example from `openssl rand -hex 32`",
        );
    }
    let names: Vec<_> =
        of_config.map(check::described).chain(given.iter().map(|_| access::VARIABLE.into())).collect();
    match (names.is_empty(), has_client || given.is_some()) {
        (true, _) => {
            found.ok("tokens", "none: every process on this machine can call tools and see the views")
        }
        (false, false) => {
            found.ok("tokens", format!("{}; clients of this machine need none", names.join(", ")))
        }
        (false, true) => found.ok("tokens", names.join(", ")),
    }
    has_client || given.is_some()
}

/// Timeout for the initialization of a server. Some servers are downloaded first.
const START_TIMEOUT: Duration = Duration::from_secs(60);

async fn check_server(server: &ServerSettings, found: &mut Findings) {
    let name = format!("server {}", server.name);
    let reached = match &server.reach {
        ServerTarget::Command { .. } => upstream::launch_of_config(server)
            .ok_or_else(|| "the command is empty".to_owned())
            .and_then(|launch| {
                Ok(PeerTarget::Started(
                    Box::new(launch),
                    upstream::leash().map_err(|_| "this program cannot determine its own path".to_owned())?,
                ))
            }),
        ServerTarget::Url { url, headers } => {
            upstream::header_map(headers).map(|sent| PeerTarget::Url(url.expose().clone(), sent))
        }
    };
    let began = Instant::now();
    let met = async {
        let mut peer = McpPeer::connect(&reached?, START_TIMEOUT).await?;
        let startup_time = began.elapsed();
        let tools = peer.request("tools/list", json!({}), START_TIMEOUT).await;
        let called = peer.name.clone();
        peer.close().await;
        let tools = tools?.get("tools").and_then(Value::as_array).map_or(0, Vec::len);
        Ok::<_, String>((called, tools, startup_time))
    };
    match output::wait_with_spinner(&format!("greeting {}", server.name), met).await {
        Ok((called, tools, startup_time)) => {
            found.ok(&name, format!("{called} answers after {} ms, {tools} tools", startup_time.as_millis()));
        }
        Err(reason) => found.bad(
            &name,
            reason,
            "run its command or open its URL manually; see `[servers]` in the configuration",
        ),
    }
}

fn clients(found: &mut Findings) {
    let surveyed = import::survey();
    if surveyed.is_empty() {
        return found.ok("clients", "no configuration of a known client was found");
    }
    for survey in surveyed {
        let name = survey.client;
        match survey.servers {
            Err(reason) => {
                found.warn(name, format!("{}: {reason}", survey.path.display()), "correct it there")
            }
            Ok((0, wrapped)) => {
                found.ok(name, format!("{}: {wrapped} servers, all behind Steadfast", survey.path.display()))
            }
            Ok((direct, wrapped)) => found.ok(
                name,
                format!(
                    "{}: {wrapped} servers behind Steadfast, {direct} not (`steadfast import` shows them)",
                    survey.path.display()
                ),
            ),
        }
    }
}

fn took(began: Instant) -> String {
    format!("{} ms", began.elapsed().as_millis())
}
