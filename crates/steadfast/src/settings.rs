//! Typed settings of a program. Each becomes the same text as in a file, so that both mean the same, have the same
//! limits, and fail with the same message.

use std::path::Path;
use std::time::Duration;

use steadfast_core::policy::{AmbiguousOutcomePolicy, ApprovalTrigger, EnforcementMode, ToolClass};

/// The store of call records.
///
/// ```
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("steadfast-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let path = folder.join("state.db");
/// let steadfast = Steadfast::builder().store(Store::sqlite(&path)).build().await?;
/// assert_eq!(steadfast.store().kind(), "sqlite");
/// # drop(steadfast);
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a store has an effect only in a builder"]
pub struct Store {
    pub(crate) settings: SettingList,
    /// True if the path cannot be written as a setting, because it is not UTF-8.
    pub(crate) is_path_unusable: bool,
}

impl Store {
    /// Stores records in the memory of this process. They end with it.
    pub fn memory() -> Self {
        Self::of_kind("memory")
    }

    /// Stores records in a file on this machine. Its folder is created if it does not exist.
    pub fn sqlite(path: impl AsRef<Path>) -> Self {
        let store = Self::of_kind("sqlite");
        match path.as_ref().to_str() {
            Some(path) => store.with("store.path", path.to_owned()),
            None => Self { is_path_unusable: true, ..store },
        }
    }

    /// Stores records on a Redis or Valkey server that several machines can share.
    pub fn redis(url: impl Into<String>) -> Self {
        Self::of_kind("redis").with("store.url", url.into())
    }

    /// Sets a file with the key by which stored outputs are encrypted: setting `store.key_file`.
    pub fn key_file(self, path: impl AsRef<Path>) -> Self {
        match path.as_ref().to_str() {
            Some(path) => self.with("store.key_file", path.to_owned()),
            None => Self { is_path_unusable: true, ..self },
        }
    }

    /// Sets the prefix of keys in Redis: setting `store.prefix`.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.with("store.prefix", prefix.into())
    }

    fn of_kind(kind: &str) -> Self {
        let store = Self { settings: SettingList::default(), is_path_unusable: false };
        store.with("store.kind", kind.to_owned())
    }

    fn with(mut self, setting: &'static str, value: String) -> Self {
        self.settings.push(setting, value);
        self
    }
}

/// The settings of one tool, or of all tools.
///
/// A setting that is not written keeps the value of the files, or else its default. Values are checked by
/// [`build`](crate::SteadfastBuilder::build), which reports all errors at once.
///
/// ```
/// use std::time::Duration;
/// use steadfast::{Steadfast, Store, ToolPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder()
///     .store(Store::memory())
///     .defaults(ToolPolicy::new().timeout(Duration::from_secs(10)))
///     .tool("bank/pay", ToolPolicy::mutating().attempts(2).verify("search the statement for the invoice"))
///     .tool("web/*", ToolPolicy::read_only().concurrency(8).rate(10, Duration::from_secs(1)))
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a policy has an effect only in a builder"]
pub struct ToolPolicy {
    pub(crate) settings: SettingList,
}

impl ToolPolicy {
    /// Returns a policy without settings. It says nothing about the class of the tool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the policy of a tool that changes nothing.
    pub fn read_only() -> Self {
        Self::new().class(ToolClass::ReadOnly)
    }

    /// Returns the policy of a tool whose second run with the same arguments has no further effect.
    pub fn idempotent() -> Self {
        Self::new().class(ToolClass::Idempotent)
    }

    /// Returns the policy of a tool of which each run has its own effect.
    pub fn mutating() -> Self {
        Self::new().class(ToolClass::Mutating)
    }

    /// Sets the class of the tool: setting `class`.
    pub fn class(self, class: ToolClass) -> Self {
        self.set("class", word(class))
    }

    /// Sets the mode of all mechanisms: setting `mode`.
    pub fn mode(self, mode: EnforcementMode) -> Self {
        self.set("mode", word(mode))
    }

