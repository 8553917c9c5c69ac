use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::io::AsyncWrite;

use super::*;
use crate::delivery::{DeliveryLink, DeliveryOutcome, DeliveryProof, GRACE};
use crate::json_text::JsonText;

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

async fn read_all(input: &[u8], longest: usize) -> Vec<LineItem> {
    let mut reader = LineReader::new(input, longest);
    let mut all = Vec::new();
    while let Some(received) = reader.next().await {
        all.push(received.unwrap());
    }
    all
}

fn message(text: &str) -> RpcMessage {
    RpcMessage::parse(text.to_owned(), usize::MAX).unwrap()
}

#[tokio::test]
async fn line_ends_of_both_kinds_and_empty_lines_are_fine() {
    let input = format!("\n{PING}\r\n\r\n  \n{PING}\n");
    let expected = vec![LineItem::Message(message(PING)); 2];
    assert_eq!(read_all(input.as_bytes(), 1000).await, expected);
}

#[tokio::test]
async fn a_line_that_is_not_a_message_is_reported_and_the_stream_continues() {
    let input = format!("Server started\n{PING}\n[1]\n{PING}\n");
    let all = read_all(input.as_bytes(), 1000).await;
    let [
        LineItem::NotAMessage { line, error },
        LineItem::Message(_),
        LineItem::NotAMessage { error: batch, .. },
        LineItem::Message(_),
    ] = &all[..]
    else {
        panic!("{all:?}")
    };
    assert_eq!((&line[..], error.code(), batch.code()), (&b"Server started"[..], -32700, -32600));
}

#[tokio::test]
async fn a_line_that_is_too_long_is_skipped_to_its_end() {
    for length in [41, 42, 43, 100, 100_000] {
        let long = "x".repeat(length);
        let input = format!("{PING}\n{long}\n{PING}\r\n{long}");
        let all = read_all(input.as_bytes(), PING.len()).await;
        let ping = LineItem::Message(message(PING));
        let mut expected = vec![ping.clone(), LineItem::TooLong(LongText::of(long.as_bytes())), ping];
        // A partial line at the end is reported as such if it fits.
        expected.push(match length > PING.len() + 1 {
            true => LineItem::TooLong(LongText::of(long.as_bytes())),
            false => LineItem::Half(long.into()),
        });
        assert_eq!(all, expected, "{length}");
    }
}

#[tokio::test]
async fn half_a_line_at_the_end_is_never_a_message() {
    let input = format!("{PING}\n{PING}");
    let all = read_all(input.as_bytes(), 1000).await;
    assert_eq!(all, [LineItem::Message(message(PING)), LineItem::Half(PING.into())]);
}

