//! Reading a plan from JSON, or from a draft in Rust, into a sketch: every part that could be read, with errors for the
//! others. An incomplete sketch is still checked, so that one pass reports all errors.

use std::num::NonZeroUsize;
use std::time::Duration;

use steadfast_core::id::{InvalidId, Namespace, ToolCallId, ToolName, ToolRef, TurnId};
use steadfast_json::{JsonDocument, JsonItems, JsonLimits, JsonMembers, JsonValue, RawJson};

use super::draft::{CallNeed, DraftAlternative, DraftCall, DraftDependency, PlanDraft, PlannedAlternative};
use super::mistake::{PlanErrors, PlanPath, PlanProblem};
use super::params::{CallParams, OutputReference};
use super::{TurnLimits, clip};

/// The readable parts of a plan.
pub(super) struct PlanSketch {
    pub(super) turn: Option<TurnId>,
    pub(super) deadline: Duration,
    pub(super) parallelism: NonZeroUsize,
    pub(super) calls: Vec<CallSketch>,
}

/// The readable parts of a call.
pub(super) struct CallSketch {
    pub(super) path: PlanPath,
    pub(super) id: Option<ToolCallId>,
    pub(super) tool: Option<ToolRef>,
    pub(super) params: CallParams,
    pub(super) depends_on: Vec<DependencySketch>,
    pub(super) need: CallNeed,
    pub(super) alternatives: Vec<PlannedAlternative>,
    pub(super) timeout: Option<Duration>,
}

/// A dependency whose id is not yet resolved.
pub(super) struct DependencySketch {
    pub(super) path: String,
    pub(super) on: ToolCallId,
    pub(super) default: Option<RawJson>,
}

impl PlanSketch {
    fn new(limits: &TurnLimits) -> Self {
        let parallelism = NonZeroUsize::new(limits.parallelism).unwrap_or(NonZeroUsize::MIN);
        Self { turn: None, deadline: limits.deadline, parallelism, calls: Vec::new() }
    }

    /// Lowers the deadline. A plan may ask for less than the limit and never for more.
    fn lower_deadline(&mut self, requested: Duration) {
        self.deadline = self.deadline.min(requested);
    }

    fn lower_parallelism(&mut self, requested: NonZeroUsize) {
        self.parallelism = self.parallelism.min(requested);
    }
}

impl CallSketch {
    fn new(path: PlanPath) -> Self {
        Self {
            path,
            id: None,
            tool: None,
            params: CallParams::none(),
            depends_on: Vec::new(),
            need: CallNeed::Required,
            alternatives: Vec::new(),
            timeout: None,
        }
    }

    /// Returns all references, including those of the alternatives.
    pub(super) fn references(&self) -> impl Iterator<Item = &OutputReference> {
        let alternatives = self.alternatives.iter().filter_map(|alternative| alternative.params.as_ref());
        std::iter::once(&self.params).chain(alternatives).flat_map(CallParams::references)
    }
}

/// Reads a plan.
pub(super) fn plan(root: JsonValue<'_>, limits: &TurnLimits, errors: &mut PlanErrors) -> PlanSketch {
    let mut sketch = PlanSketch::new(limits);
    let path = PlanPath::ROOT;
    let Some(members) = object(root, &path, errors) else { return sketch };
    let mut calls = None;
    for (name, value) in members {
        let path = path.to(&name);
        match name.as_ref() {
            "turnId" => sketch.turn = id(value, &path, errors, TurnId::new),
            "deadlineMs" => positive(value, &path, errors)
                .into_iter()
                .for_each(|requested| sketch.lower_deadline(Duration::from_millis(requested))),
            "parallelism" => positive(value, &path, errors)
                .and_then(|requested| NonZeroUsize::new(usize::try_from(requested).unwrap_or(usize::MAX)))
                .into_iter()
                .for_each(|requested| sketch.lower_parallelism(requested)),
            "calls" => calls = array(value, &path, errors),
            other => errors.push(PlanPath::ROOT, PlanProblem::UnknownField(clip(other, 64))),
        }
    }
    if root.get("calls").is_none() {
        errors.push(path, PlanProblem::Missing("calls"));
    } else if let Some(calls) = calls {
        let path = path.to("calls");
        if may_have(calls.clone().count(), limits, &path, errors) {
            sketch.calls = calls
                .enumerate()
                .map(|(position, value)| call(value, path.to(position), limits, errors))
                .collect();
        }
    }
    sketch
}

