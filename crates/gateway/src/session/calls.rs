//! Calls of a client: `tools/call` through the engine, and the built-in tools.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use steadfast_core::call::{CallerKeyScope, CallerPatience};
use steadfast_core::id::{Namespace, ToolName};
use steadfast_executor::{CallOptions, CallResponse, TurnOptions};
use steadfast_mcp::delivery::DeliveryCallback;
use steadfast_mcp::http::{ProtocolEra, header_params};
use steadfast_mcp::message::{RpcId, RpcMessage, code};
use tokio::sync::Notify;

use super::notifications::CallNotifications;
use super::tool_registry::SessionToolRegistry;
use super::{AnsweredCall, GatewaySession, RequestKind};
use crate::builtin_tools::reliability;
use crate::builtin_tools::turn::{self, ClientPatience};
use crate::calls::approval::{self, ConversationStatus, Elicitation, ReturnedDecision};
use crate::calls::envelope::{control, envelope, target, trace};
use crate::calls::request_name::next_request;
use crate::calls::responses;
use crate::calls::upstream_tool::UpstreamTool;
use crate::client::connection::{ClientConnection, ResponseChannel};
use crate::client::identity::{ClientIdentity, RequestContext};
use crate::client::request_notifications::RequestNotifications;
use crate::servers::backing::BackingServer;
use crate::servers::routing::Route;

