//! What people are told of by themselves: trust that changed, requests that wait for their answer, calls whose outcome is
//! unknown.
//!
//! Everyone is told the same: the client, the log, whoever follows events, webhooks.

use std::fmt;

use serde::Serialize;

use crate::Timestamp;
use crate::approval::{Parked, ParkedId};
use crate::call::Request;
use crate::dedupe::Record;
use crate::id::{RequestId, SessionKey, TenantId, ToolRef};
use crate::redact;
use crate::trust::{Level, TrustChange, TrustState};

/// Something that people want to know at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// What happened.
    pub event: NotificationEvent,
    /// When.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// How bad it is.
    pub level: Level,
    /// What a person reads: what changed, why, until when, and what to do. Without secrets.
    pub message: String,
    /// The tool; nothing where it is about a host or about everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRef>,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The session of the call that brought it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// That call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// How trust changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<TrustNews>,
    /// The request that waits for an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalNews>,
    /// The record of the call with unknown outcome, as `steadfast resolve` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether clients are told too.
    #[serde(skip)]
    pub for_client: bool,
    /// True if another process that shares the store reported it. That process sends the webhooks.
    #[serde(skip)]
    pub is_from_elsewhere: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NotificationEvent {
    /// Trust in a tool or host changed.
    TrustChanged,
    /// A request waits for a person's answer.
    ApprovalRequested,
    /// Nobody knows whether a call had its effect.
    OutcomeUnknown,
}

impl NotificationEvent {
    /// All of them, as they are written.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("trust_changed", Self::TrustChanged),
        ("approval_requested", Self::ApprovalRequested),
        ("outcome_unknown", Self::OutcomeUnknown),
    ];

    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TrustChanged => "trust_changed",
            Self::ApprovalRequested => "approval_requested",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }
}

impl fmt::Display for NotificationEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How trust changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TrustNews {
    /// What lost or won trust: a tool, a part of it, or a host.
    pub subject: String,
    /// Before.
    pub from: TrustState,
    /// Now.
    pub to: TrustState,
    /// Why.
    pub reason: String,
    /// Failures counted since the trouble began.
    pub failures: u32,
    /// When an escalation ends at the earliest; nothing if only a person can end it, or nothing is escalated.
    #[serde(rename = "untilMs", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Successful calls that restore trust after that.
    pub successes_needed: u32,
}

/// A request that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApprovalNews {
    /// Its number, as `steadfast approve` takes it.
    pub id: ParkedId,
    /// Why a person is asked.
    pub reason: String,
    /// When it is dropped unanswered.
    #[serde(rename = "expiresMs")]
    pub expires: Timestamp,
    /// Whether only an operator can answer.
    pub operator_only: bool,
}

impl Notification {
    /// Of a change of trust.
    pub fn trust(tenant: Option<&TenantId>, change: &TrustChange) -> Self {
        let level = match change.to {
            TrustState::Blocked => Level::Error,
            TrustState::Escalated => Level::Warning,
            TrustState::Recovering | TrustState::Trusted => Level::Info,
        };
        let trust = TrustNews {
            subject: redact::text(&change.subject).into_owned(),
            from: change.from,
            to: change.to,
            reason: redact::text(&change.reason).into_owned(),
            failures: change.failures,
            until: change.until,
            successes_needed: change.successes_needed,
        };
        Self {
            tool: change.tool.clone(),
            tenant: tenant.cloned(),
            trust: Some(trust),
            for_client: change.notify,
            ..Self::new(NotificationEvent::TrustChanged, level, &change.message(), change.at)
        }
    }

    /// Of a request that waits for an answer.
    pub fn approval(tenant: Option<&TenantId>, id: ParkedId, parked: &Parked) -> Self {
        let flag = tenant.map_or_else(String::new, |tenant| format!(" {}", tenant.flag()));
        let number = format!("{}{flag}", id.0);
        let message = format!(
            "{}: {}; answer with `steadfast approve {number}` or `steadfast deny {number}` until {}",
            parked.prompt.summary, parked.prompt.reason, parked.expires
        );
        let approval = ApprovalNews {
            id,
            reason: redact::text(&parked.prompt.reason).into_owned(),
            expires: parked.expires,
            operator_only: parked.blocked,
        };
        Self {
            tool: Some(parked.tool.clone()),
            tenant: tenant.cloned(),
            session: parked.session.clone(),
            approval: Some(approval),
            ..Self::new(NotificationEvent::ApprovalRequested, parked.prompt.level, &message, parked.asked_at)
        }
    }

    /// Of a call whose outcome is unknown.
    pub fn outcome_unknown(of: &Request, at: Timestamp) -> Self {
        let key = of.address().map(|address| address.own().fingerprint());
        Self {
            tenant: of.tenant.clone(),
            session: of.session.clone(),
            request_id: Some(of.id.clone()),
            ..Self::unknown(&of.tool, key, at)
        }
    }

    /// Of a call whose outcome is unknown because the process that made it is gone.
    pub fn abandoned(record: &Record, at: Timestamp) -> Self {
        Self {
            tenant: record.tenant.clone(),
            session: record.session.clone(),
            request_id: Some(record.request.clone()),
            ..Self::unknown(&record.tool, Some(record.key.fingerprint()), at)
        }
    }

    fn unknown(tool: &ToolRef, key: Option<String>, at: Timestamp) -> Self {
        let what_to_do = match &key {
            Some(key) => format!(
                "; find out whether it ran, and say so with `steadfast resolve {key} --ran` or `--did-not-run`"
            ),
            None => String::new(),
        };
        let message = format!("the outcome of a call of {tool} is unknown{what_to_do}");
        Self {
            tool: Some(tool.clone()),
            key,
            ..Self::new(NotificationEvent::OutcomeUnknown, Level::Warning, &message, at)
        }
    }

    fn new(event: NotificationEvent, level: Level, message: &str, at: Timestamp) -> Self {
        Self {
            event,
            at,
            level,
            message: redact::text(message).into_owned(),
            tool: None,
            tenant: None,
            session: None,
            request_id: None,
            trust: None,
            approval: None,
            key: None,
            for_client: true,
            is_from_elsewhere: false,
        }
    }
}
