//! The identity of the client on our standard streams, which is the parent process.

use std::env;

use steadfast_core::id::{ActorId, SessionKey};
use steadfast_store::process;

use super::identity::ClientIdentity;

impl ClientIdentity {
    /// Returns the identity of the parent process. The actor is the user of the machine. The session is the one that
    /// the parent names in the environment, or else the parent process itself, for its lifetime.
    pub fn of_parent() -> Self {
        let named = env::var("CLAUDE_CODE_SESSION_ID").ok().map(|id| format!("claude-code:{id}"));
        let session = named.or_else(parent).and_then(|text| SessionKey::new(text).ok());
        Self { actor: user(), tenant: None, session }
    }
}

/// Returns an identifier of the parent process that no other process with the same pid ever has.
fn parent() -> Option<String> {
    let parent = process(parent_number()?)?;
    Some(format!("parent:{}:{}:{}", parent.boot, parent.pid, parent.started))
}

#[cfg(unix)]
fn parent_number() -> Option<u32> {
    Some(std::os::unix::process::parent_id())
}

#[cfg(not(unix))]
fn parent_number() -> Option<u32> {
    None
}

/// Returns the operating system user of this process.
#[expect(clippy::expect_used, reason = "a number and a word")]
fn user() -> ActorId {
    #[cfg(unix)]
    let name = format!("uid:{}", rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    let name = format!("user:{}", env::var("USERNAME").unwrap_or_default());
    ActorId::new(name).or_else(|_| ActorId::new("user")).expect("it is short and printable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_process_is_the_session() {
        let connection = ClientIdentity::of_parent();
        assert_eq!(connection.session, ClientIdentity::of_parent().session);
        if cfg!(target_os = "linux") {
            assert!(connection.session.is_some());
        }
    }
}
