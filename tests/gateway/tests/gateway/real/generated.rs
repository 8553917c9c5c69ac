//! The HTTP API, asked whatever a generator makes of its own document: what is allowed, what is nearly allowed, and what is
//! not.

use std::path::Path;

use super::installed;
use crate::world::{By, World};

/// All that it can find out but one thing: that whatever fits a schema is accepted. There is more to a request than that.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,\
                      allow_header_conformance,ignored_auth";

#[test]
fn sf_5_every_endpoint_answers_as_the_document_says_whatever_it_is_asked() {
    let world = World::of("generated", "", By::Http, By::Stdio);
    let client = world.client_of("bank", |gateway| {
        gateway.env("STEADFAST_ADMIN_TOKEN", "person");
    });
    let document = format!("http://{}/openapi.json", client.address());
    let mut generator = std::process::Command::new(installed("python").join("bin/st"));
    generator.args(["run", &document, "--header", "Authorization: Bearer person", "--checks", CHECKS]);
    // Events go on for ever.
    let examples = if std::env::var_os("LONG_TESTS").is_some() { "100" } else { "10" };
    generator.args([
        "--exclude-path",
        "/v1/events",
        "--phases",
        "coverage,fuzzing",
        "--max-examples",
        examples,
    ]);
    // The same in every run, so that what fails here fails again.
    generator.args(["--seed", "1", "--warnings", "off", "--no-color"]);
    let output = generator.current_dir(world.folder() as &Path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("No issues found"), "{said}");
}
