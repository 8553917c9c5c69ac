//! `steadfast config`: looking into the configuration.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use steadfast::classify::{Aims, signature};
use steadfast::id::{Domain, Namespace, ToolName, ToolRef};
use steadfast::json::{Document, Limits};
use steadfast::policy::Annotations;
use steadfast::{Explained, Explanation, nearest};

use crate::failure::Failure;
use crate::output;
use crate::sources::Chosen;

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Says for a tool which rule decided each of its settings.
    Explain(Options),
}

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The tool, as server/tool.
    #[arg(value_name = "SERVER/TOOL")]
    tool: String,
    /// The arguments of a call: they may name a host that a rule is about.
    #[arg(long, value_name = "JSON")]
    arguments: Option<String>,
    /// Only this setting, or those that begin so: `retry.attempts`, `breaker`.
    #[arg(long, value_name = "NAME")]
    setting: Option<String>,
    #[command(flatten)]
    chosen: Chosen,
    /// Says it as JSON.
    #[arg(long)]
    json: bool,
}

/// `steadfast config explain`.
pub(crate) fn explain(options: &Options) -> Result<(), Failure> {
    let tool = tool(&options.tool)?;
    // A server is a domain too, and needs no arguments to be known.
    let domain = domain(&tool, options.arguments.as_deref().unwrap_or("{}"))?;
    let config = options.chosen.load()?;
    let mut explanation = config.explain(&tool, Annotations::default(), Some(&domain));
    if let Some(wanted) = &options.setting {
        narrow(&mut explanation, wanted)?;
    }
    let servers: Vec<_> = config.servers().keys().map(ToString::to_string).collect();
    let server = tool.namespace.as_str();
    if !servers.iter().any(|known| known == server)
        && let Some(meant) = nearest(server, servers.iter().map(String::as_str))
    {
        output::remark(&format!("note: no server is called `{server}`; did you mean `{meant}`?"));
    }
    if options.json {
        output::say_json(&to_json(&explanation));
    } else {
        output::say_words(&explanation.to_string());
    }
    Ok(())
}

/// Leaves what is asked for.
fn narrow(explanation: &mut Explanation, wanted: &str) -> Result<(), Failure> {
    let fits = |one: &Explained| {
        let rest = one.setting.strip_prefix(wanted);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if !explanation.settings.iter().any(fits) {
        let known = explanation.settings.iter().map(|one| one.setting);
        let meant = nearest(wanted, known).map(|meant| format!(": did you mean `{meant}`?"));
        return Err(Failure::Usage(format!("no setting is called `{wanted}`{}", meant.unwrap_or_default())));
    }
    explanation.settings.retain(fits);
    Ok(())
}

fn tool(text: &str) -> Result<ToolRef, Failure> {
    let parts = text.split_once('/').and_then(|(server, name)| {
        Some(ToolRef { namespace: Namespace::new(server).ok()?, tool: ToolName::new(name).ok()? })
    });
    parts.ok_or_else(|| {
        Failure::Usage(format!("`{text}` is no tool: write server/tool, for example bank/pay"))
    })
}

fn domain(tool: &ToolRef, arguments: &str) -> Result<Domain, Failure> {
    let document = Document::parse(arguments.as_bytes(), Limits::ENVELOPE)
        .map_err(|error| Failure::Usage(format!("--arguments is no JSON: {error}")))?;
    Ok(signature::domain(tool, &Aims::of(document.root())))
}

fn to_json(explanation: &Explanation) -> Value {
    let setting = |one: &Explained| json!({ "setting": one.setting, "value": one.value, "decidedBy": one.origin.to_string() });
    json!({
        "tool": explanation.tool.to_string(),
        "domain": explanation.domain.as_ref().map(ToString::to_string),
        "settings": explanation.settings.iter().map(setting).collect::<Vec<_>>(),
    })
}
