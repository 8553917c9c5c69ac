//! A configured upstream server.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_core::policy::AnnotationHints;
use steadfast_core::server_name::ServerIdentity;
use steadfast_executor::{AvailableTool, Engine};

use crate::servers::backing::BackingServer;
use crate::servers::catalog::{ToolCatalog, ToolChangeCallback};
use crate::servers::health::{HealthReporter, ServerHealth};
use crate::servers::upstream::{Backend, Handshake, ServerProcesses, UpstreamServer};
use crate::servers::views::{EndView, ServerView};

/// Creates the backend of a server: a process of its own, or a connection.
pub type BackendFactory = Arc<dyn Fn() -> Backend + Send + Sync>;

/// A configured upstream server. Clones refer to the same server, with any prefix.
#[derive(Clone)]
pub struct ConfiguredServer {
    /// The name of the server, and the namespace of its tools.
    pub name: Namespace,
    /// The identity that distinguishes it from other servers of its name. `None` if the name is unique.
    identity: Option<ServerIdentity>,
    /// The engine that is notified of changed tools.
    engine: Option<Engine>,
    /// The prefix of the names of its tools and prompts, if it is one of several servers.
    pub prefix: Option<Box<str>>,
    /// The clients or sessions that share one instance.
    pub sharing: ServerSharing,
    start: BackendFactory,
    made: Arc<Mutex<ServerInstances>>,
    health: Arc<ServerHealth>,
}

/// The instances of a server.
#[derive(Default)]
struct ServerInstances {
    /// Each instance and its tool catalog. Entries of dropped instances are removed when the next one is added.
    servers: Vec<(Weak<UpstreamServer>, Arc<ToolCatalog>)>,
    /// The catalog of the last instance that was dropped.
    last: Option<Arc<ToolCatalog>>,
}

/// Sharing of a server between sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerSharing {
    /// The sessions of one client share an instance.
    Shared,
    /// Each session has its own instance.
    PerSession {
        /// The maximum number of instances at a time.
        most: usize,
    },
}

impl ConfiguredServer {
    /// Creates a server with this name that uses the tool names of the server itself.
    pub fn new(name: Namespace, sharing: ServerSharing, start: BackendFactory) -> Self {
        let (made, health) = (Arc::default(), Arc::default());
        Self { name, identity: None, engine: None, prefix: None, sharing, start, made, health }
    }

    /// Wraps the start function.
    pub fn map_start(mut self, change: impl FnOnce(BackendFactory) -> BackendFactory) -> Self {
        self.start = change(self.start);
        self
    }

    /// Sets the identity that distinguishes it from other servers of its name.
    pub fn with_identity(mut self, identity: Option<ServerIdentity>) -> Self {
        self.identity = identity;
        self
    }

    /// Claims a unique name for the tools of this server in the engine, which is then notified of changed tools.
    pub async fn claim_name(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        if let Some(identity) = &self.identity {
            self.name = engine.claim_server(&self.name, identity).await;
        }
        self
    }

    /// Creates an instance for one session, with the state of an earlier handshake.
    pub(crate) fn create_exclusive(&self, handshake: Handshake) -> (BackingServer, Option<ServerProcesses>) {
        let (server, processes) = self.make(handshake);
        (BackingServer::new(server, self.prefix.clone(), None), Some(processes))
    }

    /// Like [`Self::alone`], without the prefix.
    pub(crate) fn make(&self, handshake: Handshake) -> (Arc<UpstreamServer>, ServerProcesses) {
        let backend = (self.start)();
        let reporter = self.reporter();
        if let Backend::Child(supervisor, _) = &backend {
            reporter.follow(supervisor.status());
        }
        let (server, processes) = UpstreamServer::new(reporter, backend, handshake);
        if let Some(engine) = self.engine.clone() {
            let namespace = self.name.clone();
            server.catalog.on_change(ToolChangeCallback(Box::new(move |name| {
                if let Ok(tool) = ToolName::new(name) {
                    engine.admin().forget_tool(&ToolRef { namespace: namespace.clone(), tool });
                }
            })));
        }
        let mut made = self.made.lock();
        let removed = made.servers.extract_if(.., |(server, _)| server.strong_count() == 0);
        let last = removed.map(|(_, catalog)| catalog).filter(|catalog| catalog.len() > 0).last();
        made.last = last.or(made.last.take());
        made.servers.push((Arc::downgrade(&server), server.catalog.clone()));
        (server, processes)
    }

    fn reporter(&self) -> HealthReporter {
        HealthReporter { health: self.health.clone(), name: self.name.clone(), engine: self.engine.clone() }
    }

