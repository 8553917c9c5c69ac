//! Texts for the model. The markers are fixed, because hosts and users search for them.

use super::GuardedCall;
use crate::classify::ModelMistake;
use crate::id::ToolRef;

/// The marker of texts that stop a turn.
const LIMIT: &str = "[TOOL ERROR LIMIT]";

/// Returns true if the text stops a turn.
pub(super) fn is_turn_limit(text: &str) -> bool {
    text.contains(LIMIT)
}

/// Returns the text of layer A.
pub(super) const fn non_retryable(mistake: ModelMistake) -> &'static str {
    match mistake {
        ModelMistake::Arguments => {
            "[NON-RETRYABLE] These arguments will be refused every time. Correct them before you call the tool again."
        }
        ModelMistake::UnknownTool => {
            "[NON-RETRYABLE] There is no tool of this name. Choose one from the list of tools that you were given."
        }
    }
}

/// Returns the text of layer B for the failure that completes the loop.
pub(super) fn loop_detected(tool: &ToolRef, failures: u32, mistake: Option<ModelMistake>) -> String {
    format!(
        "[LOOP DETECTED] {} Do NOT retry this call; it will be refused. {WAY_OUT}",
        story(tool, failures, mistake)
    )
}

/// Returns the text of layer B for a refusal.
pub(super) fn refused_loop(tool: &ToolRef, failures: u32, mistake: Option<ModelMistake>) -> String {
    let marker = match mistake {
        Some(ModelMistake::Arguments | ModelMistake::UnknownTool) => "[LOOP DETECTED] [NON-RETRYABLE]",
        None => "[LOOP DETECTED]",
    };
    format!("{marker} This call was not run. {} Do NOT retry it. {WAY_OUT}", story(tool, failures, mistake))
}

fn story(tool: &ToolRef, failures: u32, mistake: Option<ModelMistake>) -> String {
    let times = if failures == 1 { "once".to_owned() } else { format!("{failures} times") };
    match mistake {
        Some(ModelMistake::UnknownTool) => {
            format!("The tool \"{}\" does not exist, and calling it has failed {times}.", tool.tool)
        }
        Some(ModelMistake::Arguments) | None => {
            format!("The tool \"{}\" has failed {times} with identical arguments.", tool.tool)
        }
    }
}

const WAY_OUT: &str = "Try a different approach, or report what stands in the way.";

/// Returns the text for two calls that fail alternately.
pub(super) fn ping_pong(tool: &ToolRef, partner: &ToolRef) -> String {
    format!(
        "[LOOP DETECTED] The last calls went back and forth between \"{}\" and \"{}\", and all of them failed. \
         Do NOT retry either call; both will be refused. {WAY_OUT}",
        partner.tool, tool.tool
    )
}

/// Returns the text of layer C.
pub(super) fn turn_limit(call: GuardedCall<'_>, failures: u32) -> String {
    match call.turn {
        Some(_) => format!(
            "{LIMIT} {failures} tool calls have failed in this turn, so no more are run in it. \
             Stop calling tools, review your approach, and say what you need to go on."
        ),
        None => format!(
            "{LIMIT} {failures} tool calls have failed lately, so the tools that failed are not run for now, \
             \"{}\" among them. Use other tools, or say what you need to go on.",
            call.tool.tool
        ),
    }
}

/// Returns the warning for as many failures as layer C allows, if the turn is only guessed and there is no loop.
pub(super) fn many_failures(failures: u32) -> String {
    format!(
        "{failures} tool calls have failed lately. Check that your approach still holds before you go on."
    )
}

/// Returns the text for a repeated success, next to the response.
pub(super) fn repeated_success(tool: &ToolRef, count: u32) -> String {
    format!(
        "[LOOP DETECTED] The tool \"{}\" has given this same result to the same call {count} times. \
         Calling it again brings nothing new; work with the result that you have.",
        tool.tool
    )
}

/// Returns the text for a repeated success, in place of a run.
pub(super) fn refused_repeat(tool: &ToolRef, count: u32) -> String {
    format!(
        "[LOOP DETECTED] This call was not run: the tool \"{}\" has given the same result to it {count} times. \
         Do NOT retry it; work with the result that you have, or try a different approach.",
        tool.tool
    )
}

/// Returns the beginning of a text, at most this number of bytes.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}
