//! Real Redis servers: a single one, a Cluster, or a primary with Sentinel. Tests can pause, kill, empty and fail them
//! over.
//!
//! They listen on reserved ports of this machine and store their files in a folder of their own. They end when dropped,
//! and also when the test process is killed.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Limit against hanging, not a measurement: for a response of a server, the formation of a cluster, or a failover.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(10);

/// A Redis server.
#[derive(Debug)]
pub struct RedisServer {
    port: RedisPort,
    /// Further ports that its settings name.
    _others: Vec<RedisPort>,
    folder: PathBuf,
    settings: Vec<String>,
    kind: RedisServerKind,
    process: Option<RedisProcess>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedisServerKind {
    Data,
    Sentinel,
}

impl RedisServer {
    /// Starts an empty server without persistence.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Returns the server that all concurrent tests of this process share. They need different key prefixes.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<RedisServer>> = Mutex::new(Weak::new());
        share(&SHARED, Self::start)
    }

    /// Starts a server that persists every write before it responds, so that a restart finds it.
    pub fn durable() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts a server with settings in the form of `redis-server` arguments.
    pub fn with(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        Self::launch(RedisServerKind::Data, || (settings.clone(), Vec::new()))
    }

    /// Returns a port that stays unused while this process lives: for a second port of a server, or for a server that
    /// does not exist.
    pub fn free_port() -> u16 {
        static RESERVED_PORTS: Mutex<Vec<RedisPort>> = Mutex::new(Vec::new());
        let port = RedisPort::reserve();
        let number = port.number;
        RESERVED_PORTS.lock().unwrap_or_else(PoisonError::into_inner).push(port);
        number
    }

