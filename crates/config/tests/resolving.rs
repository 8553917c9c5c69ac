//! Resolving: layers, rules, origins, switches.

mod support;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use steadfast_config::{
    AnnotationHints, CommandLineFlag, Config, ConfigFile, DEFAULTS, FileRequirement, HttpMethod, Isolation,
    LiveConfig,
    PolicyStart, ProgramText, ResolvedPolicy, ServerTarget, SettingOrigin, Sources, StoreKind, Switches, reference,
};
use steadfast_core::Timestamp;
use steadfast_core::classify::{AttemptFault, FaultSource, classify};
use steadfast_core::id::{Namespace, ToolName};
use steadfast_core::policy::{
    AmbiguousOutcomePolicy, Backoff, ComputedKeyPolicy, EffectLocation, EnforcementMode, Jitter,
    MechanismModes, PolicyProfile, SettlingPolicy, SilencePolicy, ToolClass, TrustRule,
};
use steadfast_json::{JsonDocument, JsonLimits};
use support::{domain, environment, files, folder, load, policy, sample, seconds, tool};

#[test]
fn without_any_file_every_profile_is_as_the_core_has_it() {
    for (name, profile) in [
        ("standard", PolicyProfile::Standard),
        ("measured", PolicyProfile::Measured),
        ("stepped", PolicyProfile::Stepped),
    ] {
        for (class_name, class) in [
            ("read_only", ToolClass::ReadOnly),
            ("idempotent", ToolClass::Idempotent),
            ("mutating", ToolClass::Mutating),
            ("unknown", ToolClass::Unknown),
        ] {
            for start in [PolicyStart::Library, PolicyStart::Gateway] {
                let flag = |setting: &str, value: &str| CommandLineFlag {
                    name: format!("--{setting}"),
                    setting: setting.to_owned(),
                    value: value.to_owned(),
                };
                let flags = vec![flag("profile", name), flag("tools.\"a/b\".class", class_name)];
                let config = Config::load(&Sources { start, flags, ..Sources::default() }).unwrap();
                let core = profile.policy(class);
                let core = if start == PolicyStart::Gateway { core.for_gateway() } else { core };
                assert_eq!(format!("{:?}", policy(&config, &tool("a", "b"))), format!("{core:?}"));
            }
        }
    }
}

#[test]
fn the_defaults_file_has_every_setting() {
    let config = Config::load(&Sources::default()).unwrap();
    let policies = config.explain(&tool("a", "b"), AnnotationHints::default(), None).settings;
    let names =
        policies.iter().map(|one| one.setting).chain(config.shown().into_iter().map(|one| one.setting));
    let names: Vec<&str> = names.chain(["stuck_after", "retry.waits"]).collect();
    assert!(names.len() > 100, "{}", names.len());
    for name in names {
        let (section, key) = name.split_once('.').unwrap_or(("", name));
        let text = match section {
            "" => DEFAULTS,
            section => {
                DEFAULTS.split(&format!("\n[{section}]\n")).nth(1).unwrap_or_else(|| panic!("[{section}]"))
            }
        };
        let text = if section.is_empty() { text } else { text.split("\n[").next().unwrap() };
        let is_there = text.lines().any(|line| {
            line.trim_start_matches("# ")
                .trim_start()
                .strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(" ="))
        });
        assert!(is_there, "{name} is missing in defaults.toml");
    }
}

#[test]
fn the_example_of_the_issue_means_what_it_says() {
    let config = sample("valid/issue.toml");
    let pay = policy(&config, &tool("bank", "pay"));
    assert_eq!(
        (pay.class, pay.time.attempt, pay.retry.attempts.get()),
        (ToolClass::Mutating, seconds(20), 2)
    );
    assert_eq!(pay.verify_hint().as_deref(), Some("call bank/list_payments before you pay again"));
    assert_eq!(policy(&config, &tool("bank", "list")).retry.attempts.get(), 4);
    let global = config.global();
    assert_eq!(global.store.kind, StoreKind::Sqlite);
    assert_eq!(global.store.path.as_deref(), Some(Path::new("/home/me/.local/state/steadfast/state.db")));
    let ServerTarget::Command { command, isolation, .. } =
        &config.servers()[&Namespace::new("bank").unwrap()].reach
    else {
        panic!("it is a command");
    };
    assert_eq!((command.join(" ").as_str(), *isolation), ("bank-mcp --flag", Isolation::Shared));
}

