//! What tests open: a configuration as text, in a folder of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use steadfast::{ConfigFile, Needed, Sources};

/// Folders of a test, gone with its thread: by then the runtime has ended, and nobody writes to them any more.
struct Folders(RefCell<Vec<PathBuf>>);

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in self.0.take() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

thread_local! {
    static FOLDERS: Folders = const { Folders(RefCell::new(Vec::new())) };
}

/// An empty folder that nobody else has, neither another test nor another run of them.
pub(crate) fn folder(test: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{process}-{number}"));
    // One of that name is of a process that was killed.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    FOLDERS.with(|folders| folders.0.borrow_mut().push(folder.clone()));
    folder
}

/// Sources with this file and this environment, and the memory store unless the file says otherwise.
pub(crate) fn sources(folder: &Path, name: &str, text: &str, environment: &[(&str, &str)]) -> Sources {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    let kind = ("STEADFAST_STORE_KIND", "memory");
    let environment: BTreeMap<String, String> =
        [kind].iter().chain(environment).map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Sources { files: vec![ConfigFile { path, needed: Needed::Always }], environment, ..Sources::default() }
}
