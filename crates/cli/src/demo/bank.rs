//! The server of the demo: a small bank that speaks MCP on its standard streams, and misbehaves by a fixed schedule.
//!
//! It is this program started again with a hidden command. What it does stands in the [`Ledger`] before it can go wrong:
//! `start`, `asked TOOL SUBJECT`, `paid INVOICE CENTS`, `refused TOOL`, `cancelled`. One entry is of the story: `released
//! INVOICE`.

#![expect(clippy::indexing_slicing, reason = "a member of a JSON value that is not there reads as null")]

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use serde_json::{Value, json};

use super::ledger::Ledger;

/// How much is on the account before anything was paid, in cents.
pub(super) const BEGINNING: u64 = 100_000;
/// What the hidden command is called.
pub(crate) const COMMAND: &str = "demo-bank";
/// The entry with which the story lets a payment be answered.
pub(super) const RELEASED: &str = "released";
/// How the bank ends when it crashes: as a program that panicked does.
const CRASHED: i32 = 101;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The ledger.
    ledger: PathBuf,
}

/// `steadfast demo-bank LEDGER`: serves until nobody writes to it any more.
pub(crate) fn run(options: &Options) {
    serve(&options.ledger);
}

fn serve(path: &Path) {
    let ledger = Ledger::at(path);
    note(&ledger, &["start"]);
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if message["method"] != "tools/call" {
            received(&ledger, &message);
            continue;
        }
        // A call that hangs is in nobody's way, but for a bank that does nothing but hang.
        if RUNNING.fetch_add(1, Ordering::Relaxed) >= MOST_AT_ONCE {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
            answer(&message, &failed("Too many requests: the bank is busy"));
            continue;
        }
        let ledger = ledger.clone();
        thread::spawn(move || {
            answer(&message, &called(&ledger, &message["params"]));
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

static RUNNING: AtomicUsize = AtomicUsize::new(0);
const MOST_AT_ONCE: usize = 32;

/// Anything but a call.
fn received(ledger: &Ledger, message: &Value) {
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": version(&message["params"]["protocolVersion"]),
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "steadfast-demo-bank", "version": env!("CARGO_PKG_VERSION") },
        }),
        Some("ping") => json!({}),
        Some("tools/list") => json!({ "tools": Tool::ALL.map(Tool::described) }),
        Some("notifications/cancelled") => return note(ledger, &["cancelled"]),
        Some(method) if message.get("id").is_some() => {
            let error = json!({ "code": -32601, "message": format!("Method not found: {method}") });
            return say(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
        }
        Some(_) | None => return,
    };
    answer(message, &result);
}

/// The client's version if it is one that we speak, else ours.
fn version(asked: &Value) -> &str {
    let known = &steadfast_mcp::http::LEGACY;
    asked.as_str().filter(|asked| known.contains(asked)).unwrap_or("2025-11-25")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Balance,
    Pay,
    Payments,
    Statement,
    ExchangeRate,
}

impl Tool {
    const ALL: [Self; 5] = [Self::Balance, Self::Pay, Self::Payments, Self::Statement, Self::ExchangeRate];

    fn name(self) -> &'static str {
        match self {
            Self::Balance => "balance",
            Self::Pay => "pay",
            Self::Payments => "payments",
            Self::Statement => "statement",
            Self::ExchangeRate => "exchange_rate",
        }
    }

    /// The argument that says what a call is about.
    fn subject(self) -> &'static str {
        match self {
            Self::Balance => "account",
            Self::Pay | Self::Payments => "invoice",
            Self::Statement => "month",
            Self::ExchangeRate => "currency",
        }
    }

    fn described(self) -> Value {
        let (text, reads) = match self {
            Self::Balance => ("How much is on an account.", true),
            Self::Pay => ("Pays an invoice. Calling it twice pays twice.", false),
            Self::Payments => ("The payments that were made for an invoice.", true),
            Self::Statement => ("The statement of a month.", true),
            Self::ExchangeRate => ("What one euro is worth in another currency.", true),
        };
        let amount = json!({ "type": "number", "exclusiveMinimum": 0, "description": "In euros." });
        let subject = (self.subject(), json!({ "type": "string" }));
        let properties: BTreeMap<&str, Value> = match self {
            Self::Pay => [subject, ("amount", amount)].into(),
            Self::Balance | Self::Payments | Self::Statement | Self::ExchangeRate => [subject].into(),
        };
        let required: Vec<_> = properties.keys().collect();
        json!({
            "name": self.name(),
            "description": text,
            "inputSchema": { "type": "object", "properties": properties, "required": required },
            "annotations": { "readOnlyHint": reads, "destructiveHint": !reads },
        })
    }
}

