//! Where people are told of what needs them.

use std::sync::{Arc, LazyLock};

use steadfast_core::id::Namespace;
use steadfast_core::notification::NotificationEvent;
use steadfast_core::redact::Redacted;

use crate::kind::{Expanded, ListOf, OrNone, Url, Words};
use crate::setting::{Setting, setting};

/// A webhook: notifications are sent there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// What it is called.
    pub name: Namespace,
    /// Where notifications are sent.
    pub url: Redacted<String>,
    /// Those that are.
    pub events: Arc<[NotificationEvent]>,
    /// In which form.
    pub format: WebhookFormat,
    /// What they are signed with.
    pub secret: Option<Redacted<String>>,
}

/// The form of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookFormat {
    /// All of it, as JSON.
    Json,
    /// Its message, as Slack takes it.
    Slack,
}

/// A webhook taken apart into what is written.
#[derive(Clone, Debug)]
pub(crate) struct WebhookDraft {
    url: Option<Redacted<String>>,
    events: Arc<[NotificationEvent]>,
    format: WebhookFormat,
    secret: Option<Redacted<String>>,
}

impl Default for WebhookDraft {
    fn default() -> Self {
        let events = NotificationEvent::WORDS.iter().map(|(_, event)| *event).collect();
        Self { url: None, events, format: WebhookFormat::Json, secret: None }
    }
}

impl WebhookDraft {
    /// Nothing if it says nowhere to send to.
    pub(crate) fn finish(self, name: Namespace) -> Option<Webhook> {
        let Self { url, events, format, secret } = self;
        Some(Webhook { name, url: url?, events, format, secret })
    }
}

/// The table.
pub(crate) fn settings() -> &'static [Setting<WebhookDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<WebhookDraft>>> = LazyLock::new(|| {
        vec![
            setting!(
                WebhookDraft,
                "url",
                url,
                OrNone(Url { schemes: &["https", "http"] }),
                "Where notifications are sent, with POST. `${NAME}` stands for a variable of the environment."
            ),
            setting!(
                WebhookDraft,
                "events",
                events,
                ListOf { item: Words(NotificationEvent::WORDS), least: 1, most: 3 },
                "Which ones: trust in a tool changed, a request waits for a person's answer, the outcome of a call is unknown."
            ),
            setting!(
                WebhookDraft,
                "format",
                format,
                Words(&[("json", WebhookFormat::Json), ("slack", WebhookFormat::Slack)]),
                "`json` has all fields; `slack` is a message as incoming webhooks of Slack take it."
            ),
            setting!(
                WebhookDraft,
                "secret",
                secret,
                OrNone(Expanded),
                "The key that they are signed with (HMAC-SHA256, headers of the Standard Webhooks specification). Write `${NAME}` and \
                 keep it in the environment. Without one they are not signed."
            ),
        ]
    });
    &SETTINGS
}
