//! Real Redis servers: one, a Cluster, or a primary that Sentinel watches; to be paused, killed, emptied, failed over.
//!
//! They listen on free ports of this machine, keep their files in a folder of their own and end when dropped.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to answer, a cluster to form, a failover to happen.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// A server of its own.
#[derive(Debug)]
pub struct Server {
    port: u16,
    folder: PathBuf,
    settings: Vec<String>,
    kind: Kind,
    process: Option<Child>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Sentinel,
}

impl Server {
    /// An empty server that keeps nothing when it ends.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// The server of all tests in this process that run at the same time and need no more than a prefix of their own.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        share(&SHARED, Self::start)
    }

    /// A server that writes everything down before it answers, and finds it again after a restart.
    pub fn durable() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// A server with settings, as `redis-server` takes them.
    pub fn with(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        Self::launch(Kind::Data, || settings.clone())
    }

    /// A port that nobody listens on: for a second port of a server, or for a server that is not there.
    pub fn free_port() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("this machine has a free port");
        listener.local_addr().expect("a bound listener has an address").port()
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How a client finds it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends it a command and gives the answer as text; lists are joined by spaces.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?} to port {}: {error}", self.port))
    }

    /// Stops it in the middle of whatever it does. Connections stay open; nothing is answered.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again where it was, with what it had written down.
    pub fn restart(&mut self) {
        self.kill();
        // The port was ours a moment ago; the system may need another to give it back.
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.spawn();
            if self.answers_before(deadline) {
                return;
            }
            assert!(Instant::now() < deadline, "redis-server does not start again: {}", self.log());
        }
    }

    /// Starts it again where it was, with nothing.
    pub fn restart_empty(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
        fs::create_dir_all(&self.folder).expect("the folder of a test can be made");
        self.restart();
    }

    /// The settings are made anew for every try, because there may be a port in them.
    fn launch(kind: Kind, settings: impl Fn() -> Vec<String>) -> Self {
        // Between looking for a free port and listening on it somebody else may take it.
        for _ in 0..20 {
            let (port, folder) = (Self::free_port(), new_folder());
            let mut server = Self { port, folder, settings: settings(), kind, process: None };
            server.spawn();
            if server.answers_before(Instant::now() + PATIENCE) {
                return server;
            }
        }
        panic!("redis-server does not start; is it installed? (`apt-get install redis-server`)");
    }

    fn spawn(&mut self) {
        let log = fs::File::create(self.log_path()).expect("the log of a server can be written");
        let mut command = Command::new("redis-server");
        match self.kind {
            Kind::Data => {
                command.args(["--save", "", "--appendonly", "no"]);
            }
            Kind::Sentinel => {
                let file = self.folder.join("sentinel.conf");
                if !file.exists() {
                    fs::write(&file, "").expect("the file of a sentinel can be written");
                }
                command.arg(file).arg("--sentinel");
            }
        }
        let port = self.port.to_string();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--loglevel", "warning"]);
        command.arg("--dir").arg(&self.folder);
        command.args(&self.settings).stdin(Stdio::null());
        command.stderr(log.try_clone().expect("a file handle can be copied")).stdout(log);
        self.process = command.spawn().ok();
    }

    fn answers_before(&mut self, deadline: Instant) -> bool {
        while self.process.is_some() {
            if self
                .try_command(&["PING"])
                .is_ok_and(|answer| answer == "PONG" || answer.starts_with("NOAUTH"))
            {
                return true;
            }
            let ended = self.process.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)));
            if ended || Instant::now() > deadline {
                self.kill();
                return false;
            }
            thread::sleep(PAUSE);
        }
        false
    }

    fn try_command(&self, words: &[&str]) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(request.as_bytes())?;
        read_answer(&mut BufReader::new(stream))
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("only a running server is signalled");
        let done = Command::new("kill").args([signal, &process.id().to_string()]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill {signal} failed");
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Three servers that share the keys.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    const SLOTS: u16 = 16_384;

    /// A Cluster of three nodes without replicas.
    pub fn start() -> Self {
        let nodes: Vec<Server> = (0..3)
            .map(|_| {
                Server::launch(Kind::Data, || {
                    let bus = Server::free_port().to_string();
                    let fixed =
                        ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port"];
                    fixed.into_iter().map(str::to_owned).chain([bus]).collect()
                })
            })
            .collect();
        let bounds = [0, Self::SLOTS / 3, 2 * (Self::SLOTS / 3), Self::SLOTS];
        for (node, range) in nodes.iter().zip(bounds.windows(2)) {
            let [from, to] = range else { continue };
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &(to - 1).to_string()]);
        }
        let bus_of = |node: &Server| node.settings.last().cloned().unwrap_or_default();
        for (number, node) in nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        if let Some((first, others)) = nodes.split_first() {
            for node in others {
                first.command(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), &bus_of(node)]);
            }
        }
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    /// The Cluster of all tests in this process that run at the same time and need no more than a prefix of their own.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        share(&SHARED, Self::start)
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Its nodes, to be killed and started again.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// How a client finds it.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Comes back when every node says that all slots are served.
    pub fn wait_until_whole(&self) {
        eventually("the cluster is whole", || {
            self.nodes.iter().all(|node| {
                let info = node.try_command(&["CLUSTER", "INFO"]).unwrap_or_default();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
        });
    }
}

/// A primary with a replica, and one sentinel that is enough to decide.
#[derive(Debug)]
pub struct Sentinel {
    servers: [Server; 2],
    sentinel: Server,
}

impl Sentinel {
    /// What the sentinel calls the pair.
    pub const SERVICE: &str = "steadfast";

    /// A primary and a replica that has caught up, both with these settings.
    pub fn start(settings: &[&str]) -> Self {
        let primary = Server::with(settings);
        let port = primary.port.to_string();
        let replica = Server::with(&[settings, &["--replicaof", &format!("127.0.0.1 {port}")]].concat());
        eventually("the replica has caught up", || {
            replica
                .try_command(&["INFO", "replication"])
                .is_ok_and(|info| info.contains("master_link_status:up"))
        });
        let sentinel = Server::launch(Kind::Sentinel, Vec::new);
        sentinel.command(&["SENTINEL", "MONITOR", Self::SERVICE, "127.0.0.1", &port, "1"]);
        for (name, value) in [("down-after-milliseconds", "500"), ("failover-timeout", "3000")] {
            sentinel.command(&["SENTINEL", "SET", Self::SERVICE, name, value]);
        }
        let pair = Self { servers: [primary, replica], sentinel };
        eventually("the sentinel knows the replica", || {
            let known =
                pair.sentinel.try_command(&["SENTINEL", "REPLICAS", Self::SERVICE]).unwrap_or_default();
            known.contains("master-link-status ok") && known.contains("flags slave ")
        });
        pair
    }

    /// How a client finds it.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{}", self.sentinel.port, Self::SERVICE)
    }

    /// The server that takes writes at the moment.
    pub fn primary(&mut self) -> &mut Server {
        let port = self.primary_port();
        let [first, second] = &mut self.servers;
        if first.port == port { first } else { second }
    }

    /// The one that watches the others.
    pub fn sentinel(&self) -> &Server {
        &self.sentinel
    }

    /// Comes back when the replica has everything that the primary has been given until now. `WAIT` would not say so here: it
    /// speaks of what came on its own connection.
    pub fn wait_until_replicated(&self) {
        let offset = |server: &Server, name: &str| {
            let info = server.try_command(&["INFO", "replication"]).ok()?;
            info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let primary = self.primary_port();
        let [first, second] = &self.servers;
        let (primary, replica) = if first.port == primary { (first, second) } else { (second, first) };
        let written = offset(primary, "master_repl_offset:").expect("a primary counts what it is given");
        eventually("the replica has caught up", || {
            offset(replica, "slave_repl_offset:").is_some_and(|read| read >= written)
        });
    }

    /// Kills the primary, and comes back when the other one has taken over.
    pub fn fail_over(&mut self) {
        let before = self.primary_port();
        self.primary().kill();
        self.wait_for_another_than(before);
    }

    /// Makes the replica the primary and the primary its replica. Both live on.
    pub fn swap(&mut self) {
        let before = self.primary_port();
        assert_eq!(self.sentinel.command(&["SENTINEL", "FAILOVER", Self::SERVICE]), "OK");
        self.wait_for_another_than(before);
        eventually("the old primary is a replica", || {
            self.servers.iter().any(|server| {
                server.port == before
                    && server.try_command(&["ROLE"]).is_ok_and(|role| role.starts_with("slave"))
            })
        });
    }

    fn wait_for_another_than(&self, before: u16) {
        eventually("the replica has taken over", || {
            let port = self.primary_port();
            port != before
                && self.servers.iter().any(|server| {
                    server.port == port
                        && server.try_command(&["ROLE"]).is_ok_and(|role| role.starts_with("master"))
                })
        });
    }

    fn primary_port(&self) -> u16 {
        let answer = self.sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::SERVICE]);
        answer
            .rsplit(' ')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a sentinel names the port of its primary")
    }
}