#[tokio::test]
async fn an_error_of_the_source_is_returned_once_and_ends_it() {
    let error = io::Error::from(io::ErrorKind::ConnectionReset);
    let first = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n{\"half";
    let source = ScriptedReader(vec![Ok(&first[..]), Err(error)].into_iter());
    let mut reader = LineReader::new(source, 1000);
    assert_eq!(reader.next().await.unwrap().unwrap(), LineItem::Message(message(PING)));
    assert_eq!(reader.next().await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert!(reader.next().await.is_none());
}

proptest! {
    #[test]
    fn lines_do_not_depend_on_where_the_reads_are_cut(
        lines in proptest::collection::vec("[a-z\\r]{0,12}", 0..8),
        cuts in proptest::collection::vec(1_usize..9, 1..40),
        ends in any::<bool>(),
    ) {
        let mut input = lines.join("\n");
        if ends { input.push('\n'); }
        let whole = pieces(&[input.as_bytes()]);
        let mut rest = input.as_bytes();
        let mut chunks = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (chunk, remaining) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = remaining;
        }
        prop_assert_eq!(pieces(&chunks), whole);
    }
}

/// Bytes, many of which are special for lines.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b'\n'), Just(b'\r'), Just(b' '), any::<u8>()];
    let message = Just([PING.as_bytes(), b"\n"].concat());
    let piece = prop_oneof![byte.prop_map(|byte| vec![byte]), message];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn for_any_input_nothing_is_lost_retained_or_invented(input in any_bytes(), size in 1_usize..50, longest in 0_usize..60) {
        let mut splitter = MessageLineSplitter::new(longest);
        let mut all = Vec::new();
        for chunk in input.chunks(size) {
            splitter.room().extend_from_slice(chunk);
            all.extend(std::iter::from_fn(|| splitter.next_piece()));
            let buffered = splitter.room().len();
            prop_assert!(buffered <= longest + 1, "{buffered} bytes are kept of lines of at most {longest}");
        }
        all.extend(splitter.finish());
        // Reference implementation of splitting.
        let mut lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
        let half = lines.pop().unwrap_or_default();
        let cut = |line: &[u8]| Bytes::copy_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        let mut expected: Vec<LinePiece> = lines
            .into_iter()
            .filter_map(|line| match cut(line).len() > longest {
                true => Some(LinePiece::TooLong(LongText::of(line))),
                false => (!line.trim_ascii().is_empty()).then(|| LinePiece::Line(cut(line))),
            })
            .collect();
        // The rest at the end is taken as it is: the complete line might have fit.
        expected.extend(match half.len() > longest + 1 {
            true => Some(LinePiece::TooLong(LongText::of(half))),
            false => (!half.trim_ascii().is_empty()).then(|| LinePiece::Half(cut(half))),
        });
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn for_any_input_every_line_is_reported_and_a_message_is_its_line(input in any_bytes()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let all = runtime.block_on(read_all(&input, 1000));
        let lines = input.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        prop_assert_eq!(all.len(), lines.clone().count());
        for (received, line) in all.iter().zip(lines) {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let bytes = match received {
                LineItem::Message(message) => message.bytes(),
                LineItem::NotAMessage { line, .. } | LineItem::Half(line) => line,
                LineItem::TooLong(_) => panic!("no line is that long"),
            };
            prop_assert_eq!(&bytes[..], line);
        }
    }
}

fn pieces(chunks: &[&[u8]]) -> Vec<LinePiece> {
    let mut splitter = MessageLineSplitter::new(6);
    let mut all = Vec::new();
    for chunk in chunks {
        splitter.room().extend_from_slice(chunk);
        all.extend(std::iter::from_fn(|| splitter.next_piece()));
    }
    all.extend(splitter.finish());
    all
}

/// Records each write separately, and fails on demand.
#[derive(Clone, Default)]
struct ScriptedWriter {
    all: Arc<Mutex<Vec<Vec<u8>>>>,
    fails: Arc<Mutex<bool>>,
}

impl AsyncWrite for ScriptedWriter {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if *self.fails.lock() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "gone")));
        }
        self.all.lock().push(bytes.to_vec());
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn messages_queued_together_are_written_together_and_on_one_line_each() {
    let writes = ScriptedWriter::default();
    let (sender, writing) = line_writer(writes.clone(), DeliveryLink::new(), WriteQueueLimits::default());
    let broken = message("{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\n \"method\":\"ping\"}");
    sender.send(&message(PING)).await.unwrap();
    sender.send(&broken).await.unwrap();
    sender.try_send(&message(PING)).unwrap();
    drop(sender);
    writing.await.unwrap();
    let flat = r#"{"jsonrpc":"2.0",  "id":1,  "method":"ping"}"#;
    assert_eq!(*writes.all.lock(), [format!("{PING}\n{flat}\n{PING}\n").into_bytes()]);
}

#[tokio::test]
async fn a_failed_write_is_reported_to_the_writer_the_senders_and_the_waiters_for_a_delivery() {
    let writes = ScriptedWriter::default();
    let (sender, writing) = line_writer(writes.clone(), DeliveryLink::new(), WriteQueueLimits::default());
    *writes.fails.lock() = true;
    let answer = RpcMessage::result_response(&crate::message::RpcId::number(1), &JsonText::string("done"));
    let delivery = sender.send_response(&answer, None).await.unwrap();
    let failed = tokio::spawn(writing).await.unwrap().unwrap_err();
    assert_eq!(failed.kind, io::ErrorKind::BrokenPipe);
    assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Lost);
    assert_eq!(sender.send(&answer).await.unwrap_err(), failed);
    assert_eq!(sender.try_send(&answer).unwrap_err(), EnqueueError::Failed(failed.clone()));
    assert_eq!(sender.failure(), Some(failed));
}

