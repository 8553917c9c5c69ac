//! The processes: they drive calls, send commands to the store and renew their leases.

use std::time::Duration;

use steadfast_core::approval::ApprovalChannel;
use steadfast_core::call::{
    BreakerScope, CallEvent, CallRequest, CallResult, CallerHints, CallerPatience, Deduplication, NextStep,
    Provenance, RecordStatus, ResultStage, RunnerKind, StoreFault, UnknownOutcomeInfo, UpstreamKey,
    UpstreamSignal,
};
use steadfast_core::classify::signature::Signature;
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    CallFailure, Claim, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeState, DeliveryReceipt,
    LocalKnowledge, RecordAddress, SaveRequest, SaveVerdict, UnknownOutcomeReason,
};
use steadfast_core::id::{RequestId, RunId};

use crate::Defect;
use crate::invariants::InvariantViolation;
use crate::model::{CallIdentity, ClientGoal};
use crate::system::{Dispatch, SentAnswer, SimulatedConnection, SimulatedWorld, lease_sight, session_of};
use crate::transition::{ReplyHandling, SimulationEvent, StoreCommand, approval_subject, digest, key, tool};
use crate::unknown_outcomes::ResponseKind;

impl SimulatedWorld {
    pub(crate) fn arrive(&mut self, dispatch: usize) -> Result<(), InvariantViolation> {
        let Dispatch { goal, call, connection, given_up, .. } = self.dispatches[dispatch];
        let SimulatedConnection { node, generation, open } = self.connections[connection];
        // A call that its client has given up before the process took it up is not begun.
        if !open || given_up {
            return Ok(());
        }
        let home = &self.nodes[node];
        if !home.alive || home.identity.started != generation {
            return self.break_connection(connection);
        }
        if home.frozen_until > self.now {
            let until = home.frozen_until;
            self.at(until, SimulationEvent::Arrive { dispatch });
            return Ok(());
        }
        // Everything that was written to this connection before has arrived, or the client would not send again.
        self.record_deliveries(node, connection, None);
        self.dispatches[dispatch].taken = Some(self.now);
        let number = self.nodes[node].next_call;
        self.nodes[node].next_call += 1;
        let request = self.request(node, number, (goal, call));
        let (number, step) = self.begin(node, request, goal, dispatch, None)?;
        self.act(node, number, step)
    }

    pub(crate) fn request(&mut self, node: usize, number: u64, (goal, call): (usize, u32)) -> CallRequest {
        let ClientGoal { client, kind, arguments, .. } = self.model.goals[goal].clone();
        let mut limits = self.caller_limits();
        if self.fault(self.weather.deadlines) {
            limits.deadline = Some(self.clock(node) + Duration::from_millis(self.rng.between(10, 40_000)));
        }
        let home = &self.nodes[node];
        let run = format!("run-{node}-{}-{number}", home.identity.started);
        let index = key(&format!("index {client} {arguments}"));
        let explicit = matches!(kind, CallIdentity::Explicit(_) | CallIdentity::Turn(_));
        let address = match kind {
            CallIdentity::Explicit(name) => RecordAddress::Explicit(key(&format!("key {name}"))),
            CallIdentity::CallId => RecordAddress::CallId { id: key(&format!("call {goal} {call}")), index },
            CallIdentity::Keyless => RecordAddress::Keyless { run: key(&run), index },
            CallIdentity::Turn(call) => RecordAddress::Explicit(self.turn_key(call)),
        };
        let safety_critical = self.weather.critical > 0
            && !self.is_obedient(goal)
            && !matches!(kind, CallIdentity::Turn(_))
            && self.third.chance(self.weather.critical);
        CallRequest {
            id: RequestId::new(format!("request-{goal}-{number}")).expect("a short text"),
            tool: tool(),
            tool_call: None,
            context: None,
            session: session_of(client),
            actor: None,
            tenant: None,
            turn: None,
            trace: None,
            model: None,
            duplicates: match explicit
                && self.weather.best_effort > 0
                && self.third.chance(self.weather.best_effort)
            {
                true => Deduplication::Refused(address),
                false => Deduplication::Joined(address),
            },
            sent_key: if explicit { UpstreamKey::Given } else { UpstreamKey::Run },
            computed_since: None,
            in_turn: false,
            digest: digest(arguments),
            run: RunId(run.into()),
            process: home.identity.clone(),
            number,
            signature: Signature("bank/pay".into()),
            domain: None,
            danger: None,
            invalid_arguments: None,
            limits,
            waits: CallerPatience::MayGiveUp,
            run_by: RunnerKind::Driver,
            end: self.weather.end,
            reads: std::sync::Arc::default(),
            hints: CallerHints { safety_critical, ..CallerHints::default() },
            channel: ApprovalChannel::Interactive,
        }
    }

