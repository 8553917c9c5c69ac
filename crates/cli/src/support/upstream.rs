//! The server behind the gateway, from the command line or the configuration.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use steadfast::call::id::{Digest, Namespace};
use steadfast::call::redact::{self, Redacted};
use steadfast::config::{Config, Isolation, ServerSettings, ServerTarget};
use steadfast_core::restart::RestartPolicy;
use steadfast_core::server_name::{ServerIdentity, without_version};
use steadfast_gateway::{
    Backend, BackendFactory, ConfiguredServer, ServerSharing, namespace_of, namespace_of_url,
};
use steadfast_mcp::http::upstream;
use steadfast_process::{Environment, Launch, Leash, StopTimeouts, Supervisor};

use crate::support::failure::CommandFailure;

/// Default for the maximum number of processes of a server with one process for each session.
const MOST_SESSIONS: usize = 64;

/// Returns a server that this command starts. It gets the whole environment except the variables of Steadfast itself:
/// these may hold the token of the clients, or the secret of the store.
pub(crate) fn of_command(
    command: &[OsString],
    name: Option<Namespace>,
    config: &Config,
) -> Result<ConfiguredServer, CommandFailure> {
    let environment = Environment::inherited_and(without_tokens(env::vars_os(), config), &BTreeMap::new());
    let launch = Launch { environment, ..launch_of_command(command)? };
    // A server without a name gets one made from its command.
    let identity = name.is_some().then(|| identity_of_command(&launch));
    let name = name.unwrap_or_else(|| namespace_of(&launch));
    Ok(alone(name, child(launch, leash()?, RestartPolicy::default())).with_identity(identity))
}

/// Returns the identity that distinguishes a server from others with its name: its command.
fn identity_of_command(launch: &Launch) -> ServerIdentity {
    let words = || std::iter::once(&launch.program).chain(&launch.args);
    let (mut all, mut program) = (Vec::new(), Vec::new());
    for word in words() {
        let part = word.to_str().map_or(word.as_encoded_bytes(), |word| without_version(word).as_bytes());
        for (list, word) in [(&mut all, word.as_encoded_bytes()), (&mut program, part)] {
            list.extend_from_slice(&word.len().to_be_bytes());
            list.extend_from_slice(word);
        }
    }
    let runs: Vec<_> = words().map(|word| word.to_string_lossy()).collect();
    identity(&all, &program, &runs.join(" "))
}

fn identity_of_url(url: &str) -> ServerIdentity {
    identity(url.as_bytes(), url.as_bytes(), url.split(['?', '#']).next().unwrap_or_default())
}

fn identity(all: &[u8], program: &[u8], runs: &str) -> ServerIdentity {
    let place = env::current_dir().unwrap_or_default().display().to_string();
    let (digest, program) = (Digest::of(all), Digest::of(program));
    ServerIdentity { digest, program, runs: redact::excerpt(runs, LONGEST_COMMAND), place }
}

/// Maximum length of the shown part of a command.
const LONGEST_COMMAND: usize = 200;

/// Returns how to start the server of this command.
pub(crate) fn launch_of_command(command: &[OsString]) -> Result<Launch, CommandFailure> {
    let (program, args) = command.split_first().ok_or_else(|| {
        CommandFailure::Usage("no server was given; write: steadfast wrap -- COMMAND ARGUMENTS".to_owned())
    })?;
    Ok(Launch {
        program: program.clone(),
        args: args.to_vec(),
        folder: None,
        environment: Environment::inherited_and(without_own_variables(env::vars_os()), &BTreeMap::new()),
        patience: StopTimeouts::default(),
    })
}

/// The address of a server from the command line.
pub(crate) struct ServerAddress {
    pub(crate) url: String,
    /// Flag that gave it.
    pub(crate) flag: String,
    /// Flag with its value, without secrets.
    pub(crate) shown: String,
}

/// Returns a server that already runs. Headers are written as `NAME: VALUE`, or as `NAME=VARIABLE` for the value of a
/// variable.
pub(crate) fn of_url(
    address: &ServerAddress,
    headers: &[String],
    of_variables: &[String],
    name: Option<Namespace>,
) -> Result<ConfiguredServer, CommandFailure> {
    let ServerAddress { url, shown, .. } = address;
    let server = upstream::HttpUpstream::new(url, upstream::HttpUpstreamSettings::default())
        .map_err(|error| CommandFailure::Usage(format!("`{shown}`: {error}")))?;
    let mut headers = parse_headers(headers)?;
    for text in of_variables {
        let (name, value) = of_variable(text)?;
        headers.append(name, value);
    }
    let identity = name.is_some().then(|| identity_of_url(url));
    let name = name.unwrap_or_else(|| namespace_of_url(url));
    let start: BackendFactory = Arc::new(move || Backend::Remote(server.clone(), headers.clone()));
    Ok(alone(name, start).with_identity(identity))
}

