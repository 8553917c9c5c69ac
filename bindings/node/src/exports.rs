//! The classes and functions that `lib` calls.

#![allow(unreachable_pub, reason = "the macro exports them to Node")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt as _, Full};
use napi::Env;
use napi::bindgen_prelude::Function;
use napi_derive::napi;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steadfast::admin::approval::ApprovalDecision;
use steadfast::admin::{BreakerKey, OperatorIdentity, OperatorSurface};
use steadfast::call::envelope::TurnControl;
use steadfast::call::id::{Namespace, RunId, ToolName, ToolRef};
use steadfast::call::{HeartbeatReply, HostCallId, HostStep, RunOrder};
use steadfast::config::parse_span;
use steadfast::telemetry::{FeedItem, FeedReader};
use steadfast::turn::{TurnLimits, TurnOptions, TurnPlan, TurnRejection};
use tokio_util::sync::CancellationToken;

use crate::call_text::{self, ArgumentForm, CallFlags};
use crate::engines::{self, EngineUse, OpenOptions, RunningEngine};
use crate::environment::{ActiveCall, Environment, Recipient};
use crate::failure::{Failure, catch};
use crate::host_function::{HostFunction, HostFunctions};
use crate::in_place::InPlaceTask;
use crate::{report_text, runtime, step_text};

/// One thread of JavaScript, as one instance of the module sees it.
#[napi]
pub struct NativeEnvironment {
    environment: Arc<Environment>,
}

#[napi]
impl NativeEnvironment {
    /// Creates it. `wake` is called in this thread when there are messages to fetch.
    #[napi(constructor)]
    pub fn new(env: Env, wake: Function<'_, (), ()>) -> napi::Result<Self> {
        let wake = wake.build_threadsafe_function::<()>().weak::<true>().build_callback(|_| Ok(()))?;
        let environment = Environment::new(wake);
        env.add_env_cleanup_hook(environment.clone(), |environment| {
            // There is nobody left to tell of a panic.
            let _ = catch_unwind(AssertUnwindSafe(|| environment.end()));
        })?;
        Ok(Self { environment })
    }

    /// Returns the messages since the last time, each as `recipient:JSON`.
    #[napi]
    pub fn drain(&self) -> Vec<String> {
        self.environment.drain()
    }

    /// Opens an engine. Answers with its number, for `engine`.
    #[napi]
    pub fn open(&self, to: u32, options: String) -> Option<String> {
        catch(|| {
            let options: OpenOptions = serde_json::from_str(&options).map_err(|error| {
                Failure::invalid("invalid_option", format!("the options cannot be read: {error}"))
            })?;
            let environment = self.environment.clone();
            self.environment.run(to, async move {
                let opened = engines::open(options).await?;
                Ok(ok(&environment.add_engine(Arc::new(opened))))
            })
        })
    }

    /// Returns an engine that was opened.
    #[napi]
    pub fn engine(&self, number: f64) -> Option<NativeEngine> {
        let engine = self.environment.engine(whole(number))?;
        Some(NativeEngine { environment: self.environment.clone(), engine, readers: Arc::default() })
    }

    /// Drops an operation that still waits. It gets no answer.
    #[napi]
    pub fn abandon(&self, to: u32) {
        self.environment.abandon(to);
    }

    /// Ends what this thread has, as the end of the thread does.
    #[napi]
    pub fn end(&self) {
        self.environment.end();
    }
}

/// Returns an id of this copy of the library in this process.
#[napi]
pub fn copy_id() -> String {
    // The address of a static: two copies that are loaded at the same time have different ones.
    static PLACE: u8 = 0;
    format!("{:p}", &raw const PLACE)
}

/// Returns the key of the circuit breaker that a text names: `namespace/name`, or a key.
#[napi]
pub fn breaker_key(text: String) -> String {
    let tool = text.split_once('/').and_then(|(namespace, tool)| {
        Some(ToolRef { namespace: Namespace::new(namespace).ok()?, tool: ToolName::new(tool).ok()? })
    });
    tool.map_or(text, |tool| BreakerKey::Tool(tool).to_string())
}

