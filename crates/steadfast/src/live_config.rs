//! The configuration of a running engine: changed files, switches, and the policies that result.

use std::sync::Arc;
use std::time::Duration;

use steadfast_config::{ConfigErrors, LiveConfig, Reload, Switches};
use steadfast_core::envelope::CallEnvelope;
use steadfast_core::id::Namespace;
use steadfast_core::policy::{AnnotationHints, CallPolicy};
use steadfast_executor::PolicySource;
use steadfast_json::JsonValue;
use tokio::sync::broadcast;
use tokio::time::MissedTickBehavior;

/// The source of policies from the current configuration. A call keeps the policy with which it began.
///
/// The configuration caches the resolved policies, within a bound. A new configuration begins with an empty cache.
pub(crate) struct LivePolicies(pub(crate) Arc<LiveConfig>);

impl PolicySource for LivePolicies {
    fn policy(
        &self,
        call: &CallEnvelope,
        params: JsonValue<'_>,
        annotations: AnnotationHints,
    ) -> Arc<CallPolicy> {
        self.0.current().resolve_call(call, params, annotations).policy
    }

    fn trusts_annotations(&self, server: &Namespace) -> bool {
        self.0.current().trusts_annotations(server)
    }
}

/// A change of the configuration.
///
/// ```
/// use steadfast::config::{ConfigEvent, Switches};
/// use steadfast::policy::EnforcementMode;
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// let mut events = steadfast.config_events();
/// steadfast.switch(|switches| Switches { retry: EnforcementMode::Off, ..switches });
/// assert!(matches!(events.recv().await?, ConfigEvent::Switched(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum ConfigEvent {
    /// A new configuration applies to all calls from now on.
    Replaced {
        /// Changed servers, by name.
        servers: Vec<String>,
        /// Changed settings that are only read at the start.
        after_restart: Vec<String>,
    },
    /// The files have errors, and the previous configuration stays.
    Rejected(ConfigErrors),
    /// Switches were changed.
    Switched(Switches),
}

/// The parts of a new configuration that do not apply to calls by themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// Changed servers, by name.
    pub servers: Vec<String>,
    /// Changed settings that are only read at the start.
    pub after_restart: Vec<String>,
}

/// Publisher of configuration changes.
#[derive(Clone, Debug)]
pub(crate) struct ConfigEventSender(broadcast::Sender<ConfigEvent>);

/// Number of events that a slow receiver may be behind.
const BEHIND: usize = 16;
/// Interval of the file checks. A change is applied when two checks find the same content.
const EVERY: Duration = Duration::from_secs(1);

impl ConfigEventSender {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(BEHIND))
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<ConfigEvent> {
        self.0.subscribe()
    }

    pub(crate) fn reloaded(&self, reload: &Reload) {
        match reload {
            Reload::Unchanged => {}
            Reload::Replaced { changed } => {
                self.replaced(changed);
            }
            Reload::Kept(errors) => {
                tracing::error!(
                    event = "config.kept",
                    mistakes = errors.problems().len(),
                    "why" = %errors,
                    "the configuration on disk has errors; the running one stays in effect"
                );
                self.tell(ConfigEvent::Rejected(errors.clone()));
            }
        }
    }

    /// Publishes a new configuration, given the settings that differ.
    pub(crate) fn replaced(&self, changed: &[String]) -> ConfigChange {
        let servers = changed.iter().filter_map(|name| name.strip_prefix("servers."));
        let change = ConfigChange {
            servers: servers.map(str::to_owned).collect(),
            after_restart: changed.iter().filter(|name| !is_followed(name)).cloned().collect(),
        };
        tracing::info!(event = "config.replaced", "the configuration was reloaded");
        if !change.after_restart.is_empty() {
            let settings = change.after_restart.join(", ");
            tracing::warn!(event = "config.needs_restart", settings, "these settings need a restart");
        }
        let ConfigChange { servers, after_restart } = change.clone();
        self.tell(ConfigEvent::Replaced { servers, after_restart });
        change
    }

    pub(crate) fn switched(&self, switches: Switches) {
        tracing::warn!(event = "config.switched", switches = ?switches);
        self.tell(ConfigEvent::Switched(switches));
    }

    fn tell(&self, event: ConfigEvent) {
        // A send without receivers is no failure.
        let _ = self.0.send(event);
    }
}

/// Checks the files for changes until it is dropped.
pub(crate) async fn follow(live: Arc<LiveConfig>, herald: ConfigEventSender) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looking = live.clone();
        // A disk may hang, and the threads of the runtime are for calls.
        if let Ok(reload) = tokio::task::spawn_blocking(move || looking.poll()).await {
            herald.reloaded(&reload);
        }
    }
}

/// Returns true if a setting applies from the next call on. Servers, tools and tokens are handled by their owners.
fn is_followed(setting: &str) -> bool {
    setting == "profile"
        || ["servers.", "http_tools.", "command_tools.", "tokens."]
            .iter()
            .any(|part| setting.starts_with(part))
}
