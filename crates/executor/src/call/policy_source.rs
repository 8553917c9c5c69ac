//! The source of policies.

use std::sync::Arc;

use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Namespace;
use steadfast_core::policy::{AnnotationHints, CallPolicy};
use steadfast_json::JsonValue;

/// A source of policies. It is queried once per call, in line, so it must be quick.
pub trait PolicySource: Send + Sync + 'static {
    /// Returns the policy of a call with these parameters, whose tool has these annotations.
    fn policy(
        &self,
        call: &CallEnvelope,
        params: JsonValue<'_>,
        annotations: AnnotationHints,
    ) -> Arc<CallPolicy>;

    /// Returns true if the server's claim that a tool is safe to repeat is trusted.
    fn trusts_annotations(&self, _server: &Namespace) -> bool {
        true
    }
}

/// Applies the same policy to every call.
impl PolicySource for Arc<CallPolicy> {
    fn policy(
        &self,
        _call: &CallEnvelope,
        _params: JsonValue<'_>,
        _annotations: AnnotationHints,
    ) -> Arc<CallPolicy> {
        self.clone()
    }
}

impl<F: Fn(&CallEnvelope) -> Arc<CallPolicy> + Send + Sync + 'static> PolicySource for F {
    fn policy(
        &self,
        call: &CallEnvelope,
        _params: JsonValue<'_>,
        _annotations: AnnotationHints,
    ) -> Arc<CallPolicy> {
        self(call)
    }
}
