//! What is known about a tool beside its name, and what a model is told with it.

use std::sync::Arc;

use steadfast_core::code::Code;
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope};
use steadfast_core::guard;
use steadfast_core::json::{Document, Limits};
use steadfast_core::output::RawJson;
use steadfast_core::policy::Annotations;
use steadfast_core::redact;

/// What is known about a tool beside its name; with MCP, what its server lists of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolInfo {
    /// What the server says of it.
    pub annotations: Annotations,
    /// The schema of its arguments. With it arguments can be checked, and a model that got them wrong hears what is
    /// missing.
    pub input_schema: Option<RawJson>,
}

impl ToolInfo {
    /// The schema, read. One that cannot be read is as good as none: the tool itself still answers.
    pub(crate) fn schema(&self) -> Option<Document<'_>> {
        let schema = self.input_schema.as_ref()?;
        Document::parse(schema.as_str().as_bytes(), Limits::ENVELOPE).ok()
    }
}

/// Adds to a tool's refusal of arguments what is wrong with them.
#[derive(Debug)]
pub(crate) struct Assistance {
    pub(crate) envelope: Arc<CallEnvelope>,
    pub(crate) tool: Arc<ToolInfo>,
    /// The argument that the tool is given beside those that were sent.
    pub(crate) put_there: Option<Arc<str>>,
}

impl Assistance {
    pub(crate) fn add_to(&self, result: &mut ResultEnvelope) {
        let Some(error) = result.error.as_mut().filter(|error| error.code == Code::InvalidArguments) else {
            return;
        };
        let sent = Document::parse(self.envelope.payload.params.as_str().as_bytes(), Limits::PARAMS).ok();
        let (Some(schema), Some(sent)) = (self.tool.schema(), sent) else { return };
        let hint = guard::hint(schema.root(), sent.root(), &error.message, self.put_there.as_deref());
        error.message = format!("{}\n{}", error.message, redact::text(&hint));
    }
}
