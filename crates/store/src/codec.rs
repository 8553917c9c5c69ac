//! Encoding of records for a file or a server: JSON, compressed if that saves space, and encrypted if there is a
//! secret.
//!
//! The first byte gives the format. So a secret can be introduced, and the compression changed, while old records are
//! still there. Encrypted records are bound to their key: a record that was moved to another key cannot be read.

use std::fmt;

use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use steadfast_core::dedupe::{DedupeRecord, UnreadableRecord};
use steadfast_core::key::RecordKey;

/// Encodes and decodes records.
#[derive(Clone, Default)]
pub struct RecordCodec {
    secret: Option<Box<XChaCha20Poly1305>>,
}

/// The error for a secret of the wrong length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret for stored records has {length} bytes: give exactly 32 random ones")]
pub struct InvalidSecret {
    length: usize,
}

/// The reason why a stored record cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The record is encrypted, and there is no secret.
    #[error("the stored record is encrypted: give the secret that it was written with")]
    NoSecret,
    /// The record was encrypted with another secret, or it was changed or moved.
    #[error(
        "the stored record cannot be decrypted: it was written with another secret, or was changed since"
    )]
    WrongSecret,
    /// The bytes are not a record, or only a part of one.
    #[error("the stored record is damaged")]
    Damaged,
    /// The content is not a valid record.
    #[error("{0}")]
    Record(UnreadableRecord),
}

/// Below this size, compression does not pay: a file is written in whole pages, and a packet is sent anyway.
const WORTH_COMPRESSING: usize = 4096;
/// Largest size of a decompressed record. Records written by a store are far smaller.
const LONGEST: usize = 64 << 20;
const NONCE: usize = 24;

const PLAIN: u8 = b'p';
const COMPRESSED: u8 = b'c';
const ENCRYPTED: u8 = b'e';

impl RecordCodec {
    /// Creates a codec that encrypts records with this secret of 32 bytes.
    pub fn encrypted(secret: &[u8]) -> Result<Self, InvalidSecret> {
        let cipher =
            XChaCha20Poly1305::new_from_slice(secret).map_err(|_| InvalidSecret { length: secret.len() })?;
        Ok(Self { secret: Some(Box::new(cipher)) })
    }

    /// Returns the encoded record.
    pub fn encode(&self, record: &DedupeRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode_behind(&mut bytes, record);
        bytes
    }

    /// Appends the encoded record to these bytes.
    pub fn encode_behind(&self, bytes: &mut Vec<u8>, record: &DedupeRecord) {
        let begin = bytes.len();
        bytes.push(PLAIN);
        record.write_json(bytes);
        let json = bytes.get(begin + 1..).unwrap_or_default();
        if json.len() >= WORTH_COMPRESSING {
            let folded = lz4_flex::compress_prepend_size(json);
            bytes.truncate(begin);
            bytes.push(COMPRESSED);
            bytes.extend_from_slice(&folded);
        }
        let Some(cipher) = &self.secret else { return };
        let nonce = XNonce::generate();
        let compact = bytes.get(begin..).unwrap_or_default();
        let sealed = cipher.encrypt(&nonce, Payload { msg: compact, aad: record.key.0.as_bytes() });
        bytes.truncate(begin);
        bytes.push(ENCRYPTED);
        // Only a text of 256 GiB is refused. A record that could not be read later is not stored unencrypted either.
        if let Ok(sealed) = sealed {
            bytes.extend_from_slice(nonce.as_slice());
            bytes.extend_from_slice(&sealed);
        }
    }

    /// Decodes a stored record that was found under this key.
    pub fn decode(&self, key: RecordKey, stored: &[u8]) -> Result<DedupeRecord, DecodeError> {
        let (tag, body) = stored.split_first().ok_or(DecodeError::Damaged)?;
        let json = match *tag {
            PLAIN => body.to_vec(),
            COMPRESSED => unfold(body)?,
            ENCRYPTED => {
                let cipher = self.secret.as_ref().ok_or(DecodeError::NoSecret)?;
                let (nonce, sealed) = body.split_at_checked(NONCE).ok_or(DecodeError::Damaged)?;
                let nonce = XNonce::try_from(nonce).map_err(|_| DecodeError::Damaged)?;
                let payload = Payload { msg: sealed, aad: key.0.as_bytes() };
                let compact = cipher.decrypt(&nonce, payload).map_err(|_| DecodeError::WrongSecret)?;
                match compact.split_first() {
                    Some((&PLAIN, json)) => json.to_vec(),
                    Some((&COMPRESSED, folded)) => unfold(folded)?,
                    Some(_) | None => return Err(DecodeError::Damaged),
                }
            }
            _ => return Err(DecodeError::Damaged),
        };
        let json = String::from_utf8(json).map_err(|_| DecodeError::Damaged)?;
        let record = DedupeRecord::from_json(&json).map_err(DecodeError::Record)?;
        if record.key == key { Ok(record) } else { Err(DecodeError::Damaged) }
    }
}