    /// Records that the answers on this connection have arrived. The process informs the store later.
    pub(crate) fn record_deliveries(
        &mut self,
        node: usize,
        connection: usize,
        only: Option<&DeliveryReceipt>,
    ) {
        let now = self.now;
        let home = &mut self.nodes[node];
        let generation = home.identity.started;
        let (arrived, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut home.written).into_iter().partition(|written| {
                written.connection == connection && only.is_none_or(|only| *only == written.receipt)
            });
        home.written = rest;
        for SentAnswer { dispatch, receipt, kind, .. } in arrived {
            let handed = self.nodes[node].handed.iter_mut();
            handed
                .filter(|handed| handed.dispatch == dispatch && handed.owner == receipt.owner)
                .for_each(|handed| handed.has_arrived = true);
            // A message that crosses the answer proves nothing if the connection breaks at that very moment. The rule
            // takes it as proof all the same (it is not promised), and so does the model.
            let client = self.model.goals[self.dispatches[dispatch].goal].client;
            if matches!(kind, ResponseKind::FinalUnknown | ResponseKind::PendingUnknown(_)) {
                self.nodes[node].final_responses.insert(receipt.owner.clone(), client);
            }
            if !self.dispatches[dispatch].answered {
                self.crossing.push(dispatch);
                match kind {
                    ResponseKind::FinalUnknown => {
                        self.model.record_final_response(&receipt.owner, client, now)
                    }
                    ResponseKind::Result => {
                        self.model.delivered_at.entry(receipt.owner.clone()).or_insert(now);
                    }
                    ResponseKind::PendingUnknown(_) | ResponseKind::StillRunning | ResponseKind::Refusal => {}
                }
            }
            self.nodes[node].known.push((receipt.clone(), now));
            let delay = self.rng.between(0, 2_000);
            if !self.fault(self.weather.store_lost) {
                let store_command = Box::new(StoreCommand::Delivered(receipt, now));
                self.later(
                    delay,
                    SimulationEvent::Command {
                        node,
                        generation,
                        number: 0,
                        command: 0,
                        store_command,
                        then: ReplyHandling::Ignore,
                    },
                );
            }
        }
    }

    /// Feeds one event to a call and carries out its step.
    pub(crate) fn drive(
        &mut self,
        node: usize,
        number: u64,
        event: CallEvent,
    ) -> Result<(), InvariantViolation> {
        match self.feed(node, number, event)? {
            Some(step) => self.act(node, number, step),
            None => Ok(()),
        }
    }

