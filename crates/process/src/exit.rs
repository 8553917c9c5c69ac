//! The exit of a child, and its meaning for the calls in flight.

use std::fmt;

use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};

/// Exit of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// It exited with this code.
    Code(i32),
    /// It was ended by this signal.
    Signal(i32),
    /// Unknown, because the process that watched it was killed.
    Unknown,
}

/// Progress of a call to the child that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// None of it was written.
    No,
    /// Some or all of it was written.
    Yes,
}

impl ChildExit {
    /// Returns the fault of a call whose server has died. If nothing of the call was written, it cannot have run,
    /// whatever the exit was. Otherwise the outcome is unknown, and the exit counts as a crash.
    pub fn fault(self, sent: SendProgress) -> AttemptFault {
        let source = match (sent, self) {
            (SendProgress::No, _) => {
                FaultSource::Transport { error: TransportError::ConnectionClosed, written: false }
            }
            // A shell uses these codes for a command that it could not start. From a server that has already responded
            // they prove nothing, and must not count as proof.
            (SendProgress::Yes, Self::Code(126 | 127) | Self::Unknown) => {
                FaultSource::Exit { code: None, signal: None }
            }
            (SendProgress::Yes, Self::Code(code)) => FaultSource::Exit { code: Some(code), signal: None },
            (SendProgress::Yes, Self::Signal(signal)) => {
                FaultSource::Exit { code: None, signal: Some(signal) }
            }
        };
        AttemptFault::new(source, format!("the server {self}"))
    }
}

/// Adds the last stderr output of the server to a fault, as text that no decision depends on.
pub fn with_stderr_lines(fault: AttemptFault, stderr: &[String]) -> AttemptFault {
    match last_stderr_lines(stderr) {
        Some(words) => {
            AttemptFault { message: format!("{}. Last lines of stderr: {words}", fault.message), ..fault }
        }
        None => fault,
    }
}

/// Returns the last three lines with content, and before them the last one that names an error: many runtimes write a
/// stack trace and their version below it. Long lines are truncated.
pub fn last_stderr_lines(stderr: &[String]) -> Option<String> {
    let mut lines: Vec<&str> =
        stderr.iter().map(|line| line.trim()).filter(|line| has_content(line)).collect();
    // A restarted server repeats its messages.
    lines.dedup();
    let (before, last) = lines.split_at(lines.len().saturating_sub(MOST_LINES));
    let cause = match last.iter().any(|line| names_an_error(line)) {
        true => None,
        false => before.iter().rfind(|line| names_an_error(line)),
    };
    let words: Vec<_> = cause.into_iter().chain(last).map(|line| shortened(line)).collect();
    (!words.is_empty()).then(|| words.join(" | "))
}

/// Maximum number of lines.
const MOST_LINES: usize = 3;
/// Maximum number of characters per line.
const LONGEST_LINE: usize = 200;

/// Returns false for lines without text and for stack frames.
fn has_content(line: &str) -> bool {
    line.chars().any(char::is_alphanumeric) && !line.starts_with("at ")
}

fn names_an_error(line: &str) -> bool {
    let line = line.to_lowercase();
    ["error", "exception", "panicked", "fatal"].iter().any(|word| line.contains(word))
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or(line)),
        None => line.to_owned(),
    }
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unknown => f.write_str("ended with an unknown status"),
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;
    use steadfast_core::classify::{AttemptReach, FaultNature, Overrides, Severity, classify};

    use super::*;

    #[test]
    fn the_cause_is_found_in_the_last_lines_of_stderr() {
        let words = |text: &str| {
            let lines: Vec<_> = text.lines().map(str::to_owned).collect();
            last_stderr_lines(&lines)
        };
        let node = "node:internal/modules/cjs/loader:1143\n  throw err;\n  ^\n\nError: Cannot find module '/srv/server.js'\n    \
                    at Module._resolveFilename (node:internal/modules/cjs/loader:1140:15)\n    at node:internal/main:28:49 {\n  \
                    code: 'MODULE_NOT_FOUND',\n  requireStack: []\n}\n\nNode.js v20.11.0\n\n";
        let expected = "Error: Cannot find module '/srv/server.js' | code: 'MODULE_NOT_FOUND', | requireStack: [] | Node.js v20.11.0";
        assert_eq!(words(node).as_deref(), Some(expected));
        assert_eq!(words("a\nerror: b\nc\n\nd\n").as_deref(), Some("error: b | c | d"));
        assert_eq!(words("error: z\na\nb\nc\nd").as_deref(), Some("error: z | b | c | d"));
        assert_eq!(words("\n  \n}\n"), None);
        assert_eq!(words(&"x".repeat(500)).map(|text| text.chars().count()), Some(LONGEST_LINE + 1));
    }

    #[test]
    fn the_death_of_a_server_is_a_crash_for_sent_requests_and_harmless_for_unsent_ones() {
        for exit in [
            ChildExit::Code(0),
            ChildExit::Code(1),
            ChildExit::Code(126),
            ChildExit::Code(127),
            ChildExit::Signal(9),
            ChildExit::Unknown,
        ] {
            let of = |sent| classify(&exit.fault(sent), &Overrides::default(), Timestamp::ZERO);
            let (sent, unsent) = (of(SendProgress::Yes), of(SendProgress::No));
            assert_eq!(
                (sent.reach, sent.severity, sent.nature),
                (AttemptReach::Unknown, Severity::Crash, FaultNature::Transient),
                "{exit}"
            );
            assert_eq!(
                (unsent.reach, unsent.nature),
                (AttemptReach::NotSent, FaultNature::Transient),
                "{exit}"
            );
        }
    }
}
