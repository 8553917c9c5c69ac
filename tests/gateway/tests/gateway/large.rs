//! Results with more text than their callers want (`result_limit`): the part that callers get, and access to the rest.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{McpTestClient, ToolResponse, keyed};
use crate::raw::{RawRequest, RawResponse, send};
use crate::world::{GatewayWorld, LISTEN, ServerEra, TestTransport, initialized, kill, wait};

const LIMIT: &str = "result_limit = \"1KiB\"\n";
/// Maximum size of the shown part of a text.
const SHOWN: usize = 1024;

/// Returns a far longer text with characters of one, two and four bytes, in which no two lines are the same.
fn long() -> String {
    (0..400).map(|number| format!("line {number} ä 𝄞\n")).collect()
}

/// Returns a call whose answer is this text.
fn with_text(id: &str, text: &str) -> Value {
    json!({ "id": id, "fault": "text", "text": text })
}

/// Returns the gateway's description of a shortened text.
fn shortened(meta: &Value) -> &Value {
    let about = &meta["shortened"];
    assert!(about.is_object(), "{meta}");
    about
}

/// Checks that the text is the beginning of the whole, the notice of the gateway, and its end.
fn assert_shortened(text: &str, whole: &str, about: &Value, place: &str) {
    assert_eq!(about["bytes"], whole.len(), "{about}");
    let [start, end] =
        ["gapStart", "gapEnd"].map(|part| usize::try_from(about[part].as_u64().unwrap()).unwrap());
    assert!(start + (whole.len() - end) <= SHOWN && start + 8 > SHOWN / 4 * 3, "{about}");
    assert!(text.starts_with(&whole[..start]) && text.ends_with(&whole[end..]), "{text}");
    let notice = &text[start..text.len() - (whole.len() - end)];
    for part in [&format!("has {} bytes", whole.len()), &format!("{} are left out", end - start), place] {
        assert!(notice.contains(part), "{part}: {notice}");
    }
}

/// Reads all pages of a resource as one text.
fn read_all(client: &mut McpTestClient, uri: &str) -> String {
    let (mut whole, mut next, mut pages) = (String::new(), Some(uri.to_owned()), 0);
    while let Some(uri) = next {
        let answer = client.request("resources/read", json!({ "uri": uri }));
        let result = &answer["result"];
        let page = &result["_meta"]["dev.steadfast/page"];
        assert_eq!(page["offset"], whole.len(), "{answer}");
        assert_eq!(result["contents"][0]["uri"], uri, "{answer}");
        let text = result["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(text.len() <= SHOWN, "{answer}");
        whole.push_str(text);
        next = page["next"].as_str().map(str::to_owned);
        // A model does not see `_meta`.
        let words = result["contents"][1]["text"].as_str();
        assert_eq!(words.is_some(), next.is_some(), "{answer}");
        assert!(next.as_deref().is_none_or(|next| words.unwrap().contains(next)), "{answer}");
        pages += 1;
    }
    assert!(pages > 1, "{whole}");
    whole
}

/// A client of the HTTP API of a gateway.
struct LargeResultApi<'c>(&'c McpTestClient);

impl LargeResultApi<'_> {
    fn request(&self, line: &str, accept: &str, body: &str) -> (u16, Vec<u8>) {
        let request =
            RawRequest::to(self.0.address()).header("accept", accept).line(&format!("{line} HTTP/1.1"));
        let RawResponse { status, body, .. } = send(&request.body(body)).unwrap();
        (status, body)
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.request(&format!("GET {path}"), "application/json", "");
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn call(&self, tool: &str, params: Value, key: Option<&str>) -> Value {
        let (status, body) = self.request("POST /v1/calls", "application/json", &call(tool, params, key));
        let response: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status, 200, "{response}");
        response
    }

    /// Reads all pages of a result as one text.
    fn read_all(&self, path: &str) -> String {
        let (mut whole, mut next) = (String::new(), Some(0));
        while let Some(offset) = next {
            let (status, page) = self.get(&format!("{path}?offset={offset}"));
            assert_eq!((status, &page["offset"]), (200, &json!(whole.len())), "{page}");
            whole.push_str(page["text"].as_str().unwrap());
            assert!(page["text"].as_str().unwrap().len() <= SHOWN, "{page}");
            next = page["next"].as_u64();
        }
        whole
    }
}

