//! Concurrent calls: in any order, one runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steadfast_core::dedupe::{CallFailure, Claim, ClaimRole, ClaimVerdict, LocalKnowledge, ReleaseRequest};
use steadfast_core::output::ToolOutput;
use tokio::task::JoinSet;

use super::world::{SuiteWorld, call_id, done, index, output, save, within, word};
use crate::StateStore;

const CALLERS: u64 = 64;

pub(super) async fn sf_1_of_many_claimers_one_runs(world: SuiteWorld) {
    for round in 0..4 {
        let name = format!("round {round}");
        one_runs(&world, (0..CALLERS).map(|_| world.explicit(&name)).collect()).await;
        one_runs(&world, (0..CALLERS).map(|_| world.call_id(&name, &name)).collect()).await;
    }
}

pub(super) async fn sf_1_of_many_equal_calls_one_runs(world: SuiteWorld) {
    for round in 0..4 {
        let name = format!("round {round}");
        let claims = (0..CALLERS).map(|number| match number % 3 {
            // Half of them have ids, and every id occurs twice.
            0 => world.call_id(&format!("{name} dispatch {}", number / 6), &name),
            _ => world.keyless(&name),
        });
        one_runs(&world, claims.collect()).await;
    }
}

pub(super) async fn sf_1_of_many_waiters_for_a_lapsed_run_one_takes_it_over(world: SuiteWorld) {
    for round in 0..4 {
        let name = format!("round {round}");
        let lapsed = world.take_and_lapse(Claim { retry_safe: true, ..world.keyless(&name) }).await;
        let claims = (0..CALLERS).map(|number| Claim {
            retry_safe: true,
            role: ClaimRole::Waiter { followed: lapsed.key },
            ..match number % 2 {
                0 => world.keyless(&name),
                _ => world.call_id(&format!("{name} dispatch {number}"), &name),
            }
        });
        one_runs(&world, claims.collect()).await;
    }
}

/// Of these claims, made concurrently through both handles, one runs, and all others follow it.
async fn one_runs(world: &SuiteWorld, claims: Vec<Claim>) {
    let mut claimers = JoinSet::new();
    for (number, claim) in (0..).zip(claims) {
        let store = world.handle(number);
        claimers.spawn(async move { store.claim(&claim, &LocalKnowledge::default()).await.unwrap() });
    }
    let (mut runs, mut followed) = (Vec::new(), Vec::new());
    while let Some(verdict) = claimers.join_next().await {
        match verdict.unwrap() {
            ClaimVerdict::Acquired(record) => runs.push(record),
            ClaimVerdict::Follow(key) => followed.push(key),
            verdict => panic!("neither mine nor another's: {}", word(&verdict)),
        }
    }
    let [run] = runs.as_slice() else { panic!("{} of {CALLERS} run", runs.len()) };
    assert!(followed.iter().all(|key| *key == run.key), "all follow the one that runs");
}

pub(super) async fn tr_2_many_callers_get_the_same_result(world: SuiteWorld) {
    for round in 0..4 {
        let runs = Arc::new(AtomicUsize::new(0));
        let mut callers = JoinSet::new();
        for number in 0..CALLERS {
            let claim = match number % 2 {
                0 => world.keyless(&format!("round {round}")),
                _ => world.call_id(&format!("round {round} {number}"), &format!("round {round}")),
            };
            callers.spawn(call(world.handle(number), claim, Arc::clone(&runs)));
        }
        while let Some(answer) = within("the answer", callers.join_next()).await {
            assert_eq!(answer.unwrap(), Ok(Some(output("paid"))));
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
}

type RacedResult = Result<Option<ToolOutput>, CallFailure>;

/// A complete call: claims, runs or follows, and returns the result.
async fn call(store: Arc<dyn StateStore>, claim: Claim, runs: Arc<AtomicUsize>) -> RacedResult {
    let mut claim = claim;
    loop {
        match store.claim(&claim, &LocalKnowledge::default()).await.unwrap() {
            ClaimVerdict::Acquired(record) => {
                runs.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                store.save(&save(&record, done("paid"))).await.unwrap();
                return Ok(Some(output("paid")));
            }
            ClaimVerdict::Follow(key) => {
                store.settled(key).await;
                claim.role = ClaimRole::Waiter { followed: key };
            }
            ClaimVerdict::Replay(replay) => return replay.answer,
            verdict => panic!("{}", word(&verdict)),
        }
    }
}

/// Each call touches several keys, in no common order. A store that locks them one by one deadlocks here.
pub(super) async fn calls_that_cross_do_not_block_each_other(world: SuiteWorld) {
    let mut callers = JoinSet::new();
    for caller in 0..16 {
        let (store, crossing) = (world.handle(caller), crossing(&world, caller));
        callers.spawn(async move {
            for (claim, release) in crossing {
                if let ClaimVerdict::Acquired(record) =
                    store.claim(&claim, &LocalKnowledge::default()).await.unwrap()
                {
                    store.save(&save(&record, done("paid"))).await.unwrap();
                }
                store.release(&release).await.unwrap();
            }
        });
    }
    while let Some(result) = within("calls that cross", callers.join_next()).await {
        result.unwrap();
    }
}

/// Ids and arguments in every combination, and releases of records that are elsewhere.
fn crossing(world: &SuiteWorld, caller: u64) -> Vec<(Claim, ReleaseRequest)> {
    let pairing = |number: u64| {
        let (id, arguments) = ((caller + number) % 5, (caller * 7 + number * 3) % 5);
        let claim = world.call_id(&format!("crossing {id}"), &format!("crossing {arguments}"));
        let index = Some(index(&format!("crossing {}", number % 5)));
        let release = ReleaseRequest {
            key: call_id(&format!("crossing {arguments}")),
            index,
            owner: claim.owner.clone(),
        };
        (claim, release)
    };
    (0..24).map(pairing).collect()
}
