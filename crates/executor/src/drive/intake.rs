//! The arrival of a call: its policy, its request and the machines that it shares.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfast_core::Timestamp;
use steadfast_core::call::{Call, CallRequest, IntakeContext, RunnerKind};
use steadfast_core::envelope::{CallEnvelope, EnvelopeError, ErrorBody, ResultEnvelope};
use steadfast_core::guard::GuardVerdict;
use steadfast_core::policy::{ArgumentCheck, CallPolicy, ToolClass};
use steadfast_json::JsonDocument;
use steadfast_replay::{EventTrail, RecordedEvent, RecordedEventKind};

use super::driver::CallDriver;
use super::gate::CallPermit;
use super::services::CallServices;
use crate::call::options::{CallOptions, HostAttempts, TurnResubmission};
use crate::call::pending::PendingCall;
use crate::call::slot::{CallResponse, CallerSlot};
use crate::call::tool::{DynTool, ToolDescription};
use crate::call::tool_info::ToolInfo;
use crate::keys::{DependencyKey, SessionId, ToolKey};
use crate::observe::history::SurfaceFacts;
use crate::shared::cells::CallMachines;
use crate::shared::trust_file::TrustStorage;
use crate::state::next_call_number;

impl CallServices {
    pub(crate) fn dispatch(
        self: &Arc<Self>,
        envelope: Arc<CallEnvelope>,
        tool: Arc<dyn DynTool>,
        options: CallOptions,
        run_by: RunnerKind,
    ) -> PendingCall {
        let slot = Arc::new(CallerSlot::default());
        let runtime = self.state.runtime.clone();
        let Some(place) = self.gate.enter() else {
            slot.give(self.rejected(&envelope, self.gate.refusal()));
            return PendingCall { drive: None, desk: slot, runtime };
        };
        let received = CallArrival { order: self.state.next_sequence(), at: self.clock.now() };
        let drive = drive(self.clone(), place, envelope, tool, slot.clone(), options, run_by, received);
        PendingCall { drive: Some(Box::pin(drive)), desk: slot, runtime }
    }
}

/// Arrival of a call.
#[derive(Clone, Copy)]
struct CallArrival {
    /// Its sequence number.
    order: u64,
    at: Timestamp,
}

/// Runs one call from its arrival to its end.
#[expect(clippy::too_many_arguments, reason = "the parts of a call, named once")]
async fn drive(
    calls: Arc<CallServices>,
    place: CallPermit,
    envelope: Arc<CallEnvelope>,
    tool: Arc<dyn DynTool>,
    slot: Arc<CallerSlot>,
    mut options: CallOptions,
    run_by: RunnerKind,
    received: CallArrival,
) {
    let hook_key = match envelope.payload.idempotency_key {
        None => calls.hooks.key(&envelope).await,
        Some(_) => None,
    };
    let number = next_call_number();
    let mut taken = calls.take_in(&envelope, &options, hook_key.as_deref(), number);
    // A tool is not asked to describe itself if no mechanism acts on the call.
    if let Ok((policy, _)) = &taken
        && options.tool.is_none()
        && (!policy.modes.is_pass_through() || calls.policies.acts_on_some_class(&envelope))
        && let Some(ToolDescription { info, reads }) = tool.any_describe().await
    {
        (options.tool, options.reads) = (info, reads);
        taken = calls.take_in(&envelope, &options, hook_key.as_deref(), number);
    }
    let (policy, mut request) = match taken {
        Ok(taken) => taken,
        Err(error) => return slot.give(calls.rejected(&envelope, ErrorBody::from(&error))),
    };
    request.run_by = run_by;
    request.end = tool.any_sees_end();
    request.reads = options.reads;
    request.limits.start_by = options.start_by;
    if options.host.attempts == HostAttempts::One {
        request.limits.attempts = Some(1);
    }
    slot.left_alone.store(policy.modes.is_pass_through(), Ordering::Release);
    let (asker, listener) = (options.prompter, options.listener);
    let annotations = options.tool.as_ref().map(|tool| tool.annotations).unwrap_or_default();
    let surface = SurfaceFacts {
        annotations,
        in_turn: options.in_turn == TurnResubmission::Possible,
        is_answered_by_host: false,
    };
    slot.assist(&envelope, &policy, options.tool);
    let cells = calls.machines_of(&envelope, &request);
    let store = match policy.class {
        ToolClass::ReadOnly if options.in_turn == TurnResubmission::NotPossible => calls.local.clone(),
        ToolClass::ReadOnly | ToolClass::Idempotent | ToolClass::Mutating | ToolClass::Unknown => {
            calls.store.clone()
        }
    };
    request.computed_since = calls.pauses.before(&request, policy.modes.dedupe, || store.now());
    let seed = calls.state.seed_of(number);
    // Notices are passed on after each step, and few steps have more.
    let mut notices = Vec::with_capacity(4);
    let mut trail = EventTrail::new();
    let (call, step) = cells.with(|shared| {
        trail.add(RecordedEvent {
            order: calls.state.next_sequence(),
            after_ms: 0,
            kind: RecordedEventKind::Came,
        });
        Call::begin(shared, request, policy, seed, received.at, &mut notices)
    });
    let mut drive = CallDriver::new(calls, envelope, call, cells, store, tool, slot, asker, notices);
    drive.listener = listener;
    drive.trail = trail;
    drive.surface = surface;
    drive.received = received.order;
    drive.registry = options.registry;
    drive.note_read();
    let result = drive.run(step).await;
    drive.finish(&result);
    drop(place);
}

