//! The events of the simulation and their consequences.

use steadfast_core::Timestamp;
use steadfast_core::approval::ApprovalSubject;
use steadfast_core::breaker::{self, BreakerSnapshot};
use steadfast_core::call::{AttemptReport, CallEvent, CallRequest, CallResult, StoreFault, WakeReason};
use steadfast_core::dedupe::{
    Claim, ClaimOwner, DedupeRecord, DeliveryReceipt, LocalKnowledge, ReleaseRequest, SaveRequest,
};
use steadfast_core::id::{Digest, Namespace, ToolName, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::output::ToolOutput;
use steadfast_json::RawJson;

use crate::clients::Departure;
use crate::invariants::InvariantViolation;
use crate::model::{CallIdentity, ClientGoal};
use crate::scenario::ClientBehavior;
use crate::sharing::times_by_hand;
use crate::system::SimulatedWorld;
use crate::turns::SimulatedTurnEvent;

/// A scheduled event.
#[derive(Debug)]
pub(crate) enum SimulationEvent {
    /// A client sends a call for a goal, again if need be.
    Send {
        goal: usize,
    },
    /// A dispatch arrives at a process.
    Arrive {
        dispatch: usize,
    },
    /// A client stops waiting.
    Impatient {
        dispatch: usize,
    },
    /// A connection breaks.
    Break {
        connection: usize,
    },
    /// A process learns that a caller has left its call.
    Left {
        node: usize,
        generation: u64,
        number: u64,
        dispatch: usize,
        departure: Departure,
    },
    /// A command reaches the store.
    Command {
        node: usize,
        generation: u64,
        number: u64,
        command: u64,
        store_command: Box<StoreCommand>,
        then: ReplyHandling,
    },
    /// The store's reply reaches the process.
    Reply {
        node: usize,
        generation: u64,
        number: u64,
        command: u64,
        event: Box<CallEvent>,
    },
    /// A timer of a call fires.
    Timer {
        node: usize,
        generation: u64,
        number: u64,
    },
    /// A follower polls, in case a wake-up was lost.
    Poll {
        node: usize,
        generation: u64,
        number: u64,
        command: u64,
    },
    /// A followed record changed.
    Changed {
        node: usize,
        generation: u64,
        number: u64,
        key: RecordKey,
    },
    /// A holder renews its lease.
    Renew {
        node: usize,
        generation: u64,
        number: u64,
        owner: ClaimOwner,
    },
    /// A tool takes effect.
    Effect {
        attempt: u64,
    },
    /// The child process of an attempt is gone.
    ChildEnded {
        node: usize,
        generation: u64,
        number: u64,
        attempt: u64,
    },
    /// The time has passed by which a run was announced to be settled.
    SettleDeadline {
        owner: ClaimOwner,
        key: RecordKey,
        started: Timestamp,
        reported: Timestamp,
    },
    /// An operator resolves an unknown outcome, and tries again if it is too early.
    Resolve {
        key: RecordKey,
        tries: u32,
    },
    /// A client makes a verification read.
    Verify {
        client: usize,
    },
    ReadArrives {
        read: usize,
    },
    ReadEnds {
        node: usize,
        generation: u64,
        read: usize,
    },
    ReadAnswered {
        read: usize,
    },
    /// A tool answers.
    ToolAnswers {
        node: usize,
        generation: u64,
        number: u64,
        attempt: u64,
        outcome: Box<AttemptReport>,
    },
    /// An operator answers.
    ApproverAnswers {
        node: usize,
        generation: u64,
        number: u64,
    },
    /// An answer reaches its client.
    Delivered {
        dispatch: usize,
        result: Box<CallResult>,
        about: Option<(RecordKey, ClaimOwner)>,
    },
    /// A process checks whether a connection is still open.
    StillOpen {
        node: usize,
        generation: u64,
        connection: usize,
        receipt: DeliveryReceipt,
    },
    /// A process stores the state of its breaker.
    Share {
        node: usize,
        generation: u64,
    },
    /// A process learns that another one has stored the state of its breaker.
    Shared {
        node: usize,
        generation: u64,
    },
    /// A process repeats its deferred writes.
    Keep {
        node: usize,
        generation: u64,
    },
    Crash {
        node: usize,
    },
    /// A process shuts down in order.
    Stop {
        node: usize,
    },
    Restart {
        node: usize,
    },
    Freeze {
        node: usize,
    },
    Operator {
        node: usize,
    },
    Jump,
    /// The store loses everything.
    Emptied,
    /// An operator accepts that records are lost.
    LossAccepted,
    /// An operator blocks the tool at a process, for this many milliseconds.
    Block {
        node: usize,
        until: u64,
    },
    Unblock {
        node: usize,
        generation: u64,
    },
    /// An operator restores trust in the tool.
    TrustReset {
        node: usize,
    },
    /// A tool shows a sign of life.
    Progress {
        node: usize,
        generation: u64,
        number: u64,
        attempt: u64,
    },
    Turn(SimulatedTurnEvent),
}

/// A request to the store.
#[derive(Clone, Debug)]
pub(crate) enum StoreCommand {
    Claim(Claim, LocalKnowledge),
    Spend { grant: steadfast_core::approval::GrantId, owner: ClaimOwner },
    Start { key: RecordKey, owner: ClaimOwner },
    Renew(DedupeRecord, Timestamp),
    Share(u64, BreakerSnapshot),
    Save(SaveRequest),
    Release(ReleaseRequest),
    Delivered(DeliveryReceipt, Timestamp),
}

/// The handling of the reply to a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplyHandling {
    Answer,
    LoseTheAnswer,
    Ignore,
}