/// What goes wrong.
enum Fault {
    /// The process ends before it answers.
    Crash,
    /// There is never an answer.
    Hang,
    /// What the bank itself needs is down.
    Unavailable,
    /// The answer is not there before the story says so.
    Held,
}

/// The schedule: what goes wrong with a call that was made so often before.
fn fault(tool: Tool, subject: &str, earlier: usize) -> Option<Fault> {
    match (tool, subject, earlier) {
        (Tool::Balance, "savings", 0) | (Tool::Pay, "INV-17", 0) => Some(Fault::Crash),
        (Tool::Pay, "INV-18" | "INV-19", 0) => Some(Fault::Held),
        (Tool::Statement, "october", 0) => Some(Fault::Hang),
        (Tool::ExchangeRate, "USD", 2..) => None,
        (Tool::ExchangeRate, _, _) => Some(Fault::Unavailable),
        (Tool::Balance | Tool::Pay | Tool::Payments | Tool::Statement, _, _) => None,
    }
}

/// The result of a call. Whatever it does is in the ledger before its fault shows.
fn called(ledger: &Ledger, params: &Value) -> Value {
    let (name, arguments) = (params["name"].as_str().unwrap_or_default(), &params["arguments"]);
    let Some(tool) = Tool::ALL.into_iter().find(|tool| tool.name() == name) else {
        return failed(&format!("Unknown tool: {name}"));
    };
    let amount = cents(&arguments["amount"]);
    let wrong = match (arguments[tool.subject()].as_str(), tool) {
        (None, _) => Some(format!("missing required property '{}'", tool.subject())),
        (Some(_), Tool::Pay) if amount.is_none() => Some("'amount' must be a number above 0".to_owned()),
        (Some(_), _) => None,
    };
    if let Some(wrong) = wrong {
        note(ledger, &["refused", name]);
        return failed(&format!("Invalid arguments: {wrong}"));
    }
    let subject = arguments[tool.subject()].as_str().unwrap_or_default();
    let earlier = ledger.count(&["asked", name, subject]);
    let mut written = ledger.write(&["asked", name, subject]);
    if let (Tool::Pay, Some(cents), Ok(())) = (tool, amount, &written) {
        written = ledger.write(&["paid", subject, &cents.to_string()]);
    }
    if let Err(error) = written {
        return failed(&format!("Internal error: {error}"));
    }
    let number = ledger.count(&["paid"]);
    match fault(tool, subject, earlier) {
        Some(Fault::Crash) => process::exit(CRASHED),
        // For ever: whoever ends the process ends this.
        Some(Fault::Hang) => loop {
            thread::park();
        },
        Some(Fault::Unavailable) => return failed("503 Service Unavailable"),
        Some(Fault::Held) => ledger.waits_for(&[RELEASED, subject]),
        None => {}
    }
    let said = match tool {
        Tool::Balance => format!("{subject}: {}", euros(BEGINNING.saturating_sub(ledger.paid()))),
        Tool::Pay => format!("{subject} paid, {}, receipt {number}", euros(amount.unwrap_or(0))),
        Tool::Payments => format!("{subject}: payments made: {}", ledger.count(&["paid", subject])),
        Tool::Statement => format!("{subject}: opened with {}", euros(BEGINNING)),
        Tool::ExchangeRate => format!("1 EUR = 1.08 {subject}"),
    };
    json!({ "content": [{ "type": "text", "text": said }] })
}

/// An amount of euros in cents. More than a bank has is none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it was compared with both ends of what fits"
)]
fn cents(amount: &Value) -> Option<u64> {
    amount.as_f64().filter(|euros| (0.01..1e9).contains(euros)).map(|euros| (euros * 100.0).round() as u64)
}

/// An amount as people write it.
pub(super) fn euros(cents: u64) -> String {
    format!("{}.{:02} EUR", cents / 100, cents % 100)
}

fn failed(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

fn answer(request: &Value, result: &Value) {
    say(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
}

fn say(message: &Value) {
    let mut out = io::stdout().lock();
    // Whoever does not read any more is about to end us.
    let _ = out.write_all(format!("{message}\n").as_bytes()).and_then(|()| out.flush());
}

/// An entry that nothing depends on.
fn note(ledger: &Ledger, entry: &[&str]) {
    let _ = ledger.write(entry);
}
