//! Which era a server is of. Nothing but an answer says so: one that no server of the client's era would give means that the
//! other era is to be tried, and only what succeeds there is believed.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::classify::{Fault, Source};
use steadfast_mcp::http::{Era, LEGACY, META_CAPABILITIES, META_VERSION, MODERN};
use steadfast_mcp::message::{Message, code};
use steadfast_mcp::raw::{self, RawJson};
use tokio::time::timeout;

use super::to_legacy::{self, ToLegacy};
use super::to_modern::ToModern;
use super::words::{CLIENT_INFO, strings};
use super::{Ears, Found, Place, Server, initialized, no_id};
use crate::pieces::object;
use crate::server::{HANDSHAKE, Way, gone};

/// How long a server may say nothing to a question that those of the modern era answer at once, before the other era is
/// tried. Nearly every server answers what it does not know with an error, so this is mostly about those that are slow to
/// start: one of the modern era alone is still taken for what it is, because it refuses the handshake, but one that knows
/// both eras would be spoken with in the older one from then on.
const SILENCE: Duration = Duration::from_secs(20);

/// What became of the first request of a client of the modern era.
pub(super) enum First {
    /// It was what had to be asked to find out.
    Answered(Place),
    /// It is still to be sent.
    NotYet,
}

/// Finds out what a server is of which nothing is known, for a client of the modern era.
pub(super) async fn first(server: &Arc<Server>, request: &Message) -> Result<First, Fault> {
    let _finding = server.bridge.finding.lock().await;
    if server.bridge.found().is_some() {
        return Ok(First::NotYet);
    }
    let is_own_question = request.method() == Some("server/discover");
    let probe = if is_own_question { request.clone() } else { discover_as(request) };
    let mut answer = ask(server, &probe).await?;
    let mut verdict = judge(&probe, answer.as_ref());
    if verdict == Verdict::Unclear && dies_of_being_asked(server, answer.as_ref()) {
        verdict = Verdict::Legacy;
    }
    if verdict == Verdict::Legacy {
        match shake_hands(server, request).await {
            Ok(bridge) => {
                server.bridge.set(Found::ToLegacy(Arc::new(bridge)));
                return Ok(First::NotYet);
            }
            // It was silent because it was slow, and is of the modern era after all.
            Err(Some(refused)) if is_modern_error(&refused) => {
                answer = ask(server, &probe).await?;
                verdict = judge(&probe, answer.as_ref());
            }
            Err(_) => verdict = Verdict::Unclear,
        }
    }
    if verdict == Verdict::Modern {
        server.bridge.set(Found::Same(Era::Modern));
    }
    match (is_own_question, answer) {
        (true, Some(answer)) => Ok(First::Answered(server.pending.answered_with(answer))),
        (false, Some(Err(fault))) if is_unreachable(&fault) => Err(gone(&fault.message)),
        (true | false, None) if verdict != Verdict::Modern => {
            Err(gone("the server answers neither of the two eras of the protocol"))
        }
        (true | false, _) => Ok(First::NotYet),
    }
}

/// The handshake of a client of the older era, whichever era the server is of.
pub(super) async fn initialize(server: &Arc<Server>, request: &Message) -> Result<Message, Fault> {
    let answer = server.pass_first(request).await?.answer().await;
    let refuses = match &answer {
        Ok(answer) if answer.result().is_some() => {
            server.bridge.set(Found::Same(Era::Legacy));
            false
        }
        Ok(_) => true,
        Err(fault) => is_refusal(fault),
    };
    if !refuses {
        return answer;
    }
    let probe = discover(request);
    let asked = async { server.pass_first(&probe).await?.answer().await };
    let Ok(discovered) = timeout(SILENCE, asked).await else { return answer };
    match ToModern::discovered(discovered) {
        Some(bridge) => {
            let answer = bridge.initialized(request, server.name.as_str());
            // What the client said of itself goes with every request.
            server.handshake.answered(request, &answer);
            server.bridge.set(Found::ToModern(Arc::new(bridge)));
            Ok(answer)
        }
        None => answer,
    }
}