#[test]
fn every_kind_of_value_arrives_where_it_belongs() {
    let config = sample("valid/every-kind-of-value.toml");
    let pay = policy(&config, &tool("bank", "pay"));
    assert_eq!((pay.time.attempt, pay.time.answer_by), (Duration::from_millis(1500), Some(seconds(50))));
    assert_eq!(pay.modes, MechanismModes::all(EnforcementMode::Shadow));
    assert!(pay.repeat.honours_key && !pay.repeat.retry_safe);
    assert_eq!((pay.breaker.cooldown.first, pay.breaker.cooldown.cap), (seconds(10), seconds(300)));
    assert_eq!(pay.breaker.slow.unwrap().slower_than, seconds(2));
    assert_eq!(pay.limits.rate.unwrap().attempts.get(), 10);
    assert_eq!((pay.dedupe.double_dispatch, pay.dedupe.late_after), (false, seconds(50)));
    assert_eq!(
        pay.settling,
        SettlingPolicy {
            effects: EffectLocation::Local,
            linger: seconds(60),
            settle: Duration::ZERO,
            grace: seconds(2),
            drain: seconds(20),
        }
    );
    assert!(!pay.shapes.names().any(|name| name == "shutdown"));
    assert!(pay.shapes.names().any(|name| name == "drop-database"));
    let fault = AttemptFault::new(FaultSource::Http { status: 503 }, "Maintenance until noon");
    let verdict = classify(&fault, &pay.classify, Timestamp::ZERO);
    assert_eq!((&*verdict.rule, verdict.retry_after), ("maintenance", Some(seconds(30))));

    let get = policy(&config, &tool("bank", "get_all"));
    assert_eq!(get.class, ToolClass::ReadOnly);
    assert_eq!(
        get.modes,
        MechanismModes { retry: EnforcementMode::Off, ..MechanismModes::all(EnforcementMode::Enforce) },
        "the class enforces, but for retry"
    );
    assert_eq!(get.limits.concurrency.unwrap().get(), 4, "the rule of the server");

    let fetch = policy(&config, &tool("anything", "fetch"));
    assert!(
        matches!(&fetch.retry.backoff, Backoff::List { first, rest } if *first == seconds(1) && rest[..] == [seconds(2)])
    );
    assert!(matches!(fetch.retry.jitter, Jitter::Proportional(share) if share.get() == 0.1));

    let store = &config.global().store;
    assert_eq!(store.url.as_ref().unwrap().expose(), "rediss://user:/home/me@cache.example.com:6379/0");
    assert_eq!(store.key_file.as_deref(), Some(Path::new("tests/samples/valid/keys/at-rest")));
    assert!(!format!("{config_global:?}", config_global = config.global()).contains("user:/home/me"));
}

