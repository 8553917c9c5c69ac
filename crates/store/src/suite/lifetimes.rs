//! Lifetimes of records, and explicit removal.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::dedupe::{Claim, ClaimVerdict, DedupeRecord, DedupeRules, RunOutcome, SaveRequest};
use steadfast_core::id::{SessionKey, TenantId};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;

use super::world::{
    FailurePermanence, SuiteWorld, done, failed, final_unknown, lifetimes, release, rules, save, session,
    tool,
};
use crate::selection::{FlushTarget, RecordFilter, RecordPage};

pub(super) async fn expired_records_are_absent(world: SuiteWorld) {
    let short = 4 * world.moment();
    type LifetimesOf = fn(Duration) -> RecordLifetimes;
    let cases: [(&str, Option<RunOutcome>, LifetimesOf); 4] = [
        ("done", Some(done("paid")), |short| RecordLifetimes { done: short, ..lifetimes() }),
        ("failed", Some(failed(FailurePermanence::ForGood)), |short| RecordLifetimes {
            failed: short,
            ..lifetimes()
        }),
        ("unknown", Some(final_unknown()), |short| RecordLifetimes { open: short, ..lifetimes() }),
        ("in flight", None, |short| RecordLifetimes { open: short, ..lifetimes() }),
    ];
    let mut short_lived = Vec::new();
    for (name, ending, lives) in &cases {
        let keep = lives(short);
        // The claim lives as long as open records do, so only its own lifetime ends it.
        let claim = Claim { rules: DedupeRules { keep, ..rules() }, ..world.explicit(name) };
        let record = world.take(&claim).await;
        if let Some(ending) = ending {
            world.save(&SaveRequest { keep, ..save(&record, ending.clone()) }).await.unwrap();
        }
        if world.has_manual_clock() {
            assert!(!world.is_absent(record.key).await, "{name} lives until then");
        }
        short_lived.push((name, record));
        let claim = world.explicit(&format!("long-lived {name}"));
        let long = world.take(&claim).await;
        if let Some(ending) = ending {
            world.save(&save(&long, ending.clone())).await.unwrap();
        }
    }
    world.pass(5).await;
    for (name, record) in short_lived {
        assert!(world.is_absent(record.key).await, "{name}");
        let claim = world.explicit(name);
        assert_eq!(world.verdict(&claim).await, "mine", "{name}");
        let long = world.explicit(&format!("long-lived {name}"));
        assert_ne!(world.verdict(&long).await, "mine", "{name}");
    }
}

pub(super) async fn open_records_are_pinned(world: SuiteWorld) {
    let keep = RecordLifetimes { done: world.moment(), failed: world.moment(), ..lifetimes() };
    let short = |claim: Claim| Claim { rules: DedupeRules { keep, ..rules() }, ..claim };
    let inflight = world.take(&short(world.keyless("in flight"))).await;
    let lapsed = world.take_and_lapse(short(world.keyless("lapsed"))).await;
    let unknown = world.take(&short(world.keyless("unknown"))).await;
    world.save(&SaveRequest { keep, ..save(&unknown, final_unknown()) }).await.unwrap();
    world.pass(2).await;
    sweep(&world).await;
    let everything = FlushTarget::Finished(RecordFilter::default());
    assert_eq!(world.flush(&everything).await.unwrap(), 0, "an unqualified flush leaves open ones alone");
    for record in [inflight, lapsed, unknown] {
        assert_eq!(world.found(record.key).await.owner, record.owner);
    }
    for (arguments, expected) in
        [("in flight", "follow"), ("lapsed", "tell not yet"), ("unknown", "tell final")]
    {
        assert_eq!(world.verdict(&world.keyless(arguments)).await, expected, "the index is kept too");
    }
}

pub(super) async fn an_unknown_outcome_under_hold_stays(world: SuiteWorld) {
    let keep = RecordLifetimes { open: world.moment(), done: world.moment(), ..lifetimes() };
    let record = world.take(&world.explicit("held")).await;
    world.save(&SaveRequest { keep, hold: true, ..save(&record, final_unknown()) }).await.unwrap();
    world.pass(2).await;
    sweep(&world).await;
    assert_eq!(world.found(record.key).await.expires, None);
    assert_eq!(world.verdict(&world.explicit("held")).await, "tell final");
}

