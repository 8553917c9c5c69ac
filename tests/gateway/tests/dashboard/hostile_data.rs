//! Large amounts of data, and hostile strings.

use serde_json::json;
use steadfast_testkit::effort::TestEffort;

use crate::DashboardGateway;
use crate::browser::BrowserPage;

#[test]
fn the_page_stays_small_with_a_thousand_tools() {
    let count = TestEffort::of_this_run().pick(200, 1000, 1000);
    let tools: Vec<String> = (0..count).map(|number| format!("tool_{number:04}")).collect();
    let mut gateway = DashboardGateway::with_tools("thousand", "[guard]\nmode = \"off\"\n", &tools);
    for tool in &tools {
        gateway.client.call(tool, json!({ "id": "a" }));
    }
    let page = BrowserPage::open(gateway.address());
    // The server's other tools are in the list too, although they were never called.
    let listed = count + 6;
    page.click("#trust", &format!("Show all {listed} tools"));
    page.wait_for_text("#trust .pager", &format!("1–50 of {listed} tools"));
    page.click("#breakers", &format!("Show {count} closed circuit breakers"));
    page.click("#breakers", &format!("Show all {count} circuit breakers"));
    page.wait_for_text("#breakers .pager", &format!("1–50 of {count} circuit breakers"));
    let elements = page.run("return await page.evaluate(() => document.querySelectorAll('*').length)");
    assert!(elements.as_u64().unwrap() < 4000, "{elements}");
    // Input is answered with the next frame, without a request.
    let found = page.run(
        "return await page.evaluate(async () => {
            const filter = document.querySelector('#trust input');
            filter.value = 'tool_0177';
            filter.dispatchEvent(new Event('input'));
            await new Promise((drawn) => requestAnimationFrame(drawn));
            return [...document.querySelectorAll('#trust tbody tr')].map((row) => row.innerText);
        })",
    );
    let found = found.as_array().unwrap();
    assert!(found.len() == 1 && found[0].as_str().unwrap().contains("bank/tool_0177"), "{found:?}");
    page.run("await page.fill('#search', 'tool_0003')");
    page.wait_for_text("#calls tbody", "bank/tool_0003");
    page.assert_fits_screen();
    page.close();
}

#[test]
fn sf_6_strings_that_mean_harm_are_shown_and_do_nothing() {
    let long = "x".repeat(200);
    let names = [
        "<img src=x onerror=alert(1)>",
        "<script>alert(2)</script>",
        "\"><svg onload=alert(3)>",
        "javascript:alert(4)",
        "{{constructor.constructor('alert(5)')()}}",
        "\u{202e}desrever",
        "zalgo\u{0317}\u{0316}\u{0348}\u{035a}\u{0354}",
        "__proto__",
        "constructor",
        &long,
    ];
    let tools: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let config = "[tools.\"bank/pay\"]\napproval = \"always\"\n";
    let mut gateway = DashboardGateway::with_tools("hostile", config, &tools);
    let harm = "</pre><script>alert(6)</script><img src=x onerror=alert(7)>";
    gateway.client.call("pay", json!({ "id": harm, "note": long.repeat(20) }));
    for name in names {
        gateway.client.call(name, json!({ "id": harm }));
        gateway.client.call(name, json!({ "harm": harm }));
        gateway.client.call(name, json!({ "harm": harm }));
    }
    for visitor in [json!({}), json!({ "viewport": { "width": 360, "height": 740 } })] {
        let page = BrowserPage::open_as(gateway.address(), visitor);
        page.wait_for_text("#approvals .card .sent", "</pre><script>alert(6)</script>");
        page.wait_for_text("#guard .trip .sent", "onerror=alert(7)");
        page.click("#trust", "Show all");
        for name in [
            "<img src=x onerror=alert(1)>",
            "<script>alert(2)</script>",
            "__proto__",
            "\\u202edesrever",
            &long,
        ] {
            page.wait_for_text("#trust tbody", name);
        }
        page.click("#trust tbody", "Tool bank/<img");
        page.wait_for_text("#dialog .tool-page .calls", "invalid_arguments");
        page.assert_fits_screen();
        page.press("Escape");
        page.click("#calls", "Show all");
        page.run(
            "await page.locator('#calls').getByRole('button', { name: 'Open bank/<img' }).first().click()",
        );
        page.wait_for_text("#dialog h2", "<img src=x onerror=alert(1)>");
        page.assert_fits_screen();
        page.press("Escape");
        // None of it became an element.
        let made = page.run("return await page.locator('main img, main script, main svg[onload], [onerror], dialog img').count()");
        assert_eq!(made, 0);
        page.assert_fits_screen();
        page.close();
    }
}

#[test]
fn sf_7_the_page_can_run_and_reach_nothing_but_its_own() {
    let gateway = DashboardGateway::new("policy", "");
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#now h1", "All is well.");
    let refused = page.run(
        "return await page.evaluate(async () => {
            const refused = [];
            document.addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective));
            const script = document.createElement('script');
            script.textContent = 'window.harm = 1';
            document.head.append(script);
            const image = document.createElement('img');
            image.src = 'http://127.0.0.2:9/x.png';
            document.body.append(image);
            await fetch('http://127.0.0.2:9/').catch(() => {});
            document.body.setAttribute('onclick', 'window.harm = 2');
            document.body.click();
            while (new Set(refused).size < 4) await new Promise((later) => setTimeout(later, 5));
            return [window.harm ?? null, [...new Set(refused)].sort()];
        })",
    );
    assert_eq!(refused[0], json!(null));
    for directive in ["connect-src", "img-src", "script-src-attr", "script-src-elem"] {
        assert!(refused[1].as_array().unwrap().contains(&json!(directive)), "{refused}");
    }
}
