use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::id::{ActorId, Digest, Namespace, RunId, SessionKey, TenantId, ToolName, ToolRef, WorkspaceId};
use crate::policy::{DedupePolicy, KeyScope, ToolClass};

const CLASSES: [ToolClass; 4] =
    [ToolClass::ReadOnly, ToolClass::Idempotent, ToolClass::Mutating, ToolClass::Unknown];

/// A scope that owns its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OwnedKeyInputs {
    tool: ToolRef,
    tenant: Option<TenantId>,
    workspace: Option<WorkspaceId>,
    session: Option<SessionKey>,
    actor: Option<ActorId>,
    continuation: Option<Digest>,
}

impl OwnedKeyInputs {
    fn of(namespace: &str, tool: &str) -> Self {
        let tool =
            ToolRef { namespace: Namespace::new(namespace).unwrap(), tool: ToolName::new(tool).unwrap() };
        Self { tool, tenant: None, workspace: None, session: None, actor: None, continuation: None }
    }

    fn full() -> Self {
        Self {
            tenant: TenantId::new("acme").ok(),
            workspace: WorkspaceId::new("w").ok(),
            session: SessionKey::new("s").ok(),
            actor: ActorId::new("ann").ok(),
            ..Self::of("files", "read")
        }
    }

    fn scope(&self) -> KeyInputs<'_> {
        KeyInputs {
            tool: &self.tool,
            tenant: self.tenant.as_ref(),
            workspace: self.workspace.as_ref(),
            session: self.session.as_ref(),
            actor: self.actor.as_ref(),
            continuation: self.continuation,
        }
    }
}

fn digest(params: &str, class: ToolClass) -> Digest {
    with_value(params, |value| arguments_digest(value, class, &DedupePolicy::default()))
}

fn computed(owned: &OwnedKeyInputs, params: &str, class: ToolClass) -> RecordKey {
    computed_key(&owned.scope(), digest(params, class), class, &DedupePolicy::default())
}

