//! `steadfast check`: checks the configuration, and optionally its store.

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::Args;
use serde_json::{Value, json};
use steadfast::config::{
    Config, ConfigErrors, ConfigFile, ConfigProblem, SettingPosition, StartupPlan, Token, TokenRole,
};
use steadfast::store::FileDamagePolicy;
use tokio::runtime::Runtime;

use crate::support::failure::CommandFailure;
use crate::support::listener;
use crate::support::output;
use crate::support::preflight::{self, Examination, Frontend, Upstreams};
use crate::support::setup::runtime;
use crate::support::sources::ConfigFileOptions;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: ConfigFileOptions,
    /// Servers to add to those of the configuration, as in `steadfast serve`. May be given more than once.
    #[arg(long = "mcp-config", value_name = "FILE OR JSON")]
    mcp_config: Vec<OsString>,
    /// Address for clients. Overrides the configuration.
    #[arg(long, value_name = "ADDRESS", value_parser = listener::address)]
    listen: Option<SocketAddr>,
    /// Also open the configured store and check it. Creates the state file if there is none.
    #[arg(long)]
    open: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Results of the check.
#[derive(Default)]
struct CheckReport {
    files: Vec<String>,
    notes: Vec<String>,
    /// Description of the store, if it is known.
    store: Option<String>,
    /// File that trust is kept in, if it is not kept in the store.
    trust_file: Option<String>,
    /// Descriptions of the tokens.
    tokens: Vec<String>,
    /// True if the store could be opened. `None` if that was not requested.
    usable: Option<bool>,
    /// Errors in the files, the environment and the flags.
    mistakes: Option<ConfigErrors>,
    /// Problems that keep a gateway from starting with a valid configuration.
    problems: Vec<CommandFailure>,
}

/// Runs `steadfast check`.
pub(crate) fn run(options: &Options) -> Result<(), CommandFailure> {
    let runtime = options.open.then(runtime).transpose()?;
    let found = inspect(options, runtime.as_ref());
    if options.json {
        output::print_json(&found.to_json());
        return found.trouble().map_or(Ok(()), |trouble| Err(trouble.without_message()));
    }
    for note in &found.notes {
        output::print_message(&format!("note: {note}"));
    }
    let summary = found.summary();
    found.trouble().map_or_else(
        || {
            output::print_plain(&summary);
            Ok(())
        },
        Err,
    )
}

/// Checks the configuration, and the store too if there is a runtime.
fn inspect(options: &Options, open: Option<&Runtime>) -> CheckReport {
    let sources = options.chosen.sources_and(&options.mcp_config);
    let there = |file: &&ConfigFile| file.path.exists();
    let files = sources.files.iter().filter(there).map(|file| file.path.display().to_string()).collect();
    let mut found = CheckReport { files, ..CheckReport::default() };
    let frontend = |config: &Config| Frontend::Http(options.listen.unwrap_or_else(|| config.global().listen));
    let Examination { config, mistakes, problems } =
        preflight::examine(&sources, frontend, Upstreams::Configured);
    (found.mistakes, found.problems) = (mistakes, problems);
    if found.mistakes.is_some() {
        return found;
    }
    found.notes = config.notes().to_vec();
    found.notes.extend(preflight::notes(&config, frontend(&config)));
    found.tokens = config.tokens().values().map(described).collect();
    // Errors of the store are among the problems.
    let Ok(plan) = StartupPlan::of(&config) else { return found };
    found.store = Some(plan.store());
    if let Some(file) = plan.trust_file() {
        let path = file.path().display();
        if let Err(reason) = file.check() {
            found.notes.push(format!("{path} is neither used nor written until it can be read: {reason}"));
        }
        found.trust_file = Some(path.to_string());
    }
    if let Some(runtime) = open.filter(|_| found.problems.is_empty()) {
        let tried = runtime.block_on(plan.try_store(FileDamagePolicy::Refuse));
        found.usable = Some(tried.is_ok());
        found.problems.extend(tried.err().map(CommandFailure::from));
    }
    found
}

impl CheckReport {
    fn summary(&self) -> String {
        let read = match self.files.as_slice() {
            [] => "no file; all settings have their defaults".to_owned(),
            files => files.join(", "),
        };
        let store = self.store.as_deref().unwrap_or_default();
        let usable = if self.usable == Some(true) { " (opened, usable)" } else { "" };
        let mut summary = format!("the configuration is valid\n  read   {read}\n  store  {store}{usable}");
        if let Some(file) = &self.trust_file {
            summary.push_str(&format!("\n  trust  {file}"));
        }
        if !self.tokens.is_empty() {
            summary.push_str(&format!("\n  tokens {}", self.tokens.join(", ")));
        }
        summary
    }

    /// Joins all errors into one failure.
    fn trouble(self) -> Option<CommandFailure> {
        preflight::failure(self.mistakes, self.problems)
    }

    fn to_json(&self) -> Value {
        let mistakes: Vec<Value> =
            self.mistakes.iter().flat_map(ConfigErrors::problems).map(mistake).collect();
        let errors: Vec<String> = self.problems.iter().map(CommandFailure::reason).collect();
        json!({
            "ok": self.mistakes.is_none() && self.problems.is_empty(),
            "files": self.files,
            "notes": self.notes,
            "store": self.store,
            "storeUsable": self.usable,
            "trustFile": self.trust_file,
            "tokens": self.tokens,
            "mistakes": mistakes,
            "errors": errors,
        })
    }
}

/// Describes a token and its permissions.
pub(crate) fn described(token: &Token) -> String {
    match &token.role {
        TokenRole::Client { tenant: None } => token.name.to_string(),
        TokenRole::Client { tenant: Some(tenant) } => format!("{} (tenant {tenant})", token.name),
        TokenRole::Viewer => format!("{} (viewer)", token.name),
    }
}

fn mistake(problem: &ConfigProblem) -> Value {
    let (file, line, column, given) = match problem.at() {
        Some(SettingPosition::File { file, line, column }) => {
            (Some(file.to_string()), Some(line), Some(column), None)
        }
        Some(SettingPosition::Variable(name)) => (None, None, None, Some(format!("${name}"))),
        Some(SettingPosition::Flag(name)) => (None, None, None, Some(name.to_string())),
        None => (None, None, None, None),
    };
    json!({
        "what": problem.message(),
        "file": file,
        "line": line,
        "column": column,
        "givenIn": given,
        "instead": problem.advice(),
    })
}
