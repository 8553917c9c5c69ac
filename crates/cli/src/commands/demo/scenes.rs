//! The seven scenes. Each runs twice: with a client that starts the bank itself, and with one that reaches it through
//! the gateway. All output comes from the responses and the ledgers.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::Engine;
use steadfast_process::{Launch, Leash};

use super::bank::RELEASED;
use super::clients::{DemoCallResult, HttpDemoClient, RESPONSE_TIMEOUT, StdioDemoClient};
use super::display::{DemoOutput, shortened, span};
use super::gateway::DemoMechanisms;
use super::ledger::LedgerFile;
use super::stage::DemoSide::{With, Without};
use super::stage::{DemoSide, Scene, SceneRecorder};
use crate::support::failure::CommandFailure;

/// Amounts of the invoices that the agent intends to pay once each, in euros.
const INVOICE_17: u64 = 120;
const INVOICE_18: u64 = 80;
const INVOICE_19: u64 = 60;
/// Total that should be paid in the end, in cents.
pub(super) const AMOUNT_DUE: u64 = (INVOICE_17 + INVOICE_18 + INVOICE_19) * 100;

/// Environment of the scenes: two equal banks, one of them behind a gateway.
pub(super) struct DemoEnvironment {
    pub(super) show: DemoOutput,
    /// Starts the bank without a gateway.
    pub(super) launch: Launch,
    pub(super) leash: Leash,
    /// Ledger of that bank.
    pub(super) without: LedgerFile,
    /// URL of the gateway.
    pub(super) url: String,
    /// Ledger of the bank behind the gateway.
    pub(super) with: LedgerFile,
    /// Engine of the gateway, which runs the calls.
    pub(super) engine: Engine,
    pub(super) mechanisms: DemoMechanisms,
}

/// Runs all scenes, one after the other.
pub(super) async fn play(world: &DemoEnvironment) -> Result<Vec<Scene>, CommandFailure> {
    let scenes = vec![
        crash_during_a_read(world).await?,
        crash_during_a_payment(world).await?,
        duplicate_dispatch(world).await?,
        a_call_that_hangs(world).await?,
        a_service_that_is_down(world).await?,
        a_model_that_loops(world).await?,
        a_client_that_goes_away(world).await?,
    ];
    world.pause_for_reader().await;
    Ok(scenes)
}

impl DemoEnvironment {
    /// Starts a scene after a pause for reading.
    async fn begin(&self, number: usize, title: &'static str, agent: &str) -> SceneRecorder {
        self.pause_for_reader().await;
        SceneRecorder::new(self.show, number, title, agent)
    }

    async fn bare(&self) -> Result<StdioDemoClient, CommandFailure> {
        StdioDemoClient::start(&self.launch, &self.leash).await
    }

    async fn client(&self) -> Result<HttpDemoClient, CommandFailure> {
        HttpDemoClient::connect(&self.url).await
    }

    fn ledger(&self, side: DemoSide) -> &LedgerFile {
        match side {
            Without => &self.without,
            With => &self.with,
        }
    }

    /// Lets the bank answer the first payment of this invoice.
    fn release(&self, side: DemoSide, invoice: &str) {
        // If it cannot be written, the answer is late, which is visible.
        let _ = self.ledger(side).write(&[RELEASED, invoice]);
    }