impl GatewaySession {
    /// Runs a call through the engine, or a call of a built-in tool.
    pub(super) fn call(
        self: &Arc<Self>,
        id: RpcId,
        request: RpcMessage,
        reply: ResponseChannel,
        headers: &HeaderMap,
        from: &ClientIdentity,
    ) {
        let (request, returned_decision) = approval::unwrapped(request);
        let context = match RequestContext::by(&request, from, headers) {
            Ok(context) => context,
            Err(reason) => {
                let reason = format!("the idempotency key is not valid: {reason}");
                return self.refuse(&id, code::INVALID_PARAMS, &reason, reply);
            }
        };
        let called = request.name().unwrap_or_default().into_owned();
        if self.own_tools.reliability && reliability::is_reliability_tool(&called) {
            return self.call_own(id, &called, &request, (context, from.clone(), returned_decision), reply);
        }
        if self.own_tools.turns && called == turn::RUN_TURN {
            return self.run_turn(id, &request, reply, context, from);
        }
        let (at, plain) = match self.servers.named(&called) {
            Some((at, plain)) => (Some(at), plain),
            None => (None, &*called),
        };
        let request = if plain == called { request } else { request.rewrite().name(plain).finish() };
        let name = ToolName::new(plain).ok();
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let (Some(name), true) = (name, arguments.starts_with('{')) else {
            // No tool has such a name or takes such arguments: the server reports the error in its own words.
            let route = match at {
                Some(at) => Route::To(at, request.clone()),
                None => Route::Unknown(unknown_tool(&called)),
            };
            return self.pass_on(id, request, route, reply);
        };
        let behind = at.and_then(|at| self.servers.get(at));
        let server = behind.map(|behind| behind.server.clone());
        let tool = server.as_ref().and_then(|server| server.catalog.tool(name.as_str()));
        let schema = tool.as_ref().and_then(|tool| tool.input_schema.as_ref());
        // Only HTTP servers see the headers, so the gateway has to compare them.
        if let (ResponseChannel::Http(_, ProtocolEra::Modern), Some(schema)) = (&reply, schema)
            && let Err(reason) = header_params::check_headers(schema.as_str(), &arguments, headers)
        {
            return self.refuse(&id, code::HEADER_MISMATCH, &reason, reply);
        }
        let channel = reply.channel();
        let notifications = RequestNotifications::of(&request, &channel);
        let era = ProtocolEra::of_request(&request);
        let conversation =
            if context.session.is_some() { ConversationStatus::Known } else { ConversationStatus::Unknown };
        let elicits = || self.servers.iter().any(|behind| behind.server.handshake.elicits());
        let prompter = Elicitation::of(
            &request,
            era,
            elicits,
            &self.questions,
            &channel,
            conversation,
            returned_decision,
        );
        let options = CallOptions {
            channel: approval::channel(prompter.as_ref()),
            prompter,
            tool,
            equal_calls: context.equal_calls(),
            call_id: context.call_id.clone(),
            key_scope: CallerKeyScope::Actor,
            // A client that gets progress does not give up.
            waits: match &notifications {
                Some(notifications) if notifications.sends_progress() => CallerPatience::UntilDone,
                Some(_) | None => CallerPatience::MayGiveUp,
            },
            continuation: context.continuation,
            trace: context.trace.clone(),
            reads: behind.map(BackingServer::reads).unwrap_or_default(),
            registry: Some(Arc::new(SessionToolRegistry(self.clone()))),
            ..CallOptions::default()
        };
        let namespace = server.as_ref().map_or_else(unknown_namespace, |server| server.name.clone());
        // Only a client with streams can return for an undelivered answer.
        let own_id = matches!(self.client, ClientConnection::Streams(_)).then_some(&id);
        let envelope = envelope(next_request(own_id), &namespace, name, arguments, context, from);
        let of_call = if era == ProtocolEra::Modern { CallNotifications::of(self, &request) } else { None };
        let request_id = envelope.request_id.clone();
        // A call of an unknown tool goes through the engine too, so that the loop guard can stop repeated ones.
        let upstream = match behind {
            Some(behind) => UpstreamTool::at(behind, request, notifications.clone()),
            None => UpstreamTool::nowhere(unknown_tool(&called)),
        };
        let reader = from.reader();
        let mut calling = self.engine.call_with(envelope, upstream, options);
        let canceller = calling.canceller();
        let number = self.begin(&id, at, channel.clone(), RequestKind::Call(canceller.clone()));
        self.spawn(|session| async move {
            let progress = async {
                match &notifications {
                    Some(notifications) => notifications.keep_alive().await,
                    None => std::future::pending().await,
                }
            };
            let mut called = tokio::select! {
                // The call first: it must begin before the others are polled.
                biased;
                called = &mut calling => called,
                never = progress => match never {},
                () = channel.cancelled() => {
                    canceller.cancel();
                    calling.await
                }
                () = session.wait_until_disconnected() => {
                    // With all mechanisms off nothing is stored, and the call would never end while it is awaited.
                    if calling.is_bypassed() {
                        session.end(number);
                        return;
                    }
                    calling.await
                }
            };
            match of_call {
                Some(of_call) => of_call.forward(&request_id, &channel),
                None => session.notify_all().await,
            }
            // Registered first: a cancellation finds the call either here or there.
            let is_cancelled = Arc::new(AtomicBool::new(false));
            let answered = AnsweredCall { id: id.clone(), is_cancelled: is_cancelled.clone() };
            session.answered.lock().insert(number, answered);
            // A client that cancelled the call gets no answer.
            if session.end(number) {
                if let (Some(at), Some(output)) = (at, &called.result.output) {
                    session.servers.learn_task(at, output.content.as_str());
                }
                session.shorten(&mut called, &reader).await;
                session.answer_call(&id, era, called, is_cancelled, reply).await;
            }
            session.answered.lock().remove(&number);
        });
    }

    /// Runs a built-in tool for trust.
    fn call_own(
        self: &Arc<Self>,
        id: RpcId,
        name: &str,
        request: &RpcMessage,
        (context, from, returned_decision): (RequestContext, ClientIdentity, Option<ReturnedDecision>),
        reply: ResponseChannel,
    ) {
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let (name, era) = (name.to_owned(), ProtocolEra::of_request(request));
        let channel = reply.channel();
        let elicits = || self.servers.iter().any(|behind| behind.server.handshake.elicits());
        // An approval is valid for one call, in any session.
        let conversation = ConversationStatus::Unknown;
        let prompter = Elicitation::of(
            request,
            era,
            elicits,
            &self.questions,
            &channel,
            conversation,
            returned_decision,
        );
        let cancellation = Arc::new(Notify::new());
        let number = self.begin(&id, None, channel.clone(), RequestKind::Other(cancellation.clone()));
        self.spawn(|session| async move {
            let called = reliability::TrustToolCall {
                engine: &session.engine,
                tenant: from.tenant.as_ref(),
                session: context.session.as_ref(),
                prompter,
            };
            let answered = tokio::select! {
                answered = called.call(&name, &arguments) => answered,
                () = cancellation.notified() => return,
                () = channel.cancelled() => {
                    session.end(number);
                    return;
                }
                () = session.wait_until_disconnected() => {
                    session.end(number);
                    return;
                }
            };
            session.end(number);
            let result = match answered {
                reliability::TrustToolResponse::Result(result) => responses::of_era(result, era),
                reliability::TrustToolResponse::Question(question) => question,
            };
            reply.answer(&RpcMessage::result_response(&id, &result)).await;
        });
    }

