//! Calls with an unknown outcome on the page, and their resolution.

use serde_json::{Value, json};

use crate::browser::BrowserPage;
use crate::client::McpTestClient;
use crate::world::{GatewayWorld, TestTransport, wait};
use crate::{DashboardGateway, TOKEN};

#[test]
fn an_unknown_outcome_is_shown_with_what_was_observed_and_resolved_with_one_click() {
    let mut gateway = DashboardGateway::new("unknown", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#unknown", "No call has an unknown outcome");
    let lost = gateway.client.call_keyed("pay", json!({ "id": "a", "fault": "die_after", "times": 1 }), "a");
    assert_eq!(lost.code.as_deref(), Some("outcome_unknown"), "{lost:?}");
    // The observation, its time, and whether it can be checked.
    for words in ["bank/pay", "Observed: the process that ran it ended.", "since ", "It can be checked now"] {
        page.wait_for_text("#unknown .card", words);
    }
    page.wait_for_text("#nav", "Unknown");
    page.click("#unknown", "It ran");
    page.wait_for_text("#dialog[open]", "Changing anything requires the admin token.");
    page.enter_token(TOKEN);
    page.wait_for_status("bank/pay: resolved, it ran");
    page.wait_for_text("#unknown", "No call has an unknown outcome");
    page.wait_until_absent("#now", "unknown outcome");
    let again = gateway.client.call_keyed("pay", json!({ "id": "a", "fault": "die_after", "times": 1 }), "a");
    assert_eq!(again.code.as_deref(), Some("result_not_kept"), "it counts as run: {again:?}");
    assert_eq!(gateway.world.count("pay a"), 1);
    // The other answer allows the next such call to run.
    gateway.client.call_keyed("pay", json!({ "id": "b", "fault": "die_after", "times": 1 }), "b");
    page.wait_for_text("#unknown .card", "bank/pay");
    page.click("#unknown", "It did not run");
    page.wait_for_status("bank/pay: resolved, it did not run");
    page.wait_for_text("#unknown", "No call has an unknown outcome");
    let again = gateway.client.call_keyed("pay", json!({ "id": "b", "fault": "die_after", "times": 1 }), "b");
    assert_eq!((again.text.as_str(), again.is_error), ("pay b, run 2", false));
    page.close();
}

/// The end of a call on a remote server cannot be observed, so it may still take effect for a while.
#[test]
fn an_outcome_that_cannot_be_checked_yet_is_marked_and_does_not_count_as_not_run() {
    let world = GatewayWorld::of(
        "dashboard_unsettled",
        "settling.settle = \"10m\"\n",
        TestTransport::Http,
        TestTransport::Http,
    );
    let mut client: McpTestClient = world.client_of("bank", |command| {
        command.env("STEADFAST_ADMIN_TOKEN", TOKEN);
    });
    let page = BrowserPage::open(client.address());
    let lost = client.call("pay", json!({ "id": "a", "fault": "die_after", "times": 1 }));
    assert_eq!(lost.code.as_deref(), Some("outcome_unknown"), "{lost:?}");
    page.wait_for_text("#unknown .checkable", "It cannot be checked yet, because it may still take effect.");
    page.wait_for_text("#unknown .checkable", "It can be checked in ");
    page.click("#unknown", "It did not run");
    page.enter_token(TOKEN);
    page.wait_for_status("Not done: the call may still take effect");
    page.wait_for_text("#unknown .card", "bank/pay");
    // It can be resolved as run at any time.
    page.click("#unknown", "It ran");
    page.wait_for_status("bank/pay: resolved, it ran");
    page.wait_for_text("#unknown", "No call has an unknown outcome");
    let audit = || -> Value {
        page.run(&format!(
            "return await page.evaluate(async (token) => (await (await fetch('/v1/audit', {{ headers: {{ authorization: `Bearer ${{token}}` }} }})).json()).audit, {})",
            json!(TOKEN)
        ))
    };
    wait(|| audit().to_string().contains("dashboard"), || format!("the page in {:#}", audit()));
    page.close();
}
