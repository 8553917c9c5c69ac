//! The configuration: its sources, its errors, the settings in force with their origins, and its changes at run time.
//!
//! ```
//! use steadfast::config::{Config, Sources};
//!
//! let config = Config::load(&Sources::default())?;
//! assert!(config.servers().is_empty());
//! # Ok::<(), steadfast::config::ConfigErrors>(())
//! ```

use std::collections::BTreeMap;

pub use crate::live_config::ConfigEvent;
pub use crate::plan::StartupPlan;
pub use steadfast_config::{
    COMMAND_NAMESPACE, CommandLineFlag, CommandToolSettings, ConfigFile, ConfigProblem, ExplainedSetting,
    FileRequirement, GatewaySettings, GlobalSettings, HTTP_NAMESPACE, HistorySettings, HttpMethod,
    HttpToolSettings, InlineJson, Isolation, LogFormat, LogLevel, LogSettings, LossPolicy, MetricsSettings,
    Origins, OtlpSettings, PolicyStart, ResolvedPolicy, ResultsSettings, Section, ServerSettings,
    ServerTarget, SettingOrigin, SettingPosition, ShownSetting, StoreKind, StoreSettings, SwitchChange,
    Token, TokenRole, TracesSettings, TrustStateSettings, UrlTemplate, Webhook, WebhookFormat,
    listen_address, nearest, parse_span,
};

/// A configuration, complete and valid. [`Steadfast::config`](crate::Steadfast::config) returns the current one.
///
/// ```
/// use steadfast::config::{CommandLineFlag, Config, Sources, StoreKind};
///
/// let (setting, value) = ("store.kind".to_owned(), "memory".to_owned());
/// let flag = CommandLineFlag { name: "--store".to_owned(), setting, value };
/// let config = Config::load(&Sources { flags: vec![flag], ..Sources::default() })?;
/// assert_eq!(config.global().store.kind, StoreKind::Memory);
/// # Ok::<(), steadfast::config::ConfigErrors>(())
/// ```
pub use steadfast_config::Config;

/// The errors of a configuration. Printed, each one shows its line, and the text to write instead.
///
/// ```
/// use steadfast::config::{CommandLineFlag, Config, Sources};
///
/// let (setting, value) = ("store.kinds".to_owned(), "memory".to_owned());
/// let flag = CommandLineFlag { name: "--store".to_owned(), setting, value };
/// let errors = Config::load(&Sources { flags: vec![flag], ..Sources::default() }).err().unwrap();
/// assert_eq!(errors.problems().len(), 1);
/// assert!(errors.to_string().contains("not a setting of [store]"), "{errors}");
/// ```
pub use steadfast_config::ConfigErrors;

/// The policy of a tool, with the origin of each setting.
///
/// ```
/// use steadfast::call::id::{Namespace, ToolName, ToolRef};
/// use steadfast::config::Explanation;
/// use steadfast::policy::AnnotationHints;
/// use steadfast::{Steadfast, Store, ToolPolicy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = ToolPolicy::mutating().attempts(2);
/// let steadfast = Steadfast::builder().store(Store::memory()).tool("bank/pay", policy).build().await?;
/// let pay = ToolRef { namespace: Namespace::new("bank")?, tool: ToolName::new("pay")? };
/// let explanation: Explanation = steadfast.config().explain(&pay, AnnotationHints::default(), None);
/// let attempts = explanation.settings.iter().find(|one| one.setting == "retry.attempts").unwrap();
/// assert_eq!(attempts.value, "2");
/// println!("{explanation}");
/// # Ok(())
/// # }
/// ```
pub use steadfast_config::Explanation;

/// The result of a reload, as [`Steadfast::reload`](crate::Steadfast::reload) returns it.
///
/// ```
/// use steadfast::config::Reload;
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// match steadfast.reload() {
///     Reload::Unchanged => println!("the files have not changed"),
///     Reload::Replaced { changed } => println!("changed: {changed:?}"),
///     Reload::Kept(errors) => eprintln!("the previous configuration stays:\n{errors}"),
/// }
/// # Ok(())
/// # }
/// ```
pub use steadfast_config::Reload;

/// The files, texts, variables and flags that a configuration is read from.
///
/// ```no_run
/// use steadfast::Steadfast;
/// use steadfast::config::{ConfigFile, FileRequirement, Sources};
///
/// # async fn example() -> Result<(), steadfast::OpenError> {
/// let file = ConfigFile { path: "shop.toml".into(), needed: FileRequirement::Always };
/// let steadfast = Steadfast::open(Sources { files: vec![file], ..Sources::default() }).await?;
/// # Ok(())
/// # }
/// ```
pub use steadfast_config::Sources;

/// The switches for incidents. [`Steadfast::switch`](crate::Steadfast::switch) changes them.
///
/// ```
/// use steadfast::config::Switches;
/// use steadfast::policy::EnforcementMode;
/// use steadfast::{Steadfast, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let steadfast = Steadfast::builder().store(Store::memory()).build().await?;
/// // From now on, the circuit breakers of all tools only report.
/// let change = steadfast.switch(|switches| Switches { breaker: EnforcementMode::Shadow, ..switches });
/// assert_eq!(change.after.breaker, EnforcementMode::Shadow);
/// # Ok(())
/// # }
/// ```
pub use steadfast_config::Switches;

/// Returns the usual sources of a configuration: the user's file, that of the working folder (or the one that
/// `STEADFAST_CONFIG` names), and the environment.
///
/// ```
/// use steadfast::config::{PolicyStart, usual_sources};
///
/// let sources = usual_sources(PolicyStart::Library);
/// assert!(sources.flags.is_empty());
/// ```
pub fn usual_sources(start: PolicyStart) -> Sources {
    // A variable that is not valid text cannot be a setting.
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Sources::discover(start, environment, &std::env::current_dir().unwrap_or_default())
}
