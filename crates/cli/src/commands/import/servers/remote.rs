//! Servers with a URL.
//!
//! `{"url": U, "headers": {"Authorization": S}}` becomes
//!
//! ```json
//! {"command": "steadfast",
//!  "args": ["wrap", "--imported", "--name", NAME, "--url", U, "--header-env", "Authorization=MCP_HEADER_AUTHORIZATION"],
//!  "env": {"MCP_HEADER_AUTHORIZATION": S}}
//! ```
//!
//! The value of a header stays in the file of the client and in its own spelling, as a variable of the process. It is
//! never on a command line, which other users of the machine can read. A URL with a secret becomes a variable too. The
//! arguments name variables without `${…}`, because clients would replace that themselves. If a client replaces
//! `${input:key}` in a header, it does so in `env` as well.

use std::net::IpAddr;

use http::Uri;

use super::{
    ConfigFormat, EMPTY_LIST, FoundServer, ImportRequest, MARK, ProgramLocation, ServerRewrite, Splice,
    StdioServer, SyntaxError, TableMember, find, member, name_flag, new_members, quoted, respelled, spliced,
    whole_member,
};
use crate::commands::import::names::ServerNames;

/// A server with a URL.
pub(super) struct UrlServer<'n> {
    url: &'n TableMember,
    pub(super) address: &'n str,
    /// Its `type`, if it has one.
    kind: Option<(&'n TableMember, &'n str)>,
    headers: Option<(&'n TableMember, &'n [TableMember])>,
    /// The variable with a bearer token, as in Codex.
    bearer: Option<(&'n TableMember, &'n str)>,
}

/// Variable for a URL with a secret.
const URL_VARIABLE: &str = "MCP_URL";
/// Prefix of the variables for headers.
const HEADER_VARIABLE: &str = "MCP_HEADER_";
/// Keys by which a client signs in itself, or creates headers.
const SIGN_IN: [&str; 7] =
    ["oauth", "auth", "authorization", "authProvider", "headersHelper", "scopes", "oauth_resource"];
/// Keys that configure the connection of a client.
const CONNECTION: [&str; 3] = ["sslVerify", "clientCert", "clientKey"];
/// Names of the supported transport.
const STREAMABLE: [&str; 4] = ["http", "streamable-http", "streamableHttp", "streamable_http"];

/// Transport that a client uses for a URL if none is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultTransport {
    Streamable,
    /// HTTP with SSE.
    Older,
}

/// Returns the key of the headers.
fn headers_key(form: ConfigFormat) -> &'static str {
    match form {
        ConfigFormat::Json => "headers",
        ConfigFormat::Toml => "http_headers",
    }
}

const BEARER_KEY: &str = "bearer_token_env_var";
/// Key with the variables that Codex passes on to a program.
const PASSED_KEY: &str = "env_vars";

impl<'n> UrlServer<'n> {
    /// Reads a server with a URL, or returns the reason why it cannot be put behind Steadfast.
    pub(super) fn read(
        members: &'n [TableMember],
        form: ConfigFormat,
        default_transport: DefaultTransport,
    ) -> Result<Result<Self, String>, SyntaxError> {
        let Some(url) = member(members, "url")? else {
            return Ok(Err("its client is not supported: its URL is not in `url`".to_owned()));
        };
        let Some(address) = url.node.text() else {
            return Ok(Err(format!("its `url` is {}, not a text", url.node.describe())));
        };
        let authority =
            address.split_once("://").map_or(address, |(_, rest)| rest).split(['/', '?', '#']).next();
        if authority.is_some_and(|authority| authority.contains('@')) {
            return Ok(Err("its URL contains a user name or password; put them into a header".to_owned()));
        }
        for key in ["command", "args", "env", PASSED_KEY] {
            if member(members, key)?.is_some() {
                return Ok(Err(format!("it has both `url` and `{key}`")));
            }
        }
        if let Some(key) = SIGN_IN.into_iter().find(|key| members.iter().any(|one| one.name == *key)) {
            return Ok(Err(format!("its client signs in to it (`{key}`), and only the client can do that")));
        }
        if let Some(key) = CONNECTION.into_iter().find(|key| members.iter().any(|one| one.name == *key)) {
            return Ok(Err(format!("its client uses `{key}` to connect, which steadfast does not support")));
        }
        if member(members, "env_http_headers")?.is_some() {
            return Ok(Err(
                "its headers come from variables (`env_http_headers`); write its command yourself: \
                           steadfast wrap --url URL --header-env NAME=VARIABLE"
                    .to_owned(),
            ));
        }
        let (mut kind, mut is_named) = (None, false);
        for key in ["type", "transport"] {
            let Some(one) = member(members, key)? else { continue };
            is_named = true;
            match one.node.text() {
                Some("sse") => return Ok(Err(OLDER_TRANSPORT.to_owned())),
                Some(text) if STREAMABLE.contains(&text) => {
                    // A client that has `transport` looks at the command first.
                    kind = kind.or((key == "type").then_some((one, text)));
                }
                Some(_) | None => return Ok(Err(format!("its `{key}` is not supported"))),
            }
        }
        let is_older =
            default_transport == DefaultTransport::Older || address.trim_end_matches('/').ends_with("/sse");
        if !is_named && is_older {
            return Ok(Err(OLDER_TRANSPORT.to_owned()));
        }
        let headers = match member(members, headers_key(form))? {
            None => None,
            Some(headers) => match headers.node.members() {
                Some(each) if each.iter().all(|one| one.node.text().is_some()) => Some((headers, each)),
                Some(_) | None => {
                    return Ok(Err("its headers are not a table of names and texts".to_owned()));
                }
            },
        };
        if let Some((_, each)) = headers {
            for one in each {
                member(each, &one.name)?;
            }
        }
        let bearer = match (form, member(members, BEARER_KEY)?) {
            (ConfigFormat::Toml, Some(bearer)) => match bearer.node.text() {
                Some(variable) => Some((bearer, variable)),
                None => return Ok(Err(format!("its `{BEARER_KEY}` is not a text"))),
            },
            (ConfigFormat::Json, _) | (ConfigFormat::Toml, None) => None,
        };
        Ok(Ok(Self { url, address, kind, headers, bearer }))
    }

