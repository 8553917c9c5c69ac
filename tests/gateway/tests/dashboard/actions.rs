//! The actions of an operator on the page, and their effects on calls.

use std::fs;

use serde_json::json;

use crate::browser::BrowserPage;
use crate::world::wait;
use crate::{DashboardGateway, TOKEN};

const ASK: &str =
    "[tools.\"bank/pay\"]\napproval = \"always\"\nguard.mode = \"off\"\ndedupe.double_dispatch = false\n";

#[test]
fn a_waiting_call_is_approved_with_one_click_and_the_token_is_requested_once() {
    let mut gateway = DashboardGateway::new("approve", ASK);
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#approvals", "No call waits for approval");
    let refused = gateway.client.call("pay", json!({ "id": "invoice-1", "password": "hunter2-hunter2" }));
    assert!(refused.is_error, "{refused:?}");
    // It appears by itself, and screen readers announce it.
    page.wait_for_text("#approvals .card", "invoice-1");
    page.run("await wait(() => document.getElementById('announcement').textContent.includes('bank/pay'))");
    let text = page.run("return await page.content()");
    assert!(!text.as_str().unwrap().contains("hunter2"), "secrets are not shown");
    page.click("#approvals", "Approve once");
    page.wait_for_text("#dialog[open]", "Changing anything requires the admin token.");
    page.enter_token("guessed");
    page.wait_for_text("#dialog[open]", "This is not the right token.");
    assert!(gateway.client.call("pay", json!({ "id": "invoice-1", "password": "hunter2-hunter2" })).is_error);
    page.enter_token(TOKEN);
    page.wait_for_status("approved once");
    page.wait_for_text("#approvals", "No call waits for approval");
    let done = gateway.client.call("pay", json!({ "id": "invoice-1", "password": "hunter2-hunter2" }));
    assert_eq!((done.text.as_str(), done.is_error), ("pay invoice-1, run 1", false));
    // The next one by keyboard, and without entering the token again.
    gateway.client.call("pay", json!({ "id": "invoice-2" }));
    page.wait_for_text("#approvals .card", "invoice-2");
    page.run("await page.evaluate(() => document.activeElement.blur())");
    page.press("j");
    page.press("d");
    page.wait_for_status("denied");
    page.wait_for_text("#approvals", "No call waits for approval");
    assert_eq!(gateway.world.count("pay invoice-2"), 0);
    page.close();
}

