//! The environment of one test: its state, its configuration, and the ledger of its server.

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
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::{Value, json};
use steadfast_testkit::effort::TestEffort;
use tokio::net::TcpSocket;

use crate::client::McpTestClient;

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestTransport {
    Stdio,
    Http,
}

impl TestTransport {
    /// Returns the transports that a test goes through, one after the other.
    pub(crate) fn cases() -> Vec<Self> {
        TestEffort::of_this_run().cases(vec![Self::Stdio, Self::Http])
    }
}

/// The protocol era of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerEra {
    Older,
    Modern,
}

impl ServerEra {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Older => &[],
            Self::Modern => &["--modern"],
        }
    }
}

/// Timeout that ends a test that hangs. No result depends on it: an awaited event comes at some time, or never.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Options with which a gateway listens on a port that the system chooses.
pub(crate) const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

pub(crate) struct GatewayWorld {
    /// Transport from clients to the gateway.
    pub(crate) front: TestTransport,
    era: ServerEra,
    /// The listening server, if its transport is HTTP.
    server: Option<RestartingServer>,
    /// Declared last, so that it is dropped last.
    folder: GatewayTestFolder,
}

/// A server that is restarted whenever it ends.
struct RestartingServer {
    address: SocketAddr,
    current: Arc<Mutex<CurrentServer>>,
    restarting: Option<JoinHandle<()>>,
}

/// The process that serves now.
struct CurrentServer {
    process: TestProcess,
    is_last: bool,
}

impl GatewayWorld {
    /// Creates a world in which client and server both use stdio.
    pub(crate) fn new(test: &str) -> Self {
        Self::of(test, "", TestTransport::Stdio, TestTransport::Stdio)
    }

    /// Creates one world for each pair of transports.
    pub(crate) fn every(test: &str, config: &str) -> impl Iterator<Item = Self> {
        Self::every_of(ServerEra::Older, test, config)
    }

    /// Creates the same with a server of this era.
    pub(crate) fn every_of(era: ServerEra, test: &str, config: &str) -> impl Iterator<Item = Self> {
        let transports = TestEffort::of_this_run().cases(vec![
            (TestTransport::Stdio, TestTransport::Stdio),
            (TestTransport::Http, TestTransport::Stdio),
            (TestTransport::Stdio, TestTransport::Http),
            (TestTransport::Http, TestTransport::Http),
        ]);
        transports.into_iter().map(move |(front, back)| {
            eprintln!("client by {front:?}, server by {back:?}");
            Self::of_era(era, test, config, front, back)
        })
    }

    pub(crate) fn of(test: &str, config: &str, front: TestTransport, back: TestTransport) -> Self {
        Self::of_era(ServerEra::Older, test, config, front, back)
    }

    pub(crate) fn of_era(
        era: ServerEra,
        test: &str,
        config: &str,
        front: TestTransport,
        back: TestTransport,
    ) -> Self {
        let folder = GatewayTestFolder::new(&format!("{test}_{front:?}_{back:?}"));
        fs::write(folder.join("ledger"), "").unwrap();
        fs::write(folder.join("steadfast.toml"), config).unwrap();
        let server =
            (back == TestTransport::Http).then(|| RestartingServer::start(&folder.join("ledger"), era));
        Self { front, era, server, folder }
    }

    /// Runs a test in all of these worlds concurrently.
    pub(crate) fn each(test: &str, config: &str, show: impl Fn(Self) + Sync) {
        thread::scope(|scope| {
            let worlds: Vec<_> = Self::every(test, config).collect();
            let showing: Vec<_> =
                worlds.into_iter().map(|world| (world.label(), scope.spawn(|| show(world)))).collect();
            for (label, shown) in showing {
                assert!(shown.join().is_ok(), "{label}");
            }
        });
    }

    /// Returns true if the server is not a child of the gateway, so that the end of its attempts cannot be observed.
    pub(crate) fn is_remote(&self) -> bool {
        self.server.is_some()
    }

