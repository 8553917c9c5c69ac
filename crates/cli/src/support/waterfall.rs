//! Draws a turn as lines of text: when each call ran, what it waited for, what failed in it, and how it ended.
//!
//! This module does no I/O: it takes a trace and a width and returns lines.

use std::collections::{BTreeMap, BTreeSet};

use steadfast::Timestamp;
use steadfast_api::queries::{EventView, SpanView, TraceView, TurnView};
use steadfast_core::id::ToolCallId;
use steadfast_core::millis;
use steadfast_turn::trace::{SpanId, TraceEventType};
use steadfast_turn::{FailureStrategy, TurnStatus};

use crate::support::output::{ColourPainter, TextStyle, clean, short};

/// Width and current time of a drawing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canvas {
    pub(crate) columns: usize,
    pub(crate) now: Timestamp,
    pub(crate) paint: ColourPainter,
}

/// Draws the whole trace: a head, a row for each call, and the events as sentences.
pub(crate) fn draw(trace: &TraceView, canvas: Canvas) -> String {
    let submissions = submissions(trace, canvas.now);
    let mut lines = head(trace, canvas);
    for submission in &submissions {
        lines.push(String::new());
        if submissions.len() > 1 {
            let title = format!("  {} of {}", clean(submission.name), submission.began);
            lines.push(canvas.paint.paint(TextStyle::Bold, &title));
        }
        submission.waterfall(canvas, &mut lines);
        lines.push(String::new());
        submission.sentences(canvas.paint, &mut lines);
    }
    lines.join("\n")
}

/// Returns the name of a turn: that of its plan, or else its trace id.
pub(crate) fn name(turn: &TurnView) -> String {
    turn.turn_id.as_ref().map_or_else(|| turn.trace_id.to_string(), |name| clean(name.as_str()))
}

/// Returns the result of a turn as a style, a sign and a word.
pub(crate) fn turn_state(turn: &TurnView) -> StateLabel {
    match turn.status {
        Some(TurnStatus::Completed) => (TextStyle::Good, "●", "completed"),
        Some(TurnStatus::Partial) => (TextStyle::Warn, "▲", "partial"),
        Some(TurnStatus::Failed) => (TextStyle::Bad, "✖", "failed"),
        None => (TextStyle::Warn, "◌", "running"),
    }
}

/// Final or current state: a style, a sign and a word.
pub(crate) type StateLabel = (TextStyle, &'static str, &'static str);

/// Formats a duration in a few characters.
pub(crate) fn format_duration(ms: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", ms / unit, ms % unit * 10 / unit);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{} s", tenths(1_000)),
        10_000..60_000 => format!("{} s", ms / 1_000),
        60_000..600_000 => format!("{} min", tenths(60_000)),
        600_000..3_600_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

/// Time without events after which an unfinished turn may belong to a dead process.
const SILENCE_LIMIT: u64 = 600_000;

fn head(trace: &TraceView, canvas: Canvas) -> Vec<String> {
    let (turn, paint) = (&trace.turn, canvas.paint);
    let (style, sign, word) = turn_state(turn);
    let until = turn.ended_at_ms.unwrap_or(canvas.now);
    let took = format_duration(millis(until.since(turn.started_at_ms)));
    let preposition = if turn.ended_at_ms.is_some() { "after" } else { "since" };
    let calls = if turn.calls == 1 { "call" } else { "calls" };
    let facts = format!("{preposition} {took}, {} {calls}, began {}", turn.calls, turn.started_at_ms);
    let mut lines = vec![format!(
        "{}  {}  {}",
        paint.paint(style, &format!("{sign} {word}")),
        paint.paint(TextStyle::Bold, &format!("turn {}", name(turn))),
        paint.paint(TextStyle::Dim, &facts),
    )];
    if let Some(summary) = &turn.summary {
        lines.push(format!("  {}", clean(summary)));
    }
    if turn.escalated {
        lines.push(format!("  {}", paint.paint(TextStyle::Warn, "▲ needs attention")));
    }
    if let Some(silence) = silence(trace, canvas.now) {
        let words =
            format!("no events for {}: it still runs, or its process is gone", format_duration(silence));
        lines.push(format!("  {}", paint.paint(TextStyle::Warn, &words)));
    }
    let tenant = turn.tenant.as_ref().map(|tenant| format!(" · tenant {}", clean(tenant.as_str())));
    let about = format!("trace {} · session {}", turn.trace_id, clean(turn.session.as_str()));
    lines.push(format!(
        "  {}",
        paint.paint(TextStyle::Dim, &format!("{about}{}", tenant.unwrap_or_default()))
    ));
    lines
}

