//! The bodies of the fuzz targets.
//!
//! Each body is a plain function over bytes that panics when a property is violated. cargo-fuzz calls it from
//! `fuzz/fuzz_targets`. The test below calls it with every file in `fuzz/corpus/<target>`, so that every earlier
//! finding is checked in every normal run, without cargo-fuzz.

mod call_events;
mod canonical;
mod classify;
mod draw;
mod envelope;
mod reader;

pub use call_events::call_events;
pub use canonical::canonical;
pub use classify::classify;
pub use envelope::envelope;

/// A function that takes any bytes. It must neither panic nor take long.
pub type FuzzBody = fn(&[u8]);

/// All targets by name: the name of the file in `fuzz/fuzz_targets` and of the folder in `fuzz/corpus`.
pub const TARGETS: [(&str, FuzzBody); 4] =
    [("envelope", envelope), ("canonical", canonical), ("classify", classify), ("call_events", call_events)];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_of_the_corpus_passes_its_target() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
        for (name, body) in TARGETS {
            let mut files: Vec<_> =
                std::fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            assert!(!files.is_empty(), "there is no corpus for {name}");
            for file in files {
                let input = std::fs::read(&file).unwrap();
                let passed = std::panic::catch_unwind(|| body(&input));
                assert!(passed.is_ok(), "{name} failed on {}", file.display());
            }
        }
    }

    #[test]
    fn every_target_of_cargo_fuzz_has_a_body() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz_targets");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        files.sort();
        let mut targets = TARGETS.map(|(name, _)| name);
        targets.sort();
        assert_eq!(files, targets);
    }
}