    /// Returns its name in messages.
    fn label(&self) -> String {
        let back = if self.server.is_some() { TestTransport::Http } else { TestTransport::Stdio };
        format!("client by {:?}, server by {back:?}", self.front)
    }

    /// Returns a client of the server behind the gateway that has initialized and listed the tools.
    pub(crate) fn client(&self) -> McpTestClient {
        self.client_of("bank", |_| {})
    }

    /// Returns a client of a gateway that uses this name for its server, with a changed command.
    pub(crate) fn client_of(&self, name: &str, change: impl FnOnce(&mut Command)) -> McpTestClient {
        let listen: &[&str] = match self.front {
            TestTransport::Stdio => &[],
            TestTransport::Http => &LISTEN,
        };
        let mut command = self.wrap_as(name, listen);
        change(&mut command);
        let client = match self.front {
            TestTransport::Stdio => McpTestClient::on_streams(command),
            TestTransport::Http => McpTestClient::over_http(command),
        };
        initialized(client)
    }

    /// Returns a client of a server with a ledger of its own and no gateway.
    pub(crate) fn bare(&self) -> McpTestClient {
        let ledger = self.folder.join("bare");
        fs::write(&ledger, "").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-test-server"));
        command.arg(ledger);
        initialized(McpTestClient::on_streams(command))
    }

    /// Returns a client of the gateway with these capabilities.
    pub(crate) fn client_that_can(&self, capabilities: Value) -> McpTestClient {
        let mut client = self.new_client();
        client.initialize_with(capabilities);
        client.request("tools/list", serde_json::json!({}));
        client
    }

    /// Returns a client of the modern era with these capabilities, which has sent nothing yet.
    pub(crate) fn modern_client(&self, capabilities: Value) -> McpTestClient {
        let mut client = self.new_client();
        client.without_handshake(capabilities);
        client
    }

    /// Returns a client of the gateway that has sent nothing yet.
    pub(crate) fn new_client(&self) -> McpTestClient {
        match self.front {
            TestTransport::Stdio => McpTestClient::on_streams(self.wrap(&[])),
            TestTransport::Http => McpTestClient::over_http(self.wrap(&LISTEN)),
        }
    }

    /// Returns the transport from the gateway to the server.
    pub(crate) fn back(&self) -> TestTransport {
        if self.server.is_some() { TestTransport::Http } else { TestTransport::Stdio }
    }

    /// Runs another `steadfast` command as an operator in the same folder. Returns its output, and true if it
    /// succeeded.
    pub(crate) fn steadfast(&self, arguments: &[&str]) -> (String, bool) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-tested"));
        command.args(arguments).current_dir(&*self.folder).env("HOME", &*self.folder);
        let output = command.env_remove("XDG_STATE_HOME").output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8(text).unwrap(), output.status.success())
    }

    /// Returns `steadfast wrap` in front of the server, with these arguments.
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

    /// Returns the URL of the server with this host name.
    pub(crate) fn url(&self, host: &str) -> String {
        let server = self.server.as_ref().expect("it is reached over HTTP");
        format!("http://{host}:{}/mcp", server.address.port())
    }

    /// Returns `steadfast wrap` with only these arguments.
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

    /// Returns the log of the gateways.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("log")).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the log lines with this event.
    pub(crate) fn logged(&self, event: &str) -> Vec<Value> {
        logged_in(&self.folder, event)
    }

    /// Waits for this many log lines with the event, and checks that there are no more.
    pub(crate) fn logged_times(&self, event: &str, times: usize) -> Vec<Value> {
        wait(|| self.logged(event).len() >= times, || format!("{times} times {event} in {:#?}", self.log()));
        let logged = self.logged(event);
        assert_eq!(logged.len(), times, "{logged:#?}");
        logged
    }

    /// Returns all files that the gateways have written: state, files beside it, logs.
    pub(crate) fn written(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    // For example a socket of another process, or a file that is gone already.
                    false => files.extend(fs::read(entry.path()).map(|bytes| (entry.path(), bytes))),
                }
            }
        }
        files
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the server behave like this until the file is removed.
    pub(crate) fn set_behavior(&self, behavior: &str) -> PathBuf {
        let file = self.folder.join(format!("ledger.{behavior}"));
        fs::write(&file, "").unwrap();
        file
    }

    /// Replaces the configuration atomically, because a gateway that follows it must not read half of it.
    pub(crate) fn configure(&self, config: &str) {
        replace_file(&self.folder.join("steadfast.toml"), config);
    }

    /// Returns the number of these lines in the ledger.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.ledger().iter().filter(|written| *written == line).count()
    }

    /// Waits until the ledger has this many of these lines.
    pub(crate) fn until(&self, line: &str, times: usize) {
        wait(|| self.count(line) >= times, || format!("{times} times {line:?} in {:?}", self.ledger()));
    }

    /// Returns the process id of the server that was started last.
    pub(crate) fn server(&self) -> u32 {
        let ledger = self.ledger();
        let start = ledger.iter().rev().find_map(|line| line.strip_prefix("start "));
        start.expect("a server was started").parse().unwrap()
    }
}

