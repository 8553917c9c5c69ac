//! `steadfast status`: the health of the gateways, and what needs an operator.
//!
//! Everything shown here comes from `GET /v1/status` and related endpoints, so the dashboard shows the same. Gateways
//! that share a store have the same shared state. The state of a single process (calls in flight, sessions that are
//! stopped) is requested from each. With one gateway, the JSON is its response. With several, it has all responses and
//! the worst verdict.

use std::io::{self, Write as _};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, TextStyle, TextTable};
use crate::support::setup::now;
use crate::support::setup::runtime;
use crate::support::shutdown;
use crate::support::target::{
    self, ApiRequest, ConnectionOptions, ConnectionPurpose, OperatorConnection, RunningGateway,
};
use crate::support::views::{self, list, number, text};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Refresh every second, until Ctrl-C. If the output is not a terminal, print again whenever something changed.
    #[arg(long)]
    watch: bool,
}

/// Status of all gateways at one moment.
struct StatusReport {
    /// Status of the connected gateway, or of the store.
    status: Value,
    /// Name of the gateway. `None` for the store.
    name: Option<String>,
    /// Names and status of the other gateways.
    others: Vec<(String, Value)>,
    approvals: Value,
    breakers: Value,
    trust: Value,
    guard: Value,
    /// Descriptions of all gateways and stores that were asked.
    sources: Vec<String>,
    store: String,
    is_unused: bool,
}

/// Exit codes.
const ATTENTION: u8 = 3;
const FAILING: u8 = 4;

/// Runs `steadfast status`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    runtime()?.block_on(async {
        if options.watch {
            return watch(options).await;
        }
        let reach = OperatorConnection::find(&options.connection, ConnectionPurpose::ExistingState).await?;
        let report = read_status(&reach).await;
        reach.close().await;
        let report = report?;
        if options.connection.json {
            output::print_json(&report.json());
        } else {
            output::print_data(&report.draw(ColourPainter::of_stdout()));
        }
        match report.verdict() {
            "fine" => Ok(()),
            "attention" => Err(CommandFailure::AlreadyReported(ATTENTION)),
            _ => Err(CommandFailure::AlreadyReported(FAILING)),
        }
    })
}

/// Refresh interval.
const INTERVAL: Duration = Duration::from_secs(1);

async fn watch(options: &Options) -> Result<(), CommandFailure> {
    let stop = shutdown::shutdown_token();
    let is_lively = output::is_interactive(&io::stdout()) && !options.connection.json;
    let screen = is_lively.then(AlternateScreen::open);
    let mut last = String::new();
    let mut reach: Option<OperatorConnection> = None;
    let outcome = loop {
        // Gateways start and stop during the watch.
        let found = match reach.take() {
            Some(connection) if connection.is_store() && !target::is_gateway_running(&options.connection) => {
                Ok(connection)
            }
            old => {
                if let Some(old) = old {
                    old.close().await;
                }
                OperatorConnection::find(&options.connection, ConnectionPurpose::ExistingState).await
            }
        };
        let report = match found {
            Ok(found) => {
                let report = read_status(&found).await;
                reach = Some(found);
                report
            }
            Err(failure) => Err(failure),
        };
        match (report, &screen) {
            (Ok(report), Some(screen)) => screen.show(&report.draw(ColourPainter::of_stdout())),
            (Ok(mut report), None) => {
                let (drawn, json) = (report.draw(ColourPainter::of_stdout()), report.json());
                // A new time alone is not a change.
                for status in std::iter::once(&mut report.status)
                    .chain(report.others.iter_mut().map(|(_, status)| status))
                {
                    if let Some(at) = status.pointer_mut("/atMs") {
                        *at = Value::Null;
                    }
                }
                let now = report.json().to_string();
                let printed = now == last
                    || if options.connection.json {
                        output::print_json_line(&json)
                    } else {
                        output::print_line(&format!("{drawn}\n"))
                    };
                last = now;
                if !printed {
                    break Ok(());
                }
            }
            // It may come back.
            (Err(CommandFailure::Environment(reason)), Some(screen)) => screen.show(&reason),
            (Err(CommandFailure::Environment(reason)), None) => {
                if reason != last {
                    output::print_message(&format!("error: {reason}"));
                }
                last = reason;
            }
            (Err(failure), _) => break Err(failure),
        }
        tokio::select! {
            () = stop.cancelled() => break Ok(()),
            () = tokio::time::sleep(INTERVAL) => {}
        }
    };
    if let Some(reach) = reach {
        reach.close().await;
    }
    outcome
}

