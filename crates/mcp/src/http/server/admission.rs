//! Checks of a request before its message is read.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};

use super::refusal::HttpRefusal;

/// Allowed host names and origins of this server, besides the names of the loopback interface.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts {
    /// Hosts, without a port.
    pub hosts: Vec<String>,
    /// Origins of web pages that are allowed, such as `https://app.example.com`. Pages of the hosts above are always
    /// allowed.
    pub origins: Vec<String>,
}

/// The reason why a client is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionError {
    /// The status of the response.
    pub status: StatusCode,
    /// The text of the response.
    pub text: &'static str,
}

impl AdmissionError {
    /// A token is required, and the request has no valid one.
    pub const TOKEN: Self = Self {
        status: StatusCode::UNAUTHORIZED,
        text: "a bearer token is required: `Authorization: Bearer …`",
    };
    /// The token belongs to a viewer, who makes no calls.
    pub const VIEWER: Self = Self {
        status: StatusCode::FORBIDDEN,
        text: "this is a viewer token, which cannot make calls; send a client token",
    };
}

pub(super) fn host_and_origin(
    uri: &Uri,
    headers: &HeaderMap,
    names: &AllowedHosts,
) -> Result<(), HttpRefusal> {
    names.admit(uri, headers).map_err(|refusal| HttpRefusal::invalid(refusal.status, refusal.text))
}

impl AllowedHosts {
    /// Checks that a request uses an allowed host name and comes from an allowed page. This stops DNS rebinding: a
    /// page of a stranger can make its own name resolve to this server, but it cannot make the browser send another
    /// name.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), AdmissionError> {
        let forbidden = |text| Err(AdmissionError { status: StatusCode::FORBIDDEN, text });
        let mut hosts = headers.get_all(HOST).iter();
        let (named, target) = match (hosts.next(), hosts.next(), target_host(uri)) {
            (Some(named), None, target) => (named.to_str().ok(), target),
            (None, None, target) => (target, None),
            (_, Some(_), _) => (None, None),
        };
        let Some(named) = named else {
            return Err(AdmissionError {
                status: StatusCode::BAD_REQUEST,
                text: "one Host header is required",
            });
        };
        // In the absolute form, the target names the host and takes precedence over the header (RFC 9112, section
        // 3.2.2).
        if [Some(named), target].into_iter().flatten().any(|host| !self.has_host(without_port(host))) {
            return forbidden("this Host is not allowed");
        }
        for origin in headers.get_all(ORIGIN) {
            if !origin.to_str().is_ok_and(|origin| self.has_origin(origin)) {
                return forbidden("this Origin is not allowed");
            }
        }
        Ok(())
    }

    fn has_host(&self, host: &str) -> bool {
        is_loopback(host) || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
    }

    fn has_origin(&self, origin: &str) -> bool {
        if self.origins.iter().any(|own| own.eq_ignore_ascii_case(origin)) {
            return true;
        }
        match origin.split_once("://") {
            Some(("http" | "https", rest)) => !rest.contains(['/', '@']) && self.has_host(without_port(rest)),
            _ => false,
        }
    }
}

/// Returns the authority of a request target in the absolute form, such as `http://host:80/mcp`.
pub fn target_host(uri: &Uri) -> Option<&str> {
    uri.authority().map(Authority::as_str)
}

fn is_loopback(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback())
    {
        return true;
    }
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.and_then(|host| host.parse().ok()).is_some_and(|address: Ipv6Addr| address.is_loopback())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}

/// Returns the token after `Bearer` in the `Authorization` header.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(one), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = one.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

pub(super) fn content_is_json(headers: &HeaderMap) -> Result<(), HttpRefusal> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match media_type(given).eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(HttpRefusal::invalid(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Type must be application/json",
        )),
    }
}

/// Returns true if a body has a content coding, such as `gzip`. None is decoded here.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|value| match value.to_str() {
        Ok(codings) => codings
            .split(',')
            .map(str::trim)
            .any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity")),
        Err(_) => true,
    })
}

