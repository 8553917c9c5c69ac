//! Long lists are folded, and nothing is cut off on a phone.

use serde_json::{Value, json};

use crate::browser::BrowserPage;
use crate::client::McpTestClient;
use crate::tenants::{client_of, shared};
use crate::world::GatewayWorld;
use crate::{DashboardGateway, TOKEN};

/// Number of tools whose calls have an unknown outcome. They lose their trust, so that the next call waits for
/// approval.
const TOOLS: usize = 12;

const CONFIG: &str = "
gateway.run_turn = true
settling.linger = \"100ms\"
settling.settle = \"100ms\"
[guard]
per_turn = 500
[trust]
count = 1
severities = [\"transient\", \"timeout\", \"server_error\"]
[tools.\"bank/look\".trust]
mode = \"off\"
[tools.\"bank/draw\".trust]
mode = \"off\"
[tools.\"bank/read_rates\"]
class = \"read_only\"
trust.mode = \"off\"
breaker.consecutive = 2
retry.attempts = 1
";

fn names() -> Vec<String> {
    (0..TOOLS).map(|number| format!("transfer_with_a_rather_long_name_{number:02}")).collect()
}

/// Returns those, and one whose breaker opens.
fn tools() -> Vec<String> {
    [names(), vec!["read_rates".to_owned()]].concat()
}

/// Fills every list with more than ten rows.
fn fill(client: &mut McpTestClient) {
    for tool in names() {
        client.call(&tool, json!({ "id": "a", "fault": "504" }));
        client.call(&tool, json!({ "id": "https://example.com/a/long/path/without/any/spaces/in/it/at/all?invoice=2026-0117" }));
    }
    for number in 0..3 {
        client.call("read_rates", json!({ "id": format!("{number}"), "fault": "503" }));
    }
    for number in 0..TOOLS {
        client.call("look", json!({ "id": format!("{number}"), "fault": "400" }));
        for _ in 0..3 {
            client.call("draw", json!({ "colour": number }));
        }
        let calls = json!([{ "id": "rates", "tool": "look", "params": { "id": "rates" } }]);
        client.call("run_turn", json!({ "turnId": format!("turn-{number}"), "calls": calls }));
    }
}

/// Checks that this many rows are visible.
#[track_caller]
fn rows(page: &BrowserPage, place: &str, number: usize) {
    page.run(&format!(
        "await wait(([place, number]) => [...document.querySelectorAll(place)].filter((row) => row.checkVisibility()).length === number, {})",
        json!([place, number])
    ));
}

#[test]
fn lists_of_more_than_ten_rows_are_folded_and_unfold() {
    let mut gateway = DashboardGateway::with_tools("folded", CONFIG, &tools());
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#live", "live");
    fill(&mut gateway.client);
    // More servers than any test starts.
    page.run(
        "await page.route('**/v1/servers*', async (route) => {
            const { servers } = await (await route.fetch()).json();
            const more = Array.from({ length: 12 }, (_, at) => ({ ...servers[0], name: `server-${at}` }));
            await route.fulfill({ json: { servers: more, next: null } });
        })",
    );
    page.click("#breakers", "closed circuit breakers");
    for (section, row, button) in [
        ("#approvals", ".card", "Show all 12 requests"),
        ("#unknown", ".card", "Show all 12 unknown outcomes"),
        ("#trust", ".lost li", "Show all 12 tools without full trust"),
        ("#guard", ".trip", "Show all 12 interventions"),
        ("#turns", "tbody tr", "Show all 12 turns"),
        ("#servers", "li", "Show all 12 servers"),
    ] {
        let place = format!("{section} {row}");
        rows(&page, &place, 10);
        page.click(section, button);
        rows(&page, &place, 12);
        page.click(section, "Show fewer");
        rows(&page, &place, 10);
    }
    // Sections with a fixed number of rows.
    for (section, row, noun) in [
        ("#notifications", "li", "notifications"),
        ("#breakers", "li", "circuit breakers"),
        ("#calls", "tbody tr", "calls"),
        ("#trust", "tbody tr", "tools"),
    ] {
        let place = format!("{section} {row}");
        rows(&page, &place, 10);
        let label = page.run(&format!(
            "return await page.locator({}).getByRole('button', {{ name: /^Show all \\d+ {noun}$/ }}).innerText()",
            json!(section)
        ));
        let number: usize = label.as_str().unwrap().split(' ').nth(2).unwrap().parse().unwrap();
        page.click(section, label.as_str().unwrap());
        rows(&page, &place, number.min(50));
    }
    // It stays unfolded while new rows come, and the button keeps the focus.
    page.run("await page.locator('#unknown').getByRole('button', { name: 'Show all' }).focus()");
    page.press("Enter");
    let focused = page.run("return await page.evaluate(() => document.activeElement.innerText)");
    assert_eq!(focused, "Show fewer");
    // The page of a tool has the same lists.
    page.run("await page.fill('#trust input', 'bank/look')");
    page.click("#trust tbody", "Tool bank/look");
    rows(&page, "#dialog .failures tbody tr", 10);
    page.click("#dialog .failures", "Show all 12 failures");
    rows(&page, "#dialog .failures tbody tr", 12);
    page.click("#dialog .calls", "Show all 24 calls");
    rows(&page, "#dialog .calls tbody tr", 24);
    page.close();
}

/// Returns elements that extend beyond the screen, are cut off, or cannot be pressed.
fn spills(page: &BrowserPage) -> Value {
    page.run(
        "return await page.evaluate(() => {
            const words = (one) => `${one.tagName} .${one.className} ${one.innerText ?? ''}`.slice(0, 120);
            const seen = [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && !one.closest('.unseen, .skip, svg'));
            const spilt = seen.filter((one) => {
                const { left, right } = one.getBoundingClientRect();
                return left < -0.5 || right > innerWidth + 0.5;
            });
            const cut = seen.filter((one) => getComputedStyle(one).overflowX !== 'visible' && one.scrollWidth > one.clientWidth + 1);
            const wide = document.documentElement.scrollWidth;
            return [...spilt, ...cut].map(words).concat(wide > 390 ? [`the page is ${wide} wide`] : []);
        })",
    )
}

