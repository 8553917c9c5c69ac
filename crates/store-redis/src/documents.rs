//! Documents: versioned values, compared by the same script as records.
//!
//! A version is the server's time in microseconds, or one more than the version that it replaces. A removed document
//! leaves a tombstone for an hour, so that a writer whose estimate of the time is a little behind cannot reuse a
//! version.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use steadfast_core::Timestamp;
use steadfast_store::{
    Document, DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, StoreError, StoreErrorKind,
};

use crate::RedisInner;
use crate::link::CommandTarget;
use crate::names::KeyDistrict;
use crate::script::{DecisionOutcome, DecisionValidity, ExpectedValue, ScriptRequest, WakeTarget};
use crate::value::ContentStamp;

const TOMBSTONE: Duration = Duration::from_secs(3600);
/// Documents that are read at once.
const BATCH: usize = 64;
/// Tries of a write that fails because of a tombstone, the time or the marker.
const ATTEMPTS: usize = 8;

/// The stored value of a document.
#[derive(Clone, Debug)]
enum DocumentValue {
    Nothing,
    /// The document was removed. Later versions are higher than this one.
    Gone(u64),
    There(Document),
}

impl RedisInner {
    pub(crate) async fn read(self: &Arc<Self>, name: &DocumentName) -> Result<Option<Document>, StoreError> {
        let reply = self.ask(redis::cmd("GET").arg(self.names.document(name)), CommandTarget::Keys).await?;
        let Value::BulkString(value) = reply.value else { return Ok(None) };
        Ok(stored(Some(&value), name)?.document())
    }

    pub(crate) async fn write_document(
        self: &Arc<Self>,
        name: &DocumentName,
        write: DocumentWrite,
    ) -> Result<DocumentWriteOutcome, StoreError> {
        let district = KeyDistrict::of_document(name);
        let key = self.names.document(name);
        // The version to replace, or none.
        let mut believed = write.replaces;
        for _ in 0..ATTEMPTS {
            let clock = self.clock(district);
            let micros = clock.micros(Instant::now()).unwrap_or_else(|| self.now().as_millis() * 1000);
            let now = Timestamp::from_millis(micros / 1000);
            let version = micros.max(believed.map_or(0, |version| version.saturating_add(1)));
            let expect = believed.map_or(ExpectedValue::Absent, |version| {
                ExpectedValue::Stamped(ContentStamp::of_version(version))
            });
            let mut request = ScriptRequest::new(key.clone(), expect);
            self.write_to(&mut request, name, &write, version, now);
            let valid = DecisionValidity { from: now, until: now + self.options.command_timeout };
            let answer = self.run(district, &request, valid).await?;
            match answer.body {
                DecisionOutcome::Done => {
                    self.confirm(district, answer.line).await?;
                    return Ok(DocumentWriteOutcome::Written(version));
                }
                DecisionOutcome::Found(values) => {
                    match (stored(values.first().and_then(Option::as_deref), name)?, write.replaces) {
                        (DocumentValue::There(found), Some(replaces)) if found.version == replaces => {}
                        (DocumentValue::Nothing, None) => believed = None,
                        (DocumentValue::Gone(version), None) => believed = Some(version),
                        (found, _) => return Ok(DocumentWriteOutcome::Stale(found.document())),
                    }
                }
                DecisionOutcome::OtherMarker => {}
            }
        }
        Err(StoreError::not_done(
            StoreErrorKind::Unreachable,
            "redis: too many callers want the same document at once; try again in a moment",
        ))
    }

    pub(crate) async fn documents(
        self: &Arc<Self>,
        kind: DocumentKind,
    ) -> Result<Vec<(DocumentName, Document)>, StoreError> {
        let mut found = Vec::new();
        for district in KeyDistrict::with_documents() {
            let set = self.names.documents(district, kind);
            let reply = self.ask(redis::cmd("SMEMBERS").arg(&set), CommandTarget::Keys).await?;
            let ids: Vec<String> =
                redis::from_redis_value(reply.value).map_err(|_| crate::unexpected_reply())?;
            for ids in ids.chunks(BATCH) {
                let named: Vec<DocumentName> =
                    ids.iter().map(|id| DocumentName { kind, id: id.as_str().into() }).collect();
                let keys: Vec<String> = named.iter().map(|name| self.names.document(name)).collect();
                for (name, value) in named.into_iter().zip(self.read_all(&keys).await?) {
                    match value {
                        Some(value) => {
                            found.extend(stored(Some(&value), &name)?.document().map(|there| (name, there)))
                        }
                        // The document has expired.
                        None => {
                            self.ask(redis::cmd("SREM").arg(&set).arg(&*name.id), CommandTarget::Keys)
                                .await?;
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    fn write_to(
        &self,
        request: &mut ScriptRequest,
        name: &DocumentName,
        write: &DocumentWrite,
        version: u64,
        now: Timestamp,
    ) {
        let mut value = ContentStamp::of_version(version).as_bytes().to_vec();
        let set = self.names.documents(KeyDistrict::of_document(name), name.kind);
        let lifetime = match &write.body {
            Some(body) => {
                value.push(PRESENT);
                value.extend_from_slice(body.as_bytes());
                request.add(&set, &name.id);
                write.expires.map(|expires| steadfast_core::millis(expires.since(now)))
            }
            None => {
                value.push(DELETED);
                request.remove(&set, &name.id);
                Some(steadfast_core::millis(TOMBSTONE))
            }
        };
        request.put(&self.names.document(name), value, lifetime, WakeTarget::NoOne);
        request.publish(self.names.changes(), format!("{} {}/{}", self.instance, name.kind.name(), name.id));
    }
}

const PRESENT: u8 = b'd';
const DELETED: u8 = b'g';

impl DocumentValue {
    fn document(self) -> Option<Document> {
        match self {
            Self::There(document) => Some(document),
            Self::Nothing | Self::Gone(_) => None,
        }
    }
}

fn stored(value: Option<&[u8]>, name: &DocumentName) -> Result<DocumentValue, StoreError> {
    let Some(value) = value else { return Ok(DocumentValue::Nothing) };
    let read = || {
        let (stamp, rest) = value.split_first_chunk::<{ ContentStamp::LENGTH }>()?;
        let version = u64::from_be_bytes(*stamp.last_chunk()?);
        match rest.split_first()? {
            (&PRESENT, body) => {
                Some(DocumentValue::There(Document { version, body: std::str::from_utf8(body).ok()?.into() }))
            }
            (&DELETED, _) => Some(DocumentValue::Gone(version)),
            _ => None,
        }
    };
    read().ok_or_else(|| {
        let message = format!("redis: the document {name} is damaged, or from another program; remove it or choose another prefix");
        StoreError::not_done(StoreErrorKind::Unreadable, message)
    })
}
