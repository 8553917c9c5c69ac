//! Messages as lines: MCP over standard input and output, and over any other byte stream.
//!
//! Reading is tolerant where the protocol allows it: `\r\n`, empty lines, a log line that a server should have sent
//! elsewhere. A line that is too long is skipped to its end and reported, and the stream continues. Writes never
//! interleave: one task owns the writer, and writes everything that is queued at once.

mod splitter;
mod writer;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

pub use self::splitter::{LinePiece, MessageLineSplitter};
pub use self::writer::{
    EnqueueError, LineSender, LineWriteError, ReadPossibility, WriteQueueLimits, line_writer,
};
use crate::long_text::LongText;
use crate::message::{InvalidMessage, RpcMessage};

/// The default for the longest line. Servers send files as base64 in one line, and a gateway must not refuse what the
/// server alone could send. A longer line is an error of the server.
pub const LONGEST_LINE: usize = 64 << 20;

/// One item of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineItem {
    /// A message.
    Message(RpcMessage),
    /// A line that is not a message. The stream continues.
    NotAMessage {
        /// The line, for the log.
        line: Bytes,
        /// The reason why it is not a message.
        error: InvalidMessage,
    },
    /// A line that was too long, and was skipped. The stream continues.
    TooLong(LongText),
    /// The input ended in the middle of a line. This is not a message, even if it looks like one.
    Half(Bytes),
}

/// Reads messages from lines.
#[derive(Debug)]
pub struct LineReader<R> {
    source: R,
    splitter: MessageLineSplitter,
    is_finished: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Creates a reader for lines of at most `longest` bytes.
    pub fn new(source: R, longest: usize) -> Self {
        Self { source, splitter: MessageLineSplitter::new(longest), is_finished: false }
    }

    /// Returns the next item, or `None` at the end. An error of the source is returned once, and is the end as well.
    ///
    /// This method is cancel safe: nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<std::io::Result<LineItem>> {
        loop {
            if let Some(piece) = self.splitter.next_piece() {
                return Some(Ok(self.received(piece)));
            }
            if self.is_finished {
                return self.splitter.finish().map(|piece| Ok(self.received(piece)));
            }
            match self.source.read_buf(self.splitter.room()).await {
                Ok(0) => self.is_finished = true,
                Ok(_) => {}
                Err(error) => {
                    self.is_finished = true;
                    self.splitter.forget();
                    return Some(Err(error));
                }
            }
        }
    }

    fn received(&self, piece: LinePiece) -> LineItem {
        match piece {
            LinePiece::Line(line) => match RpcMessage::parse(line.clone(), usize::MAX) {
                Ok(message) => LineItem::Message(message),
                Err(error) => LineItem::NotAMessage { line, error },
            },
            LinePiece::TooLong(long) => LineItem::TooLong(long),
            LinePiece::Half(line) => LineItem::Half(line),
        }
    }
}

#[cfg(test)]
mod tests;
