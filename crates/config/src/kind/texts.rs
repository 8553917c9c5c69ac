//! Texts: names, paths, addresses, secrets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use steadfast_redact::Redacted;

use super::SettingKind;
use crate::node::ConfigNode;
use crate::read_context::{ReadContext, SourceFormat};

/// Any text up to a length.
pub(crate) struct Text {
    pub(crate) most: usize,
}

impl Text {
    fn check<'n>(&self, node: &'n ConfigNode, cx: &mut ReadContext<'_>) -> Option<&'n str> {
        let text = node.text().filter(|text| !text.is_empty() && text.len() <= self.most);
        if text.is_none() {
            cx.wrong(
                node,
                &SettingKind::<Arc<str>>::takes(self),
                "write it in quotes, and not longer than that",
            );
        }
        text
    }
}

impl SettingKind<Arc<str>> for Text {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Arc<str>> {
        self.check(node, cx).map(Arc::from)
    }

    fn show(&self, value: &Arc<str>) -> String {
        format!("{:?}", steadfast_redact::text(value))
    }

    fn takes(&self) -> String {
        format!("a text of 1 to {} bytes", self.most)
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "minLength": 1, "maxLength": self.most })
    }
}

/// A text as a plain string, for a value that is read once and not shared.
pub(crate) struct PlainText(pub(crate) Text);

impl SettingKind<String> for PlainText {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<String> {
        self.0.check(node, cx).map(str::to_owned)
    }

    fn show(&self, value: &String) -> String {
        format!("{:?}", steadfast_redact::text(value))
    }

    fn takes(&self) -> String {
        SettingKind::<Arc<str>>::takes(&self.0)
    }

    fn schema(&self) -> Json {
        SettingKind::<Arc<str>>::schema(&self.0)
    }
}

/// A name of letters, digits and `_` that does not begin with a digit. With `extra`, several such names joined by
/// these characters.
pub(crate) struct NameKind {
    pub(crate) extra: &'static str,
}

impl NameKind {
    pub(crate) fn fits(&self, text: &str) -> bool {
        let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        text.len() <= 64
            && text.starts_with(letter)
            && text.chars().all(|c| letter(c) || c.is_ascii_digit() || self.extra.contains(c))
    }
}

impl SettingKind<String> for NameKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<String> {
        let text = node.text().filter(|text| self.fits(text));
        if text.is_none() {
            cx.wrong(node, &self.takes(), "use letters, digits and `_`, and begin with a letter");
        }
        text.map(str::to_owned)
    }

    fn show(&self, value: &String) -> String {
        format!("{value:?}")
    }

    fn takes(&self) -> String {
        "a name of up to 64 letters, digits and `_`".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": format!("^[A-Za-z_][A-Za-z0-9_{}]{{0,63}}$", self.extra) })
    }
}

/// A file or folder. `~` is the home folder; a relative path starts at the folder of the file it is written in.
pub(crate) struct FilePath;

impl SettingKind<Option<PathBuf>> for FilePath {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Option<PathBuf>> {
        let Some(text) = node.text().filter(|text| !text.is_empty() && !text.contains('\0')) else {
            cx.wrong(node, &self.takes(), format!("write {}", cx.with("\"/path/to/it\"")));
            return None;
        };
        if text == "none" {
            return Some(None);
        }
        let below_home = if text == "~" { Some("") } else { text.strip_prefix("~/") };
        let Some(below_home) = below_home else { return Some(Some(cx.folder.join(text))) };
        match cx.environment.get("HOME").filter(|home| !home.is_empty()) {
            Some(home) => Some(Some(PathBuf::from(home).join(below_home))),
            None if cx.form == SourceFormat::BuiltIn => Some(None),
            None => {
                let message = format!("`{}` begins with `~`, and HOME is not set", cx.name);
                cx.refuse(&node.place, message, "set HOME, or write the whole path");
                None
            }
        }
    }

    fn show(&self, value: &Option<PathBuf>) -> String {
        value
            .as_ref()
            .map_or_else(|| "\"none\"".to_owned(), |path| format!("{:?}", path.display().to_string()))
    }

    fn takes(&self) -> String {
        "a path, or \"none\"".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "minLength": 1 })
    }
}

/// Parses an address to listen on: an IP address with a port, or `localhost` with a port, which is 127.0.0.1. Other
/// names are not resolved, because they may lead to an address that other machines can reach.
pub fn listen_address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}").parse().ok(),
        None => text.parse().ok(),
    }
}

/// An address to listen on.
pub(crate) struct Socket;

