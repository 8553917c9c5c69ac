//! One transaction of the writer: operations that see each other's writes, and are committed together.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, params};
use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimOwner, ClaimVerdict, Commit, DedupeDecision, DedupeRecord, DedupeRules, DedupeState,
    DeliveryReceipt, IndexUpdate, LocalKnowledge, RecordWrite, ReleaseRequest, RenewVerdict,
    ResolutionRequest, ResolveVerdict, SaveRequest, SaveVerdict, StartVerdict, decide_abandoned,
    decide_delivered, decide_release, decide_renew, decide_resolve, decide_save, decide_start,
};
use steadfast_core::id::Digest;
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, Journal, JournalEntry, JournalLimits,
    StoreErrorKind, SweepResult,
};

use crate::columns::{last_commit, signed, unsigned};
use crate::fault::SqliteFault;
use crate::queue::QueueLane;
use crate::recent_records::RecentRecords;
use crate::shared::WriterStep;
use crate::state_file::CommitLossPolicy;
use crate::view::{ClaimRecords, FileView, RecordIds, RecordRow, record};

/// A transaction that may write.
pub(crate) struct WriteTransaction<'c> {
    view: FileView<'c>,
    recent: &'c mut RecentRecords,
    /// Number of statements that changed the file.
    writes: u64,
    /// The data for the number of records, with the changes of this transaction. Read when needed.
    ids: Option<RecordIds>,
    /// Number of removed records, and the greatest id among them.
    removed: (i64, i64),
    /// Records whose followers must be woken.
    settled: Vec<RecordKey>,
    /// True if the loss of records was accepted.
    accepts_loss: bool,
}

/// The effects of a transaction that is about to be committed.
pub(crate) struct TransactionEffects {
    /// Records whose followers must be woken.
    pub(crate) settled: Vec<RecordKey>,
    /// The commit, if it must be durable.
    pub(crate) commit: Option<Commit>,
    /// True if it accepts the loss of records.
    pub(crate) accepts_loss: bool,
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TxWriteOutcome {
    Out,
    NoRoom,
}

/// The most documents. There are far fewer breakers, tenants and sessions.
const MOST_DOCUMENTS: u64 = 100_000;
/// Time that a removed document is kept as removed, so that other processes see the removal.
const REMOVED: Duration = Duration::from_secs(600);
/// The most that one sweep removes of each kind.
pub(crate) const SWEEP: u64 = 500;

impl<'c> Deref for WriteTransaction<'c> {
    type Target = FileView<'c>;

    fn deref(&self) -> &FileView<'c> {
        &self.view
    }
}

impl<'c> WriteTransaction<'c> {
    pub(crate) fn new(view: FileView<'c>, recent: &'c mut RecentRecords) -> Self {
        Self { view, recent, writes: 0, ids: None, removed: (0, 0), settled: Vec::new(), accepts_loss: false }
    }

    /// Returns the number of writes so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// The last step before the commit. A synced commit gets a number. One that is not synced may be lost in a power
    /// cut, and is not missed.
    pub(crate) fn finish(self, lane: QueueLane) -> Result<TransactionEffects, SqliteFault> {
        let (removed, last) = self.removed;
        if removed != 0 {
            self.shared.step(WriterStep::Write);
            self.statement(
                "UPDATE meta SET value = CASE name WHEN 'removed' THEN value + ?1 ELSE max(value, ?2) END
                 WHERE name IN ('removed', 'last_removed')",
            )?
            .execute([removed, last])?;
        }
        let commit = match lane {
            QueueLane::Soon => Some(self.count_commit()?),
            QueueLane::Later => None,
        };
        Ok(TransactionEffects { settled: self.settled, commit, accepts_loss: self.accepts_loss })
    }

