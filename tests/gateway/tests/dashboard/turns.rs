//! Turns: the calls that an agent submits together, and their results.

use std::fs;

use serde_json::{Value, json};

use crate::DashboardGateway;
use crate::browser::BrowserPage;

const CONFIG: &str = "gateway.run_turn = true\n[guard]\nmode = \"off\"\n[trust]\nmode = \"off\"\n";

/// Returns a turn in which one call is retried, one replaced, one left out, and one uses a default.
fn trip() -> Value {
    json!({
        "turnId": "trip",
        "calls": [
            { "id": "rates", "tool": "look", "params": { "id": "rates", "fault": "503", "times": 2 } },
            { "id": "seats", "tool": "look", "params": { "id": "seats", "fault": "400" }, "alternatives": [{ "tool": "draw", "params": { "id": "seats" } }] },
            { "id": "hotel", "tool": "look", "params": { "id": "hotel", "fault": "400" }, "dependsOn": ["seats"], "required": false },
            { "id": "plan", "tool": "draw", "params": { "id": "plan", "hotel": { "$from": "hotel" } }, "dependsOn": [{ "id": "hotel", "default": "none" }, "rates"] },
            { "id": "book", "tool": "pay", "params": { "id": "book" }, "dependsOn": ["hotel"] },
        ],
    })
}

