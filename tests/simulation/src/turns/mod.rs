//! Turns: clients submit plans of several calls to any process, and resubmit them when they get no answer or an
//! incomplete one.
//!
//! The machine of a turn and the rules of its document are those of the core. The simulated process reads and writes
//! the document, begins calls through the same machinery as all others, and reports their ends to the turn.
//!
//! | file | content |
//! | --- | --- |
//! | `plans` | the plans of clients |
//! | `clients` | clients that submit, lose patience, cancel and resubmit |
//! | `driver` | the process that carries out the steps of the machine |
//! | `hold` | the document that says which process runs a turn, and its way to the store |
//! | `promises` | the invariants of turns |

mod clients;
mod driver;
mod hold;
mod plans;
mod promises;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::call::{CallNotice, CallResult};
use steadfast_core::id::ToolCallId;
use steadfast_turn::{
    CallProgress, CandidateChoice, SubmissionHistory, TurnEvent, TurnLease, TurnMachine, TurnPlan,
    TurnResult, TurnStatus, TurnStep,
};

use crate::Defect;
use crate::invariants::InvariantViolation;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::system::SimulatedWorld;
use hold::{TurnDocumentReply, TurnDocumentRequest};
pub(crate) use promises::done_once;

/// A turn that a client wants done.
#[derive(Clone, Debug)]
pub(crate) struct TurnGoal {
    pub(crate) client: usize,
    /// The first plan, and the ones with which the client resubmits the turn.
    pub(crate) plans: Vec<Arc<TurnPlan>>,
    pub(crate) parallelism: usize,
    pub(crate) tries: u32,
    pub(crate) over: bool,
}

/// One submission of a turn to a process.
#[derive(Debug)]
pub(crate) struct TurnSubmission {
    pub(crate) turn: usize,
    plan: Arc<TurnPlan>,
    pub(crate) node: usize,
    pub(crate) generation: u64,
    /// The client's connection.
    pub(crate) line: usize,
    /// The connection of its calls. It breaks when no client waits for them.
    inner: usize,
    pub(crate) arrived: Timestamp,
    pub(crate) deadline: Timestamp,
    stage: SubmissionStage,
    machine: Option<TurnMachine>,
    hold: Option<TurnLease>,
    /// Pending steps of the machine.
    queue: VecDeque<TurnStep>,
    /// Events that arrived while the submission waited for the store.
    inbox: VecDeque<TurnEvent>,
    /// True once its deadline has come. The machine learns of it after all other events until then.
    is_due: bool,
    /// Time of the last event that the machine received.
    last_event: Timestamp,
    /// Number of the current store command, so that a reply is not taken for that to another command.
    command: u64,
    writing: Option<ChoiceWrite>,
    /// True states of its calls, whatever the machine believes.
    truth: SubmissionTruth,
}

#[derive(Debug)]
enum SubmissionStage {
    /// The submission is in transit.
    Sent,
    /// The document is being read.
    Reading,
    /// The document is being written.
    Taking(SubmissionHistory),
    Running,
    /// The turn is over and is being released.
    Releasing(Box<TurnResult>),
    Over,
}

/// A choice that is being written, and the call that waits for it.
#[derive(Debug)]
struct ChoiceWrite {
    document: steadfast_turn::TurnDocument,
    again: bool,
    run: Option<TurnStep>,
}

/// True states of the calls of a submission.
#[derive(Debug, Default)]
struct SubmissionTruth {
    sent: BTreeSet<ToolCallId>,
    open: BTreeSet<ToolCallId>,
    succeeded: BTreeSet<ToolCallId>,
}

/// Knowledge that a call and its turn have of each other.
#[derive(Clone, Debug)]
pub(crate) struct TurnMembership {
    pub(crate) submission: usize,
    id: ToolCallId,
    choice: CandidateChoice,
    progress: CallProgress,
}

impl TurnMembership {
    pub(crate) fn record_notice(&mut self, notice: &CallNotice, defect: Option<Defect>) {
        if let (CallNotice::AttemptStarted { .. }, Some(Defect::OnlyLastAttemptCounts)) = (notice, defect) {
            self.progress = CallProgress::default();
        }
        self.progress.record(notice);
    }
}

/// The answer to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnAnswer {
    Ended(TurnStatus),
    /// Another process runs the turn, or the store cannot be asked.
    Refused,
}

/// An event of a turn.
#[derive(Debug)]
pub(crate) enum SimulatedTurnEvent {
    Submit {
        turn: usize,
    },
    Arrives {
        submission: usize,
    },
    /// A command reaches the store. Its reply may get lost.
    StoreRequest {
        submission: usize,
        command: u64,
        request: Box<TurnDocumentRequest>,
        unanswered: bool,
    },
    /// The store's reply reaches the process.
    Stored {
        node: usize,
        generation: u64,
        submission: usize,
        command: u64,
        reply: Box<TurnDocumentReply>,
    },
    /// A call has ended.
    CallEnded {
        node: usize,
        generation: u64,
        in_turn: Box<TurnMembership>,
        result: Box<CallResult>,
    },
    /// The deadline has come.
    Tick {
        node: usize,
        generation: u64,
        submission: usize,
    },
    /// A turn for which no client waits is released.
    Release {
        node: usize,
        generation: u64,
        submission: usize,
    },
    Answered {
        submission: usize,
        answer: TurnAnswer,
    },
    Impatient {
        submission: usize,
    },
}