/// `server/discover`, for a client that said of itself what is in this `initialize`.
pub(super) fn discover(initialize: &Message) -> Message {
    let (capabilities, info) = (initialize.param("capabilities"), initialize.param("clientInfo"));
    discover_with(capabilities.unwrap_or("{}"), info)
}

/// The same for a client that says it in every request.
fn discover_as(request: &Message) -> Message {
    discover_with(request.meta_member(META_CAPABILITIES).unwrap_or("{}"), request.meta_member(CLIENT_INFO))
}

fn discover_with(capabilities: &str, info: Option<&str>) -> Message {
    let version = RawJson::string(MODERN);
    let meta = [(META_VERSION, version.as_str()), (META_CAPABILITIES, capabilities)];
    let meta = object(meta.into_iter().chain(info.map(|info| (CLIENT_INFO, info))));
    Message::request(&no_id(), "server/discover", Some(&object([("_meta", meta.as_str())])))
}

/// Asks, and waits for the answer as long as one may be waited for; nothing if there is none.
async fn ask(server: &Arc<Server>, probe: &Message) -> Result<Option<Result<Message, Fault>>, Fault> {
    let mut place = server.pass(probe, Ears::default()).await?;
    Ok(timeout(SILENCE, place.answer()).await.ok())
}

/// Makes a server of the older era ready for a client that does not know that this is needed. If it is refused in words,
/// these are given.
async fn shake_hands(server: &Arc<Server>, request: &Message) -> Result<ToLegacy, Option<Message>> {
    let initialize = to_legacy::initialize(request);
    let asked = async { server.pass(&initialize, Ears::default()).await?.answer().await };
    let answer = match timeout(HANDSHAKE, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(fault)) => {
            tracing::debug!(event = "bridge.handshake", server = %server.name, why = %fault.message);
            return Err(None);
        }
        Err(_) => return Err(None),
    };
    let Some(bridge) = ToLegacy::agreed(&answer) else { return Err(Some(answer)) };
    server.handshake.answered(&initialize, &answer);
    server.pass_told(&initialized()).await;
    Ok(bridge)
}

/// What an answer to `server/discover` says of who gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Modern,
    Legacy,
    Unclear,
}

fn judge(asked: &Message, answer: Option<&Result<Message, Fault>>) -> Verdict {
    match answer {
        None => Verdict::Legacy,
        Some(Ok(answer)) if is_modern_result(answer) || is_modern_error(answer) => Verdict::Modern,
        // Who is asked in the wrong way may say so in either era.
        Some(Ok(answer))
            if answer.error_code() == Some(code::INVALID_PARAMS)
                && asked.meta_member(META_CAPABILITIES).is_none() =>
        {
            Verdict::Unclear
        }
        Some(Ok(_)) => Verdict::Legacy,
        Some(Err(fault)) if is_refusal(fault) => Verdict::Legacy,
        Some(Err(_)) => Verdict::Unclear,
    }
}

/// Whether a server says in its answer to `server/discover` that it speaks a version of the modern era.
pub(super) fn is_modern_result(answer: &Message) -> bool {
    let versions = answer.result().and_then(|result| raw::get(result, "supportedVersions"));
    versions.is_some_and(speaks_modern)
}

/// Whether no server of the older era gives this error.
fn is_modern_error(answer: &Message) -> bool {
    match answer.error_code() {
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY) => true,
        Some(code::UNSUPPORTED_VERSION) => {
            let data = answer.error().and_then(|error| raw::get(error, "data"));
            data.and_then(|data| raw::get(data, "supported")).is_none_or(speaks_modern)
        }
        Some(_) | None => false,
    }
}

fn speaks_modern(versions: &str) -> bool {
    strings(versions).iter().any(|version| !LEGACY.contains(&version.as_str()))
}

/// Whether a server understood that something was asked, and did not want it.
fn is_refusal(fault: &Fault) -> bool {
    match fault.source {
        Source::Http { status } => matches!(status, 400 | 404 | 405 | 406 | 415 | 422),
        Source::JsonRpc { .. } | Source::SessionLost | Source::BadAnswer | Source::TooLarge => true,
        Source::Transport { .. }
        | Source::Exit { .. }
        | Source::IsError
        | Source::Tool
        | Source::WebSocket { .. }
        | Source::Timeout { .. }
        | Source::Panic => false,
    }
}

