//! The events of the simulation and their consequences.

use steadfast_core::Timestamp;
use steadfast_core::approval::Wanted;
use steadfast_core::breaker::{self, Snapshot};
use steadfast_core::call::{CallResult, Event, Outcome, Request, StoreFault, Wake};
use steadfast_core::dedupe::{Claim, Known, Owner, Receipt, Record, Release, Save};
use steadfast_core::id::{Digest, Namespace, ToolName, ToolRef};
use steadfast_core::key::Key;
use steadfast_core::output::{Output, RawJson};

use crate::clients::Departure;
use crate::invariants::Broken;
use crate::model::{Kind, Wish};
use crate::sharing::times_by_hand;
use crate::system::World;
use crate::turns::TurnHappening;
use crate::weather::Agent;

/// A scheduled event.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A client sends a call for a goal, again if need be.
    Send {
        wish: usize,
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
        life: u64,
        number: u64,
        dispatch: usize,
        how: Departure,
    },
    /// A command reaches the store.
    Command {
        node: usize,
        life: u64,
        number: u64,
        command: u64,
        what: Box<Command>,
        then: Then,
    },
    /// The store's reply reaches the process.
    Reply {
        node: usize,
        life: u64,
        number: u64,
        command: u64,
        event: Box<Event>,
    },
    /// A timer of a call fires.
    Timer {
        node: usize,
        life: u64,
        number: u64,
    },
    /// A follower polls, in case a wake-up was lost.
    LookOut {
        node: usize,
        life: u64,
        number: u64,
        command: u64,
    },
    /// A followed record changed.
    Changed {
        node: usize,
        life: u64,
        number: u64,
        key: Key,
    },
    /// A holder renews its lease.
    Renew {
        node: usize,
        life: u64,
        number: u64,
        owner: Owner,
    },
    /// A tool takes effect.
    Effect {
        attempt: u64,
    },
    /// The child process of an attempt is gone.
    ChildEnded {
        node: usize,
        life: u64,
        number: u64,
        attempt: u64,
    },
    /// The time has passed by which a run was announced to be settled.
    SettleDeadline {
        owner: Owner,
        key: Key,
        begun: Timestamp,
        told: Timestamp,
    },
    /// An operator resolves an unknown outcome, and tries again if it is too early.
    Resolve {
        key: Key,
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
        life: u64,
        read: usize,
    },
    ReadAnswered {
        read: usize,
    },
    /// A tool answers.
    ToolAnswers {
        node: usize,
        life: u64,
        number: u64,
        attempt: u64,
        outcome: Box<Outcome>,
    },
    /// An operator answers.
    Person {
        node: usize,
        life: u64,
        number: u64,
    },
    /// An answer reaches its client.
    Delivered {
        dispatch: usize,
        result: Box<CallResult>,
        about: Option<(Key, Owner)>,
    },
    /// A process checks whether a connection is still open.
    StillOpen {
        node: usize,
        life: u64,
        connection: usize,
        receipt: Receipt,
    },
    /// A process stores the state of its breaker.
    Share {
        node: usize,
        life: u64,
    },
    /// A process learns that another one has stored the state of its breaker.
    Shared {
        node: usize,
        life: u64,
    },
    /// A process repeats its deferred writes.
    Keep {
        node: usize,
        life: u64,
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
        life: u64,
    },
    /// An operator restores trust in the tool.
    Pardon {
        node: usize,
    },
    /// A tool shows a sign of life.
    Progress {
        node: usize,
        life: u64,
        number: u64,
        attempt: u64,
    },
    Turn(TurnHappening),
}

/// A request to the store.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Claim(Claim, Known),
    Spend { grant: steadfast_core::approval::GrantId, owner: Owner },
    Start { key: Key, owner: Owner },
    Renew(Record, Timestamp),
    Share(u64, Snapshot),
    Save(Save),
    Release(Release),
    Delivered(Receipt, Timestamp),
}

/// The handling of the reply to a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Answer,
    LoseTheAnswer,
    Nobody,
}

