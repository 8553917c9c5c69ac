//! Splitting of bytes into lines, without I/O.

use std::io::BufRead;

use bytes::{Bytes, BytesMut};

use crate::long_text::LongText;

/// A line, or the report of one that is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinePiece {
    /// A line without its line end. Never empty.
    Line(Bytes),
    /// A line that was too long. It was skipped, up to the line feed.
    TooLong(LongText),
    /// The text after the last line end.
    Half(Bytes),
}

/// Splits a stream of bytes into lines. Buffers at most one line and one read.
#[derive(Debug)]
pub struct MessageLineSplitter {
    buffer: BytesMut,
    /// Length of the part of the buffer that was searched for a line end.
    searched: usize,
    longest: usize,
    /// Both ends of a line that is too long, while it is skipped.
    skipped: Option<LongText>,
}

/// Size of one read.
const READ: usize = 16 << 10;

impl MessageLineSplitter {
    /// Creates a splitter for lines of at most `longest` bytes, not counting the line end.
    pub fn new(longest: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, longest, skipped: None }
    }

    /// Returns the buffer for the next read.
    pub fn room(&mut self) -> &mut BytesMut {
        self.buffer.reserve(READ);
        &mut self.buffer
    }

    /// Returns the next complete piece.
    pub fn next_piece(&mut self) -> Option<LinePiece> {
        loop {
            let unseen = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = line_end(unseen).map(|at| self.searched + at) else {
                self.searched = self.buffer.len();
                self.skip_if_too_long();
                return None;
            };
            let line = self.buffer.split_to(at + 1).freeze();
            self.searched = 0;
            let whole = line.get(..at).unwrap_or_default();
            if let Some(mut skipped) = self.skipped.take() {
                skipped.push(whole);
                return Some(LinePiece::TooLong(skipped));
            }
            let fitting = without_end(line.clone());
            if fitting.len() > self.longest {
                return Some(LinePiece::TooLong(LongText::of(whole)));
            }
            let line = fitting;
            if !line.trim_ascii().is_empty() {
                return Some(LinePiece::Line(line));
            }
        }
    }

    /// Returns the rest at the end of the input.
    pub fn finish(&mut self) -> Option<LinePiece> {
        let rest = std::mem::take(&mut self.buffer).freeze();
        self.searched = 0;
        if let Some(mut skipped) = self.skipped.take() {
            skipped.push(&rest);
            return Some(LinePiece::TooLong(skipped));
        }
        let rest = without_end(rest);
        (!rest.trim_ascii().is_empty()).then_some(LinePiece::Half(rest))
    }

    /// Drops the buffered input.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.longest);
    }

    fn skip_if_too_long(&mut self) {
        // One byte more than the longest line may be the `\r` of its end.
        if self.skipped.is_some() || self.buffer.len() > self.longest.saturating_add(1) {
            self.skipped.get_or_insert_default().push(&self.buffer);
            // A new buffer frees the memory of a long line, up to 60 MiB.
            self.buffer = BytesMut::new();
            self.searched = 0;
        }
    }
}

/// Finds the end of the line. The search of the standard library compares many bytes at once, which is noticeably
/// faster for lines of megabytes.
fn line_end(mut bytes: &[u8]) -> Option<usize> {
    let whole = bytes;
    let consumed = bytes.skip_until(b'\n').ok()?;
    let last = consumed.checked_sub(1)?;
    (whole.get(last) == Some(&b'\n')).then_some(last)
}

fn without_end(line: Bytes) -> Bytes {
    let end = line.strip_suffix(b"\n").unwrap_or(&line);
    let length = end.strip_suffix(b"\r").unwrap_or(end).len();
    line.slice(..length)
}
