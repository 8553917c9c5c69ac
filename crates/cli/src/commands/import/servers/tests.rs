use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;

const JSON: &[TablePath] = &[&["mcpServers"], &["projects", "*", "mcpServers"]];
const TOML: &[TablePath] = &[&["mcp_servers"]];

fn wrapping() -> ImportRequest {
    let program = ProgramLocation { path: "/bin/steadfast".to_owned(), name: Some("steadfast".to_owned()) };
    ImportRequest::Wrap { program, without_sign_in: Vec::new() }
}

/// Rewrites one file, with no other servers.
fn rewrite(
    text: &str,
    form: ConfigFormat,
    table_paths: &[TablePath],
    request: &ImportRequest,
) -> Result<(Vec<ImportedServer>, String), SyntaxError> {
    super::rewrite(text, form, table_paths, request, &mut ServerNames::default())
}

fn there_and_back(text: &str, form: ConfigFormat, table_paths: &[TablePath]) -> String {
    let (_, wrapped) = rewrite(text, form, table_paths, &wrapping()).unwrap();
    assert_ne!(wrapped, text);
    let (again, same) = rewrite(&wrapped, form, table_paths, &wrapping()).unwrap();
    assert!(again.iter().all(|server| !matches!(server.verdict, ServerVerdict::Change { .. })), "{again:?}");
    assert_eq!(same, wrapped);
    let (_, back) = rewrite(&wrapped, form, table_paths, &ImportRequest::Unwrap).unwrap();
    assert_eq!(back, text);
    wrapped
}

#[test]
fn every_spelling_of_a_server_in_json_is_wrapped_and_restored() {
    for server in [
        r#"{"command": "npx", "args": ["-y", "x"]}"#,
        r#"{"command":"npx","args":["-y"],"env":{"A":"b"}}"#,
        r#"{"command": "npx"}"#,
        r#"{ "command" : "npx" , }"#,
        r#"{"env": {}, "command": "n\u0070x"}"#,
        "{\n  \"command\": \"npx\" // why\n}",
        "{\r\n\t\"command\": \"npx\",\r\n\t\"env\": {}\r\n}",
        r#"{"command": "npx", "args": []}"#,
        "{\"args\": [ // none\n ], \"command\": \"npx\"}",
        "{\"command\": \"npx\", \"args\": [\n  // first\n  \"-y\", \"x\",\n]}",
        "{command: 'npx', args: ['-y',],}",
        "{\n  command: 'npx',\n}",
        r#"{"url": "http://127.0.0.1:1/mcp"}"#,
        r#"{"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer s", "X-Team": "a"}}"#,
        r#"{"headers": {"x-a": "1", "X_A": "2"}, "type":"streamable-http","url":"https://x/mcp","disabled":true}"#,
        "{\n\t\"url\": \"https://x/mcp\", // why\n\t\"headers\": {\n\t\t// mine\n\t\t\"A\": \"${input:key}\",\n\t},\n}",
        "{type: 'http', url: 'https://x/mcp', headers: {Authorization: 'Bearer s'}}",
        r#"{"url": "https://x/mcp?api_key=sk-0123456789abcdef0123456789abcdef"}"#,
        r#"{"url": "https://x/mcp?api_key=hunter2hunter2", "headers": {"A": "b"}}"#,
    ] {
        there_and_back(&format!("{{\"mcpServers\": {{\"bank\": {server}}}}}"), ConfigFormat::Json, JSON);
    }
}

#[test]
fn every_spelling_of_a_server_in_toml_is_wrapped_and_restored() {
    for text in [
        "[mcp_servers.bank]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]\n",
        "[mcp_servers.bank]\r\ncommand = 'npx' # why\r\nenv = { A = \"b\" }\r\n",
        "[mcp_servers.bank]\ncommand = \"npx\"",
        "[mcp_servers]\n  bank.command = \"npx\"\n  bank.env.A = \"b\"\n",
        "mcp_servers.bank.command = \"npx\"\n",
        "mcp_servers = { bank = { command = \"npx\" } }\n",
        "[mcp_servers]\nbank = {command=\"npx\",args=[]}\n",
        "[mcp_servers.far]\nurl = \"https://x/mcp\"\nbearer_token_env_var = \"TOKEN\"\n",
        "[mcp_servers.far]\nurl = 'https://x/mcp' # why\nhttp_headers = { Authorization = \"Bearer s\", \"X-B\" = 'c' }\nenabled = true\n",
        "[mcp_servers.far]\r\nurl = \"https://x/mcp\"\r\n[mcp_servers.far.http_headers]\r\nX-A = \"b\"\r\n",
        "[mcp_servers.far]\nurl = \"https://x/mcp?api_key=hunter2hunter2\"\n[mcp_servers.far.http_headers]\nX-A = \"b\"\n",
        "[mcp_servers.far]\nurl = \"https://x/mcp?api_key=hunter2hunter2\"\ntool_timeout_sec = 5\n",
        "[mcp_servers]\nfar = { url = \"http://localhost:1/mcp\" }\n",
        "[mcp_servers.\"a b\"]\nargs = [\n  \"-y\", # yes\n]\ncommand = '''npx'''\n[mcp_servers.\"a b\".env]\nA = \"b\"\n",
    ] {
        there_and_back(text, ConfigFormat::Toml, TOML);
    }
}

