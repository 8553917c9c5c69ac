//! Strategies for property tests of JSON readers.

use proptest::prelude::*;

/// Returns a strategy for JSON texts, often with odd but valid spelling.
pub fn json_text() -> impl Strategy<Value = String> {
    let space = || prop::sample::select(vec!["", "", "", " ", "\n\t", "\r "]);
    let leaf = prop_oneof![
        prop::sample::select(vec![
            "null",
            "true",
            "false",
            "0",
            "-0",
            "-0.0",
            "1.50",
            "1e2",
            "-1E-7",
            "9007199254740993",
            "1e400",
            "0.1e-400",
            "12345678901234567890123",
            "\"\"",
            "\"\\u0061\"",
            "\"\\ud83d\\ude00\"",
            "\"\\r\\n\"",
            "\" a  b \"",
            "\"\\/\\b\\f\"",
        ])
        .prop_map(str::to_owned),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>()
            .prop_filter("JSON has no NaN", |number| number.is_finite())
            .prop_map(|n| format!("{n:e}")),
        any::<String>().prop_map(|text| serde_json::Value::String(text).to_string()),
    ];
    leaf.prop_recursive(4, 24, 6, move |inner| {
        let name = prop::sample::select(vec![
            "a",
            "b",
            "\\u0062",
            "",
            "ü",
            "\u{e000}",
            "😀",
            "\\ud83d\\ude00",
            "c d",
        ]);
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..6), space())
                .prop_map(|(items, space)| format!("[{space}{}{space}]", items.join(&format!("{space},")))),
            (prop::collection::vec((name, inner), 0..6), space()).prop_map(|(members, space)| {
                let members: Vec<String> = members
                    .iter()
                    .map(|(name, value)| format!("\"{name}\"{space}:{space}{value}{space}"))
                    .collect();
                format!("{{{space}{}}}", members.join(","))
            }),
        ]
    })
}