#[tokio::test(start_paused = true)]
async fn a_response_on_a_line_is_delivered_by_the_next_message_or_by_time() {
    let link = DeliveryLink::new();
    let (sender, writing) = line_writer(ScriptedWriter::default(), link.clone(), WriteQueueLimits::default());
    tokio::spawn(writing);
    let answer = RpcMessage::result_response(&crate::message::RpcId::number(1), &JsonText::string("done"));
    let mut delivery = sender.send_response(&answer, None).await.unwrap();
    assert!(delivery.written().await);
    link.record_message(&message(PING));
    assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::NextMessage));
    let delivery = sender.send_response(&answer, None).await.unwrap();
    assert_eq!(delivery.settled(GRACE).await, DeliveryOutcome::Delivered(DeliveryProof::StillOpen));
}

#[tokio::test]
async fn the_queue_is_bounded_by_messages_and_by_bytes_and_one_long_message_always_fits() {
    let (stuck, _other_end) = tokio::io::duplex(1);
    for limits in
        [WriteQueueLimits { messages: 2, bytes: 1 << 20 }, WriteQueueLimits { messages: 100, bytes: 90 }]
    {
        let (sender, _writing) = line_writer(ScriptedWriter::default(), DeliveryLink::new(), limits);
        assert_eq!(sender.try_send(&message(PING)), Ok(()));
        assert_eq!(sender.try_send(&message(PING)), Ok(()));
        assert_eq!(sender.try_send(&message(PING)), Err(EnqueueError::Queue), "{limits:?}");
    }
    let (sender, writing) =
        line_writer(stuck, DeliveryLink::new(), WriteQueueLimits { messages: 4, bytes: 8 });
    let writing = tokio::spawn(writing);
    assert_eq!(sender.try_send(&message(PING)), Ok(()));
    assert_eq!(sender.try_send(&message(PING)), Err(EnqueueError::Queue));
    drop(_other_end);
    assert!(writing.await.unwrap().is_err());
}

#[tokio::test]
async fn messages_go_through_a_pipe_as_they_are() {
    let (local, remote) = tokio::io::duplex(64);
    let (sender, writing) = line_writer(local, DeliveryLink::new(), WriteQueueLimits::default());
    let writing = tokio::spawn(writing);
    let long = format!(r#"{{"jsonrpc":"2.0","id":1.0,"result":"{}"}}"#, "x".repeat(600_000));
    let sent = [message(PING), message(&long), message(PING)];
    let sending = async {
        for message in &sent {
            sender.send(message).await.unwrap();
        }
        drop(sender);
    };
    let mut reader = LineReader::new(remote, LONGEST_LINE);
    let reading = async {
        let mut all = Vec::new();
        while let Some(Ok(LineItem::Message(message))) = reader.next().await {
            all.push(message);
        }
        all
    };
    let ((), received) = tokio::join!(sending, reading);
    assert_eq!(received, sent);
    writing.await.unwrap().unwrap();
}

/// Returns these reads, one after the other.
struct ScriptedReader(std::vec::IntoIter<io::Result<&'static [u8]>>);

impl AsyncRead for ScriptedReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(read) = self.0.next() {
            buffer.put_slice(read?);
        }
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn unread_messages_are_known_after_a_failed_write() {
    // The other side takes this number of bytes, reads nothing, and closes.
    let whole = PING.len() + 1;
    for (room, taken) in
        [(0, [false, false]), (1, [true, false]), (whole, [true, false]), (whole + 1, [true, true])]
    {
        let (local, remote) = tokio::io::duplex(room.max(1));
        let (sender, writing) = line_writer(local, DeliveryLink::new(), WriteQueueLimits::default());
        let marks = [ReadPossibility::default(), ReadPossibility::default()];
        for mark in &marks {
            sender.send_marked(&message(PING), mark.clone()).await.unwrap();
            assert!(!mark.is_possible(), "nothing was handed over yet");
        }
        if room == 0 {
            drop(remote);
            assert!(writing.await.is_err());
        } else {
            let leaving = async {
                tokio::task::yield_now().await;
                assert!(marks.iter().all(ReadPossibility::is_possible), "what is being written may be read");
                drop(remote);
            };
            let (written, ()) = tokio::join!(writing, leaving);
            assert!(written.is_err());
        }
        assert_eq!(marks.map(|mark| mark.is_possible()), taken, "room for {room}");
    }
}
