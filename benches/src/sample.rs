//! Sample parameters: those of a tool that takes a list of items, in the order in which a model writes them, with text,
//! numbers of both kinds, nesting and a few escapes.

use std::fmt::Write as _;

/// Returns parameters of exactly this many bytes, if that is enough for an object.
pub(crate) fn params(bytes: usize) -> String {
    let mut text = String::from(r#"{"workspace":"accounts","path":"reports/2026/summary.md","items":["#);
    let mut number = 0;
    // The remaining bytes are for the end, with room for its names.
    while text.len() + 250 < bytes {
        if number > 0 {
            text.push(',');
        }
        // Writing to a String cannot fail.
        _ = write!(
            text,
            r#"{{"title":"Entry {number}","amount":{}.25,"count":{},"tags":["a","b"],"note":"line one\nline two"}}"#,
            number * 3,
            number * 7919
        );
        number += 1;
    }
    text.push_str(r#"],"dryRun":false,"options":{"sort":"name","limit":50,"after":null},"comment":""#);
    let room = bytes.saturating_sub(text.len() + r#""}"#.len());
    text.extend("as agreed in the meeting, ".chars().cycle().take(room));
    text.push_str(r#""}"#);
    text
}
