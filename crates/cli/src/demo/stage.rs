//! Observations of the demo, compared with the expected ones.
//!
//! A scene shows each observation and compares it with the expected value. A difference is reported at once, is
//! included in the table and in the JSON, and makes the demo fail.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::show::{Look, Show};

/// A scene while it runs.
pub(super) struct Stage {
    show: Show,
    scene: Scene,
    /// Side of the last output.
    side: Option<Side>,
}

/// Observations of a scene.
#[derive(Debug)]
pub(super) struct Scene {
    number: usize,
    title: &'static str,
    without: Seen,
    with: Seen,
    surprises: Vec<Surprise>,
}

/// Observations of one side.
#[derive(Debug, Default)]
struct Seen {
    /// Summary for the table.
    short: String,
    facts: Map<String, Value>,
}

/// With or without the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Without,
    With,
}

/// An observation that differs from the expected value.
#[derive(Debug)]
struct Surprise {
    side: Side,
    what: String,
    observed: String,
    wanted: String,
}

impl Side {
    pub(super) fn label(self) -> (Look, &'static str) {
        match self {
            Self::Without => (Look::Bad, "without"),
            Self::With => (Look::Good, "with"),
        }
    }

    fn name(self) -> &'static str {
        self.label().1
    }
}

impl Stage {
    /// Starts a scene. `agent` describes the agent's actions.
    pub(super) fn new(show: Show, number: usize, title: &'static str, agent: &str) -> Self {
        show.line(Look::Plain, "");
        show.line(Look::Bold, &format!("{number}  {title}"));
        show.labelled((Look::Dim, "agent"), Look::Dim, agent);
        let scene =
            Scene { number, title, without: Seen::default(), with: Seen::default(), surprises: Vec::new() };
        Self { show, scene, side: None }
    }

    /// Prints an observation of a side.
    pub(super) fn say(&mut self, side: Side, text: &str) {
        let label = if self.side == Some(side) { (Look::Plain, "") } else { side.label() };
        self.side = Some(side);
        self.show.labelled(label, Look::Plain, text);
    }

    /// Prints the response that the agent got.
    pub(super) fn quote(&self, text: &str) {
        self.show.labelled((Look::Plain, ""), Look::Dim, &format!("\"{text}\""));
    }

    /// Records a fact under this name.
    pub(super) fn fact(&mut self, side: Side, name: &str, value: impl Into<Value>) {
        self.scene.seen(side).facts.insert(name.to_owned(), value.into());
    }

    /// Records a fact, and compares it with the expected value.
    pub(super) fn expect<T>(&mut self, side: Side, name: &str, observed: T, wanted: T)
    where
        T: Clone + Display + Into<Value> + PartialEq,
    {
        self.fact(side, name, observed.clone());
        if observed != wanted {
            let surprise = Surprise {
                side,
                what: name.to_owned(),
                observed: observed.to_string(),
                wanted: wanted.to_string(),
            };
            self.show.labelled((Look::Surprising, "NOT SO"), Look::Surprising, &surprise.told());
            self.scene.surprises.push(surprise);
        }
    }

    /// Ends the scene with a summary of each side.
    pub(super) fn over(mut self, without: &str, with: &str) -> Scene {
        without.clone_into(&mut self.scene.without.short);
        with.clone_into(&mut self.scene.with.short);
        self.scene
    }
}

impl Scene {
    pub(super) fn title(&self) -> &'static str {
        self.title
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Returns the summary of a side.
    pub(super) fn short(&self, side: Side) -> &str {
        match side {
            Side::Without => &self.without.short,
            Side::With => &self.with.short,
        }
    }

    /// Returns true if all observations were as expected.
    pub(super) fn is_as_told(&self) -> bool {
        self.surprises.is_empty()
    }

    pub(super) fn to_json(&self) -> Value {
        let side = |side: &Seen| json!({ "summary": side.short, "facts": side.facts });
        let surprise = |surprise: &Surprise| {
            json!({
                "side": surprise.side.name(),
                "what": surprise.what,
                "observed": surprise.observed,
                "expected": surprise.wanted,
            })
        };
        json!({
            "number": self.number,
            "title": self.title,
            "asExpected": self.is_as_told(),
            "without": side(&self.without),
            "with": side(&self.with),
            "surprises": self.surprises.iter().map(surprise).collect::<Vec<_>>(),
        })
    }

    fn seen(&mut self, side: Side) -> &mut Seen {
        match side {
            Side::Without => &mut self.without,
            Side::With => &mut self.with,
        }
    }
}

impl Surprise {
    fn told(&self) -> String {
        format!("{} ({}): {}; expected: {}", self.what, self.side.name(), self.observed, self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_observations_are_recorded_and_fail_the_scene() {
        let mut stage = Stage::new(Show::Silent, 2, "a title", "agent");
        stage.expect(Side::Without, "payments", 2, 2);
        stage.expect(Side::With, "answered", true, true);
        let good = stage.over("paid 2x", "answered");
        assert!(good.is_as_told());
        assert_eq!(good.to_json()["without"]["facts"]["payments"], 2);

        let mut stage = Stage::new(Show::Silent, 2, "a title", "agent");
        stage.expect(Side::With, "payments", 2, 1);
        let bad = stage.over("", "");
        assert!(!bad.is_as_told());
        let told = json!({ "side": "with", "what": "payments", "observed": "2", "expected": "1" });
        assert_eq!(bad.to_json()["surprises"], json!([told]));
        assert_eq!(bad.to_json()["asExpected"], false);
    }
}
