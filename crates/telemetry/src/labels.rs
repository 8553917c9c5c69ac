//! Label values: short, redacted, and limited in number.
//!
//! Every label value makes a separate series, in the memory of this process and in the monitoring database. Built-in
//! words are few. Names come from outside, so they are cut and redacted, and beyond a limit they are all replaced by
//! [`OTHER`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use opentelemetry::Value;
use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use steadfast_core::id::ToolRef;

use crate::tool_status::ToolStatus;

/// The label of everything beyond the limit. No tool can have this name, because tool labels have a slash.
pub(crate) const OTHER: Label = Label::Word("other");

/// The value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    /// A built-in word.
    Word(&'static str),
    /// A name from outside.
    Name(Arc<str>),
}

impl Label {
    /// Creates a label for a name from outside, redacted and cut.
    fn name(text: &str) -> Self {
        Self::Name(steadfast_redact::excerpt(text, MOST_BYTES).into())
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Name(name) => name,
        }
    }
}

impl From<&'static str> for Label {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<Label> for Value {
    fn from(label: Label) -> Self {
        match label {
            Label::Word(word) => word.into(),
            Label::Name(name) => Self::String(name.into()),
        }
    }
}

impl EncodeLabelValue for Label {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.as_str())
    }
}

/// A tool with its label and state.
#[derive(Debug)]
pub(crate) struct ToolEntry {
    pub(crate) label: Label,
    pub(crate) status: ToolStatus,
}

/// The known tools. Those beyond the limit share one entry.
#[derive(Debug)]
pub(crate) struct ToolEntries {
    most: usize,
    known: RwLock<HashMap<ToolRef, Arc<ToolEntry>>>,
    other: Arc<ToolEntry>,
}

impl ToolEntries {
    pub(crate) fn at_most(most: usize) -> Self {
        let other = Arc::new(ToolEntry { label: OTHER, status: ToolStatus::default() });
        Self { most, known: RwLock::default(), other }
    }

    pub(crate) fn get(&self, tool: &ToolRef) -> Arc<ToolEntry> {
        if let Some(known) = self.known.read().get(tool) {
            return known.clone();
        }
        let mut known = self.known.write();
        if known.len() >= self.most && !known.contains_key(tool) {
            return self.other.clone();
        }
        let new =
            || Arc::new(ToolEntry { label: Label::name(&tool.to_string()), status: ToolStatus::default() });
        known.entry(tool.clone()).or_insert_with(new).clone()
    }
}

/// Names other than tools: rules, which operators may have written, and kinds of stores.
#[derive(Debug, Default)]
pub(crate) struct LabelNames(RwLock<HashMap<Box<str>, Label>>);

impl LabelNames {
    pub(crate) fn get(&self, name: &str) -> Label {
        if let Some(known) = self.0.read().get(name) {
            return known.clone();
        }
        let mut known = self.0.write();
        if known.len() >= MOST_NAMES {
            return OTHER;
        }
        known.entry(name.into()).or_insert_with(|| Label::name(name)).clone()
    }
}

/// The longest value of a label.
const MOST_BYTES: usize = 128;
/// The most names other than tools. There are some thirty built-in rules.
const MOST_NAMES: usize = 128;

#[cfg(test)]
mod tests {
    use steadfast_core::id::{Namespace, ToolName};

    use super::*;

    fn tool(name: &str) -> ToolRef {
        ToolRef { namespace: Namespace::new("bank").unwrap(), tool: ToolName::new(name).unwrap() }
    }

    #[test]
    fn tr_13_tools_beyond_the_limit_are_counted_as_other() {
        let tools = ToolEntries::at_most(2);
        assert_eq!(tools.get(&tool("pay")).label.as_str(), "bank/pay");
        assert_eq!(tools.get(&tool("list")).label.as_str(), "bank/list");
        assert_eq!(tools.get(&tool("third")).label, OTHER);
        assert_eq!(tools.get(&tool("pay")).label.as_str(), "bank/pay");
    }

    #[test]
    fn tr_13_rules_beyond_the_limit_are_counted_as_other() {
        let names = LabelNames::default();
        for number in 0..MOST_NAMES {
            assert_ne!(names.get(&format!("rule-{number}")), OTHER);
        }
        assert_eq!(names.get("one-more"), OTHER);
        assert_eq!(names.0.read().len(), MOST_NAMES);
    }

    #[test]
    fn sf_6_a_name_that_is_a_secret_is_not_a_label() {
        let label = Label::name("bank/ghp_16C7e42F292c6912E7710c838347Ae178B4a");
        assert!(!label.as_str().contains("16C7e42F"), "{label:?}");
        assert!(Label::name(&"long ".repeat(100)).as_str().len() <= MOST_BYTES);
    }
}
