//! Comparison with a model that keeps everything and computes everything from scratch.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum BreakerModelStep {
    Admit,
    Answer(usize, BreakerVerdict),
    Drop(usize),
    Wait(u64),
    Force,
    ForceFor(u64),
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<BreakerModelStep>> {
    let verdict = prop_oneof![3 => Just(OK), 5 => Just(BAD), 1 => Just(BreakerVerdict::Neutral)];
    let step = prop_oneof![
        8 => Just(BreakerModelStep::Admit),
        8 => (0_usize..4, verdict).prop_map(|(index, verdict)| BreakerModelStep::Answer(index, verdict)),
        1 => (0_usize..4).prop_map(BreakerModelStep::Drop),
        4 => (0_u64..40).prop_map(BreakerModelStep::Wait),
        1 => Just(BreakerModelStep::Force),
        1 => (0_u64..40).prop_map(BreakerModelStep::ForceFor),
        2 => Just(BreakerModelStep::Reset),
    ];
    prop::collection::vec(step, 1..120)
}

/// Every outcome that ever counted, kept in full and searched each time.
#[derive(Default)]
struct BreakerModel {
    outcomes: Vec<(u64, bool)>,
}

impl BreakerModel {
    fn opens(&self, policy: &BreakerPolicy, now: u64) -> bool {
        let recent: Vec<bool> = self
            .outcomes
            .iter()
            .filter(|(at, _)| now - at <= policy.window.as_secs())
            .map(|(_, bad)| *bad)
            .collect();
        let run = recent.iter().rev().take_while(|bad| **bad).count();
        let rule = policy.rate.unwrap();
        let last = &recent[recent.len().saturating_sub(rule.last.get() as usize)..];
        let bad = last.iter().filter(|bad| **bad).count();
        run >= policy.consecutive.unwrap().get() as usize
            || (last.len() >= rule.at_least.get() as usize
                && bad as f64 >= rule.threshold.get() * last.len() as f64)
    }
}

proptest! {
    #[test]
    fn it_opens_when_the_model_does_and_never_has_two_probes(steps in steps()) {
        let rate = RateRule { threshold: Ratio::percent(50), last: count(6), at_least: count(4) };
        let policy = BreakerPolicy {
            consecutive: Some(count(3)),
            rate: Some(rate),
            window: Duration::from_secs(60),
            probe_lease: Duration::from_secs(50),
            ..standard(ToolClass::Unknown)
        };
        let (mut breaker, mut model, mut now) = (CircuitBreaker::default(), BreakerModel::default(), 1000_u64);
        // The tickets in flight: the ticket, its time, and the epoch as counted outside.
        let mut out: Vec<(BreakerTicket, u64, u64)> = Vec::new();
        for step in steps {
            let before = (breaker.epoch(), breaker.phase.state());
            match step {
                BreakerModelStep::Wait(seconds) => now += seconds,
                BreakerModelStep::Admit => match breaker.admit(&policy, at(now)) {
                    Ok((ticket, _)) => {
                        let probing = out.iter().filter(|(ticket, since, epoch)| {
                            ticket.is_probe() && *epoch == breaker.epoch() && now - since < 50
                        });
                        prop_assert!(!ticket.is_probe() || probing.count() == 0, "two probes");
                        out.push((ticket, now, breaker.epoch()));
                    }
                    Err(refused) => prop_assert!(refused.state != State::Closed),
                },
                BreakerModelStep::Answer(index, verdict) if index < out.len() => {
                    let (ticket, since, epoch) = out.remove(index);
                    let lapsed = ticket.is_probe() && now - since >= 50;
                    let probe = ticket.is_probe();
                    let counted_before = breaker.counts();
                    let change = breaker.record(&policy, ticket, verdict, at(now));
                    if epoch != before.0 || lapsed {
                        prop_assert_eq!(change, None, "a late answer changed something");
                        prop_assert_eq!(breaker.counts(), counted_before);
                    } else if !probe && verdict != BreakerVerdict::Neutral {
                        model.outcomes.push((now, verdict == BAD));
                        prop_assert_eq!(change.is_some(), model.opens(&policy, now));
                    }
                }
                BreakerModelStep::Drop(index) if index < out.len() => breaker.release(out.remove(index).0),
                BreakerModelStep::Answer(..) | BreakerModelStep::Drop(_) => {}
                BreakerModelStep::Force => _ = breaker.force_open(None, at(now)),
                BreakerModelStep::ForceFor(seconds) => _ = breaker.force_open(Some(at(now + seconds)), at(now)),
                BreakerModelStep::Reset => _ = breaker.reset(at(now)),
            }
            if breaker.epoch() != before.0 {
                model.outcomes.clear();
            }
            prop_assert!(breaker.epoch() >= before.0);
            prop_assert!(breaker.phase.state() == before.1 || breaker.epoch() > before.0, "a change without an epoch");
            let admits = breaker.check(&policy, at(now)).is_ok();
            prop_assert_eq!(admits, breaker.clone().admit(&policy, at(now)).is_ok(), "check and admit agree");
        }
        // Whatever happened, time alone brings the breaker back to a state that admits calls, unless an operator forced
        // it open.
        now += 1000;
        let for_good = matches!(breaker.phase, BreakerPhase::ForcedOpen { until: None });
        prop_assert_eq!(breaker.check(&policy, at(now)).is_ok(), !for_good);
    }

    #[test]
    fn no_sequence_of_moments_breaks_it(moments in prop::collection::vec((any::<u64>(), 0_u8..4), 1..60)) {
        let (policy, mut breaker, mut out) = (measured(), CircuitBreaker::default(), None);
        for (moment, action) in moments {
            let now = Timestamp::from_millis(moment);
            match (action, out.take()) {
                (0, Some(ticket)) => _ = breaker.record(&policy, ticket, BAD, now),
                (1, Some(ticket)) => _ = breaker.record(&policy, ticket, OK, now),
                (2, ticket) => {
                    out = ticket;
                    breaker = CircuitBreaker::restore(&breaker.snapshot(), now);
                }
                (_, ticket) => out = breaker.admit(&policy, now).map(|(ticket, _)| ticket).ok().or(ticket),
            }
        }
    }
}
