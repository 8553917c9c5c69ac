//! Resolved policies: the settings in force for one tool, complete and valid. A program writes them with
//! [`ToolPolicy`](crate::ToolPolicy) and reads them here.
//!
//! ```
//! use steadfast::policy::ToolClass;
//! use steadfast::{Steadfast, Store, ToolPolicy};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let steadfast = Steadfast::builder()
//!     .store(Store::memory())
//!     .tool("bank/pay", ToolPolicy::mutating())
//!     .build()
//!     .await?;
//! let envelope = steadfast.call("bank/pay").envelope()?;
//! assert_eq!(steadfast.engine().policy_of(&envelope)?.class, ToolClass::Mutating);
//! # Ok(())
//! # }
//! ```

pub use steadfast_core::policy::*;
