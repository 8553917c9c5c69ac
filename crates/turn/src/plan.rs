//! The plan of a turn, checked as a whole before any call runs.
//!
//! On the wire:
//!
//! ```json
//! { "turnId": "t-1", "deadlineMs": 60000, "parallelism": 4, "calls": [
//!   { "id": "flights", "tool": "travel/flight_search", "params": { "to": "LIS" }, "timeoutMs": 30000,
//!     "alternatives": ["travel/flight_search_backup"] },
//!   { "id": "compare", "tool": "travel/compare_prices", "required": false,
//!     "params": { "best": { "$from": "flights", "path": "/best/0" } },
//!     "dependsOn": [{ "id": "flights", "default": { "best": [null] } }] } ] }
//! ```
//!
//! - A tool is `"namespace/tool"`, split at the first slash, or `{"namespace": …, "tool": …}`.
//! - Calls are required by default.
//! - A dependency is an id, or an object with an id and a `default` that replaces the output if that call does not
//!   succeed. A `$from` to a call that `dependsOn` does not name implies the dependency, without a default. An output
//!   cannot be used before it exists, so a second declaration would only add a way to forget it.
//! - An alternative is a tool, or an object with a tool and its own params.
//! - A default must have every part that the arguments take from it. A missing part is an error of the plan, reported
//!   before the default is needed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use steadfast_core::id::{ToolCallId, ToolRef, TurnId};
use steadfast_json::{JsonDocument, JsonLimits, RawJson};

use super::TurnLimits;
use super::draft::{CallNeed, PlanDraft, PlannedAlternative};
use super::graph::DependencyGraph;
use super::mistake::{PlanErrors, PlanProblem};
use super::params::{CallParams, OutputParts};
use super::parser::{self, CallSketch, DependencySketch, PlanSketch};
use super::pointer::JsonPointer;

/// A valid plan: every id in it is known, and no call depends on itself.
#[derive(Clone, Debug)]
pub struct TurnPlan {
    turn: Option<TurnId>,
    deadline: Duration,
    parallelism: NonZeroUsize,
    calls: Vec<PlannedCall>,
    index: BTreeMap<ToolCallId, usize>,
    graph: DependencyGraph,
    /// For each call, the parts of its output that other calls refer to.
    referenced_parts: Vec<Vec<JsonPointer>>,
    limits: TurnLimits,
}

/// One call of a plan.
#[derive(Clone, Debug)]
pub struct PlannedCall {
    /// Its id within the plan.
    pub id: ToolCallId,
    /// The tool.
    pub tool: ToolRef,
    /// The parameters.
    pub params: CallParams,
    /// Its dependencies, including implied ones, ordered by id.
    pub depends_on: Vec<PlannedDependency>,
    /// Required or optional.
    pub need: CallNeed,
    /// Alternatives to try after the tool has failed, in this order.
    pub alternatives: Vec<PlannedAlternative>,
    /// The timeout of one attempt, if the plan sets one. The engine's policy may allow less.
    pub timeout: Option<Duration>,
}

/// A dependency of a call.
#[derive(Clone, Debug)]
pub struct PlannedDependency {
    /// The call that it depends on.
    pub on: ToolCallId,
    /// The value that replaces the output if that call does not succeed.
    pub default: Option<OutputParts>,
}

impl TurnPlan {
    /// Reads a plan from JSON. Reports all errors at once.
    pub fn parse(text: &[u8], limits: &TurnLimits) -> Result<Self, PlanErrors> {
        let mut errors = PlanErrors::none();
        let json = JsonLimits { bytes: limits.bytes, depth: limits.depth };
        match JsonDocument::parse(text, json) {
            Ok(document) => {
                let sketch = parser::plan(document.root(), limits, &mut errors);
                check(sketch, limits, errors)
            }
            Err(error) => {
                errors.push("", PlanProblem::Json(error));
                Err(errors)
            }
        }
    }

    /// Checks a plan that was built in Rust, by the same rules.
    pub fn new(draft: PlanDraft, limits: &TurnLimits) -> Result<Self, PlanErrors> {
        let mut errors = PlanErrors::none();
        let sketch = parser::draft(draft, limits, &mut errors);
        check(sketch, limits, errors)
    }

    /// Returns the id of the turn, if the plan has one.
    pub fn turn(&self) -> Option<&TurnId> {
        self.turn.as_ref()
    }

