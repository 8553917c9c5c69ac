//! Results with more text than their callers want: the text is kept here, and its beginning, its end and the place of the whole go
//! to the caller.
//!
//! The core decides what is shown and what is kept (`steadfast_core::large_result`). This file finds the texts of a result, puts
//! the shortened ones in their place, and has the whole: in memory, where it is read as a resource or over HTTP, or in a file for
//! a client on our own streams whose servers have no resources. What cannot be kept is not shortened.

mod files;
mod texts;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::Timestamp;
use steadfast_core::envelope::ResultEnvelope;
use steadfast_core::id::Digest;
use steadfast_core::large_result::{
    KeptBounds, KeptResult, KeptResults, NewResult, Notice, Page, PageError, Place, Reader, Shortened, cut,
    page, whole,
};
use steadfast_core::output::Output;
use steadfast_executor::{Called, Engine, Turned};
use tokio::sync::Notify;

use self::files::{ResultFile, ResultFolder};
use self::texts::Texts;
use crate::who::Connection;

/// The large results of a gateway.
#[derive(Debug)]
pub struct LargeResults {
    kept: Mutex<KeptResults<Content>>,
    /// Where files are, for clients that read those.
    folder: Option<ResultFolder>,
    /// What the names of its results begin with, so that those of another gateway are known as such.
    mark: Option<Box<str>>,
    /// Something was kept, and expires.
    changed: Notify,
}

/// How a caller reads the whole of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    /// As a resource of its session.
    Resource,
    /// As a file of this machine.
    File,
    /// Over HTTP.
    Http,
}

/// Why a page of a result cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// There is none of this name for this reader, or none any more.
    NotKept,
    /// It has no page there.
    NoPage(PageError),
}

/// A page of a result, and until when there are more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultPage {
    /// The text of it.
    pub text: String,
    /// Where it begins, in bytes.
    pub offset: usize,
    /// Where the next one begins; none behind the last one.
    pub next: Option<usize>,
    /// The bytes of the whole text.
    pub bytes: usize,
    /// When the text is dropped.
    pub expires: Timestamp,
}

#[derive(Debug)]
enum Content {
    Text(Arc<str>),
    /// Read by its path, and removed when this is dropped.
    File(ResultFile),
}

/// What the URIs of our resources begin with.
const URI: &str = "steadfast://results/";
/// The path under which the HTTP API has them.
const HTTP_PATH: &str = "/v1/results/";
const TOO_LARGE: &str = "it is larger than `results.bytes`";

impl LargeResults {
    /// Keeps results within these bounds, in memory.
    pub fn new(bounds: KeptBounds) -> Arc<Self> {
        Self::within(bounds, None)
    }

    /// The same, and in files of this folder for clients that read those. Files of processes that are gone are removed.
    pub fn with_files(bounds: KeptBounds, folder: PathBuf) -> Arc<Self> {
        Self::within(bounds, Some(folder))
    }

    fn within(bounds: KeptBounds, folder: Option<PathBuf>) -> Arc<Self> {
        let mark = random(MARK);
        let folder = mark.as_deref().zip(folder).map(|(mark, folder)| ResultFolder::new(folder, mark));
        Arc::new(Self { kept: Mutex::new(KeptResults::new(bounds)), folder, mark, changed: Notify::new() })
    }

    /// Shortens the text of a result that is longer than its tool's limit, and keeps the whole for this reader.
    pub async fn shorten(&self, called: &mut Called, reader: &Reader, by: ReadBy, now: Timestamp) {
        let ResultEnvelope { output, shortened, .. } = &mut called.result;
        if let (Some(limit), Some(whole)) = (called.text_limit, output.as_ref())
            && let Some((shown, about)) = self.shortened(whole, limit, reader, by, now).await
        {
            *output = Some(shown);
            *shortened = Some(about);
        }
    }

    /// The same for each call of a turn.
    pub async fn shorten_turn(&self, turned: &mut Turned, reader: &Reader, by: ReadBy, now: Timestamp) {
        for call in &mut turned.result.calls {
            let Some((limit, content)) = turned.text_limits.get(&call.id).zip(call.output.clone()) else {
                continue;
            };
            let whole = Output { content, metadata: None };
            if let Some((shown, about)) = self.shortened(&whole, *limit, reader, by, now).await {
                call.output = Some(shown.content);
                call.shortened = Some(about);
            }
        }
    }

