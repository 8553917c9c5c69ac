//! The screenshots of the documentation. They are made when `STEADFAST_SCREENSHOTS` names the folder for them:
//!
//! ```sh
//! STEADFAST_SCREENSHOTS=$PWD/docs/images cargo test -p steadfast-gateway-tests --test dashboard pictures
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::browser::BrowserPage;
use crate::{DashboardGateway, McpTestClient, TOKEN};

const CONFIG: &str = "
[guard]
per_turn = 50
[tools.\"bank/send_invoice\"]
approval = \"always\"
[tools.\"bank/convert\"]
class = \"read_only\"
breaker.consecutive = 3
breaker.cooldown = \"10m\"
retry.attempts = 1
";
const TOOLS: [&str; 6] =
    ["search_orders", "read_ledger", "send_invoice", "convert", "create_customer", "fetch_rates"];

/// Returns a gateway with activity: a pending request, a failing tool, a looping model.
fn busy() -> DashboardGateway {
    let tools: Vec<String> = TOOLS.iter().map(|&tool| tool.to_owned()).collect();
    let mut gateway = DashboardGateway::with_tools("pictures", CONFIG, &tools);
    let call = |client: &mut McpTestClient, tool: &str, arguments: Value| {
        client.call_with(tool, arguments, json!({ "dev.steadfast/session": "nightly-invoices" }));
    };
    let client = &mut gateway.client;
    for number in 0..3 {
        call(client, "search_orders", json!({ "id": format!("customer {number}") }));
        call(client, "read_ledger", json!({ "id": format!("2026-{number:02}") }));
    }
    for number in 0..4 {
        call(client, "convert", json!({ "id": format!("EUR {number}"), "fault": "503" }));
    }
    for _ in 0..3 {
        call(client, "create_customer", json!({ "name": "Ada Lovelace", "city": "London" }));
    }
    for _ in 0..3 {
        client.call_keyed("pay", json!({ "id": "INV-2026-0117" }), "INV-2026-0117");
    }
    client.call("look", json!({ "id": "rates of today", "fault": "503", "times": 2 }));
    client.call_keyed("pay", json!({ "id": "INV-2026-0119", "fault": "504" }), "INV-2026-0119");
    call(
        client,
        "send_invoice",
        json!({ "id": "INV-2026-0118", "to": "ada@example.com", "amount": "1,240.00 EUR", "lines": ["consulting, 8 h", "travel"] }),
    );
    gateway
}

/// Invents an hour of minutes before this one, and the breaker's changes in them, because a screenshot cannot wait for
/// them.
fn an_hour_ago(page: &BrowserPage) {
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    page.run(&format!(
        "const now = {now};
        await page.route('**/v1/series', async (route) => {{
            const series = await (await route.fetch()).json();
            series.minutes.slice(0, 58).forEach((minute, at) => {{
                const wave = Math.round(9 + 6 * Math.sin(at / 7) + 3 * Math.sin(at * 1.7));
                const outage = at > 30 && at < 37;
                Object.assign(minute, {{
                    successes: outage ? Math.round(wave / 2) : wave,
                    failures: outage ? 3 : at % 11 === 0 ? 1 : 0,
                    refused: outage ? 4 : 0,
                    duplicates: at % 4 === 1 ? 1 + (at % 3) : 0,
                    saved: outage ? 2 : at % 9 === 4 ? 1 : 0,
                    guardStops: at === 21 || at === 22 ? 2 : 0,
                }});
                minute.calls = minute.successes + minute.failures + minute.refused;
                for (const [name, value] of Object.entries(minute)) if (name !== 'atMs') series.sinceStart[name] += value;
            }});
            await route.fulfill({{ json: series }});
        }});
        await page.route('**/v1/breakers*', async (route) => {{
            const breakers = await (await route.fetch()).json();
            const open = breakers.breakers.find((breaker) => breaker.key === 'tool:bank:convert');
            const change = (from, to, reason, minutes) => ({{ from, to, reason, at: now - minutes * 60000 }});
            open?.changes.unshift(
                change('CLOSED', 'OPEN', 'rate', 29),
                change('OPEN', 'HALF_OPEN', 'cooled_down', 26),
                change('HALF_OPEN', 'OPEN', 'probe_failed', 25),
                change('OPEN', 'HALF_OPEN', 'cooled_down', 22),
                change('HALF_OPEN', 'CLOSED', 'probes_succeeded', 20),
            );
            await route.fulfill({{ json: breakers }});
        }});
        await page.reload();"
    ));
}

#[test]
fn pictures_of_a_busy_night() {
    let gateway = busy();
    let viewport =
        |scheme: &str| json!({ "colorScheme": scheme, "viewport": { "width": 1280, "height": 900 } });
    for (scheme, name, whole) in
        [("light", "dashboard-light.png", true), ("dark", "dashboard-dark.png", false)]
    {
        let page = BrowserPage::open_as(gateway.address(), viewport(scheme));
        an_hour_ago(&page);
        page.wait_for_text("#now", "1 tool keeps failing and its circuit breaker is open");
        page.wait_for_text("#approvals", "INV-2026-0118");
        page.wait_for_text("#unknown", "bank/pay");
        page.wait_for_text("#notifications", "bank/send_invoice needs approval");
        page.wait_for_text("#breakers", "bank/convert");
        page.wait_for_text("#guard", "Ada Lovelace");
        page.save_screenshot(name, &json!({ "fullPage": whole }));
        page.close();
    }
    let page = BrowserPage::open_as(gateway.address(), viewport("light"));
    an_hour_ago(&page);
    page.run("await page.fill('#search', 'look')");
    page.click("#calls tbody", "Open bank/look");
    page.wait_for_text("#dialog .story", "attempt 3 answered");
    page.run("await page.locator('#dialog').evaluate((dialog) => dialog.querySelector('.close').blur())");
    page.save_screenshot("dashboard-call.png", &json!({}));
    page.press("Escape");
    page.click("#trust tbody", "Tool bank/convert");
    page.wait_for_text("#dialog .failures", "HTTP 503");
    page.run("await page.locator('#dialog').evaluate((dialog) => dialog.querySelector('.close').blur())");
    page.save_screenshot("dashboard-tool.png", &json!({}));
    page.close();
    let phone = json!({ "colorScheme": "light", "viewport": { "width": 390, "height": 844 }, "isMobile": true, "hasTouch": true });
    let page = BrowserPage::open_as(gateway.address(), phone);
    an_hour_ago(&page);
    page.click("header", "Unlock");
    page.enter_token(TOKEN);
    page.wait_for_text("#calls", "bank/");
    page.assert_fits_screen();
    page.save_screenshot("dashboard-narrow.png", &json!({}));
    page.close();
}

/// Returns a turn: one call succeeds at its third attempt, another tool replaces a failed one, one fails and its
/// dependant is left out, and one uses a default.
fn month_end() -> Value {
    let slow = |id: &str, ms: u64| json!({ "id": id, "fault": "slow", "size": ms });
    json!({
        "turnId": "month-end",
        "calls": [
            { "id": "rates", "tool": "fetch_rates", "params": { "id": "EUR", "fault": "503", "times": 2 } },
            { "id": "orders", "tool": "search_orders", "params": slow("2026-10", 420) },
            { "id": "ledger", "tool": "read_ledger", "params": { "id": "2026-10", "fault": "400" },
              "alternatives": [{ "tool": "read_ledger_copy", "params": slow("2026-10", 300) }] },
            { "id": "reminders", "tool": "search_reminders", "params": { "id": "2026-10", "fault": "400" }, "required": false },
            { "id": "invoice", "tool": "write_invoice", "params": slow("INV-2026-0118", 380),
              "dependsOn": ["orders", "ledger", "rates", { "id": "reminders", "default": [] }] },
            { "id": "remind", "tool": "send_reminder", "params": { "id": "ada" }, "dependsOn": ["reminders"], "required": false },
            { "id": "send", "tool": "send_invoice", "params": { "id": "INV-2026-0118", "fault": "400" }, "dependsOn": ["invoice"] },
            { "id": "archive", "tool": "archive", "params": { "id": "INV-2026-0118" }, "dependsOn": ["send"] },
        ],
    })
}

#[test]
fn pictures_of_a_turn() {
    let tools = [
        "fetch_rates",
        "search_orders",
        "read_ledger",
        "read_ledger_copy",
        "search_reminders",
        "write_invoice",
        "send_reminder",
        "send_invoice",
        "archive",
    ];
    let config = "gateway.run_turn = true\n[tools.\"bank/fetch_rates\"]\nclass = \"read_only\"\n";
    let mut gateway = DashboardGateway::with_tools("turn_pictures", config, &tools.map(str::to_owned));
    gateway.client.call("run_turn", month_end());
    let shows = |visitor: Value, name: &str| {
        let page = BrowserPage::open_as(gateway.address(), visitor);
        page.click("#turns tbody", "Open turn month-end");
        page.wait_for_text("#dialog .rows", "3 attempts");
        page.wait_for_text("#dialog .rows", "default for reminders");
        page.run("await page.evaluate(() => document.activeElement.blur())");
        page.assert_fits_screen();
        page.save_screenshot(name, &json!({}));
        page.close();
    };
    let viewport =
        |scheme: &str| json!({ "colorScheme": scheme, "viewport": { "width": 1280, "height": 900 } });
    shows(viewport("light"), "dashboard-turn.png");
    shows(viewport("dark"), "dashboard-turn-dark.png");
    let phone = json!({ "colorScheme": "light", "viewport": { "width": 390, "height": 844 }, "isMobile": true, "hasTouch": true });
    shows(phone, "dashboard-turn-narrow.png");
}
