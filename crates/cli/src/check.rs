//! `steadfast check`: is the configuration right, and can its store be used?

use clap::Args;
use serde_json::{Value, json};
use steadfast::{Config, ConfigFile, OnDamage, OpenError, Plan, Problem, Role, Sources, Token, WrittenAt};
use tokio::runtime::Runtime;

use crate::failure::Failure;
use crate::output;
use crate::sources::Chosen;
use crate::state::runtime;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    chosen: Chosen,
    /// Also opens the store that is configured, and says whether it can be used. Makes the state file if there is
    /// none.
    #[arg(long)]
    open: bool,
    /// Says it as JSON.
    #[arg(long)]
    json: bool,
}

/// What was found.
struct Found {
    files: Vec<String>,
    notes: Vec<String>,
    /// The store in words, where it is known which.
    store: Option<String>,
    /// The file that trust is kept in, where it is not kept in the store.
    trust_file: Option<String>,
    /// Who comes in with a token, in words.
    tokens: Vec<String>,
    /// Whether it could be opened, where that was asked for.
    usable: Option<bool>,
    trouble: Option<OpenError>,
}

/// `steadfast check`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = options.open.then(runtime).transpose()?;
    let found = look(&options.chosen.sources(), runtime.as_ref());
    if options.json {
        output::say_json(&found.to_json());
        return found.trouble.map_or(Ok(()), |error| Err(Failure::from(error).told()));
    }
    for note in &found.notes {
        output::remark(&format!("note: {note}"));
    }
    match found.trouble {
        Some(error) => Err(error.into()),
        None => {
            output::say_words(&found.summary());
            Ok(())
        }
    }
}

/// Looks at the configuration, and with a runtime at the store too.
fn look(sources: &Sources, open: Option<&Runtime>) -> Found {
    let there = |file: &&ConfigFile| file.path.exists();
    let files = sources.files.iter().filter(there).map(|file| file.path.display().to_string()).collect();
    let mut found = Found {
        files,
        notes: Vec::new(),
        store: None,
        trust_file: None,
        tokens: Vec::new(),
        usable: None,
        trouble: None,
    };
    let config = match Config::load(sources) {
        Ok(config) => config,
        Err(errors) => return Found { trouble: Some(OpenError::Configuration(errors)), ..found },
    };
    found.notes = config.notes().to_vec();
    found.tokens = config.tokens().values().map(described).collect();
    let plan = match Plan::of(&config) {
        Ok(plan) => plan,
        Err(error) => return Found { trouble: Some(error), ..found },
    };
    found.store = Some(plan.store());
    if let Some(file) = plan.trust_file() {
        let path = file.path().display();
        if let Err(why) = file.check() {
            found.notes.push(format!("{path} is neither used nor written until it can be read: {why}"));
        }
        found.trust_file = Some(path.to_string());
    }
    if let Some(runtime) = open {
        let tried = runtime.block_on(plan.try_store(OnDamage::Refuse));
        found.usable = Some(tried.is_ok());
        found.trouble = tried.err();
    }
    found
}

impl Found {
    fn summary(&self) -> String {
        let read = match self.files.as_slice() {
            [] => "no file; everything is at its default".to_owned(),
            files => files.join(", "),
        };
        let store = self.store.as_deref().unwrap_or_default();
        let usable = if self.usable == Some(true) { " (opened, usable)" } else { "" };
        let mut summary = format!("the configuration is right\n  read   {read}\n  store  {store}{usable}");
        if let Some(file) = &self.trust_file {
            summary.push_str(&format!("\n  trust  {file}"));
        }
        if !self.tokens.is_empty() {
            summary.push_str(&format!("\n  tokens {}", self.tokens.join(", ")));
        }
        summary
    }

    fn to_json(&self) -> Value {
        let (mistakes, error) = match &self.trouble {
            None => (Vec::new(), None),
            Some(OpenError::Configuration(errors)) => (errors.problems().iter().map(mistake).collect(), None),
            Some(error) => (Vec::new(), Some(error.to_string())),
        };
        json!({
            "ok": self.trouble.is_none(),
            "files": self.files,
            "notes": self.notes,
            "store": self.store,
            "storeUsable": self.usable,
            "trustFile": self.trust_file,
            "tokens": self.tokens,
            "mistakes": mistakes,
            "error": error,
        })
    }
}

/// Who has a token, and what it is good for.
pub(crate) fn described(token: &Token) -> String {
    match &token.role {
        Role::Client { tenant: None } => token.name.to_string(),
        Role::Client { tenant: Some(tenant) } => format!("{} (tenant {tenant})", token.name),
        Role::Viewer => format!("{} (viewer)", token.name),
    }
}

fn mistake(problem: &Problem) -> Value {
    let (file, line, column, given) = match problem.at() {
        Some(WrittenAt::File { file, line, column }) => {
            (Some(file.to_string()), Some(line), Some(column), None)
        }
        Some(WrittenAt::Variable(name)) => (None, None, None, Some(format!("${name}"))),
        Some(WrittenAt::Flag(name)) => (None, None, None, Some(name.to_string())),
        None => (None, None, None, None),
    };
    json!({
        "what": problem.what(),
        "file": file,
        "line": line,
        "column": column,
        "givenIn": given,
        "instead": problem.advice(),
    })
}
