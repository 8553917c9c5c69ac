//! The coverage of the simulation: each row of the tables, each event in each state of a call, and each notice.
//!
//! A promise that no world tests is worthless. [`Coverage::unreached`] lists the entries that should have been reached
//! and were not. Entries that a simulation cannot reach are in [`UNREACHABLE`], with the reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use steadfast_core::approval::SpendVerdict;
use steadfast_core::call::{ApprovalOutcome, AttemptReport, CallEvent, CallNotice, StoreFault, WakeReason};
use steadfast_core::dedupe::{ClaimVerdict, RenewVerdict, SaveVerdict, StartVerdict};

/// A table of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CoverageTable {
    /// The record that a claim finds, by the kind of lookup.
    Claim,
    /// The record that a save finds, by the kind of answer.
    Save,
    /// The record that a release finds.
    Release,
    /// The record that a renewal finds.
    Renew,
    /// The record that a start mark finds.
    Start,
    /// The record that a delivery mark finds.
    Delivered,
    /// The record that an operator finds, by resolution.
    Resolve,
    /// The state of a call, by event.
    Call,
    /// The notices.
    Notice,
}

impl CoverageTable {
    const ALL: [Self; 9] = [
        Self::Claim,
        Self::Save,
        Self::Release,
        Self::Renew,
        Self::Start,
        Self::Delivered,
        Self::Resolve,
        Self::Call,
        Self::Notice,
    ];

    fn rows(self) -> Vec<&'static str> {
        match self {
            Self::Claim => CLAIM_ROWS.to_vec(),
            Self::Save => SAVE_ROWS.to_vec(),
            Self::Release => RELEASE_ROWS.to_vec(),
            Self::Renew => RENEW_ROWS.to_vec(),
            Self::Start => START_ROWS.to_vec(),
            Self::Delivered => DELIVERED_ROWS.to_vec(),
            Self::Resolve => RESOLVE_ROWS.to_vec(),
            Self::Call => EVENTS.iter().map(|(state, _)| *state).collect(),
            Self::Notice => NOTICES.to_vec(),
        }
    }

    fn columns(self, row: &str) -> Vec<&'static str> {
        let columns: &[&str] = match self {
            Self::Claim if row == "nothing" => &["", "another call"],
            Self::Claim if row.starts_with("done, not delivered for long") => &["equal arguments"],
            Self::Claim if row.starts_with("done, delivered, overlaps") => &["equal arguments"],
            Self::Claim if row == "other arguments" => &["explicit key", "waiter"],
            Self::Claim if row == "failed, kept" => &["explicit key", "waiter"],
            Self::Save if row == "its own, unknown, knows no more" => &["unknown"],
            Self::Save if row == "its own, by the index" => &[""],
            Self::Claim => &["explicit key", "own call id", "equal arguments", "waiter"],
            Self::Save => &["done", "failed", "unknown"],
            Self::Resolve => &["ran", "did not run"],
            Self::Call => {
                let own =
                    EVENTS.iter().find(|(state, _)| *state == row).map_or(&[][..], |(_, events)| events);
                return own.iter().chain(&AT_ANY_TIME).copied().collect();
            }
            Self::Release | Self::Renew | Self::Start | Self::Delivered | Self::Notice => &[""],
        };
        columns.to_vec()
    }
}

const CLAIM_ROWS: [&str; 19] = [
    "nothing",
    "own token, in flight",
    "in flight, held",
    "in flight, lapsed, not started",
    "in flight, lapsed, safe to repeat",
    "in flight, lapsed, started",
    "done, not delivered",
    "done, not delivered for long",
    "done, delivered",
    "done, delivered, overlaps",
    "done, delivered, overlaps by age",
    "failed, kept",
    "failed, not kept",
    "unknown, its owner is gone",
    "unknown, not settled",
    "unknown, settled, not told",
    "unknown, settled, told",
    "unknown, settled, told and verified",
    "unknown, settled, told and waited",
];
const SAVE_ROWS: [&str; 8] = [
    "nothing",
    "another's",
    "its own, in flight",
    "its own, unknown",
    "its own, unknown, knows no more",
    "its own, done",
    "its own, failed",
    "its own, by the index",
];
const RENEW_ROWS: [&str; 6] = [
    "nothing",
    "nothing, the store was emptied",
    "another's",
    "its own, in flight",
    "its own, unknown",
    "its own, answered",
];

