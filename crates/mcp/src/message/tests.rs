use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parse(text: &str) -> Result<RpcMessage, InvalidMessage> {
    RpcMessage::parse(text.to_owned(), 1 << 20)
}

fn message(text: &str) -> RpcMessage {
    parse(text).unwrap()
}

const CALL: &str = r#"{ "jsonrpc" : "2.0", "x":1.0, "id": 12345678901234567890 ,"method":"tools/call",
 "params":{"name":"get","arguments":{"n":1.0,"big":123456789012345678901,"a":1,"a":2},"_meta":{ "progressToken" : "t1", "vendor/x":[1.50] },"task":{}}}"#;

#[test]
fn the_routed_fields_of_a_call_are_found_and_nothing_is_changed() {
    let call = message(CALL);
    assert_eq!(call.bytes(), CALL);
    let RpcMessageKind::Request { id, method } = call.kind() else { panic!("{call:?}") };
    assert_eq!((id.as_str(), method), ("12345678901234567890", "tools/call"));
    assert_eq!(call.name().unwrap(), "get");
    let arguments = call.arguments().unwrap();
    assert_eq!(arguments.as_str(), r#"{"n":1.0,"big":123456789012345678901,"a":1,"a":2}"#);
    assert_eq!(call.progress_token().unwrap().as_str(), r#""t1""#);
    assert_eq!(call.meta_member("vendor/x"), Some("[1.50]"));
    assert_eq!(call.param("task"), Some("{}"));
    assert_eq!(call.one_line(), CALL.replace('\n', " "));
}

#[test]
fn messages_are_of_four_kinds() {
    for (text, kind) in [
        (
            r#"{"jsonrpc":"2.0","id":"a","method":"m"}"#,
            RpcMessageKind::Request { id: RpcId::string("a"), method: "m" },
        ),
        (r#"{"jsonrpc":"2.0","method":"\u006d"}"#, RpcMessageKind::Notification { method: "m" }),
        (r#"{"jsonrpc":"2.0","method":"m","params":null}"#, RpcMessageKind::Notification { method: "m" }),
        (r#"{"jsonrpc":"2.0","method":"m","params":[]}"#, RpcMessageKind::Notification { method: "m" }),
        (r#"{"jsonrpc":"2.0","id":1,"result":null}"#, RpcMessageKind::Result { id: RpcId::number(1) }),
        (
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1}}"#,
            RpcMessageKind::Error { id: Some(RpcId::number(1)) },
        ),
        (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, RpcMessageKind::Error { id: None }),
        (r#"{"jsonrpc":"2.0","error":{}}"#, RpcMessageKind::Error { id: None }),
    ] {
        assert_eq!(message(text).kind(), kind, "{text}");
    }
    let error = message(
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no \"x\"","data":{"a":1,"a":2}}}"#,
    );
    assert_eq!((error.error_code(), error.error_text().unwrap().as_ref()), (Some(-32601), "no \"x\""));
}

#[test]
fn an_invalid_message_is_refused_with_its_code_and_its_id_if_there_is_one() {
    let deep =
        format!(r#"{{"jsonrpc":"2.0","id":3,"method":"m","params":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    for (text, code, id) in [
        ("", -32700, None),
        ("hello", -32700, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m""#, -32700, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m"} x"#, -32700, None),
        ("5", -32600, None),
        ("[]", -32600, None),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"m"}]"#, -32600, None),
        ("{}", -32600, None),
        (r#"{"id":1,"method":"m"}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":"x","method":5}"#, -32600, Some("\"x\"")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":5}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","result":{}}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"error":"x"}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","result":{}}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","Method":"n"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"a","n\u0061me":"b"}}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"k":1,"k":2}}}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"isError":false}}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"code":2}}"#, -32600, None),
        (&deep, -32600, None),
    ] {
        let refused = parse(text).expect_err(text);
        assert_eq!((refused.code(), refused.id.as_ref().map(RpcId::as_str)), (code, id), "{text}");
        let answer: Value = serde_json::from_slice(refused.answer().bytes()).unwrap();
        assert_eq!(answer["error"]["code"], code);
        assert_eq!(answer.get("id").map(Value::to_string).as_deref(), id, "{text}");
    }
    assert_eq!(RpcMessage::parse(vec![b'{', 0xff], 10).unwrap_err().code(), -32700);
    let long = RpcMessage::parse(CALL, 10).unwrap_err();
    assert_eq!((long.code(), long.fault), (-32600, MessageFault::TooLarge { most: 10 }));
}

#[test]
fn content_deep_inside_a_result_is_not_checked() {
    let text = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"cut \ud83d","a":1,"a":2}]}}"#;
    assert_eq!(message(text).bytes(), text);
}