/// Returns the time without events of an unfinished turn, if it is long.
fn silence(trace: &TraceView, now: Timestamp) -> Option<u64> {
    let newest = trace.events.iter().map(|event| event.timestamp).max();
    let silent = millis(now.since(newest.unwrap_or(trace.turn.started_at_ms)));
    (trace.turn.ended_at_ms.is_none() && silent >= SILENCE_LIMIT).then_some(silent)
}

/// One submission of a turn. Most traces have one. A turn that was submitted again, or that got the trace of its
/// caller, has several, each drawn on its own scale.
struct Submission<'s> {
    name: &'s str,
    began: Timestamp,
    end: Timestamp,
    is_open: bool,
    /// Number of calls in its plan.
    calls: usize,
    rows: Vec<WaterfallRow<'s>>,
    events: Vec<&'s EventView>,
}

/// A period in which a tool ran for a call, or a call for which no tool ran.
struct WaterfallRow<'s> {
    call: &'s ToolCallId,
    tool: String,
    span: Option<&'s SpanView>,
    events: Vec<&'s EventView>,
}

fn submissions(trace: &TraceView, now: Timestamp) -> Vec<Submission<'_>> {
    let mut roots: Vec<&SpanView> = trace.spans.iter().filter(|span| span.call_id.is_none()).collect();
    roots.sort_by_key(|root| root.started_at);
    let by_time = |at: Timestamp| roots.iter().rposition(|root| root.started_at <= at).unwrap_or(0);
    let of_span: BTreeMap<SpanId, usize> = trace
        .spans
        .iter()
        .map(|span| {
            let root = if span.call_id.is_some() { span.parent_span_id } else { Some(span.span_id) };
            let place = roots.iter().position(|known| Some(known.span_id) == root);
            (span.span_id, place.unwrap_or_else(|| by_time(span.started_at)))
        })
        .collect();
    let of_event = |event: &EventView| {
        let known = event.span_id.and_then(|span| of_span.get(&span).copied());
        known.unwrap_or_else(|| by_time(event.timestamp))
    };
    // If the beginning is no longer stored, there is no root span and only the head is left.
    (0..roots.len().max(1))
        .map(|place| {
            let root = roots.get(place);
            let is_last = place + 1 >= roots.len();
            let events: Vec<&EventView> =
                trace.events.iter().filter(|event| of_event(event) == place).collect();
            let spans: Vec<&SpanView> =
                trace.spans.iter().filter(|span| of_span.get(&span.span_id) == Some(&place)).collect();
            let end = root.and_then(|root| root.ended_at).or(trace.turn.ended_at_ms.filter(|_| is_last));
            let is_open = end.is_none() && is_last;
            let until_now = (is_open && silence(trace, now).is_none()).then_some(now);
            // An interrupted submission lasts until its last known event.
            let known = events.iter().map(|event| event.timestamp);
            let known = known.chain(spans.iter().filter_map(|span| span.ended_at)).max();
            let began = root.map_or(trace.turn.started_at_ms, |root| root.started_at);
            Submission {
                name: root.map_or("turn", |root| &root.name),
                began,
                end: end.or(until_now).max(known).unwrap_or(began).max(began),
                is_open,
                calls: trace.turn.calls,
                rows: rows(&spans, &events),
                events,
            }
        })
        .collect()
}