    /// Does the same behind the gateway after a second call has arrived: at the gateway, or at the bank if it was not
    /// held back.
    async fn release_when_called_twice(&self, invoice: &str) {
        let are_two =
            || self.engine.in_flight_calls() >= 2 || self.with.count(&["asked", "pay", invoice]) >= 2;
        let polling = async {
            while !are_two() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(RESPONSE_TIMEOUT, polling).await;
        self.release(With, invoice);
    }

    async fn during<T>(&self, side: DemoSide, work: impl Future<Output = T>) -> T {
        self.show.during(side.label(), work).await
    }

    /// Pauses for reading a response.
    async fn pause_for_reader(&self) {
        self.show.pause(Duration::from_millis(1800)).await;
    }

    /// Pauses between the sides of a scene.
    async fn beat(&self) {
        self.show.pause(Duration::from_millis(700)).await;
    }
}

async fn crash_during_a_read(world: &DemoEnvironment) -> Result<Scene, CommandFailure> {
    let arguments = json!({ "account": "savings" });
    let mut stage = world.begin(1, "A crash during a read", &format!("calls balance {arguments}")).await;

    let mut bare = world.bare().await?;
    let result = bare.call("balance", &arguments).await;
    let ping = bare.ping().await;
    bare.leave().await;
    stage.print_line(Without, &result.describe());
    if ping.good().is_none() {
        stage.print_line(Without, "and the session is gone with it: a ping gets no response either");
    }
    stage.expect(Without, "answered", result.answer().is_some(), false);
    stage.expect(Without, "pingAnswered", ping.good().is_some(), false);
    world.beat().await;
    let without = in_short(&result);

    let client = world.client().await?;
    let started = world.with.count(&["start"]);
    let result = world.during(With, client.call("balance", &arguments)).await;
    let ping = client.ping().await;
    let requests = world.with.count(&["asked", "balance", "savings"]);
    let restarts = world.with.count(&["start"]).saturating_sub(started);
    client.leave().await;
    stage.print_line(With, &after(&result));
    stage.print_line(
        With,
        &format!("the server was asked {}, and restarted {}", times(requests), times(restarts)),
    );
    stage.expect(With, "answered", result.good().is_some(), true);
    stage.expect(With, "pingAnswered", ping.good().is_some(), true);
    stage.expect(With, "asked", requests, 2);
    stage.expect(With, "restarts", restarts, 1);
    Ok(stage.over(&without, &in_short(&result)))
}

async fn crash_during_a_payment(world: &DemoEnvironment) -> Result<Scene, CommandFailure> {
    let arguments = json!({ "invoice": "INV-17", "amount": INVOICE_17 });
    let agent = format!("calls pay {arguments}, and again if that fails");
    let mut stage = world.begin(2, "A crash during a payment", &agent).await;

    let mut bare = world.bare().await?;
    let result = bare.call("pay", &arguments).await;
    bare.leave().await;
    // As hosts do when a server is gone: start it again, and let the model retry.
    let mut bare = world.bare().await?;
    let again = bare.call("pay", &arguments).await;
    bare.leave().await;
    let paid = world.without.count(&["paid", "INV-17"]);
    stage.print_line(Without, &result.describe());
    stage.print_line(Without, &format!("restarted and called again: {}", again.describe()));
    stage.print_line(Without, &format!("ledger: INV-17 paid {}", times(paid)));
    stage.expect(Without, "payments", paid, 2);
    world.beat().await;
    let short = format!("paid {}", times(paid));

    let client = world.client().await?;
    let result = world.during(With, client.call("pay", &arguments)).await;
    let before = world.with.count(&["asked", "pay"]);
    let again = world.during(With, client.call("pay", &arguments)).await;
    let ran = world.with.count(&["asked", "pay"]) - before;
    let check = world.during(With, client.call("payments", &json!({ "invoice": "INV-17" }))).await;
    client.leave().await;
    let paid = world.with.count(&["paid", "INV-17"]);
    stage.print_line(With, &format!("the agent is told ({}):", result.code().unwrap_or("no code")));
    stage.quote(&shortened(&words(&result), 200));
    let run = if ran == 0 { "not run".to_owned() } else { format!("run {}", times(ran)) };
    let code = again.code().unwrap_or("no code");
    stage.print_line(With, &format!("calls again anyway: {run} ({code})"));
    stage.print_line(With, &format!("follows the response and checks: {}", check.describe()));
    stage.print_line(With, &format!("ledger: INV-17 paid {}", times(paid)));
    stage.expect(With, "payments", paid, 1);
    stage.expect(With, "toldToCheck", result.code() == Some("outcome_unknown"), true);
    stage.expect(With, "repeatRan", ran, 0);
    stage.expect(With, "repeatRefused", again.code() == Some("outcome_unknown"), true);
    stage.expect(With, "checked", check.good().is_some(), true);
    let advice = if result.code() == Some("outcome_unknown") { "told to check" } else { "not told" };
    Ok(stage.over(&short, &format!("paid {}, {advice}", times(paid))))
}

async fn duplicate_dispatch(world: &DemoEnvironment) -> Result<Scene, CommandFailure> {
    let arguments = json!({ "invoice": "INV-18", "amount": INVOICE_18 });
    let agent = format!("its host sends pay {arguments} twice, 3 ms apart");
    let mut stage = world.begin(3, "One payment, dispatched twice", &agent).await;
    let paid = |side| world.ledger(side).count(&["paid", "INV-18"]);
    let report = |stage: &mut SceneRecorder, side, results: &[DemoCallResult; 2]| {
        for (which, result) in ["first ", "second"].iter().zip(results) {
            stage.print_line(side, &format!("{which} answer: {}", result.describe()));
        }
    };

    let mut bare = world.bare().await?;
    let first = bare.send_call("pay", &arguments).await;
    tokio::time::sleep(CALL_INTERVAL).await;
    let second = bare.send_call("pay", &arguments).await;
    world.release(Without, "INV-18");
    let results = [bare.answer(first, RESPONSE_TIMEOUT).await, bare.answer(second, RESPONSE_TIMEOUT).await];
    bare.leave().await;
    report(&mut stage, Without, &results);
    stage.print_line(Without, &format!("ledger: INV-18 paid {}", times(paid(Without))));
    stage.expect(Without, "payments", paid(Without), 2);
    world.beat().await;

    let client = world.client().await?;
    let later = async {
        tokio::time::sleep(CALL_INTERVAL).await;
        client.call("pay", &arguments).await
    };
    let both = async {
        let first = client.call("pay", &arguments);
        let (first, second, ()) = tokio::join!(first, later, world.release_when_called_twice("INV-18"));
        [first, second]
    };
    let results = world.during(With, both).await;
    client.leave().await;
    let answered = results.iter().filter(|result| result.good().is_some()).count();
    report(&mut stage, With, &results);
    stage.print_line(With, &format!("ledger: INV-18 paid {}", times(paid(With))));
    stage.expect(With, "payments", paid(With), 1);
    stage.expect(With, "answered", answered, 2);
    let [first, second] = results.each_ref().map(words);
    // The call that did not run says so.
    let same = first.starts_with(&second) || second.starts_with(&first);
    stage.expect(With, "sameAnswer", same, true);
    let both = if answered == 2 { "both answered".to_owned() } else { format!("{answered} answered") };
    let with = format!("paid {}, {both}", times(paid(With)));
    Ok(stage.over(&format!("paid {}", times(paid(Without))), &with))
}

const CALL_INTERVAL: Duration = Duration::from_millis(3);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

async fn a_call_that_hangs(world: &DemoEnvironment) -> Result<Scene, CommandFailure> {
    let arguments = json!({ "month": "october" });
    let mut stage = world.begin(4, "A call hangs", &format!("calls statement {arguments}")).await;

    let mut bare = world.bare().await?;
    let id = bare.send_call("statement", &arguments).await;
    let result = world.during(Without, bare.answer(id, ENOUGH)).await;
    bare.leave().await;
    stage.print_line(Without, &format!("{}; the demo stops waiting, an agent would not", result.describe()));
    stage.expect(Without, "answered", result.answer().is_some(), false);
    world.beat().await;
    let short = in_short(&result);

    let client = world.client().await?;
    let patience = match world.mechanisms {
        DemoMechanisms::On => RESPONSE_TIMEOUT,
        DemoMechanisms::Off => ENOUGH,
    };
    let mut pings: Vec<Option<Duration>> = Vec::new();
    let heartbeat = async {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            let ping = client.ping().await;
            pings.push(ping.good().map(|answer| answer.took));
        }
    };
    let result = world
        .during(With, async {
            tokio::select! {
                result = client.call_within(patience, "statement", &arguments) => result,
                never = heartbeat => never,
            }
        })
        .await;
    client.leave().await;
    let answered: Vec<Duration> = pings.iter().flatten().copied().collect();
    let slowest = answered.iter().max().copied().unwrap_or_default();
    let requests = world.with.count(&["asked", "statement", "october"]);
    let cancelled = world.with.count(&["cancelled"]);
    stage.print_line(With, &after(&result));
    stage.print_line(
        With,
        &format!("hung calls cancelled: {cancelled}; the bank was asked {}", times(requests)),
    );
    stage.print_line(
        With,
        &format!(
            "meanwhile {} of {} pings answered, the slowest in {}",
            answered.len(),
            pings.len(),
            span(slowest)
        ),
    );
    stage.expect(With, "answered", result.good().is_some(), true);
    // Usually twice. On a busy machine the second run can be too late as well, and is cancelled like the first.
    stage.fact(With, "asked", requests);
    stage.expect(With, "cancelled", cancelled, requests.saturating_sub(1));
    stage.expect(With, "heartbeatsUnanswered", pings.len() - answered.len(), 0);
    stage.fact(With, "heartbeats", pings.len());
    stage.fact(With, "slowestHeartbeatMs", millis(slowest));
    Ok(stage.over(&short, &in_short(&result)))
}

