//! Tests of stored breakers, and of the knowledge of the processes that share them.

use super::*;

impl BreakerSnapshot {
    /// Returns the same state with another epoch.
    pub(super) fn from_parts(epoch: u64, of: &Self) -> Self {
        let mut json = serde_json::to_value(of).unwrap();
        json["epoch"] = epoch.into();
        serde_json::from_value(json).unwrap()
    }
}

#[test]
fn an_open_breaker_survives_a_restart() {
    let policy = measured();
    for state in STATES {
        let before = in_state(state);
        let text = serde_json::to_string(&before.snapshot()).unwrap();
        let after = CircuitBreaker::restore(&serde_json::from_str(&text).unwrap(), at(20));
        assert_eq!(after.state(&policy, at(20)), state);
        assert_eq!((after.epoch(), after.snapshot()), (before.epoch(), before.snapshot()));
    }
    let mut open = CircuitBreaker::restore(&in_state(State::Open).snapshot(), at(20));
    assert_eq!(open.admit(&policy, at(20)).unwrap_err().retry_at, Some(at(30)), "the rest of its cool-down");
    let mut probing = in_state(State::HalfOpen);
    _ = probing.admit(&policy, at(31)).unwrap();
    let mut restarted = CircuitBreaker::restore(&probing.snapshot(), at(32));
    assert!(restarted.admit(&policy, at(32)).is_ok(), "whoever probed is gone");
}

#[test]
fn the_stored_form_is_fixed() {
    let text = serde_json::to_string(&in_state(State::Open).snapshot()).unwrap();
    assert_eq!(
        text,
        r#"{"version":1,"epoch":1,"state":"OPEN","reopened":0,"changed":{"at":0,"reason":"consecutive"},"changes":[{"from":"CLOSED","to":"OPEN","reason":"consecutive","at":0}]}"#
    );
    let mut forced = CircuitBreaker::default();
    forced.force_open(Some(at(60)), at(0));
    assert_eq!(
        serde_json::to_string(&forced.snapshot()).unwrap(),
        r#"{"version":1,"epoch":1048576,"state":"FORCED_OPEN","reopened":0,"changed":{"at":0,"reason":"forced"},"until":60000,"changes":[{"from":"CLOSED","to":"FORCED_OPEN","reason":"forced","at":0}]}"#
    );
}

