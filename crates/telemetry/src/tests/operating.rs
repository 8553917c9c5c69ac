//! The files for whoever runs it speak of metrics that exist.

use std::collections::BTreeSet;

use crate::{CATALOGUE, Kind};

const ALERTS: &str = include_str!("../../../../docs/operating/alerts.yml");
const ALERT_TESTS: &str = include_str!("../../../../docs/operating/alerts.test.yml");
const DASHBOARD: &str = include_str!("../../../../docs/operating/grafana.json");

const PAGE: &str = include_str!("../../../../docs/operating/telemetry.md");
const MAPPING: &str = include_str!("../mapping.rs");

/// The names of lines, as the mapping writes them.
fn events() -> BTreeSet<&'static str> {
    let quoted = MAPPING.split('"').skip(1).step_by(2);
    quoted.filter(|text| text.starts_with("tool_call_") || text.starts_with("store_")).collect()
}

fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for metric in CATALOGUE {
        let name = format!("steadfast_{}", metric.name);
        match metric.kind {
            Kind::Counter | Kind::Gauge => {
                names.insert(name);
            }
            Kind::Histogram => names.extend(["bucket", "count", "sum"].map(|part| format!("{name}_{part}"))),
        }
    }
    names
}

fn used(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let namespace = "steadfast_";
    text.split(word).filter(|name| name.starts_with(namespace) && *name != namespace).collect()
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let known = names();
    for (file, text) in [("alerts", ALERTS), ("tests of alerts", ALERT_TESTS), ("dashboard", DASHBOARD)] {
        let used = used(text);
        assert!(used.len() > 5, "{file}: {used:?}");
        for name in used {
            assert!(known.contains(name), "{file}: there is no {name}");
        }
    }
}

#[test]
fn every_alert_is_tested() {
    let alerts: Vec<&str> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 6, "{alerts:?}");
    for alert in alerts {
        assert!(ALERT_TESTS.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
}

#[test]
fn the_dashboard_is_json() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}

#[test]
fn every_line_of_the_log_is_on_its_page() {
    let events = events();
    assert!(events.len() >= 25, "{events:?}");
    for event in events {
        assert!(PAGE.contains(&format!("`{event}`")), "{event} is not on the page");
    }
}
