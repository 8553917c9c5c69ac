//! Checks the operator documentation: the endpoints, commands, metrics and files that it names exist.

use std::collections::BTreeSet;
use std::path::Path;

use clap::Parser as _;
use http_body_util::{BodyExt as _, Empty};
use serde_json::Value;
use steadfast::Steadfast;
use steadfast::config::Sources;
use steadfast_api::{AccessRules, Api};

use crate::Cli;

const ALERTS: &str = include_str!("../../../docs/operating/alerts.yml");
const METRICS: &str = include_str!("../../../docs/reference/metrics.md");
const RUNBOOK: &str = include_str!("../../../docs/operating/runbook.md");
const PAGES: [(&str, &str); 3] = [
    ("runbook.md", RUNBOOK),
    ("rollout.md", include_str!("../../../docs/operating/rollout.md")),
    ("upgrading.md", include_str!("../../../docs/operating/upgrading.md")),
];

/// Parts of each section about an alert, in this order.
const PARTS: [&str; 5] = ["**Means.**", "**Look.**", "**Do.**", "**Roll back.**", "**Afterwards.**"];

#[test]
fn every_alert_has_a_section_and_links_to_it() {
    let alerts: BTreeSet<&str> =
        ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 14, "{alerts:?}");
    let mut sections = BTreeSet::new();
    for section in RUNBOOK.split("\n## ").skip(1) {
        let (title, body) = section.split_once('\n').unwrap();
        if !title.starts_with("Steadfast") {
            continue;
        }
        sections.insert(title);
        let places: Vec<_> = PARTS.iter().map(|part| body.find(part)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{title}: {places:?}");
        let place = format!("runbook: \"docs/operating/runbook.md#{}\"", title.to_lowercase());
        assert!(ALERTS.contains(&place), "{title} is not told where its section is");
    }
    assert_eq!(sections, alerts);
}

#[test]
fn the_reference_has_the_default_number_of_tools_with_metrics() {
    let config = steadfast::config::Config::load(&Sources::default()).unwrap();
    let most = config.global().metrics.tools;
    assert!(METRICS.contains(&format!("(`metrics.tools`, default {most})")), "{most}");
}

/// Returns the text between backticks, in a line or as a block.
fn code(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        if number % 2 == 1 {
            found.extend(part.lines().skip(1).map(|line| line.trim().to_owned()));
        } else {
            let spans = part.split('`').skip(1).step_by(2);
            found.extend(spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    found
}

/// Returns method and path of a request in a page: `GET /v1/status`, or a line with curl.
fn request(code: &str) -> Option<(String, String)> {
    if code.starts_with("curl ") {
        let method = code.split("-X ").nth(1).map_or("GET", |rest| rest.split(' ').next().unwrap());
        let path = code.split("$STEADFAST").nth(1)?.split([' ', '"', '?']).next().unwrap();
        return Some((method.to_owned(), path.to_owned()));
    }
    let (method, path) = code.split_once(' ')?;
    let known = ["GET", "POST", "PUT", "DELETE"].contains(&method) && path.starts_with('/');
    known.then(|| (method.to_owned(), path.split('?').next().unwrap().to_owned()))
}

#[tokio::test]
async fn every_request_of_the_pages_can_be_made() {
    let steadfast = Steadfast::builder().set("store.kind", "memory").build().await.unwrap();
    let api = Api::new(steadfast, AccessRules::default());
    let document_request = http::Request::get("/openapi.json").header("host", "127.0.0.1");
    let answer = api.respond(document_request.body(Empty::new()).unwrap()).await;
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let document: Value = serde_json::from_slice(&body).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let fits = |template: &str, path: &str| {
        let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        template.len() == path.len()
            && template.iter().zip(&path).all(|(one, other)| one.starts_with('{') || one == other)
    };
    let mut checked = 0;
    for (name, page) in PAGES {
        for (method, path) in code(page).iter().filter_map(|code| request(code)) {
            let known = paths.iter().any(|(template, operations)| {
                fits(template, &path) && operations.get(method.to_lowercase()).is_some()
            });
            assert!(known, "{name}: there is no {method} {path}");
            checked += 1;
        }
    }
    assert!(checked >= 30, "{checked}");
}

#[test]
fn every_command_of_the_pages_is_valid() {
    let mut given = 0;
    for (name, page) in PAGES {
        let code = code(page);
        for command in code.iter().filter(|code| code.starts_with("steadfast ")) {
            // Requests have numeric ids.
            let command = command.replace(" ID", " 1");
            let parsed = Cli::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{name}: {command}: {}", parsed.unwrap_err());
            given += 1;
        }
    }
    assert!(given >= 15, "{given}");
}

#[test]
fn every_metric_of_the_pages_is_counted() {
    let mut named = 0;
    for (page, text) in PAGES {
        for name in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            let Some(name) = name.strip_prefix("steadfast_").filter(|name| !name.is_empty()) else {
                continue;
            };
            assert!(METRICS.contains(&format!("| `{name}` |")), "{page}: nobody counts {name}");
            named += 1;
        }
    }
    assert!(named >= 15, "{named}");
}

#[test]
fn every_link_of_the_pages_has_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating");
    for (name, page) in PAGES {
        for link in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (file, section) = link.split_once('#').map_or((link, None), |(file, at)| (file, Some(at)));
            let file = if file.is_empty() { name } else { file };
            let text = std::fs::read_to_string(folder.join(file));
            assert!(text.is_ok(), "{name}: there is no {link}");
            if let Some(section) = section {
                let text = text.unwrap();
                let titles = text.lines().filter_map(|line| line.strip_prefix("## "));
                let mut places = titles.map(|title| title.to_lowercase().replace(',', "").replace(' ', "-"));
                assert!(places.any(|place| place == section), "{name}: there is no {link}");
            }
        }
    }
}
