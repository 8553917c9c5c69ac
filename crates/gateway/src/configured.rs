//! A server that is wanted behind clients.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_core::policy::Annotations;
use steadfast_core::server_name::ServerIdentity;
use steadfast_executor::{Engine, Offered};

use crate::catalog::{Catalog, Changed};
use crate::health::{Health, Reporter};
use crate::look::{EndView, ServerView};
use crate::server::{Backend, Handshake, Keeping, Server};
use crate::servers::Behind;

/// Makes the way to a server: a process of its own, or a connection.
pub type Start = Arc<dyn Fn() -> Backend + Send + Sync>;

/// A server that is wanted behind clients. Copies are the same one, under whatever prefix.
#[derive(Clone)]
pub struct Configured {
    /// What it is called, and the namespace of its tools.
    pub name: Namespace,
    /// What it runs, by which it is told from others of its name; nothing where the name says it all.
    identity: Option<ServerIdentity>,
    /// Who hears of tools that are others now.
    engine: Option<Engine>,
    /// What stands before the names of its tools and prompts, where it is not the only one.
    pub prefix: Option<Box<str>>,
    /// Who has it for himself.
    pub sharing: Sharing,
    start: Start,
    made: Arc<Mutex<Made>>,
    health: Arc<Health>,
}

/// What was made of a server.
#[derive(Default)]
struct Made {
    /// Each, and what it said of its tools. One that is not there any more is taken out with the next one.
    servers: Vec<(Weak<Server>, Arc<Catalog>)>,
    /// What the last one had said that is not there any more.
    last: Option<Arc<Catalog>>,
}

/// Whether sessions share a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Those of one client share it.
    Shared,
    /// Each session has its own.
    PerSession {
        /// The most of them at a time.
        most: usize,
    },
}

impl Configured {
    /// A server of this name, under the names that it gives its tools itself.
    pub fn new(name: Namespace, sharing: Sharing, start: Start) -> Self {
        let (made, health) = (Arc::default(), Arc::default());
        Self { name, identity: None, engine: None, prefix: None, sharing, start, made, health }
    }

    /// The same, with something done at each start.
    pub fn started_by(mut self, change: impl FnOnce(Start) -> Start) -> Self {
        self.start = change(self.start);
        self
    }

    /// The same, told by this from others of its name.
    pub fn identified(mut self, identity: Option<ServerIdentity>) -> Self {
        self.identity = identity;
        self
    }

    /// The same under the name that its tools have, beside whatever else is called like it. The engine hears of its tools.
    pub async fn claimed(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        if let Some(identity) = &self.identity {
            self.name = engine.claim_server(&self.name, identity).await;
        }
        self
    }

    /// One for whoever asks, which was told this before.
    pub(crate) fn alone(&self, handshake: Handshake) -> (Behind, Option<Keeping>) {
        let (server, keeping) = self.make(handshake);
        (Behind::new(server, self.prefix.clone(), None), Some(keeping))
    }

    /// The same by itself.
    pub(crate) fn make(&self, handshake: Handshake) -> (Arc<Server>, Keeping) {
        let backend = (self.start)();
        let reporter = self.reporter();
        if let Backend::Child(supervisor, _) = &backend {
            reporter.follow(supervisor.status());
        }
        let (server, keeping) = Server::new(reporter, backend, handshake);
        if let Some(engine) = self.engine.clone() {
            let namespace = self.name.clone();
            server.catalog.on_change(Changed(Box::new(move |name| {
                if let Ok(tool) = ToolName::new(name) {
                    engine.forget_tool(&ToolRef { namespace: namespace.clone(), tool });
                }
            })));
        }
        let mut made = self.made.lock();
        let gone = made.servers.extract_if(.., |(server, _)| server.strong_count() == 0);
        let last = gone.map(|(_, catalog)| catalog).filter(|catalog| catalog.len() > 0).last();
        made.last = last.or(made.last.take());
        made.servers.push((Arc::downgrade(&server), server.catalog.clone()));
        (server, keeping)
    }

    fn reporter(&self) -> Reporter {
        Reporter { health: self.health.clone(), name: self.name.clone(), engine: self.engine.clone() }
    }

    /// Waits until it is stored how its processes ended. None runs any more.
    pub async fn settle(&self) {
        self.reporter().settle().await;
    }