const RELEASE_ROWS: [&str; 4] = ["nothing", "another's", "its own, open", "its own, answered"];
const START_ROWS: [&str; 5] =
    ["nothing", "another's", "its own", "its own, started", "its own, not in flight"];
const DELIVERED_ROWS: [&str; 5] =
    ["nothing", "another answer", "delivered before", "no answer", "the answer"];
const RESOLVE_ROWS: [&str; 6] = [
    "nothing",
    "another run",
    "not unknown",
    "not settled",
    "over by its time, its end was not seen",
    "settled",
];

/// Events that may come in every state of a call that is not over.
const AT_ANY_TIME: [&str; 8] = [
    "woke: time",
    "woke: changed",
    "progressed",
    "renewed",
    "renewed: unknown",
    "renewed: lost",
    "cancelled",
    "disconnected",
];

/// Further events of each state. Any other event is misuse by the driver, and the call reports it.
const EVENTS: [(&str, &[&str]); 16] = [
    (
        "Looking",
        &[
            "claimed: mine",
            "claimed: follow",
            "claimed: busy",
            "claimed: replay",
            "claimed: unknown",
            "claimed: conflict",
            "claimed: nothing",
            "claimed: full",
            "claimed: closed",
            "claimed: records lost",
            "store failed: not done",
            "store failed: unanswered",
        ],
    ),
    (
        "Claiming",
        &[
            "claimed: mine",
            "claimed: follow",
            "claimed: busy",
            "claimed: replay",
            "claimed: unknown",
            "claimed: conflict",
            "claimed: nothing",
            "claimed: full",
            "claimed: closed",
            "claimed: records lost",
            "store failed: not done",
            "store failed: unanswered",
        ],
    ),
    ("Following", &["woke: leader refused"]),
    ("AwaitingEnd", &["woke: leader refused"]),
    (
        "AwaitingApproval",
        &[
            "answered: granted",
            "answered: granted, to be spent",
            "answered: denied",
            "answered: nobody",
            "answered: put to caller",
        ],
    ),
    ("GivingBack", &["released", "store failed: not done", "store failed: unanswered"]),
    (
        "Spending",
        &[
            "spent",
            "spent: already",
            "spent: holds",
            "spent: lost",
            "spent: gone",
            "store failed: not done",
            "store failed: unanswered",
        ],
    ),
    ("Starting", &["started", "started: lost", "store failed: not done", "store failed: unanswered"]),
    ("Probing", &["probed", "store failed: not done", "store failed: unanswered"]),
    ("Attempting", &["ran: success", "ran: input required", "ran: failure", "ran: not run", "settled"]),
    ("BackingOff", &[]),
    ("Renewing", &["store failed: not done", "store failed: unanswered"]),
    ("Marking", &["saved", "saved: fence lost", "store failed: not done", "store failed: unanswered"]),
    (
        "Settling",
        &["ran: success", "ran: input required", "ran: failure", "ran: not run", "settled", "driver ends"],
    ),
    (
        "Saving",
        &["saved", "saved: fence lost", "store failed: not done", "store failed: unanswered", "settled"],
    ),
    ("Releasing", &["released", "store failed: not done", "store failed: unanswered"]),
];
const NOTICES: [&str; 25] = [
    "CallStarted",
    "CallBlocked",
    "Following",
    "Replayed",
    "TookOver",
    "KeyConflict",
    "ApprovalRequested",
    "ApprovalEnded",
    "AttemptStarted",
    "AttemptEnded",
    "InputRequired",
    "RetryScheduled",
    "RetryStopped",
    "AttemptCut",
    "AnsweredEarly",
    "OutcomeUnknown",
    "Verified",
    "BreakerChanged",
    "ProbeMoved",
    "TrustChanged",
    "GuardTripped",
    "FenceLost",
    "StoreFailed",
    "Shadowed",
    "CallFinished",
];