    /// Runs the built-in tool that makes several calls.
    fn run_turn(
        self: &Arc<Self>,
        id: RpcId,
        request: &RpcMessage,
        reply: ResponseChannel,
        context: RequestContext,
        from: &ClientIdentity,
    ) {
        let arguments = request.arguments().map_or_else(|| "{}".to_owned(), |raw| raw.as_str().to_owned());
        let era = ProtocolEra::of_request(request);
        let channel = reply.channel();
        let notifications = RequestNotifications::of(request, &channel)
            .filter(|notifications| notifications.sends_progress());
        let patience = if notifications.is_some() { ClientPatience::Long } else { ClientPatience::Short };
        let plan = match turn::plan(&arguments, &self.servers, patience) {
            Ok(plan) => Arc::new(plan),
            Err(errors) => {
                let answer =
                    RpcMessage::result_response(&id, &responses::of_era(turn::mistakes(&errors), era));
                self.tasks.spawn(async move { _ = reply.answer(&answer).await });
                return;
            }
        };
        let options = TurnOptions {
            control: control(&context),
            trace: trace(&context),
            key_scope: CallerKeyScope::Actor,
            ..TurnOptions::of(target(&context, from))
        };
        let reader = from.reader();
        let cancellation = Arc::new(Notify::new());
        let number = self.begin(&id, None, channel.clone(), RequestKind::Other(cancellation.clone()));
        self.spawn(|session| async move {
            let stop = options.cancelled.clone();
            let mut turning =
                Box::pin(session.engine.turn(plan, Arc::new(SessionToolRegistry(session.clone())), options));
            let progress = async {
                match &notifications {
                    Some(notifications) => notifications.keep_alive().await,
                    None => std::future::pending().await,
                }
            };
            let mut turned = tokio::select! {
                biased;
                turned = &mut turning => turned,
                never = progress => match never {},
                () = cancellation.notified() => {
                    stop.cancel();
                    turning.await
                }
                () = channel.cancelled() => {
                    stop.cancel();
                    turning.await
                }
                // No call starts without a client: calls in flight run to their end.
                () = session.wait_until_disconnected() => {
                    session.end(number);
                    return;
                }
            };
            session.notify_all().await;
            if session.end(number) {
                if let Ok(turned) = &mut turned {
                    session.shorten_turn(turned, &reader).await;
                }
                let answer = RpcMessage::result_response(&id, &responses::of_era(turn::answer(&turned), era));
                reply.answer(&answer).await;
            }
        });
    }

    /// Sends the answer to a call. A client ignores the answer to a call that it has cancelled. Such an answer never
    /// counts as delivered, so that an equal call gets it instead of running again.
    async fn answer_call(
        &self,
        id: &RpcId,
        era: ProtocolEra,
        called: CallResponse,
        is_cancelled: Arc<AtomicBool>,
        reply: ResponseChannel,
    ) {
        let response = responses::response(id, era, &called);
        let Some(arrival) = called.delivery else {
            let _ = reply.answer(&response).await;
            return;
        };
        let engine = self.engine.clone();
        // Recorded before the message that confirms it is processed: an equal call after the answer is a new one.
        let arrived: DeliveryCallback = Box::new(move || {
            if !is_cancelled.load(Ordering::Relaxed) {
                engine.mark_delivered(arrival);
            }
        });
        if let Some(delivery) = reply.answer_with_receipt(&response, Some(arrived)).await {
            self.await_delivery(delivery).await;
        }
    }
}

/// The error message that the MCP SDKs use.
fn unknown_tool(name: &str) -> String {
    format!("Unknown tool: {name}")
}

/// The namespace of tools that no server has.
#[expect(clippy::expect_used, reason = "a constant that is a namespace")]
fn unknown_namespace() -> Namespace {
    Namespace::new("nobody").expect("it is short and printable")
}