/// Time to wait for a response that never comes.
const ENOUGH: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_millis(200);

async fn a_service_that_is_down(world: &DemoEnvironment) -> Result<Scene, CommandFailure> {
    let agent = format!("asks for the rate of USD (down for a moment), then of {} more", CURRENCIES.len());
    let mut stage = world.begin(5, "The backend answers 503", &agent).await;
    let rate = |currency: &str| json!({ "currency": currency });
    let hits =
        |side, currency: &[&str]| world.ledger(side).count(&[&["asked", "exchange_rate"], currency].concat());

    let mut bare = world.bare().await?;
    let usd = bare.call("exchange_rate", &rate("USD")).await;
    let mut failed = 0_usize;
    for currency in CURRENCIES {
        failed += usize::from(bare.call("exchange_rate", &rate(currency)).await.good().is_none());
    }
    bare.leave().await;
    let bare_hits = hits(Without, &[]) - hits(Without, &["USD"]);
    stage.print_line(Without, &format!("USD: {}", usd.describe()));
    stage.print_line(
        Without,
        &format!("the others: {failed} failures, and {bare_hits} requests to a service that is down"),
    );
    stage.expect(Without, "hiccupAnswered", usd.good().is_some(), false);
    stage.expect(Without, "requestsWhileDown", bare_hits, CURRENCIES.len());
    world.beat().await;

    let client = world.client().await?;
    let usd = world.during(With, client.call("exchange_rate", &rate("USD"))).await;
    let tries = hits(With, &["USD"]);
    let (mut refused, mut before_refusal) = (Vec::new(), None);
    let down = async {
        for currency in CURRENCIES {
            let hits = hits(With, &[]) - tries;
            let result = client.call("exchange_rate", &rate(currency)).await;
            if result.code().is_some_and(|code| REFUSALS.contains(&code)) {
                before_refusal.get_or_insert(hits);
                refused.push(result);
            }
        }
    };
    world.during(With, down).await;
    client.leave().await;
    let all = hits(With, &[]) - tries;
    let slowest =
        refused.iter().filter_map(DemoCallResult::answer).map(|answer| answer.took).max().unwrap_or_default();
    let opened = refused.first().is_some_and(|result| result.code() == Some("circuit_open"));
    stage.print_line(With, &format!("USD: {} (asked {})", after(&usd), times(tries)));
    stage.print_line(With, &format!("the others: {all} requests to a service that is down"));
    if let Some(first) = refused.first() {
        let (count, slowest) = (refused.len(), span(slowest));
        stage.print_line(With, &format!("{count} calls refused without a request, each within {slowest}:"));
        stage.quote(&shortened(&words(first), 200));
    }
    stage.expect(With, "hiccupAnswered", usd.good().is_some(), true);
    stage.expect(With, "hiccupTries", tries, 3);
    stage.expect(With, "breakerOpened", opened, true);
    stage.expect(With, "requestsAfterItOpened", all - before_refusal.unwrap_or(0), 0);
    stage.expect(With, "fewerRequests", all < bare_hits, true);
    stage.fact(With, "requestsWhileDown", all);
    stage.fact(With, "refused", refused.len());
    stage.fact(With, "slowestRefusalMs", millis(slowest));
    let after = all - before_refusal.unwrap_or(0);
    let then = if after == 0 { "then none" } else { "no end" };
    Ok(stage.over(&format!("{bare_hits} requests, no end"), &format!("{all} requests, {then}")))
}

