//! The thread that writes. Calls must not wait for a disk or a terminal, so they hand lines over and go on.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Takes lines and never waits.
pub(crate) struct Writer {
    orders: SyncSender<Order>,
    lost: Arc<AtomicU64>,
}

enum Order {
    Line(String),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

impl Writer {
    /// Starts the thread. `tell_lost` makes the line that says how many were left out.
    pub(crate) fn start(
        sink: impl Write + Send + 'static,
        tell_lost: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, taken) = sync_channel(MOST_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        thread::Builder::new()
            .name("steadfast-log".to_owned())
            .spawn(move || write_all(sink, &taken, &counted, tell_lost))?;
        Ok(Self { orders, lost })
    }

    pub(crate) fn write(&self, line: String) {
        match self.orders.try_send(Order::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let (done, written) = sync_channel(1);
        let mut order = Order::Flush(done);
        // Where the queue is full the thread needs a moment, and whoever flushes has it.
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

fn write_all(
    mut sink: impl Write,
    orders: &Receiver<Order>,
    lost: &AtomicU64,
    tell_lost: impl Fn(u64) -> String,
) {
    // A sink that cannot be written to has nobody to tell it to, and the next line may get through.
    while let Ok(order) = orders.recv() {
        let mut next = Some(order);
        while let Some(order) = next {
            let left_out = lost.swap(0, Ordering::Relaxed);
            if left_out > 0 {
                let _ = sink.write_all(tell_lost(left_out).as_bytes());
            }
            match order {
                Order::Line(line) => {
                    let _ = sink.write_all(line.as_bytes());
                }
                Order::Flush(done) => {
                    let _ = sink.flush();
                    let _ = done.try_send(());
                }
            }
            next = orders.try_recv().ok();
        }
        let _ = sink.flush();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// The most lines that wait. A line has a few KiB at most.
const MOST_LINES: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Writes one byte string per permission, so that a test decides how slow it is.
    struct Slow {
        begun: mpsc::Sender<()>,
        go: Receiver<()>,
        paper: crate::logs::tests::Paper,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            let _ = self.go.recv();
            self.paper.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_writer_that_cannot_keep_up_leaves_lines_out_and_says_how_many() {
        let (begun, is_writing) = mpsc::channel();
        let (may_go, go) = mpsc::channel();
        let paper = crate::logs::tests::Paper::default();
        let sink = Slow { begun, go, paper: paper.clone() };
        let writer = Writer::start(sink, |lines| format!("{lines} lost\n")).unwrap();
        writer.write("first\n".to_owned());
        is_writing.recv().unwrap();
        for _ in 0..MOST_LINES + 3 {
            writer.write("more\n".to_owned());
        }
        drop(may_go);
        assert!(writer.flush(Duration::from_secs(60)));
        let text = paper.text();
        assert!(text.starts_with("first\n3 lost\nmore\n"), "{}", &text[..40]);
        assert_eq!(text.lines().count(), MOST_LINES + 2);
    }
}
