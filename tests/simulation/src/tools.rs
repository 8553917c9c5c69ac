//! What tools do: their work, their answers, and neither.

use steadfast_core::breaker;
use steadfast_core::call::{Cut, Event, Outcome};
use steadfast_core::classify::{Fault, Source, Transport};
use steadfast_core::guard::{self, GuardedCall};
use steadfast_core::output::{Output, RawJson};

use crate::Defect;
use crate::invariants::{self, Broken};
use crate::model::{Effect, Intent, Kind, Wish};
use crate::system::{Attempt, Probe, World, is_shared};
use crate::turns;

use crate::transition::{Happening, digest, success, tool};

impl World {
    pub(crate) fn start_tool(&mut self, node: usize, number: u64) -> Result<(), Broken> {
        let (now, life) = (self.now, self.nodes[node].identity.started);
        let policy = self.policy();
        self.attempts += 1;
        let attempt_number = self.attempts;
        let home = &mut self.nodes[node];
        let epoch = home.epoch;
        let Some(running) = home.calls.get_mut(&number) else { return Ok(()) };
        // What it asked for may have become needless: somebody else closed the breaker.
        let shared = is_shared(&running.call.request().tool);
        let half_open = shared && home.breaker.state(&policy.breaker, now) == breaker::State::HalfOpen;
        let asked = running.asked_to_probe.take().filter(|_| half_open);
        let probe = asked.map(|(since, heard)| Probe { epoch: home.breaker.epoch(), since, alone: !heard });
        running.attempt = Some(Attempt { number: attempt_number, epoch, probe, started: now, over: false });
        let first = !std::mem::replace(&mut running.sent, true);
        let (wish, record) = (running.wish, running.call.claimed().cloned());
        let submission = running.in_turn.as_ref().map(|in_turn| in_turn.submission);
        let claimed = record.as_ref().map_or(now, |record| record.updated);
        if let Some(probe) = probe {
            self.one_probe(node, probe)?;
        }
        if let Some(submission) = submission {
            self.turn_may_start(submission, self.model.wishes[wish].kind, claimed, first)?;
        }
        if let Some(record) = &record {
            self.sent.insert(record.owner.clone());
            if first {
                self.later(40_000, Happening::Renew { node, life, number, owner: record.owner.clone() });
            }
        }
        let (record, owner) = record.map(|record| (record.key, record.owner)).unzip();
        let works = self.rng.between(1, 3_000);
        let lost = |world: &mut Self| {
            Fault::new(
                Source::Transport {
                    error: *world.rng.pick(&[
                        Transport::ConnectionReset,
                        Transport::ConnectionClosed,
                        Transport::TimedOut,
                    ]),
                    written: true,
                },
                "connection lost",
            )
        };
        let Wish { client, kind, arguments, .. } = self.model.wishes[wish].clone();
        let intent = match kind {
            Kind::Explicit(key) => Some(Intent::Explicit(key)),
            Kind::CallId => Some(Intent::CallId(wish)),
            Kind::Keyless => None,
            Kind::Turn(call) => Some(Intent::Turn(call)),
        };
        let effect = Effect {
            at: now,
            intent,
            equal: (client, arguments),
            record,
            owner,
            claimed,
            number: attempt_number,
            submitted: submission.map(|submission| self.submissions[submission].arrived),
        };
        let effect = Happening::Effect(effect, wish);
        let answer = |outcome| Happening::ToolAnswers {
            node,
            life,
            number,
            attempt: attempt_number,
            outcome: Box::new(outcome),
        };
        if self.fault(self.weather.tool_hangs) {
            // It may still do its work, some time, and it may still answer.
            if self.rng.chance(60) {
                let some_time = self.rng.between(1_000, 400_000);
                self.later(some_time, effect);
                if self.rng.chance(50) {
                    self.later(some_time + 1, answer(success(attempt_number)));
                }
            }
        } else if self.fault(self.weather.tool_lost) {
            if self.rng.chance(50) {
                self.later(works, effect);
            }
            let fault = lost(self);
            self.later(works + 1, answer(Outcome::Failure { fault, output: None }));
        } else if self.fault(self.weather.tool_fails) {
            let fault = match self.rng.between(0, 4) {
                0 => Fault::new(
                    Source::Transport { error: Transport::ConnectionRefused, written: false },
                    "connection refused",
                ),
                1 => Fault::new(Source::Http { status: 429 }, "too many requests"),
                2 => Fault::new(Source::JsonRpc { code: -32602 }, "Missing required parameter: path"),
                3 => Fault::new(Source::IsError, "no such account"),
                _ => Fault::new(Source::Http { status: 400 }, "bad request"),
            };
            self.later(works, answer(Outcome::Failure { fault, output: None }));
        } else if self.asks_first() {
            // It wants to know something first, and does nothing.
            let output = Output { content: RawJson::string("which one?"), metadata: None };
            self.later(works, answer(Outcome::InputRequired { output }));
        } else {
            self.later(works, effect);
            let back = self.rng.between(1, 200);
            self.later(works + back, answer(success(attempt_number)));
        }
        Ok(())
    }

    /// Whether the tool wants to know something before it does anything. Nothing is drawn in worlds where none does.
    fn asks_first(&mut self) -> bool {
        self.weather.tool_asks > 0 && self.stormy() && self.side.chance(self.weather.tool_asks)
    }

