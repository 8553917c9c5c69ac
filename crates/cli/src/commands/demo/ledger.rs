//! The ledger of the bank: a temporary file that its servers append to and that the demo counts from.
//!
//! An entry is a line with a JSON list of words, so that no argument of a client can be mistaken for another entry. An
//! entry in the file was done, whatever happened to the server afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{process, thread};

use super::clients::RESPONSE_TIMEOUT;
use crate::support::failure::CommandFailure;

/// The ledger of a bank, for its servers and the demo.
#[derive(Clone, Debug)]
pub(super) struct BankLedger {
    path: PathBuf,
}

/// A ledger whose file is removed on drop.
#[derive(Debug)]
pub(super) struct LedgerFile {
    ledger: BankLedger,
}

/// Maximum size. A demo needs no more, and a gateway that is left running must not fill the disk.
const LARGEST: u64 = 1 << 20;

impl BankLedger {
    pub(super) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes an entry. The file must exist: a server that outlives the demo does not create it again.
    pub(super) fn write(&self, entry: &[&str]) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(&self.path)?;
        if file.metadata()?.len() > LARGEST {
            return Err(io::Error::other("the ledger of this demo is full; start it again"));
        }
        file.write_all(format!("{}\n", serde_json::json!(entry)).as_bytes())
    }

    /// Returns the number of entries that begin with these words.
    pub(super) fn count(&self, words: &[&str]) -> usize {
        self.entries().iter().filter(|entry| begins(entry, words)).count()
    }

    /// Returns the total of all payments, in cents.
    pub(super) fn paid(&self) -> u64 {
        let paid = |entry: &Vec<String>| match entry.as_slice() {
            [word, _, cents] if word == "paid" => cents.parse().unwrap_or(0),
            _ => 0,
        };
        self.entries().iter().map(paid).fold(0, u64::saturating_add)
    }

    /// Waits until an entry begins with these words. Returns false on timeout.
    pub(super) async fn shows(&self, words: &[&str]) -> bool {
        let polling = async {
            while self.count(words) == 0 {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(RESPONSE_TIMEOUT, polling).await.is_ok()
    }

    /// Blocks the thread until an entry begins with these words, or until a timeout.
    pub(super) fn waits_for(&self, words: &[&str]) {
        let began = Instant::now();
        while self.count(words) == 0 && began.elapsed() < RESPONSE_TIMEOUT {
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn entries(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);

fn begins(entry: &[String], words: &[&str]) -> bool {
    entry.len() >= words.len() && entry.iter().zip(words).all(|(written, word)| written == word)
}

impl LedgerFile {
    /// Creates a new ledger, readable for this user only.
    pub(super) fn new(name: &str) -> Result<Self, CommandFailure> {
        let folder = std::env::temp_dir();
        let file = |number: u32| folder.join(format!("steadfast-demo-{}-{name}-{number}", process::id()));
        for path in (0..100).map(file) {
            match create(&path) {
                Ok(_) => return Ok(Self { ledger: BankLedger { path } }),
                // Left behind by a killed process with the same process id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let shown = path.display();
                    return Err(CommandFailure::Environment(format!(
                        "the demo needs one temporary file, and {shown} cannot be created: {error}"
                    )));
                }
            }
        }
        Err(CommandFailure::Environment(format!(
            "{} is full of ledgers of earlier demos: remove them",
            folder.display()
        )))
    }
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl std::ops::Deref for LedgerFile {
    type Target = BankLedger;

    fn deref(&self) -> &BankLedger {
        &self.ledger
    }
}

impl Drop for LedgerFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.ledger.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_by_their_first_words_and_the_file_goes_with_its_owner() {
        let file = LedgerFile::new("unit").unwrap();
        file.write(&["asked", "pay", "a \"b\"\n[\"paid\"]"]).unwrap();
        file.write(&["paid", "INV-1", "1250"]).unwrap();
        file.write(&["paid", "INV-1", "1250"]).unwrap();
        assert_eq!((file.count(&["paid", "INV-1"]), file.count(&["asked"]), file.count(&[])), (2, 1, 3));
        assert_eq!(file.paid(), 2500);
        let ledger = file.ledger.clone();
        drop(file);
        assert!(!ledger.path().exists());
        assert!(ledger.write(&["late"]).is_err() && !ledger.path().exists());
    }
}
