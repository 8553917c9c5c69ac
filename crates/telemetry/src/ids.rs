//! Spans whose ids were made elsewhere: those of a turn are in its trace before there is a span of them.
//!
//! The SDK asks its generator for ids while it builds a span, on the thread that builds it. So an id is given to that thread
//! for as long as it builds, and no other span can get it.

use std::cell::Cell;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

/// Makes ids, except where one is given.
#[derive(Debug, Default)]
pub(crate) struct Ids(RandomIdGenerator);

thread_local! {
    static GIVEN: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Builds one span with these ids. The trace is that of its parent, if it has one.
pub(crate) fn with_ids<S>(trace: TraceId, span: SpanId, build: impl FnOnce() -> S) -> S {
    /// Takes them back, whatever happens.
    struct Taken;
    impl Drop for Taken {
        fn drop(&mut self) {
            GIVEN.set(None);
        }
    }
    GIVEN.set(Some((trace, span)));
    let _taken = Taken;
    build()
}

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        GIVEN.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        GIVEN.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}