const CURRENCIES: [&str; 20] = [
    "GBP", "JPY", "CHF", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "RON", "BGN", "TRY", "AUD", "CAD", "NZD",
    "CNY", "INR", "KRW", "BRL", "ZAR",
];
/// Error codes of calls that the gateway refuses without asking the server.
const REFUSALS: [&str; 3] = ["circuit_open", "tool_error_limit", "loop_detected"];

async fn a_model_that_loops(world: &DemoEnvironment) -> Result<Scene, CommandFailure> {
    let arguments = json!({ "amount": 60 });
    let agent = format!("calls pay {arguments} (no invoice), {LOOPS} times in a row");
    let mut stage = world.begin(6, "The model loops", &agent).await;
    let refused = |side| world.ledger(side).count(&["refused", "pay"]);

    let mut bare = world.bare().await?;
    let mut last = bare.call("pay", &arguments).await;
    for _ in 1..LOOPS {
        last = bare.call("pay", &arguments).await;
    }
    bare.leave().await;
    stage.print_line(
        Without,
        &format!("{} calls reach the server, each time {}", refused(Without), last.describe()),
    );
    stage.expect(Without, "reachedTheServer", refused(Without), LOOPS);
    world.beat().await;

    let client = world.client().await?;
    let (mut results, mut other) = (Vec::with_capacity(LOOPS), None);
    for round in 1..=LOOPS {
        results.push(client.call("pay", &arguments).await);
        if round == DETOUR_ROUND {
            other = Some(client.call("balance", &json!({ "account": "giro" })).await);
        }
    }
    client.leave().await;
    let stopped =
        results.iter().filter(|result| result.code().is_some_and(|code| REFUSALS.contains(&code))).count();
    stage.print_line(With, &format!("{} calls reach the server, {stopped} are stopped", refused(With)));
    if let Some(first) = results.iter().find(|result| result.code().is_some()) {
        stage.quote(&shortened(&words(first), 200));
    }
    let other = other.as_ref().and_then(DemoCallResult::good);
    let free = other.map_or("other tools are refused too", |_| "another tool, asked in between, answered");
    stage.print_line(With, free);
    stage.expect(With, "reachedTheServer", refused(With), 2);
    stage.expect(With, "stopped", stopped, LOOPS - 2);
    stage.expect(With, "otherToolAnswered", other.is_some(), true);
    let without = format!("{} of {LOOPS} calls sent", refused(Without));
    Ok(stage.over(&without, &format!("{} of {LOOPS} calls sent", refused(With))))
}

