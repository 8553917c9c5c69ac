use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;

const JSON: &[Way] = &[&["mcpServers"], &["projects", "*", "mcpServers"]];
const TOML: &[Way] = &[&["mcp_servers"]];

fn wrapping() -> Wish {
    Wish::Wrap(Program { path: "/bin/steadfast".to_owned(), name: Some("steadfast".to_owned()) })
}

fn there_and_back(text: &str, form: Form, ways: &[Way]) -> String {
    let (_, wrapped) = rewrite(text, form, ways, &wrapping()).unwrap();
    assert_ne!(wrapped, text);
    let (again, same) = rewrite(&wrapped, form, ways, &wrapping()).unwrap();
    assert!(again.iter().all(|server| !matches!(server.verdict, Verdict::Change { .. })), "{again:?}");
    assert_eq!(same, wrapped);
    let (_, back) = rewrite(&wrapped, form, ways, &Wish::Unwrap).unwrap();
    assert_eq!(back, text);
    wrapped
}

#[test]
fn every_spelling_of_a_server_in_json_goes_there_and_back() {
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
    ] {
        there_and_back(&format!("{{\"mcpServers\": {{\"bank\": {server}}}}}"), Form::Json, JSON);
    }
}

#[test]
fn every_spelling_of_a_server_in_toml_goes_there_and_back() {
    for text in [
        "[mcp_servers.bank]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]\n",
        "[mcp_servers.bank]\r\ncommand = 'npx' # why\r\nenv = { A = \"b\" }\r\n",
        "[mcp_servers.bank]\ncommand = \"npx\"",
        "[mcp_servers]\n  bank.command = \"npx\"\n  bank.env.A = \"b\"\n",
        "mcp_servers.bank.command = \"npx\"\n",
        "mcp_servers = { bank = { command = \"npx\" } }\n",
        "[mcp_servers]\nbank = {command=\"npx\",args=[]}\n",
        "[mcp_servers.\"a b\"]\nargs = [\n  \"-y\", # yes\n]\ncommand = '''npx'''\n[mcp_servers.\"a b\".env]\nA = \"b\"\n",
    ] {
        there_and_back(text, Form::Toml, TOML);
    }
}

#[test]
fn the_lines_that_are_written_read_well() {
    let text = "{\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"npx\",\n      \"args\": [\n        \"-y\"\n      ]\n    },\n    \"b\": {\n      \"command\": \"b\"\n    }\n  }\n}\n";
    let expected = "{\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"steadfast\",\n      \"args\": [\n        \"wrap\", \"--name\", \"a\", \"--\", \"npx\",\n        \"-y\"\n      ]\n    },\n    \"b\": {\n      \"command\": \"steadfast\",\n      \"args\": [\"wrap\", \"--name\", \"b\", \"--\", \"b\"]\n    }\n  }\n}\n";
    assert_eq!(there_and_back(text, Form::Json, JSON), expected);
}

#[test]
fn what_a_client_printed_anew_or_a_person_added_is_unwrapped_too() {
    for (text, back) in [
        (
            "{\"mcpServers\":{\"a\":{\"args\":[\n\"wrap\",\n\"--name\",\n\"a\",\n\"--\",\n\"npx\",\n\"-y\"\n],\"command\":\"/x/steadfast\"}}}",
            "{\"mcpServers\":{\"a\":{\"args\":[\n\"-y\"\n],\"command\":\"npx\"}}}",
        ),
        (
            r#"{"mcpServers":{"a":{"args":["wrap","--store","memory","--","npx",],"command":"C:\\x\\Steadfast.EXE","env":{}}}}"#,
            r#"{"mcpServers":{"a":{"command":"npx","env":{}}}}"#,
        ),
        (
            r#"{"mcpServers":{"a":{"command":"steadfast", /* mine */ "args":["wrap","--name","a","--","npx",]}}}"#,
            r#"{"mcpServers":{"a":{"command":"npx", /* mine */ "args":[]}}}"#,
        ),
    ] {
        assert_eq!(rewrite(text, Form::Json, JSON, &Wish::Unwrap).unwrap().1, back);
    }
}

