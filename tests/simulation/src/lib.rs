//! Deterministic simulation of the decision core.
//!
//! The world has many callers, several processes, one shared store, and tools whose effects are counted. The seed draws
//! the faults:
//!
//! - crashes between any two steps, and frozen processes whose leases lapse;
//! - lost commands and lost replies of the store, lost wake-ups, and a store that loses everything;
//! - broken connections, broken answers, and callers that cancel or leave;
//! - tools that fail, hang, answer late, answer with errors that prove nothing, or die with the work half done;
//! - operators that force, reset and resolve, and clocks that jump forward.
//!
//! Tools are child processes or remote; `settling` defines until when an attempt may take effect. Some clients follow
//! the instructions in a response about an unknown outcome, others do not (`agent`).
//!
//! In half of the worlds clients also submit turns, to any process. They submit a turn again when they get no answer,
//! sometimes twice at once, and sometimes with other alternatives than before.
//!
//! Then the faults stop, and everything must end.
//!
//! Before its world, each seed tests the small machines of the core alone, each beside a reference (`machines`).
//!
//! The promises are in `invariants`, and the ground truth in `model`. `system` has the machines under test and the
//! world around them, `transition` the events that can happen to them. A seed decides everything. A failing one prints
//! the command that replays it and the story of its world.

#![expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "a test program: an index or a text that is wrong is a mistake of the simulation, and stops it"
)]

mod agent;
mod answers;
mod breakers;
mod clients;
mod coverage;
mod history;
mod interference;
mod invariants;
mod judgements;
mod machines;
mod model;
mod processes;
mod retries;
mod rng;
mod scenario;
mod settling;
mod sharing;
mod store;
mod store_loss;
mod system;
mod tables;
mod tools;
mod transition;
mod turns;
mod unknown_outcomes;
mod verification;

#[cfg(test)]
mod tests;

pub use coverage::TableCoverage;
pub use system::Summary;

