//! The reference servers with a state: files, and a graph of facts.

use std::fs;

use serde_json::json;

use super::RealServer;
use super::conversation::everything;
use super::parity::assert_same;

#[test]
fn sf_4_the_filesystem_server_is_the_same_through_the_gateway() {
    assert_same(
        "sf_4_files",
        |data| RealServer::node("mcp-server-filesystem").arg(data),
        |talk, data| {
            let at = |name: &str| data.join(name).display().to_string();
            talk.initialize(json!({}));
            talk.request("tools/list", json!({}));
            talk.call("list_allowed_directories", json!({}));
            talk.call("create_directory", json!({ "path": at("inner") }));
            talk.call("write_file", json!({ "path": at("a.txt"), "content": "one\ntwo\n" }));
            assert_eq!(fs::read_to_string(data.join("a.txt")).unwrap(), "one\ntwo\n");
            talk.call("read_text_file", json!({ "path": at("a.txt"), "head": 1 }));
            let edit = json!([{ "oldText": "two", "newText": "three" }]);
            talk.call("edit_file", json!({ "path": at("a.txt"), "edits": edit, "dryRun": true }));
            talk.call("edit_file", json!({ "path": at("a.txt"), "edits": edit }));
            talk.call("move_file", json!({ "source": at("a.txt"), "destination": at("inner/b.txt") }));
            talk.call("list_directory", json!({ "path": at("inner") }));
            talk.call("list_directory_with_sizes", json!({ "path": at("inner"), "sortBy": "size" }));
            talk.call("directory_tree", json!({ "path": at("") }));
            talk.call("search_files", json!({ "path": at(""), "pattern": "**/*.txt" }));
            talk.call("get_file_info", json!({ "path": at("inner/b.txt") }));
            talk.call("read_media_file", json!({ "path": at("inner/b.txt") }));
            talk.call("read_multiple_files", json!({ "paths": [at("inner/b.txt"), at("none")] }));
            // Requests that the server refuses.
            talk.call("read_text_file", json!({ "path": at("none") }));
            talk.call("read_text_file", json!({ "path": "/etc/hostname" }));
            talk.call("write_file", json!({ "path": at("c.txt") }));
            talk.call("read_text_file", json!({ "path": at("inner/b.txt") }));
            assert_eq!(fs::read_to_string(data.join("inner/b.txt")).unwrap(), "one\nthree\n");
        },
    );
}

#[test]
fn sf_4_the_filesystem_server_gets_its_folders_from_the_client_through_the_gateway() {
    assert_same(
        "sf_4_roots",
        |data| RealServer::node("mcp-server-filesystem").arg(data),
        |talk, data| {
            talk.initialize(everything());
            talk.until("the roots being asked for", 1, |message| message["method"] == "roots/list");
            talk.call("list_allowed_directories", json!({}));
            talk.call("list_directory", json!({ "path": data.display().to_string() }));
        },
    );
}

#[test]
fn sf_4_the_memory_server_is_the_same_through_the_gateway() {
    let server = |data: &std::path::Path| {
        RealServer::node("mcp-server-memory").env("MEMORY_FILE_PATH", data.join("memory.jsonl"))
    };
    assert_same("sf_4_memory", server, |talk, data| {
        talk.initialize(json!({}));
        talk.request("tools/list", json!({}));
        let entities = json!([
            { "name": "Ada", "entityType": "person", "observations": ["counts"] },
            { "name": "engine", "entityType": "machine", "observations": [] },
        ]);
        talk.call("create_entities", json!({ "entities": entities }));
        talk.call("create_entities", json!({ "entities": entities }));
        let relations = json!([{ "from": "Ada", "to": "engine", "relationType": "writes for" }]);
        talk.call("create_relations", json!({ "relations": relations }));
        let observations = json!([{ "entityName": "engine", "contents": ["has cogs"] }]);
        talk.call("add_observations", json!({ "observations": observations }));
        talk.call(
            "add_observations",
            json!({ "observations": [{ "entityName": "nobody", "contents": [] }] }),
        );
        talk.call("search_nodes", json!({ "query": "cogs" }));
        talk.call("open_nodes", json!({ "names": ["Ada"] }));
        talk.call("delete_relations", json!({ "relations": relations }));
        let deleted = json!([{ "entityName": "Ada", "observations": ["counts"] }]);
        talk.call("delete_observations", json!({ "deletions": deleted }));
        talk.call("delete_entities", json!({ "entityNames": ["engine"] }));
        let graph = talk.call("read_graph", json!({}));
        assert_eq!(graph["structuredContent"]["entities"].as_array().map(Vec::len), Some(1), "{graph}");
        assert!(fs::exists(data.join("memory.jsonl")).unwrap());
    });
}
