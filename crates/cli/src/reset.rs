//! `steadfast reset`: a tool is forgiven what counts against it.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use steadfast_core::trust::Target;

use crate::failure::Failure;
use crate::output;
use crate::sources::Chosen;
use crate::state::{by_operator, engine, runtime};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: Chosen,
    /// The tool, as SERVER/TOOL or its name alone.
    tool: String,
    /// Says it as JSON.
    #[arg(long)]
    json: bool,
}

/// `steadfast reset`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let tools: Vec<String> = runtime()?.block_on(async {
        let engine = engine(&options.chosen).await?;
        let tools = engine.tools_with_a_past(None, &options.tool);
        for tool in &tools {
            let reset = engine.reset_trust(None, Target::Tool(tool), &by_operator()).await;
            reset.map_err(|error| Failure::World(format!("{tool} could not be reset: {error}")))?;
        }
        engine.shutdown(Duration::ZERO).await;
        Ok::<_, Failure>(tools.iter().map(ToString::to_string).collect())
    })?;
    if options.json {
        output::say_json(&json!({ "reset": tools }));
    } else if tools.is_empty() {
        output::say(&format!("nothing counts against {}", options.tool));
    } else {
        output::say(&format!("forgiven: {}", tools.join(", ")));
    }
    Ok(())
}
