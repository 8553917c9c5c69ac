//! Resolution of an unknown outcome by a configured call that shows if the tool took effect.
//!
//! It runs once for each call that would return an unknown outcome, after the attempt has ended: observations before
//! that prove nothing. The finding is written with the fencing token of that very run. If it is inconclusive or does
//! not come in time, the response stays that the outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use steadfast_core::call::{CallNotice, CallResult, RunnerKind};
use steadfast_core::dedupe::{DedupeState, DeliveryReceipt, Resolution, ResolutionRequest, ResolveVerdict};
use steadfast_core::envelope::{
    CallControl, CallEnvelope, CallHints, CallPayload, CallerIdentity, ExtraFields, PayloadVersion,
};
use steadfast_core::id::{RequestId, SessionKey};
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{EnforcementMode, ToolClass};
use steadfast_core::verification::{VerificationCall, VerificationFinding};
use steadfast_json::RawJson;
use steadfast_store::StateStore;

use super::driver::CallDriver;
use super::services::CallServices;
use crate::call::options::CallOptions;
use crate::call::registry::{ResolvedTool, ToolRegistry};
use crate::call::tool::{DynTool, ToolHandler as _};
use crate::observe::audit_entry::{OperatorIdentity, OperatorSurface};

/// Maximum duration of a verification.
const VERIFY_WITHIN: Duration = Duration::from_secs(10);

impl CallDriver {
    /// Returns the result. If its outcome is unknown and a verification is configured, includes the finding.
    pub(crate) async fn verified(&mut self, result: Box<CallResult>) -> Box<CallResult> {
        let (policy, request) = (self.call.shared_policy().clone(), self.call.request());
        let is_final = result.unknown.is_some_and(|unknown| unknown.is_final);
        let (Some(call), Some(receipt), true) = (policy.verify_call(), result.receipt.clone(), is_final)
        else {
            return result;
        };
        if self.stopped || policy.modes.dedupe != EnforcementMode::Enforce {
            return result;
        }
        let Some(registry) = self.registry.take() else { return result };
        let is_critical = request.hints.safety_critical;
        let verification = Verification {
            calls: self.calls.clone(),
            store: self.store.clone(),
            of: self.envelope.clone(),
            number: request.number,
            call: call.clone(),
        };
        // Boxed because it is much larger than the future of most calls.
        let finding = Box::pin(verification.find_out(&*registry)).await;
        let resolution = match &finding {
            VerificationFinding::Ran => Some(Resolution::Ran),
            VerificationFinding::DidNotRun => Some(Resolution::DidNotRun),
            VerificationFinding::Unclear(_) => None,
        };
        let settled = match resolution {
            Some(resolution) => {
                let (key, of) = (receipt.key, Some(receipt.owner));
                verification
                    .settle(&ResolutionRequest { key, resolution, of, requires_observed_end: is_critical })
                    .await
            }
            None => None,
        };
        let words = match &finding {
            VerificationFinding::Ran | VerificationFinding::DidNotRun => format!("{} shows it", call.tool()),
            VerificationFinding::Unclear(reason) => steadfast_redact::text(reason).into_owned(),
        };
        self.notices.push(CallNotice::Verified { resolution, words: words.into() });
        match settled {
            Some((resolution, receipt)) => Box::new(result.verified(call.tool(), resolution, receipt)),
            None => result,
        }
    }
}

/// A verification of a call.
struct Verification {
    calls: Arc<CallServices>,
    store: Arc<dyn StateStore>,
    /// The call to verify.
    of: Arc<CallEnvelope>,
    number: u64,
    call: Arc<VerificationCall>,
}

