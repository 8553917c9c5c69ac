//! Sources for tests: a configuration as text, in a folder of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use steadfast::config::{ConfigFile, FileRequirement, Sources};

/// Folders of a test, removed with its thread: by then the runtime has ended and writes nothing more.
struct TestFolders(RefCell<Vec<PathBuf>>);

impl Drop for TestFolders {
    fn drop(&mut self) {
        for folder in self.0.take() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

thread_local! {
    static FOLDERS: TestFolders = const { TestFolders(RefCell::new(Vec::new())) };
}

/// Creates an empty folder that no other test and no other run uses.
pub(crate) fn folder(test: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{process}-{number}"));
    // A folder with that name belongs to a process that was killed.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    FOLDERS.with(|folders| folders.0.borrow_mut().push(folder.clone()));
    folder
}

/// Returns sources with this file and this environment. The store is in memory unless the file says otherwise.
pub(crate) fn sources(folder: &Path, name: &str, text: &str, environment: &[(&str, &str)]) -> Sources {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    let kind = ("STEADFAST_STORE_KIND", "memory");
    let environment: BTreeMap<String, String> =
        [kind].iter().chain(environment).map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Sources {
        files: vec![ConfigFile { path, needed: FileRequirement::Always }],
        environment,
        ..Sources::default()
    }
}
