//! The last trips of the loop guard in this process.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::call::{Call, CallResult};
use steadfast_core::code::Code;
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::guard::GuardLayer;
use steadfast_core::id::{Digest, ModelId, SessionKey, TenantId, ToolRef, TurnId};

/// A trip of the loop guard. Equal calls of a session count as one trip with a number of times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GuardTrip {
    /// First time.
    pub at_ms: Timestamp,
    /// Last time.
    pub last_at_ms: Timestamp,
    /// Number of times.
    pub times: u32,
    /// Tenant whose data it concerns.
    #[serde(skip)]
    pub tenant: Option<TenantId>,
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// The tool that was called.
    pub tool: ToolRef,
    /// The turn, if the host reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The model, if the host reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// Layers that tripped, the last time.
    pub layers: Vec<GuardLayer>,
    /// True if the call was refused, the last time. Otherwise it ran and its result carried a remark.
    pub refused: bool,
    /// Arguments of the call, redacted and truncated.
    pub arguments: String,
    /// Error message for the model, redacted and truncated.
    pub error: String,
    /// The digest of the canonical arguments.
    pub digest: Digest,
}

/// The last trips of all tenants.
#[derive(Debug, Default)]
pub(crate) struct GuardTrips(Mutex<VecDeque<GuardTrip>>);

impl GuardTrips {
    pub(super) fn of(&self, tenant: &Option<TenantId>) -> Vec<GuardTrip> {
        self.0.lock().iter().filter(|trip| trip.tenant == *tenant).cloned().collect()
    }

    /// Adds a trip. A model that repeats itself causes one trip after the other: a trip that equals a known one is only
    /// counted, which avoids the redaction.
    fn add(
        &self,
        known: impl Fn(&GuardTrip) -> bool,
        again: impl FnOnce(&mut GuardTrip),
        new: impl FnOnce() -> GuardTrip,
    ) {
        let mut trips = self.0.lock();
        if let Some(at) = trips.iter().rposition(known) {
            if let Some(mut trip) = trips.remove(at) {
                again(&mut trip);
                trips.push_back(trip);
            }
            return;
        }
        drop(trips);
        let trip = new();
        let mut trips = self.0.lock();
        let own = trips.iter().filter(|other| other.tenant == trip.tenant).count();
        if own >= MOST_TRIPS
            && let Some(oldest) = trips.iter().position(|other| other.tenant == trip.tenant)
        {
            trips.remove(oldest);
        } else if trips.len() >= MOST_TRIPS_OF_ALL {
            trips.pop_front();
        }
        trips.push_back(trip);
    }
}

impl GuardTrips {
    /// Records the trip of the guard in a call that has ended, if there was one.
    pub(crate) fn record(&self, envelope: &CallEnvelope, call: &Call, result: &CallResult, now: Timestamp) {
        let refused = refused_by(result);
        if result.remarks.is_empty() && refused.is_none() {
            return;
        }
        let request = call.request();
        let layers: Vec<_> =
            refused.into_iter().chain(result.remarks.iter().map(|remark| remark.layer)).collect();
        let error_text = || {
            let failure = result.outcome.as_ref().err().map(|failure| failure.message.as_ref());
            let remarks = result.remarks.iter().map(|remark| remark.text.as_ref());
            let parts: Vec<_> = failure.into_iter().chain(remarks).collect();
            steadfast_redact::excerpt(&parts.join("\n"), LONGEST)
        };
        self.add(
            |trip| {
                trip.digest == request.digest
                    && trip.tool == request.tool
                    && trip.session == request.session
                    && trip.tenant == request.tenant
            },
            |trip| {
                trip.times = trip.times.saturating_add(1);
                trip.last_at_ms = now;
                if trip.layers != layers || trip.refused != refused.is_some() {
                    (trip.layers, trip.refused, trip.error) =
                        (layers.clone(), refused.is_some(), error_text());
                }
            },
            || GuardTrip {
                at_ms: now,
                last_at_ms: now,
                times: 1,
                tenant: request.tenant.clone(),
                session: request.session.clone(),
                tool: request.tool.clone(),
                turn: request.turn.clone(),
                model: request.model.clone(),
                layers: layers.clone(),
                refused: refused.is_some(),
                arguments: steadfast_redact::excerpt(envelope.payload.params.as_str(), LONGEST),
                error: error_text(),
                digest: request.digest,
            },
        );
    }
}

/// Returns the layer that refused a call without a run.
fn refused_by(result: &CallResult) -> Option<GuardLayer> {
    let failure = result.outcome.as_ref().err().filter(|_| result.attempts == 0)?;
    let by = |layer: GuardLayer| failure.rule.as_deref() == Some(layer.as_str());
    if failure.code == Code::ToolErrorLimit {
        Some(GuardLayer::TurnLimit)
    } else if failure.code == Code::LoopDetected {
        Some(if by(GuardLayer::RepeatedSuccess) { GuardLayer::RepeatedSuccess } else { GuardLayer::Loop })
    } else {
        None
    }
}

/// Maximum number of trips of one tenant, and of all together.
const MOST_TRIPS: usize = 256;
const MOST_TRIPS_OF_ALL: usize = 1024;
/// Maximum bytes of the arguments and of the error message.
const LONGEST: usize = 2048;