/// Returns the schema that arguments are checked against before the tool is called, if the policy asks for that.
fn checked_against<'t>(tool: &'t ToolInfo, policy: &CallPolicy) -> Option<JsonDocument<'t>> {
    match policy.arguments {
        ArgumentCheck::Enforce => tool.schema(),
        ArgumentCheck::Assist | ArgumentCheck::Off => None,
    }
}

impl CallServices {
    /// Returns the policy of a call and its request, from one parse of its parameters.
    pub(super) fn take_in(
        &self,
        envelope: &CallEnvelope,
        options: &CallOptions,
        hook_key: Option<&str>,
        number: u64,
    ) -> Result<(Arc<CallPolicy>, CallRequest), EnvelopeError> {
        let params = CallRequest::params(envelope)?;
        let tool = options.tool.as_deref();
        let annotations = tool.map(|tool| tool.annotations).unwrap_or_default();
        let policy = self.policies.of_call(envelope, params.root(), annotations);
        let policy = match options.in_turn {
            TurnResubmission::NotPossible => policy,
            TurnResubmission::Possible => Arc::new(policy.for_turn()),
        };
        let schema = tool.and_then(|tool| checked_against(tool, &policy));
        let intake = IntakeContext {
            process: &self.state.process,
            number,
            run: &self.state.run_id(number),
            channel: options.channel,
            hook_key,
            in_turn: options.in_turn == TurnResubmission::Possible,
            equal_calls: options.equal_calls,
            call_id: options.call_id.as_ref(),
            keys_of: options.key_scope,
            waits: options.waits,
            continuation: options.continuation,
            trace: options.trace.as_ref(),
            input_schema: schema.as_ref().map(JsonDocument::root),
        };
        let request = CallRequest::from_params(envelope, params.root(), &policy, intake);
        Ok((policy, request))
    }

    /// Returns the machines that this call shares with others.
    pub(super) fn machines_of(&self, envelope: &CallEnvelope, request: &CallRequest) -> CallMachines {
        let machines = &self.machines;
        let tenant = &request.tenant;
        let own = machines.dependencies.get(&DependencyKey::of(request));
        let coarser = DependencyKey::coarser(envelope, request).map(|key| machines.dependencies.get(&key));
        CallMachines {
            tool: machines.tools.get(&ToolKey { tenant: tenant.clone(), tool: request.tool.clone() }),
            dependency: own,
            coarser,
            guard: machines.sessions.get(&SessionId::of(request)),
            tenant: machines.tenants.get(tenant),
            trust_of: match self.persister.trust_storage {
                TrustStorage::NotStored => request.session.clone(),
                TrustStorage::InFile(_) | TrustStorage::InStore => None,
            },
        }
    }

    /// Returns the response to a rejected call and reports it to the listeners.
    pub(super) fn rejected(&self, envelope: &CallEnvelope, error: ErrorBody) -> CallResponse {
        self.reject(Some(envelope), &error);
        let result = ResultEnvelope::refused(envelope, error);
        CallResponse {
            result,
            delivery: None,
            remarks: Vec::new(),
            verdict: GuardVerdict::None,
            text_limit: None,
        }
    }
}