impl SimulatedTurnEvent {
    pub(crate) fn at_process(&self) -> Option<(usize, u64)> {
        match self {
            Self::Stored { node, generation, .. }
            | Self::CallEnded { node, generation, .. }
            | Self::Tick { node, generation, .. }
            | Self::Release { node, generation, .. } => Some((*node, *generation)),
            Self::Submit { .. }
            | Self::Arrives { .. }
            | Self::StoreRequest { .. }
            | Self::Answered { .. }
            | Self::Impatient { .. } => None,
        }
    }
}

impl SimulatedWorld {
    pub(crate) fn turn_happens(&mut self, happening: SimulatedTurnEvent) -> Result<(), InvariantViolation> {
        match happening {
            SimulatedTurnEvent::Submit { turn } => {
                self.submit(turn);
                Ok(())
            }
            SimulatedTurnEvent::Arrives { submission } => self.turn_arrives(submission),
            SimulatedTurnEvent::StoreRequest { submission, command, request, unanswered } => {
                self.handle_store_request(submission, command, *request, unanswered);
                Ok(())
            }
            SimulatedTurnEvent::Stored { submission, command, reply, .. } => {
                self.turn_stored(submission, command, *reply)
            }
            SimulatedTurnEvent::CallEnded { in_turn, result, .. } => self.turn_call_ended(&in_turn, &result),
            SimulatedTurnEvent::Tick { submission, .. } => {
                self.submissions[submission].is_due = true;
                self.work(submission)
            }
            SimulatedTurnEvent::Release { submission, .. } => {
                self.give_back(submission);
                Ok(())
            }
            SimulatedTurnEvent::Answered { submission, answer } => {
                self.turn_answered(submission, answer);
                Ok(())
            }
            SimulatedTurnEvent::Impatient { submission } => self.turn_impatient(submission),
        }
    }
}

/// Decides whether this world has turns, and adapts the scenario.
pub(crate) fn draw(weather: &mut Scenario, seed: u64, defect: Option<Defect>) {
    let mut rng = Rng::separate(seed ^ 0x7475_726e);
    let is_enabled = match defect {
        Some(defect) => defect.needs_turns(),
        None => rng.chance(50),
    };
    if !is_enabled {
        return;
    }
    weather.turns = rng.between(1, 3);
    weather.goal_count = rng.between(1, 2);
    // Turns arrive close together, so that they interact.
    weather.storm = weather.storm.min(rng.between(60_000, 400_000));
    if rng.chance(70) {
        let policy = Arc::make_mut(&mut weather.policy);
        policy.breaker.consecutive = NonZeroU32::new(u32::try_from(rng.between(1, 3)).unwrap_or(1));
        policy.breaker.cooldown =
            steadfast_core::policy::BreakerCooldown::constant(Duration::from_secs(rng.between(1, 30)));
    }
    if defect.is_some() {
        // Losses caused by an emptied store are no defect.
        weather.emptyings = 0;
    }
    let mut replans = Rng::separate(seed ^ 0x7265_706c);
    weather.replans = match defect {
        Some(Defect::ChosenByItsPlace) => 50,
        Some(_) => 0,
        None if replans.chance(40) => replans.between(10, 60),
        None => 0,
    };
    if defect == Some(Defect::QuestionToldAsAnswer) {
        weather.tool_input_requests = 40;
    }
    if defect == Some(Defect::BackToPlanNotKept) {
        // A turn has to be submitted three times, and the breaker to change each time.
        weather.tool_fails = weather.tool_fails.max(50);
        weather.connection_breaks = weather.connection_breaks.max(40);
        let breaker = &mut Arc::make_mut(&mut weather.policy).breaker;
        breaker.consecutive = Some(NonZeroU32::MIN);
        breaker.cooldown = steadfast_core::policy::BreakerCooldown::constant(Duration::from_secs(2));
    }
}

/// Returns a tool by number. The first one is that of all other calls.
fn tool(number: u64) -> steadfast_core::id::ToolRef {
    let mut tool = crate::transition::tool();
    if number > 0 {
        tool.tool = steadfast_core::id::ToolName::new(format!("pay-{number}")).expect("a short text");
    }
    tool
}

/// Returns the index of each call of a plan.
fn places(plan: &TurnPlan) -> BTreeMap<ToolCallId, usize> {
    plan.calls().iter().enumerate().map(|(place, call)| (call.id.clone(), place)).collect()
}
