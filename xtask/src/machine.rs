//! What has to be on the machine, and how it gets there.
//!
//! Each [`Need`] says how to see whether it is there, how to install it, and so also what to tell a person
//! on a machine where we may not. A step names the needs it has. What cannot be installed fails the steps
//! that need it and no others: nothing passes because it could not be run.
//!
//! To add one: write a constant, and name it in the steps that need it. A new way to install (npm, pip) is
//! a variant of [`Install`], where the compiler asks for its command and its advice.

use std::path::Path;

use crate::invocation::Invocation;
use crate::workspace;

/// Something that must be on the machine before a step can run.
#[derive(Debug)]
pub(crate) struct Need {
    pub(crate) name: &'static str,
    /// A command that only works if it is there, and what it then prints.
    probe: (&'static [&'static str], &'static str),
    install: Install,
}

/// How a thing gets onto the machine.
#[derive(Debug)]
enum Install {
    /// Built from the registry into a folder of ours, so that neither root nor the user's home is touched.
    Cargo { package: &'static str, version: &'static str },
    /// A part of the Rust toolchain that a minimal installation leaves out.
    Component(&'static str),
    /// A package of Debian and its relatives; only as root.
    Debian(&'static str),
}

pub(crate) const RUSTFMT: Need = Need {
    name: "rustfmt",
    probe: (&["cargo", "fmt", "--version"], "rustfmt"),
    install: Install::Component("rustfmt"),
};

pub(crate) const CLIPPY: Need = Need {
    name: "clippy",
    probe: (&["cargo", "clippy", "--version"], "clippy"),
    install: Install::Component("clippy"),
};

pub(crate) const CARGO_DENY: Need = Need {
    name: "cargo-deny",
    probe: (&["cargo-deny", "--version"], "cargo-deny 0.20.2"),
    install: Install::Cargo { package: "cargo-deny", version: "0.20.2" },
};

pub(crate) const CARGO_FUZZ: Need = Need {
    name: "cargo-fuzz",
    probe: (&["cargo-fuzz", "--version"], "cargo-fuzz 0.13.2"),
    install: Install::Cargo { package: "cargo-fuzz", version: "0.13.2" },
};

pub(crate) const CARGO_MUTANTS: Need = Need {
    name: "cargo-mutants",
    probe: (&["cargo-mutants", "mutants", "--version"], "cargo-mutants 27.1.0"),
    install: Install::Cargo { package: "cargo-mutants", version: "27.1.0" },
};

/// libFuzzer is compiled from C++ with every fuzz target.
pub(crate) const CXX: Need =
    Need { name: "a C++ compiler", probe: (&["c++", "--version"], ""), install: Install::Debian("g++") };

/// Reads alert rules and runs their tests.
pub(crate) const PROMTOOL: Need = Need {
    name: "promtool",
    probe: (&["promtool", "--version"], ""),
    install: Install::Debian("prometheus"),
};

/// The tests of what is shared between machines start real servers.
pub(crate) const REDIS: Need = Need {
    name: "redis-server",
    probe: (&["redis-server", "--version"], "Redis server"),
    install: Install::Debian("redis-server"),
};

/// Installs what Node programs use, Node itself included.
pub(crate) const NPM: Need =
    Need { name: "npm", probe: (&["npm", "--version"], ""), install: Install::Debian("npm") };

/// Python with its own way to make a folder of packages.
pub(crate) const PYTHON: Need = Need {
    name: "python3 with venv",
    probe: (&["python3", "-c", "import venv, ensurepip"], ""),
    install: Install::Debian("python3-venv"),
};

/// The tests of the page look at it with a real browser, without the parts that draw windows: they take half of the time
/// of a processor.
pub(crate) const CHROMIUM: Need = Need {
    name: "chromium-headless-shell",
    probe: (&["chromium-headless-shell", "--version"], "Chromium"),
    install: Install::Debian("chromium-headless-shell"),
};

impl Need {
    /// Whether it is there, in the version that we want.
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

    /// The command that installs it here, or why we may not.
    pub(crate) fn installer(&self) -> Result<Invocation, &'static str> {
        self.install.command(Rights::of_this_machine())
    }

    /// What to tell a person who has to do it.
    pub(crate) fn advice(&self) -> String {
        let how = match self.install {
            Install::Cargo { package, version } => format!("`cargo install --locked {package}@{version}`"),
            Install::Component(component) => {
                format!("`rustup component add {component}`, or the package of your system that brings it")
            }
            Install::Debian(package) => {
                format!("`apt-get install {package}` as root, or the package of your system that brings it")
            }
        };
        format!("{} is missing; install it with {how}", self.name)
    }
}

impl Install {
    fn command(&self, rights: Rights) -> Result<Invocation, &'static str> {
        match *self {
            // Whoever installs a tool to run it for a second does not want to wait for link-time
            // optimisation, nor for any other.
            Self::Cargo { package, version } => {
                let what = format!("{package}@{version}");
                let tools = workspace::tools().display().to_string();
                Ok(Invocation::cargo(&["install", "--locked", "--root", &tools, &what])
                    .env("CARGO_PROFILE_RELEASE_LTO", "off")
                    .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                    .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"))
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

/// What we may do to this machine.
#[derive(Clone, Copy, Debug)]
struct Rights {
    has_rustup: bool,
    is_debian_root: bool,
}

impl Rights {
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

    const NONE: Rights = Rights { has_rustup: false, is_debian_root: false };
    const ALL: Rights = Rights { has_rustup: true, is_debian_root: true };
    const EVERY_NEED: [Need; 11] =
        [RUSTFMT, CLIPPY, CARGO_DENY, CARGO_FUZZ, CARGO_MUTANTS, CXX, PROMTOOL, REDIS, NPM, PYTHON, CHROMIUM];

    #[test]
    fn with_all_rights_everything_can_be_installed() {
        for need in EVERY_NEED {
            assert!(need.install.command(ALL).is_ok(), "{}", need.name);
        }
    }

    #[test]
    fn without_rights_only_cargo_installs_and_the_rest_says_why_not() {
        for need in EVERY_NEED {
            let command = need.install.command(NONE);
            match need.install {
                Install::Cargo { .. } => assert!(command.is_ok(), "{}", need.name),
                Install::Component(_) | Install::Debian(_) => assert!(command.is_err(), "{}", need.name),
            }
        }
    }

    #[test]
    fn the_version_that_is_looked_for_is_the_one_that_is_installed() {
        for need in EVERY_NEED {
            if let Install::Cargo { package, version } = need.install {
                assert_eq!(need.probe.1, format!("{package} {version}"));
            }
        }
    }

    #[test]
    fn advice_names_the_thing_and_the_command() {
        assert_eq!(
            CARGO_DENY.advice(),
            "cargo-deny is missing; install it with `cargo install --locked cargo-deny@0.20.2`"
        );
        assert!(CXX.advice().contains("apt-get install g++"));
    }

    #[test]
    fn a_probe_that_does_not_run_means_that_it_is_not_there() {
        let need = Need {
            name: "nothing",
            probe: (&["no-such-program-here"], ""),
            install: Install::Component("nothing"),
        };
        assert!(!need.is_met());
    }
}