/// Whether nothing at all could be asked.
fn is_unreachable(fault: &Fault) -> bool {
    matches!(fault.source, Source::Transport { .. } | Source::Exit { .. })
}

/// There are servers of the older era that end when the first word is not the handshake. The next one gets the right word.
fn dies_of_being_asked(server: &Server, answer: Option<&Result<Message, Fault>>) -> bool {
    let has_died = matches!(answer, Some(Err(fault)) if is_unreachable(fault));
    has_died && matches!(server.way, Way::Child(_))
}

#[cfg(test)]
mod tests {
    use steadfast_core::classify::Transport;

    use super::*;

    fn parsed(text: &str) -> Message {
        Message::parse(text.to_owned(), usize::MAX).unwrap()
    }

    fn answer(body: &str) -> Result<Message, Fault> {
        Ok(parsed(&format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#)))
    }

    fn fault(source: Source) -> Result<Message, Fault> {
        Err(Fault::new(source, "no"))
    }

    #[test]
    fn the_era_of_a_server_is_told_from_its_answer_to_the_question_of_the_modern_one() {
        let asked = discover_with("{}", None);
        for (given, verdict) in [
            (answer(r#""result":{"supportedVersions":["2026-07-28"]}"#), Verdict::Modern),
            (answer(r#""result":{"supportedVersions":["2025-11-25","2030-01-01"]}"#), Verdict::Modern),
            (answer(r#""result":{"supportedVersions":["2025-11-25"]}"#), Verdict::Legacy),
            (answer(r#""result":{}"#), Verdict::Legacy),
            (answer(r#""error":{"code":-32601,"message":"no method"}"#), Verdict::Legacy),
            (answer(r#""error":{"code":-32602,"message":"not initialized"}"#), Verdict::Legacy),
            (answer(r#""error":{"code":0,"message":"first initialize"}"#), Verdict::Legacy),
            (answer(r#""error":{"code":-32020,"message":"headers"}"#), Verdict::Modern),
            (answer(r#""error":{"code":-32021,"message":"capability"}"#), Verdict::Modern),
            (answer(r#""error":{"code":-32022,"message":"version"}"#), Verdict::Modern),
            (
                answer(r#""error":{"code":-32022,"message":"v","data":{"supported":["2027-01-01"]}}"#),
                Verdict::Modern,
            ),
            (
                answer(r#""error":{"code":-32022,"message":"v","data":{"supported":["2025-06-18"]}}"#),
                Verdict::Legacy,
            ),
            (fault(Source::Http { status: 400 }), Verdict::Legacy),
            (fault(Source::Http { status: 401 }), Verdict::Unclear),
            (fault(Source::Http { status: 503 }), Verdict::Unclear),
            (fault(Source::SessionLost), Verdict::Legacy),
            (fault(Source::JsonRpc { code: -32000 }), Verdict::Legacy),
            (
                fault(Source::Transport { error: Transport::ConnectionRefused, written: false }),
                Verdict::Unclear,
            ),
        ] {
            assert_eq!(judge(&asked, Some(&given)), verdict, "{given:?}");
        }
        assert_eq!(judge(&asked, None), Verdict::Legacy, "silence");
        let wrong = parsed(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#);
        let refused = answer(r#""error":{"code":-32602,"message":"no _meta"}"#);
        assert_eq!(judge(&wrong, Some(&refused)), Verdict::Unclear);
    }

    #[test]
    fn the_question_says_of_the_client_what_the_client_says() {
        let initialize = parsed(
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{"roots":{}},"clientInfo":{"name":"c"}}}"#,
        );
        let asked = discover(&initialize);
        assert_eq!(asked.meta_text(META_VERSION).unwrap(), MODERN);
        assert_eq!(asked.meta_member(META_CAPABILITIES), Some(r#"{"roots":{}}"#));
        assert_eq!(asked.meta_member(CLIENT_INFO), Some(r#"{"name":"c"}"#));
        let again = discover_as(&asked);
        assert_eq!(again, asked);
    }
}
