//! Webhooks: notifications are sent to where the configuration says.
//!
//! Each receiver has a queue and a task of its own, so that one that is slow or gone delays nobody. What cannot be delivered
//! is tried again as a failed call would be, and given up with a line in the log. What waits is lost with the process.

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
use steadfast_config::{Config, Live, Webhook, WebhookFormat};
use steadfast_core::Timestamp;
use steadfast_core::classify::{Fault, Nature, Overrides, RetryAfter, Source, classify};
use steadfast_core::id::Namespace;
use steadfast_core::notification::Notification;
use steadfast_core::policy::{Backoff, Profile, RetryPolicy, ToolClass};
use steadfast_core::redact;
use steadfast_core::retry::{CallerLimits, Schedule};
use steadfast_executor::Listener;
use steadfast_mcp::http::back::{Asked, Origin, Settings, UnderWay};
use steadfast_store::Clock;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;

use crate::opening::OpenError;

/// Notifications that wait for one receiver. What comes when so many wait is dropped, and told in the log.
const WAITING: usize = 256;
/// How long a receiver has for its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is read: nothing in it matters.
const LONGEST_ANSWER: usize = 64 * 1024;

/// Everyone who is told over HTTP.
pub(crate) struct Webhooks {
    live: Arc<Live>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    receivers: Mutex<BTreeMap<Namespace, Receiver>>,
}

/// One who is told.
struct Receiver {
    webhook: Webhook,
    queue: mpsc::Sender<Arc<Notification>>,
    sending: JoinHandle<()>,
}

impl Webhooks {
    /// Those of the configuration, as it is whenever there is something to tell. Needs a tokio runtime.
    pub(crate) fn of(live: Arc<Live>, clock: Arc<dyn Clock>) -> Self {
        Self { live, clock, runtime: Handle::current(), receivers: Mutex::default() }
    }

    /// Gives up whoever is gone from the configuration or has changed, and begins with whoever is new.
    fn follow(&self, receivers: &mut BTreeMap<Namespace, Receiver>) {
        let config = self.live.current();
        let wanted = config.webhooks();
        receivers.retain(|name, receiver| wanted.get(name) == Some(&receiver.webhook));
        for (name, webhook) in wanted {
            if !receivers.contains_key(name) {
                let (queue, waiting) = mpsc::channel(WAITING);
                let sending = send_all(webhook.clone(), waiting, self.clock.clone());
                let sending = self.runtime.spawn(sending);
                receivers.insert(name.clone(), Receiver { webhook: webhook.clone(), queue, sending });
            }
        }
    }

    /// Sends what waits, for as long as there is time for it.
    pub(crate) async fn finish(&self, limit: Duration) {
        let receivers = std::mem::take(&mut *self.receivers.lock());
        let ended = async {
            for (_, Receiver { queue, sending, .. }) in receivers {
                drop(queue);
                let _ = sending.await;
            }
        };
        let _ = tokio::time::timeout(limit, ended).await;
    }
}