    pub(crate) fn effect(&mut self, effect: Effect, wish: usize) -> Result<(), Broken> {
        // A tool that was told to stop in time does nothing; one that was not, does its work.
        if self.cut.contains(&effect.number) && self.rng.chance(50) {
            return Ok(());
        }
        let effect = Effect { at: self.now, ..effect };
        self.tell(format!(
            "EFFECT {} for wish {wish} ({:?}, arguments {})",
            effect.number, self.model.wishes[wish].kind, effect.equal.1
        ));
        self.summary.effects += 1;
        if !self.retry_safe() {
            invariants::effect(&self.model, &effect)?;
        } else if let Some(Intent::Turn(made)) = effect.intent
            && !self.weather.policy.class.is_safe_to_repeat()
        {
            // That a tool may be called again does not mean that another one may do the same.
            turns::done_once(&self.model, made, &effect)?;
        }
        self.model.effects.push(effect);
        Ok(())
    }

    pub(crate) fn retry_safe(&self) -> bool {
        let policy = &self.weather.policy;
        let vouched = policy.repeat.retry_safe || policy.repeat.honours_key;
        policy.class.is_safe_to_repeat()
            || vouched
            || (policy.class == steadfast_core::policy::ToolClass::Unknown
                && policy.repeat.ambiguous == steadfast_core::policy::Ambiguous::Retry)
    }

    pub(crate) fn tool_answers(
        &mut self,
        node: usize,
        number: u64,
        attempt: u64,
        outcome: Outcome,
    ) -> Result<(), Broken> {
        let policy = self.policy();
        let now = self.now;
        let current = self.nodes[node].calls.get(&number).and_then(|running| running.attempt);
        let Some(current) = current.filter(|current| current.number == attempt) else { return Ok(()) };
        let (arguments, client) = {
            let wish = &self.model.wishes[self.nodes[node].calls[&number].wish];
            (wish.arguments, wish.client)
        };
        if self.defect == Some(Defect::GuardCountsRetries)
            && let Outcome::Failure { fault, .. } = &outcome
        {
            let tool = tool();
            let call = GuardedCall { tool: &tool, arguments: digest(arguments), turn: None };
            if let Some(guard) = self.nodes[node].guards.get_mut(&client) {
                let _remarks = guard.end(
                    &policy.guard,
                    call,
                    guard::Ending::Failure { message: &fault.message, mistake: None },
                    now,
                );
            }
        }
        if self.defect == Some(Defect::LateBreakerResultCounted) && current.epoch != self.nodes[node].epoch {
            let home = &mut self.nodes[node];
            if let Ok((ticket, _)) = home.breaker.admit(&policy.breaker, now) {
                let verdict = match &outcome {
                    Outcome::Success { .. } | Outcome::InputRequired { .. } => {
                        breaker::Verdict::Success { took: now.since(current.started) }
                    }
                    Outcome::Failure { .. } | Outcome::NotRun { .. } | Outcome::Remembered(_) => {
                        breaker::Verdict::Failure { took: now.since(current.started) }
                    }
                };
                if let Some(transition) = home.breaker.record(&policy.breaker, ticket, verdict, now) {
                    return Err((
                        "own epoch",
                        format!(
                            "attempt {attempt} of epoch {} changed the breaker: {transition:?}",
                            current.epoch
                        ),
                    ));
                }
            }
        }
        if matches!(outcome, Outcome::Success { .. }) {
            let owner = self.nodes[node]
                .calls
                .get(&number)
                .and_then(|running| running.call.claimed())
                .map(|record| record.owner.clone());
            self.model.answered.extend(owner);
        }
        if let Some(running) = self.nodes[node].calls.get_mut(&number) {
            let key = running.call.claimed().map(|record| record.key);
            running.attempt = None;
            // A question is no answer: the run goes on when the call comes again.
            if let Some(key) = key.filter(|_| !matches!(outcome, Outcome::InputRequired { .. })) {
                self.model.ended.entry(key).or_insert(now);
            }
        }
        self.drive_ended(node, number, current, Event::Ran(outcome))
    }

    pub(crate) fn cut(&mut self, node: usize, number: u64, cut: Cut) -> Result<(), Broken> {
        let attempt = self.nodes[node].calls.get_mut(&number).and_then(|running| running.attempt.take());
        let Some(attempt) = attempt else { return Ok(()) };
        self.cut.insert(attempt.number);
        let fault =
            Fault::new(Source::Timeout { after: self.now.since(attempt.started) }, format!("cut: {cut:?}"));
        self.drive_ended(node, number, attempt, Event::Ran(Outcome::Failure { fault, output: None }))
    }

    /// Feeds the end of an attempt, with the attempt lent back so that its epoch can be held against the breaker's.
    pub(crate) fn drive_ended(
        &mut self,
        node: usize,
        number: u64,
        attempt: Attempt,
        event: Event,
    ) -> Result<(), Broken> {
        if let Some(running) = self.nodes[node].calls.get_mut(&number) {
            running.attempt = Some(attempt);
        }
        let step = self.feed(node, number, event)?;
        if let Some(running) = self.nodes[node].calls.get_mut(&number) {
            running.attempt = None;
        }
        match step {
            Some(step) => self.act(node, number, step),
            None => Ok(()),
        }
    }
}
