//! Lookup of policies, for calls and for views.

use std::fmt;
use std::sync::{Arc, LazyLock};

use steadfast_core::Timestamp;
use steadfast_core::breaker::State;
use steadfast_core::call::CallRequest;
use steadfast_core::envelope::{CallEnvelope, EnvelopeError, UnknownFieldPolicy};
use steadfast_core::id::{Domain, Namespace, TenantId, ToolName, ToolRef};
use steadfast_core::policy::{AnnotationHints, CallPolicy, PolicyProfile, ToolClass, TrustRule};
use steadfast_json::JsonValue;

use super::cells::MachineRegistry;
use crate::call::policy_source::PolicySource;
use crate::keys::ToolKey;

/// The policies of an engine, and the last policy of each tool.
pub(crate) struct PolicyResolver {
    source: Box<dyn PolicySource>,
    machines: Arc<MachineRegistry>,
}

impl PolicyResolver {
    pub(crate) fn new(source: Box<dyn PolicySource>, machines: Arc<MachineRegistry>) -> Self {
        Self { source, machines }
    }

    /// Returns the policy of a call with these parameters, whose tool has these annotations.
    pub(crate) fn of_call(
        &self,
        envelope: &CallEnvelope,
        params: JsonValue<'_>,
        annotations: AnnotationHints,
    ) -> Arc<CallPolicy> {
        self.source.policy(envelope, params, annotations)
    }

    /// Returns the policy for an envelope, for a tool without annotations.
    pub(crate) fn of_envelope(&self, envelope: &CallEnvelope) -> Result<Arc<CallPolicy>, EnvelopeError> {
        let params = CallRequest::params(envelope)?;
        Ok(self.source.policy(envelope, params.root(), AnnotationHints::default()))
    }

    /// Returns true if the server's claim that a tool is safe to repeat is trusted.
    pub(crate) fn trusts_annotations(&self, server: &Namespace) -> bool {
        self.source.trusts_annotations(server)
    }

    /// Returns the class of the tool of a call, as far as it is known.
    pub(crate) fn class_of(
        &self,
        envelope: &CallEnvelope,
        annotations: AnnotationHints,
    ) -> Option<ToolClass> {
        let params = CallRequest::params(envelope).ok()?;
        Some(self.source.policy(envelope, params.root(), annotations).class)
    }

    /// Returns true if some mechanism would act on the tool for at least one class.
    pub(crate) fn acts_on_some_class(&self, envelope: &CallEnvelope) -> bool {
        let Ok(params) = CallRequest::params(envelope) else { return false };
        let read_only = AnnotationHints { read_only: Some(true), ..AnnotationHints::default() };
        let idempotent = AnnotationHints { idempotent: Some(true), ..AnnotationHints::default() };
        let mutating = AnnotationHints { read_only: Some(false), ..AnnotationHints::default() };
        [read_only, idempotent, mutating].into_iter().any(|annotations| {
            !self.source.policy(envelope, params.root(), annotations).modes.is_pass_through()
        })
    }

    /// Returns the state of the breaker of a tool.
    pub(crate) fn breaker_state(&self, tenant: &Option<TenantId>, tool: &ToolRef, now: Timestamp) -> State {
        let key = ToolKey { tenant: tenant.clone(), tool: tool.clone() };
        let Some(cell) = self.machines.tools.find(&key) else { return State::Closed };
        let policy = self.of_tool(tenant, tool);
        cell.lock().breaker.state(&policy.breaker, now)
    }

    /// Returns the trust rule of a tool, or of a domain alone.
    pub(crate) fn trust_rule(
        &self,
        tenant: &Option<TenantId>,
        tool: Option<&ToolRef>,
        domain: Option<&Domain>,
    ) -> TrustRule {
        let policy = self.of_blank(tenant, tool, domain, AnnotationHints::default());
        match (tool, &policy.domain_trust) {
            (None, Some(of_domain)) => of_domain.clone(),
            (None, None) | (Some(_), _) => policy.trust.clone(),
        }
    }

    /// Returns the policy of the last call of a tool. Without one, returns that of a call with no further details.
    pub(crate) fn of_tool(&self, tenant: &Option<TenantId>, tool: &ToolRef) -> Arc<CallPolicy> {
        let cell = self.machines.tools.find(&ToolKey { tenant: tenant.clone(), tool: tool.clone() });
        let policy = cell.and_then(|cell| cell.lock().counts.as_ref().map(|counts| counts.policy.clone()));
        policy.unwrap_or_else(|| self.of_blank(tenant, Some(tool), None, AnnotationHints::default()))
    }

    /// Returns the policy of a host or server.
    pub(crate) fn of_dependency(&self, tenant: &Option<TenantId>, name: &str) -> Arc<CallPolicy> {
        let domain = Domain::new(name).ok();
        let tool = Namespace::new(name).ok().zip(ToolName::new("*").ok());
        let tool = tool.map(|(namespace, tool)| ToolRef { namespace, tool });
        self.of_blank(tenant, tool.as_ref(), domain.as_ref(), AnnotationHints::default())
    }

    /// Returns the policy of an unknown tool and server.
    pub(crate) fn of_nothing(&self, tenant: &Option<TenantId>) -> Arc<CallPolicy> {
        self.of_blank(tenant, None, None, AnnotationHints::default())
    }

    /// Returns the policy of a call with no details but these.
    pub(crate) fn of_blank(
        &self,
        tenant: &Option<TenantId>,
        tool: Option<&ToolRef>,
        domain: Option<&Domain>,
        annotations: AnnotationHints,
    ) -> Arc<CallPolicy> {
        let Some(mut envelope) = BLANK.clone() else {
            return Arc::new(PolicyProfile::Standard.policy(ToolClass::Unknown));
        };
        if let Some(tool) = tool {
            (envelope.tool_namespace, envelope.tool_name) = (tool.namespace.clone(), tool.tool.clone());
        }
        (envelope.target.tenant_id, envelope.target.domain) = (tenant.clone(), domain.cloned());
        match CallRequest::params(&envelope) {
            Ok(params) => self.source.policy(&envelope, params.root(), annotations),
            Err(_) => Arc::new(PolicyProfile::Standard.policy(ToolClass::Unknown)),
        }
    }
}

impl fmt::Debug for PolicyResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyResolver").finish_non_exhaustive()
    }
}

/// A placeholder call for policy lookups.
static BLANK: LazyLock<Option<CallEnvelope>> = LazyLock::new(|| {
    let text = br#"{"contractVersion":"1.1","requestId":"-","toolName":"*","toolNamespace":"*",
        "target":{"sessionKey":"-","actorId":"-"},"payload":{"version":"1.0","params":{}}}"#;
    CallEnvelope::parse(text, UnknownFieldPolicy::Refuse).ok()
});
