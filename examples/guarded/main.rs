//! Guards an async function, and remembers what it answered in a file.
//!
//! Run it twice: the second time the payment is not made again, because the first answer is still known.
//!
//! ```sh
//! cargo run -p steadfast --example guarded -- state.db
//! ```

use std::time::Duration;

use steadfast::classify::{AttemptFault, FaultSource};
use steadfast::{Attempt, PolicyStart, Steadfast, ToolResult, call, output, usual_sources};

/// The tool: slow, and not always there.
async fn pay(attempt: Attempt) -> ToolResult {
    if attempt.number == 1 {
        return Err(AttemptFault::new(FaultSource::Http { status: 429 }, "too many requests").into());
    }
    println!("  really paying, attempt {}", attempt.number);
    Ok(output("paid 10 to ann"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let state = std::env::args().nth(1).unwrap_or_else(|| "state.db".to_owned());
    let steadfast = Steadfast::builder(usual_sources(PolicyStart::Library))
        .set("store.kind", "sqlite")
        .set("store.path", &state)
        .set("tools.\"bank/pay\".class", "mutating")
        .open()
        .await?;
    for _ in 0..2 {
        let invoice = call("bank", "pay").params(&[("to", "ann"), ("amount", "10")]).key("invoice 42");
        let called = steadfast.call(invoice.envelope()?, pay).await;
        let how = if called.result.from_cache { "known from before" } else { "done now" };
        println!("{how}: {}", serde_json::to_string(&called.result)?);
    }
    steadfast.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