    async fn shortened(
        &self,
        output: &Output,
        limit: usize,
        reader: &Reader,
        by: ReadBy,
        now: Timestamp,
    ) -> Option<(Output, Shortened)> {
        // No text is longer than the JSON that it stands in.
        if output.len() <= limit {
            return None;
        }
        let texts = Texts::of(output)?;
        let all: Vec<&str> = texts.all().collect();
        let cut = cut(&all, limit)?;
        let (id, place) = match self.keep(whole(&all), reader, limit, by, now).await {
            Ok(kept) => kept,
            Err(why) => {
                let bytes = cut.bytes;
                tracing::warn!(event = "result.not_kept", bytes, %why, "a result over its limit passes whole");
                return None;
            }
        };
        let notice = Notice { cut: &cut, place: &place, keep: self.kept.lock().bounds().keep };
        let shown = texts.replaced(&notice);
        let (gap_start, gap_end) = (cut.gap.start, cut.gap.end);
        let read_at = place.address().to_owned();
        Some((shown, Shortened { id, bytes: cut.bytes, gap_start, gap_end, read_at }))
    }

    /// Keeps a text; gives its name and where it is.
    async fn keep(
        &self,
        text: String,
        reader: &Reader,
        page: usize,
        by: ReadBy,
        now: Timestamp,
    ) -> Result<(String, Place), String> {
        let in_file = by == ReadBy::File;
        // The same text is kept once in memory and once as a file.
        let digest = Digest::of([text.as_bytes(), &[u8::from(in_file)]].concat().as_slice());
        let same = |kept: &KeptResult<Content>| {
            let id = kept.about.id.to_string();
            let place = kept.content.place(&id, by);
            (id, place)
        };
        if let Some(same) = self.kept.lock().renew(reader, digest, now).map(same) {
            return Ok(same);
        }
        let bytes = text.len();
        if !self.kept.lock().takes(bytes) {
            return Err(TOO_LARGE.to_owned());
        }
        let no_randomness = || "the system has no randomness for its name".to_owned();
        let mark = self.mark.as_deref().ok_or_else(no_randomness)?;
        let id = format!("{mark}-{}", random(SECRET).ok_or_else(no_randomness)?);
        let content = match (in_file, &self.folder) {
            (false, _) => Content::Text(text.into()),
            (true, Some(folder)) => Content::File(folder.write(&id, text).await?),
            (true, None) => return Err("it is not known where state is kept".to_owned()),
        };
        let new = NewResult { id: id.as_str().into(), reader: reader.clone(), digest, bytes, page };
        let place = content.place(&id, by);
        let dropped = self.kept.lock().keep(new, content, now);
        self.changed.notify_one();
        // Files are removed here, and not under the lock.
        drop(dropped.map_err(|_| TOO_LARGE.to_owned())?);
        Ok((id, place))
    }

    /// The page of a result that begins at this byte, for one who may read it.
    pub fn read(
        &self,
        id: &str,
        may_read: impl FnOnce(&Reader) -> bool,
        offset: usize,
        now: Timestamp,
    ) -> Result<ResultPage, ReadError> {
        let (text, most, expires) = {
            let kept = self.kept.lock();
            match kept.find(id, may_read, now) {
                Some(KeptResult { about, expires, content: Content::Text(text) }) => {
                    (text.clone(), about.page, *expires)
                }
                // A file is read as such.
                Some(KeptResult { content: Content::File(_), .. }) | None => return Err(ReadError::NotKept),
            }
        };
        let Page { text, offset, next, bytes } = page(&text, offset, most).map_err(ReadError::NoPage)?;
        Ok(ResultPage { text: text.to_owned(), offset, next, bytes, expires })
    }