    /// Returns its port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Returns its URL for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Sends a command and returns the response as text. Lists are joined by spaces.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?} to port {}: {error}", self.port()))
    }

    /// Pauses it. Connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Kills it at once, like a crash.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts it again at the same port, with its persisted data.
    pub fn restart(&mut self) {
        self.kill();
        // The port is still reserved for this server.
        self.spawn();
        assert!(
            self.answers_before(Instant::now() + TEST_TIMEOUT),
            "redis-server does not start again: {}",
            self.log()
        );
    }

    /// Starts it again at the same port, empty.
    pub fn restart_empty(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
        fs::create_dir_all(&self.folder).expect("the folder of a test can be made");
        self.restart();
    }

    /// Starts a server. The settings are created for every try, because they may contain ports.
    fn launch(kind: RedisServerKind, settings: impl Fn() -> (Vec<String>, Vec<RedisPort>)) -> Self {
        // Another program may take a port before the server listens on it.
        for _ in 0..20 {
            let (port, folder, (settings, others)) = (RedisPort::reserve(), new_folder(), settings());
            let mut server = Self { port, _others: others, folder, settings, kind, process: None };
            server.spawn();
            if server.answers_before(Instant::now() + TEST_TIMEOUT) {
                return server;
            }
        }
        panic!("redis-server does not start; is it installed? (`apt-get install redis-server`)");
    }

    fn spawn(&mut self) {
        let log = fs::File::create(self.log_path()).expect("the log of a server can be written");
        let mut command = Command::new("redis-server");
        match self.kind {
            RedisServerKind::Data => {
                command.args(["--save", "", "--appendonly", "no"]);
            }
            RedisServerKind::Sentinel => {
                let file = self.folder.join("sentinel.conf");
                if !file.exists() {
                    fs::write(&file, "").expect("the file of a sentinel can be written");
                }
                command.arg(file).arg("--sentinel");
            }
        }
        let port = self.port().to_string();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--loglevel", "notice"]);
        command.arg("--dir").arg(&self.folder);
        command.args(&self.settings).stdin(Stdio::null());
        command.stderr(log.try_clone().expect("a file handle can be copied")).stdout(log);
        self.process = command.spawn().ok().map(|process| RedisProcess::new(process, &self.folder));
    }

    fn answers_before(&mut self, deadline: Instant) -> bool {
        while let Some(process) = &mut self.process {
            let has_exited = !matches!(process.server.try_wait(), Ok(None));
            // The server's own log proves that it listens; another program on that port would not write there.
            let log = self.log();
            let listens = log.contains("Ready to accept connections") || log.contains("Sentinel ID is");
            let pong = |answer: String| answer == "PONG" || answer.starts_with("NOAUTH");
            if listens && !has_exited && self.try_command(&["PING"]).is_ok_and(pong) {
                return true;
            }
            if has_exited || Instant::now() > deadline {
                self.kill();
                return false;
            }
            thread::sleep(PAUSE);
        }
        false
    }

    fn try_command(&self, words: &[&str]) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port()))?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(request.as_bytes())?;
        read_answer(&mut BufReader::new(stream))
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("only a running server is signalled");
        let done = Command::new("kill").args([signal, &process.server.id().to_string()]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill {signal} failed");
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A running server, with a guard that ends it if this process cannot.
#[derive(Debug)]
struct RedisProcess {
    server: Child,
    /// Reads from this process. When that ends, however it happens, the guard ends the server and removes its folder.
    guard: Option<Child>,
}

impl RedisProcess {
    fn new(server: Child, folder: &Path) -> Self {
        let script = r#"trap '' INT TERM HUP; read -r _ || { kill -9 "$1"; rm -rf -- "$2"; }"#;
        let guard = Command::new("sh")
            .args(["-c", script, "sh", &server.id().to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self { server, guard: guard.ok() }
    }

    fn kill(mut self) {
        let _ = self.server.kill();
        if let Some(mut guard) = self.guard.take() {
            // The guard is no longer needed. Until it has ended, the server is not reaped, so that its process id stays
            // valid.
            if let Some(mut stdin) = guard.stdin.take() {
                let _ = stdin.write_all(b"\n");
            }
            let _ = guard.wait();
        }
        let _ = self.server.wait();
    }
}

/// A port of 127.0.0.1 that is reserved against other tests, in this process and others, with or without a server on
/// it.
#[derive(Debug)]
struct RedisPort {
    number: u16,
    /// Reservation on the same port of another address of this machine, if there is one: a server can still listen on
    /// the port itself.
    _listener: Option<TcpListener>,
}

impl RedisPort {
    /// Below the ephemeral ports of common systems.
    const RANGE: (u64, u64) = (10_000, 30_000);
    const RESERVATION_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    fn reserve() -> Self {
        for _ in 0..1000 {
            let (from, to) = Self::RANGE;
            let drawn = from + RandomState::new().build_hasher().finish() % (to - from);
            let number = u16::try_from(drawn).expect("the range is one of ports");
            let listener = match TcpListener::bind((Self::RESERVATION_ADDRESS, number)) {
                Ok(listener) => Some(listener),
                // Some systems have one address only.
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => None,
                Err(_) => continue,
            };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self { number, _listener: listener };
            }
        }
        panic!("this machine has no free port");
    }
}

/// A Redis Cluster of three servers.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    const SLOTS: u16 = 16_384;

    /// Starts a Cluster of three nodes without replicas.
    pub fn start() -> Self {
        let nodes: Vec<RedisServer> = (0..3)
            .map(|_| {
                RedisServer::launch(RedisServerKind::Data, || {
                    let bus = RedisPort::reserve();
                    // No node counts as failed because the machine is slow.
                    let fixed = [
                        "--cluster-enabled",
                        "yes",
                        "--cluster-node-timeout",
                        NEVER_MILLIS,
                        "--cluster-port",
                        &bus.number.to_string(),
                    ];
                    (fixed.map(str::to_owned).to_vec(), vec![bus])
                })
            })
            .collect();
        let bounds = [0, Self::SLOTS / 3, 2 * (Self::SLOTS / 3), Self::SLOTS];
        for (node, range) in nodes.iter().zip(bounds.windows(2)) {
            let [from, to] = range else { continue };
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &(to - 1).to_string()]);
        }
        let bus_of = |node: &RedisServer| node.settings.last().cloned().unwrap_or_default();
        for (number, node) in nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        if let Some((first, others)) = nodes.split_first() {
            for node in others {
                first.command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus_of(node)]);
            }
        }
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    /// Returns the Cluster that all concurrent tests of this process share. They need different key prefixes.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
        share(&SHARED, Self::start)
    }

    /// Returns its nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns its nodes, to kill and restart them.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Returns its URL for clients.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Waits until every node reports that all slots are served.
    pub fn wait_until_whole(&self) {
        eventually("the cluster is whole", || {
            self.nodes.iter().all(|node| {
                let info = node.try_command(&["CLUSTER", "INFO"]).unwrap_or_default();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
        });
    }
}

/// A primary with a replica, and one sentinel with a quorum of one.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: [RedisServer; 2],
    sentinel: RedisServer,
}