    /// Returns the deadline of the turn, relative to its start.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the number of calls that run at once.
    pub fn parallelism(&self) -> NonZeroUsize {
        self.parallelism
    }

    /// Returns the calls, in the order of the plan.
    pub fn calls(&self) -> &[PlannedCall] {
        &self.calls
    }

    /// Returns the tools that the plan may call, including alternatives, each once.
    pub fn tools(&self) -> BTreeSet<&ToolRef> {
        self.calls.iter().flat_map(PlannedCall::tools).collect()
    }

    /// Returns a call by its id.
    pub fn call(&self, id: &ToolCallId) -> Option<&PlannedCall> {
        self.calls.get(self.position(id)?)
    }

    pub(super) fn position(&self, id: &ToolCallId) -> Option<usize> {
        self.index.get(id).copied()
    }

    pub(super) fn graph(&self) -> &DependencyGraph {
        &self.graph
    }

    pub(super) fn referenced_parts(&self, call: usize) -> &[JsonPointer] {
        self.referenced_parts.get(call).map_or(&[], Vec::as_slice)
    }

    pub(super) fn limits(&self) -> &TurnLimits {
        &self.limits
    }
}

impl PlannedCall {
    /// Returns its tool, then its alternatives.
    pub fn tools(&self) -> impl Iterator<Item = &ToolRef> {
        std::iter::once(&self.tool).chain(self.alternatives.iter().map(|alternative| &alternative.tool))
    }

    /// Returns the tool and the parameters of a candidate: 0 is the tool itself, then the alternatives.
    pub(super) fn candidate(&self, candidate: usize) -> Option<(&ToolRef, &CallParams)> {
        match candidate.checked_sub(1) {
            None => Some((&self.tool, &self.params)),
            Some(place) => self
                .alternatives
                .get(place)
                .map(|alternative| (&alternative.tool, alternative.params.as_ref().unwrap_or(&self.params))),
        }
    }

    /// Returns the value that replaces the output of a dependency, if there is one.
    pub(super) fn default_for(&self, dependency: &ToolCallId) -> Option<&OutputParts> {
        let place = self.depends_on.binary_search_by(|known| known.on.cmp(dependency)).ok()?;
        self.depends_on.get(place)?.default.as_ref()
    }
}

