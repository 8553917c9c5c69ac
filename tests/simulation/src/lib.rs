//! Deterministic simulation of the decision core.
//!
//! Many callers, several processes, one shared store, tools whose effects are counted, and faults that the
//! seed draws: crashes between any two steps, frozen processes whose leases lapse, lost commands and lost
//! answers of the store, lost wake-ups, broken connections, broken answers, callers who cancel or leave, tools
//! that fail, hang, answer late, answer with errors that prove nothing, or die with the work half done, a store that loses
//! everything, operators who force, reset and resolve, clocks that jump forward.
//! Tools are children of the processes that call them, or far away; `settling` says until when an attempt may take effect. Some
//! clients do as they are told when an outcome is unknown, others do as they like (`agent`).
//! In half of the worlds clients also submit turns, to any process, again when they get no answer, sometimes twice at once, and
//! sometimes with other alternatives than before.
//! Then the faults stop, and everything has to come to its end.
//!
//! Before its world, each seed tries the small machines of the core alone, each beside a reference (`machines`).
//!
//! What must hold is in `invariants`; what is true of the world is in `model`; the machines under test and
//! the world around them are in `system`; what can happen to them is in `transition`. A seed decides
//! everything. A failing one prints the command that replays it and the story of what happened.

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
mod emptied;
mod history;
mod interference;
mod invariants;
mod judgements;
mod machines;
mod model;
mod processes;
mod retries;
mod rng;
mod settling;
mod sharing;
mod store;
mod system;
mod tables;
mod tools;
mod transition;
mod turns;
mod unknown_outcomes;
mod verification;
mod weather;

#[cfg(test)]
mod tests;

pub use coverage::Coverage;
pub use system::Summary;

/// A mistake planted on purpose, to show that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The store saves whoever comes.
    OwnerIgnoredAtSave,
    /// An answer counts as delivered when it is written.
    DeliveredBeforeWrite,
    /// The record does not say that an attempt may have been sent until it has ended.
    StartedAfterAttempt,
    /// A refusal is stored as if it were an answer.
    RefusalStored,
    /// A breaker counts answers whatever happened to it meanwhile.
    LateBreakerResultCounted,
    /// The guard counts each attempt.
    GuardCountsRetries,
    /// A waiter is treated like a newcomer when it wakes.
    WaiterForgetsThatItWaited,
    /// An unknown outcome counts as told when it is looked up.
    ToldWhenLookedUp,
    /// Everyone who sees a grant may spend it.
    GrantSpentByAll,
    /// An emptied store takes new claims at once.
    EmptiedStoreTakesClaims,
    /// A store that has noticed the loss of its records runs calls under explicit keys before that is accepted.
    LossNotHeeded,
    /// A holder that finds an emptied store does not write its claim again.
    ClaimNotWrittenAgain,
    /// A save that finds nothing writes nothing.
    SaveNeedsItsRecord,
    /// A claim is saved or given back while a renewal is still on its way.
    RenewalOvertaken,
    /// A dispatch that failed runs again beside an equal run that is open or owes its answer.
    FailedDispatchDoesNotStandBack,
    /// Whoever thinks that it is time to probe does so, whatever the others do.
    ProbeNotShared,
    /// What a breaker concludes by itself goes before what a person said.
    ByHandOvertaken,
    /// A caller who was only asked to wait counts as told that it is over.
    NotYetCountsAsDelivered,
    /// An answer that came too late for its caller counts as delivered.
    LateCountsAsDelivered,
    /// A read that began before its client heard that a run is over counts as a look into it.
    EarlierReadCounts,
    /// A caller is told that an outcome is unknown before that is recorded.
    ToldBeforeRecorded,
    /// What a tool says to the cut of an attempt is taken for its answer.
    ErrorAfterCutCounts,
    /// An operator may say that a run did not happen while it still may.
    ResolvedBeforeTheEnd,
    /// A run that was cut counts as over.
    OverWhenCut,
    /// A run whose holder is gone counts as over.
    OverWithItsHolder,
    /// The store goes by the clock of whoever claims.
    ClocksCompared,
    /// What a turn chose is not written before the call is sent.
    ChoiceNotKept,
    /// A turn that goes back to the tool of its plan does not write that.
    BackToPlanNotKept,
    /// What a turn chose is found by its number among the alternatives, whatever stands there when it comes again.
    ChosenByItsPlace,
    /// A turn that comes again picks its tools by their breakers, as if nothing of it could have run.
    BreakerBeforeRecord,
    /// An alternative has the key of the tool that it stands in for.
    KeyWithoutCandidate,
    /// The calls of a turn have other keys when it comes again.
    KeyOfSubmission,
    /// Whoever submits a turn runs it.
    HoldNotChecked,
    /// A turn is held for a shorter time than it may run.
    HoldShorterThanTurn,
    /// The end of a failed call is told to its turn as an empty success.
    FailureToldAsNothing,
    /// A tool's question is told to the turn as its answer.
    QuestionToldAsAnswer,
    /// An attempt whose end nobody has seen counts as one that was never sent.
    UnderWayCountsAsUnsent,
    /// Of a call that was made several times only the last attempt counts.
    OnlyLastAttemptCounts,
    /// A call that is made again on a guess is taken for one of which its record knows everything.
    EarlierAttemptsForgotten,
    /// A call that could not ask the store is told to its turn as one that found no room.
    StoreFailureToldAsOverload,
    /// The calls of a turn do not know when it is over.
    DeadlineNotPassedOn,
    /// Nobody wakes a turn at its deadline.
    DeadlineNotKept,
    /// What the time ran out for before it was sent is told as what runs.
    NotStartedToldAsRunning,
    /// A call whose choice could not be kept is forgotten.
    UnkeptForgotten,
    /// What a plan says about parallelism is not heard.
    ParallelismIgnored,
    /// A process that comes back goes on with the turns that it held.
    TurnGoesOnByItself,
    /// The store says that it has saved an answer, and has not.
    SaveOnlySaid,
    /// A tool reports as done what it has not done yet, and may never do.
    AnswerBeforeEffect,
    /// A grant that was spent for nothing is not given back.
    GrantNotGivenBack,
}

impl Defect {
    /// All of them.
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
    /// Whether it shows only where a store loses everything; then every world has that.
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

    /// Whether it shows only where outcomes are unknown; then every world has many of them.
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

    /// Whether it shows only where clients submit turns; then every world has some.
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

    /// The promises that it breaks, one of which the simulation has to notice.
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
            // Who does not hear of a person goes on in epochs that others have left, and may probe there.
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

/// A seed that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Which promise.
    pub invariant: &'static str,
    /// How it was broken.
    pub how: String,
    /// What happened until then, a line each.
    pub story: Vec<String>,
}

/// Tries the machines of one seed alone, and lives through its world. Defects are planted in worlds only.
pub fn run(seed: u64, defect: Option<Defect>) -> Result<Summary, Box<Failure>> {
    let of_machines = if defect.is_none() { machines::run(seed)? } else { Coverage::default() };
    let mut summary = system::World::new(seed, defect).live()?;
    summary.coverage.add(&of_machines);
    Ok(summary)
}
