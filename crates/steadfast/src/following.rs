//! The configuration while the engine runs: files that change, switches that are turned, policies that come of them.

use std::sync::Arc;
use std::time::Duration;

use steadfast_config::{ConfigErrors, Live, Reload, Switches};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Namespace;
use steadfast_core::json::Value;
use steadfast_core::policy::{Annotations, Policy};
use steadfast_executor::Policies;
use tokio::sync::broadcast;
use tokio::time::MissedTickBehavior;

/// The policies of the configuration that is in use when a call comes. A call keeps what it got.
///
/// What was resolved is kept by the configuration, bounded, and goes with it: a new one begins with nothing.
pub(crate) struct Configured(pub(crate) Arc<Live>);

impl Policies for Configured {
    fn policy(&self, call: &CallEnvelope, params: Value<'_>, annotations: Annotations) -> Arc<Policy> {
        self.0.current().resolve_call(call, params, annotations).policy
    }

    fn trusts_annotations(&self, server: &Namespace) -> bool {
        self.0.current().trusts_annotations(server)
    }
}

/// Something happened to the configuration.
#[derive(Clone, Debug)]
pub enum ConfigNews {
    /// A new one is in use: its policies hold for every call that comes from now on.
    Replaced {
        /// Servers that differ, by name.
        servers: Vec<String>,
        /// Settings that differ and are only read at the start.
        after_restart: Vec<String>,
    },
    /// The files are not right, and the one that was running stays.
    Kept(ConfigErrors),
    /// Somebody turned switches.
    Switched(Switches),
}

/// Tells what happened to the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Herald(broadcast::Sender<ConfigNews>);

/// News that a slow listener may be behind.
const BEHIND: usize = 16;
/// How often the files are looked at. A change is taken when two looks find the same.
const EVERY: Duration = Duration::from_secs(1);

impl Herald {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(BEHIND))
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<ConfigNews> {
        self.0.subscribe()
    }

    pub(crate) fn reloaded(&self, reload: &Reload) {
        match reload {
            Reload::Unchanged => {}
            Reload::Replaced { changed } => {
                let servers: Vec<_> = changed
                    .iter()
                    .filter_map(|name| name.strip_prefix("servers."))
                    .map(str::to_owned)
                    .collect();
                let after_restart: Vec<_> =
                    changed.iter().filter(|name| !is_followed(name)).cloned().collect();
                tracing::info!(event = "config.replaced", "the configuration was read again");
                if !after_restart.is_empty() {
                    let settings = after_restart.join(", ");
                    tracing::warn!(event = "config.needs_restart", settings, "these take a restart to count");
                }
                self.tell(ConfigNews::Replaced { servers, after_restart });
            }
            Reload::Kept(errors) => {
                tracing::error!(
                    event = "config.kept",
                    mistakes = errors.problems().len(),
                    why = %errors,
                    "the configuration on disk is not right; the running one stays"
                );
                self.tell(ConfigNews::Kept(errors.clone()));
            }
        }
    }

    pub(crate) fn switched(&self, switches: Switches) {
        tracing::warn!(event = "config.switched", switches = ?switches);
        self.tell(ConfigNews::Switched(switches));
    }

    fn tell(&self, news: ConfigNews) {
        // Nobody who listens is no failure.
        let _ = self.0.send(news);
    }
}

/// Follows the files, for as long as it is let.
pub(crate) async fn follow(live: Arc<Live>, herald: Herald) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looking = live.clone();
        // A disk may hang, and the threads of the runtime belong to the calls.
        if let Ok(reload) = tokio::task::spawn_blocking(move || looking.poll()).await {
            herald.reloaded(&reload);
        }
    }
}

/// Whether a setting counts from the next call on. Servers, tools and tokens are followed by whoever has them.
fn is_followed(setting: &str) -> bool {
    setting == "profile"
        || ["servers.", "http_tools.", "command_tools.", "tokens."]
            .iter()
            .any(|part| setting.starts_with(part))
}
