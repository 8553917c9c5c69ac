use proptest::prelude::*;

use super::*;

fn skim(text: &[u8]) -> Result<Range<usize>, JsonSyntaxError> {
    let mut skim = JsonScanner::new(text);
    let span = skim.value(DEPTH)?;
    skim.end()?;
    Ok(span)
}

#[test]
fn exactly_the_grammar_is_accepted() {
    for text in [
        "0",
        "-0",
        "-1.5e+7",
        "1E9",
        "\"\"",
        "\"\\u00e4\\\"\"",
        "null",
        "true",
        "false",
        "[]",
        "{}",
        " [ 1 , 2 ] ",
        "{\"a\":{\"b\":[{},[],\"]}\"]}}",
        "\"\u{7f}äöü\"",
        "\"\\ud800\"",
        "{\"a\":1,\"a\":2}",
    ] {
        assert!(skim(text.as_bytes()).is_ok(), "{text}");
    }
    for text in [
        "",
        " ",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "+1",
        "nul",
        "tru",
        "\"",
        "\"\\",
        "\"\\u12\"",
        "\"\\x\"",
        "\"\n\"",
        "[",
        "]",
        "[1,]",
        "[,]",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "1 2",
        "[}",
        "{]",
        "[1}",
        "{\"a\":1]",
        "NaN",
    ] {
        assert!(skim(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn depth_is_bounded_and_costs_no_stack() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(skim(nested(DEPTH).as_bytes()).is_ok());
    let wrong = skim(nested(DEPTH + 1).as_bytes()).unwrap_err();
    assert_eq!(wrong, JsonSyntaxError { at: DEPTH, problem: JsonProblem::TooDeep });
    assert_eq!(skim("[".repeat(1_000_000).as_bytes()).unwrap_err().problem, JsonProblem::TooDeep);
}

#[test]
fn members_are_found_by_their_decoded_names() {
    let object = r#" { "a" : 1.0, "\u0062": {"a":2} , "c":"x" } "#;
    let found: Vec<_> =
        members(object).map(|member| (member.name.into_owned(), &object[member.value.clone()])).collect();
    assert_eq!(found, [("a".into(), "1.0"), ("b".into(), r#"{"a":2}"#), ("c".into(), r#""x""#)]);
    assert_eq!(get(object, "b"), Some(r#"{"a":2}"#));
    assert_eq!(get(object, "d"), None);
    for other in ["[]", "5", "", "{}", "null"] {
        assert_eq!(members(other).count(), 0, "{other}");
    }
}

#[test]
fn strings_are_decoded_even_if_cut_within_a_surrogate_pair() {
    assert_eq!(string(r#""plain""#).unwrap(), "plain");
    assert_eq!(string(r#""\u0041\n\ud83d\ude00""#).unwrap(), "A\n😀");
    assert_eq!(string(r#""x\ud83dy\tz\/""#).unwrap(), "x\u{fffd}y\tz/");
    assert_eq!(string("5"), None);
    assert_eq!(string("\""), None);
}

fn any_text() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just(","),
        Just(":"),
        Just("\"a\""),
        Just("\"\\u0061\""),
        Just("1"),
        Just("1.0"),
        Just("-0e1"),
        Just("null"),
        Just("true"),
        Just(" "),
        Just("\n"),
        Just("\"\\"),
        Just("\"äöü€𝄞 abcdefgh\""),
    ];
    prop_oneof![
        proptest::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

proptest! {
    #[test]
    fn the_scanner_agrees_with_another_reader_on_valid_json(text in any_text()) {
        let serde_accepts = serde_json::from_slice::<serde_json::Value>(&text).is_ok();
        let accepts = std::str::from_utf8(&text).is_ok() && skim(&text).is_ok();
        prop_assert_eq!(accepts, serde_accepts, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn written_strings_are_read_back(text in any::<String>()) {
        let mut json = String::new();
        write_string(&mut json, &text);
        prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text.clone());
        prop_assert_eq!(string(&json).unwrap(), text);
    }
}
