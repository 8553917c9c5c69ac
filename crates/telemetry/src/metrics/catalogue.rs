//! Every metric there is: its name, its labels and what it means. The registry and the reference page are made from
//! this list.

use super::instrument::{Counter, Gauge, Histogram, Register};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name behind the namespace, as it is scraped.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often each range of values occurred.
    Histogram,
}

macro_rules! instruments {
    ($($field:ident $suffix:literal: $kind:ident [$($label:literal),*] = $help:literal;)*) => {
        /// The instruments, by name.
        #[derive(Debug)]
        pub(crate) struct Instruments {
            $(pub(crate) $field: $kind<{ let labels: &[&str] = &[$($label),*]; labels.len() }>,)*
        }

        impl Instruments {
            pub(super) fn register(at: &mut Register<'_>) -> Self {
                Self { $($field: $kind::register(at, stringify!($field), [$($label),*], $help),)* }
            }
        }

        /// Every metric there is.
        pub const CATALOGUE: &[Description] = &[$(Description {
            name: concat!(stringify!($field), $suffix),
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        },)*];
    };
}

instruments! {
    tool_calls "_total": Counter["tool", "status", "scope"] =
        "Calls that ended, by the status of their result and by whose calls share their key (session, global, none)";
    tool_call_duration_ms "": Histogram["tool", "status"] =
        "From the arrival of a call to its end, in milliseconds";
    tool_retry_attempts "_total": Counter["tool", "reason"] =
        "Attempts that were scheduled because the one before failed, by the rule that classified that failure";
    tool_idempotency_hits "_total": Counter["tool", "state"] =
        "Calls that were known to be duplicates, by the state of what they found (inflight, done, failed, unknown)";
    tool_idempotency_conflicts "_total": Counter["tool"] =
        "Calls refused because their key stands for other parameters";
    tool_dedupe_cache_size "": Gauge["tool", "scope"] =
        "Records in the store at the last census";
    tool_dedupe_inflight "": Gauge["tool"] =
        "Records in flight at the last census";
    tool_dedupe_inflight_stale "": Gauge["tool"] =
        "Records in flight at the last census whose lease has ended";
    tool_dedupe_ttl_seconds "": Gauge["tool", "state"] =
        "How long a record is kept, by its state (done, failed, inflight, lease)";
    tool_circuit_breaker_state "": Gauge["tool", "state"] =
        "1 for the state of the breaker, 0 for the others; the worst one where tenants have breakers of their own";
    tool_circuit_breaker_transitions "_total": Counter["tool", "from_state", "to_state"] =
        "Changes of a breaker, also of the coarser one that a caller asked for";
    tool_guard_trips "_total": Counter["tool", "layer"] =
        "Times the guard acted, by layer";
    tool_trust_state "": Gauge["tool", "state"] =
        "1 for the trust in the tool, 0 for the other states; the worst one of its signatures";
    tool_trust_transitions "_total": Counter["tool", "from_state", "to_state"] =
        "Changes of trust, of signatures, tools and domains";
    tool_info "": Gauge["tool", "class"] =
        "1 for the class of the tool (read_only, idempotent, mutating, unknown)";
    tool_events "_total": Counter["tool", "event"] =
        "Facts about calls that no other metric counts, by the name they have in the log";
    turns "_total": Counter["status"] =
        "Turns that ended, by how much of them succeeded (completed, partial, failed), and those whose caller went away before (abandoned)";
    turn_duration_seconds "": Histogram["status"] =
        "From the submission of a turn to its end, in seconds";
    turn_decisions "_total": Counter["strategy"] =
        "Decisions of the error handler about failures in turns (RETRY, ALTERNATIVE_TOOL, PARTIAL_SUCCESS, ESCALATE, GRACEFUL_FAILURE)";
    approvals_pending "": Gauge[] =
        "Requests that wait for a person's answer, also of calls that were refused meanwhile";
    by_hand "_total": Counter["deed"] =
        "Changes that people made while it ran (approved, denied, breaker_forced_open, breaker_reset, trust_reset, guard_reset, flushed, resolved, switched)";
    server_processes "": Gauge["server", "state"] =
        "Processes of a server that we start, by how they stand (idle, starting, up, ending, backing_off, down)";
    server_restarts "_total": Counter["server"] =
        "Times that a process of the server was started again after it had died";
    store_failures "_total": Counter["store", "trouble"] =
        "Store operations that failed";
    store_events "_total": Counter["store", "event"] =
        "What happened to the store itself (lost, back, emptied)";
    watchdog "_total": Counter["tool", "cut"] =
        "Attempts that were ended because nothing was heard of them, or because the call took too long in all";
}
