//! The turn as a whole: requirements, every state with every event, hostile plans, random plans.

mod hostile;
mod limits;
mod machine;
mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::trace::{Fact, Note, Trace, TraceId};
use super::*;
use crate::Timestamp;
use crate::breaker::State as BreakerState;
use crate::classify::{Nature, Reach};
use crate::code::Code;
use crate::id::{ToolCallId, ToolRef};
use crate::output::RawJson;

/// A turn driven step by step, with everything it returned.
struct Stage {
    turn: Turn,
    notes: Vec<Note>,
    /// Started calls, in order, with the tool and the arguments.
    started: Vec<(String, String, String)>,
    /// The choice for each of them.
    choices: Vec<Choice>,
    /// Steps of the end of the turn for running calls.
    cut: Vec<Step>,
    result: Option<TurnResult>,
    now: Timestamp,
}

impl Stage {
    fn new(plan: &str) -> Self {
        Self::with(plan, &BTreeMap::new(), Submitted::First)
    }

    fn with(plan: &str, tools: &BTreeMap<ToolRef, ToolFacts>, submitted: Submitted) -> Self {
        let plan = Plan::parse(plan.as_bytes(), &Limits::DEFAULT).unwrap_or_else(|errors| panic!("{errors}"));
        let mut notes = Vec::new();
        let (turn, steps) =
            Turn::begin(Arc::new(plan), tools, submitted, Timestamp::from_millis(1000), &mut notes);
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

    fn take(&mut self, steps: Vec<Step>) {
        for step in steps {
            assert!(self.result.is_none(), "nothing follows the end");
            match step {
                Step::Run { id, tool, arguments, choice, .. } => {
                    self.choices.push(choice);
                    self.started.push((id.to_string(), tool.tool.to_string(), arguments.as_str().to_owned()));
                }
                Step::Cancel { .. } | Step::Leave { .. } => self.cut.push(step),
                Step::Done(result) => self.result = Some(result),
            }
        }
    }

    fn on(&mut self, event: Event) -> &mut Self {
        let steps = self.turn.on(self.now, event, &mut self.notes).unwrap();
        self.take(steps);
        self
    }

    fn succeed(&mut self, id: &str, output: &str) -> &mut Self {
        self.succeed_after(id, output, 1)
    }

    fn succeed_after(&mut self, id: &str, output: &str, attempts: u32) -> &mut Self {
        let end = CallEnd::Succeeded { output: RawJson::from_trusted(output), attempts };
        self.on(Event::Ended { id: call_id(id), end, replayed: false })
    }

    fn fail(&mut self, id: &str, failure: Failure) -> &mut Self {
        self.on(Event::Ended { id: call_id(id), end: CallEnd::Failed(failure), replayed: false })
    }

    /// Reports a result that the engine replayed from an earlier submission.
    fn again(&mut self, id: &str, end: CallEnd) -> &mut Self {
        self.on(Event::Ended { id: call_id(id), end, replayed: true })
    }

    fn outcome_so_far(&self, id: &str) -> String {
        self.turn.state_name(&call_id(id))
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = Timestamp::from_millis(1000 + 1000 * seconds);
        self.on(Event::Tick)
    }

    fn started(&self) -> Vec<&str> {
        self.started.iter().map(|(id, _, _)| id.as_str()).collect()
    }

    fn result(&self) -> &TurnResult {
        self.result.as_ref().expect("the turn is over")
    }

    fn call(&self, id: &str) -> &CallResult {
        self.result().calls.iter().find(|call| call.id.as_str() == id).expect("the call is in the result")
    }

    fn outcome(&self, id: &str) -> Outcome {
        self.call(id).outcome
    }

    /// Returns the sentences of the trace.
    fn story(&self) -> Vec<String> {
        let mut trace = Trace::start(TraceId::from_bytes([1; 16]), None, 1000, Timestamp::ZERO);
        self.notes.iter().for_each(|note| trace.record(note, None).unwrap());
        trace.events().iter().map(|event| event.sentence.clone()).collect()
    }

    #[track_caller]
    fn tells(&self, sentence: &str) {
        assert!(self.story().iter().any(|told| told.starts_with(sentence)), "{:#?}", self.story());
    }
}

fn call_id(id: &str) -> ToolCallId {
    ToolCallId::new(id).unwrap()
}

fn tool(name: &str) -> ToolRef {
    ToolRef {
        namespace: crate::id::Namespace::new("travel").unwrap(),
        tool: crate::id::ToolName::new(name).unwrap(),
    }
}

fn breaker(name: &str, state: BreakerState) -> BTreeMap<ToolRef, ToolFacts> {
    BTreeMap::from([(tool(name), ToolFacts { breaker: state, stop: Stop::Leave })])
}

fn stoppable(names: &[&str]) -> BTreeMap<ToolRef, ToolFacts> {
    let facts = ToolFacts { stop: Stop::Cancel, ..ToolFacts::default() };
    names.iter().map(|name| (tool(name), facts)).collect()
}

fn permanent() -> Failure {
    Failure {
        code: Code::ToolError,
        message: "Invalid airport code: XYZ".into(),
        rule: Some("http.400".into()),
        nature: Nature::Permanent,
        reach: Reach::Answered,
        repeat: Repeat::Safe,
        doubt: Doubt::Told,
        attempts: 1,
        timed_out_after: None,
    }
}

fn exhausted() -> Failure {
    Failure {
        code: Code::RetryExhausted,
        message: "connection reset".into(),
        rule: Some("transport.reset".into()),
        nature: Nature::Transient,
        reach: Reach::Unknown,
        repeat: Repeat::Safe,
        doubt: Doubt::Told,
        attempts: 5,
        timed_out_after: None,
    }
}

fn timed_out() -> Failure {
    Failure { code: Code::Timeout, timed_out_after: Some(Duration::from_secs(30)), ..exhausted() }
}

/// Returns the facts of a trace.
fn facts(stage: &Stage) -> Vec<&Fact> {
    stage.notes.iter().map(|note| &note.fact).collect()
}
