//! `steadfast tail`: follows events as they happen.
//!
//! Two sources make one stream. Listening gateways send all their events at once. The history has the calls of all
//! processes that share the store, a moment later. It is searched for the calls that no gateway sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::Timestamp;
use tokio::sync::mpsc;

use crate::support::failure::CommandFailure;
use crate::support::output::{self, ColourPainter, TextStyle};
use crate::support::setup::now;
use crate::support::setup::runtime;
use crate::support::shutdown;
use crate::support::target::{
    ApiRequest, ConnectionOptions, ConnectionPurpose, OperatorConnection, PAGE, RunningGateway,
};
use crate::support::views::{self, number, text};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Only calls of this tool: SERVER/TOOL.
    #[arg(long, value_name = "SERVER/TOOL")]
    tool: Option<String>,
    /// Only events of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Start with so many finished calls.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    lines: usize,
    /// Show every step, not only results of calls and changes.
    #[arg(long)]
    all: bool,
    /// End when there is nothing more to show, instead of waiting for events.
    #[arg(long)]
    once: bool,
}

/// Runs `steadfast tail`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    runtime()?.block_on(async {
        let reach = OperatorConnection::find(&options.connection, ConnectionPurpose::ExistingState).await?;
        let done = follow(options, &reach).await;
        reach.close().await;
        done
    })
}

/// Interval between reads of the history, and how far back they go.
const INTERVAL: Duration = Duration::from_millis(300);
const BACK: u64 = 60_000;

async fn follow(options: &Options, reach: &OperatorConnection) -> Result<(), CommandFailure> {
    let stop = shutdown::shutdown_token();
    let mut printer = TailOutput::new(options);
    printer.begin(reach).await?;
    if options.once {
        return Ok(());
    }
    let (sender, mut events) = mpsc::channel(1024);
    for gateway in reach.gateway().into_iter().chain(&reach.others) {
        let ask = ApiRequest::get("/v1/events")
            .with("tool", options.tool.as_deref())
            .with("tenant", options.tenant.as_deref());
        tokio::spawn(listen(gateway.clone(), ask, sender.clone()));
    }
    if !options.connection.json {
        let from = if reach.gateway().is_some() {
            "the gateway"
        } else {
            "the history; a listening gateway would send more events"
        };
        output::print_message(&format!("following {from}; Ctrl-C ends it"));
    }
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        let is_open = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some(event) = events.recv() => printer.event(&event),
            _ = ticks.tick() => printer.catch_up(reach).await?,
        };
        if !is_open {
            return Ok(());
        }
    }
}

