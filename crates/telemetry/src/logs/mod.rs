//! Logs: one redacted line per event, through one writer.
//!
//! Built-in events and the `tracing` events of every crate in the process ([`LogSink::layer`]) become the same kind of
//! lines, so there is no other output. Texts go through [`redact::excerpt`]. Only values made by Steadfast (numbers,
//! words, fingerprints, trace ids) are written unchanged.

mod layer;
mod line;
mod writer;

use std::io::{self, Write};
use std::panic;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use steadfast_core::Timestamp;

pub use layer::LogLayer;
pub(crate) use line::{LogEntry, LogField, ShownTexts};
pub(crate) use writer::LogWriter;

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLineLevel {
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

impl LogLineLevel {
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log level must be one of error, warn, info, debug, trace")]
pub struct InvalidLogLineLevel;

impl FromStr for LogLineLevel {
    type Err = InvalidLogLineLevel;

    fn from_str(text: &str) -> Result<Self, InvalidLogLineLevel> {
        Self::ALL
            .into_iter()
            .find(|level| level.as_str().eq_ignore_ascii_case(text))
            .ok_or(InvalidLogLineLevel)
    }
}

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLineFormat {
    /// One JSON object.
    Json,
    /// Text for a terminal.
    Human,
}

/// The log output. Clones share it.
#[derive(Clone, Debug)]
pub struct LogSink {
    level: LogLineLevel,
    writer: Arc<LogWriter<LogEntry>>,
}

impl LogSink {
    /// Writes lines to standard error.
    pub fn to_stderr(level: LogLineLevel, format: LogLineFormat) -> io::Result<Self> {
        Self::to(io::stderr(), level, format)
    }

    /// Writes lines to any writer. A separate thread writes, so a slow disk delays no call. Lines that it cannot keep
    /// up with are dropped, and the next line contains their number.
    pub fn to(
        sink: impl Write + Send + 'static,
        level: LogLineLevel,
        format: LogLineFormat,
    ) -> io::Result<Self> {
        let mut shown = ShownTexts::default();
        let make = move |entry: &LogEntry, lines: &mut String| entry.write(format, &mut shown, lines);
        let lost = |lines| {
            let mut entry = LogEntry::new(LogLineLevel::Warn, "log_lines_lost", now());
            entry.field("lost", &LogField::Number(lines));
            entry
        };
        Ok(Self { level, writer: Arc::new(LogWriter::start(sink, make, lost)?) })
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
            let message = payload.downcast_ref::<&str>().copied();
            let message = message.or(payload.downcast_ref::<String>().map(String::as_str));
            let place = info.location().map(ToString::to_string);
            let fields = [("message", LogField::text(message)), ("place", LogField::text(place.as_deref()))];
            logs.write(LogLineLevel::Error, "panic", now(), &[&fields]);
            // The process may be about to end.
            logs.flush(Duration::from_secs(1));
        }));
    }

    /// Waits until every line so far is written, but not longer than this. Returns true if they are.
    pub fn flush(&self, limit: Duration) -> bool {
        self.writer.flush(limit)
    }

    /// Returns true if lines with this level are written.
    pub(crate) fn is_enabled(&self, level: LogLineLevel) -> bool {
        level <= self.level
    }

    /// Writes a line, unless it is below the level.
    pub(crate) fn write(
        &self,
        level: LogLineLevel,
        event: &'static str,
        at: Timestamp,
        fields: &[&[(&'static str, LogField<'_>)]],
    ) {
        if self.is_enabled(level) {
            self.writer.write(LogEntry::of(level, event, at, fields));
        }
    }

    /// Writes an entry, unless it is below the level.
    pub(crate) fn write_entry(&self, entry: LogEntry) {
        if self.is_enabled(entry.level()) {
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
    use crate::tests::TEST_TIMEOUT;

    /// Records the output.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct CapturedOutput(pub(crate) Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl CapturedOutput {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    #[test]
    fn a_line_below_the_level_is_not_written() {
        let paper = CapturedOutput::default();
        let logs = LogSink::to(paper.clone(), LogLineLevel::Warn, LogLineFormat::Json).unwrap();
        logs.write(LogLineLevel::Info, "quiet", Timestamp::ZERO, &[]);
        logs.write(
            LogLineLevel::Error,
            "loud",
            Timestamp::ZERO,
            &[&[("errorCode", LogField::Text("timeout"))]],
        );
        assert!(logs.flush(TEST_TIMEOUT));
        assert_eq!(
            paper.text(),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"error\",\"event\":\"loud\",\
             \"errorCode\":\"timeout\"}\n"
        );
    }

    #[test]
    fn the_human_format_is_one_readable_line() {
        let paper = CapturedOutput::default();
        let logs = LogSink::to(paper.clone(), LogLineLevel::Info, LogLineFormat::Human).unwrap();
        let fields: &[(&str, LogField<'_>)] = &[
            ("toolName", LogField::Text("pay")),
            ("reason", LogField::Text("two words\nand a line")),
            ("attempt", LogField::Number(2)),
            ("retriable", LogField::Flag(true)),
            ("errorCode", LogField::Absent),
        ];
        logs.write(LogLineLevel::Info, "tool_call_retry", Timestamp::ZERO, &[fields]);
        assert!(logs.flush(TEST_TIMEOUT));
        assert_eq!(
            paper.text(),
            "1970-01-01T00:00:00.000Z INFO  tool_call_retry toolName=pay reason=\"two words\\nand a line\" attempt=2 \
             retriable=true\n"
        );
    }

    #[test]
    fn sf_6_a_panic_is_logged_and_redacted() {
        let paper = CapturedOutput::default();
        let logs = LogSink::to(paper.clone(), LogLineLevel::Error, LogLineFormat::Json).unwrap();
        let usual = panic::take_hook();
        logs.take_panics();
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let caught = std::thread::spawn(move || panic!("no way with {token}")).join();
        panic::set_hook(usual);
        assert!(caught.is_err());
        // A panic waits only briefly for its line.
        assert!(logs.flush(TEST_TIMEOUT));
        let text = paper.text();
        assert!(text.contains("no way with [redacted]") && text.contains("\"event\":\"panic\""), "{text}");
        assert!(!text.contains(token), "{text}");
    }

    #[test]
    fn levels_are_read_as_they_are_written() {
        for level in LogLineLevel::ALL {
            assert_eq!(level.as_str().to_uppercase().parse(), Ok(level));
        }
        assert_eq!("loud".parse::<LogLineLevel>(), Err(InvalidLogLineLevel));
    }
}