#[test]
fn an_id_is_recognized_in_other_spellings() {
    for (id, other) in [("7", "7"), ("7", "7.0"), ("1000000", "1e+06"), ("\"a\"", "\"\\u0061\"")] {
        assert!(RpcId::known(id.into()).is(other), "{id} {other}");
    }
    for (id, other) in
        [("7", "8"), ("7", "\"7\""), ("7", "7.5"), ("\"a\"", "\"b\""), ("7", "-7"), ("7", "null")]
    {
        assert!(!RpcId::known(id.into()).is(other), "{id} {other}");
    }
    for (text, number) in [("7", Some(7)), ("7.0", Some(7)), ("\"7\"", Some(7)), ("1e+06", Some(1_000_000))] {
        assert_eq!(RpcId::known(text.into()).as_u64(), number, "{text}");
    }
    for text in ["-7", "7.5", "\"x\"", "1e300"] {
        assert_eq!(RpcId::known(text.into()).as_u64(), None, "{text}");
    }
}

#[test]
fn splices_change_no_other_byte() {
    let call = message(CALL);
    let changed = call
        .rewrite()
        .id(&RpcId::string("our-1"))
        .name("srv \"x\"")
        .meta("progressToken", JsonText::number(42))
        .meta("dev.steadfast/attempt", JsonText::number(2))
        .without_meta("vendor/x")
        .finish();
    let expected = CALL
        .replace("12345678901234567890 ,", "\"our-1\" ,")
        .replace("\"name\":\"get\"", "\"name\":\"srv \\\"x\\\"\"")
        .replace(
            r#"{ "progressToken" : "t1", "vendor/x":[1.50] }"#,
            r#"{ "progressToken" : 42,"dev.steadfast/attempt":2}"#,
        );
    assert_eq!(changed.bytes(), &expected);
    // Its places equal those of a freshly parsed message.
    let again = message(&expected);
    assert_eq!(changed.kind(), again.kind());
    assert_eq!(
        (changed.name(), changed.meta(), changed.params()),
        (again.name(), again.meta(), again.params())
    );
    assert_eq!(changed.arguments(), again.arguments());
    assert_eq!(changed.progress_token(), again.progress_token());
}

#[test]
fn members_are_inserted_where_there_were_none() {
    let set = |text: &str| message(text).rewrite().meta("k", JsonText::number(1)).finish();
    for (text, expected) in [
        (r#"{"jsonrpc":"2.0","method":"m"}"#, r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1}}}"#),
        (r#"{"method":"m","jsonrpc":"2.0"}"#, r#"{"method":"m","params":{"_meta":{"k":1}},"jsonrpc":"2.0"}"#),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":null}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1}}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{ }}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1} }}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1},"a":1}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{ }}}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1 }}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":null}}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"k":1}}}"#,
        ),
        (r#"{"jsonrpc":"2.0","method":"m","params":[1]}"#, r#"{"jsonrpc":"2.0","method":"m","params":[1]}"#),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"k":1},"content":[]}}"#,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, r#"{"jsonrpc":"2.0","id":1,"error":{}}"#),
    ] {
        let changed = set(text);
        assert_eq!(changed.bytes(), expected, "{text}");
        let again = message(expected);
        assert_eq!(
            (changed.meta(), changed.params(), changed.kind()),
            (again.meta(), again.params(), again.kind())
        );
    }
    let both = message(r#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#);
    let both = both.rewrite().meta("k", JsonText::number(1)).param("requestId", JsonText::number(9)).finish();
    assert_eq!(
        both.bytes(),
        r#"{"jsonrpc":"2.0","method":"m","params":{"requestId":9,"_meta":{"k":1},"a":1}}"#
    );
    let token = message(
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"p":1.0,"progressToken":"x"}}"#,
    );
    assert_eq!(token.progress_token(), None, "only a request asks for progress");
    let token = token.rewrite().param("progressToken", JsonText::string("y")).finish();
    assert_eq!(
        token.bytes(),
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"p":1.0,"progressToken":"y"}}"#
    );
}

