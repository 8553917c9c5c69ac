//! The last stderr output of servers, for the diagnosis of a failure.
//!
//! Everything is bounded: the length of a line, the number of lines, and their total bytes. Lines are stored unchanged
//! and redacted when they are shown, so that a flood costs no more than reading it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

/// The newest stderr lines of all incarnations of one server. Clones share them.
#[derive(Clone, Debug)]
pub struct StderrLog {
    buffer: Arc<StderrBuffer>,
}

/// One line, without its line break.
#[derive(Clone, PartialEq, Eq)]
pub struct StderrLine {
    /// Its number among all lines that were ever written, from zero.
    pub number: u64,
    text: String,
}

impl StderrLine {
    /// Returns the redacted line.
    pub fn shown(&self) -> String {
        steadfast_redact::text(&self.text).into_owned()
    }
}

impl fmt::Debug for StderrLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.number, self.shown())
    }
}

impl StderrLog {
    /// Maximum number of lines.
    pub const MAX_LINES: usize = 200;
    /// Maximum bytes of a line. A longer one is truncated.
    pub const MAX_LINE_BYTES: usize = 2 * 1024;
    /// Maximum total bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Creates an empty buffer.
    pub fn new() -> Self {
        Self { buffer: Arc::new(StderrBuffer { ring: Mutex::default(), written: watch::Sender::new(0) }) }
    }

    /// Returns the last lines, oldest first, redacted.
    pub fn tail(&self, lines: usize) -> Vec<String> {
        let last = self.last(lines);
        last.iter().map(StderrLine::shown).collect()
    }

    /// Returns the number of lines that were ever written.
    pub fn written(&self) -> u64 {
        *self.buffer.written.borrow()
    }

    /// Subscribes to all lines that are written from now on.
    pub fn follow(&self) -> StderrFollower {
        let written = self.buffer.written.subscribe();
        let next = *written.borrow();
        StderrFollower { buffer: Arc::downgrade(&self.buffer), written, next }
    }

    fn last(&self, lines: usize) -> Vec<StderrLine> {
        let ring = self.buffer.ring.lock();
        ring.lines.iter().skip(ring.lines.len().saturating_sub(lines)).cloned().collect()
    }

    /// Reads lines until the end of the stream. A last line without a line break counts too.
    pub(crate) async fn read(&self, from: &mut (impl AsyncRead + Unpin), cutter: &mut LineSplitter) {
        let mut chunk = vec![0; CHUNK];
        while let Ok(read) = from.read(&mut chunk).await
            && read > 0
        {
            self.keep(chunk.get(..read).unwrap_or_default(), cutter);
        }
    }

    /// Adds an unfinished line that will not be completed.
    pub(crate) fn close(&self, cutter: &mut LineSplitter) {
        if !cutter.line.is_empty() {
            self.keep(b"\n", cutter);
        }
    }

    fn keep(&self, bytes: &[u8], cutter: &mut LineSplitter) {
        let mut ring = self.buffer.ring.lock();
        cutter.cut(bytes, |line| ring.push(line));
        let written = ring.written;
        drop(ring);
        // One notification for many lines, so that a flood does not wake followers for each line.
        self.buffer.written.send_if_modified(|known| std::mem::replace(known, written) != written);
    }
}

impl Default for StderrLog {
    fn default() -> Self {
        Self::new()
    }
}

/// A subscriber to new lines.
#[derive(Debug)]
pub struct StderrFollower {
    buffer: Weak<StderrBuffer>,
    written: watch::Receiver<u64>,
    next: u64,
}

impl StderrFollower {
    /// Returns the next line, or `None` if there will be none. Lines that were dropped before they could be read are
    /// skipped, which shows in the numbers. Cancel safe.
    pub async fn next(&mut self) -> Option<StderrLine> {
        loop {
            if let Some(line) = self.buffer.upgrade()?.ring.lock().at_or_after(self.next) {
                self.next = line.number + 1;
                return Some(line);
            }
            self.written.changed().await.ok()?;
        }
    }
}

#[derive(Debug)]
struct StderrBuffer {
    ring: Mutex<LineRing>,
    written: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct LineRing {
    lines: VecDeque<StderrLine>,
    bytes: usize,
    written: u64,
}

impl LineRing {
    fn push(&mut self, text: String) {
        self.bytes += text.len();
        self.lines.push_back(StderrLine { number: self.written, text });
        self.written += 1;
        while self.lines.len() > StderrLog::MAX_LINES || self.bytes > StderrLog::MAX_BYTES {
            let dropped = self.lines.pop_front().map_or(0, |line| line.text.len());
            self.bytes = self.bytes.saturating_sub(dropped);
        }
    }

