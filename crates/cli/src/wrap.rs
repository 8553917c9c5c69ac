//! `steadfast wrap`: one server behind us, as if it stood there itself.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use steadfast::id::Namespace;
use steadfast::{Logging, OnDamage, Steadfast};
use steadfast_core::restart::RestartPolicy;
use steadfast_gateway::{
    Backend, Connection, Listener, Start, Wrapped, namespace_of, namespace_of_url, wrap,
};
use steadfast_mcp::http::back;
use steadfast_mcp::http::front::{Endpoint, Principal, ServeLimits, Settings, Tokens, not_found, serve};
use steadfast_process::{Environment, Launch, Leash, Patience, Supervisor};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::output;
use crate::sources::Chosen;
use crate::stop;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: Chosen,
    /// Where calls are remembered: memory, sqlite or redis. Stronger than the configuration.
    #[arg(long, value_name = "KIND")]
    store: Option<String>,
    /// What the server is called in the configuration and in what is told of it. Without it: its program and a digest.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Takes clients over streamable HTTP at this address (path /mcp) instead of on our own streams.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where the server is, if it speaks streamable HTTP, instead of a command.
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<String>,
    /// A header that every message to the URL carries, as `NAME: VALUE`. May be given more than once; `${VARIABLE}` is
    /// taken from the environment, so that a secret need not stand here.
    #[arg(long = "header", value_name = "HEADER", requires = "url")]
    headers: Vec<String>,
    /// The command of the server, and its arguments.
    #[arg(last = true, required_unless_present = "url", value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// `steadfast wrap`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::World(format!("no threads can be started: {error}")))?;
    let done = runtime.block_on(carry(options));
    // Reading our own input cannot be taken back, and would be waited for.
    runtime.shutdown_background();
    done
}

async fn carry(options: &Options) -> Result<(), Failure> {
    let behind = behind(options)?;
    let name = match &options.name {
        Some(name) => Namespace::new(name)
            .map_err(|error| Failure::Usage(format!("a server cannot be called `{name}`: {error}")))?,
        None => behind.name(),
    };
    let mut opening = Steadfast::opening(options.chosen.sources())
        .logging(Logging::Stderr)
        .owns_process()
        .on_damage(OnDamage::SetAside);
    if let Some(kind) = &options.store {
        opening = opening.set("store.kind", kind);
    }
    let steadfast = opening.open().await?;
    let stop = stop::asked();
    match options.listen {
        Some(address) => listen(&steadfast, address, name, behind.start(), stop).await?,
        None => {
            let wrapped = Wrapped {
                input: tokio::io::stdin(),
                output: tokio::io::stdout(),
                connection: Connection::of_parent(),
                name,
                backend: behind.start()(),
            };
            wrap(steadfast.engine(), wrapped, stop).await;
        }
    }
    steadfast.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Takes clients over HTTP at this address.
async fn listen(
    steadfast: &Steadfast,
    address: SocketAddr,
    name: Namespace,
    start: Start,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let mut tokens = Tokens::default();
    let token = env::var("STEADFAST_TOKEN").unwrap_or_default();
    tokens.add(&token, Principal::new("operator"));
    if !address.ip().is_loopback() && token.is_empty() {
        return Err(Failure::Usage(format!(
            "{address} can be reached from other machines: set STEADFAST_TOKEN to a secret that clients must send, or listen on 127.0.0.1"
        )));
    }
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::World(format!("cannot listen on {address}: {error}")))?;
    let bound = listener.local_addr().unwrap_or(address);
    let local = token.is_empty().then(|| Connection::of_parent().actor);
    let sessions =
        Listener::new((steadfast.engine().clone(), steadfast.store().clone()), name, tokens, local, start);
    let tidying = tokio::spawn(sessions.clone().tidy());
    output::remark(&format!("listening on http://{bound}/mcp"));
    let endpoint = Arc::new(Endpoint::new(sessions.clone(), Settings::default()));
    let service = move |request: Request<_>, peer| {
        let endpoint = endpoint.clone();
        async move {
            match request.uri().path() {
                "/mcp" => endpoint.respond(request, peer).await,
                _ => not_found(&peer),
            }
        }
    };
    let ending = stop.child_token();
    let serving = tokio::spawn(serve(listener, ServeLimits::default(), service, ending.clone()));
    stop.cancelled().await;
    tidying.abort();
    sessions.close(DRAIN).await;
    let _ = serving.await;
    Ok(())
}

/// How long calls that are under way may take when we are asked to end.
const DRAIN: Duration = Duration::from_secs(10);

/// The server that is wanted.
enum Behind {
    Command(Launch, Leash),
    Url(back::Server, HeaderMap, String),
}

impl Behind {
    /// What it is called if nobody gave it a name.
    fn name(&self) -> Namespace {
        match self {
            Self::Command(launch, _) => namespace_of(launch),
            Self::Url(_, _, url) => namespace_of_url(url),
        }
    }

    fn start(&self) -> Start {
        match self {
            Self::Command(launch, leash) => {
                let (launch, leash) = (launch.clone(), leash.clone());
                let seed = u64::from(std::process::id());
                Box::new(move || {
                    let (supervisor, incarnations) =
                        Supervisor::new(launch.clone(), leash.clone(), RestartPolicy::default(), seed);
                    Backend::Child(supervisor, incarnations)
                })
            }
            Self::Url(server, headers, _) => {
                let (server, headers) = (server.clone(), headers.clone());
                Box::new(move || Backend::Remote(server.clone(), headers.clone()))
            }
        }
    }
}

fn behind(options: &Options) -> Result<Behind, Failure> {
    if let Some(url) = &options.url {
        let server = back::Server::new(url, back::Settings::default())
            .map_err(|error| Failure::Usage(format!("`--url {url}`: {error}")))?;
        return Ok(Behind::Url(server, headers(&options.headers)?, url.clone()));
    }
    let (program, args) = options
        .command
        .split_first()
        .ok_or_else(|| Failure::Usage("say which server: steadfast wrap -- COMMAND ARGUMENTS".to_owned()))?;
    let launch = Launch {
        program: program.clone(),
        args: args.to_vec(),
        folder: None,
        environment: Environment::inherited_and(env::vars_os(), &BTreeMap::new()),
        patience: Patience::default(),
    };
    let leash = Leash::of_this_program()
        .map_err(|error| Failure::World(format!("this program cannot find itself: {error}")))?;
    Ok(Behind::Command(launch, leash))
}

fn headers(given: &[String]) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for header in given {
        // The value may be a secret, so what is wrong is said without it.
        let name = header.split(':').next().unwrap_or_default();
        let wrong = |why: &str| Failure::Usage(format!("`--header {name}`: {why}"));
        let (name, value) = header.split_once(':').ok_or_else(|| wrong("write NAME: VALUE"))?;
        let name =
            HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong("no header has this name"))?;
        let value = filled(value.trim()).map_err(|missing| wrong(&format!("{missing} is not set")))?;
        let mut value = HeaderValue::from_str(&value).map_err(|_| wrong("no header has such a value"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// The text with the variables that it names; or the one that is not there.
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
