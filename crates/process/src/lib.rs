//! Servers as child processes: started with an exact environment, supervised, and never left behind.
//!
//! | item | contents |
//! | --- | --- |
//! | [`Launch`] | the program to start, its folder and [`Environment`]; errors that explain a failed start |
//! | [`Leash`] | the gateway's own binary as a small process beside the child, which ends the child's whole group when the gateway is gone |
//! | [`ChildProcess`] | one child: its exit, and the graceful stop that MCP specifies |
//! | [`StderrLog`] | the last stderr output of servers |
//! | [`Supervisor`] | supervision of one server; [`steadfast_core::restart`] decides when it may be restarted |
//!
//! A program that uses this crate calls [`leash_main`] before anything else in its `main`.
//!
//! # Guarantees by system
//!
//! | | Linux | other Unix | Windows |
//! | --- | --- | --- | --- |
//! | the group is ended when the gateway is gone, for any reason | yes | yes | no: the child sees the end of its stdin, and is killed only if the gateway can still do it |
//! | the child is ended when the gateway *and* the leash were killed at once | yes | no | no |
//! | processes that the child leaves behind in its group are ended with it | yes | yes | no |
//! | processes that left the child's group (`setsid`, a daemon) are ended with it | yes | no | no |
//! | a child is asked to end before it is killed | yes | yes | no, only by closing its stdin |

mod child;
mod environment;
mod exit;
mod launch;
mod leash;
mod stderr;
mod supervisor;

pub use child::{ChildProcess, SpawnedChild};
pub use environment::{ALLOWED, Environment};
pub use exit::{ChildExit, SendProgress, last_stderr_lines, with_stderr_lines};
pub use launch::{Launch, LaunchError, StopTimeouts};
pub use leash::{Leash, leash_main};
pub use stderr::{StderrFollower, StderrLine, StderrLog};
pub use supervisor::{
    Incarnation, IncarnationEnd, IncarnationNumber, IncarnationReceiver, LastEnd, ServerStatus,
    ServerUnavailable, State, Supervisor,
};
