use proptest::prelude::*;

use super::*;
use crate::long_text::LongText;

fn parse(chunks: &[&[u8]], longest: usize) -> (Vec<SseItem>, Option<String>, Option<Duration>) {
    let mut parser = SseParser::new(longest);
    let mut items = Vec::new();
    for chunk in chunks {
        parser.push(chunk);
        items.extend(std::iter::from_fn(|| parser.next_item()));
    }
    (items, parser.last_id().map(Into::into), parser.retry())
}

fn data(text: &str) -> SseItem {
    SseItem::Event(SseEvent { kind: None, data: Bytes::copy_from_slice(text.as_bytes()) })
}

#[test]
fn events_are_read_as_the_standard_has_them() {
    let text = "\u{feff}: hello\ndata: one\n\ndata:two\ndata: lines\r\n\r\nid: 7-1\rretry: 250\revent: message\rdata:  x\r\rdata\n\nother: y\nretry: soon\ndata: {\"a\":1}\n\ndata: half";
    let (items, id, retry) = parse(&[text.as_bytes()], 1000);
    let named = SseItem::Event(SseEvent { kind: Some("message".into()), data: Bytes::from_static(b" x") });
    assert_eq!(items, [data("one"), data("two\nlines"), named, data("{\"a\":1}")]);
    assert_eq!((id.as_deref(), retry), (Some("7-1"), Some(Duration::from_millis(250))));
}

#[test]
fn line_ends_of_every_kind_end_one_line() {
    for end in ["\n", "\r", "\r\n"] {
        let text = ["data: a", "data: b", "", "data: c", "", ""].join(end);
        for size in [1, 1000] {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            assert_eq!(parse(&chunks, 100).0, [data("a\nb"), data("c")], "{end:?} by {size}");
        }
    }
}

#[test]
fn an_event_that_is_too_long_is_skipped_and_the_stream_continues() {
    let long = "x".repeat(100);
    let one_line = format!("data: {long}\n\ndata: ok\n\n");
    let many_lines = format!("{}\ndata: ok\n\n", "data: xxxxxx\n".repeat(10));
    let lines = ["xxxxxx"; 10].join("\n");
    for (text, known) in [(one_line, long), (many_lines, lines)] {
        for size in [1, 7, 1000] {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let expected = [SseItem::TooLong(LongText::of(known.as_bytes())), data("ok")];
            assert_eq!(parse(&chunks, 20).0, expected, "{text} by {size}");
        }
    }
}

#[test]
fn the_buffer_is_bounded() {
    let mut parser = SseParser::new(20);
    for _ in 0..10_000 {
        parser.push(b"xxxxxxxxxxxxxxxxxxxxxxx");
        assert_eq!(parser.next_item(), None);
        assert!(parser.buffer.len() < 100);
    }
}

#[test]
fn written_events_are_read_back() {
    let mut out = BytesMut::new();
    write_event(&mut out, Some("3-4"), Some(Duration::from_secs(1)), b"{\"a\":1}");
    out.extend_from_slice(KEEP_ALIVE);
    write_event(&mut out, None, None, b"{}");
    let (items, id, retry) = parse(&[&out], 100);
    assert_eq!(items, [data("{\"a\":1}"), data("{}")]);
    assert_eq!((id.as_deref(), retry), (Some("3-4"), Some(Duration::from_secs(1))));
}

proptest! {
    #[test]
    fn any_input_is_bounded_and_causes_no_panic(
        input in proptest::collection::vec(
            prop_oneof![
                prop::sample::select(vec!["data", "data: ", "id: ", "event:", "retry: 9", "\n", "\r", "\r\n", "\n\n", ":", "\u{feff}"])
                    .prop_map(|text| text.as_bytes().to_vec()),
                proptest::collection::vec(any::<u8>(), 0..30),
            ],
            0..60,
        ),
        size in 1_usize..40,
        longest in 0_usize..40,
    ) {
        let mut parser = SseParser::new(longest);
        for chunk in input.concat().chunks(size) {
            parser.push(chunk);
            while let Some(item) = parser.next_item() {
                if let SseItem::Event(event) = item {
                    prop_assert!(!event.data.is_empty() && event.data.len() <= longest, "{event:?}");
                }
            }
            let event = &parser.event;
            let buffered = parser.buffer.len() + event.first.as_ref().map_or(0, Bytes::len) + event.rest.len();
            prop_assert!(buffered <= 2 * longest + FIELD, "{buffered} bytes are kept of events of at most {longest}");
        }
        // Later input is read as usual.
        parser.push(b"\n\n");
        while parser.next_item().is_some() {}
        parser.push(b"data: x\n\n");
        let then = if longest == 0 { SseItem::TooLong(LongText::of(b"x")) } else { data("x") };
        prop_assert_eq!(parser.next_item(), Some(then));
    }

    #[test]
    fn events_do_not_depend_on_where_the_reads_are_cut(
        lines in proptest::collection::vec("(data: ?|id: |:|)[a-c]{0,12}", 0..12),
        end in prop_oneof![Just("\n"), Just("\r"), Just("\r\n")],
        cuts in proptest::collection::vec(1_usize..9, 1..40),
    ) {
        let text = lines.join(end) + end;
        let whole = parse(&[text.as_bytes()], 16);
        let mut rest = text.as_bytes();
        let mut chunks = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (chunk, remaining) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = remaining;
        }
        prop_assert_eq!(parse(&chunks, 16), whole);
    }
}