    /// Returns its URL and the names of its headers, without their values.
    pub(super) fn line(&self) -> Vec<String> {
        let headers = self.headers.iter().flat_map(|(_, each)| *each).map(|one| format!("{}:", one.name));
        let bearer = self.bearer.map(|(_, variable)| bearer_header(variable));
        [self.address.to_owned()].into_iter().chain(headers).chain(bearer).collect()
    }

    /// Returns an error if it must not be put behind Steadfast: without credentials in the file, its client may sign
    /// in itself.
    pub(super) fn may_be_wrapped(&self, is_open: bool) -> Result<(), String> {
        let has_credentials = self.headers.is_some_and(|(_, each)| !each.is_empty())
            || self.bearer.is_some()
            || self.has_secret_address();
        if is_open || has_credentials || !may_ask_for_sign_in(self.address) {
            return Ok(());
        }
        Err("the file has no credentials for it, so that its client may have to sign in (OAuth), and only the client can do \
             that; if it needs none, add --without-sign-in NAME"
            .to_owned())
    }

    fn has_secret_address(&self) -> bool {
        steadfast_redact::text(self.address) != self.address
    }
}

const OLDER_TRANSPORT: &str =
    "it uses the older transport, HTTP with SSE, and steadfast supports only streamable HTTP";

/// Returns true if a server at this address may require a sign-in. That takes HTTPS and another machine.
fn may_ask_for_sign_in(address: &str) -> bool {
    // A variable may stand for anything.
    let Ok(uri) = address.parse::<Uri>() else { return true };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    uri.scheme_str() != Some("http") && !is_here
}

fn bearer_header(variable: &str) -> String {
    format!("Authorization: Bearer ${{{variable}}}")
}

/// Returns the variable for the value of each header, in order.
fn variables(headers: &[TableMember]) -> Vec<String> {
    let mut taken: Vec<String> = Vec::new();
    for header in headers {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let plain = format!("{HEADER_VARIABLE}{}", header.name.chars().map(letter).collect::<String>());
        let mut variable = plain.clone();
        let mut number = 2;
        while taken.contains(&variable) {
            variable = format!("{plain}_{number}");
            number += 1;
        }
        taken.push(variable);
    }
    taken
}