/// Entries that cannot be reached, with the reason. An empty row or column stands for all of them.
const UNREACHABLE: &[(CoverageTable, &str, &str, &str)] = &[
    (CoverageTable::Call, "Looking", "claimed: mine", "a look takes nothing"),
    (
        CoverageTable::Notice,
        "Verified",
        "",
        "the engine sends it, after a call of another tool; no call sends it itself",
    ),
];

/// The number of times that each entry was reached.
#[derive(Clone, Debug, Default)]
pub struct TableCoverage(BTreeMap<(CoverageTable, &'static str, &'static str), u64>);

impl TableCoverage {
    pub(crate) fn count(&mut self, table: CoverageTable, row: &'static str, column: &'static str) {
        *self.0.entry((table, row, column)).or_default() += 1;
    }

    pub(crate) fn event(&mut self, state: &'static str, event: &CallEvent) {
        self.count(CoverageTable::Call, state, name_of_event(event));
    }

    pub(crate) fn notice(&mut self, notice: &CallNotice) {
        self.count(CoverageTable::Notice, name_of_notice(notice), "");
    }

    /// Adds the counters of another world.
    pub fn add(&mut self, other: &Self) {
        for (place, times) in &other.0 {
            *self.0.entry(*place).or_default() += times;
        }
    }

    /// Returns the entries that should have been reached and were not, and those that were reached although they should
    /// not be.
    pub fn unreached(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (table, row, column) in places() {
            let times = self.0.get(&(table, row, column)).copied().unwrap_or_default();
            match (times, unreachable_reason(table, row, column)) {
                (0, None) => found.push(format!("{table:?}: {row} × {column} was not reached")),
                (1.., Some(reason)) => {
                    found.push(format!(
                        "{table:?}: {row} × {column} reached {times} times, although {reason}"
                    ));
                }
                (0, Some(_)) | (1.., None) => {}
            }
        }
        let unknown = self.0.keys().filter(|place| !places().any(|known| known == **place));
        found.extend(
            unknown.map(|(table, row, column)| format!("{table:?}: {row} × {column} is not in the table")),
        );
        found
    }

    /// Returns the tables as text, with the count of each entry.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for table in CoverageTable::ALL {
            let _ = writeln!(text, "{table:?}");
            for row in table.rows() {
                let _ = writeln!(text, "  {row}");
                for column in table.columns(row) {
                    let times = self.0.get(&(table, row, column)).copied().unwrap_or_default();
                    match (times, unreachable_reason(table, row, column)) {
                        (0, Some(_)) => {}
                        (times, _) => drop(writeln!(text, "    {times:>10}  {column}")),
                    }
                }
            }
        }
        text
    }
}

fn places() -> impl Iterator<Item = (CoverageTable, &'static str, &'static str)> {
    CoverageTable::ALL.into_iter().flat_map(|table| {
        table
            .rows()
            .into_iter()
            .flat_map(move |row| table.columns(row).into_iter().map(move |column| (table, row, column)))
    })
}

fn unreachable_reason(table: CoverageTable, row: &str, column: &str) -> Option<&'static str> {
    let fits = |pattern: &str, actual: &str| pattern.is_empty() || pattern == actual;
    UNREACHABLE
        .iter()
        .find(|(of, rows, columns, _)| *of == table && fits(rows, row) && fits(columns, column))
        .map(|one| one.3)
}

