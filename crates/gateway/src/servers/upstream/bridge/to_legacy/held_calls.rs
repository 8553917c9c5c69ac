//! Held calls: calls for which a server requests input from the client. A legacy server sends its request while the
//! call runs, and continues after the answer. A modern client gets the request as the result of its call, and sends the
//! call again with its input. The gateway holds the call in between: it runs at the server once, all the time.
//!
//! The client refers to a held call by a random state that is valid once. For an unknown state the outcome of the call
//! is unknown, and the call is never run again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::id::Digest;
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{LegacyBridge, is_same, messages};
use crate::protocol::cancel;
use crate::servers::upstream::bridge::no_id;
use crate::servers::upstream::pending::SentRequestNumber;
use crate::servers::upstream::receivers::{HoldEvent, NotificationReceivers, RunningRequest};
use crate::servers::upstream::{
    Generation, NotificationHandler, PendingRequest, PendingRequests, UpstreamServer,
};

/// The held calls by state.
#[derive(Default)]
pub(super) struct HeldCalls(Mutex<HashMap<String, HeldCall>>);

/// A call that waits for its client.
struct HeldCall {
    request: RpcMessage,
    running: Arc<RunningRequest>,
    sent_as: Arc<SentRequestNumber>,
    holding: AbortHandle,
}

/// The result of a lookup by state.
enum HeldCallLookup {
    Released(HeldCall),
    /// No such call is held, or it was released.
    Unknown,
    /// The state belongs to a different request.
    OfAnother,
}

/// The maximum number of held calls.
const MOST_HELD: usize = 256;
/// The time for which a call is held.
const HOLD: Duration = Duration::from_secs(10 * 60);
/// The time limit for the event of a client that has just sent the call again.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of unprocessed events of one call.
const EVENT_CAPACITY: usize = 16;
/// The prefix of the states.
const STATE: &str = "steadfast-held-";

/// Returns true if this result requests input for a held call. That call runs at the server and may have taken
/// effect.
pub(crate) fn is_held(result: &str) -> bool {
    let state = scan::get(result, "requestState").and_then(scan::string);
    state.is_some_and(|state| state.starts_with(STATE))
}

impl HeldCalls {
    pub(super) fn stop(&self) {
        for (_, waiting) in self.0.lock().drain() {
            waiting.holding.abort();
        }
    }

    /// Holds a call. Returns its state, or `None` if there is no room.
    fn hold(&self, waiting: HeldCall) -> Option<String> {
        let mut calls = self.0.lock();
        if calls.len() >= MOST_HELD {
            return None;
        }
        let state = new_state()?;
        calls.insert(state.clone(), waiting);
        Some(state)
    }

    /// Releases the call of this state if it equals this request.
    fn release(&self, state: &str, request: &RpcMessage) -> HeldCallLookup {
        let mut calls = self.0.lock();
        if calls.get(state).is_some_and(|waiting| !is_same(&waiting.request, request)) {
            return HeldCallLookup::OfAnother;
        }
        calls.remove(state).map_or(HeldCallLookup::Unknown, HeldCallLookup::Released)
    }

    /// Drops a call. Returns true if it was still held.
    fn forget(&self, state: &str) -> bool {
        self.0.lock().remove(state).is_some()
    }
}

/// Sends a call. The pending request may be answered by an input request.
pub(super) async fn call(
    server: &Arc<UpstreamServer>,
    bridge: &Arc<LegacyBridge>,
    request: &RpcMessage,
    on_notification: Option<NotificationHandler>,
) -> Result<PendingRequest, AttemptFault> {
    let (events, event_receiver) = mpsc::channel(EVENT_CAPACITY);
    let running =
        RunningRequest::new(request, messages::capabilities(request), on_notification.clone(), Some(events));
    let receivers = NotificationReceivers { on_notification, running: Some(running.clone()) };
    let sent = server.pass(&messages::request(request), receivers).await?;
    let sent_as = SentRequestNumber::of(&sent);
    let place = server.pending.enter(Generation::NONE, NotificationReceivers::default());
    let holder = CallHolder {
        server: Arc::downgrade(server),
        pending: server.pending.clone(),
        bridge: bridge.clone(),
        request: request.clone(),
        running,
        sent_as: sent_as.clone(),
        sent,
        event_receiver,
        waits: ClientWait::At(place.number),
        open: BTreeMap::new(),
        question_count: 0,
        outcome: None,
    };
    let (own_sender, own_receiver) = tokio::sync::oneshot::channel();
    let holding = tokio::spawn(async move {
        if let Ok(own) = own_receiver.await {
            holder.hold(own).await;
        }
    });
    let _ = own_sender.send(holding.abort_handle());
    Ok(place.answered_by(holding.abort_handle(), sent_as))
}