    pub(crate) fn act(&mut self, node: usize, number: u64, step: NextStep) -> Result<(), InvariantViolation> {
        let generation = self.nodes[node].identity.started;
        if !matches!(step, NextStep::Stay | NextStep::Answer { .. } | NextStep::CancelUpstream)
            && let Some(running) = self.nodes[node].calls.get_mut(&number)
        {
            (running.follows, running.awaits) = (None, None);
        }
        self.note_admission(node, number, &step);
        match step {
            NextStep::Claim(claim) => {
                let known = self.known_to(node, number);
                self.command(node, number, StoreCommand::Claim(*claim, known));
            }
            NextStep::Spend { grant, owner } => {
                if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                    running.grant = Some(grant);
                }
                self.command(node, number, StoreCommand::Spend { grant, owner });
            }
            NextStep::Start { key, owner } => self.command(node, number, StoreCommand::Start { key, owner }),
            NextStep::Probe(BreakerScope::Tool) => return self.share_probe(node, number),
            NextStep::Probe(BreakerScope::Dependency) => return self.drive(node, number, CallEvent::Probed),
            NextStep::Save(save) => {
                let marks = self.nodes[node].calls.get(&number).is_some_and(|running| running.is_marking());
                if marks && self.defect == Some(Defect::ToldBeforeRecorded) {
                    self.answer(node, number, unknown_outcome())?;
                }
                self.command(node, number, StoreCommand::Save(*save));
            }
            NextStep::Release(release) => self.command(node, number, StoreCommand::Release(release)),
            NextStep::Renew => {
                let record =
                    self.nodes[node].calls.get(&number).and_then(|running| running.call.record()).cloned();
                if let Some(record) = record {
                    self.command(node, number, StoreCommand::Renew(record, self.clock(node)));
                }
            }
            NextStep::Follow(record) => {
                if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                    running.follows = Some(record);
                }
                // The fallback for a lost wake-up.
                let poll_delay = self.rng.between(1_000, 8_000);
                let command = self.nodes[node].calls.get(&number).map_or(0, |running| running.command);
                self.later(poll_delay, SimulationEvent::Poll { node, generation, number, command });
            }
            NextStep::AwaitEnd(record) => {
                if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                    running.awaits = Some(record);
                }
            }
            NextStep::Ask(ask) => {
                let now = self.clock(node);
                let running = &self.nodes[node].calls[&number];
                let request = running.call.request();
                let subject = approval_subject(request, ask.operator_only);
                let (policy, session) = (&self.weather.policy.approval, subject.session);
                let pending = self.store.approvals.ask(subject, &ask.escalation, None, policy, now);
                let parked = self.store.approvals.parked(now).find(|(id, _)| *id == pending.id);
                if let Some((id, parked)) = parked.filter(|(_, parked)| parked.session.as_ref() != session) {
                    return Err((
                        "each conversation is asked for",
                        format!("call {number} of {session:?} shares {id:?} of {:?}", parked.session),
                    ));
                }
                let think_time = self.rng.between(100, 60_000);
                self.later(think_time, SimulationEvent::ApproverAnswers { node, generation, number });
                let record = self.nodes[node].calls.get(&number).and_then(|running| running.call.record());
                if let Some(owner) = record.map(|record| record.owner.clone()) {
                    self.later(self.renewal(), SimulationEvent::Renew { node, generation, number, owner });
                }
            }
            NextStep::Run(run) => {
                self.check_dependency_probe(node, number)?;
                self.start_tool(node, number)?;
                self.ends_in_time(node, number, run.deadline)?;
            }
            NextStep::Cut(cut) => return self.cut(node, number, cut),
            NextStep::Wait | NextStep::Stay => {}
            NextStep::CancelUpstream => self.cancel_upstream(node, number),
            NextStep::Answer { result, upstream } => {
                if let Some(attempt) =
                    self.nodes[node].calls.get_mut(&number).and_then(|running| running.attempt.as_mut())
                {
                    attempt.over = true;
                }
                if upstream == UpstreamSignal::Cancel {
                    self.cancel_upstream(node, number);
                }
                self.answer(node, number, *result)?;
            }
            NextStep::Finish { result, deferred } => return self.finish(node, number, *result, deferred),
        }
        self.end_child(node, number);
        self.follows_in_time(node, number)?;
        let due = self.nodes[node].calls.get(&number).and_then(|running| running.call.wake_at());
        let armed = self.nodes[node].calls.get(&number).and_then(|running| running.woken_at);
        if due.is_some() && due != armed {
            if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                running.woken_at = due;
            }
            let due = due.map(|due| self.nodes[node].moment(due));
            self.at(due.unwrap_or(self.now), SimulationEvent::Timer { node, generation, number });
        }
        self.feed_deferred(node, number)
    }

    /// Returns the knowledge that a process has of its answers and the store may not have.
    fn known_to(&self, node: usize, number: u64) -> LocalKnowledge {
        let home = &self.nodes[node];
        let Some(running) = home.calls.get(&number) else { return LocalKnowledge::default() };
        let client = self.model.goals[running.goal].client;
        let received = running.received;
        let had_arrived = |owner: &ClaimOwner| {
            home.handed.iter().any(|one| one.at <= received && one.owner == *owner && one.has_arrived)
        };
        let handed = home.handed.iter().filter(|one| one.at > received && !had_arrived(&one.owner));
        let unsaved = home.unsaved.iter().filter(|(_, at)| *at <= received);
        let verified = home.verified.iter().filter(|(_, verifier)| **verifier == client);
        LocalKnowledge {
            delivered: home.known.clone(),
            overlapped: handed.map(|one| one.owner.clone()).collect(),
            answered_unsaved: unsaved.map(|(owner, _)| owner.clone()).collect(),
            verified: verified.map(|(owner, _)| owner.clone()).collect(),
        }
    }

    /// Returns all records that a claim may find.
    fn before(&self, claim: &Claim) -> Vec<DedupeRecord> {
        let records = &self.store.records;
        let followed = match claim.role {
            ClaimRole::Waiter { followed } => records.get(&followed),
            ClaimRole::Fresh => None,
        };
        let own = records.get(&claim.address.own());
        let indexed = records.indexed(claim.address.index());
        [followed, own, indexed].into_iter().flatten().cloned().collect()
    }

    /// Sends a command to the store. The command or its reply may get lost, or it may come late.
    pub(crate) fn command(&mut self, node: usize, number: u64, store_command: StoreCommand) {
        let generation = self.nodes[node].identity.started;
        let Some(running) = self.nodes[node].calls.get_mut(&number) else { return };
        running.command += 1;
        let (command, renewed_by) = (running.command, running.renewed_by);
        if self.fault(self.weather.store_lost) {
            let patience = self.rng.between(10, 500) + self.draw_failure_delay();
            let fault = *self.rng.pick(&[StoreFault::NotDone, StoreFault::Unanswered]);
            self.log_event(format!("process {node} call {number}: the command is lost"));
            return self.later(
                patience,
                SimulationEvent::Reply {
                    node,
                    generation,
                    number,
                    command,
                    event: Box::new(CallEvent::StoreFailed(fault)),
                },
            );
        }
        let then = if self.fault(self.weather.store_unanswered) {
            ReplyHandling::LoseTheAnswer
        } else {
            ReplyHandling::Answer
        };
        let mut travel = self.rng.between(0, 3) + self.draw_command_delay();
        if matches!(store_command, StoreCommand::Save(_) | StoreCommand::Release(_))
            && self.defect != Some(Defect::RenewalOvertaken)
        {
            // Not before the last renewal has arrived: after a store loss it would bring back a claim that is over.
            travel += u64::try_from(renewed_by.since(self.now).as_millis()).unwrap_or(0);
        }
        if matches!(store_command, StoreCommand::Renew(..))
            && let Some(running) = self.nodes[node].calls.get_mut(&number)
        {
            running.renewed_by = self.now + Duration::from_millis(travel);
        }
        self.later(
            travel,
            SimulationEvent::Command {
                node,
                generation,
                number,
                command,
                store_command: Box::new(store_command),
                then,
            },
        );
    }

    /// Carries out a command in the store, atomically.
    pub(crate) fn apply(&mut self, node: usize, store_command: StoreCommand) -> Option<CallEvent> {
        let now = match self.defect {
            Some(Defect::ClocksCompared) => self.clock(node),
            Some(_) | None => self.now,
        };
        let watch = self.observe_marker(node);
        match store_command {
            StoreCommand::Claim(claim, known) => {
                let before = self.before(&claim);
                let waited_for_an_answer = match claim.role {
                    ClaimRole::Waiter { followed } => self
                        .store
                        .records
                        .get(&followed)
                        .is_some_and(|record| matches!(record.state, DedupeState::Done(_))),
                    ClaimRole::Fresh => false,
                };
                let (nodes, leases) = (&self.nodes, self.weather.leases);
                let verdict =
                    self.store.claim(&claim, &known, watch, |owner| lease_sight(nodes, leases, owner), now);
                let lapsed: Vec<ClaimOwner> = before
                    .iter()
                    .filter(|record| record.state == DedupeState::Inflight)
                    .filter(|record| {
                        let after = self.store.records.get(&record.key);
                        after.is_some_and(|after| matches!(after.state, DedupeState::Unknown(_)))
                    })
                    .map(|record| record.owner.clone())
                    .collect();
                lapsed.iter().for_each(|owner| self.holder_missed(owner));
                if verdict == ClaimVerdict::RecordsLost {
                    self.summary.refused_after_loss += 1;
                }
                if let ClaimVerdict::Acquired(record) = &verdict {
                    self.model.claimed(record, self.nodes[node].started_after);
                    let twice = self.check_double_dispatch(node, &claim, &before);
                    if let Some(broken) = twice.or_else(|| self.check_run_again(&claim, &before)) {
                        self.model.broken = Some(broken);
                    }
                }
                if waited_for_an_answer && matches!(verdict, ClaimVerdict::Acquired(_)) {
                    let description = format!(
                        "call {} of process {node} runs although what it waited for is done",
                        claim.owner.call
                    );
                    self.model.broken = Some(("waiters are answered", description));
                }
                Some(CallEvent::Claimed(verdict))
            }
            StoreCommand::Spend { grant, owner } => {
                Some(CallEvent::Spent(self.store.spend(grant, &owner, self.clock(node))))
            }
            StoreCommand::Start { key, owner } => {
                Some(CallEvent::Started(self.store.start(&key, &owner, now)))
            }
            StoreCommand::Renew(record, sent) => {
                self.model.record_contact(&record.owner, now);
                let keep = self.weather.policy.dedupe.keep;
                let verdict = self.store.renew(&record, &keep, watch, now);
                Some(CallEvent::Renewed { owner: record.owner, sent, verdict })
            }
            StoreCommand::Share(generation, snapshot) => {
                self.share(node, generation, &snapshot);
                Some(CallEvent::Probed)
            }
            StoreCommand::Save(save) => Some(CallEvent::Saved(self.save(&save))),
            StoreCommand::Release(release) => {
                self.store.release(&release);
                Some(CallEvent::Released)
            }
            StoreCommand::Delivered(receipt, at) => {
                self.store.delivered(&receipt, at);
                None
            }
        }
    }

    /// Saves, and remembers whether that changed an existing answer.
    pub(crate) fn save(&mut self, save: &SaveRequest) -> SaveVerdict {
        let answer =
            |world: &Self| match world.store.records.get(&save.claimed.key).map(|record| &record.state) {
                Some(DedupeState::Done(output)) => Some(output.clone()),
                Some(
                    DedupeState::Inflight
                    | DedupeState::Failed(_)
                    | DedupeState::Unknown(_)
                    | DedupeState::Cancelled,
                )
                | None => None,
            };
        self.model.record_contact(&save.claimed.owner, self.now);
        let before = answer(self);
        let verdict = self.store.save(save, self.now);
        if matches!(verdict, SaveVerdict::Saved(_)) {
            self.note_stored(&save.claimed.owner);
        }
        if before.is_some() && before != answer(self) {
            self.model.broken =
                Some(("recorded stays", format!("{:?} saved over {before:?}", save.claimed.owner)));
        }
        verdict
    }

    pub(crate) fn renew(
        &mut self,
        node: usize,
        number: u64,
        owner: &ClaimOwner,
    ) -> Result<(), InvariantViolation> {
        let record = self.nodes[node].calls.get(&number).and_then(|running| running.call.record()).cloned();
        let Some(record) = record.filter(|record| record.owner == *owner) else { return Ok(()) };
        let generation = self.nodes[node].identity.started;
        self.later(self.renewal(), SimulationEvent::Renew { node, generation, number, owner: owner.clone() });
        // One renewal at a time.
        if self.nodes[node].calls.get(&number).is_some_and(|running| running.call.state() == "Renewing") {
            return Ok(());
        }
        if self.fault(self.weather.store_lost) {
            return Ok(());
        }
        // Some are slow, and their reply is not received. That matters only if a renewal that finds nothing may write.
        if self.weather.emptyings > 0 && self.faults_active() && self.side.chance(30) {
            // The defect shows soonest if they are very slow.
            let slowest = if self.defect == Some(Defect::RenewalOvertaken) { 60_000 } else { 400 };
            let travel = self.side.between(1, slowest);
            if let Some(running) = self.nodes[node].calls.get_mut(&number) {
                running.renewed_by = self.now + Duration::from_millis(travel);
            }
            let (store_command, then) =
                (Box::new(StoreCommand::Renew(record, self.clock(node))), ReplyHandling::Ignore);
            self.later(
                travel,
                SimulationEvent::Command { node, generation, number, command: 0, store_command, then },
            );
            return Ok(());
        }
        let now = self.now;
        let keep = self.weather.policy.dedupe.keep;
        let watch = self.observe_marker(node);
        self.model.record_contact(&record.owner, now);
        let verdict = self.store.renew(&record, &keep, watch, now);
        self.drive(node, number, CallEvent::Renewed { owner: record.owner, sent: self.clock(node), verdict })
    }
}

/// Returns an unknown outcome before it is recorded. Only a defect does that.
fn unknown_outcome() -> CallResult {
    let failure = CallFailure {
        code: Code::OutcomeUnknown,
        message: "nobody knows".into(),
        retriable: false,
        terminal: true,
        rule: None,
        verify: None,
        retry_after: Some(Duration::from_secs(60)),
        output: None,
    };
    CallResult {
        outcome: Err(failure),
        stage: ResultStage::Final,
        provenance: Provenance::Fresh,
        attempts: 1,
        retries: Vec::new(),
        took: Duration::ZERO,
        recorded: RecordStatus::Yes,
        receipt: None,
        note: None,
        remarks: Vec::new(),
        breaker: None,
        escalated: false,
        unknown: Some(UnknownOutcomeInfo { observed: UnknownOutcomeReason::NoAnswer, is_final: false }),
    }
}
