//! Idempotency keys: the identity of a call.
//!
//! A call has up to three keys with different guarantees (D9). An **explicit** key means intent: same key, same call. A
//! **call id** finds a resend of the same dispatch. A **computed** key only means that two calls look alike, which is
//! enough to join them in flight, but not to refuse the second one its run.
//!
//! The module `canonical` defines equal parameters, `derive` creates the keys (a [template](crate::template) creates them
//! from arguments if a tool is configured that way), and this file selects the key that counts.

pub mod canonical;
pub mod derive;
#[cfg(test)]
mod tests;

pub use self::canonical::{CanonicalForm, Canonicalizer};
pub use self::derive::{
    KeyInputs, arguments_digest, call_id_key, computed_key, continuation_digest, explicit_key, run_key,
    separate_key,
};

use serde::{Deserialize, Serialize};

use crate::id::Digest;

/// A key, scoped and hashed, under which a record is stored. It never contains the caller's own text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecordKey(pub Digest);

impl RecordKey {
    /// Returns the short form for logs and responses.
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    /// Returns the home of the key.
    pub fn home(&self) -> KeyHome {
        let [.., a, b, c, d] = *self.0.as_bytes();
        KeyHome([a, b, c, d])
    }

    /// Returns the same key in the key space of shadow mode.
    pub fn shadowed(&self) -> Self {
        Self::at(self.home(), Digest::of(&[b"shadow".as_slice(), self.0.as_bytes()].concat()))
    }

    /// The last bytes are the home of a key, and the other 224 bits its identity.
    fn at(home: KeyHome, hash: Digest) -> Self {
        let mut bytes = *hash.as_bytes();
        if let Some(place) = bytes.last_chunk_mut() {
            *place = home.0;
        }
        Self(Digest::from_bytes(bytes))
    }
}

/// The location of a key in a distributed store. All keys of one actor at one server (and of a run and its index) share
/// it, so that a store that is spread over machines can keep the records of one atomic operation together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHome(pub [u8; 4]);

/// The deduplication that a caller requests for its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum DedupeMode {
    /// A duplicate gets the response of the first call, and waits for it if needed.
    #[serde(alias = "enabled")]
    Enforced,
    /// A duplicate of a call in flight is refused at once. A failure that may pass is retried.
    BestEffort,
    /// Each call is separate.
    Disabled,
}

impl DedupeMode {
    /// Returns the mode that counts: the requested one, or else `enforced` if there is a key, because a caller that
    /// sends a key wants it to count.
    pub const fn resolve(requested: Option<Self>, given: KeySource<'_>) -> Self {
        match (requested, given) {
            (Some(mode), _) => mode,
            (None, KeySource::ByCaller(_) | KeySource::ByHook(_)) => Self::Enforced,
            (None, KeySource::None) => Self::Disabled,
        }
    }
}

/// The key text that counts for a call. A caller knows its intent better than a hook, and a hook better than Steadfast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource<'a> {
    /// The caller's own key.
    ByCaller(&'a str),
    /// The key that the `key` hook returned before the claim.
    ByHook(&'a str),
    /// No key. It is computed.
    None,
}

impl<'a> KeySource<'a> {
    /// Returns the key that counts.
    pub const fn choose(caller: Option<&'a str>, hook: Option<&'a str>) -> Self {
        match (caller, hook) {
            (Some(text), _) => Self::ByCaller(text),
            (None, Some(text)) => Self::ByHook(text),
            (None, None) => Self::None,
        }
    }

    /// Returns the text of an explicit key, if there is one.
    pub const fn explicit(self) -> Option<&'a str> {
        match self {
            Self::ByCaller(text) | Self::ByHook(text) => Some(text),
            Self::None => None,
        }
    }
}
