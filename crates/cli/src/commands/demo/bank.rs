//! The server of the demo: a small bank that speaks MCP on its standard streams, and misbehaves by a fixed schedule.
//!
//! It is this program started again with a hidden command. Each action is written to the [`BankLedger`] before it can fail:
//! `start`, `asked TOOL SUBJECT`, `paid INVOICE CENTS`, `refused TOOL`, `cancelled`. One entry is written by the demo:
//! `released INVOICE`.

#![expect(clippy::indexing_slicing, reason = "a member of a JSON value that is not there reads as null")]

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use serde_json::{Value, json};

use super::ledger::BankLedger;

/// Initial balance of the account, in cents.
pub(super) const INITIAL_BALANCE: u64 = 100_000;
/// Name of the hidden command.
pub(crate) const COMMAND: &str = "demo-bank";
/// Entry with which the demo lets a payment be answered.
pub(super) const RELEASED: &str = "released";
/// Exit code of a crash: that of a program that panicked.
const CRASHED: i32 = 101;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The ledger.
    ledger: PathBuf,
}

/// Runs `steadfast demo-bank LEDGER`: serves until its input is closed.
pub(crate) fn run(options: &Options) {
    serve(&options.ledger);
}

fn serve(path: &Path) {
    let ledger = BankLedger::at(path);
    note(&ledger, &["start"]);
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if message["method"] != "tools/call" {
            received(&ledger, &message);
            continue;
        }
        // A hanging call blocks no other call, unless the bank only has hanging calls.
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

/// Handles any message except a call.
fn received(ledger: &BankLedger, message: &Value) {
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": version(&message["params"]["protocolVersion"]),
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "steadfast-demo-bank", "version": env!("CARGO_PKG_VERSION") },
        }),
        Some("ping") => json!({}),
        Some("tools/list") => json!({ "tools": BankTool::ALL.map(BankTool::described) }),
        Some("notifications/cancelled") => return note(ledger, &["cancelled"]),
        Some(method) if message.get("id").is_some() => {
            let error = json!({ "code": -32601, "message": format!("Method not found: {method}") });
            return write_message(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
        }
        Some(_) | None => return,
    };
    answer(message, &result);
}

/// Returns the client's version if it is supported, or else the server's own.
fn version(requested: &Value) -> &str {
    let known = &steadfast_mcp::http::LEGACY;
    requested.as_str().filter(|requested| known.contains(requested)).unwrap_or("2025-11-25")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BankTool {
    Balance,
    Pay,
    Payments,
    Statement,
    ExchangeRate,
}

impl BankTool {
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

    /// Returns the name of the argument that is the subject of a call.
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
            Self::Balance => ("Returns the balance of an account.", true),
            Self::Pay => ("Pays an invoice. Calling it twice pays twice.", false),
            Self::Payments => ("Returns the payments for an invoice.", true),
            Self::Statement => ("Returns the statement of a month.", true),
            Self::ExchangeRate => ("Returns the value of one euro in another currency.", true),
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

/// Fault of a call.
enum BankFault {
    /// The process ends before it answers.
    Crash,
    /// There is never an answer.
    Hang,
    /// A dependency of the bank is down.
    Unavailable,
    /// The answer waits until the demo releases it.
    Held,
}

/// Returns the fault of a call by the schedule, from the number of earlier calls.
fn fault(tool: BankTool, subject: &str, earlier: usize) -> Option<BankFault> {
    match (tool, subject, earlier) {
        (BankTool::Balance, "savings", 0) | (BankTool::Pay, "INV-17", 0) => Some(BankFault::Crash),
        (BankTool::Pay, "INV-18" | "INV-19", 0) => Some(BankFault::Held),
        (BankTool::Statement, "october", 0) => Some(BankFault::Hang),
        (BankTool::ExchangeRate, "USD", 2..) => None,
        (BankTool::ExchangeRate, _, _) => Some(BankFault::Unavailable),
        (BankTool::Balance | BankTool::Pay | BankTool::Payments | BankTool::Statement, _, _) => None,
    }
}

/// Returns the result of a call. Its effect is in the ledger before its fault shows.
fn called(ledger: &BankLedger, params: &Value) -> Value {
    let (name, arguments) = (params["name"].as_str().unwrap_or_default(), &params["arguments"]);
    let Some(tool) = BankTool::ALL.into_iter().find(|tool| tool.name() == name) else {
        return failed(&format!("Unknown tool: {name}"));
    };
    let amount = cents(&arguments["amount"]);
    let wrong = match (arguments[tool.subject()].as_str(), tool) {
        (None, _) => Some(format!("missing required property '{}'", tool.subject())),
        (Some(_), BankTool::Pay) if amount.is_none() => Some("'amount' must be a number above 0".to_owned()),
        (Some(_), _) => None,
    };
    if let Some(wrong) = wrong {
        note(ledger, &["refused", name]);
        return failed(&format!("Invalid arguments: {wrong}"));
    }
    let subject = arguments[tool.subject()].as_str().unwrap_or_default();
    let earlier = ledger.count(&["asked", name, subject]);
    let mut written = ledger.write(&["asked", name, subject]);
    if let (BankTool::Pay, Some(cents), Ok(())) = (tool, amount, &written) {
        written = ledger.write(&["paid", subject, &cents.to_string()]);
    }
    if let Err(error) = written {
        return failed(&format!("Internal error: {error}"));
    }
    let number = ledger.count(&["paid"]);
    match fault(tool, subject, earlier) {
        Some(BankFault::Crash) => process::exit(CRASHED),
        // Hangs until the process is ended.
        Some(BankFault::Hang) => loop {
            thread::park();
        },
        Some(BankFault::Unavailable) => return failed("503 Service Unavailable"),
        Some(BankFault::Held) => ledger.waits_for(&[RELEASED, subject]),
        None => {}
    }
    let text = match tool {
        BankTool::Balance => format!("{subject}: {}", euros(INITIAL_BALANCE.saturating_sub(ledger.paid()))),
        BankTool::Pay => format!("{subject} paid, {}, receipt {number}", euros(amount.unwrap_or(0))),
        BankTool::Payments => format!("{subject}: payments made: {}", ledger.count(&["paid", subject])),
        BankTool::Statement => format!("{subject}: opened with {}", euros(INITIAL_BALANCE)),
        BankTool::ExchangeRate => format!("1 EUR = 1.08 {subject}"),
    };
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// Converts an amount of euros to cents. An amount above the bank's limit is invalid.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it was compared with both ends of what fits"
)]
fn cents(amount: &Value) -> Option<u64> {
    amount.as_f64().filter(|euros| (0.01..1e9).contains(euros)).map(|euros| (euros * 100.0).round() as u64)
}

/// Formats an amount.
pub(super) fn euros(cents: u64) -> String {
    format!("{}.{:02} EUR", cents / 100, cents % 100)
}

fn failed(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

fn answer(request: &Value, result: &Value) {
    write_message(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
}

fn write_message(message: &Value) {
    let mut out = io::stdout().lock();
    // A client that no longer reads is about to end this process.
    let _ = out.write_all(format!("{message}\n").as_bytes()).and_then(|()| out.flush());
}

/// Writes an entry that nothing depends on.
fn note(ledger: &BankLedger, entry: &[&str]) {
    let _ = ledger.write(entry);
}