/// Continues a held call when its client sends it again.
pub(super) async fn resume(
    server: &Arc<UpstreamServer>,
    bridge: &LegacyBridge,
    request: &RpcMessage,
    on_notification: Option<NotificationHandler>,
) -> PendingRequest {
    let state = request.param_text("requestState").unwrap_or_default();
    if !state.starts_with(STATE) {
        return server.answered(refusal("this requestState is not valid"));
    }
    let waiting = match bridge.held_calls.release(&state, request) {
        HeldCallLookup::Released(waiting) => waiting,
        HeldCallLookup::Unknown => return server.pending.answered_with(Err(unknown())),
        HeldCallLookup::OfAnother => {
            return server.answered(refusal("this state belongs to another request"));
        }
    };
    let HeldCall { running, sent_as, holding, .. } = waiting;
    let place = server.pending.enter(Generation::NONE, NotificationReceivers::default());
    running.resume(request, messages::capabilities(request), on_notification.clone());
    server.pending.set_handler(sent_as.number(), on_notification);
    let answers = request.param("inputResponses").and_then(|text| JsonText::parse(text.to_owned()).ok());
    let resumed = HoldEvent::Resumed(place.number, answers);
    let is_delivered = match &running.events {
        Some(events) => events.send(resumed).await.is_ok(),
        None => false,
    };
    if !is_delivered {
        server.pending.settle(place.number, Err(unknown()));
    }
    place.answered_by(holding, sent_as)
}

/// The task state of one held call.
struct CallHolder {
    server: Weak<UpstreamServer>,
    pending: Arc<PendingRequests>,
    bridge: Arc<LegacyBridge>,
    request: RpcMessage,
    running: Arc<RunningRequest>,
    sent_as: Arc<SentRequestNumber>,
    sent: PendingRequest,
    event_receiver: mpsc::Receiver<HoldEvent>,
    waits: ClientWait,
    /// The open input requests of the server, by the keys that the client sees.
    open: BTreeMap<String, (Generation, RpcMessage)>,
    question_count: u64,
    /// The outcome of the call, if it arrived while no client waited.
    outcome: Option<Result<RpcMessage, AttemptFault>>,
}

/// The client's side of a held call.
enum ClientWait {
    /// The client waits with this request number.
    At(u64),
    /// The client has to send the call again with this state before this time.
    Expected(String, Instant),
    /// The client has sent the call again just before the time limit; its event arrives within this time.
    Resuming(Instant),
}

