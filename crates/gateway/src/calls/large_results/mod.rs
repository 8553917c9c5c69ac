//! Results with more text than the limit of their tool. The gateway stores the text and gives the caller its beginning,
//! its end and a reference to the whole.
//!
//! The core decides which part is shown and what is stored (`steadfast_core::large_result`). This module finds the
//! texts of a result, replaces them with the shortened ones and stores the whole text. It is stored in memory, to be
//! read as a resource or over HTTP, or in a file for a client on standard streams whose servers have no resources. A
//! text that cannot be stored is not shortened.

mod files;
mod texts;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::envelope::ResultEnvelope;
use steadfast_core::id::Digest;
use steadfast_core::large_result::{
    CutNotice, LargeResult, LargeResultBounds, LargeResultStore, NewLargeResult, ResultLocation,
    ResultReader, ShortenedText, TextPage, TextPageError, cut, page, whole,
};
use steadfast_core::output::ToolOutput;
use steadfast_executor::{CallResponse, Engine, TurnResponse};
use tokio::sync::Notify;

use self::files::{ResultFile, ResultFolder};
use self::texts::ResultTexts;
use crate::client::identity::ClientIdentity;

/// The large results of a gateway.
#[derive(Debug)]
pub struct LargeResults {
    store: Mutex<LargeResultStore<ResultContent>>,
    /// The folder for result files, for clients that read files.
    folder: Option<ResultFolder>,
    /// The prefix of the ids of its results, which distinguishes them from those of another gateway.
    mark: Option<Box<str>>,
    /// Notified when a result with an expiry was stored.
    changed: Notify,
}

/// The way in which a caller reads the whole text of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMethod {
    /// As a resource of its session.
    Resource,
    /// As a file on this machine.
    File,
    /// Over HTTP.
    Http,
}

/// The reason for which a page of a result cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultReadError {
    /// There is no such result for this reader, or it has expired.
    NotKept,
    /// The result has no page at this offset.
    NoPage(TextPageError),
}

/// A page of a result, and the time until which more pages can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultPage {
    /// The text of the page.
    pub text: String,
    /// Offset of the page, in bytes.
    pub offset: usize,
    /// Offset of the next page. `None` on the last page.
    pub next: Option<usize>,
    /// Size of the whole text, in bytes.
    pub bytes: usize,
    /// Time at which the text is dropped.
    pub expires: Timestamp,
}

#[derive(Debug)]
enum ResultContent {
    Text(Arc<str>),
    /// Read by its path, and removed on drop.
    File(ResultFile),
}

/// The prefix of the URIs of our resources.
const URI: &str = "steadfast://results/";
/// The path of results in the HTTP API.
const HTTP_PATH: &str = "/v1/results/";
const TOO_LARGE: &str = "it is larger than `results.bytes`";

impl LargeResults {
    /// Creates a store in memory with these bounds.
    pub fn new(bounds: LargeResultBounds) -> Arc<Self> {
        Self::within(bounds, None)
    }

    /// Like [`Self::new`], with files in this folder for clients that read files. Removes files of ended processes.
    pub fn with_files(bounds: LargeResultBounds, folder: PathBuf) -> Arc<Self> {
        Self::within(bounds, Some(folder))
    }

    fn within(bounds: LargeResultBounds, folder: Option<PathBuf>) -> Arc<Self> {
        let mark = random(MARK);
        let folder = mark.as_deref().zip(folder).map(|(mark, folder)| ResultFolder::new(folder, mark));
        Arc::new(Self {
            store: Mutex::new(LargeResultStore::new(bounds)),
            folder,
            mark,
            changed: Notify::new(),
        })
    }

    /// Shortens the text of a result that exceeds the limit of its tool, and stores the whole text for this reader.
    pub async fn shorten(
        &self,
        called: &mut CallResponse,
        reader: &ResultReader,
        by: ReadMethod,
        now: Timestamp,
    ) {
        let ResultEnvelope { output, shortened, .. } = &mut called.result;
        if let (Some(limit), Some(whole)) = (called.text_limit, output.as_ref())
            && let Some((shown, about)) = self.shortened(whole, limit, reader, by, now).await
        {
            *output = Some(shown);
            *shortened = Some(about);
        }
    }

