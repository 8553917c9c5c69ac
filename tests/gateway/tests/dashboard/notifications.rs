//! Notifications, as they happen.

use serde_json::{Value, json};

use crate::Gateway;
use crate::browser::Page;

const CONFIG: &str = "
[trust]
count = 1
severities = [\"crash\"]
[tools.\"bank/pay\"]
breaker.mode = \"off\"
[tools.\"bank/draw\"]
approval = \"always\"
";

fn rows(page: &Page) -> Vec<String> {
    let texts = page.run("return await page.locator('.notifications li').allInnerTexts()");
    texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn rp_8_notifications_appear_as_they_happen_with_level_time_and_message() {
    let mut gateway = Gateway::new("notifications", CONFIG);
    let page = Page::open(gateway.address());
    page.sees("#notifications", "No notifications yet");
    page.sees("#live", "live");
    let client = &mut gateway.client;
    client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    page.sees(".notifications", "the outcome of a call of bank/pay is unknown");
    page.sees(".notifications", "bank/pay needs approval until");
    client.call("draw", json!({ "id": "b" }));
    page.sees(".notifications", "bank/draw needs approval: this tool is set to ask before every call");
    let seen = rows(&page);
    assert_eq!(seen.len(), 3, "{seen:#?}");
    assert!(seen[0].contains("bank/draw") && seen[0].contains("info"), "the newest first: {seen:#?}");
    assert!(seen[1..].iter().all(|row| row.contains("warning")), "{seen:#?}");
    // Each says when, and none is a notification of something else.
    let moments =
        page.run("return await page.locator('.notifications li time').evaluateAll((all) => all.map((one) => one.dateTime))");
    assert_eq!(moments.as_array().unwrap().len(), 3, "{moments}");
    // Whoever opens the page a moment later sees them too, and each once.
    let other = Page::open(gateway.address());
    other.sees(".notifications", "bank/draw needs approval");
    assert_eq!(rows(&other).len(), 3);
    other.run("await page.reload()");
    other.sees(".notifications", "bank/draw needs approval");
    assert_eq!(rows(&other).len(), 3);
    other.close();
    page.close();
}

/// The stream breaks, as it does when a laptop sleeps: it goes on behind the last event that came.
#[test]
fn a_stream_that_breaks_goes_on_where_it_was() {
    let mut gateway = Gateway::new("notifications_broken", CONFIG);
    let page = Page::open_as(gateway.address(), json!({ "viewport": { "width": 1200, "height": 900 } }));
    page.sees("#live", "live");
    gateway.client.call("draw", json!({ "id": "a" }));
    page.sees(".notifications", "bank/draw needs approval");
    page.run("await context.setOffline(true)");
    page.sees("#live", "no answer");
    gateway.client.call("draw", json!({ "id": "b" }));
    page.run("page.after = []; page.on('request', (request) => request.url().includes('/v1/events') && page.after.push(request.url())); await context.setOffline(false)");
    page.run("await wait(() => document.querySelectorAll('.notifications li').length === 2)");
    let asked: Value = page.run("return page.after");
    assert!(!asked[0].as_str().unwrap().ends_with("after=0-0"), "{asked}");
    page.close();
}