/// Returns a server of the configuration. It gets only the variables that every program needs, not the rest of the
/// environment.
pub(crate) fn of_config(server: &ServerSettings) -> Result<ConfiguredServer, CommandFailure> {
    let wrong =
        |reason: String| CommandFailure::Configuration(format!("error: [servers.{}]: {reason}", server.name));
    let (sharing, identity, start): (_, _, BackendFactory) = match &server.reach {
        ServerTarget::Command { isolation, .. } => {
            let launch = launch_of_config(server).ok_or_else(|| wrong("the command is empty".to_owned()))?;
            let policy = RestartPolicy {
                crashes: server.crashes,
                window: server.crash_window,
                ..RestartPolicy::default()
            };
            let sharing = match isolation {
                Isolation::Shared => ServerSharing::Shared,
                Isolation::PerSession { most } => {
                    ServerSharing::PerSession { most: usize::try_from(most.get()).unwrap_or(usize::MAX) }
                }
            };
            (sharing, identity_of_command(&launch), child(launch, leash()?, policy))
        }
        ServerTarget::Url { url, headers } => {
            let remote = upstream::HttpUpstream::new(url.expose(), upstream::HttpUpstreamSettings::default())
                .map_err(|error| wrong(error.to_string()))?;
            let sent = header_map(headers).map_err(wrong)?;
            let start: BackendFactory = Arc::new(move || Backend::Remote(remote.clone(), sent.clone()));
            // A session costs such a server little, and it expects one for each client.
            (ServerSharing::PerSession { most: 1024 }, identity_of_url(url.expose()), start)
        }
    };
    Ok(ConfiguredServer::new(server.name.clone(), sharing, start).with_identity(Some(identity)))
}

/// Returns how to start a server of the configuration, if it is started as a process.
pub(crate) fn launch_of_config(server: &ServerSettings) -> Option<Launch> {
    let ServerTarget::Command { command, env: given, cwd, .. } = &server.reach else { return None };
    let (program, args) = command.split_first()?;
    let given = given.iter().map(|(name, value)| (name.clone(), value.expose().clone())).collect();
    Some(Launch {
        program: program.into(),
        args: args.iter().map(OsString::from).collect(),
        folder: cwd.clone(),
        environment: Environment::allowed_and(env::vars_os(), &given),
        patience: StopTimeouts::default(),
    })
}

/// Returns the headers for a server of the configuration, or the reason why they are invalid.
pub(crate) fn header_map(headers: &BTreeMap<String, Redacted<String>>) -> Result<HeaderMap, String> {
    let mut sent = HeaderMap::new();
    for (name, value) in headers {
        let (name, value) =
            header(name, value.expose()).map_err(|reason| format!("header {name}: {reason}"))?;
        sent.append(name, value);
    }
    Ok(sent)
}

/// Returns the variables that are not settings or secrets of Steadfast.
fn without_own_variables(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, _)| !name.as_encoded_bytes().starts_with(b"STEADFAST_"))
}

/// Returns the variables without the tokens of clients, which the configuration takes from variables of any name.
fn without_tokens(
    variables: impl Iterator<Item = (OsString, OsString)>,
    config: &Config,
) -> impl Iterator<Item = (OsString, OsString)> {
    let is_token = |value: &OsString| {
        let is_own_secret = |secret: &str| value.to_str() == Some(secret);
        config.tokens().values().any(|token| is_own_secret(token.secret.expose()))
            || config.webhooks().values().any(|webhook| {
                let secret = webhook.secret.as_ref().map(|secret| secret.expose().as_str());
                [Some(webhook.url.expose().as_str()), secret].into_iter().flatten().any(is_own_secret)
            })
    };
    without_own_variables(variables).filter(move |(_, value)| !is_token(value))
}

/// Returns a server with one connection of its own for each session.
fn alone(name: Namespace, start: BackendFactory) -> ConfiguredServer {
    ConfiguredServer::new(name, ServerSharing::PerSession { most: MOST_SESSIONS }, start)
}

/// Returns a server that runs as a child process.
pub(crate) fn child(launch: Launch, leash: Leash, policy: RestartPolicy) -> BackendFactory {
    let seed = u64::from(std::process::id());
    Arc::new(move || {
        let (supervisor, incarnations) = Supervisor::new(launch.clone(), leash.clone(), policy.clone(), seed);
        Backend::Child(supervisor, incarnations)
    })
}

pub(crate) fn leash() -> Result<Leash, CommandFailure> {
    Leash::of_this_program().map_err(|error| {
        CommandFailure::Environment(format!("this program cannot determine its own path: {error}"))
    })
}

pub(crate) fn parse_headers(headers: &[String]) -> Result<HeaderMap, CommandFailure> {
    let mut all = HeaderMap::new();
    for text in headers {
        // The value may be a secret, and text without a colon may be nothing but the secret, so the message does not
        // contain it.
        let Some((name, value)) = text.split_once(':') else {
            return Err(CommandFailure::Usage(
                "`--header`: write NAME: VALUE, with a colon between".to_owned(),
            ));
        };
        let wrong = |reason: String| CommandFailure::Usage(format!("`--header {}`: {reason}", name.trim()));
        let value = filled(value.trim()).map_err(|missing| wrong(format!("{missing} is not set")))?;
        let (name, value) = header(name.trim(), &value).map_err(|reason| wrong(reason.to_owned()))?;
        all.append(name, value);
    }
    Ok(all)
}

/// Parses a header whose value is taken from a variable.
fn of_variable(text: &str) -> Result<(HeaderName, HeaderValue), CommandFailure> {
    let wrong = |reason: String| CommandFailure::Usage(format!("`--header-env {text}`: {reason}"));
    let Some((name, variable)) = text.split_once('=') else {
        return Err(wrong("write NAME=VARIABLE".to_owned()));
    };
    let value = env::var(variable).map_err(|_| wrong(format!("{variable} is not set")))?;
    header(name.trim(), value.trim()).map_err(|reason| wrong(reason.to_owned()))
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "it is not a valid header name")?;
    let mut value = HeaderValue::from_str(value).map_err(|_| "it is not a valid header value")?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Returns the text with its variables replaced, or the name of a variable that is not set.
fn filled(text: &str) -> Result<String, String> {
    let mut parts = text.split("${");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((name, rest)) = part.split_once('}') else {
            filled.push_str("${");
            filled.push_str(part);
            continue;
        };
        filled.push_str(&env::var(name).map_err(|_| name.to_owned())?);
        filled.push_str(rest);
    }
    Ok(filled)
}
