//! The signature of a call, the unit by which trust counts failures: the tool and the target in its arguments.
//!
//! A tool that fails at one host must not lose trust for all hosts. So a signature adds the host and first path segment
//! of a URL, the parent folder of a path, and the first real word of a command. Signatures are stored, logged and
//! shown, so they contain nothing that could be a credential: no user information, no query, and no segment that does
//! not look like a plain name.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cut;
use super::shell::{self, ShellCommand};
use super::targets::{ArgumentTargetKind, ArgumentTargets};
use crate::id::{Digest, Domain, ToolRef};

/// The key by which failures are counted: the tool and the relevant part of its arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Signature(pub Arc<str>);

/// The maximum length of an unshortened part, in bytes.
const LONGEST_PART: usize = 160;

/// Returns the signature of a call.
pub fn signature(tool: &ToolRef, aims: &ArgumentTargets<'_>) -> Signature {
    let mut text = String::with_capacity(128);
    escape(&mut text, tool.namespace.as_str());
    text.push('/');
    escape(&mut text, tool.tool.as_str());
    let mut add = |name: &str, value: Option<Cow<'_, str>>| {
        if let Some(value) = value {
            text.push('|');
            text.push_str(name);
            text.push('=');
            escape(&mut text, &shortened(&value));
        }
    };
    let url = aims.all(ArgumentTargetKind::Url).find_map(|value| place_of(&value.as_str()?));
    let path = aims.all(ArgumentTargetKind::Path).find_map(|value| parent(&value.as_str()?));
    add("command", main_program(aims.commands()).map(Cow::Borrowed));
    add("path", path.map(Cow::Owned).or_else(|| url.as_ref().and_then(UrlTarget::folder).map(Cow::Owned)));
    add("url", url.as_ref().and_then(UrlTarget::remote).map(Cow::Owned));
    Signature(Arc::from(text))
}

/// Returns the domain that a call depends on: the host of its URL, or else the server of the tool.
pub fn domain(tool: &ToolRef, aims: &ArgumentTargets<'_>) -> Domain {
    let host = aims.all(ArgumentTargetKind::Url).find_map(|value| match place_of(&value.as_str()?)? {
        UrlTarget::Remote { host, .. } => Domain::new(host).ok(),
        UrlTarget::File(_) => None,
    });
    host.unwrap_or_else(|| Domain::from(&tool.namespace))
}

/// Returns the main program of a command line. Not a substituted one, not a shell that receives another line, and not a
/// command that only prepares.
fn main_program(commands: &[ShellCommand]) -> Option<&str> {
    let substituted: Vec<usize> =
        commands.iter().flat_map(|command| command.substituted.iter().copied()).collect();
    let mut programs = commands
        .iter()
        .enumerate()
        .filter(|(index, command)| !command.defines && !substituted.contains(index))
        .filter_map(|(_, command)| command.program());
    let first = programs.clone().next()?;
    let real = programs.find(|program| {
        let runs_command = shell::SHELLS.contains(&program.name)
            && program.arguments.iter().any(|word| shell::is_command_option(word));
        !runs_command && !PREPARATIONS.contains(&program.name)
    });
    Some(name_or_star(real.unwrap_or(first).name))
}

/// Commands that often come before the main one.
const PREPARATIONS: &[&str] = &["cd", "pushd", "export", "set", "source", ".", "umask", "true", ":", "eval"];

/// The target of a URL.
#[derive(Debug, PartialEq, Eq)]
enum UrlTarget {
    Remote { host: String, port: Option<String>, segment: String },
    File(String),
}

impl UrlTarget {
    fn remote(&self) -> Option<String> {
        match self {
            Self::Remote { host, port: Some(port), segment } => Some(format!("{host}:{port}/{segment}")),
            Self::Remote { host, port: None, segment } => Some(format!("{host}/{segment}")),
            Self::File(_) => None,
        }
    }

    fn folder(&self) -> Option<String> {
        match self {
            Self::Remote { .. } => None,
            Self::File(path) => parent(path),
        }
    }
}

fn place_of(url: &str) -> Option<UrlTarget> {
    let (scheme, rest) = url.trim().split_once("://")?;
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte))
    {
        return None;
    }
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end)?;
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "file" {
        return Some(UrlTarget::File(path.split(['?', '#']).next()?.to_owned()));
    }
    // Everything before the last @ is user information.
    let (host, port) = host_and_port(authority.rsplit('@').next()?)?;
    let default = matches!((&*scheme, port), ("http" | "ws", "80") | ("https" | "wss", "443"));
    let port = (!port.is_empty() && !default).then(|| port.to_owned());
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let segment = path.split(['/', '\\']).find(|segment| !segment.is_empty()).unwrap_or_default();
    Some(UrlTarget::Remote { host, port, segment: name_or_star(segment).to_owned() })
}