/// The error for such a body.
pub const ENCODED: &str =
    "a body with a Content-Encoding is not supported: send it unencoded, without that header";

pub(super) fn content_is_not_encoded(headers: &HeaderMap) -> Result<(), HttpRefusal> {
    match is_encoded(headers) {
        true => Err(HttpRefusal::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, ENCODED)),
        false => Ok(()),
    }
}

/// Checks that a client accepts all of these types. A client without an `Accept` header accepts everything.
pub(super) fn accepts(headers: &HeaderMap, types: &[&str]) -> Result<(), HttpRefusal> {
    if !headers.contains_key(ACCEPT) {
        return Ok(());
    }
    let accepted = |required: &str| {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        lines.flat_map(|line| line.split(',')).map(media_type).any(|range| {
            let group = range.strip_suffix("/*").filter(|group| required.split('/').next() == Some(group));
            range == "*/*" || group.is_some() || range.eq_ignore_ascii_case(required)
        })
    };
    match types.iter().find(|required| !accepted(required)) {
        None => Ok(()),
        Some(required) => Err(HttpRefusal::invalid(
            StatusCode::NOT_ACCEPTABLE,
            &format!("Accept must list {}", types.join(" and ")),
        )
        .about(required)),
    }
}

fn media_type(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    /// Any value that a header can carry.
    fn any_value() -> impl Strategy<Value = HeaderValue> {
        let words = prop::sample::select(vec![
            "localhost",
            "127.0.0.1",
            "[::1]",
            "evil.example",
            "http://",
            "https://",
            "Bearer ",
            "application/json",
            "text/event-stream",
            "*/*",
            ":",
            ":80",
            "@",
            "/",
            ",",
            ";q=0",
            ".",
            " ",
            "\t",
        ]);
        let piece = prop_oneof![
            words.prop_map(|word| word.as_bytes().to_vec()),
            proptest::collection::vec(any::<u8>().prop_map(|byte| byte.max(b' ')), 0..6),
        ];
        proptest::collection::vec(piece, 0..6)
            .prop_filter_map("no header can be this", |pieces| HeaderValue::from_bytes(&pieces.concat()).ok())
    }

    proptest! {
        #[test]
        fn any_headers_are_checked_and_no_foreign_host_is_admitted(
            values in proptest::collection::vec((0..5_usize, any_value()), 0..8),
        ) {
            let names = [HOST, ORIGIN, ACCEPT, CONTENT_TYPE, AUTHORIZATION];
            let mut headers = HeaderMap::new();
            for (name, value) in values {
                headers.append(names[name].clone(), value);
            }
            let _ = (bearer(&headers), content_is_json(&headers), accepts(&headers, &["application/json"]));
            if host_and_origin(&Uri::from_static("/mcp"), &headers, &AllowedHosts::default()).is_ok() {
                prop_assert_eq!(headers.get_all(HOST).iter().count(), 1);
                for value in headers.get_all(HOST).iter().chain(headers.get_all(ORIGIN)) {
                    let text = value.to_str().unwrap();
                    prop_assert!(!text.contains("evil"), "{}", text);
                    prop_assert!(["localhost", "127.", "[::1]"].iter().any(|own| text.to_ascii_lowercase().contains(own)), "{}", text);
                }
            }
        }
    }

    fn status(host: Option<&str>, origin: Option<&str>, names: &AllowedHosts) -> u16 {
        let mut headers = HeaderMap::new();
        host.map(|host| headers.insert(HOST, HeaderValue::from_str(host).unwrap()));
        origin.map(|origin| headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap()));
        host_and_origin(&Uri::from_static("/mcp"), &headers, names)
            .map_or_else(|no| no.status.as_u16(), |()| 200)
    }

    #[test]
    fn hosts_and_origins_of_strangers_are_refused() {
        let names =
            AllowedHosts { hosts: vec!["gate.example".into()], origins: vec!["https://app.example".into()] };
        for (host, origin, expected) in [
            (Some("127.0.0.1:8080"), None, 200),
            (Some("127.0.0.1"), Some("http://localhost:3000"), 200),
            (Some("LOCALHOST:1"), Some("http://[::1]:5"), 200),
            (Some("[::1]:1"), Some("https://127.1.2.3"), 200),
            (Some("gate.example"), Some("https://gate.example"), 200),
            (Some("gate.example:443"), Some("https://app.example"), 200),
            (None, None, 400),
            (Some("evil.example"), None, 403),
            (Some("localhost.evil.example"), None, 403),
            (Some("127.0.0.1.evil.example"), None, 403),
            (Some("10.0.0.1"), None, 403),
            (Some(""), None, 403),
            (Some("localhost"), Some("http://evil.example"), 403),
            (Some("localhost"), Some("null"), 403),
            (Some("localhost"), Some("http://localhost@evil.example"), 403),
            (Some("localhost"), Some("http://evil.example/localhost"), 403),
            (Some("localhost"), Some("file://localhost"), 403),
            (Some("localhost"), Some("http://app.example"), 403),
        ] {
            assert_eq!(status(host, origin, &names), expected, "{host:?} {origin:?}");
        }
    }

    #[test]
    fn sf_7_the_authority_of_an_absolute_target_is_checked_like_a_host() {
        let names = AllowedHosts { hosts: vec!["gate.example".into()], ..AllowedHosts::default() };
        for (target, host, expected) in [
            ("http://127.0.0.1:8080/mcp", Some("127.0.0.1:8080"), 200),
            ("http://localhost/mcp", Some("127.0.0.1:8080"), 200),
            ("https://GATE.example:1/mcp", Some("gate.example"), 200),
            ("http://[::1]:8080/mcp", None, 200),
            ("http://evil.example/mcp", Some("127.0.0.1:8080"), 403),
            ("http://evil.example/mcp", None, 403),
            ("http://localhost@evil.example/mcp", Some("localhost"), 403),
            ("http://localhost:80@evil.example/mcp", Some("localhost"), 403),
            ("http://evil.example@localhost/mcp", Some("localhost"), 403),
            ("http://127.0.0.1.evil.example/mcp", Some("localhost"), 403),
            ("http://127.0.0.1:8080/mcp", Some("evil.example"), 403),
        ] {
            let mut headers = HeaderMap::new();
            host.map(|host| headers.insert(HOST, HeaderValue::from_static(host)));
            let admitted = names.admit(&Uri::from_static(target), &headers);
            assert_eq!(
                admitted.map_or_else(|refusal| refusal.status.as_u16(), |()| 200),
                expected,
                "{target} {host:?}"
            );
        }
    }

    #[test]
    fn only_identity_is_not_a_content_coding() {
        for (values, expected) in [
            (&[][..], false),
            (&["identity"], false),
            (&["Identity, identity", ""], false),
            (&["gzip"], true),
            (&["identity, br"], true),
            (&["identity", "zstd"], true),
            (&["aws-chunked"], true),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(is_encoded(&headers), expected, "{values:?}");
        }
    }

    #[test]
    fn accept_is_read_as_http_has_it() {
        let both = ["application/json", "text/event-stream"];
        for (value, expected) in [
            ("application/json, text/event-stream", true),
            ("text/event-stream;q=0.5 , Application/JSON; charset=utf-8", true),
            ("*/*", true),
            ("application/*, text/*", true),
            ("application/json", false),
            ("text/event-stream", false),
            ("text/html", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(value));
            assert_eq!(accepts(&headers, &both).is_ok(), expected, "{value}");
        }
        assert!(accepts(&HeaderMap::new(), &both).is_ok());
    }

    #[test]
    fn a_bearer_token_is_found_in_its_one_header() {
        let with = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(with(&["Bearer abc"]), Some(b"abc".to_vec()));
        assert_eq!(with(&["bEARER  abc "]), Some(b"abc".to_vec()));
        for none in [&[][..], &["Basic abc"], &["Bearer"], &["Bearer a", "Bearer b"]] {
            assert_eq!(with(none), None, "{none:?}");
        }
    }
}
