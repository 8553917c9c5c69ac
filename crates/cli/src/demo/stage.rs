//! What was observed, and whether it is what the story says.
//!
//! A scene shows each thing as it is seen, and compares it with what should be so. What differs is said at once, stands in the
//! table and in the JSON, and makes the whole a failure.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::show::{Look, Show};

/// A scene while it is played.
pub(super) struct Stage {
    show: Show,
    scene: Scene,
    /// The side that is told of.
    side: Option<Side>,
}

/// What was seen in a scene.
#[derive(Debug)]
pub(super) struct Scene {
    number: usize,
    title: &'static str,
    without: Seen,
    with: Seen,
    surprises: Vec<Surprise>,
}

/// What was seen on one side.
#[derive(Debug, Default)]
struct Seen {
    /// In a few words, for the table.
    short: String,
    facts: Map<String, Value>,
}

/// With the gateway or without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Without,
    With,
}

/// Something that is not as it should be.
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
    /// Begins a scene. `agent` says what the agent does in it.
    pub(super) fn new(show: Show, number: usize, title: &'static str, agent: &str) -> Self {
        show.line(Look::Plain, "");
        show.line(Look::Bold, &format!("{number}  {title}"));
        show.labelled((Look::Dim, "agent"), Look::Dim, agent);
        let scene =
            Scene { number, title, without: Seen::default(), with: Seen::default(), surprises: Vec::new() };
        Self { show, scene, side: None }
    }

    /// Says what was seen on a side.
    pub(super) fn say(&mut self, side: Side, text: &str) {
        let label = if self.side == Some(side) { (Look::Plain, "") } else { side.label() };
        self.side = Some(side);
        self.show.labelled(label, Look::Plain, text);
    }

    /// Says what the agent was told.
    pub(super) fn quote(&self, text: &str) {
        self.show.labelled((Look::Plain, ""), Look::Dim, &format!("\"{text}\""));
    }

    /// Keeps a fact under this name.
    pub(super) fn fact(&mut self, side: Side, name: &str, value: impl Into<Value>) {
        self.scene.seen(side).facts.insert(name.to_owned(), value.into());
    }

    /// Keeps a fact, and compares it with what should be so.
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

    /// The scene is over: what each side came to, in a few words.
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

    /// What a side came to, in a few words.
    pub(super) fn short(&self, side: Side) -> &str {
        match side {
            Side::Without => &self.without.short,
            Side::With => &self.with.short,
        }
    }

    /// Whether everything was as the story says.
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
    fn what_is_not_as_it_should_be_is_kept_and_makes_the_scene_a_failure() {
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
