//! The span of a turn's caller.

use steadfast_turn::trace::{SpanId, TraceId};

/// The caller of a turn, from its `traceparent`.
#[derive(Clone, Copy)]
pub(super) struct ParentSpan {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    /// True if spans are wanted.
    pub(super) sampled: bool,
}

impl ParentSpan {
    /// Parses a `traceparent`. Returns `None` if it is invalid.
    pub(super) fn read(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-').skip(1);
        let (trace, span) = (TraceId::from_hex(parts.next()?)?, SpanId::from_hex(parts.next()?)?);
        let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}
