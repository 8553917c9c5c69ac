//! The acceptance matrix of the tool reliability layer, row by row. Each case also checks the last column of its row:
//! the state that must not have changed.

mod breaker;
mod duplicates;
mod retries;
mod telemetry;

crate::world::for_every_store! {
    duplicates::{
        tr_1_a_malformed_envelope_runs_nothing_and_leaves_nothing_behind,
        tr_2_a_duplicate_in_flight_waits_and_runs_nothing,
        tr_2_a_duplicate_in_another_engine_waits_and_runs_nothing,
        tr_3_a_duplicate_after_completion_gets_the_recorded_answer,
        tr_4_the_same_key_with_other_parameters_is_a_conflict_or_another_call,
        sf_1_sixty_four_callers_of_one_key_get_one_answer,
    },
    retries::{
        tr_5_two_timeouts_and_a_success_are_three_attempts_with_jittered_delays,
        tr_6_a_400_is_final_after_one_attempt,
        tr_7_a_tool_that_always_fails_exhausts_its_attempts_with_bounded_waits,
        tr_11_nothing_is_retried_against_an_open_breaker,
    },
    breaker::{
        tr_8_five_failing_mutations_open_the_breaker_and_the_next_call_reaches_no_tool,
        tr_8_a_forced_open_breaker_stays_open_in_a_fleet_and_over_a_restart,
        tr_9_two_successful_probes_close_the_breaker,
        tr_9_a_fleet_sends_one_probe,
        tr_10_a_failing_probe_opens_the_breaker_again_with_a_new_cooldown,
    },
    telemetry::{
        tr_12_hooks_fire_once_per_attempt_and_once_for_a_short_circuit,
        tr_13_every_transition_is_counted_and_logged_within_bounds,
        tr_14_switched_off_a_call_goes_straight_through,
        tr_15_secrets_are_neither_logged_nor_stored,
    },
}
