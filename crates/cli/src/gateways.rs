//! Which gateways run on this state: each that listens lays a small file beside it, in which the other commands find it.
//!
//! A file says nothing secret, and proves nothing. Whoever is to be given the admin token must be the process that wrote
//! it: another one may have been given its port since.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use steadfast::Config;
use steadfast_core::dedupe::{LeaseSight, Process};
use steadfast_store::{Neighbours, Sight as _, this_process};

use crate::admin_token::{private_file, private_folder};
use crate::{now, own};

const FOLDER: &str = "gateways";

/// A gateway as its file tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Where it can be asked.
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
    pub(crate) started_at_ms: u64,
    pub(crate) version: String,
    /// Its store, in words: those that share one know the same.
    pub(crate) store: String,
}

/// Takes the file away with it.
#[derive(Debug)]
pub(crate) struct Announcement(PathBuf);

impl Drop for Announcement {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Where the files are. Nothing where it is not known where state is kept.
pub(crate) fn folder(config: &Config) -> Option<PathBuf> {
    Some(config.global().store.path.as_ref()?.parent()?.join(FOLDER))
}

/// Tells the other commands that this process listens there. That it cannot be told is no reason not to.
pub(crate) fn announce(folder: &Path, address: SocketAddr, store: &str) -> Option<Announcement> {
    let own = Announced {
        address,
        process: this_process(),
        started_at_ms: now().as_millis(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: store.to_owned(),
    };
    match write(folder, &own) {
        Ok(file) => Some(Announcement(file)),
        Err(error) => {
            tracing::warn!(
                event = "gateway.unannounced",
                folder = %folder.display(),
                why = %error,
                "the other commands will not find this gateway; give them its address with --gateway"
            );
            None
        }
    }
}

fn write(folder: &Path, own: &Announced) -> io::Result<PathBuf> {
    private_folder().create(folder)?;
    let name = format!("{}-{}", own.process.pid, own.address.port());
    let (file, fresh) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.new")));
    // Left by one that had our number and died.
    let _ = fs::remove_file(&fresh);
    private_file().open(&fresh)?.write_all(own.to_json().to_string().as_bytes())?;
    fs::rename(&fresh, &file)?;
    Ok(file)
}

/// Those that run, the youngest first. Files of those that are gone are taken away.
pub(crate) fn running(folder: &Path) -> Vec<Announced> {
    let neighbours = Neighbours::of(this_process());
    let mut running = Vec::new();
    for (file, announced) in files(folder) {
        let Ok(Some(announced)) = announced else { continue };
        match sight(&neighbours, &announced.process) {
            LeaseSight::Alive => running.push(announced),
            // Before this machine was started again, or in a container: nobody here can say.
            LeaseSight::Time => {}
            LeaseSight::Gone => {
                let _ = fs::remove_file(file);
            }
        }
    }
    running.sort_by_key(|announced| std::cmp::Reverse((announced.started_at_ms, announced.process.pid)));
    running
}

/// How many files are there of gateways that do not run any more, or of which that cannot be said.
pub(crate) fn left_behind(folder: &Path) -> usize {
    let neighbours = Neighbours::of(this_process());
    let gone = |announced: &Announced| sight(&neighbours, &announced.process) != LeaseSight::Alive;
    let read = files(folder).into_iter().filter_map(|(_, announced)| announced.ok());
    read.filter(|announced| announced.as_ref().is_none_or(gone)).count()
}

/// Why files are not believed that say a gateway runs.
pub(crate) fn distrusted(folder: &Path) -> Vec<String> {
    let refused = files(folder).into_iter().filter_map(|(_, announced)| announced.err());
    // It may have been taken away meanwhile.
    refused.filter(|error| error.kind() != ErrorKind::NotFound).map(|error| error.to_string()).collect()
}

/// Whether a process lives. Where it cannot be told from the next of its number, the number alone has to do.
fn sight(neighbours: &Neighbours, process: &Process) -> LeaseSight {
    match neighbours.sight(process) {
        LeaseSight::Time if !cfg!(target_os = "linux") => sight_of_number(process.pid),
        known @ (LeaseSight::Alive | LeaseSight::Gone | LeaseSight::Time) => known,
    }
}

#[cfg(unix)]
fn sight_of_number(pid: u32) -> LeaseSight {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};
    match i32::try_from(pid).ok().and_then(Pid::from_raw).map(test_kill_process) {
        Some(Ok(())) => LeaseSight::Alive,
        Some(Err(Errno::SRCH)) | None => LeaseSight::Gone,
        // Of another user, who did not write our file.
        Some(Err(_)) => LeaseSight::Time,
    }
}

/// Nothing can be said, so nobody is given the token for it.
#[cfg(not(unix))]
fn sight_of_number(_: u32) -> LeaseSight {
    LeaseSight::Time
}

/// All that are there: what they say, nothing if that means nothing, or why they are not believed.
fn files(folder: &Path) -> Vec<(PathBuf, io::Result<Option<Announced>>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    files
        .map(|file| {
            let announced = own::read(&file).map(|text| Announced::read(&serde_json::from_str(&text).ok()?));
            (file, announced)
        })
        .collect()
}

impl Announced {
    fn to_json(&self) -> Value {
        json!({
            "address": self.address.to_string(),
            "pid": self.process.pid,
            "boot": &*self.process.boot,
            "started": self.process.started,
            "startedAtMs": self.started_at_ms,
            "version": self.version,
            "store": self.store,
        })
    }

    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str();
        let number = |name: &str| value.get(name)?.as_u64();
        Some(Self {
            address: text("address")?.parse().ok()?,
            process: Process {
                boot: text("boot")?.into(),
                pid: u32::try_from(number("pid")?).ok()?,
                started: number("started")?,
            },
            started_at_ms: number("startedAtMs")?,
            version: text("version")?.to_owned(),
            store: text("store")?.to_owned(),
        })
    }

