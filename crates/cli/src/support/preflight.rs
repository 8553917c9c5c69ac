//! Checks for all errors that keep a gateway from starting, before anything is opened or created.
//!
//! `serve` and `wrap` start with these checks, and `check` reports them, so all report the same errors in the same
//! words.

use std::collections::BTreeMap;
use std::env;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use steadfast::config::{Config, ConfigErrors, Section, ServerSettings, ServerTarget, Sources, StartupPlan};
use steadfast::store::FileDamagePolicy;
use steadfast_tools::Toolbox;

use crate::support::access::AcceptedTokens;
use crate::support::failure::CommandFailure;
use crate::support::upstream;

/// Endpoint on which the gateway accepts clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frontend {
    /// One client, on standard input and output.
    Stdio,
    /// Many clients, at this address.
    Http(SocketAddr),
}

/// Upstreams that the gateway runs in front of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upstreams {
    /// The servers and tools of the configuration. There must be at least one.
    Needed,
    /// The servers and tools of the configuration, which may be empty, because `wrap` may bring a server of its own.
    Configured,
    /// One server from the command line.
    CommandLine,
}

/// A configuration with all its errors.
pub(crate) struct Examination {
    /// The part of the configuration that could be read.
    pub(crate) config: Config,
    /// Errors in the files, the environment and the flags.
    pub(crate) mistakes: Option<ConfigErrors>,
    /// Problems that keep a gateway from starting with a valid configuration.
    pub(crate) problems: Vec<CommandFailure>,
}

impl Examination {
    /// Returns the configuration, if a gateway can start with it.
    pub(crate) fn admit(self) -> Result<Config, CommandFailure> {
        failure(self.mistakes, self.problems).map_or(Ok(self.config), Err)
    }
}

/// Joins all errors into one failure.
pub(crate) fn failure(
    mistakes: Option<ConfigErrors>,
    problems: Vec<CommandFailure>,
) -> Option<CommandFailure> {
    CommandFailure::all(mistakes.map(CommandFailure::from).into_iter().chain(problems).collect())
}

/// Reads a configuration and checks for everything that keeps a gateway from starting. A remote store is not
/// contacted.
pub(crate) fn examine(
    sources: &Sources,
    frontend: impl Fn(&Config) -> Frontend,
    upstreams: Upstreams,
) -> Examination {
    let (config, mistakes) = Config::examine(sources);
    let frontend = frontend(&config);
    let problems = problems(&config, mistakes.as_ref(), frontend, upstreams);
    Examination { config, mistakes, problems }
}

/// Returns the problems of a configuration that parses. A check is skipped if its own settings could not be read.
fn problems(
    config: &Config,
    mistakes: Option<&ConfigErrors>,
    frontend: Frontend,
    upstreams: Upstreams,
) -> Vec<CommandFailure> {
    let is_read = |section| mistakes.is_none_or(|mistakes| !mistakes.concern(section));
    let mut problems = problems_of_values(config, frontend, upstreams);
    if is_read(Section::Store) {
        // A damaged state file is set aside, so that clients keep their tools.
        problems
            .extend(StartupPlan::store_problem(config, FileDamagePolicy::SetAside).map(CommandFailure::from));
    }
    if let Frontend::Http(address) = frontend
        && is_read(Section::Listen)
    {
        if is_read(Section::Tokens) {
            problems.extend(AcceptedTokens::to(address, config).err());
        }
        // A running gateway may use the port. Binding another port shows whether the address belongs to this machine.
        if let Err(error) = TcpListener::bind((address.ip(), 0)) {
            problems.push(cannot_listen(address, &error));
        }
    }
    // If something could not be read, that may be the server.
    if upstreams == Upstreams::Needed && mistakes.is_none() && has_no_upstream(config, frontend) {
        problems.push(CommandFailure::Configuration(NO_UPSTREAM.to_owned()));
    }
    problems
}

/// Returns true if the gateway would have no server and no tool to offer. Plain tools are called over HTTP.
pub(crate) fn has_no_upstream(config: &Config, frontend: Frontend) -> bool {
    let has_plain_tools = !config.http_tools().is_empty() || !config.command_tools().is_empty();
    config.servers().is_empty() && (frontend == Frontend::Stdio || !has_plain_tools)
}

const NO_UPSTREAM: &str = "error: the configuration has no server\n\
    write one into steadfast.toml:\n\n    \
    [servers.files]\n    command = [\"npx\", \"-y\", \"@modelcontextprotocol/server-filesystem\", \".\"]\n\n\
    or give the file of a client: steadfast serve --mcp-config .mcp.json\n\n\
    without --stdio, tools of [http_tools.NAME] and [command_tools.NAME] do as well";

/// Returns the problems of values that are written. They are found even if other parts could not be read.
fn problems_of_values(config: &Config, frontend: Frontend, upstreams: Upstreams) -> Vec<CommandFailure> {
    let mut problems: Vec<CommandFailure> =
        StartupPlan::problems(config).into_iter().map(CommandFailure::from).collect();
    if upstreams != Upstreams::CommandLine {
        problems.extend(config.servers().values().filter_map(|server| upstream::of_config(server).err()));
    }
    if frontend != Frontend::Stdio {
        let unusable = Toolbox::problems(config).into_iter();
        problems.extend(unusable.map(|unusable| CommandFailure::Configuration(format!("error: {unusable}"))));
    }
    problems
}

/// Returns the failure for an address that cannot be listened on.
pub(crate) fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> CommandFailure {
    CommandFailure::Environment(format!("cannot listen on {address}: {error}"))
}

/// Returns warnings about settings that do not keep a gateway from starting but are probably errors: programs that
/// are not found, two servers that run the same command, and a configuration without servers.
pub(crate) fn notes(config: &Config, frontend: Frontend) -> Vec<String> {
    let mut notes: Vec<String> = config.servers().values().filter_map(not_found).collect();
    if has_no_upstream(config, frontend) {
        notes.push(
            "there is no server and no tool: `steadfast serve` cannot start; `steadfast wrap` can, because it brings its own server"
                .to_owned(),
        );
    }
    let mut known: BTreeMap<String, &ServerSettings> = BTreeMap::new();
    for server in config.servers().values() {
        let runs = match &server.reach {
            ServerTarget::Command { command, cwd, env, .. } => {
                format!("{command:?} {cwd:?} {:?}", env.keys())
            }
            ServerTarget::Url { url, .. } => url.expose().clone(),
        };
        match known.get(&runs) {
            Some(other) => notes.push(format!(
                "[servers.{}] runs the same as [servers.{}]: the tools of both are offered, and each has a state of its own",
                server.name, other.name
            )),
            None => _ = known.insert(runs, server),
        }
    }
    notes
}

/// Returns a warning if the program of a server is not found.
fn not_found(server: &ServerSettings) -> Option<String> {
    let ServerTarget::Command { command, cwd, env, .. } = &server.reach else { return None };
    let program = command.first()?;
    let is_there = |path: PathBuf| path.is_file();
    let found = if program.contains('/') || Path::new(program).is_absolute() {
        is_there(cwd.as_deref().unwrap_or(Path::new("")).join(program))
    } else {
        let own = env.get("PATH").map(|path| path.expose().into());
        let search = own.or_else(|| env::var_os("PATH")).unwrap_or_default();
        env::split_paths(&search).any(|folder| is_there(folder.join(program)))
    };
    (!found).then(|| format!("[servers.{}]: no program `{program}` is found here", server.name))
}
