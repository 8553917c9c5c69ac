//! Everything that keeps a gateway from starting, found before anything is opened or made.
//!
//! `serve` and `wrap` begin with it, and `check` reports it, so that what one refuses the other refuses in the same words.

use std::collections::BTreeMap;
use std::env;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use steadfast::{Config, ConfigErrors, OnDamage, Plan, Reached, Section, Server, Sources};
use steadfast_tools::Toolbox;

use crate::access::Access;
use crate::behind;
use crate::failure::Failure;

/// Where clients are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frontend {
    /// One client, on our own streams.
    Stdio,
    /// Many, at this address.
    Http(SocketAddr),
}

/// What a gateway stands in front of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upstreams {
    /// The servers and tools of the configuration, of which there must be some.
    Needed,
    /// The same, where `wrap` may bring one that is not in the configuration.
    Configured,
    /// One server of the command line.
    CommandLine,
}

/// A configuration, and everything that is wrong with it.
pub(crate) struct Examination {
    /// As far as it could be read.
    pub(crate) config: Config,
    /// What is wrong in the files, the environment and the flags.
    pub(crate) mistakes: Option<ConfigErrors>,
    /// What keeps a gateway from starting although it reads well.
    pub(crate) problems: Vec<Failure>,
}

impl Examination {
    /// The configuration, if a gateway can start with it.
    pub(crate) fn admit(self) -> Result<Config, Failure> {
        failure(self.mistakes, self.problems).map_or(Ok(self.config), Err)
    }
}

/// Everything that is wrong, as one.
pub(crate) fn failure(mistakes: Option<ConfigErrors>, problems: Vec<Failure>) -> Option<Failure> {
    Failure::all(mistakes.map(Failure::from).into_iter().chain(problems).collect())
}

/// Reads a configuration, and looks for everything that keeps a gateway from starting. A store elsewhere is not asked.
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
) -> Vec<Failure> {
    let is_read = |section| mistakes.is_none_or(|mistakes| !mistakes.concern(section));
    let mut problems = problems_of_values(config, frontend, upstreams);
    if is_read(Section::Store) {
        // Clients are not left without their tools because a state file is damaged.
        problems.extend(Plan::store_problem(config, OnDamage::SetAside).map(Failure::from));
    }
    if let Frontend::Http(address) = frontend
        && is_read(Section::Listen)
    {
        if is_read(Section::Tokens) {
            problems.extend(Access::to(address, config).err());
        }
        // The port may be in use by a gateway that runs; whether the address is one of this machine shows without it.
        if let Err(error) = TcpListener::bind((address.ip(), 0)) {
            problems.push(cannot_listen(address, &error));
        }
    }
    // Where something could not be read, that may be the server.
    if upstreams == Upstreams::Needed && mistakes.is_none() && has_no_upstream(config, frontend) {
        problems.push(Failure::Configuration(NO_UPSTREAM.to_owned()));
    }
    problems
}

/// Returns true if the gateway would have no server and no tool to offer. Plain tools are called over HTTP.
pub(crate) fn has_no_upstream(config: &Config, frontend: Frontend) -> bool {
    let has_plain_tools = !config.http_tools().is_empty() || !config.command_tools().is_empty();
    config.servers().is_empty() && (frontend == Frontend::Stdio || !has_plain_tools)
}

const NO_UPSTREAM: &str = "error: there is no server to stand in front of\n\
    write one into steadfast.toml:\n\n    \
    [servers.files]\n    command = [\"npx\", \"-y\", \"@modelcontextprotocol/server-filesystem\", \".\"]\n\n\
    or give the file of a client: steadfast serve --mcp-config .mcp.json\n\n\
    without --stdio, tools of [http_tools.NAME] and [command_tools.NAME] do as well";

/// Those of them that lie in a value which was written. They are there whatever else could not be read.
fn problems_of_values(config: &Config, frontend: Frontend, upstreams: Upstreams) -> Vec<Failure> {
    let mut problems: Vec<Failure> = Plan::problems(config).into_iter().map(Failure::from).collect();
    if upstreams != Upstreams::CommandLine {
        problems.extend(config.servers().values().filter_map(|server| behind::of_config(server).err()));
    }
    if frontend != Frontend::Stdio {
        let unusable = Toolbox::problems(config).into_iter();
        problems.extend(unusable.map(|unusable| Failure::Configuration(format!("error: {unusable}"))));
    }
    problems
}

/// Nothing can listen there.
pub(crate) fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    Failure::World(format!("cannot listen on {address}: {error}"))
}

/// Returns warnings about settings that do not keep a gateway from starting but are probably mistakes: programs that are not found,
/// two servers that run the same command, and no server at all.
pub(crate) fn notes(config: &Config, frontend: Frontend) -> Vec<String> {
    let mut notes: Vec<String> = config.servers().values().filter_map(not_found).collect();
    if has_no_upstream(config, frontend) {
        notes.push(
            "there is no server and no tool: `steadfast serve` does not start with this; `steadfast wrap` does, it brings its own"
                .to_owned(),
        );
    }
    let mut known: BTreeMap<String, &Server> = BTreeMap::new();
    for server in config.servers().values() {
        let runs = match &server.reach {
            Reached::Command { command, cwd, env, .. } => format!("{command:?} {cwd:?} {:?}", env.keys()),
            Reached::Url { url, .. } => url.expose().clone(),
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

/// Says that the program of a server is not there.
fn not_found(server: &Server) -> Option<String> {
    let Reached::Command { command, cwd, env, .. } = &server.reach else { return None };
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