/// Closes all engines of the process, at its exit.
#[napi]
pub fn flush_all() {
    catch(|| {
        engines::flush_all();
        Ok(None)
    });
}

/// Panics, to test that a panic ends nothing.
#[cfg(feature = "testing")]
#[napi]
#[expect(clippy::panic, reason = "on purpose, for the tests")]
pub fn panic_here() -> Option<String> {
    catch(|| panic!("on purpose"))
}

/// An open engine.
#[napi]
pub struct NativeEngine {
    environment: Arc<Environment>,
    engine: Arc<EngineUse>,
    readers: Arc<Mutex<BTreeMap<Recipient, FeedReader>>>,
}

/// Maximum number of events in one answer.
const MOST_EVENTS: usize = 256;
/// Maximum time that a close waits for calls in flight.
const LONGEST_GRACE_MS: u64 = 24 * 60 * 60 * 1000;

/// A tool of a turn.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ToolText {
    flags: u32,
    schema: Option<String>,
}

/// Returns the text of an answer.
fn ok(value: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Answer<'a, T> {
        ok: &'a T,
    }
    // Texts, numbers and JSON always serialize.
    serde_json::to_string(&Answer { ok: value }).unwrap_or_default()
}

fn turn_rejected(rejection: &TurnRejection) -> Failure {
    let message = rejection.to_string();
    match rejection {
        TurnRejection::InFlight(wait) => Failure::operation("in_flight", message).retry_after(*wait),
        TurnRejection::Overloaded => Failure::operation("overloaded", message),
        TurnRejection::Store(_) => Failure::operation("store_unavailable", message),
        _ => Failure::operation("unavailable", message),
    }
}

/// A whole number of JavaScript. Anything else is a number that nothing has.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
fn whole(number: f64) -> u64 {
    const LARGEST: f64 = 9_007_199_254_740_991.0;
    if number.fract() == 0.0 && (0.0..=LARGEST).contains(&number) { number as u64 } else { u64::MAX }
}

#[napi]
impl NativeEngine {
    fn running(&self) -> Result<Arc<RunningEngine>, Failure> {
        self.engine.engine()
    }

    /// Returns the path of the state file, if there is one.
    #[napi]
    pub fn state_file(&self) -> Option<String> {
        let running = self.running().ok()?;
        running.state_file.as_deref().map(|path| path.to_string_lossy().into_owned())
    }

    /// Returns the number of calls in flight.
    #[napi]
    pub fn in_flight(&self) -> u32 {
        let calls = self.running().map_or(0, |running| running.steadfast.engine().in_flight_calls());
        u32::try_from(calls).unwrap_or(u32::MAX)
    }

    // ── Calls that the host runs ─────────────────────────────────────────────────────────────────────────────────────

    /// Begins a call.
    #[napi]
    pub fn begin(&self, to: u32, call: String, flags: u32, schema: Option<String>) -> Option<String> {
        catch(|| {
            let running = self.running()?;
            let flags = CallFlags(flags);
            let mut envelope = call_text::read(&call, ArgumentForm::Object)?;
            if flags.cannot_repeat() {
                envelope.transport.retry_budget.max_attempts = Some(1);
            }
            let options = call_text::options(&self.environment, to, &envelope, flags, schema);
            let environment = self.environment.clone();
            self.environment.run(to, async move {
                let engine = running.steadfast.engine();
                let step = engine.begin(envelope, options).await;
                if let (HostStep::Run(order), true) = (&step, environment.is_ended()) {
                    // Nothing ran, and nothing will. An order that has ended meanwhile needs nothing more.
                    let _ = engine.return_order(order).await;
                }
                Ok(step_text::step(engine, &step, flags.equal_calls()))
            })
        })
    }

