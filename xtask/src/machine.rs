//! Programs that the steps need, and their installation.
//!
//! Each [`RequiredProgram`] defines how to check that it is there, how to install it, and the advice for a machine on which
//! installation is not allowed. A step names its needs. A need that cannot be installed fails the steps that use it and
//! no others: no step passes because it could not be run.
//!
//! To add one, write a constant and name it in the steps that need it. A new way to install (npm, pip) is a variant of
//! [`Install`], for which the compiler requires a command and advice.

use std::path::Path;

use crate::invocation::Invocation;
use crate::workspace;

/// A program that must be on the machine before a step can run.
#[derive(Debug)]
pub(crate) struct RequiredProgram {
    pub(crate) name: &'static str,
    /// A command that succeeds only if it is there, and its expected output.
    probe: (&'static [&'static str], &'static str),
    install: Install,
}

/// Method of installation.
#[derive(Debug)]
enum Install {
    /// Built from the registry into a folder below `target`, so that neither root nor the user's home is changed.
    Cargo { package: &'static str, version: &'static str },
    /// Downloaded from PyPI into the same folder.
    Pip { package: &'static str, version: &'static str },
    /// A component of the Rust toolchain that a minimal installation leaves out.
    Component(&'static str),
    /// A package of Debian and its derivatives. Needs root.
    Debian(&'static str),
}

pub(crate) const RUSTFMT: RequiredProgram = RequiredProgram {
    name: "rustfmt",
    probe: (&["cargo", "fmt", "--version"], "rustfmt"),
    install: Install::Component("rustfmt"),
};

pub(crate) const CLIPPY: RequiredProgram = RequiredProgram {
    name: "clippy",
    probe: (&["cargo", "clippy", "--version"], "clippy"),
    install: Install::Component("clippy"),
};

pub(crate) const CARGO_DENY: RequiredProgram = RequiredProgram {
    name: "cargo-deny",
    probe: (&["cargo-deny", "--version"], "cargo-deny 0.20.2"),
    install: Install::Cargo { package: "cargo-deny", version: "0.20.2" },
};

pub(crate) const CARGO_FUZZ: RequiredProgram = RequiredProgram {
    name: "cargo-fuzz",
    probe: (&["cargo-fuzz", "--version"], "cargo-fuzz 0.13.2"),
    install: Install::Cargo { package: "cargo-fuzz", version: "0.13.2" },
};

pub(crate) const CARGO_MUTANTS: RequiredProgram = RequiredProgram {
    name: "cargo-mutants",
    probe: (&["cargo-mutants", "mutants", "--version"], "cargo-mutants 27.1.0"),
    install: Install::Cargo { package: "cargo-mutants", version: "27.1.0" },
};

/// libFuzzer is compiled from C++ with every fuzz target.
pub(crate) const CXX: RequiredProgram = RequiredProgram {
    name: "a C++ compiler",
    probe: (&["c++", "--version"], ""),
    install: Install::Debian("g++"),
};

/// Reads alert rules and runs their tests.
pub(crate) const PROMTOOL: RequiredProgram = RequiredProgram {
    name: "promtool",
    probe: (&["promtool", "--version"], ""),
    install: Install::Debian("prometheus"),
};

/// The tests of the shared store start real servers.
pub(crate) const REDIS: RequiredProgram = RequiredProgram {
    name: "redis-server",
    probe: (&["redis-server", "--version"], "Redis server"),
    install: Install::Debian("redis-server"),
};

/// Installs Node packages, including Node itself.
pub(crate) const NPM: RequiredProgram =
    RequiredProgram { name: "npm", probe: (&["npm", "--version"], ""), install: Install::Debian("npm") };

/// Python with its own command to create a folder of packages.
pub(crate) const PYTHON: RequiredProgram = RequiredProgram {
    name: "python3 with venv",
    probe: (&["python3", "-c", "import venv, ensurepip"], ""),
    install: Install::Debian("python3-venv"),
};

/// The tests of the dashboard use a real browser. The headless build takes half of the processor time.
pub(crate) const CHROMIUM: RequiredProgram = RequiredProgram {
    name: "chromium-headless-shell",
    probe: (&["chromium-headless-shell", "--version"], "Chromium"),
    install: Install::Debian("chromium-headless-shell"),
};

/// Finds spelling errors in code and documentation.
pub(crate) const TYPOS: RequiredProgram = RequiredProgram {
    name: "typos",
    probe: (&["typos", "--version"], "typos-cli 1.51.1"),
    install: Install::Pip { package: "typos", version: "1.51.1" },
};

impl RequiredProgram {
    /// Returns true if it is there in the required version.
    pub(crate) fn is_met(&self) -> bool {
        let (command, words) = self.probe;
        let Some((program, arguments)) = command.split_first() else { return false };
        match *program {
            "cargo" => Invocation::cargo(arguments),
            other => Invocation::of(other, arguments),
        }
        .probe()
        .is_some_and(|printed| printed.contains(words))
    }

    /// Returns the command that installs it here, or the reason why that is not allowed.
    pub(crate) fn installer(&self) -> Result<Invocation, &'static str> {
        self.install.command(MachineRights::of_this_machine())
    }

    /// Returns advice for a manual installation.
    pub(crate) fn advice(&self) -> String {
        let instruction = match self.install {
            Install::Cargo { package, version } => format!("`cargo install --locked {package}@{version}`"),
            Install::Pip { package, version } => format!("`pipx install {package}=={version}`"),
            Install::Component(component) => {
                format!("`rustup component add {component}`, or the package of your system that brings it")
            }
            Install::Debian(package) => {
                format!("`apt-get install {package}` as root, or the package of your system that brings it")
            }
        };
        format!("{} is missing; install it with {instruction}", self.name)
    }
}

impl Install {
    fn command(&self, rights: MachineRights) -> Result<Invocation, &'static str> {
        match *self {
            // The tool runs for a second, so link-time and other optimizations are not worth their build time.
            Self::Cargo { package, version } => {
                let spec = format!("{package}@{version}");
                let tools = workspace::tools().display().to_string();
                Ok(Invocation::cargo(&["install", "--locked", "--root", &tools, &spec])
                    .env("CARGO_PROFILE_RELEASE_LTO", "off")
                    .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                    .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"))
            }
            Self::Pip { package, version } => {
                let tools = workspace::tools().display().to_string();
                let line = format!(
                    "python3 -m venv '{tools}/python' && '{tools}/python/bin/pip' install --quiet \
                     --disable-pip-version-check --prefix '{tools}' '{package}=={version}'"
                );
                Ok(Invocation::of("sh", &["-c", &line]))
            }
            Self::Component(component) if rights.has_rustup => {
                Ok(Invocation::of("rustup", &["component", "add", component]))
            }
            Self::Component(_) => Err("this Rust did not come from rustup"),
            Self::Debian(package) if rights.is_debian_root => {
                let line =
                    format!("apt-get update && apt-get install --yes --no-install-recommends {package}");
                Ok(Invocation::of("sh", &["-c", &line]).env("DEBIAN_FRONTEND", "noninteractive"))
            }
            Self::Debian(_) => Err("that needs root on Debian or a relative of it"),
        }
    }
}

/// Permissions to change this machine.
#[derive(Clone, Copy, Debug)]
struct MachineRights {
    has_rustup: bool,
    is_debian_root: bool,
}

impl MachineRights {
    fn of_this_machine() -> Self {
        Self {
            has_rustup: Invocation::of("rustup", &["--version"]).probe().is_some(),
            is_debian_root: Path::new("/etc/debian_version").exists()
                && Invocation::of("id", &["-u"]).probe().is_some_and(|user| user.trim() == "0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: MachineRights = MachineRights { has_rustup: false, is_debian_root: false };
    const ALL: MachineRights = MachineRights { has_rustup: true, is_debian_root: true };
    const EVERY_NEED: [RequiredProgram; 12] = [
        RUSTFMT,
        CLIPPY,
        CARGO_DENY,
        CARGO_FUZZ,
        CARGO_MUTANTS,
        CXX,
        PROMTOOL,
        REDIS,
        NPM,
        PYTHON,
        CHROMIUM,
        TYPOS,
    ];

    #[test]
    fn with_all_rights_everything_can_be_installed() {
        for need in EVERY_NEED {
            assert!(need.install.command(ALL).is_ok(), "{}", need.name);
        }
    }

    #[test]
    fn without_rights_only_registries_install_and_other_needs_have_reasons() {
        for need in EVERY_NEED {
            let command = need.install.command(NONE);
            match need.install {
                Install::Cargo { .. } | Install::Pip { .. } => assert!(command.is_ok(), "{}", need.name),
                Install::Component(_) | Install::Debian(_) => assert!(command.is_err(), "{}", need.name),
            }
        }
    }

    #[test]
    fn the_checked_version_is_the_installed_one() {
        for need in EVERY_NEED {
            match need.install {
                Install::Cargo { package, version } => {
                    assert_eq!(need.probe.1, format!("{package} {version}"));
                }
                Install::Pip { version, .. } => assert!(need.probe.1.ends_with(&format!(" {version}"))),
                Install::Component(_) | Install::Debian(_) => {}
            }
        }
    }

    #[test]
    fn advice_names_the_program_and_the_command() {
        assert_eq!(
            CARGO_DENY.advice(),
            "cargo-deny is missing; install it with `cargo install --locked cargo-deny@0.20.2`"
        );
        assert!(CXX.advice().contains("apt-get install g++"));
    }

    #[test]
    fn a_probe_that_does_not_run_means_that_it_is_not_there() {
        let need = RequiredProgram {
            name: "nothing",
            probe: (&["no-such-program-here"], ""),
            install: Install::Component("nothing"),
        };
        assert!(!need.is_met());
    }
}