    /// Like [`Self::shorten`], for each call of a turn.
    pub async fn shorten_turn(
        &self,
        turned: &mut TurnResponse,
        reader: &ResultReader,
        by: ReadMethod,
        now: Timestamp,
    ) {
        for call in &mut turned.result.calls {
            let Some((limit, content)) = turned.text_limits.get(&call.id).zip(call.output.clone()) else {
                continue;
            };
            let whole = ToolOutput { content, metadata: None };
            if let Some((shown, about)) = self.shortened(&whole, *limit, reader, by, now).await {
                call.output = Some(shown.content);
                call.shortened = Some(about);
            }
        }
    }

    async fn shortened(
        &self,
        output: &ToolOutput,
        limit: usize,
        reader: &ResultReader,
        by: ReadMethod,
        now: Timestamp,
    ) -> Option<(ToolOutput, ShortenedText)> {
        // A text is never longer than the JSON that contains it.
        if output.len() <= limit {
            return None;
        }
        let texts = ResultTexts::of(output)?;
        let all: Vec<&str> = texts.all().collect();
        let cut = cut(&all, limit)?;
        let (id, place) = match self.keep(whole(&all), reader, limit, by, now).await {
            Ok(stored) => stored,
            Err(reason) => {
                let bytes = cut.bytes;
                tracing::warn!(event = "result.not_kept", bytes, "why" = %reason, "a result over the limit is not shortened");
                return None;
            }
        };
        let notice = CutNotice { cut: &cut, place: &place, keep: self.store.lock().bounds().keep };
        let shown = texts.replaced(&notice);
        let (gap_start, gap_end) = (cut.gap.start, cut.gap.end);
        let read_at = place.address().to_owned();
        Some((shown, ShortenedText { id, bytes: cut.bytes, gap_start, gap_end, read_at }))
    }

    /// Stores a text. Returns its id and its place.
    async fn keep(
        &self,
        text: String,
        reader: &ResultReader,
        page: usize,
        by: ReadMethod,
        now: Timestamp,
    ) -> Result<(String, ResultLocation), String> {
        let in_file = by == ReadMethod::File;
        // The same text is stored once in memory and once as a file.
        let digest = Digest::of([text.as_bytes(), &[u8::from(in_file)]].concat().as_slice());
        let same = |result: &LargeResult<ResultContent>| {
            let id = result.about.id.to_string();
            let place = result.content.place(&id, by);
            (id, place)
        };
        if let Some(same) = self.store.lock().renew(reader, digest, now).map(same) {
            return Ok(same);
        }
        let bytes = text.len();
        if !self.store.lock().takes(bytes) {
            return Err(TOO_LARGE.to_owned());
        }
        let no_randomness = || "the operating system provides no randomness for its id".to_owned();
        let mark = self.mark.as_deref().ok_or_else(no_randomness)?;
        let id = format!("{mark}-{}", random(SECRET).ok_or_else(no_randomness)?);
        let content = match (in_file, &self.folder) {
            (false, _) => ResultContent::Text(text.into()),
            (true, Some(folder)) => ResultContent::File(folder.write(&id, text).await?),
            (true, None) => return Err("the state folder is unknown".to_owned()),
        };
        let new = NewLargeResult { id: id.as_str().into(), reader: reader.clone(), digest, bytes, page };
        let place = content.place(&id, by);
        let dropped = self.store.lock().keep(new, content, now);
        self.changed.notify_one();
        // The lock is not held while files are removed.
        drop(dropped.map_err(|_| TOO_LARGE.to_owned())?);
        Ok((id, place))
    }

