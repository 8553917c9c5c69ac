//! Progress of a call, derived from the notices of its attempts. It decides if another tool may do the job.

use std::time::Duration;

use crate::call::{Cut, FailedAttempt, Notice};
use crate::classify::Reach;

/// The progress of one call, derived from the notices of its attempts.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    last: Last,
    /// True if an attempt before the last one may have run. A later attempt that was refused does not undo its effects.
    in_doubt: bool,
    /// True if it waited for an in-flight call.
    followed: bool,
}

/// The last attempt of a call.
#[derive(Clone, Debug, Default)]
enum Last {
    #[default]
    None,
    /// Its end was not observed.
    UnderWay {
        cut: Option<Duration>,
    },
    Failed {
        how: FailedAttempt,
        cut: Option<Duration>,
    },
    /// The tool did its work.
    Done,
    /// The tool asked for input and did nothing.
    Asked,
}

impl Heard {
    /// Records a notice of the call.
    pub fn hear(&mut self, notice: &Notice) {
        if let Notice::AttemptStarted { .. } = notice {
            self.in_doubt |= self.reach() == Reach::Unknown;
            self.last = Last::UnderWay { cut: None };
        } else if let (Notice::AttemptCut { cut: Cut::Silent(allowed) }, Last::UnderWay { cut }) =
            (notice, &mut self.last)
        {
            *cut = Some(*allowed);
        } else if let Notice::AttemptEnded { failure, .. } = notice {
            self.last = match failure.clone() {
                Some(how) => Last::Failed { how, cut: self.cut() },
                None => Last::Done,
            };
        } else if let Notice::InputRequired = notice {
            self.last = Last::Asked;
        } else if let Notice::Following = notice {
            self.followed = true;
        }
    }

    /// Returns how far the call got, if it did not succeed. A call without attempts was never sent. An attempt that
    /// still runs may have had any effect, even if its caller was answered. The same holds for an earlier attempt with
    /// an unknown outcome, whatever the result of a retry.
    pub fn reach(&self) -> Reach {
        match &self.last {
            _ if self.in_doubt => Reach::Unknown,
            Last::None => Reach::NotSent,
            Last::UnderWay { .. } | Last::Done => Reach::Unknown,
            Last::Failed { how, .. } => how.reach,
            Last::Asked => Reach::Answered,
        }
    }

    /// Returns the failure of the last attempt.
    pub fn failed(&self) -> Option<&FailedAttempt> {
        match &self.last {
            Last::Failed { how, .. } => Some(how),
            Last::None | Last::UnderWay { .. } | Last::Done | Last::Asked => None,
        }
    }

    /// Returns the timeout of the last attempt, if the attempt exceeded it.
    pub fn cut(&self) -> Option<Duration> {
        match &self.last {
            Last::UnderWay { cut } | Last::Failed { cut, .. } => *cut,
            Last::None | Last::Done | Last::Asked => None,
        }
    }

    /// Returns true if an attempt of the call, or the in-flight call that it waits for, runs or ran.
    pub fn has_begun(&self) -> bool {
        self.followed || !matches!(self.last, Last::None)
    }

    /// Returns true if the tool asked for input and did nothing.
    pub fn has_asked(&self) -> bool {
        matches!(self.last, Last::Asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::classify::{Nature, Severity};
    use crate::dedupe::Observed;

    fn started() -> Notice {
        Notice::AttemptStarted { attempt: 1, at: Timestamp::ZERO }
    }

    fn ended(reach: Option<Reach>) -> Notice {
        let failure = reach.map(|reach| FailedAttempt {
            nature: Nature::Transient,
            reach,
            severity: Severity::Transient,
            rule: "a rule".into(),
            observed: Observed::ErrorAnswer,
            said: "no".into(),
        });
        Notice::AttemptEnded { attempt: 1, took: Duration::ZERO, failure }
    }

    fn heard(notices: &[Notice]) -> Heard {
        let mut heard = Heard::default();
        notices.iter().for_each(|notice| heard.hear(notice));
        heard
    }

    #[test]
    fn the_reach_of_a_call() {
        let silent = Notice::AttemptCut { cut: Cut::Silent(Duration::from_secs(5)) };
        let [refused, unknown] = [Reach::Refused, Reach::Unknown].map(|reach| ended(Some(reach)));
        for (notices, reach) in [
            (vec![], Reach::NotSent),
            (vec![started()], Reach::Unknown),
            (vec![started(), silent.clone()], Reach::Unknown),
            (vec![started(), refused.clone()], Reach::Refused),
            (vec![started(), ended(None)], Reach::Unknown),
            (vec![started(), ended(None), Notice::InputRequired], Reach::Answered),
            (vec![started(), refused.clone(), started(), unknown.clone()], Reach::Unknown),
            // The result of a retry says nothing about the attempt before it.
            (vec![started(), unknown.clone(), started(), refused.clone()], Reach::Unknown),
            (vec![started(), unknown.clone(), started(), ended(None), Notice::InputRequired], Reach::Unknown),
            (vec![started(), unknown, started(), refused.clone(), started(), refused], Reach::Unknown),
        ] {
            assert_eq!(heard(&notices).reach(), reach, "{notices:?}");
        }
        let late = heard(&[started(), silent, ended(Some(Reach::Unknown))]);
        assert_eq!(late.cut(), Some(Duration::from_secs(5)));
        assert_eq!(heard(&[started(), started()]).cut(), None);
    }

    #[test]
    fn a_call_has_begun_when_an_attempt_runs_or_it_waits_for_an_in_flight_call() {
        let mut heard = Heard::default();
        assert!(!heard.has_begun());
        heard.hear(&Notice::Following);
        assert!(heard.has_begun());
        assert_eq!(heard.reach(), Reach::NotSent, "it has sent nothing itself");
        let mut heard = Heard::default();
        heard.hear(&started());
        assert!(heard.has_begun());
    }

    #[test]
    fn the_result_of_the_last_attempt() {
        let asked = [started(), ended(None), Notice::InputRequired];
        let failed = [started(), ended(Some(Reach::Refused))];
        for (notices, has_asked, has_failed) in [
            (&[][..], false, false),
            (&[started()], false, false),
            (&asked, true, false),
            (&failed, false, true),
            (&asked[..2], false, false),
        ] {
            let heard = heard(notices);
            assert_eq!((heard.has_asked(), heard.failed().is_some()), (has_asked, has_failed), "{notices:?}");
        }
    }
}