fn host_and_port(authority: &str) -> Option<(String, &str)> {
    let (host, port) = match authority.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((address, after)) => (format!("[{address}]"), after.strip_prefix(':').unwrap_or_default()),
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            (host.trim_end_matches('.').to_owned(), port)
        }
    };
    let sound = |c: char| c.is_alphanumeric() || "-._[]:".contains(c);
    let usable = !host.is_empty() && host.len() <= 253 && host.chars().all(sound);
    (usable && port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| (host.to_ascii_lowercase(), port))
}

/// Returns a plain name unchanged, and a star for anything that may be an id or a credential.
fn name_or_star(name: &str) -> &str {
    let plain = name.len() <= 32
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._~+-[".contains(&byte));
    let digits = name.bytes().filter(u8::is_ascii_digit).count();
    if plain && (name.len() < 16 || digits < 4) { name } else { "*" }
}

/// Returns the folder of a path, with `.`, `..` and double slashes resolved as far as the text allows.
fn parent(path: &str) -> Option<String> {
    let path = cut(path.trim(), 4096);
    if path.is_empty() {
        return None;
    }
    let root = if path.starts_with(['/', '\\']) { "/" } else { "" };
    let mut folder = String::with_capacity(path.len() + 1);
    for part in path.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." if !matches!(folder.rsplit('/').next(), None | Some("" | "..")) => leave(&mut folder),
            part => {
                folder.push_str(if folder.is_empty() { root } else { "/" });
                folder.push_str(part);
            }
        }
    }
    leave(&mut folder);
    if folder.is_empty() {
        folder.push_str(if root.is_empty() { "." } else { root });
    }
    Some(folder)
}

/// Removes the last part of a path.
fn leave(folder: &mut String) {
    folder.truncate(folder.rfind('/').unwrap_or(0));
}

/// Shortens a long part to its beginning and a fingerprint, so that two long parts stay different.
fn shortened(part: &str) -> Cow<'_, str> {
    if part.len() <= LONGEST_PART {
        return Cow::Borrowed(part);
    }
    let fingerprint = Digest::of(part.as_bytes()).fingerprint();
    Cow::Owned(format!("{}~{fingerprint}", cut(part, LONGEST_PART)))
}

