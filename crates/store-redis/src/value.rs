//! The stored form of a record: a head of fixed length, then the record as the codec encoded it.
//!
//! ```text
//! 0        28        36      37       45          53
//! │ owner   │ version │ state │ lease  │ delivered │ record …
//! └───────────────────┘
//!        stamp
//! ```
//!
//! The **stamp** identifies the content: every writer of a record gives it another owner or the next version. So a
//! script can compare the first 36 bytes of a record with those that a decision was based on, and never has to parse
//! it. The rest of the head is what a waiter needs (in flight or not, and until when), and the delivery mark, which
//! can be set without resending a result of 8 MiB. Version and mark in the head are current. Those in the record were
//! current when it was written.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{ClaimOwner, DedupeRecord, DedupeState, Lease, ProcessIdentity};
use steadfast_core::id::Digest;
use steadfast_core::key::RecordKey;
use steadfast_store::{DecodeError, RecordCodec};

/// The identity of the content of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentStamp([u8; ContentStamp::LENGTH]);

impl ContentStamp {
    pub(crate) const LENGTH: usize = OwnerMark::LENGTH + 8;

    pub(crate) fn new(owner: OwnerMark, version: u64) -> Self {
        let mut bytes = [0; Self::LENGTH];
        let (head, tail) = bytes.split_at_mut(OwnerMark::LENGTH);
        head.copy_from_slice(&owner.0);
        tail.copy_from_slice(&version.to_be_bytes());
        Self(bytes)
    }

    /// Returns the stamp of a document, which has no owner.
    pub(crate) fn of_version(version: u64) -> Self {
        Self::new(OwnerMark::UNOWNED, version)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn owner(&self) -> OwnerMark {
        OwnerMark(self.0.first_chunk().copied().unwrap_or([0; OwnerMark::LENGTH]))
    }
}

/// The identity of an owner: 16 bytes for its process, and the numbers of its call and claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerMark([u8; OwnerMark::LENGTH]);

impl OwnerMark {
    const PROCESS: usize = 16;
    const LENGTH: usize = Self::PROCESS + 8 + 4;

    /// The mark of a value without an owner.
    pub(crate) const UNOWNED: Self = Self([0; Self::LENGTH]);

    fn new(process: &[u8; Self::PROCESS], owner: &ClaimOwner) -> Self {
        let mut bytes = [0; Self::LENGTH];
        let parts = process.iter().copied().chain(owner.call.to_be_bytes()).chain(owner.claim.to_be_bytes());
        for (place, byte) in bytes.iter_mut().zip(parts) {
            *place = byte;
        }
        Self(bytes)
    }
}

/// Computes the marks of owners. The part for the process needs a hash, and is nearly always the same as the last
/// one.
#[derive(Debug, Default)]
pub(crate) struct OwnerMarks {
    last: Mutex<Option<(ProcessIdentity, [u8; OwnerMark::PROCESS])>>,
}

impl OwnerMarks {
    pub(crate) fn of(&self, owner: &ClaimOwner) -> OwnerMark {
        let mut last = self.last.lock();
        if let Some((process, mark)) = &*last
            && *process == owner.process
        {
            return OwnerMark::new(mark, owner);
        }
        let ProcessIdentity { boot, pid, started } = &owner.process;
        let digest = Digest::of(format!("{boot}\n{pid}\n{started}").as_bytes());
        let mark = digest.as_bytes().first_chunk().copied().unwrap_or_default();
        *last = Some((owner.process.clone(), mark));
        OwnerMark::new(&mark, owner)
    }
}

/// A record with the mark of its owner.
#[derive(Clone, Debug)]
pub(crate) struct MarkedRecord {
    pub(crate) record: Arc<DedupeRecord>,
    pub(crate) owner: OwnerMark,
}

impl MarkedRecord {
    pub(crate) fn new(record: Arc<DedupeRecord>, marks: &OwnerMarks) -> Self {
        let owner = marks.of(&record.owner);
        Self { record, owner }
    }

    pub(crate) fn stamp(&self) -> ContentStamp {
        ContentStamp::new(self.owner, self.record.version)
    }
}

/// The head of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) stamp: ContentStamp,
    /// The lease of the claim, or `None` if the record is not in flight.
    pub(crate) holds: Option<Lease>,
    delivered: Option<Timestamp>,
}

const IN_FLIGHT: u8 = b'i';
const SETTLED: u8 = b's';
/// The stored form of a missing time.
const NEVER: u64 = u64::MAX;

impl RecordHead {
    pub(crate) const LENGTH: usize = ContentStamp::LENGTH + 1 + 8 + 8;

