//! Where the tools are that can be called by name: the engine runs none itself, and knows none.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use steadfast_core::call::AttemptEnd;
use steadfast_core::classify::{Fault, Source};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{Domain, Namespace, ToolRef};
use steadfast_core::policy::SettlingPolicy;

use crate::info::ToolInfo;
use crate::seen::Offered;
use crate::tool::{Answer, AnyTool, Attempt, Description, Tool};

/// A tool of whatever type.
#[derive(Clone)]
pub struct Run(Arc<dyn AnyTool>);

impl Run {
    /// This one.
    pub fn new(tool: impl Tool) -> Self {
        Self(Arc::new(tool))
    }
}

impl Tool for Run {
    fn run(&self, attempt: Attempt) -> impl Future<Output = Answer> + Send + 'static {
        self.0.start(attempt)
    }

    fn sees_end(&self) -> AttemptEnd {
        self.0.any_sees_end()
    }

    fn end(&self, settling: SettlingPolicy) -> impl Future<Output = ()> + Send + 'static {
        self.0.any_end(settling)
    }

    fn describe(&self) -> impl Future<Output = Option<Description>> + Send + 'static {
        self.0.any_describe()
    }
}

/// A tool that somebody has.
pub struct Found {
    /// What runs it.
    pub run: Run,
    /// The name of its server, where that is another than the call says: two servers may be called the same.
    pub namespace: Option<Namespace>,
    /// What it depends on, where that is known; counts where the caller names nothing.
    pub domain: Option<Domain>,
    /// What its server says of it.
    pub info: Option<Arc<ToolInfo>>,
    /// Read-only tools of the same server, by which a caller can find out whether a call had its effect.
    pub reads: Arc<[Box<str>]>,
}

impl Found {
    /// A tool of which nothing else is known.
    pub fn new(tool: impl Tool) -> Self {
        Self { run: Run::new(tool), namespace: None, domain: None, info: None, reads: Arc::default() }
    }

    /// What is known of the tool, put into the call that wants it.
    pub fn complete(&self, envelope: &mut CallEnvelope) {
        if let Some(namespace) = &self.namespace {
            envelope.tool_namespace = namespace.clone();
        }
        if envelope.target.domain.is_none() {
            envelope.target.domain.clone_from(&self.domain);
        }
    }

    /// Stands for a tool that nobody has. The call goes the way of all calls, so that a model which asks for it again and
    /// again is stopped like any other that loops.
    pub fn nobody(tool: &ToolRef) -> Self {
        let why = format!(
            "Unknown tool: {tool}. Nobody here has it: tools of [http_tools.NAME] are `http/NAME`, those of [command_tools.NAME] are `command/NAME`, those of a server are `SERVER/NAME`"
        );
        Self::new(move |_: Attempt| {
            let fault = Fault::new(Source::JsonRpc { code: METHOD_NOT_FOUND }, why.clone());
            async move { Err(fault.into()) }
        })
    }
}

/// Which proves that nothing ran.
const METHOD_NOT_FOUND: i64 = -32601;

/// Has tools.
pub trait Shelf: Send + Sync + 'static {
    /// The tool that this call wants, as it is now.
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<Found>> + Send + 'a>>;

    /// Whether the tools of this namespace are run here. Then we see ourselves how they do.
    fn runs(&self, _namespace: &Namespace) -> bool {
        false
    }

    /// All that are known so far. Nothing is started to find out.
    fn list(&self) -> Vec<Offered> {
        Vec::new()
    }
}

impl fmt::Debug for dyn Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shelf")
    }
}

/// Several shelves: the first that has a tool is asked for it. Without any, nobody has one.
#[derive(Clone, Default)]
pub struct Shelves(pub Vec<Arc<dyn Shelf>>);

impl Shelf for Shelves {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<Found>> + Send + 'a>> {
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

    fn list(&self) -> Vec<Offered> {
        self.0.iter().flat_map(|shelf| shelf.list()).collect()
    }
}
