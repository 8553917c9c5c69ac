//! What is heard of the attempts of a call, and how far the call got by it: whether another tool may do the job depends on that.

use std::time::Duration;

use crate::call::{Cut, FailedAttempt, Notice};
use crate::classify::Reach;

/// What was heard of the attempts of one call.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    last: Last,
    /// Whether an attempt before the last one may have run. A later one that was refused takes nothing of it back.
    in_doubt: bool,
    /// Whether it waited for a run of somebody else.
    followed: bool,
}

/// The last attempt.
#[derive(Clone, Debug, Default)]
enum Last {
    #[default]
    None,
    /// Nobody has seen its end.
    UnderWay {
        cut: Option<Duration>,
    },
    Failed {
        how: FailedAttempt,
        cut: Option<Duration>,
    },
    /// The tool did its work.
    Done,
    /// The tool asked for input instead of doing anything.
    Asked,
}

impl Heard {
    /// Takes a notice of the call.
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

    /// How far the call got, if it did not succeed. What was never tried was never sent. What still runs may have done
    /// anything, although its caller was answered; and so may what ran and did not tell, whatever came of a retry.
    pub fn reach(&self) -> Reach {
        match &self.last {
            _ if self.in_doubt => Reach::Unknown,
            Last::None => Reach::NotSent,
            Last::UnderWay { .. } | Last::Done => Reach::Unknown,
            Last::Failed { how, .. } => how.reach,
            Last::Asked => Reach::Answered,
        }
    }

    /// How the last attempt failed.
    pub fn failed(&self) -> Option<&FailedAttempt> {
        match &self.last {
            Last::Failed { how, .. } => Some(how),
            Last::None | Last::UnderWay { .. } | Last::Done | Last::Asked => None,
        }
    }

    /// What the last attempt was allowed, if it took longer.
    pub fn cut(&self) -> Option<Duration> {
        match &self.last {
            Last::UnderWay { cut } | Last::Failed { cut, .. } => *cut,
            Last::None | Last::Done | Last::Asked => None,
        }
    }

    /// Whether anything runs or ran for it: an attempt of its own, or what it waits for.
    pub fn has_begun(&self) -> bool {
        self.followed || !matches!(self.last, Last::None)
    }

    /// Whether the tool asked for input instead of doing anything.
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
    fn how_far_a_call_got() {
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
            // What a retry comes to says nothing of the attempt before it.
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
    fn a_call_has_begun_when_something_runs_for_it_also_if_that_is_the_run_of_another() {
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
    fn what_became_of_the_last_attempt() {
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
