//! Lookup of tools by name. The engine has no tools of its own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use steadfast_core::call::AttemptEndVisibility;
use steadfast_core::classify::{AttemptFault, FaultSource};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{Domain, Namespace, ToolRef};
use steadfast_core::policy::{AnnotationHints, SettlingPolicy};

use crate::call::tool::{Attempt, DynTool, ToolDescription, ToolHandler, ToolResult};
use crate::call::tool_info::ToolInfo;

/// A shared tool of any type.
#[derive(Clone)]
pub struct SharedTool(Arc<dyn DynTool>);

impl SharedTool {
    /// Wraps a tool.
    pub fn new(tool: impl ToolHandler) -> Self {
        Self(Arc::new(tool))
    }
}

impl ToolHandler for SharedTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        self.0.start(attempt)
    }

    fn sees_end(&self) -> AttemptEndVisibility {
        self.0.any_sees_end()
    }

    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        self.0.any_end(settling)
    }

    fn describe(&self) -> impl Future<Output = Option<ToolDescription>> + Send + 'static {
        self.0.any_describe()
    }
}

/// A tool that was found by name, with its details.
pub struct ResolvedTool {
    /// The tool.
    pub run: SharedTool,
    /// Name of its server, if it differs from the name in the call: two servers may have the same name.
    pub namespace: Option<Namespace>,
    /// Dependency of the tool, if known. Used if the caller names none.
    pub domain: Option<Domain>,
    /// Description by its server.
    pub info: Option<Arc<ToolInfo>>,
    /// Read-only tools of the same server, by which a caller can find out if a call took effect.
    pub reads: Arc<[Box<str>]>,
}

impl ResolvedTool {
    /// Wraps a tool without further details.
    pub fn new(tool: impl ToolHandler) -> Self {
        Self { run: SharedTool::new(tool), namespace: None, domain: None, info: None, reads: Arc::default() }
    }

    /// Adds the details of the tool to the envelope of a call.
    pub fn complete(&self, envelope: &mut CallEnvelope) {
        if let Some(namespace) = &self.namespace {
            envelope.tool_namespace = namespace.clone();
        }
        if envelope.target.domain.is_none() {
            envelope.target.domain.clone_from(&self.domain);
        }
    }

    /// Returns a stand-in for a tool that does not exist. The call then takes the normal path, so that the loop guard
    /// stops a model which repeats it.
    pub fn unknown_tool(tool: &ToolRef) -> Self {
        let message = format!(
            "Unknown tool: {tool}. There is no tool with this name here: tools of [http_tools.NAME] are `http/NAME`, those of [command_tools.NAME] are `command/NAME`, those of a server are `SERVER/NAME`"
        );
        Self::new(move |_: Attempt| {
            let fault = AttemptFault::new(FaultSource::JsonRpc { code: METHOD_NOT_FOUND }, message.clone());
            async move { Err(fault.into()) }
        })
    }
}

/// JSON-RPC code that proves that nothing ran.
const METHOD_NOT_FOUND: i64 = -32601;

/// A tool that is available here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableTool {
    /// The tool.
    pub tool: ToolRef,
    /// Its annotations.
    pub annotations: AnnotationHints,
}

/// A registry of tools that can be called by name.
pub trait ToolRegistry: Send + Sync + 'static {
    /// Returns the tool for this call, in its current state.
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>>;

    /// Returns true if the tools of this namespace run here, so that the engine sees their failures itself.
    fn runs(&self, _namespace: &Namespace) -> bool {
        false
    }

    /// Returns all tools that are known so far. No server is started to find out.
    fn list(&self) -> Vec<AvailableTool> {
        Vec::new()
    }
}

impl fmt::Debug for dyn ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ToolRegistry")
    }
}

/// Several tool registries. The first one that has a tool provides it.
#[derive(Clone, Default)]
pub struct ToolRegistries(pub Vec<Arc<dyn ToolRegistry>>);

impl ToolRegistry for ToolRegistries {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<ResolvedTool>> + Send + 'a>> {
        Box::pin(async {
            for shelf in &self.0 {
                if let Some(found) = shelf.find(envelope).await {
                    return Some(found);
                }
            }
            None
        })
    }

    fn runs(&self, namespace: &Namespace) -> bool {
        self.0.iter().any(|shelf| shelf.runs(namespace))
    }

    fn list(&self) -> Vec<AvailableTool> {
        self.0.iter().flat_map(|shelf| shelf.list()).collect()
    }
}
