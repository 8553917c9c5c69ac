//! Every state with every event: the step and the state that follow, or a misuse that changes nothing.

use super::probe::open_until_now;
use super::*;

const STATES: [&str; 17] = [
    "Looking",
    "Claiming",
    "Following",
    "AwaitingEnd",
    "AwaitingApproval",
    "GivingBack",
    "Spending",
    "Starting",
    "Probing",
    "Attempting",
    "BackingOff",
    "Renewing",
    "Marking",
    "Settling",
    "Saving",
    "Releasing",
    "Finished",
];

const EVENTS: [&str; 16] = [
    "Claimed",
    "Woke",
    "Answered",
    "Spent",
    "Started",
    "Probed",
    "Ran",
    "Progressed",
    "Renewed",
    "Saved",
    "Released",
    "StoreFailed",
    "Cancelled",
    "Disconnected",
    "Settled",
    "DriverEnds",
];

/// One row per state, one column per event, in the order of [`STATES`] and [`EVENTS`]. `-` is a misuse; a step alone
/// leaves the state unchanged. The tool is mutating, no other caller waits, and no time limit has passed.
#[rustfmt::skip]
const TABLE: [[&str; 16]; 17] = [
    // Claimed             Woke                Answered           Spent             Started           Probed            Ran              Progressed Renewed  Saved              Released           StoreFailed          Cancelled            Disconnected         Settled            DriverEnds
    ["Finish Finished",    "Stay",             "-",               "-",              "-",              "-",              "-",             "Stay",    "Stay",  "-",               "-",               "Finish Finished",   "Finish Finished",   "Finish Finished", "-",               "-"],
    ["Run Attempting",     "Stay",             "-",               "-",              "-",              "-",              "-",             "Stay",    "Stay",  "-",               "-",               "ClaimOnly",         "Finish Finished",   "Finish Finished", "-",               "-"],
    ["-",                  "Claim Claiming",   "-",               "-",              "-",              "-",              "-",             "Stay",    "Stay",  "-",               "-",               "-",                 "Finish Finished",   "Finish Finished", "-",               "-"],
    ["-", "Claim Claiming", "-", "-", "-", "-", "-", "Stay", "Stay", "-", "-", "-", "Finish Finished", "Finish Finished", "-", "-"],
    ["-",                  "Stay",             "Start Starting",  "-",              "-",              "-",              "-",             "Stay",    "Stay",  "-",               "-",               "-",                 "Release Releasing", "Release Releasing", "-",               "-"],
    ["-", "Stay", "-", "-", "-", "-", "-", "Stay", "Stay", "-", "ClaimOnly Claiming", "Finish Finished", "Finish Finished", "Finish Finished", "-", "-"],
    ["-",                  "Stay",             "-",               "Start Starting", "-",              "-",              "-",             "Stay",    "Stay",  "-",               "-",               "Release Releasing", "Release Releasing", "Release Releasing", "-",               "-"],
    ["-",                  "Stay",             "-",               "-",              "Run Attempting", "-",              "-",             "Stay",    "Stay",  "-",               "-",               "Release Releasing", "Release Releasing", "Release Releasing", "-",               "-"],
    ["-",                  "Stay",             "-",               "-",              "-",              "Run Attempting", "-",            "Stay",    "Stay",  "-",               "-",               "Run Attempting",    "Release Releasing", "Release Releasing", "-",               "-"],
    ["-",                  "Stay",             "-",               "-",              "-",              "-",              "Save Saving",   "Stay",    "Stay",  "-",               "-",               "-",                 "Answer",            "Stay", "Stay",            "-"],
    ["-",                  "Stay",             "-",               "-",              "-",              "-",              "-",             "Stay",    "Stay",  "-",               "-",               "-",                 "Release Releasing", "Stay", "-",               "-"],
    ["-",                  "Stay",             "-",               "-",              "-",              "-",              "-",             "Stay",    "Run Attempting", "-",      "-",               "Finish Finished",   "Release Releasing", "Stay", "-",               "-"],
    ["-", "Stay", "-", "-", "-", "-", "-", "Stay", "Stay", "CancelUpstream Settling", "-", "CancelUpstream Settling", "Stay", "Stay", "-", "-"],
    ["-", "Wait", "-", "-", "-", "-", "Save Saving", "Stay", "Stay", "-", "-", "-", "Wait", "Wait", "Wait", "Finish Finished"],
    ["-",                  "Stay",             "-",               "-",              "-",              "-",              "-",             "Stay",    "Stay",  "Finish Finished", "-",               "Finish Finished",   "Stay",              "Stay", "Stay",            "-"],
    ["-",                  "Stay",             "-",               "-",              "-",              "-",              "-",             "Stay",    "Stay",  "-",               "Finish Finished", "Finish Finished",   "Stay",              "Stay", "-",               "-"],
    ["-",                  "-",                "-",               "-",              "-",              "-",              "-",             "-",       "-",     "-",               "-",               "-",                 "-",                 "-", "-",               "-"],
];