    /// Reports the outcome of an attempt.
    #[napi]
    pub fn report(&self, to: u32, id: f64, attempt: u32, report: String) -> Option<String> {
        catch(|| {
            let running = self.running()?;
            let result = report_text::read(&report)?;
            self.environment.run(to, async move {
                let engine = running.steadfast.engine();
                let step = engine.report(HostCallId(whole(id)), attempt, result).await?;
                Ok(step_text::step(engine, &step, CallFlags(0).equal_calls()))
            })
        })
    }

    /// Reports that a tool still runs.
    #[napi]
    pub fn heartbeat(&self, id: f64, attempt: u32) -> Option<String> {
        catch(|| {
            let reply = self.running()?.steadfast.engine().heartbeat(HostCallId(whole(id)), attempt)?;
            let is_wanted = match reply {
                HeartbeatReply::Continue => true,
                HeartbeatReply::Stop => false,
            };
            Ok(Some(ok(&is_wanted)))
        })
    }

    /// Answers when an attempt is no longer wanted, or has ended.
    #[napi]
    pub fn watch(&self, _to: u32, _id: f64, _attempt: u32) -> Option<String> {
        None
    }

    /// Gives an order back that was not carried out. Returns false if there is no such attempt.
    #[napi]
    pub fn give_back(&self, id: f64, attempt: u32) -> bool {
        let Ok(running) = self.running() else { return false };
        let order = RunOrder { call: HostCallId(whole(id)), attempt, deadline: None, run: RunId("".into()) };
        let returning = async move {
            running.steadfast.engine().return_order(&order).await.map_err(Failure::from)?;
            Ok(String::new())
        };
        matches!(self.environment.run(0, returning), Ok(_))
    }

    /// Cancels a call. Returns false if there is none.
    #[napi]
    pub fn cancel(&self, id: f64) -> bool {
        self.running()
            .is_ok_and(|running| running.steadfast.engine().cancel(HostCallId(whole(id))).is_ok())
    }

    // ── Functions of JavaScript ──────────────────────────────────────────────────────────────────────────────────────

    /// Makes a call whose tool is a function of JavaScript. Answers with an order to run it, or with the result.
    #[napi]
    pub fn call(&self, to: u32, call: String, flags: u32, schema: Option<String>) -> Option<String> {
        catch(|| {
            let running = self.running()?;
            let (flags, runtime) = (CallFlags(flags), runtime::handle()?);
            let envelope = call_text::read(&call, ArgumentForm::Object)?;
            let options = call_text::options(&self.environment, to, &envelope, flags, schema);
            let environment = self.environment.clone();
            let function = HostFunction { environment: environment.clone(), to, tool: None };
            let _context = runtime.enter();
            let pending = running.steadfast.engine().call_with(envelope, function, options);
            let canceller = pending.canceller();
            let work = async move {
                let response = pending.await;
                let engine = running.steadfast.engine();
                let text = match flags.keeps_result() && step_text::is_own_result(&response) {
                    true => {
                        step_text::mark_delivered(engine, &response, flags.equal_calls());
                        step_text::OWN_RESULT.to_owned()
                    }
                    false => step_text::answer(engine, &response, flags.equal_calls()),
                };
                environment.remove_call(to);
                environment.send(to, text);
            };
            let environment = self.environment.clone();
            let task = InPlaceTask::new(runtime, work, move |panic| {
                environment.remove_call(to);
                environment.send(to, Failure::panic(panic).text());
            });
            self.environment.add_call(to, ActiveCall { task: task.clone(), canceller });
            Ok(self.environment.poll_in_place(to, &task))
        })
    }

    /// Reports the outcome of a function. Answers like `call`, or not at all if the attempt has ended.
    #[napi]
    pub fn settle(&self, to: u32, token: f64, report: String) -> Option<String> {
        catch(|| {
            let result = report_text::read(&report)?;
            let call = self.environment.call(to);
            // Claimed before the report wakes it, so that it is polled here and not on a thread of the runtime.
            let claimed = call.filter(|call| call.task.claim());
            if let Some(reported) = self.environment.take_report(whole(token)) {
                // The receiver is gone if the attempt was ended a moment ago.
                let _ = reported.send(result);
            }
            Ok(claimed.and_then(|call| self.environment.poll_in_place(to, &call.task)))
        })
    }

