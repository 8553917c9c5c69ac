//! Calls that deviate from the recording: a path of their own, on the calendar, up to an unknown result.

use super::*;

impl World<'_> {
    /// Leaves the recorded path. From here on only the requests of the caller are taken from the recording.
    pub(super) fn leave(&mut self, index: usize, active: &mut Active, now: Timestamp) {
        active.own = true;
        let Some(recorded) = self.calls.get(index) else { return };
        for (at, moment) in recorded.trail.iter().enumerate().skip(active.moment + 1) {
            let due = [
                (What::Cancelled, Due::Cancelled(Others::None)),
                (What::CancelledByOne, Due::Cancelled(Others::Waiting)),
                (What::Gone, Due::Gone(Others::None)),
                (What::OneGone, Due::Gone(Others::Waiting)),
            ];
            if let Some((_, due)) = due.into_iter().find(|(what, _)| *what == moment.what) {
                self.put(recorded.moment_at(at).max(now), index, due);
            }
        }
    }

    /// Continues on a path of its own because the last requested step does not fit the next recorded event.
    pub(super) fn on_its_own(&mut self, index: usize, mut active: Active, now: Timestamp) {
        if matches!(active.pending, Step::Run(_)) {
            // The attempt runs already.
            return self.wait_for_attempt(index, active, now);
        }
        let step = std::mem::replace(&mut active.pending, Step::Stay);
        self.carry_out(index, active, step, now);
    }

    /// Carries out requested steps until the call has to wait.
    pub(super) fn carry_out(&mut self, index: usize, mut active: Active, mut step: Step, now: Timestamp) {
        while let Some(left) = active.steps_left.checked_sub(1) {
            active.steps_left = left;
            if let Step::Finish { result, .. } = step {
                return self.finish(index, active, &result, now);
            }
            self.note(index, &mut active, step.clone(), now);
            let event = match self.asked_of_store(index, &mut active, &step, now) {
                Some(event) => event,
                None => match step {
                    Step::Run(_) => return self.wait_for_attempt(index, active, now),
                    Step::Cut(_) => Event::Ran(self.cut(index, &mut active, now)),
                    Step::Ask(_) => return self.not_known(index, active, NotKnown::Asked, now),
                    Step::Claim(_)
                    | Step::Follow(_)
                    | Step::AwaitEnd(_)
                    | Step::Spend { .. }
                    | Step::Start { .. }
                    | Step::Probe(_)
                    | Step::Renew
                    | Step::Wait
                    | Step::Save(_)
                    | Step::Release(_)
                    | Step::Answer { .. }
                    | Step::CancelUpstream
                    | Step::Stay
                    | Step::Finish { .. } => return self.wait(index, active, now),
                },
            };
            step = self.on(index, &mut active, event, now);
        }
        let attempt = active.next();
        self.not_known(index, active, NotKnown::Run { attempt }, now);
    }

    pub(super) fn wait(&mut self, index: usize, active: Active, now: Timestamp) {
        if let Some(wake) = active.call.wake_at() {
            // A machine that was just woken and is unchanged does nothing more at this time.
            let soonest = if wake <= now { now + Duration::from_millis(1) } else { wake };
            self.put(soonest, index, Due::Wake);
        }
        self.active.insert(index, active);
    }

    /// Waits for an attempt, which takes its recorded duration. An attempt that was never made has an unknown result.
    pub(super) fn wait_for_attempt(&mut self, index: usize, active: Active, now: Timestamp) {
        let (Some(recorded), Some((number, started))) = (self.calls.get(index), active.attempt) else {
            return self.wait(index, active, now);
        };
        let made = place(number).and_then(|at| recorded.attempts.get(at).zip(recorded.outcomes.get(at)));
        let Some((fact, _)) = made else {
            return self.not_known(index, active, NotKnown::Run { attempt: number }, now);
        };
        for (at, moment) in recorded.trail.iter().enumerate() {
            let then = recorded.moment_at(at);
            if moment.what == What::Progressed && then >= fact.started && then < fact.finished {
                let again = started + then.since(fact.started);
                if again > now {
                    self.put(again, index, Due::Progress(number));
                }
            }
        }
        let ends = started + fact.finished.since(fact.started);
        self.put(ends.max(now), index, Due::Ran(number));
        self.wait(index, active, now);
    }

    /// Cuts off an attempt. An attempt that was also cut off in the recording has its recorded result.
    pub(super) fn cut(&self, index: usize, active: &mut Active, now: Timestamp) -> Outcome {
        let Some((number, started)) = active.attempt.take() else { return neutral() };
        let was_cut = self.was_cut(index, number);
        let recorded = self.recorded_outcome(index, active, number).filter(|_| was_cut);
        recorded.unwrap_or_else(|| {
            let source = Source::Timeout { after: now.since(started) };
            Outcome::Failure { fault: Fault::new(source, "the tool did not answer in time"), output: None }
        })
    }

    pub(super) fn was_cut(&self, index: usize, number: u32) -> bool {
        let earlier = self.against.earlier().and_then(|earlier| earlier.calls.get(index));
        earlier.is_some_and(|call| call.cut.contains(&number))
    }

    pub(super) fn do_what_is_due(&mut self, until: Timestamp) {
        while let Some(((now, put), _)) = self.calendar.first_key_value().map(|(key, _)| (*key, ()))
            && now < until
        {
            if let Some((index, due)) = self.calendar.remove(&(now, put)) {
                self.do_due(index, due, now);
            }
        }
    }

    pub(super) fn do_due(&mut self, index: usize, due: Due, now: Timestamp) {
        let Some(mut active) = self.active.remove(&index) else { return };
        let runs = active.attempt.map(|(number, _)| number);
        let event = match due {
            Due::Wake if active.call.wake_at().is_some_and(|wake| wake <= now) => {
                Some(Event::Woke(Wake::Time))
            }
            Due::Ran(number) if runs == Some(number) && self.was_cut(index, number) => {
                return self.not_known(index, active, NotKnown::Run { attempt: number }, now);
            }
            Due::Ran(number) if runs == Some(number) => Some(Event::Ran(self.outcome(index, &mut active))),
            Due::Progress(number) if runs == Some(number) => Some(Event::Progressed),
            Due::Cancelled(others) => Some(Event::Cancelled(others)),
            Due::Gone(others) => Some(Event::Disconnected(others)),
            Due::Over(failure) if active.following.is_some() => {
                if !active.own {
                    self.leave(index, &mut active, now);
                }
                Some(Event::Woke(failure.map_or(Wake::Changed, Wake::LeaderRefused)))
            }
            Due::Wake | Due::Ran(_) | Due::Progress(_) | Due::Over(_) => None,
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
    pub(super) fn not_known(&mut self, index: usize, mut active: Active, what: NotKnown, now: Timestamp) {
        let is_in_doubt = self.is_in_doubt(&active);
        if let Some(call) = self.replayed.calls.get_mut(index) {
            call.in_doubt = is_in_doubt;
        }
        let Uses { tool, session, .. } = active.uses.clone();
        let address = active.call.request().address();
        let keys = address.into_iter().flat_map(|address| [Some(address.own()), address.index()]).flatten();
        self.uncertain.extend(keys.map(Touched::Record));
        self.uncertain.insert(Touched::Tool(tool.1));
        self.uncertain.insert(Touched::Session(session.1));
        self.clean_up(index, &mut active, now);
        active.own = true;
        self.over(index, &active, None, now);
        self.end_as(index, End::NotKnown(what));
    }

    /// Removes a call from the replay without any effect.
    pub(super) fn clean_up(&mut self, index: usize, active: &mut Active, now: Timestamp) {
        let mut pending = std::mem::replace(&mut active.pending, Step::Stay);
        let told = self.told.remove(&index);
        let mut event = Event::Cancelled(Others::None);
        // Every state is left within a few steps.
        for _ in 0..8 {
            let mut step = self.on(index, active, event, now);
            if matches!(step, Step::Stay) {
                step = std::mem::replace(&mut pending, Step::Stay);
            }
            event = match self.asked_of_store(index, active, &step, now) {
                Some(event) => event,
                None if active.call.is_finished() => break,
                None => Event::Ran(neutral()),
            };
        }
        if told {
            self.told.insert(index);
        }
        if let Some(key) = active.following.take()
            && let Some(followers) = self.followers.get_mut(&key)
        {
            followers.remove(&index);
        }
    }
}
