//! The views of the page, as events happen.

use std::fs;

use serde_json::{Value, json};

use crate::browser::BrowserPage;
use crate::{DashboardGateway, TOKEN};

/// Returns the answer of an endpoint, without a token of its own.
fn fetch_json(page: &BrowserPage, path: &str) -> Value {
    page.run(&format!(
        "return await page.evaluate(async (path) => (await fetch(path)).json(), {})",
        json!(path)
    ))
}

#[test]
fn an_idle_gateway_shows_that_it_is_healthy_and_explains_its_sections() {
    let gateway = DashboardGateway::new("quiet", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#now h1", "All is well.");
    page.wait_for_text("#verdict", "all is well");
    let titles = page.run("return await page.locator('main h2').allInnerTexts()");
    assert_eq!(
        titles,
        json!([
            "Waiting for approval",
            "Unknown outcomes",
            "Notifications",
            "Circuit breakers the last hour: low is closed, half is probing, full is open",
            "Calls",
            "Turns calls that depend on each other",
            "Tools and trust",
            "Hosts and servers to which calls failed",
            "Loop guard",
            "The last hour",
            "Servers",
            "Store and mode"
        ])
    );
    for (section, word) in [
        ("#approvals", "No call waits for approval"),
        ("#unknown", "No call has an unknown outcome"),
        ("#notifications", "No notifications yet"),
        ("#breakers", "No tool was called yet"),
        ("#calls", "No calls yet"),
        ("#turns", "No turns yet"),
        ("#trust", "not called"),
        ("#domains", "No call to a host or server has failed"),
        ("#guard", "The loop guard has not acted"),
        ("#numbers", "Duplicates prevented"),
        ("#servers", "running"),
        ("#mode", "the sqlite store answers"),
        ("#now", "as configured"),
    ] {
        page.wait_for_text(section, word);
    }
    page.assert_fits_screen();
    page.close();
}

#[test]
fn calls_are_there_as_they_happen_and_one_can_be_opened() {
    let mut gateway = DashboardGateway::new("live", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#calls", "No calls yet");
    let client = &mut gateway.client;
    // It is visible while it runs, until the gate opens.
    let gate = gateway.world.set_behavior("gate");
    let running = client.send_call("look", json!({ "id": "slow", "fault": "gate" }));
    page.wait_for_text("#calls tr.running", "bank/look");
    page.wait_for_text("#calls tr.running", "attempt 1 starts");
    fs::remove_file(gate).unwrap();
    client.answer(running);
    page.wait_for_text("#calls tbody", "success");
    page.wait_until_absent("#calls tbody", "running");
    // A call that is retried, and a duplicate.
    client.call("look", json!({ "id": "again", "fault": "503", "times": 2 }));
    page.wait_for_text("#calls tbody", "saved by a retry");
    client.call_keyed("pay", json!({ "id": "twice" }), "k");
    client.call_keyed("pay", json!({ "id": "twice" }), "k");
    page.wait_for_text("#calls tbody", "replayed");
    page.wait_for_text("#numbers", "Duplicates prevented");
    page.run("await wait(() => [...document.querySelectorAll('#numbers strong')].map((one) => one.innerText).join() === '1,1,0,4')");
    // The search shows matches, and hides everything else.
    page.run("await page.fill('#search', 'pay')");
    page.wait_for_text("#calls .line", "2 of 4");
    page.run("await page.fill('#search', 'look'); await page.selectOption('#calls select', 'retried')");
    page.wait_for_text("#calls .line", "1 of 4");
    page.click("#calls tbody", "Open bank/look");
    for word in
        ["attempt 1 failed", "a retry may help", "attempt 2 follows in", "attempt 3 answered", "3 attempts"]
    {
        page.wait_for_text("#dialog .story", word);
    }
    let rules = page.run("return await page.locator('#dialog .steps code').allInnerTexts()");
    assert_eq!(rules.as_array().unwrap().len(), 2, "each failure names the rule that judged it: {rules}");
    page.press("Escape");
    page.run("await page.selectOption('#calls select', 'replayed'); await page.fill('#search', '')");
    page.wait_for_text("#calls .line", "1 of 4");
    page.click("#calls tbody", "Open bank/pay");
    page.wait_for_text("#dialog .steps", "same idempotency key: the stored result is replayed");
    page.wait_for_text("#dialog .outcome", "did not run");
    page.press("Escape");
    page.close();
}

#[test]
fn the_page_and_the_status_agree() {
    let mut gateway = DashboardGateway::new("agrees", "[tools.\"bank/pay\"]\napproval = \"always\"\n");
    let page = BrowserPage::open(gateway.address());
    gateway.client.call("pay", json!({ "id": "a" }));
    page.wait_for_text("#now", "1 call waits for approval");
    let status = fetch_json(&page, "/v1/status");
    assert_eq!(status["verdict"], "attention");
    let shown = page.run("return await page.locator('.findings .state').allInnerTexts()");
    let shown: Vec<_> = shown.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    let reported: Vec<_> =
        status["findings"].as_array().unwrap().iter().map(|one| one["what"].as_str().unwrap()).collect();
    assert_eq!(shown.len(), reported.len());
    for (shown, reported) in shown.iter().zip(reported) {
        assert!(shown.ends_with(reported), "{shown}: {reported}");
    }
    page.close();
}

#[test]
fn the_page_follows_the_colour_scheme_until_the_user_changes_it() {
    let gateway = DashboardGateway::new("dark", "");
    let light = |page: &BrowserPage| {
        let colour = page.run(
            "return await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0])",
        );
        colour.as_u64().unwrap() > 128
    };
    let page = BrowserPage::open_as(gateway.address(), json!({ "colorScheme": "dark" }));
    page.wait_for_text("#now h1", "All is well.");
    assert!(!light(&page));
    page.run("await page.emulateMedia({ colorScheme: 'light' })");
    assert!(light(&page));
    page.press("t");
    page.press("t");
    page.wait_for_text("#theme", "dark");
    assert!(!light(&page));
    page.run("await page.reload()");
    page.wait_for_text("#now h1", "All is well.");
    assert!(!light(&page), "it is remembered");
    page.close();
}

#[test]
fn it_can_be_read_on_a_phone() {
    let mut gateway = DashboardGateway::new("phone", "[tools.\"bank/pay\"]\napproval = \"always\"\n");
    for id in 0..3 {
        gateway.client.call("look", json!({ "id": format!("{id}") }));
    }
    gateway.client.call("look", json!({ "id": "bad", "fault": "400" }));
    gateway.client.call(
        "pay",
        json!({ "id": "a-rather-long-name-of-an-invoice-that-somebody-wants-to-be-paid-today" }),
    );
    for width in [360, 320] {
        let phone =
            json!({ "viewport": { "width": width, "height": 740 }, "isMobile": true, "hasTouch": true });
        let page = BrowserPage::open_as(gateway.address(), phone);
        page.wait_for_text("#approvals", "Approve once");
        page.wait_for_text("#calls", "bank/look");
        page.assert_fits_screen();
        let rows = page.run("return await page.evaluate(() => getComputedStyle(document.querySelector('#calls tbody tr')).display)");
        assert_eq!(rows, "flex", "rows are cards");
        page.run(
            "await page.locator('#calls').getByRole('button', { name: 'Open bank/look' }).first().tap()",
        );
        page.wait_for_text("#dialog", "Step by step");
        page.assert_fits_screen();
        page.close();
    }
}

#[test]
fn everything_is_reachable_by_keyboard() {
    let mut gateway = DashboardGateway::new("keys", "");
    gateway.client.call("look", json!({ "id": "a" }));
    gateway.client.call("look", json!({ "id": "b" }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#calls", "bank/look");
    // The first element in the tab order skips the bar.
    page.press("Tab");
    assert_eq!(page.run("return await page.evaluate(() => document.activeElement.className)"), "skip");
    page.press("Enter");
    page.press("/");
    assert_eq!(page.run("return await page.evaluate(() => document.activeElement.id)"), "search");
    // Text input is not interrupted by keyboard shortcuts.
    page.run("await page.keyboard.type('look jk?')");
    assert_eq!(page.run("return await page.inputValue('#search')"), "look jk?");
    page.run("await page.fill('#search', '')");
    page.wait_for_text("#calls tbody", "bank/look");
    page.press("Escape");
    page.run("await page.evaluate(() => document.querySelector('#calls tbody tr').focus())");
    page.press("j");
    page.press("k");
    page.press("Enter");
    page.wait_for_text("#dialog[open]", "Step by step");
    page.press("Escape");
    page.run("await wait(() => !document.getElementById('dialog').open)");
    page.press("?");
    page.wait_for_text("#dialog[open]", "search the calls");
    page.press("Escape");
    page.close();
}

#[test]
fn sf_7_the_page_requests_a_token_if_queries_require_one() {
    let config = "[tokens.watcher]\ntoken = \"of-the-watcher-0123456789\"\nrole = \"viewer\"\n";
    let world = crate::GatewayWorld::of(
        "dashboard_closed",
        config,
        crate::TestTransport::Http,
        crate::TestTransport::Stdio,
    );
    let mut command = world.wrap(&crate::world::LISTEN);
    command.env("STEADFAST_TOKEN", "of-the-agents").env("STEADFAST_ADMIN_TOKEN", TOKEN);
    let gateway = crate::McpTestClient::over_http(command);
    let address = gateway.address();
    let page = BrowserPage::open(address);
    page.wait_for_text("#dialog[open]", "Viewing this page requires a viewer token or the admin token.");
    page.enter_token("of-the-agents");
    page.wait_for_text("#dialog[open]", "This is not the right token.");
    page.enter_token(TOKEN);
    page.wait_for_text("#now h1", "All is well.");
    // Another tab does not have the token.
    let other = BrowserPage::open(address);
    other.wait_for_text("#dialog[open]", "admin token");
    // A viewer sees everything, and changes nothing.
    other.enter_token("of-the-watcher-0123456789");
    other.wait_for_text("#now h1", "All is well.");
    other.close();
    page.close();
}

/// Requests from before the token was entered may be refused only afterwards.
#[test]
fn a_token_entered_during_pending_requests_is_not_discarded() {
    let world = crate::GatewayWorld::of(
        "dashboard_meanwhile",
        "",
        crate::TestTransport::Http,
        crate::TestTransport::Stdio,
    );
    let mut command = world.wrap(&crate::world::LISTEN);
    command.env("STEADFAST_TOKEN", "of-the-agents").env("STEADFAST_ADMIN_TOKEN", TOKEN);
    let gateway = crate::McpTestClient::over_http(command);
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#dialog[open]", "admin token");
    // From now on requests without a token are not answered. The page repeats them.
    page.run(
        "const released = new Promise((release) => { page.release = release; });
        let begin;
        const begun = new Promise((held) => { begin = held; });
        await page.route('**/v1/**', async (route) => {
            if (route.request().headers().authorization === undefined) {
                if (route.request().url().includes('/v1/status')) begin();
                await released;
            }
            await route.continue();
        });
        await begun;",
    );
    page.enter_token(TOKEN);
    page.run("await wait(() => !document.getElementById('dialog').open); page.release()");
    let is_reopened = page.run(
        "await wait(() => document.getElementById('dialog').open || document.querySelector('#now h1')?.innerText.includes('All is well.'));
        return await page.evaluate(() => document.getElementById('dialog').open);",
    );
    assert_eq!(is_reopened, false);
    page.close();
}

#[test]
fn an_unreachable_gateway_is_reported() {
    let gateway = DashboardGateway::new("gone", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#live", "live");
    drop(gateway);
    page.wait_for_text("#live", "no answer");
    page.close();
}

#[test]
fn a_server_that_died_is_shown_with_its_restarts_and_the_cause() {
    let mut gateway = DashboardGateway::new("died", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#servers", "0 restarts");
    gateway.client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    gateway.client.call("look", json!({ "id": "b" }));
    page.wait_for_text("#servers", "1 restart");
    page.wait_for_text("#servers .warning", "exit code 4");
    page.close();
}

#[test]
fn the_page_receives_events_and_does_not_have_to_poll() {
    let mut gateway = DashboardGateway::new("told", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#live", "live");
    gateway.client.call("look", json!({ "id": "a" }));
    page.wait_for_text("#calls", "bank/look");
    page.close();
}
