//! Who may ask.

use std::fmt;
use std::sync::Arc;

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// As whom a client was admitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal(Arc<str>);

impl Principal {
    /// One of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Bearer tokens, and who has them.
#[derive(Clone, Default)]
pub struct Tokens(Vec<(Box<[u8]>, Principal)>);

impl Tokens {
    /// Adds a token. One that is empty admits nobody.
    pub fn add(&mut self, token: &str, principal: Principal) {
        if !token.is_empty() {
            self.0.push((token.as_bytes().into(), principal));
        }
    }

    /// Whose token this is. The time it takes tells nothing of the tokens but how many and how long they are.
    pub fn principal(&self, bearer: &[u8]) -> Option<&Principal> {
        let mut found = u64::MAX;
        for (place, (token, _)) in (0_u64..).zip(&self.0) {
            let same: Choice = token.ct_eq(bearer);
            found.conditional_assign(&place, same);
        }
        usize::try_from(found).ok().and_then(|place| self.0.get(place)).map(|(_, principal)| principal)
    }
}

/// Says how many there are and nothing else.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_admits_its_owner_and_nothing_else_admits_anybody() {
        let mut tokens = Tokens::default();
        assert_eq!(tokens.principal(b""), None);
        tokens.add("", Principal::new("nobody"));
        tokens.add("s3cret-a", Principal::new("a"));
        tokens.add("s3cret-b", Principal::new("b"));
        assert_eq!(tokens.principal(b"s3cret-a"), Some(&Principal::new("a")));
        assert_eq!(tokens.principal(b"s3cret-b"), Some(&Principal::new("b")));
        for wrong in [&b""[..], b"s3cret", b"s3cret-c", b"s3cret-aa"] {
            assert_eq!(tokens.principal(wrong), None);
        }
        assert_eq!(format!("{tokens:?}"), "2 tokens");
    }
}
