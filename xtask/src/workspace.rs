//! Paths in this repository.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::TaskFailure;

/// Returns the root of the repository.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Returns the folder of cargo's output and of files that are kept between runs.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => root().join(chosen),
        None => root().join("target"),
    }
}

/// Returns a folder below `target` for this program.
pub(crate) fn scratch(name: &str) -> Result<PathBuf, TaskFailure> {
    let path = target().join("xtask").join(name);
    fs::create_dir_all(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path)
}

/// Returns the folder for tools that this repository needs and the machine does not have.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// Returns `PATH` with that folder first.
pub(crate) fn search_path() -> OsString {
    let inherited = env::var_os("PATH").unwrap_or_default();
    let tool_folder = tools().join("bin");
    let joined = env::join_paths(std::iter::once(tool_folder).chain(env::split_paths(&inherited)));
    joined.unwrap_or(inherited)
}

/// Formats a path for messages: relative to the root of the repository if it is below it.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String, TaskFailure> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", shown(path)))
}

/// Writes a text file and creates its parent folders.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), TaskFailure> {
    let written = match path.parent() {
        Some(folder) => fs::create_dir_all(folder).and_then(|()| fs::write(path, text)),
        None => fs::write(path, text),
    };
    written.map_err(|error| format!("cannot write {}: {error}", shown(path)))
}