impl SimulatedWorld {
    /// Schedules goals, crashes and all other initial events.
    pub(crate) fn schedule_initial_events(&mut self) {
        let storm = self.weather.storm;
        let mut sends = Vec::new();
        for client in 0..self.weather.clients {
            for _ in 0..self.weather.goal_count {
                let kind = match self.rng.between(0, 3) {
                    0 => CallIdentity::Explicit(self.rng.between(0, 2)),
                    1 => CallIdentity::CallId,
                    _ => CallIdentity::Keyless,
                };
                let arguments = match kind {
                    // A key identifies its arguments. Sometimes a client misuses it.
                    CallIdentity::Explicit(key) if self.rng.chance(90) => key % self.weather.arguments,
                    CallIdentity::Explicit(_)
                    | CallIdentity::CallId
                    | CallIdentity::Keyless
                    | CallIdentity::Turn(_) => self.rng.between(0, self.weather.arguments - 1),
                };
                let (kind, arguments) = match self.weather.one_key {
                    true => (CallIdentity::Explicit(0), self.third.between(0, self.weather.arguments - 1)),
                    false => (kind, arguments),
                };
                self.model.goals.push(ClientGoal::new(client, kind, arguments));
                let goal = self.model.goals.len() - 1;
                let at = self.rng.between(0, storm);
                self.later(at, SimulationEvent::Send { goal });
                sends.push(at);
                // A second call that arrives after the answer to the first is meant as a second one.
                if self.rng.chance(self.weather.double) && !self.is_obedient(goal) {
                    let twice = self.rng.between(1, 30);
                    self.later(at + twice, SimulationEvent::Send { goal });
                }
            }
            if self.weather.agents[client] == ClientBehavior::Naive {
                for _ in 0..self.rng.between(0, 3) {
                    let at = self.rng.between(0, storm);
                    self.later(at, SimulationEvent::Verify { client });
                }
            }
        }
        self.plan_turns();
        for node in 0..self.nodes.len() {
            for (percent, make) in [
                (
                    self.weather.crash,
                    (|node| SimulationEvent::Crash { node }) as fn(usize) -> SimulationEvent,
                ),
                (self.weather.stops, |node| SimulationEvent::Stop { node }),
                (self.weather.freeze, |node| SimulationEvent::Freeze { node }),
                (self.weather.operator, |node| SimulationEvent::Operator { node }),
                (self.weather.jump, |_| SimulationEvent::Jump),
            ] {
                for _ in 0..3 {
                    if self.rng.chance(percent) {
                        let at = self.rng.between(0, storm);
                        self.later(at, make(node));
                    }
                }
            }
        }
        self.plan_blocks(&sends);
        // A tool that failed often enough is blocked until an operator restores trust. That happens after the faults.
        for node in 0..self.nodes.len() {
            for after in [300_000, 1_800_000, 3_600_000] {
                self.later(storm + after, SimulationEvent::TrustReset { node });
            }
        }
        if self.weather.operator > 0 {
            for node in 0..self.nodes.len() {
                self.later(storm + 300_000, SimulationEvent::Operator { node });
            }
        }
        for _ in 0..self.weather.emptyings {
            // Most often while calls are in flight, because an idle store has little to lose.
            let at = if self.side.chance(75) {
                *self.side.pick(&sends) + self.side.between(1, 5_000)
            } else {
                self.side.between(0, storm)
            };
            self.later(at.min(storm), SimulationEvent::Emptied);
            // The cause of the loss may also kill a process. It restarts without knowing the old marker.
            if self.side.chance(40) {
                let node = usize::try_from(self.side.next() % self.nodes.len() as u64).unwrap_or(0);
                let crash = at + self.side.between(0, 5_000);
                self.later(crash.min(storm), SimulationEvent::Crash { node });
            }
        }
    }