/// Returns the rows of one submission in the order in which they began. A call that never ran is placed at that
/// decision.
fn rows<'s>(spans: &[&'s SpanView], events: &[&'s EventView]) -> Vec<WaterfallRow<'s>> {
    let mut rows: Vec<WaterfallRow<'s>> = Vec::new();
    let mut of_span: BTreeMap<SpanId, usize> = BTreeMap::new();
    for span in spans {
        if let Some(call) = &span.call_id {
            of_span.insert(span.span_id, rows.len());
            rows.push(WaterfallRow { call, tool: clean(&span.name), span: Some(span), events: Vec::new() });
        }
    }
    // The event for a default or an alternative comes before the tool starts.
    let mut before: BTreeMap<&ToolCallId, Vec<&'s EventView>> = BTreeMap::new();
    for &event in events {
        let row = event.span_id.and_then(|span| of_span.get(&span)).and_then(|&row| rows.get_mut(row));
        match (row, &event.call_id) {
            (Some(row), call) => {
                row.events.extend(call.as_ref().and_then(|call| before.remove(call)).unwrap_or_default());
                row.events.push(event);
            }
            (None, Some(call)) => before.entry(call).or_default().push(event),
            (None, None) => {}
        }
    }
    for (call, events) in before {
        match rows.iter_mut().rev().find(|row| row.call == call) {
            // The call already ran. The remaining events are about its end.
            Some(row) => row.events.extend(events),
            None => rows.push(WaterfallRow { call, tool: tool_of(&events), span: None, events }),
        }
    }
    rows.sort_by_key(|row| (row.began(), row.events.first().map(|event| event.sequence)));
    rows
}

fn tool_of(events: &[&EventView]) -> String {
    let named = events.iter().find_map(|event| {
        Some(format!("{}/{}", event.tool_namespace.as_ref()?.as_str(), event.tool_id.as_ref()?.as_str()))
    });
    clean(&named.unwrap_or_default())
}

impl WaterfallRow<'_> {
    fn began(&self) -> Option<Timestamp> {
        self.span.map(|span| span.started_at).or_else(|| self.events.first().map(|event| event.timestamp))
    }

    /// Returns its final state by the last event that has one.
    fn state(&self, is_open: bool) -> StateLabel {
        let was_restored = self.events.iter().any(|event| event.event_type == TraceEventType::CallRestored);
        let final_state = self.events.iter().rev().find_map(|event| match event.event_type {
            TraceEventType::ToolSucceeded if was_restored => Some((TextStyle::Good, "●", "done before")),
            TraceEventType::ToolSucceeded => Some((TextStyle::Good, "●", "succeeded")),
            TraceEventType::ToolError if is_final(event) => Some((TextStyle::Bad, "✖", "failed")),
            TraceEventType::ToolTimeout if is_final(event) => Some((TextStyle::Bad, "✖", "timed out")),
            TraceEventType::ToolSkipped => Some((TextStyle::Warn, "○", "skipped")),
            TraceEventType::ToolCancelled => Some((TextStyle::Warn, "◧", "stopped")),
            TraceEventType::ToolLeftRunning => Some((TextStyle::Warn, "◌", "left running")),
            TraceEventType::TurnStarted
            | TraceEventType::CallRestored
            | TraceEventType::ToolStarted
            | TraceEventType::ToolRetry
            | TraceEventType::ToolError
            | TraceEventType::ToolTimeout
            | TraceEventType::Decision
            | TraceEventType::CircuitBreaker
            | TraceEventType::AlternativeUsed
            | TraceEventType::DefaultUsed
            | TraceEventType::LateResult
            | TraceEventType::TurnTimeout
            | TraceEventType::TurnCancelled
            | TraceEventType::TurnEnded
            | TraceEventType::TraceCut => None,
        });
        let is_over = self.span.is_none_or(|span| span.ended_at.is_some());
        final_state.unwrap_or(match (is_over, is_open) {
            (false, true) => (TextStyle::Warn, "◌", "running"),
            (false, false) => (TextStyle::Warn, "?", "broke off"),
            (true, _) => (TextStyle::Plain, "·", "ended"),
        })
    }

    /// Returns further notes about the row.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let names =
            |ids: &[ToolCallId]| ids.iter().map(|id| clean(id.as_str())).collect::<Vec<_>>().join(", ");
        if let Some(span) = self.span.filter(|span| !span.depends_on.is_empty()) {
            notes.push(format!("after {}", names(&span.depends_on)));
        }
        for event in &self.events {
            match (event.event_type, &event.dependency_id) {
                (TraceEventType::ToolSkipped, Some(needed)) => {
                    notes.push(format!("needs {}", clean(needed.as_str())))
                }
                (TraceEventType::DefaultUsed, Some(missing)) => {
                    notes.push(format!("default for {}", clean(missing.as_str())));
                }
                (TraceEventType::AlternativeUsed, _) => notes.push("alternative".to_owned()),
                _ => {}
            }
        }
        let retries = self.events.iter().filter_map(|event| event.retry_count).max().unwrap_or_default();
        if retries > 0 {
            notes.push(format!("{} attempts", retries.saturating_add(1)));
        }
        notes
    }
}