/// Returns the lines with this event in the log of this folder.
pub(crate) fn logged_in(folder: &Path, event: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("log")).unwrap();
    // A log is read again and again until a line is there. Only lines that may be meant are parsed.
    let lines = text.lines().filter(|line| line.contains(event));
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == event).collect()
}

impl Drop for GatewayWorld {
    // Where a test fails, the folder is often gone before it can be inspected.
    fn drop(&mut self) {
        const LAST: usize = 15;
        if thread::panicking() {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("{}, the end of its log:", self.label());
            for line in lines.iter().skip(lines.len().saturating_sub(LAST)) {
                eprintln!("{line}");
            }
        }
    }
}

impl RestartingServer {
    /// Listens in the test itself and hands the socket to each server that it starts. So the address is never free for
    /// another process, and a client that connects without a running server waits for the next one.
    fn start(ledger: &Path, era: ServerEra) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let spawn = {
            let ledger = ledger.to_owned();
            move || {
                let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast-test-server"));
                command.arg(&ledger).arg("--listening").args(era.arguments());
                command.stdin(OwnedFd::from(listener.try_clone().unwrap()));
                TestProcess::spawn(&mut command)
            }
        };
        let current = Arc::new(Mutex::new(CurrentServer { process: spawn(), is_last: false }));
        let restarting = thread::spawn({
            let current = current.clone();
            move || {
                loop {
                    let pid = current.lock().process.id();
                    wait_for_zombie(pid);
                    let mut current = current.lock();
                    if current.is_last {
                        return;
                    }
                    // This reaps it. Until then no other process has its id.
                    current.process.end();
                    current.process = spawn();
                }
            }
        });
        Self { address, current, restarting: Some(restarting) }
    }
}

impl Drop for RestartingServer {
    fn drop(&mut self) {
        {
            let mut current = self.current.lock();
            current.is_last = true;
            current.process.kill();
        }
        if let Some(restarting) = self.restarting.take() {
            let _ = restarting.join();
        }
    }
}

/// Waits until a child has ended, without reaping it.
fn wait_for_zombie(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("an id of a process");
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
}

/// A process that ends with the test, however the test ends.
pub(crate) struct TestProcess(Child);

impl TestProcess {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    pub(crate) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns its stdin and stdout, if they are pipes.
    pub(crate) fn streams(&mut self) -> (ChildStdin, ChildStdout) {
        (self.0.stdin.take().unwrap(), self.0.stdout.take().unwrap())
    }