    /// The result that a URI names, if it is one of ours, and the place in it. A URI of another gateway is none of ours: that
    /// one may stand behind us.
    pub(crate) fn named<'u>(&self, uri: &'u str) -> Option<ResultUri<'u>> {
        let name = uri.strip_prefix(URI)?;
        let is_ours = self
            .mark
            .as_deref()
            .is_some_and(|mark| name.strip_prefix(mark).is_some_and(|rest| rest.starts_with('-')));
        let (id, query) = name.split_once('?').unwrap_or((name, "offset=0"));
        let offset = query.strip_prefix("offset=").and_then(|offset| offset.parse().ok());
        is_ours.then_some(ResultUri { id, offset })
    }

    /// Drops what has expired, until it is dropped itself.
    pub async fn tidy(self: Arc<Self>, engine: Engine) {
        loop {
            let now = engine.now();
            let (expired, next) = {
                let mut kept = self.kept.lock();
                (kept.expire(now), kept.next_expiry())
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

    /// Drops everything, files too.
    pub fn clear(&self) {
        let all = self.kept.lock().clear();
        drop(all);
        if let Some(folder) = &self.folder {
            folder.remove();
        }
    }
}

/// A URI of a result of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResultUri<'u> {
    pub(crate) id: &'u str,
    /// The place in it; nothing if that cannot be read.
    pub(crate) offset: Option<usize>,
}

/// The URI of a result from this place on.
pub(crate) fn uri_at(id: &str, offset: usize) -> String {
    format!("{URI}{id}?offset={offset}")
}

impl Connection {
    /// Who reads what is kept of its calls.
    pub(crate) fn reader(&self) -> Reader {
        Reader { tenant: self.tenant.clone(), actor: self.actor.clone() }
    }
}

impl Content {
    fn place(&self, id: &str, by: ReadBy) -> Place {
        match (self, by) {
            (Self::File(file), _) => Place::File(file.path().display().to_string()),
            (Self::Text(_), ReadBy::Resource) => Place::Resource(format!("{URI}{id}")),
            (Self::Text(_), ReadBy::Http | ReadBy::File) => Place::Http(format!("{HTTP_PATH}{id}")),
        }
    }
}

/// The hexadecimal digits by which the results of one gateway are told from those of another.
const MARK: usize = 12;
/// The hexadecimal digits that nobody guesses: 128 bits.
const SECRET: usize = 32;

/// So many digits that nobody can guess; nothing where the system has no randomness to give.
fn random(digits: usize) -> Option<Box<str>> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).ok()?;
    Some(Digest::from_bytes(bytes).to_hex().get(..digits)?.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_core::code::Status;
    use steadfast_core::id::{ActorId, RequestId, ToolName};
    use steadfast_core::output::RawJson;
    use steadfast_executor::RuntimeClock;

    use super::*;

    const KEEP: Duration = Duration::from_secs(60);
    const BOUNDS: KeptBounds = KeptBounds { keep: KEEP, entries: 8, bytes: 1 << 20 };

    fn reader() -> Reader {
        Reader { tenant: None, actor: ActorId::new("ann").unwrap() }
    }

    fn called(text: &str, text_limit: Option<usize>) -> Called {
        let result = ResultEnvelope {
            request_id: RequestId::new("r").unwrap(),
            status: Status::Success,
            from_cache: false,
            cache: None,
            tool_name: ToolName::new("look").unwrap(),
            duration_ms: 1,
            attempts: 1,
            output: Some(Output { content: RawJson::string(text), metadata: None }),
            error: None,
            retried_by: Vec::new(),
            recorded: None,
            escalated: false,
            turn: None,
            shortened: None,
        };
        Called { result, arrival: None, remarks: Vec::new(), text_limit }
    }

    /// The same as a caller of this kind is given it.
    async fn given(large: &LargeResults, text: &str, by: ReadBy, now: Timestamp) -> Shortened {
        let mut called = called(text, Some(8));
        large.shorten(&mut called, &reader(), by, now).await;
        called.result.shortened.unwrap()
    }

    #[tokio::test]
    async fn without_a_limit_and_at_the_limit_a_result_is_as_it_came() {
        let large = LargeResults::new(BOUNDS);
        for limit in [None, Some(10)] {
            let mut one = called("0123456789", limit);
            large.shorten(&mut one, &reader(), ReadBy::Http, Timestamp::from_millis(0)).await;
            assert_eq!(one.result, called("0123456789", limit).result);
        }
    }

    #[tokio::test]
    async fn a_name_cannot_be_guessed_and_a_uri_of_another_gateway_is_none_of_ours() {
        let (large, other) = (LargeResults::new(BOUNDS), LargeResults::new(BOUNDS));
        let now = Timestamp::from_millis(0);
        let one = given(&large, "0123456789", ReadBy::Resource, now).await;
        assert_eq!(one.id.len(), MARK + 1 + SECRET);
        let two = given(&large, "0123456789a", ReadBy::Resource, now).await;
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
    async fn what_has_expired_is_dropped_although_nobody_asks() {
        let folder = std::env::temp_dir().join(format!("steadfast-large-results-{}", std::process::id()));
        let large = LargeResults::with_files(BOUNDS, folder.clone());
        let engine = Engine::builder().clock(Arc::new(RuntimeClock::new())).start().await;
        let tidying = tokio::spawn(large.clone().tidy(engine.clone()));
        let first = given(&large, "0123456789", ReadBy::File, engine.now()).await;
        let has = |one: &Shortened| std::path::Path::new(&one.read_at).exists();
        tokio::time::sleep(KEEP / 2).await;
        let second = given(&large, "0123456789a", ReadBy::File, engine.now()).await;
        let text = given(&large, "0123456789", ReadBy::Http, engine.now()).await;
        let end = |now: Timestamp| large.read(&text.id, |_| true, 8, now).map(|page| page.text);
        tokio::time::sleep(KEEP / 2 - Duration::from_millis(1)).await;
        assert!(has(&first) && has(&second));
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(!has(&first) && has(&second));
        assert_eq!(end(engine.now()).as_deref(), Ok("89"));
        assert_eq!(
            large.read(&second.id, |_| true, 0, engine.now()),
            Err(ReadError::NotKept),
            "a file is read as one"
        );
        tokio::time::sleep(KEEP / 2).await;
        assert!(!has(&second));
        assert_eq!(end(engine.now()), Err(ReadError::NotKept));
        tidying.abort();
        large.clear();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