/// A defect planted on purpose, to show that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The store saves without comparing the owner.
    OwnerIgnoredAtSave,
    /// An answer counts as delivered when it is written.
    DeliveredBeforeWrite,
    /// The record does not say that an attempt may have been sent until the attempt has ended.
    StartedAfterAttempt,
    /// A refusal is stored as if it were an answer.
    RefusalStored,
    /// A breaker counts results of earlier epochs.
    LateBreakerResultCounted,
    /// The guard counts each attempt.
    GuardCountsRetries,
    /// A waiter is treated like a new call when it wakes.
    WaiterForgetsThatItWaited,
    /// An unknown outcome counts as reported when it is looked up.
    ToldWhenLookedUp,
    /// Every call that sees a grant may spend it.
    GrantSpentByAll,
    /// A store that lost everything grants new claims at once.
    EmptiedStoreTakesClaims,
    /// A store that has noticed the loss of its records runs calls with explicit keys before the loss is accepted.
    LossNotHeeded,
    /// A holder that finds its claim lost does not write it again.
    ClaimNotWrittenAgain,
    /// A save that finds nothing writes nothing.
    SaveNeedsItsRecord,
    /// A claim is saved or released while a renewal is still in transit.
    RenewalOvertaken,
    /// A dispatch that failed runs again beside an equal run that is open or whose answer is not delivered.
    FailedDispatchDoesNotStandBack,
    /// A process probes when it considers it time, without asking the others.
    ProbeNotShared,
    /// A transition that a breaker makes by itself overrides one that an operator forced.
    ByHandOvertaken,
    /// A pending response counts as a final one.
    NotYetCountsAsDelivered,
    /// An answer that came too late for its caller counts as delivered.
    LateCountsAsDelivered,
    /// A read that began before its client received the final response counts as a verification.
    EarlierReadCounts,
    /// A caller receives an unknown outcome before it is recorded.
    ToldBeforeRecorded,
    /// A tool's reply to a cut attempt is taken for its answer.
    ErrorAfterCutCounts,
    /// An operator may resolve a run as not run while it still may run.
    ResolvedBeforeTheEnd,
    /// A run that was cut counts as over.
    OverWhenCut,
    /// A run whose holder is gone counts as over.
    OverWithItsHolder,
    /// The store uses the clock of the claiming process.
    ClocksCompared,
    /// The choice of a turn is not written before the call is sent.
    ChoiceNotKept,
    /// A turn that returns to the tool of its plan does not write that.
    BackToPlanNotKept,
    /// The chosen alternative is found by its index, even if the plan has changed since.
    ChosenByItsPlace,
    /// A resubmitted turn chooses its tools by their breakers, as if none of its calls could have run.
    BreakerBeforeRecord,
    /// An alternative has the key of the tool that it replaces.
    KeyWithoutCandidate,
    /// The calls of a resubmitted turn have other keys than before.
    KeyOfSubmission,
    /// Every submission of a turn runs it.
    HoldNotChecked,
    /// A turn is held for a shorter time than it may run.
    HoldShorterThanTurn,
    /// A failed call is reported to its turn as an empty success.
    FailureToldAsNothing,
    /// A tool's question is reported to the turn as its answer.
    QuestionToldAsAnswer,
    /// An attempt whose end was not observed counts as never sent.
    UnderWayCountsAsUnsent,
    /// Of a call that was made several times only the last attempt counts.
    OnlyLastAttemptCounts,
    /// A call that is made again on a guess is treated as if its record covered all of its attempts.
    EarlierAttemptsForgotten,
    /// A store failure is reported to the turn as overload.
    StoreFailureToldAsOverload,
    /// The calls of a turn do not know its deadline.
    DeadlineNotPassedOn,
    /// A turn is not woken at its deadline.
    DeadlineNotKept,
    /// A call that did not start before the deadline is reported as running.
    NotStartedToldAsRunning,
    /// A call whose choice could not be stored is forgotten.
    UnkeptForgotten,
    /// The parallelism of a plan is ignored.
    ParallelismIgnored,
    /// A restarted process continues the turns that it held.
    TurnGoesOnByItself,
    /// The store confirms a save without having saved.
    SaveOnlySaid,
    /// A tool reports an effect as done that has not happened and may never happen.
    AnswerBeforeEffect,
    /// A grant that was spent for nothing is not released.
    GrantNotGivenBack,
}

impl Defect {
    /// All defects.
    pub const ALL: [Self; 49] = [
        Self::OwnerIgnoredAtSave,
        Self::DeliveredBeforeWrite,
        Self::StartedAfterAttempt,
        Self::RefusalStored,
        Self::LateBreakerResultCounted,
        Self::GuardCountsRetries,
        Self::WaiterForgetsThatItWaited,
        Self::ToldWhenLookedUp,
        Self::GrantSpentByAll,
        Self::EmptiedStoreTakesClaims,
        Self::LossNotHeeded,
        Self::ClaimNotWrittenAgain,
        Self::SaveNeedsItsRecord,
        Self::RenewalOvertaken,
        Self::FailedDispatchDoesNotStandBack,
        Self::ProbeNotShared,
        Self::ByHandOvertaken,
        Self::NotYetCountsAsDelivered,
        Self::LateCountsAsDelivered,
        Self::EarlierReadCounts,
        Self::ToldBeforeRecorded,
        Self::ErrorAfterCutCounts,
        Self::ResolvedBeforeTheEnd,
        Self::OverWhenCut,
        Self::OverWithItsHolder,
        Self::ClocksCompared,
        Self::ChoiceNotKept,
        Self::BackToPlanNotKept,
        Self::ChosenByItsPlace,
        Self::BreakerBeforeRecord,
        Self::KeyWithoutCandidate,
        Self::KeyOfSubmission,
        Self::HoldNotChecked,
        Self::HoldShorterThanTurn,
        Self::FailureToldAsNothing,
        Self::QuestionToldAsAnswer,
        Self::UnderWayCountsAsUnsent,
        Self::OnlyLastAttemptCounts,
        Self::EarlierAttemptsForgotten,
        Self::StoreFailureToldAsOverload,
        Self::DeadlineNotPassedOn,
        Self::DeadlineNotKept,
        Self::NotStartedToldAsRunning,
        Self::UnkeptForgotten,
        Self::ParallelismIgnored,
        Self::TurnGoesOnByItself,
        Self::SaveOnlySaid,
        Self::AnswerBeforeEffect,
        Self::GrantNotGivenBack,
    ];
}

