//! The known tools of a server, from its `tools/list` results.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use serde_json::value::RawValue;
use steadfast_core::policy::AnnotationHints;
use steadfast_executor::ToolInfo;
use steadfast_json::RawJson as Kept;
use steadfast_json::scan;
use steadfast_mcp::message::RpcMessage;
use tokio::time::Instant;

/// The tools of one server, by name.
#[derive(Debug, Default)]
pub(crate) struct ToolCatalog {
    tools: RwLock<HashMap<String, Arc<ToolInfo>>>,
    /// The names of some tools that declare themselves read-only.
    reads: RwLock<Arc<[Box<str>]>>,
    is_listed: AtomicBool,
    /// The previous list, while a new one arrives page by page.
    before: RwLock<HashMap<String, Arc<ToolInfo>>>,
    /// Called for each tool that changed.
    changed: OnceLock<ToolChangeCallback>,
    /// Time of the last failed listing. Locked while the server lists its tools.
    pub(crate) listing: tokio::sync::Mutex<Option<Instant>>,
}

/// A callback that gets the name of each tool that was changed, added or removed.
pub(crate) struct ToolChangeCallback(pub(crate) Box<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for ToolChangeCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changed")
    }
}

/// The maximum number of tools that are stored. Only the names of further tools are passed on.
const MOST_TOOLS: usize = 10_000;

/// The maximum number of read-only tools that are suggested for checking an outcome.
const MOST_READS: usize = 4;

impl ToolCatalog {
    /// Returns the known facts about a tool.
    pub(crate) fn tool(&self, name: &str) -> Option<Arc<ToolInfo>> {
        self.tools.read().get(name).cloned()
    }

    /// Returns all known tools with their annotations.
    pub(crate) fn tools(&self) -> Vec<(String, AnnotationHints)> {
        self.tools.read().iter().map(|(name, info)| (name.clone(), info.annotations)).collect()
    }

    /// Returns the names of some tools that declare themselves read-only.
    pub(crate) fn reads(&self) -> Arc<[Box<str>]> {
        self.reads.read().clone()
    }

    /// Returns true if the server has listed its tools, for any caller.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    /// Returns the number of known tools.
    pub(crate) fn len(&self) -> usize {
        self.tools.read().len()
    }

    /// Stores one page of a tool list. A request without cursor starts a new list. Returns true for the last page.
    pub(crate) fn learn(&self, request: &RpcMessage, response: &RpcMessage) -> bool {
        let Some(list) = response.result().and_then(|result| scan::get(result, "tools")) else {
            return false;
        };
        let Ok(listed) = serde_json::from_str::<Vec<&RawValue>>(list) else { return false };
        let tools = listed.iter().filter_map(|tool| {
            let name = scan::get(tool.get(), "name").and_then(scan::string)?;
            Some((name.into_owned(), Arc::new(info(tool.get()))))
        });
        let mut known = self.tools.write();
        if request.param("cursor").is_none() {
            *self.before.write() = std::mem::take(&mut *known);
        }
        let room = MOST_TOOLS.saturating_sub(known.len());
        known.extend(tools.take(room));
        let reads = known.iter().filter(|(_, info)| info.annotations.read_only == Some(true));
        let mut reads: Vec<Box<str>> = reads.map(|(name, _)| name.as_str().into()).collect();
        reads.sort_unstable();
        reads.truncate(MOST_READS);
        *self.reads.write() = reads.into();
        drop(known);
        // A client may stop before the last page.
        let is_last = response.result().and_then(|result| scan::get(result, "nextCursor")).is_none();
        if is_last && self.is_listed.swap(true, Ordering::AcqRel) {
            self.notify_changes();
        }
        is_last
    }

    /// Sets the callback for tools that are removed, added or changed from now on.
    pub(crate) fn on_change(&self, changed: ToolChangeCallback) {
        let _ = self.changed.set(changed);
    }

    fn notify_changes(&self) {
        let Some(ToolChangeCallback(notify)) = self.changed.get() else { return };
        let (before, now) = (std::mem::take(&mut *self.before.write()), self.tools.read().clone());
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        names.into_iter().filter(|name| before.get(*name) != now.get(*name)).for_each(|name| notify(name));
    }
}

fn info(tool: &str) -> ToolInfo {
    let hints = scan::get(tool, "annotations").unwrap_or("{}");
    let hint = |name| match scan::get(hints, name) {
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) | None => None,
    };
    ToolInfo {
        annotations: AnnotationHints {
            read_only: hint("readOnlyHint"),
            idempotent: hint("idempotentHint"),
            destructive: hint("destructiveHint"),
        },
        input_schema: scan::get(tool, "inputSchema").map(Kept::from_trusted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(params: &str, tools: &str) -> (RpcMessage, RpcMessage) {
        let parse = |text: String| RpcMessage::parse(text, usize::MAX).unwrap();
        (
            parse(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#)),
            parse(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":{tools}}}}}"#)),
        )
    }

    #[test]
    fn changed_tools_are_reported_and_those_of_the_first_list_are_not() {
        let (catalog, changed) = (ToolCatalog::default(), Arc::new(parking_lot::Mutex::new(Vec::new())));
        let sink = changed.clone();
        catalog.on_change(ToolChangeCallback(Box::new(move |name| sink.lock().push(name.to_owned()))));
        let list = |params: &str, tools: &str, more: bool| {
            let (request, _) = listed(params, tools);
            let cursor = if more { r#","nextCursor":"2""# } else { "" };
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":{tools}{cursor}}}}}"#);
            catalog.learn(&request, &RpcMessage::parse(text, usize::MAX).unwrap());
            std::mem::take(&mut *changed.lock())
        };
        assert_eq!(list("{}", r#"[{"name":"a"},{"name":"b"}]"#, false), [""; 0]);
        assert_eq!(list("{}", r#"[{"name":"a"},{"name":"b"}]"#, false), [""; 0]);
        assert_eq!(list("{}", r#"[{"name":"b"}]"#, true), [""; 0]);
        assert_eq!(list(r#"{"cursor":"2"}"#, r#"[{"name":"c"}]"#, false), ["a", "c"]);
        assert_eq!(
            list("{}", r#"[{"name":"b","annotations":{"readOnlyHint":true}},{"name":"c"}]"#, false),
            ["b"]
        );
    }

    #[test]
    fn pages_add_up_and_the_first_starts_a_new_list() {
        let catalog = ToolCatalog::default();
        let (request, response) = listed("{}", r#"[{"name":"a","annotations":{"readOnlyHint":true}}]"#);
        catalog.learn(&request, &response);
        let (request, response) =
            listed(r#"{"cursor":"2"}"#, r#"[{"name":"b","inputSchema":{"type":"object"}}]"#);
        catalog.learn(&request, &response);
        assert_eq!(catalog.tool("a").unwrap().annotations.read_only, Some(true));
        assert_eq!(
            catalog.tool("b").unwrap().input_schema.as_ref().unwrap().as_str(),
            r#"{"type":"object"}"#
        );
        let (request, response) = listed("{}", r#"[{"name":"c"},7,{"name":8}]"#);
        catalog.learn(&request, &response);
        assert!(catalog.tool("a").is_none() && catalog.tool("c").is_some());
    }
}
