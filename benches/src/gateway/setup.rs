//! The gateways and servers under test, and the way each is started.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::BenchClient;
use super::process::{GroupedProcess, free_port};
use super::server;
use crate::engine::MeasurementError;
use crate::peers::FOLDER as PEERS;

/// Variable with the program under test, built by `cargo xtask bench gateway`.
const PROGRAM: &str = "STEADFAST_BENCH_PROGRAM";
/// Variable with the folder of the installed servers that the gateway is tested with.
const REAL: &str = "STEADFAST_BENCH_REAL";
/// Maximum time until a listening process has answered the first call.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The paths of programs and peers, and a folder for their files.
pub(crate) struct BenchPaths {
    program: PathBuf,
    peers: PathBuf,
    real: PathBuf,
    folder: PathBuf,
}

impl BenchPaths {
    pub(crate) fn find() -> Result<Self, MeasurementError> {
        let of = |name| {
            std::env::var_os(name).map(PathBuf::from).ok_or_else(|| {
                MeasurementError::because(format!("{name} is not set; run `cargo xtask bench gateway`"))
            })
        };
        // On the disk of the program itself, because the temporary folder may be in memory.
        let program = of(PROGRAM)?;
        let name = format!("bench-data-{}", std::process::id());
        let folder = program.parent().unwrap_or(Path::new(".")).join(name);
        fs::create_dir_all(&folder)?;
        Ok(Self { program, peers: of(PEERS)?, real: of(REAL)?, folder })
    }

    /// Creates a new folder for one process.
    fn folder(&self) -> Result<PathBuf, MeasurementError> {
        let number = fs::read_dir(&self.folder)?.count();
        let folder = self.folder.join(number.to_string());
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    fn node(&self, name: &str) -> PathBuf {
        self.peers.join("gateway/node/node_modules/.bin").join(name)
    }

    fn python(&self) -> PathBuf {
        self.peers.join("gateway/python/bin/mcp-proxy")
    }
}

impl Drop for BenchPaths {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the folder for builds.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The server that answers the calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchServer {
    /// Our own, which does next to nothing.
    Fast,
    /// The reference server `server-everything`.
    Node,
}

impl BenchServer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast server",
            Self::Node => "Node server",
        }
    }

    fn program(self, place: &BenchPaths) -> Result<Vec<OsString>, MeasurementError> {
        Ok(match self {
            Self::Fast => vec![std::env::current_exe()?.into(), server::CHILD.into()],
            Self::Node => {
                let programs = place.real.join("node/node_modules/.bin");
                vec![programs.join("node").into(), programs.join("mcp-server-everything").into()]
            }
        })
    }

    /// Returns the command that runs it on stdio.
    fn on_streams(self, place: &BenchPaths) -> Result<Vec<OsString>, MeasurementError> {
        let mut command = self.program(place)?;
        command.push(server::ON_STDIO.into());
        Ok(command)
    }

    /// Starts it behind its own HTTP front.
    fn over_http(self, place: &BenchPaths) -> Result<ListeningProcess, MeasurementError> {
        let port = free_port()?;
        let mut words = self.program(place)?;
        match self {
            Self::Fast => words.push(port.to_string().into()),
            Self::Node => words.push("streamableHttp".into()),
        }
        let mut command = command(&words)?;
        command.env("PORT", port.to_string());
        ListeningProcess::start(place, command, port, "/mcp")
    }
}

/// The transports towards the client and towards the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransportShape {
    StdioToStdio,
    StdioBehindHttp,
    HttpToHttp,
    HttpBehindStdio,
}

/// The policies of our gateway: on or off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicySwitch {
    On,
    Off,
}

/// The store of our gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordStorage {
    Memory,
    Sqlite,
}

/// The class of the tool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchToolClass {
    ReadOnly,
    Mutating,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SteadfastSetup {
    pub(crate) policy: PolicySwitch,
    pub(crate) storage: RecordStorage,
    pub(crate) class: BenchToolClass,
}

