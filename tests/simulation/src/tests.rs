//! Tests of the simulation itself: it finds the planted defects, and nothing else.

use crate::{Defect, run};

/// Seeds that once broke an invariant. They run first, so that fixed defects stay fixed. A seed becomes another world
/// when draws change, so each defect also has a test of its own in the core.
const OLD_SEEDS: [u64; 18] = [
    0, 174, 610, 878, 981, 3_051, 3_120, 3_936, 6_948, 8_202, 9_927, 12_804, 14_635, 15_100, 21_642, 34_350,
    45_672, 63_286,
];

#[test]
fn sf_8_seeds_that_once_broke_a_promise_keep_it() {
    for seed in OLD_SEEDS {
        if let Err(failure) = run(seed, None) {
            panic!("seed {seed} breaks {:?} again: {}", failure.invariant, failure.description);
        }
    }
}

#[test]
fn sf_8_worlds_are_as_rich_as_they_have_to_be() {
    let mut total = crate::Summary::default();
    for seed in 0..300 {
        total.add(run(seed, None).unwrap_or_default());
    }
    assert!(total.emptyings > 50, "some lose their store: {total:?}");
    assert!(total.refused_after_loss > 20, "some of the stores notice that: {total:?}");
    assert!(
        total.pending_responses > 100 && total.final_responses > 100,
        "many outcomes are unknown: {total:?}"
    );
    assert!(total.run_again > 20, "some of them run again: {total:?}");
    assert!(total.reads > 100 && total.resolved > 10, "operators and clients check them: {total:?}");
}

#[test]
fn sf_8_every_planted_defect_is_found() {
    for defect in Defect::ALL {
        let found = (0..6000).find_map(|seed| run(seed, Some(defect)).err());
        let Some(failure) = found else { panic!("{defect:?} was not found in 6,000 seeds") };
        assert!(
            defect.breaks().contains(&failure.invariant),
            "{defect:?} broke {:?}: {}",
            failure.invariant,
            failure.description
        );
        assert!(!failure.trace.is_empty(), "a failure has a story");
    }
}

#[test]
fn sf_8_the_same_seed_gives_the_same_world() {
    for seed in 0..50 {
        let [first, second] = [run(seed, None), run(seed, None)].map(|world| format!("{world:?}"));
        assert_eq!(first, second);
    }
}
