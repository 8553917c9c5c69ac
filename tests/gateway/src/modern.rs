//! The same server in the modern era: every request stands alone and names its client.

use serde_json::{Value, json};

use crate::{AnswerOutput, called, note, question, tools};

const VERSION: &str = "2026-07-28";

pub(crate) fn is_era() -> bool {
    std::env::args().next_back().as_deref() == Some("--modern")
}

/// Returns the answer to a message, if it gets one.
pub(crate) fn answer(ledger: &str, message: &Value, out: &AnswerOutput) -> Option<Value> {
    let (params, method) = (&message["params"], message["method"].as_str()?);
    if method == "notifications/cancelled" {
        note(ledger, "cancelled");
    }
    let id = message.get("id")?;
    let error = |code: i64, message: &str, data: Value| {
        let error = json!({ "code": code, "message": message, "data": data });
        Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }))
    };
    let meta = |name: &str| &params["_meta"][format!("io.modelcontextprotocol/{name}")];
    if method == "initialize" {
        note(ledger, "refused initialize");
        return error(-32022, "Unsupported protocol version", json!({ "supported": [VERSION] }));
    }
    if meta("protocolVersion") != VERSION || !meta("clientCapabilities").is_object() {
        note(ledger, &format!("refused {method}"));
        return error(-32602, "the request does not say who asks", json!({}));
    }
    let mut result = match method {
        "server/discover" => {
            note(ledger, "discover");
            json!({
                "supportedVersions": [VERSION],
                "capabilities": { "tools": {} },
                "instructions": "Pay.",
                "ttlMs": 0,
                "cacheScope": "private",
            })
        }
        "tools/list" => json!({ "tools": tools(ledger), "ttlMs": 0, "cacheScope": "private" }),
        "tools/call" if params["name"] == "ask" => ask(ledger, params),
        "tools/call" => called(ledger, &message["id"], params, out)?,
        other => return error(-32601, &format!("no method {other}"), json!({ "a": 1 })),
    };
    let info = json!({ "name": "test", "version": "2" });
    result["_meta"]["io.modelcontextprotocol/serverInfo"] = info;
    if result.get("resultType").is_none() {
        result["resultType"] = json!("complete");
    }
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

/// Asks the client with the answer to the call. The state contains the answers so far.
fn ask(ledger: &str, params: &Value) -> Value {
    let (id, times) = (params["arguments"]["id"].as_str().unwrap(), params["arguments"]["times"].as_u64());
    let mut names: Vec<String> = match params["requestState"].as_str() {
        Some(state) => serde_json::from_str(state).unwrap(),
        None => {
            note(ledger, &format!("ask {id}"));
            Vec::new()
        }
    };
    if let Some(name) = params["inputResponses"]["who"]["content"]["name"].as_str() {
        note(ledger, &format!("heard {id} {name}"));
        names.push(name.to_owned());
    }
    if u64::try_from(names.len()).unwrap() >= times.unwrap_or(1) {
        let text = format!("{id} is for {}", names.join(" and "));
        return json!({ "content": [{ "type": "text", "text": text }] });
    }
    let input_requests = json!({ "who": { "method": "elicitation/create", "params": question() } });
    let state = serde_json::to_string(&names).unwrap();
    json!({ "resultType": "input_required", "inputRequests": input_requests, "requestState": state })
}
