//! Principals and bearer tokens.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use steadfast_core::id::{ActorId, TenantId};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The identity as which a client was admitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    /// The actor.
    pub actor: ActorId,
    /// The tenant on whose behalf the actor calls. The same actor name in another tenant is another principal.
    pub tenant: Option<TenantId>,
}

impl Principal {
    /// Creates a principal without a tenant.
    pub fn new(actor: ActorId) -> Self {
        Self { actor, tenant: None }
    }
}

/// The holder of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenHolder {
    /// A client, who makes calls.
    Client(Principal),
    /// A viewer, who has read access only.
    Viewer(ActorId),
}

/// The admin token. Its holder changes the state of a gateway and makes calls.
#[derive(Clone)]
pub struct AdminToken(Box<[u8]>);

impl AdminToken {
    /// Creates a token from this secret, unless it is empty.
    pub fn new(secret: &str) -> Option<Self> {
        (!secret.is_empty()).then(|| Self(secret.as_bytes().into()))
    }

    /// Compares a bearer token with this one, in constant time.
    pub fn is(&self, bearer: &[u8]) -> bool {
        self.0.ct_eq(bearer).into()
    }
}

/// Does not show the secret.
impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

/// Bearer tokens and their holders. Clones share them, so that a removed token stops working everywhere.
#[derive(Clone, Default)]
pub struct BearerTokens(Arc<RwLock<Vec<BearerTokenEntry>>>);

type BearerTokenEntry = (Box<[u8]>, TokenHolder);

impl BearerTokens {
    /// Adds a token. An empty one admits no request.
    pub fn add(&self, token: &str, holder: TokenHolder) {
        if !token.is_empty() {
            self.0.write().push((token.as_bytes().into(), holder));
        }
    }

    /// Replaces all tokens by these.
    pub fn replace(&self, tokens: &Self) {
        let tokens = tokens.0.read().clone();
        *self.0.write() = tokens;
    }

    /// Returns the holder of this token. The time it takes depends only on the number and length of the tokens.
    pub fn holder(&self, bearer: &[u8]) -> Option<TokenHolder> {
        let tokens = self.0.read();
        let mut found = u64::MAX;
        for (place, (token, _)) in (0_u64..).zip(&*tokens) {
            let same: Choice = token.ct_eq(bearer);
            found.conditional_assign(&place, same);
        }
        usize::try_from(found).ok().and_then(|place| tokens.get(place)).map(|(_, holder)| holder.clone())
    }

    /// Returns true if any token belongs to a client. Calls without a token are possible only if none does.
    pub fn have_clients(&self) -> bool {
        self.0.read().iter().any(|(_, holder)| matches!(holder, TokenHolder::Client(_)))
    }
}

/// Shows only the number of tokens.
impl fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.read().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> ActorId {
        ActorId::new(name).unwrap()
    }

    #[test]
    fn only_a_token_admits_its_holder() {
        let tokens = BearerTokens::default();
        assert_eq!(tokens.holder(b""), None);
        let (a, b) = (TokenHolder::Client(Principal::new(named("a"))), TokenHolder::Viewer(named("b")));
        tokens.add("", TokenHolder::Viewer(named("nobody")));
        tokens.add("s3cret-b", b.clone());
        assert!(!tokens.have_clients());
        tokens.add("s3cret-a", a.clone());
        assert!(tokens.have_clients());
        assert_eq!(tokens.holder(b"s3cret-a"), Some(a));
        assert_eq!(tokens.holder(b"s3cret-b"), Some(b));
        for wrong in [&b""[..], b"s3cret", b"s3cret-c", b"s3cret-aa"] {
            assert_eq!(tokens.holder(wrong), None);
        }
        assert_eq!(format!("{tokens:?}"), "2 tokens");
    }

    #[test]
    fn an_admin_token_is_itself_and_is_not_shown() {
        let admin = AdminToken::new("s3cret").unwrap();
        assert!(admin.is(b"s3cret"));
        assert!([&b""[..], b"s3cre", b"s3cret2", b"S3cret"].iter().all(|wrong| !admin.is(wrong)));
        assert!(AdminToken::new("").is_none(), "an empty token would admit everybody");
        assert_eq!(format!("{admin:?}"), "AdminToken");
    }

    #[test]
    fn sf_7_a_removed_token_admits_no_request_anywhere() {
        let tokens = BearerTokens::default();
        tokens.add("s3cret-a", TokenHolder::Viewer(named("a")));
        let elsewhere = tokens.clone();
        let fresh = BearerTokens::default();
        fresh.add("s3cret-b", TokenHolder::Viewer(named("b")));
        tokens.replace(&fresh);
        assert_eq!(elsewhere.holder(b"s3cret-a"), None);
        assert_eq!(elsewhere.holder(b"s3cret-b"), Some(TokenHolder::Viewer(named("b"))));
    }
}