impl SteadfastSetup {
    /// All mechanisms on, for a tool that changes something: the most expensive setup.
    pub(crate) const ON: Self =
        Self { policy: PolicySwitch::On, storage: RecordStorage::Memory, class: BenchToolClass::Mutating };
    pub(crate) const OFF: Self = Self { policy: PolicySwitch::Off, ..Self::ON };
}

/// The gateway between client and server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GatewayKind {
    Nothing,
    Ours(SteadfastSetup),
    RustProxy,
    NpmProxy,
    Supergateway,
    PythonProxy,
    Fastmcp,
}

impl GatewayKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "bare",
            Self::Ours(_) => "Steadfast",
            Self::RustProxy => "mcp-proxy 0.6.0 (Rust)",
            Self::NpmProxy => "mcp-proxy 6.7.19 (npm)",
            Self::Supergateway => "supergateway 4.0.0 (npm)",
            Self::PythonProxy => "mcp-proxy 0.13.0 (PyPI)",
            Self::Fastmcp => "fastmcp 4.1.2 (PyPI)",
        }
    }

    /// Returns true if the report can omit it.
    pub(crate) const fn is_peer(self) -> bool {
        match self {
            Self::Nothing | Self::Ours(_) => false,
            Self::RustProxy | Self::NpmProxy | Self::Supergateway | Self::PythonProxy | Self::Fastmcp => true,
        }
    }

    /// Returns true if its program is installed.
    pub(crate) fn is_installed(self, place: &BenchPaths) -> bool {
        self.program(place).exists()
    }

    /// Returns the name of the server's tool behind it.
    const fn tool(self) -> &'static str {
        match self {
            Self::RustProxy => "s/echo",
            Self::Nothing
            | Self::Ours(_)
            | Self::NpmProxy
            | Self::Supergateway
            | Self::PythonProxy
            | Self::Fastmcp => "echo",
        }
    }

    fn program(self, place: &BenchPaths) -> PathBuf {
        match self {
            // Without a gateway there is no program to be missing.
            Self::Nothing | Self::Ours(_) => place.program.clone(),
            Self::RustProxy => place.peers.join("rust/bin/mcp-proxy"),
            Self::NpmProxy => place.node("mcp-proxy"),
            Self::Supergateway => place.node("supergateway"),
            Self::PythonProxy => place.python(),
            Self::Fastmcp => place.real.join("python/bin/fastmcp"),
        }
    }
}

/// A target for calls: it listens already, or every client starts one.
pub(crate) struct BenchTarget {
    between: GatewayKind,
    kind: BenchTargetKind,
}

enum BenchTargetKind {
    Http(ListeningProcess),
    Streams { words: Vec<OsString>, variables: EnvironmentVariables },
}

impl BenchTarget {
    /// Starts it in front of the server. Over HTTP it uses the running server, if the shape says so.
    pub(crate) fn start(
        place: &BenchPaths,
        between: GatewayKind,
        shape: TransportShape,
        server: BenchServer,
        upstream: Option<&ListeningProcess>,
    ) -> Result<Self, MeasurementError> {
        let program = between.program(place);
        let behind = match (shape, upstream) {
            (TransportShape::StdioToStdio | TransportShape::StdioBehindHttp, _) => {
                UpstreamTarget::Streams(server.on_streams(place)?)
            }
            (TransportShape::HttpToHttp | TransportShape::HttpBehindStdio, Some(upstream)) => {
                UpstreamTarget::Url(upstream.url())
            }
            (TransportShape::HttpToHttp | TransportShape::HttpBehindStdio, None) => {
                return Err(MeasurementError::because(
                    "there is no running server to put a gateway in front of",
                ));
            }
        };
        let folder = place.folder()?;
        let (mut words, variables) = between.command(place, program, &behind, &folder)?;
        let kind = match shape {
            TransportShape::StdioToStdio | TransportShape::HttpBehindStdio => {
                words.extend(between.on_streams(&folder, &behind));
                BenchTargetKind::Streams { words, variables }
            }
            TransportShape::StdioBehindHttp | TransportShape::HttpToHttp => {
                let port = free_port()?;
                words.extend(between.listening(port, &folder, &behind)?);
                let mut command = command(&words)?;
                command.envs(variables);
                let path = if between == GatewayKind::RustProxy { "/" } else { "/mcp" };
                BenchTargetKind::Http(ListeningProcess::start(place, command, port, path)?)
            }
        };
        Ok(Self { between, kind })
    }