    /// Whether its process is stopped, as by Ctrl-Z: it takes connections and answers none of them before it goes on. No wait
    /// can tell that from a machine that has much to do.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.pid)).unwrap_or_default();
        // The name stands in brackets and may hold anything, brackets too; the state is the first word behind it.
        stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with(['T', 't']))
    }

    /// Elsewhere only waiting tells.
    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "where it can be told it takes the process")]
    pub(crate) fn is_stopped(&self) -> bool {
        false
    }

    /// Where it is asked from this machine.
    pub(crate) fn near(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
        };
        SocketAddr::new(ip, self.address.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn sf_7_a_file_is_believed_while_its_process_lives_and_no_longer() {
        let folder = std::env::temp_dir().join(format!("steadfast-gateways-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let address = "0.0.0.0:4711".parse().unwrap();
        let announcement = announce(&folder, address, "sqlite file a").unwrap();
        let found = running(&folder);
        assert_eq!((found.len(), found[0].near()), (1, "127.0.0.1:4711".parse().unwrap()), "{found:?}");
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(&announcement.0).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600);
        }
        // Another process with our number, from before.
        let mut gone = found[0].clone();
        (gone.process.started, gone.address) = (gone.process.started + 1, "127.0.0.1:4712".parse().unwrap());
        let left = write(&folder, &gone).unwrap();
        fs::write(folder.join("odd.json"), "[]").unwrap();
        assert_eq!((left_behind(&folder), distrusted(&folder).len()), (1, 1));
        assert_eq!(running(&folder), found);
        assert!(!left.exists(), "what is gone is taken away");
        drop(announcement);
        assert_eq!(running(&folder), []);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_gateway_that_is_stopped_is_seen_to_be_until_it_goes_on() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut announced = Announced {
            address: "127.0.0.1:4711".parse().unwrap(),
            process: this_process(),
            started_at_ms: 0,
            version: String::new(),
            store: String::new(),
        };
        assert!(!announced.is_stopped(), "this one runs");
        announced.process.pid = child.id();
        let mut seen = Vec::new();
        for (signal, is_stopped) in [("-STOP", true), ("-CONT", false)] {
            let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
            let began = std::time::Instant::now();
            // A signal arrives when its process has its turn.
            while announced.is_stopped() != is_stopped && began.elapsed().as_secs() < 120 {
                std::thread::yield_now();
            }
            seen.push((sent.unwrap().success(), announced.is_stopped()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen, [(true, true), (true, false)]);
    }

    #[test]
    #[cfg(unix)]
    fn sf_7_where_only_the_number_of_a_process_is_known_it_must_be_of_one_that_lives() {
        assert_eq!(sight_of_number(std::process::id()), LeaseSight::Alive);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(sight_of_number(pid), LeaseSight::Gone);
        assert_eq!(sight_of_number(0), LeaseSight::Gone, "that would be all of us");
    }
}