    pub(crate) fn happen(&mut self, happening: SimulationEvent) -> Result<(), InvariantViolation> {
        if let Some((node, generation)) = happening.at_process() {
            let home = &self.nodes[node];
            if !home.alive || home.identity.started != generation {
                return Ok(());
            }
            if home.frozen_until > self.now {
                let until = home.frozen_until;
                self.at(until, happening);
                return Ok(());
            }
        }
        match happening {
            SimulationEvent::Send { goal } => self.send(goal),
            SimulationEvent::Arrive { dispatch } => self.arrive(dispatch),
            SimulationEvent::Impatient { dispatch } => self.impatient(dispatch),
            SimulationEvent::Break { connection } => self.break_connection(connection),
            SimulationEvent::Left { node, number, dispatch, departure, .. } => {
                if matches!(departure, Departure::Cancels) {
                    self.crosses_its_answer(node, dispatch);
                }
                self.leave(node, number, departure)
            }
            SimulationEvent::Command { node, generation, number, command, store_command, then } => {
                let event = self.apply(node, *store_command);
                let answer = match then {
                    ReplyHandling::Answer => event,
                    ReplyHandling::LoseTheAnswer => Some(CallEvent::StoreFailed(StoreFault::Unanswered)),
                    ReplyHandling::Ignore => None,
                };
                if let Some(event) = answer {
                    let late = if matches!(event, CallEvent::StoreFailed(_)) {
                        self.draw_failure_delay()
                    } else {
                        0
                    };
                    let delay = self.rng.between(0, 3) + late;
                    self.later(
                        delay,
                        SimulationEvent::Reply { node, generation, number, command, event: Box::new(event) },
                    );
                }
                Ok(())
            }
            SimulationEvent::Reply { node, number, command, event, .. } => {
                let expected =
                    self.nodes[node].calls.get(&number).is_some_and(|running| running.command == command);
                self.record_probe_reply(node, number, &event);
                if expected { self.drive(node, number, *event) } else { Ok(()) }
            }
            SimulationEvent::Timer { node, number, .. } => {
                if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                    running.woken_at = None;
                }
                let due = self.nodes[node].calls.get(&number).and_then(|running| running.call.wake_at());
                if due.is_some_and(|due| due <= self.clock(node)) {
                    self.drive(node, number, CallEvent::Woke(WakeReason::Time))
                } else {
                    Ok(())
                }
            }
            SimulationEvent::Poll { node, number, command, .. } => {
                let follows = self.nodes[node]
                    .calls
                    .get(&number)
                    .is_some_and(|running| running.follows.is_some() && running.command == command);
                if follows { self.drive(node, number, CallEvent::Woke(WakeReason::Changed)) } else { Ok(()) }
            }
            SimulationEvent::Changed { node, number, key, .. } => {
                let follows = self.nodes[node]
                    .calls
                    .get(&number)
                    .is_some_and(|running| running.follows == Some(key) || running.awaits == Some(key));
                if follows { self.drive(node, number, CallEvent::Woke(WakeReason::Changed)) } else { Ok(()) }
            }
            SimulationEvent::Renew { node, number, owner, .. } => self.renew(node, number, &owner),
            SimulationEvent::Effect { attempt } => self.effect_due(attempt),
            SimulationEvent::ChildEnded { node, number, attempt, .. } => {
                self.child_ended(node, number, attempt)
            }
            SimulationEvent::SettleDeadline { owner, key, started, reported } => {
                self.check_settled(&owner, key, started, reported)
            }
            SimulationEvent::Resolve { key, tries } => {
                self.resolve(key, tries);
                Ok(())
            }
            SimulationEvent::Verify { client } => {
                self.verify(client, None, None, None, 0);
                Ok(())
            }
            SimulationEvent::ReadArrives { read } => self.read_arrives(read),
            SimulationEvent::ReadEnds { node, read, .. } => {
                self.read_ends(node, read);
                Ok(())
            }
            SimulationEvent::ReadAnswered { read } => {
                self.read_answered(read);
                Ok(())
            }
            SimulationEvent::ToolAnswers { node, number, attempt, outcome, .. } => {
                self.tool_answers(node, number, attempt, *outcome)
            }
            SimulationEvent::ApproverAnswers { node, number, .. } => self.person(node, number),
            SimulationEvent::Delivered { dispatch, result, about } => self.received(dispatch, &result, about),
            SimulationEvent::StillOpen { node, connection, receipt, .. } => {
                if self.connections[connection].open {
                    self.record_deliveries(node, connection, Some(&receipt));
                }
                Ok(())
            }
            SimulationEvent::Share { node, .. } => {
                self.share_now(node);
                Ok(())
            }
            SimulationEvent::Shared { node, .. } => {
                self.adopt_shared(node);
                Ok(())
            }
            SimulationEvent::Keep { node, .. } => self.keep(node),
            SimulationEvent::Crash { node } => {
                self.engines(node).into_iter().try_for_each(|engine| self.crash(engine))
            }
            SimulationEvent::Stop { node } => {
                self.engines(node).into_iter().try_for_each(|engine| self.stop(engine))
            }
            SimulationEvent::Restart { node } if self.nodes[node].alive => Ok(()),
            SimulationEvent::Restart { node } => {
                let generation = self.nodes[node].identity.started + 1;
                self.engines(node).into_iter().try_for_each(|engine| self.restart(engine, generation))
            }
            SimulationEvent::Freeze { node } => {
                let span = match self.weather.naps {
                    true => self.third.between(9_000, 25_000),
                    false => self.rng.between(1_000, 300_000),
                };
                let until = self.now + std::time::Duration::from_millis(span);
                for engine in self.engines(node) {
                    let home = &mut self.nodes[engine];
                    home.frozen_until = home.frozen_until.max(until);
                }
                self.disturbed = self.disturbed.max(until);
                self.log_event(format!("process {node} is frozen for {span} ms"));
                Ok(())
            }
            SimulationEvent::Operator { node } if !self.nodes[node].alive => {
                self.later(1_000, SimulationEvent::Operator { node });
                Ok(())
            }
            SimulationEvent::Operator { node } => {
                let now = self.clock(node);
                let force = self.faults_active() && self.rng.chance(50);
                let until = self.before_an_operator_acts(node);
                let home = &mut self.nodes[node];
                let change =
                    if force { home.breaker.force_open(until, now) } else { home.breaker.reset(now) };
                // A reset starts a new epoch, whether or not the state changes.
                let spoke = change.is_some() || !force;
                home.epoch += u64::from(spoke);
                if spoke {
                    let state = if force { breaker::State::ForcedOpen } else { breaker::State::Closed };
                    home.expected.enter_state(state, until.filter(|_| force), now);
                }
                if spoke {
                    *self.model.words.entry(times_by_hand(&home.breaker.snapshot())).or_default() += 1;
                }
                self.share_soon(node);
                self.log_event(format!("an operator at process {node}: {change:?}"));
                if force {
                    self.later(60_000, SimulationEvent::Operator { node });
                }
                Ok(())
            }
            SimulationEvent::Jump => {
                let span = self.rng.between(1_000, 200_000);
                let span = std::time::Duration::from_millis(span);
                self.jumps.push((self.now, span));
                let until = self.now + span;
                self.effects_until(until)?;
                self.now = until;
                self.disturbed = self.disturbed.max(until);
                let span = span.as_millis();
                self.log_event(format!("the clock jumps by {span} ms"));
                Ok(())
            }
            SimulationEvent::Block { node, until } => {
                self.block(node, until);
                Ok(())
            }
            SimulationEvent::TrustReset { node } if !self.nodes[node].alive => {
                self.later(1_000, SimulationEvent::TrustReset { node });
                Ok(())
            }
            SimulationEvent::TrustReset { node } => {
                self.unblock(node);
                Ok(())
            }
            SimulationEvent::Unblock { node, .. } => {
                self.unblock(node);
                Ok(())
            }
            SimulationEvent::Progress { node, number, attempt, .. } => self.progress(node, number, attempt),
            SimulationEvent::Emptied => {
                self.empty_the_store();
                Ok(())
            }
            SimulationEvent::LossAccepted => {
                self.accept_loss();
                Ok(())
            }
            SimulationEvent::Turn(happening) => self.turn_happens(happening),
        }
    }
}

