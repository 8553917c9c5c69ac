//! `steadfast config`: inspects the configuration.

use clap::{Args, Subcommand};
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::Timestamp;
use steadfast::call::id::{Domain, Namespace, ToolName, ToolRef};
use steadfast::call::json::{JsonDocument, JsonLimits};
use steadfast::config::{ExplainedSetting, Explanation, nearest};
use steadfast::policy::AnnotationHints;
use steadfast_core::classify::{ArgumentTargets, signature};

use crate::support::failure::CommandFailure;
use crate::support::output;
use crate::support::target::{self, ApiRequest, ConnectionOptions, ConnectionPurpose};
use crate::support::views;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Explain for a tool which rule decided each of its settings.
    Explain(Options),
}

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The tool, as server/tool, or as clients see it: server__tool.
    #[arg(value_name = "SERVER/TOOL")]
    tool: String,
    /// The arguments of a call: they may name a host that a rule is about.
    #[arg(long, value_name = "JSON")]
    arguments: Option<String>,
    /// Only this setting, or those with this prefix: `retry.attempts`, `breaker`.
    #[arg(long, value_name = "NAME")]
    setting: Option<String>,
    #[command(flatten)]
    connection: ConnectionOptions,
}

/// Annotations that are used to resolve the policy of a tool.
enum KnownAnnotations {
    /// The last annotations from its server.
    Received { annotations: AnnotationHints, are_trusted: bool, at: Timestamp },
    /// The server has not listed the tool, as far as is known.
    NotReceived,
    /// No gateway or store could be asked.
    NotRequested(String),
}

impl KnownAnnotations {
    fn annotations(&self) -> AnnotationHints {
        match self {
            Self::Received { annotations, are_trusted: true, .. } => *annotations,
            Self::Received { annotations, .. } => annotations.without_safe_claims(),
            Self::NotReceived | Self::NotRequested(_) => AnnotationHints::default(),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Received { annotations, are_trusted, at } => {
                let distrust =
                    "\nnot trusted for whether the tool is safe to repeat: `trust_annotations` is false";
                let distrust = if *are_trusted { "" } else { distrust };
                format!("annotations last seen at {at}: {}{distrust}", hints(*annotations))
            }
            Self::NotReceived => "annotations not received; the name alone decides its class".to_owned(),
            Self::NotRequested(reason) => {
                format!("annotations not known; the name alone decides its class: {reason}")
            }
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Received { annotations, are_trusted, at } => json!({
                "readOnlyHint": annotations.read_only,
                "destructiveHint": annotations.destructive,
                "idempotentHint": annotations.idempotent,
                "trusted": are_trusted,
                "seenAtMs": at.as_millis(),
            }),
            Self::NotReceived | Self::NotRequested(_) => Value::Null,
        }
    }
}

fn hints(annotations: AnnotationHints) -> String {
    let AnnotationHints { read_only, destructive, idempotent } = annotations;
    let named =
        [("readOnlyHint", read_only), ("destructiveHint", destructive), ("idempotentHint", idempotent)];
    let named = named.into_iter().filter_map(|(name, hint)| Some(format!("{name} {}", hint?)));
    let named: Vec<String> = named.collect();
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}