/// Decompresses a record. Checks the announced length before it allocates.
fn unfold(body: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (length, folded) = lz4_flex::block::uncompressed_size(body).map_err(|_| DecodeError::Damaged)?;
    if length > LONGEST {
        return Err(DecodeError::Damaged);
    }
    lz4_flex::decompress(folded, length).map_err(|_| DecodeError::Damaged)
}

impl fmt::Debug for RecordCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret.is_some() { "Codec(encrypted)" } else { "Codec(plain)" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use steadfast_core::Timestamp;
    use steadfast_core::dedupe::{
        ClaimOwner, DedupeState, Lease, ProcessIdentity, RecordOrigin, SettleTime, UnknownOutcome,
        UnknownOutcomeReason,
    };
    use steadfast_core::id::{Digest, Namespace, RequestId, RunId, ToolName, ToolRef};
    use steadfast_core::output::ToolOutput;
    use steadfast_json::RawJson;

    use super::*;

    fn tagged(tag: u8, body: &[u8]) -> Vec<u8> {
        [&[tag], body].concat()
    }

    const SECRET: [u8; 32] = [7; 32];

    fn record(output: &str) -> DedupeRecord {
        let at = Timestamp::from_millis(1_762_338_645_007);
        let (namespace, tool) = (Namespace::new("bank").unwrap(), ToolName::new("pay").unwrap());
        DedupeRecord {
            key: RecordKey(Digest::of(b"key")),
            origin: RecordOrigin::Run,
            index: Some(RecordKey(Digest::of(b"index"))),
            call_id: None,
            tool: ToolRef { namespace, tool },
            state: DedupeState::Done(Some(ToolOutput { content: RawJson::string(output), metadata: None })),
            owner: ClaimOwner {
                process: ProcessIdentity { boot: "boot".into(), pid: 1, started: 2 },
                call: 3,
                claim: 4,
            },
            started: true,
            retry_safe: false,
            digest: Digest::of(b"arguments"),
            run: RunId("run".into()),
            lease: Lease::Until(at),
            end_observed_by: None,
            delivered: None,
            version: 2,
            arrived: at,
            created: at,
            updated: at,
            expires: Some(at),
            request: RequestId::new("request").unwrap(),
            tool_call: None,
            context: None,
            session: None,
            actor: None,
            tenant: None,
            attempts: Vec::new(),
        }
    }

    fn encrypted() -> RecordCodec {
        RecordCodec::encrypted(&SECRET).unwrap()
    }

    /// Every stored format: small and large, encrypted and not.
    fn forms() -> Vec<(RecordCodec, DedupeRecord, u8)> {
        let (small, large) = (record("paid"), record(&"paid ".repeat(2000)));
        vec![
            (RecordCodec::default(), small.clone(), PLAIN),
            (RecordCodec::default(), large.clone(), COMPRESSED),
            (encrypted(), small, ENCRYPTED),
            (encrypted(), large, ENCRYPTED),
        ]
    }

    #[test]
    fn a_record_comes_back_as_it_was_in_every_form() {
        for (codec, record, form) in forms() {
            let stored = codec.encode(&record);
            assert_eq!(stored.first(), Some(&form));
            assert_eq!(codec.decode(record.key, &stored).unwrap(), record);
        }
    }

    #[test]
    fn the_details_of_an_unknown_outcome_are_preserved() {
        let at = Timestamp::from_millis(1_762_338_645_008);
        let text_output = |text: &str| Some(ToolOutput { content: RawJson::string(text), metadata: None });
        for settles in [SettleTime::WhenOwnerReports, SettleTime::By(at), SettleTime::Settled] {
            for output in [None, text_output("perhaps"), text_output(&"perhaps ".repeat(2000))] {
                let unknown = UnknownOutcome {
                    settles,
                    observed: UnknownOutcomeReason::ConnectionLost,
                    details: Some("reset".into()),
                    output,
                };
                let state = DedupeState::Unknown(unknown);
                let record = DedupeRecord { state, end_observed_by: Some(at), ..record("") };
                for codec in [RecordCodec::default(), encrypted()] {
                    assert_eq!(codec.decode(record.key, &codec.encode(&record)).unwrap(), record);
                }
            }
        }
    }

