//! Servers that run as child processes: started with exactly what they are given, kept alive, never left behind.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`Launch`] | what to start, where, with which [`Environment`]; clear words when that cannot be done |
//! | [`Leash`] | our own binary as a small process beside the child, which ends the child's whole group when we are gone |
//! | [`Child`] | one child: its end, the graceful stop that MCP asks for |
//! | [`Stderr`] | what servers wrote to stderr lately |
//! | [`Supervisor`] | one server kept alive; when it may be started again is decided by [`steadfast_core::restart`] |
//!
//! A program that uses this crate calls [`leash_main`] before anything else in its `main`.
//!
//! # What is promised on which system
//!
//! | | Linux | other Unix | Windows |
//! | --- | --- | --- | --- |
//! | the group is ended when we are gone, however that came | yes | yes | no: the child sees the end of its stdin, and is killed only if we can still do it |
//! | the child is ended when we *and* the leash were killed at once | yes | no | no |
//! | processes that the child leaves behind are ended with it | yes | yes | no |
//! | a child is asked to end before it is killed | yes | yes | no, only by closing its stdin |
//!
//! A process that leaves the child's process group on purpose (`setsid`, a daemon) is left alone: whoever starts an
//! editor or a database through a tool does not want it to end with the tool's server.

mod child;
mod environment;
mod exit;
mod launch;
mod leash;
mod stderr;
mod supervisor;

pub use child::{Child, Patience, Started};
pub use environment::{ALLOWED, Environment};
pub use exit::{Exit, Sent, last_words, with_last_words};
pub use launch::{Launch, LaunchError};
pub use leash::{Leash, leash_main};
pub use stderr::{Follower, Line, Stderr};
pub use supervisor::{
    End, Incarnation, IncarnationNumber, Incarnations, LastEnd, State, Status, Supervisor, Unavailable,
};
