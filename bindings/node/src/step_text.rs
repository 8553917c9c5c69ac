//! Steps and results as JSON, in the form of the HTTP API.

use std::borrow::Cow;

use serde::Serialize;
use steadfast::call::envelope::ResultEnvelope;
use steadfast::call::{EqualCallPolicy, HostStep, RunOrder};
use steadfast::{CallResponse, Code, Engine, Timestamp};

#[derive(Serialize)]
#[serde(tag = "next", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum StepText<'a> {
    Run {
        id: u64,
        attempt: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline_at_ms: Option<Timestamp>,
        run: &'a str,
    },
    Answer {
        result: &'a ResultEnvelope,
        remarks: &'a [Cow<'static, str>],
        verdict: Verdict,
        may_have_run: bool,
    },
}

/// The verdict of the loop guard in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    None,
    LoopDetected,
    ToolErrorLimit,
}

impl Verdict {
    fn of(response: &CallResponse) -> Self {
        let error = response.result.error.as_ref();
        let code = error.map(|error| error.code);
        let texts = || {
            let message = error.map(|error| error.message.as_str());
            message.into_iter().chain(response.remarks.iter().map(AsRef::as_ref))
        };
        if code == Some(Code::ToolErrorLimit) || texts().any(|text| text.contains("[TOOL ERROR LIMIT]")) {
            Self::ToolErrorLimit
        } else if code == Some(Code::LoopDetected) || texts().any(|text| text.contains("[LOOP DETECTED]")) {
            Self::LoopDetected
        } else {
            Self::None
        }
    }
}

/// Returns the text of a step. A response counts as delivered: JavaScript has it now.
pub(crate) fn step(engine: &Engine, step: &HostStep, equal_calls: EqualCallPolicy) -> String {
    match step {
        HostStep::Run(RunOrder { call, attempt, deadline, run }) => text(&StepText::Run {
            id: call.0,
            attempt: *attempt,
            deadline_at_ms: *deadline,
            run: &run.0,
        }),
        HostStep::Answered(response) => answer(engine, response, equal_calls),
    }
}

/// Returns the text of a response, which counts as delivered.
pub(crate) fn answer(engine: &Engine, response: &CallResponse, equal_calls: EqualCallPolicy) -> String {
    mark_delivered(engine, response, equal_calls);
    let result = &response.result;
    let error = result.error.as_ref();
    text(&StepText::Answer {
        result,
        remarks: &response.remarks,
        verdict: Verdict::of(response),
        may_have_run: error.is_none_or(|error| error.code.may_have_run(result.attempts)),
    })
}

/// The text for a function that succeeded here: JavaScript has its result already.
pub(crate) const OWN_RESULT: &str = "{\"next\":\"own\"}";

/// Returns true if the response says nothing that JavaScript does not know: its function succeeded.
pub(crate) fn is_own_result(response: &CallResponse) -> bool {
    let result = &response.result;
    !result.from_cache && result.error.is_none() && response.remarks.is_empty()
}

/// Marks a response as delivered, where that matters: equal calls are joined until then, and an unknown outcome is told
/// until then.
pub(crate) fn mark_delivered(engine: &Engine, response: &CallResponse, equal_calls: EqualCallPolicy) {
    let is_unknown = response.result.error.as_ref().is_some_and(|error| error.code.is_unknown_outcome());
    let matters = is_unknown || equal_calls != EqualCallPolicy::Separate;
    if let Some(delivery) = response.delivery.clone().filter(|_| matters) {
        engine.mark_delivered(delivery);
    }
}

fn text(step: &StepText<'_>) -> String {
    // Texts, numbers and JSON always serialize.
    serde_json::to_string(step).unwrap_or_default()
}
