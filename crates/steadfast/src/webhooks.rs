//! Webhooks: delivery of notifications to the configured URLs.
//!
//! Each receiver has its own queue and task, so that a slow or unavailable one delays no other. A failed delivery is
//! retried like a failed call, and finally given up with a log event. Queued notifications are lost with the process.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use parking_lot::Mutex;
use serde_json::json;
use sha2::Sha256;
use steadfast_config::{Config, LiveConfig, Webhook, WebhookFormat};
use steadfast_core::Timestamp;
use steadfast_core::classify::{AttemptFault, FaultNature, FaultSource, Overrides, RetryAfter, classify};
use steadfast_core::id::Namespace;
use steadfast_core::notification::Notification;
use steadfast_core::policy::{Backoff, PolicyProfile, RetryPolicy, ToolClass};
use steadfast_core::retry::{CallerLimits, RetrySchedule};
use steadfast_executor::EngineListener;
use steadfast_mcp::http::upstream::{HttpOrigin, HttpUpstreamSettings, OriginRequest, RequestProgress};
use steadfast_store::TimeSource;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;

use crate::open_error::OpenError;

/// Maximum number of queued notifications per receiver. Further ones are dropped, and that is logged.
const WAITING: usize = 256;
/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a response that is read. Its content is not used.
const LONGEST_ANSWER: usize = 64 * 1024;

/// The webhook receivers of an instance.
pub(crate) struct Webhooks {
    live: Arc<LiveConfig>,
    clock: Arc<dyn TimeSource>,
    runtime: Handle,
    receivers: Mutex<BTreeMap<Namespace, WebhookReceiver>>,
}

/// A webhook receiver.
struct WebhookReceiver {
    webhook: Webhook,
    queue: mpsc::Sender<Arc<Notification>>,
    sending: JoinHandle<()>,
}

impl Webhooks {
    /// Creates the webhooks of the configuration, and follows its changes. Needs a tokio runtime.
    pub(crate) fn of(live: Arc<LiveConfig>, clock: Arc<dyn TimeSource>) -> Self {
        Self { live, clock, runtime: Handle::current(), receivers: Mutex::default() }
    }

    /// Stops receivers that were removed from the configuration or changed, and starts new ones.
    fn follow(&self, receivers: &mut BTreeMap<Namespace, WebhookReceiver>) {
        let config = self.live.current();
        let webhooks = config.webhooks();
        receivers.retain(|name, receiver| webhooks.get(name) == Some(&receiver.webhook));
        for (name, webhook) in webhooks {
            if !receivers.contains_key(name) {
                let (queue, waiting) = mpsc::channel(WAITING);
                let sending = send_all(webhook.clone(), waiting, self.clock.clone());
                let sending = self.runtime.spawn(sending);
                receivers.insert(name.clone(), WebhookReceiver { webhook: webhook.clone(), queue, sending });
            }
        }
    }

    /// Sends queued notifications within the limit.
    pub(crate) async fn finish(&self, limit: Duration) {
        let receivers = std::mem::take(&mut *self.receivers.lock());
        let drain = async {
            for (_, WebhookReceiver { queue, sending, .. }) in receivers {
                drop(queue);
                let _ = sending.await;
            }
        };
        let _ = tokio::time::timeout(limit, drain).await;
    }
}

impl EngineListener for Webhooks {
    fn notification(&self, notification: &Arc<Notification>) {
        // The process in which the event occurred sends it.
        if notification.is_from_elsewhere {
            return;
        }
        let mut receivers = self.receivers.lock();
        self.follow(&mut receivers);
        for (name, WebhookReceiver { webhook, queue, .. }) in &*receivers {
            if !webhook.events.contains(&notification.event) {
                continue;
            }
            if let Err(TrySendError::Full(lost) | TrySendError::Closed(lost)) =
                queue.try_send(notification.clone())
            {
                let event = lost.event.as_str();
                tracing::warn!(event = "notify.dropped", webhook = %name, notification = event, "too many notifications wait for this webhook");
            }
        }
    }
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

/// Returns the errors of webhooks in a configuration that cannot be used.
pub(crate) fn unusable(config: &Config) -> impl Iterator<Item = OpenError> {
    config.webhooks().values().filter_map(|webhook| {
        let reason = place(webhook).err()?;
        Some(OpenError::Section { section: format!("notify.{}", webhook.name), reason })
    })
}

/// Returns the server and the URI of a webhook.
fn place(webhook: &Webhook) -> Result<(HttpOrigin, Uri), String> {
    let settings = HttpUpstreamSettings { message_bytes: LONGEST_ANSWER, ..HttpUpstreamSettings::default() };
    let url = webhook.url.expose().parse::<Uri>().map_err(|error| error.to_string())?;
    let target = url.path_and_query().map_or("/", |target| target.as_str());
    let target = target.parse::<Uri>().map_err(|error| error.to_string())?;
    let origin = HttpOrigin::new(webhook.url.expose(), settings).map_err(|error| error.to_string())?;
    Ok((origin, target))
}

/// Sends the notifications one after the other, in order.
async fn send_all(
    webhook: Webhook,
    mut waiting: mpsc::Receiver<Arc<Notification>>,
    clock: Arc<dyn TimeSource>,
) {
    let (origin, target) = match place(&webhook) {
        Ok(place) => place,
        Err(reason) => {
            tracing::error!(event = "notify.unusable", webhook = %webhook.name, "why" = reason, "nothing can be sent to this webhook");
            return;
        }
    };
    let policy = policy();
    while let Some(notification) = waiting.recv().await {
        let message = WebhookMessage::of(&webhook, &notification);
        if let Err((attempts, reason)) = message.deliver(&origin, &target, &policy, &*clock).await {
            let event = notification.event.as_str();
            tracing::error!(event = "notify.failed", webhook = %webhook.name, notification = event, attempts, "why" = reason, "a notification was not delivered");
        }
    }
}

/// Nine attempts within about five minutes.
fn policy() -> RetryPolicy {
    let rest = [2, 4, 8, 16, 32, 60, 60, 60].map(Duration::from_secs).to_vec();
    RetryPolicy {
        attempts: NonZeroU32::new(9).unwrap_or(NonZeroU32::MIN),
        backoff: Backoff::List { first: Duration::from_secs(1), rest },
        total: None,
        ..PolicyProfile::Standard.policy(ToolClass::Idempotent).retry
    }
}

/// A notification for one receiver.
struct WebhookMessage<'w> {
    webhook: &'w Webhook,
    event: &'static str,
    /// The same in every attempt, so that the receiver can deduplicate.
    id: String,
    body: Bytes,
}

