//! `steadfast bench`: measures the overhead of the gateway in front of a server.
//!
//! The server is started twice, once alone and once behind `steadfast wrap`. Both get requests in turn, so that other
//! load on the machine affects both. The gateway stores its state in a file, as in production, but in a temporary
//! folder: nothing of the benchmark is in your history.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use http::HeaderMap;
use serde_json::{Value, json};
use steadfast::config::{ServerTarget, nearest};
use steadfast_process::{Environment, Launch, StopTimeouts};

use crate::support::admin_token::private_folder;
use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, ProgressLine, TextStyle, TextTable};
use crate::support::peer::{McpPeer, PeerTarget};
use crate::support::setup::runtime;
use crate::support::shutdown;
use crate::support::sources::ConfigFileOptions;
use crate::support::upstream;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: ConfigFileOptions,
    /// A server of the configuration, by its name.
    #[arg(value_name = "SERVER", conflicts_with_all = ["url", "command"], required_unless_present_any = ["url", "command"])]
    server: Option<String>,
    /// URL of the server, if it speaks streamable HTTP.
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<String>,
    /// A header for every message to the URL, as `NAME: VALUE`; `${VARIABLE}` is taken from the environment.
    #[arg(long = "header", value_name = "HEADER", requires = "url")]
    headers: Vec<String>,
    /// Also call this tool, twice per round. Its effects happen each time, so use only tools that read.
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// The arguments of the calls.
    #[arg(long, value_name = "JSON", requires = "tool", default_value = "{}")]
    arguments: String,
    /// Number of requests of each kind.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The command of the server, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Exit code after an interrupt.
const INTERRUPTED: u8 = 130;

/// Timeout of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// One kind of request, with the time of each response.
struct RequestTimings {
    name: &'static str,
    params: Value,
    bare: Vec<Duration>,
    guarded: Vec<Duration>,
}

/// Runs `steadfast bench`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let room = BenchStateFolder::make()?;
    let (bare, guarded) = both(options, &room)?;
    let mut timings = vec![new_timings("ping", json!({})), new_timings("tools/list", json!({}))];
    if let Some(tool) = &options.tool {
        let arguments: Value = serde_json::from_str(&options.arguments)
            .map_err(|error| CommandFailure::Usage(format!("--arguments is not valid JSON: {error}")))?;
        timings.push(new_timings("tools/call", json!({ "name": tool, "arguments": arguments })));
    }
    let rounds = usize::try_from(options.rounds).unwrap_or(usize::MAX);
    let name = runtime()?.block_on(async {
        let stop = shutdown::shutdown_token();
        tokio::select! {
            measured = measure(options, &bare, &guarded, rounds, &mut timings) => measured,
            // Nothing is left behind in that case either.
            () = stop.cancelled() => Err(CommandFailure::AlreadyReported(INTERRUPTED)),
        }
    })?;
    if options.json {
        output::print_json(&to_json(&name, rounds, &timings));
    } else {
        output::print_data(&drawn(&name, rounds, &timings));
    }
    Ok(())
}

fn new_timings(name: &'static str, params: Value) -> RequestTimings {
    RequestTimings { name, params, bare: Vec::new(), guarded: Vec::new() }
}

async fn measure(
    options: &Options,
    bare: &PeerTarget,
    guarded: &PeerTarget,
    rounds: usize,
    timings: &mut [RequestTimings],
) -> Result<String, CommandFailure> {
    let at = place(bare);
    let wrong = |setup: &'static str| {
        let at = at.clone();
        move |reason: String| CommandFailure::Environment(format!("the server{at} {setup}: {reason}"))
    };
    let mut bare = output::wait_with_spinner("starting the server", McpPeer::connect(bare, RESPONSE_TIMEOUT))
        .await
        .map_err(wrong("alone"))?;
    let met = output::wait_with_spinner(
        "starting it behind the gateway",
        McpPeer::connect(guarded, RESPONSE_TIMEOUT),
    )
    .await;
    let mut guarded = match met {
        Ok(guarded) => guarded,
        Err(reason) => {
            bare.close().await;
            return Err(wrong("behind the gateway")(reason));
        }
    };
    let name = if bare.name.is_empty() { "the server".to_owned() } else { bare.name.clone() };
    let done = rounds_of(options, &mut bare, &mut guarded, rounds, timings).await;
    bare.close().await;
    guarded.close().await;
    done.map(|()| name)
}

/// Describes the location of a server with a URL, without secrets.
fn place(reached: &PeerTarget) -> String {
    match reached {
        PeerTarget::Started(..) => String::new(),
        PeerTarget::Url(url, _) => {
            let uri = url.parse::<http::Uri>().ok();
            let port = |uri: &http::Uri| uri.port().map(|port| format!(":{port}")).unwrap_or_default();
            uri.and_then(|uri| Some(format!(" at {}{}", uri.host()?, port(&uri)))).unwrap_or_default()
        }
    }
}

