//! The folder of one test: its state, its configuration, and the ledger of its server.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::client::Client;

/// How something is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Stdio,
    Http,
}

/// Which era of the protocol the server is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Older,
    Modern,
}

impl Era {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Older => &[],
            Self::Modern => &["--modern"],
        }
    }
}

/// Ends a test that hangs. No verdict depends on it: what is waited for comes, however long it takes, or never does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The options with which a gateway listens at a port that the system chooses.
pub(crate) const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

pub(crate) struct World {
    /// How clients reach the gateway.
    pub(crate) front: By,
    era: Era,
    /// Where the server listens, if it is reached over HTTP.
    server: Option<Running>,
    /// The last to be dropped.
    folder: Folder,
}

/// A server that somebody starts again whenever it ends.
struct Running {
    address: SocketAddr,
    child: Arc<Mutex<Option<Process>>>,
    starting: Option<JoinHandle<()>>,
}

impl World {
    /// A client on our streams and a server on ours.
    pub(crate) fn new(test: &str) -> Self {
        Self::of(test, "", By::Stdio, By::Stdio)
    }

    /// One for each way that leads from a client to a server.
    pub(crate) fn every(test: &str, config: &str) -> impl Iterator<Item = Self> {
        Self::every_of(Era::Older, test, config)
    }

    /// The same with a server of this era.
    pub(crate) fn every_of(era: Era, test: &str, config: &str) -> impl Iterator<Item = Self> {
        let ways =
            [(By::Stdio, By::Stdio), (By::Http, By::Stdio), (By::Stdio, By::Http), (By::Http, By::Http)];
        ways.into_iter().map(move |(front, back)| {
            eprintln!("client by {front:?}, server by {back:?}");
            Self::of_era(era, test, config, front, back)
        })
    }

    pub(crate) fn of(test: &str, config: &str, front: By, back: By) -> Self {
        Self::of_era(Era::Older, test, config, front, back)
    }

    pub(crate) fn of_era(era: Era, test: &str, config: &str, front: By, back: By) -> Self {
        let folder = Folder::new(&format!("{test}_{front:?}_{back:?}"));
        fs::write(folder.join("ledger"), "").unwrap();
        fs::write(folder.join("steadfast.toml"), config).unwrap();
        let server = (back == By::Http).then(|| Running::start(&folder.join("ledger"), era));
        Self { front, era, server, folder }
    }

    /// Does this on every way at once.
    pub(crate) fn each(test: &str, config: &str, show: impl Fn(Self) + Sync) {
        thread::scope(|scope| {
            let ways: Vec<_> = Self::every(test, config).collect();
            let showing: Vec<_> =
                ways.into_iter().map(|world| (world.way(), scope.spawn(|| show(world)))).collect();
            for (way, shown) in showing {
                assert!(shown.join().is_ok(), "{way}");
            }
        });
    }

