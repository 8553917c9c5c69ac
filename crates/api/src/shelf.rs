//! Where the tools are that can be called: this crate runs none itself, and knows none.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use steadfast::{Answer, Attempt, ToolInfo};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::{Domain, Namespace};
use steadfast_executor::Offered;

/// Runs one attempt of a tool.
pub type Run = Box<dyn Fn(Attempt) -> BoxFuture<'static, Answer> + Send + Sync>;

/// A tool that somebody has.
pub struct Found {
    /// What runs it.
    pub run: Run,
    /// What it depends on, where that is known; counts where the caller names nothing.
    pub domain: Option<Domain>,
    /// What its server says of it.
    pub info: Option<Arc<ToolInfo>>,
}

/// Has tools.
pub trait Shelf: Send + Sync + 'static {
    /// The tool that this call wants, as it is now.
    fn find<'a>(&'a self, envelope: &'a CallEnvelope) -> BoxFuture<'a, Option<Found>>;

    /// Whether the tools of this namespace are run here. Then we see ourselves how they do.
    fn runs(&self, namespace: &Namespace) -> bool;

    /// All that are known so far. Nothing is started to find out.
    fn list(&self) -> Vec<Offered>;
}

/// Several shelves: the first that has a tool is asked for it. Without any, nobody has one.
#[derive(Clone, Default)]
pub struct Shelves(pub Vec<Arc<dyn Shelf>>);

impl Shelf for Shelves {
    fn find<'a>(&'a self, envelope: &'a CallEnvelope) -> BoxFuture<'a, Option<Found>> {
        async {
            for shelf in &self.0 {
                if let Some(found) = shelf.find(envelope).await {
                    return Some(found);
                }
            }
            None
        }
        .boxed()
    }

    fn runs(&self, namespace: &Namespace) -> bool {
        self.0.iter().any(|shelf| shelf.runs(namespace))
    }

    fn list(&self) -> Vec<Offered> {
        self.0.iter().flat_map(|shelf| shelf.list()).collect()
    }
}
