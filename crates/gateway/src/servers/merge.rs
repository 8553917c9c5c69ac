//! Merges the responses of several servers into one.
//!
//! Lists are concatenated, and named items get the name of their server as a prefix if it has one. Handshakes are
//! merged: the union of all capabilities, and the oldest protocol version. Everything else stays unchanged.

use serde_json::value::RawValue;
use serde_json::{Map, Value as Json};
use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;

use crate::json_parts::{json, object, with_text};

/// The separator between the name of a server and the name of its tool.
const SEPARATOR: &str = "__";

/// The response of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerResult<'a> {
    /// The name of the server.
    pub(crate) server: &'a str,
    /// The prefix of the names of its tools and prompts, if there is one.
    pub(crate) prefix: Option<&'a str>,
    /// The result of the server.
    pub(crate) result: &'a str,
}

/// A list that several servers return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergedListKind {
    /// The member that contains it.
    pub(crate) member: &'static str,
    /// True if its items have names that must be unique.
    pub(crate) named: bool,
}

impl MergedListKind {
    /// Returns the list of this method.
    pub(crate) fn of(method: &str) -> Option<Self> {
        let (member, named) = match method {
            "tools/list" => ("tools", true),
            "prompts/list" => ("prompts", true),
            "resources/list" => ("resources", false),
            "resources/templates/list" => ("resourceTemplates", false),
            "tasks/list" => ("tasks", false),
            _ => return None,
        };
        Some(Self { member, named })
    }

    /// Returns the kind of change notification for this list.
    pub(crate) fn changed_notification(&self) -> Option<&'static str> {
        match self.member {
            "tools" => Some("tools"),
            "prompts" => Some("prompts"),
            "resources" | "resourceTemplates" => Some("resources"),
            _ => None,
        }
    }

    /// Returns the items of the list, unchanged.
    pub(crate) fn items<'r>(&self, result: &'r str) -> Vec<&'r str> {
        let list = scan::get(result, self.member).unwrap_or("[]");
        let items = serde_json::from_str::<Vec<&RawValue>>(list).unwrap_or_default();
        items.into_iter().map(RawValue::get).collect()
    }
}

/// Returns the client's name for an item that the server calls `name`.
pub(crate) fn prefixed(prefix: &str, name: &str) -> String {
    format!("{prefix}{SEPARATOR}{name}")
}

/// Returns the server's name for an item of the client, or `None` if it does not have this prefix.
pub(crate) fn stripped<'n>(prefix: &str, name: &'n str) -> Option<&'n str> {
    name.strip_prefix(prefix)?.strip_prefix(SEPARATOR)
}