    #[test]
    fn large_records_are_compressed_and_encrypted_ones_are_unreadable() {
        let large = record(&"paid ".repeat(2000));
        assert!(RecordCodec::default().encode(&large).len() < 2000);
        assert!(encrypted().encode(&large).len() < 2000, "compressed before it is encrypted");
        let small = record("paid");
        let holds = |stored: &[u8]| stored.windows(6).any(|part| part == b"\"paid\"");
        assert!(holds(&RecordCodec::default().encode(&small)));
        assert!(!holds(&encrypted().encode(&small)));
        assert_ne!(encrypted().encode(&small), encrypted().encode(&small), "no nonce is used twice");
    }

    #[test]
    fn a_secret_can_be_introduced_while_old_records_are_still_there() {
        let record = record("paid");
        let plain = RecordCodec::default().encode(&record);
        assert_eq!(encrypted().decode(record.key, &plain).unwrap(), record);
    }

    #[test]
    fn another_secret_or_none_reads_nothing() {
        let record = record("paid");
        let stored = encrypted().encode(&record);
        let other = RecordCodec::encrypted(&[8; 32]).unwrap();
        assert!(matches!(other.decode(record.key, &stored), Err(DecodeError::WrongSecret)));
        assert!(matches!(RecordCodec::default().decode(record.key, &stored), Err(DecodeError::NoSecret)));
        for length in [0, 31, 33] {
            let refused = RecordCodec::encrypted(&vec![7; length]).unwrap_err();
            assert!(refused.to_string().contains(&format!("has {length} bytes")), "{refused}");
        }
    }

    #[test]
    fn a_record_that_was_moved_is_not_read() {
        let elsewhere = RecordKey(Digest::of(b"another key"));
        for (codec, record, form) in forms() {
            let found = codec.decode(elsewhere, &codec.encode(&record));
            match form {
                ENCRYPTED => assert!(matches!(found, Err(DecodeError::WrongSecret)), "{found:?}"),
                _ => assert!(matches!(found, Err(DecodeError::Damaged)), "{found:?}"),
            }
        }
    }

    #[test]
    fn a_record_that_is_cut_or_changed_anywhere_is_refused() {
        for (codec, record, form) in forms() {
            let stored = codec.encode(&record);
            for end in 0..stored.len() {
                assert!(codec.decode(record.key, &stored[..end]).is_err(), "cut at {end}");
            }
            for place in 0..stored.len() {
                let mut changed = stored.clone();
                changed[place] ^= 1;
                let found = codec.decode(record.key, &changed);
                // An unencrypted record may be changed into another valid record, which cannot be detected. But it
                // must not cause a panic.
                assert!(found.is_err() || form != ENCRYPTED, "changed at {place}");
            }
        }
    }

    #[test]
    fn a_record_of_a_newer_version_is_reported() {
        let record = record("paid");
        let newer = record.to_json().replacen("\"format\":1", "\"format\":2", 1);
        let found = RecordCodec::default().decode(record.key, &tagged(PLAIN, newer.as_bytes()));
        assert!(matches!(found, Err(DecodeError::Record(UnreadableRecord::Newer(2)))), "{found:?}");
    }

    #[test]
    fn a_bomb_is_refused_before_anything_is_allocated() {
        let key = record("").key;
        let announces = |length: u32| tagged(COMPRESSED, &[&length.to_le_bytes()[..], &[0; 64]].concat());
        for length in [u32::MAX, (64 << 20) + 1] {
            assert!(matches!(
                RecordCodec::default().decode(key, &announces(length)),
                Err(DecodeError::Damaged)
            ));
        }
        // Announces a length within the limit, and decompresses to more.
        let mut forged = lz4_flex::compress_prepend_size(&vec![b' '; 1 << 20]);
        forged[..4].copy_from_slice(&1024_u32.to_le_bytes());
        assert!(matches!(
            RecordCodec::default().decode(key, &tagged(COMPRESSED, &forged)),
            Err(DecodeError::Damaged)
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(tag in "[pce]", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let key = record("").key;
            let stored = tagged(tag.as_bytes()[0], &bytes);
            for codec in [RecordCodec::default(), encrypted()] {
                prop_assert!(codec.decode(key, &stored).is_err());
                prop_assert!(codec.decode(key, &bytes).is_err());
            }
        }

        #[test]
        fn any_output_comes_back(text in ".{0,3000}") {
            let record = record(&text);
            for codec in [RecordCodec::default(), encrypted()] {
                prop_assert_eq!(codec.decode(record.key, &codec.encode(&record)).unwrap(), record.clone());
            }
        }
    }
}