impl Defect {
    /// Returns true if the defect shows only where a store loses everything. Every world then has that.
    fn needs_an_emptied_store(self) -> bool {
        matches!(
            self,
            Self::EmptiedStoreTakesClaims
                | Self::LossNotHeeded
                | Self::ClaimNotWrittenAgain
                | Self::SaveNeedsItsRecord
                | Self::RenewalOvertaken
        )
    }

    /// Returns true if the defect shows only where outcomes are unknown. Every world then has many of them.
    fn needs_unknown_outcomes(self) -> bool {
        matches!(
            self,
            Self::NotYetCountsAsDelivered
                | Self::EarlierReadCounts
                | Self::ToldBeforeRecorded
                | Self::ErrorAfterCutCounts
                | Self::ResolvedBeforeTheEnd
                | Self::OverWhenCut
                | Self::OverWithItsHolder
                | Self::ToldWhenLookedUp
        )
    }

    /// Returns true if the defect shows only where clients submit turns. Every world then has some.
    fn needs_turns(self) -> bool {
        match self {
            Self::ChoiceNotKept
            | Self::BackToPlanNotKept
            | Self::ChosenByItsPlace
            | Self::BreakerBeforeRecord
            | Self::KeyWithoutCandidate
            | Self::KeyOfSubmission
            | Self::HoldNotChecked
            | Self::HoldShorterThanTurn
            | Self::FailureToldAsNothing
            | Self::QuestionToldAsAnswer
            | Self::UnderWayCountsAsUnsent
            | Self::OnlyLastAttemptCounts
            | Self::EarlierAttemptsForgotten
            | Self::StoreFailureToldAsOverload
            | Self::DeadlineNotPassedOn
            | Self::DeadlineNotKept
            | Self::NotStartedToldAsRunning
            | Self::UnkeptForgotten
            | Self::ParallelismIgnored
            | Self::TurnGoesOnByItself => true,
            Self::OwnerIgnoredAtSave
            | Self::DeliveredBeforeWrite
            | Self::StartedAfterAttempt
            | Self::RefusalStored
            | Self::LateBreakerResultCounted
            | Self::GuardCountsRetries
            | Self::WaiterForgetsThatItWaited
            | Self::ToldWhenLookedUp
            | Self::GrantSpentByAll
            | Self::EmptiedStoreTakesClaims
            | Self::LossNotHeeded
            | Self::ClaimNotWrittenAgain
            | Self::SaveNeedsItsRecord
            | Self::RenewalOvertaken
            | Self::FailedDispatchDoesNotStandBack
            | Self::ProbeNotShared
            | Self::ByHandOvertaken
            | Self::NotYetCountsAsDelivered
            | Self::LateCountsAsDelivered
            | Self::EarlierReadCounts
            | Self::ToldBeforeRecorded
            | Self::ErrorAfterCutCounts
            | Self::ResolvedBeforeTheEnd
            | Self::OverWhenCut
            | Self::OverWithItsHolder
            | Self::ClocksCompared
            | Self::SaveOnlySaid
            | Self::AnswerBeforeEffect
            | Self::GrantNotGivenBack => false,
        }
    }