#[test]
fn the_lines_that_are_written_read_well() {
    let text = "{\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"npx\",\n      \"args\": [\n        \"-y\"\n      ]\n    },\n    \"b\": {\n      \"command\": \"b\"\n    }\n  }\n}\n";
    let expected = "{\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"steadfast\",\n      \"args\": [\n        \"wrap\", \"--imported\", \"--name\", \"a\", \"--\", \"npx\",\n        \"-y\"\n      ]\n    },\n    \"b\": {\n      \"command\": \"steadfast\",\n      \"args\": [\"wrap\", \"--imported\", \"--name\", \"b\", \"--\", \"b\"]\n    }\n  }\n}\n";
    assert_eq!(there_and_back(text, ConfigFormat::Json, JSON), expected);
}

#[test]
fn reformatted_and_edited_servers_are_unwrapped_too() {
    for (text, back) in [
        (
            "{\"mcpServers\":{\"a\":{\"args\":[\n\"wrap\",\n\"--imported\",\n\"--name\",\n\"a\",\n\"--\",\n\"npx\",\n\"-y\"\n],\"command\":\"/x/steadfast\"}}}",
            "{\"mcpServers\":{\"a\":{\"args\":[\n\"-y\"\n],\"command\":\"npx\"}}}",
        ),
        (
            r#"{"mcpServers":{"a":{"args":["wrap","--store","memory","--imported","--","npx",],"command":"C:\\x\\Steadfast.EXE","env":{}}}}"#,
            r#"{"mcpServers":{"a":{"command":"npx","env":{}}}}"#,
        ),
        (
            r#"{"mcpServers":{"a":{"command":"steadfast", /* mine */ "args":["wrap","--imported","--name","a","--","npx",]}}}"#,
            r#"{"mcpServers":{"a":{"command":"npx", /* mine */ "args":[]}}}"#,
        ),
    ] {
        assert_eq!(rewrite(text, ConfigFormat::Json, JSON, &ImportRequest::Unwrap).unwrap().1, back);
    }
}

#[test]
fn servers_that_cannot_be_wrapped_are_unchanged_with_a_reason() {
    let text = r#"{"mcpServers": {
        "url": {"url": "https://x"}, "http": {"type": "http", "url": "https://x"}, "number": 1,
        "sse": {"type": "sse", "url": "https://x", "headers": {"A": "b"}}, "path": {"url": "http://x/sse"},
        "oauth": {"url": "http://x", "oauth": {}}, "cert": {"url": "http://x", "clientCert": "c"},
        "both": {"url": "http://x", "env": {}}, "user": {"url": "http://me:pw@x/"}, "other": {"serverUrl": "http://x"}, "header": {"url": "http://x", "headers": {"A": 1}},
        "sdk": {"type": "sdk", "command": "x"}, "nothing": {}, "odd": {"command": ["npx"]}, "args": {"command": "npx", "args": "-y"},
        "line": {"command": "npx -y x"}, "": {"command": "npx"}, "ours": {"command": "steadfast", "args": ["serve"]}
    }}"#;
    let (servers, new) = rewrite(text, ConfigFormat::Json, JSON, &wrapping()).unwrap();
    assert_eq!(new, text);
    let reasons: Vec<_> = servers
        .iter()
        .map(|server| match &server.verdict {
            ServerVerdict::Left(reason) => reason.as_str(),
            ServerVerdict::AlreadyDone => "as wished",
            ServerVerdict::Change { .. } => "changed",
        })
        .collect();
    let expected = [
        "--without-sign-in",
        "--without-sign-in",
        "a number",
        "older transport",
        "older transport",
        "`oauth`",
        "`clientCert`",
        "both `url` and `env`",
        "password",
        "is not supported",
        "not a table of names",
        "`stdio`",
        "neither",
        "a list",
        "texts",
        "whole command line",
        "not a valid server name",
        "as wished",
    ];
    assert_eq!(reasons.len(), expected.len());
    for (reason, expected) in reasons.iter().zip(expected) {
        assert!(reason.contains(expected), "{expected} in {reason}");
    }
}

