//! Names of keys and channels on the server.
//!
//! A Cluster spreads keys by their hash tag, and one script may only use keys with the same tag. So all keys of one
//! home ([`RecordKey::home`]) have the tag of one **district**. There are 256 districts, a fixed number, so that every
//! process can know the marker of each (see `markers`).
//!
//! | name | content |
//! | --- | --- |
//! | `<prefix>{<district>}:m` | the marker of the district |
//! | `<prefix>{<district>}:r:<key>` | a record, and the channel on which its end is published |
//! | `<prefix>{<district>}:i:<key>` | an index entry: the name of a record |
//! | `<prefix>{<district>}:d:<kind>:<id>` | a document |
//! | `<prefix>{<district>}:k:<kind>` | the set of documents of a kind in the district |
//! | `<prefix>documents` | the channel on which changes of documents are published |
//! | `<prefix>{<journal>}:j` | the entries of a journal |
//! | `<prefix>{<journal>}:s:<subject>` | the entries about a subject |

use steadfast_core::id::Digest;
use steadfast_core::key::RecordKey;
use steadfast_store::{DocumentKind, DocumentName, Journal};

/// The prefix of all names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefix(String);

/// The error for a text that is not a valid prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key prefix has at most 64 letters, digits and the signs : . _ -; choose another one")]
pub struct InvalidKeyPrefix;

impl KeyPrefix {
    /// Creates a prefix of up to 64 letters, digits and `: . _ -`. Other characters have a meaning in patterns or
    /// hash tags.
    pub fn new(text: &str) -> Result<Self, InvalidKeyPrefix> {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '_' | '-');
        if text.len() <= 64 && text.chars().all(fine) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidKeyPrefix)
        }
    }
}

impl Default for KeyPrefix {
    fn default() -> Self {
        Self("steadfast:".to_owned())
    }
}

/// A group of keys with the same hash tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyDistrict(pub(crate) u8);

impl KeyDistrict {
    /// Number of districts.
    pub(crate) const COUNT: usize = 256;
    /// Number of districts for documents. Documents are few, and can be listed fast if they are in the first
    /// districts only.
    const WITH_DOCUMENTS: u8 = 16;

    /// Returns all districts.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// Returns the districts with documents.
    pub(crate) fn with_documents() -> impl Iterator<Item = Self> {
        (0..Self::WITH_DOCUMENTS).map(Self)
    }

    /// Returns the district of a key.
    pub(crate) fn of(key: &RecordKey) -> Self {
        let [.., last] = key.home().0;
        Self(last)
    }

    /// Returns the district of a document.
    pub(crate) fn of_document(name: &DocumentName) -> Self {
        let [first, ..] = *Digest::of(name.to_string().as_bytes()).as_bytes();
        Self(first % Self::WITH_DOCUMENTS)
    }

    /// Returns the index in a list of all districts.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Builds and parses names.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    prefix: KeyPrefix,
    markers: Vec<String>,
}

impl KeyNames {
    pub(crate) fn new(prefix: KeyPrefix) -> Self {
        let mut names = Self { prefix, markers: Vec::new() };
        names.markers = KeyDistrict::all().map(|district| names.within(district, "m")).collect();
        names
    }

    pub(crate) fn marker(&self, district: KeyDistrict) -> &str {
        #[expect(clippy::indexing_slicing, reason = "there is a marker for every district")]
        &self.markers[district.index()]
    }

    pub(crate) fn record(&self, key: &RecordKey) -> String {
        self.of_key(key, b'r')
    }

    pub(crate) fn index(&self, key: &RecordKey) -> String {
        self.of_key(key, b'i')
    }

    pub(crate) fn document(&self, name: &DocumentName) -> String {
        self.within(KeyDistrict::of_document(name), &format!("d:{}:{}", name.kind.name(), name.id))
    }

    pub(crate) fn documents(&self, district: KeyDistrict, kind: DocumentKind) -> String {
        self.within(district, &format!("k:{}", kind.name()))
    }

    pub(crate) fn changes(&self) -> String {
        format!("{}documents", self.prefix.0)
    }

    pub(crate) fn journal(&self, journal: Journal) -> String {
        format!("{}{{{}}}:j", self.prefix.0, journal.name())
    }

    pub(crate) fn subject(&self, journal: Journal, subject: &str) -> String {
        format!("{}{{{}}}:s:{subject}", self.prefix.0, journal.name())
    }

    /// Returns the pattern that matches all records.
    pub(crate) fn all_records(&self) -> String {
        format!("{}{{??}}:r:*", self.prefix.0)
    }

    /// Returns the key whose record, or channel, has this name.
    pub(crate) fn key_of(&self, name: &[u8]) -> Option<RecordKey> {
        let rest = name.strip_prefix(self.prefix.0.as_bytes())?;
        let (tag, rest) = rest.split_at_checked("{..}:r:".len())?;
        let hex = std::str::from_utf8(rest).ok()?;
        let key = RecordKey(Digest::from_hex(hex)?);
        (tag == format!("{{{:02x}}}:r:", KeyDistrict::of(&key).0).as_bytes()).then_some(key)
    }

    fn within(&self, district: KeyDistrict, rest: &str) -> String {
        format!("{}{{{:02x}}}:{rest}", self.prefix.0, district.0)
    }

    /// Without formatting, because this runs several times for every call.
    fn of_key(&self, key: &RecordKey, kind: u8) -> String {
        let mut digits = [0; 64];
        for (place, byte) in digits.chunks_exact_mut(2).zip(key.0.as_bytes()) {
            place.copy_from_slice(&hex(*byte));
        }
        let mut name = Vec::with_capacity(self.prefix.0.len() + 7 + digits.len());
        name.extend_from_slice(self.prefix.0.as_bytes());
        let [high, low] = hex(KeyDistrict::of(key).0);
        name.extend_from_slice(&[b'{', high, low, b'}', b':', kind, b':']);
        name.extend_from_slice(&digits);
        // A prefix is plain text, and so is the rest.
        String::from_utf8(name).unwrap_or_default()
    }
}

fn hex(byte: u8) -> [u8; 2] {
    // Without a branch, because digits are as random as keys.
    let digit = |nibble: u8| b'0' + nibble + 39 * u8::from(nibble > 9);
    [digit(byte >> 4), digit(byte & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_and_its_index_share_the_tag_of_their_home() {
        let names = KeyNames::new(KeyPrefix::default());
        let key = RecordKey(Digest::of(b"a call"));
        let hex: String = key.0.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let tag = &hex[62..];
        assert_eq!(names.record(&key), format!("steadfast:{{{tag}}}:r:{hex}"));
        assert_eq!(names.index(&key), format!("steadfast:{{{tag}}}:i:{hex}"));
        assert_eq!(names.marker(KeyDistrict::of(&key)), format!("steadfast:{{{tag}}}:m"));
        assert_eq!(names.key_of(names.record(&key).as_bytes()), Some(key));
        assert_eq!(names.key_of(names.index(&key).as_bytes()), None);
        assert_eq!(names.key_of(b"steadfast:{00}:r:\xff\xff"), None);
    }

    #[test]
    fn a_prefix_has_no_character_that_is_special_in_redis() {
        for fine in ["", "steadfast:", "team-a.steadfast:prod_1:"] {
            assert!(KeyPrefix::new(fine).is_ok(), "{fine}");
        }
        for bad in ["a{b", "a}b", "a*", "a?", "a[b", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert_eq!(KeyPrefix::new(bad), Err(InvalidKeyPrefix), "{bad}");
        }
    }
}
