//! Pushes over the HTTP client that the connections to servers use: plain, or over TLS with the root certificates of
//! this machine.
//!
//! Exports run on their own threads, once every few seconds, so blocking is fine and a pool would be empty. Each push
//! has a runtime of its own, because an exporter can outlive the runtime of the program.

use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use steadfast_mcp::http::upstream::{
    ConnectionPoolLimits, HttpOrigin, HttpUpstreamSettings, OriginRequest, RequestProgress,
};

use super::OtlpError;

/// Time limit of one push, from the name lookup to the response. The collectors of tests always respond, but the
/// machine may be slow.
pub(super) const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 10 });

/// The longest response that is read. A collector lists the spans that it rejected.
const MOST_RESPONSE: usize = 1 << 20;

/// A client that pushes to one collector.
pub(super) struct OtlpClient(HttpOrigin);

impl OtlpClient {
    /// Creates a client for a collector with a URL such as `http://127.0.0.1:4318`.
    pub(super) fn new(endpoint: &str) -> Result<Self, OtlpError> {
        Self::with(endpoint, HttpUpstreamSettings::default())
    }

    fn with(endpoint: &str, settings: HttpUpstreamSettings) -> Result<Self, OtlpError> {
        if endpoint.contains('?') {
            return Err(OtlpError::Query);
        }
        let pool = ConnectionPoolLimits { idle: 0, connect: TIMEOUT, ..settings.pool };
        let settings = HttpUpstreamSettings { message_bytes: MOST_RESPONSE, pool, ..settings };
        HttpOrigin::new(endpoint, settings).map(Self).map_err(OtlpError::Endpoint)
    }

    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let target = head.uri.path().parse()?;
        let request = OriginRequest { method: head.method, target, headers: head.headers, body };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let progress = RequestProgress::default();
        let answer =
            runtime.block_on(async { tokio::time::timeout(TIMEOUT, self.0.send(request, &progress)).await });
        // A name lookup that hangs does not hold up the thread.
        runtime.shutdown_background();
        let answer = answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let mut response = Response::new(answer.body);
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
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
        Box::pin(ready(self.post(request)))
    }
}

impl fmt::Debug for OtlpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpClient").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::thread;

    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    /// Responds to one request with these bytes. Returns the request.
    fn answering(answer: &'static [u8]) -> (OtlpClient, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = OtlpClient::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            let mut piece = [0; 1024];
            while !received.ends_with(b"body") {
                let read = connection.read(&mut piece).unwrap();
                received.extend_from_slice(&piece[..read]);
            }
            connection.write_all(answer).unwrap();
            received
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
        assert_eq!(client.post(post()).unwrap().status(), 200);
        let received = String::from_utf8(server.join().unwrap()).unwrap();
        assert!(received.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{received}");
        assert!(received.contains("\r\nhost: 127.0.0.1:"), "{received}");
        assert!(received.contains("\r\nx-access: yes\r\n"), "{received}");
        assert!(received.contains("\r\ncontent-length: 4\r\n"), "{received}");
        assert!(received.ends_with("\r\n\r\nbody"), "{received}");
    }

    #[test]
    fn the_retry_after_of_a_collector_is_respected() {
        let (client, _server) = answering(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\nlater");
        let answer = client.post(post()).unwrap();
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers().get("retry-after").unwrap(), "7");
    }

    #[test]
    fn a_response_that_is_not_http_is_an_error() {
        for answer in [&b"SSH-2.0-OpenSSH\r\n\r\n"[..], b"HTTP/1.1 200", b"HTTP/1.1 99999 x\r\n\r\n", b""] {
            let (client, _server) = answering(answer);
            assert!(client.post(post()).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn a_collector_on_https_gets_pushes_if_its_certificate_is_trusted() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        thread::spawn(move || {
            let server = Arc::new(server);
            for connection in listener.incoming() {
                let tls = ServerConnection::new(server.clone()).unwrap();
                let mut connection = StreamOwned::new(tls, connection.unwrap());
                // A client that does not trust the certificate goes away.
                if connection.read(&mut [0; 4096]).is_ok() {
                    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                }
            }
        });
        let mut roots = RootCertStore::empty();
        let push = |roots: &RootCertStore| {
            let tls = ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            let settings =
                HttpUpstreamSettings { tls: Some(Arc::new(tls)), ..HttpUpstreamSettings::default() };
            OtlpClient::with(&endpoint, settings).unwrap().post(post())
        };
        assert!(push(&roots).unwrap_err().to_string().contains("certificate"));
        roots.add(made.cert.der().clone()).unwrap();
        assert_eq!(push(&roots).unwrap().status(), 200);
    }

    #[test]
    fn addresses_that_cannot_work_are_refused_with_a_reason() {
        for (endpoint, reason) in [
            ("collector:4318", "not an http or https URL"),
            ("ftp://collector:4318", "not an http or https URL"),
            ("http://user:secret@collector", "use a header"),
            ("http://collector/?key=x", "query"),
            ("http://collector:99999", "port"),
            ("not an address", "not an http or https URL"),
        ] {
            let error = OtlpClient::new(endpoint).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("secret"), "{endpoint}: {error}");
        }
        OtlpClient::new("http://[::1]/otlp").unwrap();
    }
}
