//! Logs: one line per fact, through one writer, redacted.
//!
//! The same line is made for our own facts and for the `tracing` events of every crate in the process
//! ([`Logs::layer`]), so nothing leaves by another way. A text goes through [`redact::excerpt`]; what is written as
//! it is (numbers, words, fingerprints, trace ids) is made by us.

mod layer;
mod line;
mod writer;

use std::fmt;
use std::io::{self, Write};
use std::panic;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use steadfast_core::Timestamp;

pub use layer::LogLayer;
pub(crate) use line::{Entry, Field, Shown};
pub(crate) use writer::Writer;

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Something has to be done.
    Error,
    /// Something may have to be done.
    Warn,
    /// What happens to calls.
    Info,
    /// Why it happens.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// A text that is no level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLevel;

impl FromStr for Level {
    type Err = InvalidLevel;

    fn from_str(text: &str) -> Result<Self, InvalidLevel> {
        Self::ALL.into_iter().find(|level| level.as_str().eq_ignore_ascii_case(text)).ok_or(InvalidLevel)
    }
}

impl fmt::Display for InvalidLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the log level must be one of error, warn, info, debug, trace")
    }
}

impl std::error::Error for InvalidLevel {}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object.
    Json,
    /// For a person at a terminal.
    Human,
}

/// Where lines go. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Logs {
    level: Level,
    writer: Arc<Writer<Entry>>,
}

impl Logs {
    /// Lines on the standard error stream.
    pub fn to_stderr(level: Level, format: Format) -> io::Result<Self> {
        Self::to(io::stderr(), level, format)
    }

    /// Lines wherever you want them. A thread of its own writes, so a slow disk holds up no call; lines that it
    /// cannot keep up with are left out, and the next line says how many.
    pub fn to(sink: impl Write + Send + 'static, level: Level, format: Format) -> io::Result<Self> {
        let mut shown = Shown::default();
        let make = move |entry: &Entry, lines: &mut String| entry.write(format, &mut shown, lines);
        let lost = |lines| {
            let mut entry = Entry::new(Level::Warn, "log_lines_lost", now());
            entry.field("lost", &Field::Number(lines));
            entry
        };
        Ok(Self { level, writer: Arc::new(Writer::start(sink, make, lost)?) })
    }

    /// For a `tracing` subscriber: its events become lines like ours.
    pub fn layer(&self) -> LogLayer {
        LogLayer::new(self.clone())
    }

    /// From now on a panic anywhere in the process is a line like any other. Without this its message goes to the
    /// standard error stream as it is, with whatever a tool put into it.
    pub fn take_panics(&self) {
        let logs = self.clone();
        panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let said = payload.downcast_ref::<&str>().copied();
            let said = said.or(payload.downcast_ref::<String>().map(String::as_str));
            let place = info.location().map(ToString::to_string);
            let fields = [("message", Field::text(said)), ("place", Field::text(place.as_deref()))];
            logs.write(Level::Error, "panic", now(), &[&fields]);
            // The process may be about to end.
            logs.flush(Duration::from_secs(1));
        }));
    }

    /// Waits until every line so far is written, but not for longer than this. Says whether they are.
    pub fn flush(&self, limit: Duration) -> bool {
        self.writer.flush(limit)
    }

    /// Whether such a line is written at all.
    pub(crate) fn wants(&self, level: Level) -> bool {
        level <= self.level
    }

    /// Writes a line, unless it is below the level.
    pub(crate) fn write(
        &self,
        level: Level,
        event: &'static str,
        at: Timestamp,
        fields: &[&[(&'static str, Field<'_>)]],
    ) {
        if self.wants(level) {
            self.writer.write(Entry::of(level, event, at, fields));
        }
    }

    /// The same with a line that is there already.
    pub(crate) fn write_entry(&self, entry: Entry) {
        if self.wants(entry.level()) {
            self.writer.write(entry);
        }
    }
}

/// The time of facts that nobody gave one.
pub(crate) fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(steadfast_core::millis(since_epoch))
}

#[cfg(test)]
pub(crate) mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::tests::PATIENCE;

    /// Keeps what is written.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Paper(pub(crate) Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    #[test]
    fn a_line_below_the_level_is_not_written() {
        let paper = Paper::default();
        let logs = Logs::to(paper.clone(), Level::Warn, Format::Json).unwrap();
        logs.write(Level::Info, "quiet", Timestamp::ZERO, &[]);
        logs.write(Level::Error, "loud", Timestamp::ZERO, &[&[("errorCode", Field::Text("timeout"))]]);
        assert!(logs.flush(PATIENCE));
        assert_eq!(
            paper.text(),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"error\",\"event\":\"loud\",\
             \"errorCode\":\"timeout\"}\n"
        );
    }

    #[test]
    fn a_person_gets_one_readable_line() {
        let paper = Paper::default();
        let logs = Logs::to(paper.clone(), Level::Info, Format::Human).unwrap();
        let fields: &[(&str, Field<'_>)] = &[
            ("toolName", Field::Text("pay")),
            ("reason", Field::Text("two words\nand a line")),
            ("attempt", Field::Number(2)),
            ("retriable", Field::Flag(true)),
            ("errorCode", Field::Absent),
        ];
        logs.write(Level::Info, "tool_call_retry", Timestamp::ZERO, &[fields]);
        assert!(logs.flush(PATIENCE));
        assert_eq!(
            paper.text(),
            "1970-01-01T00:00:00.000Z INFO  tool_call_retry toolName=pay reason=\"two words\\nand a line\" attempt=2 \
             retriable=true\n"
        );
    }

    #[test]
    fn sf_6_a_panic_is_told_in_the_log_and_redacted() {
        let paper = Paper::default();
        let logs = Logs::to(paper.clone(), Level::Error, Format::Json).unwrap();
        let usual = panic::take_hook();
        logs.take_panics();
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let caught = std::thread::spawn(move || panic!("no way with {token}")).join();
        panic::set_hook(usual);
        assert!(caught.is_err());
        // A panic waits for its line for a moment only.
        assert!(logs.flush(PATIENCE));
        let text = paper.text();
        assert!(text.contains("no way with [redacted]") && text.contains("\"event\":\"panic\""), "{text}");
        assert!(!text.contains(token), "{text}");
    }

    #[test]
    fn levels_are_read_as_they_are_written() {
        for level in Level::ALL {
            assert_eq!(level.as_str().to_uppercase().parse(), Ok(level));
        }
        assert_eq!("loud".parse::<Level>(), Err(InvalidLevel));
    }
}
