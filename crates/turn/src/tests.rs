//! The turn as a whole: requirements, every state with every event, hostile plans, random plans.

mod hostile;
mod limits;
mod machine;
mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::breaker::State as BreakerState;
use steadfast_core::classify::{AttemptReach, FaultNature};
use steadfast_core::code::Code;
use steadfast_core::id::{ToolCallId, ToolRef};
use steadfast_json::RawJson;

use super::trace::{TraceId, TraceNote, TurnFact, TurnTrace};
use super::*;

/// A turn driven step by step, with everything it returned.
struct TurnHarness {
    turn: TurnMachine,
    notes: Vec<TraceNote>,
    /// Started calls, in order, with the tool and the arguments.
    started: Vec<(String, String, String)>,
    /// The choice for each of them.
    choices: Vec<CandidateChoice>,
    /// Steps of the end of the turn for running calls.
    cut: Vec<TurnStep>,
    result: Option<TurnResult>,
    now: Timestamp,
}

impl TurnHarness {
    fn new(plan: &str) -> Self {
        Self::with(plan, &BTreeMap::new(), SubmissionHistory::First)
    }

    fn with(plan: &str, tools: &BTreeMap<ToolRef, ToolFacts>, submitted: SubmissionHistory) -> Self {
        let plan = TurnPlan::parse(plan.as_bytes(), &TurnLimits::DEFAULT)
            .unwrap_or_else(|errors| panic!("{errors}"));
        let mut notes = Vec::new();
        let (turn, steps) =
            TurnMachine::begin(Arc::new(plan), tools, submitted, Timestamp::from_millis(1000), &mut notes);
        let mut stage = Self {
            turn,
            notes,
            started: Vec::new(),
            choices: Vec::new(),
            cut: Vec::new(),
            result: None,
            now: Timestamp::from_millis(1000),
        };
        stage.take(steps);
        stage
    }

    fn take(&mut self, steps: Vec<TurnStep>) {
        for step in steps {
            assert!(self.result.is_none(), "nothing follows the end");
            match step {
                TurnStep::Run { id, tool, arguments, choice, .. } => {
                    self.choices.push(choice);
                    self.started.push((id.to_string(), tool.tool.to_string(), arguments.as_str().to_owned()));
                }
                TurnStep::Cancel { .. } | TurnStep::Leave { .. } => self.cut.push(step),
                TurnStep::Done(result) => self.result = Some(result),
            }
        }
    }

    fn on(&mut self, event: TurnEvent) -> &mut Self {
        let steps = self.turn.handle_event(self.now, event, &mut self.notes).unwrap();
        self.take(steps);
        self
    }

    fn succeed(&mut self, id: &str, output: &str) -> &mut Self {
        self.succeed_after(id, output, 1)
    }

    fn succeed_after(&mut self, id: &str, output: &str, attempts: u32) -> &mut Self {
        let end = PlannedCallEnd::Succeeded { output: RawJson::from_trusted(output), attempts };
        self.on(TurnEvent::Ended { id: call_id(id), end, replayed: false })
    }

    fn fail(&mut self, id: &str, failure: TurnCallFailure) -> &mut Self {
        self.on(TurnEvent::Ended { id: call_id(id), end: PlannedCallEnd::Failed(failure), replayed: false })
    }

    /// Reports a result that the engine replayed from an earlier submission.
    fn again(&mut self, id: &str, end: PlannedCallEnd) -> &mut Self {
        self.on(TurnEvent::Ended { id: call_id(id), end, replayed: true })
    }

    fn outcome_so_far(&self, id: &str) -> String {
        self.turn.state_name(&call_id(id))
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = Timestamp::from_millis(1000 + 1000 * seconds);
        self.on(TurnEvent::Tick)
    }

    fn started(&self) -> Vec<&str> {
        self.started.iter().map(|(id, _, _)| id.as_str()).collect()
    }

    fn result(&self) -> &TurnResult {
        self.result.as_ref().expect("the turn is over")
    }

    fn call(&self, id: &str) -> &TurnCallResult {
        self.result().calls.iter().find(|call| call.id.as_str() == id).expect("the call is in the result")
    }

    fn outcome(&self, id: &str) -> TurnCallOutcome {
        self.call(id).outcome
    }

    /// Returns the sentences of the trace.
    fn sentences(&self) -> Vec<String> {
        let mut trace = TurnTrace::start(TraceId::from_bytes([1; 16]), None, 1000, Timestamp::ZERO);
        self.notes.iter().for_each(|note| trace.record(note, None).unwrap());
        trace.events().iter().map(|event| event.sentence.clone()).collect()
    }

    #[track_caller]
    fn assert_event(&self, sentence: &str) {
        assert!(self.sentences().iter().any(|event| event.starts_with(sentence)), "{:#?}", self.sentences());
    }
}

fn call_id(id: &str) -> ToolCallId {
    ToolCallId::new(id).unwrap()
}

fn tool(name: &str) -> ToolRef {
    ToolRef {
        namespace: steadfast_core::id::Namespace::new("travel").unwrap(),
        tool: steadfast_core::id::ToolName::new(name).unwrap(),
    }
}

fn breaker(name: &str, state: BreakerState) -> BTreeMap<ToolRef, ToolFacts> {
    BTreeMap::from([(tool(name), ToolFacts { breaker: state, stop: TurnEndEffect::Leave })])
}

fn stoppable(names: &[&str]) -> BTreeMap<ToolRef, ToolFacts> {
    let facts = ToolFacts { stop: TurnEndEffect::Cancel, ..ToolFacts::default() };
    names.iter().map(|name| (tool(name), facts)).collect()
}

fn permanent() -> TurnCallFailure {
    TurnCallFailure {
        code: Code::ToolError,
        message: "Invalid airport code: XYZ".into(),
        rule: Some("http.400".into()),
        nature: FaultNature::Permanent,
        reach: AttemptReach::Answered,
        repeat: RepeatSafety::Safe,
        unknown_outcome: UnknownOutcomeHandling::Reported,
        attempts: 1,
        timed_out_after: None,
    }
}

fn exhausted() -> TurnCallFailure {
    TurnCallFailure {
        code: Code::RetryExhausted,
        message: "connection reset".into(),
        rule: Some("transport.reset".into()),
        nature: FaultNature::Transient,
        reach: AttemptReach::Unknown,
        repeat: RepeatSafety::Safe,
        unknown_outcome: UnknownOutcomeHandling::Reported,
        attempts: 5,
        timed_out_after: None,
    }
}

fn timed_out() -> TurnCallFailure {
    TurnCallFailure { code: Code::Timeout, timed_out_after: Some(Duration::from_secs(30)), ..exhausted() }
}

/// Returns the facts of a trace.
fn facts(stage: &TurnHarness) -> Vec<&TurnFact> {
    stage.notes.iter().map(|note| &note.fact).collect()
}