    pub(crate) fn of(record: &DedupeRecord, owner: OwnerMark) -> Self {
        let holds = match record.state {
            DedupeState::Inflight => Some(record.lease),
            DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Unknown(_)
            | DedupeState::Cancelled => None,
        };
        Self { stamp: ContentStamp::new(owner, record.version), holds, delivered: record.delivered }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let lease = match self.holds {
            Some(Lease::Until(until)) => until.as_millis(),
            Some(Lease::Record) | None => NEVER,
        };
        let delivered = self.delivered.map_or(NEVER, Timestamp::as_millis);
        let mut bytes = [0; Self::LENGTH];
        let state = if self.holds.is_some() { IN_FLIGHT } else { SETTLED };
        let parts =
            self.stamp.0.into_iter().chain([state]).chain(lease.to_be_bytes()).chain(delivered.to_be_bytes());
        for (place, byte) in bytes.iter_mut().zip(parts) {
            *place = byte;
        }
        bytes
    }

    /// Reads the head of a value, or returns `None` for a foreign value.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let (stamp, rest) = value.split_first_chunk::<{ ContentStamp::LENGTH }>()?;
        let (state, rest) = rest.split_first()?;
        let (lease, rest) = rest.split_first_chunk::<8>()?;
        let (delivered, _) = rest.split_first_chunk::<8>()?;
        let time = |bytes: &[u8; 8]| match u64::from_be_bytes(*bytes) {
            NEVER => None,
            millis => Some(Timestamp::from_millis(millis)),
        };
        let holds = match *state {
            IN_FLIGHT => Some(time(lease).map_or(Lease::Record, Lease::Until)),
            SETTLED => None,
            _ => return None,
        };
        Some(Self { stamp: ContentStamp(*stamp), holds, delivered: time(delivered) })
    }

    fn version(&self) -> u64 {
        self.stamp.0.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}

/// Returns the value of a record.
pub(crate) fn encode(codec: &RecordCodec, record: &DedupeRecord, owner: OwnerMark) -> Vec<u8> {
    let mut value = RecordHead::of(record, owner).to_bytes().to_vec();
    codec.encode_behind(&mut value, record);
    value
}

/// Decodes a value that was found under this key.
pub(crate) fn decode(codec: &RecordCodec, key: RecordKey, value: &[u8]) -> Result<MarkedRecord, DecodeError> {
    let head = RecordHead::read(value).ok_or(DecodeError::Damaged)?;
    let body = value.get(RecordHead::LENGTH..).ok_or(DecodeError::Damaged)?;
    let record = codec.decode(key, body)?;
    let record = DedupeRecord { version: head.version(), delivered: head.delivered, ..record };
    Ok(MarkedRecord { record: Arc::new(record), owner: head.stamp.owner() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_owners_have_the_same_mark() {
        let process = |boot: &str, pid, started| ProcessIdentity { boot: boot.into(), pid, started };
        let owners = [
            (process("a", 1, 1), 1, 1),
            (process("b", 1, 1), 1, 1),
            (process("a", 2, 1), 1, 1),
            (process("a", 1, 2), 1, 1),
            (process("a", 1, 1), 2, 1),
            (process("a", 1, 1), 1, 2),
            (process("a", 1, 1), 1, u32::MAX),
            (process("a", 1, 1), u64::MAX, 1),
        ]
        .map(|(process, call, claim)| ClaimOwner { process, call, claim });
        let marks = OwnerMarks::default();
        for (at, owner) in owners.iter().enumerate() {
            let mark = marks.of(owner);
            assert_eq!(mark, OwnerMarks::default().of(owner), "whatever was marked before");
            for other in &owners[..at] {
                assert_ne!(mark, marks.of(other), "{owner:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_head_reads_as_it_was_written_and_anything_else_is_refused() {
        let at = Timestamp::from_millis;
        for holds in [None, Some(Lease::Record), Some(Lease::Until(at(17)))] {
            for delivered in [None, Some(at(0)), Some(at(99))] {
                let head = RecordHead { stamp: ContentStamp::of_version(7), holds, delivered };
                let bytes = head.to_bytes();
                assert_eq!(RecordHead::read(&bytes), Some(head));
                assert_eq!(head.version(), 7);
                for short in 0..bytes.len() {
                    assert_eq!(RecordHead::read(&bytes[..short]), None);
                }
                let mut strange = bytes;
                strange[ContentStamp::LENGTH] = b'?';
                assert_eq!(RecordHead::read(&strange), None);
            }
        }
    }
}
