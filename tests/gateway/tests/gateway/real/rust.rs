//! The Rust SDK as a client, in both eras, over stdio and over HTTP.

use rmcp::model::{CallToolRequestParams, ProtocolVersion};
use rmcp::service::RunningService;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientLifecycleMode, ClientServiceExt as _, RoleClient};
use serde_json::json;
use steadfast_testkit::effort::TestEffort;

use super::http::ListeningServer;
use super::{RealServer, RealServerFolder, ServerRoute};
use crate::world::{TEST_TIMEOUT, TestTransport};

/// Returns the ways to begin, and the resulting version of each.
fn beginnings() -> Vec<(ClientLifecycleMode, ProtocolVersion)> {
    let modern = ProtocolVersion::V_2026_07_28;
    let preferred_versions = vec![modern.clone()];
    let auto =
        ClientLifecycleMode::Auto { preferred_versions: preferred_versions.clone(), legacy_version: None };
    vec![
        (ClientLifecycleMode::Initialize, ProtocolVersion::V_2025_11_25),
        (ClientLifecycleMode::Discover { preferred_versions }, modern.clone()),
        (auto, modern),
    ]
}

async fn use_tools(client: RunningService<RoleClient, ()>, version: &ProtocolVersion) {
    assert_eq!(client.peer_info().map(|server| server.protocol_version.clone()).as_ref(), Some(version));
    let tools = client.list_all_tools().await.unwrap();
    assert!(tools.iter().any(|tool| tool.name == "add"), "{tools:?}");
    let call = |name: &'static str, arguments: serde_json::Value| {
        let arguments = arguments.as_object().cloned().unwrap();
        client.call_tool(CallToolRequestParams::new(name).with_arguments(arguments))
    };
    let sum = call("add", json!({ "a": 1, "b": 2 })).await.unwrap();
    assert_eq!(sum.structured_content, Some(json!({ "result": 3 })), "{sum:?}");
    let failed = call("fail", json!({ "why": "no reason" })).await.unwrap();
    assert_eq!(failed.is_error, Some(true), "{failed:?}");
    // Concurrently, like a model that calls several tools at once.
    let (one, two) =
        tokio::join!(call("add", json!({ "a": 2, "b": 2 })), call("add", json!({ "a": 3, "b": 2 })));
    assert_eq!(one.unwrap().structured_content, Some(json!({ "result": 4 })));
    assert_eq!(two.unwrap().structured_content, Some(json!({ "result": 5 })));
    client.cancel().await.unwrap();
}

/// Runs the work, and fails if it never ends.
fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, work).await.expect("it ends") });
}

#[test]
fn the_rust_sdk_works_over_stdio_in_both_eras() {
    let place = RealServerFolder::new("real_rmcp_streams", "");
    run(async {
        // Detecting the era is left to HTTP: here the start of the server counts, and a client that waits ten seconds
        // for it falls back.
        let mut known = beginnings();
        known.truncate(2);
        for (mode, version) in TestEffort::of_this_run().cases(known) {
            let command = RealServer::python("server_mcp.py").command(&place, ServerRoute::Through);
            let transport = TokioChildProcess::new(tokio::process::Command::from(command)).unwrap();
            use_tools(().serve_with_lifecycle(transport, mode).await.unwrap(), &version).await;
        }
    });
}

#[test]
fn the_rust_sdk_works_over_http_in_both_eras() {
    for back in TestTransport::cases() {
        let place = RealServerFolder::new(&format!("real_rmcp_http_{back:?}"), "");
        let gateway = ListeningServer::gateway(&place, RealServer::python("server_mcp.py"), back);
        run(async {
            for (mode, version) in TestEffort::of_this_run().cases(beginnings()) {
                let transport = StreamableHttpClientTransport::from_uri(gateway[0].url());
                use_tools(().serve_with_lifecycle(transport, mode).await.unwrap(), &version).await;
            }
        });
    }
}