/// Returns the texts of all rows of a waterfall.
fn rows(page: &BrowserPage) -> Vec<String> {
    let texts = page.run("return await page.locator('#dialog .rows li').allInnerTexts()");
    let texts = texts.as_array().unwrap().iter();
    texts.map(|text| text.as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[track_caller]
fn has(rows: &[String], words: &[&str]) {
    let fits = |row: &&String| words.iter().all(|word| row.contains(word));
    assert_eq!(rows.iter().filter(fits).count(), 1, "{words:?}: {rows:#?}");
}

#[test]
fn eh_6_6_a_turn_is_shown_with_the_time_and_the_errors_of_each_call() {
    let mut gateway = DashboardGateway::new("turn", CONFIG);
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#turns", "No turns yet");
    gateway.client.call("run_turn", trip());
    // The list shows its user message, and that it needs attention.
    page.wait_for_text("#turns tbody", "partly done");
    page.wait_for_text("#turns tbody", "Completed look (rates) and draw");
    page.wait_for_text("#turns tbody .state", "needs attention");
    page.click("#turns tbody", "Open turn trip");
    page.wait_for_text("#dialog .head", "pay needs your attention");
    let rows = rows(&page);
    assert_eq!(rows.len(), 6, "five calls, and the alternative of one: {rows:#?}");
    has(&rows, &["rates bank/look", "succeeded", "3 attempts"]);
    has(&rows, &["seats bank/look", "failed"]);
    has(&rows, &["seats bank/draw", "succeeded", "alternative"]);
    has(&rows, &["hotel bank/look", "failed", "after seats"]);
    has(&rows, &["plan bank/draw", "succeeded", "after hotel, rates", "default for hotel"]);
    has(&rows, &["book bank/pay", "skipped", "needs hotel"]);
    // Two attempts of the first call failed, and it was retried after each.
    let marks = page.run(
        "return await page.locator('#dialog .rows li').evaluateAll((rows) => rows.map((row) => \
         ['.bar', '.cross', '.again', '.skip-mark'].map((mark) => row.querySelectorAll(mark).length).join()).sort())",
    );
    assert_eq!(marks, json!(["0,0,0,1", "1,0,0,0", "1,0,0,0", "1,1,0,0", "1,1,0,0", "1,2,2,0"]));
    // A dependant is to the right of its dependency.
    let starts = page.run(
        "return await page.locator('#dialog .rows li:has(.bar)').evaluateAll((rows) => Object.fromEntries(rows.map((row) => \
         [row.querySelector('.what').innerText.split(/\\s+/).join(' '), [row.querySelector('.bar').getBoundingClientRect().left, row.querySelector('.bar').getBoundingClientRect().right]])))",
    );
    let edge = |call: &str, side: usize| starts[call][side].as_f64().unwrap();
    assert!(edge("plan bank/draw", 0) + 0.5 >= edge("rates bank/look", 1), "{starts:#}");
    assert!(edge("seats bank/draw", 0) + 0.5 >= edge("seats bank/look", 1), "{starts:#}");
    for sentence in [
        "Turn started with 5 calls",
        "Retry of look",
        "Used alternative tool draw instead of look",
        "Used default value",
        "skipped due to dependency failure",
    ] {
        page.wait_for_text("#dialog .steps", sentence);
    }
    page.assert_fits_screen();
    page.close();
}

#[test]
fn one_gets_from_a_turn_to_its_calls_and_back() {
    let mut gateway = DashboardGateway::new("turn_calls", CONFIG);
    gateway.client.call("run_turn", trip());
    // A host has turns of its own, of which only the names are known.
    let host = json!({ "dev.steadfast/turn": "turn of the host" });
    gateway.client.call_with("look", json!({ "id": "of the host" }), host);
    let page = BrowserPage::open(gateway.address());
    // By keyboard alone, from the row of the turn to the call.
    page.wait_for_text("#turns tbody", "trip");
    page.run("await page.evaluate(() => document.querySelector('#turns tbody tr').focus())");
    page.press("Enter");
    page.wait_for_text("#dialog[open]", "rates");
    page.run("await page.locator('#dialog').getByRole('button', { name: 'Open call rates' }).focus()");
    page.press("Enter");
    page.wait_for_text("#dialog .steps", "attempt 3 answered");
    page.wait_for_text("#dialog h2", "bank/look");
    page.click("#dialog", "Turn trip");
    page.wait_for_text("#dialog .rows", "3 attempts");
    page.press("Escape");
    // The same from the list of calls.
    page.run("await page.fill('#search', 'draw')");
    page.wait_for_text("#calls .line", "2 of");
    page.click("#calls tbody", "Open bank/draw");
    page.wait_for_text("#dialog .story", "part of Turn trip");
    page.press("Escape");
    page.run("await page.fill('#search', '')");
    page.wait_for_text("#calls tbody", "bank/look");
    let observed = page.run(
        "const answered = page.waitForResponse((response) => response.url().includes('/v1/traces/turn'));
        await page.locator('#calls').getByRole('button', { name: 'Open bank/look' }).first().click();
        const answer = await answered;
        const status = answer.status();
        await answer.finished();
        // Later messages arrive later: by then the page has handled that answer.
        await page.evaluate(async () => (await fetch('/healthz')).text());
        await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
        return [status, await page.locator('#dialog .story').innerText()];",
    );
    assert_eq!(observed[0], 404);
    assert!(!observed[1].as_str().unwrap().contains("part of"), "{observed}");
    page.press("Escape");
    page.close();
}

#[test]
fn a_turn_that_runs_is_followed_to_its_end() {
    let mut gateway = DashboardGateway::new("turn_live", CONFIG);
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#turns", "No turns yet");
    let gate = gateway.world.set_behavior("gate");
    let running = gateway.client.send_call(
        "run_turn",
        json!({ "turnId": "night", "calls": [
            { "id": "slow", "tool": "look", "params": { "id": "slow", "fault": "gate" } },
            { "id": "then", "tool": "draw", "params": { "id": "then" }, "dependsOn": ["slow"] },
        ] }),
    );
    page.wait_for_text("#turns tr.running", "night");
    page.click("#turns tbody", "Open turn night");
    page.wait_for_text("#dialog .rows", "running");
    // The focus stays where it is while the turn continues.
    page.run("await page.locator('#dialog').getByRole('button', { name: 'Open call slow' }).focus()");
    fs::remove_file(gate).unwrap();
    gateway.client.answer(running);
    page.wait_for_text("#dialog .outcome", "completed");
    page.wait_for_text("#dialog .rows", "after slow");
    page.wait_until_absent("#dialog .rows", "running");
    let focused =
        page.run("return await page.evaluate(() => document.activeElement.getAttribute('aria-label'))");
    assert_eq!(focused, "Open call slow, bank/look");
    page.press("Escape");
    page.wait_until_absent("#turns tbody", "running");
    page.close();
}

#[test]
fn sf_6_names_in_a_turn_that_mean_harm_are_shown_and_do_nothing() {
    let long = "x".repeat(200);
    let names = [
        "<img src=x onerror=alert(1)>",
        "\"><svg onload=alert(2)>",
        "\u{202e}desrever",
        "__proto__",
        "constructor",
        &long,
    ];
    let tools: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut gateway = DashboardGateway::with_tools("turn_hostile", CONFIG, &tools);
    let calls: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(at, &name)| {
            let before: Vec<&str> = names[..at].last().copied().into_iter().collect();
            json!({ "id": name, "tool": name, "params": { "id": "a", "fault": if at % 2 == 0 { "" } else { "error" }, "text": "<script>alert(3)</script>" }, "dependsOn": before, "required": false })
        })
        .collect();
    let response =
        gateway.client.call("run_turn", json!({ "turnId": "<img src=x onerror=alert(4)>", "calls": calls }));
    assert!(!response.structured["calls"].as_array().unwrap().is_empty(), "{response:?}");
    for visitor in [json!({}), json!({ "viewport": { "width": 360, "height": 740 } })] {
        let page = BrowserPage::open_as(gateway.address(), visitor);
        page.wait_for_text("#turns tbody", "<img src=x onerror=alert(4)>");
        page.click("#turns tbody", "Open turn <img");
        page.wait_for_text("#dialog h2", "Turn <img src=x onerror=alert(4)>");
        page.wait_for_text("#dialog .rows", "<img src=x onerror=alert(1)>");
        let made = page.run("return await page.locator('main img, main script, svg[onload], [onerror], dialog img, dialog script').count()");
        assert_eq!(made, 0);
        let wide = page.run("return await page.locator('#dialog').evaluate((dialog) => [dialog.scrollWidth, dialog.clientWidth])");
        assert!(wide[0].as_u64() <= wide[1].as_u64(), "{wide}");
        page.assert_fits_screen();
        page.close();
    }
}

#[test]
fn the_page_stays_small_with_a_turn_of_a_thousand_calls() {
    let mut gateway = DashboardGateway::new("turn_thousand", CONFIG);
    let calls: Vec<Value> =
        (0..1000).map(|number| json!({ "id": format!("c{number:04}"), "tool": "look", "params": { "id": format!("{number}") } })).collect();
    gateway.client.call("run_turn", json!({ "turnId": "many", "calls": calls }));
    let page = BrowserPage::open(gateway.address());
    page.wait_for_text("#turns tbody", "1000");
    page.click("#turns tbody", "Open turn many");
    page.wait_for_text("#dialog", "Show 200 more of 1000");
    assert_eq!(page.run("return await page.locator('#dialog .rows li').count()"), 100);
    let elements = page.run("return await page.evaluate(() => document.querySelectorAll('*').length)");
    assert!(elements.as_u64().unwrap() < 6000, "{elements}");
    page.click("#dialog .part", "more of 1000");
    page.run("await wait(() => document.querySelectorAll('#dialog .rows li').length === 300)");
    page.assert_fits_screen();
    page.close();
}

#[test]
fn a_turn_is_readable_on_a_phone() {
    let mut gateway = DashboardGateway::new("turn_phone", CONFIG);
    gateway.client.call("run_turn", trip());
    let phone = json!({ "viewport": { "width": 390, "height": 844 }, "isMobile": true, "hasTouch": true });
    let page = BrowserPage::open_as(gateway.address(), phone);
    page.wait_for_text("#turns tbody", "trip");
    page.run("await page.locator('#turns').getByRole('button', { name: 'Open turn trip' }).first().tap()");
    page.wait_for_text("#dialog .rows", "default for hotel");
    page.assert_fits_screen();
    let lane = page.run("return await page.locator('#dialog .lane').first().evaluate((lane) => lane.getBoundingClientRect().width)");
    assert!(lane.as_f64().unwrap() > 250.0, "bars have the whole width: {lane}");
    page.close();
}
