//! Which calls are the same call.
//!
//! A call has up to three keys, and they promise different things (D9). An **explicit** key means intent:
//! same key, same call. A **call id** finds a resend of the same dispatch. A **computed** key says only
//! that two calls look alike, which is enough to join them in flight but not to refuse the second one its
//! run.
//!
//! `canonical` says which parameters are the same parameters, `derive` makes the keys, `template` makes
//! them of arguments where a tool is set so, and this file says which key text counts.

pub mod canonical;
pub mod derive;
mod template;
#[cfg(test)]
mod tests;

pub use self::canonical::{Canonicalizer, Form};
pub use self::derive::{
    Scope, arguments_digest, call_id_key, computed_key, continuation_digest, explicit_key, run_key,
    separate_key,
};
pub use self::template::{InvalidTemplate, KeyTemplate};

use serde::{Deserialize, Serialize};

use crate::id::Digest;

/// A key, scoped and hashed: what a record is found by. The caller's own text never gets this far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(pub Digest);

impl Key {
    /// What logs and answers show of it.
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    /// Where it lives.
    pub fn home(&self) -> Home {
        let [.., a, b, c, d] = *self.0.as_bytes();
        Home([a, b, c, d])
    }

    /// The same key in the space of shadow mode.
    pub fn shadowed(&self) -> Self {
        Self::at(self.home(), Digest::of(&[b"shadow".as_slice(), self.0.as_bytes()].concat()))
    }

    /// The last bytes say where a key lives, the other 224 bits which it is.
    fn at(home: Home, hash: Digest) -> Self {
        let mut bytes = *hash.as_bytes();
        if let Some(place) = bytes.last_chunk_mut() {
            *place = home.0;
        }
        Self(Digest::from_bytes(bytes))
    }
}

/// The neighbourhood of a key. All keys of one actor at one server (and of a run and its index) share it, so that
/// a store that is spread over machines can keep together what one atomic operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Home(pub [u8; 4]);

/// What a caller asks for about duplicates of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum DedupeMode {
    /// A duplicate gets the first call's answer, and waits for it if need be.
    #[serde(alias = "enabled")]
    Enforced,
    /// A duplicate of a call in flight is told so at once; a failure that may pass is tried again.
    BestEffort,
    /// Each call is a call of its own.
    Disabled,
}

impl DedupeMode {
    /// What counts: what was asked for, else `enforced` if a key was given, since who gives a key wants it
    /// heeded.
    pub const fn resolve(asked: Option<Self>, given: GivenKey<'_>) -> Self {
        match (asked, given) {
            (Some(mode), _) => mode,
            (None, GivenKey::ByCaller(_) | GivenKey::ByHook(_)) => Self::Enforced,
            (None, GivenKey::None) => Self::Disabled,
        }
    }
}

/// The key text that counts for a call. A caller knows its intent better than a hook, a hook better than we
/// do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenKey<'a> {
    /// The caller's own key.
    ByCaller(&'a str),
    /// The key that the `key` hook gave before the claim.
    ByHook(&'a str),
    /// Nobody gave one: the key is computed.
    None,
}

impl<'a> GivenKey<'a> {
    /// The one that counts.
    pub const fn choose(caller: Option<&'a str>, hook: Option<&'a str>) -> Self {
        match (caller, hook) {
            (Some(text), _) => Self::ByCaller(text),
            (None, Some(text)) => Self::ByHook(text),
            (None, None) => Self::None,
        }
    }

    /// The text of an explicit key, if there is one.
    pub const fn explicit(self) -> Option<&'a str> {
        match self {
            Self::ByCaller(text) | Self::ByHook(text) => Some(text),
            Self::None => None,
        }
    }
}
