//! The content of the file, as one transaction sees it.

use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimDecision, ClaimRole, ClaimVerdict, DedupeRecord, DedupeState, FoundRecords, Lease,
    LeaseOwnerState, LocalKnowledge, RecordLoss, RecordWrite, decide_claim,
};
use steadfast_core::id::Digest;
use steadfast_core::key::RecordKey;
use steadfast_store::{
    Document, DocumentKind, DocumentName, JournalEntry, JournalPosition, JournalQuery, RecordFilter,
    RecordPage, StoreErrorKind, loss_name,
};

use crate::columns::{signed, unsigned};
use crate::fault::SqliteFault;
use crate::followers::RecordHolder;
use crate::schema;
use crate::shared::SqliteShared;
use crate::state_file::SqliteOpenError;

/// A consistent view of the file.
#[derive(Clone, Copy)]
pub(crate) struct FileView<'c> {
    pub(crate) sql: &'c Connection,
    pub(crate) shared: &'c SqliteShared,
}

/// A record with its row id.
#[derive(Clone, Debug)]
pub(crate) struct RecordRow {
    pub(crate) id: i64,
    pub(crate) record: Arc<DedupeRecord>,
}

/// The data from which the number of records is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordIds {
    /// The greatest id that a record ever had.
    pub(crate) last: i64,
    /// Number of removed records.
    pub(crate) removed: i64,
}

impl RecordIds {
    pub(crate) fn records(self) -> u64 {
        unsigned(self.last.saturating_sub(self.removed))
    }
}

impl RecordHolder {
    /// Returns true if the record is still in flight with a live owner, provided that it was not written since.
    pub(crate) fn holds(&self, shared: &SqliteShared) -> bool {
        let now = shared.clock.now();
        let alive = match (shared.sight.check_process(&self.process), self.lease) {
            (LeaseOwnerState::Alive, _) | (LeaseOwnerState::Time, Lease::Record) => true,
            (LeaseOwnerState::Gone, _) => false,
            (LeaseOwnerState::Time, Lease::Until(until)) => now < until,
        };
        alive && self.expires.is_none_or(|expires| now < expires)
    }
}

/// The records that a claim finds.
#[derive(Debug, Default)]
pub(crate) struct ClaimRecords {
    pub(crate) followed: Option<RecordRow>,
    pub(crate) own: Option<RecordRow>,
    pub(crate) indexed: Option<RecordRow>,
}