impl CallHolder {
    async fn hold(mut self, own: AbortHandle) {
        loop {
            let until = match &self.waits {
                ClientWait::At(_) => None,
                ClientWait::Expected(_, until) | ClientWait::Resuming(until) => Some(*until),
            };
            let too_long = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // After the answer, input requests from before it are void.
                biased;
                answer = self.sent.answer(), if self.outcome.is_none() => {
                    self.outcome = Some(answer);
                    self.open.clear();
                }
                event = self.event_receiver.recv() => match event {
                    Some(event) => self.handle_event(event).await,
                    None => return,
                },
                () = too_long => match &self.waits {
                    ClientWait::Expected(state, _) if !self.bridge.held_calls.forget(state) => {
                        self.waits = ClientWait::Resuming(Instant::now() + RESUME_TIMEOUT);
                    }
                    ClientWait::At(_) | ClientWait::Expected(..) | ClientWait::Resuming(_) => return self.give_up().await,
                },
            }
            let ClientWait::At(number) = self.waits else { continue };
            if let Some(outcome) = self.outcome.take() {
                let method = self.request.method().unwrap_or_default();
                let outcome = outcome.map(|answer| self.bridge.about.answer(method, &answer));
                self.pending.settle(number, outcome);
                return;
            }
            if !self.open.is_empty() {
                self.ask(number, &own).await;
            }
        }
    }

    async fn handle_event(&mut self, event: HoldEvent) {
        match event {
            // The call has ended, so its input request is ignored.
            HoldEvent::InputRequested(..) if self.outcome.is_some() => {}
            HoldEvent::InputRequested(generation, request) => {
                self.question_count += 1;
                self.open.insert(format!("q{}", self.question_count), (generation, request));
            }
            HoldEvent::InputCancelled(id) => {
                self.open.retain(|_, (_, request)| request.id().is_none_or(|own| !own.is(&id)));
            }
            HoldEvent::Resumed(number, answers) => {
                self.waits = ClientWait::At(number);
                let Some(answers) = answers else { return };
                for member in scan::members(answers.as_str()) {
                    let answer = answers.as_str().get(member.value).filter(|answer| answer.starts_with('{'));
                    let answer = answer.and_then(|answer| JsonText::parse(answer.to_owned()).ok());
                    let Some(answer) = answer else { continue };
                    let Some((generation, request)) = self.open.remove(&*member.name) else { continue };
                    self.answer(generation, request.id(), |id| RpcMessage::result_response(id, &answer))
                        .await;
                }
            }
        }
    }

    /// Sends the open input requests to the client.
    async fn ask(&mut self, number: u64, own: &AbortHandle) {
        let waiting = HeldCall {
            request: self.request.clone(),
            running: self.running.clone(),
            sent_as: self.sent_as.clone(),
            holding: own.clone(),
        };
        let Some(state) = self.bridge.held_calls.hold(waiting) else {
            return self.refuse("too many calls wait for input of their clients").await;
        };
        let questions: Vec<(&str, &RpcMessage)> =
            self.open.iter().map(|(key, (_, request))| (key.as_str(), request)).collect();
        let answer = self.bridge.about.input_required(&questions, &state);
        self.waits = ClientWait::Expected(state, Instant::now() + HOLD);
        self.pending.settle(number, Ok(answer));
    }

    async fn give_up(mut self) {
        // Clients whose event is no longer processed get an error.
        self.event_receiver.close();
        while let Ok(event) = self.event_receiver.try_recv() {
            if let HoldEvent::Resumed(number, _) = event {
                self.pending.settle(number, Err(unknown()));
            }
        }
        if self.outcome.is_none() {
            self.refuse("the client did not answer in time").await;
            if let Some(server) = self.server.upgrade() {
                let reason = "the client did not request the result";
                server.pass_notification(&cancel(&self.sent.id(), reason)).await;
            }
        }
    }

    async fn refuse(&mut self, reason: &str) {
        for (_, (generation, request)) in std::mem::take(&mut self.open) {
            let refused =
                |id: &RpcId| RpcMessage::error_response(Some(id), code::INTERNAL_ERROR, reason, None);
            self.answer(generation, request.id(), refused).await;
        }
    }

    async fn answer(
        &self,
        generation: Generation,
        id: Option<RpcId>,
        answer: impl FnOnce(&RpcId) -> RpcMessage,
    ) {
        if let (Some(server), Some(id)) = (self.server.upgrade(), id) {
            server.answer(generation, &answer(&id)).await;
        }
    }
}

/// Returns the fault of a call with unknown outcome: it was sent, and it is no longer held.
fn unknown() -> AttemptFault {
    let source = FaultSource::Transport { error: TransportError::ConnectionClosed, written: true };
    AttemptFault::new(
        source,
        "the call that waited for these answers no longer exists; it may have taken effect",
    )
}

fn refusal(reason: &str) -> RpcMessage {
    RpcMessage::error_response(Some(&no_id()), code::INVALID_PARAMS, reason, None)
}