    /// Returns the server itself, without a gateway.
    pub(crate) fn bare(
        place: &BenchPaths,
        shape: TransportShape,
        server: BenchServer,
    ) -> Result<Self, MeasurementError> {
        let kind = match shape {
            TransportShape::StdioToStdio => BenchTargetKind::Streams {
                words: server.on_streams(place)?,
                variables: EnvironmentVariables::new(),
            },
            TransportShape::StdioBehindHttp
            | TransportShape::HttpToHttp
            | TransportShape::HttpBehindStdio => BenchTargetKind::Http(server.over_http(place)?),
        };
        Ok(Self { between: GatewayKind::Nothing, kind })
    }

    pub(crate) const fn between(&self) -> GatewayKind {
        self.between
    }

    /// Connects a new client, once it is answered.
    pub(crate) fn client(&mut self, place: &BenchPaths) -> Result<BenchClient, MeasurementError> {
        match &mut self.kind {
            BenchTargetKind::Http(listening) => listening.client(self.between.tool()),
            BenchTargetKind::Streams { words, variables } => {
                let folder = place.folder()?;
                let mut command = command(words)?;
                command.envs(variables.iter().cloned()).current_dir(&folder);
                BenchClient::of_command(&mut command, &folder.join("words"), self.between.tool())
            }
        }
    }

    /// Waits until it accepts connections, if it listens.
    pub(crate) fn until_open(&mut self) -> Result<(), MeasurementError> {
        match &mut self.kind {
            BenchTargetKind::Http(listening) => listening.until_open(),
            BenchTargetKind::Streams { .. } => Ok(()),
        }
    }

    pub(crate) const fn listening(&self) -> Option<&ListeningProcess> {
        match &self.kind {
            BenchTargetKind::Http(listening) => Some(listening),
            BenchTargetKind::Streams { .. } => None,
        }
    }
}

/// A process that listens.
pub(crate) struct ListeningProcess {
    process: GroupedProcess,
    port: u16,
    path: &'static str,
    words: PathBuf,
}

