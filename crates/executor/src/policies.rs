//! Which policy holds for a call.

use std::sync::Arc;

use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Namespace;
use steadfast_core::json::Value;
use steadfast_core::policy::{Annotations, Policy};

/// Finds the policy of a call. Asked once per call, in line: it must be quick.
pub trait Policies: Send + Sync + 'static {
    /// The policy of this call, whose parameters are these and whose tool is said to be like this.
    fn policy(&self, call: &CallEnvelope, params: Value<'_>, annotations: Annotations) -> Arc<Policy>;

    /// Whether a server's own word that a tool is safe to repeat is believed.
    fn trusts_annotations(&self, _server: &Namespace) -> bool {
        true
    }
}

/// The same policy for every call.
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