/// Merges lists in the order of the servers. Other members come from the first one, except for the cache limits, which
/// are the strictest of all.
pub(crate) fn lists(list: MergedListKind, parts: &[ServerResult<'_>]) -> JsonText {
    let items = parts.iter().flat_map(|part| {
        let prefix = part.prefix.filter(|_| list.named);
        list.items(part.result).into_iter().map(move |item| match prefix {
            Some(prefix) => {
                let renamed = with_text(item, "name", |name| prefixed(prefix, name));
                renamed.unwrap_or_else(|| item.to_owned())
            }
            None => item.to_owned(),
        })
    });
    let items = format!("[{}]", items.collect::<Vec<_>>().join(","));
    let mut members = Vec::new();
    let first = parts.first().map_or("{}", |part| part.result);
    for member in scan::members(first) {
        let value = first.get(member.value).unwrap_or("null");
        match &*member.name {
            "nextCursor" => {}
            name if name == list.member => {}
            "ttlMs" => members.push(("ttlMs".to_owned(), least_ttl(parts))),
            "cacheScope" => members.push(("cacheScope".to_owned(), scope(parts).to_owned())),
            name => members.push((name.to_owned(), value.to_owned())),
        }
    }
    members.push((list.member.to_owned(), items));
    object(members)
}

/// Merges handshakes, of `initialize` and of `server/discover`.
pub(crate) fn handshakes(parts: &[ServerResult<'_>]) -> JsonText {
    let mut members: Vec<(String, String)> = Vec::new();
    let first = parts.first().map_or("{}", |part| part.result);
    for member in scan::members(first) {
        let value = first.get(member.value).unwrap_or("null");
        let joined = match &*member.name {
            "protocolVersion" => oldest(parts).unwrap_or_else(|| value.to_owned()),
            "supportedVersions" => shared_versions(parts),
            "capabilities" => capabilities(parts),
            "serverInfo" => GATEWAY_INFO.to_owned(),
            "instructions" => continue,
            "_meta" => value.to_owned(),
            "ttlMs" => least_ttl(parts),
            "cacheScope" => scope(parts).to_owned(),
            _ => value.to_owned(),
        };
        members.push((member.name.into_owned(), joined));
    }
    if let Some(instructions) = instructions(parts) {
        members.push(("instructions".to_owned(), JsonText::string(&instructions).as_str().to_owned()));
    }
    object(members)
}

/// The `serverInfo` of the gateway in front of several servers.
const GATEWAY_INFO: &str =
    concat!(r#"{"name":"steadfast","title":"Steadfast","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// Returns the oldest version. Versions are dates, so the older one is smaller.
fn oldest(parts: &[ServerResult<'_>]) -> Option<String> {
    parts.iter().filter_map(|part| scan::get(part.result, "protocolVersion")).min().map(str::to_owned)
}

fn shared_versions(parts: &[ServerResult<'_>]) -> String {
    let of = |part: &ServerResult<'_>| -> Vec<String> {
        let listed = scan::get(part.result, "supportedVersions").unwrap_or("[]");
        serde_json::from_str(listed).unwrap_or_default()
    };
    let mut parts = parts.iter();
    let mut shared = parts.next().map(of).unwrap_or_default();
    for part in parts {
        let known = of(part);
        shared.retain(|version| known.contains(version));
    }
    serde_json::to_string(&shared).unwrap_or_else(|_| "[]".to_owned())
}

/// Returns the union of all capabilities.
fn capabilities(parts: &[ServerResult<'_>]) -> String {
    all(parts.iter().filter_map(|part| scan::get(part.result, "capabilities")))
}

/// Returns the union of all subscription acknowledgements.
pub(crate) fn promises(parts: &[&str]) -> JsonText {
    json(&all(parts.iter().copied()))
}

/// Merges objects: a flag that is set in one of them is set in the result.
fn all<'p>(parts: impl Iterator<Item = &'p str>) -> String {
    let mut all = Json::Object(Map::new());
    for part in parts.filter_map(|text| serde_json::from_str(text).ok()) {
        join(&mut all, part);
    }
    all.to_string()
}

fn join(all: &mut Json, part: Json) {
    match (all, part) {
        (Json::Object(all), Json::Object(part)) => {
            for (name, value) in part {
                match all.get_mut(&name) {
                    Some(known) => join(known, value),
                    None => drop(all.insert(name, value)),
                }
            }
        }
        (Json::Array(all), Json::Array(part)) => {
            for value in part {
                if !all.contains(&value) {
                    all.push(value);
                }
            }
        }
        (all, Json::Bool(true)) => *all = Json::Bool(true),
        _ => {}
    }
}

fn instructions(parts: &[ServerResult<'_>]) -> Option<String> {
    let texts = parts.iter().filter_map(|part| {
        let text = scan::get(part.result, "instructions").and_then(scan::string)?;
        Some(format!("# {}\n\n{}", part.prefix.unwrap_or(part.server), text.trim()))
    });
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

fn least_ttl(parts: &[ServerResult<'_>]) -> String {
    let ttl =
        |part: &ServerResult<'_>| scan::get(part.result, "ttlMs").and_then(|ttl| ttl.parse::<f64>().ok());
    let least = parts.iter().map(|part| ttl(part).unwrap_or(0.0)).fold(f64::INFINITY, f64::min);
    if least.is_finite() { least.to_string() } else { "0".to_owned() }
}

fn scope(parts: &[ServerResult<'_>]) -> &'static str {
    let is_public = |part: &ServerResult<'_>| scan::get(part.result, "cacheScope") == Some(r#""public""#);
    if parts.iter().all(is_public) { r#""public""# } else { r#""private""# }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part<'a>(server: &'a str, result: &'a str) -> ServerResult<'a> {
        ServerResult { server, prefix: Some(server), result }
    }

    #[test]
    fn lists_are_merged_and_their_names_get_prefixes() {
        let bank =
            r#"{"tools":[{"x-own":1.0,"name":"pay","n":10000000000000000000}],"nextCursor":"2","x":[ ]}"#;
        let mail = r#"{"tools":[{"name":"se\"nd"},7]}"#;
        let tools = MergedListKind::of("tools/list").unwrap();
        assert_eq!(
            lists(tools, &[part("bank", bank), part("mail", mail)]).as_str(),
            r#"{"x":[ ],"tools":[{"x-own":1.0,"name":"bank__pay","n":10000000000000000000},{"name":"mail__se\"nd"},7]}"#
        );
        let plain = ServerResult { prefix: None, ..part("mail", mail) };
        assert_eq!(lists(tools, &[plain]).as_str(), mail);
        let resources = MergedListKind::of("resources/list").unwrap();
        let listed = r#"{"resources":[{"uri":"a:1","name":"one"}]}"#;
        assert_eq!(lists(resources, &[part("bank", listed)]).as_str(), listed);
    }

    #[test]
    fn merged_lists_have_the_strictest_cache_limits() {
        let tools = MergedListKind::of("tools/list").unwrap();
        let merged = |one, two| lists(tools, &[part("a", one), part("b", two)]).as_str().to_owned();
        assert_eq!(
            merged(
                r#"{"resultType":"complete","tools":[],"ttlMs":50,"cacheScope":"public"}"#,
                r#"{"resultType":"complete","tools":[],"ttlMs":20,"cacheScope":"private"}"#
            ),
            r#"{"resultType":"complete","ttlMs":20,"cacheScope":"private","tools":[]}"#
        );
    }

    #[test]
    fn a_name_leads_back_to_its_server() {
        assert_eq!(stripped("bank", &prefixed("bank", "pay")), Some("pay"));
        assert_eq!(stripped("bank", "bank_pay"), None);
        assert_eq!(stripped("bank", "banker__pay"), None);
        assert_eq!(stripped("bank", "pay"), None);
    }

    #[test]
    fn handshakes_are_merged_with_all_capabilities() {
        let one = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":false},"x":{"deep":[1]}},"serverInfo":{"name":"one","version":"1"},"instructions":"pay \"well\""}"#;
        let two = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"two","version":"1"}}"#;
        let joined = handshakes(&[part("one", one), part("two", two)]);
        let joined: Json = serde_json::from_str(joined.as_str()).unwrap();
        assert_eq!(joined["protocolVersion"], "2025-06-18");
        assert_eq!(joined["capabilities"]["tools"]["listChanged"], true);
        assert_eq!(joined["capabilities"]["x"]["deep"][0], 1);
        assert!(joined["capabilities"]["logging"].is_object());
        assert_eq!(joined["serverInfo"]["name"], "steadfast");
        assert_eq!(joined["instructions"], "# one\n\npay \"well\"");
        let modern = r#"{"supportedVersions":["2026-07-28","2027-01-01"],"capabilities":{}}"#;
        let other = r#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#;
        let joined = handshakes(&[part("one", modern), part("two", other)]);
        assert_eq!(scan::get(joined.as_str(), "supportedVersions"), Some(r#"["2026-07-28"]"#));
    }
}