async fn rounds_of(
    options: &Options,
    bare: &mut McpPeer,
    guarded: &mut McpPeer,
    rounds: usize,
    timings: &mut [RequestTimings],
) -> Result<(), CommandFailure> {
    if let Some(tool) = &options.tool {
        let listed = bare
            .request("tools/list", json!({}), RESPONSE_TIMEOUT)
            .await
            .map_err(CommandFailure::Environment)?;
        let tools = listed.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let names: Vec<_> = tools.iter().filter_map(|tool| tool.get("name")?.as_str()).collect();
        if !names.contains(&tool.as_str()) {
            let suggestion = nearest(tool, names.iter().copied())
                .map(|suggestion| format!(": did you mean `{suggestion}`?"));
            return Err(CommandFailure::Usage(format!(
                "the server has no tool `{tool}`{}",
                suggestion.unwrap_or_default()
            )));
        }
    }
    let warm_up = (rounds / 10).clamp(1, 50);
    let mut progress = ProgressLine::of(rounds + warm_up);
    for round in 0..rounds + warm_up {
        progress.at(round, "rounds");
        for one in timings.iter_mut() {
            let (mut alone, mut behind) = (Duration::ZERO, Duration::ZERO);
            // The first request finds the machine as the other server left it, so they alternate.
            for turn in [round % 2, (round + 1) % 2] {
                let (peer, taken) =
                    if turn == 0 { (&mut *bare, &mut alone) } else { (&mut *guarded, &mut behind) };
                let began = Instant::now();
                peer.request(one.name, one.params.clone(), RESPONSE_TIMEOUT)
                    .await
                    .map_err(CommandFailure::Environment)?;
                *taken = began.elapsed();
            }
            if round >= warm_up {
                one.bare.push(alone);
                one.guarded.push(behind);
            }
        }
    }
    for one in timings {
        one.bare.sort();
        one.guarded.sort();
    }
    Ok(())
}

/// Returns the server alone, and behind the gateway.
fn both(options: &Options, room: &BenchStateFolder) -> Result<(PeerTarget, PeerTarget), CommandFailure> {
    let own = env::current_exe().map_err(|error| {
        CommandFailure::Environment(format!("this program cannot determine its own path: {error}"))
    })?;
    let mut wrap: Vec<OsString> = vec!["wrap".into()];
    for file in options.chosen.files() {
        wrap.extend(["--config".into(), file.into()]);
    }
    let (bare, launch) = match (&options.server, &options.url) {
        (Some(name), _) => {
            let config = options.chosen.load()?;
            let server =
                config.servers().values().find(|server| server.name.as_str() == name).ok_or_else(|| {
                    let names: Vec<_> = config.servers().keys().map(ToString::to_string).collect();
                    let suggestion = nearest(name, names.iter().map(String::as_str))
                        .map(|suggestion| format!(": did you mean `{suggestion}`?"));
                    CommandFailure::Usage(format!(
                        "the configuration has no server `{name}`{}",
                        suggestion.unwrap_or_default()
                    ))
                })?;
            wrap.extend(["--name".into(), name.into()]);
            match &server.reach {
                ServerTarget::Url { url, headers } => {
                    let sent = upstream::header_map(headers).map_err(CommandFailure::Configuration)?;
                    let environment = url_behind(&mut wrap, url.expose(), &sent);
                    (PeerTarget::Url(url.expose().clone(), sent), plain(environment))
                }
                ServerTarget::Command { .. } => {
                    let launch = upstream::launch_of_config(server).ok_or_else(|| {
                        CommandFailure::Configuration(format!(
                            "error: [servers.{name}]: the command is empty"
                        ))
                    })?;
                    wrap.push("--".into());
                    wrap.push(launch.program.clone());
                    wrap.extend(launch.args.iter().cloned());
                    (PeerTarget::Started(Box::new(launch.clone()), upstream::leash()?), launch)
                }
            }
        }
        (None, Some(url)) => {
            let sent = upstream::parse_headers(&options.headers)?;
            let environment = url_behind(&mut wrap, url, &sent);
            (PeerTarget::Url(url.clone(), sent), plain(environment))
        }
        (None, None) => {
            let launch = upstream::launch_of_command(&options.command)?;
            wrap.push("--".into());
            wrap.extend(options.command.iter().cloned());
            (PeerTarget::Started(Box::new(launch.clone()), upstream::leash()?), launch)
        }
    };
    let environment = launch
        .environment
        .with("STEADFAST_STORE_KIND", "sqlite")
        .with("STEADFAST_STORE_PATH", &room.0.join("state.db").to_string_lossy());
    let guarded = Launch {
        program: own.into(),
        args: wrap,
        folder: launch.folder,
        environment,
        patience: StopTimeouts::default(),
    };
    Ok((bare, PeerTarget::Started(Box::new(guarded), upstream::leash()?)))
}

