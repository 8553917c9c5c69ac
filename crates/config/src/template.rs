//! The URL of an HTTP tool, with placeholders for parameters.
//!
//! A parameter can be part of the path and of the query, and of nothing else. The host, and with it the receiver of
//! the headers, is decided by the author of the configuration and never by a model.

use std::fmt;
use std::net::Ipv6Addr;

use serde_json::{Value as Json, json};

use crate::kind::{NameKind, SettingKind, expanded};
use crate::node::ConfigNode;
use crate::read_context::ReadContext;

/// A URL in which `{name}` is a placeholder for a parameter of the call. The URL can be secret (a path can be all that
/// protects a webhook), so only its host is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    origin: String,
    path: Vec<UrlPiece>,
    query: Option<Vec<UrlPiece>>,
}

/// A piece of a path or query.
#[derive(Clone, PartialEq, Eq)]
pub enum UrlPiece {
    /// Literal text.
    Text(String),
    /// The parameter with this name.
    Parameter(String),
}

impl UrlTemplate {
    /// Returns scheme, host and port: `https://api.example.com`.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the host alone, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        let authority = self.origin.split_once("://").map_or("", |(_, authority)| authority);
        host_and_port(authority).map_or("", |(host, _)| host)
    }

    /// Returns the path.
    pub fn path(&self) -> &[UrlPiece] {
        &self.path
    }

    /// Returns the query, without its `?`.
    pub fn query(&self) -> Option<&[UrlPiece]> {
        self.query.as_deref()
    }

    fn parse(text: &str) -> Result<Self, BadTemplate> {
        let scheme = ["http://", "https://"].into_iter().find(|scheme| text.starts_with(scheme));
        let scheme = scheme.ok_or(BadTemplate::NotHttp)?;
        let rest = text.get(scheme.len()..).unwrap_or_default();
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if authority.contains(['{', '}']) {
            return Err(BadTemplate::Host);
        }
        if authority.contains('@') {
            return Err(BadTemplate::Credentials);
        }
        let (host, port) = host_and_port(authority).ok_or(BadTemplate::NotHttp)?;
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(BadTemplate::NotHttp);
        }
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_host = match authority.starts_with('[') {
            true => host.parse::<Ipv6Addr>().is_ok(),
            false => host.chars().all(is_letter),
        };
        if !is_host {
            return Err(BadTemplate::HostName);
        }
        if rest.contains('#') {
            return Err(BadTemplate::Fragment);
        }
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let (path, query) = (pieces(path)?, query.map(pieces).transpose()?);
        if rest.contains(is_space) {
            return Err(BadTemplate::Space);
        }
        Ok(Self { origin: format!("{scheme}{authority}"), path, query })
    }
}

impl fmt::Display for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/…", self.origin)
    }
}

impl fmt::Debug for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UrlTemplate({self})")
    }
}

impl fmt::Debug for UrlPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::Parameter(name) => write!(f, "Parameter({name:?})"),
        }
    }
}

/// Reason for which a text is not a valid template.
#[derive(Debug, PartialEq, Eq)]
enum BadTemplate {
    NotHttp,
    /// A parameter would decide the host.
    Host,
    /// The host has characters that no host name has.
    HostName,
    Credentials,
    Fragment,
    Space,
    /// A `{` without its `}`.
    Open,
    /// A `}` without its `{`.
    Closed,
    /// The text between them is not a valid name.
    Name(String),
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

/// Returns host and port of an authority without credentials.
fn host_and_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
    (!host.is_empty()).then_some((host, port))
}

