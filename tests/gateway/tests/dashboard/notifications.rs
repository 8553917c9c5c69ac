//! Notifications, as they happen.

use serde_json::json;

use crate::DashboardGateway;
use crate::browser::BrowserPage;

const CONFIG: &str = "
[trust]
count = 1
severities = [\"crash\"]
[tools.\"bank/pay\"]
breaker.mode = \"off\"
[tools.\"bank/draw\"]
approval = \"always\"
";

fn rows(page: &BrowserPage) -> Vec<String> {
    let texts = page.run("return await page.locator('.notifications li').allInnerTexts()");
    texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn rp_8_notifications_appear_as_they_happen_with_level_time_and_message() {
    let mut gateway = DashboardGateway::new("notifications", CONFIG);
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#notifications", "No notifications yet");
    page.wait_for_text("#live", "live");
    let client = &mut gateway.client;
    client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    page.wait_for_text(".notifications", "the outcome of a call of bank/pay is unknown");
    page.wait_for_text(".notifications", "bank/pay at bank needs approval until");
    client.call("draw", json!({ "id": "b" }));
    page.wait_for_text(
        ".notifications",
        "bank/draw needs approval: this tool requires approval before every call",
    );
    let shown = rows(&page);
    assert_eq!(shown.len(), 3, "{shown:#?}");
    assert!(shown[0].contains("bank/draw") && shown[0].contains("info"), "the newest first: {shown:#?}");
    assert!(shown[1..].iter().all(|row| row.contains("warning")), "{shown:#?}");
    // Each has its time, and none appears as another notification.
    let moments =
        page.run("return await page.locator('.notifications li time').evaluateAll((all) => all.map((one) => one.dateTime))");
    assert_eq!(moments.as_array().unwrap().len(), 3, "{moments}");
    // A page that is opened later shows them too, and each once.
    let other = BrowserPage::open(gateway.address());
    other.wait_for_text(".notifications", "bank/draw needs approval");
    assert_eq!(rows(&other).len(), 3);
    other.run("await page.reload()");
    other.wait_for_text(".notifications", "bank/draw needs approval");
    assert_eq!(rows(&other).len(), 3);
    other.close();
    page.close();
}

/// The page is opened because of a notification.
#[test]
fn rp_8_a_notification_from_before_the_page_was_opened_is_shown() {
    let mut gateway = DashboardGateway::new("notifications_before", CONFIG);
    gateway.client.call("draw", json!({ "id": "a" }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text(".notifications", "bank/draw needs approval");
    assert_eq!(rows(&page).len(), 1);
    page.close();
}

/// A proxy or a sleeping laptop may end a stream at any time.
#[test]
fn a_stream_that_ends_resumes_after_the_last_notification() {
    let gateway = DashboardGateway::new("notifications_ended", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#live", "live");
    let queries = page.run(
        "const asked = [];
        const event = (number) => {
            const line = { time: `2026-01-0${number}T00:00:00.000Z`, level: 'info', event: 'notification', message: `number ${number}` };
            return `id: a-${number}\nevent: notification\ndata: ${JSON.stringify(line)}\n\n`;
        };
        const streams = [event(1) + event(2), event(2) + event(3)];
        await page.route('**/v1/events*', async (route) => {
            asked.push(new URL(route.request().url()).search);
            const body = streams.shift();
            if (body) await route.fulfill({ contentType: 'text/event-stream', body });
            else await route.continue();
        });
        await page.reload();
        await wait(() => document.querySelector('.notifications')?.innerText.includes('number 3'));
        return asked;",
    );
    assert_eq!(queries, json!(["?after=0-0", "?after=a-2"]));
    let shown = rows(&page);
    let order: Vec<_> = shown.iter().map(|row| row.trim_end().chars().next_back().unwrap()).collect();
    assert_eq!(order, ['3', '2', '1'], "the newest first, each once: {shown:#?}");
    page.close();
}