    /// Whether the server is no child of the gateway: nobody sees the end of what it does.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.server.is_some()
    }

    /// What it is called in messages.
    fn way(&self) -> String {
        let back = if self.server.is_some() { By::Http } else { By::Stdio };
        format!("client by {:?}, server by {back:?}", self.front)
    }

    /// A client of the server behind the gateway, past the handshake, that has seen its tools.
    pub(crate) fn client(&self) -> Client {
        self.client_of("bank", |_| {})
    }

    /// A client of a gateway that calls its server by this name, started a little differently.
    pub(crate) fn client_of(&self, name: &str, change: impl FnOnce(&mut Command)) -> Client {
        let listen: &[&str] = match self.front {
            By::Stdio => &[],
            By::Http => &LISTEN,
        };
        let mut command = self.wrap_as(name, listen);
        change(&mut command);
        let client = match self.front {
            By::Stdio => Client::on_streams(command),
            By::Http => Client::over_http(command),
        };
        begun(client)
    }

    /// A client of a server with a ledger of its own and nothing in front of it.
    pub(crate) fn bare(&self) -> Client {
        let ledger = self.folder.join("bare");
        fs::write(&ledger, "").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-test-server"));
        command.arg(ledger);
        begun(Client::on_streams(command))
    }

    /// A client of the gateway that has these capabilities.
    pub(crate) fn client_that_can(&self, capabilities: Value) -> Client {
        let mut client = self.new_client();
        client.initialize_with(capabilities);
        client.request("tools/list", serde_json::json!({}));
        client
    }

    /// A client of the modern era with these capabilities, which has said nothing yet.
    pub(crate) fn modern_client(&self, capabilities: Value) -> Client {
        let mut client = self.new_client();
        client.without_handshake(capabilities);
        client
    }

    /// A client of the gateway that has said nothing yet.
    pub(crate) fn new_client(&self) -> Client {
        match self.front {
            By::Stdio => Client::on_streams(self.wrap(&[])),
            By::Http => Client::over_http(self.wrap(&LISTEN)),
        }
    }

    /// How the server is reached.
    pub(crate) fn back(&self) -> By {
        if self.server.is_some() { By::Http } else { By::Stdio }
    }

    /// Another command of `steadfast`, by an operator in the same folder: what it says and whether it went well.
    pub(crate) fn steadfast(&self, arguments: &[&str]) -> (String, bool) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.args(arguments).current_dir(&*self.folder).env("HOME", &*self.folder);
        let output = command.env_remove("XDG_STATE_HOME").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8(said).unwrap(), output.status.success())
    }

    /// `steadfast wrap` in front of the server, with these arguments.
    pub(crate) fn wrap(&self, arguments: &[&str]) -> Command {
        self.wrap_as("bank", arguments)
    }

    fn wrap_as(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.wrap_alone(&[&["--name", name], arguments].concat());
        match &self.server {
            Some(server) => command.args(["--url", &format!("http://{}/mcp", server.address)]),
            None => command
                .args(["--", env!("CARGO_BIN_EXE_steadfast-test-server")])
                .arg(self.folder.join("ledger"))
                .args(self.era.arguments()),
        };
        command
    }

    /// Where the server is, by this name of the machine.
    pub(crate) fn url(&self, host: &str) -> String {
        let server = self.server.as_ref().expect("it is reached over HTTP");
        format!("http://{host}:{}/mcp", server.address.port())
    }

    /// `steadfast wrap` in front of nothing but what these arguments name.
    pub(crate) fn wrap_alone(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.arg("wrap").args(arguments);
        command.current_dir(&*self.folder).env("HOME", &*self.folder).env_remove("XDG_STATE_HOME");
        command.env_remove("CLAUDE_CODE_SESSION_ID");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        command.stderr(log);
        command
    }

    pub(crate) fn ledger(&self) -> Vec<String> {
        fs::read_to_string(self.folder.join("ledger")).unwrap().lines().map(str::to_owned).collect()
    }

    /// What the gateways have logged.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("log")).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// What they have logged of one kind of event.
    pub(crate) fn logged(&self, event: &str) -> Vec<Value> {
        self.log().into_iter().filter(|line| line["event"] == event).collect()
    }

    /// The same when there are so many, which there must soon be. Then there are no more.
    pub(crate) fn logged_times(&self, event: &str, times: usize) -> Vec<Value> {
        wait(|| self.logged(event).len() >= times, || format!("{times} times {event} in {:#?}", self.log()));
        let logged = self.logged(event);
        assert_eq!(logged.len(), times, "{logged:#?}");
        logged
    }

    /// Everything that the gateways have written: their state, what belongs to it, their logs.
    pub(crate) fn written(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    // Such as the socket of somebody else, or a file that is gone already.
                    false => files.extend(fs::read(entry.path()).map(|bytes| (entry.path(), bytes))),
                }
            }
        }
        files
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The server does this from now on, until the file is gone.
    pub(crate) fn makes_it(&self, what: &str) -> PathBuf {
        let file = self.folder.join(format!("ledger.{what}"));
        fs::write(&file, "").unwrap();
        file
    }

    /// Writes the configuration anew, as a whole: a gateway that follows it must not read half of it.
    pub(crate) fn configure(&self, config: &str) {
        replace_file(&self.folder.join("steadfast.toml"), config);
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

impl Drop for World {
    /// Where a test fails, the folder is often gone before anybody can look into it.
    fn drop(&mut self) {
        const LAST: usize = 15;
        if thread::panicking() {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("{}, the end of its log:", self.way());
            for line in lines.iter().skip(lines.len().saturating_sub(LAST)) {
                eprintln!("{line}");
            }
        }
    }
}

impl Running {
    /// The test itself listens and hands its socket to each server that it starts. So the address is never free for somebody
    /// else, and who comes while there is no server waits for the next one.
    fn start(ledger: &Path, era: Era) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let spawn = {
            let ledger = ledger.to_owned();
            move || {
                let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-test-server"));
                command.arg(&ledger).arg("--listening").args(era.arguments());
                command.stdin(OwnedFd::from(listener.try_clone().unwrap()));
                Process::spawn(&mut command)
            }
        };
        let child = Arc::new(Mutex::new(Some(spawn())));
        let kept = child.clone();
        let starting = thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_millis(5));
                let mut child = kept.lock();
                let Some(running) = &mut *child else { return };
                if running.ended().is_some() {
                    *running = spawn();
                }
            }
        });
        Self { address, child, starting: Some(starting) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.lock().take());
        if let Some(starting) = self.starting.take() {
            let _ = starting.join();
        }
    }
}

