use proptest::prelude::*;

use super::strategy::json_text;
use super::*;

fn parse(text: &str) -> Result<JsonDocument<'_>, JsonError> {
    JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE)
}

fn problem(text: &[u8]) -> (usize, String) {
    let error = JsonDocument::parse(text, JsonLimits::ENVELOPE).expect_err(&String::from_utf8_lossy(text));
    (error.offset, error.problem.into_owned())
}

#[test]
fn a_document_preserves_its_content() {
    let text = r#" { "a" : [ 1 , -0.50e+3 , true , false , null ] , "b\u0062" : "x\ty" , "": {} } "#;
    let document = parse(text).unwrap();
    let root = document.root();
    assert_eq!(root.raw(), text.trim());
    assert_eq!(&text[root.span()], text.trim());
    assert_eq!(document.text(), text);

    let a: Vec<JsonValue<'_>> = root.get("a").unwrap().items().unwrap().collect();
    assert_eq!(
        a.iter().map(|value| value.raw()).collect::<Vec<_>>(),
        ["1", "-0.50e+3", "true", "false", "null"]
    );
    assert_eq!(a[0].as_u64(), Some(1));
    assert_eq!(a[1].as_number(), Some("-0.50e+3"));
    assert_eq!(a[1].as_f64(), Some(-500.0));
    assert_eq!(a[1].as_u64(), None);
    assert_eq!((a[2].as_bool(), a[3].as_bool(), a[4].as_bool()), (Some(true), Some(false), None));
    assert!(a[4].is_null() && !a[3].is_null());

    assert_eq!(root.get("bb").and_then(JsonValue::as_str).as_deref(), Some("x\ty"));
    assert!(root.get("").is_some_and(JsonValue::is_object));
    assert!(root.get("b\\u0062").is_none());
    let names: Vec<_> = root.members().unwrap().map(|(name, _)| name.into_owned()).collect();
    assert_eq!(names, ["a", "bb", ""]);
    assert_eq!(root.get("a").unwrap().get("a").map(JsonValue::raw), None);
    assert!(root.items().is_none() && root.item(0).is_none() && root.as_str().is_none());
    assert_eq!(root.kind().describe(), "an object");
}

