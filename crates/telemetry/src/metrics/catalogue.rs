//! The catalogue of metrics: names, labels and descriptions. The registry and the reference page are made from this
//! list.

use super::instrument::{Counter, Gauge, Histogram, InstrumentRegistrar};

/// The description of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDescription {
    /// The name after the namespace, as it is scraped.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A distribution of values.
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
            pub(super) fn register(at: &mut InstrumentRegistrar<'_>) -> Self {
                Self { $($field: $kind::register(at, stringify!($field), [$($label),*], $help),)* }
            }
        }

        /// All metrics.
        pub const CATALOGUE: &[MetricDescription] = &[$(MetricDescription {
            name: concat!(stringify!($field), $suffix),
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: $help,
        },)*];
    };
}

instruments! {
    tool_calls "_total": Counter["tool", "status", "scope"] =
        "Calls that ended, by result status and key scope (session, global, none)";
    tool_call_duration_ms "": Histogram["tool", "status"] =
        "Duration of a call from its arrival to its end, in milliseconds";
    tool_retry_attempts "_total": Counter["tool", "reason"] =
        "Retries that were scheduled, by the rule that classified the failure";
    tool_idempotency_hits "_total": Counter["tool", "state"] =
        "Duplicate calls, by the state of the record that they found (inflight, done, failed, unknown)";
    tool_idempotency_conflicts "_total": Counter["tool"] =
        "Calls refused because their key was used with other parameters";
    tool_dedupe_cache_size "": Gauge["tool", "scope"] =
        "Records in the store at the last census";
    tool_dedupe_inflight "": Gauge["tool"] =
        "Records in flight at the last census";
    tool_dedupe_inflight_stale "": Gauge["tool"] =
        "Records in flight at the last census whose lease has expired";
    tool_dedupe_ttl_seconds "": Gauge["tool", "state"] =
        "Lifetime of a record by its state (done, failed, inflight, lease)";
    tool_circuit_breaker_state "": Gauge["tool", "state"] =
        "1 for the current state of the circuit breaker, 0 for the others; the worst one if tenants have their own breakers";
    tool_circuit_breaker_transitions "_total": Counter["tool", "from_state", "to_state"] =
        "State changes of a circuit breaker, including the coarser one that a caller asked for";
    tool_guard_trips "_total": Counter["tool", "layer"] =
        "Actions of the loop guard, by layer";
    tool_trust_state "": Gauge["tool", "state"] =
        "1 for the current trust in the tool, 0 for the other states; the worst one of its signatures";
    tool_trust_transitions "_total": Counter["tool", "from_state", "to_state"] =
        "Changes of trust in signatures, tools and domains";
    tool_info "": Gauge["tool", "class"] =
        "1 for the class of the tool (read_only, idempotent, mutating, unknown)";
    tool_events "_total": Counter["tool", "event"] =
        "Events of calls that have no metric of their own, by their name in the log";
    turns "_total": Counter["status"] =
        "Turns that ended, by how many calls succeeded (completed, partial, failed), and those whose caller stopped waiting (abandoned)";
    turn_duration_seconds "": Histogram["status"] =
        "Duration of a turn from its submission to its end, in seconds";
    turn_decisions "_total": Counter["strategy"] =
        "Decisions of the error handler about failures in turns (RETRY, ALTERNATIVE_TOOL, PARTIAL_SUCCESS, ESCALATE, GRACEFUL_FAILURE)";
    approvals_pending "": Gauge[] =
        "Pending approval requests, including those of calls that have been refused since";
    by_hand "_total": Counter["deed"] =
        "Changes that operators made at run time (approved, denied, breaker_forced_open, breaker_reset, trust_reset, recovery_approved, guard_reset, flushed, resolved, switched, loss_accepted)";
    server_processes "": Gauge["server", "state"] =
        "Processes of a server that steadfast starts, by state (idle, starting, up, ending, backing_off, down)";
    server_restarts "_total": Counter["server"] =
        "Restarts of a process of the server after it had died";
    store_failures "_total": Counter["store", "trouble"] =
        "Store operations that failed";
    store_events "_total": Counter["store", "event"] =
        "Events of the store itself (lost, back, emptied)";
    watchdog "_total": Counter["tool", "cut"] =
        "Attempts that were ended because they made no progress, or because the call took too long in total";
}
