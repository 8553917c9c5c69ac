//! All tools of a configuration that are not servers, by name.

use std::collections::BTreeMap;
use std::io;

use steadfast_config::{COMMAND_NAMESPACE, Config, HTTP_NAMESPACE};
use steadfast_core::id::{Domain, Namespace, ToolName, ToolRef};
use steadfast_executor::{Attempt, ToolHandler, ToolResult};
use steadfast_mcp::http::upstream::{HttpOrigin, HttpUpstreamSettings};
use steadfast_process::Leash;

use crate::LONGEST_ANSWER;
use crate::command::CommandTool;
use crate::http::HttpTool;
use crate::problem::{UnusableReason, UnusableTool};

/// The tools of a configuration that are not servers. A toolbox does not change. A new configuration needs a new one.
#[derive(Clone, Debug, Default)]
pub struct Toolbox {
    http: BTreeMap<ToolName, HttpTool>,
    commands: BTreeMap<ToolName, CommandTool>,
}

/// A tool that is not a server. Clones are cheap.
#[derive(Clone, Debug)]
pub enum PlainTool {
    /// An HTTP request.
    Http(HttpTool),
    /// A command.
    Command(CommandTool),
}

impl Toolbox {
    /// Returns the tools of this configuration. The current program is the leash of commands, so its `main` must begin
    /// with [`steadfast_process::leash_main`].
    pub fn of(config: &Config) -> Result<Self, UnusableTool> {
        Self::made(config, Leash::of_this_program)
    }

    /// Returns all errors with which [`Toolbox::of`] would fail.
    pub fn problems(config: &Config) -> Vec<UnusableTool> {
        Self::collected(config, Leash::of_this_program).1
    }

    /// Returns the tools of this configuration, with another program as the leash.
    pub fn on_leash(config: &Config, leash: &Leash) -> Result<Self, UnusableTool> {
        Self::made(config, || Ok(leash.clone()))
    }

    /// Returns the tool with this name.
    pub fn find(&self, namespace: &Namespace, name: &ToolName) -> Option<PlainTool> {
        match namespace.as_str() {
            HTTP_NAMESPACE => self.http.get(name).cloned().map(PlainTool::Http),
            COMMAND_NAMESPACE => self.commands.get(name).cloned().map(PlainTool::Command),
            _ => None,
        }
    }

    /// Returns the names of all tools.
    pub fn names(&self) -> impl Iterator<Item = &ToolRef> {
        let http = self.http.values().map(HttpTool::tool);
        http.chain(self.commands.values().map(CommandTool::tool))
    }

    fn made(config: &Config, leash: impl Fn() -> io::Result<Leash>) -> Result<Self, UnusableTool> {
        let (made, problems) = Self::collected(config, leash);
        problems.into_iter().next().map_or(Ok(made), Err)
    }

    /// Returns the usable tools, and the reasons why the others are not.
    fn collected(config: &Config, leash: impl Fn() -> io::Result<Leash>) -> (Self, Vec<UnusableTool>) {
        let (mut made, mut problems) = (Self::default(), Vec::new());
        // Tools with the same host share connections.
        let mut origins: BTreeMap<&str, HttpOrigin> = BTreeMap::new();
        for (name, settings) in config.http_tools() {
            let tool = named(HTTP_NAMESPACE, name);
            let url = settings.url.origin();
            let origin = match origins.get(url) {
                Some(origin) => Ok(origin.clone()),
                None => {
                    let limits = HttpUpstreamSettings {
                        message_bytes: LONGEST_ANSWER,
                        ..HttpUpstreamSettings::default()
                    };
                    let origin = HttpOrigin::new(url, limits).map_err(UnusableReason::Url);
                    origin.map(|origin| origins.entry(url).or_insert(origin).clone())
                }
            };
            match origin.and_then(|origin| HttpTool::new(tool.clone(), settings, origin)) {
                Ok(http) => _ = made.http.insert(name.clone(), http),
                Err(reason) => problems.push(UnusableTool { tool, reason }),
            }
        }
        for (name, settings) in config.command_tools() {
            let tool = named(COMMAND_NAMESPACE, name);
            let leash = leash().map_err(UnusableReason::Leash);
            match leash.and_then(|leash| CommandTool::new(tool.clone(), settings, leash)) {
                Ok(command) => _ = made.commands.insert(name.clone(), command),
                Err(reason) => problems.push(UnusableTool { tool, reason }),
            }
        }
        (made, problems)
    }
}

fn named(namespace: &str, name: &ToolName) -> ToolRef {
    #[expect(clippy::expect_used, reason = "both are constants of the configuration, and short")]
    let namespace = Namespace::new(namespace).expect("the namespace is a plain word");
    ToolRef { namespace, tool: name.clone() }
}

impl PlainTool {
    /// Returns its name.
    pub fn tool(&self) -> &ToolRef {
        match self {
            Self::Http(tool) => tool.tool(),
            Self::Command(tool) => tool.tool(),
        }
    }

    /// Returns the dependency of its calls, if it is known: the host of an HTTP tool. Put it into the envelope of a
    /// call that names no domain, so that rules about the host apply.
    pub fn domain(&self) -> Option<&Domain> {
        match self {
            Self::Http(tool) => tool.domain(),
            Self::Command(_) => None,
        }
    }
}

impl ToolHandler for PlainTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let tool = self.clone();
        async move {
            match tool {
                Self::Http(tool) => tool.run(attempt).await,
                Self::Command(tool) => tool.run(attempt).await,
            }
        }
    }
}