/// Checks the references between the calls of a plan, and builds the plan if there are no errors.
fn check(sketch: PlanSketch, limits: &TurnLimits, mut errors: PlanErrors) -> Result<TurnPlan, PlanErrors> {
    let PlanSketch { turn, deadline, parallelism, calls } = sketch;
    let index = index_ids(&calls, &mut errors);
    let links: Vec<CallLinks> = calls.iter().map(|call| link(call, &index, &mut errors)).collect();
    let found = links.iter().map(|links| links.edges.len()).sum();
    if found > limits.edges {
        errors.push("", PlanProblem::TooLarge { parts: "dependencies", found, limit: limits.edges });
        return Err(errors);
    }
    let referenced_parts = collect_referenced_parts(&calls, &index);
    let graph =
        DependencyGraph::new(links.iter().map(|links| links.edges.iter().copied().collect()).collect());
    for cycle in graph.cycles() {
        let names = cycle.iter().filter_map(|&call| calls.get(call)?.id.clone()).collect();
        let place = cycle.first().and_then(|&call| calls.get(call)).map_or("", |call| call.path.as_str());
        errors.push(place, PlanProblem::Cycle(names));
    }
    let mut planned = Vec::with_capacity(calls.len());
    for (call, links) in calls.into_iter().zip(links) {
        // Missing parts of a call were reported when it was read.
        planned.extend(build_call(call, links.implied, limits, &mut errors));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(TurnPlan {
        turn,
        deadline,
        parallelism,
        calls: planned,
        index,
        graph,
        referenced_parts,
        limits: *limits,
    })
}

/// Returns the position of each id. If an id occurs twice, the first one counts.
fn index_ids(calls: &[CallSketch], errors: &mut PlanErrors) -> BTreeMap<ToolCallId, usize> {
    let mut index = BTreeMap::new();
    for (position, call) in calls.iter().enumerate() {
        let Some(id) = &call.id else { continue };
        match index.entry(id.clone()) {
            Entry::Vacant(free) => {
                free.insert(position);
            }
            Entry::Occupied(taken) => {
                let first =
                    calls.get(*taken.get()).map_or_else(String::new, |first| first.path.to("id").into());
                errors.push(call.path.to("id"), PlanProblem::DuplicateId { id: id.clone(), first });
            }
        }
    }
    index
}

/// The links of a call to other calls.
#[derive(Default)]
struct CallLinks {
    edges: BTreeSet<usize>,
    /// Dependencies that only a `$from` names.
    implied: Vec<ToolCallId>,
}

fn link(call: &CallSketch, index: &BTreeMap<ToolCallId, usize>, errors: &mut PlanErrors) -> CallLinks {
    let mut links = CallLinks::default();
    let find = |id: &ToolCallId| match index.get(id) {
        None => Err(PlanProblem::UnknownCall(id.clone())),
        Some(_) if call.id.as_ref() == Some(id) => Err(PlanProblem::SelfReference),
        Some(&target) => Ok(target),
    };
    for dependency in &call.depends_on {
        match find(&dependency.on) {
            Ok(target) if links.edges.insert(target) => {}
            Ok(_) => {
                errors.push(dependency.path.clone(), PlanProblem::DuplicateDependency(dependency.on.clone()));
            }
            Err(problem) => errors.push(dependency.path.clone(), problem),
        }
    }
    for reference in call.references() {
        match find(&reference.from) {
            Ok(target) if links.edges.insert(target) => links.implied.push(reference.from.clone()),
            Ok(_) => {}
            Err(problem) => errors.push(reference.path(), problem),
        }
    }
    links
}

fn collect_referenced_parts(
    calls: &[CallSketch],
    index: &BTreeMap<ToolCallId, usize>,
) -> Vec<Vec<JsonPointer>> {
    let mut parts_by_call: Vec<BTreeSet<&JsonPointer>> = vec![BTreeSet::new(); calls.len()];
    for reference in calls.iter().flat_map(CallSketch::references) {
        if let Some(parts) = index.get(&reference.from).and_then(|&target| parts_by_call.get_mut(target)) {
            parts.insert(&reference.pointer);
        }
    }
    parts_by_call.into_iter().map(|parts| parts.into_iter().cloned().collect()).collect()
}

fn build_call(
    call: CallSketch,
    implied: Vec<ToolCallId>,
    limits: &TurnLimits,
    errors: &mut PlanErrors,
) -> Option<PlannedCall> {
    let mut taken: BTreeMap<&ToolCallId, Vec<&JsonPointer>> = BTreeMap::new();
    for reference in call.references() {
        taken.entry(&reference.from).or_default().push(&reference.pointer);
    }
    let mut depends_on = Vec::with_capacity(call.depends_on.len() + implied.len());
    for DependencySketch { path, on, default } in &call.depends_on {
        let taken = taken.get(on).map_or(&[][..], Vec::as_slice);
        let default = default.clone().map(|text| cut_default(text, path, on, taken, limits, errors));
        let all = |params: &CallParams| {
            let reference = params.all_from().filter(|reference| reference.from == *on);
            reference
                .zip(default.as_ref())
                .and_then(|(all, default)| default.piece(on, &all.pointer).ok())
                .is_some_and(|piece| !piece.trim_start().starts_with('{'))
        };
        let own = call.alternatives.iter().filter_map(|alternative| alternative.params.as_ref());
        if std::iter::once(&call.params).chain(own).any(all) {
            errors.push(format!("{path}/default"), PlanProblem::DefaultNotAnObject(on.clone()));
        }
        depends_on.push(PlannedDependency { on: on.clone(), default });
    }
    depends_on.extend(implied.into_iter().map(|on| PlannedDependency { on, default: None }));
    depends_on.sort_by(|a, b| a.on.cmp(&b.on));
    let CallSketch { path: _, id, tool, params, depends_on: _, need, alternatives, timeout } = call;
    Some(PlannedCall { id: id?, tool: tool?, params, depends_on, need, alternatives, timeout })
}

fn cut_default(
    text: RawJson,
    path: &str,
    from: &ToolCallId,
    taken: &[&JsonPointer],
    limits: &TurnLimits,
    errors: &mut PlanErrors,
) -> OutputParts {
    let pieces = OutputParts::select(
        text,
        taken.iter().copied(),
        JsonLimits { bytes: limits.bytes, depth: limits.depth },
    );
    for pointer in taken {
        if pieces.piece(from, pointer).is_err() {
            let problem = PlanProblem::DefaultMisses { from: from.clone(), pointer: (*pointer).clone() };
            errors.push(format!("{path}/default"), problem);
        }
    }
    pieces
}
