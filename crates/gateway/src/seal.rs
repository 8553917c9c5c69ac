//! Seals on texts that clients carry and must not change. A seal is valid for as long as the process lives.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use steadfast_core::id::Digest;
use subtle::ConstantTimeEq as _;

/// A secret key for seals.
#[derive(Clone)]
pub struct SealKey(Hmac<Sha256>);

impl SealKey {
    /// Creates a random key. Returns `None` if the system has no randomness.
    pub fn new() -> Option<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).ok()?;
        Hmac::new_from_slice(&key).ok().map(Self)
    }

    /// Returns the seal of a text: 128 bits of its HMAC-SHA-256, in hexadecimal digits.
    pub fn seal(&self, text: &str) -> String {
        let code = self.0.clone().chain_update(text).finalize().into_bytes();
        let mut seal = Digest::from_bytes(code.into()).to_hex();
        seal.truncate(SEAL_DIGITS);
        seal
    }

    /// Returns true if this is the seal of the text. Compares in constant time.
    pub fn verifies(&self, text: &str, seal: &str) -> bool {
        self.seal(text).as_bytes().ct_eq(seal.as_bytes()).into()
    }
}

const SEAL_DIGITS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sf_7_a_seal_is_valid_for_its_text_and_its_key_only() {
        let key = SealKey::new().unwrap();
        let seal = key.seal("a text");
        assert_eq!(seal.len(), SEAL_DIGITS);
        assert!(key.verifies("a text", &seal));
        assert!(!key.verifies("a text.", &seal));
        assert!(!SealKey::new().unwrap().verifies("a text", &seal));
        for wrong in ["", &seal[1..], &format!("{seal}0")] {
            assert!(!key.verifies("a text", wrong), "{wrong}");
        }
    }

    #[test]
    fn a_seal_is_an_hmac() {
        // RFC 4231, test case 2.
        let key = SealKey(Hmac::new_from_slice(b"Jefe").unwrap());
        assert_eq!(key.seal("what do ya want for nothing?"), "5bdcc146bf60754e6a042426089575c7");
    }
}