/// Forwards the events of a gateway, for as long as it sends them.
async fn listen(gateway: Arc<RunningGateway>, ask: ApiRequest, sender: mpsc::Sender<Value>) {
    let mut last: Option<String> = None;
    loop {
        match gateway.events(ask.clone(), last.as_deref()).await {
            Ok(mut flow) => {
                while let Some(Ok(event)) = flow.next().await {
                    last = flow.last_id().map(str::to_owned).or(last);
                    let Ok(mut value) = serde_json::from_slice::<Value>(&event.data) else { continue };
                    if let (Some(kind), Some(fields)) = (&event.kind, value.as_object_mut()) {
                        fields.entry("event").or_insert_with(|| (**kind).into());
                    }
                    if sender.send(value).await.is_err() {
                        return;
                    }
                }
            }
            // An older gateway sends no events. Its calls are in the history.
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => return,
            Err(_) => {}
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Delay before connecting again to a gateway that sends no events.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Output of the command.
struct TailOutput<'o> {
    options: &'o Options,
    paint: ColourPainter,
    known: PrintedCalls,
}

/// Calls that were printed, so that none is printed twice.
#[derive(Default)]
struct PrintedCalls {
    /// Calls from the history, with their time: a client may use the name of a request again.
    of_history: BTreeMap<(CallSignature, u64), u64>,
    /// For each name, the number of calls in the history minus the number sent by gateways, and the time of the last
    /// change.
    balance: BTreeMap<CallSignature, (i64, u64)>,
}

/// Facts about a call that both sources have: its request, its duration, and its result.
type CallSignature = (String, u64, String);

impl PrintedCalls {
    /// Returns true if the call is new in the history.
    fn is_new(&mut self, name: &CallSignature, arrived: u64, now: u64) -> bool {
        self.of_history.insert((name.clone(), arrived), now).is_none()
    }

    /// Returns true if a call that is new in the history must be printed.
    fn record_history_call(&mut self, name: CallSignature, now: u64) -> bool {
        let (more, at) = self.balance.entry(name).or_default();
        (*more, *at) = (*more + 1, now);
        *more > 0
    }

    /// Returns true if a call from a gateway must be printed.
    fn record_gateway_call(&mut self, name: CallSignature, now: u64) -> bool {
        let (more, at) = self.balance.entry(name).or_default();
        (*more, *at) = (*more - 1, now);
        *more < 0
    }

    /// Forgets calls that neither source will show again.
    fn tidy(&mut self, now: u64) {
        self.of_history.retain(|_, at| *at + 2 * BACK > now);
        self.balance.retain(|_, (_, at)| *at + 2 * BACK > now);
    }
}

impl<'o> TailOutput<'o> {
    fn new(options: &'o Options) -> Self {
        Self { options, paint: ColourPainter::of_stdout(), known: PrintedCalls::default() }
    }

    /// Prints the last finished calls.
    async fn begin(&mut self, reach: &OperatorConnection) -> Result<(), CommandFailure> {
        let (ask, limit) = (self.history(), self.options.lines);
        let mut page = reach.send(ask.clone()).await?;
        let mut calls = views::list(&page, "/calls").to_vec();
        while let Some(next) = page.get("next").and_then(Value::as_str).filter(|_| calls.len() < limit) {
            page = reach.send(ask.clone().with("after", Some(next))).await?;
            calls.extend_from_slice(views::list(&page, "/calls"));
        }
        if let Some(tool) = self.options.tool.as_deref().filter(|_| calls.is_empty()) {
            let known = views::known_tools(reach, self.options.tenant.as_deref()).await?;
            if let Some(suggestion) = views::nearest_name(tool, &known) {
                output::print_message(&format!(
                    "note: {tool} was not called yet; did you mean `{suggestion}`?"
                ));
            }
        }
        if calls.is_empty() && self.options.once && !self.options.connection.json {
            output::print_message("nothing was called yet");
        }
        for (place, call) in calls.iter().enumerate().rev() {
            self.known.is_new(&of_history(call), number(call, "/arrivedAtMs"), now().as_millis());
            if place < limit {
                self.print_call(call);
            }
        }
        Ok(())
    }

    /// Prints calls of the history that no gateway sent. Returns false if the output is closed.
    async fn catch_up(&mut self, reach: &OperatorConnection) -> Result<bool, CommandFailure> {
        let now = now().as_millis();
        self.known.tidy(now);
        let ask = self.history().with("since", Some(&now.saturating_sub(BACK).to_string()));
        let (mut new, mut after) = (Vec::new(), None);
        // Reads back as far as there is something new.
        loop {
            let Ok(page) = reach.send(ask.clone().with("after", after.as_deref())).await else {
                // A gateway may be restarted, and a store may come back.
                break;
            };
            let calls = views::list(&page, "/calls").iter();
            let known_before = new.len();
            new.extend(
                calls
                    .filter(|call| self.known.is_new(&of_history(call), number(call, "/arrivedAtMs"), now))
                    .cloned(),
            );
            after = page.get("next").and_then(Value::as_str).map(str::to_owned);
            if new.len() == known_before || after.is_none() {
                break;
            }
        }
        for call in new.iter().rev() {
            if self.known.record_history_call(of_history(call), now) && !self.print_call(call) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the request for the newest calls of the history.
    fn history(&self) -> ApiRequest {
        ApiRequest::get("/v1/history")
            .with("tool", self.options.tool.as_deref())
            .with("tenant", self.options.tenant.as_deref())
            .with("limit", Some(PAGE))
    }

    /// Prints an event of a gateway. Returns false if the output is closed.
    fn event(&mut self, event: &Value) -> bool {
        let kind = text(event, "/event");
        let is_end = kind == "tool_call_end";
        if is_end && !self.known.record_gateway_call(of_event(event), now().as_millis()) {
            return true;
        }
        if !self.options.all && !is_end && !SHOWN_EVENTS.contains(&&*kind) {
            return true;
        }
        match self.options.connection.json {
            true => output::print_json_line(event),
            false => output::print_line(&if is_end { self.end(event) } else { self.change(&kind, event) }),
        }
    }

    /// Prints a call from the history.
    fn print_call(&self, call: &Value) -> bool {
        if self.options.connection.json {
            return output::print_json_line(&json!({ "event": "history", "call": call }));
        }
        let end = number(call, "/arrivedAtMs") + number(call, "/tookMs");
        let attempts = u64::try_from(views::list(call, "/attempts").len()).unwrap_or(u64::MAX);
        let replayed = call.get("replayed").and_then(Value::as_bool).unwrap_or_default();
        let tool = call.get("tool").map(views::tool).unwrap_or_default();
        let summary = CallEndSummary { status: text(call, "/status"), code: text(call, "/code"), replayed };
        output::print_line(&self.line(&clock(end), &summary, &tool, number(call, "/tookMs"), attempts, call))
    }

    /// Formats the end of a call from a gateway event.
    fn end(&self, event: &Value) -> String {
        let replayed = event.get("fromCache").and_then(Value::as_bool).unwrap_or_default();
        let summary =
            CallEndSummary { status: text(event, "/status"), code: text(event, "/errorCode"), replayed };
        let (took, attempts) = (number(event, "/elapsedMs"), number(event, "/attempt"));
        self.line(&at(event), &summary, &tool_of(event), took, attempts, event)
    }

    fn line(
        &self,
        at: &str,
        summary: &CallEndSummary,
        tool: &str,
        took: u64,
        attempts: u64,
        details: &Value,
    ) -> String {
        let (style, word) = summary.label();
        let mut notes = Vec::new();
        if attempts > 1 {
            notes.push(format!("{attempts} attempts"));
        }
        let rule = text(details, "/rule");
        if !rule.is_empty() {
            notes.push(rule);
        }
        let session = ["/session", "/sessionKey"].map(|place| text(details, place)).concat();
        if !session.is_empty() {
            notes.push(output::short(&session, 24));
        }
        format!(
            "{}  {}  {tool:<28}  {:>9}  {}",
            self.paint.paint(TextStyle::Dim, at),
            self.paint.paint(style, &format!("{word:<18}")),
            format!("{took} ms"),
            self.paint.paint(TextStyle::Dim, &notes.join(" · "))
        )
        .trim_end()
        .to_owned()
    }

    /// Formats any other event.
    fn change(&self, kind: &str, event: &Value) -> String {
        let word = kind.strip_prefix("tool_call_").unwrap_or(kind).replace('_', " ");
        let style = match &*text(event, "/level").to_lowercase() {
            "error" => TextStyle::Bad,
            "warn" => TextStyle::Warn,
            _ => TextStyle::Plain,
        };
        let (at, tool) = (at(event), tool_of(event));
        format!(
            "{}  {}  {tool:<28}  {}",
            self.paint.paint(TextStyle::Dim, &at),
            self.paint.paint(style, &format!("{word:<18}")),
            self.paint.paint(TextStyle::Dim, &notes(event).join(" · "))
        )
        .trim_end()
        .to_owned()
    }
}

/// Returns the text of an event: its message, if it has one, then its fields.
fn notes(event: &Value) -> Vec<String> {
    let fields = event.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !KNOWN.contains(&name.as_str())).map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name} {}", output::short(&value, 60))
    });
    let message = Some(text(event, "/message")).filter(|message| !message.is_empty());
    message.map(|message| output::short(&message, 160)).into_iter().chain(fields).collect()
}