#[test]
fn what_cannot_go_through_us_is_left_with_the_reason() {
    let text = r#"{"mcpServers": {
        "url": {"url": "https://x"}, "http": {"type": "http", "url": "https://x"}, "number": 1,
        "sdk": {"type": "sdk", "command": "x"}, "nothing": {}, "odd": {"command": ["npx"]}, "args": {"command": "npx", "args": "-y"},
        "line": {"command": "npx -y x"}, "": {"command": "npx"}, "ours": {"command": "steadfast", "args": ["serve"]}
    }}"#;
    let (servers, new) = rewrite(text, Form::Json, JSON, &wrapping()).unwrap();
    assert_eq!(new, text);
    let why: Vec<_> = servers
        .iter()
        .map(|server| match &server.verdict {
            Verdict::Left(why) => why.as_str(),
            Verdict::AsWished => "as wished",
            Verdict::Change { .. } => "changed",
        })
        .collect();
    let expected = [
        "URL",
        "URL",
        "a number",
        "`stdio`",
        "neither",
        "a list",
        "texts",
        "whole command line",
        "called",
        "as wished",
    ];
    assert_eq!(why.len(), expected.len());
    for (why, expected) in why.iter().zip(expected) {
        assert!(why.contains(expected), "{expected} in {why}");
    }
}

#[test]
fn strange_shapes_say_where_they_are() {
    for (text, offset) in [
        ("[]", 0),
        (r#"{"mcpServers": []}"#, 15),
        (r#"{"projects": {"/x": 1}}"#, 20),
        (r#"{"mcpServers": {}, "mcpServers": {}}"#, 19),
        (r#"{"mcpServers": {"a": {}, "a": {}}}"#, 25),
        (r#"{"mcpServers": {"a": {"command": "a", "command": "b"}}}"#, 38),
    ] {
        assert_eq!(rewrite(text, Form::Json, JSON, &wrapping()).unwrap_err().offset, offset, "{text}");
    }
}

#[test]
fn names_that_look_like_flags_and_servers_with_a_path_of_their_own_are_started_all_the_same() {
    let text = r#"{"mcpServers": {"-a": {"command": "x"}, "b": {"command": "x", "env": {"PATH": "/y"}}}}"#;
    let (servers, _) = rewrite(text, Form::Json, JSON, &wrapping()).unwrap();
    let becomes: Vec<_> = servers
        .into_iter()
        .map(|server| match server.verdict {
            Verdict::Change { becomes, .. } => becomes.join(" "),
            Verdict::AsWished | Verdict::Left(_) => panic!("left"),
        })
        .collect();
    assert_eq!(becomes, ["steadfast wrap --name=-a -- x", "/bin/steadfast wrap --name b -- x"]);
}

/// Pieces that a configuration is made of, put together so that some are one and most nearly are.
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
        "command = \"b\"\n",
        "args = []\n",
        "args = [\"c\"]\n",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// A JSON file whose server has these members between these blanks.
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
    fn no_text_brings_it_down_and_whatever_is_changed_can_be_changed_back(text in pieces()) {
        for (form, ways) in [(Form::Json, JSON), (Form::Toml, TOML)] {
            if let Ok((_, wrapped)) = rewrite(&text, form, ways, &wrapping()) && wrapped != text {
                prop_assert_eq!(&rewrite(&wrapped, form, ways, &Wish::Unwrap).unwrap().1, &text);
            }
            let _ = rewrite(&text, form, ways, &Wish::Unwrap);
        }
    }

    #[test]
    fn blanks_comments_and_order_survive_the_way_there_and_back(text in file()) {
        // Twice the same name is a mistake of the file.
        if let Ok((_, wrapped)) = rewrite(&text, Form::Json, JSON, &wrapping()) {
            prop_assert_eq!(wrapped != text, text.contains("command"));
            prop_assert_eq!(&rewrite(&wrapped, Form::Json, JSON, &Wish::Unwrap).unwrap().1, &text);
        } else {
            prop_assert!(text.matches("args").count() == 2, "{}", text);
        }
    }
}
