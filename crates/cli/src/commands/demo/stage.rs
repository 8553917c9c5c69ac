//! Observations of the demo, compared with the expected ones.
//!
//! A scene shows each observation and compares it with the expected value. A difference is reported at once, is
//! included in the table and in the JSON, and makes the demo fail.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::display::{DemoOutput, DemoStyle};

/// A scene while it runs.
pub(super) struct SceneRecorder {
    show: DemoOutput,
    scene: Scene,
    /// Side of the last output.
    side: Option<DemoSide>,
}

/// Observations of a scene.
#[derive(Debug)]
pub(super) struct Scene {
    number: usize,
    title: &'static str,
    without: SideObservations,
    with: SideObservations,
    surprises: Vec<UnexpectedObservation>,
}

/// Observations of one side.
#[derive(Debug, Default)]
struct SideObservations {
    /// Summary for the table.
    short: String,
    facts: Map<String, Value>,
}

/// With or without the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoSide {
    Without,
    With,
}

/// An observation that differs from the expected value.
#[derive(Debug)]
struct UnexpectedObservation {
    side: DemoSide,
    name: String,
    observed: String,
    expected: String,
}

impl DemoSide {
    pub(super) fn label(self) -> (DemoStyle, &'static str) {
        match self {
            Self::Without => (DemoStyle::Bad, "without"),
            Self::With => (DemoStyle::Good, "with"),
        }
    }

    fn name(self) -> &'static str {
        self.label().1
    }
}

impl SceneRecorder {
    /// Starts a scene. `agent` describes the agent's actions.
    pub(super) fn new(show: DemoOutput, number: usize, title: &'static str, agent: &str) -> Self {
        show.line(DemoStyle::Plain, "");
        show.line(DemoStyle::Bold, &format!("{number}  {title}"));
        show.labelled((DemoStyle::Dim, "agent"), DemoStyle::Dim, agent);
        let scene = Scene {
            number,
            title,
            without: SideObservations::default(),
            with: SideObservations::default(),
            surprises: Vec::new(),
        };
        Self { show, scene, side: None }
    }

    /// Prints an observation of a side.
    pub(super) fn print_line(&mut self, side: DemoSide, text: &str) {
        let label = if self.side == Some(side) { (DemoStyle::Plain, "") } else { side.label() };
        self.side = Some(side);
        self.show.labelled(label, DemoStyle::Plain, text);
    }

    /// Prints the response that the agent got.
    pub(super) fn quote(&self, text: &str) {
        self.show.labelled((DemoStyle::Plain, ""), DemoStyle::Dim, &format!("\"{text}\""));
    }

    /// Records a fact under this name.
    pub(super) fn fact(&mut self, side: DemoSide, name: &str, value: impl Into<Value>) {
        self.scene.observations(side).facts.insert(name.to_owned(), value.into());
    }

    /// Records a fact, and compares it with the expected value.
    pub(super) fn expect<T>(&mut self, side: DemoSide, name: &str, observed: T, expected: T)
    where
        T: Clone + Display + Into<Value> + PartialEq,
    {
        self.fact(side, name, observed.clone());
        if observed != expected {
            let surprise = UnexpectedObservation {
                side,
                name: name.to_owned(),
                observed: observed.to_string(),
                expected: expected.to_string(),
            };
            self.show.labelled(
                (DemoStyle::Surprising, "DIFFERS"),
                DemoStyle::Surprising,
                &surprise.describe(),
            );
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
    pub(super) fn short(&self, side: DemoSide) -> &str {
        match side {
            DemoSide::Without => &self.without.short,
            DemoSide::With => &self.with.short,
        }
    }

    /// Returns true if all observations were as expected.
    pub(super) fn is_as_expected(&self) -> bool {
        self.surprises.is_empty()
    }

    pub(super) fn to_json(&self) -> Value {
        let side = |side: &SideObservations| json!({ "summary": side.short, "facts": side.facts });
        let surprise = |surprise: &UnexpectedObservation| {
            json!({
                "side": surprise.side.name(),
                "what": surprise.name,
                "observed": surprise.observed,
                "expected": surprise.expected,
            })
        };
        json!({
            "number": self.number,
            "title": self.title,
            "asExpected": self.is_as_expected(),
            "without": side(&self.without),
            "with": side(&self.with),
            "surprises": self.surprises.iter().map(surprise).collect::<Vec<_>>(),
        })
    }

    fn observations(&mut self, side: DemoSide) -> &mut SideObservations {
        match side {
            DemoSide::Without => &mut self.without,
            DemoSide::With => &mut self.with,
        }
    }
}

impl UnexpectedObservation {
    fn describe(&self) -> String {
        format!("{} ({}): {}; expected: {}", self.name, self.side.name(), self.observed, self.expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_observations_are_recorded_and_fail_the_scene() {
        let mut stage = SceneRecorder::new(DemoOutput::Silent, 2, "a title", "agent");
        stage.expect(DemoSide::Without, "payments", 2, 2);
        stage.expect(DemoSide::With, "answered", true, true);
        let good = stage.over("paid 2x", "answered");
        assert!(good.is_as_expected());
        assert_eq!(good.to_json()["without"]["facts"]["payments"], 2);

        let mut stage = SceneRecorder::new(DemoOutput::Silent, 2, "a title", "agent");
        stage.expect(DemoSide::With, "payments", 2, 1);
        let bad = stage.over("", "");
        assert!(!bad.is_as_expected());
        let surprise = json!({ "side": "with", "what": "payments", "observed": "2", "expected": "1" });
        assert_eq!(bad.to_json()["surprises"], json!([surprise]));
        assert_eq!(bad.to_json()["asExpected"], false);
    }
}
