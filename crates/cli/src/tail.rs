//! `steadfast tail`: what happens, as it happens.
//!
//! Two sources make one stream. Gateways that listen tell everything at once, but only of themselves. The history has every call
//! of every process that shares the store, a moment later; so it is looked through for those that nobody told of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::Timestamp;
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::output::{self, Look, Paint};
use crate::reach::{Ask, Gateway, Need, PAGE, Reach, Ways};
use crate::seen::{self, number, text};
use crate::state::runtime;
use crate::{now, stop};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    ways: Ways,
    /// Only calls of this tool: SERVER/TOOL.
    #[arg(long, value_name = "SERVER/TOOL")]
    tool: Option<String>,
    /// Only what belongs to this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Begins with so many calls that are over.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    lines: usize,
    /// Shows every step, not only how calls end and what changes.
    #[arg(long)]
    all: bool,
    /// Ends when there is nothing more to show, instead of waiting for what comes.
    #[arg(long)]
    once: bool,
}

/// `steadfast tail`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let reach = Reach::find(&options.ways, Need::WhatIsThere).await?;
        let done = follow(options, &reach).await;
        reach.close().await;
        done
    })
}

/// How often the history is looked at, and how far back.
const EVERY: Duration = Duration::from_millis(300);
const BACK: u64 = 60_000;

async fn follow(options: &Options, reach: &Reach) -> Result<(), Failure> {
    let stop = stop::asked();
    let mut told = Told::new(options);
    told.begin(reach).await?;
    if options.once {
        return Ok(());
    }
    let (sender, mut events) = mpsc::channel(1024);
    for gateway in reach.gateway().into_iter().chain(&reach.others) {
        let ask = Ask::get("/v1/events")
            .with("tool", options.tool.as_deref())
            .with("tenant", options.tenant.as_deref());
        tokio::spawn(listen(gateway.clone(), ask, sender.clone()));
    }
    if !options.ways.json {
        let from = if reach.gateway().is_some() {
            "the gateway"
        } else {
            "the history; a gateway that listens would tell more"
        };
        output::remark(&format!("following {from}; Ctrl-C ends it"));
    }
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        let heard = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some(event) = events.recv() => told.event(&event),
            _ = ticks.tick() => told.catch_up(reach).await?,
        };
        if !heard {
            return Ok(());
        }
    }
}

/// Passes on what a gateway tells, for as long as it does.
async fn listen(gateway: Arc<Gateway>, ask: Ask, sender: mpsc::Sender<Value>) {
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
            // An older one tells nothing; its calls are in the history.
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => return,
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// How long a gateway is left alone that does not tell.
const AGAIN: Duration = Duration::from_secs(1);

/// What is told.
struct Told<'o> {
    options: &'o Options,
    paint: Paint,
    known: Known,
}

/// Which calls were told, so that none is told twice.
#[derive(Default)]
struct Known {
    /// Those that the history had, by their moment too: a client may use a request's name again.
    of_history: BTreeMap<(Name, u64), u64>,
    /// How many more the history had than gateways told of, for each name that both have; and when that was.
    balance: BTreeMap<Name, (i64, u64)>,
}

/// What both sources say of a call: its request, how long it took, and how it ended.
type Name = (String, u64, String);

impl Known {
    /// Whether the history has never shown this call before.
    fn is_new(&mut self, name: &Name, arrived: u64, now: u64) -> bool {
        self.of_history.insert((name.clone(), arrived), now).is_none()
    }

    /// Whether a call that the history shows for the first time is to be told.
    fn tell_of_history(&mut self, name: Name, now: u64) -> bool {
        let (more, at) = self.balance.entry(name).or_default();
        (*more, *at) = (*more + 1, now);
        *more > 0
    }

    /// Whether a call that a gateway tells of is to be told.
    fn tell_of_gateway(&mut self, name: Name, now: u64) -> bool {
        let (more, at) = self.balance.entry(name).or_default();
        (*more, *at) = (*more - 1, now);
        *more < 0
    }

    /// Forgets what neither will show again.
    fn tidy(&mut self, now: u64) {
        self.of_history.retain(|_, at| *at + 2 * BACK > now);
        self.balance.retain(|_, (_, at)| *at + 2 * BACK > now);
    }
}

impl<'o> Told<'o> {
    fn new(options: &'o Options) -> Self {
        Self { options, paint: Paint::of_stdout(), known: Known::default() }
    }

