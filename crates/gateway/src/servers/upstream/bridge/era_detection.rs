//! Detection of the protocol era of a server. It relies on answers only: an answer that no server of the client's era
//! would give starts an attempt in the other era, and only a success there is conclusive.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_json::scan;
use steadfast_mcp::http::{META_CAPABILITIES, META_VERSION, MODERN, ProtocolEra};
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcMessage, code};
use tokio::time::timeout;

use super::json_edits::CLIENT_INFO;
use super::to_legacy::{self, LegacyBridge};
use super::to_modern::{ModernBridge, includes_modern, is_modern_result};
use super::{DetectedEra, NotificationReceivers, PendingRequest, UpstreamServer, initialized, no_id};
use crate::json_parts::object;
use crate::servers::upstream::{HANDSHAKE, ServerConnection, not_sent};

/// The time without an answer to `server/discover` after which the other era is tried. Nearly every server answers
/// unknown methods with an error, so this mostly concerns servers that start slowly. A slow server of the modern era
/// alone is still detected, because it refuses the legacy handshake. A slow server of both eras would be used in the
/// legacy era.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(20);

/// The state of the first request of a modern client.
pub(super) enum FirstRequest {
    /// The request was `server/discover` itself and has its answer.
    Answered(PendingRequest),
    /// The request still has to be sent.
    NotYet,
}

/// Detects the era of a server for a client of the modern era.
pub(super) async fn first(
    server: &Arc<UpstreamServer>,
    request: &RpcMessage,
) -> Result<FirstRequest, AttemptFault> {
    let _finding = server.bridge.finding.lock().await;
    if server.bridge.found().is_some() {
        return Ok(FirstRequest::NotYet);
    }
    let is_own_question = request.method() == Some("server/discover");
    let probe = if is_own_question { request.clone() } else { discover_as(request) };
    let mut answer = ask(server, &probe).await?;
    let mut verdict = judge(&probe, answer.as_ref());
    if verdict == EraVerdict::Unclear && died_of_request(server, answer.as_ref()) {
        verdict = EraVerdict::Legacy;
    }
    if verdict == EraVerdict::Legacy {
        match perform_handshake(server, request).await {
            Ok(bridge) => {
                server.bridge.set(DetectedEra::ToLegacy(Arc::new(bridge)));
                return Ok(FirstRequest::NotYet);
            }
            // The server was only slow to answer, and is of the modern era.
            Err(Some(refused)) if is_modern_error(&refused) => {
                answer = ask(server, &probe).await?;
                verdict = judge(&probe, answer.as_ref());
            }
            Err(_) => verdict = EraVerdict::Unclear,
        }
    }
    if verdict == EraVerdict::Modern {
        server.bridge.set(DetectedEra::Same(ProtocolEra::Modern));
    }
    match (is_own_question, answer) {
        (true, Some(answer)) => Ok(FirstRequest::Answered(server.pending.answered_with(answer))),
        (false, Some(Err(fault))) if is_unreachable(&fault) => Err(not_sent(&fault.message)),
        (true | false, None) if verdict != EraVerdict::Modern => {
            Err(not_sent("the server supports neither protocol era"))
        }
        (true | false, _) => Ok(FirstRequest::NotYet),
    }
}

/// Runs the handshake of a client of the legacy era, with a server of either era.
pub(super) async fn initialize(
    server: &Arc<UpstreamServer>,
    request: &RpcMessage,
) -> Result<RpcMessage, AttemptFault> {
    let answer = server.pass_first(request).await?.answer().await;
    let refuses = match &answer {
        Ok(answer) if answer.result().is_some() => {
            server.bridge.set(DetectedEra::Same(ProtocolEra::Legacy));
            false
        }
        Ok(_) => true,
        Err(fault) => is_refusal(fault),
    };
    if !refuses {
        return answer;
    }
    let probe = discover(request);
    let discovery = async { server.pass_first(&probe).await?.answer().await };
    let Ok(discovered) = timeout(DETECTION_TIMEOUT, discovery).await else { return answer };
    match ModernBridge::discovered(discovered) {
        Some(bridge) => {
            let answer = bridge.initialized(request, server.name.as_str());
            // The client's introduction is sent with every request.
            server.handshake.answered(request, &answer);
            server.bridge.set(DetectedEra::ToModern(Arc::new(bridge)));
            Ok(answer)
        }
        None => answer,
    }
}

