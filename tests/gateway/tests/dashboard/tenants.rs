//! Several tenants on one gateway: the rows that are shown, and those that are changed.

use serde_json::json;

use crate::browser::BrowserPage;
use crate::client::McpTestClient;
use crate::world::{GatewayWorld, LISTEN, TestTransport};
use crate::{DashboardGateway, TOKEN};

/// Tokens of two tenants.
pub(crate) const TOKENS: &str = "
[tokens.ann]
token = \"of-ann-0123456789abcdef\"
tenant = \"acme\"
[tokens.bob]
token = \"of-bob-0123456789abcdef\"
tenant = \"umbra\"
";

/// Returns a gateway for both of them, with these additional tools. The first client keeps it running.
pub(crate) fn shared(test: &str, config: &str, tools: &[String]) -> (GatewayWorld, McpTestClient) {
    let world = GatewayWorld::of(
        &format!("dashboard_{test}"),
        &format!("{config}{TOKENS}"),
        TestTransport::Http,
        TestTransport::Stdio,
    );
    std::fs::write(world.folder().join("ledger.names"), tools.join("\n")).unwrap();
    let mut command = world.wrap(&LISTEN);
    command.env("STEADFAST_ADMIN_TOKEN", TOKEN);
    let gateway = McpTestClient::over_http(command);
    (world, gateway)
}

/// Returns a client of one of them.
pub(crate) fn client_of(gateway: &McpTestClient, actor: &str) -> McpTestClient {
    let headers = format!("authorization: Bearer of-{actor}-0123456789abcdef\r\n");
    let mut client = McpTestClient::at(gateway.address()).with_headers(&headers);
    client.initialize();
    client.request("tools/list", json!({}));
    client
}

const CONFIG: &str = "
[trust]
count = 1
severities = [\"crash\"]
[tools.\"bank/draw\"]
approval = \"always\"
[tools.\"bank/pay\"]
breaker.mode = \"off\"
";

#[test]
fn sf_7_with_several_tenants_one_is_chosen_and_each_row_names_its_tenant() {
    let (world, gateway) = shared("tenants", CONFIG, &[]);
    let mut ann = client_of(&gateway, "ann");
    let mut bob = client_of(&gateway, "bob");
    ann.call("draw", json!({ "id": "of ann" }));
    bob.call("draw", json!({ "id": "of bob" }));
    bob.call("pay", json!({ "id": "b", "fault": "die_after" }));
    ann.call("look", json!({ "id": "a" }));
    let page = BrowserPage::open(gateway.address());
    page.enter_token(TOKEN);
    // All rows at first, each with its tenant.
    for (place, words) in [
        ("#approvals", ["of ann", "of bob"]),
        ("#calls tbody", ["tenant acme", "tenant umbra"]),
        ("#trust tbody", ["tenant acme", "tenant umbra"]),
    ] {
        words.iter().for_each(|words| page.wait_for_text(place, words));
    }
    page.wait_for_text("#unknown .card", "tenant umbra");
    page.wait_for_text("#trust .lost", "tenant umbra");
    page.run("await page.getByLabel('Tenant').selectOption('acme')");
    page.wait_until_absent("#approvals", "of bob");
    page.wait_for_text("#approvals", "of ann");
    page.wait_for_text("#unknown", "No call has an unknown outcome");
    for place in ["#calls tbody", "#trust .body", "#breakers", "#notifications"] {
        page.wait_until_absent(place, "umbra");
    }
    page.run("await page.getByLabel('Tenant').selectOption('umbra')");
    page.wait_for_text("#unknown .card", "bank/pay");
    page.wait_for_text("#approvals", "of bob");
    page.wait_until_absent("#approvals", "of ann");
    // Its own page, and the actions there, are of the same tenant.
    page.click("#trust .lost", "Tool bank/pay");
    page.wait_for_text("#dialog .failures tbody", "crash");
    page.wait_for_text("#dialog", "tenant umbra");
    page.press("Escape");
    page.click("#approvals", "Approve once");
    page.wait_for_status("bank/draw: approved once");
    page.wait_for_text("#approvals", "No call waits for approval");
    assert_eq!(bob.call("draw", json!({ "id": "of bob" })).text, "draw of bob, run 1");
    page.click("#trust .lost", "Restore trust in bank/pay");
    page.wait_for_status("bank/pay: trusted again");
    page.wait_until_absent("#trust .lost", "bank/pay");
    page.run("await page.getByLabel('Tenant').selectOption('no tenant')");
    page.wait_for_text("#calls", "No calls yet");
    page.run("await page.getByLabel('Tenant').selectOption('all tenants')");
    page.wait_for_text("#approvals", "of ann");
    assert_eq!(world.count("draw of ann"), 0, "nothing was approved for the other one");
    page.close();
}

#[test]
fn without_tenants_there_is_nothing_to_choose() {
    let mut gateway = DashboardGateway::new("no_tenants", "");
    gateway.client.call("look", json!({ "id": "a" }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#calls tbody", "bank/look");
    assert_eq!(page.run("return await page.getByLabel('Tenant').isVisible()"), false);
    page.close();
}