#[test]
fn a_rewrite_that_changes_nothing_gives_the_same_bytes() {
    let call = message(CALL);
    assert_eq!(call.rewrite().finish(), call);
    assert_eq!(call.rewrite().without_meta("absent").finish(), call);
    let odd = message(r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{ }}}"#);
    assert_eq!(odd.rewrite().without_meta("absent").id(&RpcId::number(1)).finish(), odd);
}

#[test]
fn messages_of_the_gateway_follow_the_protocol() {
    let params = JsonText::parse(r#"{"name":"x","_meta":{"progressToken":5}}"#).unwrap();
    let request = RpcMessage::request(&RpcId::number(4), "tools/call", Some(&params));
    assert_eq!(
        (request.name().unwrap().as_ref(), request.progress_token()),
        ("x", Some(JsonText::number(5)))
    );
    let notification = RpcMessage::notification("notifications/x", None);
    assert_eq!(notification.kind(), RpcMessageKind::Notification { method: "notifications/x" });
    let data = JsonText::parse("[1]").unwrap();
    let error = RpcMessage::error_response(Some(&RpcId::string("i")), -32022, "a \"b\"\n", Some(&data));
    let read: Value = serde_json::from_slice(error.bytes()).unwrap();
    assert_eq!(
        read,
        json!({"jsonrpc":"2.0","id":"i","error":{"code":-32022,"message":"a \"b\"\n","data":[1]}})
    );
    assert_eq!(error.kind(), RpcMessageKind::Error { id: Some(RpcId::string("i")) });
    let odd = RpcMessage::notification("a\\b", None);
    assert_eq!(odd.method(), Some("a\\b"));
}

fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1.0".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        Just("-0".to_owned()),
        Just("1E+2".to_owned()),
        "[a-z\\\\u00e4\"{}\\[\\],:]{0,6}".prop_map(|text| JsonText::string(&text).as_str().to_owned()),
        Just("\"\\u0041\\ud83d\"".to_owned()),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            proptest::collection::vec(("[a-d]", inner), 0..4).prop_map(|members| {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("\"{name}\" :{value}")).collect();
                format!("{{{}}}", members.join(",\t"))
            }),
        ]
    })
}

