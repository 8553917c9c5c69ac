//! The event feed: the lines of the log at any level, each with a number, for readers that come and go.
//!
//! A reader that was disconnected for a moment continues after the last number that it has seen. Lines are only made while
//! there are readers, so that calls do not pay for an unused feed. Notifications are the exception: they are rare,
//! and an operator who opens the feed because of one must find it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::logs::{self, LogEntry, LogLineFormat, LogLineLevel, ShownTexts};

/// A feed of events. Clones share it.
#[derive(Clone, Debug)]
pub struct Feed(Arc<FeedInner>);

#[derive(Debug)]
struct FeedInner {
    buffer: Mutex<FeedBuffer>,
    /// The number of the last line.
    last: watch::Sender<u64>,
    /// Time until which lines are made, in milliseconds since the start. Checked for every event of every call.
    until: AtomicU64,
    began: Instant,
    /// Distinguishes the numbers of this feed from those of another.
    generation: u64,
}

#[derive(Debug, Default)]
struct FeedBuffer {
    /// The newest lines. The last one has the last number.
    lines: VecDeque<Arc<FeedEvent>>,
    /// The newest notifications, even without readers.
    notifications: VecDeque<Arc<FeedEvent>>,
    shown: ShownTexts,
    readers: usize,
}

/// An event in the feed.
#[derive(Debug)]
pub struct FeedEvent {
    /// The number, one higher than that of the previous event.
    pub number: u64,
    /// The name of the event, as in the log.
    pub event: &'static str,
    /// The content: a JSON object without line breaks, redacted.
    pub text: Box<str>,
}

/// An item for a reader.
#[derive(Clone, Debug)]
pub enum FeedItem {
    /// The next event.
    Event(Arc<FeedEvent>),
    /// The number of events that are no longer kept. The next item is the oldest one that is.
    Missed(u64),
}

/// Number of events that are kept for readers that are disconnected or slow.
const MOST: usize = 1024;
/// Number of notifications that are kept.
const MOST_NOTIFICATIONS: usize = 100;
/// The event name of notifications.
pub(crate) const NOTIFICATION: &str = "notification";
/// Time that a reader may be away without missing events.
const RESUME_TIME: Duration = Duration::from_secs(60);
/// There are no readers, and none were there recently.
const NEVER: u64 = u64::MAX - 1;
/// There is a reader.
const ALWAYS: u64 = u64::MAX;

impl Default for Feed {
    fn default() -> Self {
        let (last, until, began) = (watch::Sender::new(0), AtomicU64::new(NEVER), Instant::now());
        let generation = logs::now().as_millis();
        Self(Arc::new(FeedInner { buffer: Mutex::default(), last, until, began, generation }))
    }
}

impl Feed {
    /// Returns a reader of the events after this number, or of new events.
    pub fn read(&self, last_read: Option<u64>) -> FeedReader {
        let last = {
            let mut buffer = self.0.buffer.lock();
            buffer.readers += 1;
            let until = self.0.until.swap(ALWAYS, Ordering::Relaxed);
            let was_away = until != NEVER && until != ALWAYS && self.0.now() >= until;
            if was_away {
                // Events may have happened without a line. A skipped number shows that.
                buffer.lines.clear();
                self.0.last.send_modify(|last| *last += 1);
            }
            *self.0.last.borrow()
        };
        // A number that was never used is from an earlier process, so all events are new to this reader.
        let last_read = last_read.map_or(last, |number| if number > last { 0 } else { number });
        FeedReader { feed: self.clone(), last_read, updates: self.0.last.subscribe() }
    }

    /// Returns an id that distinguishes the numbers of this feed from those of another process.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// Returns true if a line with this level is needed.
    pub(crate) fn is_enabled(&self, level: LogLineLevel) -> bool {
        let is_read = match self.0.until.load(Ordering::Relaxed) {
            NEVER => false,
            ALWAYS => true,
            until => self.0.now() < until,
        };
        is_read && level <= LogLineLevel::Debug
    }