/// Reads a draft in Rust. Only its JSON texts and sizes can be wrong.
pub(super) fn draft(draft: PlanDraft, limits: &TurnLimits, errors: &mut PlanErrors) -> PlanSketch {
    let mut sketch = PlanSketch::new(limits);
    let PlanDraft { turn, deadline, parallelism, calls } = draft;
    sketch.turn = turn;
    if deadline.is_some_and(|requested| requested.is_zero()) {
        errors.push(PlanPath::ROOT.to("deadlineMs"), AT_LEAST_ONE);
    }
    deadline.into_iter().for_each(|requested| sketch.lower_deadline(requested));
    parallelism.into_iter().for_each(|requested| sketch.lower_parallelism(requested));
    let path = PlanPath::ROOT.to("calls");
    let found = calls.iter().map(text_bytes).fold(0, usize::saturating_add);
    if found > limits.bytes {
        errors.push(
            PlanPath::ROOT,
            PlanProblem::TooLarge { parts: "bytes of JSON", found, limit: limits.bytes },
        );
    } else if may_have(calls.len(), limits, &path, errors) {
        sketch.calls = calls
            .into_iter()
            .enumerate()
            .map(|(position, call)| draft_call(call, path.to(position), limits, errors))
            .collect();
    }
    sketch
}

const AT_LEAST_ONE: PlanProblem =
    PlanProblem::Expected { expected: "a whole number of at least 1", found: "something else" };

/// Returns true if a plan may have this number of calls. A plan with more is not read any further.
fn may_have(found: usize, limits: &TurnLimits, path: &PlanPath, errors: &mut PlanErrors) -> bool {
    let limit = limits.calls.min(TurnLimits::MAX_CALLS);
    if found == 0 {
        errors.push(path, PlanProblem::Expected { expected: "at least one call", found: "none" });
    } else if found > limit {
        errors.push(path, PlanProblem::TooLarge { parts: "calls", found, limit });
    }
    (1..=limit).contains(&found)
}

fn call(
    value: JsonValue<'_>,
    mut path: PlanPath,
    limits: &TurnLimits,
    errors: &mut PlanErrors,
) -> CallSketch {
    let mut sketch = CallSketch::new(path.clone());
    let Some(members) = object(value, &path, errors) else { return sketch };
    for (name, value) in members {
        let before = path.enter(&name);
        match name.as_ref() {
            "id" => sketch.id = id(value, &path, errors, ToolCallId::new),
            "tool" => sketch.tool = tool(value, &path, errors),
            "params" => sketch.params = CallParams::read(value, &mut path, errors),
            "dependsOn" => {
                for (position, value) in array(value, &path, errors).into_iter().flatten().enumerate() {
                    sketch.depends_on.extend(dependency(value, &path.to(position), errors));
                }
            }
            "required" => match value.as_bool() {
                Some(true) => sketch.need = CallNeed::Required,
                Some(false) => sketch.need = CallNeed::Optional,
                None => expected("true or false", value, &path, errors),
            },
            "alternatives" => {
                let items = array(value, &path, errors);
                let found = items.iter().cloned().flatten().count();
                if may_have_alternatives(found, limits, &path, errors) {
                    for (position, value) in items.into_iter().flatten().enumerate() {
                        sketch.alternatives.extend(alternative(value, path.to(position), errors));
                    }
                }
            }
            "timeoutMs" => sketch.timeout = positive(value, &path, errors).map(Duration::from_millis),
            other => errors.push(&sketch.path, PlanProblem::UnknownField(clip(other, 64))),
        }
        path.leave(before);
    }
    for field in ["id", "tool"] {
        if value.get(field).is_none() {
            errors.push(&path, PlanProblem::Missing(field));
        }
    }
    sketch
}

