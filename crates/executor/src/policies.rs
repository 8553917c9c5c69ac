//! The source of policies.

use std::sync::Arc;

use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Namespace;
use steadfast_core::json::Value;
use steadfast_core::policy::{Annotations, Policy};

/// A source of policies. It is queried once per call, in line, so it must be quick.
pub trait Policies: Send + Sync + 'static {
    /// Returns the policy of a call with these parameters, whose tool has these annotations.
    fn policy(&self, call: &CallEnvelope, params: Value<'_>, annotations: Annotations) -> Arc<Policy>;

    /// Returns true if the server's claim that a tool is safe to repeat is trusted.
    fn trusts_annotations(&self, _server: &Namespace) -> bool {
        true
    }
}

/// Applies the same policy to every call.
impl Policies for Arc<Policy> {
    fn policy(&self, _call: &CallEnvelope, _params: Value<'_>, _annotations: Annotations) -> Arc<Policy> {
        self.clone()
    }
}

impl<F: Fn(&CallEnvelope) -> Arc<Policy> + Send + Sync + 'static> Policies for F {
    fn policy(&self, call: &CallEnvelope, _params: Value<'_>, _annotations: Annotations) -> Arc<Policy> {
        self(call)
    }
}
