//! Turns: several calls that depend on each other, submitted as one plan. [`Engine::turn`](crate::Engine::turn) runs
//! them.
//!
//! ```
//! use steadfast::turn::{TurnLimits, TurnPlan};
//!
//! let plan = br#"{"calls": [{"id": "a", "tool": "web/fetch"}, {"id": "b", "tool": "bank/pay", "dependsOn": ["a"]}]}"#;
//! let plan = TurnPlan::parse(plan, &TurnLimits::DEFAULT)?;
//! assert_eq!(plan.calls().len(), 2);
//! # Ok::<(), steadfast::turn::PlanErrors>(())
//! ```

pub use steadfast_executor::{
    TurnOptions, TurnQuery, TurnRejection, TurnResponse, TurnSummary, TurnTraceView,
};
pub use steadfast_turn::*;