impl RedisSentinel {
    /// Name of the pair for the sentinel.
    pub const SERVICE: &str = "steadfast";

    /// Starts a primary and a replica with these settings, and waits until the replica has caught up.
    pub fn start(settings: &[&str]) -> Self {
        let settings = [&["--repl-diskless-sync-delay", "0"], settings].concat();
        let primary = RedisServer::with(&settings);
        let port = primary.port().to_string();
        let replica =
            RedisServer::with(&[&settings[..], &["--replicaof", &format!("127.0.0.1 {port}")]].concat());
        eventually("the replica has caught up", || {
            replica
                .try_command(&["INFO", "replication"])
                .is_ok_and(|info| info.contains("master_link_status:up"))
        });
        let sentinel = RedisServer::launch(RedisServerKind::Sentinel, Default::default);
        sentinel.command(&["SENTINEL", "MONITOR", Self::SERVICE, "127.0.0.1", &port, "1"]);
        // It fails over only on command, never because the machine is slow.
        for (name, value) in [("down-after-milliseconds", NEVER_MILLIS), ("failover-timeout", NEVER_MILLIS)] {
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

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{}", self.sentinel.port(), Self::SERVICE)
    }

    /// Returns the current primary.
    pub fn primary(&mut self) -> &mut RedisServer {
        let port = self.primary_port();
        let [first, second] = &mut self.servers;
        if first.port() == port { first } else { second }
    }

    /// Returns the sentinel.
    pub fn sentinel(&self) -> &RedisServer {
        &self.sentinel
    }

    /// Waits until the replica has all writes that the primary has received until now. `WAIT` would not do here: it
    /// only covers the writes of its own connection.
    pub fn wait_until_replicated(&self) {
        let offset = |server: &RedisServer, name: &str| {
            let info = server.try_command(&["INFO", "replication"]).ok()?;
            info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let primary = self.primary_port();
        let [first, second] = &self.servers;
        let (primary, replica) = if first.port() == primary { (first, second) } else { (second, first) };
        let written = offset(primary, "master_repl_offset:").expect("a primary counts what it is given");
        eventually("the replica has caught up", || {
            offset(replica, "slave_repl_offset:").is_some_and(|read| read >= written)
        });
    }

    /// Kills the primary, and waits until the replica has taken over.
    pub fn fail_over(&mut self) {
        let before = self.primary_port();
        self.primary().kill();
        self.hand_over_from(before);
    }

    /// Makes the replica the primary and the primary its replica. Both continue to run, with their connections.
    pub fn swap(&mut self) {
        let before = self.primary_port();
        self.hand_over_from(before);
        let after = self.primary_port().to_string();
        // The sentinel would do this too, some seconds later.
        for server in self.servers.iter().filter(|server| server.port() == before) {
            server.command(&["REPLICAOF", "127.0.0.1", &after]);
            eventually("the old primary is a replica", || {
                server.try_command(&["ROLE"]).is_ok_and(|role| role.starts_with("slave"))
            });
        }
    }

    /// Makes the sentinel promote the replica.
    fn hand_over_from(&self, before: u16) {
        eventually("the replica has taken over", || {
            let reply = self.sentinel.command(&["SENTINEL", "MASTER", Self::SERVICE]);
            let words: Vec<&str> = reply.split(' ').collect();
            let field = |name: &str| {
                words
                    .chunks(2)
                    .find_map(|pair| if pair.first() == Some(&name) { pair.get(1).copied() } else { None })
            };
            let port: u16 = field("port")
                .and_then(|port| port.parse().ok())
                .expect("a sentinel names the port of its primary");
            let under_way = field("flags").is_some_and(|flags| flags.contains("failover_in_progress"));
            if port == before && !under_way {
                // The failover has not begun, or was aborted because the replica did not respond for a while. Both
                // values come from one response, so the failover cannot be complete either.
                let _ = self.sentinel.try_command(&["SENTINEL", "FAILOVER", Self::SERVICE]);
            }
            port != before
                && self.servers.iter().any(|server| {
                    server.port() == port
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

/// Longer than any test: an event with this delay does not happen by itself.
const NEVER_MILLIS: &str = "3600000";

/// Waits for a condition that a server reaches at its own pace.
pub fn eventually(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "after {} s this is not true yet: {condition}",
            TEST_TIMEOUT.as_secs()
        );
        thread::sleep(PAUSE);
    }
}

/// Returns the instance that a running test has started, or a new one. It ends with the last test that uses it.
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
    fn a_server_responds_and_persists_as_configured() {
        let mut server = RedisServer::start();
        server.command(&["SET", "a", "1"]);
        server.restart();
        assert_eq!(server.command(&["GET", "a"]), "", "it keeps nothing");

        let mut durable = RedisServer::durable();
        durable.command(&["SET", "a", "1"]);
        durable.restart();
        assert_eq!(durable.command(&["GET", "a"]), "1");
        durable.restart_empty();
        assert_eq!(durable.command(&["GET", "a"]), "");
    }

    #[test]
    fn a_server_ends_with_its_test_also_when_that_panics() {
        let server = RedisServer::start();
        let (port, folder) = (server.port(), server.folder.clone());
        let failing_test = thread::spawn(move || {
            assert_eq!(server.command(&["PING"]), "a test that fails");
        });
        assert!(failing_test.join().is_err());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens there any more");
        assert!(!folder.exists());
    }

    /// Its test is another process: this program, with one test to run.
    #[test]
    fn a_server_ends_also_when_the_process_of_its_test_is_killed() {
        const PART: &str = "STEADFAST_TESTKIT_PART";
        const OWN: &str = "redis::tests::a_server_ends_also_when_the_process_of_its_test_is_killed";
        if std::env::var_os(PART).is_some() {
            let server = RedisServer::start();
            println!("\n> {} {}", server.port(), server.folder.display());
            let _ = io::stdin().read_line(&mut String::new());
            return;
        }
        let mut owner = Command::new(std::env::current_exe().expect("this is a program"))
            .args([OWN, "--exact", "--nocapture"])
            .env(PART, "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program can be started twice");
        let lines = BufReader::new(owner.stdout.take().expect("it was piped")).lines().map_while(Result::ok);
        let announcement = lines.filter_map(|line| line.strip_prefix("> ").map(str::to_owned)).next();
        let announcement = announcement.expect("it says where its server is");
        let (port, folder) = announcement.split_once(' ').expect("it says two things");
        let port: u16 = port.parse().expect("a port is a number");
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok(), "its server is there");
        owner.kill().expect("it was not waited for");
        owner.wait().expect("it was not waited for");
        eventually("nobody listens there", || TcpStream::connect(("127.0.0.1", port)).is_err());
        eventually("nothing is left of its files", || !Path::new(folder).exists());
    }

    #[test]
    fn a_port_is_reserved_also_without_a_listener() {
        let (one, other) = (RedisPort::reserve(), RedisPort::reserve());
        assert_ne!(one.number, other.number);
        assert!(TcpStream::connect(("127.0.0.1", one.number)).is_err());
        if one._listener.is_some() {
            assert!(
                TcpListener::bind((RedisPort::RESERVATION_ADDRESS, one.number)).is_err(),
                "nobody else can reserve it"
            );
        }
        assert!(TcpListener::bind(("127.0.0.1", one.number)).is_ok(), "its server can listen there");
    }

    #[test]
    fn a_sentinel_fails_over() {
        let mut pair = RedisSentinel::start(&[]);
        let before = pair.primary().port();
        pair.primary().command(&["SET", "a", "1"]);
        pair.wait_until_replicated();
        pair.fail_over();
        assert_ne!(pair.primary().port(), before);
        assert_eq!(pair.primary().command(&["GET", "a"]), "1");
    }

    #[test]
    fn a_cluster_spreads_its_keys() {
        let cluster = RedisCluster::start();
        let answers: Vec<String> =
            cluster.nodes().iter().map(|node| node.command(&["SET", "a", "1"])).collect();
        assert_eq!(answers.iter().filter(|answer| *answer == "OK").count(), 1, "{answers:?}");
    }
}
