//! The HTTP API with requests that a generator makes from its document: valid, nearly valid, and invalid ones. Every
//! check of the generator runs, as each kind of caller: valid requests are accepted, all others are refused, and there
//! is no answer that the document does not have. [`CONFIG`] says which statuses may answer a request that fits its
//! schema.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use steadfast_testkit::effort::TestEffort;

use super::installed;
use crate::client::McpTestClient;
use crate::raw::{RawRequest, send};
use crate::world::{GatewayWorld, LISTEN, TestTransport};

/// The generator's rules for errors.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/real/schemathesis.toml");

#[test]
fn sf_5_every_endpoint_answers_as_in_the_document_without_a_token() {
    assert_answers_match_document("generated_open", &[], None);
}

#[test]
fn sf_5_every_endpoint_answers_as_in_the_document_with_the_token_of_a_client() {
    assert_answers_match_document("generated_client", &[("STEADFAST_TOKEN", "agent")], Some("agent"));
}

#[test]
fn sf_5_every_endpoint_answers_as_in_the_document_with_the_admin_token() {
    assert_answers_match_document("generated_admin", &[("STEADFAST_TOKEN", "agent")], Some("person"));
}

/// Sends requests to a gateway with these variables, with this token.
fn assert_answers_match_document(test: &str, variables: &[(&str, &str)], token: Option<&str>) {
    // The generator begins calls that it never ends, and then repeats them, which would wait for their end.
    let world = GatewayWorld::of(test, "stuck_after = \"1s\"\n", TestTransport::Http, TestTransport::Stdio);
    let mut gateway = world.wrap(&LISTEN);
    gateway.env("STEADFAST_ADMIN_TOKEN", "person").envs(variables.iter().copied());
    let client = McpTestClient::over_http(gateway);
    let mut generator = Command::new(installed("python").join("bin/st"));
    generator.args(["--config-file", CONFIG, "run", &format!("http://{}/openapi.json", client.address())]);
    if let Some(token) = token {
        generator.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    generator.args(["--checks", "all", "--exclude-path", EVENTS]);
    let effort = TestEffort::of_this_run();
    if let TestEffort::Stress { .. } = effort {
        generator.args(effort.cases(shares(client.address())).concat());
    }
    let examples = effort.pick("1", "5", "100");
    generator.args(["--max-examples", examples, "--continue-on-failure"]);
    // The same in every run, so that failures are reproducible, however slow the machine is.
    generator.args(["--seed", "1", "--suppress-health-check", "all"]);
    generator.args(["--request-timeout", "600", "--max-response-time", "600"]);
    generator.args(["--warnings", "off", "--no-color"]);
    let output = generator.current_dir(world.folder() as &Path).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("No issues found"), "{stdout}");
}

/// Returns the shares of the whole run as options of the generator: a few paths each, and for all paths those sequences
/// of requests in which one uses the answer of another.
fn shares(gateway: SocketAddr) -> Vec<Vec<String>> {
    let answered = send(&RawRequest::to(gateway).line("GET /openapi.json HTTP/1.1")).unwrap();
    let document: Value = serde_json::from_slice(&answered.body).unwrap();
    let paths: Vec<_> =
        document["paths"].as_object().unwrap().keys().filter(|path| *path != EVENTS).collect();
    // Neighbours are alike: those that take long are not in one share.
    let of_paths = |first: usize| paths.iter().skip(first).step_by(PATH_SHARES);
    let options = |first| of_paths(first).map(|path| format!("--include-path={path}")).collect();
    (0..PATH_SHARES).map(options).chain([vec!["--phases=stateful".to_owned()]]).collect()
}

/// So few that each share has its round under stress.
const PATH_SHARES: usize = 16;

/// Event streams never end.
const EVENTS: &str = "/v1/events";
