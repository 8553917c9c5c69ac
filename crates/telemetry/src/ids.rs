//! Spans with given ids: those of a turn are in its stored trace before their span exists.
//!
//! The SDK asks its generator for ids while it builds a span, on the thread that builds it. So the ids are set for
//! that thread during the build, and no other span can get them.

use std::cell::Cell;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

/// An id generator that uses the given ids, if there are any, and random ones otherwise.
#[derive(Debug, Default)]
pub(crate) struct SpanIdGenerator(RandomIdGenerator);

thread_local! {
    static CURRENT_IDS: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Builds one span with these ids. If it has a parent, its trace is the one of the parent.
pub(crate) fn with_ids<S>(trace: TraceId, span: SpanId, build: impl FnOnce() -> S) -> S {
    /// Removes the ids again, even after a panic.
    struct SpanIdReset;
    impl Drop for SpanIdReset {
        fn drop(&mut self) {
            CURRENT_IDS.set(None);
        }
    }
    CURRENT_IDS.set(Some((trace, span)));
    let _reset = SpanIdReset;
    build()
}

impl IdGenerator for SpanIdGenerator {
    fn new_trace_id(&self) -> TraceId {
        CURRENT_IDS.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        CURRENT_IDS.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}