/// Adds the arguments of `wrap` for a server with a URL. The values of headers may be secret, so they are passed in
/// the environment.
fn url_behind(wrap: &mut Vec<OsString>, url: &str, headers: &HeaderMap) -> Vec<(String, String)> {
    wrap.extend(["--url".into(), url.into()]);
    let mut variables = Vec::new();
    for (number, (name, value)) in headers.iter().enumerate() {
        let variable = format!("BENCH_HEADER_{number}");
        wrap.extend(["--header".into(), format!("{name}: ${{{variable}}}").into()]);
        variables.push((variable, value.to_str().unwrap_or_default().to_owned()));
    }
    variables
}

fn plain(variables: Vec<(String, String)>) -> Launch {
    let given = variables.into_iter().collect();
    Launch {
        program: OsString::new(),
        args: Vec::new(),
        folder: None,
        environment: Environment::inherited_and(env::vars_os(), &given),
        patience: StopTimeouts::default(),
    }
}

/// A folder for the state, removed on drop.
struct BenchStateFolder(PathBuf);

impl BenchStateFolder {
    fn make() -> Result<Self, CommandFailure> {
        // The temporary folder is shared with other users, so the name must be new and impossible to guess.
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            CommandFailure::Environment(format!("no random numbers are available: {error}"))
        })?;
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = env::temp_dir().join(format!("steadfast-bench-{name}"));
        let made = private_folder().recursive(false).create(&folder);
        made.map_err(|error| {
            CommandFailure::Environment(format!("{} cannot be created: {error}", folder.display()))
        })?;
        Ok(Self(folder))
    }
}

impl Drop for BenchStateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

const PERCENTILES: [(&str, usize); 3] = [("p50", 50), ("p95", 95), ("p99", 99)];

/// Returns the time within which this percentage of the responses arrived.
fn percentile(sorted: &[Duration], of_hundred: usize) -> Duration {
    let place = (sorted.len() * of_hundred).div_ceil(100).saturating_sub(1);
    sorted.get(place).or(sorted.last()).copied().unwrap_or_default()
}

fn drawn(name: &str, rounds: usize, timings: &[RequestTimings]) -> String {
    let paint = ColourPainter::of_stdout();
    let mut table = TextTable::new(&["REQUEST", "", "ALONE", "GATEWAY", "DIFFERENCE"]);
    for one in timings {
        for (row, (percent, of_hundred)) in PERCENTILES.into_iter().enumerate() {
            let (bare, guarded) = (percentile(&one.bare, of_hundred), percentile(&one.guarded, of_hundred));
            table.row([
                (TextStyle::Bold, if row == 0 { one.name.to_owned() } else { String::new() }),
                (TextStyle::Dim, percent.to_owned()),
                (TextStyle::Plain, format!("{:>9}", shown(bare))),
                (TextStyle::Plain, format!("{:>9}", shown(guarded))),
                (TextStyle::Warn, difference(bare, guarded)),
            ]);
        }
    }
    format!("{}: {rounds} rounds, alternating between both\n\n{}", output::clean(name), table.draw(paint, 0))
}

fn shown(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..10_000 => format!("{micros} µs"),
        micros => format!(
            "{:.1} ms",
            Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).as_secs_f64() * 1000.0
        ),
    }
}

fn difference(bare: Duration, guarded: Duration) -> String {
    match guarded.checked_sub(bare) {
        Some(more) => format!("{:>9}", format!("+{}", shown(more))),
        None => format!("{:>9}", format!("-{}", shown(bare.saturating_sub(guarded)))),
    }
}

fn to_json(name: &str, rounds: usize, timings: &[RequestTimings]) -> Value {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let of = |times: &[Duration]| -> Value {
        PERCENTILES
            .iter()
            .map(|(name, of)| ((*name).to_owned(), micros(percentile(times, *of)).into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let timings: Vec<_> = timings
        .iter()
        .map(|one| json!({ "asked": one.name, "bareMicros": of(&one.bare), "guardedMicros": of(&one.guarded) }))
        .collect();
    json!({ "server": name, "rounds": rounds, "measured": timings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_folder_is_new_and_removed_afterwards() {
        let guessed = env::temp_dir().join(format!("steadfast-bench-{}", std::process::id()));
        fs::create_dir_all(&guessed).unwrap();
        let (one, two) = (BenchStateFolder::make().unwrap(), BenchStateFolder::make().unwrap());
        let places = [one.0.clone(), two.0.clone()];
        assert!(places[0] != places[1] && !places.contains(&guessed), "{places:?}");
        drop((one, two));
        assert!(!places.iter().any(|place| place.exists()) && guessed.exists());
        fs::remove_dir_all(&guessed).unwrap();
    }

    #[test]
    fn a_percentile_is_an_answer_that_was_measured() {
        let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        let of = |percent| percentile(&times, percent).as_millis();
        assert_eq!((of(50), of(95), of(99)), (100, 190, 198));
        assert_eq!(percentile(&times[..1], 99).as_millis(), 1);
        assert_eq!(percentile(&[], 50), Duration::ZERO);
        assert_eq!(difference(Duration::from_micros(30), Duration::from_micros(10)).trim(), "-20 µs");
    }
}