/// Builds `server/discover` for a client with this `initialize` request.
pub(super) fn discover(initialize: &RpcMessage) -> RpcMessage {
    let (capabilities, info) = (initialize.param("capabilities"), initialize.param("clientInfo"));
    discover_with(capabilities.unwrap_or("{}"), info)
}

/// Builds `server/discover` for a client that introduces itself in every request.
fn discover_as(request: &RpcMessage) -> RpcMessage {
    discover_with(request.meta_member(META_CAPABILITIES).unwrap_or("{}"), request.meta_member(CLIENT_INFO))
}

fn discover_with(capabilities: &str, info: Option<&str>) -> RpcMessage {
    let version = JsonText::string(MODERN);
    let meta = [(META_VERSION, version.as_str()), (META_CAPABILITIES, capabilities)];
    let meta = object(meta.into_iter().chain(info.map(|info| (CLIENT_INFO, info))));
    RpcMessage::request(&no_id(), "server/discover", Some(&object([("_meta", meta.as_str())])))
}

/// Sends the probe and waits for the answer. Returns `None` if there is none in time.
async fn ask(
    server: &Arc<UpstreamServer>,
    probe: &RpcMessage,
) -> Result<Option<Result<RpcMessage, AttemptFault>>, AttemptFault> {
    let mut place = server.pass(probe, NotificationReceivers::default()).await?;
    Ok(timeout(DETECTION_TIMEOUT, place.answer()).await.ok())
}

/// Runs the legacy handshake on behalf of a modern client. Returns the server's response if it refuses.
async fn perform_handshake(
    server: &Arc<UpstreamServer>,
    request: &RpcMessage,
) -> Result<LegacyBridge, Option<RpcMessage>> {
    let initialize = to_legacy::initialize(request);
    let exchange = async { server.pass(&initialize, NotificationReceivers::default()).await?.answer().await };
    let answer = match timeout(HANDSHAKE, exchange).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(fault)) => {
            tracing::debug!(event = "bridge.handshake", server = %server.name, "why" = %fault.message);
            return Err(None);
        }
        Err(_) => return Err(None),
    };
    let Some(bridge) = LegacyBridge::agreed(&answer) else { return Err(Some(answer)) };
    server.handshake.answered(&initialize, &answer);
    server.pass_notification(&initialized()).await;
    Ok(bridge)
}

/// The conclusion from an answer to `server/discover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EraVerdict {
    Modern,
    Legacy,
    Unclear,
}

fn judge(request: &RpcMessage, answer: Option<&Result<RpcMessage, AttemptFault>>) -> EraVerdict {
    match answer {
        None => EraVerdict::Legacy,
        Some(Ok(answer)) if is_modern_result(answer) || is_modern_error(answer) => EraVerdict::Modern,
        // An invalid request gets this error in either era.
        Some(Ok(answer))
            if answer.error_code() == Some(code::INVALID_PARAMS)
                && request.meta_member(META_CAPABILITIES).is_none() =>
        {
            EraVerdict::Unclear
        }
        Some(Ok(_)) => EraVerdict::Legacy,
        Some(Err(fault)) if is_refusal(fault) => EraVerdict::Legacy,
        Some(Err(_)) => EraVerdict::Unclear,
    }
}

/// Returns true if only a modern server gives this error.
fn is_modern_error(answer: &RpcMessage) -> bool {
    match answer.error_code() {
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY) => true,
        Some(code::UNSUPPORTED_VERSION) => {
            let data = answer.error().and_then(|error| scan::get(error, "data"));
            data.and_then(|data| scan::get(data, "supported")).is_none_or(includes_modern)
        }
        Some(_) | None => false,
    }
}

/// Returns true if a server received the request and refused it.
fn is_refusal(fault: &AttemptFault) -> bool {
    match fault.source {
        FaultSource::Http { status } => matches!(status, 400 | 404 | 405 | 406 | 415 | 422),
        FaultSource::JsonRpc { .. }
        | FaultSource::SessionLost
        | FaultSource::BadAnswer
        | FaultSource::TooLarge => true,
        FaultSource::Transport { .. }
        | FaultSource::Exit { .. }
        | FaultSource::IsError
        | FaultSource::Tool
        | FaultSource::WebSocket { .. }
        | FaultSource::Timeout { .. }
        | FaultSource::Panic => false,
    }
}

