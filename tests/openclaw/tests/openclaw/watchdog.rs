//! Tools that hang.

use serde_json::json;

use crate::host::{model, wait};
use crate::loops::guarded;
use crate::model::{ModelReply, ModelRequest};

#[test]
fn gr_7_a_hung_tool_is_cancelled_and_gr_6_the_next_message_of_the_conversation_is_answered() {
    let host = guarded();
    model().script("hang", |_| ModelReply::call("bank__hang", json!({ "id": "hang" })));
    let hung = host.send("test-hang", "go [script hang]");
    assert_eq!(model().requests("hang").len(), 1, "the run has ended: {hung:?}");
    host.wait_for_log("steadfast: bank__hang has hung");
    let cancelled = || host.folder.server_calls().iter().any(|line| line.starts_with("cancelled"));
    wait(cancelled, || "a cancellation at the server".to_owned());

    model().script("after-hang", |request| match request.number {
        1 => ModelReply::call("bank__echo", json!({ "text": "alive" })),
        _ => ModelReply::Text("it goes on".to_owned()),
    });
    let next = host.send("test-hang", "go [script after-hang]");
    assert_eq!(next.text(), "it goes on");
    let results = model().requests("after-hang").last().map(ModelRequest::results).unwrap();
    assert_eq!(results.last().unwrap(), "alive");
}