impl<'c> FileView<'c> {
    pub(crate) fn statement(&self, sql: &str) -> Result<CachedStatement<'c>, SqliteFault> {
        Ok(self.sql.prepare_cached(sql)?)
    }

    /// Checks the version of the file. A newer program may have migrated it while it was open here, and then the
    /// columns may have another meaning. Call it inside a transaction.
    pub(crate) fn check_format(&self) -> Result<(), SqliteFault> {
        let found: i64 = self.statement("PRAGMA user_version")?.query_row([], |row| row.get(0))?;
        if usize::try_from(found) == Ok(schema::VERSION) {
            return Ok(());
        }
        let newer = SqliteOpenError::Newer { path: self.shared.place.path.clone(), found };
        Err(SqliteFault::Other(StoreErrorKind::Unreadable, newer.to_string()))
    }

    pub(crate) fn load(&self, key: RecordKey) -> Result<Option<RecordRow>, SqliteFault> {
        let mut find = self.statement("SELECT id, key, body FROM record WHERE key = ?1")?;
        find.query_row([key.0.as_bytes()], |row| Ok(self.stored(row))).optional()?.transpose()
    }

    /// Returns the record that an index entry points to.
    pub(crate) fn indexed(&self, entry: Option<RecordKey>) -> Result<Option<RecordRow>, SqliteFault> {
        let Some(entry) = entry else { return Ok(None) };
        let mut find = self.statement("SELECT key FROM pointer WHERE entry = ?1")?;
        let found = find.query_row([entry.0.as_bytes()], |row| row.get::<_, [u8; 32]>(0)).optional()?;
        found.map_or(Ok(None), |key| self.load(RecordKey(Digest::from_bytes(key))))
    }

    pub(crate) fn places(&self, claim: &Claim) -> Result<ClaimRecords, SqliteFault> {
        let followed = match claim.role {
            ClaimRole::Waiter { followed } => self.load(followed)?,
            ClaimRole::Fresh => None,
        };
        let own = self.load(claim.address.own())?;
        Ok(ClaimRecords { followed, own, indexed: self.indexed(claim.address.index())? })
    }

    pub(crate) fn decide_claim(
        &self,
        claim: &Claim,
        known: &LocalKnowledge,
        places: &ClaimRecords,
        now: Timestamp,
    ) -> ClaimDecision {
        let see = |stored: &'_ Option<RecordRow>| {
            stored.as_ref().map(|stored| self.shared.sight.check_process(&stored.record.owner.process))
        };
        let with_owner_state = |stored| Option::zip(record(stored), see(stored));
        let found = FoundRecords {
            followed: with_owner_state(&places.followed),
            own: with_owner_state(&places.own),
            indexed: with_owner_state(&places.indexed),
        };
        decide_claim(claim, found, known, now)
    }

    /// Returns the verdict for a claim, unless it needs a write.
    pub(crate) fn claim_verdict(
        &self,
        claim: &Claim,
        known: &LocalKnowledge,
    ) -> Result<Option<ClaimVerdict>, SqliteFault> {
        let places = self.places(claim)?;
        let decided = self.decide_claim(claim, known, &places, self.shared.clock.now());
        Ok(match decided.write {
            RecordWrite::Nothing => Some(decided.verdict),
            RecordWrite::Put { .. } | RecordWrite::Remove { .. } => None,
        })
    }

    /// Returns the owner of the record under this key, or `None` if it is settled.
    pub(crate) fn holder(&self, key: RecordKey) -> Result<Option<RecordHolder>, SqliteFault> {
        let Some(RecordRow { record, .. }) = self.load(key)? else { return Ok(None) };
        match record.state {
            DedupeState::Inflight => {}
            DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Unknown(_)
            | DedupeState::Cancelled => {
                return Ok(None);
            }
        }
        let holder = RecordHolder {
            process: record.owner.process.clone(),
            lease: record.lease,
            expires: record.expires,
            version: record.version,
        };
        Ok(holder.holds(self.shared).then_some(holder))
    }

    /// Returns the version of the record under this key, without decoding it.
    pub(crate) fn version(&self, key: RecordKey) -> Result<Option<u64>, SqliteFault> {
        let mut find = self.statement("SELECT version FROM record WHERE key = ?1")?;
        Ok(find.query_row([key.0.as_bytes()], |row| row.get(0)).optional()?.map(unsigned))
    }

    pub(crate) fn record(&self, key: RecordKey) -> Result<Option<DedupeRecord>, SqliteFault> {
        let now = self.shared.clock.now();
        let found = self.load(key)?.map(|stored| Arc::unwrap_or_clone(stored.record));
        Ok(found.filter(|record| !record.is_expired(now)))
    }

    /// Returns records for an operator. Unreadable records are skipped and logged, so that they do not hide the
    /// others. If no record is readable, the reason is the same for all of them, and returned as an error.
    pub(crate) fn records(
        &self,
        selection: &RecordFilter,
        page: RecordPage,
    ) -> Result<Vec<DedupeRecord>, SqliteFault> {
        // Without a limit in SQL: a page that is not full would count as the last one.
        let mut find = self.statement(&format!(
            "SELECT id, key, body FROM record WHERE key > ?1 AND {SELECTED} AND ?7 > 0 ORDER BY key"
        ))?;
        let SelectionParams { namespace, tool, session, tenant } = selected(selection);
        let after: &[u8] = page.after.as_ref().map_or(&[], |key| key.0.as_bytes());
        let (now, limit) =
            (signed(self.shared.clock.now().as_millis()), page.limit.try_into().unwrap_or(i64::MAX));
        let mut rows =
            find.query(params![after, namespace, tool, session, tenant, now, limit, selection.open])?;
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        while records.len() < page.limit
            && let Some(row) = rows.next()?
        {
            match self.stored(row) {
                Ok(stored) => records.push(Arc::unwrap_or_clone(stored.record)),
                Err(fault @ SqliteFault::Record(..)) => unreadable.push(fault),
                Err(fault @ (SqliteFault::Sql(_) | SqliteFault::Other(..))) => return Err(fault),
            }
        }
        let passed_over = unreadable.len();
        match unreadable.into_iter().next() {
            Some(fault) if records.is_empty() && page.after.is_none() => Err(fault),
            Some(fault) => {
                let error = fault.not_done(&self.shared.place.path);
                tracing::warn!(event = "store.unreadable", records = passed_over, "why" = %error, "they are left out of a list");
                Ok(records)
            }
            None => Ok(records),
        }
    }

    /// Returns keys and versions of finished records, ordered by key.
    pub(crate) fn finished(
        &self,
        selection: &RecordFilter,
        after: Option<RecordKey>,
        limit: usize,
    ) -> Result<Vec<(RecordKey, u64)>, SqliteFault> {
        let mut find = self.statement(&format!(
            "SELECT key, version FROM record WHERE key > ?1 AND {SELECTED} AND NOT open ORDER BY key LIMIT ?7"
        ))?;
        let SelectionParams { namespace, tool, session, tenant } = selected(selection);
        let after: &[u8] = after.as_ref().map_or(&[], |key| key.0.as_bytes());
        let (now, limit) = (signed(self.shared.clock.now().as_millis()), signed(limit as u64));
        let rows = find.query_map(
            params![after, namespace, tool, session, tenant, now, limit, selection.open],
            |row| Ok((RecordKey(Digest::from_bytes(row.get(0)?)), unsigned(row.get(1)?))),
        )?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    pub(crate) fn read(&self, name: &DocumentName) -> Result<Option<Document>, SqliteFault> {
        let mut find = self.statement(
            "SELECT version, body FROM document
             WHERE kind = ?1 AND id = ?2 AND body IS NOT NULL AND (expires IS NULL OR expires > ?3)",
        )?;
        let now = signed(self.shared.clock.now().as_millis());
        Ok(find.query_row(params![name.kind.name(), &*name.id, now], document).optional()?)
    }

    /// Returns the loss of records that no operator has accepted.
    pub(crate) fn record_loss(&self) -> Result<Option<RecordLoss>, SqliteFault> {
        let unreadable = || {
            SqliteFault::Other(
                StoreErrorKind::Unreadable,
                "the description of the lost records cannot be read".into(),
            )
        };
        let found = self.read(&loss_name())?;
        found.map(|document| RecordLoss::from_text(&document.body).ok_or_else(unreadable)).transpose()
    }

    pub(crate) fn documents(&self, kind: DocumentKind) -> Result<Vec<(DocumentName, Document)>, SqliteFault> {
        let mut find = self.statement(
            "SELECT version, body, id FROM document
             WHERE kind = ?1 AND body IS NOT NULL AND (expires IS NULL OR expires > ?2) ORDER BY id",
        )?;
        let now = signed(self.shared.clock.now().as_millis());
        let rows = find.query_map(params![kind.name(), now], |row| {
            Ok((DocumentName { kind, id: row.get::<_, String>(2)?.into() }, document(row)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the documents that others wrote or removed after the one with this version, and the newest version.
    pub(crate) fn documents_since(&self, version: u64) -> Result<(Vec<DocumentName>, u64), SqliteFault> {
        let mut find = self.statement(
            "SELECT kind, id, version, writer FROM document WHERE version > ?1 ORDER BY version LIMIT 256",
        )?;
        let mut rows = find.query([signed(version)])?;
        let (mut names, mut newest) = (Vec::new(), version);
        while let Some(row) = rows.next()? {
            newest = unsigned(row.get(2)?);
            let kind = DocumentKind::from_name(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?);
            if let Some(kind) = kind
                && row.get::<_, i64>(3)? != self.shared.handle
            {
                names.push(DocumentName { kind, id: row.get::<_, String>(1)?.into() });
            }
        }
        Ok((names, newest))
    }

    pub(crate) fn entries(
        &self,
        query: &JournalQuery,
    ) -> Result<Vec<(JournalPosition, JournalEntry)>, SqliteFault> {
        // Without a subject the primary key has the order. With one, its index has it.
        let mut find = self.statement(match query.subject {
            None => {
                "SELECT at, subject, body, seq FROM entry
                 WHERE journal = ?1 AND seq < ?5 AND at >= ?2 AND ?4 IS NULL ORDER BY seq DESC LIMIT ?3"
            }
            Some(_) => {
                "SELECT at, subject, body, seq FROM entry
                 WHERE journal = ?1 AND seq < ?5 AND at >= ?2 AND subject = ?4 ORDER BY seq DESC LIMIT ?3"
            }
        })?;
        let (since, limit) = (signed(query.since.as_millis()), query.limit.try_into().unwrap_or(i64::MAX));
        let behind = query.before.map_or(i64::MAX, |JournalPosition(number, _)| signed(number));
        let (journal, subject) = (query.journal.name(), query.subject.as_deref());
        let rows = find.query_map(params![journal, since, limit, subject, behind], |row| {
            let entry = JournalEntry {
                at: Timestamp::from_millis(unsigned(row.get(0)?)),
                subject: row.get::<_, String>(1)?.into(),
                body: row.get::<_, String>(2)?.into(),
            };
            Ok((JournalPosition(unsigned(row.get(3)?), 0), entry))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns expired open records, up to `most`, among the next portion after this id, and the id after which to
    /// continue. They are rare and not urgent. So they are searched for in portions, rather than kept in an index
    /// that every claim and every save would have to write.
    pub(crate) fn expired(&self, after: i64, most: u64) -> Result<(Vec<RecordKey>, i64), SqliteFault> {
        let mut find =
            self.statement("SELECT id, key, open, expires FROM record WHERE id > ?1 ORDER BY id LIMIT ?2")?;
        let mut rows = find.query(params![after, signed(PORTION)])?;
        let now = signed(self.shared.clock.now().as_millis());
        let (mut expired, mut scanned, mut last) = (Vec::new(), 0, 0);
        while let Some(row) = rows.next()? {
            (scanned, last) = (scanned + 1, row.get(0)?);
            if row.get(2)? && row.get::<_, Option<i64>>(3)?.is_some_and(|expires| expires <= now) {
                expired.push(RecordKey(Digest::from_bytes(row.get(1)?)));
                if expired.len() as u64 >= most {
                    return Ok((expired, last));
                }
            }
        }
        Ok((expired, if scanned < PORTION { 0 } else { last }))
    }

    pub(crate) fn ids(&self) -> Result<RecordIds, SqliteFault> {
        let mut find = self.statement(
            "SELECT max(coalesce((SELECT max(id) FROM record), 0),
                        (SELECT value FROM meta WHERE name = 'last_removed')),
                    (SELECT value FROM meta WHERE name = 'removed')",
        )?;
        Ok(find.query_row([], |row| Ok(RecordIds { last: row.get(0)?, removed: row.get(1)? }))?)
    }

    fn stored(&self, row: &Row<'_>) -> Result<RecordRow, SqliteFault> {
        let key = RecordKey(Digest::from_bytes(row.get(1)?));
        let body = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
        Ok(RecordRow { id: row.get(0)?, record: Arc::new(self.decode(key, body)?) })
    }

    pub(crate) fn decode(&self, key: RecordKey, body: &[u8]) -> Result<DedupeRecord, SqliteFault> {
        self.shared.codec.decode(key, body).map_err(|error| SqliteFault::Record(key, error))
    }
}

pub(crate) fn record(stored: &Option<RecordRow>) -> Option<&DedupeRecord> {
    stored.as_ref().map(|stored| &*stored.record)
}

/// Number of records that one search for expired ones reads.
const PORTION: u64 = 2000;

const SELECTED: &str = "(?2 IS NULL OR namespace = ?2 AND tool = ?3) AND (?4 IS NULL OR session = ?4)
    AND (?5 IS NULL OR tenant = ?5) AND (expires IS NULL OR expires > ?6) AND (NOT ?8 OR open)";

struct SelectionParams<'s> {
    namespace: Option<&'s str>,
    tool: Option<&'s str>,
    session: Option<&'s str>,
    tenant: Option<&'s str>,
}

fn selected(selection: &RecordFilter) -> SelectionParams<'_> {
    SelectionParams {
        namespace: selection.tool.as_ref().map(|tool| tool.namespace.as_str()),
        tool: selection.tool.as_ref().map(|tool| tool.tool.as_str()),
        session: selection.session.as_ref().map(|session| session.as_str()),
        tenant: selection.tenant.as_ref().map(|tenant| tenant.as_str()),
    }
}

fn document(row: &Row<'_>) -> rusqlite::Result<Document> {
    Ok(Document { version: unsigned(row.get(0)?), body: row.get::<_, String>(1)?.into() })
}