#[test]
fn strings_are_borrowed_unless_they_have_escapes() {
    let document = parse(r#"["größe", "gr\u00f6\u00dfe", "\ud83d\ude00"]"#).unwrap();
    let strings: Vec<_> = document.root().items().unwrap().filter_map(JsonValue::as_str).collect();
    assert_eq!(strings, ["größe", "größe", "😀"]);
    assert!(matches!(strings[0], Cow::Borrowed(_)));
    assert!(matches!(strings[1], Cow::Owned(_)));
}

#[test]
fn numbers_keep_every_digit_and_fit_or_are_none() {
    for (text, as_u64) in [
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("18446744073709551615.00", Some(u64::MAX)),
        ("18446744073709551616.0", None),
        ("-1", None),
        ("-0", Some(0)),
        ("-0.0", Some(0)),
        ("-1.0", None),
        ("1.0", Some(1)),
        ("1.5", None),
        ("9007199254740993.0", Some(9_007_199_254_740_993)),
        ("1e2", Some(100)),
        ("2.3E1", Some(23)),
        ("5e-1", None),
        ("1e20", None),
        ("1e400", None),
    ] {
        let document = parse(text).unwrap();
        assert_eq!(document.root().as_u64(), as_u64, "{text}");
        assert_eq!(document.root().as_number(), Some(text));
    }
    assert_eq!(parse("1e400").unwrap().root().as_f64(), None);
}

#[test]
fn pointers_resolve_as_in_rfc_6901() {
    let text =
        r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
    let document = parse(text).unwrap();
    for (pointer, raw) in [
        ("", Some(text)),
        ("/foo", Some(r#"["bar","baz"]"#)),
        ("/foo/0", Some("\"bar\"")),
        ("/foo/1", Some("\"baz\"")),
        ("/", Some("0")),
        ("/a~1b", Some("1")),
        ("/c%d", Some("2")),
        ("/e^f", Some("3")),
        ("/g|h", Some("4")),
        ("/i\\j", Some("5")),
        ("/k\"l", Some("6")),
        ("/ ", Some("7")),
        ("/m~0n", Some("8")),
        ("foo", None),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/00", None),
        ("/foo/+0", None),
        ("/foo/", None),
        ("/foo/99999999999999999999999", None),
        ("/foo/0/0", None),
        ("/m~n", None),
        ("/m~2n", None),
        ("/m~", None),
        ("/missing", None),
    ] {
        assert_eq!(document.root().pointer(pointer).map(JsonValue::raw), raw, "{pointer:?}");
    }
}

#[test]
fn sf_5_a_text_that_is_not_json_is_refused_with_position_and_message() {
    let cases: &[(&[u8], usize, &str)] = &[
        (b"", 0, "expected a value, found the end of the text"),
        (b"  ", 2, "expected a value, found the end of the text"),
        (b"\xef\xbb\xbf1", 0, "expected a value, found '\\u{feff}'"),
        (b"[\"\xff\"]", 2, "the text is not valid UTF-8"),
        (b"\"\xed\xa0\x80\"", 1, "the text is not valid UTF-8"),
        (b"1 2", 2, "expected nothing after the value, found '2'"),
        (b"{}}", 2, "expected nothing after the value, found '}'"),
        (b"[1,]", 3, "expected a value, found ']'"),
        (b"[,1]", 1, "expected a value, found ','"),
        (b"[1 2]", 3, "expected `,` or `]`, found '2'"),
        (b"[1}", 2, "expected `,` or `]`, found '}'"),
        (b"[1", 2, "expected `,` or `]`, found the end of the text"),
        (b"{\"a\":1,}", 7, "expected a name in quotes, found '}'"),
        (b"{a:1}", 1, "expected a name in quotes, found 'a'"),
        (b"{'a':1}", 1, "expected a name in quotes, found '\\''"),
        (b"{\"a\" 1}", 5, "expected `:`, found '1'"),
        (b"{\"a\"", 4, "expected `:`, found the end of the text"),
        (b"{\"a\":}", 5, "expected a value, found '}'"),
        (b"{\"a\":1", 6, "expected `,` or `}`, found the end of the text"),
        (b"{\"a\":1]", 6, "expected `,` or `}`, found ']'"),
        (b"{1:2}", 1, "expected a name in quotes, found '1'"),
        (b"tru", 0, "expected `true`"),
        (b"nULL", 0, "expected `null`"),
        (b"truee", 4, "expected nothing after the value, found 'e'"),
        (b"NaN", 0, "expected a value, found 'N'"),
        (b"undefined", 0, "expected a value, found 'u'"),
        (b"+1", 0, "expected a value, found '+'"),
        (b".5", 0, "expected a value, found '.'"),
        (b"-", 1, "expected a digit, found the end of the text"),
        (b"-a", 1, "expected a digit, found 'a'"),
        (b"01", 0, "a number must not have leading zeros"),
        (b"-00", 1, "a number must not have leading zeros"),
        (b"1.", 2, "expected a digit, found the end of the text"),
        (b"1.e3", 2, "expected a digit, found 'e'"),
        (b"1e", 2, "expected a digit, found the end of the text"),
        (b"1e+", 3, "expected a digit, found the end of the text"),
        (b"0x10", 1, "expected nothing after the value, found 'x'"),
        (b"\"abc", 4, "the string that begins at byte 0 has no end"),
        (b"\"abc\\\"", 6, "the string that begins at byte 0 has no end"),
        (b"\"a\nb\"", 2, "a control character in a string must be escaped"),
        (b"\"0123456789\x00\"", 11, "a control character in a string must be escaped"),
        (b"\"\\x41\"", 2, "expected one of \" \\ / b f n r t u after a backslash"),
        (b"\"\\", 2, "expected one of \" \\ / b f n r t u after a backslash"),
        (b"\"\\u12g4\"", 3, "expected four hex digits after \\u"),
        (b"\"\\u+123\"", 3, "expected four hex digits after \\u"),
        (b"\"\\u12", 3, "expected four hex digits after \\u"),
        (b"\"\\ud800\"", 2, "half of a surrogate pair stands alone"),
        (b"\"\\udc00\"", 2, "half of a surrogate pair stands alone"),
        (b"\"\\ud800\\ud800\"", 2, "half of a surrogate pair stands alone"),
        (b"\"\\ud800\\n\"", 2, "half of a surrogate pair stands alone"),
        (b"\"\\ud800\\ue000\"", 2, "half of a surrogate pair stands alone"),
        (b"\"\\ud800\\u12\"", 2, "half of a surrogate pair stands alone"),
        (b"1 // one", 2, "expected nothing after the value, found '/'"),
        (b"[1]\x00", 3, "expected nothing after the value, found '\\0'"),
        (b"[1]\x0c", 3, "expected nothing after the value, found '\\u{c}'"),
    ];
    for (text, offset, words) in cases {
        assert_eq!(problem(text), (*offset, (*words).to_owned()), "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn sf_5_a_duplicate_name_is_refused_in_any_spelling() {
    let words = |name: &str| format!("duplicate name {name:?} in one object");
    assert_eq!(problem(br#"{"a":1,"b":2,"a":3}"#), (13, words("a")));
    assert_eq!(problem(br#"{"a":1,"\u0061":2}"#), (7, words("a")));
    assert_eq!(problem(br#"{"\u0061":1,"\u0061":2}"#), (12, words("a")));
    assert_eq!(problem(br#"{"x":{"a/b":1,"a\/b":2}}"#), (14, words("a/b")));
    assert_eq!(problem("{\"😀\":1,\"\\ud83d\\ude00\":2}".as_bytes()), (10, words("😀")));
    assert_eq!(problem(br#"{"a":1,"b":2,"b":3,"a":4}"#), (13, words("b")));
    assert!(parse(r#"[{"a":1},{"a":1},{"a":{"a":1}}]"#).is_ok());
    assert!(parse(r#"{"a":1,"A":2,"a ":3,"":4}"#).is_ok());

    // More names than are compared pairwise.
    let many = |extra: &str| {
        let names: Vec<String> = (0..40).rev().map(|number| format!("\"n{number}\":0")).collect();
        format!("{{{},{extra}}}", names.join(","))
    };
    assert!(parse(&many(r#""n40":0"#)).is_ok());
    let text = many(r#""n7":0,"n3":0"#);
    assert_eq!(problem(text.as_bytes()), (text.len() - 14, words("n7")));
    let text = many(r#""n\u0037":0"#);
    assert_eq!(problem(text.as_bytes()), (text.len() - 12, words("n7")));
}

#[test]
fn sf_5_limits_hold_at_the_boundary() {
    let limits = JsonLimits { bytes: 40, depth: 3 };
    let read = |text: &str| {
        JsonDocument::parse(text.as_bytes(), limits).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(read("[[[1]],[[2]]]"), Ok(()));
    assert_eq!(read("[[{\"a\":1}],{}]"), Ok(()));
    assert_eq!(read("[[[[]]]]"), Err("nested more than 3 levels deep at byte 3".to_owned()));
    assert_eq!(read("[[{\"a\":{}}]]"), Err("nested more than 3 levels deep at byte 7".to_owned()));
    assert_eq!(read(&format!("\"{}\"", "x".repeat(38))), Ok(()));
    let long = "the text is 41 bytes long, at most 40 are allowed at byte 40".to_owned();
    assert_eq!(read(&format!("\"{}\"", "x".repeat(39))), Err(long));
    assert!(JsonDocument::parse(b"1", JsonLimits { bytes: 1, depth: 0 }).is_ok());
    assert!(JsonDocument::parse(b"[]", JsonLimits { bytes: 2, depth: 0 }).is_err());
}

#[test]
fn sf_5_hostile_texts_are_read_in_time_that_grows_with_their_length() {
    // Each of these is quadratic or overflows the stack in a careless reader. Here they take milliseconds.
    let far = JsonLimits { bytes: 1 << 22, depth: usize::MAX };
    let deep = "[".repeat(1 << 20);
    assert!(JsonDocument::parse(deep.as_bytes(), far).is_err());
    let nested = format!("{}{}", "[".repeat(1 << 19), "]".repeat(1 << 19));
    assert!(JsonDocument::parse(nested.as_bytes(), far).is_ok());
    let deep_objects = "{\"a\":".repeat(1 << 17);
    assert!(JsonDocument::parse(deep_objects.as_bytes(), far).is_err());

    let object = |name: &dyn Fn(usize) -> String| {
        let members: Vec<String> = (0..60_000).map(|number| format!("\"{}\":0", name(number))).collect();
        format!("{{{}}}", members.join(","))
    };
    assert!(JsonDocument::parse(object(&|number| format!("{number}")).as_bytes(), far).is_ok());
    assert!(JsonDocument::parse(object(&|number| format!("\\u0061{number}")).as_bytes(), far).is_ok());
    assert!(JsonDocument::parse(object(&|number| format!("{}", number / 2)).as_bytes(), far).is_err());

    let digits = "9".repeat(1 << 20);
    assert_eq!(JsonDocument::parse(digits.as_bytes(), far).unwrap().root().raw().len(), 1 << 20);
}

#[test]
fn an_error_has_a_line_and_a_column() {
    let text = "{\n  \"größe\": 1,\n  \"ä\": x\n}";
    let error = parse(text).unwrap_err();
    assert_eq!(error.position(text.as_bytes()), TextPosition { line: 3, column: 8 });
    assert_eq!(error.to_string(), "expected a value, found 'x' at byte 26");
    let beyond = JsonError { offset: 99, problem: "".into() };
    assert_eq!(beyond.position(b"ab\n"), TextPosition { line: 2, column: 1 });
}

/// Returns the value of serde_json for the same text.
fn oracle(value: JsonValue<'_>) -> serde_json::Value {
    match value.kind() {
        JsonKind::Null => serde_json::Value::Null,
        JsonKind::Bool(truth) => truth.into(),
        JsonKind::Number(text) => serde_json::Value::Number(serde_json::from_str(text).unwrap()),
        JsonKind::String(text) => text.into_owned().into(),
        JsonKind::Array(items) => items.map(oracle).collect(),
        JsonKind::Object(members) => {
            members.map(|(name, value)| (name.into_owned(), oracle(value))).collect()
        }
    }
}

/// Checks that both readers agree, except where this one differs on purpose.
fn assert_agreement(text: &[u8]) -> Result<(), TestCaseError> {
    match (JsonDocument::parse(text, JsonLimits::ENVELOPE), serde_json::from_slice::<serde_json::Value>(text))
    {
        (Ok(own), Ok(reference)) => prop_assert_eq!(oracle(own.root()), reference),
        (Err(_), Err(_)) => {}
        (Ok(_), Err(reference)) => {
            prop_assert!(reference.to_string().contains("number out of range"), "{}", reference)
        }
        (Err(own), Ok(_)) => prop_assert!(own.problem.contains("duplicate name"), "{}", own),
    }
    Ok(())
}

proptest! {
    #[test]
    fn documents_that_serde_json_accepts_are_read_alike(text in json_text()) {
        assert_agreement(text.as_bytes())?;
    }

    #[test]
    fn documents_that_serde_json_refuses_are_refused(
        text in json_text(),
        place in any::<prop::sample::Index>(),
        piece in prop::sample::select(vec![
            "", "{", "}", "[", "]", ",", ":", "\"", "\\", "0", "-", ".", "e", "t", " ", "\n", "\\u", "\\ud800", "é",
        ]),
        length in 0_usize..3,
    ) {
        let mut bytes = text.into_bytes();
        let start = place.index(bytes.len() + 1);
        let end = (start + length).min(bytes.len());
        bytes.splice(start..end, piece.bytes());
        assert_agreement(&bytes)?;
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        assert_agreement(&bytes)?;
    }

    #[test]
    fn every_value_s_own_text_reads_as_that_value(text in json_text()) {
        if let Ok(document) = parse(&text) {
            let mut open = vec![document.root()];
            while let Some(value) = open.pop() {
                let again = parse(value.raw()).unwrap();
                prop_assert_eq!(oracle_without_numbers(again.root()), oracle_without_numbers(value));
                open.extend(value.items().into_iter().flatten());
                open.extend(value.members().into_iter().flatten().map(|(_, value)| value));
            }
        }
    }
}

/// Returns the value with numbers as text, because serde_json has no 1e400.
fn oracle_without_numbers(value: JsonValue<'_>) -> serde_json::Value {
    match value.kind() {
        JsonKind::Number(text) => text.into(),
        JsonKind::Array(items) => items.map(oracle_without_numbers).collect(),
        JsonKind::Object(members) => {
            members.map(|(name, value)| (name.into_owned(), oracle_without_numbers(value))).collect()
        }
        JsonKind::Null | JsonKind::Bool(_) | JsonKind::String(_) => oracle(value),
    }
}
