//! The shared parts of store benchmarks: a claim and a save as the engine makes them, and concurrent callers.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimOwner, ClaimRole, ClaimVerdict, DedupeRecord, DedupeRules, LocalKnowledge,
    RecordAddress, RunOutcome, SaveRequest, SaveVerdict,
};
use steadfast_core::id::{ActorId, Digest, Namespace, RequestId, RunId, SessionKey, ToolName, ToolRef};
use steadfast_core::key::RecordKey;
use steadfast_core::output::ToolOutput;
use steadfast_core::policy::{PolicyProfile, ToolClass};
use steadfast_json::RawJson;
use steadfast_store::{StateStore, this_process};
use tokio::runtime::Runtime;

use crate::engine::MeasurementError;
use crate::measure::{is_quick, median};
use crate::report::{BenchBudget, BenchReport, Figure, ReportRow};

/// A store with the operations of its callers.
pub(crate) struct StoreSteps<S> {
    pub(crate) store: S,
    claim: Claim,
    output: ToolOutput,
}

impl<S: StateStore> StoreSteps<S> {
    pub(crate) fn of(store: S) -> Result<Self, MeasurementError> {
        let claim = Claim {
            address: RecordAddress::Explicit(RecordKey(Digest::of(b""))),
            intent: ClaimIntent::Take { started: true },
            role: ClaimRole::Fresh,
            owner: ClaimOwner { process: this_process(), call: 0, claim: 1 },
            digest: Digest::of(b"arguments"),
            // An emptied store stays open for these between two rounds.
            retry_safe: true,
            best_effort: false,
            arrived: store.now(),
            age: Duration::ZERO,
            end_observed_within: None,
            run: RunId("run-0123456789abcdef".into()),
            rules: DedupeRules::from(&PolicyProfile::Standard.policy(ToolClass::Mutating)),
            tool: ToolRef { namespace: Namespace::new("accounts")?, tool: ToolName::new("update_entries")? },
            request: RequestId::new("request-0123456789abcdef")?,
            tool_call: None,
            context: None,
            session: Some(SessionKey::new("session-0123456789abcdef")?),
            actor: Some(ActorId::new("someone")?),
            tenant: None,
        };
        Ok(Self { store, claim, output: output() })
    }

    /// Makes the claim of a new call.
    pub(crate) async fn claim(&self) -> Result<Arc<DedupeRecord>, MeasurementError> {
        let number = next_number();
        let claim = Claim {
            address: RecordAddress::Explicit(RecordKey(Digest::of(&number.to_be_bytes()))),
            owner: ClaimOwner { call: number, ..self.claim.owner.clone() },
            arrived: self.store.now(),
            ..self.claim.clone()
        };
        match self
            .store
            .claim(&claim, &LocalKnowledge::default())
            .await
            .map_err(|error| MeasurementError::because(error.to_string()))?
        {
            ClaimVerdict::Acquired(record) => Ok(record),
            other @ (ClaimVerdict::Follow(_)
            | ClaimVerdict::Busy
            | ClaimVerdict::Replay(_)
            | ClaimVerdict::Unknown(_)
            | ClaimVerdict::Conflict
            | ClaimVerdict::Nothing
            | ClaimVerdict::Full
            | ClaimVerdict::StoreRecovering
            | ClaimVerdict::RecordsLost) => {
                Err(MeasurementError::because(format!("a new claim got {other:?}")))
            }
        }
    }

    /// Saves the answer of a claim.
    pub(crate) async fn save(&self, claimed: Arc<DedupeRecord>) -> Result<(), MeasurementError> {
        let save = SaveRequest {
            claimed,
            ending: RunOutcome::Done(Some(self.output.clone())),
            attempts: Vec::new(),
            delivered: None,
            hold: false,
            keep: self.claim.rules.keep,
        };
        match self.store.save(&save).await.map_err(|error| MeasurementError::because(error.to_string()))? {
            SaveVerdict::Saved(_) => Ok(()),
            other => Err(MeasurementError::because(format!("a save got {other:?}"))),
        }
    }
}

/// Returns a number that is unique in this process.
pub(crate) fn next_number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Returns an answer of about 300 bytes.
pub(crate) fn output() -> ToolOutput {
    ToolOutput { content: RawJson::string(&"an answer ".repeat(30)), metadata: None }
}

/// A caller that makes a claim and a save, one after the other.
pub(crate) trait ClaimAndSave: Send + Sync + 'static {
    fn pair(&self) -> impl Future<Output = Result<(), MeasurementError>> + Send;
}

impl<S: StateStore + 'static> ClaimAndSave for StoreSteps<S> {
    async fn pair(&self) -> Result<(), MeasurementError> {
        let claimed = self.claim().await?;
        self.save(claimed).await
    }
}

const ROUND: Duration = Duration::from_millis(400);

/// Measures pairs per second of Steadfast with this many callers, in turns with the existing alternative.
pub(crate) fn race(
    report: &mut BenchReport,
    runtime: &Runtime,
    title: String,
    (callers, steadfast): (usize, &Arc<impl ClaimAndSave>),
    (peer_callers, peer, name): (usize, &Arc<impl ClaimAndSave>, &str),
    budget: BenchBudget,
) -> Result<(), MeasurementError> {
    let rounds = if is_quick() { 3 } else { 15 };
    let (mut steadfast_rates, mut peer_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (steadfast_rate, peer_rate) = if round % 2 == 0 {
            let first = runtime.block_on(rate(callers, steadfast))?;
            (first, runtime.block_on(rate(peer_callers, peer))?)
        } else {
            let first = runtime.block_on(rate(peer_callers, peer))?;
            (runtime.block_on(rate(callers, steadfast))?, first)
        };
        // The first round is the warm-up.
        if round > 0 {
            steadfast_rates.push(steadfast_rate);
            peer_rates.push(peer_rate);
            ratios.push(steadfast_rate / peer_rate);
        }
    }
    report.add(&ReportRow {
        title,
        steadfast: Figure::PerSecond(median(steadfast_rates.into_iter())),
        peer: Some((name.to_owned(), Figure::PerSecond(median(peer_rates.into_iter())))),
        ratio: Some(median(ratios.into_iter())),
        budget,
    });
    Ok(())
}

/// Returns the number of pairs per second with this many callers.
async fn rate(callers: usize, pairs: &Arc<impl ClaimAndSave>) -> Result<f64, MeasurementError> {
    let stop = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (pairs, stop) = (Arc::clone(pairs), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut made = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    pairs.pair().await?;
                    made += 1;
                }
                Ok::<_, MeasurementError>(made)
            })
        })
        .collect();
    tokio::time::sleep(ROUND).await;
    stop.store(true, Ordering::Relaxed);
    let mut made = 0;
    for caller in callers {
        made += caller.await.map_err(|error| MeasurementError::because(error.to_string()))??;
    }
    Ok(f64::from(made) / started.elapsed().as_secs_f64())
}
