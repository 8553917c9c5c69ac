//! Announcement files of running gateways. Each gateway that listens writes one beside the state, and the other
//! commands read them.
//!
//! A file contains no secret and is no proof. The admin token is sent only to the process that wrote the file, because
//! another process may have the port by now.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use steadfast::config::Config;
use steadfast_core::dedupe::{LeaseOwnerState, ProcessIdentity};
use steadfast_store::{LocalProcessMonitor, ProcessMonitor as _, this_process};

use crate::support::admin_token::{private_file, private_folder};
use crate::support::private_file;
use crate::support::setup::now;

const FOLDER: &str = "gateways";

/// Contents of the file of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedGateway {
    /// Address of the gateway.
    pub(crate) address: SocketAddr,
    pub(crate) process: ProcessIdentity,
    pub(crate) started_at_ms: u64,
    pub(crate) version: String,
    /// Description of its store. Gateways with the same store share their state.
    pub(crate) store: String,
}

/// An announcement file, removed on drop.
#[derive(Debug)]
pub(crate) struct Announcement(PathBuf);

impl Drop for Announcement {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the folder of the files, or `None` if the state folder is not known.
pub(crate) fn folder(config: &Config) -> Option<PathBuf> {
    Some(config.global().store.path.as_ref()?.parent()?.join(FOLDER))
}

/// Announces to the other commands that this process listens at an address. A failure is not an error.
pub(crate) fn announce(folder: &Path, address: SocketAddr, store: &str) -> Option<Announcement> {
    let own = AnnouncedGateway {
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
                "why" = %error,
                "the other commands cannot find this gateway; pass its address with --gateway"
            );
            None
        }
    }
}

fn write(folder: &Path, own: &AnnouncedGateway) -> io::Result<PathBuf> {
    private_folder().create(folder)?;
    let name = format!("{}-{}", own.process.pid, own.address.port());
    let (file, fresh) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.new")));
    // Left behind by a dead process with the same process id.
    let _ = fs::remove_file(&fresh);
    private_file().open(&fresh)?.write_all(own.to_json().to_string().as_bytes())?;
    fs::rename(&fresh, &file)?;
    Ok(file)
}

/// Returns the running gateways, youngest first. Removes the files of dead ones.
pub(crate) fn running(folder: &Path) -> Vec<AnnouncedGateway> {
    let neighbours = LocalProcessMonitor::of(this_process());
    let mut running = Vec::new();
    for (file, announced) in files(folder) {
        let Ok(Some(announced)) = announced else { continue };
        match sight(&neighbours, &announced.process) {
            LeaseOwnerState::Alive => running.push(announced),
            // From before a restart of the machine, or in a container: the state of the process cannot be determined.
            LeaseOwnerState::Time => {}
            LeaseOwnerState::Gone => {
                let _ = fs::remove_file(file);
            }
        }
    }
    running.sort_by_key(|announced| std::cmp::Reverse((announced.started_at_ms, announced.process.pid)));
    running
}

/// Returns the number of files whose gateway is dead or cannot be checked.
pub(crate) fn left_behind(folder: &Path) -> usize {
    let neighbours = LocalProcessMonitor::of(this_process());
    let is_dead =
        |announced: &AnnouncedGateway| sight(&neighbours, &announced.process) != LeaseOwnerState::Alive;
    let read = files(folder).into_iter().filter_map(|(_, announced)| announced.ok());
    read.filter(|announced| announced.as_ref().is_none_or(is_dead)).count()
}

/// Returns the reasons why announcement files are not trusted.
pub(crate) fn distrusted(folder: &Path) -> Vec<String> {
    let refused = files(folder).into_iter().filter_map(|(_, announced)| announced.err());
    // It may have been removed in the meantime.
    refused.filter(|error| error.kind() != ErrorKind::NotFound).map(|error| error.to_string()).collect()
}

