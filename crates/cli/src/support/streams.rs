//! Asynchronous standard streams. For a pipe or a socket, the operating system reports when it is readable or
//! writable, so no thread is needed. For a terminal or a file, threads of the runtime read and write.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// Input from the client and output to it.
pub(crate) type Streams = (Box<dyn AsyncRead + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);

/// Returns the standard streams. Must be called within the runtime.
pub(crate) fn own() -> Streams {
    #[cfg(unix)]
    let (input, output) = (nonblocking::input(io::stdin()), nonblocking::output(io::stdout()));
    #[cfg(not(unix))]
    let (input, output) = (None, None);
    (
        input.unwrap_or_else(|| Box::new(tokio::io::stdin())),
        output.unwrap_or_else(|| Box::new(tokio::io::stdout())),
    )
}

#[cfg(unix)]
mod nonblocking {
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::fs::FileTypeExt as _;
    use std::os::unix::net::UnixStream as StdStream;

    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio::net::UnixStream;
    use tokio::net::unix::pipe;

    pub(super) fn input(stream: impl AsFd) -> Option<Box<dyn AsyncRead + Unpin>> {
        match StreamKind::of(stream)? {
            StreamKind::Pipe(fd) => Some(Box::new(pipe::Receiver::from_owned_fd(fd).ok()?)),
            StreamKind::Socket(socket) => Some(Box::new(socket)),
        }
    }

    pub(super) fn output(stream: impl AsFd) -> Option<Box<dyn AsyncWrite + Send + Unpin>> {
        match StreamKind::of(stream)? {
            StreamKind::Pipe(fd) => Some(Box::new(pipe::Sender::from_owned_fd(fd).ok()?)),
            StreamKind::Socket(socket) => Some(Box::new(socket)),
        }
    }

    enum StreamKind {
        Pipe(OwnedFd),
        Socket(UnixStream),
    }

    impl StreamKind {
        /// Returns `None` for a stream that other processes may share and expect to block, such as a terminal.
        fn of(stream: impl AsFd) -> Option<Self> {
            let file = File::from(stream.as_fd().try_clone_to_owned().ok()?);
            let kind = file.metadata().ok()?.file_type();
            if kind.is_fifo() {
                return Some(Self::Pipe(file.into()));
            }
            if !kind.is_socket() {
                return None;
            }
            let socket = StdStream::from(OwnedFd::from(file));
            socket.set_nonblocking(true).ok()?;
            UnixStream::from_std(socket).ok().map(Self::Socket)
        }
    }
}