const LOOPS: usize = 12;
/// Number of rounds after which the model does something else once.
const DETOUR_ROUND: usize = 4;

async fn a_client_that_goes_away(world: &DemoEnvironment) -> Result<Scene, CommandFailure> {
    let arguments = json!({ "invoice": "INV-19", "amount": INVOICE_19 });
    let agent = format!("calls pay {arguments}, loses its connection, calls again");
    let mut stage = world.begin(7, "The client leaves mid-payment", &agent).await;
    let paid = |side| world.ledger(side).count(&["paid", "INV-19"]);
    let payment_entry = ["paid", "INV-19"];

    let mut bare = world.bare().await?;
    bare.send_call("pay", &arguments).await;
    world.without.shows(&payment_entry).await;
    bare.leave().await;
    let mut bare = world.bare().await?;
    let again = world.during(Without, bare.call("pay", &arguments)).await;
    bare.leave().await;
    stage.print_line(Without, &format!("asks again: {}", again.describe()));
    stage.print_line(Without, &format!("ledger: INV-19 paid {}", times(paid(Without))));
    stage.expect(Without, "payments", paid(Without), 2);
    world.beat().await;

    let client = world.client().await?;
    let lost = tokio::select! {
        _ = client.call("pay", &arguments) => false,
        shown = world.with.shows(&payment_entry) => shown,
    };
    let calling = async {
        let again = client.call("pay", &arguments);
        tokio::join!(again, world.release_when_called_twice("INV-19")).0
    };
    let again = world.during(With, calling).await;
    client.leave().await;
    let replayed = again.good().is_some_and(|answer| answer.from_cache);
    stage.print_line(With, &format!("asks again: {}", again.describe()));
    stage.print_line(
        With,
        &format!(
            "{}; ledger: INV-19 paid {}",
            if replayed { "the stored response" } else { "a response of its own" },
            times(paid(With))
        ),
    );
    stage.expect(With, "connectionLost", lost, true);
    stage.expect(With, "payments", paid(With), 1);
    stage.expect(With, "answered", again.good().is_some(), true);
    stage.expect(With, "answerOfTheFirst", replayed, true);
    let replay_note = if replayed { "answer kept" } else { "answer lost" };
    let with = format!("paid {}, {replay_note}", times(paid(With)));
    Ok(stage.over(&format!("paid {}", times(paid(Without))), &with))
}

/// Describes a response and its time.
fn after(result: &DemoCallResult) -> String {
    match result.good() {
        Some(answer) => format!("answered after {}: {}", span(answer.took), answer.text),
        None => result.describe(),
    }
}

/// Summarizes the result of a call.
fn in_short(result: &DemoCallResult) -> String {
    match result {
        DemoCallResult::Answer(answer) if answer.is_error => "failed".to_owned(),
        DemoCallResult::Answer(answer) => format!("answered in {}", span(answer.took)),
        DemoCallResult::Gone(_) => "no answer".to_owned(),
        DemoCallResult::Silence(time) => format!("no answer in {}", span(*time)),
    }
}

/// Returns the response that the agent got.
fn words(result: &DemoCallResult) -> String {
    result.answer().map_or_else(|| result.describe(), |answer| answer.text.clone())
}

fn times(count: usize) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

fn millis(time: Duration) -> Value {
    u64::try_from(time.as_millis()).map_or(Value::Null, Value::from)
}
