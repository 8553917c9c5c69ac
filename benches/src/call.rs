//! The whole decision path of a call, without IO.
//!
//! A [`MinimalEngine`] is the smallest possible engine: it reads the raw parameters, derives from them the fields of a request,
//! drives the [`Call`] to its end, and keeps records in two unshared maps. The additions of a real engine (a store with
//! locks, timers, telemetry) are not in these numbers.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::approval::{ApprovalChannel, ApprovalLedger};
use steadfast_core::breaker::{BreakerVerdict, CircuitBreaker};
use steadfast_core::call::{
    AttemptEndVisibility, AttemptReport, Call, CallEvent, CallMechanisms, CallNotice, CallRequest,
    CallResult, CallerHints, CallerPatience, Deduplication, NextStep, RunnerKind, UpstreamKey,
};
use steadfast_core::classify::danger::dangerous;
use steadfast_core::classify::signature::{domain, signature};
use steadfast_core::classify::{ArgumentTargets, AttemptFault, FaultSource};
use steadfast_core::code::Code;
use steadfast_core::dedupe::{
    LeaseOwnerState, LocalKnowledge, MemoryRecords, ProcessIdentity, RecordAddress,
};
use steadfast_core::guard::LoopGuard;
use steadfast_core::id::{
    ActorId, Digest, InvalidId, Namespace, RequestId, RunId, SessionKey, ToolName, ToolRef,
};
use steadfast_core::key::{KeyInputs, RecordKey, arguments_digest, computed_key, explicit_key};
use steadfast_core::limit::Limiter;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{CallPolicy, PolicyProfile, ToolClass};
use steadfast_core::retry::{CallerLimits, RetryBudget};
use steadfast_core::trust::TrustLedger;
use steadfast_json::{JsonDocument, JsonLimits, RawJson};

use crate::engine::MeasurementError;
use crate::key::{SERDE_JCS, by_serde_jcs};
use crate::measure::{allocations, contest, repeat};
use crate::report::{BenchBudget, BenchReport, Figure, ReportRow};
use crate::sample;

const PARTS: &str = "read + canonical form + SHA-256";
const FRESH: &str = "a fresh call";

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    Ok(measure(report)?)
}

fn measure(report: &mut BenchReport) -> Result<(), InvalidId> {
    compare_fresh_with_parts(report)?;
    compare_short_paths(report)?;
    count_allocations(report)
}

// ---- measurements -----------------------------------------------------------------------------------

/// Measures the core's share of the engine's budget, which is 1.5 times the parts.
fn compare_fresh_with_parts(report: &mut BenchReport) -> Result<(), InvalidId> {
    for (size, bytes, budget) in
        [("1 KiB", 1024, BenchBudget::AtMost(1.5)), ("256 B", 256, BenchBudget::None)]
    {
        let text = sample::params(bytes);
        for (name, given) in [("computed key", KeyChoice::Nothing), ("explicit key", KeyChoice::Key)] {
            let title = format!("fresh, {size}, {name}");
            if !report.is_selected(&title) {
                continue;
            }
            let mut minimal = MinimalEngine::new(&text, given)?;
            let policy = minimal.policy.clone();
            let standing = contest(
                40,
                &mut [
                    repeat(move |number| minimal.fresh(number)),
                    repeat(|_| parts(black_box(&text), &policy)),
                    repeat(|_| by_serde_jcs(black_box(&text))),
                ],
            );
            report.add_peers(&title, &standing, &[(PARTS, budget), (SERDE_JCS, BenchBudget::None)]);
        }
    }
    Ok(())
}

/// Measures calls that do not run. They must not cost more than one that does.
fn compare_short_paths(report: &mut BenchReport) -> Result<(), InvalidId> {
    for scenario in [CallScenario::Replayed, CallScenario::RefusedByBreaker, CallScenario::RefusedByGuard] {
        let title = format!("{}, 1 KiB", scenario.name());
        if !report.is_selected(&title) {
            continue;
        }
        let text = sample::params(1024);
        let mut short = MinimalEngine::prepared_for(scenario, &text)?;
        let mut fresh = MinimalEngine::new(&text, KeyChoice::Key)?;
        let standing = contest(
            40,
            &mut [
                repeat(move |number| short.go(scenario, number)),
                repeat(move |number| fresh.fresh(number)),
            ],
        );
        report.add_peers(&title, &standing, &[(FRESH, BenchBudget::AtMost(1.0))]);
    }
    Ok(())
}