/// Returns the last known annotations, from a running gateway or the store. The configuration decides whether they are
/// trusted if it knows the server. Otherwise the gateway decides, because `wrap --url` uses servers that are not in
/// any file.
fn last_annotations(
    connection: &ConnectionOptions,
    config: &steadfast::config::Config,
    tool: &ToolRef,
) -> KnownAnnotations {
    let path = format!("/v1/tools/{}/annotations", target::encoded(&tool.to_string()));
    let response = target::with(connection, ConnectionPurpose::ExistingState, async |reach| {
        if reach.is_unused {
            return Ok(None);
        }
        match reach.send(ApiRequest::get(&path)).await {
            Ok(found) => Ok(Some(found)),
            Err(refused) if refused.is(StatusCode::NOT_FOUND) => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    });
    let found = match response {
        Ok(Some(found)) => found,
        Ok(None) => return KnownAnnotations::NotReceived,
        Err(failure) => return KnownAnnotations::NotRequested(failure.reason()),
    };
    let hint = |name: &str| found.get(name).and_then(Value::as_bool);
    let annotations = AnnotationHints {
        read_only: hint("readOnlyHint"),
        destructive: hint("destructiveHint"),
        idempotent: hint("idempotentHint"),
    };
    let server = tool.namespace.configured();
    let is_configured = config.servers().contains_key(&server);
    let are_trusted = match is_configured {
        true => config.trusts_annotations(&server),
        false => found.get("trusted").and_then(Value::as_bool).unwrap_or_default(),
    };
    let at = Timestamp::from_millis(views::number(&found, "/seenAtMs"));
    KnownAnnotations::Received { annotations, are_trusted, at }
}

/// Runs `steadfast config explain`.
pub(crate) fn explain(options: &Options) -> Result<(), CommandFailure> {
    let config = options.connection.chosen.load()?;
    let tool = tool(&options.tool, &config)?;
    // A server is a dependency too, and is known without arguments.
    let domain = domain(&tool, options.arguments.as_deref().unwrap_or("{}"))?;
    let known = last_annotations(&options.connection, &config, &tool);
    let mut explanation = config.explain(&tool, known.annotations(), Some(&domain));
    if let Some(setting) = &options.setting {
        narrow(&mut explanation, setting)?;
    }
    let servers: Vec<_> = config.servers().keys().map(ToString::to_string).collect();
    let server = tool.namespace.as_str();
    if !servers.iter().any(|known| known == server)
        && let Some(suggestion) = nearest(server, servers.iter().map(String::as_str))
    {
        output::print_message(&format!("note: no server is called `{server}`; did you mean `{suggestion}`?"));
    }
    if options.connection.json {
        output::print_json(&to_json(&explanation, &known));
    } else {
        output::print_plain(&format!("{}\n{explanation}", known.to_text()));
    }
    Ok(())
}

/// Keeps only the requested settings.
fn narrow(explanation: &mut Explanation, setting: &str) -> Result<(), CommandFailure> {
    let fits = |one: &ExplainedSetting| {
        let rest = one.setting.strip_prefix(setting);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if !explanation.settings.iter().any(fits) {
        let known = explanation.settings.iter().map(|one| one.setting);
        let suggestion = nearest(setting, known).map(|suggestion| format!(": did you mean `{suggestion}`?"));
        return Err(CommandFailure::Usage(format!(
            "no setting is called `{setting}`{}",
            suggestion.unwrap_or_default()
        )));
    }
    explanation.settings.retain(fits);
    Ok(())
}

fn tool(text: &str, config: &steadfast::config::Config) -> Result<ToolRef, CommandFailure> {
    // Clients see the tools of several servers by such names.
    let client_tool_name = || {
        let (server, name) = text.split_once("__")?;
        config.servers().keys().any(|known| known.as_str() == server).then_some((server, name))
    };
    let parts = text.split_once('/').or_else(client_tool_name).and_then(|(server, name)| {
        Some(ToolRef { namespace: Namespace::new(server).ok()?, tool: ToolName::new(name).ok()? })
    });
    parts.ok_or_else(|| {
        CommandFailure::Usage(format!(
            "`{text}` is not a valid tool: write server/tool, for example bank/pay"
        ))
    })
}

fn domain(tool: &ToolRef, arguments: &str) -> Result<Domain, CommandFailure> {
    let document = JsonDocument::parse(arguments.as_bytes(), JsonLimits::ENVELOPE)
        .map_err(|error| CommandFailure::Usage(format!("--arguments is not valid JSON: {error}")))?;
    Ok(signature::domain(tool, &ArgumentTargets::of(document.root())))
}

fn to_json(explanation: &Explanation, known: &KnownAnnotations) -> Value {
    let setting = |one: &ExplainedSetting| json!({ "setting": one.setting, "value": one.value, "decidedBy": one.origin.to_string() });
    json!({
        "tool": explanation.tool.to_string(),
        "domain": explanation.domain.as_ref().map(ToString::to_string),
        "annotations": known.to_json(),
        "settings": explanation.settings.iter().map(setting).collect::<Vec<_>>(),
    })
}