pub(super) async fn a_sweep_comes_to_an_end(world: SuiteWorld) {
    let keep = RecordLifetimes { done: world.moment(), ..lifetimes() };
    let mut keys = Vec::new();
    for number in 0..50 {
        let record = world.take(&world.keyless(&format!("call {number}"))).await;
        world.save(&SaveRequest { keep, ..save(&record, done("paid")) }).await.unwrap();
        keys.push(record.key);
    }
    let remaining = world.run(&world.keyless("stays"), done("paid")).await.0;
    world.pass(2).await;
    sweep(&world).await;
    for key in keys {
        assert!(world.is_absent(key).await);
    }
    assert_eq!(world.found(remaining.key).await, remaining);
}

async fn sweep(world: &SuiteWorld) {
    for _ in 0..1000 {
        if !world.sweep().await.unwrap().more {
            return;
        }
    }
    panic!("a thousand sweeps are not enough for a handful of records");
}

pub(super) async fn a_flush_of_a_key_removes_it_in_any_state(world: SuiteWorld) {
    for (number, ending) in [None, Some(done("paid")), Some(final_unknown())].into_iter().enumerate() {
        let arguments = format!("call {number}");
        let record = world.take(&world.keyless(&arguments)).await;
        if let Some(ending) = ending {
            world.save(&save(&record, ending)).await.unwrap();
        }
        assert_eq!(world.second().flush(&FlushTarget::Key(record.key)).await.unwrap(), 1);
        assert!(world.is_absent(record.key).await);
        assert_eq!(world.flush(&FlushTarget::Key(record.key)).await.unwrap(), 0);
        assert_eq!(world.verdict(&world.keyless(&arguments)).await, "mine");
    }
}

pub(super) async fn a_flush_removes_the_finished_records_of_a_selection(world: SuiteWorld) {
    let other = OtherCaller::new();
    let make = async |name: &str, change: fn(&OtherCaller, Claim) -> Claim| {
        let finished = change(&other, world.explicit(&format!("{name} done")));
        let finished = world.run(&finished, done("paid")).await.0.key;
        let open = change(&other, world.explicit(&format!("{name} open")));
        let open = world.take(&open).await.key;
        (finished, open)
    };
    let of_session =
        make("session", |other, claim| Claim { session: Some(other.session.clone()), ..claim }).await;
    let of_tenant =
        make("tenant", |other, claim| Claim { tenant: Some(other.tenant.clone()), ..claim }).await;
    let of_tool = make("tool", |other, claim| Claim { tool: other.tool.clone(), ..claim }).await;
    let unattributed = make("nobody", |_, claim| Claim { session: None, tenant: None, ..claim }).await;

    let session = RecordFilter { session: Some(other.session.clone()), ..RecordFilter::default() };
    let tenant = RecordFilter { tenant: Some(other.tenant.clone()), ..RecordFilter::default() };
    let by_tool = RecordFilter { tool: Some(other.tool.clone()), ..RecordFilter::default() };
    let none = RecordFilter { tool: Some(other.tool.clone()), ..session.clone() };
    let open = RecordFilter { open: true, ..RecordFilter::default() };
    let flush = async |selection: RecordFilter| world.flush(&FlushTarget::Finished(selection)).await.unwrap();

    assert_eq!(flush(none).await, 0, "every part of a selection counts");
    assert_eq!(flush(open).await, 0, "what is open is not finished");
    for (selection, (finished, _), others) in [
        (session, of_session, [of_tenant.0, of_tool.0, unattributed.0].as_slice()),
        (tenant, of_tenant, &[of_tool.0, unattributed.0]),
        (by_tool, of_tool, &[unattributed.0]),
        (RecordFilter::default(), unattributed, &[]),
    ] {
        assert_eq!(flush(selection.clone()).await, 1, "{selection:?}");
        assert!(world.is_absent(finished).await, "{selection:?}");
        for other in others {
            assert!(!world.is_absent(*other).await, "{selection:?}");
        }
    }
    for (_, open) in [of_session, of_tenant, of_tool, unattributed] {
        assert!(!world.is_absent(open).await, "open ones stay");
    }
    // A removed record is also gone from the index.
    world.run(&world.keyless("flushed"), done("paid")).await;
    assert_eq!(flush(RecordFilter::default()).await, 1);
    assert_eq!(world.verdict(&world.keyless("flushed")).await, "mine");
}

struct OtherCaller {
    session: SessionKey,
    tenant: TenantId,
    tool: steadfast_core::id::ToolRef,
}

impl OtherCaller {
    fn new() -> Self {
        Self {
            session: SessionKey::new("another conversation").unwrap(),
            tenant: TenantId::new("another tenant").unwrap(),
            tool: tool("refund"),
        }
    }
}

