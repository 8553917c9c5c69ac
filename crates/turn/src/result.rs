//! The result of a turn: every call in exactly one state, and one sentence for the user.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use steadfast_core::Timestamp;
use steadfast_core::code::Code;
use steadfast_core::id::{ToolCallId, ToolRef, TurnId};
use steadfast_core::large_result::ShortenedText;
use steadfast_json::RawJson;

use super::clip;

/// The result of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnResult {
    /// Id of the turn, if its plan has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Share of its calls that succeeded: all, some or none.
    pub status: TurnStatus,
    /// The reason for its end.
    pub ended_by: TurnEndReason,
    /// True if the user should look at a call.
    pub escalated: bool,
    /// One sentence for the user.
    pub summary: String,
    /// Its calls, in the order of the plan.
    pub calls: Vec<TurnCallResult>,
    /// Time at which it started.
    pub started_at_ms: Timestamp,
    /// Time at which it ended.
    pub ended_at_ms: Timestamp,
}

/// The share of the calls of a turn that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TurnStatus {
    /// Every call succeeded.
    Completed,
    /// Some calls succeeded.
    Partial,
    /// No call succeeded.
    Failed,
}

/// The reason for the end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TurnEndReason {
    /// Every call had ended.
    Finished,
    /// Its deadline passed.
    Deadline,
    /// The caller cancelled it.
    Cancel,
}

/// The outcome of a call of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TurnCallOutcome {
    /// The call, or an alternative, succeeded.
    Succeeded,
    /// The call and its alternatives failed.
    Failed,
    /// The call never ran.
    Skipped,
    /// The call was running at the end of the turn and was stopped.
    Cancelled,
    /// The call was running at the end of the turn and continues. The engine records its result.
    LeftRunning,
}

/// The result of one call of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnCallResult {
    /// Its id within the plan.
    pub id: ToolCallId,
    /// The tool that ran last, or the planned tool if none ran.
    pub tool: ToolRef,
    /// Its outcome.
    pub outcome: TurnCallOutcome,
    /// The error code, if it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// True if the user should look at it.
    #[serde(default)]
    pub escalated: bool,
    /// Its output. Also absent if a successful output was too large to store; `code` is set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<RawJson>,
    /// Location of the whole text of the output, if only its beginning and its end are here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened: Option<ShortenedText>,
    /// Attempts made, over all tools that were tried.
    pub attempts: u32,
}

/// Returns the share of these calls that succeeded.
pub(super) fn status(calls: &[TurnCallResult]) -> TurnStatus {
    match calls.iter().filter(|call| call.outcome == TurnCallOutcome::Succeeded).count() {
        0 => TurnStatus::Failed,
        count if count == calls.len() => TurnStatus::Completed,
        _ => TurnStatus::Partial,
    }
}

/// Returns the summary, e.g. "Completed flight search, but hotel search timed out": the completed calls, the others
/// with the reason, and the calls that need attention. Its length does not grow with the number of calls.
pub(super) fn summary(calls: &[TurnCallResult]) -> String {
    let mut by_ending: BTreeMap<SummaryGroup, Vec<&TurnCallResult>> = BTreeMap::new();
    for call in calls {
        by_ending.entry(ending(call)).or_default().push(call);
    }
    let ambiguous = ambiguous(&by_ending);
    let names = |calls: &[&TurnCallResult]| names(calls, &ambiguous);
    let done = by_ending.remove(&SummaryGroup::Completed);
    let not_done: Vec<String> = by_ending
        .iter()
        .map(|(ending, calls)| format!("{} {}", names(calls), verb(*ending, calls.len() > 1)))
        .collect();
    let mut sentence = match (done, not_done.is_empty()) {
        (Some(done), true) => format!("Completed {}", names(&done)),
        (Some(done), false) => format!("Completed {}, but {}", names(&done), joined(&not_done)),
        (None, _) => format!("Nothing was completed: {}", joined(&not_done)),
    };
    let escalated: Vec<&TurnCallResult> = calls.iter().filter(|call| call.escalated).collect();
    if !escalated.is_empty() {
        let verb = if escalated.len() > 1 { "need" } else { "needs" };
        sentence.push_str(&format!("; {} {verb} your attention", names(&escalated)));
    }
    sentence
}