    /// Returns the page of a result that begins at this byte, if the reader may read it.
    pub fn read(
        &self,
        id: &str,
        may_read: impl FnOnce(&ResultReader) -> bool,
        offset: usize,
        now: Timestamp,
    ) -> Result<ResultPage, ResultReadError> {
        let (text, most, expires) = {
            let store = self.store.lock();
            match store.find(id, may_read, now) {
                Some(LargeResult { about, expires, content: ResultContent::Text(text) }) => {
                    (text.clone(), about.page, *expires)
                }
                // A file is not read through the gateway.
                Some(LargeResult { content: ResultContent::File(_), .. }) | None => {
                    return Err(ResultReadError::NotKept);
                }
            }
        };
        let TextPage { text, offset, next, bytes } =
            page(&text, offset, most).map_err(ResultReadError::NoPage)?;
        Ok(ResultPage { text: text.to_owned(), offset, next, bytes, expires })
    }

    /// Parses a URI of a result of this gateway. Returns `None` for a URI of another gateway, which may be upstream of
    /// this one.
    pub(crate) fn named<'u>(&self, uri: &'u str) -> Option<ResultUri<'u>> {
        let name = uri.strip_prefix(URI)?;
        let is_known = self
            .mark
            .as_deref()
            .is_some_and(|mark| name.strip_prefix(mark).is_some_and(|rest| rest.starts_with('-')));
        let (id, query) = name.split_once('?').unwrap_or((name, "offset=0"));
        let offset = query.strip_prefix("offset=").and_then(|offset| offset.parse().ok());
        is_known.then_some(ResultUri { id, offset })
    }

    /// Drops expired results, until this future is dropped.
    pub async fn tidy(self: Arc<Self>, engine: Engine) {
        loop {
            let now = engine.now();
            let (expired, next) = {
                let mut store = self.store.lock();
                (store.expire(now), store.next_expiry())
            };
            drop(expired);
            match next {
                Some(next) => tokio::select! {
                    () = tokio::time::sleep(next.since(now)) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    /// Drops all results and their files.
    pub fn clear(&self) {
        let all = self.store.lock().clear();
        drop(all);
        if let Some(folder) = &self.folder {
            folder.remove();
        }
    }
}

/// A URI of a result of this gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResultUri<'u> {
    pub(crate) id: &'u str,
    /// The offset in the text. `None` if it cannot be parsed.
    pub(crate) offset: Option<usize>,
}

/// Returns the URI of a result from this offset on.
pub(crate) fn uri_at(id: &str, offset: usize) -> String {
    format!("{URI}{id}?offset={offset}")
}

impl ClientIdentity {
    /// Returns the reader of the results of this caller.
    pub(crate) fn reader(&self) -> ResultReader {
        ResultReader { tenant: self.tenant.clone(), actor: self.actor.clone() }
    }
}

impl ResultContent {
    fn place(&self, id: &str, by: ReadMethod) -> ResultLocation {
        match (self, by) {
            (Self::File(file), _) => ResultLocation::File(file.path().display().to_string()),
            (Self::Text(_), ReadMethod::Resource) => ResultLocation::Resource(format!("{URI}{id}")),
            (Self::Text(_), ReadMethod::Http | ReadMethod::File) => {
                ResultLocation::Http(format!("{HTTP_PATH}{id}"))
            }
        }
    }
}

/// The number of hexadecimal digits that distinguish the results of one gateway from those of another.
const MARK: usize = 12;
/// The number of hexadecimal digits that cannot be guessed: 128 bits.
const SECRET: usize = 32;

/// Returns this many random hexadecimal digits, or `None` if the system has no randomness.
fn random(digits: usize) -> Option<Box<str>> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).ok()?;
    Some(Digest::from_bytes(bytes).to_hex().get(..digits)?.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_core::code::CallStatus;
    use steadfast_core::id::{ActorId, RequestId, ToolName};
    use steadfast_executor::RuntimeClock;
    use steadfast_json::RawJson;

    use super::*;

    const KEEP: Duration = Duration::from_secs(60);
    const BOUNDS: LargeResultBounds = LargeResultBounds { keep: KEEP, entries: 8, bytes: 1 << 20 };

    fn reader() -> ResultReader {
        ResultReader { tenant: None, actor: ActorId::new("ann").unwrap() }
    }

    fn called(text: &str, text_limit: Option<usize>) -> CallResponse {
        let result = ResultEnvelope {
            request_id: RequestId::new("r").unwrap(),
            status: CallStatus::Success,
            from_cache: false,
            cache: None,
            tool_name: ToolName::new("look").unwrap(),
            duration_ms: 1,
            attempts: 1,
            output: Some(ToolOutput { content: RawJson::string(text), metadata: None }),
            error: None,
            retried_by: Vec::new(),
            recorded: None,
            escalated: false,
            turn: None,
            shortened: None,
        };
        CallResponse { result, delivery: None, remarks: Vec::new(), verdict: Default::default(), text_limit }
    }

    /// The shortened form that a caller of this kind gets.
    async fn given(large: &LargeResults, text: &str, by: ReadMethod, now: Timestamp) -> ShortenedText {
        let mut called = called(text, Some(8));
        large.shorten(&mut called, &reader(), by, now).await;
        called.result.shortened.unwrap()
    }

    #[tokio::test]
    async fn without_a_limit_and_at_the_limit_a_result_is_unchanged() {
        let large = LargeResults::new(BOUNDS);
        for limit in [None, Some(10)] {
            let mut one = called("0123456789", limit);
            large.shorten(&mut one, &reader(), ReadMethod::Http, Timestamp::from_millis(0)).await;
            assert_eq!(one.result, called("0123456789", limit).result);
        }
    }

    #[tokio::test]
    async fn an_id_cannot_be_guessed_and_a_uri_of_another_gateway_is_not_recognised() {
        let (large, other) = (LargeResults::new(BOUNDS), LargeResults::new(BOUNDS));
        let now = Timestamp::from_millis(0);
        let one = given(&large, "0123456789", ReadMethod::Resource, now).await;
        assert_eq!(one.id.len(), MARK + 1 + SECRET);
        let two = given(&large, "0123456789a", ReadMethod::Resource, now).await;
        let secret = |id: &str| id.split_once('-').unwrap().1.to_owned();
        assert_ne!(secret(&one.id), secret(&two.id));
        let uri = uri_at(&one.id, 6);
        assert_eq!(large.named(&uri), Some(ResultUri { id: &one.id, offset: Some(6) }));
        assert_eq!(large.named(&one.read_at), Some(ResultUri { id: &one.id, offset: Some(0) }));
        assert_eq!(large.named(&format!("{}?o=6", one.read_at)).unwrap().offset, None);
        assert_eq!(other.named(&uri), None);
        for strange in ["steadfast://results/", "steadfast://other/x", "file:///a"] {
            assert_eq!(large.named(strange), None, "{strange}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_results_are_dropped_without_a_request() {
        let folder = std::env::temp_dir().join(format!("steadfast-large-results-{}", std::process::id()));
        let large = LargeResults::with_files(BOUNDS, folder.clone());
        let engine = Engine::builder().clock(Arc::new(RuntimeClock::new())).start().await;
        let tidying = tokio::spawn(large.clone().tidy(engine.clone()));
        let first = given(&large, "0123456789", ReadMethod::File, engine.now()).await;
        let has = |one: &ShortenedText| std::path::Path::new(&one.read_at).exists();
        tokio::time::sleep(KEEP / 2).await;
        let second = given(&large, "0123456789a", ReadMethod::File, engine.now()).await;
        let text = given(&large, "0123456789", ReadMethod::Http, engine.now()).await;
        let end = |now: Timestamp| large.read(&text.id, |_| true, 8, now).map(|page| page.text);
        tokio::time::sleep(KEEP / 2 - Duration::from_millis(1)).await;
        assert!(has(&first) && has(&second));
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(!has(&first) && has(&second));
        assert_eq!(end(engine.now()).as_deref(), Ok("89"));
        assert_eq!(
            large.read(&second.id, |_| true, 0, engine.now()),
            Err(ResultReadError::NotKept),
            "a file is read as one"
        );
        tokio::time::sleep(KEEP / 2).await;
        assert!(!has(&second));
        assert_eq!(end(engine.now()), Err(ResultReadError::NotKept));
        tidying.abort();
        large.clear();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