fn name_of_event(event: &CallEvent) -> &'static str {
    match event {
        CallEvent::Claimed(verdict) => match verdict {
            ClaimVerdict::Acquired(_) => "claimed: mine",
            ClaimVerdict::Follow(_) => "claimed: follow",
            ClaimVerdict::Busy => "claimed: busy",
            ClaimVerdict::Replay(_) => "claimed: replay",
            ClaimVerdict::Unknown(_) => "claimed: unknown",
            ClaimVerdict::Conflict => "claimed: conflict",
            ClaimVerdict::Nothing => "claimed: nothing",
            ClaimVerdict::Full => "claimed: full",
            ClaimVerdict::StoreRecovering => "claimed: closed",
            ClaimVerdict::RecordsLost => "claimed: records lost",
        },
        CallEvent::Woke(wake) => match wake {
            WakeReason::Time => "woke: time",
            WakeReason::Changed => "woke: changed",
            WakeReason::LeaderRefused(_) => "woke: leader refused",
        },
        CallEvent::Answered(approval) => match approval {
            ApprovalOutcome::Granted(None) => "answered: granted",
            ApprovalOutcome::Granted(Some(_)) => "answered: granted, to be spent",
            ApprovalOutcome::Denied => "answered: denied",
            ApprovalOutcome::Unreachable => "answered: nobody",
            ApprovalOutcome::ReturnedToCaller(_) => "answered: put to caller",
        },
        CallEvent::Spent(spend) => match spend {
            SpendVerdict::Spent => "spent",
            SpendVerdict::AlreadyMine => "spent: already",
            SpendVerdict::Holds => "spent: holds",
            SpendVerdict::Lost => "spent: lost",
            SpendVerdict::Gone => "spent: gone",
        },
        CallEvent::Started(StartVerdict::Started) => "started",
        CallEvent::Started(StartVerdict::Lost) => "started: lost",
        CallEvent::Probed => "probed",
        CallEvent::Ran(outcome) => match outcome {
            AttemptReport::Success { .. } => "ran: success",
            AttemptReport::InputRequired { .. } => "ran: input required",
            AttemptReport::Failure { .. } | AttemptReport::Replayed(_) => "ran: failure",
            AttemptReport::NotRun { .. } => "ran: not run",
        },
        CallEvent::Progressed => "progressed",
        CallEvent::Settled => "settled",
        CallEvent::DriverEnds => "driver ends",
        CallEvent::Renewed { verdict, .. } => match verdict {
            RenewVerdict::Renewed => "renewed",
            RenewVerdict::MarkedUnknown => "renewed: unknown",
            RenewVerdict::Lost => "renewed: lost",
        },
        CallEvent::Saved(SaveVerdict::Saved(_)) => "saved",
        CallEvent::Saved(SaveVerdict::FenceLost) => "saved: fence lost",
        CallEvent::Released => "released",
        CallEvent::StoreFailed(StoreFault::NotDone) => "store failed: not done",
        CallEvent::StoreFailed(StoreFault::Unanswered) => "store failed: unanswered",
        CallEvent::Cancelled(_) => "cancelled",
        CallEvent::Disconnected(_) => "disconnected",
    }
}

fn name_of_notice(notice: &CallNotice) -> &'static str {
    match notice {
        CallNotice::CallStarted { .. } => "CallStarted",
        CallNotice::CallBlocked { .. } => "CallBlocked",
        CallNotice::Following => "Following",
        CallNotice::Replayed { .. } => "Replayed",
        CallNotice::TookOver => "TookOver",
        CallNotice::KeyConflict => "KeyConflict",
        CallNotice::ApprovalRequested => "ApprovalRequested",
        CallNotice::ApprovalEnded { .. } => "ApprovalEnded",
        CallNotice::AttemptStarted { .. } => "AttemptStarted",
        CallNotice::AttemptEnded { .. } => "AttemptEnded",
        CallNotice::InputRequired => "InputRequired",
        CallNotice::RetryScheduled { .. } => "RetryScheduled",
        CallNotice::RetryStopped { .. } => "RetryStopped",
        CallNotice::AttemptCut { .. } => "AttemptCut",
        CallNotice::AnsweredEarly { .. } => "AnsweredEarly",
        CallNotice::OutcomeUnknown { .. } => "OutcomeUnknown",
        // The engine sends this notice, not the machine of a call.
        CallNotice::Verified { .. } => "Verified",
        CallNotice::BreakerChanged { .. } => "BreakerChanged",
        CallNotice::ProbeMoved { .. } => "ProbeMoved",
        CallNotice::TrustChanged(_) => "TrustChanged",
        CallNotice::GuardTripped { .. } => "GuardTripped",
        CallNotice::FenceLost => "FenceLost",
        CallNotice::StoreFailed { .. } => "StoreFailed",
        CallNotice::Shadowed(_) => "Shadowed",
        CallNotice::CallFinished { .. } => "CallFinished",
    }
}