impl<'w> WebhookMessage<'w> {
    fn of(webhook: &'w Webhook, notification: &Notification) -> Self {
        let body = match webhook.format {
            WebhookFormat::Json => serde_json::to_vec(notification).unwrap_or_default(),
            WebhookFormat::Slack => {
                json!({ "text": for_slack(&notification.message) }).to_string().into_bytes()
            }
        };
        let mut random = [0; 16];
        // If there is no randomness, the time still makes it unique.
        let _ = getrandom::fill(&mut random);
        let random = u128::from_ne_bytes(random);
        let id = format!("msg_{:x}{random:032x}", notification.at.as_millis());
        Self { webhook, event: notification.event.as_str(), id, body: body.into() }
    }

    /// Sends the notification until the receiver accepts it. Otherwise returns the number of attempts and the last
    /// error.
    async fn deliver(
        &self,
        origin: &HttpOrigin,
        target: &Uri,
        policy: &RetryPolicy,
        clock: &dyn TimeSource,
    ) -> Result<(), (u32, String)> {
        let seed = clock.now().as_millis();
        let mut schedule = RetrySchedule::new(policy, &CallerLimits::default(), None, seed, clock.now());
        loop {
            let started = clock.now();
            let Err(fault) = self.send(origin, target, started).await else { return Ok(()) };
            let classified = classify(&fault, &Overrides::default(), clock.now());
            let attempts = schedule.attempts();
            let next = match classified.nature {
                FaultNature::Transient => {
                    schedule.next(policy, started, classified.retry_after, clock.now()).ok()
                }
                FaultNature::Permanent => None,
            };
            let Some(next) = next else {
                return Err((attempts, steadfast_redact::excerpt(&fault.message, 512)));
            };
            tokio::time::sleep(next.since(clock.now())).await;
        }
    }

    async fn send(&self, origin: &HttpOrigin, target: &Uri, now: Timestamp) -> Result<(), AttemptFault> {
        let (under_way, headers) = (RequestProgress::default(), self.headers(now));
        let request =
            OriginRequest { method: Method::POST, target: target.clone(), headers, body: self.body.clone() };
        let replied = match tokio::time::timeout(PATIENCE, origin.send(request, &under_way)).await {
            Ok(replied) => replied.map_err(|failure| failure.fault())?,
            Err(_) => {
                let source = FaultSource::Timeout { after: PATIENCE };
                return Err(AttemptFault::new(source, "the receiver did not respond in time"));
            }
        };
        if replied.status.is_success() {
            return Ok(());
        }
        let status = replied.status.as_u16();
        let after = replied.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let message = format!("the receiver responded with status {status}");
        let retry_after = after.and_then(RetryAfter::parse);
        Err(AttemptFault { retry_after, ..AttemptFault::new(FaultSource::Http { status }, message) })
    }

    fn headers(&self, now: Timestamp) -> HeaderMap {
        let seconds = (now.as_millis() / 1000).to_string();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static("steadfast"));
        let mut add = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        add("webhook-id", &self.id);
        add("webhook-timestamp", &seconds);
        add("steadfast-event", self.event);
        if let Some(secret) = &self.webhook.secret {
            let signature = sign(secret.expose(), &self.id, &seconds, &self.body);
            add("webhook-signature", &format!("v1,{signature}"));
        }
        headers
    }
}

/// Returns the signature of the Standard Webhooks specification: HMAC-SHA256 of id, time and body. A secret with the
/// prefix `whsec_` is base64 after it, as specified. Any other secret is used unchanged.
fn sign(secret: &str, id: &str, seconds: &str, body: &[u8]) -> String {
    let decoded = secret.strip_prefix("whsec_").and_then(|coded| STANDARD.decode(coded).ok());
    let key = decoded.as_deref().unwrap_or(secret.as_bytes());
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(id.as_bytes());
    mac.update(b".");
    mac.update(seconds.as_bytes());
    mac.update(b".");
    mac.update(body);
    STANDARD.encode(mac.finalize().into_bytes())
}

/// Escapes text for Slack, so that it is not markup.
fn for_slack(message: &str) -> String {
    message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn a_signature_is_that_of_the_standard() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b"{\"test\": 2432232314}");
        assert_eq!(signature, "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_slack_would_take_for_markup_is_text() {
        assert_eq!(for_slack("a <b> & c"), "a &lt;b&gt; &amp; c");
    }
}
