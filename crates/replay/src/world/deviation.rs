//! Calls that deviate from the recording: a path of their own, on the calendar, up to an unknown result.

use super::*;

impl ReplayWorld<'_> {
    /// Leaves the recorded path. From here on only the requests of the caller are taken from the recording.
    pub(super) fn leave_recorded_path(&mut self, index: usize, active: &mut ReplayCallState, now: Timestamp) {
        active.own = true;
        let Some(recorded) = self.calls.get(index) else { return };
        for (at, moment) in recorded.trail.iter().enumerate().skip(active.moment + 1) {
            let due = [
                (RecordedEventKind::Cancelled, DueEvent::Cancelled(OtherWaiters::None)),
                (RecordedEventKind::CancelledByOne, DueEvent::Cancelled(OtherWaiters::Waiting)),
                (RecordedEventKind::Disconnected, DueEvent::Gone(OtherWaiters::None)),
                (RecordedEventKind::OneDisconnected, DueEvent::Gone(OtherWaiters::Waiting)),
            ];
            if let Some((_, due)) = due.into_iter().find(|(kind, _)| *kind == moment.kind) {
                self.schedule(recorded.moment_at(at).max(now), index, due);
            }
        }
    }

    /// Continues on a path of its own because the last requested step does not fit the next recorded event.
    pub(super) fn deviate(&mut self, index: usize, mut active: ReplayCallState, now: Timestamp) {
        if matches!(active.pending, NextStep::Run(_)) {
            // The attempt runs already.
            return self.wait_for_attempt(index, active, now);
        }
        let step = std::mem::replace(&mut active.pending, NextStep::Stay);
        self.carry_out(index, active, step, now);
    }

    /// Carries out requested steps until the call has to wait.
    pub(super) fn carry_out(
        &mut self,
        index: usize,
        mut active: ReplayCallState,
        mut step: NextStep,
        now: Timestamp,
    ) {
        while let Some(left) = active.steps_left.checked_sub(1) {
            active.steps_left = left;
            if let NextStep::Finish { result, .. } = step {
                return self.finish(index, active, &result, now);
            }
            self.note(index, &mut active, step.clone(), now);
            let event = match self.store_event(index, &mut active, &step, now) {
                Some(event) => event,
                None => match step {
                    NextStep::Run(_) => return self.wait_for_attempt(index, active, now),
                    NextStep::Cut(_) => CallEvent::Ran(self.cut(index, &mut active, now)),
                    NextStep::Ask(_) => return self.not_known(index, active, UnknownResult::Approval, now),
                    NextStep::Claim(_)
                    | NextStep::Follow(_)
                    | NextStep::AwaitEnd(_)
                    | NextStep::Spend { .. }
                    | NextStep::Start { .. }
                    | NextStep::Probe(_)
                    | NextStep::Renew
                    | NextStep::Wait
                    | NextStep::Save(_)
                    | NextStep::Release(_)
                    | NextStep::Answer { .. }
                    | NextStep::CancelUpstream
                    | NextStep::Stay
                    | NextStep::Finish { .. } => return self.wait(index, active, now),
                },
            };
            step = self.on(index, &mut active, event, now);
        }
        let attempt = active.next();
        self.not_known(index, active, UnknownResult::Run { attempt }, now);
    }

    pub(super) fn wait(&mut self, index: usize, active: ReplayCallState, now: Timestamp) {
        if let Some(wake) = active.call.wake_at() {
            // A machine that was just woken and is unchanged does nothing more at this time.
            let soonest = if wake <= now { now + Duration::from_millis(1) } else { wake };
            self.schedule(soonest, index, DueEvent::Wake);
        }
        self.active.insert(index, active);
    }

    /// Waits for an attempt, which takes its recorded duration. An attempt that was never made has an unknown result.
    pub(super) fn wait_for_attempt(&mut self, index: usize, active: ReplayCallState, now: Timestamp) {
        let (Some(recorded), Some((number, started))) = (self.calls.get(index), active.attempt) else {
            return self.wait(index, active, now);
        };
        let made = place(number).and_then(|at| recorded.attempts.get(at).zip(recorded.outcomes.get(at)));
        let Some((fact, _)) = made else {
            return self.not_known(index, active, UnknownResult::Run { attempt: number }, now);
        };
        for (at, moment) in recorded.trail.iter().enumerate() {
            let then = recorded.moment_at(at);
            if moment.kind == RecordedEventKind::Progressed && then >= fact.started && then < fact.finished {
                let again = started + then.since(fact.started);
                if again > now {
                    self.schedule(again, index, DueEvent::Progress(number));
                }
            }
        }
        let ends = started + fact.finished.since(fact.started);
        self.schedule(ends.max(now), index, DueEvent::Ran(number));
        self.wait(index, active, now);
    }

    /// Cuts off an attempt. An attempt that was also cut off in the recording has its recorded result.
    pub(super) fn cut(&self, index: usize, active: &mut ReplayCallState, now: Timestamp) -> AttemptReport {
        let Some((number, started)) = active.attempt.take() else { return neutral() };
        let was_cut = self.was_cut(index, number);
        let recorded = self.recorded_outcome(index, active, number).filter(|_| was_cut);
        recorded.unwrap_or_else(|| {
            let source = FaultSource::Timeout { after: now.since(started) };
            AttemptReport::Failure {
                fault: AttemptFault::new(source, "the tool did not answer in time"),
                output: None,
            }
        })
    }

    pub(super) fn was_cut(&self, index: usize, number: u32) -> bool {
        let earlier = self.against.earlier().and_then(|earlier| earlier.calls.get(index));
        earlier.is_some_and(|call| call.cut.contains(&number))
    }

    pub(super) fn run_due_events(&mut self, until: Timestamp) {
        while let Some(((now, put), _)) = self.calendar.first_key_value().map(|(key, _)| (*key, ()))
            && now < until
        {
            if let Some((index, due)) = self.calendar.remove(&(now, put)) {
                self.run_due_event(index, due, now);
            }
        }
    }

    pub(super) fn run_due_event(&mut self, index: usize, due: DueEvent, now: Timestamp) {
        let Some(mut active) = self.active.remove(&index) else { return };
        let runs = active.attempt.map(|(number, _)| number);
        let event = match due {
            DueEvent::Wake if active.call.wake_at().is_some_and(|wake| wake <= now) => {
                Some(CallEvent::Woke(WakeReason::Time))
            }
            DueEvent::Ran(number) if runs == Some(number) && self.was_cut(index, number) => {
                return self.not_known(index, active, UnknownResult::Run { attempt: number }, now);
            }
            DueEvent::Ran(number) if runs == Some(number) => {
                Some(CallEvent::Ran(self.outcome(index, &mut active)))
            }
            DueEvent::Progress(number) if runs == Some(number) => Some(CallEvent::Progressed),
            DueEvent::Cancelled(others) => Some(CallEvent::Cancelled(others)),
            DueEvent::Gone(others) => Some(CallEvent::Disconnected(others)),
            DueEvent::Over(failure) if active.following.is_some() => {
                if !active.own {
                    self.leave_recorded_path(index, &mut active, now);
                }
                Some(CallEvent::Woke(failure.map_or(WakeReason::Changed, WakeReason::LeaderRefused)))
            }
            DueEvent::Wake | DueEvent::Ran(_) | DueEvent::Progress(_) | DueEvent::Over(_) => None,
        };
        match event {
            Some(event) => {
                let step = self.on(index, &mut active, event, now);
                self.carry_out(index, active, step, now);
            }
            None => drop(self.active.insert(index, active)),
        }
    }

    /// Ends a call with an unknown result. Its only effect is doubt.
    pub(super) fn not_known(
        &mut self,
        index: usize,
        mut active: ReplayCallState,
        reason: UnknownResult,
        now: Timestamp,
    ) {
        let is_in_doubt = self.is_in_doubt(&active);
        if let Some(call) = self.replayed.calls.get_mut(index) {
            call.in_doubt = is_in_doubt;
        }
        let MachineKeys { tool, session, .. } = active.uses.clone();
        let address = active.call.request().address();
        let keys = address.into_iter().flat_map(|address| [Some(address.own()), address.index()]).flatten();
        self.uncertain.extend(keys.map(DoubtSubject::Record));
        self.uncertain.insert(DoubtSubject::Tool(tool.1));
        self.uncertain.insert(DoubtSubject::Session(session.1));
        self.clean_up(index, &mut active, now);
        active.own = true;
        self.wake_followers(index, &active, None, now);
        self.end_as(index, ReplayEnd::NotKnown(reason));
    }

    /// Removes a call from the replay without any effect.
    pub(super) fn clean_up(&mut self, index: usize, active: &mut ReplayCallState, now: Timestamp) {
        let mut pending = std::mem::replace(&mut active.pending, NextStep::Stay);
        let was_traced = self.traced.remove(&index);
        let mut event = CallEvent::Cancelled(OtherWaiters::None);
        // Every state is left within a few steps.
        for _ in 0..8 {
            let mut step = self.on(index, active, event, now);
            if matches!(step, NextStep::Stay) {
                step = std::mem::replace(&mut pending, NextStep::Stay);
            }
            event = match self.store_event(index, active, &step, now) {
                Some(event) => event,
                None if active.call.is_finished() => break,
                None => CallEvent::Ran(neutral()),
            };
        }
        if was_traced {
            self.traced.insert(index);
        }
        if let Some(key) = active.following.take()
            && let Some(followers) = self.followers.get_mut(&key)
        {
            followers.remove(&index);
        }
    }
}
