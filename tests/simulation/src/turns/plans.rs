//! What clients want: plans that the seed draws.

use std::sync::Arc;

use steadfast_core::turn::{Limits, Plan};

use crate::Defect;
use crate::system::World;
use crate::transition::Happening;
use crate::turns::{TurnHappening, TurnWish};

/// Tools that plans name.
const TOOLS: u64 = 4;

impl World {
    /// The turns of the day.
    pub(crate) fn plan_turns(&mut self) {
        for client in 0..self.weather.clients {
            for _ in 0..self.weather.turns {
                let turn = self.model.turns.len();
                let parallelism = self.rng.between(1, 3);
                let text = self.plan(turn, parallelism);
                let plan = Plan::parse(text.as_bytes(), &Limits::DEFAULT)
                    .expect("the plans of the simulation are valid");
                self.tell(format!("client {client} will want turn {turn}: {text}"));
                let parallelism = usize::try_from(parallelism).unwrap_or(1);
                let plan = Arc::new(plan);
                self.model.turns.push(TurnWish { client, plan, parallelism, tries: 0, over: false });
                let at = self.rng.between(0, self.weather.storm);
                self.later(at, Happening::Turn(TurnHappening::Submit { turn }));
                if self.rng.chance(self.weather.double) {
                    let twice = at + self.rng.between(1, 5_000);
                    self.later(twice, Happening::Turn(TurnHappening::Submit { turn }));
                }
            }
        }
    }

    fn plan(&mut self, turn: usize, parallelism: u64) -> String {
        let calls: Vec<String> = (0..self.rng.between(1, 6)).map(|place| self.planned(turn, place)).collect();
        let deadline = match self.rng.between(0, 2) {
            0 => self.rng.between(1_000, 10_000),
            1 => self.rng.between(10_000, 60_000),
            _ => self.rng.between(60_000, 200_000),
        };
        let parallelism = match self.defect {
            Some(Defect::ParallelismIgnored) => String::new(),
            Some(_) | None => format!(r#""parallelism":{parallelism},"#),
        };
        format!(
            r#"{{"turnId":"turn-{turn}","deadlineMs":{deadline},{parallelism}"calls":[{}]}}"#,
            calls.join(",")
        )
    }

    /// A call that may depend on those before it.
    fn planned(&mut self, turn: usize, place: u64) -> String {
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
                // The same job, asked for in other words; sometimes of the same tool.
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
        format!(
            r#"{{"id":"c{place}","tool":"{}","required":{},"params":{{"turn":{turn},"place":{place},"in":[{}]}},"dependsOn":[{}],"alternatives":[{}]{timeout}}}"#,
            named(number),
            self.rng.chance(70),
            uses.join(","),
            needs.join(","),
            alternatives.join(",")
        )
    }
}