    pub(crate) fn write(&self, entry: &LogEntry) {
        let mut buffer = self.0.buffer.lock();
        let mut text = String::new();
        entry.write(LogLineFormat::Json, &mut buffer.shown, &mut text);
        let number = *self.0.last.borrow() + 1;
        let (event, text) = (entry.name(), text.trim_end().into());
        let line = Arc::new(FeedEvent { number, event, text });
        if event == NOTIFICATION {
            push(&mut buffer.notifications, line.clone(), MOST_NOTIFICATIONS);
        }
        push(&mut buffer.lines, line, MOST);
        // Under the lock, so that numbers are in order.
        self.0.last.send_replace(number);
    }
}

/// Adds a line, and drops the oldest if there are too many.
fn push(lines: &mut VecDeque<Arc<FeedEvent>>, line: Arc<FeedEvent>, most: usize) {
    if lines.len() >= most {
        lines.pop_front();
    }
    lines.push_back(line);
}

impl FeedBuffer {
    /// Returns the first line after this number that is still kept.
    fn next_after(&self, number: u64) -> Option<&Arc<FeedEvent>> {
        let first = |lines: &'_ VecDeque<Arc<FeedEvent>>| lines.partition_point(|line| line.number <= number);
        let (line, notification) =
            (self.lines.get(first(&self.lines)), self.notifications.get(first(&self.notifications)));
        line.into_iter().chain(notification).min_by_key(|line| line.number)
    }
}

impl FeedInner {
    fn now(&self) -> u64 {
        steadfast_core::millis(self.began.elapsed())
    }
}

/// A reader of the feed. While there is one, all lines are made.
#[derive(Debug)]
pub struct FeedReader {
    feed: Feed,
    last_read: u64,
    updates: watch::Receiver<u64>,
}

impl FeedReader {
    /// Waits for the next item.
    pub async fn next(&mut self) -> FeedItem {
        loop {
            if let Some(next) = self.buffered_item() {
                return next;
            }
            if self.updates.changed().await.is_err() {
                // Unreachable: the reader itself keeps the feed alive.
                std::future::pending::<()>().await;
            }
        }
    }

    fn buffered_item(&mut self) -> Option<FeedItem> {
        let last = *self.updates.borrow_and_update();
        if self.last_read >= last {
            return None;
        }
        let buffer = self.feed.0.buffer.lock();
        let line = buffer.next_after(self.last_read);
        let missed = line.map_or(last, |line| line.number - 1).saturating_sub(self.last_read);
        if missed > 0 {
            self.last_read += missed;
            return Some(FeedItem::Missed(missed));
        }
        let line = line?.clone();
        self.last_read = line.number;
        Some(FeedItem::Event(line))
    }
}