/// The group of a call in a summary, in the order of the summary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SummaryGroup {
    Completed,
    TimedOut,
    StillRunning,
    Failed,
    InDoubt,
    NeedsApproval,
    Cancelled,
    Skipped,
}

fn ending(call: &TurnCallResult) -> SummaryGroup {
    let by_code = match call.code {
        Some(Code::Timeout | Code::StuckCall | Code::DeadlineExceeded) => Some(SummaryGroup::TimedOut),
        Some(Code::OutcomeUnknown) => Some(SummaryGroup::InDoubt),
        Some(Code::ApprovalRequired) => Some(SummaryGroup::NeedsApproval),
        Some(Code::Cancelled) => Some(SummaryGroup::Cancelled),
        Some(_) | None => None,
    };
    match call.outcome {
        TurnCallOutcome::Succeeded => SummaryGroup::Completed,
        TurnCallOutcome::LeftRunning => SummaryGroup::StillRunning,
        TurnCallOutcome::Failed => by_code.unwrap_or(SummaryGroup::Failed),
        TurnCallOutcome::Cancelled => by_code.unwrap_or(SummaryGroup::Cancelled),
        TurnCallOutcome::Skipped => SummaryGroup::Skipped,
    }
}

const fn verb(ending: SummaryGroup, several: bool) -> &'static str {
    match (ending, several) {
        (SummaryGroup::Completed, _) => "completed",
        (SummaryGroup::TimedOut, _) => "timed out",
        (SummaryGroup::StillRunning, false) => "timed out and is still running",
        (SummaryGroup::StillRunning, true) => "timed out and are still running",
        (SummaryGroup::Failed, _) => "failed",
        (SummaryGroup::InDoubt, _) => "may or may not have taken effect",
        (SummaryGroup::NeedsApproval, false) => "needs approval",
        (SummaryGroup::NeedsApproval, true) => "need approval",
        (SummaryGroup::Cancelled, false) => "was cancelled",
        (SummaryGroup::Cancelled, true) => "were cancelled",
        (SummaryGroup::Skipped, false) => "was skipped",
        (SummaryGroup::Skipped, true) => "were skipped",
    }
}

