//! A layer that turns the `tracing` events of this process into log lines.

use std::fmt::{self, Write as _};

use tracing::field::Visit;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::line::{LogEntry, LogField};
use super::{LogLineLevel, LogSink, now};

/// Turns `tracing` events into log lines. The field `event` names the line, as in the events of Steadfast. The lines
/// of other crates are named by their target.
#[derive(Clone, Debug)]
pub struct LogLayer {
    logs: LogSink,
}

impl LogLayer {
    pub(super) fn new(logs: LogSink) -> Self {
        Self { logs }
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    // Other layers may need more events, so these are filtered here and not disabled globally.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.logs.level {
            LogLineLevel::Error => LevelFilter::ERROR,
            LogLineLevel::Warn => LevelFilter::WARN,
            LogLineLevel::Info => LevelFilter::INFO,
            LogLineLevel::Debug => LevelFilter::DEBUG,
            LogLineLevel::Trace => LevelFilter::TRACE,
        })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if !self.logs.is_enabled(level_of(metadata)) {
            return;
        }
        let mut content = EventContent::default();
        event.record(&mut content);
        let name = content.event.as_deref().unwrap_or(metadata.target());
        let mut entry = LogEntry::named(level_of(metadata), name, now());
        if let Some(message) = &content.message {
            entry.field("message", &LogField::Text(message));
        }
        for (name, value) in &content.fields {
            entry.field(name, &value.as_field());
        }
        self.logs.writer.write(entry);
    }
}

fn level_of(metadata: &Metadata<'_>) -> LogLineLevel {
    match *metadata.level() {
        tracing::Level::ERROR => LogLineLevel::Error,
        tracing::Level::WARN => LogLineLevel::Warn,
        tracing::Level::INFO => LogLineLevel::Info,
        tracing::Level::DEBUG => LogLineLevel::Debug,
        tracing::Level::TRACE => LogLineLevel::Trace,
    }
}

/// The content of an event.
#[derive(Default)]
struct EventContent {
    event: Option<String>,
    message: Option<String>,
    fields: Vec<(&'static str, EventValue)>,
}

enum EventValue {
    Text(String),
    Number(u64),
    Flag(bool),
}

impl EventValue {
    fn as_field(&self) -> LogField<'_> {
        match self {
            Self::Text(text) => LogField::Text(text),
            Self::Number(number) => LogField::Number(*number),
            Self::Flag(flag) => LogField::Flag(*flag),
        }
    }
}

impl EventContent {
    fn text(&mut self, name: &'static str, text: String) {
        match name {
            "event" => self.event = Some(text),
            "message" => self.message = Some(text),
            // Other crates do not redact their events, so the names of fields are checked as well as their values.
            _ if steadfast_redact::is_secret_name(name) => {
                self.fields.push((name, EventValue::Text(steadfast_redact::MASK.to_owned())))
            }
            _ => self.fields.push((name, EventValue::Text(text))),
        }
    }
}

impl Visit for EventContent {
    fn record_u64(&mut self, field: &tracing::field::Field, value: u64) {
        if steadfast_redact::is_secret_name(field.name()) {
            self.text(field.name(), String::new());
        } else {
            self.fields.push((field.name(), EventValue::Number(value)));
        }
    }

    fn record_bool(&mut self, field: &tracing::field::Field, value: bool) {
        self.fields.push((field.name(), EventValue::Flag(value)));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.text(field.name(), up_to(value).to_owned());
    }

    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        let mut text = BoundedText(String::new());
        // This can only fail when the limit is reached, and then the text is long enough.
        let _ = write!(text, "{value:?}");
        self.text(field.name(), text.0);
    }
}

/// A text with a limit.
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0.push_str(up_to(more));
        if self.0.len() > MOST_BYTES { Err(fmt::Error) } else { Ok(()) }
    }
}

fn up_to(text: &str) -> &str {
    let mut end = MOST_BYTES.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Number of bytes of a value that are checked. Far more than is shown, so that a secret at the edge is still
/// detected.
const MOST_BYTES: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::tests::CapturedOutput;
    use super::*;
    use crate::LogLineFormat;

    const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

    fn written(level: LogLineLevel, emit: impl FnOnce()) -> String {
        let paper = CapturedOutput::default();
        let logs = LogSink::to(paper.clone(), level, LogLineFormat::Json).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(logs.layer()), emit);
        assert!(logs.flush(crate::tests::TEST_TIMEOUT));
        paper.text()
    }

    #[test]
    fn events_of_tracing_become_lines_like_those_of_the_engine() {
        let text = written(LogLineLevel::Info, || {
            tracing::warn!(event = "hook.failed", hook = "before", tries = 3_u64, late = true, "it goes on");
            tracing::debug!("not this one");
        });
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["event"], "hook.failed");
        assert_eq!(line["level"], "warn");
        assert_eq!(line["message"], "it goes on");
        assert_eq!(
            (&line["hook"], &line["tries"], &line["late"]),
            (&"before".into(), &3.into(), &true.into())
        );
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn sf_6_events_of_tracing_are_redacted() {
        let text = written(LogLineLevel::Trace, || {
            tracing::error!(
                password = "hunter2",
                pin_token = 4711_u64,
                "sent {TOKEN} to https://me:s3cr3t@host/"
            );
            tracing::info!(event = TOKEN, header = ?("Authorization", format!("Bearer {TOKEN}")));
            tracing::info!(target: "other", "{}{TOKEN}", "x ".repeat(8000));
        });
        for secret in ["hunter2", "4711", TOKEN, "s3cr3t", "16C7e42F"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("\"event\":\"other\""), "{text}");
    }
}