fn call(tool: &str, params: Value, key: Option<&str>) -> String {
    let call = json!({
        "contractVersion": "1.1", "requestId": "r-1", "toolNamespace": "bank", "toolName": tool,
        "target": { "sessionKey": "s", "actorId": "ann" },
        "payload": { "version": "1.0", "params": params, "idempotencyKey": key },
    });
    call.to_string()
}

fn text_of(output: &Value) -> &str {
    output["content"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{output}"))
}

/// Returns the files with results beside the state.
fn files(world: &GatewayWorld) -> Vec<PathBuf> {
    let results = world.folder().join(".local/state/steadfast/results");
    let is_text = |path: &Path| path.extension().is_some_and(|extension| extension == "txt");
    let Ok(folders) = fs::read_dir(results) else { return Vec::new() };
    let inside = folders.flatten().filter_map(|folder| fs::read_dir(folder.path()).ok());
    inside.flatten().flatten().map(|file| file.path()).filter(|path| is_text(path)).collect()
}

#[test]
fn a_client_with_resources_reads_a_large_result_in_pages_that_are_the_whole() {
    GatewayWorld::each("large_resource", LIMIT, |world| {
        let (mut client, long) = (world.client(), long());
        let response = client.call("look", with_text("a", &long));
        let about = shortened(&response.gateway_meta).clone();
        let uri = about["readAt"].as_str().unwrap();
        assert!(uri.starts_with("steadfast://results/"), "{about}");
        let place = format!("read the resource {uri}?offset={}", about["gapStart"]);
        assert_shortened(&response.text, &long, &about, &place);
        assert_eq!(read_all(&mut client, uri), long);
        // Invalid parameters of a page are refused here: the server does not know the resource, and is not asked.
        for (params, code, reason) in [
            (json!({ "uri": format!("{uri}?offset=100000") }), -32602, "after the end"),
            (json!({ "uri": format!("{uri}?offset=8") }), -32602, "begins at 7"),
            (json!({ "uri": format!("{uri}?page=2") }), -32602, "?offset="),
            (json!({ "uri": format!("{}x", &uri[..uri.len() - 1]) }), -32002, "call the tool again"),
        ] {
            let refused = &client.request("resources/read", params.clone())["error"];
            assert_eq!(refused["code"], code, "{params}: {refused}");
            assert!(refused["message"].as_str().unwrap().contains(reason), "{params}: {refused}");
        }
        let refused = client.request("resources/subscribe", json!({ "uri": uri }));
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        // Lists and other resources are the server's own.
        for (method, uri) in [("resources/list", "x"), ("resources/read", "steadfast://results/of-another")] {
            let answer = client.request(method, json!({ "uri": uri }));
            assert_eq!(answer["error"]["message"], format!("no method {method}"), "{answer}");
        }
        assert_eq!(world.count(&format!("resources/subscribe {uri}")), 0);
    });
}

#[test]
fn a_client_on_stdio_without_resources_gets_a_file_that_is_removed_when_it_disconnects() {
    for back in TestTransport::cases() {
        let world = GatewayWorld::of_era(ServerEra::Modern, "large_file", LIMIT, TestTransport::Stdio, back);
        let (mut client, long) = (world.client(), long());
        let response = client.call("look", with_text("a", &long));
        let about = shortened(&response.gateway_meta);
        let path = Path::new(about["readAt"].as_str().unwrap());
        let place = format!(
            "read the file {}; what is left out begins at byte {}",
            path.display(),
            about["gapStart"]
        );
        assert_shortened(&response.text, &long, about, &place);
        assert_eq!(fs::read_to_string(path).unwrap(), long);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(files(&world), [path]);
        let same = client.call("look", with_text("b", &long));
        assert_eq!(shortened(&same.gateway_meta), about, "the same text is kept once");
        client.hang_up();
        let results = path.ancestors().nth(2).unwrap();
        assert_eq!(fs::read_dir(results).unwrap().count(), 0, "{}", results.display());
    }
}

#[test]
fn files_of_a_gateway_that_was_killed_are_removed_by_the_next_one() {
    let world = GatewayWorld::of_era(
        ServerEra::Modern,
        "large_killed",
        LIMIT,
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let mut client = world.client();
    client.call("look", with_text("a", &long()));
    let left = files(&world);
    assert_eq!(left.len(), 1);
    kill(client.pid());
    client.wait_for_exit();
    assert_eq!(files(&world), left, "nobody could remove it");
    let mut next = world.client();
    assert_eq!(files(&world), [""; 0].map(PathBuf::from));
    next.call("look", with_text("b", &long()));
    assert_eq!(files(&world).len(), 1);
}

#[test]
fn a_client_over_http_without_resources_reads_the_rest_with_get() {
    for back in TestTransport::cases() {
        let world = GatewayWorld::of_era(ServerEra::Modern, "large_http", LIMIT, TestTransport::Http, back);
        let (mut client, long) = (world.client(), long());
        let response = client.call("look", with_text("a", &long));
        let about = shortened(&response.gateway_meta);
        let path = about["readAt"].as_str().unwrap();
        let place = format!("send `GET {path}?offset={}` to this gateway", about["gapStart"]);
        assert_shortened(&response.text, &long, about, &place);
        let api = LargeResultApi(&client);
        assert_eq!(api.read_all(path), long);
        let (status, refused) = api.get(&format!("{path}?offset=8"));
        assert_eq!(status, 400, "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("begins at 7"), "{refused}");
        let (status, unknown) = api.get("/v1/results/of-another");
        assert_eq!(status, 404, "{unknown}");
        assert!(files(&world).is_empty());
    }
}

#[test]
fn a_client_of_the_modern_era_has_resources_once_it_has_discovered_the_server() {
    GatewayWorld::each("large_modern", LIMIT, |world| {
        let (mut client, long) = (world.modern_client(json!({})), long());
        let response = client.call("look", with_text("a", &long));
        let place = shortened(&response.gateway_meta)["readAt"].as_str().unwrap().to_owned();
        assert!(!place.starts_with("steadfast:"), "nobody has told it of resources: {place}");
        client.request("server/discover", json!({}));
        let response = client.call("look", with_text("b", &format!("{long}b")));
        let uri = shortened(&response.gateway_meta)["readAt"].as_str().unwrap().to_owned();
        assert_eq!(read_all(&mut client, &uri), format!("{long}b"));
        let answer = client.request("resources/read", json!({ "uri": uri }));
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        assert_eq!(answer["result"]["cacheScope"], "private", "{answer}");
    });
}

#[test]
fn a_call_over_http_is_shortened_and_each_replay_of_it_from_the_original() {
    let world = GatewayWorld::of("large_calls", LIMIT, TestTransport::Http, TestTransport::Stdio);
    let (client, long) = (world.client(), long());
    let api = LargeResultApi(&client);
    let first = api.call("pay", with_text("a", &long), Some("k"));
    for (response, from_cache) in
        [(&first, false), (&api.call("pay", with_text("a", &long), Some("k")), true)]
    {
        assert_eq!(response["fromCache"], from_cache, "{response}");
        let about = shortened(response);
        let path = about["readAt"].as_str().unwrap();
        assert_shortened(text_of(&response["output"]), &long, about, &format!("`GET {path}?offset="));
        assert_eq!(api.read_all(path), long);
    }
    assert_eq!(world.count("pay a"), 1);
    // The stored result is the original: without the limit all of it is there.
    let shown = world.logged("config.replaced").len();
    world.configure("");
    wait(|| world.logged("config.replaced").len() > shown, || format!("a reload in {:#?}", world.log()));
    let whole = api.call("pay", with_text("a", &long), Some("k"));
    assert_eq!((text_of(&whole["output"]), &whole["fromCache"]), (&*long, &json!(true)));
    assert_eq!(whole.get("shortened"), None);
}

#[test]
fn a_call_with_an_event_stream_ends_with_the_same_shortened_result() {
    let world = GatewayWorld::of("large_events", LIMIT, TestTransport::Http, TestTransport::Stdio);
    let (client, long) = (world.client(), long());
    let api = LargeResultApi(&client);
    let (_, events) =
        api.request("POST /v1/calls", "text/event-stream", &call("look", with_text("a", &long), None));
    let events = String::from_utf8(events).unwrap();
    let result = events.split("event: result\ndata: ").nth(1).and_then(|rest| rest.lines().next());
    let response: Value = serde_json::from_str(result.unwrap_or_else(|| panic!("{events}"))).unwrap();
    let path = shortened(&response)["readAt"].as_str().unwrap();
    assert_shortened(text_of(&response["output"]), &long, shortened(&response), path);
    assert_eq!(api.read_all(path), long);
}

#[test]
fn tools_without_a_server_are_shortened_like_any_other() {
    let config = format!("{LIMIT}[command_tools.print]\ncommand = [\"cat\"]\n");
    let world = GatewayWorld::of("large_command", &config, TestTransport::Http, TestTransport::Stdio);
    let client = world.client();
    let api = LargeResultApi(&client);
    // A command that prints its arguments prints JSON, which is structured content and passes whole.
    let long = long();
    let body = call("print", json!({ "text": long }), None).replace("\"bank\"", "\"command\"");
    let (_, response) = api.request("POST /v1/calls", "application/json", &body);
    let response: Value = serde_json::from_slice(&response).unwrap();
    assert_eq!(response["output"]["content"]["text"], json!(long), "{response}");
    assert_eq!(response.get("shortened"), None);
}

#[test]
fn errors_are_shortened_like_answers_and_keep_their_beginning_and_end() {
    GatewayWorld::each("large_errors", LIMIT, |world| {
        let (mut client, long) = (world.client(), long());
        let response = client.call("look", json!({ "id": "a", "fault": "error", "text": long }));
        assert!(response.is_error, "{response:?}");
        let uri = shortened(&response.gateway_meta)["readAt"].as_str().unwrap().to_owned();
        // The gateway's own notice is a separate part.
        assert!(response.text.starts_with(&long[..SHOWN / 2]), "{}", response.text);
        assert_eq!(read_all(&mut client, &uri), long);
        let id =
            client.send_call("fold", json!({ "id": "b", "fault": "code", "code": -32602, "text": long }));
        let error = client.answer(id)["error"].clone();
        let text = error["message"].as_str().unwrap_or_else(|| panic!("{error}"));
        assert_eq!((&error["code"], &error["data"]), (&json!(-32602), &json!({ "a": [1] })), "{error}");
        assert!(text.len() < 2 * SHOWN && text.starts_with(&long[..SHOWN / 2]), "{text}");
        let uri = text.split(['?', ' ']).find(|word| word.starts_with("steadfast:")).unwrap();
        assert_eq!(read_all(&mut client, uri), long);
    });
}

#[test]
fn images_and_structured_content_pass_whole_beside_text_that_is_shortened() {
    GatewayWorld::each("large_binary", LIMIT, |world| {
        let (mut client, long) = (world.client(), long());
        let data = "QUJD".repeat(1000);
        let result = |content: Value| {
            let result = json!({ "content": content, "structuredContent": { "rows": long }, "own": 1 });
            let line = json!({ "jsonrpc": "2.0", "id": "$ID", "result": result }).to_string();
            json!({ "id": "a", "fault": "instead", "lines": [line.replace("\"$ID\"", "$ID")] })
        };
        let image = json!({ "type": "image", "data": data, "mimeType": "image/png" });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let embedded = json!({ "type": "resource", "resource": { "uri": "a:1", "text": "end" } });
        let content = json!([text("begin"), image, text(&long), embedded]);
        let id = client.send_call("look", result(content));
        let answer = client.answer(id)["result"].clone();
        let about = shortened(&answer["_meta"]["dev.steadfast/result"]).clone();
        let blocks = answer["content"].as_array().unwrap();
        assert_eq!((&blocks[0], &blocks[1], &blocks[3]), (&text("begin"), &image, &embedded), "{answer}");
        assert_eq!((&answer["structuredContent"]["rows"], &answer["own"]), (&json!(long), &json!(1)));
        assert!(blocks[2]["text"].as_str().unwrap().contains("Shortened by Steadfast"), "{answer}");
        let whole = read_all(&mut client, about["readAt"].as_str().unwrap());
        assert_eq!(whole, format!("begin\n{long}\nend"), "its texts, with line breaks between them");
        // Without text there is nothing to shorten.
        let id = client.send_call("look", result(json!([image])));
        let answer = client.answer(id)["result"].clone();
        assert_eq!((&answer["content"][0], answer.get("_meta")), (&image, None), "{answer}");
    });
}

#[test]
fn a_turn_uses_originals_for_arguments_and_gives_shortened_outputs() {
    GatewayWorld::each("large_turn", &format!("gateway.run_turn = true\n{LIMIT}"), |world| {
        let (mut client, long) = (world.client(), "0123456789".repeat(300));
        let plan = json!({ "calls": [
            { "id": "look", "tool": "look", "params": with_text("a", &long) },
            { "id": "pay", "tool": "pay", "params": { "id": { "$from": "look", "path": "/content/0/text" } } },
        ] });
        let response = client.call("run_turn", plan);
        assert_eq!(world.count(&format!("pay {long}")), 1, "{response:?}");
        let call = &response.structured["calls"][0];
        let about = shortened(call);
        let text = call["output"]["content"][0]["text"].as_str().unwrap();
        assert_shortened(text, &long, about, about["readAt"].as_str().unwrap());
        assert!(!response.text.contains(&long), "{}", response.text);
        assert_eq!(read_all(&mut client, about["readAt"].as_str().unwrap()), long);
    });
}

#[test]
fn large_results_expire_and_the_files_of_expired_ones_are_removed() {
    let config = format!("{LIMIT}[results]\nkeep = \"1ms\"\n");
    let world = GatewayWorld::of("large_expired", &config, TestTransport::Http, TestTransport::Stdio);
    let client = world.client();
    let api = LargeResultApi(&client);
    let response = api.call("look", with_text("a", &long()), None);
    let path = shortened(&response)["readAt"].as_str().unwrap().to_owned();
    wait(|| api.get(&path).0 == 404, || format!("the end of {path}"));
    let (_, expired) = api.get(&path);
    assert!(expired["error"]["message"].as_str().unwrap().contains("make the call again"), "{expired}");

    let world = GatewayWorld::of_era(
        ServerEra::Modern,
        "large_file_expired",
        &config,
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let response = world.client().call("look", with_text("a", &long()));
    assert!(response.text.contains("is kept for 1 ms"), "{}", response.text);
    wait(|| files(&world).is_empty(), || format!("the end of {:?}", files(&world)));
}

#[test]
fn large_results_are_bounded_and_those_that_cannot_be_stored_pass_whole() {
    let config = format!("{LIMIT}[results]\nentries = 1\nbytes = \"16KiB\"\n");
    let world = GatewayWorld::of("large_bounds", &config, TestTransport::Http, TestTransport::Stdio);
    let (mut client, long) = (world.client(), long());
    let uri =
        |response: &ToolResponse| shortened(&response.gateway_meta)["readAt"].as_str().unwrap().to_owned();
    let first = uri(&client.call("look", with_text("a", &long)));
    let second = uri(&client.call("look", with_text("b", &format!("{long}b"))));
    let evicted = client.request("resources/read", json!({ "uri": first }));
    assert_eq!(evicted["error"]["code"], -32002, "{evicted}");
    assert_eq!(read_all(&mut client, &second), format!("{long}b"));
    let larger = long.repeat(3);
    let response = client.call("look", with_text("c", &larger));
    assert_eq!((response.text, response.gateway_meta), (larger, Value::Null));
    assert_eq!(world.logged_times("result.not_kept", 1)[0]["bytes"], long.len() * 3);
    assert_eq!(read_all(&mut client, &second), format!("{long}b"), "it pushed nothing out");
    assert!(!format!("{:?}", world.log()).contains("line 7 "), "texts of results are in no log");
}

#[test]
fn a_text_that_cannot_be_written_as_a_file_passes_whole() {
    let world = GatewayWorld::of_era(
        ServerEra::Modern,
        "large_unwritable",
        LIMIT,
        TestTransport::Stdio,
        TestTransport::Stdio,
    );
    let (mut client, long) = (world.client(), long());
    fs::write(world.folder().join(".local/state/steadfast/results"), "in its place").unwrap();
    let response = client.call("look", with_text("a", &long));
    assert_eq!((response.text, response.gateway_meta), (long, Value::Null));
    world.logged_times("result.not_kept", 1);
}

#[test]
fn the_limit_is_that_of_the_tool_and_without_one_nothing_is_changed() {
    for (config, is_shortened) in [
        ("", false),
        ("[tools.\"bank/look\"]\nresult_limit = \"1KiB\"\n", true),
        ("[tools.\"bank/pay\"]\nresult_limit = \"1KiB\"\n", false),
        ("result_limit = \"1KiB\"\n[tools.\"bank/look\"]\nresult_limit = \"none\"\n", false),
        // Where no mechanism acts, results are not changed.
        ("result_limit = \"1KiB\"\nmode = \"shadow\"\n", false),
        ("result_limit = \"1KiB\"\nmode = \"off\"\n", false),
    ] {
        GatewayWorld::each("large_limit", config, |world| {
            let (mut client, mut bare) = (world.client(), world.bare());
            let arguments = with_text("a", &long());
            let of = |client: &mut McpTestClient| {
                let id = client.send_call("look", arguments.clone());
                client.answer(id)["result"].clone()
            };
            let (answer, own) = (of(&mut client), of(&mut bare));
            assert_eq!(answer != own, is_shortened, "{config}");
            assert_eq!(answer.get("_meta").is_some(), is_shortened, "{config}");
        });
    }
}

#[test]
fn the_results_of_several_servers_are_read_at_the_gateway() {
    let world = GatewayWorld::of("large_serve", LIMIT, TestTransport::Http, TestTransport::Stdio);
    let server = |name: &str| {
        let (program, ledger) = (env!("CARGO_BIN_EXE_steadfast-test-server"), world.folder().join(name));
        fs::write(&ledger, "").unwrap();
        format!("[servers.{name}]\ncommand = [{program:?}, {ledger:?}]\n")
    };
    world.configure(&format!("{LIMIT}{}{}", server("bank"), server("shop")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
    command.arg("serve").args(LISTEN).current_dir(world.folder()).env("HOME", world.folder());
    command.env_remove("XDG_STATE_HOME");
    let mut client = initialized(McpTestClient::over_http(command));
    let long = long();
    for tool in ["bank__look", "shop__look"] {
        let text = format!("{tool}\n{long}");
        let response = client.call(tool, with_text("a", &text));
        assert_eq!(
            read_all(&mut client, shortened(&response.gateway_meta)["readAt"].as_str().unwrap()),
            text
        );
    }
}

#[test]
fn a_call_that_waited_for_a_large_result_gets_a_shortened_one_too() {
    let world = GatewayWorld::of("large_followed", LIMIT, TestTransport::Http, TestTransport::Stdio);
    let gate = world.set_behavior("gate");
    let mut client = world.client();
    // The run waits at the gate. Its final answer contains its id.
    let name = "0123456789".repeat(300);
    let arguments = json!({ "id": name, "fault": "gate" });
    let sent: Vec<u64> =
        (0..2).map(|_| client.send_call_with("pay", arguments.clone(), keyed("k"))).collect();
    world.until(&format!("pay {name}"), 1);
    fs::remove_file(gate).unwrap();
    let whole = format!("pay {name}, run 1");
    for id in sent {
        let response = ToolResponse::of(&client.answer(id));
        assert_eq!(
            read_all(&mut client, shortened(&response.gateway_meta)["readAt"].as_str().unwrap()),
            whole
        );
    }
    assert_eq!(world.count(&format!("pay {name}")), 1);
}
