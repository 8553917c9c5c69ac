//! How a record lies in a file or on a server: its JSON, compressed where that pays, encrypted where a secret is
//! given.
//!
//! The first byte says which, so that a secret can be introduced, and compression changed, while old records are
//! still there. What is encrypted is bound to its key: a record that was moved to another place is not read.

use std::fmt;

use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use steadfast_core::dedupe::{Record, UnreadableRecord};
use steadfast_core::key::Key;

/// Writes records down and reads them.
#[derive(Clone, Default)]
pub struct Codec {
    secret: Option<Box<XChaCha20Poly1305>>,
}

/// A secret that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSecret {
    length: usize,
}

/// Why a stored record cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is encrypted, and no secret is given.
    NoSecret,
    /// It was encrypted with another secret, or was changed or moved since.
    WrongSecret,
    /// Nobody wrote this, or only a part of it is left.
    Damaged,
    /// What is inside is no record of ours.
    Record(UnreadableRecord),
}

/// Below this, compressing costs more than it saves.
const WORTH_COMPRESSING: usize = 1024;
/// The most that a record may unfold to; what we wrote ourselves is far below.
const LONGEST: usize = 64 << 20;
const NONCE: usize = 24;

const PLAIN: u8 = b'p';
const COMPRESSED: u8 = b'c';
const ENCRYPTED: u8 = b'e';

impl Codec {
    /// Records are encrypted with this secret of 32 bytes.
    pub fn encrypted(secret: &[u8]) -> Result<Self, InvalidSecret> {
        let cipher =
            XChaCha20Poly1305::new_from_slice(secret).map_err(|_| InvalidSecret { length: secret.len() })?;
        Ok(Self { secret: Some(Box::new(cipher)) })
    }

    /// The record as it is stored.
    pub fn encode(&self, record: &Record) -> Vec<u8> {
        let json = record.to_json();
        let compact = if json.len() < WORTH_COMPRESSING {
            tagged(PLAIN, json.as_bytes())
        } else {
            tagged(COMPRESSED, &lz4_flex::compress_prepend_size(json.as_bytes()))
        };
        let Some(cipher) = &self.secret else { return compact };
        let nonce = XNonce::generate();
        let payload = Payload { msg: &compact, aad: record.key.0.as_bytes() };
        match cipher.encrypt(&nonce, payload) {
            Ok(sealed) => tagged(ENCRYPTED, &[nonce.as_slice(), &sealed].concat()),
            // Only a text of 256 GiB is refused. What cannot be read later is not written in the clear either.
            Err(_) => tagged(ENCRYPTED, &[]),
        }
    }

    /// Reads a stored record that was found under this key.
    pub fn decode(&self, key: Key, stored: &[u8]) -> Result<Record, Unreadable> {
        let (tag, body) = stored.split_first().ok_or(Unreadable::Damaged)?;
        let json = match *tag {
            PLAIN => body.to_vec(),
            COMPRESSED => unfold(body)?,
            ENCRYPTED => {
                let cipher = self.secret.as_ref().ok_or(Unreadable::NoSecret)?;
                let (nonce, sealed) = body.split_at_checked(NONCE).ok_or(Unreadable::Damaged)?;
                let nonce = XNonce::try_from(nonce).map_err(|_| Unreadable::Damaged)?;
                let payload = Payload { msg: sealed, aad: key.0.as_bytes() };
                let compact = cipher.decrypt(&nonce, payload).map_err(|_| Unreadable::WrongSecret)?;
                match compact.split_first() {
                    Some((&PLAIN, json)) => json.to_vec(),
                    Some((&COMPRESSED, folded)) => unfold(folded)?,
                    Some(_) | None => return Err(Unreadable::Damaged),
                }
            }
            _ => return Err(Unreadable::Damaged),
        };
        let json = String::from_utf8(json).map_err(|_| Unreadable::Damaged)?;
        let record = Record::from_json(&json).map_err(Unreadable::Record)?;
        if record.key == key { Ok(record) } else { Err(Unreadable::Damaged) }
    }
}

fn tagged(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + body.len());
    bytes.push(tag);
    bytes.extend_from_slice(body);
    bytes
}

/// The announced length is checked before anything is allocated for it.
fn unfold(body: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let (length, folded) = lz4_flex::block::uncompressed_size(body).map_err(|_| Unreadable::Damaged)?;
    if length > LONGEST {
        return Err(Unreadable::Damaged);
    }
    lz4_flex::decompress(folded, length).map_err(|_| Unreadable::Damaged)
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret.is_some() { "Codec(encrypted)" } else { "Codec(plain)" })
    }
}

impl fmt::Display for InvalidSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the secret for stored records has {} bytes: give exactly 32 random ones", self.length)
    }
}

impl std::error::Error for InvalidSecret {}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSecret => {
                f.write_str("the stored record is encrypted: give the secret that it was written with")
            }
            Self::WrongSecret => f.write_str(
                "the stored record cannot be decrypted: it was written with another secret, or was changed since",
            ),
            Self::Damaged => f.write_str("the stored record is damaged"),
            Self::Record(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Unreadable {}
