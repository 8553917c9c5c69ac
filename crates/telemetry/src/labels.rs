//! The values of labels: short, redacted, and of a bounded number.
//!
//! Every value of a label makes a series of its own, in our memory and in everybody's database. Words of ours are
//! few. Names come from outside, so they are cut, redacted, and beyond a limit they are all called [`OTHER`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use opentelemetry::Value;
use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use steadfast_core::id::ToolRef;
use steadfast_core::redact;

use crate::standing::Standing;

/// What everything beyond the limit is called. No tool can have the name: theirs have a slash.
pub(crate) const OTHER: Label = Label::Word("other");

/// The value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    /// One of our own.
    Word(&'static str),
    /// A name that came from outside.
    Name(Arc<str>),
}

impl Label {
    /// A name from outside, fit to be seen.
    fn name(text: &str) -> Self {
        Self::Name(redact::excerpt(text, MOST_BYTES).into())
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

/// A tool, as it is counted.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) label: Label,
    pub(crate) standing: Standing,
}

/// The tools that were seen. Those beyond the limit share one entry.
#[derive(Debug)]
pub(crate) struct Tools {
    most: usize,
    known: RwLock<HashMap<ToolRef, Arc<Tool>>>,
    other: Arc<Tool>,
}

impl Tools {
    pub(crate) fn at_most(most: usize) -> Self {
        let other = Arc::new(Tool { label: OTHER, standing: Standing::default() });
        Self { most, known: RwLock::default(), other }
    }

    pub(crate) fn get(&self, tool: &ToolRef) -> Arc<Tool> {
        if let Some(known) = self.known.read().get(tool) {
            return known.clone();
        }
        let mut known = self.known.write();
        if known.len() >= self.most && !known.contains_key(tool) {
            return self.other.clone();
        }
        let new = || Arc::new(Tool { label: Label::name(&tool.to_string()), standing: Standing::default() });
        known.entry(tool.clone()).or_insert_with(new).clone()
    }
}

/// Names that are not tools: rules, which operators may have written, and kinds of stores.
#[derive(Debug, Default)]
pub(crate) struct Names(RwLock<HashMap<Box<str>, Label>>);

impl Names {
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
/// The most names that are not tools. There are some thirty rules of our own.
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
        let tools = Tools::at_most(2);
        assert_eq!(tools.get(&tool("pay")).label.as_str(), "bank/pay");
        assert_eq!(tools.get(&tool("list")).label.as_str(), "bank/list");
        assert_eq!(tools.get(&tool("third")).label, OTHER);
        assert_eq!(tools.get(&tool("pay")).label.as_str(), "bank/pay");
    }

    #[test]
    fn tr_13_rules_beyond_the_limit_are_counted_as_other() {
        let names = Names::default();
        for number in 0..MOST_NAMES {
            assert_ne!(names.get(&format!("rule-{number}")), OTHER);
        }
        assert_eq!(names.get("one-more"), OTHER);
        assert_eq!(names.0.read().len(), MOST_NAMES);
    }

    #[test]
    fn sf_6_a_name_that_is_a_secret_is_no_label() {
        let label = Label::name("bank/ghp_16C7e42F292c6912E7710c838347Ae178B4a");
        assert!(!label.as_str().contains("16C7e42F"), "{label:?}");
        assert!(Label::name(&"long ".repeat(100)).as_str().len() <= MOST_BYTES);
    }
}