#[test]
fn unexpected_shapes_are_reported_with_their_offset() {
    for (text, offset) in [
        ("[]", 0),
        (r#"{"mcpServers": []}"#, 15),
        (r#"{"projects": {"/x": 1}}"#, 20),
        (r#"{"mcpServers": {}, "mcpServers": {}}"#, 19),
        (r#"{"mcpServers": {"a": {}, "a": {}}}"#, 25),
        (r#"{"mcpServers": {"a": {"command": "a", "command": "b"}}}"#, 38),
    ] {
        assert_eq!(
            rewrite(text, ConfigFormat::Json, JSON, &wrapping()).unwrap_err().offset,
            offset,
            "{text}"
        );
    }
}

#[test]
fn servers_with_flag_like_names_or_a_path_of_their_own_are_started() {
    let text = r#"{"mcpServers": {"-a": {"command": "x"}, "b": {"command": "x", "env": {"PATH": "/y"}}}}"#;
    let (servers, _) = rewrite(text, ConfigFormat::Json, JSON, &wrapping()).unwrap();
    let becomes: Vec<_> = servers
        .into_iter()
        .map(|server| match server.verdict {
            ServerVerdict::Change { becomes, .. } => becomes.join(" "),
            ServerVerdict::AlreadyDone | ServerVerdict::Left(_) => panic!("left"),
        })
        .collect();
    assert_eq!(
        becomes,
        ["steadfast wrap --imported --name=-a -- x", "/bin/steadfast wrap --imported --name b -- x"]
    );
}

#[test]
fn a_server_with_a_url_keeps_the_values_of_its_headers_off_the_command_line() {
    let text = r#"{"mcpServers": {"far": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer s3cret"}}}}"#;
    let wrapped = there_and_back(text, ConfigFormat::Json, JSON);
    assert_eq!(
        wrapped,
        r#"{"mcpServers": {"far": {"type": "stdio", "command": "steadfast", "args": ["wrap", "--imported=http", "--name", "far", "--url", "https://x/mcp", "--header-env", "Authorization=MCP_HEADER_AUTHORIZATION"], "env": {"MCP_HEADER_AUTHORIZATION": "Bearer s3cret"}}}}"#
    );
    let (servers, _) = rewrite(text, ConfigFormat::Json, JSON, &wrapping()).unwrap();
    assert!(servers[0].notes[0].contains("MCP_HEADER_AUTHORIZATION"), "{:?}", servers[0].notes);
    let secret = r#"{"mcpServers": {"far": {"url": "https://x/mcp?api_key=hunter2hunter2"}}}"#;
    let (servers, wrapped) = rewrite(secret, ConfigFormat::Json, JSON, &wrapping()).unwrap();
    let ServerVerdict::Change { becomes, .. } = &servers[0].verdict else { panic!("{servers:?}") };
    assert_eq!(becomes.join(" "), "steadfast wrap --imported --name far --url-env MCP_URL");
    assert!(wrapped.contains(r#""env": {"MCP_URL": "https://x/mcp?api_key=hunter2hunter2"}"#), "{wrapped}");
}

#[test]
fn a_manually_wrapped_server_is_never_unwrapped() {
    for args in [
        r#"["wrap", "--name", "a", "--", "npx"]"#,
        r#"["wrap", "--", "npx", "--imported"]"#,
        r#"["wrap", "--url", "http://x"]"#,
        r#"["serve", "--stdio"]"#,
        r#"["run", "--imported", "--", "npx"]"#,
    ] {
        let text = format!(r#"{{"mcpServers": {{"a": {{"command": "steadfast", "args": {args}}}}}}}"#);
        let (servers, new) = rewrite(&text, ConfigFormat::Json, JSON, &ImportRequest::Unwrap).unwrap();
        assert!(
            matches!(&servers[0].verdict, ServerVerdict::Left(reason) if reason.contains("manually")),
            "{servers:?}"
        );
        assert_eq!(new, text);
    }
}

#[test]
fn later_additions_to_a_server_with_a_url_are_not_lost() {
    let text = r#"{"mcpServers": {"far": {"url": "https://x/mcp", "headers": {"A": "b"}}}}"#;
    let (_, wrapped) = rewrite(text, ConfigFormat::Json, JSON, &wrapping()).unwrap();
    let edited = wrapped.replace(r#""env": {"#, r#""env": {"DEBUG": "1", "#);
    let (servers, new) = rewrite(&edited, ConfigFormat::Json, JSON, &ImportRequest::Unwrap).unwrap();
    assert!(
        matches!(&servers[0].verdict, ServerVerdict::Left(reason) if reason.contains("`DEBUG`")),
        "{servers:?}"
    );
    assert_eq!(new, edited);
}

#[test]
fn openclaw_uses_the_older_transport_where_none_is_named() {
    let table_paths: &[TablePath] = &[OPENCLAW];
    let text = |transport: &str| {
        format!("{{mcp: {{servers: {{far: {{url: 'http://x/mcp'{transport}, headers: {{A: '${{K}}'}}}}}}}}}}")
    };
    let (servers, _) = rewrite(&text(""), ConfigFormat::Json, table_paths, &wrapping()).unwrap();
    assert!(
        matches!(&servers[0].verdict, ServerVerdict::Left(reason) if reason.contains("older")),
        "{servers:?}"
    );
    there_and_back(&text(", transport: 'streamable-http'"), ConfigFormat::Json, table_paths);
}

/// Generates fragments of configurations, most of them almost valid.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(&[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        " ",
        "\n",
        "\r\n\t",
        "// c\n",
        "/* c */",
        "\"mcpServers\"",
        "mcp_servers",
        "\"a\"",
        "\"command\"",
        "command",
        "\"args\"",
        "args",
        "'b'",
        "\"--\"",
        "\"wrap\"",
        "\"steadfast\"",
        "=",
        "[mcp_servers.a]\n",
        "# c\n",
        ".",
        "1",
        "null",
        "\"\\u00e4\"",
        "\\",
        "\"",
        "é",
        "\u{feff}",
        "{\"mcpServers\": {\"a\": {",
        "}}}",
        "\"command\": \"b\"",
        "\"args\": [\"c\"]",
        "\"args\": []",
        "\"type\": \"stdio\"",
        "\"url\": \"http://b\"",
        "\"headers\": {\"A\": 'b'}",
        "url = \"http://b\"\n",
        "http_headers = { A = 'b' }\n",
        "command = \"b\"\n",
        "args = []\n",
        "args = [\"c\"]\n",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// Generates a JSON file whose server has these members and blanks.
fn file() -> impl Strategy<Value = String> {
    let members = prop::sample::subsequence(
        vec!["\"command\": \"b\"", "\"args\": [\"c\", 'd']", "args: [ ]", "\"env\": {\"K\": 'v'}", "x: 1"],
        1..=5,
    );
    let blank = prop::sample::select(&["", " ", "\n  ", "\r\n\t", " // c\n", "/* , */"]);
    (members.prop_shuffle(), prop::collection::vec(blank, 12), any::<bool>()).prop_map(
        |(members, blanks, comma)| {
            let mut blanks = blanks.into_iter();
            let mut blank = || blanks.next().unwrap_or_default();
            let written: Vec<_> = members.iter().map(|one| format!("{}{one}{}", blank(), blank())).collect();
            let comma = if comma { "," } else { "" };
            format!("{{\"mcpServers\": {{\"a\": {{{}{comma}{}}}}}}}", written.join(","), blank())
        },
    )
}

proptest! {
    #[test]
    fn no_text_panics_and_every_change_can_be_undone(text in pieces()) {
        for (form, table_paths) in [(ConfigFormat::Json, JSON), (ConfigFormat::Toml, TOML)] {
            if let Ok((_, wrapped)) = rewrite(&text, form, table_paths, &wrapping()) && wrapped != text {
                prop_assert_eq!(&rewrite(&wrapped, form, table_paths, &ImportRequest::Unwrap).unwrap().1, &text);
            }
            let _ = rewrite(&text, form, table_paths, &ImportRequest::Unwrap);
        }
    }

    #[test]
    fn blanks_comments_and_order_survive_wrapping_and_unwrapping(text in file()) {
        // A duplicate name is an error of the file.
        if let Ok((_, wrapped)) = rewrite(&text, ConfigFormat::Json, JSON, &wrapping()) {
            prop_assert_eq!(wrapped != text, text.contains("command"));
            prop_assert_eq!(&rewrite(&wrapped, ConfigFormat::Json, JSON, &ImportRequest::Unwrap).unwrap().1, &text);
        } else {
            prop_assert!(text.matches("args").count() == 2, "{}", text);
        }
    }
}
