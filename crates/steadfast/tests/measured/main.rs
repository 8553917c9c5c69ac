//! Error handling as seed 002 measures it, through the public crate.
//!
//! A configuration selects the profile, as for users, and every change of a setting is a line of that configuration. A
//! setting that does not reach the engine therefore fails a test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod errors;
#[path = "../../../executor/tests/turns/scripted.rs"]
mod scripted;
#[path = "../support/mod.rs"]
mod support;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast::call::ToolResult;
use steadfast::call::classify::FaultNature;
use steadfast::store::RuntimeClock;
use steadfast::telemetry::EngineListener;
use steadfast::turn::FailureStrategy;
use steadfast::turn::trace::{TraceEvent, TraceEventType};
use steadfast::turn::{TurnResponse, TurnTraceView};
use steadfast::{Engine, Steadfast};

use scripted::*;

/// Opens an engine with the profile `measured` and these lines in its configuration, for search tools.
async fn engine(settings: &str) -> Engine {
    opened("read_only", settings, None).await
}

/// Opens an engine for tools of another class, with an optional listener.
async fn opened(class: &str, settings: &str, listener: Option<Arc<dyn EngineListener>>) -> Engine {
    let text = format!("profile = \"measured\"\n{settings}\n[tools.\"t/*\"]\nclass = \"{class}\"\n");
    let sources = support::sources(&support::folder("measured"), "steadfast.toml", &text, &[]);
    let mut opening = Steadfast::builder().sources(sources).clock(Arc::new(RuntimeClock::new()));
    if let Some(listener) = listener {
        opening = opening.listener(listener);
    }
    opening.build().await.unwrap().engine().clone()
}

fn events(story: &TurnTraceView, event_type: TraceEventType) -> Vec<&TraceEvent> {
    story.events.iter().filter(|event| event.event_type == event_type).collect()
}