pub(super) async fn records_come_in_pages(world: SuiteWorld) {
    let mut all = Vec::new();
    for number in 0..25 {
        let name = format!("call {number}");
        let claim = world.keyless(&name);
        all.push(match number % 5 {
            0 => world.take(&claim).await,
            _ => world.run(&claim, done(&name)).await.0,
        });
    }
    let elsewhere = Claim { session: None, ..world.explicit("elsewhere") };
    let elsewhere = world.take(&elsewhere).await;
    all.sort_by_key(|record| record.key);

    let here = RecordFilter { session: Some(session()), ..RecordFilter::default() };
    for limit in [1, 7, 25, 1000] {
        let mut read: Vec<DedupeRecord> = Vec::new();
        loop {
            let after = read.last().map(|record| record.key);
            let page = world.second().records(&here, RecordPage { after, limit }).await.unwrap();
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            read.extend(page);
            assert!(read.len() <= all.len(), "a page begins behind the last one");
        }
        assert_eq!(read, all, "in pages of {limit}");
    }
    let open = RecordFilter { open: true, ..here };
    let open = world.records(&open, RecordPage { after: None, limit: 100 }).await.unwrap();
    assert_eq!(open, all.iter().filter(|record| record.is_open()).cloned().collect::<Vec<_>>());
    let everywhere =
        world.records(&RecordFilter::default(), RecordPage { after: None, limit: 100 }).await.unwrap();
    assert_eq!(everywhere.len(), 26);
    assert!(everywhere.contains(&elsewhere));
    let nothing =
        world.records(&RecordFilter::default(), RecordPage { after: None, limit: 0 }).await.unwrap();
    assert_eq!(nothing, []);
}

pub(super) async fn a_full_store_evicts_finished_records_only(world: SuiteWorld) {
    let Some(most) = world.most() else { return };
    let open = (most / 4).max(1);
    let mut pinned = Vec::new();
    for number in 0..open {
        pinned.push(world.take(&world.keyless(&format!("open {number}"))).await.key);
    }
    for number in 0..2 * most {
        world.run(&world.explicit(&format!("done {number}")), done("paid")).await;
    }
    let left = count(&world).await;
    assert!(left <= most, "{left} records in a store of {most}");
    assert!(left > most / 2, "it forgets no more than it has to, but {left} of {most} are left");
    for (number, key) in pinned.into_iter().enumerate() {
        assert!(!world.is_absent(key).await, "open record {number} of {open} was forgotten");
        assert_eq!(world.verdict(&world.keyless(&format!("open {number}"))).await, "follow");
    }
    let newest = world.explicit(&format!("done {}", 2 * most - 1));
    assert_eq!(world.verdict(&newest).await, "replay", "the newest is the last to go");
}

pub(super) async fn a_store_full_of_open_records_reports_it(world: SuiteWorld) {
    let Some(most) = world.most() else { return };
    let mut records = Vec::new();
    loop {
        let claim = world.keyless(&format!("open {}", records.len()));
        match world.ask(&claim).await {
            ClaimVerdict::Acquired(record) => records.push(Arc::unwrap_or_clone(record)),
            ClaimVerdict::Full => break,
            verdict => panic!("{verdict:?} for call {}", records.len()),
        }
        assert!(records.len() <= most, "more than {most} open records");
    }
    assert_eq!(records.len(), most, "full means full");
    let refused = world.keyless(&format!("open {most}"));
    assert!(world.is_absent(refused.address.own()).await, "nothing is written");
    assert_eq!(world.verdict(&world.keyless("open 0")).await, "follow", "duplicates need no room");
    assert_eq!(count(&world).await, most);

    let [first, second, ..] = records.as_slice() else { panic!("a store of {most} is too small to test") };
    world.release(&release(first)).await.unwrap();
    assert_eq!(world.verdict(&refused).await, "mine", "a released record makes room");
    assert_eq!(world.verdict(&world.keyless("one more")).await, "full");
    world.save(&save(second, done("paid"))).await.unwrap();
    assert_eq!(world.verdict(&world.keyless("one more")).await, "mine", "what is finished makes room");
    assert_eq!(world.found(records[2].key).await, records[2]);
}

async fn count(world: &SuiteWorld) -> usize {
    let mut after: Option<RecordKey> = None;
    let mut count = 0;
    loop {
        let page = world.records(&RecordFilter::default(), RecordPage { after, limit: 1000 }).await.unwrap();
        let Some(last) = page.last() else { return count };
        after = Some(last.key);
        count += page.len();
    }
}
