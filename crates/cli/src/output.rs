//! How things are said: data to the standard output, talk to the standard error stream; with colour on a terminal,
//! plain where it goes elsewhere.

use std::io::{self, IsTerminal, Write};

/// Data: what the command was asked for. That nobody reads it any more is no failure.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
}

/// The same as JSON.
pub(crate) fn say_json(value: &serde_json::Value) {
    say(&format!("{value:#}"));
}

/// Talk: what a person should know.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "{}", painted(text, &io::stderr()));
}

/// The text with its marks in colour, where somebody sees it.
fn painted(text: &str, stream: &impl IsTerminal) -> String {
    let wanted = stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if !wanted {
        return text.to_owned();
    }
    let line = |line: &str| -> String {
        for (mark, colour) in [("error:", "1;31"), ("note:", "1;33")] {
            if let Some(rest) = line.strip_prefix(mark) {
                return format!("\x1b[{colour}m{mark}\x1b[0m{rest}");
            }
        }
        let margin = line.trim_start();
        if margin.starts_with("-->") || margin.starts_with('|') {
            format!("\x1b[2m{line}\x1b[0m")
        } else {
            line.to_owned()
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