fn may_have_alternatives(
    found: usize,
    limits: &TurnLimits,
    path: &PlanPath,
    errors: &mut PlanErrors,
) -> bool {
    if found > limits.alternatives {
        errors.push(path, PlanProblem::TooLarge { parts: "alternatives", found, limit: limits.alternatives });
    }
    found <= limits.alternatives
}

/// Reads a dependency: `"id"`, or `{"id": …, "default": …}`.
fn dependency(value: JsonValue<'_>, path: &PlanPath, errors: &mut PlanErrors) -> Option<DependencySketch> {
    if value.as_str().is_some() {
        let on = id(value, path, errors, ToolCallId::new)?;
        return Some(DependencySketch { path: path.into(), on, default: None });
    }
    let Some(members) = value.members() else {
        expected("the id of a call, or an object with it", value, path, errors);
        return None;
    };
    let (mut on, mut default) = (None, None);
    for (name, value) in members {
        match name.as_ref() {
            "id" => on = id(value, &path.to("id"), errors, ToolCallId::new),
            "default" => default = Some(RawJson::from_trusted(value.raw())),
            other => errors.push(path, PlanProblem::UnknownField(clip(other, 64))),
        }
    }
    if value.get("id").is_none() {
        errors.push(path, PlanProblem::Missing("id"));
    }
    Some(DependencySketch { path: path.into(), on: on?, default })
}

/// Reads an alternative: a tool, or `{"tool": …, "params": …}`. The object form of a tool has a `namespace`, which
/// makes it distinct.
fn alternative(value: JsonValue<'_>, path: PlanPath, errors: &mut PlanErrors) -> Option<PlannedAlternative> {
    if !value.is_object() || value.get("namespace").is_some() {
        return Some(PlannedAlternative { tool: tool(value, &path, errors)?, params: None });
    }
    let (mut found, mut params) = (None, None);
    for (name, value) in value.members()? {
        let mut place = path.to(&name);
        match name.as_ref() {
            "tool" => found = tool(value, &place, errors),
            "params" => params = Some(CallParams::read(value, &mut place, errors)),
            other => errors.push(&path, PlanProblem::UnknownField(clip(other, 64))),
        }
    }
    if value.get("tool").is_none() {
        errors.push(path, PlanProblem::Missing("tool"));
    }
    Some(PlannedAlternative { tool: found?, params })
}

/// Reads a tool: `"namespace/tool"`, or `{"namespace": …, "tool": …}` for namespaces that contain a slash.
fn tool(value: JsonValue<'_>, path: &PlanPath, errors: &mut PlanErrors) -> Option<ToolRef> {
    if let Some(text) = value.as_str() {
        let Some((namespace, tool)) = text.split_once('/') else {
            errors.push(path, PlanProblem::ToolWithoutNamespace);
            return None;
        };
        return match (Namespace::new(namespace), ToolName::new(tool)) {
            (Ok(namespace), Ok(tool)) => Some(ToolRef { namespace, tool }),
            (Err(error), _) | (_, Err(error)) => {
                errors.push(path, PlanProblem::InvalidName(error));
                None
            }
        };
    }
    let Some(members) = value.members() else {
        expected("\"namespace/tool\", or an object with both", value, path, errors);
        return None;
    };
    let (mut namespace, mut tool) = (None, None);
    for (name, value) in members {
        match name.as_ref() {
            "namespace" => namespace = id(value, &path.to("namespace"), errors, Namespace::new),
            "tool" => tool = id(value, &path.to("tool"), errors, ToolName::new),
            other => errors.push(path, PlanProblem::UnknownField(clip(other, 64))),
        }
    }
    for field in ["namespace", "tool"] {
        if value.get(field).is_none() {
            errors.push(path, PlanProblem::Missing(field));
        }
    }
    Some(ToolRef { namespace: namespace?, tool: tool? })
}