impl World {
    /// Schedules goals, crashes and all other initial events.
    pub(crate) fn open_the_day(&mut self) {
        let storm = self.weather.storm;
        let mut sends = Vec::new();
        for client in 0..self.weather.clients {
            for _ in 0..self.weather.wishes {
                let kind = match self.rng.between(0, 3) {
                    0 => Kind::Explicit(self.rng.between(0, 2)),
                    1 => Kind::CallId,
                    _ => Kind::Keyless,
                };
                let arguments = match kind {
                    // A key identifies its arguments. Sometimes a client misuses it.
                    Kind::Explicit(key) if self.rng.chance(90) => key % self.weather.arguments,
                    Kind::Explicit(_) | Kind::CallId | Kind::Keyless | Kind::Turn(_) => {
                        self.rng.between(0, self.weather.arguments - 1)
                    }
                };
                let (kind, arguments) = match self.weather.one_key {
                    true => (Kind::Explicit(0), self.third.between(0, self.weather.arguments - 1)),
                    false => (kind, arguments),
                };
                self.model.wishes.push(Wish::new(client, kind, arguments));
                let wish = self.model.wishes.len() - 1;
                let at = self.rng.between(0, storm);
                self.later(at, Happening::Send { wish });
                sends.push(at);
                // A second call that arrives after the answer to the first is meant as a second one.
                if self.rng.chance(self.weather.double) && !self.is_obedient(wish) {
                    let twice = self.rng.between(1, 30);
                    self.later(at + twice, Happening::Send { wish });
                }
            }
            if self.weather.agents[client] == Agent::Naive {
                for _ in 0..self.rng.between(0, 3) {
                    let at = self.rng.between(0, storm);
                    self.later(at, Happening::Verify { client });
                }
            }
        }
        self.plan_turns();
        for node in 0..self.nodes.len() {
            for (percent, make) in [
                (self.weather.crash, (|node| Happening::Crash { node }) as fn(usize) -> Happening),
                (self.weather.stops, |node| Happening::Stop { node }),
                (self.weather.freeze, |node| Happening::Freeze { node }),
                (self.weather.operator, |node| Happening::Operator { node }),
                (self.weather.jump, |_| Happening::Jump),
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
                self.later(storm + after, Happening::Pardon { node });
            }
        }
        if self.weather.operator > 0 {
            for node in 0..self.nodes.len() {
                self.later(storm + 300_000, Happening::Operator { node });
            }
        }
        for _ in 0..self.weather.emptyings {
            // Most often while calls are in flight, because an idle store has little to lose.
            let at = if self.side.chance(75) {
                *self.side.pick(&sends) + self.side.between(1, 5_000)
            } else {
                self.side.between(0, storm)
            };
            self.later(at.min(storm), Happening::Emptied);
            // The cause of the loss may also kill a process. It restarts without knowing the old marker.
            if self.side.chance(40) {
                let node = usize::try_from(self.side.next() % self.nodes.len() as u64).unwrap_or(0);
                let crash = at + self.side.between(0, 5_000);
                self.later(crash.min(storm), Happening::Crash { node });
            }
        }
    }