    fn at_or_after(&self, number: u64) -> Option<StderrLine> {
        let first = self.lines.front()?.number;
        let place = usize::try_from(number.saturating_sub(first)).ok()?;
        self.lines.get(place).cloned()
    }
}

/// Splits the output into lines of limited length.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    line: Vec<u8>,
    is_cut: bool,
}

impl LineSplitter {
    fn cut(&mut self, bytes: &[u8], mut push: impl FnMut(String)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_end) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            let room = LONGEST.saturating_sub(self.line.len());
            self.line.extend_from_slice(text.get(..room).unwrap_or(text));
            self.is_cut |= text.len() > room;
            if is_end {
                push(self.take());
            }
        }
    }

    fn take(&mut self) -> String {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let mut text = String::from_utf8_lossy(line).into_owned();
        self.line.clear();
        if std::mem::take(&mut self.is_cut) || text.len() > StderrLog::MAX_LINE_BYTES {
            // Invalid UTF-8 grows when it is replaced.
            let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
            text.push_str(CUT);
        }
        text
    }
}

const CHUNK: usize = 8 * 1024;
/// Marks a truncated line.
const CUT: &str = "…";
const LONGEST: usize = StderrLog::MAX_LINE_BYTES - CUT.len();

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(pieces: &[&[u8]]) -> StderrLog {
        let (stderr, mut cutter) = (StderrLog::new(), LineSplitter::default());
        for piece in pieces {
            stderr.keep(piece, &mut cutter);
        }
        stderr.close(&mut cutter);
        stderr
    }

    #[test]
    fn lines_are_assembled_from_pieces_of_any_size() {
        let stderr = log_of(&[b"on", b"e\r\ntw", b"", b"o\n\n", b"three"]);
        assert_eq!(stderr.tail(10), ["one", "two", "", "three"]);
        assert_eq!(stderr.tail(2), ["", "three"]);
        assert_eq!(stderr.written(), 4);
    }

    #[test]
    fn a_flood_is_bounded_in_lines_in_bytes_and_in_the_length_of_a_line() {
        let short = log_of(&[&b"x\n".repeat(100_000)]);
        assert_eq!((short.tail(usize::MAX).len(), short.written()), (StderrLog::MAX_LINES, 100_000));

        let mut long = "y".repeat(5000).into_bytes();
        long.push(b'\n');
        let long = log_of(&[&long.repeat(100)]);
        let ring = long.buffer.ring.lock();
        let bytes: usize = ring.lines.iter().map(|line| line.text.len()).sum();
        assert_eq!((bytes, ring.bytes), (32 * StderrLog::MAX_LINE_BYTES, bytes));
        assert!(ring.lines.iter().all(|line| line.text.ends_with("y…")));
        drop(ring);

        let (endless, mut cutter) = (StderrLog::new(), LineSplitter::default());
        for _ in 0..1000 {
            endless.keep(&[b'z'; CHUNK], &mut cutter);
        }
        assert!(cutter.line.len() <= StderrLog::MAX_LINE_BYTES, "also a line that never ends");

        let garbage = log_of(&[&[0xff; 2000]]);
        assert!(garbage.buffer.ring.lock().bytes <= StderrLog::MAX_LINE_BYTES, "also bytes that are no text");
    }

    #[test]
    fn secrets_are_not_shown() {
        let stderr = log_of(&[b"password=hunter2-and-more\n"]);
        assert_eq!(stderr.tail(1), ["password=[redacted]"]);
        assert!(!format!("{stderr:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn a_follower_gets_new_lines_and_can_detect_gaps() {
        let (stderr, mut cutter) = (StderrLog::new(), LineSplitter::default());
        stderr.keep(b"before\n", &mut cutter);
        let mut follower = stderr.follow();
        stderr.keep(b"a\nb\n", &mut cutter);
        assert_eq!(follower.next().await.unwrap().shown(), "a");
        assert_eq!(follower.next().await.unwrap().shown(), "b");
        stderr.keep(&b"c\n".repeat(1000), &mut cutter);
        assert_eq!(follower.next().await.unwrap().number, 1003 - 200);
        drop(stderr);
        assert_eq!(follower.next().await, None);
    }
}
