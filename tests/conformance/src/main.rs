//! The promises of Steadfast, by requirement id, tested on the engine with every store.
//!
//! | file | content |
//! | --- | --- |
//! | `matrix` | TR-1 to TR-15, each also with the state that must not have changed |
//! | `one_run` | SF-1: one execution per key, from many callers and from two processes |
//! | `crash` | SF-2: `kill -9` at random moments |
//! | `outage` | SF-3: Redis killed, emptied, paused, failed over |
//! | `trust` | RP-11: trust survives `kill -9` |
//! | `world`, `calls`, `ledger`, `child` | stores and clocks, calls and tools, a counted side effect, this binary as a process of its own |

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says so by panicking"
)]

mod calls;
mod child;
mod crash;
mod ledger;
mod matrix;
mod one_run;
mod outage;
mod trust;
mod world;
