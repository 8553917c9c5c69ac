//! The protocol between gateway, leash and stage over their sockets.
//!
//! One order goes down: three handles and a list of byte strings, which the leash passes on unread. Then one byte for
//! each command goes to the leash. A few lines with reports come up.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::exit::ChildExit;

/// Command to the leash: ask the group to end.
pub(crate) const TERM: u8 = b'T';
/// Command to the leash: kill the group.
pub(crate) const KILL: u8 = b'K';

/// The child's ends of its pipes: stdin, stdout, stderr.
pub(crate) type ChildPipes = [OwnedFd; 3];

/// The program to start, with its folder and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchOrder {
    pub(crate) path: PathBuf,
    /// Program name as the first argument (`argv[0]`).
    pub(crate) name: OsString,
    pub(crate) folder: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
}

impl LaunchOrder {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |text: &OsStr| {
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        };
        put(self.path.as_os_str());
        put(&self.name);
        put(self.folder.as_os_str());
        put(OsStr::new(&self.args.len().to_string()));
        self.args.iter().for_each(|arg| put(arg));
        for (name, value) in &self.environment {
            put(name);
            put(value);
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut texts =
            bytes.strip_suffix(&[0])?.split(|byte| *byte == 0).map(|text| OsString::from_vec(text.to_vec()));
        let (path, name, folder) = (texts.next()?.into(), texts.next()?, texts.next()?.into());
        let count: usize = texts.next()?.to_str()?.parse().ok()?;
        let args: Vec<_> = texts.by_ref().take(count).collect();
        let mut environment = Vec::new();
        while let Some(name) = texts.next() {
            environment.push((name, texts.next()?));
        }
        (args.len() == count).then_some(Self { path, name, folder, args, environment })
    }

    /// Returns true if a string contains a zero byte, which no system call accepts.
    pub(crate) fn has_zero_bytes(&self) -> bool {
        let variables =
            self.environment.iter().flat_map(|(name, value)| [name.as_os_str(), value.as_os_str()]);
        let places = [self.path.as_os_str(), &self.name, self.folder.as_os_str()];
        let mut texts = places.into_iter().chain(self.args.iter().map(OsString::as_os_str)).chain(variables);
        texts.any(|text| text.as_bytes().contains(&0))
    }
}

/// Sends the handles. This never waits, because the socket is still empty.
pub(crate) fn send_ends(socket: &UnixStream, ends: &ChildPipes) -> io::Result<()> {
    let ends: [BorrowedFd<'_>; 3] = ends.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&ends)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty())
    })?;
    Ok(())
}

/// Returns the bytes of an order as they are sent, after the handles.
pub(crate) fn framed(order: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(order.len()).ok().filter(|length| *length <= MAX_ORDER);
    let length = length
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "too many arguments or variables"))?;
    Ok([&length.to_le_bytes(), order].concat())
}

/// Sends handles and order, waiting as long as it takes.
pub(crate) fn send(mut socket: &UnixStream, ends: &ChildPipes, order: &[u8]) -> io::Result<()> {
    send_ends(socket, ends)?;
    socket.write_all(&framed(order)?)
}

/// Receives handles and order.
pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<(ChildPipes, Vec<u8>)> {
    let ends = receive_ends(socket)?;
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_ORDER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut order = Vec::new();
    socket.take(length.into()).read_to_end(&mut order)?;
    if order.len() as u64 != u64::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((ends, order))
}

fn receive_ends(socket: &UnixStream) -> io::Result<ChildPipes> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, CLOSE_ON_EXEC)
    })?;
    let mut ends = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            ends.extend(received);
        }
    }
    #[cfg(not(target_os = "linux"))]
    for end in &ends {
        rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
    }
    ends.try_into().map_err(|_| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(target_os = "linux")]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::empty();

/// More than any system accepts as arguments and variables.
const MAX_ORDER: u32 = 8 * 1024 * 1024;

/// A report of the leash. Each is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeashReport {
    /// The server runs with this process id.
    Started(u32),
    /// The server could not be started.
    Failed(StartFailure),
    /// The server has exited.
    Ended(ChildExit),
    /// Its whole group has ended too, or the rest cannot be ended.
    Gone,
}