    /// How it stands.
    pub fn look(&self) -> ServerView {
        let made: Vec<_> =
            self.made.lock().servers.iter().filter_map(|(server, _)| server.upgrade()).collect();
        let down = || made.iter().find_map(|server| server.failure());
        ServerView {
            last_failure: self.health.failure().or_else(down).map(EndView::from),
            name: self.name.to_string(),
            shared: self.sharing == Sharing::Shared,
            instances: made.iter().map(|server| server.look()).collect(),
        }
    }

    /// Its tools, as far as it has listed them to anybody: those that it lists now, or else what it listed last. It is not
    /// started for this.
    pub fn tools(&self) -> Vec<Offered> {
        let known: Vec<Arc<Catalog>> = {
            let made = self.made.lock();
            let listed = || made.servers.iter().filter(|(_, catalog)| catalog.len() > 0);
            let of = |(_, catalog): &(_, Arc<Catalog>)| catalog.clone();
            let now: Vec<_> = listed().filter(|(server, _)| server.strong_count() > 0).map(of).collect();
            match now.is_empty() {
                true => listed().next_back().map(of).or(made.last.clone()).into_iter().collect(),
                false => now,
            }
        };
        // Where it listed one to several, it is still one.
        let tools: BTreeMap<String, Annotations> = known.iter().flat_map(|catalog| catalog.tools()).collect();
        let named = tools.into_iter().filter_map(|(name, annotations)| {
            let tool = ToolRef { namespace: self.name.clone(), tool: ToolName::new(name).ok()? };
            Some(Offered { tool, annotations })
        });
        named.collect()
    }
}

impl fmt::Debug for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configured").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Configured {
    /// One that nobody ever reaches.
    pub(crate) fn nowhere(sharing: Sharing) -> Self {
        Self::at("bank", "127.0.0.1:9", sharing)
    }

    /// One of this name at this address.
    pub(crate) fn at(name: &str, address: &str, sharing: Sharing) -> Self {
        let url = format!("http://{address}/mcp");
        let start = move || {
            let settings = steadfast_mcp::http::back::Settings::default();
            let server = steadfast_mcp::http::back::Server::new(&url, settings).unwrap();
            Backend::Remote(server, http::HeaderMap::new())
        };
        Self::new(Namespace::new(name).unwrap(), sharing, Arc::new(start))
    }
}

#[cfg(test)]
mod tests {
    use steadfast_mcp::message::Message;

    use super::*;

    fn listed(server: &Server, tools: &str) {
        let parse = |text: String| Message::parse(text, usize::MAX).unwrap();
        let request = parse(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#.to_owned());
        let answer = parse(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":{tools}}}}}"#));
        server.catalog.learn(&request, &answer);
    }

    fn known(server: &Configured) -> Vec<String> {
        server.tools().iter().map(|offered| offered.tool.to_string()).collect()
    }

    #[tokio::test]
    async fn the_tools_of_a_server_are_known_once_it_listed_them_and_it_is_not_started_for_that() {
        let start: Start = Arc::new(|| panic!("nobody wants anything of it"));
        let idle = Configured::new(Namespace::new("bank").unwrap(), Sharing::Shared, start);
        assert_eq!(known(&idle), [""; 0]);

        let server = Configured::nowhere(Sharing::Shared);
        let (one, _keeping) = server.make(Handshake::default());
        let (other, _keeping) = server.clone().make(Handshake::default());
        assert_eq!(known(&server), [""; 0], "it has not said it yet");
        listed(&one, r#"[{"name":"pay","annotations":{"readOnlyHint":true}},{"name":"a"}]"#);
        listed(&other, r#"[{"name":"pay"},{"name":"look"}]"#);
        assert_eq!(known(&server), ["bank/a", "bank/look", "bank/pay"], "each once");
        drop(one);
        assert_eq!(known(&server), ["bank/look", "bank/pay"], "what it lists now");
        drop(other);
        assert_eq!(known(&server), ["bank/look", "bank/pay"], "what it listed last");
        let (again, _keeping) = server.make(Handshake::default());
        assert_eq!(known(&server), ["bank/look", "bank/pay"], "until it says something else");
        listed(&again, r#"[{"name":"b"}]"#);
        assert_eq!(known(&server), ["bank/b"]);
    }
}