impl FoundServer<'_> {
    /// Puts a server with a URL behind Steadfast.
    pub(super) fn wrap_url(
        &self,
        remote: &UrlServer<'_>,
        name: &str,
        program: &ProgramLocation,
        text: &str,
        form: ConfigFormat,
    ) -> Result<ServerRewrite, String> {
        let us = program.name.as_ref().unwrap_or(&program.path);
        let mark = remote.kind.map_or_else(|| MARK.to_owned(), |(_, kind)| format!("{MARK}={kind}"));
        let mut arguments = vec!["wrap".to_owned(), mark];
        arguments.extend(name_flag(name));
        let mut notes = self.renamed(name);
        let mut splices = vec![
            (remote.url.name_span.clone(), renamed(remote.url, "command", text)),
            (remote.url.node.span.clone(), quoted(us)),
        ];
        if let Some((kind, _)) = remote.kind {
            splices.push((kind.node.span.clone(), requoted(spelling(text, kind), "stdio")));
        }
        let mut items: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
        let own = text.get(remote.url.node.span.clone()).unwrap_or_default();
        let mut new = Vec::new();
        if remote.has_secret_address() {
            arguments.extend(["--url-env".to_owned(), URL_VARIABLE.to_owned()]);
            items.extend([quoted("--url-env"), quoted(URL_VARIABLE)]);
            match remote.headers.and_then(|(headers, each)| Some((headers, each.first()?))) {
                Some((headers, first)) => splices.push(before(first, headers, own, text, form)),
                None if remote.headers.is_some() => {
                    return Err("its URL holds a secret and its `headers` are empty; remove those".to_owned());
                }
                None => new.push(("env", in_braces(own, form))),
            }
            notes.push(format!(
                "its URL holds a secret: it stays in this file, as the variable {URL_VARIABLE}"
            ));
        } else {
            arguments.extend(["--url".to_owned(), remote.address.to_owned()]);
            items.extend([quoted("--url"), own.to_owned()]);
        }
        if let Some((headers, each)) = remote.headers {
            splices.push((headers.name_span.clone(), renamed(headers, "env", text)));
            for (header, variable) in each.iter().zip(variables(each)) {
                splices.push((header.name_span.clone(), renamed(header, &variable, text)));
                let pair = format!("{}={variable}", header.name);
                items.extend([quoted("--header-env"), quoted(&pair)]);
                arguments.extend(["--header-env".to_owned(), pair]);
                notes.push(format!(
                    "the value of the header {} stays in this file, as the variable {variable}",
                    header.name
                ));
            }
        }
        if let Some((bearer, variable)) = remote.bearer {
            let header = bearer_header(variable);
            items.extend([quoted("--header"), quoted(&header)]);
            arguments.extend(["--header".to_owned(), header]);
            splices.push((bearer.name_span.clone(), renamed(bearer, PASSED_KEY, text)));
            let own = text.get(bearer.node.span.clone()).unwrap_or_default();
            splices.push((bearer.node.span.clone(), format!("[{own}]")));
            notes.push(format!("{variable} must be set where the client runs, as before"));
        }
        new.insert(0, ("args", format!("[{}]", items.join(", "))));
        splices.push(new_members(remote.url, self.in_braces, &new, text, form)?);
        self.check_reversible(&splices, text, form)?;
        let becomes = [us.clone()].into_iter().chain(arguments).collect();
        Ok(ServerRewrite { becomes, splices, notes })
    }

    /// Restores a server with a URL.
    pub(super) fn unwrap_url(
        &self,
        parts: &StdioServer<'_>,
        mark: &str,
        text: &str,
        form: ConfigFormat,
    ) -> Result<ServerRewrite, String> {
        let changed_since = |detail: &str| format!("{detail}; restore its `url` yourself");
        let env = member(parts.members, "env").ok().flatten();
        let variables = env.and_then(|env| env.node.members()).unwrap_or_default();
        let find = |name: &str| variables.iter().find(|one| one.name == name);
        let mut splices = Vec::new();
        let url = match (parts.flag("--url"), parts.flag("--url-env")) {
            (Some(at), _) => parts.items.get(at).map(|item| (item.span.clone(), item.text())),
            (None, Some(at)) => {
                let variable = parts.words.get(at).and_then(|name| find(name));
                variable.map(|one| (one.node.span.clone(), one.node.text()))
            }
            (None, None) => None,
        };
        let Some((own, Some(address))) = url else {
            return Err(changed_since("its URL is missing"));
        };
        let own = text.get(own).unwrap_or_default().to_owned();
        splices.push((parts.command.name_span.clone(), renamed(parts.command, "url", text)));
        splices.push((parts.command.node.span.clone(), own));
        let removal = |one| whole_member(parts.members, one, self.in_braces, text, form);
        let args =
            parts.args.and_then(removal).ok_or_else(|| changed_since("its `args` cannot be removed"))?;
        splices.push((args, String::new()));
        let kind = member(parts.members, "type").ok().flatten();
        if let Some(kind) = kind.filter(|_| !mark.is_empty() && mark != EMPTY_LIST) {
            splices.push((kind.node.span.clone(), requoted(spelling(text, kind), mark)));
        }

        let mut becomes = vec![address.to_owned()];
        let mut known = Vec::new();
        let flags = parts.words.iter().zip(parts.words.iter().skip(1));
        for (_, pair) in flags.clone().filter(|(flag, _)| **flag == "--header-env") {
            let found = pair.split_once('=').and_then(|(header, name)| Some((header, find(name)?)));
            let (header, variable) =
                found.ok_or_else(|| changed_since("the value of a header is missing"))?;
            splices.push((variable.name_span.clone(), renamed(variable, header, text)));
            known.push((variable.name.as_str(), header));
        }
        let is_url = |one: &&TableMember| {
            let name = parts.flag("--url-env").and_then(|at| parts.words.get(at));
            name.is_some_and(|name| one.name == **name)
        };
        for one in variables {
            match known.iter().find(|(name, _)| *name == one.name) {
                Some((_, header)) => becomes.push(format!("{header}:")),
                None if is_url(&one) => {}
                None => {
                    return Err(changed_since(&format!(
                        "`env` has `{}`, which is not a valid header",
                        one.name
                    )));
                }
            }
        }
        if let Some(env) = env {
            match (variables.iter().position(|one| is_url(&one)), known.is_empty()) {
                (Some(_), true) => {
                    let range = removal(env).ok_or_else(|| changed_since("its `env` cannot be removed"))?;
                    splices.push((range, String::new()));
                }
                (Some(at), false) => {
                    // It was inserted before another one.
                    let (url, next) = (variables.get(at), variables.get(at + 1));
                    let (Some(url), Some(next)) = (url, next) else {
                        return Err(changed_since("the order of its `env` was changed"));
                    };
                    splices.push((url.name_span.start..next.name_span.start, String::new()));
                    splices.push((env.name_span.clone(), renamed(env, headers_key(form), text)));
                }
                (None, _) => splices.push((env.name_span.clone(), renamed(env, headers_key(form), text))),
            }
        }
        let passed = member(parts.members, PASSED_KEY).ok().flatten();
        let bearer = flags.filter(|(flag, _)| **flag == "--header").find_map(|(_, header)| {
            let variable = header.strip_prefix("Authorization: Bearer ${")?.strip_suffix('}')?;
            let [item] = passed?.node.list()? else { return None };
            (item.text() == Some(variable)).then_some((item, variable))
        });
        if let (Some(passed), Some((item, variable))) = (passed, bearer) {
            splices.push((passed.name_span.clone(), renamed(passed, BEARER_KEY, text)));
            let own = text.get(item.span.clone()).unwrap_or_default();
            splices.push((passed.node.span.clone(), own.to_owned()));
            becomes.push(bearer_header(variable));
        }
        Ok(ServerRewrite { becomes, splices, notes: Vec::new() })
    }

    /// Checks that the added text can be removed again, byte for byte. Some spellings cannot.
    fn check_reversible(&self, splices: &[Splice], text: &str, form: ConfigFormat) -> Result<(), String> {
        let new = spliced(text, splices.to_vec());
        let unwrapped = || {
            let root = form.read(&new).ok()?;
            let found = find(&root, &new, &[self.table_path]).ok()?;
            let own = found.iter().find(|one| one.name == self.name && one.within == self.within)?;
            let judged = own.judge(&new, form, &ImportRequest::Unwrap, &mut ServerNames::default()).ok()?;
            Some(spliced(&new, judged.splices))
        };
        if unwrapped().is_some_and(|back| back == text) {
            return Ok(());
        }
        Err("this form could not be restored by `--undo`; write `url` and its headers in lines of their own"
            .to_owned())
    }
}

