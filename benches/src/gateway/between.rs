//! The gateways and servers under test, and the way each is started.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::Client;
use super::process::{Process, free_port};
use super::server;
use crate::engine::Unmade;
use crate::peers::FOLDER as PEERS;

/// Variable with the program under test, built by `cargo xtask bench gateway`.
const PROGRAM: &str = "STEADFAST_BENCH_PROGRAM";
/// Variable with the folder of the installed servers that the gateway is tested with.
const REAL: &str = "STEADFAST_BENCH_REAL";
/// Maximum time until a listening process has answered the first call.
const BEGIN: Duration = Duration::from_secs(60);

/// The paths of programs and peers, and a folder for their files.
pub(crate) struct Place {
    program: PathBuf,
    peers: PathBuf,
    real: PathBuf,
    folder: PathBuf,
}

impl Place {
    pub(crate) fn find() -> Result<Self, Unmade> {
        let of = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .ok_or_else(|| Unmade::because(format!("{name} is not set; run `cargo xtask bench gateway`")))
        };
        // On the disk of the program itself, because the temporary folder may be in memory.
        let program = of(PROGRAM)?;
        let name = format!("bench-data-{}", std::process::id());
        let folder = program.parent().unwrap_or(Path::new(".")).join(name);
        fs::create_dir_all(&folder)?;
        Ok(Self { program, peers: of(PEERS)?, real: of(REAL)?, folder })
    }

    /// Creates a new folder for one process.
    fn folder(&self) -> Result<PathBuf, Unmade> {
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

impl Drop for Place {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the folder for builds.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The server that answers the calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// Our own, which does next to nothing.
    Fast,
    /// The reference server `server-everything`.
    Node,
}

impl Server {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast server",
            Self::Node => "Node server",
        }
    }

    fn program(self, place: &Place) -> Result<Vec<OsString>, Unmade> {
        Ok(match self {
            Self::Fast => vec![std::env::current_exe()?.into(), server::CHILD.into()],
            Self::Node => {
                let programs = place.real.join("node/node_modules/.bin");
                vec![programs.join("node").into(), programs.join("mcp-server-everything").into()]
            }
        })
    }

    /// Returns the command that runs it on stdio.
    fn on_streams(self, place: &Place) -> Result<Vec<OsString>, Unmade> {
        let mut command = self.program(place)?;
        command.push(server::ON_STDIO.into());
        Ok(command)
    }

    /// Starts it behind its own HTTP front.
    fn over_http(self, place: &Place) -> Result<Listening, Unmade> {
        let port = free_port()?;
        let mut words = self.program(place)?;
        match self {
            Self::Fast => words.push(port.to_string().into()),
            Self::Node => words.push("streamableHttp".into()),
        }
        let mut command = command(&words)?;
        command.env("PORT", port.to_string());
        Listening::start(place, command, port, "/mcp")
    }
}

/// The transports towards the client and towards the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    StdioToStdio,
    StdioBehindHttp,
    HttpToHttp,
    HttpBehindStdio,
}

/// The policies of our gateway: on or off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    On,
    Off,
}

/// The store of our gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Memory,
    Sqlite,
}

/// The class of the tool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    ReadOnly,
    Mutating,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ours {
    pub(crate) policy: Policy,
    pub(crate) kept: Kept,
    pub(crate) class: Class,
}

impl Ours {
    /// All mechanisms on, for a tool that changes something: the most expensive setup.
    pub(crate) const ON: Self = Self { policy: Policy::On, kept: Kept::Memory, class: Class::Mutating };
    pub(crate) const OFF: Self = Self { policy: Policy::Off, ..Self::ON };
}

/// The gateway between client and server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Between {
    Nothing,
    Ours(Ours),
    RustProxy,
    NpmProxy,
    Supergateway,
    PythonProxy,
    Fastmcp,
}