    /// Sets how long one attempt may run without a sign of progress: setting `timeout`.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set("timeout", span(timeout))
    }

    /// Sets how long one call may take in total, with all its attempts: setting `total_timeout`.
    pub fn total_timeout(self, timeout: Duration) -> Self {
        self.set("total_timeout", span(timeout))
    }

    /// Sets the maximum number of attempts, including the first: setting `retry.attempts`.
    pub fn attempts(self, attempts: u32) -> Self {
        self.set("retry.attempts", attempts.to_string())
    }

    /// Sets the wait before the first retry and the longest wait: settings `retry.base` and `retry.cap`.
    pub fn backoff(self, base: Duration, cap: Duration) -> Self {
        self.set("retry.base", span(base)).set("retry.cap", span(cap))
    }

    /// Confirms that the tool may run again after an unknown outcome: setting `retry_safe`.
    pub fn retry_safe(self) -> Self {
        self.set("retry_safe", "true")
    }

    /// Confirms that the tool deduplicates by [`Attempt::idempotency_key`](crate::Attempt::idempotency_key), so that a
    /// call with a key may be sent again: setting `honours_key`.
    pub fn honours_key(self) -> Self {
        self.set("honours_key", "true")
    }

    /// Sets the handling of an unknown outcome if the class of the tool is unknown: setting `ambiguous`.
    pub fn ambiguous(self, handling: AmbiguousOutcomePolicy) -> Self {
        self.set("ambiguous", word(handling))
    }

    /// Sets the template of the idempotency key for calls that bring none, such as `{invoice}`: setting `key`.
    pub fn key(self, template: impl Into<String>) -> Self {
        self.set("key", template)
    }

    /// Sets the instruction for finding out whether a call took effect: setting `verify`.
    pub fn verify(self, instruction: impl Into<String>) -> Self {
        self.set("verify", instruction)
    }

    /// Sets when a call needs approval: setting `approval`.
    pub fn approval(self, trigger: ApprovalTrigger) -> Self {
        self.set("approval", word(trigger))
    }

    /// Sets how long a call waits for approval: setting `approval_timeout`.
    pub fn approval_timeout(self, timeout: Duration) -> Self {
        self.set("approval_timeout", span(timeout))
    }

    /// Sets the number of failures in a row that open the circuit breaker, and the time until a probe: settings
    /// `breaker.consecutive` and `breaker.cooldown`.
    pub fn breaker(self, consecutive: u32, cooldown: Duration) -> Self {
        self.set("breaker.consecutive", consecutive.to_string()).set("breaker.cooldown", span(cooldown))
    }

    /// Sets the mode of the circuit breaker: setting `breaker.mode`.
    pub fn breaker_mode(self, mode: EnforcementMode) -> Self {
        self.set("breaker.mode", word(mode))
    }

    /// Sets the maximum number of concurrent attempts: setting `limits.concurrency`.
    pub fn concurrency(self, attempts: u32) -> Self {
        self.set("limits.concurrency", attempts.to_string())
    }

    /// Sets the maximum number of attempts per time: setting `limits.rate`.
    pub fn rate(self, attempts: u32, per: Duration) -> Self {
        self.set("limits.rate", format!("{attempts}/{}", span(per)))
    }

    /// Sets how long a result is stored and replayed for the same key: setting `dedupe.keep_done`.
    pub fn keep_results(self, time: Duration) -> Self {
        self.set("dedupe.keep_done", span(time))
    }

    /// Sets any other setting of a policy, in the form of a file: `set("dedupe.scope", "global")`.
    pub fn set(mut self, setting: &str, value: impl Into<String>) -> Self {
        self.settings.push(setting, value.into());
        self
    }
}

/// Settings in the order in which they were made. The last value of a setting counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SettingList(pub(crate) Vec<(String, String)>);

impl SettingList {
    pub(crate) fn push(&mut self, setting: &str, value: String) {
        self.0.push((setting.to_owned(), value));
    }
}

/// Returns the prefix of the settings of a tool. The name is quoted as in a file.
pub(crate) fn tool_section(tool: &str) -> String {
    format!("tools.{}.", serde_json::Value::from(tool))
}

/// Returns a duration in the largest unit that is exact. No setting takes parts of a millisecond: the message then
/// quotes the number that was given.
fn span(time: Duration) -> String {
    if time.subsec_nanos().is_multiple_of(1_000_000) {
        format!("{}ms", time.as_millis())
    } else {
        format!("{time:?}")
    }
}

/// Returns the word of a value in files.
fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}