/// Returns whether a process is alive. If it cannot be distinguished from a later process with its id, the id alone
/// decides.
fn sight(neighbours: &LocalProcessMonitor, process: &ProcessIdentity) -> LeaseOwnerState {
    match neighbours.check_process(process) {
        LeaseOwnerState::Time if !cfg!(target_os = "linux") => state_of_pid(process.pid),
        known @ (LeaseOwnerState::Alive | LeaseOwnerState::Gone | LeaseOwnerState::Time) => known,
    }
}

#[cfg(unix)]
fn state_of_pid(pid: u32) -> LeaseOwnerState {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};
    match i32::try_from(pid).ok().and_then(Pid::from_raw).map(test_kill_process) {
        Some(Ok(())) => LeaseOwnerState::Alive,
        Some(Err(Errno::SRCH)) | None => LeaseOwnerState::Gone,
        // A process of another user, which did not write this file.
        Some(Err(_)) => LeaseOwnerState::Time,
    }
}

/// Unknown, so it never receives the token.
#[cfg(not(unix))]
fn state_of_pid(_: u32) -> LeaseOwnerState {
    LeaseOwnerState::Time
}

/// Returns all files: their contents, `None` for unreadable contents, or the reason why they are not trusted.
fn files(folder: &Path) -> Vec<(PathBuf, io::Result<Option<AnnouncedGateway>>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    files
        .map(|file| {
            let announced = private_file::read(&file)
                .map(|text| AnnouncedGateway::read(&serde_json::from_str(&text).ok()?));
            (file, announced)
        })
        .collect()
}

impl AnnouncedGateway {
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
            process: ProcessIdentity {
                boot: text("boot")?.into(),
                pid: u32::try_from(number("pid")?).ok()?,
                started: number("started")?,
            },
            started_at_ms: number("startedAtMs")?,
            version: text("version")?.to_owned(),
            store: text("store")?.to_owned(),
        })
    }

    /// Returns true if its process is stopped, as by Ctrl-Z: it accepts connections but responds to none until it
    /// continues. A timeout cannot distinguish that from a busy machine.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.pid)).unwrap_or_default();
        // The name is in parentheses and may contain anything, even parentheses. The state is the first word after it.
        stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with(['T', 't']))
    }

    /// On other systems only a timeout shows it.
    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "on Linux it reads the state of the process")]
    pub(crate) fn is_stopped(&self) -> bool {
        false
    }

    /// Returns the address under which this machine reaches it.
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
    fn sf_7_an_announcement_is_trusted_only_while_its_process_lives() {
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
        // An earlier process with this process id.
        let mut dead = found[0].clone();
        (dead.process.started, dead.address) = (dead.process.started + 1, "127.0.0.1:4712".parse().unwrap());
        let left = write(&folder, &dead).unwrap();
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
    fn a_stopped_gateway_is_detected_until_it_continues() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut announced = AnnouncedGateway {
            address: "127.0.0.1:4711".parse().unwrap(),
            process: this_process(),
            started_at_ms: 0,
            version: String::new(),
            store: String::new(),
        };
        assert!(!announced.is_stopped(), "this one runs");
        announced.process.pid = child.id();
        let mut states = Vec::new();
        for (signal, is_stopped) in [("-STOP", true), ("-CONT", false)] {
            let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
            let began = std::time::Instant::now();
            // A signal arrives when its process is scheduled.
            while announced.is_stopped() != is_stopped && began.elapsed().as_secs() < 120 {
                std::thread::yield_now();
            }
            states.push((sent.unwrap().success(), announced.is_stopped()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(states, [(true, true), (true, false)]);
    }

    #[test]
    #[cfg(unix)]
    fn sf_7_where_only_the_number_of_a_process_is_known_it_must_be_of_one_that_lives() {
        assert_eq!(state_of_pid(std::process::id()), LeaseOwnerState::Alive);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(state_of_pid(pid), LeaseOwnerState::Gone);
        assert_eq!(state_of_pid(0), LeaseOwnerState::Gone, "that would be all of us");
    }
}