/// Writes a part so that it cannot be taken for two parts and cannot break a log line.
fn escape(text: &mut String, part: &str) {
    if part.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'|' | b'%')) {
        return text.push_str(part);
    }
    let is_special = |c: char| matches!(c, '|' | '%') || c.is_control();
    for c in part.chars() {
        if is_special(c) {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{:02X}", u32::from(c));
        } else {
            text.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_json::{JsonDocument, JsonLimits};

    use super::*;
    use crate::id::{Namespace, ToolName};

    fn tool(name: &str) -> ToolRef {
        ToolRef { namespace: Namespace::new("ns").unwrap(), tool: ToolName::new(name).unwrap() }
    }

    fn signed(name: &str, params: &str) -> String {
        let document = JsonDocument::parse(params.as_bytes(), JsonLimits::ENVELOPE).unwrap();
        signature(&tool(name), &ArgumentTargets::of(document.root())).0.as_ref().to_owned()
    }

    #[test]
    fn signatures_name_the_target_of_a_call() {
        for (name, params, expected) in [
            ("get", r#"{"url":"https://api.example.com/data/7?k=v"}"#, "ns/get|url=api.example.com/data"),
            ("get", r#"{"URL":"https://API.Example.com:443"}"#, "ns/get|url=api.example.com/"),
            ("get", r#"{"url":"http://[::1]:8080/x"}"#, "ns/get|url=[::1]:8080/x"),
            ("get", r#"{"url":"not a url"}"#, "ns/get"),
            ("get", r#"{"url":"see https://host.example/x"}"#, "ns/get"),
            ("get", r#"{"url":"7://host.example/x"}"#, "ns/get"),
            ("get", r#"{"url":"https:///x"}"#, "ns/get"),
            ("get", r#"{"url":"https://two hosts/x"}"#, "ns/get"),
            ("get", r#"{"url":"https://host.example:65535/x"}"#, "ns/get|url=host.example:65535/x"),
            ("get", r#"{"url":"https://host.example:123456/x"}"#, "ns/get"),
            (
                "get",
                r#"{"url":"https://host.example/orders-of-12345"}"#,
                "ns/get|url=host.example/orders-of-12345",
            ),
            (
                "get",
                r#"{"url":"https://host.example/my-orders-of-123"}"#,
                "ns/get|url=host.example/my-orders-of-123",
            ),
            ("get", r#"{"url":"https://host.example/an-order-of-1234"}"#, "ns/get|url=host.example/*"),
            ("get", r#"{"uri":"file:///etc/hosts"}"#, "ns/get|path=/etc"),
            ("read", r#"{"file_path":"/home/u/../v//./x.txt"}"#, "ns/read|path=/home/v"),
            ("read", r#"{"filePath":"x.txt"}"#, "ns/read|path=."),
            ("read", r#"{"\u0046ile-PATH":"x.txt"}"#, "ns/read|path=."),
            ("read", r#"{"__notebook__path__":"x.txt"}"#, "ns/read|path=."),
            ("read", r#"{"p\u00e4th":"x.txt","pathology":"x.txt","absolutepathx":"x.txt"}"#, "ns/read"),
            ("read", r#"{"\u0000path":"x.txt","path ":"x.txt","path7":"x.txt"}"#, "ns/read"),
            ("read", r#"{"filename":"a/x","file":"b/x","path":"c/x"}"#, "ns/read|path=c"),
            ("read", r#"{"path":"C:\\src\\x.rs"}"#, "ns/read|path=C:/src"),
            ("read", r#"{"path":"../../a/./b/../../x.txt"}"#, "ns/read|path=../.."),
            ("read", r#"{"path":"/../../x"}"#, "ns/read|path=/../.."),
            ("read", r#"{"path":"a/../x"}"#, "ns/read|path=."),
            ("read", r#"{"path":"//a/.."}"#, "ns/read|path=/"),
            ("read", r#"{"path":"./"}"#, "ns/read|path=."),
            ("read", r#"{"path":"ordn\u0085er|ä/x"}"#, "ns/read|path=ordn%85er%7Cä"),
            ("bash", r#"{"command":"FOO=1 sudo rm -rf x"}"#, "ns/bash|command=rm"),
            ("bash", r#"{"command":"cd /repo && cargo test | tail"}"#, "ns/bash|command=cargo"),
            ("bash", r#"{"command":["bash","-lc","env A=b git push"]}"#, "ns/bash|command=git"),
            ("bash", r#"{"command":["/usr/bin/rm","a b"]}"#, "ns/bash|command=rm"),
            ("bash", r#"{"command":"rm","args":["-rf","x"]}"#, "ns/bash|command=rm"),
            ("bash", r#"{"command":"echo $(date)"}"#, "ns/bash|command=echo"),
            ("bash", r#"{"command":"bash build.sh && ls"}"#, "ns/bash|command=bash"),
            ("bash", r#"{"command":"gcc -c main.c && ls"}"#, "ns/bash|command=gcc"),
            ("bash", r#"{"command":"cd x"}"#, "ns/bash|command=cd"),
            ("bash", r#"{"command":""}"#, "ns/bash"),
            ("bash", r#"{"command":7,"path":null,"url":[]}"#, "ns/bash"),
            ("edit", r#"{"command":"view","path":"/a/b"}"#, "ns/edit|command=view|path=/a"),
            ("other", r#"{"query":"https://x.example/y"}"#, "ns/other"),
            ("other", "[1]", "ns/other"),
            ("a|b%", "{}", "ns/a%7Cb%25"),
            ("|%", "{}", "ns/%7C%25"),
        ] {
            assert_eq!(signed(name, params), expected, "{params}");
        }
    }

    #[test]
    fn credentials_never_enter_a_signature() {
        for params in [
            r#"{"url":"https://user:s3cr3t@host.example/x"}"#,
            r#"{"url":"https://user:p@s3cr3t@host.example/x"}"#,
            r#"{"url":"https://host.example?token=s3cr3t"}"#,
            r#"{"url":"https://user:s3cr3t/x"}"#,
            r#"{"url":"https://host.example/;token=s3cr3t/x"}"#,
            r#"{"url":"https://api.telegram.org/bot123456:AAs3cr3tAA/sendMessage"}"#,
            r#"{"url":"https://host.example/s3cr3t0123456789abcdef0123456789"}"#,
            r#"{"url":"file:///a/x?token=s3cr3t"}"#,
            r#"{"command":"TOKEN=s3cr3t curl x"}"#,
            r#"{"command":"s3cr3t:0123 && x"}"#,
        ] {
            assert!(!signed("get", params).contains("s3cr3t"), "{}", signed("get", params));
        }
    }

    #[test]
    fn signatures_are_bounded_and_long_ones_stay_different() {
        let long = |end: &str| format!(r#"{{"path":"/{}/{end}/x"}}"#, "d".repeat(3000));
        let (one, other) = (signed("read", &long("a")), signed("read", &long("b")));
        assert_ne!(one, other);
        assert!(one.len() < 300);
    }

    #[test]
    fn the_domain_is_the_host_and_else_the_server() {
        for (params, expected) in [
            (r#"{"url":"https://u:p@API.example.com:8443/x"}"#, "api.example.com"),
            (r#"{"url":"/relative"}"#, "ns"),
            (r#"{"uri":"file:///x"}"#, "ns"),
            ("{}", "ns"),
        ] {
            let document = JsonDocument::parse(params.as_bytes(), JsonLimits::ENVELOPE).unwrap();
            assert_eq!(
                domain(&tool("get"), &ArgumentTargets::of(document.root())).as_str(),
                expected,
                "{params}"
            );
        }
    }
}