impl ListeningProcess {
    fn start(
        place: &BenchPaths,
        mut command: Command,
        port: u16,
        path: &'static str,
    ) -> Result<Self, MeasurementError> {
        let folder = place.folder()?;
        let words = folder.join("words");
        let process = GroupedProcess::start(command.current_dir(&folder), &words)?;
        Ok(Self { process, port, path, words })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}{}", self.port, self.path)
    }

    pub(crate) const fn process(&self) -> &GroupedProcess {
        &self.process
    }

    /// Waits until its port accepts connections.
    fn until_open(&mut self) -> Result<(), MeasurementError> {
        self.until(|listening| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, listening.port))?;
            Ok(())
        })
    }

    fn client(&mut self, tool: &str) -> Result<BenchClient, MeasurementError> {
        self.until(|listening| BenchClient::of_address(listening.port, listening.path, tool))
    }

    /// Repeats the attempt until it succeeds, the process ends, or the time is over.
    fn until<T>(
        &mut self,
        mut attempt: impl FnMut(&Self) -> Result<T, MeasurementError>,
    ) -> Result<T, MeasurementError> {
        let started = Instant::now();
        loop {
            let problem = match attempt(self) {
                Ok(made) => return Ok(made),
                Err(problem) => problem,
            };
            let has_exited = self.process.has_ended();
            if has_exited || started.elapsed() > START_TIMEOUT {
                let words = fs::read_to_string(&self.words).unwrap_or_default();
                let last: Vec<_> =
                    words.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
                let note = if has_exited { ", and it has ended" } else { "" };
                return Err(MeasurementError::because(format!(
                    "{problem}{note}; its output: `{}`",
                    last.join(" ← ")
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The upstream of a gateway.
enum UpstreamTarget {
    Streams(Vec<OsString>),
    Url(String),
}

/// Name of our own configuration file.
const CONFIG_FILE: &str = "steadfast.toml";

type EnvironmentVariables = Vec<(&'static str, OsString)>;

impl GatewayKind {
    /// Returns the program with the arguments that every transport needs, and its environment variables.
    fn command(
        self,
        place: &BenchPaths,
        program: PathBuf,
        behind: &UpstreamTarget,
        folder: &Path,
    ) -> Result<(Vec<OsString>, EnvironmentVariables), MeasurementError> {
        let mut words = vec![program.into_os_string()];
        let mut variables = Vec::new();
        match self {
            Self::Nothing => {}
            Self::Ours(setup) => {
                let class = match setup.class {
                    BenchToolClass::ReadOnly => "read_only",
                    BenchToolClass::Mutating => "mutating",
                };
                let store = match setup.storage {
                    RecordStorage::Memory => "memory",
                    RecordStorage::Sqlite => "sqlite",
                };
                // Like its peers, it does not log each call.
                let config = format!(
                    "[tools.echo]\nclass = \"{class}\"\n[store]\nkind = \"{store}\"\n[log]\nlevel = \"warn\"\n"
                );
                fs::write(folder.join(CONFIG_FILE), config)?;
                // It reads no settings of the user who measures, and writes to none of their folders.
                for name in ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
                    variables.push((name, folder.into()));
                }
                if setup.policy == PolicySwitch::Off {
                    variables.push(("TOOL_RELIABILITY_ENABLED", "false".into()));
                }
            }
            Self::RustProxy => {}
            Self::NpmProxy => variables.push(node_first(place)?),
            Self::Supergateway => {
                variables.push(node_first(place)?);
                words.extend(["--logLevel".into(), "none".into()]);
                match behind {
                    UpstreamTarget::Streams(command) => {
                        words.extend(["--stdio".into(), in_one_line(command)])
                    }
                    UpstreamTarget::Url(url) => words.extend(["--streamableHttp".into(), url.into()]),
                }
            }
            Self::PythonProxy => words.extend(["--log-level".into(), "WARNING".into()]),
            Self::Fastmcp => {
                words.push("run".into());
                match behind {
                    UpstreamTarget::Url(url) => words.push(url.into()),
                    UpstreamTarget::Streams(command) => {
                        let mut command = command.iter().map(|word| word.to_string_lossy().into_owned());
                        let program = command.next();
                        let arguments: Vec<_> = command.collect();
                        let servers =
                            json!({ "mcpServers": { "s": { "command": program, "args": arguments } } });
                        let config = folder.join("mcp.json");
                        fs::write(&config, servers.to_string())?;
                        words.push(config.into());
                    }
                }
                words.extend(["--no-banner".into(), "--log-level".into(), "WARNING".into()]);
            }
        }
        Ok((words, variables))
    }

    /// Returns the other arguments, for clients that start it.
    fn on_streams(self, folder: &Path, behind: &UpstreamTarget) -> Vec<OsString> {
        match self {
            Self::Ours(_) => {
                let mut words = vec!["wrap".into(), "--config".into(), folder.join(CONFIG_FILE).into()];
                match behind {
                    UpstreamTarget::Url(url) => words.extend(["--url".into(), url.into()]),
                    UpstreamTarget::Streams(_) => words.extend(command_after_dashes(behind)),
                }
                words
            }
            Self::Supergateway => vec!["--outputTransport".into(), "stdio".into()],
            Self::PythonProxy => match behind {
                UpstreamTarget::Url(url) => vec!["--transport".into(), "streamablehttp".into(), url.into()],
                UpstreamTarget::Streams(_) => Vec::new(),
            },
            Self::Fastmcp => vec!["--transport".into(), "stdio".into()],
            Self::Nothing | Self::RustProxy | Self::NpmProxy => Vec::new(),
        }
    }

    /// Returns the other arguments, for one that listens on this port.
    fn listening(
        self,
        port: u16,
        folder: &Path,
        behind: &UpstreamTarget,
    ) -> Result<Vec<OsString>, MeasurementError> {
        let number: OsString = port.to_string().into();
        Ok(match self {
            Self::Nothing => Vec::new(),
            Self::Ours(_) => {
                let config = folder.join(CONFIG_FILE);
                let server = match behind {
                    UpstreamTarget::Url(url) => format!("url = \"{url}\""),
                    UpstreamTarget::Streams(command) => {
                        let words: Vec<_> = command.iter().map(quoted).collect();
                        format!("command = [{}]", words.join(", "))
                    }
                };
                let text = fs::read_to_string(&config)?;
                fs::write(&config, format!("{text}[servers.s]\n{server}\n"))?;
                vec![
                    "serve".into(),
                    "--config".into(),
                    config.into(),
                    "--listen".into(),
                    format!("127.0.0.1:{port}").into(),
                ]
            }
            Self::RustProxy => {
                let config = folder.join("proxy.toml");
                fs::write(&config, rust_configuration(port, behind))?;
                vec!["--config".into(), config.into()]
            }
            Self::NpmProxy => {
                let mut words: Vec<OsString> =
                    ["--host", "127.0.0.1", "--server", "stream", "--port"].map(OsString::from).into();
                words.push(number);
                words.extend(command_after_dashes(behind));
                words
            }
            Self::Supergateway => {
                let mut words: Vec<OsString> =
                    ["--outputTransport", "streamableHttp", "--stateful", "--port"]
                        .map(OsString::from)
                        .into();
                words.push(number);
                words
            }
            Self::PythonProxy => {
                let mut words = vec!["--pass-environment".into(), "--port".into(), number];
                words.extend(command_after_dashes(behind));
                words
            }
            Self::Fastmcp => vec!["--transport".into(), "http".into(), "--port".into(), number],
        })
    }
}

fn command_after_dashes(behind: &UpstreamTarget) -> Vec<OsString> {
    match behind {
        UpstreamTarget::Streams(command) => {
            std::iter::once("--".into()).chain(command.iter().cloned()).collect()
        }
        UpstreamTarget::Url(_) => Vec::new(),
    }
}

/// Returns an argument as a TOML string.
fn quoted(word: &OsString) -> String {
    json!(word.to_string_lossy()).to_string()
}

/// Returns its configuration: its own defaults, without a log line for each call.
fn rust_configuration(port: u16, behind: &UpstreamTarget) -> String {
    let backend = match behind {
        UpstreamTarget::Url(url) => format!("transport = \"http\"\nurl = \"{url}\""),
        UpstreamTarget::Streams(command) => {
            let mut command = command.iter().map(quoted);
            let program = command.next().unwrap_or_default();
            let arguments: Vec<_> = command.collect();
            format!("transport = \"stdio\"\ncommand = {program}\nargs = [{}]", arguments.join(", "))
        }
    };
    format!(
        "[proxy]\nname = \"bench\"\nseparator = \"/\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n[[backends]]\nname = \"s\"\n{backend}\n[observability]\nlog_level = \"warn\"\n"
    )
}

/// Returns the search path with the Node that our peers need in front.
fn node_first(place: &BenchPaths) -> Result<(&'static str, OsString), MeasurementError> {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(place.peers.join("gateway/node/node_modules/.bin"))
        .chain(std::env::split_paths(&inherited));
    let joined = std::env::join_paths(paths).map_err(|error| MeasurementError::because(error.to_string()))?;
    Ok(("PATH", joined))
}

fn in_one_line(command: &[OsString]) -> OsString {
    let quoted: Vec<_> = command.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    quoted.join(" ").into()
}

fn command(words: &[OsString]) -> Result<Command, MeasurementError> {
    let (program, arguments) =
        words.split_first().ok_or_else(|| MeasurementError::because("there is no command to start"))?;
    let mut command = Command::new(program);
    // The session of the user who measures must not reach the measured process.
    command.args(arguments).env_remove("CLAUDE_CODE_SESSION_ID");
    Ok(command)
}