    /// Returns its status, if it has ended.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Kills it. It is a zombie until its end is waited for.
    fn kill(&mut self) {
        let _ = self.0.kill();
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait(|| self.exit_status().is_some(), || "the end of a process".to_owned());
        self.exit_status().unwrap()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a gateway that listens, and returns the address that it announces beside its state.
///
/// No test chooses a port, checks that it is free and releases it again. Another process may get the port before the
/// gateway does. Besides, while any thread starts a program, the child has a copy of each of our sockets until it
/// becomes that program. So a socket that listened and was closed may still accept connections, and reset them.
pub(crate) fn start_gateway(command: &mut Command) -> (TestProcess, SocketAddr) {
    let home = command.get_current_dir().expect("each gateway has a folder of its own");
    let announced = home.join(".local/state/steadfast/gateways");
    let mut gateway = TestProcess::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let announced = path_in_process(gateway.id(), &announced);
    let own = format!("{}-", gateway.id());
    let find = || -> Option<SocketAddr> {
        let names =
            fs::read_dir(&announced).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let file = { names }.find(|name| name.starts_with(&own) && name.ends_with(".json"))?;
        let text = fs::read_to_string(announced.join(file)).unwrap();
        let announcement: Value = serde_json::from_str(&text).unwrap();
        Some(announcement["address"].as_str().unwrap().parse().unwrap())
    };
    let mut address = None;
    wait(
        || {
            let status = gateway.exit_status();
            assert!(status.is_none(), "the gateway has ended before it listened: {status:?}");
            address = find();
            address.is_some()
        },
        || format!("the address of the gateway in {}", announced.display()),
    );
    (gateway, address.unwrap())
}

/// Returns the path of a file or folder in the mount namespace of a process.
pub(crate) fn path_in_process(pid: u32, path: &Path) -> PathBuf {
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    root.join(path.strip_prefix("/").expect("folders of tests are named from the root on"))
}

/// A port for a program that has to be given one. It is bound here without listening. So until this is dropped, no
/// other program gets it unless it asks for its number, and none can listen on it.
pub(crate) struct ReservedPort {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl ReservedPort {
    pub(crate) fn reserve() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.set_reuseaddr(true).unwrap();
        bound.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Self { address: bound.local_addr().unwrap(), _bound: bound }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a program that was given this port, and waits until it listens.
    pub(crate) fn start(&self, command: &mut Command) -> TestProcess {
        let mut program = TestProcess::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        wait(
            || {
                let status = program.exit_status();
                assert!(status.is_none(), "it has ended before it listened: {status:?}");
                TcpStream::connect(self.address).is_ok()
            },
            || format!("a listener at {}", self.address),
        );
        program
    }
}

/// The folder of one test in one process. It is removed after the test, unless that failed.
#[derive(Debug)]
pub(crate) struct GatewayTestFolder(PathBuf);

impl GatewayTestFolder {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // From a process that had the same id before.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Deref for GatewayTestFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for GatewayTestFolder {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("what the test left is in {}", self.0.display());
            return;
        }
        // A server whose gateway was killed notices that with a delay, and writes to its ledger.
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

/// Replaces a file atomically, so that no reader sees half of it.
pub(crate) fn replace_file(path: &Path, text: &str) {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).unwrap();
    fs::rename(&fresh, path).unwrap();
}

/// Initializes a client and lists the tools.
pub(crate) fn initialized(mut client: McpTestClient) -> McpTestClient {
    client.initialize();
    client.request("tools/list", json!({}));
    client
}

/// Returns true if this process runs and is not a zombie.
pub(crate) fn is_running(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}

/// Kills a process.
pub(crate) fn kill(pid: u32) {
    signal(pid, "-KILL");
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Waits for a condition that must become true.
pub(crate) fn wait(mut condition: impl FnMut() -> bool, description: impl Fn() -> String) {
    let began = Instant::now();
    while !condition() {
        let waited = began.elapsed();
        assert!(waited < TEST_TIMEOUT, "waited in vain: {}", description());
        // Some conditions are costly, so the pauses grow with the wait, and it lasts a sixteenth longer at most.
        thread::sleep((waited / 16).clamp(Duration::from_millis(5), Duration::from_millis(100)));
    }
}