impl Between {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "bare",
            Self::Ours(_) => "ours",
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
    pub(crate) fn is_installed(self, place: &Place) -> bool {
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

    fn program(self, place: &Place) -> PathBuf {
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
pub(crate) struct Front {
    between: Between,
    kind: FrontKind,
}

enum FrontKind {
    Http(Listening),
    Streams { words: Vec<OsString>, variables: Variables },
}

impl Front {
    /// Starts it in front of the server. Over HTTP it uses the running server, if the shape says so.
    pub(crate) fn start(
        place: &Place,
        between: Between,
        shape: Shape,
        server: Server,
        upstream: Option<&Listening>,
    ) -> Result<Self, Unmade> {
        let program = between.program(place);
        let behind = match (shape, upstream) {
            (Shape::StdioToStdio | Shape::StdioBehindHttp, _) => Behind::Streams(server.on_streams(place)?),
            (Shape::HttpToHttp | Shape::HttpBehindStdio, Some(upstream)) => Behind::Url(upstream.url()),
            (Shape::HttpToHttp | Shape::HttpBehindStdio, None) => {
                return Err(Unmade::because("there is no running server to put a gateway in front of"));
            }
        };
        let folder = place.folder()?;
        let (mut words, variables) = between.command(place, program, &behind, &folder)?;
        let kind = match shape {
            Shape::StdioToStdio | Shape::HttpBehindStdio => {
                words.extend(between.on_streams(&folder, &behind));
                FrontKind::Streams { words, variables }
            }
            Shape::StdioBehindHttp | Shape::HttpToHttp => {
                let port = free_port()?;
                words.extend(between.listening(port, &folder, &behind)?);
                let mut command = command(&words)?;
                command.envs(variables);
                let path = if between == Between::RustProxy { "/" } else { "/mcp" };
                FrontKind::Http(Listening::start(place, command, port, path)?)
            }
        };
        Ok(Self { between, kind })
    }

    /// Returns the server itself, without a gateway.
    pub(crate) fn bare(place: &Place, shape: Shape, server: Server) -> Result<Self, Unmade> {
        let kind = match shape {
            Shape::StdioToStdio => {
                FrontKind::Streams { words: server.on_streams(place)?, variables: Variables::new() }
            }
            Shape::StdioBehindHttp | Shape::HttpToHttp | Shape::HttpBehindStdio => {
                FrontKind::Http(server.over_http(place)?)
            }
        };
        Ok(Self { between: Between::Nothing, kind })
    }

    pub(crate) const fn between(&self) -> Between {
        self.between
    }

    /// Connects a new client, once it is answered.
    pub(crate) fn client(&mut self, place: &Place) -> Result<Client, Unmade> {
        match &mut self.kind {
            FrontKind::Http(listening) => listening.client(self.between.tool()),
            FrontKind::Streams { words, variables } => {
                let folder = place.folder()?;
                let mut command = command(words)?;
                command.envs(variables.iter().cloned()).current_dir(&folder);
                Client::of_command(&mut command, &folder.join("words"), self.between.tool())
            }
        }
    }

    /// Waits until it accepts connections, if it listens.
    pub(crate) fn until_open(&mut self) -> Result<(), Unmade> {
        match &mut self.kind {
            FrontKind::Http(listening) => listening.until_open(),
            FrontKind::Streams { .. } => Ok(()),
        }
    }

    pub(crate) const fn listening(&self) -> Option<&Listening> {
        match &self.kind {
            FrontKind::Http(listening) => Some(listening),
            FrontKind::Streams { .. } => None,
        }
    }
}

/// A process that listens.
pub(crate) struct Listening {
    process: Process,
    port: u16,
    path: &'static str,
    words: PathBuf,
}

impl Listening {
    fn start(place: &Place, mut command: Command, port: u16, path: &'static str) -> Result<Self, Unmade> {
        let folder = place.folder()?;
        let words = folder.join("words");
        let process = Process::start(command.current_dir(&folder), &words)?;
        Ok(Self { process, port, path, words })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}{}", self.port, self.path)
    }

    pub(crate) const fn process(&self) -> &Process {
        &self.process
    }

    /// Waits until its port accepts connections.
    fn until_open(&mut self) -> Result<(), Unmade> {
        self.until(|listening| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, listening.port))?;
            Ok(())
        })
    }

    fn client(&mut self, tool: &str) -> Result<Client, Unmade> {
        self.until(|listening| Client::of_address(listening.port, listening.path, tool))
    }

    /// Repeats the attempt until it succeeds, the process ends, or the time is over.
    fn until<T>(&mut self, mut attempt: impl FnMut(&Self) -> Result<T, Unmade>) -> Result<T, Unmade> {
        let begun = Instant::now();
        loop {
            let problem = match attempt(self) {
                Ok(made) => return Ok(made),
                Err(problem) => problem,
            };
            let gone = self.process.has_ended();
            if gone || begun.elapsed() > BEGIN {
                let words = fs::read_to_string(&self.words).unwrap_or_default();
                let last: Vec<_> =
                    words.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
                let ended = if gone { ", and it has ended" } else { "" };
                return Err(Unmade::because(format!("{problem}{ended}; its output: `{}`", last.join(" ← "))));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The upstream of a gateway.
enum Behind {
    Streams(Vec<OsString>),
    Url(String),
}

/// Name of our own configuration file.
const OURS: &str = "steadfast.toml";

type Variables = Vec<(&'static str, OsString)>;

impl Between {
    /// Returns the program with the arguments that every transport needs, and its environment variables.
    fn command(
        self,
        place: &Place,
        program: PathBuf,
        behind: &Behind,
        folder: &Path,
    ) -> Result<(Vec<OsString>, Variables), Unmade> {
        let mut words = vec![program.into_os_string()];
        let mut variables = Vec::new();
        match self {
            Self::Nothing => {}
            Self::Ours(ours) => {
                let class = match ours.class {
                    Class::ReadOnly => "read_only",
                    Class::Mutating => "mutating",
                };
                let store = match ours.kept {
                    Kept::Memory => "memory",
                    Kept::Sqlite => "sqlite",
                };
                // Like its peers, it does not log each call.
                let config = format!(
                    "[tools.echo]\nclass = \"{class}\"\n[store]\nkind = \"{store}\"\n[log]\nlevel = \"warn\"\n"
                );
                fs::write(folder.join(OURS), config)?;
                // It reads no settings of the user who measures, and writes to none of their folders.
                for name in ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
                    variables.push((name, folder.into()));
                }
                if ours.policy == Policy::Off {
                    variables.push(("TOOL_RELIABILITY_ENABLED", "false".into()));
                }
            }
            Self::RustProxy => {}
            Self::NpmProxy => variables.push(node_first(place)?),
            Self::Supergateway => {
                variables.push(node_first(place)?);
                words.extend(["--logLevel".into(), "none".into()]);
                match behind {
                    Behind::Streams(command) => words.extend(["--stdio".into(), in_one_line(command)]),
                    Behind::Url(url) => words.extend(["--streamableHttp".into(), url.into()]),
                }
            }
            Self::PythonProxy => words.extend(["--log-level".into(), "WARNING".into()]),
            Self::Fastmcp => {
                words.push("run".into());
                match behind {
                    Behind::Url(url) => words.push(url.into()),
                    Behind::Streams(command) => {
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
    fn on_streams(self, folder: &Path, behind: &Behind) -> Vec<OsString> {
        match self {
            Self::Ours(_) => {
                let mut words = vec!["wrap".into(), "--config".into(), folder.join(OURS).into()];
                match behind {
                    Behind::Url(url) => words.extend(["--url".into(), url.into()]),
                    Behind::Streams(_) => words.extend(command_after_dashes(behind)),
                }
                words
            }
            Self::Supergateway => vec!["--outputTransport".into(), "stdio".into()],
            Self::PythonProxy => match behind {
                Behind::Url(url) => vec!["--transport".into(), "streamablehttp".into(), url.into()],
                Behind::Streams(_) => Vec::new(),
            },
            Self::Fastmcp => vec!["--transport".into(), "stdio".into()],
            Self::Nothing | Self::RustProxy | Self::NpmProxy => Vec::new(),
        }
    }

    /// Returns the other arguments, for one that listens on this port.
    fn listening(self, port: u16, folder: &Path, behind: &Behind) -> Result<Vec<OsString>, Unmade> {
        let number: OsString = port.to_string().into();
        Ok(match self {
            Self::Nothing => Vec::new(),
            Self::Ours(_) => {
                let config = folder.join(OURS);
                let server = match behind {
                    Behind::Url(url) => format!("url = \"{url}\""),
                    Behind::Streams(command) => {
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

fn command_after_dashes(behind: &Behind) -> Vec<OsString> {
    match behind {
        Behind::Streams(command) => std::iter::once("--".into()).chain(command.iter().cloned()).collect(),
        Behind::Url(_) => Vec::new(),
    }
}

/// Returns an argument as a TOML string.
fn quoted(word: &OsString) -> String {
    json!(word.to_string_lossy()).to_string()
}

/// Returns its configuration: its own defaults, without a log line for each call.
fn rust_configuration(port: u16, behind: &Behind) -> String {
    let backend = match behind {
        Behind::Url(url) => format!("transport = \"http\"\nurl = \"{url}\""),
        Behind::Streams(command) => {
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
fn node_first(place: &Place) -> Result<(&'static str, OsString), Unmade> {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(place.peers.join("gateway/node/node_modules/.bin"))
        .chain(std::env::split_paths(&inherited));
    let joined = std::env::join_paths(paths).map_err(|error| Unmade::because(error.to_string()))?;
    Ok(("PATH", joined))
}

fn in_one_line(command: &[OsString]) -> OsString {
    let quoted: Vec<_> = command.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    quoted.join(" ").into()
}

fn command(words: &[OsString]) -> Result<Command, Unmade> {
    let (program, arguments) =
        words.split_first().ok_or_else(|| Unmade::because("there is no command to start"))?;
    let mut command = Command::new(program);
    // The session of the user who measures must not reach the measured process.
    command.args(arguments).env_remove("CLAUDE_CODE_SESSION_ID");
    Ok(command)
}