/// Returns the names of tools whose calls ended in different groups. Such a name alone does not identify a call.
fn ambiguous(by_ending: &BTreeMap<SummaryGroup, Vec<&TurnCallResult>>) -> BTreeSet<String> {
    let (mut earlier, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for calls in by_ending.values() {
        let here: BTreeSet<String> = calls.iter().map(|call| readable(call.tool.tool.as_str())).collect();
        twice.extend(here.intersection(&earlier).cloned());
        earlier.extend(here);
    }
    twice
}

/// Returns the first few tools of these calls by readable name, each once, with the id of the call if the name is
/// ambiguous.
fn names(calls: &[&TurnCallResult], ambiguous: &BTreeSet<String>) -> String {
    const SHOWN: usize = 5;
    let mut counts: Vec<(String, &TurnCallResult, usize)> = Vec::new();
    let mut more = 0_usize;
    for call in calls {
        let name = readable(call.tool.tool.as_str());
        if let Some((_, _, count)) = counts.iter_mut().find(|(known, ..)| *known == name) {
            *count += 1;
        } else if counts.len() < SHOWN {
            counts.push((name, call, 1));
        } else {
            more += 1;
        }
    }
    let mut parts: Vec<String> = counts
        .into_iter()
        .map(|(name, call, count)| match count {
            1 if ambiguous.contains(&name) => format!("{name} ({})", clip(call.id.as_str(), 60)),
            1 => name,
            _ => format!("{name} ({count} calls)"),
        })
        .collect();
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    joined(&parts)
}

fn joined(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Returns a readable name: `flight_search`, `flight-search` and `flightSearch` all become "flight search".
fn readable(name: &str) -> String {
    let mut words = String::new();
    let mut after_small = false;
    for character in name.chars() {
        if matches!(character, '_' | '-' | '.' | '/' | ' ') {
            if !words.is_empty() && !words.ends_with(' ') {
                words.push(' ');
            }
            after_small = false;
        } else {
            if character.is_uppercase() && after_small {
                words.push(' ');
            }
            words.extend(character.to_lowercase());
            after_small = character.is_lowercase() || character.is_ascii_digit();
        }
    }
    let words = words.trim_end();
    clip(if words.is_empty() { name } else { words }, 60)
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::{Namespace, ToolName};

    use super::*;

    fn call_result(tool: &str, outcome: TurnCallOutcome, code: Option<Code>) -> TurnCallResult {
        TurnCallResult {
            id: ToolCallId::new(tool).unwrap(),
            tool: ToolRef {
                namespace: Namespace::new("travel").unwrap(),
                tool: ToolName::new(tool).unwrap(),
            },
            outcome,
            code,
            message: None,
            escalated: false,
            output: None,
            shortened: None,
            attempts: 1,
        }
    }

    #[test]
    fn the_summary_has_completed_and_other_calls() {
        let done = || call_result("flight_search", TurnCallOutcome::Succeeded, None);
        let escalated = |mut call: TurnCallResult| {
            call.escalated = true;
            call
        };
        let called =
            |id: &str, call: TurnCallResult| TurnCallResult { id: ToolCallId::new(id).unwrap(), ..call };
        let cases = [
            (vec![done()], "Completed flight search"),
            (
                vec![done(), call_result("hotel_search", TurnCallOutcome::Failed, Some(Code::Timeout))],
                "Completed flight search, but hotel search timed out",
            ),
            (
                vec![
                    done(),
                    call_result("hotelSearch", TurnCallOutcome::Cancelled, Some(Code::DeadlineExceeded)),
                    call_result("activity-search", TurnCallOutcome::LeftRunning, Some(Code::InFlight)),
                ],
                "Completed flight search, but hotel search timed out and activity search timed out and is still running",
            ),
            (
                vec![
                    call_result("a", TurnCallOutcome::Failed, Some(Code::ToolError)),
                    call_result("b", TurnCallOutcome::Skipped, None),
                ],
                "Nothing was completed: a failed and b was skipped",
            ),
            (
                vec![
                    done(),
                    done(),
                    escalated(call_result(
                        "create_itinerary",
                        TurnCallOutcome::Skipped,
                        Some(Code::DependencyFailed),
                    )),
                    call_result("pay", TurnCallOutcome::Failed, Some(Code::OutcomeUnknown)),
                ],
                "Completed flight search (2 calls), but pay may or may not have taken effect and create itinerary was \
                 skipped; create itinerary needs your attention",
            ),
            (
                vec![call_result("a", TurnCallOutcome::Failed, Some(Code::ApprovalRequired))],
                "Nothing was completed: a needs approval",
            ),
            (vec![call_result("___", TurnCallOutcome::Succeeded, None)], "Completed ___"),
            (
                vec![call_result("_flight__search_", TurnCallOutcome::Succeeded, None)],
                "Completed flight search",
            ),
            (
                vec![
                    called("lisbon", done()),
                    called(
                        "porto",
                        escalated(call_result(
                            "flight_search",
                            TurnCallOutcome::Failed,
                            Some(Code::ToolError),
                        )),
                    ),
                    call_result("hotel_search", TurnCallOutcome::Succeeded, None),
                ],
                "Completed flight search (lisbon) and hotel search, but flight search (porto) failed; \
                 flight search (porto) needs your attention",
            ),
        ];
        for (calls, sentence) in cases {
            assert_eq!(summary(&calls), sentence);
        }
    }

    #[test]
    fn the_status_is_the_share_of_successes() {
        let done = || call_result("a", TurnCallOutcome::Succeeded, None);
        let failed = || call_result("b", TurnCallOutcome::Failed, Some(Code::ToolError));
        for (calls, expected) in [
            (vec![done(), done()], TurnStatus::Completed),
            (vec![done(), failed()], TurnStatus::Partial),
            (vec![failed(), failed()], TurnStatus::Failed),
        ] {
            assert_eq!(status(&calls), expected);
        }
    }

    #[test]
    fn the_summary_of_a_thousand_calls_is_short() {
        let calls: Vec<_> = (0..1000)
            .map(|number| {
                let outcome =
                    if number % 2 == 0 { TurnCallOutcome::Succeeded } else { TurnCallOutcome::Failed };
                call_result(&format!("{number}{}", "x".repeat(200)), outcome, Some(Code::ToolError))
            })
            .collect();
        let sentence = summary(&calls);
        assert!(sentence.len() < 1000, "{sentence}");
        assert!(sentence.contains("and 495 more"), "{sentence}");
    }
}
