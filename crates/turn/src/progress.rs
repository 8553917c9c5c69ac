//! Progress of a call, derived from the notices of its attempts. It decides if another tool may do the job.

use std::time::Duration;

use steadfast_core::call::{CallNotice, CutReason, FailedAttempt};
use steadfast_core::classify::AttemptReach;

/// The progress of one call, derived from the notices of its attempts.
#[derive(Clone, Debug, Default)]
pub struct CallProgress {
    last: LastAttempt,
    /// True if an attempt before the last one may have run. A later attempt that was refused does not undo its effects.
    in_doubt: bool,
    /// True if it waited for an in-flight call.
    waited_for_in_flight: bool,
}

/// The last attempt of a call.
#[derive(Clone, Debug, Default)]
enum LastAttempt {
    #[default]
    None,
    /// Its end was not observed.
    InFlight {
        cut: Option<Duration>,
    },
    Failed {
        failure: FailedAttempt,
        cut: Option<Duration>,
    },
    /// The tool did its work.
    Done,
    /// The tool asked for input and did nothing.
    InputRequired,
}

impl CallProgress {
    /// Records a notice of the call.
    pub fn record(&mut self, notice: &CallNotice) {
        if let CallNotice::AttemptStarted { .. } = notice {
            self.in_doubt |= self.reach() == AttemptReach::Unknown;
            self.last = LastAttempt::InFlight { cut: None };
        } else if let (
            CallNotice::AttemptCut { cut: CutReason::Silent(allowed) },
            LastAttempt::InFlight { cut },
        ) = (notice, &mut self.last)
        {
            *cut = Some(*allowed);
        } else if let CallNotice::AttemptEnded { failure, .. } = notice {
            self.last = match failure.clone() {
                Some(failure) => LastAttempt::Failed { failure, cut: self.timed_out_after() },
                None => LastAttempt::Done,
            };
        } else if let CallNotice::InputRequired = notice {
            self.last = LastAttempt::InputRequired;
        } else if let CallNotice::Following = notice {
            self.waited_for_in_flight = true;
        }
    }

    /// Returns how far the call got, if it did not succeed. A call without attempts was never sent. An attempt that
    /// still runs may have had any effect, even if its caller was answered. The same holds for an earlier attempt with
    /// an unknown outcome, whatever the result of a retry.
    pub fn reach(&self) -> AttemptReach {
        match &self.last {
            _ if self.in_doubt => AttemptReach::Unknown,
            LastAttempt::None => AttemptReach::NotSent,
            LastAttempt::InFlight { .. } | LastAttempt::Done => AttemptReach::Unknown,
            LastAttempt::Failed { failure, .. } => failure.reach,
            LastAttempt::InputRequired => AttemptReach::Answered,
        }
    }

    /// Returns the failure of the last attempt.
    pub fn failure(&self) -> Option<&FailedAttempt> {
        match &self.last {
            LastAttempt::Failed { failure, .. } => Some(failure),
            LastAttempt::None
            | LastAttempt::InFlight { .. }
            | LastAttempt::Done
            | LastAttempt::InputRequired => None,
        }
    }

    /// Returns the timeout of the last attempt, if the attempt exceeded it.
    pub fn timed_out_after(&self) -> Option<Duration> {
        match &self.last {
            LastAttempt::InFlight { cut } | LastAttempt::Failed { cut, .. } => *cut,
            LastAttempt::None | LastAttempt::Done | LastAttempt::InputRequired => None,
        }
    }

    /// Returns true if an attempt of the call, or the in-flight call that it waits for, runs or ran.
    pub fn has_started(&self) -> bool {
        self.waited_for_in_flight || !matches!(self.last, LastAttempt::None)
    }

    /// Returns true if the tool asked for input and did nothing.
    pub fn is_input_required(&self) -> bool {
        matches!(self.last, LastAttempt::InputRequired)
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;
    use steadfast_core::classify::{FaultNature, Severity};
    use steadfast_core::dedupe::UnknownOutcomeReason;

    use super::*;

    fn started() -> CallNotice {
        CallNotice::AttemptStarted { attempt: 1, at: Timestamp::ZERO }
    }

    fn attempt_ended(reach: Option<AttemptReach>) -> CallNotice {
        let failure = reach.map(|reach| FailedAttempt {
            nature: FaultNature::Transient,
            reach,
            severity: Severity::Transient,
            rule: "a rule".into(),
            observed: UnknownOutcomeReason::ErrorAnswer,
            message: "no".into(),
        });
        CallNotice::AttemptEnded { attempt: 1, took: Duration::ZERO, failure }
    }

    fn progress_of(notices: &[CallNotice]) -> CallProgress {
        let mut progress = CallProgress::default();
        notices.iter().for_each(|notice| progress.record(notice));
        progress
    }

    #[test]
    fn the_reach_of_a_call() {
        let silent = CallNotice::AttemptCut { cut: CutReason::Silent(Duration::from_secs(5)) };
        let [refused, unknown] =
            [AttemptReach::Refused, AttemptReach::Unknown].map(|reach| attempt_ended(Some(reach)));
        for (notices, reach) in [
            (vec![], AttemptReach::NotSent),
            (vec![started()], AttemptReach::Unknown),
            (vec![started(), silent.clone()], AttemptReach::Unknown),
            (vec![started(), refused.clone()], AttemptReach::Refused),
            (vec![started(), attempt_ended(None)], AttemptReach::Unknown),
            (vec![started(), attempt_ended(None), CallNotice::InputRequired], AttemptReach::Answered),
            (vec![started(), refused.clone(), started(), unknown.clone()], AttemptReach::Unknown),
            // The result of a retry says nothing about the attempt before it.
            (vec![started(), unknown.clone(), started(), refused.clone()], AttemptReach::Unknown),
            (
                vec![started(), unknown.clone(), started(), attempt_ended(None), CallNotice::InputRequired],
                AttemptReach::Unknown,
            ),
            (vec![started(), unknown, started(), refused.clone(), started(), refused], AttemptReach::Unknown),
        ] {
            assert_eq!(progress_of(&notices).reach(), reach, "{notices:?}");
        }
        let late = progress_of(&[started(), silent, attempt_ended(Some(AttemptReach::Unknown))]);
        assert_eq!(late.timed_out_after(), Some(Duration::from_secs(5)));
        assert_eq!(progress_of(&[started(), started()]).timed_out_after(), None);
    }

    #[test]
    fn a_call_has_started_when_an_attempt_runs_or_it_waits_for_an_in_flight_call() {
        let mut progress = CallProgress::default();
        assert!(!progress.has_started());
        progress.record(&CallNotice::Following);
        assert!(progress.has_started());
        assert_eq!(progress.reach(), AttemptReach::NotSent, "it has sent nothing itself");
        let mut progress = CallProgress::default();
        progress.record(&started());
        assert!(progress.has_started());
    }

    #[test]
    fn the_result_of_the_last_attempt() {
        let input_required = [started(), attempt_ended(None), CallNotice::InputRequired];
        let failed = [started(), attempt_ended(Some(AttemptReach::Refused))];
        for (notices, is_input_required, has_failed) in [
            (&[][..], false, false),
            (&[started()], false, false),
            (&input_required, true, false),
            (&failed, false, true),
            (&input_required[..2], false, false),
        ] {
            let progress = progress_of(notices);
            assert_eq!(
                (progress.is_input_required(), progress.failure().is_some()),
                (is_input_required, has_failed),
                "{notices:?}"
            );
        }
    }
}