#[derive(Deserialize)]
struct KeyVectors {
    keys: Vec<KeyVector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyVector {
    name: String,
    kind: String,
    namespace: String,
    tool: String,
    tenant: Option<TenantId>,
    workspace: Option<WorkspaceId>,
    session: Option<SessionKey>,
    actor: Option<ActorId>,
    text: Option<String>,
    params: Option<String>,
    class: Option<ToolClass>,
    scope: Option<KeyScope>,
    arguments_digest: Option<Digest>,
    input_responses: Option<String>,
    request_state: Option<String>,
    key_text: String,
    key: RecordKey,
    fingerprint: String,
}

#[test]
fn the_vectors_that_all_languages_share_hold() {
    let vectors: KeyVectors =
        serde_json::from_str(include_str!("../../../../../tests/vectors/keys.json")).unwrap();
    for vector in vectors.keys {
        let read = |text: &'static str| JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).unwrap();
        let read = |text: &Option<String>| text.clone().map(|text| read(text.leak()));
        let (responses, state) = (read(&vector.input_responses), read(&vector.request_state));
        let owned = OwnedKeyInputs {
            tenant: vector.tenant,
            workspace: vector.workspace,
            session: vector.session,
            actor: vector.actor,
            continuation: continuation_digest(
                responses.as_ref().map(JsonDocument::root),
                state.as_ref().map(JsonDocument::root),
            ),
            ..OwnedKeyInputs::of(&vector.namespace, &vector.tool)
        };
        let class = vector.class.unwrap_or(ToolClass::Unknown);
        let policy =
            DedupePolicy { scope: vector.scope.unwrap_or(KeyScope::Session), ..DedupePolicy::default() };
        let arguments = vector
            .params
            .as_deref()
            .map(|params| with_value(params, |value| arguments_digest(value, class, &policy)));
        assert_eq!(arguments, vector.arguments_digest, "{}", vector.name);
        let text = vector.text.unwrap_or_default();
        let key = match vector.kind.as_str() {
            "explicit" => explicit_key(&owned.scope(), &text),
            "separate" => separate_key(&owned.scope(), &text, arguments.unwrap()),
            "callId" => call_id_key(&owned.scope(), &text, arguments.unwrap()),
            "computed" => computed_key(&owned.scope(), arguments.unwrap(), class, &policy),
            kind => panic!("{kind}"),
        };
        let hash = Digest::of(vector.key_text.as_bytes());
        assert_eq!(hash.as_bytes()[..28], vector.key.0.as_bytes()[..28], "{}", vector.name);
        assert_eq!(key, vector.key, "{}: {}", vector.name, vector.key_text);
        assert_eq!(key.fingerprint(), vector.fingerprint, "{}", vector.name);
    }
}

#[test]
fn tr_4_other_parameters_with_the_same_key_are_detected_by_their_digest() {
    let scope = OwnedKeyInputs::full();
    let (one, other) = (r#"{"amount":1}"#, r#"{"amount":2}"#);
    let class = ToolClass::Mutating;
    assert_eq!(explicit_key(&scope.scope(), "k"), explicit_key(&scope.scope(), "k"));
    assert_ne!(digest(one, class), digest(other, class));
    assert_eq!(digest(one, class), digest(r#"{ "amount": 1.0, "retryCount": 3 }"#, class));

    // If they have to be separate calls, digest and tool join the key.
    let separate = |owned: &OwnedKeyInputs, params| separate_key(&owned.scope(), "k", digest(params, class));
    let elsewhere = OwnedKeyInputs { tool: OwnedKeyInputs::of("files", "write").tool, ..scope.clone() };
    assert_eq!(separate(&scope, one), separate(&scope, one));
    assert_ne!(separate(&scope, one), separate(&scope, other));
    assert_ne!(separate(&scope, one), separate(&elsewhere, one));
    assert_eq!(explicit_key(&scope.scope(), "k"), explicit_key(&elsewhere.scope(), "k"));
}

#[test]
fn a_call_id_that_comes_with_another_tool_or_other_arguments_is_another_dispatch() {
    let read = OwnedKeyInputs::full();
    let write = OwnedKeyInputs { tool: OwnedKeyInputs::of("files", "write").tool, ..read.clone() };
    let key =
        |owned: &OwnedKeyInputs, params| call_id_key(&owned.scope(), "7", digest(params, ToolClass::Unknown));
    assert_eq!(key(&read, r#"{"a":1}"#), key(&read, r#"{ "a": 1.0, "retryCount": 3 }"#), "a resend");
    assert_ne!(key(&read, r#"{"a":1}"#), key(&read, r#"{"a":2}"#));
    assert_ne!(key(&read, r#"{"a":1}"#), key(&write, r#"{"a":1}"#));
}

#[test]
fn continuation_fields_join_the_key_but_not_the_digest() {
    let first = OwnedKeyInputs::full();
    let state = |text: &str| with_value(text, |value| continuation_digest(None, Some(value)));
    let responses = |text: &str| with_value(text, |value| continuation_digest(Some(value), None));
    assert_eq!(continuation_digest(None, None), None);
    assert_ne!(state("{}"), responses("{}"));
    assert_eq!(responses(r#"{"a":1,"b":2}"#), responses(r#"{"b":2,"a":1}"#));
    assert_ne!(responses(r#"{"a":"x  y"}"#), responses(r#"{"a":"x y"}"#));

    let second = OwnedKeyInputs { continuation: responses("{}"), ..first.clone() };
    assert_ne!(explicit_key(&first.scope(), "k"), explicit_key(&second.scope(), "k"));
    let none = digest("{}", ToolClass::Unknown);
    assert_ne!(call_id_key(&first.scope(), "k", none), call_id_key(&second.scope(), "k", none));
    assert_ne!(computed(&first, "{}", ToolClass::Unknown), computed(&second, "{}", ToolClass::Unknown));
}

#[test]
fn global_scope_applies_to_read_only_tools_only_and_never_crosses_tenants_or_workspaces() {
    let policy = DedupePolicy { scope: KeyScope::Global, ..DedupePolicy::default() };
    let key =
        |owned: &OwnedKeyInputs, class| computed_key(&owned.scope(), digest("{}", class), class, &policy);
    let ann = OwnedKeyInputs::full();
    let bob =
        OwnedKeyInputs { actor: ActorId::new("bob").ok(), session: SessionKey::new("t").ok(), ..ann.clone() };
    for class in CLASSES {
        assert_eq!(key(&ann, class) == key(&bob, class), class == ToolClass::ReadOnly, "{class:?}");
    }
    let other_tenant = OwnedKeyInputs { tenant: TenantId::new("other").ok(), ..ann.clone() };
    let other_workspace = OwnedKeyInputs { workspace: WorkspaceId::new("other").ok(), ..ann.clone() };
    assert_ne!(key(&ann, ToolClass::ReadOnly), key(&other_tenant, ToolClass::ReadOnly));
    assert_ne!(key(&ann, ToolClass::ReadOnly), key(&other_workspace, ToolClass::ReadOnly));
    // A caller that did not ask to share does not find a shared result, even without a session and an actor.
    let anonymous = OwnedKeyInputs { session: None, actor: None, ..ann };
    assert_ne!(key(&anonymous, ToolClass::ReadOnly), computed(&anonymous, "{}", ToolClass::ReadOnly));
}

#[test]
fn strings_are_compared_loosely_for_read_only_tools_unless_set_otherwise() {
    let (loose, trimmed) = (r#"{"q":" two   words "}"#, r#"{"q":"two words"}"#);
    for class in CLASSES {
        assert_eq!(digest(loose, class) == digest(trimmed, class), class == ToolClass::ReadOnly, "{class:?}");
        for (rule, same) in
            [(StringRule::Exact, false), (StringRule::Trim, false), (StringRule::Collapse, true)]
        {
            let policy = DedupePolicy { strings: Some(rule), ..DedupePolicy::default() };
            let digest = |text| with_value(text, |value| arguments_digest(value, class, &policy));
            assert_eq!(digest(loose) == digest(trimmed), same, "{class:?} {rule:?}");
        }
    }
}

/// Returns parameters that all have different meanings for a tool that changes something.
fn different_intents() -> Vec<String> {
    let mut intents: Vec<String> = [
        "null",
        "{}",
        "[]",
        "0",
        "\"\"",
        "\"0\"",
        "false",
        "[[]]",
        "[{}]",
        "{\"a\":null}",
        "{\"a\":[]}",
        "{\"a\":{}}",
        "{\"a\":\"b\",\"c\":\"d\"}",
        "{\"a\":\"b\\\",\\\"c\\\":\\\"d\"}",
        "{\"a\":{\"b\":1},\"c\":2}",
        "{\"a\":{\"b\":1,\"c\":2}}",
        "[1,[2]]",
        "[[1],2]",
        "[1,2]",
        "[12]",
        "{\"a::b\":1}",
        "{\"a\":\"::\"}",
        "{\"x\":{\"clientTs\":1}}",
        "{\"x\":{\"clientTs\":2}}",
        "{\"clientts\":1}",
    ]
    .map(str::to_owned)
    .into();
    // Whole numbers that are the same double, fractions beside whole numbers, and numbers beyond the range of doubles.
    let big = (9_007_199_254_740_990_u64..9_007_199_254_741_010).map(|number| number.to_string());
    let ids = (0..50).map(|number| format!("1234567890123456789{number:02}"));
    let far = [
        "1e308",
        "1e309",
        "1e400",
        "-1e400",
        "1e-400",
        "1e-401",
        "1e9999999999999999999999",
        "1e99999999999999999999999",
    ];
    let near = ["9007199254740993.5", "0.99999999999999999999", "1", "1.5", "-1", "1000000000000000000001"];
    let numbers = big.chain(ids).chain(far.into_iter().chain(near).map(str::to_owned));
    intents.extend(
        numbers.flat_map(|number| [format!("{{\"id\":{number}}}"), format!("{{\"id\":\"{number}\"}}")]),
    );
    // Edits that differ only in white space, line ends and look-alikes.
    let edits = [
        "if x:\n    y()",
        "if x:\n  y()",
        "if x:\n\ty()",
        "if x:\ny()",
        "if x: y()",
        "if x:  y()",
        " if x: y()",
        "if x: y() ",
        "if x:\n    y()\n",
        "if x:\n    y()\n\n",
        "a\rb",
        "a\nb",
        "ab",
        "a b",
        "a  b",
        "a\tb",
        "a\u{a0}b",
        "a\u{2028}b",
        "a\u{200b}b",
        "é",
        "e\u{301}",
        "rm -rf a b",
        "rm -rf ab",
        "rm -rf  a b",
        "\\n",
        "\n",
        "\\\\n",
    ];
    let quoted = edits.map(|edit| serde_json::to_string(edit).unwrap());
    intents.extend(quoted.iter().map(|old| format!("{{\"old\":{old},\"new\":\"x\"}}")));
    intents.extend(quoted.iter().map(|new| format!("{{\"old\":\"x\",\"new\":{new}}}")));
    intents
}

/// Returns scopes that distribute the same characters differently over their parts.
fn different_scopes() -> Vec<OwnedKeyInputs> {
    let splits = [
        ("a::b", "c"),
        ("a", "b::c"),
        ("a:", ":b::c"),
        ("a::b:", ":c"),
        ("a\\", "b"),
        ("a", "\\b"),
        ("a", "b"),
        ("a:", "b"),
    ];
    let parts = [None, Some("s"), Some("s::t"), Some("s\\"), Some("\\:"), Some(":")];
    let mut scopes = Vec::new();
    for (namespace, tool) in splits {
        for session in parts {
            for actor in parts {
                let owned = OwnedKeyInputs {
                    session: session.and_then(|text| SessionKey::new(text).ok()),
                    actor: actor.and_then(|text| ActorId::new(text).ok()),
                    ..OwnedKeyInputs::of(namespace, tool)
                };
                scopes.push(OwnedKeyInputs { tenant: TenantId::new("s").ok(), ..owned.clone() });
                scopes.push(OwnedKeyInputs { workspace: WorkspaceId::new("s").ok(), ..owned.clone() });
                scopes.push(owned);
            }
        }
    }
    scopes
}

#[test]
fn different_intents_never_share_a_key() {
    let mut intents_by_key: BTreeMap<RecordKey, String> = BTreeMap::new();
    let mut add = |key: RecordKey, intent: String| {
        if let Some(before) = intents_by_key.insert(key, intent.clone()) {
            panic!("one key for\n{before}\nand\n{intent}");
        }
    };
    let intents = different_intents();
    for params in &intents {
        add(computed(&OwnedKeyInputs::full(), params, ToolClass::Mutating), format!("computed {params}"));
        let separate =
            separate_key(&OwnedKeyInputs::full().scope(), "k", digest(params, ToolClass::Mutating));
        add(separate, format!("separate {params}"));
    }
    for owned in different_scopes() {
        for params in ["{}", "{\"a\":\"::s::\"}", "\"::\""] {
            add(computed(&owned, params, ToolClass::Unknown), format!("computed {owned:?} {params}"));
        }
    }
    // Workspace and tool are not a part of explicit keys, so scopes are compared without them.
    let given: BTreeMap<_, OwnedKeyInputs> = different_scopes()
        .into_iter()
        .map(|owned| {
            let parts = (
                owned.tenant.clone(),
                owned.tool.namespace.clone(),
                owned.session.clone(),
                owned.actor.clone(),
            );
            (parts, owned)
        })
        .collect();
    for owned in given.values() {
        for text in ["k", "k::", "::k", "s", "s::k", "\\", "\\\\", ":", "", "computed"] {
            add(explicit_key(&owned.scope(), text), format!("explicit {owned:?} {text}"));
        }
    }
    for owned in different_scopes().into_iter().filter(|owned| owned.workspace.is_none()) {
        for (text, params) in [("k", "{}"), ("k::", "{}"), ("", "{}"), ("k", "[]"), ("read", "[]")] {
            let key = call_id_key(&owned.scope(), text, digest(params, ToolClass::Unknown));
            add(key, format!("call id {owned:?} {text} {params}"));
        }
    }
    assert!(intents_by_key.len() > 6_000, "{}", intents_by_key.len());
}

#[test]
fn the_corpus_of_intents_has_no_doubles_of_its_own() {
    let intents = different_intents();
    let different: std::collections::BTreeSet<&String> = intents.iter().collect();
    assert_eq!(different.len(), intents.len());
}

#[test]
fn equal_intents_share_a_key() {
    let groups: [&[&str]; 6] = [
        &[
            r#"{"a":1,"b":[true]}"#,
            r#"{ "b" : [ true ], "a" : 1.0 }"#,
            r#"{"\u0061":10e-1,"b":[true],"clientTs":9}"#,
        ],
        &[r#"{"n":0}"#, r#"{"n":-0}"#, r#"{"n":-0.0e9}"#, r#"{"retryCount":1,"n":0.000}"#],
        &[r#"{"id":9007199254740993}"#, r#"{"id":9007199254740993.0}"#, r#"{"id":9.007199254740993e15}"#],
        &[r#"{"s":"a\nb"}"#, r#"{"s":"a\r\nb"}"#, r#"{"s":"\u0061\u000D\u000ab"}"#],
        &[r#"{"s":"a/b é"}"#, r#"{"s":"a\/b \u00e9"}"#],
        &[r#"{"f":0.1}"#, r#"{"f":1e-1}"#, r#"{"f":0.10}"#],
    ];
    for group in groups {
        for class in CLASSES {
            let keys: Vec<RecordKey> =
                group.iter().map(|params| computed(&OwnedKeyInputs::full(), params, class)).collect();
            assert!(keys.iter().all(|key| Some(key) == keys.first()), "{group:?}");
        }
    }
}

fn part() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), "[:a\\\\]{1,3}".prop_map(Some)]
}

fn scope() -> impl Strategy<Value = OwnedKeyInputs> {
    ("[:a\\\\]{1,3}", "[:a\\\\]{1,3}", part(), part(), part(), part()).prop_map(
        |(namespace, tool, tenant, workspace, session, actor)| OwnedKeyInputs {
            tenant: tenant.and_then(|text| TenantId::new(text).ok()),
            workspace: workspace.and_then(|text| WorkspaceId::new(text).ok()),
            session: session.and_then(|text| SessionKey::new(text).ok()),
            actor: actor.and_then(|text| ActorId::new(text).ok()),
            ..OwnedKeyInputs::of(&namespace, &tool)
        },
    )
}

proptest! {
    #[test]
    fn scopes_are_equal_if_and_only_if_their_keys_are(a in scope(), b in scope()) {
        let key = |owned: &OwnedKeyInputs| computed(owned, "{}", ToolClass::Unknown);
        prop_assert_eq!(key(&a) == key(&b), a == b);
        prop_assert_eq!(key(&a), key(&a.clone()));
        let given = |owned: &OwnedKeyInputs| (owned.tenant.clone(), owned.tool.namespace.clone(), owned.session.clone(), owned.actor.clone());
        prop_assert_eq!(explicit_key(&a.scope(), "k") == explicit_key(&b.scope(), "k"), given(&a) == given(&b));
    }
}

#[test]
fn keys_of_one_atomic_operation_share_a_home() {
    let owned = OwnedKeyInputs::full();
    let scope = owned.scope();
    let index = computed(&owned, "{}", ToolClass::Mutating);
    let run = run_key(index, &RunId("run-1".into()));
    for key in [
        explicit_key(&scope, "k"),
        call_id_key(&scope, "c", digest("{}", ToolClass::Mutating)),
        run,
        index.shadowed(),
        run.shadowed(),
    ] {
        assert_eq!(key.home(), index.home());
        assert_ne!(key, index);
    }
    let other = OwnedKeyInputs { actor: ActorId::new("bob").ok(), ..owned.clone() };
    assert_ne!(computed(&other, "{}", ToolClass::Mutating).home(), index.home());
}