/// An object with unique names, in any order and spacing.
fn object(members: Vec<(&'static str, String)>, seed: u64, space: &str) -> String {
    let mut members = members;
    let count = members.len().max(1);
    members.rotate_left(usize::try_from(seed).unwrap_or(0) % count);
    let members: Vec<_> = members
        .iter()
        .map(|(name, value)| format!("{space}\"{name}\"{space}:{space}{value}{space}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

prop_compose! {
    fn any_request()(
        id in prop_oneof![Just("1".to_owned()), Just("1.0".to_owned()), Just("\"\\u0061\"".to_owned())],
        token in proptest::option::of(any_json()),
        vendor in any_json(),
        arguments in any_json(),
        extra in any_json(),
        with_meta in any::<bool>(),
        seed in 0_u64..6,
        space in prop_oneof![Just(""), Just(" "), Just("\n\t")],
    ) -> (String, String) {
        let mut meta = vec![("vendor", vendor)];
        meta.extend(token.map(|token| ("progressToken", token)));
        let mut params = vec![("name", "\"tool\"".to_owned()), ("arguments", arguments), ("task", extra.clone())];
        if with_meta {
            params.push(("_meta", object(meta, seed, space)));
        }
        let params = object(params, seed, space);
        let root = vec![
            ("jsonrpc", "\"2.0\"".to_owned()), ("id", id.clone()), ("method", "\"tools/call\"".to_owned()),
            ("params", params), ("vendor", extra),
        ];
        (object(root, seed, space), id)
    }
}

proptest! {
    #[test]
    fn messages_keep_every_byte((text, id) in any_request()) {
        let message = message(&text);
        prop_assert_eq!(message.bytes(), &text);
        prop_assert_eq!(message.id().unwrap().as_str().to_owned(), id);
        prop_assert_eq!(message.name().unwrap(), "tool");
    }

    #[test]
    fn splices_there_and_back_give_the_same_bytes((text, _) in any_request()) {
        let original = message(&text);
        let token = original.progress_token();
        let mut there = original.rewrite().id(&RpcId::number(99)).name("other");
        if token.is_some() {
            there = there.meta("progressToken", JsonText::string("a longer token, of ours"));
        }
        let there = there.finish();
        prop_assert_eq!(message(std::str::from_utf8(there.bytes()).unwrap()).places_for_test(), there.places_for_test());
        let mut back = there.rewrite().id(&original.id().unwrap()).param("name", JsonText::string("tool"));
        if let Some(token) = token {
            back = back.meta("progressToken", token);
        }
        prop_assert_eq!(back.finish(), original);
    }

    #[test]
    fn a_member_of_meta_that_is_set_and_removed_leaves_the_others((text, _) in any_request()) {
        let original = message(&text);
        let there = original.rewrite().meta("dev.steadfast/key", JsonText::number(1)).finish();
        prop_assert_eq!(there.meta_member("dev.steadfast/key"), Some("1"));
        prop_assert_eq!(there.meta_member("vendor"), original.meta_member("vendor"));
        prop_assert_eq!(there.arguments(), original.arguments());
        prop_assert_eq!(there.param("task"), original.param("task"));
        let back = there.rewrite().without_meta("dev.steadfast/key").finish();
        if original.meta().is_some() {
            prop_assert_eq!(back.bytes(), original.bytes());
        }
    }

    #[test]
    fn nothing_panics_on_any_input(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = RpcMessage::parse(text, 150);
    }

    /// A reader is most likely to fail on near-valid input: a valid message with one byte lost, doubled or changed.
    #[test]
    fn a_message_that_was_damaged_is_refused_or_carried_byte_for_byte(
        (text, _) in any_request(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), damage()), 1..4),
    ) {
        let mut bytes = text.into_bytes();
        for (at, damage) in damage {
            let at = at.index(bytes.len().max(1)).min(bytes.len());
            match damage {
                ByteDamage::Cut => bytes.truncate(at),
                ByteDamage::Lost if at < bytes.len() => { bytes.remove(at); }
                ByteDamage::Changed(to) if at < bytes.len() => bytes[at] = to,
                ByteDamage::Lost | ByteDamage::Changed(_) => {}
                ByteDamage::Added(byte) => bytes.insert(at, byte),
                ByteDamage::Doubled => { let half = bytes[at..].to_vec(); bytes.extend(half); }
            }
        }
        let Ok(message) = RpcMessage::parse(bytes.clone(), usize::MAX) else { return Ok(()) };
        prop_assert_eq!(message.bytes(), &bytes);
        let same = message.rewrite().finish();
        prop_assert_eq!(same.bytes(), &bytes);
        // Every accessor works.
        let _ = (message.kind(), message.name(), message.arguments(), message.progress_token());
        let _ = (message.result(), message.error_code(), message.error_text(), message.meta_text("vendor"));
        // A rewritten message is still valid, and has the same other fields.
        let there = message.rewrite().id(&RpcId::number(7)).finish();
        let again = RpcMessage::parse(there.bytes().clone(), usize::MAX);
        prop_assert_eq!(again.map(|again| again.places_for_test()), Ok(there.places_for_test()));
        let flat = RpcMessage::parse(message.one_line(), usize::MAX).unwrap();
        prop_assert_eq!(flat.places_for_test(), message.places_for_test());
        prop_assert!(!flat.bytes().contains(&b'\n') && !flat.bytes().contains(&b'\r'));
    }
}

/// A damage to one byte.
#[derive(Clone, Copy, Debug)]
enum ByteDamage {
    Cut,
    Lost,
    Changed(u8),
    Added(u8),
    Doubled,
}

fn damage() -> impl Strategy<Value = ByteDamage> {
    let byte = || prop_oneof![prop::sample::select(b"{}[]\",:\\ \n\r0e-u\0\xff".to_vec()), any::<u8>()];
    prop_oneof![
        Just(ByteDamage::Cut),
        Just(ByteDamage::Lost),
        Just(ByteDamage::Doubled),
        byte().prop_map(ByteDamage::Changed),
        byte().prop_map(ByteDamage::Added),
    ]
}

impl RpcMessage {
    fn places_for_test(&self) -> Vec<Option<Range<usize>>> {
        let MessageSpans { version, id, method, params, result, error, name, arguments, meta, token } =
            self.places;
        [version, id, method, params, result, error, name, arguments, meta, token]
            .map(|place| place.map(MessageSpan::range))
            .into()
    }
}
