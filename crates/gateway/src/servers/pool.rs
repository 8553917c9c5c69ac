//! Servers that sessions share: one instance for all sessions of a principal with the same introduction, never across
//! principals or tenants.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::id::{Digest, Namespace};
use steadfast_mcp::http::server::Principal;

use crate::servers::backing::BackingServer;
use crate::servers::configured::ConfiguredServer;
use crate::servers::shared::SharedServer;
use crate::servers::upstream::Handshake;

/// All shared instances.
#[derive(Default)]
pub struct ServerPool(Mutex<HashMap<(Namespace, SharingGroup), Arc<SharedServer>>>);

/// The sessions that may share an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SharingGroup {
    pub(crate) principal: Principal,
    /// The digest of their introduction.
    pub(crate) introduction: Digest,
}

/// The time without use after which an instance is ended.
const UNUSED: Duration = Duration::from_secs(5 * 60);

impl ServerPool {
    /// Returns the instance that these sessions share. Creates it for the first of them.
    pub(crate) fn get(&self, configured: &ConfiguredServer, sharers: &SharingGroup) -> BackingServer {
        let mut all = self.0.lock();
        let shared = all.entry((configured.name.clone(), sharers.clone())).or_insert_with(|| {
            let (server, processes) = configured.make(Handshake::default());
            SharedServer::new(server, processes)
        });
        // Marked as used before the lock is released, because the session joins it only later.
        shared.mark_used();
        BackingServer::new(shared.server.clone(), configured.prefix.clone(), Some(shared.clone()))
    }

    /// Ends unused instances.
    pub(crate) async fn tidy(&self) {
        let unused: Vec<_> = {
            let mut all = self.0.lock();
            let is_unused = |shared: &Arc<SharedServer>| {
                shared.is_idle_since().is_some_and(|since| since.elapsed() >= UNUSED)
            };
            all.extract_if(|_, shared| is_unused(shared)).map(|(_, shared)| shared).collect()
        };
        for shared in unused {
            shared.stop().await;
        }
    }

    /// Ends all instances.
    pub(crate) async fn close(&self) {
        let all: Vec<_> = self.0.lock().drain().map(|(_, shared)| shared).collect();
        futures_util::future::join_all(all.iter().map(|shared| shared.stop())).await;
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::ActorId;

    use super::*;
    use crate::servers::configured::ServerSharing;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_just_requested_is_not_ended_as_unused() {
        let pool = ServerPool::default();
        let configured = ConfiguredServer::nowhere(ServerSharing::Shared);
        let sharers = SharingGroup {
            principal: Principal::new(ActorId::new("me").unwrap()),
            introduction: Digest::of(b""),
        };
        let got = || pool.get(&configured, &sharers).shared.unwrap();
        let first = got();
        tokio::time::advance(UNUSED).await;
        // The session has not joined yet.
        let second = got();
        pool.tidy().await;
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &got()));
        tokio::time::advance(UNUSED).await;
        pool.tidy().await;
        assert!(!Arc::ptr_eq(&second, &got()));
    }
}
