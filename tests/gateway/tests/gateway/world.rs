//! The folder of one test: its state, its configuration, and the ledger of its server.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::client::Client;

/// How something is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Stdio,
    Http,
}

pub(crate) struct World {
    folder: PathBuf,
    /// How clients reach the gateway.
    pub(crate) front: By,
    /// Where the server listens, if it is reached over HTTP.
    server: Option<Running>,
}

/// A server that somebody starts again whenever it ends.
struct Running {
    address: SocketAddr,
    child: Arc<Mutex<Option<Child>>>,
    starting: Option<JoinHandle<()>>,
}

impl World {
    /// A client on our streams and a server on ours.
    pub(crate) fn new(test: &str) -> Self {
        Self::of(test, "", By::Stdio, By::Stdio)
    }

    /// One for each way that leads from a client to a server.
    pub(crate) fn every(test: &str, config: &str) -> impl Iterator<Item = Self> {
        let ways =
            [(By::Stdio, By::Stdio), (By::Http, By::Stdio), (By::Stdio, By::Http), (By::Http, By::Http)];
        ways.into_iter().map(move |(front, back)| {
            eprintln!("client by {front:?}, server by {back:?}");
            Self::of(test, config, front, back)
        })
    }

    pub(crate) fn of(test: &str, config: &str, front: By, back: By) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}_{front:?}_{back:?}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("ledger"), "").unwrap();
        fs::write(folder.join("steadfast.toml"), config).unwrap();
        let server = (back == By::Http).then(|| Running::start(&folder.join("ledger")));
        Self { folder, front, server }
    }

    /// A client of the server behind the gateway, past the handshake, that has seen its tools.
    pub(crate) fn client(&self) -> Client {
        let mut client = match self.front {
            By::Stdio => Client::on_streams(self.wrap(&[])),
            By::Http => {
                let address = free_address();
                Client::over_http(self.wrap(&["--listen", &address.to_string()]), address)
            }
        };
        client.initialize();
        client.request("tools/list", serde_json::json!({}));
        client
    }

    /// `steadfast wrap` in front of the server, with these arguments.
    pub(crate) fn wrap(&self, arguments: &[&str]) -> Command {
        let mut command = self.bare(arguments);
        match &self.server {
            Some(server) => command.args(["--url", &format!("http://{}/mcp", server.address)]),
            None => command
                .args(["--", env!("CARGO_BIN_EXE_steadfast-test-server")])
                .arg(self.folder.join("ledger")),
        };
        command
    }

    /// `steadfast wrap` in front of nothing but what these arguments name.
    pub(crate) fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.args(["wrap", "--name", "bank"]).args(arguments);
        command.current_dir(&self.folder).env("HOME", &self.folder).env_remove("XDG_STATE_HOME");
        command.env_remove("CLAUDE_CODE_SESSION_ID");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        command.stderr(log);
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

impl Running {
    fn start(ledger: &Path) -> Self {
        let (address, child) = (free_address(), Arc::new(Mutex::new(None)));
        let spawn = {
            let ledger = ledger.to_owned();
            move || {
                let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-test-server"));
                command.arg(&ledger).arg(address.to_string()).spawn().unwrap()
            }
        };
        *child.lock() = Some(spawn());
        let kept = child.clone();
        let starting = thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_millis(5));
                let mut child = kept.lock();
                let Some(running) = &mut *child else { return };
                if running.try_wait().unwrap().is_some() {
                    *running = spawn();
                }
            }
        });
        wait(|| TcpStream::connect(address).is_ok(), || "the server".to_owned());
        Self { address, child, starting: Some(starting) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(starting) = self.starting.take() {
            let _ = starting.join();
        }
    }
}

pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
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
        thread::sleep(Duration::from_millis(5));
    }
}
