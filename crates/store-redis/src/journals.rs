//! Journals: one stream for each, and for each subject a list of its entry ids.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;
use steadfast_core::Timestamp;
use steadfast_store::{
    Journal, JournalEntry, JournalLimits, JournalPosition, JournalQuery, StoreError, SweepResult,
};

use crate::RedisInner;
use crate::link::CommandTarget;
use crate::script::RedisScript;

/// Adds entries. KEYS: the stream, and for each entry the list of its subject. ARGV: the most entries, the maximum
/// age in ms, the most of one subject, and for each entry time, subject, body.
const APPEND: &str = r"
local time = redis.call('TIME')
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[2])
redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f', math.max(oldest, 0)))
for i = 2, #KEYS do
  local at = 3 * i - 2
  local id = redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[1], '*', 'a', ARGV[at], 's', ARGV[at + 1], 'b', ARGV[at + 2])
  redis.call('RPUSH', KEYS[i], id)
  while redis.call('LLEN', KEYS[i]) > tonumber(ARGV[3]) do
    redis.call('XDEL', KEYS[1], redis.call('LPOP', KEYS[i]))
  end
  redis.call('LTRIM', KEYS[i], -1000, -1)
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
";

/// Returns the script that adds entries.
pub(crate) fn script() -> RedisScript {
    RedisScript::new(APPEND)
}

/// Entries that are written or read at once.
const BATCH: usize = 256;

/// Allowed lead of a writer's clock over the server's.
const CLOCK_LEAD: Duration = Duration::from_secs(60);

/// The latest limits of the journals.
#[derive(Debug, Default)]
pub(crate) struct KnownJournalLimits(Mutex<BTreeMap<Journal, JournalLimits>>);

impl RedisInner {
    pub(crate) async fn append(
        self: &Arc<Self>,
        journal: Journal,
        entries: &[JournalEntry],
        keep: JournalLimits,
    ) -> Result<(), StoreError> {
        self.limits.0.lock().insert(journal, keep);
        let (stream, age) = (self.names.journal(journal), steadfast_core::millis(keep.age).max(1));
        for entries in entries.chunks(BATCH) {
            self.evaluate(|reference| {
                let mut command = self.appending.command(reference, 8 + 4 * entries.len(), 4096);
                command.arg(entries.len() + 1).arg(&stream);
                for entry in entries {
                    command.arg(self.names.subject(journal, &entry.subject));
                }
                command.arg(keep.most).arg(age).arg(keep.most_per_subject.unwrap_or(u64::MAX));
                for JournalEntry { at, subject, body } in entries {
                    command.arg(at.as_millis()).arg(&**subject).arg(&**body);
                }
                command
            })
            .await?;
        }
        Ok(())
    }

    pub(crate) async fn entries(
        self: &Arc<Self>,
        query: &JournalQuery,
    ) -> Result<Vec<(JournalPosition, JournalEntry)>, StoreError> {
        match &query.subject {
            Some(subject) => self.entries_on(query, subject).await,
            None => self.entries_of_all(query).await,
        }
    }

    /// Trims journals by age. The server expires everything else.
    pub(crate) async fn sweep(self: &Arc<Self>) -> Result<SweepResult, StoreError> {
        let limits = self.limits.0.lock().clone();
        let mut removed = 0;
        for (journal, keep) in limits {
            let oldest = self.now().before(keep.age).as_millis();
            let mut command = redis::cmd("XTRIM");
            command.arg(self.names.journal(journal)).arg("MINID").arg(oldest);
            if let Value::Int(trimmed) = self.ask(&command, CommandTarget::Keys).await?.value {
                removed += u64::try_from(trimmed).unwrap_or(0);
            }
        }
        Ok(SweepResult { removed, more: false })
    }

    async fn entries_of_all(
        self: &Arc<Self>,
        query: &JournalQuery,
    ) -> Result<Vec<(JournalPosition, JournalEntry)>, StoreError> {
        let stream = self.names.journal(query.journal);
        // Ids are the server's time of the write. The clock of the writer may be a little ahead.
        let oldest = query.since.before(CLOCK_LEAD).as_millis();
        let mut found = Vec::new();
        let mut from = query.before.map_or_else(|| "+".to_owned(), |place| format!("({place}"));
        while found.len() < query.limit {
            let mut command = redis::cmd("XREVRANGE");
            command.arg(&stream).arg(&from).arg(oldest).arg("COUNT").arg(BATCH);
            let batch = read_batch(self.ask(&command, CommandTarget::Keys).await?.value)?;
            let Some(last) = batch.last else { break };
            from = format!("({last}");
            found.extend(batch.entries.into_iter().filter(|(_, entry)| entry.at >= query.since));
        }
        found.truncate(query.limit);
        Ok(found)
    }

    async fn entries_on(
        self: &Arc<Self>,
        query: &JournalQuery,
        subject: &str,
    ) -> Result<Vec<(JournalPosition, JournalEntry)>, StoreError> {
        let stream = self.names.journal(query.journal);
        let mut command = redis::cmd("LRANGE");
        command.arg(self.names.subject(query.journal, subject)).arg(0).arg(-1);
        let ids = self.ask(&command, CommandTarget::Keys).await?.value;
        let ids: Vec<String> = redis::from_redis_value(ids).map_err(|_| crate::unexpected_reply())?;
        let mut found = Vec::new();
        let ids = ids.iter().rev().filter_map(|id| id.parse::<JournalPosition>().ok());
        for id in ids.filter(|id| query.before.is_none_or(|behind| *id < behind)) {
            if found.len() >= query.limit {
                break;
            }
            let mut command = redis::cmd("XRANGE");
            command.arg(&stream).arg(id.to_string()).arg(id.to_string());
            let batch = read_batch(self.ask(&command, CommandTarget::Keys).await?.value)?;
            found.extend(batch.entries.into_iter().filter(|(_, entry)| entry.at >= query.since));
        }
        Ok(found)
    }
}

/// A part of a stream.
struct StreamBatch {
    entries: Vec<(JournalPosition, JournalEntry)>,
    /// The position of the last entry, or `None` if the batch is empty.
    last: Option<JournalPosition>,
}

/// Returns the entries with their ids, which are the positions. Skips foreign entries.
fn read_batch(value: Value) -> Result<StreamBatch, StoreError> {
    type RawStreamEntries = Vec<(String, Vec<String>)>;
    let raw: RawStreamEntries = redis::from_redis_value(value).map_err(|_| crate::unexpected_reply())?;
    let entry = |fields: &[String]| match fields {
        [a, at, s, subject, b, body] if (a.as_str(), s.as_str(), b.as_str()) == ("a", "s", "b") => {
            Some(JournalEntry {
                at: Timestamp::from_millis(at.parse().ok()?),
                subject: subject.as_str().into(),
                body: body.as_str().into(),
            })
        }
        _ => None,
    };
    let places = raw.iter().map(|(id, fields)| {
        Ok((id.parse::<JournalPosition>().map_err(|_| crate::unexpected_reply())?, fields))
    });
    let all = places.collect::<Result<Vec<_>, StoreError>>()?;
    let last = all.last().map(|(place, _)| *place);
    let entries = all.into_iter().filter_map(|(place, fields)| Some((place, entry(fields)?))).collect();
    Ok(StreamBatch { entries, last })
}