/// A process that is ended with the test, however the test ends.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    pub(crate) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// What it reads and what it writes, if it was given pipes.
    pub(crate) fn streams(&mut self) -> (ChildStdin, ChildStdout) {
        (self.0.stdin.take().unwrap(), self.0.stdout.take().unwrap())
    }

    /// Its status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait(|| self.ended().is_some(), || "the end of a process".to_owned());
        self.ended().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a gateway that listens, and gives the address that it announces beside its state.
///
/// No test chooses a port, looks whether it is free and lets go of it again. Another process may be given the port before the
/// gateway is; and while any thread starts a program, the child has a copy of every socket of ours until it becomes that
/// program. So a socket that listened and was closed may still take connections, and reset them.
pub(crate) fn start_gateway(command: &mut Command) -> (Process, SocketAddr) {
    let home = command.get_current_dir().expect("each gateway has a folder of its own");
    let announced = home.join(".local/state/steadfast/gateways");
    let mut gateway = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let announced = as_seen_by(gateway.id(), &announced);
    let own = format!("{}-", gateway.id());
    let find = || -> Option<SocketAddr> {
        let names =
            fs::read_dir(&announced).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let file = { names }.find(|name| name.starts_with(&own) && name.ends_with(".json"))?;
        let text = fs::read_to_string(announced.join(file)).unwrap();
        let said: Value = serde_json::from_str(&text).unwrap();
        Some(said["address"].as_str().unwrap().parse().unwrap())
    };
    let mut address = None;
    wait(
        || {
            let status = gateway.ended();
            assert!(status.is_none(), "the gateway has ended before it listened: {status:?}");
            address = find();
            address.is_some()
        },
        || format!("the address of the gateway in {}", announced.display()),
    );
    (gateway, address.unwrap())
}

/// A file or folder as a process sees it that may have disks of its own.
pub(crate) fn as_seen_by(pid: u32, path: &Path) -> PathBuf {
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    root.join(path.strip_prefix("/").expect("folders of tests are named from the root on"))
}

/// A port for a program that has to be told where to listen. Until this is dropped nobody is given it who does not ask for it
/// by its number: it is bound here, and not listened at, which keeps no other program from listening there.
pub(crate) struct Port {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.set_reuseaddr(true).unwrap();
        bound.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Self { address: bound.local_addr().unwrap(), _bound: bound }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a program that was told this port, and waits until it listens.
    pub(crate) fn start(&self, command: &mut Command) -> Process {
        let mut program = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        wait(
            || {
                let status = program.ended();
                assert!(status.is_none(), "it has ended before it listened: {status:?}");
                TcpStream::connect(self.address).is_ok()
            },
            || format!("somebody at {}", self.address),
        );
        program
    }
}

/// The folder of one test in one process. It is gone when the test is over, unless that failed.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // Of a process that had our number before us.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("what the test left is in {}", self.0.display());
            return;
        }
        // A server whose gateway was killed notices that a moment later, and notes it.
        for _ in 0..200 {
            match fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                    thread::sleep(Duration::from_millis(5));
                }
                Ok(()) | Err(_) => return,
            }
        }
    }
}

/// Replaces a file by another one at once, so that nobody reads half of it.
pub(crate) fn replace_file(path: &Path, text: &str) {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).unwrap();
    fs::rename(&fresh, path).unwrap();
}

/// Past the handshake, with the tools seen.
pub(crate) fn begun(mut client: Client) -> Client {
    client.initialize();
    client.request("tools/list", json!({}));
    client
}

/// Whether this process is there, and no mere remainder of one.
pub(crate) fn lives(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}

/// Ends a process as nobody can refuse.
pub(crate) fn kill(pid: u32) {
    signal(pid, "-KILL");
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Waits for something that must come.
pub(crate) fn wait(mut is: impl FnMut() -> bool, what: impl Fn() -> String) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "waited in vain: {}", what());
        thread::sleep(Duration::from_millis(5));
    }
}