/// Returns true if no attempt with the same tool came after it.
fn is_final(event: &EventView) -> bool {
    event.decision != Some(FailureStrategy::Retry)
}

impl Submission<'_> {
    fn waterfall(&self, canvas: Canvas, lines: &mut Vec<String>) {
        let paint = canvas.paint;
        let tails: Vec<String> = self
            .rows
            .iter()
            .map(|row| {
                let (_, _, word) = row.state(self.is_open);
                std::iter::once(word.to_owned()).chain(row.notes()).collect::<Vec<_>>().join(" · ")
            })
            .collect();
        let room = ColumnWidths::of(canvas.columns, &self.rows, &tails);
        let total = format_duration(millis(self.end.since(self.began)));
        let axis = format!("0{total:>width$}", width = room.bar.saturating_sub(1));
        lines.push(paint.paint(TextStyle::Dim, &room.line("", "CALL", "TOOL", &axis, "TOOK", "ENDED")));
        for (row, tail) in self.rows.iter().zip(&tails) {
            let (style, sign, _) = row.state(self.is_open);
            let took = row.span.map(|span| {
                format_duration(millis(span.ended_at.unwrap_or(self.end).since(span.started_at)))
            });
            let line = room.line(
                &paint.paint(style, sign),
                row.call.as_str(),
                &row.tool,
                &self.bar(row, style, room.bar, paint),
                &took.unwrap_or_default(),
                tail,
            );
            lines.push(line);
        }
        let started: BTreeSet<_> = self.rows.iter().map(|row| row.call).collect();
        match self.calls.saturating_sub(started.len()) {
            0 => {}
            _ if !self.is_open => {}
            1 => lines.push(paint.paint(TextStyle::Dim, "    1 call has not begun")),
            waiting => {
                lines.push(paint.paint(TextStyle::Dim, &format!("    {waiting} calls have not begun")))
            }
        }
    }

    /// Draws the time of one row: running, waiting for a retry, failed, retried.
    fn bar(&self, row: &WaterfallRow<'_>, style: TextStyle, width: usize, paint: ColourPainter) -> String {
        let total = millis(self.end.since(self.began)).max(1);
        let scaled = |at: Timestamp| {
            let place = u128::from(millis(at.since(self.began))) * width as u128 / u128::from(total);
            usize::try_from(place).unwrap_or(width).min(width.saturating_sub(1))
        };
        let mut cells = vec![(TextStyle::Plain, ' '); width];
        let mut put = |from: usize, to: usize, content: (TextStyle, char)| {
            cells.iter_mut().take(to.max(from + 1)).skip(from).for_each(|cell| *cell = content);
        };
        let (mut first, mut last) = (0, width.saturating_sub(1));
        if let Some(span) = row.span {
            let end = span.ended_at.unwrap_or(self.end);
            first = scaled(span.started_at);
            // An interval that ends at the start of a cell does not touch the cell.
            let over = usize::from(end < self.end);
            last = scaled(end).saturating_sub(over).max(first);
            put(first, last + 1, (style, '━'));
        }
        for event in &row.events {
            let at = scaled(event.timestamp).clamp(first, last);
            if event.event_type == TraceEventType::ToolRetry {
                let next = event.timestamp.as_millis().saturating_add(event.delay_ms.unwrap_or_default());
                let next = scaled(Timestamp::from_millis(next)).clamp(at, last);
                put((at + 1).min(next), next, (TextStyle::Dim, '┄'));
                put(next, next, (TextStyle::Warn, '↻'));
            } else if event.event_type == TraceEventType::ToolSkipped {
                put(at, at, (TextStyle::Warn, '○'));
            }
        }
        // A failure is visible whatever else happened in its cell.
        for event in &row.events {
            if matches!(event.event_type, TraceEventType::ToolError | TraceEventType::ToolTimeout) {
                let at = scaled(event.timestamp).clamp(first, last);
                put(at, at, (TextStyle::Bad, '✖'));
            }
        }
        painted(&cells, paint)
    }

    fn sentences(&self, paint: ColourPainter, lines: &mut Vec<String>) {
        for event in &self.events {
            let offset = format!("+{}", format_duration(millis(event.timestamp.since(self.began))));
            let (style, sign) = match event.event_type {
                TraceEventType::ToolError | TraceEventType::ToolTimeout | TraceEventType::TurnTimeout => {
                    (TextStyle::Bad, "✖")
                }
                TraceEventType::ToolSucceeded | TraceEventType::CallRestored => (TextStyle::Good, "●"),
                TraceEventType::ToolSkipped
                | TraceEventType::ToolCancelled
                | TraceEventType::TurnCancelled => (TextStyle::Warn, "○"),
                TraceEventType::ToolRetry => (TextStyle::Warn, "↻"),
                TraceEventType::TurnStarted
                | TraceEventType::ToolStarted
                | TraceEventType::Decision
                | TraceEventType::CircuitBreaker
                | TraceEventType::AlternativeUsed
                | TraceEventType::DefaultUsed
                | TraceEventType::ToolLeftRunning
                | TraceEventType::LateResult
                | TraceEventType::TurnEnded
                | TraceEventType::TraceCut => (TextStyle::Dim, "·"),
            };
            let call = event.call_id.as_ref().map(|call| format!("  ({})", clean(call.as_str())));
            lines.push(format!(
                "  {}  {} {}{}",
                paint.paint(TextStyle::Dim, &format!("{offset:>9}")),
                paint.paint(style, sign),
                clean(&event.sentence),
                paint.paint(TextStyle::Dim, &call.unwrap_or_default()),
            ));
        }
    }
}