/// Result of a call.
struct CallEndSummary {
    status: String,
    code: String,
    replayed: bool,
}

impl CallEndSummary {
    fn label(&self) -> (TextStyle, &str) {
        match (&*self.status, &*self.code) {
            ("success", _) if self.replayed => (TextStyle::Good, "replayed"),
            ("success", _) => (TextStyle::Good, "ok"),
            (_, code @ ("approval_required" | "in_flight" | "cancelled" | "circuit_open" | "overloaded")) => {
                (TextStyle::Warn, code)
            }
            (status, "") => (TextStyle::Bad, status),
            (_, code) => (TextStyle::Bad, code),
        }
    }
}

fn of_history(call: &Value) -> CallSignature {
    (text(call, "/requestId"), number(call, "/tookMs"), text(call, "/status"))
}

fn of_event(event: &Value) -> CallSignature {
    (text(event, "/requestId"), number(event, "/elapsedMs"), text(event, "/status"))
}

fn tool_of(event: &Value) -> String {
    match (text(event, "/toolNamespace"), text(event, "/toolName")) {
        (namespace, tool) if namespace.is_empty() => tool,
        (namespace, tool) => format!("{namespace}/{tool}"),
    }
}

/// Formats the time of day in UTC, because all times in the output are in UTC.
fn clock(at_ms: u64) -> String {
    at_of_day(&Timestamp::from_millis(at_ms).to_string())
}