/// Returns the name of a member, changed, in its own quotes.
fn renamed(one: &TableMember, name: &str, text: &str) -> String {
    respelled(text.get(one.name_span.clone()).unwrap_or_default(), name)
}

fn spelling<'t>(text: &'t str, one: &TableMember) -> &'t str {
    text.get(one.node.span.clone()).unwrap_or_default()
}

/// Returns a text in the quotes of another one.
fn requoted(like: &str, text: &str) -> String {
    if like.starts_with('\'') && !text.contains(['\'', '\\']) { format!("'{text}'") } else { quoted(text) }
}

/// Returns the splice that inserts the variable of the URL before the first of others.
fn before(first: &TableMember, table: &TableMember, own: &str, text: &str, form: ConfigFormat) -> Splice {
    let at = first.name_span.start;
    let name = renamed(first, URL_VARIABLE, text);
    let is_inline = text.get(table.node.span.clone()).is_some_and(|own| own.starts_with('{'));
    let written = match (form, is_inline) {
        (ConfigFormat::Json, _) => format!("{name}: {own}, "),
        (ConfigFormat::Toml, true) => format!("{name} = {own}, "),
        (ConfigFormat::Toml, false) => format!("{name} = {own}\n"),
    };
    (at..at, written)
}

/// Returns a table that contains only the variable of the URL.
fn in_braces(own: &str, form: ConfigFormat) -> String {
    match form {
        ConfigFormat::Json => format!("{{{}: {own}}}", quoted(URL_VARIABLE)),
        ConfigFormat::Toml => format!("{{ {URL_VARIABLE} = {own} }}"),
    }
}
