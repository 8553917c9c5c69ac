//! Writing of lines: one task owns the writer, and every sender has a bounded queue to it.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::delivery::{DeliveryCallback, DeliveryLink, DeliveryTracker, PendingDelivery};
use crate::message::RpcMessage;

/// Limits of the write queue.
#[derive(Clone, Copy, Debug)]
pub struct WriteQueueLimits {
    /// Messages.
    pub messages: usize,
    /// Their total bytes. A single message is always accepted, whatever its length.
    pub bytes: usize,
}

impl Default for WriteQueueLimits {
    /// 1024 messages or 8 MiB: enough for a burst to a live reader, and little memory for a dead one.
    fn default() -> Self {
        Self { messages: 1024, bytes: 8 << 20 }
    }
}

/// Creates a writer of messages as lines.
///
/// The returned future does the writing, and must be spawned by the caller. It ends when all senders are dropped and
/// everything is written, or when a write fails, which closes the link.
pub fn line_writer<W>(
    writer: W,
    link: DeliveryLink,
    limits: WriteQueueLimits,
) -> (LineSender, impl Future<Output = Result<(), LineWriteError>> + Send)
where
    W: AsyncWrite + Send + Unpin,
{
    let bytes = limits.bytes.clamp(1, u32::MAX as usize >> 4);
    let (queue, queued) = mpsc::channel(limits.messages.max(1));
    let failure = Arc::new(Mutex::new(None));
    let room = Arc::new(Semaphore::new(bytes));
    let sender = LineSender { queue, room, bytes, failure: Arc::clone(&failure) };
    (sender, run(writer, queued, link, failure))
}

/// A sender to the queue. Clones send to the same queue.
#[derive(Clone, Debug)]
pub struct LineSender {
    queue: mpsc::Sender<QueuedLine>,
    room: Arc<Semaphore>,
    bytes: usize,
    failure: Arc<Mutex<Option<LineWriteError>>>,
}

#[derive(Debug)]
struct QueuedLine {
    line: Bytes,
    tracker: Option<DeliveryTracker>,
    taken: Option<ReadPossibility>,
    /// Released when the line was written.
    _room: OwnedSemaphorePermit,
}

/// Records if a message may have been read. A message was certainly not read if it was never handed to the other
/// side, or if the system took nothing of it when the write failed.
#[derive(Clone, Debug, Default)]
pub struct ReadPossibility(Arc<AtomicBool>);

impl ReadPossibility {
    /// Returns true if the message may have been read, as far as it is known now. Check again when the writer has
    /// ended: until then, a write in progress counts as successful.
    pub fn is_possible(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, is_possible: bool) {
        self.0.store(is_possible, Ordering::Release);
    }
}

impl LineSender {
    /// Queues a message. Waits while the queue is full.
    pub async fn send(&self, message: &RpcMessage) -> Result<(), LineWriteError> {
        self.queue(message, None, None).await
    }

    /// Does the same, and records if the message may have been read.
    pub async fn send_marked(
        &self,
        message: &RpcMessage,
        taken: ReadPossibility,
    ) -> Result<(), LineWriteError> {
        self.queue(message, None, Some(taken)).await
    }

    /// Queues the final response to a request. Waits while the queue is full. Returns a [`PendingDelivery`] that waits for
    /// its arrival. Calls `arrived` as soon as the delivery is known.
    pub async fn send_response(
        &self,
        response: &RpcMessage,
        arrived: Option<DeliveryCallback>,
    ) -> Result<PendingDelivery, LineWriteError> {
        let (tracker, delivery) = DeliveryTracker::with_callback(response.id(), arrived);
        self.queue(response, Some(tracker), None).await?;
        Ok(delivery)
    }

    /// Queues a message, if there is room for it.
    pub fn try_send(&self, message: &RpcMessage) -> Result<(), EnqueueError> {
        let line = message.one_line();
        let room =
            Arc::clone(&self.room).try_acquire_many_owned(self.weight(&line)).map_err(|_| self.full())?;
        self.queue
            .try_send(QueuedLine { line, tracker: None, taken: None, _room: room })
            .map_err(|_| self.full())
    }

    /// Returns the error of a failed write, after which nothing can be written.
    pub fn failure(&self) -> Option<LineWriteError> {
        if self.queue.is_closed() { Some(self.closed_error()) } else { None }
    }

