//! Tool Search: most tools hide behind `tool_call`, and hooks fire for the carrier and for the carried call.

use serde_json::{Value, json};

use crate::host::{Host, exclusive_with, model, searched_tools};
use crate::model::{ModelReply, ModelRequest};

fn carried(id: &str, arguments: Value) -> ModelReply {
    ModelReply::call("tool_call", json!({ "id": id, "args": arguments }))
}

/// Runs a script that always makes this call, and returns the requests to the model.
fn repeat(host: &Host, name: &str, call: ModelReply) -> Vec<ModelRequest> {
    model().script(name, move |request| match request.number {
        1..=12 => call.clone(),
        _ => ModelReply::Text("that is all".to_owned()),
    });
    host.run(name);
    model().requests(name)
}

#[test]
fn a_call_through_tool_search_counts_once() {
    let host = exclusive_with(&json!({}), &searched_tools());

    let requests = repeat(&host, "carried-loop", carried("bank__fail", json!({ "id": "carried" })));
    let results = requests.last().unwrap().results();
    let at = |marker: &str| results.iter().position(|result| result.contains(marker));
    assert_eq!((at("[LOOP DETECTED]"), at("[TOOL ERROR LIMIT]")), (Some(1), Some(4)), "{results:#?}");
    let runs = host.folder.server_calls().iter().filter(|line| line.contains("carried")).count();
    assert_eq!(runs, 2, "the third call is not run");
    // The result of the carrier ends the loop, and the model answers without tools.
    assert_eq!((requests.len(), requests.last().unwrap().tools.len()), (6, 0));

    let requests = repeat(&host, "carried-unknown", carried("no_such_tool", json!({})));
    assert!(requests.len() <= 6, "{}", requests.len());

    let work = repeat(&host, "carried-work", carried("bank__echo", json!({ "text": "fine" })));
    assert_eq!(work.len(), 13, "successes do not count");
}
