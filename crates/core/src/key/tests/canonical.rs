use proptest::prelude::*;
use serde::Deserialize;
use steadfast_json::strategy::json_text;

use super::*;
use crate::id::Digest;

const RULES: [StringRule; 3] = [StringRule::Exact, StringRule::Trim, StringRule::Collapse];

fn exact(text: &str) -> String {
    canonical(text, StringRule::Exact)
}

#[derive(Deserialize)]
struct CanonicalVectors {
    accept: Vec<AcceptedInput>,
    refuse: Vec<RefusedInput>,
}

#[derive(Deserialize)]
struct AcceptedInput {
    name: String,
    input: String,
    strings: StringRule,
    volatile: Vec<Box<str>>,
    canonical: String,
    sha256: Digest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefusedInput {
    name: String,
    input: Option<String>,
    input_hex: Option<String>,
    offset: usize,
}

fn vectors() -> CanonicalVectors {
    serde_json::from_str(include_str!("../../../../../tests/vectors/canonical.json")).unwrap()
}

#[test]
fn names_with_a_common_prefix_are_sorted_by_the_rest() {
    let sorted = r#"{"abcdefgh":0,"abcdefgh1":1,"abcdefgh2":2,"abcdefgh2é":3}"#;
    assert_eq!(exact(r#"{"abcdefgh2é":3,"abcdefgh2":2,"abcdefgh1":1,"abcdefgh":0}"#), sorted);
    assert_eq!(exact(r#"{"abcdefgh1":1,"abcdefgh":0,"abcdefgh2é":3,"abcdefgh2":2}"#), sorted);
}

#[test]
fn white_space_is_removed_from_ends_and_runs_only_if_the_rule_requires_it() {
    for (text, trimmed, collapsed) in [
        ("\" a\"", "\"a\"", "\"a\""),
        ("\"a \"", "\"a\"", "\"a\""),
        ("\"a  b\"", "\"a  b\"", "\"a b\""),
        ("\" \"", "\"\"", "\"\""),
    ] {
        assert_eq!(canonical(text, StringRule::Trim), trimmed, "{text}");
        assert_eq!(canonical(text, StringRule::Collapse), collapsed, "{text}");
        assert_eq!(exact(text), text);
    }
}

#[test]
fn sixteen_digits_may_be_more_than_a_double_keeps() {
    assert_eq!(exact("9.000000000000001"), "9.000000000000002");
    assert_eq!(exact("9.00000000000001"), "9.00000000000001");
}

#[test]
fn the_vectors_that_all_languages_share_hold() {
    let mut canonicalizer = Canonicalizer::default();
    for vector in vectors().accept {
        let form = CanonicalForm { strings: vector.strings, volatile: &vector.volatile };
        let text = with_value(&vector.input, |value| canonicalizer.write(value, form).to_owned());
        assert_eq!(text, vector.canonical, "{}", vector.name);
        assert_eq!(Digest::of(text.as_bytes()), vector.sha256, "{}", vector.name);
        assert_eq!(
            with_value(&text, |value| canonicalizer.write(value, form).to_owned()),
            text,
            "{}",
            vector.name
        );
    }
}

#[test]
fn sf_5_the_vectors_of_refused_texts_are_refused() {
    for vector in vectors().refuse {
        let bytes = match (vector.input, vector.input_hex) {
            (Some(text), _) => text.into_bytes(),
            (None, hex) => hex
                .unwrap()
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect(),
        };
        let error = JsonDocument::parse(&bytes, JsonLimits::ENVELOPE).expect_err(&vector.name);
        assert_eq!(error.offset, vector.offset, "{}: {error}", vector.name);
    }
}

#[test]
fn a_deep_document_does_not_exhaust_the_stack() {
    let depth = 1 << 18;
    let text = format!("{}1{}", "[{\"a\":".repeat(depth), "}]".repeat(depth));
    let document =
        JsonDocument::parse(text.as_bytes(), JsonLimits { bytes: usize::MAX, depth: usize::MAX }).unwrap();
    assert_eq!(Canonicalizer::default().write(document.root(), CanonicalForm::EXACT), text);
}

#[test]
fn a_number_of_half_a_million_digits_is_written_in_no_time() {
    let digits = "7".repeat(1 << 18);
    let expected = format!("7.{}e+{}", &digits[1..], digits.len() - 1);
    assert_eq!(exact(&digits), expected);
    assert_eq!(exact(&format!("{digits}.{digits}")).len(), 2 * digits.len() + 1 + "e+262143".len());
}

/// Returns the same value, spelled as differently as JSON allows.
fn respell(value: JsonValue<'_>) -> String {
    let string = |text: &str| {
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
        format!("\"{escaped}\"")
    };
    match value.kind() {
        JsonKind::Null | JsonKind::Bool(_) => value.raw().to_owned(),
        JsonKind::Number(text) => respell_number(text),
        JsonKind::String(text) => string(&text),
        JsonKind::Array(items) => format!("[ {} ]", items.map(respell).collect::<Vec<_>>().join(" ,\n")),
        JsonKind::Object(members) => {
            let members: Vec<String> =
                members.map(|(name, value)| format!("{} : {}", string(&name), respell(value))).collect();
            format!("{{\t{}}}", members.into_iter().rev().collect::<Vec<_>>().join(","))
        }
    }
}

/// Returns the same number with its point moved.
fn respell_number(text: &str) -> String {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().unwrap();
    let mantissa = if mantissa.contains('.') { format!("{mantissa}00") } else { format!("{mantissa}.00") };
    let (whole, fraction) = mantissa.split_once('.').unwrap();
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    format!("{sign}0.{whole}{fraction}E{:+}", exponent + i64::try_from(whole.len()).unwrap())
}

proptest! {
    #[test]
    fn the_canonical_form_is_a_fixed_point(text in json_text()) {
        if JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).is_ok() {
            for rule in RULES {
                let once = canonical(&text, rule);
                prop_assert_eq!(canonical(&once, rule), once);
            }
        }
    }

    #[test]
    fn other_spellings_of_a_value_have_the_same_form(text in json_text()) {
        if let Ok(document) = JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE) {
            let other = respell(document.root());
            for rule in RULES {
                prop_assert_eq!(canonical(&other, rule), canonical(&text, rule), "{}", other);
            }
        }
    }

    #[test]
    fn within_the_rfc_the_output_equals_that_of_the_published_canonicaliser(value in rfc_value()) {
        let expected = serde_json_canonicalizer::to_string(&value).unwrap();
        prop_assert_eq!(exact(&serde_json::to_string_pretty(&value).unwrap()), expected);
    }

    #[test]
    fn every_double_has_the_text_of_the_rfc(bits in any::<u64>()) {
        let double = f64::from_bits(bits);
        if double.is_finite() {
            let expected = ryu_js::Buffer::new().format_finite(double + 0.0).to_owned();
            prop_assert_eq!(exact(&format!("{double:e}")), expected);
        }
    }

    #[test]
    fn short_decimals_have_the_text_of_the_rfc(text in "-?(0|[1-9][0-9]{0,12})\\.(0{0,8}[0-9]{1,9}|[0-9]{1,4})") {
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        let double: f64 = text.parse().unwrap();
        // Beyond fifteen digits a fraction may round to a whole number, which has its own rules.
        prop_assume!(digits <= 15 || double.fract() != 0.0);
        let expected = ryu_js::Buffer::new().format_finite(double + 0.0).to_owned();
        prop_assert_eq!(exact(&text), expected);
    }

    #[test]
    fn whole_numbers_keep_every_digit_in_every_spelling(digits in "-?[1-9][0-9]{0,45}", zeros in 0_usize..8) {
        let spelled = [
            digits.clone(),
            format!("{digits}.000"),
            format!("{digits}{}e-{zeros}", "0".repeat(zeros)),
            respell_number(&digits),
        ];
        let forms: Vec<String> = spelled.iter().map(|text| exact(text)).collect();
        for form in &forms {
            prop_assert_eq!(expand(form), digits.as_str(), "{}", form);
        }
    }

    #[test]
    fn numbers_that_differ_in_value_differ_in_form_beyond_doubles(
        digits in "[1-9]{1,4}", a in -800_i64..800, b in -800_i64..800,
    ) {
        // Between them are whole numbers, fractions, and numbers that are zero or infinite as a double.
        let is_double = |exponent: i64| (-300..300).contains(&exponent);
        prop_assume!(a != b && !(is_double(a) && is_double(b)));
        prop_assert_ne!(exact(&format!("{digits}e{a}")), exact(&format!("{digits}e{b}")));
        prop_assert_ne!(exact(&format!("{digits}e{a}")), exact("0"));
    }

    #[test]
    fn names_sort_by_their_utf_16_code_units(names in prop::collection::btree_set(name(), 0..30), escape in any::<bool>()) {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_by_key(|name| name.encode_utf16().collect::<Vec<u16>>());
        let member = |name: &String| format!("{}:0", serde_json::to_string(name).unwrap());
        let expected = format!("{{{}}}", sorted.into_iter().map(member).collect::<Vec<_>>().join(","));
        let text = format!("{{{}}}", names.iter().map(member).collect::<Vec<_>>().join(","));
        let text = if escape { with_value(&text, respell) } else { text };
        prop_assert_eq!(exact(&text), expected);
    }

    #[test]
    fn strings_follow_their_rule(text in "[ \t\u{a0}ab\"é\r\n\u{2028}]{0,12}") {
        let json = serde_json::to_string(&text).unwrap();
        let read = |rule| with_value(&canonical(&json, rule), |value| value.as_str().unwrap().into_owned());
        let mut without_returns = text.clone();
        while without_returns.contains("\r\n") {
            without_returns = without_returns.replace("\r\n", "\n");
        }
        prop_assert_eq!(read(StringRule::Exact), without_returns.as_str());
        if text.contains(['\r', '\n', '\u{2028}']) {
            prop_assert_eq!(read(StringRule::Trim), without_returns.as_str());
            prop_assert_eq!(read(StringRule::Collapse), without_returns.as_str());
        } else {
            prop_assert_eq!(read(StringRule::Trim), text.trim());
            prop_assert_eq!(read(StringRule::Collapse), text.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
}

/// Returns all digits of a whole number in canonical form.
fn expand(form: &str) -> String {
    let Some((mantissa, exponent)) = form.split_once("e+") else { return form.to_owned() };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let zeros = exponent.parse::<usize>().unwrap() - fraction.len();
    format!("{whole}{fraction}{}", "0".repeat(zeros))
}

/// Returns names around the places where the orders of UTF-8 and UTF-16 differ.
fn name() -> impl Strategy<Value = String> {
    let characters =
        vec!['a', 'b', '\r', '\u{80}', 'ö', '\u{d7ff}', '\u{e000}', '\u{ffff}', '\u{10000}', '😀'];
    let short = prop::collection::vec(prop::sample::select(characters), 0..4).prop_map(String::from_iter);
    // Around the length up to which the first bytes decide.
    prop_oneof![3 => short.clone(), 1 => "[ab]{6,10}", 1 => ("[ab]{7,8}", short).prop_map(|(a, b)| a + &b)]
}

/// Returns values that RFC 8785 covers: doubles, and strings that D7 does not change.
fn rfc_value() -> impl Strategy<Value = serde_json::Value> {
    let string = || any::<String>().prop_filter("CRLF is ours", |text| !text.contains('\r'));
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        (-(1_i64 << 53)..=1 << 53).prop_map(serde_json::Value::from),
        any::<f64>()
            .prop_filter("JSON has no NaN", |number| number.is_finite())
            .prop_map(serde_json::Value::from),
        string().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6).prop_map(serde_json::Value::from_iter),
        ]
    })
}
