//! Webhooks: destinations of notifications for operators.

use std::sync::{Arc, LazyLock};

use steadfast_core::id::Namespace;
use steadfast_core::notification::NotificationEvent;
use steadfast_redact::Redacted;

use crate::kind::{ExpandedText, ListKind, OptionalKind, Url, WordKind};
use crate::setting::{Setting, setting};

/// A webhook that notifications are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Name of the webhook.
    pub name: Namespace,
    /// URL that notifications are sent to.
    pub url: Redacted<String>,
    /// Events that are sent.
    pub events: Arc<[NotificationEvent]>,
    /// Format of the notifications.
    pub format: WebhookFormat,
    /// Secret that they are signed with.
    pub secret: Option<Redacted<String>>,
}

/// Format of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookFormat {
    /// The whole notification, as JSON.
    Json,
    /// The message alone, in the format of Slack.
    Slack,
}

/// The written settings of a webhook.
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
    /// Returns `None` if no URL is written.
    pub(crate) fn finish(self, name: Namespace) -> Option<Webhook> {
        let Self { url, events, format, secret } = self;
        Some(Webhook { name, url: url?, events, format, secret })
    }
}

/// Returns the table of settings.
pub(crate) fn settings() -> &'static [Setting<WebhookDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<WebhookDraft>>> = LazyLock::new(|| {
        vec![
            setting!(
                WebhookDraft,
                "url",
                url,
                OptionalKind(Url { schemes: &["https", "http"] }),
                "The URL that notifications are sent to, with POST. `${NAME}` is replaced by an environment \
                 variable."
            ),
            setting!(
                WebhookDraft,
                "events",
                events,
                ListKind { item: WordKind(NotificationEvent::WORDS), least: 1, most: 3 },
                "Which events to send: trust in a tool changed, a request waits for approval, the outcome of a call \
                 is unknown."
            ),
            setting!(
                WebhookDraft,
                "format",
                format,
                WordKind(&[("json", WebhookFormat::Json), ("slack", WebhookFormat::Slack)]),
                "`json` has all fields; `slack` is a message in the format of Slack's incoming webhooks."
            ),
            setting!(
                WebhookDraft,
                "secret",
                secret,
                OptionalKind(ExpandedText),
                "The key that notifications are signed with (HMAC-SHA256, headers of the Standard Webhooks \
                 specification). Write `${NAME}` and keep it in the environment. Without one they are not signed."
            ),
        ]
    });
    &SETTINGS
}