/// Colours the cells. Adjacent cells with the same style are joined.
fn painted(cells: &[(TextStyle, char)], paint: ColourPainter) -> String {
    cells
        .chunk_by(|(one, _), (other, _)| one == other)
        .map(|chunk| {
            let text: String = chunk.iter().map(|(_, letter)| letter).collect();
            paint.paint(chunk.first().map_or(TextStyle::Plain, |(style, _)| *style), &text)
        })
        .collect()
}

/// Widths of the columns of a row.
struct ColumnWidths {
    call: usize,
    /// Zero if there is no space for it.
    tool: usize,
    bar: usize,
    tail: usize,
}

const GAP: usize = 2;
const INDENT: usize = 2;
const SIGN: usize = 2;
const DURATION_WIDTH: usize = 7;
/// Minimum width of a bar, and the preferred width.
const SHORTEST: usize = 8;
const SHORT: usize = 24;
const LONGEST: usize = 80;

impl ColumnWidths {
    fn of(columns: usize, rows: &[WaterfallRow<'_>], tails: &[String]) -> Self {
        let widest =
            |lengths: &mut dyn Iterator<Item = usize>, head: usize| lengths.max().unwrap_or(0).max(head);
        let characters = |text: &str| text.chars().count();
        let mut room = Self {
            call: widest(&mut rows.iter().map(|row| characters(row.call.as_str())), 4).min(24),
            tool: widest(&mut rows.iter().map(|row| characters(&row.tool)), 4).min(32),
            bar: 0,
            tail: widest(&mut tails.iter().map(|tail| characters(tail)), 5),
        };
        // The least important columns shrink first: the notes, then the names.
        for (least, bar_width) in [([24, 12, 12], SHORT), ([12, 8, 6], SHORT), ([9, 0, 6], SHORTEST)] {
            for (part, least) in least.into_iter().enumerate() {
                let missing = (room.fixed() + bar_width).saturating_sub(columns);
                let width = match part {
                    0 => &mut room.tail,
                    1 => &mut room.tool,
                    _ => &mut room.call,
                };
                *width = width.saturating_sub(missing).max(least.min(*width));
            }
        }
        room.bar = columns.saturating_sub(room.fixed()).clamp(SHORTEST, LONGEST);
        room
    }

    /// Returns the width of all columns except the bar.
    fn fixed(&self) -> usize {
        let tool = if self.tool == 0 { 0 } else { self.tool + GAP };
        INDENT + SIGN + self.call + GAP + tool + GAP + DURATION_WIDTH + GAP + self.tail
    }

    /// Formats a line. Sign and bar are already formatted.
    fn line(&self, sign: &str, call: &str, tool: &str, bar: &str, took: &str, tail: &str) -> String {
        let sign = if sign.is_empty() { " " } else { sign };
        let mut line =
            format!("{}{sign} {:<width$}  ", " ".repeat(INDENT), short(call, self.call), width = self.call);
        if self.tool > 0 {
            line.push_str(&format!("{:<width$}  ", short(tool, self.tool), width = self.tool));
        }
        line.push_str(&format!("{bar}  {took:>DURATION_WIDTH$}  {}", short(tail, self.tail)));
        line.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const BEGAN: u64 = 1_762_338_645_000;

    fn iso(offset: u64) -> String {
        Timestamp::from_millis(BEGAN + offset).to_string()
    }

    fn span(id: u8, call: &str, tool: &str, from: u64, to: Option<u64>, after: &[&str]) -> Value {
        json!({
            "spanId": format!("{id:016x}"), "parentSpanId": "0000000000000001", "name": format!("bank/{tool}"),
            "callId": call, "dependsOn": after, "startedAt": iso(from), "endedAt": to.map(iso),
        })
    }

    fn root(id: u8, from: u64, to: Option<u64>) -> Value {
        json!({ "spanId": format!("{id:016x}"), "name": "turn trip", "startedAt": iso(from), "endedAt": to.map(iso) })
    }

    fn event(at: u64, kind: &str, span: u8, call: &str, sentence: &str, more: Value) -> Value {
        let mut event = json!({
            "eventType": kind, "kind": "Summary", "timestamp": iso(at), "traceId": "a".repeat(32),
            "spanId": format!("{span:016x}"), "sentence": sentence,
        });
        if !call.is_empty() {
            event["callId"] = call.into();
            (event["toolId"], event["toolNamespace"]) = ("pay".into(), "bank".into());
        }
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event
    }

    fn trace(turn: Value, spans: Vec<Value>, events: Vec<Value>) -> TraceView {
        let mut head = json!({
            "traceId": "a".repeat(32), "spanId": "b".repeat(16), "turnId": "trip", "session": "s", "actor": "a", "calls": 5,
            "startedAtMs": BEGAN,
        });
        head.as_object_mut().unwrap().extend(turn.as_object().unwrap().clone());
        let mut events = events;
        for (place, event) in events.iter_mut().enumerate() {
            event["sequence"] = place.into();
        }
        crate::commands::trace::read(&json!({ "turn": head, "spans": spans, "events": events })).unwrap()
    }

    /// Returns a trace with a retry, an alternative, a default and a skipped call.
    fn trip() -> TraceView {
        let none = || json!({});
        trace(
            json!({ "endedAtMs": BEGAN + 2000, "status": "partial", "summary": "Completed look, but pay failed", "escalated": true }),
            vec![
                root(1, 0, Some(2000)),
                span(2, "a", "look", 0, Some(1000), &[]),
                span(3, "b", "look", 0, Some(400), &[]),
                span(4, "b", "draw", 400, Some(800), &[]),
                span(5, "c", "pay", 1000, Some(1500), &["a", "b"]),
                span(6, "d", "draw", 1500, Some(2000), &["c"]),
            ],
            vec![
                event(0, "TurnStarted", 1, "", "Turn started with 5 calls", none()),
                event(0, "ToolStarted", 2, "a", "Started look", none()),
                event(
                    200,
                    "ToolError",
                    2,
                    "a",
                    "Tool failed: look, 503",
                    json!({ "decision": "RETRY", "retryCount": 0 }),
                ),
                event(
                    200,
                    "ToolRetry",
                    2,
                    "a",
                    "Retry of look: attempt 2 in 300 ms",
                    json!({ "delayMs": 300, "retryCount": 1 }),
                ),
                event(
                    400,
                    "ToolError",
                    3,
                    "b",
                    "Tool failed: look, 400",
                    json!({ "decision": "ALTERNATIVE_TOOL" }),
                ),
                event(400, "AlternativeUsed", 1, "b", "Used alternative tool draw instead of look", none()),
                event(400, "ToolStarted", 4, "b", "Started draw", none()),
                event(800, "ToolSucceeded", 4, "b", "Tool succeeded: draw", none()),
                event(
                    1000,
                    "ToolSucceeded",
                    2,
                    "a",
                    "Tool succeeded on retry 2: look",
                    json!({ "retryCount": 1 }),
                ),
                event(
                    1500,
                    "ToolTimeout",
                    5,
                    "c",
                    "Tool timeout after 500 ms: pay",
                    json!({ "decision": "ESCALATE" }),
                ),
                event(
                    1500,
                    "ToolSkipped",
                    1,
                    "e",
                    "Required tool skipped due to dependency failure: pay needs c",
                    json!({ "dependencyId": "c" }),
                ),
                event(
                    1500,
                    "DefaultUsed",
                    1,
                    "d",
                    "Used default value for draw in place of the output of c",
                    json!({ "dependencyId": "c" }),
                ),
                event(1500, "ToolStarted", 6, "d", "Started draw", none()),
                event(2000, "ToolSucceeded", 6, "d", "Tool succeeded: draw", none()),
            ],
        )
    }

    fn drawn(trace: &TraceView, columns: usize, now: u64) -> String {
        let canvas =
            Canvas { columns, now: Timestamp::from_millis(BEGAN + now), paint: ColourPainter(false) };
        draw(trace, canvas)
    }

    #[test]
    fn eh_6_6_a_turn_is_drawn_with_its_waits_and_failures() {
        let expected = "\
▲ partial  turn trip  after 2.0 s, 5 calls, began 2025-11-05T10:30:45.000Z
  Completed look, but pay failed
  ▲ needs attention
  trace aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa · session s

    CALL  TOOL       0                           2.0 s     TOOK  ENDED
  ● a     bank/look  ━━━✖┄┄┄┄↻━━━━━━━                     1.0 s  succeeded · 2 attempts
  ✖ b     bank/look  ━━━━━✖                              400 ms  failed
  ● b     bank/draw        ━━━━━━━                       400 ms  succeeded · alternative
  ✖ c     bank/pay                   ━━━━━━━✖            500 ms  timed out · after a, b
  ○ e     bank/pay                           ○                   skipped · needs c
  ● d     bank/draw                          ━━━━━━━━━   500 ms  succeeded · after c · default for c

      +0 ms  · Turn started with 5 calls
      +0 ms  · Started look  (a)
    +200 ms  ✖ Tool failed: look, 503  (a)
    +200 ms  ↻ Retry of look: attempt 2 in 300 ms  (a)
    +400 ms  ✖ Tool failed: look, 400  (b)
    +400 ms  · Used alternative tool draw instead of look  (b)
    +400 ms  · Started draw  (b)
    +800 ms  ● Tool succeeded: draw  (b)
     +1.0 s  ● Tool succeeded on retry 2: look  (a)
     +1.5 s  ✖ Tool timeout after 500 ms: pay  (c)
     +1.5 s  ○ Required tool skipped due to dependency failure: pay needs c  (e)
     +1.5 s  · Used default value for draw in place of the output of c  (d)
     +1.5 s  · Started draw  (d)
     +2.0 s  ● Tool succeeded: draw  (d)";
        assert_eq!(drawn(&trip(), 100, 9000), expected);
    }

    /// Returns only the lines of the drawing.
    fn picture(trace: &TraceView, columns: usize, now: u64) -> Vec<String> {
        let lines = drawn(trace, columns, now);
        let lines = lines.lines().skip_while(|line| !line.starts_with("    CALL"));
        lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn a_drawing_fits_its_terminal_and_names_shrink_before_bars() {
        assert_eq!(
            picture(&trip(), 60, 9000),
            [
                "    CALL  TOOL      0           2.0 s     TOOK  ENDED",
                "  ● a     bank/lo…  ━✖┄┄↻━━━             1.0 s  succeeded ·…",
                "  ✖ b     bank/lo…  ━━✖                 400 ms  failed",
                "  ● b     bank/dr…     ━━━              400 ms  succeeded ·…",
                "  ✖ c     bank/pay          ━━━✖        500 ms  timed out ·…",
                "  ○ e     bank/pay              ○               skipped · n…",
                "  ● d     bank/dr…              ━━━━━   500 ms  succeeded ·…",
            ]
        );
        for columns in 40..200 {
            let widest = picture(&trip(), columns, 9000).iter().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}: {widest:?}");
        }
    }

    #[test]
    fn running_calls_extend_to_now_and_waiting_ones_are_counted() {
        let trace = trace(
            json!({}),
            vec![
                root(1, 0, None),
                span(2, "a", "look", 0, Some(500), &[]),
                span(3, "b", "pay", 500, None, &["a"]),
            ],
            vec![event(500, "ToolSucceeded", 2, "a", "Tool succeeded: look", json!({}))],
        );
        assert!(drawn(&trace, 80, 1000).starts_with("◌ running  turn trip  since 1.0 s, 5 calls"));
        assert_eq!(
            picture(&trace, 80, 1000),
            [
                "    CALL  TOOL       0                         1.0 s     TOOK  ENDED",
                "  ● a     bank/look  ━━━━━━━━━━━━━━━                   500 ms  succeeded",
                "  ◌ b     bank/pay                  ━━━━━━━━━━━━━━━━   500 ms  running · after a",
                "    3 calls have not begun",
            ]
        );
        // After a long silence it is unknown whether the turn still runs.
        let silent = drawn(&trace, 80, 500 + SILENCE_LIMIT);
        assert!(silent.contains("no events for 10 min: it still runs, or its process is gone"), "{silent}");
        assert!(silent.contains("500 ms     TOOK"), "its scale ends where it was last heard of: {silent}");
    }

    #[test]
    fn each_submission_under_one_trace_has_a_scale_of_its_own() {
        let mut again = span(4, "a", "look", 60_000, Some(60_100), &[]);
        again["parentSpanId"] = "0000000000000003".into();
        let trace = trace(
            json!({ "startedAtMs": BEGAN + 60_000, "endedAtMs": BEGAN + 60_100, "status": "completed" }),
            vec![root(1, 0, None), span(2, "a", "look", 0, None, &[]), root(3, 60_000, Some(60_100)), again],
            vec![
                event(100, "ToolError", 2, "a", "Tool failed: look, 503", json!({ "decision": "RETRY" })),
                event(60_100, "CallRestored", 4, "a", "Finished earlier, not run again: look", json!({})),
                event(60_100, "ToolSucceeded", 4, "a", "Tool succeeded: look", json!({})),
            ],
        );
        let drawn = drawn(&trace, 80, 99_000);
        let rows: Vec<_> = drawn.lines().filter(|line| line.contains("bank/look")).collect();
        assert_eq!(
            rows,
            [
                "  ? a     bank/look  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━✖   100 ms  broke off",
                "  ● a     bank/look  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━   100 ms  done before",
            ],
            "{drawn}"
        );
        assert!(drawn.contains("turn trip of 2025-11-05T10:31:45.000Z"), "{drawn}");
    }

    #[test]
    fn sf_5_names_cannot_colour_or_reverse_a_drawing() {
        let odd = "a\u{202e}b";
        let mut hostile = span(2, odd, "look", 0, Some(10), &[odd]);
        hostile["name"] = "bank/\x1b[31mlook".into();
        let success = event(10, "ToolSucceeded", 2, odd, "Tool\u{9b}2J succeeded", json!({}));
        let head = json!({ "turnId": odd, "session": odd, "endedAtMs": BEGAN + 10, "status": "completed", "summary": "x\x1b[2Jy" });
        let trace = trace(head, vec![root(1, 0, Some(10)), hostile], vec![success]);
        let plain = drawn(&trace, 100, 10);
        assert!(!plain.contains(['\x1b', '\u{9b}', '\u{202e}']), "{plain:?}");
        assert!(plain.contains("a b") && plain.contains("after a b") && plain.contains("x [2Jy"), "{plain}");
        let canvas = Canvas { columns: 100, now: Timestamp::from_millis(BEGAN), paint: ColourPainter(true) };
        let coloured = draw(&trace, canvas);
        assert!(coloured.contains("\x1b[32m━"), "{coloured:?}");
        let mut characters = String::new();
        for (at, piece) in coloured.split('\x1b').enumerate() {
            characters.push_str(if at == 0 { piece } else { piece.split_once('m').unwrap().1 });
        }
        assert_eq!(characters, plain, "without its colours it is the same");
    }

    #[test]
    fn spans_of_time_are_short() {
        for (ms, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (9_999, "9.9 s"),
            (59_999, "59 s"),
            (90_000, "1.5 min"),
            (3_599_999, "59 min"),
            (7_200_000, "2 h"),
        ] {
            assert_eq!(format_duration(ms), expected);
        }
    }
}