/// Events whose content leads elsewhere than the table above; the rest is the same.
#[rustfmt::skip]
const VARIANTS: &[(&str, &str, &str)] = &[
    ("Looking", "Claimed nothing", "Finish Finished"),
    ("Looking", "Claimed full", "Finish Finished"),
    ("Looking", "Claimed follow", "Follow Following"),
    ("Looking", "Claimed busy", "Finish Finished"),
    ("Looking", "Claimed replay", "Finish Finished"),
    ("Looking", "Claimed unknown", "Finish Finished"),
    ("Looking", "Claimed conflict", "Finish Finished"),
    ("Claiming", "Claimed mine, not started", "Start Starting"),
    ("Claiming", "Claimed nothing", "Finish Finished"),
    ("Claiming", "Claimed full", "Finish Finished"),
    ("Claiming", "Claimed follow", "Follow Following"),
    ("Claiming", "Claimed busy", "Finish Finished"),
    ("Claiming", "Claimed replay", "Finish Finished"),
    ("Claiming", "Claimed unknown", "Finish Finished"),
    ("Claiming", "Claimed unknown, soon over", "AwaitEnd AwaitingEnd"),
    ("Claiming", "Claimed unknown, not over for long", "Finish Finished"),
    ("AwaitingEnd", "Woke changed", "Claim Claiming"),
    ("AwaitingEnd", "Woke due", "Claim Claiming"),
    ("Claiming", "Claimed conflict", "Finish Finished"),
    ("Claiming", "Claimed its own as unknown", "Finish Finished"),
    ("Following", "Woke changed", "Claim Claiming"),
    ("Following", "Woke refused", "Finish Finished"),
    ("Following", "Woke due", "Finish Finished"),
    ("Following", "Cancelled, others wait", "Finish Finished"),
    ("AwaitingApproval", "Answered granted", "Spend Spending"),
    ("AwaitingApproval", "Answered denied", "Release Releasing"),
    ("AwaitingApproval", "Answered nobody", "Release Releasing"),
    ("AwaitingApproval", "Answered by asking the caller", "Release Releasing"),
    ("AwaitingApproval", "Woke due", "Release Releasing"),
    ("AwaitingApproval", "Cancelled, others wait", "Answer"),
    ("AwaitingApproval", "Disconnected, others wait", "Answer"),
    ("Spending", "Spent already mine", "Start Starting"),
    ("Spending", "Spent holds", "Start Starting"),
    ("Spending", "Spent lost", "Ask AwaitingApproval"),
    ("Spending", "Spent gone", "Ask AwaitingApproval"),
    ("Spending", "Cancelled, others wait", "Answer"),
    ("Starting", "Started lost", "ClaimOnly Claiming"),
    ("Starting", "Cancelled, others wait", "Answer"),
    ("Probing", "Cancelled, others wait", "Answer"),
    ("Probing", "Disconnected, others wait", "Answer"),
    ("Attempting", "Ran time-out", "Save Marking"),
    ("Attempting", "Ran busy", "Wait BackingOff"),
    ("Attempting", "Ran refused for good", "Release Releasing"),
    ("Attempting", "Ran said no", "Save Saving"),
    ("Attempting", "Ran asks", "Release Releasing"),
    ("Attempting", "Woke due", "Save Marking"),
    ("Attempting", "Renewed lost", "Stay"),
    ("Attempting", "Cancelled, others wait", "Answer"),
    ("Attempting", "Disconnected, others wait", "Stay"),
    ("BackingOff", "Woke due", "Renew Renewing"),
    ("BackingOff", "Renewed lost", "Stay"),
    ("BackingOff", "Cancelled, others wait", "Answer"),
    ("BackingOff", "Disconnected, others wait", "Stay"),
    ("Renewing", "Renewed lost", "Finish Finished"),
    ("Renewing", "Renewed unknown", "Finish Finished"),
    ("Renewing", "Cancelled, others wait", "Answer"),
    ("Saving", "Saved fence lost", "Finish Finished"),
    ("Marking", "Saved fence lost", "CancelUpstream Settling"),
    ("Settling", "Ran time-out", "Finish Finished"),
    ("Settling", "Ran said no", "Finish Finished"),
    ("Settling", "Woke due", "Wait"),
];

#[test]
fn every_state_answers_every_event_as_in_the_table() {
    for (state, row) in STATES.iter().zip(TABLE) {
        for (event, expected) in EVENTS.iter().zip(row) {
            check(state, event, expected);
        }
    }
}

#[test]
fn the_content_of_an_event_selects_the_listed_step() {
    for (state, event, expected) in VARIANTS {
        check(state, event, expected);
    }
}