#[test]
fn a_breaker_is_forced_open_and_reset() {
    let mut gateway = DashboardGateway::new("force", "");
    gateway.client.call("look", json!({ "id": "a" }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#breakers", "All circuit breakers are closed");
    page.click("#breakers", "Show 1 closed circuit breaker");
    page.click("#breakers", "Force bank/look open");
    page.click("#dialog", "for 30 minutes");
    page.enter_token(TOKEN);
    page.wait_for_text("#breakers li", "forced open");
    page.wait_for_text("#now", "1 breaker is forced open");
    let refused = gateway.client.call("look", json!({ "id": "b" }));
    assert!(refused.is_error && gateway.world.count("look b") == 0, "{refused:?}");
    page.wait_for_text("#calls tbody", "circuit_open");
    let strip = page.run("return await page.locator('#breakers svg').getAttribute('aria-label')");
    assert!(strip.as_str().unwrap().contains("forced open for"), "{strip}");
    page.click("#breakers", "Reset bank/look");
    page.wait_for_text("#breakers li", "closed");
    page.wait_for_text("#now h1", "All is well.");
    assert!(!gateway.client.call("look", json!({ "id": "b" })).is_error);
    page.close();
}

#[test]
fn sf_13_a_loss_of_records_is_shown_and_accepted_with_one_click() {
    let mut gateway = DashboardGateway::new("loss", "");
    gateway.client.call("pay", json!({ "id": "a" }));
    let state = gateway.world.folder().join(".local/state/steadfast");
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(state.join(format!("state.db{suffix}"))).unwrap();
    }
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#now h1", "Something is wrong.");
    page.wait_for_text("#now", "committed records are lost");
    page.click("#now", "Accept the loss of records");
    page.enter_token(TOKEN);
    page.wait_for_status("Accepted");
    page.wait_for_text("#now h1", "All is well.");
    page.close();
}

#[test]
fn rp_13_trust_in_a_tool_is_restored() {
    let mut gateway = DashboardGateway::new(
        "forgive",
        "[trust]\ncount = 1\nseverities = [\"crash\"]\n[tools.\"bank/pay\"]\nbreaker.mode = \"off\"\n",
    );
    gateway.client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#trust .lost", "bank/pay");
    page.wait_for_text("#trust tbody", "needs approval");
    page.click("#trust .lost", "Restore trust in bank/pay");
    page.enter_token(TOKEN);
    page.wait_for_text("#trust tbody", "trusted");
    page.wait_until_absent("#trust .body", "needs approval");
    page.close();
}

#[test]
fn rp_8_a_tool_that_needs_an_operator_to_recover_is_allowed_to() {
    let rule = "[trust]\ncount = 1\nseverities = [\"crash\"]\nrecovery = \"ask\"\nsuccesses_to_recover = 1\n";
    let mut gateway =
        DashboardGateway::new("recover", &format!("{rule}[tools.\"bank/pay\"]\nbreaker.mode = \"off\"\n"));
    gateway.client.call("pay", json!({ "id": "a", "fault": "die_after" }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#trust .lost", "needs approval until you let it recover");
    page.click("#trust .lost", "Let bank/pay recover");
    page.enter_token(TOKEN);
    page.wait_for_text("#trust .lost", "0 of 1 successful call needed to restore trust");
    assert_eq!(gateway.client.call("pay", json!({ "id": "b" })).text, "pay b, run 1");
    page.wait_for_text("#trust tbody", "trusted");
    page.close();
}

#[test]
fn calls_that_the_guard_stopped_are_shown_with_their_arguments() {
    let mut gateway = DashboardGateway::new("guard", "");
    let page = BrowserPage::open(gateway.address());
    for _ in 0..3 {
        gateway.client.call("look", json!({ "colour": "red" }));
    }
    page.wait_for_text("#guard .trip", "bank/look");
    page.wait_for_text("#guard .trip .sent", "\"colour\"");
    page.wait_for_text("#guard", "the same failing call again");
    page.run("await wait(() => Number(document.querySelectorAll('#numbers strong')[2].innerText) > 0)");
    page.close();
}

#[test]
fn modes_are_switched_and_shown() {
    let mut gateway = DashboardGateway::new("modes", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#mode", "as configured");
    page.run("await page.selectOption('#switch-all', 'off')");
    page.enter_token(TOKEN);
    page.wait_for_status("everything: off");
    page.wait_for_text("#now", "switched: everything off");
    page.wait_for_text("#now .facts", "off");
    let client = &mut gateway.client;
    for _ in 0..2 {
        client.call_keyed("pay", json!({ "id": "a" }), "k");
    }
    assert_eq!(gateway.world.count("pay a"), 2, "nothing stands between any more");
    page.run("await page.selectOption('#switch-all', 'enforce')");
    page.wait_for_text("#now h1", "All is well.");
    wait(|| !client.call_keyed("pay", json!({ "id": "b" }), "k2").is_error, || "a call".to_owned());
    page.close();
}

/// The reason is in several fields of a request. The page shows it once.
#[test]
fn rp_7_a_request_shows_its_reason_once() {
    let config = "
[trust]
count = 1
severities = [\"crash\"]
[tools.\"bank/pay\"]
breaker.mode = \"off\"
[tools.\"bank/draw\"]
approval = \"always\"
";
    let mut gateway = DashboardGateway::new("reason", config);
    let client = &mut gateway.client;
    client.call("draw", json!({ "id": "routine" }));
    client.call("pay", json!({ "id": "lost", "fault": "die_after", "times": 1 }));
    client.call("pay", json!({ "id": "asks" }));
    let page = BrowserPage::open(gateway.address());
    page.run("await wait(() => document.querySelectorAll('#approvals .card').length === 2)");
    let prompts = page.run(
        "return await page.evaluate(async () => {
            const { approvals } = await (await fetch('/v1/approvals')).json();
            return approvals.sort((a, b) => a.askedAt - b.askedAt).map((one) => one.prompt);
        })",
    );
    let cards = page.run("return await page.locator('#approvals .card').allInnerTexts()");
    for (number, expected) in
        ["this tool requires approval before every call", "1 failure in 1 h"].iter().enumerate()
    {
        let (card, prompt) = (cards[number].as_str().unwrap(), &prompts[number]);
        assert_eq!(prompt["reason"], *expected, "{prompt:#}");
        assert_eq!(card.matches(expected).count(), 1, "{card}");
        let hint = prompt["recoveryHint"].as_str().unwrap();
        assert_eq!(card.matches(hint).count(), 1, "{card}");
        assert_eq!(card.matches("needs approval").count(), 0, "the section says so: {card}");
        assert!(!card.contains("counted failures") && !card.contains("why:"), "{card}");
    }
    page.wait_for_text("#approvals .card", "has lost trust");
    page.close();
}