#[test]
fn a_more_specific_rule_goes_before_a_stronger_source_and_a_stronger_source_before_a_weaker() {
    let project = r#"
        timeout = "5s"
        [tools."bank/*"]
        timeout = "6s"
    "#;
    let user = r#"
        timeout = "1s"
        retry.attempts = 9
        [tools."bank/pay"]
        timeout = "7s"
        [domains."api.example.com"]
        timeout = "8s"
        [classes.mutating]
        timeout = "9s"
    "#;
    let sources = Sources {
        files: files("layers", &[("user.toml", user), ("project.toml", project)]),
        environment: environment(&[("STEADFAST_TIMEOUT", "4s"), ("STEADFAST_RETRY_ATTEMPTS", "8")]),
        flags: vec![CommandLineFlag {
            name: "--timeout".to_owned(),
            setting: "timeout".to_owned(),
            value: "3s".to_owned(),
        }],
        ..Sources::default()
    };
    let config = Config::load(&sources).unwrap();
    let api = domain("api.example.com");
    let destructive = AnnotationHints { destructive: Some(true), ..AnnotationHints::default() };
    for (server, name, annotations, domain, expected, rule) in [
        ("bank", "pay", AnnotationHints::default(), Some(&api), 7, "user.toml:5:9, [tools.\"bank/pay\"]"),
        (
            "bank",
            "list",
            AnnotationHints::default(),
            Some(&api),
            8,
            "user.toml:7:9, [domains.\"api.example.com\"]",
        ),
        ("bank", "list", destructive, None, 6, "project.toml:4:9, [tools.\"bank/*\"]"),
        ("web", "get", destructive, None, 9, "user.toml:9:9, [classes.mutating]"),
        ("web", "get", AnnotationHints::default(), None, 3, "--timeout, the top level"),
    ] {
        let ResolvedPolicy { policy, origins } = config.resolve_at(&tool(server, name), annotations, domain);
        assert_eq!(policy.time.attempt, seconds(expected));
        let origin = origins.of("timeout").unwrap().to_string();
        assert!(origin.ends_with(rule), "{origin} is not {rule}");
        assert_eq!(policy.retry.attempts.get(), 8);
        assert_eq!(
            origins.of("retry.attempts").unwrap().to_string(),
            "$STEADFAST_RETRY_ATTEMPTS, the top level"
        );
    }
    assert_eq!(
        config.resolve_at(&tool("a", "b"), destructive, None).origins.of("class"),
        Some(&SettingOrigin::Annotations)
    );
}