    pub(crate) fn happen(&mut self, happening: Happening) -> Result<(), Broken> {
        if let Some((node, life)) = happening.at_process() {
            let home = &self.nodes[node];
            if !home.alive || home.identity.started != life {
                return Ok(());
            }
            if home.frozen_until > self.now {
                let until = home.frozen_until;
                self.at(until, happening);
                return Ok(());
            }
        }
        match happening {
            Happening::Send { wish } => self.send(wish),
            Happening::Arrive { dispatch } => self.arrive(dispatch),
            Happening::Impatient { dispatch } => self.impatient(dispatch),
            Happening::Break { connection } => self.break_connection(connection),
            Happening::Left { node, number, dispatch, how, .. } => {
                if matches!(how, Departure::Cancels) {
                    self.crosses_its_answer(node, dispatch);
                }
                self.leave(node, number, how)
            }
            Happening::Command { node, life, number, command, what, then } => {
                let event = self.apply(node, *what);
                let answer = match then {
                    Then::Answer => event,
                    Then::LoseTheAnswer => Some(Event::StoreFailed(StoreFault::Unanswered)),
                    Then::Nobody => None,
                };
                if let Some(event) = answer {
                    let late = if matches!(event, Event::StoreFailed(_)) { self.slowly() } else { 0 };
                    let delay = self.rng.between(0, 3) + late;
                    self.later(
                        delay,
                        Happening::Reply { node, life, number, command, event: Box::new(event) },
                    );
                }
                Ok(())
            }
            Happening::Reply { node, number, command, event, .. } => {
                let expected =
                    self.nodes[node].calls.get(&number).is_some_and(|running| running.command == command);
                self.probe_was_heard(node, number, &event);
                if expected { self.drive(node, number, *event) } else { Ok(()) }
            }
            Happening::Timer { node, number, .. } => {
                if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                    running.woken_at = None;
                }
                let due = self.nodes[node].calls.get(&number).and_then(|running| running.call.wake_at());
                if due.is_some_and(|due| due <= self.clock(node)) {
                    self.drive(node, number, Event::Woke(Wake::Time))
                } else {
                    Ok(())
                }
            }
            Happening::LookOut { node, number, command, .. } => {
                let follows = self.nodes[node]
                    .calls
                    .get(&number)
                    .is_some_and(|running| running.follows.is_some() && running.command == command);
                if follows { self.drive(node, number, Event::Woke(Wake::Changed)) } else { Ok(()) }
            }
            Happening::Changed { node, number, key, .. } => {
                let follows = self.nodes[node]
                    .calls
                    .get(&number)
                    .is_some_and(|running| running.follows == Some(key) || running.awaits == Some(key));
                if follows { self.drive(node, number, Event::Woke(Wake::Changed)) } else { Ok(()) }
            }
            Happening::Renew { node, number, owner, .. } => self.renew(node, number, &owner),
            Happening::Effect { attempt } => self.effect_due(attempt),
            Happening::ChildEnded { node, number, attempt, .. } => self.child_ended(node, number, attempt),
            Happening::SettleDeadline { owner, key, begun, told } => {
                self.check_settled(&owner, key, begun, told)
            }
            Happening::Resolve { key, tries } => {
                self.resolve(key, tries);
                Ok(())
            }
            Happening::Verify { client } => {
                self.verify(client, None, None, None, 0);
                Ok(())
            }
            Happening::ReadArrives { read } => self.read_arrives(read),
            Happening::ReadEnds { node, read, .. } => {
                self.read_ends(node, read);
                Ok(())
            }
            Happening::ReadAnswered { read } => {
                self.read_answered(read);
                Ok(())
            }
            Happening::ToolAnswers { node, number, attempt, outcome, .. } => {
                self.tool_answers(node, number, attempt, *outcome)
            }
            Happening::Person { node, number, .. } => self.person(node, number),
            Happening::Delivered { dispatch, result, about } => self.received(dispatch, &result, about),
            Happening::StillOpen { node, connection, receipt, .. } => {
                if self.connections[connection].open {
                    self.know(node, connection, Some(&receipt));
                }
                Ok(())
            }
            Happening::Share { node, .. } => {
                self.share_now(node);
                Ok(())
            }
            Happening::Shared { node, .. } => {
                self.adopt_shared(node);
                Ok(())
            }
            Happening::Keep { node, .. } => self.keep(node),
            Happening::Crash { node } => {
                self.engines(node).into_iter().try_for_each(|engine| self.crash(engine))
            }
            Happening::Stop { node } => {
                self.engines(node).into_iter().try_for_each(|engine| self.stop(engine))
            }
            Happening::Restart { node } if self.nodes[node].alive => Ok(()),
            Happening::Restart { node } => {
                let life = self.nodes[node].identity.started + 1;
                self.engines(node).into_iter().try_for_each(|engine| self.restart(engine, life))
            }
            Happening::Freeze { node } => {
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
                self.tell(format!("process {node} is frozen for {span} ms"));
                Ok(())
            }
            Happening::Operator { node } if !self.nodes[node].alive => {
                self.later(1_000, Happening::Operator { node });
                Ok(())
            }
            Happening::Operator { node } => {
                let now = self.clock(node);
                let force = self.stormy() && self.rng.chance(50);
                let until = self.before_an_operator_acts(node);
                let home = &mut self.nodes[node];
                let change =
                    if force { home.breaker.force_open(until, now) } else { home.breaker.reset(now) };
                // A reset starts a new epoch, whether or not the state changes.
                let spoke = change.is_some() || !force;
                home.epoch += u64::from(spoke);
                if spoke {
                    let state = if force { breaker::State::ForcedOpen } else { breaker::State::Closed };
                    home.expected.becomes(state, until.filter(|_| force), now);
                }
                if spoke {
                    *self.model.words.entry(times_by_hand(&home.breaker.snapshot())).or_default() += 1;
                }
                self.share_soon(node);
                self.tell(format!("an operator at process {node}: {change:?}"));
                if force {
                    self.later(60_000, Happening::Operator { node });
                }
                Ok(())
            }
            Happening::Jump => {
                let span = self.rng.between(1_000, 200_000);
                let span = std::time::Duration::from_millis(span);
                self.jumps.push((self.now, span));
                let until = self.now + span;
                self.effects_until(until)?;
                self.now = until;
                self.disturbed = self.disturbed.max(until);
                let span = span.as_millis();
                self.tell(format!("the clock jumps by {span} ms"));
                Ok(())
            }
            Happening::Block { node, until } => {
                self.block(node, until);
                Ok(())
            }
            Happening::Pardon { node } if !self.nodes[node].alive => {
                self.later(1_000, Happening::Pardon { node });
                Ok(())
            }
            Happening::Pardon { node } => {
                self.unblock(node);
                Ok(())
            }
            Happening::Unblock { node, .. } => {
                self.unblock(node);
                Ok(())
            }
            Happening::Progress { node, number, attempt, .. } => self.progress(node, number, attempt),
            Happening::Emptied => {
                self.empty_the_store();
                Ok(())
            }
            Happening::LossAccepted => {
                self.accept_loss();
                Ok(())
            }
            Happening::Turn(happening) => self.turn_happens(happening),
        }
    }
}

