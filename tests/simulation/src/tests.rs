//! The simulation itself is tested: it finds what is wrong, and only that.

use crate::system::{Breakers, World};
use crate::{Defect, run};

/// Seeds that once broke a promise run first, so that what was fixed stays fixed.
const OLD_SEEDS: [u64; 12] = [8, 11, 332, 359, 2239, 2327, 3665, 6600, 15583, 23936, 34085, 38666];

/// The same, from when there were turns.
const OLD_SEEDS_OF_TURNS: [u64; 7] = [27, 178, 1163, 3698, 8334, 13165, 16039];

#[test]
fn sf_8_seeds_that_once_broke_a_promise_keep_it() {
    for seed in OLD_SEEDS_OF_TURNS {
        if let Err(failure) = run(seed, None) {
            panic!("seed {seed} breaks {:?} again: {}", failure.invariant, failure.how);
        }
    }
    for seed in OLD_SEEDS {
        if let Err(failure) = World::new(seed, None, Breakers::Apart).live() {
            panic!("seed {seed} breaks {:?} again: {}", failure.invariant, failure.how);
        }
    }
}

#[test]
fn sf_8_some_worlds_lose_their_store_and_those_of_old_seeds_are_as_they_were() {
    let losses = |seed| run(seed, None).map_or(0, |summary| summary.emptyings);
    assert!((0..200).map(losses).sum::<u64>() > 50);
    for seed in OLD_SEEDS {
        assert_eq!(losses(seed), 0, "seed {seed} was found before stores were emptied");
    }
}

#[test]
fn sf_8_every_planted_defect_is_found() {
    for defect in Defect::ALL {
        let found = (0..3000).find_map(|seed| run(seed, Some(defect)).err());
        let Some(failure) = found else { panic!("{defect:?} was not found in 3,000 seeds") };
        assert!(
            defect.breaks().contains(&failure.invariant),
            "{defect:?} broke {:?}: {}",
            failure.invariant,
            failure.how
        );
        assert!(!failure.story.is_empty(), "a failure tells its story");
    }
}

#[test]
fn sf_8_the_same_seed_gives_the_same_world() {
    for seed in 0..50 {
        let [first, second] = [run(seed, None), run(seed, None)].map(|world| format!("{world:?}"));
        assert_eq!(first, second);
    }
}
