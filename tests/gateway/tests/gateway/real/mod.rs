//! Real servers and clients from npm and PyPI, bare and through the gateway.
//!
//! `tests/gateway/real` pins them and `cargo xtask setup` installs them. A test that does not find them fails.

mod again;
mod clients;
mod conversation;
mod eras;
mod everything;
mod files;
mod generated;
mod http;
mod line;
mod parity;
mod python;
mod rust;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::world::GatewayTestFolder;

/// The route to a server: direct or through the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerRoute {
    Bare,
    Through,
}

/// The folder of one test.
pub(crate) struct RealServerFolder(GatewayTestFolder);

impl RealServerFolder {
    /// Creates the folder of a test, with the configuration of the gateway.
    pub(crate) fn new(test: &str, config: &str) -> Self {
        let folder = GatewayTestFolder::new(test);
        fs::write(folder.join("steadfast.toml"), config).unwrap();
        Self(folder)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns a program with this folder as its home and a log for its stderr, which finds the installed Node before
    /// that of the machine.
    pub(crate) fn program(&self, path: impl AsRef<Path>) -> Command {
        let inherited = env::var_os("PATH").unwrap_or_default();
        let installed_bin = installed("node").join("node_modules/.bin");
        let search =
            env::join_paths(std::iter::once(installed_bin).chain(env::split_paths(&inherited))).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.0.join("log")).unwrap();
        let mut command = Command::new(path.as_ref());
        command.current_dir(&*self.0).env("HOME", &*self.0).env("PATH", search).stderr(log);
        command.env_remove("XDG_STATE_HOME").env_remove("CLAUDE_CODE_SESSION_ID");
        command
    }
}

/// An installed server and its command.
#[derive(Clone, Debug)]
pub(crate) struct RealServer {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

impl RealServer {
    /// Returns a server from npm.
    pub(crate) fn node(name: &str) -> Self {
        Self::of(installed("node").join("node_modules/.bin").join(name))
    }

    /// Returns one of the servers in `scripts`, made with a library from PyPI.
    pub(crate) fn python(script: &str) -> Self {
        Self::of(python()).arg(self::script(script))
    }

    pub(crate) fn of(program: PathBuf) -> Self {
        Self { program, arguments: Vec::new(), environment: Vec::new() }
    }

    pub(crate) fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Returns the program that a client has to start, with its arguments.
    pub(crate) fn line(&self, route: ServerRoute) -> Vec<OsString> {
        let bare = std::iter::once(self.program.clone().into()).chain(self.arguments.iter().cloned());
        match route {
            ServerRoute::Bare => bare.collect(),
            ServerRoute::Through => {
                let gateway = [env!("CARGO_BIN_EXE_steadfast-tested"), "wrap", "--name", "real", "--"];
                gateway.into_iter().map(OsString::from).chain(bare).collect()
            }
        }
    }

    /// Returns the gateway in front of the server at this URL.
    pub(crate) fn remote_line(url: &str) -> Vec<OsString> {
        let gateway = [env!("CARGO_BIN_EXE_steadfast-tested"), "wrap", "--name", "real", "--url", url];
        gateway.into_iter().map(OsString::from).collect()
    }

    /// Returns the same as a command for the test itself.
    pub(crate) fn command(&self, place: &RealServerFolder, route: ServerRoute) -> Command {
        let line = self.line(route);
        let mut command = place.program(&line[0]);
        command.args(&line[1..]).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Returns the Python with the installed libraries.
pub(crate) fn python() -> PathBuf {
    installed("python").join("bin/python")
}

/// Returns the path of a script of the tests.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name)
}

/// Returns the folder where `cargo xtask setup` installed this kind.
pub(crate) fn installed(kind: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target folder");
    let folder = target.join("xtask/real").join(kind);
    // This file is written last.
    let is_whole = fs::exists(folder.join("installed")).is_ok_and(|there| there);
    assert!(is_whole, "what the gateway is tested with is not installed: run `cargo xtask setup`");
    folder
}

/// Returns the process id of this program with this last argument.
pub(crate) fn process_of(program: &str, argument: &Path) -> u32 {
    let listed = Command::new("ps").args(["-e", "-o", "pid=", "-o", "args="]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let found: Vec<u32> = listed
        .lines()
        .filter_map(|line| {
            let (pid, line) = line.trim_start().split_once(' ')?;
            let is_it = line.split_whitespace().next()?.rsplit('/').next() == Some(program)
                && line.ends_with(&argument.display().to_string());
            is_it.then(|| pid.parse().ok())?
        })
        .collect();
    assert_eq!(found.len(), 1, "one {program} for {}: {listed}", argument.display());
    found[0]
}
