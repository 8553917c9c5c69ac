//! Calls in rounds. A modern server that needs input answers the call with an input request. The gateway gets the input
//! from the client, whose call still waits, and sends the call again with it.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::RpcMessage;

use super::super::json_edits::{check_client_support, with_none};
use super::messages::{InputQuestion, InputRequest, LegacyClientInfo, unanswered};
use super::{ClientRequest, ModernBridge};
use crate::servers::upstream::pending::SentRequestNumber;
use crate::servers::upstream::receivers::NotificationReceivers;
use crate::servers::upstream::{Generation, NotificationHandler, PendingRequest, UpstreamServer};

/// The maximum number of rounds, after which the call fails.
const MOST_ROUNDS: u32 = 16;
/// The first and the longest delay before the next round if the server requests no input.
const ROUND_DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// Sends a call. The pending request gets the answer of the last round.
pub(super) async fn call(
    server: &Arc<UpstreamServer>,
    bridge: &Arc<ModernBridge>,
    request: RpcMessage,
    on_notification: Option<NotificationHandler>,
) -> Result<PendingRequest, AttemptFault> {
    let sent = server.pass(&request, on_notification.clone().into()).await?;
    let sent_as = SentRequestNumber::of(&sent);
    let place = server.pending.enter(Generation::NONE, NotificationReceivers::default());
    let rounds = CallRounds {
        server: server.clone(),
        bridge: bridge.clone(),
        request,
        on_notification,
        sent_as: sent_as.clone(),
    };
    let (pending, number) = (server.pending.clone(), place.number);
    let task = tokio::spawn(async move {
        let answer = rounds.last(sent).await;
        pending.settle(number, answer);
    });
    Ok(place.answered_by(task.abort_handle(), sent_as))
}

struct CallRounds {
    server: Arc<UpstreamServer>,
    bridge: Arc<ModernBridge>,
    request: RpcMessage,
    on_notification: Option<NotificationHandler>,
    sent_as: Arc<SentRequestNumber>,
}

impl CallRounds {
    async fn last(&self, first: PendingRequest) -> Result<RpcMessage, AttemptFault> {
        let method = self.request.method().unwrap_or_default();
        let (mut sent, mut pause) = (first, ROUND_DELAYS.0);
        for round in 0.. {
            let answer = sent.answer().await?;
            let Some(input) = InputRequest::of(&answer) else { return Ok(with_none(&answer, "resultType")) };
            if round == MOST_ROUNDS {
                break;
            }
            if input.questions.is_empty() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(ROUND_DELAYS.1);
            }
            let answers = match self.ask(&input.questions).await {
                Ok(answers) => answers,
                Err(reason) => return Ok(unanswered(method, &reason)),
            };
            let again = input.answered(&self.request, &answers);
            let receivers = self.on_notification.clone().into();
            sent = self.server.pass(&again, receivers).await.map_err(|fault| later_round_fault(&fault))?;
            self.sent_as.is_now(&sent);
        }
        Ok(unanswered(method, "the server requested input too often without a result"))
    }

    /// Requests all input from the client. An error ends the call, because the server cannot be informed of it.
    async fn ask<'q>(&self, questions: &'q [InputQuestion]) -> Result<Vec<(&'q str, JsonText)>, String> {
        let client = LegacyClientInfo::of(self.server.handshake.initialize().as_ref());
        for InputQuestion { method, params, .. } in questions {
            let params = params.as_ref().map(JsonText::as_str);
            check_client_support(client.capabilities.as_str(), method, params)?;
        }
        let mut open: Vec<(&str, ClientRequest)> = Vec::new();
        for InputQuestion { key, method, params } in questions {
            let question = self.bridge.ask(&self.server, method, params.as_ref()).await;
            open.push((key, question.ok_or("too many requests wait for the client")?));
        }
        let mut answers = Vec::new();
        for (key, mut question) in open {
            let answer =
                (&mut question.answer).await.map_err(|_| "the request was not sent to the client")?;
            match answer.result_json() {
                Some(result) => answers.push((key, result)),
                None => {
                    let message = answer.error_text().unwrap_or_default();
                    return Err(format!("the client did not answer what the server asked: {message}"));
                }
            }
        }
        Ok(answers)
    }
}

/// Returns the fault of a later round: an earlier round may have had an effect.
fn later_round_fault(fault: &AttemptFault) -> AttemptFault {
    let source = FaultSource::Transport { error: TransportError::ConnectionClosed, written: true };
    AttemptFault::new(source, fault.message.clone())
}