    /// Returns the invariants that the defect breaks. The simulation must notice one of them.
    pub fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::OwnerIgnoredAtSave => {
                &["recorded stays", "one run per key", "told before run again", "right arguments"]
            }
            Self::DeliveredBeforeWrite | Self::ToldWhenLookedUp => &["told before run again"],
            Self::StartedAfterAttempt => &["one run per key", "told before run again"],
            Self::RefusalStored => &["no refusal again"],
            Self::LateBreakerResultCounted => &["own epoch"],
            Self::GuardCountsRetries => &["guard counts calls"],
            Self::WaiterForgetsThatItWaited => &["told before run again", "waiters are answered"],
            Self::GrantSpentByAll | Self::GrantNotGivenBack => &["grants once"],
            Self::SaveOnlySaid | Self::AnswerBeforeEffect => &["claims what happened"],
            Self::EmptiedStoreTakesClaims | Self::ClaimNotWrittenAgain => {
                &["one run per key", "told before run again", "recorded stays"]
            }
            Self::LossNotHeeded => &["one run per key", "done once in a turn"],
            Self::SaveNeedsItsRecord => &["late answers count", "one run per key", "told before run again"],
            Self::RenewalOvertaken => &["an end", "late answers count"],
            Self::FailedDispatchDoesNotStandBack
            | Self::NotYetCountsAsDelivered
            | Self::EarlierReadCounts => &["told before run again"],
            Self::LateCountsAsDelivered => &["once for the obedient", "told before run again"],
            Self::ToldBeforeRecorded => &["recorded before told"],
            Self::ErrorAfterCutCounts => {
                &["nothing after the end", "told before run again", "one run per key", "claims what happened"]
            }
            Self::ResolvedBeforeTheEnd => {
                &["nothing after the end", "told before run again", "one run per key"]
            }
            Self::OverWhenCut | Self::OverWithItsHolder => &["nothing after the end"],
            Self::ClocksCompared => {
                &["nothing after the end", "one run per key", "told before run again", "patience is enough"]
            }
            Self::ProbeNotShared => &["one probe"],
            // A process that ignores the operator continues in epochs that others have left, and may probe there.
            Self::ByHandOvertaken => &["by hand", "one probe"],
            Self::ChoiceNotKept
            | Self::BackToPlanNotKept
            | Self::ChosenByItsPlace
            | Self::BreakerBeforeRecord
            | Self::UnderWayCountsAsUnsent
            | Self::OnlyLastAttemptCounts
            | Self::EarlierAttemptsForgotten
            | Self::StoreFailureToldAsOverload => &["done once in a turn"],
            Self::KeyOfSubmission => &["done once in a turn", "one run per key"],
            Self::KeyWithoutCandidate => &["own key"],
            Self::HoldNotChecked | Self::HoldShorterThanTurn => &["one submission at a time"],
            Self::FailureToldAsNothing => &["no dependant without", "one true state"],
            Self::QuestionToldAsAnswer => &["one true state", "no dependant without"],
            Self::NotStartedToldAsRunning => &["one true state"],
            Self::UnkeptForgotten => &["one true state", "turns end"],
            Self::DeadlineNotPassedOn => &["nothing after the deadline"],
            Self::DeadlineNotKept => &["turns end"],
            Self::ParallelismIgnored => &["parallelism"],
            Self::TurnGoesOnByItself => &["not unattended"],
        }
    }
}

/// A seed that broke an invariant.
#[derive(Clone, Debug)]
pub struct SimulationFailure {
    /// The seed.
    pub seed: u64,
    /// Name of the broken invariant.
    pub invariant: &'static str,
    /// Description of the violation.
    pub description: String,
    /// Events until then, one line each.
    pub trace: Vec<String>,
}

/// Tests the machines of one seed alone, then runs its world. Defects are planted in worlds only.
pub fn run(seed: u64, defect: Option<Defect>) -> Result<Summary, Box<SimulationFailure>> {
    let of_machines = if defect.is_none() { machines::run(seed)? } else { TableCoverage::default() };
    let mut summary = system::SimulatedWorld::new(seed, defect).run_to_end()?;
    summary.coverage.add(&of_machines);
    Ok(summary)
}