fn count_allocations(report: &mut BenchReport) -> Result<(), InvalidId> {
    let text = sample::params(1024);
    let scenarios = [
        (CallScenario::Fresh, KeyChoice::Nothing, "computed key"),
        (CallScenario::Fresh, KeyChoice::Key, "explicit key"),
        (CallScenario::Replayed, KeyChoice::Key, "explicit key"),
        (CallScenario::RefusedByBreaker, KeyChoice::Key, "explicit key"),
        (CallScenario::RefusedByGuard, KeyChoice::Key, "explicit key"),
    ];
    for (scenario, given, name) in scenarios {
        let title = format!("allocations per call, {}, {name}", scenario.name());
        if !report.is_selected(&title) {
            continue;
        }
        let mut minimal = if scenario == CallScenario::Fresh {
            MinimalEngine::new(&text, given)?
        } else {
            MinimalEngine::prepared_for(scenario, &text)?
        };
        let steadfast = Figure::Allocations(allocations(|number| minimal.go(scenario, number)));
        report.add(&ReportRow { title, steadfast, peer: None, ratio: None, budget: BenchBudget::None });
    }
    Ok(())
}

/// Does the work in which the budget is counted.
fn parts(text: &str, policy: &CallPolicy) -> Option<Digest> {
    let document = JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).ok()?;
    Some(arguments_digest(document.root(), policy.class, &policy.dedupe))
}

// ---- the engine -------------------------------------------------------------------------------------

/// The way in which a call ends here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallScenario {
    Fresh,
    Replayed,
    RefusedByBreaker,
    RefusedByGuard,
}

impl CallScenario {
    fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Replayed => "replay",
            Self::RefusedByBreaker => "refused by the open breaker",
            Self::RefusedByGuard => "refused by the guard",
        }
    }
}

/// The identification that the caller sends.
#[derive(Clone, Copy)]
enum KeyChoice {
    Nothing,
    Key,
}

struct MinimalEngine {
    text: String,
    given: KeyChoice,
    tool: ToolRef,
    session: SessionKey,
    actor: ActorId,
    request: RequestId,
    process: ProcessIdentity,
    policy: Arc<CallPolicy>,
    reads: Arc<[Box<str>]>,
    answer: AttemptReport,
    breaker: CircuitBreaker,
    budget: RetryBudget,
    limiter: Limiter,
    dependency_limiter: Limiter,
    guard: LoopGuard,
    trust: TrustLedger,
    approvals: ApprovalLedger,
    store: MemoryRecords,
    /// Reused from call to call, as by a program that writes logs from it.
    notices: Vec<CallNotice>,
}

