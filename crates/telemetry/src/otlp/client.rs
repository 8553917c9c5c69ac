//! A minimal HTTP client for pushes: one POST per connection, over plain TCP.
//!
//! Exports run on their own threads, once every few seconds, so blocking is fine and a pool would be empty. This
//! avoids a second HTTP stack in the process.

use std::fmt;
use std::future::{Future, ready};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::pin::Pin;
use std::time::{Duration, Instant};

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};

use super::OtlpError;

/// Time limit of one push, from the name lookup to the response. The collectors of tests always respond, but the
/// machine may be slow.
pub(super) const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 10 });

/// A client that pushes to one collector.
pub(super) struct OtlpClient {
    /// Host and port, to open a socket.
    address: String,
    /// The same in the form of the `Host` header.
    host: String,
}

impl OtlpClient {
    /// Creates a client for a collector with a URL such as `http://127.0.0.1:4318`.
    pub(super) fn new(endpoint: &str) -> Result<Self, OtlpError> {
        let uri =
            Request::get(endpoint).body(()).map_err(|_| OtlpError::Endpoint("is not a valid address"))?;
        let uri = uri.uri();
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(OtlpError::Endpoint("cannot be https: put a collector in between")),
            Some(_) | None => return Err(OtlpError::Endpoint("must begin with http://")),
        }
        if uri.query().is_some() {
            return Err(OtlpError::Endpoint("cannot have a query"));
        }
        let authority = uri.authority().ok_or(OtlpError::Endpoint("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(OtlpError::Endpoint("cannot contain credentials: set them as a header"));
        }
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { address: format!("{}:{port}", authority.host()), host: authority.to_string() })
    }

    fn post(&self, request: &Request<Bytes>) -> io::Result<Response<Bytes>> {
        let deadline = Instant::now() + TIMEOUT;
        let mut connection = self.connect(deadline)?;
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n",
            request.uri().path(),
            self.host,
            request.body().len()
        )
        .into_bytes();
        for (name, value) in request.headers() {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        connection.write_all(&head)?;
        connection.write_all(request.body())?;
        read_answer(connection, deadline)
    }

    fn connect(&self, deadline: Instant) -> io::Result<TcpStream> {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the collector host has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(deadline)?) {
                Ok(connection) => {
                    connection.set_write_timeout(Some(left(deadline)?))?;
                    return Ok(connection);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

/// Reads the status and `Retry-After` of a response. The body would list the rejected spans, and is ignored.
fn read_answer(mut connection: TcpStream, deadline: Instant) -> io::Result<Response<Bytes>> {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    let head = loop {
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            break answer.get(..end).unwrap_or_default();
        }
        if answer.len() > MOST_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the collector's response is incomplete"));
        }
        connection.set_read_timeout(Some(left(deadline)?))?;
        match connection.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => answer.extend_from_slice(piece.get(..read).unwrap_or_default()),
        }
    };
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse::<u16>().ok());
    let mut response = Response::builder().status(status.unwrap_or_default());
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("retry-after") {
            response = response.header("retry-after", value.trim());
        }
    }
    response.body(Bytes::new()).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "this is not HTTP"))
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl HttpClient for OtlpClient {
    fn send_bytes<'client, 'sending>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sending>>
    where
        'client: 'sending,
        Self: 'sending,
    {
        Box::pin(ready(self.post(&request).map_err(HttpError::from)))
    }
}

impl fmt::Debug for OtlpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The longest head of a response.
const MOST_HEAD: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Responds to one request with these bytes. Returns the request.
    fn answering(answer: &'static [u8]) -> (OtlpClient, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = OtlpClient::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut heard = Vec::new();
            let mut piece = [0; 1024];
            while !heard.ends_with(b"body") {
                let read = connection.read(&mut piece).unwrap();
                heard.extend_from_slice(&piece[..read]);
            }
            connection.write_all(answer).unwrap();
            heard
        });
        (client, server)
    }

    fn post() -> Request<Bytes> {
        Request::post("http://ignored/v1/traces")
            .header("x-access", "yes")
            .body(Bytes::from_static(b"body"))
            .unwrap()
    }

    #[test]
    fn a_push_is_one_post_with_its_headers_and_its_body() {
        let (client, server) = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(client.post(&post()).unwrap().status(), 200);
        let heard = String::from_utf8(server.join().unwrap()).unwrap();
        assert!(heard.starts_with("POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1:"), "{heard}");
        assert!(heard.contains("\r\nx-access: yes\r\n"), "{heard}");
        assert!(heard.contains("\r\ncontent-length: 4\r\n"), "{heard}");
        assert!(heard.ends_with("\r\n\r\nbody"), "{heard}");
    }

    #[test]
    fn the_retry_after_of_a_collector_is_respected() {
        let (client, _server) = answering(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\nlater");
        let answer = client.post(&post()).unwrap();
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers().get("retry-after").unwrap(), "7");
    }

    #[test]
    fn a_response_that_is_not_http_is_an_error() {
        for answer in [&b"SSH-2.0-OpenSSH\r\n\r\n"[..], b"HTTP/1.1 200", b"HTTP/1.1 99999 x\r\n\r\n", b""] {
            let (client, _server) = answering(answer);
            assert!(client.post(&post()).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn addresses_that_cannot_work_are_refused_with_a_reason() {
        for (endpoint, reason) in [
            ("https://collector:4318", "https"),
            ("collector:4318", "http://"),
            ("http://user:secret@collector", "credentials"),
            ("http://collector/?key=x", "query"),
            ("not an address", "address"),
        ] {
            let error = OtlpClient::new(endpoint).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("secret"), "{endpoint}: {error}");
        }
        assert_eq!(OtlpClient::new("http://[::1]/otlp").unwrap().address, "[::1]:80");
    }
}