/// Returns true if the server could not be reached.
fn is_unreachable(fault: &AttemptFault) -> bool {
    matches!(fault.source, FaultSource::Transport { .. } | FaultSource::Exit { .. })
}

/// Returns true if a child died of the request. Some legacy servers exit when the first message is not `initialize`;
/// the next process gets that.
fn died_of_request(server: &UpstreamServer, answer: Option<&Result<RpcMessage, AttemptFault>>) -> bool {
    let has_died = matches!(answer, Some(Err(fault)) if is_unreachable(fault));
    has_died && matches!(server.connection, ServerConnection::Child(_))
}

#[cfg(test)]
mod tests {
    use steadfast_core::classify::TransportError;

    use super::*;

    fn parsed(text: &str) -> RpcMessage {
        RpcMessage::parse(text.to_owned(), usize::MAX).unwrap()
    }

    fn answer(body: &str) -> Result<RpcMessage, AttemptFault> {
        Ok(parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#)))
    }

    fn fault(source: FaultSource) -> Result<RpcMessage, AttemptFault> {
        Err(AttemptFault::new(source, "no"))
    }

    #[test]
    fn the_era_of_a_server_is_detected_from_its_answer_to_discover() {
        let request = discover_with("{}", None);
        for (given, verdict) in [
            (answer(r#""result":{"supportedVersions":["2026-07-28"]}"#), EraVerdict::Modern),
            (answer(r#""result":{"supportedVersions":["2025-11-25","2030-01-01"]}"#), EraVerdict::Modern),
            (answer(r#""result":{"supportedVersions":["2025-11-25"]}"#), EraVerdict::Legacy),
            (answer(r#""result":{}"#), EraVerdict::Legacy),
            (answer(r#""error":{"code":-32601,"message":"no method"}"#), EraVerdict::Legacy),
            (answer(r#""error":{"code":-32602,"message":"not initialized"}"#), EraVerdict::Legacy),
            (answer(r#""error":{"code":0,"message":"first initialize"}"#), EraVerdict::Legacy),
            (answer(r#""error":{"code":-32020,"message":"headers"}"#), EraVerdict::Modern),
            (answer(r#""error":{"code":-32021,"message":"capability"}"#), EraVerdict::Modern),
            (answer(r#""error":{"code":-32022,"message":"version"}"#), EraVerdict::Modern),
            (
                answer(r#""error":{"code":-32022,"message":"v","data":{"supported":["2027-01-01"]}}"#),
                EraVerdict::Modern,
            ),
            (
                answer(r#""error":{"code":-32022,"message":"v","data":{"supported":["2025-06-18"]}}"#),
                EraVerdict::Legacy,
            ),
            (fault(FaultSource::Http { status: 400 }), EraVerdict::Legacy),
            (fault(FaultSource::Http { status: 401 }), EraVerdict::Unclear),
            (fault(FaultSource::Http { status: 503 }), EraVerdict::Unclear),
            (fault(FaultSource::SessionLost), EraVerdict::Legacy),
            (fault(FaultSource::JsonRpc { code: -32000 }), EraVerdict::Legacy),
            (
                fault(FaultSource::Transport { error: TransportError::ConnectionRefused, written: false }),
                EraVerdict::Unclear,
            ),
        ] {
            assert_eq!(judge(&request, Some(&given)), verdict, "{given:?}");
        }
        assert_eq!(judge(&request, None), EraVerdict::Legacy, "silence");
        let wrong = parsed(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#);
        let refused = answer(r#""error":{"code":-32602,"message":"no _meta"}"#);
        assert_eq!(judge(&wrong, Some(&refused)), EraVerdict::Unclear);
    }

    #[test]
    fn discover_has_the_introduction_of_the_client() {
        let initialize = parsed(
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{"roots":{}},"clientInfo":{"name":"c"}}}"#,
        );
        let request = discover(&initialize);
        assert_eq!(request.meta_text(META_VERSION).unwrap(), MODERN);
        assert_eq!(request.meta_member(META_CAPABILITIES), Some(r#"{"roots":{}}"#));
        assert_eq!(request.meta_member(CLIENT_INFO), Some(r#"{"name":"c"}"#));
        let again = discover_as(&request);
        assert_eq!(again, request);
    }
}
