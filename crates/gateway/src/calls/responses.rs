//! Builds the MCP response for the result of a call.
//!
//! A server's result or error is passed on byte for byte. A refusal by the engine becomes a result with `isError`, so
//! that the model sees it, with the result envelope in `_meta` for programs. If both have content, the message is added and
//! the server's is not changed.

use std::borrow::Cow;

use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::envelope::ResultEnvelope;
use steadfast_core::output::ToolOutput;
use steadfast_executor::{AttemptError, CallResponse, ToolFault, ToolResult};
use steadfast_json::RawJson as Kept;
use steadfast_json::scan;
use steadfast_mcp::http::ProtocolEra;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, code};

use crate::json_parts::json;
use crate::servers::upstream::is_held;

/// The member of `_meta` with the result envelope.
pub(crate) const RESULT: &str = "dev.steadfast/result";

/// Converts the response of a server into the answer for the engine.
pub(crate) fn answer_of(response: &RpcMessage) -> ToolResult {
    if let Some(result) = response.result() {
        let output = ToolOutput { content: Kept::from_trusted(result), metadata: None };
        return match scan::get(result, "isError") {
            Some("true") => {
                let fault = AttemptFault::new(FaultSource::IsError, texts(result).into_owned());
                Err(ToolFault { fault, output: Some(output) }.into())
            }
            // The input request of a held call is stored like an answer. A repeated call gets the same input request
            // and continues the existing run.
            Some(_) | None
                if scan::get(result, "resultType") == Some(r#""input_required""#) && !is_held(result) =>
            {
                Err(AttemptError::InputRequired(output))
            }
            Some(_) | None => Ok(output),
        };
    }
    let Some(error) = response.error() else {
        return Err(AttemptFault::new(
            FaultSource::BadAnswer,
            "the server's answer has neither result nor error",
        )
        .into());
    };
    let code = response.error_code().unwrap_or(code::INTERNAL_ERROR);
    let fault = AttemptFault::new(FaultSource::JsonRpc { code }, response.error_text().unwrap_or_default());
    // Stored as metadata, so that it is returned as an error and not as a result.
    let metadata = Some(Kept::from_trusted(error));
    let output = Some(ToolOutput { content: Kept::from_trusted("null"), metadata });
    Err(ToolFault { fault, output }.into())
}

/// Builds the response to a request with this id in this era.
pub(crate) fn response(id: &RpcId, era: ProtocolEra, called: &CallResponse) -> RpcMessage {
    let result = &called.result;
    let unknown = result.error.as_ref().filter(|error| error.code.is_unknown_outcome());
    match &result.output {
        // An error that counts as an unknown outcome does not answer the request. The model must read our message.
        Some(ToolOutput { metadata: Some(error), content })
            if content.as_str() == "null" && unknown.is_some() =>
        {
            let error_message =
                scan::get(error.as_str(), "message").and_then(scan::string).unwrap_or_default();
            let bare = json(&format!(r#"{{"content":[{}],"isError":true}}"#, text_block(&error_message)));
            let text = remarked(of_era(bare, era).as_str(), &added_text(called));
            RpcMessage::result_response(id, &json(&text)).rewrite().meta(RESULT, envelope(result)).finish()
        }
        Some(ToolOutput { metadata: Some(error), content }) if content.as_str() == "null" => {
            failed(id, error.as_str(), called)
        }
        Some(output) => {
            let mut text = Cow::Borrowed(output.content.as_str());
            let added_text = added_text(called);
            if !added_text.is_empty() {
                text = remarked(&text, &added_text).into();
            }
            let answer = RpcMessage::result_response(id, &json(&text));
            // A replayed or shortened answer is marked as such. Any other answer is passed on unchanged.
            let is_reported = result.from_cache || result.recorded == Some(false) || unknown.is_some();
            if is_reported || result.shortened.is_some() {
                answer.rewrite().meta(RESULT, envelope(result)).finish()
            } else {
                answer
            }
        }
        None => RpcMessage::result_response(id, &error_result(result, era)),
    }
}

/// Returns the text that is added to the tool's content: the message of an unknown outcome, or the remarks of the loop
/// guard and of a replay.
fn added_text(called: &CallResponse) -> String {
    let unknown = called.result.error.as_ref().filter(|error| error.code.is_unknown_outcome());
    match unknown {
        // The message includes the remarks.
        Some(error) => error.message.clone(),
        None => called.remarks.join("\n\n"),
    }
}

/// Returns an error of the server, with our remarks added to its message.
fn failed(id: &RpcId, error: &str, called: &CallResponse) -> RpcMessage {
    let code = scan::get(error, "code").and_then(|code| code.parse().ok()).unwrap_or(code::INTERNAL_ERROR);
    let error_message = scan::get(error, "message").and_then(scan::string).unwrap_or_default();
    let data = scan::get(error, "data").map(json);
    let message = match called.remarks.is_empty() {
        true => error_message,
        false => format!("{error_message}\n\n{}", called.remarks.join("\n\n")).into(),
    };
    RpcMessage::error_response(Some(id), code, &message, data.as_ref())
}

/// Builds a result with the message for the model and the envelope for programs.
fn error_result(result: &ResultEnvelope, era: ProtocolEra) -> JsonText {
    let message = result.error.as_ref().map_or("the call gave no answer", |error| &error.message);
    let kind = match era {
        ProtocolEra::Legacy => "",
        // In the modern era every result has a type.
        ProtocolEra::Modern => r#""resultType":"complete","#,
    };
    json(&format!(
        r#"{{{kind}"content":[{}],"isError":true,"_meta":{{"{RESULT}":{}}}}}"#,
        text_block(message),
        envelope(result).as_str()
    ))
}

/// Adds the result type that this era requires.
pub(crate) fn of_era(result: JsonText, era: ProtocolEra) -> JsonText {
    match (era, result.as_str().strip_prefix('{')) {
        (ProtocolEra::Modern, Some(rest)) => json(&format!(r#"{{"resultType":"complete",{rest}"#)),
        (ProtocolEra::Modern | ProtocolEra::Legacy, _) => result,
    }
}

/// Appends a text block to the content of a result.
fn remarked(result: &str, words: &str) -> String {
    let block = text_block(words);
    let content = scan::members(result).find(|member| member.name == "content");
    match content.and_then(|content| Some((content.value.end, result.get(content.value)?))) {
        Some((end, list)) if list.ends_with(']') => {
            let is_empty = list.get(1..list.len() - 1).is_none_or(|inside| inside.trim().is_empty());
            let comma = if is_empty { "" } else { "," };
            let (before, after) = (result.get(..end - 1).unwrap_or(result), result.get(end..).unwrap_or(""));
            format!("{before}{comma}{block}]{after}")
        }
        Some(_) | None => match result.trim_start().strip_prefix('{') {
            Some(members) => {
                let comma = if members.trim_start().starts_with('}') { "" } else { "," };
                format!(r#"{{"content":[{block}]{comma}{members}"#)
            }
            None => result.to_owned(),
        },
    }
}

fn text_block(text: &str) -> String {
    format!(r#"{{"type":"text","text":{}}}"#, JsonText::string(text).as_str())
}

/// Returns the result envelope without the output, which is the result itself.
fn envelope(result: &ResultEnvelope) -> JsonText {
    let without_output = ResultEnvelope { output: None, ..result.clone() };
    json(&serde_json::to_string(&without_output).unwrap_or_else(|_| "null".to_owned()))
}

/// Returns the joined text blocks of a result.
fn texts(result: &str) -> Cow<'_, str> {
    let Some(content) = scan::get(result, "content") else { return Cow::Borrowed("") };
    let Ok(blocks) = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(content) else {
        return Cow::Borrowed("");
    };
    let mut texts = blocks.iter().filter_map(|block| scan::get(block.get(), "text").and_then(scan::string));
    match (texts.next(), texts.next()) {
        (None, _) => Cow::Borrowed(""),
        (Some(one), None) => Cow::Owned(one.into_owned()),
        (Some(one), Some(two)) => {
            Cow::Owned(texts.fold(format!("{one}\n{two}"), |all, next| format!("{all}\n{next}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::code::{CallStatus, Code};
    use steadfast_core::envelope::ErrorBody;
    use steadfast_core::id::{RequestId, ToolName};

    use super::*;

    fn parsed(text: &str) -> RpcMessage {
        RpcMessage::parse(text.to_owned(), usize::MAX).unwrap()
    }

    fn called(output: Option<ToolOutput>, error: Option<ErrorBody>) -> CallResponse {
        let result = ResultEnvelope {
            request_id: RequestId::new("r").unwrap(),
            status: CallStatus::Success,
            from_cache: false,
            cache: None,
            tool_name: ToolName::new("pay").unwrap(),
            duration_ms: 1,
            attempts: 1,
            output,
            error,
            retried_by: Vec::new(),
            recorded: None,
            escalated: false,
            turn: None,
            shortened: None,
        };
        CallResponse { result, delivery: None, remarks: Vec::new(), verdict: Default::default(), text_limit: None }
    }

    /// Converts a response to an answer and back to a call result.
    fn passed(response: &RpcMessage) -> CallResponse {
        match answer_of(response) {
            Ok(output) => called(Some(output), None),
            Err(AttemptError::InputRequired(output)) => called(Some(output), None),
            Err(AttemptError::NotRun(fault)) => panic!("a server that answered has begun: {fault:?}"),
            Err(AttemptError::Failed(fault)) => {
                called(fault.output, Some(ErrorBody::temporary(Code::ToolError, fault.fault.message)))
            }
        }
    }

    #[test]
    fn responses_of_a_server_are_passed_on_unchanged() {
        for text in [
            r#"{"jsonrpc":"2.0","id":"a","result":{"content":[ ],"x-own":1.0,"structuredContent":{"n":10000000000000000000}}}"#,
            r#"{"jsonrpc":"2.0","id":"a","result":{"isError":true,"content":[{"type":"text","text":"no"}]}}"#,
            r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"bad","data":{"why":[1]}}}"#,
            r#"{"jsonrpc":"2.0","id":"a","result":{}}"#,
        ] {
            let came = parsed(text);
            assert_eq!(
                response(&RpcId::string("a"), ProtocolEra::Legacy, &passed(&came)).bytes(),
                came.bytes(),
                "{text}"
            );
        }
    }

    #[test]
    fn remarks_of_the_loop_guard_are_added_and_nothing_is_changed() {
        let mut called = passed(&parsed(
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"no"}],"isError":true}}"#,
        ));
        called.remarks.push("[LOOP DETECTED] stop".into());
        let text = r#"{"content":[{"type":"text","text":"no"},{"type":"text","text":"[LOOP DETECTED] stop"}],"isError":true}"#;
        assert_eq!(response(&RpcId::number(1), ProtocolEra::Legacy, &called).result(), Some(text));
        for (bare, expected) in [
            (r#"{"content":[]}"#, r#"{"content":[{"type":"text","text":"w"}]}"#),
            (r#"{ }"#, r#"{"content":[{"type":"text","text":"w"}] }"#),
            (r#"{"a":1}"#, r#"{"content":[{"type":"text","text":"w"}],"a":1}"#),
        ] {
            assert_eq!(remarked(bare, "w"), expected);
        }
        let mut failed =
            passed(&parsed(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":1}}"#));
        failed.remarks.push("stop".into());
        assert_eq!(
            response(&RpcId::number(1), ProtocolEra::Legacy, &failed).error_text().unwrap(),
            "no\n\nstop"
        );
    }

    #[test]
    fn refusals_have_a_message_for_the_model_and_an_envelope_for_programs() {
        let refused =
            called(None, Some(ErrorBody::temporary(Code::CircuitOpen, "the tool is left \"alone\"")));
        let answer = response(&RpcId::number(7), ProtocolEra::Legacy, &refused);
        let result = answer.result().unwrap();
        assert_eq!(scan::get(result, "resultType"), None);
        let modern = response(&RpcId::number(7), ProtocolEra::Modern, &refused);
        assert_eq!(scan::get(modern.result().unwrap(), "resultType"), Some("\"complete\""));
        assert_eq!(scan::get(result, "isError"), Some("true"));
        assert_eq!(texts(result), "the tool is left \"alone\"");
        let envelope = answer.meta_member(RESULT).unwrap();
        assert_eq!(scan::get(scan::get(envelope, "error").unwrap(), "code"), Some("\"circuit_open\""));
    }

    #[test]
    fn a_replayed_answer_is_marked_as_such() {
        let mut replayed = passed(&parsed(r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#));
        replayed.result.from_cache = true;
        let answer = response(&RpcId::number(1), ProtocolEra::Legacy, &replayed);
        assert_eq!(scan::get(answer.meta_member(RESULT).unwrap(), "fromCache"), Some("true"));
    }

    #[test]
    fn an_input_request_is_distinguished_from_an_answer() {
        let text = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{},"requestState":"s"}}"#;
        let came = parsed(text);
        assert!(matches!(answer_of(&came), Err(AttemptError::InputRequired(_))));
        assert_eq!(response(&RpcId::number(1), ProtocolEra::Modern, &passed(&came)).bytes(), came.bytes());
        for kind in ["complete", "task"] {
            assert!(answer_of(&parsed(&text.replace("input_required", kind))).is_ok(), "{kind}");
        }
    }

    #[test]
    fn the_message_of_an_error_is_the_text_of_its_blocks() {
        let fault = |text: &str| match answer_of(&parsed(text)) {
            Err(AttemptError::Failed(failed)) => failed.fault,
            other => panic!("it should have failed: {other:?}"),
        };
        let failure = fault(
            r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[{"type":"text","text":"a"},{"type":"image","data":""},{"type":"text","text":"b"}]}}"#,
        );
        assert_eq!((failure.source, failure.message.as_str()), (FaultSource::IsError, "a\nb"));
        let error = fault(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"what?"}}"#);
        assert_eq!((error.source, error.message.as_str()), (FaultSource::JsonRpc { code: -32601 }, "what?"));
    }
}