fn id<T>(
    value: JsonValue<'_>,
    path: &PlanPath,
    errors: &mut PlanErrors,
    new: impl Fn(String) -> Result<T, InvalidId>,
) -> Option<T> {
    let Some(text) = value.as_str() else {
        expected("a string", value, path, errors);
        return None;
    };
    new(text.into_owned()).map_err(|error| errors.push(path, PlanProblem::InvalidName(error))).ok()
}

fn positive(value: JsonValue<'_>, path: &PlanPath, errors: &mut PlanErrors) -> Option<u64> {
    let number = value.as_u64().filter(|number| *number > 0);
    if number.is_none() {
        let found = if value.as_number().is_some() { "another number" } else { value.kind().describe() };
        errors.push(path, PlanProblem::Expected { expected: "a whole number of at least 1", found });
    }
    number
}

fn object<'d>(value: JsonValue<'d>, path: &PlanPath, errors: &mut PlanErrors) -> Option<JsonMembers<'d>> {
    let members = value.members();
    if members.is_none() {
        expected("an object", value, path, errors);
    }
    members
}

fn array<'d>(value: JsonValue<'d>, path: &PlanPath, errors: &mut PlanErrors) -> Option<JsonItems<'d>> {
    let items = value.items();
    if items.is_none() {
        expected("an array", value, path, errors);
    }
    items
}

fn expected(expected: &'static str, value: JsonValue<'_>, path: &PlanPath, errors: &mut PlanErrors) {
    let found = value.kind().describe();
    errors.push(path, PlanProblem::Expected { expected, found });
}

fn draft_call(draft: DraftCall, path: PlanPath, limits: &TurnLimits, errors: &mut PlanErrors) -> CallSketch {
    let DraftCall { id, tool, params, depends_on, need, alternatives, timeout } = draft;
    let mut sketch = CallSketch::new(path.clone());
    sketch.id = Some(id);
    sketch.tool = Some(tool);
    sketch.need = need;
    sketch.timeout = timeout;
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        errors.push(path.to("timeoutMs"), AT_LEAST_ONE);
    }
    if let Some(params) = params {
        sketch.params = draft_params(&params, path.to("params"), limits, errors);
    }
    let place = path.to("dependsOn");
    for (position, DraftDependency { on, default }) in depends_on.into_iter().enumerate() {
        sketch.depends_on.push(DependencySketch { path: place.to(position).into(), on, default });
    }
    let place = path.to("alternatives");
    if may_have_alternatives(alternatives.len(), limits, &place, errors) {
        for (position, DraftAlternative { tool, params }) in alternatives.into_iter().enumerate() {
            let place = place.to(position).to("params");
            let params = params.map(|params| draft_params(&params, place, limits, errors));
            sketch.alternatives.push(PlannedAlternative { tool, params });
        }
    }
    sketch
}

fn draft_params(
    text: &RawJson,
    mut path: PlanPath,
    limits: &TurnLimits,
    errors: &mut PlanErrors,
) -> CallParams {
    let json = JsonLimits { bytes: limits.bytes, depth: limits.depth };
    match JsonDocument::parse(text.as_str().as_bytes(), json) {
        Ok(document) => CallParams::read(document.root(), &mut path, errors),
        Err(error) => {
            errors.push(path, PlanProblem::Json(error));
            CallParams::none()
        }
    }
}

fn text_bytes(call: &DraftCall) -> usize {
    let defaults = call.depends_on.iter().filter_map(|dependency| dependency.default.as_ref());
    let alternatives = call.alternatives.iter().filter_map(|alternative| alternative.params.as_ref());
    call.params.iter().chain(defaults).chain(alternatives).map(|text| text.as_str().len()).sum()
}
