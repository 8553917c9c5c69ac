//! Files and variables of other programs, and the examples of the requirements.

mod support;

use std::time::Duration;

use steadfast_config::{AnnotationHints, Config, ServerTarget, Sources};
use steadfast_core::Timestamp;
use steadfast_core::classify::signature::Signature;
use steadfast_core::classify::{AttemptFault, FaultNature, FaultSource, Severity, classify};
use steadfast_core::id::Namespace;
use steadfast_core::policy::{Backoff, EnforcementMode, Jitter, MechanismModes, TrustRecovery, TrustRule};
use steadfast_core::trust::{
    FinishedOutcome, TrustDecision, TrustLedger, TrustRules, TrustState, TrustSubject,
};
use support::{domain, environment, files, load, policy, sample, seconds, tool};

#[test]
fn rp_17_the_variables_of_jaato_set_the_default_rule_and_turn_trust_off() {
    let with = |list: &[(&str, &str)]| {
        let sources = Sources { environment: environment(list), ..Sources::default() };
        Config::load(&sources)
    };
    let config = with(&[
        ("JAATO_RELIABILITY_THRESHOLD", "5"),
        ("JAATO_RELIABILITY_WINDOW", "1800"),
        ("JAATO_RELIABILITY_PERSIST", "no"),
    ])
    .unwrap();
    let trust = &policy(&config, &tool("a", "b")).trust;
    assert_eq!((trust.count.unwrap().get(), trust.window), (5, seconds(1800)));
    assert!(!config.global().trust_state.persist);
    let off = with(&[("JAATO_RELIABILITY_ENABLED", "0")]).unwrap();
    assert_eq!(
        policy(&off, &tool("a", "b")).modes,
        MechanismModes { trust: EnforcementMode::Off, ..MechanismModes::all(EnforcementMode::Enforce) }
    );
    let ours = with(&[
        ("JAATO_RELIABILITY_THRESHOLD", "5"),
        ("STEADFAST_TRUST_COUNT", "none"),
        ("STEADFAST_X", "1"),
    ])
    .unwrap();
    assert_eq!(policy(&ours, &tool("a", "b")).trust.count, None);
    assert_eq!(ours.notes(), ["the variable STEADFAST_X is not a setting of Steadfast and has no effect"]);
    let said = with(&[("JAATO_RELIABILITY_THRESHOLD", "many"), ("TOOL_RELIABILITY_ENABLED", "perhaps")])
        .err()
        .unwrap();
    assert_eq!(
        said.to_string(),
        "error: `trust.count` takes a whole number from 1 to 1000000, not \"many\"\n  \
         --> $JAATO_RELIABILITY_THRESHOLD\n  = write for example `1`\n\n\
         error: TOOL_RELIABILITY_ENABLED takes on or off, not \"perhaps\"\n  \
         --> $TOOL_RELIABILITY_ENABLED\n  = false, 0, off and no are equal, and so are true, 1, on and yes\n\n\
         2 mistakes in the configuration"
    );
}

#[test]
fn rp_17_the_file_of_jaato_means_what_it_means_there() {
    let config = sample("imported/reliability.json");
    let trust = |server: &str, name: &str, host: Option<&str>| {
        let host = host.map(domain);
        config.resolve_at(&tool(server, name), AnnotationHints::default(), host.as_ref()).policy
    };
    let thresholds = |rule: &TrustRule| {
        (rule.count.map(|n| n.get()), rule.consecutive.map(|n| n.get()), rule.rate.map(|rate| rate.get()))
    };
    let default = &trust("x", "y", None).trust;
    assert_eq!(thresholds(default), (Some(3), None, None));
    assert_eq!((default.recovery, default.notify), (TrustRecovery::Ask, false));

    let cli = &trust("cli", "bash", None).trust;
    assert_eq!(thresholds(cli), (Some(5), None, None));
    assert_eq!(*cli.severities, [Severity::Crash, Severity::Security]);
    assert!(!cli.notify, "that is set for all");

    let connector = &trust("service_connector", "call", None).trust;
    assert_eq!((thresholds(connector), connector.window), ((None, None, Some(0.4)), seconds(300)));
    assert_eq!(connector.cooldown, seconds(900), "a rule is taken whole: what it leaves out is built in");

    let grep = &trust("cli", "grep", None).trust;
    assert_eq!((thresholds(grep), grep.cooldown), ((None, Some(4), None), seconds(60)), "tool before plugin");
    assert_eq!(thresholds(&trust("cli", "idle", None).trust), (Some(3), None, None));

    let production = trust("web", "fetch", Some("api.production.com"));
    assert_eq!(thresholds(&production.trust), (Some(2), Some(2), None));
    assert_eq!(production.domain_trust.as_ref().unwrap().duration, seconds(3600));
    assert_eq!(thresholds(&trust("cli", "grep", Some("api.production.com")).trust), (None, Some(4), None));

    let state = &config.global().trust_state;
    assert_eq!((state.persist, state.entries.get()), (false, 250));
}