    /// The last calls that are over.
    async fn begin(&mut self, reach: &Reach) -> Result<(), Failure> {
        let (ask, wanted) = (self.history(), self.options.lines);
        let mut page = reach.ask(ask.clone()).await?;
        let mut calls = seen::list(&page, "/calls").to_vec();
        while let Some(next) = page.get("next").and_then(Value::as_str).filter(|_| calls.len() < wanted) {
            page = reach.ask(ask.clone().with("after", Some(next))).await?;
            calls.extend_from_slice(seen::list(&page, "/calls"));
        }
        if let Some(tool) = self.options.tool.as_deref().filter(|_| calls.is_empty()) {
            let known = seen::known_tools(reach, self.options.tenant.as_deref()).await?;
            if let Some(meant) = seen::meant(tool, &known) {
                output::remark(&format!("note: {tool} was not called yet; did you mean `{meant}`?"));
            }
        }
        if calls.is_empty() && self.options.once && !self.options.ways.json {
            output::remark("nothing was called yet");
        }
        for (place, call) in calls.iter().enumerate().rev() {
            self.known.is_new(&of_history(call), number(call, "/arrivedAtMs"), now().as_millis());
            if place < wanted {
                self.say_call(call);
            }
        }
        Ok(())
    }

    /// Calls of the history that nobody told of. Whether somebody still reads.
    async fn catch_up(&mut self, reach: &Reach) -> Result<bool, Failure> {
        let now = now().as_millis();
        self.known.tidy(now);
        let ask = self.history().with("since", Some(&now.saturating_sub(BACK).to_string()));
        let (mut new, mut after) = (Vec::new(), None);
        // As far back as there is something new.
        loop {
            let Ok(page) = reach.ask(ask.clone().with("after", after.as_deref())).await else {
                // A gateway may be started again, and a store come back.
                break;
            };
            let calls = seen::list(&page, "/calls").iter();
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
            if self.known.tell_of_history(of_history(call), now) && !self.say_call(call) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks for the newest calls of the history.
    fn history(&self) -> Ask {
        Ask::get("/v1/history")
            .with("tool", self.options.tool.as_deref())
            .with("tenant", self.options.tenant.as_deref())
            .with("limit", Some(PAGE))
    }

    /// Tells what a gateway told. Whether somebody still reads.
    fn event(&mut self, event: &Value) -> bool {
        let kind = text(event, "/event");
        let is_end = kind == "tool_call_end";
        if is_end && !self.known.tell_of_gateway(of_event(event), now().as_millis()) {
            return true;
        }
        if !self.options.all && !is_end && !WORTH_TELLING.contains(&&*kind) {
            return true;
        }
        match self.options.ways.json {
            true => output::say_json_line(event),
            false => output::say_line(&if is_end { self.end(event) } else { self.change(&kind, event) }),
        }
    }

    /// A call as the history has it.
    fn say_call(&self, call: &Value) -> bool {
        if self.options.ways.json {
            return output::say_json_line(&json!({ "event": "history", "call": call }));
        }
        let ended = number(call, "/arrivedAtMs") + number(call, "/tookMs");
        let attempts = u64::try_from(seen::list(call, "/attempts").len()).unwrap_or(u64::MAX);
        let replayed = call.get("replayed").and_then(Value::as_bool).unwrap_or_default();
        let tool = call.get("tool").map(seen::tool).unwrap_or_default();
        let how = How { status: text(call, "/status"), code: text(call, "/code"), replayed };
        output::say_line(&self.line(&clock(ended), &how, &tool, number(call, "/tookMs"), attempts, call))
    }

    /// A call as a gateway tells of its end.
    fn end(&self, event: &Value) -> String {
        let replayed = event.get("fromCache").and_then(Value::as_bool).unwrap_or_default();
        let how = How { status: text(event, "/status"), code: text(event, "/errorCode"), replayed };
        let (took, attempts) = (number(event, "/elapsedMs"), number(event, "/attempt"));
        self.line(&at(event), &how, &tool_of(event), took, attempts, event)
    }

    fn line(&self, at: &str, how: &How, tool: &str, took: u64, attempts: u64, said: &Value) -> String {
        let (look, word) = how.said();
        let mut notes = Vec::new();
        if attempts > 1 {
            notes.push(format!("{attempts} attempts"));
        }
        let rule = text(said, "/rule");
        if !rule.is_empty() {
            notes.push(rule);
        }
        let session = ["/session", "/sessionKey"].map(|place| text(said, place)).concat();
        if !session.is_empty() {
            notes.push(output::short(&session, 24));
        }
        format!(
            "{}  {}  {tool:<28}  {:>9}  {}",
            self.paint.paint(Look::Dim, at),
            self.paint.paint(look, &format!("{word:<18}")),
            format!("{took} ms"),
            self.paint.paint(Look::Dim, &notes.join(" · "))
        )
        .trim_end()
        .to_owned()
    }

    /// Anything else that happened.
    fn change(&self, kind: &str, event: &Value) -> String {
        let word = kind.strip_prefix("tool_call_").unwrap_or(kind).replace('_', " ");
        let look = match &*text(event, "/level").to_lowercase() {
            "error" => Look::Bad,
            "warn" => Look::Warn,
            _ => Look::Plain,
        };
        let (at, tool) = (at(event), tool_of(event));
        format!(
            "{}  {}  {tool:<28}  {}",
            self.paint.paint(Look::Dim, &at),
            self.paint.paint(look, &format!("{word:<18}")),
            self.paint.paint(Look::Dim, &notes(event).join(" · "))
        )
        .trim_end()
        .to_owned()
    }
}

/// What an event says: first in words, if it has some, then its fields.
fn notes(event: &Value) -> Vec<String> {
    let fields = event.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !KNOWN.contains(&name.as_str())).map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name} {}", output::short(&value, 60))
    });
    let message = Some(text(event, "/message")).filter(|message| !message.is_empty());
    message.map(|message| output::short(&message, 160)).into_iter().chain(fields).collect()
}