impl Drop for FeedReader {
    fn drop(&mut self) {
        let feed = &self.feed.0;
        let mut buffer = feed.buffer.lock();
        buffer.readers -= 1;
        if buffer.readers == 0 {
            feed.until.store(feed.now() + steadfast_core::millis(RESUME_TIME), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;

    use super::*;
    use crate::logs::LogField;

    fn write_text(feed: &Feed, text: &str) {
        let mut entry = LogEntry::new(LogLineLevel::Debug, "told", Timestamp::from_millis(0));
        entry.field("text", &LogField::Text(text));
        feed.write(&entry);
    }

    async fn read(reader: &mut FeedReader) -> String {
        let next = tokio::time::timeout(Duration::from_secs(1), reader.next()).await;
        match next.expect("something was to be told") {
            FeedItem::Event(line) => format!("{} {} {}", line.number, line.event, line.text),
            FeedItem::Missed(number) => format!("missed {number}"),
        }
    }

    #[test]
    fn no_line_is_made_without_a_reader() {
        let feed = Feed::default();
        assert!(!feed.is_enabled(LogLineLevel::Error));
        let reader = feed.read(None);
        assert!(feed.is_enabled(LogLineLevel::Debug) && !feed.is_enabled(LogLineLevel::Trace));
        drop(feed.read(None));
        assert_eq!(feed.0.until.load(Ordering::Relaxed), ALWAYS, "one still reads");
        drop(reader);
        let until = feed.0.until.load(Ordering::Relaxed);
        assert!(
            (steadfast_core::millis(RESUME_TIME)..NEVER).contains(&until),
            "lines are made for a while: {until}"
        );
        for (until, expected) in [(NEVER - 1, true), (0, false)] {
            feed.0.until.store(until, Ordering::Relaxed);
            assert_eq!(
                feed.is_enabled(LogLineLevel::Error),
                expected,
                "whoever was away for a moment misses nothing"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_was_disconnected_too_long_gets_a_missed_item() {
        let feed = Feed::default();
        let mut reader = feed.read(None);
        write_text(&feed, "a");
        read(&mut reader).await;
        drop(reader);
        feed.0.until.fetch_sub(steadfast_core::millis(RESUME_TIME), Ordering::Relaxed);
        assert_eq!(read(&mut feed.read(Some(1))).await, "missed 1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_gets_new_events_or_those_after_its_last_one() {
        let feed = Feed::default();
        write_text(&feed, "before");
        let mut reader = feed.read(None);
        write_text(&feed, "a");
        write_text(&feed, "password=hunter2-and-more");
        let line = |number, text| {
            format!(
                r#"{number} told {{"time":"1970-01-01T00:00:00.000Z","level":"debug","event":"told","text":"{text}"}}"#
            )
        };
        assert_eq!(read(&mut reader).await, line(2, "a"));
        assert_eq!(read(&mut reader).await, line(3, "password=[redacted]"));
        assert_eq!(read(&mut feed.read(Some(1))).await, line(2, "a"));
        assert_eq!(read(&mut feed.read(Some(99))).await, line(1, "before"), "a number of another life");
        let waiting = tokio::spawn(async move { read(&mut reader).await });
        tokio::task::yield_now().await;
        write_text(&feed, "b");
        assert_eq!(waiting.await.unwrap(), line(4, "b"));
    }

    #[tokio::test(start_paused = true)]
    async fn notifications_are_stored_without_readers_and_among_many_events() {
        let feed = Feed::default();
        let notify =
            || feed.write(&LogEntry::new(LogLineLevel::Warn, NOTIFICATION, Timestamp::from_millis(0)));
        let is = |line: String, number: u64| line.starts_with(&format!("{number} notification "));
        notify();
        let mut reader = feed.read(Some(0));
        assert!(is(read(&mut reader).await, 1));
        for number in 0..MOST {
            write_text(&feed, &number.to_string());
        }
        notify();
        let mut late = feed.read(Some(0));
        assert!(is(read(&mut late).await, 1), "it is kept behind a thousand others");
        assert_eq!(read(&mut late).await, "missed 1");
        assert!(read(&mut late).await.starts_with("3 told "));
        // A reader that returns after a long time gets the notifications meanwhile, and an item that it may have
        // missed more.
        drop((reader, late));
        feed.0.until.fetch_sub(steadfast_core::millis(RESUME_TIME), Ordering::Relaxed);
        notify();
        let last = MOST as u64 + 2;
        let mut back = feed.read(Some(last));
        assert!(is(read(&mut back).await, last + 1));
        assert_eq!(read(&mut back).await, "missed 1");
        for _ in 0..2 * MOST_NOTIFICATIONS {
            notify();
        }
        assert_eq!(feed.0.buffer.lock().notifications.len(), MOST_NOTIFICATIONS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_the_number_of_missed_events() {
        let feed = Feed::default();
        let mut reader = feed.read(None);
        for number in 0..MOST + 3 {
            write_text(&feed, &number.to_string());
        }
        assert_eq!(read(&mut reader).await, "missed 3");
        assert!(read(&mut reader).await.starts_with("4 "));
    }
}
