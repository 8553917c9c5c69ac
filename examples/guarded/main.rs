//! Guards an async function, and stores its results in a file.
//!
//! Run it twice: the second time the payment is not made again, because the stored result is replayed.
//!
//! ```sh
//! cargo run -p steadfast --example guarded -- state.db
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{Attempt, Steadfast, Store, ToolFault, ToolPolicy};

#[derive(Serialize)]
struct GuardedInvoice {
    to: &'static str,
    cents: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct GuardedReceipt {
    to: String,
    attempt: u32,
}

/// The tool. Its first attempt fails in a way that is safe to retry: a response with status 429 did nothing.
async fn pay(attempt: Attempt) -> Result<GuardedReceipt, ToolFault> {
    if attempt.number == 1 {
        return Err(ToolFault::http(429, "too many requests"));
    }
    println!("  really paying, attempt {}", attempt.number);
    Ok(GuardedReceipt { to: "ann".to_owned(), attempt: attempt.number })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let state = std::env::args().nth(1).unwrap_or_else(|| "state.db".to_owned());
    let steadfast = Steadfast::from_env()
        .store(Store::sqlite(state))
        .tool("bank/pay", ToolPolicy::mutating())
        .build()
        .await?;
    for _ in 0..2 {
        let invoice = GuardedInvoice { to: "ann", cents: 1000 };
        let paid = steadfast.call("bank/pay").key("invoice 42").args(&invoice).run(pay).await?;
        let status = if paid.is_replayed() { "replayed" } else { "done now" };
        println!("{status}: {:?}", paid.output::<GuardedReceipt>()?);
    }
    steadfast.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