/// Step of the start that failed, with the error number of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartFailure {
    Folder(i32),
    Command(i32),
    Leash(i32),
}

impl LeashReport {
    /// Upper limit of all reports of one leash together.
    pub(crate) const MAX_BYTES: u64 = 1024;

    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (word, number) = (words.next()?, words.next());
        let number = |()| number?.parse::<i32>().ok();
        Some(match word {
            "started" => Self::Started(u32::try_from(number(())?).ok()?),
            "no-folder" => Self::Failed(StartFailure::Folder(number(())?)),
            "no-command" => Self::Failed(StartFailure::Command(number(())?)),
            "no-leash" => Self::Failed(StartFailure::Leash(number(())?)),
            "exited" => Self::Ended(ChildExit::Code(number(())?)),
            "killed" => Self::Ended(ChildExit::Signal(number(())?)),
            "lost" => Self::Ended(ChildExit::Unknown),
            "gone" => Self::Gone,
            _ => return None,
        })
    }
}

impl fmt::Display for LeashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(pid) => writeln!(f, "started {pid}"),
            Self::Failed(StartFailure::Folder(errno)) => writeln!(f, "no-folder {errno}"),
            Self::Failed(StartFailure::Command(errno)) => writeln!(f, "no-command {errno}"),
            Self::Failed(StartFailure::Leash(errno)) => writeln!(f, "no-leash {errno}"),
            Self::Ended(ChildExit::Code(code)) => writeln!(f, "exited {code}"),
            Self::Ended(ChildExit::Signal(signal)) => writeln!(f, "killed {signal}"),
            Self::Ended(ChildExit::Unknown) => writeln!(f, "lost"),
            Self::Gone => writeln!(f, "gone"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_out_as_they_went_in() {
        let order = LaunchOrder {
            path: "/bin/sh".into(),
            name: "sh".into(),
            folder: "/".into(),
            args: vec!["-c".into(), "".into(), OsString::from_vec(vec![0xff, b'\n'])],
            environment: vec![("A".into(), "".into()), ("B".into(), "=\n".into())],
        };
        let bytes = order.to_bytes();
        assert_eq!(LaunchOrder::from_bytes(&bytes), Some(order.clone()));
        let bare = LaunchOrder { args: Vec::new(), environment: Vec::new(), ..order };
        assert_eq!(LaunchOrder::from_bytes(&bare.to_bytes()), Some(bare));
        for cut in 0..bytes.len() {
            let _ = LaunchOrder::from_bytes(&bytes[..cut]);
        }
        assert_eq!(LaunchOrder::from_bytes(b""), None);
    }

    #[test]
    fn reports_come_out_as_they_went_in() {
        for report in [
            LeashReport::Started(4_000_000),
            LeashReport::Failed(StartFailure::Folder(2)),
            LeashReport::Failed(StartFailure::Command(13)),
            LeashReport::Failed(StartFailure::Leash(0)),
            LeashReport::Ended(ChildExit::Code(-1)),
            LeashReport::Ended(ChildExit::Signal(9)),
            LeashReport::Ended(ChildExit::Unknown),
            LeashReport::Gone,
        ] {
            assert_eq!(LeashReport::parse(report.to_string().as_bytes()), Some(report));
        }
        for wrong in ["", "started", "started x", "running 3", "exited 99999999999"] {
            assert_eq!(LeashReport::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn handles_travel_with_their_order() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let ends: ChildPipes =
            [reader.into(), writer.into(), io::stderr().as_fd().try_clone_to_owned().unwrap()];
        send(&sender, &ends, b"order").unwrap();
        drop(ends);
        let ([reader, writer, _], order) = receive(&receiver).unwrap();
        assert_eq!(order, b"order");
        io::PipeWriter::from(writer).write_all(b"through").unwrap();
        let mut through = String::new();
        io::PipeReader::from(reader).read_to_string(&mut through).unwrap();
        assert_eq!(through, "through");
        drop(sender);
        assert!(receive(&receiver).is_err(), "an owner that is gone");
    }
}
