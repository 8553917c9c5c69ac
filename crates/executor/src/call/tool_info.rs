//! Details of a tool beyond its name, and the explanations that a model gets from them.

use std::sync::Arc;

use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_core::guard;
use steadfast_core::policy::AnnotationHints;
use steadfast_json::{JsonDocument, JsonLimits, RawJson};

/// Details of a tool beyond its name. With MCP, they come from the server's tool list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolInfo {
    /// Annotations by the server.
    pub annotations: AnnotationHints,
    /// Schema of the arguments. With it, arguments can be checked, and a model that got them wrong gets an explanation
    /// of the errors.
    pub input_schema: Option<RawJson>,
}

impl ToolInfo {
    /// Returns the parsed schema. An invalid schema counts as none: the tool itself still responds.
    pub(crate) fn schema(&self) -> Option<JsonDocument<'_>> {
        let schema = self.input_schema.as_ref()?;
        JsonDocument::parse(schema.as_str().as_bytes(), JsonLimits::ENVELOPE).ok()
    }
}

/// Adds an explanation of the errors in the arguments to a tool's refusal of them.
#[derive(Debug)]
pub(crate) struct ArgumentAssistance {
    pub(crate) envelope: Arc<CallEnvelope>,
    pub(crate) tool: Arc<ToolInfo>,
    /// The argument that the engine adds to those that were sent.
    pub(crate) put_there: Option<Arc<str>>,
}

impl ArgumentAssistance {
    pub(crate) fn add_to(&self, result: &mut ResultEnvelope) {
        let Some(error) = result.error.as_mut().filter(|error| error.code == Code::InvalidArguments) else {
            return;
        };
        let sent =
            JsonDocument::parse(self.envelope.payload.params.as_str().as_bytes(), JsonLimits::PARAMS).ok();
        let (Some(schema), Some(sent)) = (self.tool.schema(), sent) else { return };
        let hint = guard::hint(schema.root(), sent.root(), &error.message, self.put_there.as_deref());
        error.message = format!("{}\n{}", error.message, steadfast_redact::text(&hint));
    }
}