/// Waits for something that a server does in its own time.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "after {} s it is still not so that {what}", PATIENCE.as_secs());
        thread::sleep(PAUSE);
    }
}

/// What one of the tests that run now has started, or a new one. It ends with the last test that uses it.
fn share<T>(shared: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *shared = Arc::downgrade(&started);
        started
    })
}

fn new_folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("steadfast-redis-{}-{number}", std::process::id());
    let folder: PathBuf = Path::new(&std::env::temp_dir()).join(name);
    fs::create_dir_all(&folder).expect("the folder of a test can be made");
    folder
}

fn read_answer(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let Some((kind, rest)) = line.split_at_checked(1) else {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no answer"));
    };
    let length = rest.parse::<usize>();
    match (kind, length) {
        ("$", Ok(length)) => {
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        ("*", Ok(length)) => {
            let parts: io::Result<Vec<String>> = (0..length).map(|_| read_answer(from)).collect();
            Ok(parts?.join(" "))
        }
        ("$" | "*", Err(_)) => Ok(String::new()),
        _ => Ok(rest.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_forgets_and_remembers_as_it_was_told() {
        let mut server = Server::start();
        server.command(&["SET", "a", "1"]);
        server.restart();
        assert_eq!(server.command(&["GET", "a"]), "", "it keeps nothing");

        let mut durable = Server::durable();
        durable.command(&["SET", "a", "1"]);
        durable.restart();
        assert_eq!(durable.command(&["GET", "a"]), "1");
        durable.restart_empty();
        assert_eq!(durable.command(&["GET", "a"]), "");
    }

    #[test]
    fn a_server_ends_with_its_test_also_when_that_panics() {
        let server = Server::start();
        let (port, folder) = (server.port(), server.folder.clone());
        let ended = thread::spawn(move || {
            assert_eq!(server.command(&["PING"]), "a test that fails");
        });
        assert!(ended.join().is_err());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens there any more");
        assert!(!folder.exists());
    }

    #[test]
    fn a_sentinel_fails_over() {
        let mut pair = Sentinel::start(&[]);
        let before = pair.primary().port();
        pair.primary().command(&["SET", "a", "1"]);
        pair.wait_until_replicated();
        pair.fail_over();
        assert_ne!(pair.primary().port(), before);
        assert_eq!(pair.primary().command(&["GET", "a"]), "1");
    }

    #[test]
    fn a_cluster_spreads_its_keys() {
        let cluster = Cluster::start();
        let answers: Vec<String> =
            cluster.nodes().iter().map(|node| node.command(&["SET", "a", "1"])).collect();
        assert_eq!(answers.iter().filter(|answer| *answer == "OK").count(), 1, "{answers:?}");
    }
}
