//! The configuration of Steadfast.
//!
//! One schema, two types. *As written*: a tree with the place of every key and value, from TOML, JSON,
//! variables and flags alike. *As resolved*: [`steadfast_core::policy::CallPolicy`], complete and valid. Between
//! them are tables of settings. Each row has the name of a setting, the values that it takes and its meaning.
//! The reader, the messages, the JSON Schema, the reference page and `explain` are all made from these rows.
//!
//! ```text
//!   defaults.toml ─┐
//!   user's file   ─┤   tables of      layers,        Config ── resolve(tool) ──▶ Arc<Policy>, origins
//!   project's file ┼──▶ settings  ──▶  rules    ──▶    │
//!   environment   ─┤      │                             └───── Live: follows the files
//!   flags         ─┘      └──▶ all errors at once
//! ```
//!
//! Two orders decide which value applies. Between sources, the later one in this picture is stronger. Between rules,
//! the more specific one is: tool, domain, server, class, everything. Rules are compared first: a setting of a tool in
//! the user's file overrides a flag for everything.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `setting`, `kind`, `read_context` | definition of a setting; how values are read, shown and described |
//! | `policy`, `global`, `server`, `tool`, `token`, `webhook` | the tables |
//! | `template` | URLs with placeholders for parameters |
//! | `node`, `location` | written values and their positions |
//! | `document`, `rule` | the subject of each setting |
//! | `config`, `sources`, `switch` | layers and their sources |
//! | `resolve`, `resolved_policy` | the policy of a call, and the origin of each setting |
//! | `import` | files of other programs |
//! | `live` | following the files |
//! | `diagnostics` | error messages |
//! | `reference`, `object_schema` | schema and reference page |

mod config;
mod diagnostics;
mod document;
mod global;
mod import;
mod json5;
mod kind;
mod live;
mod location;
mod node;
mod object_schema;
mod policy;
mod read_context;
pub mod reference;
mod resolve;
mod resolved_policy;
mod rule;
mod server;
mod setting;
mod sources;
mod switch;
mod template;
mod token;
mod tool;
mod webhook;

pub use config::{Config, DEFAULTS, ShownSetting};
pub use diagnostics::{ConfigErrors, ConfigProblem, Section, nearest};
pub use global::{
    GatewaySettings, GlobalSettings, HistorySettings, LogFormat, LogLevel, LogSettings, LossPolicy,
    MetricsSettings, OtlpSettings, StoreKind, StoreSettings, TracesSettings, TrustStateSettings,
};
pub use json5::plain_json;
pub use kind::{listen_address, parse_span};
pub use live::{LiveConfig, Reload, SwitchChange};
pub use location::SettingPosition;
pub use resolved_policy::{ExplainedSetting, Explanation, Origins, ResolvedPolicy, SettingOrigin};
pub use server::{Isolation, ServerSettings, ServerTarget};
pub use sources::{
    CONFIG_VARIABLE, CommandLineFlag, ConfigFile, FILE_NAME, FileRequirement, InlineJson, PolicyStart,
    ProgramText, Sources,
};
pub use steadfast_core::policy::AnnotationHints;
pub use switch::Switches;
pub use template::{UrlPiece, UrlTemplate};
pub use token::{Token, TokenRole};
pub use tool::{COMMAND_NAMESPACE, CommandToolSettings, HTTP_NAMESPACE, HttpMethod, HttpToolSettings};
pub use webhook::{Webhook, WebhookFormat};
