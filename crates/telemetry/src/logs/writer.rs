//! The thread that formats and writes lines. Calls must not wait for a disk or a terminal, so they queue an entry and
//! continue.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// A queue of entries that never blocks.
pub(crate) struct LogWriter<L> {
    orders: SyncSender<LogWriterCommand<L>>,
    lost: Arc<AtomicU64>,
}

enum LogWriterCommand<L> {
    Line(L),
    /// Acknowledged when everything before it is written.
    Flush(SyncSender<()>),
}

impl<L: Send + 'static> LogWriter<L> {
    /// Starts the thread. `make` formats a line. `lost` creates the line for a number of dropped lines.
    pub(crate) fn start(
        sink: impl Write + Send + 'static,
        make: impl FnMut(&L, &mut String) + Send + 'static,
        lost: impl Fn(u64) -> L + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, taken) = sync_channel(MOST_LINES);
        let left_out = Arc::new(AtomicU64::new(0));
        let counted = left_out.clone();
        thread::Builder::new()
            .name("steadfast-log".to_owned())
            .spawn(move || write_all(sink, &taken, &counted, make, lost))?;
        Ok(Self { orders, lost: left_out })
    }

    pub(crate) fn write(&self, line: L) {
        match self.orders.try_send(LogWriterCommand::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let (done, written) = sync_channel(1);
        let mut order = LogWriterCommand::Flush(done);
        // If the queue is full, the thread needs a moment, and the caller of a flush can wait.
        while let Err(error) = self.orders.try_send(order) {
            match error {
                TrySendError::Full(back) if Instant::now() < deadline => order = back,
                TrySendError::Full(_) | TrySendError::Disconnected(_) => return false,
            }
            thread::sleep(Duration::from_millis(1));
        }
        written.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
    }
}

fn write_all<L>(
    mut sink: impl Write,
    orders: &Receiver<LogWriterCommand<L>>,
    left_out: &AtomicU64,
    mut make: impl FnMut(&L, &mut String),
    lost: impl Fn(u64) -> L,
) {
    let mut lines = String::new();
    // A failed write cannot be reported, and the next line may succeed.
    let mut write = |lines: &mut String| {
        let _ = sink.write_all(lines.as_bytes()).and_then(|()| sink.flush());
        lines.clear();
    };
    while let Ok(order) = orders.recv() {
        let mut next = Some(order);
        while let Some(order) = next {
            let left_out = left_out.swap(0, Ordering::Relaxed);
            if left_out > 0 {
                make(&lost(left_out), &mut lines);
            }
            match order {
                LogWriterCommand::Line(line) => make(&line, &mut lines),
                LogWriterCommand::Flush(done) => {
                    write(&mut lines);
                    let _ = done.try_send(());
                }
            }
            if lines.len() >= MOST_AT_ONCE {
                write(&mut lines);
            }
            next = orders.try_recv().ok();
        }
        write(&mut lines);
        // Under load, more lines come at once. To wake this thread for every line would cost the callers more than
        // the line itself.
        thread::sleep(FLUSH_DELAY);
    }
}

impl<L> fmt::Debug for LogWriter<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// The most queued lines. A line has at most about 20 KiB.
const MOST_LINES: usize = 2048;
/// The approximate number of bytes in one write.
const MOST_AT_ONCE: usize = 64 << 10;
/// Time that a line may wait for others.
const FLUSH_DELAY: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Writes one byte string per permission, so that a test controls its speed.
    struct SlowSink {
        write_started: mpsc::Sender<()>,
        go: Receiver<()>,
        paper: crate::logs::tests::CapturedOutput,
    }

    impl Write for SlowSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.write_started.send(());
            let _ = self.go.recv();
            self.paper.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_writer_that_cannot_keep_up_drops_lines_and_logs_their_number() {
        let (write_started, is_writing) = mpsc::channel();
        let (go_sender, go) = mpsc::channel();
        let paper = crate::logs::tests::CapturedOutput::default();
        let sink = SlowSink { write_started, go, paper: paper.clone() };
        let make = |line: &String, out: &mut String| out.push_str(line);
        let writer = LogWriter::start(sink, make, |lines| format!("{lines} lost\n")).unwrap();
        writer.write("first\n".to_owned());
        is_writing.recv().unwrap();
        for _ in 0..MOST_LINES + 3 {
            writer.write("more\n".to_owned());
        }
        drop(go_sender);
        assert!(writer.flush(crate::tests::TEST_TIMEOUT));
        let text = paper.text();
        assert!(text.starts_with("first\n3 lost\nmore\n"), "{}", &text[..40]);
        assert_eq!(text.lines().count(), MOST_LINES + 2);
    }
}