impl Happening {
    /// Returns the process of this event, with its generation.
    fn at_process(&self) -> Option<(usize, u64)> {
        match self {
            Self::Reply { node, life, .. }
            | Self::Timer { node, life, .. }
            | Self::LookOut { node, life, .. }
            | Self::Changed { node, life, .. }
            | Self::Renew { node, life, .. }
            | Self::ToolAnswers { node, life, .. }
            | Self::ChildEnded { node, life, .. }
            | Self::ReadEnds { node, life, .. }
            | Self::Left { node, life, .. }
            | Self::Person { node, life, .. }
            | Self::StillOpen { node, life, .. }
            | Self::Share { node, life }
            | Self::Shared { node, life }
            | Self::Unblock { node, life }
            | Self::Progress { node, life, .. }
            | Self::Keep { node, life } => Some((*node, *life)),
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
            | Self::Pardon { .. } => None,
        }
    }
}

/// Time after which a command that has not reached the store never does.
pub(crate) const COMMAND_LIVES: std::time::Duration = std::time::Duration::from_millis(500);

pub(crate) fn tool() -> ToolRef {
    ToolRef {
        namespace: Namespace::new("bank").expect("a short text"),
        tool: ToolName::new("pay").expect("a short text"),
    }
}

pub(crate) fn wanted(request: &Request, blocked: bool) -> Wanted<'_> {
    Wanted {
        tool: &request.tool,
        arguments: request.digest,
        signature: &request.signature,
        session: request.session.as_ref(),
        blocked,
    }
}

pub(crate) fn key(text: &str) -> Key {
    Key(Digest::of(text.as_bytes()))
}

pub(crate) fn digest(arguments: u64) -> Digest {
    Digest::of(format!("arguments {arguments}").as_bytes())
}

pub(crate) fn success(attempt: u64) -> Outcome {
    Outcome::Success {
        output: Output { content: RawJson::string(&format!("effect {attempt}")), metadata: None },
        concern: None,
    }
}