impl SettingKind<SocketAddr> for Socket {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<SocketAddr> {
        let address = node.text().and_then(listen_address);
        if address.is_none() {
            let help = "write an IP address and a port: \"127.0.0.1:8931\", \"[::1]:8931\"; host names are not resolved";
            cx.wrong(node, &self.takes(), help);
        }
        address
    }

    fn show(&self, value: &SocketAddr) -> String {
        format!("\"{value}\"")
    }

    fn takes(&self) -> String {
        "an IP address or `localhost`, with a port".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "examples": ["127.0.0.1:8931"] })
    }
}

/// A URL with one of these schemes. It may hold a password, so it is a secret. `${NAME}` is replaced by an environment
/// variable.
pub(crate) struct Url {
    pub(crate) schemes: &'static [&'static str],
}

impl SettingKind<Redacted<String>> for Url {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Redacted<String>> {
        let text = expanded(node, cx, &self.takes())?;
        let rest = self.schemes.iter().find_map(|scheme| text.strip_prefix(scheme)?.strip_prefix("://"));
        let host = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
        if host.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let scheme = self.schemes.first().unwrap_or(&"");
            let help = format!("write for example {}", cx.with(format!("\"{scheme}://host:port\"")));
            cx.wrong(node, &self.takes(), help);
            return None;
        }
        Some(Redacted::new(text))
    }

    fn show(&self, value: &Redacted<String>) -> String {
        format!("{:?}", steadfast_redact::text(value.expose()))
    }

    fn takes(&self) -> String {
        format!(
            "a URL that begins with {}",
            self.schemes.iter().map(|s| format!("{s}://")).collect::<Vec<_>>().join(" or ")
        )
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": format!("^({})://", self.schemes.join("|")) })
    }
}

/// A text in which `${NAME}` is replaced by an environment variable. The result is a secret.
pub(crate) struct ExpandedText;

impl SettingKind<Redacted<String>> for ExpandedText {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Redacted<String>> {
        expanded(node, cx, &self.takes()).map(Redacted::new)
    }

    fn show(&self, _: &Redacted<String>) -> String {
        format!("\"{}\"", steadfast_redact::MASK)
    }

    fn takes(&self) -> String {
        "a text; `${NAME}` is replaced by an environment variable".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string" })
    }
}

/// Returns the text with its environment variables replaced.
pub(crate) fn expanded(node: &ConfigNode, cx: &mut ReadContext<'_>, takes: &str) -> Option<String> {
    let Some(text) = node.text().filter(|text| !text.contains('\0')) else {
        cx.wrong(node, takes, "write it in quotes");
        return None;
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            let message = format!("`{}` has a `${{` that nothing closes", cx.name);
            cx.refuse(&node.place, message, "write `${NAME}`");
            return None;
        };
        let Some(value) = cx.environment.get(name) else {
            let message = format!("`{}` uses the variable {name}, which is not set", cx.name);
            cx.refuse(&node.place, message, format!("set {name} in the environment of the process"));
            return None;
        };
        out.push_str(value);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

/// A table of names and texts, such as an environment or headers.
pub(crate) struct MapKind {
    pub(crate) most: usize,
}

/// Secrets by name.
pub(crate) type SecretMap = BTreeMap<String, Redacted<String>>;

impl SettingKind<SecretMap> for MapKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<SecretMap> {
        let Some(table) = node.table().filter(|table| table.0.len() <= self.most) else {
            cx.wrong(node, &self.takes(), format!("write {}", cx.with("{ NAME = \"value\" }")));
            return None;
        };
        let outer = cx.name.clone();
        let mut map = SecretMap::new();
        let mut sound = true;
        for entry in &table.0 {
            cx.name = format!("{outer}.{}", entry.key);
            if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
                let message = format!("{:?} cannot be a name in `{outer}`", entry.key);
                cx.refuse(&entry.key_place, message, "use letters, digits, `_` and `-`");
                sound = false;
            }
            match ExpandedText.read(&entry.node, cx) {
                Some(value) => drop(map.insert(entry.key.clone(), value)),
                None => sound = false,
            }
        }
        cx.name = outer;
        sound.then_some(map)
    }

    fn show(&self, value: &SecretMap) -> String {
        let shown = |name: &String| format!("{name} = \"{}\"", steadfast_redact::MASK);
        format!("{{ {} }}", value.keys().map(shown).collect::<Vec<_>>().join(", "))
    }

    fn takes(&self) -> String {
        format!(
            "a table of up to {} names and texts; `${{NAME}}` is replaced by an environment variable",
            self.most
        )
    }

    fn schema(&self) -> Json {
        json!({ "type": "object", "additionalProperties": { "type": "string" }, "maxProperties": self.most })
    }

    fn is_scalar(&self) -> bool {
        false
    }
}