    /// Signals progress of a function.
    #[napi]
    pub fn progress(&self, token: f64) {
        self.environment.progress(whole(token));
    }

    /// Cancels a call of a function.
    #[napi]
    pub fn cancel_call(&self, to: u32) {
        if let Some(call) = self.environment.call(to) {
            call.canceller.cancel();
        }
    }

    /// Answers a request for approval: `once`, `session`, `recover`, `deny`, or a time such as `30m`. Without a
    /// decision, no user could be asked.
    #[napi]
    pub fn decide(&self, prompt: f64, decision: Option<String>) -> Option<String> {
        catch(|| {
            let decision = decision.map(|text| self.decision(&text)).transpose();
            let pending = self.environment.take_prompt(whole(prompt));
            match (pending, decision) {
                (Some(pending), Ok(decision)) => pending.decide(decision),
                (Some(pending), Err(failure)) => {
                    pending.decide(None);
                    return Err(failure);
                }
                (None, _) => {}
            }
            Ok(None)
        })
    }

    fn decision(&self, text: &str) -> Result<ApprovalDecision, Failure> {
        Ok(match text {
            "once" => ApprovalDecision::Once,
            "session" => ApprovalDecision::Session,
            "recover" => ApprovalDecision::Recover,
            "deny" => ApprovalDecision::Deny,
            span => {
                let wrong = || Failure::invalid("invalid_option", "the decision is not valid");
                let span = parse_span(span).ok_or_else(wrong)?;
                ApprovalDecision::Time { until: self.running()?.steadfast.engine().now() + span }
            }
        })
    }