#[test]
fn rp_17_the_retry_block_of_openclaw_and_tool_manifests_are_understood() {
    let config = sample("imported/openclaw.json");
    let any = policy(&config, &tool("a", "b"));
    assert_eq!(any.retry.attempts.get(), 5);
    let ms = Duration::from_millis;
    assert!(
        matches!(&any.retry.backoff, Backoff::List { first, rest } if *first == ms(50) && rest[..] == [ms(100)])
    );
    assert_eq!((&any.retry.jitter, any.retry.total), (&Jitter::None, None));
    for message in
        ["gateway closed (1012): service restart", "x ECONNREFUSED y", "today our backend naps a while"]
    {
        let verdict =
            classify(&AttemptFault::new(FaultSource::Tool, message), &any.classify, Timestamp::ZERO);
        assert_eq!(verdict.nature, FaultNature::Transient, "{message}");
    }

    assert_eq!((any.guard.identical.get(), any.guard.per_turn.get()), (3, 7));
    let log = config.global().log.malformed_calls.as_deref().unwrap();
    assert!(log.ends_with(".openclaw/tool-guard.log"), "{}", log.display());

    let config = sample("imported/manifest.json");
    let search = policy(&config, &tool("travel", "flight_search"));
    assert_eq!(
        (search.time.attempt, search.retry.attempts.get(), search.retry.total),
        (seconds(8), 3, Some(seconds(5)))
    );
    let Backoff::Exponential { base, factor, cap } = &search.retry.backoff else {
        panic!("it is exponential")
    };
    assert_eq!((*base, factor.get(), *cap), (ms(50), 3.0, ms(2000)));
    assert!(matches!(search.retry.jitter, Jitter::Proportional(share) if share.get() == 0.25));
    assert_eq!(policy(&config, &tool("travel", "other")).retry.attempts.get(), 4);

    let config = sample("imported/mcp-servers.json");
    let ServerTarget::Command { command, .. } = &config.servers()[&Namespace::new("bank").unwrap()].reach
    else {
        panic!()
    };
    assert_eq!(command.join(" "), "bank-mcp --flag");
    assert!(!config.servers()[&Namespace::new("far").unwrap()].trust_annotations);
}

/// Returns the state of one tool after these ends, one per second, and then so many seconds later.
fn state(rule: &TrustRule, ends: &[FinishedOutcome], later: u64) -> TrustState {
    let mut ledger = TrustLedger::default();
    let tool = tool("a", "b");
    let signature = Signature("a/b".into());
    let subject = TrustSubject { tool: &tool, signature: &signature, domain: None };
    let rules = TrustRules { signature: rule, domain: None };
    for (at, end) in ends.iter().enumerate() {
        ledger.record(rules, subject, *end, Timestamp::from_millis(at as u64 * 1000));
    }
    let now = Timestamp::from_millis((ends.len() as u64 + later) * 1000);
    match ledger.check(rules, subject, now) {
        TrustDecision::Allowed(state) => state,
        TrustDecision::NeedsApproval(escalation) | TrustDecision::Blocked(escalation) => escalation.state,
    }
}

#[test]
fn rp_5_the_three_examples_behave_as_they_are_called_when_they_come_from_a_file() {
    let rule = |name: &str| policy(&sample(&format!("valid/{name}.toml")), &tool("a", "b")).trust.clone();
    let (conservative, lenient, rate) = (rule("conservative"), rule("lenient"), rule("rate-based"));
    let bad = |severity| FinishedOutcome::Failure { severity, recoverable: true };
    let (broken, crash, ok) = (bad(Severity::ServerError), bad(Severity::Crash), FinishedOutcome::Success);

    assert_eq!(state(&conservative, &[broken; 1], 0), TrustState::Trusted);
    assert_eq!(state(&conservative, &[broken; 2], 0), TrustState::Escalated);
    assert_eq!(state(&conservative, &[broken; 2], 3590), TrustState::Escalated, "slow to recover");
    assert_eq!(state(&conservative, &[broken; 2], 3600), TrustState::Recovering);

    assert_eq!(state(&lenient, &[broken; 20], 0), TrustState::Trusted, "they pass");
    assert_eq!(state(&lenient, &[crash; 4], 0), TrustState::Trusted);
    assert_eq!(state(&lenient, &[crash; 5], 0), TrustState::Escalated);
    assert_eq!(state(&lenient, &[crash; 5], 900), TrustState::Recovering, "soon forgiven");

    assert_eq!(
        state(&rate, &[ok, ok, broken].repeat(20), 0),
        TrustState::Trusted,
        "20 failures, but a third"
    );
    assert_eq!(state(&rate, &[ok, broken].repeat(3), 0), TrustState::Escalated);

    // The same three in the format of jaato's plugin.
    let theirs = |rule: &str| {
        let text = format!("{{\"default_rule\": {rule}}}");
        let sources = Sources { files: files("rp_5", &[("reliability.json", &text)]), ..Sources::default() };
        policy(&Config::load(&sources).unwrap(), &tool("a", "b")).trust.clone()
    };
    assert_eq!(
        theirs(
            r#"{"count_threshold": 2, "window_seconds": 1800, "severity_filter": ["server_error", "crash"],
            "escalation_duration_seconds": 3600, "cooldown_seconds": 1800, "success_count_to_recover": 5}"#
        ),
        conservative
    );
    assert_eq!(
        theirs(
            r#"{"count_threshold": 5, "window_seconds": 3600, "severity_filter": ["crash", "security"],
            "escalation_duration_seconds": 900, "cooldown_seconds": 600, "success_count_to_recover": 2}"#
        ),
        lenient
    );
    assert_eq!(
        theirs(
            r#"{"rate_threshold": 0.5, "window_seconds": 600, "escalation_duration_seconds": 1200,
            "success_count_to_recover": 3}"#
        ),
        rate
    );
}

#[test]
fn eh_1_5_a_rule_in_the_file_takes_503_as_permanent_for_one_tool() {
    let text = "[tools.custom_api.classify]\nrules = [{ status = 503, nature = \"permanent\", matches = [\"Service unavailable (503)\"] }]\n";
    let config = load("eh_1_5", text);
    let nature = |name: &str| {
        let fault = AttemptFault::new(FaultSource::Tool, "Service unavailable (503)");
        classify(&fault, &policy(&config, &tool("x", name)).classify, Timestamp::ZERO).nature
    };
    assert_eq!((nature("custom_api"), nature("other")), (FaultNature::Permanent, FaultNature::Transient));
}
