//! Scripted tools, turns that use them, and assertions about these. Shared by the tests of the engine and those of the
//! crate `steadfast`.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::classify::{Fault, Source, Transport};
use steadfast_core::envelope::{CallEnvelope, UnknownFields};
use steadfast_core::id::{Namespace, ToolName, ToolRef};
use steadfast_core::output::{Output, RawJson};
use steadfast_core::turn::{Limits, Outcome, Plan};
use steadfast_executor::{Answer, Attempt, BreakerKey, Engine, Found, Shelf, TurnOptions, TurnStory, Turned};

/// The behavior of a tool in its n-th run.
pub(crate) type Script = Box<dyn Fn(u32, Attempt) -> Answering + Send + Sync>;
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Tools by name, with the number of their runs.
#[derive(Clone, Default)]
pub(crate) struct Tools {
    scripts: Arc<BTreeMap<&'static str, Script>>,
    runs: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Tools {
    pub(crate) fn new(scripts: impl IntoIterator<Item = (&'static str, Script)>) -> Self {
        Self { scripts: Arc::new(scripts.into_iter().collect()), runs: Arc::default() }
    }

    pub(crate) fn runs(&self, tool: &str) -> usize {
        self.runs.lock().get(tool).map_or(0, |runs| *runs as usize)
    }
}

impl Shelf for Tools {
    fn find<'a>(
        &'a self,
        envelope: &'a CallEnvelope,
    ) -> Pin<Box<dyn Future<Output = Option<Found>> + Send + 'a>> {
        let name = envelope.tool_name.to_string();
        let found = self.scripts.contains_key(name.as_str()).then(|| {
            let this = self.clone();
            Found::new(move |attempt: Attempt| {
                let number = {
                    let mut runs = this.runs.lock();
                    let ran = runs.entry(name.clone()).or_default();
                    *ran += 1;
                    *ran
                };
                (this.scripts.get(name.as_str()).unwrap())(number, attempt)
            })
        });
        Box::pin(async move { found })
    }
}

/// Returns the script of a tool.
pub(crate) fn script<F: Future<Output = Answer> + Send + 'static>(
    run: impl Fn(u32) -> F + Send + Sync + 'static,
) -> Script {
    Box::new(move |number, _| Box::pin(run(number)))
}

pub(crate) fn says(output: &'static str) -> Script {
    Box::new(move |_, _| Box::pin(async move { Ok(said(output)) }))
}

pub(crate) fn said(output: &str) -> Output {
    Output { content: RawJson::from_trusted(output), metadata: None }
}

/// Lets all tasks run until they wait.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn ok() -> Answer {
    Ok(said("\"paid\""))
}

pub(crate) fn reset() -> Answer {
    let source = Source::Transport { error: Transport::ConnectionReset, written: true };
    Err(Fault::new(source, "connection reset").into())
}

pub(crate) fn invalid() -> Answer {
    Err(Fault::new(Source::Http { status: 400 }, "Invalid airport code: XYZ").into())
}

pub(crate) fn refuses() -> Script {
    Box::new(|_, _| Box::pin(async { invalid() }))
}

/// Runs until it is cancelled.
pub(crate) fn hangs() -> Script {
    Box::new(|_, attempt| {
        Box::pin(async move {
            attempt.cancelled().await;
            reset()
        })
    })
}

pub(crate) fn plan(text: &str) -> Arc<Plan> {
    Arc::new(Plan::parse(text.as_bytes(), &Limits::DEFAULT).unwrap())
}

pub(crate) fn options() -> TurnOptions {
    let text = r#"{"contractVersion":"1.1","requestId":"r","toolName":"t","toolNamespace":"t",
        "target":{"sessionKey":"s","actorId":"ann"},"payload":{"version":"1.0","params":{}}}"#;
    TurnOptions::of(CallEnvelope::parse(text.as_bytes(), UnknownFields::Refuse).unwrap().target)
}

pub(crate) async fn turn(engine: &Engine, tools: &Tools, text: &str) -> Turned {
    engine.turn(plan(text), Arc::new(tools.clone()), options()).await.unwrap()
}

pub(crate) async fn story(engine: &Engine, turned: &Turned) -> TurnStory {
    engine.story(&turned.trace.to_string()).await.unwrap().unwrap()
}

pub(crate) fn sentences(story: &TurnStory) -> Vec<&str> {
    story.events.iter().map(|event| event.sentence.as_str()).collect()
}

#[track_caller]
pub(crate) fn tells(story: &TurnStory, sentence: &str) {
    assert!(sentences(story).iter().any(|told| told.starts_with(sentence)), "{:#?}", sentences(story));
}

pub(crate) fn outcomes(turned: &Turned) -> Vec<(&str, Outcome)> {
    turned.result.calls.iter().map(|call| (call.id.as_str(), call.outcome)).collect()
}

pub(crate) const SEARCHES: &str = r#"{"deadlineMs":300000,"calls":[{"id":"f","tool":"t/flight_search"},
    {"id":"h","tool":"t/hotel_search"},{"id":"a","tool":"t/activity_search"}]}"#;

pub(crate) const WITH_BACKUP: &str = r#"{"turnId":"trip","calls":[{"id":"f","tool":"t/flight_search","params":{"to":"LIS"},
    "alternatives":["t/flight_search_backup"]}]}"#;

pub(crate) fn first_tool() -> BreakerKey {
    let (namespace, tool) = (Namespace::new("t").unwrap(), ToolName::new("flight_search").unwrap());
    BreakerKey::Tool(ToolRef { namespace, tool })
}