/// Returns a random state, or `None` if the system has no randomness.
fn new_state() -> Option<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).ok()?;
    Some(format!("{STATE}{}", Digest::from_bytes(bytes).to_hex()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RpcMessage {
        RpcMessage::parse(text.to_owned(), usize::MAX).unwrap()
    }

    /// A call that runs at a server, and the client that waits for it.
    struct HeldTestCall {
        bridge: Arc<LegacyBridge>,
        pending: Arc<PendingRequests>,
        running: Arc<RunningRequest>,
        number: u64,
        place: PendingRequest,
    }

    fn called(bridge: &Arc<LegacyBridge>) -> HeldTestCall {
        let request =
            parsed(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{}}}"#);
        let pending = Arc::<PendingRequests>::default();
        let (events, event_receiver) = mpsc::channel(EVENT_CAPACITY);
        let running = RunningRequest::new(&request, messages::capabilities(&request), None, Some(events));
        let sent = pending.enter(
            Generation(1),
            NotificationReceivers { on_notification: None, running: Some(running.clone()) },
        );
        let place = pending.enter(Generation::NONE, NotificationReceivers::default());
        let (number, sent_as) = (sent.number, SentRequestNumber::of(&sent));
        let holder = CallHolder {
            server: Weak::new(),
            pending: pending.clone(),
            bridge: bridge.clone(),
            request,
            running: running.clone(),
            sent_as: sent_as.clone(),
            sent,
            event_receiver,
            waits: ClientWait::At(place.number),
            open: BTreeMap::new(),
            question_count: 0,
            outcome: None,
        };
        let holding = tokio::spawn(async move {
            let own = tokio::spawn(std::future::pending::<()>()).abort_handle();
            holder.hold(own).await;
        });
        let place = place.answered_by(holding.abort_handle(), sent_as);
        HeldTestCall { bridge: bridge.clone(), pending, running, number, place }
    }

    fn bridge() -> Arc<LegacyBridge> {
        let agreed = parsed(r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}"#);
        Arc::new(LegacyBridge::agreed(&agreed).unwrap())
    }

    impl HeldTestCall {
        async fn request_input(&mut self) -> RpcMessage {
            let request = parsed(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#);
            let events = self.running.events.clone().unwrap();
            events
                .send(HoldEvent::InputRequested(Generation(1), request))
                .await
                .unwrap_or_else(|_| panic!("it is heard"));
            self.place.answer().await.unwrap()
        }

        fn is_held(&self, answer: &RpcMessage) -> bool {
            let state = scan::get(answer.result().unwrap(), "requestState").and_then(scan::string).unwrap();
            self.bridge.held_calls.0.lock().contains_key(&*state)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_held_for_ten_minutes_and_no_longer() {
        let mut call = called(&bridge());
        let required = call.request_input().await;
        assert_eq!(scan::get(required.result().unwrap(), "resultType"), Some("\"input_required\""));
        // The client has its input request and dropped the pending request.
        let (pending, bridge, number) = (call.pending.clone(), call.bridge.clone(), call.number);
        tokio::time::sleep(HOLD - Duration::from_secs(1)).await;
        assert!(call.is_held(&required));
        drop(call);
        assert_eq!(pending.running(Generation(1), Some(number)).len(), 1, "it runs on");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(bridge.held_calls.0.lock().is_empty());
        assert_eq!(pending.all_running().len(), 0, "nobody waits for it any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_resumes_at_the_last_moment_gets_the_answer() {
        let bridge = bridge();
        let mut call = called(&bridge);
        let required = call.request_input().await;
        let state = scan::get(required.result().unwrap(), "requestState").and_then(scan::string).unwrap();
        let request =
            parsed(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{}}}"#);
        assert!(matches!(bridge.held_calls.release(&state, &request), HeldCallLookup::Released(_)));
        // The time limit passes before the client's event arrives.
        tokio::time::sleep(HOLD + Duration::from_secs(1)).await;
        let events = call.running.events.clone().unwrap();
        let mut again = call.pending.enter(Generation::NONE, NotificationReceivers::default());
        assert!(events.send(HoldEvent::Resumed(again.number, None)).await.is_ok());
        let answer = parsed(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, call.number));
        call.pending.complete(Generation(1), &RpcId::number(call.number), answer);
        assert!(again.answer().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_a_request_that_is_not_held_ends_its_call() {
        let call = called(&bridge());
        let (pending, number) = (call.pending.clone(), call.number);
        assert_eq!(pending.running(Generation(1), Some(number)).len(), 1);
        drop(call);
        tokio::task::yield_now().await;
        assert_eq!(pending.all_running().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_outcome_of_a_held_call_is_stored_for_its_client() {
        let bridge = bridge();
        let mut call = called(&bridge);
        call.request_input().await;
        let fault = AttemptFault::new(
            FaultSource::Transport { error: TransportError::ConnectionReset, written: true },
            "gone",
        );
        call.pending.fail_all(Generation(1), &fault);
        let events = call.running.events.clone().unwrap();
        let mut again = call.pending.enter(Generation::NONE, NotificationReceivers::default());
        events.send(HoldEvent::Resumed(again.number, None)).await.unwrap_or_else(|_| panic!("it is heard"));
        assert_eq!(again.answer().await, Err(fault));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_held_calls_is_limited() {
        let bridge = bridge();
        let mut all = Vec::new();
        for _ in 0..MOST_HELD {
            let mut call = called(&bridge);
            call.request_input().await;
            all.push(call);
        }
        let mut call = called(&bridge);
        let late = tokio::time::timeout(Duration::from_secs(1), call.request_input()).await;
        assert!(late.is_err(), "its server is refused, and the call goes on");
        assert_eq!(bridge.held_calls.0.lock().len(), MOST_HELD);
        let answer = parsed(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, call.number));
        call.pending.complete(Generation(1), &RpcId::number(call.number), answer);
        assert!(call.place.answer().await.is_ok());
    }

    #[test]
    fn no_two_states_are_the_same() {
        let (one, two) = (new_state().unwrap(), new_state().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), STATE.len() + 64);
    }
}
