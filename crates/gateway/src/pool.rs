//! Servers that sessions share: one for all that said the same of themselves, never across clients with other
//! names or of other tenants.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_core::id::{Digest, Namespace};
use steadfast_mcp::http::front::Principal;

use crate::configured::Configured;
use crate::server::Handshake;
use crate::servers::Behind;
use crate::shared::Shared;

/// All of them.
#[derive(Default)]
pub struct Pool(Mutex<HashMap<(Namespace, Sharers), Arc<Shared>>>);

/// Who may share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sharers {
    pub(crate) principal: Principal,
    /// What they said of themselves.
    pub(crate) said: Digest,
}

/// A server that nobody used for so long is ended.
const UNUSED: Duration = Duration::from_secs(5 * 60);

impl Pool {
    /// The one that these share; a new one if they are the first.
    pub(crate) fn get(&self, configured: &Configured, sharers: &Sharers) -> Behind {
        let mut all = self.0.lock();
        let shared = all.entry((configured.name.clone(), sharers.clone())).or_insert_with(|| {
            let (server, keeping) = configured.make(Handshake::default());
            Shared::new(server, keeping)
        });
        // Known before anybody else can look for what is not used: whoever gets it joins it in a moment.
        shared.is_wanted();
        Behind::new(shared.server.clone(), configured.prefix.clone(), Some(shared.clone()))
    }

    /// Ends what is not used any more.
    pub(crate) async fn tidy(&self) {
        let unused: Vec<_> = {
            let mut all = self.0.lock();
            let is_unused =
                |shared: &Arc<Shared>| shared.is_idle_since().is_some_and(|since| since.elapsed() >= UNUSED);
            all.extract_if(|_, shared| is_unused(shared)).map(|(_, shared)| shared).collect()
        };
        for shared in unused {
            shared.stop().await;
        }
    }

    /// Ends all.
    pub(crate) async fn close(&self) {
        let all: Vec<_> = self.0.lock().drain().map(|(_, shared)| shared).collect();
        futures_util::future::join_all(all.iter().map(|shared| shared.stop())).await;
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::ActorId;

    use super::*;
    use crate::configured::Sharing;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_somebody_has_just_got_is_not_ended_for_want_of_use() {
        let pool = Pool::default();
        let configured = Configured::nowhere(Sharing::Shared);
        let sharers =
            Sharers { principal: Principal::new(ActorId::new("me").unwrap()), said: Digest::of(b"") };
        let got = || pool.get(&configured, &sharers).shared.unwrap();
        let first = got();
        tokio::time::advance(UNUSED).await;
        // It has not joined yet.
        let second = got();
        pool.tidy().await;
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &got()));
        tokio::time::advance(UNUSED).await;
        pool.tidy().await;
        assert!(!Arc::ptr_eq(&second, &got()));
    }
}
