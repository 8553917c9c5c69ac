//! A shop with its orders in a SQLite database, as an MCP server on stdio. It misbehaves once for every row of its
//! table `faults`, when the item of that row is ordered:
//!
//! | fault | behavior |
//! | --- | --- |
//! | `crash_before`, `crash_after` | the process ends before or after the order is in the database |
//! | `hang_before`, `hang_after` | there is never an answer |
//! | `unavailable` | it answers that its service is unavailable, and nothing was ordered |
//! | `error_after` | it answers that the request timed out, and it was ordered |
//! | `late` | it is ordered and answered when the call is cancelled |
//! | `cancelled_then_ordered` | it answers a cancellation at once with an error, and then orders all the same |
//! | `gate` | it is ordered and answered when the file `DATABASE.gate` is gone |
//!
//! A row for the item `orders_find` makes that tool wait for ever.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a server of tests says what is wrong by ending"
)]

use std::io::{self, BufRead as _};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::{Value, json};

/// Number of cancelled requests.
type CancelCount = Arc<(Mutex<usize>, Condvar)>;

fn main() {
    let database = std::env::args().nth(1).unwrap();
    let cancelled = CancelCount::default();
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let (database, cancelled) = (database.clone(), cancelled.clone());
        match message.get("method").and_then(Value::as_str) {
            Some("notifications/cancelled") => {
                *cancelled.0.lock().unwrap() += 1;
                cancelled.1.notify_all();
            }
            Some(method) if message.get("id").is_some() => {
                let method = method.to_owned();
                thread::spawn(move || {
                    let result = answer(&database, &method, message.get("params"), &cancelled, &message);
                    send(&json!({ "jsonrpc": "2.0", "id": message.get("id"), "result": result }));
                });
            }
            Some(_) | None => {}
        }
    }
}

fn send(message: &Value) {
    println!("{message}");
}

fn answer(
    database: &str,
    method: &str,
    params: Option<&Value>,
    cancelled: &CancelCount,
    request: &Value,
) -> Value {
    match method {
        "initialize" => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "shop", "version": "1" },
        }),
        "tools/list" => {
            let schema = json!({ "type": "object" });
            json!({ "tools": [
                { "name": "orders_add", "inputSchema": schema, "annotations": { "readOnlyHint": false, "idempotentHint": false } },
                { "name": "orders_list", "inputSchema": schema, "annotations": { "readOnlyHint": true } },
                { "name": "orders_find", "inputSchema": schema, "annotations": { "readOnlyHint": true } },
            ] })
        }
        "tools/call" => {
            let params = params.unwrap();
            let shop = open(database);
            if params.get("name").and_then(Value::as_str) == Some("orders_list") {
                return text(&orders(&shop).join("\n"));
            }
            let item = params.pointer("/arguments/item").and_then(Value::as_str).unwrap();
            if params.get("name").and_then(Value::as_str) == Some("orders_find") {
                if planned(&shop, "orders_find").is_some() {
                    forever();
                }
                let found: Vec<_> = orders(&shop).into_iter().filter(|order| order == item).collect();
                let found: Vec<_> = found.iter().map(|item| json!({ "item": item })).collect();
                return text(&json!({ "orders": found }).to_string());
            }
            add(database, &shop, item, cancelled, request)
        }
        _ => json!({}),
    }
}

fn open(database: &str) -> Connection {
    let shop = Connection::open(database).unwrap();
    shop.busy_timeout(Duration::from_secs(120)).unwrap();
    shop
}

fn orders(shop: &Connection) -> Vec<String> {
    let mut rows = shop.prepare("SELECT item FROM orders ORDER BY id").unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn add(database: &str, shop: &Connection, item: &str, cancelled: &CancelCount, request: &Value) -> Value {
    let order = || assert_eq!(shop.execute("INSERT INTO orders (item) VALUES (?1)", params![item]), Ok(1));
    match planned(shop, item).as_deref() {
        Some("crash_before") => std::process::exit(3),
        Some("crash_after") => {
            order();
            std::process::exit(3)
        }
        Some("hang_before") => forever(),
        Some("hang_after") => {
            order();
            forever()
        }
        Some("unavailable") => failed("HTTP 503 Service Unavailable"),
        Some("error_after") => {
            order();
            failed("Request timed out")
        }
        Some("late") => {
            is_cancelled(cancelled);
            order();
            text("ordered")
        }
        Some("cancelled_then_ordered") => {
            is_cancelled(cancelled);
            send(&json!({ "jsonrpc": "2.0", "id": request.get("id"), "result": failed("cancelled") }));
            order();
            forever()
        }
        Some("gate") => {
            while Path::new(&format!("{database}.gate")).exists() {
                thread::sleep(Duration::from_millis(10));
            }
            order();
            text("ordered")
        }
        Some(other) => failed(&format!("no such fault: {other}")),
        None => {
            order();
            text("ordered")
        }
    }
}

/// Returns the next planned fault for this item.
fn planned(shop: &Connection, item: &str) -> Option<String> {
    let planned =
        "DELETE FROM faults WHERE id = (SELECT min(id) FROM faults WHERE item = ?1) RETURNING fault";
    shop.query_row(planned, params![item], |row| row.get(0)).optional().unwrap()
}

fn is_cancelled((count, changed): &(Mutex<usize>, Condvar)) {
    drop(changed.wait_while(count.lock().unwrap(), |count| *count == 0).unwrap());
}

fn forever() -> Value {
    loop {
        thread::park();
    }
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn failed(words: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": words }], "isError": true })
}
