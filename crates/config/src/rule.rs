//! Rules: settings for a set of tools, and the order in which they apply.
//!
//! From weakest to strongest: everything, the class, the server, the domain, the tool. Of several patterns that
//! match a tool, the more specific one is stronger: a named server before any server, a whole name before a
//! prefix, a longer prefix before a shorter one.

use std::collections::BTreeMap;
use std::fmt;

use steadfast_core::id::{Domain, ToolRef};
use steadfast_core::policy::ToolClass;

use crate::location::SourceLocation;
use crate::policy::{PolicyDraft, class_name};
use crate::setting::WrittenSetting;

/// Subject of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Selector {
    Everything,
    Class(ToolClass),
    /// All tools of a server: `[tools."bank/*"]`.
    Server(String),
    /// All calls that depend on a host or server.
    Domain(String),
    Tool(ToolPattern),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => f.write_str("the top level"),
            Self::Class(class) => write!(f, "[classes.{}]", class_name(*class)),
            Self::Server(server) => write!(f, "[tools.\"{server}/*\"]"),
            Self::Domain(domain) => write!(f, "[domains.\"{domain}\"]"),
            Self::Tool(pattern) => write!(f, "[tools.\"{pattern}\"]"),
        }
    }
}

/// A pattern that matches tools by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ToolPattern {
    /// Name of the server. `None` matches any server.
    server: Option<String>,
    name: NamePattern,
}

/// The order is from weaker to stronger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NamePattern {
    Begins(String),
    Is(String),
}

impl Selector {
    /// Parses a pattern: `server/tool`, `server/*`, `server/get_*`, `*/tool`, `tool`.
    pub(crate) fn of_tools(text: &str) -> Result<Self, &'static str> {
        let (server, name) = text.split_once('/').unwrap_or(("*", text));
        if server.is_empty() || name.is_empty() {
            return Err("write `server/tool`, `server/*`, or `tool` for a tool of any server");
        }
        let (stem, open) = name.strip_suffix('*').map_or((name, false), |stem| (stem, true));
        if stem.contains('*') || (server.contains('*') && server != "*") {
            return Err("a `*` is only allowed at the end, or for a whole server");
        }
        let server = (server != "*").then(|| server.to_owned());
        match (server, stem, open) {
            (None, "", true) => {
                Err("this is every tool: write its settings at the top level, without a section")
            }
            (Some(server), "", true) => Ok(Self::Server(server)),
            (server, stem, true) => {
                Ok(Self::Tool(ToolPattern { server, name: NamePattern::Begins(stem.to_owned()) }))
            }
            (server, stem, false) => {
                Ok(Self::Tool(ToolPattern { server, name: NamePattern::Is(stem.to_owned()) }))
            }
        }
    }

    /// Returns the server that the selector names.
    pub(crate) fn server(&self) -> Option<&str> {
        match self {
            Self::Server(server) => Some(server),
            Self::Tool(pattern) => pattern.server.as_deref(),
            Self::Everything | Self::Class(_) | Self::Domain(_) => None,
        }
    }

    /// Returns the tool that the selector names, if it matches at most one tool of a server.
    pub(crate) fn whole_tool(&self) -> Option<&str> {
        match self {
            Self::Tool(ToolPattern { name: NamePattern::Is(whole), .. }) => Some(whole),
            Self::Tool(ToolPattern { name: NamePattern::Begins(_), .. })
            | Self::Everything
            | Self::Class(_)
            | Self::Server(_)
            | Self::Domain(_) => None,
        }
    }
}

impl ToolPattern {
    fn fits(&self, tool: &ToolRef) -> bool {
        let name = tool.tool.as_str();
        self.server.as_deref().is_none_or(|server| server == tool.namespace.as_str())
            && match &self.name {
                NamePattern::Is(whole) => whole == name,
                NamePattern::Begins(stem) => name.starts_with(stem),
            }
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = &self.server {
            write!(f, "{server}/")?;
        }
        match &self.name {
            NamePattern::Is(whole) => f.write_str(whole),
            NamePattern::Begins(stem) => write!(f, "{stem}*"),
        }
    }
}

/// Settings for one selector, in the order in which they are applied: by layer, and within a layer by the order of the
/// table.
#[derive(Clone)]
pub(crate) struct Rule {
    pub(crate) selector: Selector,
    pub(crate) written: Vec<WrittenSetting<PolicyDraft>>,
    /// Position of its first setting or of its section.
    pub(crate) place: Option<SourceLocation>,
}