/// The alternate screen of the terminal. The old contents are restored on drop.
struct AlternateScreen;

impl AlternateScreen {
    fn open() -> Self {
        let _ = write!(io::stdout(), "\x1b[?1049h\x1b[?25l");
        Self
    }

    fn show(&self, text: &str) {
        let lines = output::size().map_or(usize::MAX, |(_, lines)| lines.saturating_sub(1));
        let mut frame = "\x1b[H".to_owned();
        for line in text.lines().take(lines) {
            frame.push_str(line);
            frame.push_str("\x1b[K\r\n");
        }
        frame.push_str("\x1b[J");
        let mut out = io::stdout();
        let _ = out.write_all(frame.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        let mut out = io::stdout();
        let _ = write!(out, "\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
}

async fn read_status(reach: &OperatorConnection) -> Result<StatusReport, CommandFailure> {
    let mut status = reach.send(ApiRequest::get("/v1/status")).await?;
    if let (true, Some(kind)) = (reach.is_unused, status.pointer_mut("/store/kind")) {
        *kind = "sqlite".into();
    }
    let mut others = Vec::new();
    for other in &reach.others {
        let status = other.ask(ApiRequest::get("/v1/status")).await;
        others.push((
            other.name.clone(),
            status.unwrap_or_else(|refused| unreported_status(refused.message())),
        ));
    }
    others.extend(
        reach.silent.iter().map(|silent| (silent.name.clone(), unreported_status("it does not answer"))),
    );
    let tenants = target::tenants_of(&status);
    let of = async |counts: &[&str], path: &str| -> Result<Value, CommandFailure> {
        let any = counts.iter().any(|count| number(&status, &format!("/counts/{count}")) > 0);
        if any {
            Ok(reach.fetch_for_tenants(ApiRequest::get(path), &tenants).await?)
        } else {
            Ok(Value::Null)
        }
    };
    Ok(StatusReport {
        approvals: of(&["approvals"], "/v1/approvals").await?,
        breakers: of(&["openBreakers", "forcedBreakers"], "/v1/breakers").await?,
        trust: of(&["escalated", "recovering", "blocked"], "/v1/trust").await?,
        guard: of(&["stoppedSessions"], "/v1/guard").await?,
        sources: reach
            .gateway()
            .into_iter()
            .chain(&reach.others)
            .map(|gateway| introduced(gateway))
            .collect(),
        name: reach.gateway().map(|gateway| gateway.name.clone()),
        store: reach.store.clone(),
        is_unused: reach.is_unused,
        others,
        status,
    })
}

/// Returns the status of a running gateway that does not report one.
fn unreported_status(reason: &str) -> Value {
    json!({
        "verdict": "trouble",
        "findings": [{
            "level": "trouble",
            "what": format!("runs and does not report its status: {}", output::clean(reason)),
            "todo": "check its log, and restart it",
        }],
    })
}

fn introduced(gateway: &RunningGateway) -> String {
    match &gateway.announced {
        None => gateway.name.clone(),
        Some(announced) => {
            let up = Duration::from_millis(now().as_millis().saturating_sub(announced.started_at_ms));
            let other = if announced.version == env!("CARGO_PKG_VERSION") {
                String::new()
            } else {
                format!(", version {}", output::clean(&announced.version))
            };
            format!("{} (pid {}, up {}{other})", gateway.name, announced.process.pid, output::span(up))
        }
    }
}

impl StatusReport {
    /// Returns the worst verdict.
    fn verdict(&self) -> &str {
        let all = std::iter::once(&self.status).chain(self.others.iter().map(|(_, status)| status));
        let verdicts = all.filter_map(|status| status.get("verdict")?.as_str());
        verdicts
            .max_by_key(|verdict| {
                ["fine", "attention"].iter().position(|known| known == verdict).unwrap_or(9)
            })
            .unwrap_or("trouble")
    }

    /// One status is printed as it is, like on the dashboard. Several are printed as a list.
    fn json(&self) -> Value {
        if self.others.is_empty() {
            return self.status.clone();
        }
        let first = json!({ "gateway": self.name, "status": self.status });
        let others = self.others.iter().map(|(name, status)| json!({ "gateway": name, "status": status }));
        let gateways: Vec<_> = std::iter::once(first).chain(others).collect();
        json!({ "verdict": self.verdict(), "gateways": gateways })
    }

    fn draw(&self, paint: ColourPainter) -> String {
        let mut lines = vec![self.headline(paint), String::new()];
        self.findings(paint, &mut lines);
        let at = number(&self.status, "/atMs");
        for (title, table) in [
            ("pending approvals", views::approvals(&self.approvals, at)),
            ("open circuit breakers", views::breakers(&self.breakers, at, views::is_open)),
            ("not trusted", views::trust(&self.trust, at)),
            ("stopped", views::stopped(&self.guard, at)),
        ] {
            section(paint, title, &table, &mut lines);
        }
        section(paint, "calls to hosts and servers", &views::domains(&self.status, at), &mut lines);
        self.context_lines(paint, &mut lines);
        lines.join("\n")
    }

    fn headline(&self, paint: ColourPainter) -> String {
        let (style, sign, summary) = match self.verdict() {
            "fine" if self.is_unused => (TextStyle::Good, "●", "nothing has run here yet"),
            "fine" => (TextStyle::Good, "●", "all is well"),
            "attention" => (TextStyle::Warn, "▲", "needs attention"),
            _ => (TextStyle::Bad, "✖", "calls fail"),
        };
        let version = paint.paint(TextStyle::Dim, &format!("steadfast {}", text(&self.status, "/version")));
        format!("{} {}  {version}", paint.paint(style, sign), paint.paint(style, summary))
    }

    fn findings(&self, paint: ColourPainter, lines: &mut Vec<String>) {
        let own = list(&self.status, "/findings");
        let mut all: Vec<(Option<&str>, &Value)> = own.iter().map(|finding| (None, finding)).collect();
        for (name, status) in &self.others {
            // Shared findings were already shown.
            let new = list(status, "/findings").iter().filter(|finding| !own.contains(finding));
            all.extend(new.map(|finding| (Some(name.as_str()), finding)));
        }
        for (name, finding) in &all {
            let style = if text(finding, "/level") == "trouble" { TextStyle::Bad } else { TextStyle::Warn };
            let at = name.map(|name| format!("at {name}: ")).unwrap_or_default();
            let todo = paint.paint(TextStyle::Dim, &format!("→ {}", text(finding, "/todo")));
            lines.push(format!(
                "  {}  {todo}",
                paint.paint(style, &format!("{at}{}", text(finding, "/what")))
            ));
        }
        if !all.is_empty() {
            lines.push(String::new());
        }
    }

    fn context_lines(&self, paint: ColourPainter, lines: &mut Vec<String>) {
        let mut fact = |name: &str, value: &str| {
            lines.push(format!("  {}  {value}", paint.paint(TextStyle::Dim, &format!("{name:8}"))));
        };
        match &*self.sources {
            [] => fact("gateway", "none is running here; this is the state in the store"),
            sources => sources.iter().for_each(|gateway| fact("gateway", gateway)),
        }
        let missing = if self.is_unused { " (not there yet)" } else { "" };
        fact("store", &format!("{}{missing}", output::clean(&self.store)));
        fact("mode", &mode(&self.status));
        if !self.sources.is_empty() {
            let all = std::iter::once(&self.status).chain(self.others.iter().map(|(_, status)| status));
            let calls: u64 = all.map(|status| number(status, "/counts/openCalls")).sum();
            fact("calls", &format!("{calls} in flight"));
        }
    }
}

fn section(paint: ColourPainter, title: &str, table: &TextTable, lines: &mut Vec<String>) {
    if !table.is_empty() {
        lines.push(format!("  {}", paint.paint(TextStyle::Bold, title)));
        lines.push(table.draw(paint, 4));
        lines.push(String::new());
    }
}

/// Describes the mode that the switches allow.
fn mode(status: &Value) -> String {
    let of = |name: &str| text(status, &format!("/switches/{name}"));
    let all = match &*of("all") {
        "off" => return "off: everything is passed on unchanged".to_owned(),
        "shadow" => "shadow: decides and changes nothing",
        _ => "as configured",
    };
    let word = |mode: &str| if mode == "off" { "off" } else { "shadow" };
    let lowered: Vec<_> = ["dedupe", "retry", "breaker", "guard", "trust"]
        .into_iter()
        .filter(|name| of(name) != "enforce")
        .map(|name| format!("{name} {}", word(&of(name))))
        .collect();
    if lowered.is_empty() { all.to_owned() } else { format!("{all}, but {}", lowered.join(", ")) }
}