    async fn queue(
        &self,
        message: &RpcMessage,
        tracker: Option<DeliveryTracker>,
        taken: Option<ReadPossibility>,
    ) -> Result<(), LineWriteError> {
        let line = message.one_line();
        let room = tokio::select! {
            room = Arc::clone(&self.room).acquire_many_owned(self.weight(&line)) => room.map_err(|_| self.closed_error())?,
            () = self.queue.closed() => return Err(self.closed_error()),
        };
        self.queue
            .send(QueuedLine { line, tracker, taken, _room: room })
            .await
            .map_err(|_| self.closed_error())
    }

    fn weight(&self, line: &Bytes) -> u32 {
        u32::try_from(line.len().clamp(1, self.bytes)).unwrap_or(u32::MAX)
    }

    fn full(&self) -> EnqueueError {
        self.failure().map_or(EnqueueError::Queue, EnqueueError::Failed)
    }

    fn closed_error(&self) -> LineWriteError {
        self.failure.lock().clone().unwrap_or(LineWriteError {
            kind: io::ErrorKind::BrokenPipe,
            message: "the writer has ended".into(),
        })
    }
}

/// The reason why a message was not queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnqueueError {
    /// The queue is full: the other side reads too slowly.
    Queue,
    /// A write failed, so nothing further can be written.
    Failed(LineWriteError),
}

/// The error of a failed write. Nothing can be written after it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a write failed: {message}")]
pub struct LineWriteError {
    /// The kind of the error.
    pub kind: io::ErrorKind,
    /// The error text.
    pub message: Box<str>,
}

impl From<io::Error> for LineWriteError {
    fn from(error: io::Error) -> Self {
        Self { kind: error.kind(), message: error.to_string().into() }
    }
}

/// Most bytes in one write, unless a single message is longer.
const BATCH: usize = 256 << 10;

async fn run<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queued: mpsc::Receiver<QueuedLine>,
    link: DeliveryLink,
    failure: Arc<Mutex<Option<LineWriteError>>>,
) -> Result<(), LineWriteError> {
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => match queued.recv().await {
                Some(first) => first,
                None => return Ok(()),
            },
        };
        let mut batch = vec![first];
        let mut length = batch.iter().map(|queued| queued.line.len()).sum::<usize>();
        while length < BATCH {
            match queued.try_recv() {
                Ok(more) if length + more.line.len() > BATCH => {
                    next = Some(more);
                    break;
                }
                Ok(more) => {
                    length += more.line.len();
                    batch.push(more);
                }
                Err(_) => break,
            }
        }
        // Before the write, because the reader may respond before the write is recorded.
        for tracker in batch.iter_mut().filter_map(|queued| queued.tracker.take()) {
            link.record_handed_over(tracker);
        }
        // For the same reason, messages count as read during the write, until it is known that they were not.
        for taken in batch.iter().filter_map(|queued| queued.taken.as_ref()) {
            taken.set(true);
        }
        if let Err((error, written)) = write(&mut writer, &batch).await {
            let failed = LineWriteError::from(error);
            let mut begins = 0;
            for queued in &batch {
                if let Some(taken) = &queued.taken {
                    taken.set(begins < written);
                }
                begins += queued.line.len() + 1;
            }
            // The reason is set before the queue ends, so that a sender that sees the end finds the reason.
            *failure.lock() = Some(failed.clone());
            queued.close();
            link.close();
            return Err(failed);
        }
        link.record_flush();
    }
}

/// Writes a batch. An error contains the number of bytes that the system took.
async fn write<W: AsyncWrite + Unpin>(
    writer: &mut W,
    batch: &[QueuedLine],
) -> Result<(), (io::Error, usize)> {
    let mut written = 0;
    match batch {
        // A long line is not copied just to append its line end.
        [one] if one.line.len() > BATCH => {
            write_counted(writer, &one.line, &mut written).await?;
            write_counted(writer, b"\n", &mut written).await?;
        }
        _ => {
            let mut together =
                BytesMut::with_capacity(batch.iter().map(|queued| queued.line.len() + 1).sum());
            for queued in batch {
                together.extend_from_slice(&queued.line);
                together.extend_from_slice(b"\n");
            }
            write_counted(writer, &together, &mut written).await?;
        }
    }
    // A buffer may have passed on any part of its content.
    writer.flush().await.map_err(|error| (error, usize::MAX))
}

async fn write_counted<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut bytes: &[u8],
    written: &mut usize,
) -> Result<(), (io::Error, usize)> {
    while !bytes.is_empty() {
        match writer.write(bytes).await {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), *written)),
            Ok(count) => {
                *written += count;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            Err(error) => return Err((error, *written)),
        }
    }
    Ok(())
}