#[track_caller]
fn fits(page: &BrowserPage, situation: &str) {
    let spilt = spills(page);
    assert_eq!(spilt, json!([]), "{situation}");
}

#[test]
fn nothing_is_cut_off_on_a_phone_in_any_view() {
    let (_world, gateway): (GatewayWorld, McpTestClient) = shared("narrow", CONFIG, &tools());
    let mut ann = client_of(&gateway, "ann");
    client_of(&gateway, "bob").call("look", json!({ "id": "b" }));
    let phone = json!({ "viewport": { "width": 390, "height": 844 }, "isMobile": true, "hasTouch": true });
    let page = BrowserPage::open_as(gateway.address(), phone);
    page.wait_for_text("#dialog[open]", "token");
    fits(&page, "the token is asked for");
    page.enter_token(TOKEN);
    page.wait_for_text("#live", "●");
    fill(&mut ann);
    for (place, words) in [
        ("#approvals .card", "example.com"),
        ("#unknown .card", "It can"),
        ("#notifications li", "tenant acme"),
        ("#breakers li", "acme"),
        ("#calls tbody", "bank/"),
        ("#turns tbody", "turn-11"),
        ("#trust .lost", "restore trust"),
        ("#trust tbody", "needs approval"),
        ("#guard .trip", "colour"),
        ("#servers li", "bank"),
        ("#tenants", "Tenant"),
    ] {
        page.wait_for_text(place, words);
    }
    fits(&page, "the page");
    page.run("const folded = page.getByRole('button', { name: /^Show (all|the newest)/ }); while ((await folded.count()) > 0) await folded.first().tap()");
    fits(&page, "the page unfolded");
    let open = |place: &str, button: &str, words: &str, situation: &str| {
        page.run(&format!(
            "await page.locator({}).getByRole('button', {{ name: {} }}).first().tap()",
            json!(place),
            json!(button)
        ));
        page.wait_for_text("#dialog[open]", words);
        fits(&page, situation);
    };
    open("#trust .lost", "Tool bank/transfer", "Last calls", "a tool");
    open("#dialog .calls", "Open the call", "Step by step", "a call");
    page.press("Escape");
    open("#turns", "Open turn", "Step by step", "a turn");
    page.press("Escape");
    open("#breakers", "Force", "until it is reset", "a breaker forced open");
    page.press("Escape");
    page.press("?");
    page.wait_for_text("#dialog[open]", "search the calls");
    fits(&page, "the keys");
    page.press("Escape");
    // A short-lived message.
    page.run("await page.locator('#unknown').getByRole('button', { name: 'It ran' }).first().tap()");
    page.wait_for_status("resolved, it ran");
    fits(&page, "a word in passing");
    page.close();
}