#[test]
fn explain_shows_the_origin_of_each_setting() {
    let config = sample("valid/issue.toml");
    let explanation = config.explain(&tool("bank", "pay"), AnnotationHints::default(), None).to_string();
    let line = |name: &str| {
        let line =
            explanation.lines().find(|line| line.trim_start().starts_with(&format!("{name} "))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(explanation.starts_with("bank/pay\n"));
    assert_eq!(line("timeout"), "timeout \"20s\" tests/samples/valid/issue.toml:10:1, [tools.\"bank/pay\"]");
    assert_eq!(
        line("retry.attempts"),
        "retry.attempts 2 tests/samples/valid/issue.toml:13:1, [tools.\"bank/pay\"]"
    );
    assert_eq!(line("retry.base"), "retry.base \"200ms\" profile standard, class mutating");
    assert!(line("guard.identical").starts_with("guard.identical 2 built-in defaults.toml:"));
}

#[test]
fn the_class_comes_from_the_configuration_or_from_trusted_annotations() {
    let config = load(
        "annotations",
        r#"
        [servers.near]
        command = ["x"]
        [servers.far]
        url = "https://far.example.com/mcp"
        [tools."far/known"]
        class = "read_only"
        [tools."near/known"]
        class = "mutating"
        "#,
    );
    let class = |server: &str, name: &str, annotations| {
        config.resolve_at(&tool(server, name), annotations, None).policy.class
    };
    let none = AnnotationHints::default();
    let reads = AnnotationHints { read_only: Some(true), ..none };
    let repeats = AnnotationHints { idempotent: Some(true), read_only: Some(false), destructive: Some(true) };
    let writes = AnnotationHints { read_only: Some(false), ..none };
    let destroys = AnnotationHints { destructive: Some(true), ..none };
    let spelled_out =
        AnnotationHints { read_only: Some(true), destructive: Some(true), idempotent: Some(false) };
    for (server, annotations, expected) in [
        ("near", none, ToolClass::Unknown),
        ("near", reads, ToolClass::ReadOnly),
        ("near", spelled_out, ToolClass::ReadOnly),
        ("near", repeats, ToolClass::Idempotent),
        ("near", writes, ToolClass::Mutating),
        ("near", destroys, ToolClass::Mutating),
        ("far", reads, ToolClass::Unknown),
        ("far", repeats, ToolClass::Mutating),
        ("far", destroys, ToolClass::Mutating),
        ("host", reads, ToolClass::ReadOnly),
    ] {
        assert_eq!(class(server, "tool", annotations), expected, "{server} {annotations:?}");
    }
    assert_eq!(class("far", "known", destroys), ToolClass::ReadOnly);
    assert_eq!(class("near", "known", reads), ToolClass::Mutating);
}

#[test]
fn the_domain_is_taken_from_the_arguments() {
    let config = load("domains", "[domains.\"api.example.com\"]\ntimeout = \"8s\"\ntrust.count = 2\n");
    let resolve = |text: &str| {
        let document = JsonDocument::parse(text.as_bytes(), JsonLimits::ENVELOPE).unwrap();
        config.resolve(&tool("web", "fetch"), AnnotationHints::default(), document.root()).policy
    };
    let hit = resolve(r#"{"url": "https://API.example.com/v1/x"}"#);
    assert_eq!((hit.time.attempt, hit.domain_trust.as_ref().unwrap().count.unwrap().get()), (seconds(8), 2));
    let miss = resolve(r#"{"url": "https://other.example.com/"}"#);
    assert_eq!((miss.time.attempt, miss.domain_trust.as_ref()), (seconds(30), None));
}

#[test]
fn rp_4_the_rule_of_a_tool_goes_before_that_of_its_domain_its_server_and_all() {
    let config = load(
        "rp_4",
        r#"
        trust.count = 9
        [tools."web/*"]
        trust.count = 8
        [domains."api.example.com"]
        trust.count = 7
        [tools."web/fetch"]
        trust.count = 5
        "#,
    );
    let (api, other) = (domain("api.example.com"), domain("other.example.com"));
    let rules = |server: &str, name: &str, domain| {
        let policy = config.resolve_at(&tool(server, name), AnnotationHints::default(), domain).policy;
        let count = |rule: &TrustRule| rule.count.map(NonZeroU32::get);
        (count(&policy.trust), policy.domain_trust.as_ref().and_then(count))
    };
    // A rule for the tool does not override the trust of its domain.
    assert_eq!(rules("web", "fetch", Some(&api)), (Some(5), Some(7)));
    assert_eq!(rules("web", "post", Some(&api)), (Some(7), Some(7)));
    assert_eq!(rules("web", "post", Some(&other)), (Some(8), None));
    assert_eq!(rules("web", "post", None), (Some(8), None));
    assert_eq!(rules("cli", "bash", None), (Some(9), None));
}

#[test]
fn modes_are_set_globally_per_class_per_tool_and_per_mechanism() {
    let config = load(
        "modes",
        r#"
        mode = "shadow"
        guard.mode = "enforce"
        [classes.read_only]
        mode = "enforce"
        [tools."bank/pay"]
        class = "read_only"
        mode = "off"
        trust.mode = "shadow"
        "#,
    );
    let read_only = AnnotationHints { read_only: Some(true), ..AnnotationHints::default() };
    let modes =
        |name: &str, annotations| config.resolve_at(&tool("bank", name), annotations, None).policy.modes;
    assert_eq!(
        modes("x", AnnotationHints::default()),
        MechanismModes { guard: EnforcementMode::Enforce, ..MechanismModes::all(EnforcementMode::Shadow) }
    );
    assert_eq!(modes("x", read_only), MechanismModes::all(EnforcementMode::Enforce));
    assert_eq!(
        modes("pay", read_only),
        MechanismModes { trust: EnforcementMode::Shadow, ..MechanismModes::all(EnforcementMode::Off) }
    );
    let origins = config.resolve_at(&tool("bank", "pay"), read_only, None).origins;
    assert!(
        origins.of("retry.mode").unwrap().to_string().ends_with("steadfast.toml:8:9, [tools.\"bank/pay\"]")
    );
}

#[test]
fn the_defaults_of_the_gateway_can_be_changed() {
    let text = "[tools.\"bank/pay\"]\ntimeout = \"20s\"\nambiguous = \"retry\"\n[tools.\"bank/slow\"]\nstuck_after = \"1h\"\n";
    let sources = Sources {
        start: PolicyStart::Gateway,
        files: files("gateway", &[("steadfast.toml", text)]),
        ..Sources::default()
    };
    let config = Config::load(&sources).unwrap();
    let [pay, slow, other] = ["pay", "slow", "other"].map(|name| policy(&config, &tool("bank", name)));
    assert_eq!((other.time.attempt, other.time.silence), (seconds(300), SilencePolicy::Stuck));
    assert_eq!(
        (pay.time.attempt, pay.time.silence, pay.repeat.ambiguous),
        (seconds(20), SilencePolicy::Timeout, AmbiguousOutcomePolicy::Retry)
    );
    assert_eq!((slow.time.attempt, slow.breaker.probe_lease), (seconds(3600), seconds(3600)));
    let origin = config.resolve_at(&tool("bank", "other"), AnnotationHints::default(), None).origins;
    assert_eq!(origin.of("stuck_after").unwrap().to_string(), "profile standard, class unknown, gateway");
}

#[test]
fn tr_14_the_kill_switch_overrides_everything() {
    let text = "mode = \"enforce\"\n[tools.\"bank/pay\"]\nmode = \"enforce\"\n";
    let sources = Sources {
        files: files("kill", &[("steadfast.toml", text)]),
        environment: environment(&[("TOOL_RELIABILITY_ENABLED", "false")]),
        ..Sources::default()
    };
    let config = Config::load(&sources).unwrap();
    let resolved = config.resolve_at(&tool("bank", "pay"), AnnotationHints::default(), None);
    assert!(resolved.policy.modes.are_off());
    assert_eq!(resolved.origins.of("retry.mode"), Some(&SettingOrigin::Switch));
    let on = config.with_switches(Switches { derive: false, ..Switches::default() });
    let policy = policy(&on, &tool("bank", "pay"));
    assert_eq!(
        (policy.modes, policy.dedupe.computed_keys),
        (MechanismModes::all(EnforcementMode::Enforce), ComputedKeyPolicy::Never)
    );
}

#[test]
fn a_missing_file_matters_only_where_one_was_named() {
    let path = folder("missing").join("nowhere.toml");
    let with = |needed| {
        let file = ConfigFile { path: path.clone(), needed };
        Config::load(&Sources { files: vec![file], ..Sources::default() })
    };
    assert!(with(FileRequirement::IfThere).is_ok());
    let message = with(FileRequirement::Always).err().unwrap().to_string();
    assert!(message.contains("nowhere.toml does not exist\n  = check the path"), "{message}");
}

#[test]
fn the_project_goes_before_the_user_and_a_named_file_before_the_project() {
    let folder = Path::new("/work/project");
    let paths = |list: &[(&str, &str)]| -> Vec<String> {
        let sources = Sources::discover(PolicyStart::Gateway, environment(list), folder);
        sources.files.iter().map(|file| file.path.display().to_string()).collect()
    };
    assert_eq!(
        paths(&[("HOME", "/home/me")]),
        ["/home/me/.config/steadfast/steadfast.toml", "/work/project/steadfast.toml"]
    );
    assert_eq!(
        paths(&[("HOME", "/home/me"), ("XDG_CONFIG_HOME", "/etc/me"), ("STEADFAST_CONFIG", "other.toml")]),
        ["/etc/me/steadfast/steadfast.toml", "/work/project/other.toml"]
    );
    assert_eq!(paths(&[]), ["/work/project/steadfast.toml"]);
}

#[test]
fn a_rule_about_a_server_that_is_not_there_is_pointed_out() {
    let config =
        load("strangers", "[servers.bank]\ncommand = [\"x\"]\n[tools.\"bnak/pay\"]\ntimeout = \"3s\"\n");
    let [note] = config.notes() else { panic!("{:?}", config.notes()) };
    assert!(
        note.ends_with("[tools.\"bnak/pay\"] is about a server that is not configured; did you mean `bank`?"),
        "{note}"
    );
}

#[test]
fn a_rule_about_a_tool_without_a_server_that_is_not_there_is_pointed_out() {
    let text = "[http_tools.search]\nmethod = \"GET\"\nurl = \"https://h/\"\n[tools.\"http/search\"]\ntimeout = \"3s\"\n\
                [tools.\"http/serach\"]\ntimeout = \"3s\"\n[tools.\"http/s*\"]\ntimeout = \"3s\"\n\
                [tools.\"htpp/*\"]\ntimeout = \"3s\"\n[tools.\"command/x\"]\ntimeout = \"3s\"\n";
    let config = load("strange-tools", text);
    let notes: Vec<&str> =
        config.notes().iter().filter_map(|note| note.split_once(": ")).map(|(_, note)| note).collect();
    assert_eq!(
        notes,
        [
            "[tools.\"htpp/*\"] is about a server that is not configured; did you mean `http`?",
            "[tools.\"command/x\"] is about a server that is not configured",
            "[tools.\"http/serach\"] is about a tool that is not configured; did you mean `search`?",
        ]
    );
}

#[test]
fn tools_without_a_server_are_read_joined_and_have_policies_of_their_own() {
    let config = sample("valid/tools-without-a-server.toml");
    let search = &config.http_tools()[&ToolName::new("flight_search").unwrap()];
    assert_eq!((search.method, search.url.origin()), (HttpMethod::Post, "https://api.example.com"));
    assert_eq!(search.headers["Authorization"].expose(), "Bearer abc");
    let convert = &config.command_tools()[&ToolName::new("convert").unwrap()];
    assert_eq!(convert.command, ["convert-units", "--json"]);
    assert_eq!(convert.cwd.as_deref(), Some(Path::new("/home/me/units")));
    assert_eq!(convert.env["UNITS"].expose(), "si");
    let search = policy(&config, &tool("http", "flight_search"));
    assert_eq!((search.class, search.time.attempt), (ToolClass::ReadOnly, seconds(7)));
    assert_eq!(policy(&config, &tool("command", "convert")).class, ToolClass::Idempotent);
    assert_eq!(config.notes(), [""; 0]);

    // A stronger source with fewer settings replaces only those.
    let weak = "[http_tools.a]\nmethod = \"GET\"\nurl = \"https://h/\"\n";
    let strong = "[http_tools.a]\nmethod = \"PUT\"\n";
    let files = files("joined-tools", &[("weak.toml", weak), ("strong.toml", strong)]);
    let config = Config::load(&Sources { files, ..Sources::default() }).unwrap();
    let joined = &config.http_tools()[&ToolName::new("a").unwrap()];
    assert_eq!((joined.method, joined.url.host()), (HttpMethod::Put, "h"));
}

#[test]
fn sf_6_tools_without_a_server_show_no_secrets() {
    let text = "[http_tools.a]\nmethod = \"GET\"\nurl = \"https://h/${S}?key=${S}\"\nheaders = { Authorization = \"Bearer ${S}\" }\n\
                [command_tools.b]\ncommand = [\"x\"]\nenv = { TOKEN = \"${S}\" }\n";
    let load = |secret: &str, text: &str| {
        let files = files(&format!("tool-secrets-{}", secret.len()), &[("steadfast.toml", text)]);
        Config::load(&Sources { files, environment: environment(&[("S", secret)]), ..Sources::default() })
    };
    let config = load("hunter2hunter2", text).unwrap();
    let debug_text = format!("{:?} {:?}", config.http_tools(), config.command_tools());
    assert!(!debug_text.contains("hunter2"), "{debug_text}");
    // The same if the value of the variable breaks the syntax around it.
    for secret in ["hunter2{hunter2", "hunter2{hunter2/}", "hunter2}", "hunter2 hunter2", "hunter2#x"] {
        let Err(errors) = load(secret, text) else { panic!("{secret} was accepted") };
        assert!(!errors.to_string().contains("hunter2"), "{errors}");
    }
    let text =
        "[http_tools.a]\nmethod = \"GET\"\nurl = \"https://h/\"\nheaders = { Authorization = \"${S}\" }\n";
    let Err(errors) = load("hunter2\nhunter2", text) else { panic!("a line break was accepted") };
    assert!(!errors.to_string().contains("hunter2"), "{errors}");
}

#[test]
fn sf_6_explanations_and_errors_show_no_secrets() {
    let text = "[store]\nkind = \"redis\"\nurl = \"redis://me:hunter2hunter2@h:1/0\"\n[servers.a]\nurl = \"https://x.example.com/\"\nheaders = { Authorization = \"Bearer hunter2hunter2\" }\n";
    let config = load("secrets", text);
    let debug_text = format!("{:?} {:?} {:?}", config.shown(), config.global(), config.servers());
    assert!(!debug_text.contains("hunter2"), "{debug_text}");
}

#[test]
fn every_setting_is_in_the_schema_and_on_the_page() {
    let (schema, page) = (reference::schema(), reference::page());
    let config = Config::load(&Sources::default()).unwrap();
    let policies = config.explain(&tool("a", "b"), AnnotationHints::default(), None).settings;
    let names =
        policies.iter().map(|one| one.setting).chain(config.shown().into_iter().map(|one| one.setting));
    for name in names {
        assert!(page.contains(&format!("| `{name}`")), "{name} is not on the page");
        let (section, key) = name.split_once('.').unwrap_or(("tool", name));
        let at = [
            format!("/$defs/{section}/properties/{key}"),
            format!("/properties/{section}/properties/{key}"),
            format!("/properties/{name}"),
        ];
        assert!(at.iter().any(|at| schema.pointer(at).is_some()), "{name} is not in the schema");
    }
}

#[test]
fn sf_5_values_nested_too_deep_are_refused() {
    let deep = |part: &str| part.repeat(100_000);
    for text in [
        format!("{}a = 1\n", deep("a.")),
        format!("[tools.{}a]\n", deep("a.")),
        format!("a = {}", deep("[")),
        format!("a = {}", deep("{a=")),
    ] {
        let sources = Sources { files: files("deep", &[("steadfast.toml", &text)]), ..Sources::default() };
        assert!(Config::load(&sources).is_err());
    }
    let flag = CommandLineFlag {
        name: "--set".to_owned(),
        setting: format!("{}a", deep("a.")),
        value: "1".to_owned(),
    };
    assert!(Config::load(&Sources { flags: vec![flag], ..Sources::default() }).is_err());
}

/// Lines that can be combined in any way.
const LINES: &[&str] = &[
    "mode = \"shadow\"",
    "timeout = \"3s\"",
    "stuck_after = \"1h\"",
    "retry = { attempts = 2, base = \"9s\" }",
    "retry.waits = [\"1s\"]",
    "retry.waits = []",
    "class = \"read_only\"",
    "class = \"mutating\"",
    "dedupe.scope = \"global\"",
    "settling = { effects = \"local\", linger = \"0s\" }",
    "trust.count = 2",
    "trust.rate = 0.1",
    "breaker.rate_at_least = 1024",
    "[classes.read_only]",
    "[classes.mutating]",
    "[tools.\"a/*\"]",
    "[tools.\"a/b\"]",
    "[tools.b]",
    "[domains.a]",
    "[domains.\"h.example.com\"]",
    "[servers.a]",
    "command = [\"x\"]",
    "url = \"http://h/\"",
    "[[classify.rules]]",
    "text = \"(\"",
    "nature = \"transient\"",
    "nonsense",
    "x = \"\u{1F980}\"",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn resolve_is_total_over_whatever_is_configured_and_called(
        picks in proptest::collection::vec(0..LINES.len(), 0..10),
        server in "a|b|[a-z/*.]{1,8}",
        name in "b|pay|[^\\x00-\\x1f\\x7f-\\x9f]{1,8}",
        hints in proptest::array::uniform3(proptest::option::of(any::<bool>())),
        params in "\\{\\}|\\{\"url\":\"https://h\\.example\\.com/x\"\\}|\\[1\\]|null",
        gateway in any::<bool>(),
    ) {
        let text: Vec<&str> = picks.iter().map(|pick| LINES[*pick]).collect();
        let start = if gateway { PolicyStart::Gateway } else { PolicyStart::Library };
        let sources = Sources { start, files: files("total", &[("steadfast.toml", &text.join("\n"))]), ..Sources::default() };
        let config = match Config::load(&sources) {
            Ok(config) => config,
            Err(errors) => {
                prop_assert!(!errors.problems().is_empty() && !errors.to_string().is_empty());
                Config::load(&Sources { start, ..Sources::default() }).unwrap()
            }
        };
        let called = tool(&server, &name);
        let [read_only, destructive, idempotent] = hints;
        let annotations = AnnotationHints { read_only, destructive, idempotent };
        let document = JsonDocument::parse(params.as_bytes(), JsonLimits::ENVELOPE).unwrap();
        let resolved = config.resolve(&called, annotations, document.root());
        let host = steadfast_core::classify::signature::domain(&called, &steadfast_core::classify::ArgumentTargets::of(document.root()));
        for one in config.explain(&called, annotations, Some(&host)).settings {
            prop_assert_eq!(resolved.origins.of(one.setting), Some(&one.origin));
            prop_assert!(!one.value.is_empty());
        }
        let again = config.resolve(&called, annotations, document.root());
        prop_assert!(Arc::ptr_eq(&resolved.policy, &again.policy));
    }

    #[test]
    fn sf_5_no_file_makes_the_reader_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        cut in 0..2000usize,
        json in any::<bool>(),
    ) {
        let sample = include_str!("samples/valid/every-kind-of-value.toml").as_bytes();
        let cut = cut.min(sample.len());
        let spliced: Vec<u8> = [&sample[..cut], &bytes, &sample[cut..]].concat();
        let path = folder("panic").join(if json { "x.json" } else { "x.toml" });
        std::fs::write(&path, if json { &bytes } else { &spliced }).unwrap();
        let sources = Sources { files: vec![ConfigFile { path, needed: FileRequirement::Always }], ..Sources::default() };
        if let Err(errors) = Config::load(&sources) {
            prop_assert!(errors.to_string().contains("mistake"));
        }
    }
}

fn program(toml: &str) -> ProgramText {
    ProgramText { name: "pluginConfig".to_owned(), toml: toml.to_owned() }
}

#[test]
fn settings_of_the_program_are_stronger_than_files_and_weaker_than_the_environment() {
    let live = LiveConfig::start(Sources {
        files: files("program", &[("steadfast.toml", "timeout = \"7s\"\n[retry]\nattempts = 5\n[breaker]\nconsecutive = 9")]),
        program: Some(program("timeout = \"6s\"\n[retry]\nattempts = 4")),
        environment: environment(&[("STEADFAST_TIMEOUT", "5s")]),
        ..Sources::default()
    })
    .unwrap();
    let found = |live: &LiveConfig| {
        let policy = policy(&live.current(), &tool("bank/pay"));
        (policy.time.attempt, policy.retry.attempts.get(), policy.breaker.consecutive.get())
    };
    assert_eq!(found(&live), (seconds(5), 4, 9));
    live.reconfigure(program("[breaker]\nconsecutive = 3")).unwrap();
    assert_eq!(found(&live), (seconds(5), 5, 3), "the new text replaces all of the old one");
}

#[test]
fn new_settings_of_the_program_apply_together_or_not_at_all() {
    let live = LiveConfig::start(Sources { program: Some(program("timeout = \"6s\"")), ..Sources::default() }).unwrap();
    let before = live.current();
    let errors = live.reconfigure(program("timeout = 5\nretries = 2\n[retry]\nattempts = 3")).unwrap_err();
    assert_eq!(errors.problems().len(), 2, "{errors}");
    assert!(errors.to_string().contains("pluginConfig:"), "{errors}");
    assert!(Arc::ptr_eq(&before, &live.current()));
    // Switches stay, and a snapshot that a call has taken does not change.
    live.switch(|switches| Switches { retry: EnforcementMode::Off, ..switches });
    live.reconfigure(program("timeout = \"4s\"")).unwrap();
    assert_eq!(live.current().switches().retry, EnforcementMode::Off);
    assert_eq!(policy(&before, &tool("bank/pay")).time.attempt, seconds(6));
    assert_eq!(policy(&live.current(), &tool("bank/pay")).time.attempt, seconds(4));
}
