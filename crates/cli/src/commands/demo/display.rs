//! Output of the demo: coloured on a terminal, plain otherwise, 80 columns wide.

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::{Duration, Instant};

/// Output mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoOutput {
    /// No output: the observations are printed as JSON.
    Silent,
    /// A file, a pipe, or a terminal without features.
    Plain,
    /// A terminal with a reader, who needs time to read.
    Lively {
        /// Colour setting.
        colours: ColourSetting,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColourSetting {
    Yes,
    No,
}

/// Style of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoStyle {
    Plain,
    Bold,
    Dim,
    Bad,
    Good,
    Surprising,
}

const WIDTH: usize = 80;
/// Column of text after a label.
const MARGIN: usize = 11;

impl DemoOutput {
    /// Returns the mode that fits the standard output.
    pub(super) fn of_stdout() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match io::stdout().is_terminal() && !is_dumb {
            false => Self::Plain,
            true => Self::Lively {
                colours: if is_set("NO_COLOR") { ColourSetting::No } else { ColourSetting::Yes },
            },
        }
    }

    /// Prints a line.
    pub(super) fn line(self, style: DemoStyle, text: &str) {
        if self != Self::Silent {
            // A closed output is not an error.
            let _ = writeln!(io::stdout(), "{}", self.paint(style, text));
        }
    }

    /// Prints a paragraph.
    pub(super) fn paragraph(self, style: DemoStyle, text: &str) {
        for line in wrapped(text, WIDTH - 2) {
            self.line(style, &format!("  {line}"));
        }
    }

    /// Prints text after a label. An empty label continues the text before.
    pub(super) fn labelled(self, label: (DemoStyle, &str), style: DemoStyle, text: &str) {
        let mut before = self.paint(label.0, &format!("  {:<width$}", label.1, width = MARGIN - 2));
        for line in wrapped(text, WIDTH - MARGIN) {
            self.line(DemoStyle::Plain, &format!("{before}{}", self.paint(style, &line)));
            before = " ".repeat(MARGIN);
        }
    }

    pub(super) fn paint(self, style: DemoStyle, text: &str) -> String {
        let code = match style {
            DemoStyle::Plain => return text.to_owned(),
            DemoStyle::Bold => "1",
            DemoStyle::Dim => "2",
            DemoStyle::Bad => "31",
            DemoStyle::Good => "32",
            DemoStyle::Surprising => "1;33",
        };
        match self {
            Self::Lively { colours: ColourSetting::Yes } if !text.is_empty() => {
                format!("\x1b[{code}m{text}\x1b[0m")
            }
            Self::Silent | Self::Plain | Self::Lively { .. } => text.to_owned(),
        }
    }

    /// Pauses for reading.
    pub(super) async fn pause(self, time: Duration) {
        match self {
            Self::Silent | Self::Plain => {}
            Self::Lively { .. } => tokio::time::sleep(time).await,
        }
    }

    /// Waits for a future. If that takes long, the label shows that it is still running.
    pub(super) async fn during<T>(self, label: (DemoStyle, &str), work: impl Future<Output = T>) -> T {
        let Self::Lively { .. } = self else { return work.await };
        let (began, mut work) = (Instant::now(), pin!(work));
        let mut line = TransientLabel { shown: false };
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(TICK) => {}
            }
            if began.elapsed() >= LONG {
                let label = self.paint(label.0, &format!("  {:<width$}", label.1, width = MARGIN - 2));
                let text = format!("... {:.1} s", began.elapsed().as_secs_f32());
                line.show(&format!("{label}{}", self.paint(DemoStyle::Dim, &text)));
            }
        }
    }
}

const TICK: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);

/// A line that is erased when it is dropped.
struct TransientLabel {
    shown: bool,
}

impl TransientLabel {
    fn show(&mut self, text: &str) {
        self.shown = true;
        let mut out = io::stdout();
        let _ = write!(out, "\r\x1b[2K{text}").and_then(|()| out.flush());
    }
}

impl Drop for TransientLabel {
    fn drop(&mut self) {
        if self.shown {
            let mut out = io::stdout();
            let _ = write!(out, "\r\x1b[2K").and_then(|()| out.flush());
        }
    }
}

/// Wraps a text to lines of at most so many characters. A longer word gets a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Returns the beginning of a text on one line, cut at the end of a word.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= most {
        return words;
    }
    let cut: String = words.chars().take(most.saturating_sub(3)).collect();
    let end = cut.rfind(' ').unwrap_or(cut.len());
    format!("{}...", cut.get(..end).unwrap_or(&cut))
}

/// Formats a duration.
pub(super) fn span(time: Duration) -> String {
    match time.as_millis() {
        0 => "under 1 ms".to_owned(),
        ms @ 1..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", time.as_secs_f32()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_wrapped_and_shortened_between_words() {
        assert_eq!(wrapped("one two  three\nfour", 9), ["one two", "three", "four"]);
        assert_eq!(wrapped("longer-than-that a", 5), ["longer-than-that", "a"]);
        assert_eq!(wrapped("", 5), [""]);
        assert_eq!(shortened("one two three", 100), "one two three");
        assert_eq!(shortened("one two\nthree", 10), "one...");
    }

    #[test]
    fn only_a_terminal_gets_colours() {
        assert_eq!(DemoOutput::Plain.paint(DemoStyle::Bad, "x"), "x");
        assert_eq!(DemoOutput::Lively { colours: ColourSetting::No }.paint(DemoStyle::Bad, "x"), "x");
        assert_eq!(
            DemoOutput::Lively { colours: ColourSetting::Yes }.paint(DemoStyle::Bad, "x"),
            "\x1b[31mx\x1b[0m"
        );
    }

    #[test]
    fn durations_are_formatted_for_readers() {
        let formatted = |ms| span(Duration::from_millis(ms));
        assert_eq!([formatted(0), formatted(84), formatted(2140)], ["under 1 ms", "84 ms", "2.1 s"]);
    }
}
