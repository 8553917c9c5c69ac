//! The page of one tool.

use serde_json::json;

use crate::browser::BrowserPage;
use crate::world::{GatewayWorld, TestTransport};
use crate::{DashboardGateway, TOKEN};

#[test]
fn a_tool_is_opened_with_its_trust_its_failures_its_breaker_and_its_last_calls() {
    let rule = "[trust]\ncount = 1\nseverities = [\"crash\"]\ncooldown = \"1h\"\nsuccesses_to_recover = 4\n";
    let tool = "[tools.\"bank/pay\"]\nguard.mode = \"off\"\n";
    let mut gateway = DashboardGateway::new("tool", &format!("{rule}{tool}"));
    let client = &mut gateway.client;
    client.call("look", json!({ "id": "other" }));
    client.call("pay", json!({ "id": "fine" }));
    client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#trust tbody", "bank/pay");
    page.click("#trust tbody", "Tool bank/pay");
    // Its trust: the state, the reason, the end, and the required successes.
    for words in [
        "needs approval",
        "1 failure in",
        "needs approval until ",
        "(in ",
        "then 4 successful calls restore trust",
    ] {
        page.wait_for_text("#dialog .trust", words);
    }
    page.wait_for_text("#dialog .breaker", "closed");
    for words in ["crash", "the server"] {
        page.wait_for_text("#dialog .failures tbody", words);
    }
    let calls = page.run("return await page.locator('#dialog .calls tbody tr').allInnerTexts()");
    let calls = calls.as_array().unwrap();
    assert_eq!(calls.len(), 2, "its own, and none of another tool: {calls:?}");
    assert!(calls[0].as_str().unwrap().contains("outcome_unknown"), "the newest first: {calls:?}");
    page.assert_fits_screen();
    // An action there takes effect, and is visible at once.
    page.click("#dialog .trust", "Restore trust in bank/pay");
    page.enter_token(TOKEN);
    page.wait_for_status("bank/pay: trusted again");
    page.click("#trust tbody", "Tool bank/pay");
    page.wait_for_text("#dialog .trust", "Calls run without approval.");
    // Another call of it appears while its page is open.
    gateway.client.call("pay", json!({ "id": "later" }));
    page.run("await wait(() => document.querySelectorAll('#dialog .calls tbody tr').length === 3)");
    // One of its calls, and back.
    page.click("#dialog .calls tbody", "Open the call");
    page.wait_for_text("#dialog", "Step by step");
    page.click("#dialog header", "Tool bank/pay");
    page.wait_for_text("#dialog .calls tbody", "success");
    page.close();
}

/// A server over HTTP reports more about a failure.
#[test]
fn a_failure_has_its_http_status_its_retries_and_its_context() {
    let config = "[tools.\"bank/look\"]\nretry.attempts = 2\n";
    let world = GatewayWorld::of("dashboard_tool_http", config, TestTransport::Http, TestTransport::Http);
    let mut client = world.client_of("bank", |_| {});
    client.call(
        "look",
        json!({ "id": "down", "fault": "503", "url": "https://example.com/rates?token=hunter2-hunter2" }),
    );
    let page = BrowserPage::open(client.address());
    page.click("#trust tbody", "Tool bank/look");
    page.wait_for_text("#dialog .failures tbody", "server error");
    let cells = page
        .run("return await page.locator('#dialog .failures tbody tr').first().locator('td').allInnerTexts()");
    assert_eq!((&cells[3], &cells[4]), (&json!("503"), &json!("1")), "{cells}");
    assert!(cells[5].as_str().unwrap().contains("example.com"), "{cells}");
    assert!(cells[1].as_str().unwrap().lines().count() == 2, "its severity and its type: {cells}");
    assert!(!cells.to_string().contains("hunter2"), "{cells}");
    page.close();
}

/// The host's information about a failure, and about the model that called the tool.
#[test]
fn a_tool_shows_the_context_of_a_failure_and_its_models_and_the_page_the_hosts() {
    let gateway =
        DashboardGateway::new("tool_models", "[trust]\ncount = 1\nseverities = [\"server_error\"]\n");
    let report = json!({
        "toolName": "search", "pluginName": "web", "severity": "server_error", "httpStatus": 502, "modelId": "model-7",
        "error": { "type": "UpstreamError", "message": "bad gateway" }, "domain": "web.example",
        "context": { "region": "eu-1" },
    });
    let page = BrowserPage::open(gateway.address());
    page.run(&format!(
        "await page.evaluate((body) => fetch('/v1/failures', {{ method: 'POST', headers: {{ 'content-type': 'application/json' }}, body }}), {})",
        json!(report.to_string())
    ));
    for words in ["web.example", "server error: 1"] {
        page.wait_for_text("#domains tbody", words);
    }
    page.run("await page.setViewportSize({ width: 390, height: 844 })");
    page.assert_fits_screen();
    page.click("#trust .lost", "Tool web/search");
    for words in ["UpstreamError", "502", "region", "eu-1"] {
        page.wait_for_text("#dialog .failures tbody", words);
    }
    page.wait_for_text("#dialog .models tbody", "model-7");
    page.wait_for_text("#dialog .models tbody", "0 %");
    page.assert_fits_screen();
    page.close();
}

/// The keyboard opens it too, whatever its name is.
#[test]
fn a_tool_is_opened_by_keys() {
    let name = "päy/the <b>bill</b>?&#%";
    let mut gateway = DashboardGateway::with_tools("tool_keys", "", &[name.to_owned()]);
    gateway.client.call(name, json!({ "id": "a", "fault": "400" }));
    let page = BrowserPage::open(gateway.address());
    page.run(&format!("await page.fill('#trust input', {})", json!(name)));
    page.run("await wait(() => document.querySelectorAll('#trust tbody tr').length === 1)");
    page.run("await page.evaluate(() => document.querySelector('#trust tbody tr').focus())");
    page.press("Enter");
    page.wait_for_text("#dialog h2", name);
    page.wait_for_text("#dialog .failures tbody", "HTTP 400 Bad Request");
    page.close();
}
