//! Messages as lines: how MCP travels over standard input and output, and over anything else that carries bytes.
//!
//! Reading is tolerant where the protocol does not suffer: `\r\n`, empty lines, a log line that a server should have sent
//! elsewhere. A line that is too long is skipped to its end and reported; the stream goes on. Writing never interleaves:
//! one task owns the writer and takes everything that is queued in one go.

mod split;
mod writer;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

pub use self::split::{Piece, Splitter};
pub use self::writer::{Full, LineSender, QueueLimits, Taken, WriteFailed, line_writer};
use crate::long::LongText;
use crate::message::{Message, Unreadable};

/// The longest line that is accepted unless set otherwise. Servers send files as base64 in one line, and a gateway that
/// refuses what the bare server would have said is not transparent; more than this is a fault and not a message.
pub const LONGEST_LINE: usize = 64 << 20;

/// What came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Message),
    /// A line that is none. The stream goes on.
    NotAMessage {
        /// The line, for the log.
        line: Bytes,
        /// What is wrong with it.
        why: Unreadable,
    },
    /// A line that was too long, and was skipped. The stream goes on.
    TooLong(LongText),
    /// The other side ended in the middle of a line. It is not a message, even if it looks like one.
    Half(Bytes),
}

/// Reads messages from lines.
#[derive(Debug)]
pub struct LineReader<R> {
    source: R,
    splitter: Splitter,
    ended: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads lines of at most so many bytes.
    pub fn new(source: R, longest: usize) -> Self {
        Self { source, splitter: Splitter::new(longest), ended: false }
    }

    /// The next thing that came in; `None` at the end. An error of the source is given once, and is the end as well.
    ///
    /// Nothing is lost if the future is dropped before it is done.
    pub async fn next(&mut self) -> Option<std::io::Result<Received>> {
        loop {
            if let Some(piece) = self.splitter.next_piece() {
                return Some(Ok(self.received(piece)));
            }
            if self.ended {
                return self.splitter.finish().map(|piece| Ok(self.received(piece)));
            }
            match self.source.read_buf(self.splitter.room()).await {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) => {
                    self.ended = true;
                    self.splitter.forget();
                    return Some(Err(error));
                }
            }
        }
    }

    fn received(&self, piece: Piece) -> Received {
        match piece {
            Piece::Line(line) => match Message::parse(line.clone(), usize::MAX) {
                Ok(message) => Received::Message(message),
                Err(why) => Received::NotAMessage { line, why },
            },
            Piece::TooLong(long) => Received::TooLong(long),
            Piece::Half(line) => Received::Half(line),
        }
    }
}

#[cfg(test)]
mod tests;
