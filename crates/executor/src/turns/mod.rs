//! Turns: several calls that depend on each other, run as [`steadfast_turn`] decides.
//!
//! Each call of a turn is a call of the engine, with its own retries, breaker, deduplication and loop guard.
//!
//! A turn whose plan has a name can be submitted again. The keys of its calls are derived from that name. Finished
//! calls are therefore replayed from their records, in this process or after a crash, and the rest continues. A turn
//! runs only while its submitter waits for it. If the future is dropped, in-flight calls stay with the engine, and no
//! others start.
//!
//! | file | contents |
//! | --- | --- |
//! | `runner` | starts the calls of a turn, reports their results, and wakes the machine at the deadline |
//! | `hold` | the runner of a turn, and the choices made in it |
//! | `call_listener` | events of the calls in flight |
//! | `trace_recorder`, `trace_journal` | the trace of a turn, and its storage |

mod call_listener;
mod hold;
pub(crate) mod options;
mod parent_span;
pub(crate) mod runner;
pub(crate) mod trace_journal;
mod trace_recorder;
