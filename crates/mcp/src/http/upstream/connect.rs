//! Connections to servers: DNS, TCP and TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The address of a server.
#[derive(Clone)]
pub(super) struct UpstreamAddress {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// The reason why a URL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServerUrl {
    /// The URL is malformed, or its scheme is neither `http` nor `https`.
    #[error("not an http or https URL")]
    NotHttp,
    /// The URL has a user name or password in it. Credentials belong in a header.
    #[error("the URL has a user name or password in it: use a header instead")]
    Credentials,
    /// The port is not a number up to 65535.
    #[error("the port of the URL is not a number from 0 to 65535")]
    Port,
    /// TLS cannot be set up: the root certificates of this machine could not be read.
    #[error("no trusted root certificates for https: {0}")]
    NoRoots(String),
}

impl UpstreamAddress {
    /// Returns the address in this URL. `tls` replaces the root certificates of this machine.
    pub(super) fn of(url: &Uri, tls: Option<Arc<ClientConfig>>) -> Result<Self, InvalidServerUrl> {
        let authority = url.authority().ok_or(InvalidServerUrl::NotHttp)?;
        if authority.as_str().contains('@') {
            return Err(InvalidServerUrl::Credentials);
        }
        let host = url.host().filter(|host| !host.is_empty()).ok_or(InvalidServerUrl::NotHttp)?;
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (default_port, tls) = match url.scheme_str() {
            Some("http") => (80, None),
            Some("https") => {
                let config = tls.map_or_else(native, Ok)?;
                let name = ServerName::try_from(bare.clone()).map_err(|_| InvalidServerUrl::NotHttp)?;
                (443, Some((TlsConnector::from(config), name)))
            }
            _ => return Err(InvalidServerUrl::NotHttp),
        };
        // A port that is too large is missing from the parsed URL, and the default port would be the wrong one.
        let has_port = authority.as_str().rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let port = match (authority.port_u16(), has_port) {
            (Some(port), _) => port,
            (None, true) => return Err(InvalidServerUrl::Port),
            (None, false) => default_port,
        };
        Ok(Self { host: bare, port, tls })
    }

    /// Opens a connection within this time.
    pub(super) async fn connect(&self, patience: Duration) -> io::Result<Box<dyn ByteStream>> {
        match tokio::time::timeout(patience, self.any()).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connecting timed out")),
        }
    }

    async fn any(&self) -> io::Result<Box<dyn ByteStream>> {
        let unknown = |error: io::Error| io::Error::new(io::ErrorKind::NotFound, error.to_string());
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await.map_err(unknown)?;
        let stream = first(found).await?;
        configure(&stream)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some((connector, name)) => Ok(Box::new(connector.connect(name.clone(), stream).await?)),
        }
    }
}

fn configure(stream: &TcpStream) -> io::Result<()> {
    // A small request must not wait for an acknowledgement that the server delays.
    stream.set_nodelay(true)?;
    // A stream may be silent for hours. Keep-alive probes detect that its other end is gone.
    let keep_alive = socket2::TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Time limit for each of several addresses.
const EACH: Duration = Duration::from_secs(2);

/// Connects to the first of these addresses that accepts.
async fn first(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut addresses = addresses.take(8).peekable();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    while let Some(address) = addresses.next() {
        let connecting = TcpStream::connect(address);
        let connected = match addresses.peek() {
            None => connecting.await,
            Some(_) => match tokio::time::timeout(EACH, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            },
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns a TLS configuration with the root certificates of this machine.
fn native() -> Result<Arc<ClientConfig>, InvalidServerUrl> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let reason = found.errors.first().map_or_else(|| "none were found".to_owned(), ToString::to_string);
        return Err(InvalidServerUrl::NoRoots(reason));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| InvalidServerUrl::NoRoots(error.to_string()))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// A connection of any kind.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_has_no_delay_and_keepalive() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!stream.nodelay().unwrap(), "it is not so by itself");
        configure(&stream).unwrap();
        assert!(stream.nodelay().unwrap());
        assert!(socket2::SockRef::from(&stream).keepalive().unwrap());
    }
}
