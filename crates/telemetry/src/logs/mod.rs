//! Logs: one redacted line per event, through one writer.
//!
//! Built-in events and the `tracing` events of every crate in the process ([`Logs::layer`]) become the same kind of
//! lines, so there is no other output. Texts go through [`redact::excerpt`]. Only values made by Steadfast (numbers,
//! words, fingerprints, trace ids) are written unchanged.

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

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// An action is needed.
    Error,
    /// An action may be needed.
    Warn,
    /// Events of calls.
    Info,
    /// Reasons of events.
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

/// The error for a text that is not a level.
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

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object.
    Json,
    /// Text for a terminal.
    Human,
}

/// The log output. Clones share it.
#[derive(Clone, Debug)]
pub struct Logs {
    level: Level,
    writer: Arc<Writer<Entry>>,
}

impl Logs {
    /// Writes lines to standard error.
    pub fn to_stderr(level: Level, format: Format) -> io::Result<Self> {
        Self::to(io::stderr(), level, format)
    }

    /// Writes lines to any writer. A separate thread writes, so a slow disk delays no call. Lines that it cannot keep
    /// up with are dropped, and the next line contains their number.
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

    /// Returns a layer for a `tracing` subscriber, which turns its events into log lines.
    pub fn layer(&self) -> LogLayer {
        LogLayer::new(self.clone())
    }

    /// Logs every panic in the process as a line. Otherwise its message is written to standard error unredacted, with
    /// any text of a tool in it.
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

    /// Waits until every line so far is written, but not longer than this. Returns true if they are.
    pub fn flush(&self, limit: Duration) -> bool {
        self.writer.flush(limit)
    }

    /// Returns true if lines with this level are written.
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

    /// Writes an entry, unless it is below the level.
    pub(crate) fn write_entry(&self, entry: Entry) {
        if self.wants(entry.level()) {
            self.writer.write(entry);
        }
    }
}

/// Returns the current time, for events without one.
pub(crate) fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(steadfast_core::millis(since_epoch))
}

#[cfg(test)]
pub(crate) mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::tests::PATIENCE;

    /// Records the output.
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
    fn the_human_format_is_one_readable_line() {
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
    fn sf_6_a_panic_is_logged_and_redacted() {
        let paper = Paper::default();
        let logs = Logs::to(paper.clone(), Level::Error, Format::Json).unwrap();
        let usual = panic::take_hook();
        logs.take_panics();
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let caught = std::thread::spawn(move || panic!("no way with {token}")).join();
        panic::set_hook(usual);
        assert!(caught.is_err());
        // A panic waits only briefly for its line.
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
