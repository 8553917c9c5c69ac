//! How a child ended, and what that means for the calls that were with it.

use std::fmt;

use steadfast_core::classify::{Fault, Source, Transport};

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody can say: whoever watched it was killed.
    Unknown,
}

/// Whether a call was on its way to the child that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Not a byte of it was written.
    No,
    /// Some of it, or all, was written.
    Yes,
}

impl Exit {
    /// What a call makes of the death of its server. If nothing of it was written, it cannot have run, whatever the
    /// server died of. If something was, nobody knows; the death is a crash.
    pub fn fault(self, sent: Sent) -> Fault {
        let source = match (sent, self) {
            (Sent::No, _) => Source::Transport { error: Transport::ConnectionClosed, written: false },
            // By these a shell says that it could not start a command. Of a server that has been speaking with us
            // they prove nothing, and must not pass for proof.
            (Sent::Yes, Self::Code(126 | 127) | Self::Unknown) => Source::Exit { code: None, signal: None },
            (Sent::Yes, Self::Code(code)) => Source::Exit { code: Some(code), signal: None },
            (Sent::Yes, Self::Signal(signal)) => Source::Exit { code: None, signal: Some(signal) },
        };
        Fault::new(source, format!("the server {self}"))
    }
}

/// The same fault with what the server wrote last, in words that decide nothing.
pub fn with_last_words(fault: Fault, stderr: &[String]) -> Fault {
    match last_line(stderr) {
        Some(line) => Fault { message: format!("{}. Its last words: {line}", fault.message), ..fault },
        None => fault,
    }
}

/// The last line that says something.
pub(crate) fn last_line(stderr: &[String]) -> Option<&str> {
    stderr.iter().rev().map(|line| line.trim()).find(|line| !line.is_empty())
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unknown => f.write_str("ended, and nobody saw how"),
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;
    use steadfast_core::classify::{Nature, Overrides, Reach, Severity, classify};

    use super::*;

    #[test]
    fn the_death_of_a_server_is_a_crash_for_what_was_sent_and_harmless_for_what_was_not() {
        for exit in
            [Exit::Code(0), Exit::Code(1), Exit::Code(126), Exit::Code(127), Exit::Signal(9), Exit::Unknown]
        {
            let of = |sent| classify(&exit.fault(sent), &Overrides::default(), Timestamp::ZERO);
            let (sent, kept) = (of(Sent::Yes), of(Sent::No));
            assert_eq!(
                (sent.reach, sent.severity, sent.nature),
                (Reach::Unknown, Severity::Crash, Nature::Transient),
                "{exit}"
            );
            assert_eq!((kept.reach, kept.nature), (Reach::NotSent, Nature::Transient), "{exit}");
        }
    }
}