fn pieces(text: &str) -> Result<Vec<UrlPiece>, BadTemplate> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, braced) = rest.split_at(at);
        let inner = braced.strip_prefix('{').ok_or(BadTemplate::Closed)?;
        let (name, after) = inner.split_once('}').ok_or(BadTemplate::Open)?;
        if !(NameKind { extra: "-." }).fits(name) {
            return Err(BadTemplate::Name(name.to_owned()));
        }
        if !before.is_empty() {
            pieces.push(UrlPiece::Text(before.to_owned()));
        }
        pieces.push(UrlPiece::Parameter(name.to_owned()));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(UrlPiece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

/// A template as it is written in a file, where `${NAME}` is replaced by an environment variable.
pub(crate) struct Template;

impl SettingKind<Option<UrlTemplate>> for Template {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Option<UrlTemplate>> {
        let text = expanded(node, cx, &self.takes())?;
        let bad = match UrlTemplate::parse(&text) {
            Ok(template) => return Some(Some(template)),
            Err(bad) => bad,
        };
        let name = cx.name.clone();
        let (message, help) = match bad {
            BadTemplate::NotHttp => {
                let help = format!("write for example {}", cx.with("\"https://api.example.com/search\""));
                cx.wrong(node, "a URL that begins with http:// or https://", help);
                return None;
            }
            BadTemplate::Host => (
                format!("`{name}` has a parameter in its host"),
                "parameters are allowed in the path and the query; the host is fixed in the configuration",
            ),
            BadTemplate::HostName => (
                format!("`{name}` has a host that is neither a name nor an address"),
                "write it in ASCII letters, digits, `-` and `.`; `bücher.example` is `xn--bcher-kva.example`",
            ),
            BadTemplate::Credentials => (
                format!("`{name}` has a user name or password in it"),
                "use a header: `headers = { Authorization = \"Basic ${CREDENTIALS}\" }`",
            ),
            BadTemplate::Fragment => {
                (format!("`{name}` has a `#` in it"), "remove it: the part after it is never sent")
            }
            BadTemplate::Space => (format!("`{name}` has white space in it"), "write `%20` for a space"),
            BadTemplate::Open => {
                (format!("`{name}` has a `{{` that nothing closes"), "write `{name}`, or `%7B` for the sign")
            }
            BadTemplate::Closed => {
                (format!("`{name}` has a `}}` that nothing opened"), "write `{name}`, or `%7D` for the sign")
            }
            // The value of a variable may be a secret. The text of the file is shown beside the message anyway.
            BadTemplate::Name(inner) if node.text().is_some_and(|text| text.contains(&inner)) => (
                format!("`{name}` has `{{{inner}}}` in it, which names no parameter"),
                "use letters, digits, `_`, `-` and `.`, and begin with a letter; or `%7B` and `%7D` for the signs",
            ),
            BadTemplate::Name(_) => (
                format!("`{name}` has braces in it that name no parameter"),
                "use letters, digits, `_`, `-` and `.`, and begin with a letter; or `%7B` and `%7D` for the signs",
            ),
        };
        cx.refuse(&node.place, message, help);
        None
    }

    fn show(&self, value: &Option<UrlTemplate>) -> String {
        value.as_ref().map_or_else(String::new, |template| format!("\"{template}\""))
    }

    fn takes(&self) -> String {
        "a URL that begins with http:// or https://; `{name}` in its path or query is a parameter of the call"
            .to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": "^https?://", "examples": ["https://api.example.com/users/{id}"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> UrlPiece {
        UrlPiece::Text(text.to_owned())
    }

    fn parameter(name: &str) -> UrlPiece {
        UrlPiece::Parameter(name.to_owned())
    }

    #[test]
    fn a_url_is_parsed_into_its_origin_and_its_template_parts() {
        for (url, origin, host, path, query) in [
            ("https://a.example", "https://a.example", "a.example", vec![], None),
            (
                "http://[::1]:80/x/{id}.json?q={q}&n=1",
                "http://[::1]:80",
                "::1",
                vec![text("/x/"), parameter("id"), text(".json")],
                Some(vec![text("q="), parameter("q"), text("&n=1")]),
            ),
            (
                "https://a:8443/{a}{b-c.d}?",
                "https://a:8443",
                "a",
                vec![text("/"), parameter("a"), parameter("b-c.d")],
                Some(vec![]),
            ),
            ("https://a?{_x}", "https://a", "a", vec![], Some(vec![parameter("_x")])),
        ] {
            let template = UrlTemplate::parse(url).unwrap();
            let found = (template.origin(), template.host(), template.path(), template.query());
            assert_eq!(found, (origin, host, &*path, query.as_deref()), "{url}");
        }
    }

    #[test]
    fn invalid_templates_are_refused_with_a_reason() {
        for (url, expected) in [
            ("ftp://a/", BadTemplate::NotHttp),
            ("api.example.com/x", BadTemplate::NotHttp),
            ("https:///x", BadTemplate::NotHttp),
            ("https://:80/x", BadTemplate::NotHttp),
            ("https://a:port/", BadTemplate::NotHttp),
            ("https://a:99999/", BadTemplate::NotHttp),
            ("https://[::1/", BadTemplate::NotHttp),
            ("https://[::1]x/", BadTemplate::NotHttp),
            ("https://a b/", BadTemplate::HostName),
            ("https://bücher.example/", BadTemplate::HostName),
            ("https://[a]/", BadTemplate::HostName),
            ("https://a/b c", BadTemplate::Space),
            ("https://a/?b\n", BadTemplate::Space),
            ("https://a/{b c}", BadTemplate::Name("b c".to_owned())),
            ("https://{tenant}.example.com/", BadTemplate::Host),
            ("https://a{b", BadTemplate::Host),
            ("https://me:secret@a/", BadTemplate::Credentials),
            ("https://a/x#y", BadTemplate::Fragment),
            ("https://a/{x", BadTemplate::Open),
            ("https://a/{x?y}", BadTemplate::Open),
            ("https://a/x}", BadTemplate::Closed),
            ("https://a/{}", BadTemplate::Name(String::new())),
            ("https://a/{{x}}", BadTemplate::Name("{x".to_owned())),
            ("https://a/{1}", BadTemplate::Name("1".to_owned())),
            ("https://a/{x/y}", BadTemplate::Name("x/y".to_owned())),
        ] {
            assert_eq!(UrlTemplate::parse(url).unwrap_err(), expected, "{url}");
        }
    }

    #[test]
    fn only_the_host_is_shown() {
        let template = UrlTemplate::parse("https://hooks.example.com/T0/hunter2?k=hunter2").unwrap();
        let shown = format!("{template} {template:?} {:?}", template.path());
        assert!(!shown.contains("hunter2") && shown.contains("hooks.example.com"), "{shown}");
    }
}
