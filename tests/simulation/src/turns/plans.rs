//! The plans of clients, drawn from the seed.

use std::iter;
use std::sync::Arc;

use steadfast_turn::{TurnLimits, TurnPlan};

use crate::Defect;
use crate::rng::Rng;
use crate::system::SimulatedWorld;
use crate::transition::SimulationEvent;
use crate::turns::{SimulatedTurnEvent, TurnGoal};

/// Number of tools that plans name.
const TOOLS: u64 = 4;
/// Number of other plans with which a turn may be resubmitted.
const OTHERS: usize = 2;

/// A call of a plan, with alternatives that later plans may change.
struct PlanEntryText {
    text: String,
    alternatives: Vec<String>,
}

impl SimulatedWorld {
    /// Draws the turns of the world.
    pub(crate) fn plan_turns(&mut self) {
        for client in 0..self.weather.clients {
            for _ in 0..self.weather.turns {
                let turn = self.model.turns.len();
                let parallelism = self.rng.between(1, 3);
                let texts = self.plans(turn, parallelism);
                let parse = |text: &String| {
                    let plan = TurnPlan::parse(text.as_bytes(), &TurnLimits::DEFAULT);
                    Arc::new(plan.expect("the plans of the simulation are valid"))
                };
                let plans = texts.iter().map(parse).collect();
                self.log_event(format!("client {client} will want turn {turn}: {}", texts.join(" or ")));
                let parallelism = usize::try_from(parallelism).unwrap_or(1);
                self.model.turns.push(TurnGoal { client, plans, parallelism, tries: 0, over: false });
                let at = self.rng.between(0, self.weather.storm);
                self.later(at, SimulationEvent::Turn(SimulatedTurnEvent::Submit { turn }));
                if self.rng.chance(self.weather.double) {
                    let twice = at + self.rng.between(1, 5_000);
                    self.later(twice, SimulationEvent::Turn(SimulatedTurnEvent::Submit { turn }));
                }
            }
        }
    }

    /// Draws the plan of a turn, and others that differ from it in their alternatives.
    fn plans(&mut self, turn: usize, parallelism: u64) -> Vec<String> {
        let calls: Vec<PlanEntryText> =
            (0..self.rng.between(1, 6)).map(|place| self.planned(turn, place)).collect();
        let deadline = match self.rng.between(0, 2) {
            0 => self.rng.between(1_000, 10_000),
            1 => self.rng.between(10_000, 60_000),
            _ => self.rng.between(60_000, 200_000),
        };
        let parallelism = match self.defect {
            Some(Defect::ParallelismIgnored) => String::new(),
            Some(_) | None => format!(r#""parallelism":{parallelism},"#),
        };
        let text = |calls: Vec<String>| {
            format!(
                r#"{{"turnId":"turn-{turn}","deadlineMs":{deadline},{parallelism}"calls":[{}]}}"#,
                calls.join(",")
            )
        };
        let mut plans = vec![text(calls.iter().map(|call| call.with(&call.alternatives)).collect())];
        if self.weather.replans > 0 {
            let mut rng = Rng::separate(self.seed ^ 0x706c_616e ^ turn as u64);
            let mut other = || text(calls.iter().map(|call| call.with(&call.others(&mut rng))).collect());
            plans.extend(iter::repeat_with(&mut other).take(OTHERS));
        }
        plans
    }

    /// Draws a call that may depend on those before it.
    fn planned(&mut self, turn: usize, place: u64) -> PlanEntryText {
        let mut needs = Vec::new();
        let mut uses = Vec::new();
        for before in 0..place {
            if !self.rng.chance(35) {
                continue;
            }
            let default = if self.rng.chance(50) { r#","default":"none""# } else { "" };
            needs.push(format!(r#"{{"id":"c{before}"{default}}}"#));
            if self.rng.chance(70) {
                uses.push(format!(r#"{{"$from":"c{before}"}}"#));
            }
        }
        let number = self.rng.between(0, TOOLS - 1);
        let named = |number: u64| format!("bank/{}", super::tool(number % TOOLS).tool);
        let mut alternatives = Vec::new();
        for other in 1..=self.rng.between(0, 3) {
            alternatives.push(if self.rng.chance(30) {
                // The same job with other parameters, sometimes of the same tool.
                let tool = named(number + other - 1);
                format!(r#"{{"tool":"{tool}","params":{{"turn":{turn},"place":{place},"as":{other}}}}}"#)
            } else {
                format!(r#""{}""#, named(number + other))
            });
        }
        let timeout = if self.rng.chance(30) {
            format!(r#","timeoutMs":{}"#, self.rng.between(1_000, 20_000))
        } else {
            String::new()
        };
        let text = format!(
            r#""id":"c{place}","tool":"{}","required":{},"params":{{"turn":{turn},"place":{place},"in":[{}]}},"dependsOn":[{}]{timeout}"#,
            named(number),
            self.rng.chance(70),
            uses.join(","),
            needs.join(","),
        );
        PlanEntryText { text, alternatives }
    }
}

impl PlanEntryText {
    fn with(&self, alternatives: &[String]) -> String {
        format!(r#"{{{},"alternatives":[{}]}}"#, self.text, alternatives.join(","))
    }

    /// Returns some of its alternatives, perhaps in another order.
    fn others(&self, rng: &mut Rng) -> Vec<String> {
        let mut others = self.alternatives.clone();
        match rng.between(0, 3) {
            0 => others.reverse(),
            1 => drop(others.pop()),
            2 => drop(others.drain(..others.len().min(1))),
            _ => {}
        }
        others
    }
}