/// How a call ended.
struct How {
    status: String,
    code: String,
    replayed: bool,
}

impl How {
    fn said(&self) -> (Look, &str) {
        match (&*self.status, &*self.code) {
            ("success", _) if self.replayed => (Look::Good, "replayed"),
            ("success", _) => (Look::Good, "ok"),
            (_, code @ ("approval_required" | "in_flight" | "cancelled" | "circuit_open" | "overloaded")) => {
                (Look::Warn, code)
            }
            (status, "") => (Look::Bad, status),
            (_, code) => (Look::Bad, code),
        }
    }
}

fn of_history(call: &Value) -> Name {
    (text(call, "/requestId"), number(call, "/tookMs"), text(call, "/status"))
}

fn of_event(event: &Value) -> Name {
    (text(event, "/requestId"), number(event, "/elapsedMs"), text(event, "/status"))
}

fn tool_of(event: &Value) -> String {
    match (text(event, "/toolNamespace"), text(event, "/toolName")) {
        (namespace, tool) if namespace.is_empty() => tool,
        (namespace, tool) => format!("{namespace}/{tool}"),
    }
}

/// The time of day. What is told stands in UTC, so this does too.
fn clock(at_ms: u64) -> String {
    at_of_day(&Timestamp::from_millis(at_ms).to_string())
}

fn at(event: &Value) -> String {
    at_of_day(&text(event, "/time"))
}

fn at_of_day(iso: &str) -> String {
    iso.get(11..19).map_or_else(|| " ".repeat(9), |time| format!("{time}Z"))
}

/// What is told beside the ends of calls: what changes, what needs a person, and what nobody expects.
const WORTH_TELLING: [&str; 28] = [
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

/// Fields that are in every line, or have a place of their own.
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
    fn a_call_is_told_once_whoever_tells_of_it_first() {
        let mut known = Known::default();
        let name = || ("r-1".to_owned(), 0, "success".to_owned());
        assert!(known.tell_of_gateway(name(), 0), "the gateway is quicker");
        assert!(known.is_new(&name(), 1, 0) && !known.tell_of_history(name(), 0));
        assert!(!known.is_new(&name(), 1, 0), "the history shows it again and again");
        assert!(known.is_new(&name(), 2, 0) && known.tell_of_history(name(), 0), "the history is quicker");
        assert!(!known.tell_of_gateway(name(), 0));
        assert!(known.tell_of_gateway(name(), 0), "another call of the same name");
        known.tidy(2 * BACK);
        assert!(known.is_new(&name(), 1, 0) && known.tell_of_history(name(), 0), "nothing is kept for ever");
    }

    #[test]
    fn the_end_of_a_turn_is_told_in_its_own_words() {
        let event = json!({ "event": "turn_end", "level": "info", "traceId": "07", "sessionKey": "s",
            "message": "Completed flight search", "turnId": "trip", "status": "completed" });
        assert!(WORTH_TELLING.contains(&"turn_end"));
        let said = notes(&event);
        assert_eq!(said[0], "Completed flight search");
        assert_eq!(said[1..], ["status completed", "turnId trip"]);
    }
}