#[test]
fn stored_garbage_is_refused_and_the_future_becomes_now() {
    for (text, message) in [
        (r#"{"version":2,"epoch":1,"state":"OPEN"}"#, "breaker format 2 is unknown, this program reads 1"),
        (
            r#"{"version":1,"epoch":18446744073709551615,"state":"OPEN"}"#,
            "breaker epoch 18446744073709551615 is beyond",
        ),
        (r#"{"version":1,"epoch":1,"state":"AJAR"}"#, "unknown variant `AJAR`"),
        (r#"{"version":1,"state":"OPEN"}"#, "missing field `epoch`"),
        (r#"{"version":1,"epoch":-1,"state":"OPEN"}"#, "invalid value"),
    ] {
        let error = serde_json::from_str::<BreakerSnapshot>(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let text = r#"{"version":1,"epoch":7,"state":"OPEN","reopened":4294967295,"new":0,
                   "changed":{"at":18446744073709551615,"reason":"rate"}}"#;
    let mut breaker = CircuitBreaker::restore(&serde_json::from_str(text).unwrap(), at(100));
    assert_eq!(breaker.admit(&measured(), at(100)).unwrap_err().retry_at, Some(at(130)));
    let growing = BreakerCooldown {
        first: Duration::from_secs(1),
        growth: GrowthFactor::TWO,
        cap: Duration::from_secs(9),
    };
    let growing = BreakerPolicy { cooldown: growing, ..measured() };
    assert_eq!(breaker.attempt(&growing, BAD, at(130)).unwrap().to, State::Open);
    assert_eq!(breaker.check(&growing, at(130)).unwrap_err().retry_at, Some(at(139)));
}

#[test]
fn a_change_of_another_process_is_adopted_if_it_is_newer() {
    let policy = measured();
    let (mut here, mut there) = (CircuitBreaker::default(), CircuitBreaker::default());
    let (ticket, _) = here.admit(&policy, at(0)).unwrap();
    for _ in 0..5 {
        there.attempt(&policy, BAD, at(1));
    }
    let opened = there.snapshot();
    assert!(opened.replaces(&here.snapshot()) && !here.snapshot().replaces(&opened));
    let change = here.adopt(&opened, at(2)).unwrap();
    assert_eq!(
        (change.from, change.to, change.reason),
        (State::Closed, State::Open, TransitionReason::Consecutive)
    );
    assert_eq!(here.record(&policy, ticket, OK, at(2)), None);
    assert_eq!(here.adopt(&opened, at(20)), None, "known already");
    assert_eq!(here.check(&policy, at(20)).unwrap_err().retry_at, Some(at(31)));

    // The other process probes. Its slot is taken here as well, until its lease is over.
    let (_probe, _) = there.admit(&policy, at(31)).unwrap();
    assert_eq!(here.adopt(&there.snapshot(), at(32)).unwrap().to, State::HalfOpen);
    assert_eq!(here.admit(&policy, at(150)).unwrap_err().state, State::HalfOpen);
    assert!(here.admit(&policy, at(151)).unwrap().0.is_probe());

    assert_eq!(here.adopt(&opened, at(152)), None, "older");
    assert_eq!(here.state(&policy, at(152)), State::HalfOpen);
}

#[test]
fn of_two_changes_with_one_epoch_the_stored_one_counts() {
    let policy = measured();
    let (mut here, mut there) = (in_state(State::Open), in_state(State::Open));
    there.probes = 1_000;
    let (local_ticket, _) = here.admit(&policy, at(30)).unwrap();
    let (_other, _) = there.admit(&policy, at(31)).unwrap();
    assert_eq!(here.epoch(), there.epoch());
    assert_eq!(here.adopt(&there.snapshot(), at(32)), None, "half-open here and there");
    assert_eq!(here.record(&policy, local_ticket, OK, at(33)), None, "its probe was given up to the other");
    assert_eq!(here.check(&policy, at(33)).unwrap_err().state, State::HalfOpen);

    let (mut closed, mut forced) = (in_state(State::HalfOpen), in_state(State::HalfOpen));
    closed.attempt(&policy, OK, at(31));
    forced.force_open(None, at(31));
    assert_eq!(closed.adopt(&forced.snapshot(), at(32)).unwrap().to, State::ForcedOpen);
}

#[test]
fn all_processes_that_share_a_breaker_have_one_probe_slot() {
    let policy = standard(ToolClass::Unknown);
    let mut fleet = [1, 2, 3].map(|number| {
        let mut breaker = CircuitBreaker::numbered_from(number * 1_000_000);
        for _ in 0..5 {
            breaker.attempt(&policy, BAD, at(0));
        }
        breaker
    });
    let [a, b, c] = &mut fleet;
    let (first, _) = a.admit(&policy, at(30)).unwrap();
    let stored = a.snapshot();
    // The second process wanted it too, and finds the first one stored.
    let (late, _) = b.admit(&policy, at(30)).unwrap();
    assert!(!b.snapshot().replaces(&stored));
    b.adopt(&stored, at(30));
    assert!(!b.holds(&policy, &late, at(30)) && a.holds(&policy, &first, at(30)));
    b.release(late);
    c.adopt(&stored, at(31));
    for breaker in [&*b, &*c] {
        assert_eq!(breaker.check(&policy, at(31)).unwrap_err().state, State::HalfOpen);
    }

    a.confirm_probe(&first);
    // A renewal that other processes have to learn of.
    assert_eq!(a.renew(&policy, &first, at(31)), TicketRenewal::StillValid);
    assert_eq!(a.renew(&policy, &first, at(80)), TicketRenewal::Extended);
    b.adopt(&a.snapshot(), at(80));
    assert!(b.check(&policy, at(199)).is_err() && b.check(&policy, at(200)).is_ok());

    // Successful probes of different processes count together.
    assert_eq!(a.record(&policy, first, OK, at(81)), None);
    b.adopt(&a.snapshot(), at(81));
    let (second, _) = b.admit(&policy, at(82)).unwrap();
    assert!(second.is_probe());
    assert_eq!(b.record(&policy, second, OK, at(83)).unwrap().to, State::Closed);
    assert_eq!(a.adopt(&b.snapshot(), at(84)).unwrap().to, State::Closed);
}

#[test]
fn an_unknown_probe_takes_no_slot_from_a_known_one() {
    let policy = standard(ToolClass::Unknown);
    let mut fleet = [1, 2].map(|number| {
        let mut breaker = CircuitBreaker::numbered_from(number * 1_000_000);
        for _ in 0..5 {
            breaker.attempt(&policy, BAD, at(0));
        }
        breaker
    });
    let [a, b] = &mut fleet;
    let (known, _) = a.admit(&policy, at(30)).unwrap();
    a.confirm_probe(&known);
    let stored = a.snapshot();
    // The store was not available, so the result changes nothing for the stored probe.
    for verdict in [OK, BreakerVerdict::Neutral] {
        let (alone, _) = b.admit(&policy, at(31)).unwrap();
        assert_eq!(b.record(&policy, alone, verdict, at(32)), None);
        assert!(!b.snapshot().replaces(&stored));
    }
    b.adopt(&stored, at(33));
    assert!(b.check(&policy, at(33)).is_err());
}

#[test]
fn a_slot_that_was_stored_after_its_probe_returned_is_free() {
    let policy = standard(ToolClass::Unknown);
    let mut breaker = CircuitBreaker::numbered_from(1_000_000);
    for _ in 0..5 {
        breaker.attempt(&policy, BAD, at(0));
    }
    let (ticket, _) = breaker.admit(&policy, at(30)).unwrap();
    let late = breaker.snapshot();
    breaker.release(ticket);
    breaker.adopt(&late, at(31));
    assert!(breaker.check(&policy, at(31)).is_ok() && breaker.snapshot().replaces(&late));
}

/// A process that freed its slot without having stored it is one step ahead of the others.
#[test]
fn a_probe_without_agreement_yields_to_a_stored_one() {
    let policy = standard(ToolClass::Unknown);
    let [mut a, mut b] = [1, 2].map(|number| CircuitBreaker::numbered_from(number * 1_000_000));
    for _ in 0..5 {
        a.attempt(&policy, BAD, at(0));
    }
    let (first, _) = a.admit(&policy, at(30)).unwrap();
    a.confirm_probe(&first);
    b.adopt(&a.snapshot(), at(31));
    a.release(first);
    let later = at(31) + policy.probe_lease;
    let (b_ticket, _) = b.admit(&policy, later).unwrap();
    b.confirm_probe(&b_ticket);
    let (a_ticket, _) = a.admit(&policy, later).unwrap();
    a.adopt(&b.snapshot(), later);
    assert!(!a.holds(&policy, &a_ticket, later), "two probes at once");
}

#[test]
fn a_clock_that_differs_between_processes_does_not_prolong_the_cooldown_at_each_read() {
    let policy = measured();
    let mut there = CircuitBreaker::default();
    for _ in 0..5 {
        there.attempt(&policy, BAD, at(500));
    }
    let mut here = CircuitBreaker::default();
    here.adopt(&there.snapshot(), at(100));
    for second in 101..130 {
        assert_eq!(here.adopt(&there.snapshot(), at(second)), None);
    }
    assert!(here.admit(&policy, at(130)).is_ok());
}

/// A process that is cut off from the store opens, half-opens and closes on its own, as often as it likes. Then it
/// learns that an operator had forced the breaker open.
#[test]
fn a_change_by_an_operator_overrides_later_automatic_changes() {
    let policy = measured();
    let mut cut_off = in_state(State::Open);
    let mut here = cut_off.clone();
    for forced in [true, false] {
        if forced {
            here.force_open(None, at(40));
        } else {
            here.reset(at(40));
        }
        let (mut now, mut under_way) = (at(40), None);
        for _ in 0..20 {
            now = now + Duration::from_secs(31);
            let (probe, _) = cut_off.admit(&policy, now).unwrap();
            cut_off.record(&policy, probe, OK, now);
            for _ in 0..5 {
                let (ticket, _) = cut_off.admit(&policy, now).unwrap();
                cut_off.record(&policy, ticket, BAD, now);
            }
            let (probe, _) = cut_off.admit(&policy, now + Duration::from_secs(30)).unwrap();
            under_way = Some(probe);
            now = now + policy.probe_lease;
        }
        assert!(
            here.snapshot().replaces(&cut_off.snapshot()) && !cut_off.snapshot().replaces(&here.snapshot())
        );
        cut_off.adopt(&here.snapshot(), now);
        let expected = if forced { State::ForcedOpen } else { State::Closed };
        assert_eq!((cut_off.state(&policy, now), cut_off.epoch()), (expected, here.epoch()));
        assert_eq!(cut_off.record(&policy, under_way.unwrap(), BAD, now), None, "of an older epoch");
        assert_eq!(cut_off.counts(), BreakerCounts::default());
        // The next round begins at the point where both know the same.
        cut_off.reset(now);
        for _ in 0..5 {
            let (ticket, _) = cut_off.admit(&policy, now).unwrap();
            cut_off.record(&policy, ticket, BAD, at(40));
        }
        here = cut_off.clone();
    }
}