    /// Waits until the last end of its processes is stored. No process may still be running.
    pub async fn settle(&self) {
        self.reporter().settle().await;
    }

    /// Returns the current state of the server.
    pub fn view(&self) -> ServerView {
        let made: Vec<_> =
            self.made.lock().servers.iter().filter_map(|(server, _)| server.upgrade()).collect();
        let down = || made.iter().find_map(|server| server.failure());
        ServerView {
            last_failure: self.health.failure().or_else(down).map(EndView::from),
            name: self.name.to_string(),
            shared: self.sharing == ServerSharing::Shared,
            instances: made.iter().map(|server| server.instance_view()).collect(),
        }
    }

    /// Returns its tools from the current instances, or else from the last one that listed any. Does not start the
    /// server.
    pub fn tools(&self) -> Vec<AvailableTool> {
        let known: Vec<Arc<ToolCatalog>> = {
            let made = self.made.lock();
            let listed = || made.servers.iter().filter(|(_, catalog)| catalog.len() > 0);
            let of = |(_, catalog): &(_, Arc<ToolCatalog>)| catalog.clone();
            let now: Vec<_> = listed().filter(|(server, _)| server.strong_count() > 0).map(of).collect();
            match now.is_empty() {
                true => listed().next_back().map(of).or(made.last.clone()).into_iter().collect(),
                false => now,
            }
        };
        // Instances that list the same tool count once.
        let tools: BTreeMap<String, AnnotationHints> =
            known.iter().flat_map(|catalog| catalog.tools()).collect();
        let named = tools.into_iter().filter_map(|(name, annotations)| {
            let tool = ToolRef { namespace: self.name.clone(), tool: ToolName::new(name).ok()? };
            Some(AvailableTool { tool, annotations })
        });
        named.collect()
    }
}

impl fmt::Debug for ConfiguredServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configured").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl ConfiguredServer {
    /// A server that cannot be reached.
    pub(crate) fn nowhere(sharing: ServerSharing) -> Self {
        Self::at("bank", "127.0.0.1:9", sharing)
    }

    /// A server of this name at this address.
    pub(crate) fn at(name: &str, address: &str, sharing: ServerSharing) -> Self {
        let url = format!("http://{address}/mcp");
        let start = move || {
            let settings = steadfast_mcp::http::upstream::HttpUpstreamSettings::default();
            let server = steadfast_mcp::http::upstream::HttpUpstream::new(&url, settings).unwrap();
            Backend::Remote(server, http::HeaderMap::new())
        };
        Self::new(Namespace::new(name).unwrap(), sharing, Arc::new(start))
    }
}

#[cfg(test)]
mod tests {
    use steadfast_mcp::message::RpcMessage;

    use super::*;

    fn listed(server: &UpstreamServer, tools: &str) {
        let parse = |text: String| RpcMessage::parse(text, usize::MAX).unwrap();
        let request = parse(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#.to_owned());
        let answer = parse(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":{tools}}}}}"#));
        server.catalog.learn(&request, &answer);
    }

    fn known(server: &ConfiguredServer) -> Vec<String> {
        server.tools().iter().map(|offered| offered.tool.to_string()).collect()
    }

    #[tokio::test]
    async fn the_tools_of_a_server_are_known_once_it_listed_them_and_it_is_not_started_for_that() {
        let start: BackendFactory = Arc::new(|| panic!("nobody wants anything of it"));
        let idle = ConfiguredServer::new(Namespace::new("bank").unwrap(), ServerSharing::Shared, start);
        assert_eq!(known(&idle), [""; 0]);

        let server = ConfiguredServer::nowhere(ServerSharing::Shared);
        let (one, _processes) = server.make(Handshake::default());
        let (other, _processes) = server.clone().make(Handshake::default());
        assert_eq!(known(&server), [""; 0], "it has not said it yet");
        listed(&one, r#"[{"name":"pay","annotations":{"readOnlyHint":true}},{"name":"a"}]"#);
        listed(&other, r#"[{"name":"pay"},{"name":"look"}]"#);
        assert_eq!(known(&server), ["bank/a", "bank/look", "bank/pay"], "each once");
        drop(one);
        assert_eq!(known(&server), ["bank/look", "bank/pay"], "what it lists now");
        drop(other);
        assert_eq!(known(&server), ["bank/look", "bank/pay"], "what it listed last");
        let (again, _processes) = server.make(Handshake::default());
        assert_eq!(known(&server), ["bank/look", "bank/pay"], "until it says something else");
        listed(&again, r#"[{"name":"b"}]"#);
        assert_eq!(known(&server), ["bank/b"]);
    }
}
