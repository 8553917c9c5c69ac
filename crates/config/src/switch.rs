//! Switches: limits that take effect at once and override all files.
//!
//! A switch can only lower: it never makes a mechanism do more than the configuration allows. So it is safe to
//! use during an incident.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use steadfast_core::policy::{EnforcementMode, MechanismModes};

use crate::diagnostics::ConfigProblem;
use crate::kind::truth_of;
use crate::location::SourceLocation;
use crate::node::shortened;

/// The highest mode that each mechanism may have, whatever is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "the fields are the mechanisms by name")]
pub struct Switches {
    /// Highest mode of all mechanisms together.
    pub all: EnforcementMode,
    pub dedupe: EnforcementMode,
    pub retry: EnforcementMode,
    pub breaker: EnforcementMode,
    pub guard: EnforcementMode,
    pub trust: EnforcementMode,
    /// True if keys are computed for calls that bring none.
    pub derive: bool,
}

impl Default for Switches {
    fn default() -> Self {
        let MechanismModes { dedupe, retry, breaker, guard, trust } =
            MechanismModes::all(EnforcementMode::Enforce);
        Self { all: EnforcementMode::Enforce, dedupe, retry, breaker, guard, trust, derive: true }
    }
}

impl Switches {
    /// Returns these modes, lowered by the switches.
    pub fn lower(&self, modes: MechanismModes) -> MechanismModes {
        let lower =
            |configured: EnforcementMode, switch: EnforcementMode| configured.min(switch).min(self.all);
        MechanismModes {
            dedupe: lower(modes.dedupe, self.dedupe),
            retry: lower(modes.retry, self.retry),
            breaker: lower(modes.breaker, self.breaker),
            guard: lower(modes.guard, self.guard),
            trust: lower(modes.trust, self.trust),
        }
    }
}

/// An environment variable that is a switch, and its effect.
pub(crate) struct SwitchVariable {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    turn_off: fn(&mut Switches),
}

pub(crate) const VARIABLES: [SwitchVariable; 5] = [
    SwitchVariable {
        name: "TOOL_RELIABILITY_ENABLED",
        about: "off: calls are passed on unchanged by all mechanisms",
        turn_off: |switches| switches.all = EnforcementMode::Off,
    },
    SwitchVariable {
        name: "TOOL_RELIABILITY_OPEN_MODE",
        about: "off: the breaker does nothing; with `shadow` it only reports its decisions",
        turn_off: |switches| switches.breaker = EnforcementMode::Off,
    },
    SwitchVariable {
        name: "TOOL_RELIABLE_DERIVE_IDEMPOTENCY",
        about: "off: no key is computed for calls that bring none",
        turn_off: |switches| switches.derive = false,
    },
    SwitchVariable {
        name: "TOOL_RELIABILITY_DERIVE_IDEMPOTENCY",
        about: "another spelling of the one above; either turns it off",
        turn_off: |switches| switches.derive = false,
    },
    SwitchVariable {
        name: "JAATO_RELIABILITY_ENABLED",
        about: "off: trust does nothing; everything else stays",
        turn_off: |switches| switches.trust = EnforcementMode::Off,
    },
];

/// Returns the switches from the environment.
pub(crate) fn from_environment(
    environment: &BTreeMap<String, String>,
    problems: &mut Vec<ConfigProblem>,
) -> Switches {
    let mut switches = Switches::default();
    for variable in &VARIABLES {
        let Some(text) = environment.get(variable.name).filter(|text| !text.trim().is_empty()) else {
            continue;
        };
        let word = text.trim().to_ascii_lowercase();
        let is_mode = variable.name == "TOOL_RELIABILITY_OPEN_MODE";
        match (truth_of(text), word.as_str()) {
            (Some(true), _) => {}
            (Some(false), _) => (variable.turn_off)(&mut switches),
            (None, "shadow") if is_mode => switches.breaker = EnforcementMode::Shadow,
            (None, "enforce") if is_mode => {}
            (None, _) => {
                let message = format!("{} takes on or off, not {:?}", variable.name, shortened(text));
                let help = "false, 0, off and no are equal, and so are true, 1, on and yes";
                problems.push(
                    ConfigProblem::new(&SourceLocation::Variable(Arc::from(variable.name)), message)
                        .help(help),
                );
            }
        }
    }
    switches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> (Switches, usize) {
        let mut problems = Vec::new();
        let environment = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        (from_environment(&environment, &mut problems), problems.len())
    }

    #[test]
    fn rp_17_false_0_off_and_no_are_equal() {
        let off = Switches { trust: EnforcementMode::Off, ..Switches::default() };
        for word in ["false", "0", "off", "no", "OFF", " False "] {
            assert_eq!(read("JAATO_RELIABILITY_ENABLED", word), (off, 0), "{word}");
        }
        for word in ["true", "1", "on", "yes", ""] {
            assert_eq!(read("JAATO_RELIABILITY_ENABLED", word), (Switches::default(), 0), "{word}");
        }
        assert_eq!(read("JAATO_RELIABILITY_ENABLED", "maybe"), (Switches::default(), 1));
    }

    #[test]
    fn every_switch_turns_off_its_own() {
        let on = Switches::default();
        for (name, off) in [
            ("TOOL_RELIABILITY_ENABLED", Switches { all: EnforcementMode::Off, ..on }),
            ("TOOL_RELIABILITY_OPEN_MODE", Switches { breaker: EnforcementMode::Off, ..on }),
            ("TOOL_RELIABLE_DERIVE_IDEMPOTENCY", Switches { derive: false, ..on }),
            ("TOOL_RELIABILITY_DERIVE_IDEMPOTENCY", Switches { derive: false, ..on }),
        ] {
            assert_eq!(read(name, "off"), (off, 0), "{name}");
        }
        assert_eq!(read("TOOL_RELIABILITY_OPEN_MODE", "shadow").0.breaker, EnforcementMode::Shadow);
        assert_eq!(read("TOOL_RELIABILITY_OPEN_MODE", "enforce"), (on, 0));
        assert_eq!(read("TOOL_RELIABILITY_ENABLED", "shadow").1, 1);
    }

    #[test]
    fn a_switch_never_raises() {
        let configured = MechanismModes {
            breaker: EnforcementMode::Shadow,
            trust: EnforcementMode::Off,
            ..MechanismModes::all(EnforcementMode::Enforce)
        };
        assert_eq!(Switches::default().lower(configured), configured);
        let shadow =
            Switches { all: EnforcementMode::Shadow, retry: EnforcementMode::Off, ..Switches::default() };
        let left = MechanismModes {
            retry: EnforcementMode::Off,
            trust: EnforcementMode::Off,
            ..MechanismModes::all(EnforcementMode::Shadow)
        };
        assert_eq!(shadow.lower(configured), left);
        assert!(Switches { all: EnforcementMode::Off, ..Switches::default() }.lower(configured).are_off());
    }
}