impl SimulationEvent {
    /// Returns the process of this event, with its generation.
    fn at_process(&self) -> Option<(usize, u64)> {
        match self {
            Self::Reply { node, generation, .. }
            | Self::Timer { node, generation, .. }
            | Self::Poll { node, generation, .. }
            | Self::Changed { node, generation, .. }
            | Self::Renew { node, generation, .. }
            | Self::ToolAnswers { node, generation, .. }
            | Self::ChildEnded { node, generation, .. }
            | Self::ReadEnds { node, generation, .. }
            | Self::Left { node, generation, .. }
            | Self::ApproverAnswers { node, generation, .. }
            | Self::StillOpen { node, generation, .. }
            | Self::Share { node, generation }
            | Self::Shared { node, generation }
            | Self::Unblock { node, generation }
            | Self::Progress { node, generation, .. }
            | Self::Keep { node, generation } => Some((*node, *generation)),
            Self::Turn(happening) => happening.at_process(),
            Self::Send { .. }
            | Self::Arrive { .. }
            | Self::Impatient { .. }
            | Self::Break { .. }
            | Self::Command { .. }
            | Self::Effect { .. }
            | Self::SettleDeadline { .. }
            | Self::Resolve { .. }
            | Self::Verify { .. }
            | Self::ReadArrives { .. }
            | Self::ReadAnswered { .. }
            | Self::Delivered { .. }
            | Self::Crash { .. }
            | Self::Stop { .. }
            | Self::Restart { .. }
            | Self::Freeze { .. }
            | Self::Operator { .. }
            | Self::Jump
            | Self::Block { .. }
            | Self::Emptied
            | Self::LossAccepted
            | Self::TrustReset { .. } => None,
        }
    }
}

/// Time after which a command that has not reached the store never does.
pub(crate) const COMMAND_LIFETIME: std::time::Duration = std::time::Duration::from_millis(500);

pub(crate) fn tool() -> ToolRef {
    ToolRef {
        namespace: Namespace::new("bank").expect("a short text"),
        tool: ToolName::new("pay").expect("a short text"),
    }
}

pub(crate) fn approval_subject(request: &CallRequest, blocked: bool) -> ApprovalSubject<'_> {
    ApprovalSubject {
        tool: &request.tool,
        arguments: request.digest,
        signature: &request.signature,
        session: request.session.as_ref(),
        blocked,
    }
}

pub(crate) fn key(text: &str) -> RecordKey {
    RecordKey(Digest::of(text.as_bytes()))
}

pub(crate) fn digest(arguments: u64) -> Digest {
    Digest::of(format!("arguments {arguments}").as_bytes())
}

pub(crate) fn success(attempt: u64) -> AttemptReport {
    AttemptReport::Success {
        output: ToolOutput { content: RawJson::string(&format!("effect {attempt}")), metadata: None },
        concern: None,
    }
}