#[test]
fn the_table_names_every_state_and_every_event() {
    for name in STATES {
        let (_, call) = in_state(name);
        assert_eq!(call.state(), name);
        assert_eq!(call.is_finished(), name == "Finished");
    }
    for name in EVENTS {
        let (world, call) = in_state("Following");
        assert_eq!(event(name, &world, &call).name(), name);
    }
}

#[test]
fn a_misuse_names_its_event_and_state() {
    let (mut world, mut call) = in_state("Attempting");
    let misuse = world.on_only(&mut call, CallEvent::Released).unwrap_err();
    assert_eq!(misuse, CallMisuse { state: "Attempting", event: "Released" });
    assert_eq!(
        misuse.to_string(),
        "event Released is not valid in state Attempting: the driver answered a step that the call did not return"
    );
}

fn check(state: &str, event_name: &str, expected: &str) {
    let (mut world, mut call) = in_state(state);
    let event = event(event_name, &world, &call);
    if event_name.ends_with("due") {
        world.now = call.wake_at().unwrap_or_else(|| panic!("{state} waits for no moment"));
    }
    let (before, noticed) = (format!("{call:?}"), world.notices.len());
    let found = match world.on_only(&mut call, event) {
        Err(misuse) => {
            assert_eq!(misuse.state, state);
            assert_eq!(format!("{call:?}"), before, "{state} × {event_name}: a misuse changes nothing");
            assert_eq!(world.notices.len(), noticed, "{state} × {event_name}: a misuse tells nothing");
            "-".to_owned()
        }
        Ok(step) if call.state() == state => name_of(&step).to_owned(),
        Ok(step) => format!("{} {}", name_of(&step), call.state()),
    };
    assert_eq!(found, expected, "{state} × {event_name}");
}

/// Returns a call in this state.
fn in_state(state: &str) -> (CallTestWorld, Call) {
    let mut world = CallTestWorld::new();
    let mut policy = policy(ToolClass::Mutating);
    // Shorter than the first wait, so that a retry has to renew.
    policy.dedupe.keep.lease = 100 * MS;
    if matches!(state, "AwaitingApproval" | "Spending" | "Starting") {
        policy.approval.when = ApprovalTrigger::Always;
    }
    if state == "Looking" {
        world.breaker.force_open(None, world.now);
    }
    if state == "Probing" {
        open_until_now(&mut world, &policy);
    }
    if matches!(state, "AwaitingEnd" | "GivingBack") {
        let request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
        let (mut call, _) = world.begin_only(request, &policy);
        let claimed = match state {
            "AwaitingEnd" => event("Claimed unknown, soon over", &world, &call),
            _ => {
                let acquired = event("Claimed", &world, &call);
                // Trust is lost while the claim is in transit.
                Arc::make_mut(&mut call.policy).approval.when = ApprovalTrigger::Always;
                acquired
            }
        };
        world.on_only(&mut call, claimed).unwrap();
        return (world, call);
    }
    if state == "Following" {
        world.begin(request(&policy), &policy);
    }
    let request = from_envelope_on(&keyed("k"), &policy, ApprovalChannel::Interactive);
    if matches!(state, "Looking" | "Claiming") {
        let (call, _) = world.begin_only(request, &policy);
        return (world, call);
    }
    let (mut call, _) = match state {
        "Probing" => world.begin_only(request, &policy),
        _ => world.begin(request, &policy),
    };
    let events: &[&str] = match state {
        "Spending" => &["Answered granted"],
        "Starting" => &["Answered"],
        "Probing" => &["Claimed"],
        "BackingOff" => &["Ran busy"],
        "Renewing" => &["Ran busy", "Woke due"],
        "Marking" => &["Woke due"],
        "Settling" => &["Woke due", "Saved", "Woke due"],
        "Saving" => &["Ran"],
        "Releasing" => &["Ran refused for good"],
        "Finished" => &["Ran", "Saved"],
        _ => &[],
    };
    for name in events {
        let event = event(name, &world, &call);
        if name.ends_with("due") {
            world.now = call.wake_at().unwrap();
        }
        world.on_only(&mut call, event).unwrap();
    }
    (world, call)
}

