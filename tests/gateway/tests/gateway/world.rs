//! The folder of one test: its state, its configuration, and the ledger of its server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::Client;

pub(crate) struct World {
    folder: PathBuf,
}

impl World {
    /// A world of its own for each test.
    pub(crate) fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("ledger"), "").unwrap();
        Self { folder }
    }

    /// The same with this configuration.
    pub(crate) fn with(test: &str, config: &str) -> Self {
        let world = Self::new(test);
        fs::write(world.folder.join("steadfast.toml"), config).unwrap();
        world
    }

    /// A client of the server behind the gateway, past the handshake.
    pub(crate) fn wrapped(&self) -> Client {
        let mut client = Client::start(self.wrap(&[]));
        client.initialize();
        client
    }

    /// `steadfast wrap` in front of the server, with these arguments.
    pub(crate) fn wrap(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.args(["wrap", "--name", "bank"]).args(arguments).arg("--");
        command.arg(env!("CARGO_BIN_EXE_steadfast-test-server")).arg(self.folder.join("ledger"));
        command.current_dir(&self.folder).env("HOME", &self.folder).env_remove("XDG_STATE_HOME");
        command.env_remove("CLAUDE_CODE_SESSION_ID");
        command
            .stderr(fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap());
        command
    }

    pub(crate) fn ledger(&self) -> Vec<String> {
        fs::read_to_string(self.folder.join("ledger")).unwrap().lines().map(str::to_owned).collect()
    }

    /// How often this is in the ledger.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.ledger().iter().filter(|written| *written == line).count()
    }

    /// Waits until this is in the ledger so often.
    pub(crate) fn until(&self, line: &str, times: usize) {
        wait(|| self.count(line) >= times, || format!("{times} times {line:?} in {:?}", self.ledger()));
    }

    /// The process of the server that was started last.
    pub(crate) fn server(&self) -> u32 {
        let ledger = self.ledger();
        let start = ledger.iter().rev().find_map(|line| line.strip_prefix("start "));
        start.expect("a server was started").parse().unwrap()
    }
}

/// Whether this process is there, and no mere remainder of one.
pub(crate) fn lives(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}

/// Ends a process as nobody can refuse.
pub(crate) fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Waits for something that must come soon.
pub(crate) fn wait(mut is: impl FnMut() -> bool, what: impl Fn() -> String) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(30), "waited in vain: {}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}