    // ── Turns ────────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Runs a turn. Answers with orders to run its tools, and with its result.
    #[napi]
    pub fn turn(&self, to: u32, plan: String, tools: String, options: String, flags: u32) -> Option<String> {
        catch(|| {
            let running = self.running()?;
            let plan = TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT).map_err(|errors| {
                let problems = errors.errors.iter().map(|error| format!("{}: {}", error.path, error.problem));
                Failure::invalid("invalid_plan", format!("the plan is not valid: {errors}"))
                    .with_problems(problems.collect())
            })?;
            let tools: BTreeMap<String, ToolText> = serde_json::from_str(&tools).map_err(|error| {
                Failure::invalid("invalid_option", format!("the tools cannot be read: {error}"))
            })?;
            let tools = tools.into_iter().map(|(name, tool)| (name, call_text::tool_info(CallFlags(tool.flags).annotations(), tool.schema))).collect();
            let caller = call_text::read_turn(&options)?;
            let cancelled = CancellationToken::new();
            let options = TurnOptions {
                control: TurnControl { request_tags: caller.tags, ..TurnControl::default() },
                trace: caller.trace,
                channel: CallFlags(flags).channel(),
                cancelled: cancelled.clone(),
                ..TurnOptions::of(caller.target)
            };
            let registry = HostFunctions { environment: self.environment.clone(), to, tools };
            self.environment.add_turn(to, cancelled);
            let environment = self.environment.clone();
            let runtime = runtime::handle()?;
            let turn = runtime.spawn(async move {
                running.steadfast.engine().turn(Arc::new(plan), Arc::new(registry), options).await
            });
            runtime.spawn(async move {
                let text = match turn.await {
                    Ok(Ok(response)) => ok(&response),
                    Ok(Err(rejection)) => turn_rejected(&rejection).text(),
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => Failure::panic(&*panic).text(),
                        Err(_) => Failure::closed().text(),
                    },
                };
                environment.remove_turn(to);
                environment.send(to, text);
            });
            Ok(None)
        })
    }

    /// Cancels a turn.
    #[napi]
    pub fn cancel_turn(&self, to: u32) {
        self.environment.remove_turn(to);
    }

    // ── Operators ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Sends a request to the HTTP API in this process. Answers with the status and the body.
    #[napi]
    pub fn request(
        &self,
        to: u32,
        method: String,
        target: String,
        body: Option<String>,
        by: String,
    ) -> Option<String> {
        catch(|| {
            let running = self.running()?;
            let wrong = |error: http::Error| Failure::invalid("invalid_option", error.to_string());
            let mut request = http::Request::builder()
                .method(method.as_str())
                .uri(target)
                .header(HOST, "localhost")
                .header(AUTHORIZATION, format!("Bearer {}", running.token))
                .extension(OperatorIdentity::new(by, OperatorSurface::Library));
            if body.is_some() {
                request = request.header(CONTENT_TYPE, "application/json");
            }
            let request = request.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(wrong)?;
            self.environment.run(to, async move {
                let response = running.api.respond(request).await;
                let status = response.status().as_u16();
                let read = response.into_body().collect().await;
                let body = read.map_err(|error| Failure::operation("unavailable", error.to_string()))?;
                let body = body.to_bytes();
                let text = std::str::from_utf8(&body).unwrap_or_default();
                let body = if text.is_empty() { "null" } else { text };
                Ok(format!("{{\"ok\":{{\"status\":{status},\"body\":{body}}}}}"))
            })
        })
    }

    /// Returns the metrics in the Prometheus format.
    #[napi]
    pub fn metrics(&self, to: u32) -> Option<String> {
        catch(|| {
            let running = self.running()?;
            self.environment
                .run(to, async move { Ok(ok(&running.steadfast.metrics().await)) })
        })
    }

    /// Begins to follow the events from now on.
    #[napi]
    pub fn open_events(&self, reader: u32) -> Option<String> {
        catch(|| {
            let feed = self.running()?.steadfast.telemetry().feed().read(None);
            self.readers.lock().insert(reader, feed);
            Ok(None)
        })
    }

    /// Answers with the next events of a reader, as soon as there are any. Abandoning this ends the reader.
    #[napi]
    pub fn next_events(&self, to: u32, reader: u32) -> Option<String> {
        catch(|| {
            let readers = self.readers.clone();
            let feed = readers.lock().remove(&reader);
            let mut feed = feed.ok_or_else(Failure::closed)?;
            self.environment.run(to, async move {
                let mut next = Some(feed.next().await);
                let mut events = Vec::new();
                while let Some(item) = next {
                    events.push(match item {
                        FeedItem::Happened(event) => event.text.to_string(),
                        FeedItem::Missed(missed) => json!({ "event": "missed", "missed": missed }).to_string(),
                    });
                    next = if events.len() < MOST_EVENTS { feed.next().now_or_never() } else { None };
                }
                readers.lock().insert(reader, feed);
                Ok(format!("{{\"ok\":[{}]}}", events.join(",")))
            })
        })
    }

    /// Ends a reader that does not wait.
    #[napi]
    pub fn close_events(&self, reader: u32) {
        let feed = self.readers.lock().remove(&reader);
        drop(feed);
    }

    /// Replaces the settings of the program.
    #[napi]
    pub fn reconfigure(&self, to: u32, config: String) -> Option<String> {
        catch(|| {
            let running = self.running()?;
            self.environment.run(to, async move {
                running.reconfigure(config).await?;
                Ok(ok(&true))
            })
        })
    }

    /// Ends this use of the engine.
    #[napi]
    pub fn close(&self, to: u32, grace_ms: f64) -> Option<String> {
        catch(|| {
            let engine = self.engine.clone();
            let grace = Duration::from_millis(whole(grace_ms).min(LONGEST_GRACE_MS));
            self.environment.run(to, async move {
                let report = engine.close(grace).await;
                Ok(ok(&report))
            })
        })
    }
}
