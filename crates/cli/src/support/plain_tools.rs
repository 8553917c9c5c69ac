//! The tools of the configuration that are not servers, for calls over plain HTTP.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use steadfast::Steadfast;
use steadfast::admin::AvailableTool;
use steadfast::call::{ResolvedTool, ToolRegistry};
use steadfast::config::{COMMAND_NAMESPACE, Config, HTTP_NAMESPACE};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{Namespace, ToolRef};
use steadfast_core::policy::AnnotationHints;
use steadfast_tools::Toolbox;

use crate::support::failure::CommandFailure;

/// The tools of the current configuration. A changed configuration applies from the next call on.
pub(crate) struct PlainTools {
    steadfast: Steadfast,
    made: Mutex<LoadedToolbox>,
}

/// Tools, with the configuration that they were made from.
struct LoadedToolbox {
    config: Arc<Config>,
    tools: Arc<Toolbox>,
}

impl PlainTools {
    /// Returns the tools of the configuration that is in use.
    pub(crate) fn of(steadfast: &Steadfast) -> Result<Self, CommandFailure> {
        let config = steadfast.config();
        let tools = Toolbox::of(&config)
            .map_err(|unusable| CommandFailure::Configuration(format!("error: {unusable}")))?;
        let made = LoadedToolbox { config, tools: Arc::new(tools) };
        Ok(Self { steadfast: steadfast.clone(), made: Mutex::new(made) })
    }

    fn now(&self) -> Arc<Toolbox> {
        let current = self.steadfast.config();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&made.config, &current) {
            if differ(&made.config, &current) {
                match Toolbox::of(&current) {
                    Ok(tools) => made.tools = Arc::new(tools),
                    Err(unusable) => tracing::error!(
                        event = "tools.kept",
                        "why" = %unusable,
                        "a tool of the new configuration cannot be used; the tools stay as they were"
                    ),
                }
            }
            // Checked once, whatever the result.
            made.config = current;
        }
        made.tools.clone()
    }
}

fn differ(before: &Config, after: &Config) -> bool {
    before.http_tools() != after.http_tools() || before.command_tools() != after.command_tools()
}

impl ToolRegistry for PlainTools {
    fn find<'a>(&'a self, envelope: &'a CallEnvelope) -> BoxFuture<'a, Option<ResolvedTool>> {
        let tool = self.now().find(&envelope.tool_namespace, &envelope.tool_name);
        let found = tool.map(|tool| {
            let domain = tool.domain().cloned();
            ResolvedTool { domain, ..ResolvedTool::new(tool) }
        });
        ready(found).boxed()
    }

    fn runs(&self, namespace: &Namespace) -> bool {
        let config = self.steadfast.config();
        match namespace.as_str() {
            HTTP_NAMESPACE => !config.http_tools().is_empty(),
            COMMAND_NAMESPACE => !config.command_tools().is_empty(),
            _ => false,
        }
    }

    fn list(&self) -> Vec<AvailableTool> {
        let offered =
            |tool: &ToolRef| AvailableTool { tool: tool.clone(), annotations: AnnotationHints::default() };
        self.now().names().map(offered).collect()
    }
}
