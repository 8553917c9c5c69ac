//! Where things are in this repository.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::Failure;

/// The top of the repository.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// What cargo builds into, and what we keep between runs.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => root().join(chosen),
        None => root().join("target"),
    }
}

/// A folder of our own below `target`.
pub(crate) fn scratch(name: &str) -> Result<PathBuf, Failure> {
    let path = target().join("xtask").join(name);
    fs::create_dir_all(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path)
}

/// Where tools are installed that this repository needs and the machine does not have.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// `PATH` with our own tools first.
pub(crate) fn search_path() -> OsString {
    let inherited = env::var_os("PATH").unwrap_or_default();
    let ours = tools().join("bin");
    let joined = env::join_paths(std::iter::once(ours).chain(env::split_paths(&inherited)));
    joined.unwrap_or(inherited)
}

/// A path as it is written in messages: from the top of the repository where it is below it.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Reads a text of the repository.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", shown(path)))
}

/// Writes a text of the repository, with the folders that lead to it.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = match path.parent() {
        Some(folder) => fs::create_dir_all(folder).and_then(|()| fs::write(path, text)),
        None => fs::write(path, text),
    };
    written.map_err(|error| format!("cannot write {}: {error}", shown(path)))
}