impl MinimalEngine {
    fn new(text: &str, given: KeyChoice) -> Result<Self, InvalidId> {
        let content =
            RawJson::from_trusted(r#"{"content":[{"type":"text","text":"42 entries were updated"}]}"#);
        let output = ToolOutput { content, metadata: None };
        Ok(Self {
            text: text.to_owned(),
            given,
            tool: ToolRef { namespace: Namespace::new("accounts")?, tool: ToolName::new("update_entries")? },
            session: SessionKey::new("session-0123456789abcdef")?,
            actor: ActorId::new("someone")?,
            request: RequestId::new("request-0123456789abcdef")?,
            process: ProcessIdentity { boot: "0123456789abcdef".into(), pid: 4711, started: 1 },
            policy: Arc::new(PolicyProfile::Standard.policy(ToolClass::Unknown)),
            reads: ["read_entries".into()].into(),
            answer: AttemptReport::Success { output, concern: None },
            breaker: CircuitBreaker::default(),
            budget: RetryBudget::default(),
            limiter: Limiter::default(),
            dependency_limiter: Limiter::default(),
            guard: LoopGuard::default(),
            trust: TrustLedger::default(),
            approvals: ApprovalLedger::default(),
            store: MemoryRecords::default(),
            notices: Vec::with_capacity(16),
        })
    }

    /// Creates an engine in which the next call ends this way.
    fn prepared_for(scenario: CallScenario, text: &str) -> Result<Self, InvalidId> {
        let mut minimal = Self::new(text, KeyChoice::Key)?;
        match scenario {
            CallScenario::Fresh => {}
            CallScenario::Replayed => _ = minimal.call(0, moment(0)),
            CallScenario::RefusedByBreaker => {
                let policy = &minimal.policy.breaker;
                while let Ok((ticket, _)) = minimal.breaker.admit(policy, moment(0)) {
                    let failure = BreakerVerdict::Failure { took: Duration::ZERO };
                    minimal.breaker.record(policy, ticket, failure, moment(0));
                }
            }
            CallScenario::RefusedByGuard => {
                let good = std::mem::replace(&mut minimal.answer, bad_answer());
                for number in 0..2 {
                    _ = minimal.call(number, moment(0));
                    // A failure in the record would be replayed before the guard is asked.
                    minimal.store = MemoryRecords::default();
                }
                minimal.answer = good;
            }
        }
        assert!(minimal.go(scenario, 1), "the call ends {}", scenario.name());
        Ok(minimal)
    }

    /// Makes one call. Returns true if it ended the expected way.
    fn go(&mut self, scenario: CallScenario, number: u64) -> bool {
        match scenario {
            CallScenario::Fresh => self.fresh(number),
            CallScenario::Replayed => {
                let result = self.call(number, moment(number));
                result.is_some_and(|result| result.outcome.is_ok() && result.attempts == 0)
            }
            CallScenario::RefusedByBreaker => {
                // Otherwise the guard would soon refuse the repeated call before the breaker is asked.
                self.guard.reset(moment(number));
                self.code(number) == Some(Code::CircuitOpen)
            }
            CallScenario::RefusedByGuard => {
                matches!(self.code(number), Some(Code::LoopDetected | Code::ToolErrorLimit))
            }
        }
    }

    fn fresh(&mut self, number: u64) -> bool {
        self.store = MemoryRecords::default();
        let result = self.call(number, moment(number));
        result.is_some_and(|result| result.outcome.is_ok() && result.attempts == 1)
    }

    /// Returns the reason for which the call was refused. The time does not advance, so that no hold ends.
    fn code(&mut self, number: u64) -> Option<Code> {
        self.call(number, moment(0))?.outcome.err().map(|failure| failure.code)
    }

    fn call(&mut self, number: u64, now: Timestamp) -> Option<CallResult> {
        let request = self.request(number)?;
        self.notices.clear();
        let mut shared = CallMechanisms {
            breaker: &mut self.breaker,
            dependency: None,
            budget: &mut self.budget,
            limiter: &mut self.limiter,
            dependency_limiter: &mut self.dependency_limiter,
            guard: &mut self.guard,
            trust: &mut self.trust,
            approvals: &self.approvals,
        };
        let policy = Arc::clone(&self.policy);
        let (mut call, mut step) = Call::begin(&mut shared, request, policy, number, now, &mut self.notices);
        loop {
            let event = match step {
                NextStep::Claim(claim) => CallEvent::Claimed(self.store.claim(
                    &claim,
                    &LocalKnowledge::default(),
                    |_| LeaseOwnerState::Time,
                    now,
                )),
                NextStep::Run(_) => CallEvent::Ran(self.answer.clone()),
                NextStep::Save(save) => CallEvent::Saved(self.store.save(&save, now)),
                NextStep::Release(release) => {
                    self.store.release(&release);
                    CallEvent::Released
                }
                NextStep::Finish { result, .. } => return Some(*result),
                NextStep::Follow(_)
                | NextStep::Ask(_)
                | NextStep::Spend { .. }
                | NextStep::Start { .. }
                | NextStep::Probe(_)
                | NextStep::Renew
                | NextStep::Cut(_)
                | NextStep::Wait
                | NextStep::AwaitEnd(_)
                | NextStep::Answer { .. }
                | NextStep::CancelUpstream
                | NextStep::Stay => return None,
            };
            step = call.handle_event(&mut shared, now, event, &mut self.notices).ok()?;
        }
    }

    /// Derives the request from the raw parameters, as an engine does before it calls the machine.
    fn request(&self, number: u64) -> Option<CallRequest> {
        let document = JsonDocument::parse(self.text.as_bytes(), JsonLimits::ENVELOPE).ok()?;
        let params = document.root();
        let policy = &self.policy;
        let digest = arguments_digest(params, policy.class, &policy.dedupe);
        let aims = ArgumentTargets::of(params);
        let scope = KeyInputs {
            tool: &self.tool,
            tenant: None,
            workspace: None,
            session: Some(&self.session),
            actor: Some(&self.actor),
            continuation: None,
        };
        let run: Arc<str> = format!("run-{number}").into();
        let address = match self.given {
            KeyChoice::Key => RecordAddress::Explicit(explicit_key(&scope, "order-0123456789abcdef")),
            KeyChoice::Nothing => RecordAddress::Keyless {
                run: RecordKey(Digest::of(run.as_bytes())),
                index: computed_key(&scope, digest, policy.class, &policy.dedupe),
            },
        };
        Some(CallRequest {
            id: self.request.clone(),
            tool: self.tool.clone(),
            tool_call: None,
            context: None,
            session: Some(self.session.clone()),
            actor: Some(self.actor.clone()),
            tenant: None,
            turn: None,
            trace: None,
            model: None,
            duplicates: Deduplication::Joined(address),
            sent_key: match self.given {
                KeyChoice::Key => UpstreamKey::Given,
                KeyChoice::Nothing => UpstreamKey::Run,
            },
            computed_since: None,
            in_turn: false,
            digest,
            run: RunId(run),
            process: self.process.clone(),
            number,
            signature: signature(&self.tool, &aims),
            domain: Some(domain(&self.tool, &aims)),
            danger: dangerous(&aims, &policy.shapes).map(|shape| shape.name.into()),
            invalid_arguments: None,
            limits: CallerLimits::default(),
            waits: CallerPatience::MayGiveUp,
            run_by: RunnerKind::Driver,
            end: AttemptEndVisibility::Hidden,
            reads: Arc::clone(&self.reads),
            hints: CallerHints::default(),
            channel: ApprovalChannel::Headless,
        })
    }
}

fn moment(number: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + number)
}

fn bad_answer() -> AttemptReport {
    let fault = AttemptFault::new(FaultSource::Tool, "the entry is not there");
    AttemptReport::Failure { fault, output: None }
}
