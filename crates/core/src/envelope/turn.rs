//! The envelope of a turn: the caller of several calls, and their plan.

use serde::Serialize;
use steadfast_json::{JsonDocument, JsonLimits, RawJson};

use super::call::{CallerIdentity, ContractVersion, EnvelopeTrace, ExtraFields, TurnControl};
use super::parse::{EnvelopeError, EnvelopeObject, EnvelopeReader, UnknownFieldPolicy, describe};
use crate::id::ActorId;

/// A turn as submitted by a caller.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnEnvelope {
    /// Version of the contract that the envelope follows.
    pub contract_version: ContractVersion,
    /// Caller of the tools. The plan contains the id of the turn.
    pub target: CallerIdentity,
    /// Tags of the calls.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<TurnControl>"))]
    pub control: TurnControl,
    /// Trace of the turn.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<EnvelopeTrace>"))]
    pub trace: EnvelopeTrace,
    /// Plan of the turn, parsed by `TurnPlan::parse` of `steadfast-turn`.
    #[cfg_attr(feature = "schema", schemars(with = "super::plan_schema::PlanSchema"))]
    pub plan: RawJson,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: ExtraFields,
}

impl TurnEnvelope {
    /// Calls in one plan, unless configured otherwise.
    pub const DEFAULT_CALLS: usize = 1_000;
    /// Alternatives of one call in a plan, unless configured otherwise.
    pub const DEFAULT_ALTERNATIVES: usize = 8;

    /// Parses an envelope from a known sender, if there is one, or returns all its errors. The plan is not parsed.
    pub fn parse_from(
        text: &[u8],
        unknown: UnknownFieldPolicy,
        sender: Option<&ActorId>,
    ) -> Result<Self, EnvelopeError> {
        let document = JsonDocument::parse(text, JsonLimits::ENVELOPE).map_err(EnvelopeError::Json)?;
        let root = document.root();
        let mut reader = EnvelopeReader::from(unknown, sender);
        if !root.is_object() {
            reader.problem(String::new(), "an object", describe(root));
        }
        let turn =
            EnvelopeObject { path: "", value: Some(root).filter(|root| root.is_object()), known: TURN };
        let contract_version = reader.version(turn, "contractVersion", ContractVersion::V1_1, "1.1");
        let target = reader.target(turn);
        let control = reader.turn_control(turn);
        let trace = reader.trace(turn);
        let plan = reader.required(turn, "plan", "an object", |value| Ok(RawJson::from_trusted(value.raw())));
        let unknown = reader.unknown(turn);
        let read = match (contract_version, target, plan) {
            (Some(contract_version), Some(target), Some(plan)) => {
                Some(Self { contract_version, target, control, trace, plan, unknown })
            }
            _ => None,
        };
        reader.finish(read)
    }
}

const TURN: &[&str] = &["contractVersion", "target", "control", "trace", "plan"];