impl Verification {
    /// Stores the finding. Returns the resolution that is now stored, and the receipt of the response to mark as
    /// delivered. Returns `None` if the stored resolution is not known.
    async fn settle(&self, resolve: &ResolutionRequest) -> Option<(Resolution, Option<DeliveryReceipt>)> {
        let by =
            OperatorIdentity::new(format!("verification with {}", self.call.tool()), OperatorSurface::Verify);
        let resolved = match self.calls.admin.store_resolution(resolve, &by).await {
            // If it is resolved already, the stored record has the resolution.
            Ok(ResolveVerdict::Resolved | ResolveVerdict::NotUnknown) => self.store.record(resolve.key).await,
            Ok(ResolveVerdict::NotSettled(_)) => return None,
            Err(error) => Err(error),
        };
        let there =
            resolved.inspect_err(|error| self.calls.telemetry.store_failed(self.store.kind(), error)).ok()?;
        match there.filter(|record| resolve.of.as_ref() == Some(&record.owner)) {
            Some(record) if matches!(record.state, DedupeState::Done(_)) => {
                Some((Resolution::Ran, Some(record.receipt())))
            }
            Some(_) => None,
            None => Some((resolve.resolution, None)),
        }
    }

    /// Makes the verifying call.
    async fn find_out(&self, registry: &dyn ToolRegistry) -> VerificationFinding {
        let call = &self.call;
        let arguments: Json = serde_json::from_str(self.of.payload.params.as_str()).unwrap_or_default();
        let params = match call.params(&arguments) {
            Ok(params) => params,
            Err(missing) => {
                return VerificationFinding::Unclear(format!(
                    "the call has no argument {}",
                    missing.join(", ")
                ));
            }
        };
        let Some(envelope) = self.envelope(&params) else {
            return VerificationFinding::Unclear("its params are too long".to_owned());
        };
        match tokio::time::timeout(VERIFY_WITHIN, self.ask(registry, envelope)).await {
            Ok(Ok(answer)) => call.finding(&arguments, &answer),
            Ok(Err(reason)) => VerificationFinding::Unclear(reason),
            Err(_) => VerificationFinding::Unclear(format!("{} did not answer in time", call.tool())),
        }
    }

    async fn ask(
        &self,
        registry: &dyn ToolRegistry,
        mut envelope: CallEnvelope,
    ) -> Result<ToolOutput, String> {
        let tool = self.call.tool();
        let found = registry.find(&envelope).await.ok_or_else(|| format!("there is no tool {tool}"))?;
        found.complete(&mut envelope);
        let ResolvedTool { run, info, .. } = found;
        let info = match info {
            Some(info) => Some(info),
            None => run.describe().await.and_then(|description| description.info),
        };
        let annotations = info.as_ref().map(|info| info.annotations).unwrap_or_default();
        if self.calls.policies.class_of(&envelope, annotations) != Some(ToolClass::ReadOnly) {
            return Err(format!("{tool} is not known to be read-only, so it was not called"));
        }
        let options = CallOptions { tool: info, ..CallOptions::default() };
        let run: Arc<dyn DynTool> = Arc::new(run);
        let called = self.calls.dispatch(Arc::new(envelope), run, options, RunnerKind::Driver).await;
        match (called.result.output, called.result.error) {
            (Some(answer), None) => Ok(answer),
            (_, Some(error)) => Err(format!("{tool} failed: {}", error.message)),
            (None, None) => Err(format!("{tool} returned no output")),
        }
    }

    /// Returns the verifying call, for the same caller. It has no session, because the model did not make it.
    fn envelope(&self, params: &Json) -> Option<CallEnvelope> {
        let (of, tool) = (&*self.of, self.call.tool());
        let name = format!("verify-{}-{}", self.calls.state.tag, self.number);
        Some(CallEnvelope {
            request_id: RequestId::new(name).ok()?,
            tool_call_id: None,
            tool_name: tool.tool.clone(),
            tool_namespace: tool.namespace.clone(),
            target: CallerIdentity {
                session_key: SessionKey::new("verification").ok()?,
                turn_id: None,
                domain: None,
                ..of.target.clone()
            },
            payload: CallPayload {
                version: PayloadVersion::V1_0,
                params: RawJson::from_trusted(params.to_string()),
                idempotency_key: None,
                call_hints: CallHints::default(),
                unknown: ExtraFields::new(),
            },
            control: CallControl::default(),
            ..of.clone()
        })
    }
}