fn event(name: &str, world: &CallTestWorld, call: &Call) -> CallEvent {
    let claim = call
        .claim(ClaimIntent::Take { started: !name.ends_with("not started") }, ClaimRole::Fresh, world.now)
        .unwrap();
    let acquired =
        decide_claim(&claim, FoundRecords::default(), &LocalKnowledge::default(), world.now).verdict;
    let ClaimVerdict::Acquired(record) = acquired.clone() else {
        panic!("a claim that finds nothing is mine")
    };
    let replay = crate::dedupe::ReplayedResult {
        answer: Ok(Some(answer("paid"))),
        reason: crate::dedupe::ReplayReason::SameKey,
        age: SECOND,
        receipt: record.receipt(),
    };
    let refusal = messages::store_unavailable(call.request());
    let another_s = ClaimOwner { call: record.owner.call + 1, ..record.owner.clone() };
    let unknown_of = |owner: &ClaimOwner, end| {
        CallEvent::Claimed(ClaimVerdict::Unknown(Box::new(UnknownOutcomeStatus {
            end,
            observed: UnknownOutcomeReason::NoAnswer,
            details: None,
            output: None,
            runs_in: None,
            receipt: crate::dedupe::DeliveryReceipt { owner: owner.clone(), ..record.receipt() },
        })))
    };
    let unknown = |end| unknown_of(&another_s, end);
    match name {
        "Claimed" | "Claimed mine, not started" => CallEvent::Claimed(acquired),
        "Claimed nothing" => CallEvent::Claimed(ClaimVerdict::Nothing),
        "Claimed full" => CallEvent::Claimed(ClaimVerdict::Full),
        "Claimed follow" => CallEvent::Claimed(ClaimVerdict::Follow(record.key)),
        "Claimed busy" => CallEvent::Claimed(ClaimVerdict::Busy),
        "Claimed replay" => CallEvent::Claimed(ClaimVerdict::Replay(Box::new(replay))),
        "Claimed unknown" => unknown(SettleStatus::Settled),
        "Claimed unknown, soon over" => unknown(SettleStatus::NotYet(Some(SECOND))),
        "Claimed unknown, not over for long" => unknown(SettleStatus::NotYet(Some(3600 * SECOND))),
        "Claimed its own as unknown" => unknown_of(&record.owner, SettleStatus::Settled),
        "Claimed conflict" => CallEvent::Claimed(ClaimVerdict::Conflict),
        "Woke" | "Woke due" => CallEvent::Woke(WakeReason::Time),
        "Woke changed" => CallEvent::Woke(WakeReason::Changed),
        "Woke refused" => CallEvent::Woke(WakeReason::LeaderRefused(Box::new(refusal))),
        "Answered" => CallEvent::Answered(ApprovalOutcome::Granted(None)),
        "Answered granted" => CallEvent::Answered(ApprovalOutcome::Granted(Some(GrantId(1)))),
        "Answered denied" => CallEvent::Answered(ApprovalOutcome::Denied),
        "Answered nobody" => CallEvent::Answered(ApprovalOutcome::Unreachable),
        "Answered by asking the caller" => {
            CallEvent::Answered(ApprovalOutcome::ReturnedToCaller(answer("may it run?")))
        }
        "Spent" => CallEvent::Spent(SpendVerdict::Spent),
        "Spent already mine" => CallEvent::Spent(SpendVerdict::AlreadyMine),
        "Spent holds" => CallEvent::Spent(SpendVerdict::Holds),
        "Spent lost" => CallEvent::Spent(SpendVerdict::Lost),
        "Spent gone" => CallEvent::Spent(SpendVerdict::Gone),
        "Started" => CallEvent::Started(StartVerdict::Started),
        "Started lost" => CallEvent::Started(StartVerdict::Lost),
        "Probed" => CallEvent::Probed,
        "Ran" => CallEvent::Ran(paid()),
        "Ran time-out" => CallEvent::Ran(timed_out()),
        "Ran busy" => CallEvent::Ran(busy(Duration::ZERO)),
        "Ran refused for good" => CallEvent::Ran(http(413)),
        "Ran said no" => CallEvent::Ran(http(400)),
        "Ran asks" => CallEvent::Ran(input_required()),
        "Progressed" => CallEvent::Progressed,
        "Renewed" => renewed(call, world.now, RenewVerdict::Renewed),
        "Renewed unknown" => renewed(call, world.now, RenewVerdict::MarkedUnknown),
        "Renewed lost" => renewed(call, world.now, RenewVerdict::Lost),
        "Saved" => CallEvent::Saved(SaveVerdict::Saved(record.receipt())),
        "Saved fence lost" => CallEvent::Saved(SaveVerdict::FenceLost),
        "Released" => CallEvent::Released,
        "StoreFailed" => CallEvent::StoreFailed(StoreFault::NotDone),
        "Cancelled" => CallEvent::Cancelled(OtherWaiters::None),
        "Cancelled, others wait" => CallEvent::Cancelled(OtherWaiters::Waiting),
        "Disconnected" => CallEvent::Disconnected(OtherWaiters::None),
        "Disconnected, others wait" => CallEvent::Disconnected(OtherWaiters::Waiting),
        "Settled" => CallEvent::Settled,
        "DriverEnds" => CallEvent::DriverEnds,
        other => panic!("no such event: {other}"),
    }
}