fn at(event: &Value) -> String {
    at_of_day(&text(event, "/time"))
}

fn at_of_day(iso: &str) -> String {
    iso.get(11..19).map_or_else(|| " ".repeat(9), |time| format!("{time}Z"))
}

/// Events that are shown beside the ends of calls: changes, requests to operators, and unexpected events.
const SHOWN_EVENTS: [&str; 28] = [
    "tool_call_turned_away",
    "tool_call_malformed",
    "tool_call_taken_over",
    "tool_call_conflict",
    "tool_call_approval_asked",
    "tool_call_approval_ended",
    "tool_call_outcome_unknown",
    "tool_call_circuit_state",
    "tool_call_trust_state",
    "tool_call_guard",
    "tool_call_fence_lost",
    "tool_call_store_failed",
    "tool_call_shadow",
    "turn_end",
    "turn_timeout",
    "turn_alternative_used",
    "turn_default_used",
    "turn_tool_skipped",
    "store_failed",
    "store_lost",
    "store_back",
    "store_emptied",
    "config.replaced",
    "config.needs_restart",
    "config.kept",
    "config.switched",
    "panic",
    "missed",
];

/// Fields that are in every line, or have a column of their own.
const KNOWN: [&str; 12] = [
    "time",
    "level",
    "event",
    "requestId",
    "toolName",
    "toolNamespace",
    "sessionKey",
    "idempotencyKeyHash",
    "correlationId",
    "traceId",
    "target",
    "message",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_printed_once_whichever_source_is_first() {
        let mut known = PrintedCalls::default();
        let name = || ("r-1".to_owned(), 0, "success".to_owned());
        assert!(known.record_gateway_call(name(), 0), "the gateway is quicker");
        assert!(known.is_new(&name(), 1, 0) && !known.record_history_call(name(), 0));
        assert!(!known.is_new(&name(), 1, 0), "the history shows it again and again");
        assert!(
            known.is_new(&name(), 2, 0) && known.record_history_call(name(), 0),
            "the history is quicker"
        );
        assert!(!known.record_gateway_call(name(), 0));
        assert!(known.record_gateway_call(name(), 0), "another call of the same name");
        known.tidy(2 * BACK);
        assert!(
            known.is_new(&name(), 1, 0) && known.record_history_call(name(), 0),
            "nothing is kept for ever"
        );
    }

    #[test]
    fn the_end_of_a_turn_is_printed_with_its_message() {
        let event = json!({ "event": "turn_end", "level": "info", "traceId": "07", "sessionKey": "s",
            "message": "Completed flight search", "turnId": "trip", "status": "completed" });
        assert!(SHOWN_EVENTS.contains(&"turn_end"));
        let lines = notes(&event);
        assert_eq!(lines[0], "Completed flight search");
        assert_eq!(lines[1..], ["status completed", "turnId trip"]);
    }
}