    fn count_commit(&self) -> Result<Commit, SqliteFault> {
        let at = self.shared.clock.now();
        self.shared.step(WriterStep::Write);
        self.statement(
            "UPDATE meta SET value = CASE name WHEN 'commits' THEN value + 1 ELSE ?1 END
             WHERE name IN ('commits', 'committed')",
        )?
        .execute([signed(at.as_millis())])?;
        Ok(last_commit(self.sql)?)
    }

    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        known: &LocalKnowledge,
    ) -> Result<ClaimVerdict, SqliteFault> {
        let now = self.shared.clock.now();
        let places = self.places(claim)?;
        let decided = self.decide_claim(claim, known, &places, now);
        let again = found(&places).any(|stored| stored.record.owner == claim.owner);
        let new = matches!(decided.verdict, ClaimVerdict::Acquired(_)) && !again;
        let refuses = self.shared.place.on_loss == CommitLossPolicy::RefuseKeyed;
        if new && refuses && self.record_loss()?.is_some_and(|loss| loss.refuses(claim, now)) {
            return Ok(ClaimVerdict::RecordsLost);
        }
        if new && !self.shared.admits(claim.retry_safe, now) {
            return Ok(ClaimVerdict::StoreRecovering);
        }
        Ok(match self.carry_out(decided.write, found(&places))? {
            TxWriteOutcome::Out => decided.verdict,
            TxWriteOutcome::NoRoom => ClaimVerdict::Full,
        })
    }

    pub(crate) fn start(&mut self, key: RecordKey, owner: &ClaimOwner) -> Result<StartVerdict, SqliteFault> {
        let own = self.load(key)?;
        let decided = decide_start(owner, record(&own), self.shared.clock.now());
        self.decided(decided, own.iter())
    }

    pub(crate) fn renew(
        &mut self,
        claimed: &DedupeRecord,
        keep: &RecordLifetimes,
    ) -> Result<RenewVerdict, SqliteFault> {
        let now = self.shared.clock.now();
        let own = self.load(claimed.key)?;
        let decided = decide_renew(claimed, keep, record(&own), self.shared.absence(now), now);
        self.decided(decided, own.iter())
    }

    pub(crate) fn save(&mut self, save: &SaveRequest) -> Result<SaveVerdict, SqliteFault> {
        let own = self.load(save.claimed.key)?;
        let indexed = self.indexed(save.claimed.index)?;
        let decided = decide_save(save, record(&own), record(&indexed), self.shared.clock.now());
        self.decided(decided, own.iter().chain(&indexed))
    }

    pub(crate) fn release(&mut self, release: &ReleaseRequest) -> Result<(), SqliteFault> {
        let own = self.load(release.key)?;
        let indexed = self.indexed(release.index)?;
        let write = decide_release(release, record(&own), record(&indexed));
        self.decided(DedupeDecision { verdict: (), write }, own.iter().chain(&indexed))
    }

    pub(crate) fn delivered(&mut self, receipt: &DeliveryReceipt, at: Timestamp) -> Result<(), SqliteFault> {
        let own = self.load(receipt.key)?;
        let write = decide_delivered(receipt, at, record(&own));
        self.decided(DedupeDecision { verdict: (), write }, own.iter())
    }

    pub(crate) fn resolve(
        &mut self,
        resolve: &ResolutionRequest,
        rules: &DedupeRules,
    ) -> Result<ResolveVerdict, SqliteFault> {
        let own = self.load(resolve.key)?;
        let found =
            record(&own).map(|record| (record, self.shared.sight.check_process(&record.owner.process)));
        let decided = decide_resolve(resolve, found, rules, self.shared.clock.now());
        self.decided(decided, own.iter())
    }

    pub(crate) fn mark_abandoned(
        &mut self,
        key: RecordKey,
        rules: &DedupeRules,
    ) -> Result<Option<Arc<DedupeRecord>>, SqliteFault> {
        let own = self.load(key)?;
        let found =
            record(&own).map(|record| (record, self.shared.sight.check_process(&record.owner.process)));
        let decided = decide_abandoned(found, rules, self.shared.clock.now());
        self.decided(decided, own.iter())
    }

    /// Removes a record in any state. Returns true if it existed.
    pub(crate) fn remove(&mut self, key: RecordKey) -> Result<bool, SqliteFault> {
        self.writes += 1;
        self.shared.step(WriterStep::Write);
        let mut delete = self.statement("DELETE FROM record WHERE key = ?1 RETURNING id, entry")?;
        let removed_row = delete
            .query_row([key.0.as_bytes()], |row| Ok((row.get(0)?, row.get::<_, Option<[u8; 32]>>(1)?)))
            .optional()?;
        let Some((id, entry)) = removed_row else { return Ok(false) };
        let (removed, last) = self.removed;
        self.removed = (removed + 1, last.max(id));
        if let Some(ids) = &mut self.ids {
            ids.removed += 1;
        }
        self.recent.forget(&key);
        self.settled.push(key);
        if let Some(entry) = entry {
            self.unpoint(RecordKey(Digest::from_bytes(entry)), key)?;
        }
        Ok(true)
    }

    /// Removes finished records that have not been written since. Returns their number.
    pub(crate) fn remove_finished(&mut self, records: &[(RecordKey, u64)]) -> Result<u64, SqliteFault> {
        let mut removed = 0;
        for &(key, version) in records {
            let mut find =
                self.statement("SELECT 1 FROM record WHERE key = ?1 AND version = ?2 AND NOT open")?;
            if find.exists(params![key.0.as_bytes(), signed(version)])? {
                removed += u64::from(self.remove(key)?);
            }
        }
        Ok(removed)
    }

    /// Removes expired records, documents and entries, and finished records if there are too many. Open records with
    /// these keys are removed if they have expired.
    pub(crate) fn sweep(&mut self, open: &[RecordKey]) -> Result<SweepResult, SqliteFault> {
        let now = signed(self.shared.clock.now().as_millis());
        let finished = self.keys(
            "SELECT key FROM record WHERE open = 0 AND expires <= ?1 ORDER BY expires LIMIT ?2",
            params![now, signed(SWEEP)],
        )?;
        let mut portions = vec![self.remove_all(&finished)?];
        let mut expired = 0;
        for key in open {
            let mut find =
                self.statement("SELECT 1 FROM record WHERE key = ?1 AND open <> 0 AND expires <= ?2")?;
            if find.exists(params![key.0.as_bytes(), now])? {
                expired += u64::from(self.remove(*key)?);
            }
        }
        portions.extend([expired, self.sweep_documents(now)?]);
        for journal in Journal::ALL {
            portions.push(self.trim(journal, SWEEP)?);
        }
        let bounds = self.shared.bounds;
        let surplus = self.ids()?.records().saturating_sub(bounds.records);
        let surplus = if self.used_bytes()? > bounds.bytes { SWEEP } else { surplus.min(SWEEP) };
        portions.push(if surplus > 0 { self.evict(surplus)? } else { 0 });
        // A full portion may be all there was. The next sweep will find out.
        Ok(SweepResult { removed: portions.iter().sum(), more: portions.contains(&SWEEP) })
    }

    pub(crate) fn write(
        &mut self,
        name: &DocumentName,
        write: &DocumentWrite,
    ) -> Result<DocumentWriteOutcome, SqliteFault> {
        let current = self.read(name)?;
        if current.as_ref().map(|document| document.version) != write.replaces {
            return Ok(DocumentWriteOutcome::Stale(current));
        }
        if write.body.is_some() && current.is_none() && self.count_documents()? >= MOST_DOCUMENTS {
            return Err(SqliteFault::Other(
                StoreErrorKind::Full,
                "the state file is full of documents".into(),
            ));
        }
        self.accepts_loss |= name.kind == DocumentKind::Loss && write.body.is_none();
        self.writes += 1;
        self.shared.step(WriterStep::Write);
        let mut count =
            self.statement("UPDATE meta SET value = value + 1 WHERE name = 'document' RETURNING value")?;
        let version: i64 = count.query_row([], |row| row.get(0))?;
        let expires = match write.body {
            Some(_) => write.expires,
            None => Some(self.shared.clock.now() + REMOVED),
        };
        let expires = expires.map(|expires| signed(expires.as_millis()));
        self.shared.step(WriterStep::Write);
        self.statement(
            "INSERT INTO document (kind, id, version, expires, writer, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (kind, id) DO UPDATE
             SET version = ?3, expires = ?4, writer = ?5, body = ?6",
        )?
        .execute(params![
            name.kind.name(),
            &*name.id,
            version,
            expires,
            self.shared.handle,
            write.body.as_deref()
        ])?;
        Ok(DocumentWriteOutcome::Written(unsigned(version)))
    }

    pub(crate) fn append(
        &mut self,
        journal: Journal,
        entries: &[JournalEntry],
        keep: JournalLimits,
    ) -> Result<(), SqliteFault> {
        self.writes += 1;
        self.shared.step(WriterStep::Write);
        let age = signed(steadfast_core::millis(keep.age));
        let count = signed(entries.len() as u64);
        let mut reserve = self.statement(
            "INSERT INTO journal (name, next, most, age) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (name) DO UPDATE SET next = next + ?2, most = ?3, age = ?4 RETURNING next",
        )?;
        let next: i64 =
            reserve.query_row(params![journal.name(), count, signed(keep.most), age], |row| row.get(0))?;
        let mut insert = self
            .statement("INSERT INTO entry (journal, seq, at, subject, body) VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for (seq, entry) in (next - count..next).zip(entries) {
            self.shared.step(WriterStep::Write);
            let at = signed(entry.at.as_millis());
            insert.execute(params![journal.name(), seq, at, &*entry.subject, &*entry.body])?;
        }
        if let Some(most) = keep.most_per_subject {
            let subjects: BTreeSet<&str> = entries.iter().map(|entry| &*entry.subject).collect();
            let mut trim = self.statement(
                "DELETE FROM entry WHERE journal = ?1 AND subject = ?2 AND seq <= (SELECT seq FROM entry
                 WHERE journal = ?1 AND subject = ?2 ORDER BY seq DESC LIMIT 1 OFFSET ?3)",
            )?;
            for subject in subjects {
                trim.execute(params![journal.name(), subject, signed(most)])?;
            }
        }
        self.trim(journal, SWEEP.max(2 * entries.len() as u64))?;
        Ok(())
    }

    /// Writes a decision that always has room, or for which a lack of room is an error.
    fn decided<'s, V>(
        &mut self,
        decided: DedupeDecision<V>,
        found: impl Iterator<Item = &'s RecordRow>,
    ) -> Result<V, SqliteFault> {
        match self.carry_out(decided.write, found)? {
            TxWriteOutcome::Out => Ok(decided.verdict),
            TxWriteOutcome::NoRoom => Err(SqliteFault::Other(
                StoreErrorKind::Full,
                "the state file is full of calls in flight".into(),
            )),
        }
    }

    /// Executes the decision of a table.
    fn carry_out<'s>(
        &mut self,
        write: RecordWrite,
        mut found: impl Iterator<Item = &'s RecordRow>,
    ) -> Result<TxWriteOutcome, SqliteFault> {
        match write {
            RecordWrite::Nothing => {}
            // The row contains the key of the index entry that may point to it.
            RecordWrite::Remove { key, index: _ } => {
                self.remove(key)?;
            }
            RecordWrite::Put { record, index, remove } => {
                let before = found.find(|stored| stored.record.key == record.key);
                if before.is_none() && remove.is_empty() && !self.has_room()? {
                    return Ok(TxWriteOutcome::NoRoom);
                }
                for removed in remove {
                    self.remove(removed)?;
                }
                self.put(&record, before)?;
                let points = match index {
                    IndexUpdate::Keep => false,
                    IndexUpdate::Point => true,
                    IndexUpdate::PointIfFree => self.indexed(record.index)?.is_none(),
                };
                if let Some(entry) = record.index
                    && points
                {
                    self.point(entry, record.key)?;
                }
            }
        }
        Ok(TxWriteOutcome::Out)
    }

    fn put(&mut self, record: &Arc<DedupeRecord>, before: Option<&RecordRow>) -> Result<(), SqliteFault> {
        self.writes += 1;
        self.shared.step(WriterStep::Write);
        let body = self.shared.codec.encode(record);
        let id = match before {
            Some(stored) => stored.id,
            None => {
                let ids = self.ids()?;
                let last = ids.last + 1;
                self.ids = Some(RecordIds { last, ..ids });
                last
            }
        };
        let values = params![
            id,
            record.key.0.as_bytes(),
            record.index.as_ref().map(|entry| entry.0.as_bytes()),
            record.is_open(),
            record.expires.map(|expires| signed(expires.as_millis())),
            signed(record.version),
            record.tool.namespace.as_str(),
            record.tool.tool.as_str(),
            record.session.as_ref().map(|session| session.as_str()),
            record.tenant.as_ref().map(|tenant| tenant.as_str()),
            &body
        ];
        match before {
            None => {
                self.statement(
                    "INSERT INTO record
                     (id, key, entry, open, expires, version, namespace, tool, session, tenant, body)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                )?
                .execute(values)?;
            }
            Some(stored) => {
                self.statement(
                    "UPDATE record SET entry = ?3, open = ?4, expires = ?5, version = ?6, namespace = ?7,
                     tool = ?8, session = ?9, tenant = ?10, body = ?11 WHERE id = ?1 AND key = ?2",
                )?
                .execute(values)?;
                // A call id with other arguments leaves its old index entry.
                if let Some(old) = stored.record.index.filter(|old| Some(*old) != record.index) {
                    self.unpoint(old, record.key)?;
                }
            }
        }
        match record.state {
            DedupeState::Inflight => self.recent.put(record.clone(), body),
            DedupeState::Done(_)
            | DedupeState::Failed(_)
            | DedupeState::Unknown(_)
            | DedupeState::Cancelled => {
                self.recent.forget(&record.key);
                self.settled.push(record.key);
            }
        }
        Ok(())
    }

    fn point(&mut self, entry: RecordKey, key: RecordKey) -> Result<(), SqliteFault> {
        self.writes += 1;
        self.shared.step(WriterStep::Write);
        self.statement(
            "INSERT INTO pointer (entry, key) VALUES (?1, ?2) ON CONFLICT (entry) DO UPDATE SET key = ?2",
        )?
        .execute(params![entry.0.as_bytes(), key.0.as_bytes()])?;
        Ok(())
    }

    fn unpoint(&mut self, entry: RecordKey, key: RecordKey) -> Result<(), SqliteFault> {
        self.writes += 1;
        self.shared.step(WriterStep::Write);
        self.statement("DELETE FROM pointer WHERE entry = ?1 AND key = ?2")?
            .execute(params![entry.0.as_bytes(), key.0.as_bytes()])?;
        Ok(())
    }

    /// Returns true if there is room for one more record, after evicting finished ones if needed.
    fn has_room(&mut self) -> Result<bool, SqliteFault> {
        let (count, most) = (self.ids()?.records(), self.shared.bounds.records);
        if count < most {
            return Ok(true);
        }
        // Some more than needed, so that not every claim has to evict.
        let evicted = self.evict((most / 64).clamp(1, SWEEP) + (count - most))?;
        Ok(evicted > count - most)
    }

    /// Returns the data for the number of records.
    fn ids(&mut self) -> Result<RecordIds, SqliteFault> {
        if let Some(ids) = self.ids {
            return Ok(ids);
        }
        let RecordIds { last, removed } = self.view.ids()?;
        let (pending_removed, last_removed) = self.removed;
        Ok(*self.ids.insert(RecordIds { last: last.max(last_removed), removed: removed + pending_removed }))
    }

    /// Returns the record under this key. A record that this thread wrote last is not decoded again.
    fn load(&self, key: RecordKey) -> Result<Option<RecordRow>, SqliteFault> {
        let mut find = self.statement("SELECT id, body FROM record WHERE key = ?1")?;
        let mut rows = find.query([key.0.as_bytes()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let body = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
        let record = match self.recent.get(&key, body) {
            Some(record) => record,
            None => Arc::new(self.decode(key, body)?),
        };
        Ok(Some(RecordRow { id: row.get(0)?, record }))
    }

    /// Evicts finished records, those with the earliest expiry first.
    fn evict(&mut self, most: u64) -> Result<u64, SqliteFault> {
        let first = self.keys(
            "SELECT key FROM record WHERE open = 0 ORDER BY expires LIMIT ?1",
            params![signed(most.min(2 * SWEEP))],
        )?;
        self.remove_all(&first)
    }

    fn remove_all(&mut self, keys: &[RecordKey]) -> Result<u64, SqliteFault> {
        let mut removed = 0;
        for key in keys {
            removed += u64::from(self.remove(*key)?);
        }
        Ok(removed)
    }

    fn keys(&self, sql: &str, params: impl rusqlite::Params) -> Result<Vec<RecordKey>, SqliteFault> {
        let mut find = self.statement(sql)?;
        let keys = find.query_map(params, |row| Ok(RecordKey(Digest::from_bytes(row.get(0)?))))?;
        Ok(keys.collect::<Result<_, _>>()?)
    }

    fn used_bytes(&self) -> Result<u64, SqliteFault> {
        let number = |sql: &str| -> Result<u64, SqliteFault> {
            Ok(unsigned(self.statement(sql)?.query_row([], |row| row.get(0))?))
        };
        let pages = number("PRAGMA page_count")?.saturating_sub(number("PRAGMA freelist_count")?);
        Ok(pages.saturating_mul(number("PRAGMA page_size")?))
    }

    fn count_documents(&self) -> Result<u64, SqliteFault> {
        let mut count = self.statement("SELECT count(*) FROM document")?;
        Ok(unsigned(count.query_row([], |row| row.get(0))?))
    }

    fn sweep_documents(&mut self, now: i64) -> Result<u64, SqliteFault> {
        let mut find =
            self.statement("SELECT kind, id FROM document WHERE expires <= ?1 ORDER BY expires LIMIT ?2")?;
        let expired = find
            .query_map(params![now, signed(SWEEP)], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })?
            .collect::<Result<Vec<_>, _>>()?;
        for (kind, id) in &expired {
            self.writes += 1;
            self.shared.step(WriterStep::Write);
            self.statement("DELETE FROM document WHERE kind = ?1 AND id = ?2")?.execute(params![kind, id])?;
        }
        Ok(expired.len() as u64)
    }

    /// Removes the oldest entries of a journal that are too many or too old, up to `most`.
    fn trim(&mut self, journal: Journal, most: u64) -> Result<u64, SqliteFault> {
        let mut find = self.statement("SELECT next, most, age FROM journal WHERE name = ?1")?;
        let bounds = find
            .query_row([journal.name()], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })
            .optional()?;
        let Some((next, keep, age)) = bounds else { return Ok(0) };
        let first_kept = next.saturating_sub(keep);
        let oldest = signed(self.shared.clock.now().as_millis()).saturating_sub(age);
        let mut front =
            self.statement("SELECT seq, at FROM entry WHERE journal = ?1 ORDER BY seq LIMIT ?2")?;
        let mut rows = front.query(params![journal.name(), signed(most)])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            let (seq, at): (i64, i64) = (row.get(0)?, row.get(1)?);
            if seq >= first_kept && at >= oldest {
                break;
            }
            last = Some(seq);
        }
        drop(rows);
        let Some(last) = last else { return Ok(0) };
        self.writes += 1;
        self.shared.step(WriterStep::Write);
        let removed = self
            .statement("DELETE FROM entry WHERE journal = ?1 AND seq <= ?2")?
            .execute(params![journal.name(), last])?;
        Ok(removed as u64)
    }
}

fn found(places: &ClaimRecords) -> impl Iterator<Item = &RecordRow> {
    [&places.own, &places.indexed, &places.followed].into_iter().flatten()
}
