//! Installs the servers and clients from npm and PyPI that the gateway is tested with, the host that the OpenClaw plugin
//! is tested with, and the browser for the dashboard.
//!
//! `tests/gateway/real` and `tests/openclaw/host` pin them with all dependencies. They are installed below `target`, where
//! the tests look for them. They are not installed again while the pins are the same and the installed programs still
//! run.

use std::path::{Path, PathBuf};
use std::{fs, thread};

use crate::invocation::Invocation;
use crate::machine::{CHROMIUM, NPM, PYTHON};
use crate::{TaskFailure, step, workspace};

/// Runs `cargo xtask setup`.
pub(crate) fn run() -> Result<(), TaskFailure> {
    let missing = step::set_up([&NPM, &PYTHON])?;
    if !missing.is_empty() {
        return Err(missing.into_values().collect::<Vec<_>>().join("\n"));
    }
    let places = PackageSource::ALL.into_iter().map(PackageSource::place).collect::<Result<Vec<_>, _>>()?;
    // Each mostly waits for its registry, so all together take no longer than the slowest one.
    thread::scope(|scope| {
        let installing: Vec<_> = places.iter().map(|place| scope.spawn(|| place.install())).collect();
        let installed = installing.into_iter().map(|one| {
            one.join().unwrap_or_else(|_| Err("the installation of a package panicked".to_owned()))
        });
        // All of them end before the first failure is reported.
        installed.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()
    })?;
    // Last, because only the tests of the dashboard need it.
    match step::set_up([&CHROMIUM])?.into_values().next() {
        Some(advice) => Err(advice),
        None => Ok(()),
    }
}

#[derive(Clone, Copy)]
enum PackageSource {
    Node,
    Python,
    /// OpenClaw, which the Node of [`Self::Node`] runs.
    OpenClaw,
}

/// Folder and pins of one kind of package.
struct InstallFolder {
    kind: PackageSource,
    folder: PathBuf,
    /// Contents of the files that pin versions.
    pins: Vec<(&'static str, String)>,
}

impl PackageSource {
    const ALL: [Self; 3] = [Self::Node, Self::Python, Self::OpenClaw];

    fn place(self) -> Result<InstallFolder, TaskFailure> {
        let (name, source, files): (_, _, &[_]) = match self {
            Self::Node => ("node", "tests/gateway/real/node", &["package.json", "package-lock.json"]),
            Self::Python => ("python", "tests/gateway/real/python", &["requirements.txt"]),
            Self::OpenClaw => ("openclaw", "tests/openclaw/host", &["package.json", "package-lock.json"]),
        };
        let source = workspace::root().join(source);
        let pins = files.iter().map(|&file| Ok((file, workspace::read(&source.join(file))?)));
        let pins = pins.collect::<Result<_, TaskFailure>>()?;
        Ok(InstallFolder { kind: self, folder: workspace::scratch(&format!("real/{name}"))?, pins })
    }

    /// Returns a command that succeeds only if the package is installed.
    fn probe(self, folder: &Path) -> Invocation {
        match self {
            Self::Node => Invocation::of(&within(folder, "node_modules/.bin/node"), &["--version"]),
            Self::Python => Invocation::of(&within(folder, "bin/python"), &["--version"]),
            // The host needs another Node than that of the machine, and the compiler runs on any.
            Self::OpenClaw => Invocation::of(&within(folder, "node_modules/.bin/tsc"), &["--version"]),
        }
    }

    fn installers(self, folder: &Path) -> Vec<Invocation> {
        let here = folder.display().to_string();
        match self {
            // Not `npm ci`: it refuses a lock file that lacks packages of other systems, which not every registry has.
            Self::Node => vec![Invocation::of(
                "npm",
                &["install", "--prefix", &here, "--no-audit", "--no-fund", "--loglevel=error"],
            )],
            // Its own install script only checks the version of the machine's Node.
            Self::OpenClaw => vec![Invocation::of(
                "npm",
                &[
                    "install",
                    "--prefix",
                    &here,
                    "--ignore-scripts",
                    "--no-audit",
                    "--no-fund",
                    "--loglevel=error",
                ],
            )],
            Self::Python => vec![
                Invocation::of("python3", &["-m", "venv", &here]),
                Invocation::of(
                    &within(folder, "bin/pip"),
                    // The lock file has all dependencies, so nothing needs to be resolved.
                    &[
                        "install",
                        "--quiet",
                        "--disable-pip-version-check",
                        "--no-deps",
                        "-r",
                        &within(folder, "requirements.txt"),
                    ],
                ),
            ],
        }
    }
}

impl InstallFolder {
    fn install(&self) -> Result<(), TaskFailure> {
        if self.is_there() {
            return Ok(());
        }
        // Existing contents are older or incomplete.
        let emptied = fs::remove_dir_all(&self.folder).and_then(|()| fs::create_dir_all(&self.folder));
        emptied.map_err(|error| format!("cannot empty {}: {error}", workspace::shown(&self.folder)))?;
        for (file, text) in &self.pins {
            workspace::write(&self.folder.join(file), text)?;
        }
        for installer in self.kind.installers(&self.folder) {
            eprint!("{}", installer.output()?);
        }
        // Written last, so that it is absent after an interrupted installation.
        workspace::write(&self.folder.join(STAMP), &self.stamp())
    }

    fn is_there(&self) -> bool {
        fs::read_to_string(self.folder.join(STAMP)).is_ok_and(|stamp| stamp == self.stamp())
            && self.kind.probe(&self.folder).probe().is_some()
    }

    fn stamp(&self) -> String {
        self.pins.iter().map(|(_, text)| text.as_str()).collect()
    }
}

/// File that records the installed versions.
const STAMP: &str = "installed";

fn within(folder: &Path, path: &str) -> String {
    folder.join(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_have_one_version_and_no_registry() {
        for kind in PackageSource::ALL {
            for (file, text) in kind.place().unwrap().pins {
                assert!(!text.contains("://"), "{file} names an address");
                let pinned = match kind {
                    PackageSource::Node | PackageSource::OpenClaw => {
                        !text.contains("\": \"latest\"") && !text.contains("\"resolved\"")
                    }
                    PackageSource::Python => text
                        .lines()
                        .filter(|line| !line.is_empty() && !line.starts_with('#'))
                        .all(|line| line.contains("==")),
                };
                assert!(pinned, "{file}");
            }
        }
    }

    #[test]
    fn incomplete_and_outdated_installations_are_not_used() {
        let folder = workspace::scratch("test of what is installed").unwrap();
        let place = InstallFolder {
            kind: PackageSource::Python,
            folder,
            pins: vec![("requirements.txt", "a==1\n".to_owned())],
        };
        let _ = fs::remove_file(place.folder.join(STAMP));
        assert!(!place.is_there(), "cut off");
        workspace::write(&place.folder.join(STAMP), "a==0\n").unwrap();
        assert!(!place.is_there(), "another version");
        workspace::write(&place.folder.join(STAMP), "a==1\n").unwrap();
        assert!(!place.is_there(), "there by its own word, but nothing runs");
    }
}
