//! JSON Pointers into outputs.

use std::sync::Arc;

use super::TurnLimits;

/// A JSON Pointer (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsonPointer(Arc<str>);

/// The reason why a text is not a valid JSON Pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJsonPointer {
    /// The text is not empty and does not begin with a slash.
    #[error("a JSON Pointer is empty or begins with `/`")]
    NoSlash,
    /// A `~` is followed by neither 0 nor 1.
    #[error("in a JSON Pointer `~` is written `~0` and `/` within a name `~1`")]
    Tilde,
    /// The text is longer than the limit.
    #[error("a JSON Pointer of more than {} bytes is not accepted", JsonPointer::MAX_BYTES)]
    TooLong,
    /// The pointer has more steps than the depth limit of an output.
    #[error("a JSON Pointer of more than {} steps is not accepted", TurnLimits::OUTPUT_DEPTH)]
    TooDeep,
}

impl JsonPointer {
    const MAX_BYTES: usize = 1024;

    /// Returns the pointer to the whole value.
    pub fn whole() -> Self {
        Self(Arc::from(""))
    }

    /// Parses a pointer.
    pub fn parse(text: &str) -> Result<Self, InvalidJsonPointer> {
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidJsonPointer::TooLong);
        }
        if !text.is_empty() && !text.starts_with('/') {
            return Err(InvalidJsonPointer::NoSlash);
        }
        if text.split('~').skip(1).any(|after| !after.starts_with(['0', '1'])) {
            return Err(InvalidJsonPointer::Tilde);
        }
        if text.matches('/').count() > TurnLimits::OUTPUT_DEPTH {
            return Err(InvalidJsonPointer::TooDeep);
        }
        Ok(Self(Arc::from(text)))
    }

    /// Returns the text of the pointer.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn tokens(&self) -> Vec<String> {
        self.0.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect()
    }
}
