//! Deriving a key beside the two canonicalizers that are published for serde.
//!
//! Steadfast does the work of every call: read the raw text, write the canonical form, hash it, and hash the key with its
//! scope. The peers do less, because they derive no key with a scope: they read into a tree, write the canonical form,
//! and hash it.

use std::hint::black_box;

use sha2::{Digest as _, Sha256};
use steadfast_core::id::{ActorId, InvalidId, Namespace, SessionKey, TenantId, ToolName, ToolRef};
use steadfast_core::key::{KeyInputs, RecordKey, arguments_digest, computed_key};
use steadfast_core::policy::{DedupePolicy, ToolClass};
use steadfast_json::{JsonDocument, JsonLimits};

use crate::engine::MeasurementError;
use crate::measure::{allocations, contest_in, repeat};
use crate::report::{BenchBudget, BenchReport, Figure, ReportRow};
use crate::sample;

pub(crate) const SERDE_JCS: &str = "serde_json + serde_jcs 0.2.0 + sha2";
const CANONICALIZER: &str = "serde_json + serde_json_canonicalizer 0.4.1 + sha2";

/// Name, bytes, rounds, derivations per round, and the budget of DESIGN.
const SIZES: [(&str, usize, usize, u32, BenchBudget); 3] = [
    ("256 B", 256, 201, 100, BenchBudget::None),
    ("1 KiB", 1024, 201, 40, BenchBudget::AtMost(1.0 / 3.0)),
    ("64 KiB", 64 << 10, 61, 2, BenchBudget::None),
];

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    let caller = KeyCaller::new()?;
    for (size, bytes, rounds, operations, budget) in SIZES {
        let text = sample::params(bytes);
        agree(&text);
        derive(report, &caller, &text, size, (rounds, operations), budget);
    }
    loosely(report, &caller);
    count_allocations(report, &caller);
    Ok(())
}

// ---- measurements -----------------------------------------------------------------------------------

fn derive(
    report: &mut BenchReport,
    caller: &KeyCaller,
    text: &str,
    size: &str,
    (rounds, operations): (usize, u32),
    budget: BenchBudget,
) {
    let title = format!("derive from {size}");
    if !report.is_selected(&title) {
        return;
    }
    let standing = contest_in(
        rounds,
        operations,
        &mut [
            repeat(|_| caller.key(black_box(text), ToolClass::Unknown)),
            repeat(|_| by_serde_jcs(black_box(text))),
            repeat(|_| by_canonicalizer(black_box(text))),
        ],
    );
    report.add_peers(&title, &standing, &[(SERDE_JCS, budget), (CANONICALIZER, BenchBudget::None)]);
}

/// Measures tools that change nothing. Their strings are compared loosely, which reads every character.
fn loosely(report: &mut BenchReport, caller: &KeyCaller) {
    const TITLE: &str = "derive from 1 KiB, white space collapsed";
    if !report.is_selected(TITLE) {
        return;
    }
    let text = sample::params(1024);
    let standing = contest_in(
        101,
        40,
        &mut [
            repeat(|_| caller.key(black_box(&text), ToolClass::ReadOnly)),
            repeat(|_| caller.key(black_box(&text), ToolClass::Unknown)),
        ],
    );
    report.add_peers(TITLE, &standing, &[("itself, exact", BenchBudget::None)]);
}

fn count_allocations(report: &mut BenchReport, caller: &KeyCaller) {
    for (size, bytes, ..) in SIZES {
        let title = format!("allocations per derivation from {size}");
        if !report.is_selected(&title) {
            continue;
        }
        let text = sample::params(bytes);
        let steadfast = Figure::Allocations(allocations(|_| caller.key(&text, ToolClass::Unknown)));
        let peers = [
            (SERDE_JCS, allocations(|_| by_serde_jcs(&text))),
            (CANONICALIZER, allocations(|_| by_canonicalizer(&text))),
        ];
        for (peer, count) in peers {
            let peer = Some((peer.to_owned(), Figure::Allocations(count)));
            report.add(&ReportRow {
                title: title.clone(),
                steadfast,
                peer,
                ratio: None,
                budget: BenchBudget::None,
            });
        }
    }
}

// ---- contestants ------------------------------------------------------------------------------------

/// The owner of a key, made once as for a connection.
struct KeyCaller {
    tool: ToolRef,
    tenant: TenantId,
    session: SessionKey,
    actor: ActorId,
    policy: DedupePolicy,
}

impl KeyCaller {
    fn new() -> Result<Self, InvalidId> {
        Ok(Self {
            tool: ToolRef { namespace: Namespace::new("accounts")?, tool: ToolName::new("update_entries")? },
            tenant: TenantId::new("tenant-7")?,
            session: SessionKey::new("session-0123456789abcdef")?,
            actor: ActorId::new("someone")?,
            policy: DedupePolicy::default(),
        })
    }

    fn key(&self, text: &str, class: ToolClass) -> Option<RecordKey> {
        let document = JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).ok()?;
        let digest = arguments_digest(document.root(), class, &self.policy);
        let scope = KeyInputs {
            tool: &self.tool,
            tenant: Some(&self.tenant),
            workspace: None,
            session: Some(&self.session),
            actor: Some(&self.actor),
            continuation: None,
        };
        Some(computed_key(&scope, digest, class, &self.policy))
    }
}

pub(crate) fn by_serde_jcs(text: &str) -> Option<[u8; 32]> {
    let value: serde_json::Value = serde_json::from_slice(text.as_bytes()).ok()?;
    Some(Sha256::digest(serde_jcs::to_vec(&value).ok()?).into())
}

fn by_canonicalizer(text: &str) -> Option<[u8; 32]> {
    let value: serde_json::Value = serde_json::from_slice(text.as_bytes()).ok()?;
    Some(Sha256::digest(serde_json_canonicalizer::to_vec(&value).ok()?).into())
}

/// Checks that all reach the same result. Otherwise the race means nothing.
fn agree(text: &str) {
    let steadfast = JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE)
        .map(|document| arguments_digest(document.root(), ToolClass::Unknown, &DedupePolicy::default()));
    let steadfast = steadfast.ok().map(|digest| *digest.as_bytes());
    assert!(steadfast.is_some() && steadfast == by_serde_jcs(text), "the same canonical form as serde_jcs");
    assert!(steadfast == by_canonicalizer(text), "the same canonical form as serde_json_canonicalizer");
}
