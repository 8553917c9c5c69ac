//! Where the tools are that can be called: this crate runs none itself, and knows none.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use steadfast::{Answer, Attempt};
use steadfast_core::id::{Domain, ToolRef};

/// Runs one attempt of a tool.
pub type Run = Box<dyn Fn(Attempt) -> BoxFuture<'static, Answer> + Send + Sync>;

/// A tool that somebody has.
pub struct Found {
    /// What runs it.
    pub run: Run,
    /// What it depends on, where that is known; counts where the caller names nothing.
    pub domain: Option<Domain>,
}

/// Has tools.
pub trait Shelf: Send + Sync + 'static {
    /// The tool of this name, as it is now.
    fn find(&self, tool: &ToolRef) -> Option<Found>;
}

/// Several shelves: the first that has a tool is asked for it. Without any, nobody has one.
#[derive(Clone, Default)]
pub struct Shelves(pub Vec<Arc<dyn Shelf>>);

impl Shelf for Shelves {
    fn find(&self, tool: &ToolRef) -> Option<Found> {
        self.0.iter().find_map(|shelf| shelf.find(tool))
    }
}