/// All rules of a configuration, by selector.
pub(crate) struct RuleSet {
    /// The order of the selectors is their strength: everything first, then classes, servers, domains, tools. Patterns
    /// are ordered by server, with "any server" as the weakest, then by name.
    all: Vec<Rule>,
    domains: BTreeMap<String, usize>,
}

impl RuleSet {
    /// Joins rules with the same selector. Later ones are stronger.
    pub(crate) fn of(layers: impl IntoIterator<Item = Rule>) -> Self {
        let mut by_selector: BTreeMap<Selector, Rule> = BTreeMap::new();
        for rule in layers {
            match by_selector.get_mut(&rule.selector) {
                Some(known) => known.written.extend(rule.written),
                None => drop(by_selector.insert(rule.selector.clone(), rule)),
            }
        }
        let all: Vec<Rule> = by_selector.into_values().collect();
        let domains = all.iter().enumerate().filter_map(|(at, rule)| match &rule.selector {
            Selector::Domain(domain) => Some((domain.clone(), at)),
            Selector::Everything | Selector::Class(_) | Selector::Server(_) | Selector::Tool(_) => None,
        });
        Self { domains: domains.collect(), all }
    }

    pub(crate) fn all(&self) -> &[Rule] {
        &self.all
    }

    /// Returns true if a rule can depend on the domain.
    pub(crate) fn know_domains(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Returns the index of the rule for this domain, if there is one. The cache uses the index instead of the domain,
    /// so that all domains without a rule share an entry.
    pub(crate) fn about_domain(&self, domain: &Domain) -> Option<usize> {
        let name = domain.as_str();
        self.domains.get(name).copied().or_else(|| {
            let lower = name.chars().any(char::is_uppercase).then(|| name.to_lowercase())?;
            self.domains.get(&lower).copied()
        })
    }

    /// Returns the rules for a call, from weakest to strongest.
    pub(crate) fn matching<'r>(
        &'r self,
        tool: &'r ToolRef,
        class: ToolClass,
        domain: Option<usize>,
    ) -> impl Iterator<Item = &'r Rule> {
        self.all.iter().enumerate().filter_map(move |(at, rule)| {
            let fits = match &rule.selector {
                Selector::Everything => true,
                Selector::Class(named) => *named == class,
                Selector::Server(server) => server == tool.namespace.as_str(),
                Selector::Domain(_) => Some(at) == domain,
                Selector::Tool(pattern) => pattern.fits(tool),
            };
            fits.then_some(rule)
        })
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Rule> {
        self.all.get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_core::id::{Namespace, ToolName};

    fn tool(server: &str, name: &str) -> ToolRef {
        ToolRef { namespace: Namespace::new(server).unwrap(), tool: ToolName::new(name).unwrap() }
    }

    #[test]
    fn a_more_specific_rule_is_stronger() {
        let weak_to_strong = ["get_*", "get_all*", "get_all", "bank/get_*", "bank/get_all*", "bank/get_all"];
        let of = |selector: &str| Rule {
            selector: Selector::of_tools(selector).unwrap(),
            written: Vec::new(),
            place: None,
        };
        let rest = [
            Rule { selector: Selector::Domain("bank".to_owned()), written: Vec::new(), place: None },
            of("bank/*"),
            of("other/*"),
            of("other/get_all"),
            Rule { selector: Selector::Class(ToolClass::Unknown), written: Vec::new(), place: None },
            Rule { selector: Selector::Class(ToolClass::ReadOnly), written: Vec::new(), place: None },
            Rule { selector: Selector::Everything, written: Vec::new(), place: None },
        ];
        let rules = RuleSet::of(weak_to_strong.iter().rev().map(|text| of(text)).chain(rest));
        let domain = rules.about_domain(&Domain::new("BANK").unwrap());
        let call = tool("bank", "get_all");
        let found: Vec<String> =
            rules.matching(&call, ToolClass::Unknown, domain).map(|rule| rule.selector.to_string()).collect();
        let mut expected = vec![
            "the top level".to_owned(),
            "[classes.unknown]".to_owned(),
            "[tools.\"bank/*\"]".to_owned(),
            "[domains.\"bank\"]".to_owned(),
        ];
        expected.extend(weak_to_strong.iter().map(|text| format!("[tools.\"{text}\"]")));
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for text in ["", "/", "bank/", "/pay", "*", "*/*", "b*/pay", "bank/p*y", "bank/**"] {
            assert!(Selector::of_tools(text).is_err(), "{text}");
        }
        assert_eq!(Selector::of_tools("*/pay"), Selector::of_tools("pay"));
        assert_eq!(Selector::of_tools("bank/a/b").unwrap().to_string(), "[tools.\"bank/a/b\"]");
    }
}
