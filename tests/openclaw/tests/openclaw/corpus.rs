//! Legitimate work, which nothing may touch: with the plugin, with the plugin switched off, and without it, the model is
//! shown the same bytes, and servers get the same.

use std::sync::OnceLock;
use std::thread;

use serde_json::{Value, json};

use crate::host::{Host, all_tools, model, only_steadfast};
use crate::loops::guarded;
use crate::model::{ModelReply, ModelRequest, ModelToolCall};

/// A conversation of the corpus: its name, and the calls of each message of the model.
type Conversation = (&'static str, Vec<Vec<(&'static str, Value)>>);

fn corpus() -> Vec<Conversation> {
    let one = |tool, arguments| vec![(tool, arguments)];
    vec![
        ("a retry after a transient fault", vec![one("bank__flaky", json!({ "id": "a", "failures": 1 })); 2]),
        ("polling", vec![one("bank__status", json!({ "id": "b", "pending": 6 })); 7]),
        (
            "the word error in a file, and in output",
            vec![
                one(
                    "write",
                    json!({ "path": "log.txt", "content": "error: failed\nTypeError: Missing required x\n" }),
                ),
                one("read", json!({ "path": "log.txt" })),
                one("exec", json!({ "command": "echo 'Validation failed for tool'; cat log.txt" })),
                one("bank__echo", json!({ "text": "error 503 Service Unavailable" })),
            ],
        ),
        (
            "the same read after an edit",
            vec![
                one("write", json!({ "path": "notes.txt", "content": "one\n" })),
                one("read", json!({ "path": "notes.txt" })),
                one(
                    "edit",
                    json!({ "path": "notes.txt", "edits": [{ "oldText": "one", "newText": "two" }] }),
                ),
                one("read", json!({ "path": "notes.txt" })),
                one("read", json!({ "path": "notes.txt" })),
            ],
        ),
        (
            "a failure, then corrected arguments",
            vec![
                one("read", json!({ "path": "no-such-file.txt" })),
                one("write", json!({ "path": "no-such-file.txt", "content": "now it is" })),
                one("read", json!({ "path": "no-such-file.txt" })),
            ],
        ),
        (
            "commands that fail",
            (1..=4).map(|code| one("exec", json!({ "command": format!("exit {code}") }))).collect(),
        ),
        (
            "equal calls at once",
            vec![vec![
                ("bank__echo", json!({ "text": "twice" })),
                ("bank__echo", json!({ "text": "twice" })),
            ]],
        ),
        ("equal payments that are meant", vec![one("bank__pay", json!({ "to": "ann", "amount": 5 })); 3]),
        ("unusual text", vec![one("bank__echo", json!({ "text": "\u{0}\u{7f}ü😀\u{2028}\\\"</script>" }))]),
    ]
}

/// What a host made of a conversation.
#[derive(Clone, Debug, PartialEq)]
struct Transcript {
    /// The results in the last request, as the model was shown them.
    results: Vec<String>,
    answer: String,
    requests: usize,
}

/// Runs a conversation on a host.
fn transcript(host: &Host, kind: &str, (name, messages): &Conversation) -> Transcript {
    let script = format!("{kind} {name}");
    let replies: Vec<_> =
        messages.iter().map(|calls| ModelReply::Calls(calls.iter().map(tool_call).collect())).collect();
    model().script(&script, move |request| {
        replies.get(request.number - 1).cloned().unwrap_or_else(|| ModelReply::Text("that is all".to_owned()))
    });
    let session = format!("test-{}", script.replace([' ', ','], "-"));
    let reply = host.send(&session, &format!("go [script {script}]"));
    let requests = model().requests(&script);
    let results = requests.last().map(ModelRequest::results).unwrap_or_default();
    let workspace = host.folder.workspace().display().to_string();
    let results =
        results.iter().map(|result| without_markers(&result.replace(&workspace, "WORKSPACE"))).collect();
    Transcript { results, answer: reply.text(), requests: requests.len() }
}

fn tool_call((name, arguments): &(&str, Value)) -> ModelToolCall {
    ModelToolCall::written(name, &arguments.to_string())
}

/// Replaces the numbers that the host draws to mark content from outside.
fn without_markers(text: &str) -> String {
    let mut parts = text.split("CONTENT id=\"");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.split_once('"').map_or(part, |(_, rest)| rest);
        whole.push_str("CONTENT id=\"DRAWN\"");
        whole.push_str(rest);
    }
    whole
}

fn transcripts(host: &Host, kind: &str, conversations: &[Conversation]) -> Vec<Transcript> {
    conversations.iter().map(|conversation| transcript(host, kind, conversation)).collect()
}

/// Returns what a host without the plugin makes of the corpus.
fn plain_corpus() -> &'static Vec<Transcript> {
    static TRANSCRIPTS: OnceLock<Vec<Transcript>> = OnceLock::new();
    TRANSCRIPTS.get_or_init(|| transcripts(plain(), "plain", &corpus()))
}

/// Returns the calls that reached the servers. On a slow machine, the host gives up some and makes them again.
fn tool_calls(host: &Host) -> Vec<String> {
    host.folder.server_calls().into_iter().filter(|line| !line.starts_with("cancelled ")).collect()
}

/// Does two things at once.
fn both<T: Send>(one: impl FnOnce() -> T + Send, other: impl FnOnce() -> T + Send) -> (T, T) {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join().unwrap(), other)
    })
}

/// Returns a gateway without any plugin.
fn plain() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| Host::start("plain", &json!({}), &all_tools(), &[]))
}

/// Returns a gateway with the plugin, switched off by the environment.
fn switched_off() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let environment = [("TOOL_RELIABILITY_ENABLED", "false")];
        Host::start("switched-off", &only_steadfast(&json!({})), &all_tools(), &environment)
    })
}

#[test]
fn tg_9_legitimate_work_is_the_same_with_the_plugin_as_without_it() {
    let (with, without) = both(|| transcripts(guarded(), "guarded", &corpus()), || plain_corpus().clone());
    for ((conversation, with), without) in corpus().iter().zip(with).zip(without) {
        assert_eq!(with, without, "{}", conversation.0);
        assert_eq!(with.requests, conversation.1.len() + 1, "{}", conversation.0);
    }
}

#[test]
fn tr_14_switched_off_everything_is_the_same_as_without_the_plugin_even_loops() {
    let loops: Vec<Conversation> = vec![
        ("a loop of invalid calls", vec![vec![("read", json!({}))]; 8]),
        ("a loop of failing calls", vec![vec![("bank__fail", json!({ "id": "off" }))]; 8]),
        ("a loop of unknown tools", vec![vec![("no_such_tool", json!({}))]; 8]),
    ];
    let all = || [corpus(), loops.clone()].concat();
    let (off, without) = both(
        || transcripts(switched_off(), "off", &all()),
        || [plain_corpus().clone(), transcripts(plain(), "plain", &loops)].concat(),
    );
    for ((conversation, off), without) in all().iter().zip(off).zip(without) {
        assert_eq!(off, without, "{}", conversation.0);
    }
    assert_eq!(tool_calls(switched_off()), tool_calls(plain()));
    assert!(!switched_off().folder.path.join("state/steadfast").exists(), "it opens nothing");
}
