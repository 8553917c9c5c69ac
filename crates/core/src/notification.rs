//! Notifications: changes of trust, requests for approval, and calls with an unknown outcome.
//!
//! Every channel gets the same notification: the client, the log, the event stream, webhooks.

use std::fmt;

use serde::Serialize;

use crate::Timestamp;
use crate::approval::{ParkedRequest, ParkedRequestId};
use crate::call::CallRequest;
use crate::dedupe::DedupeRecord;
use crate::id::{RequestId, SessionKey, TenantId, ToolRef};
use crate::trust::{PromptLevel, TrustChange, TrustState};

/// A notification that operators want at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// Kind of the event.
    pub event: NotificationEvent,
    /// Time of the event.
    #[serde(rename = "atMs")]
    pub at: Timestamp,
    /// Severity of the event.
    pub level: PromptLevel,
    /// Message for the operator: the change, its reason, its end, and the next step. Without secrets.
    pub message: String,
    /// The tool; absent if the notification is about a host or about everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolRef>,
    /// The tenant that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The session of the call that caused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// The request that caused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The change of trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<TrustNotification>,
    /// The request for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalNotification>,
    /// Record of the call with the unknown outcome, as `steadfast resolve` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// True if clients are notified too.
    #[serde(skip)]
    pub for_client: bool,
    /// True if another process that shares the store reported it. That process sends the webhooks.
    #[serde(skip)]
    pub is_from_elsewhere: bool,
}

/// The kind of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NotificationEvent {
    /// Trust in a tool or host changed.
    TrustChanged,
    /// A request waits for approval.
    ApprovalRequested,
    /// The outcome of a call is unknown.
    OutcomeUnknown,
}

impl NotificationEvent {
    /// All kinds, with their names on the wire.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("trust_changed", Self::TrustChanged),
        ("approval_requested", Self::ApprovalRequested),
        ("outcome_unknown", Self::OutcomeUnknown),
    ];

    /// Returns the name of the kind on the wire.
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

/// A change of trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TrustNotification {
    /// The subject of trust: a tool, a part of it, or a host.
    pub subject: String,
    /// Trust before the change.
    pub from: TrustState,
    /// Trust after the change.
    pub to: TrustState,
    /// Reason for the change.
    pub reason: String,
    /// Failures counted since the first one.
    pub failures: u32,
    /// Earliest end of the escalation; absent if only an operator can end it, or if nothing is escalated.
    #[serde(rename = "untilMs", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Number of successful calls that restore trust after that.
    pub successes_needed: u32,
}

/// A request for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApprovalNotification {
    /// Number of the request, as `steadfast approve` takes it.
    pub id: ParkedRequestId,
    /// Reason for the approval.
    pub reason: String,
    /// Time at which the request is dropped without a decision.
    #[serde(rename = "expiresMs")]
    pub expires: Timestamp,
    /// True if only an operator can approve it.
    pub operator_only: bool,
}

impl Notification {
    /// Returns the notification of a change of trust.
    pub fn trust(tenant: Option<&TenantId>, change: &TrustChange) -> Self {
        let level = match change.to {
            TrustState::Blocked => PromptLevel::Error,
            TrustState::Escalated => PromptLevel::Warning,
            TrustState::Recovering | TrustState::Trusted => PromptLevel::Info,
        };
        let trust = TrustNotification {
            subject: steadfast_redact::text(&change.subject).into_owned(),
            from: change.from,
            to: change.to,
            reason: steadfast_redact::text(&change.reason).into_owned(),
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

    /// Returns the notification of a request for approval.
    pub fn approval(tenant: Option<&TenantId>, id: ParkedRequestId, parked: &ParkedRequest) -> Self {
        let flag = tenant.map_or_else(String::new, |tenant| format!(" {}", tenant.flag()));
        let number = format!("{}{flag}", id.0);
        let message = format!(
            "{}: {}; run `steadfast approve {number}` or `steadfast deny {number}` before {}",
            parked.prompt.summary, parked.prompt.reason, parked.expires
        );
        let approval = ApprovalNotification {
            id,
            reason: steadfast_redact::text(&parked.prompt.reason).into_owned(),
            expires: parked.expires,
            operator_only: parked.blocked,
        };
        Self {
            tool: Some(parked.tool.clone()),
            tenant: tenant.cloned(),
            session: parked.session.clone(),
            approval: Some(approval),
            ..Self::new(
                NotificationEvent::ApprovalRequested,
                parked.prompt.level,
                &message,
                parked.first_requested,
            )
        }
    }

    /// Returns the notification of a call with an unknown outcome.
    pub fn outcome_unknown(of: &CallRequest, at: Timestamp) -> Self {
        let key = of.address().map(|address| address.own().fingerprint());
        Self {
            tenant: of.tenant.clone(),
            session: of.session.clone(),
            request_id: Some(of.id.clone()),
            ..Self::unknown(&of.tool, key, at)
        }
    }

    /// Returns the notification of a call whose outcome is unknown because its process is gone.
    pub fn abandoned(record: &DedupeRecord, at: Timestamp) -> Self {
        Self {
            tenant: record.tenant.clone(),
            session: record.session.clone(),
            request_id: Some(record.request.clone()),
            ..Self::unknown(&record.tool, Some(record.key.fingerprint()), at)
        }
    }

    fn unknown(tool: &ToolRef, key: Option<String>, at: Timestamp) -> Self {
        let instruction = match &key {
            Some(key) => {
                format!("; check whether it ran, then run `steadfast resolve {key} --ran` or `--did-not-run`")
            }
            None => String::new(),
        };
        let message = format!("the outcome of a call of {tool} is unknown{instruction}");
        Self {
            tool: Some(tool.clone()),
            key,
            ..Self::new(NotificationEvent::OutcomeUnknown, PromptLevel::Warning, &message, at)
        }
    }

    fn new(event: NotificationEvent, level: PromptLevel, message: &str, at: Timestamp) -> Self {
        Self {
            event,
            at,
            level,
            message: steadfast_redact::text(message).into_owned(),
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