impl Listener for Webhooks {
    fn notification(&self, notification: &Arc<Notification>) {
        // The process where it happened sends it.
        if notification.is_from_elsewhere {
            return;
        }
        let mut receivers = self.receivers.lock();
        self.follow(&mut receivers);
        for (name, Receiver { webhook, queue, .. }) in &*receivers {
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

/// The webhooks of a configuration that nothing can be sent to.
pub(crate) fn unusable(config: &Config) -> impl Iterator<Item = OpenError> {
    config.webhooks().values().filter_map(|webhook| {
        let why = place(webhook).err()?;
        Some(OpenError::Section { section: format!("notify.{}", webhook.name), why })
    })
}

/// Where a webhook is: the server, and what is asked of it.
fn place(webhook: &Webhook) -> Result<(Origin, Uri), String> {
    let settings = Settings { message_bytes: LONGEST_ANSWER, ..Settings::default() };
    let url = webhook.url.expose().parse::<Uri>().map_err(|error| error.to_string())?;
    let target = url.path_and_query().map_or("/", |target| target.as_str());
    let target = target.parse::<Uri>().map_err(|error| error.to_string())?;
    let origin = Origin::new(webhook.url.expose(), settings).map_err(|error| error.to_string())?;
    Ok((origin, target))
}

/// Sends one notification after the other, in order.
async fn send_all(webhook: Webhook, mut waiting: mpsc::Receiver<Arc<Notification>>, clock: Arc<dyn Clock>) {
    let (origin, target) = match place(&webhook) {
        Ok(place) => place,
        Err(why) => {
            tracing::error!(event = "notify.unusable", webhook = %webhook.name, why, "nothing can be sent to this webhook");
            return;
        }
    };
    let policy = policy();
    while let Some(notification) = waiting.recv().await {
        let message = Message::of(&webhook, &notification);
        if let Err((attempts, why)) = message.deliver(&origin, &target, &policy, &*clock).await {
            let event = notification.event.as_str();
            tracing::error!(event = "notify.failed", webhook = %webhook.name, notification = event, attempts, why, "a notification was not delivered");
        }
    }
}

/// Nine attempts within some five minutes.
fn policy() -> RetryPolicy {
    let rest = [2, 4, 8, 16, 32, 60, 60, 60].map(Duration::from_secs).to_vec();
    RetryPolicy {
        attempts: NonZeroU32::new(9).unwrap_or(NonZeroU32::MIN),
        backoff: Backoff::List { first: Duration::from_secs(1), rest },
        total: None,
        ..Profile::Standard.policy(ToolClass::Idempotent).retry
    }
}

/// One notification on its way to one receiver.
struct Message<'w> {
    webhook: &'w Webhook,
    event: &'static str,
    /// The same in every attempt, so that the receiver knows it again.
    id: String,
    body: Bytes,
}

impl<'w> Message<'w> {
    fn of(webhook: &'w Webhook, notification: &Notification) -> Self {
        let body = match webhook.format {
            WebhookFormat::Json => serde_json::to_vec(notification).unwrap_or_default(),
            WebhookFormat::Slack => {
                json!({ "text": for_slack(&notification.message) }).to_string().into_bytes()
            }
        };
        let mut random = [0; 16];
        // Without randomness the time still tells them apart.
        let _ = getrandom::fill(&mut random);
        let random = u128::from_ne_bytes(random);
        let id = format!("msg_{:x}{random:032x}", notification.at.as_millis());
        Self { webhook, event: notification.event.as_str(), id, body: body.into() }
    }

    /// Sends it until it is taken, or says after how many attempts and why it was given up.
    async fn deliver(
        &self,
        origin: &Origin,
        target: &Uri,
        policy: &RetryPolicy,
        clock: &dyn Clock,
    ) -> Result<(), (u32, String)> {
        let seed = clock.now().as_millis();
        let mut schedule = Schedule::new(policy, &CallerLimits::default(), None, seed, clock.now());
        loop {
            let started = clock.now();
            let Err(fault) = self.send(origin, target, started).await else { return Ok(()) };
            let classified = classify(&fault, &Overrides::default(), clock.now());
            let attempts = schedule.attempts();
            let next = match classified.nature {
                Nature::Transient => schedule.next(policy, started, classified.retry_after, clock.now()).ok(),
                Nature::Permanent => None,
            };
            let Some(next) = next else { return Err((attempts, redact::excerpt(&fault.message, 512))) };
            tokio::time::sleep(next.since(clock.now())).await;
        }
    }

    async fn send(&self, origin: &Origin, target: &Uri, now: Timestamp) -> Result<(), Fault> {
        let (under_way, headers) = (UnderWay::default(), self.headers(now));
        let asked = Asked { method: Method::POST, target: target.clone(), headers, body: self.body.clone() };
        let replied = match tokio::time::timeout(PATIENCE, origin.send(asked, &under_way)).await {
            Ok(replied) => replied.map_err(|failure| failure.fault())?,
            Err(_) => {
                let source = Source::Timeout { after: PATIENCE };
                return Err(Fault::new(source, "the receiver did not answer in time"));
            }
        };
        if replied.status.is_success() {
            return Ok(());
        }
        let status = replied.status.as_u16();
        let after = replied.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let message = format!("the receiver answered with the status {status}");
        let retry_after = after.and_then(RetryAfter::parse);
        Err(Fault { retry_after, ..Fault::new(Source::Http { status }, message) })
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

/// The signature of the Standard Webhooks specification: HMAC-SHA256 of id, time and body. A secret that begins with `whsec_`
/// is base64 behind it, as there; any other is taken as it is.
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

/// As Slack wants text that is no markup of its own.
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
