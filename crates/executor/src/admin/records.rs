//! Records for operators: lists, deletion and resolution.
//!
//! A record says that a call is in flight until a process writes otherwise, even if the process of the call is gone.
//! Views therefore check each of their records first, and record the outcome of such a call as unknown. Every surface
//! shows the same, and the one process that recorded it notifies operators.

use steadfast_core::dedupe::{
    DedupeRecord, DedupeRules, RecordLoss, Resolution, ResolutionRequest, ResolveVerdict,
};
use steadfast_core::key::RecordKey;
use steadfast_core::notification::Notification;
use steadfast_store::{FlushTarget, RecordFilter, RecordPage, StoreError, accept_loss};

use super::engine_admin::EngineAdmin;
use crate::observe::audit_entry::{AuditAction, AuditChange, OperatorIdentity};

impl EngineAdmin {
    /// Returns records in the order of their keys. Includes those of read-only calls, which exist in this process only.
    pub async fn records(
        &self,
        selection: &RecordFilter,
        page: RecordPage,
    ) -> Result<Vec<DedupeRecord>, StoreError> {
        let mut records = self.store.records(selection, page).await?;
        for record in &mut records {
            self.judge(record).await;
        }
        records.extend(self.local.records(selection, page).await?);
        records.sort_by_key(|record| record.key);
        records.dedup_by_key(|record| record.key);
        records.truncate(page.limit);
        Ok(records)
    }

    /// Returns the record with this key.
    pub async fn record(&self, key: RecordKey) -> Result<Option<DedupeRecord>, StoreError> {
        match self.store.record(key).await? {
            Some(mut record) => {
                self.judge(&mut record).await;
                Ok(Some(record))
            }
            None => self.local.record(key).await,
        }
    }

    /// Deletes records and returns their number. For operators.
    pub async fn flush(&self, flush: &FlushTarget, by: &OperatorIdentity) -> Result<u64, StoreError> {
        let flushed = self.store.flush(flush).await? + self.local.flush(flush).await?;
        let (tenant, on) = match flush {
            FlushTarget::Key(key) => (None, format!("record {}", key.fingerprint())),
            FlushTarget::Finished(selection) => (selection.tenant.as_ref(), described(selection)),
        };
        let after = Some(format!("{flushed} forgotten"));
        self.audit
            .record(by, AuditChange { deed: AuditAction::Flushed, tenant, on, before: None, after })
            .await;
        Ok(flushed)
    }

    /// Accepts that committed records are lost, so that calls with a key run again. Returns the loss, if there was one.
    /// For operators.
    pub async fn accept_loss(&self, by: &OperatorIdentity) -> Result<Option<RecordLoss>, StoreError> {
        let accepted = accept_loss(&*self.store).await?;
        if let Some(loss) = &accepted {
            let done = AuditChange {
                deed: AuditAction::LossAccepted,
                tenant: None,
                on: "records".to_owned(),
                before: Some(loss.to_string()),
                after: Some("accepted".to_owned()),
            };
            self.audit.record(by, done).await;
        }
        Ok(accepted)
    }

    /// Resolves an unknown outcome. For operators.
    pub async fn resolve(
        &self,
        key: RecordKey,
        resolution: Resolution,
        by: &OperatorIdentity,
    ) -> Result<ResolveVerdict, StoreError> {
        self.store_resolution(&ResolutionRequest::by_operator(key, resolution), by).await
    }
}

impl EngineAdmin {
    /// Checks all open records in the store for calls whose process is gone.
    pub(crate) async fn judge_open_records(&self) {
        let open = RecordFilter { open: true, ..RecordFilter::default() };
        let mut page = RecordPage { after: None, limit: JUDGED_AT_ONCE };
        loop {
            let mut records = match self.store.records(&open, page).await {
                Ok(records) => records,
                Err(error) => return self.hooks.store_failed(self.store.kind(), &error),
            };
            for record in &mut records {
                self.judge(record).await;
            }
            match records.last().filter(|_| records.len() == page.limit) {
                Some(last) => page.after = Some(last.key),
                None => return,
            }
        }
    }

    /// Records an unknown outcome for a call whose process is gone, in `record` and in the store. If the store fails,
    /// the record stays unchanged.
    async fn judge(&self, record: &mut DedupeRecord) {
        if record.owner.process == self.process || !record.may_be_abandoned() {
            return;
        }
        let policy = self.policies.of_tool(&record.tenant, &record.tool);
        match self.store.mark_abandoned(record.key, &DedupeRules::from(&*policy)).await {
            Ok(Some(unknown)) => {
                let notification = Notification::abandoned(&unknown, self.clock.now());
                let notification = Notification { for_client: policy.trust.notify, ..notification };
                self.hooks.notify_of_abandoned(&unknown.owner, notification);
                *record = unknown;
            }
            Ok(None) => {}
            Err(error) => self.hooks.store_failed(self.store.kind(), &error),
        }
    }

    /// Resolves an unknown outcome, and records the operator.
    pub(crate) async fn store_resolution(
        &self,
        resolve: &ResolutionRequest,
        by: &OperatorIdentity,
    ) -> Result<ResolveVerdict, StoreError> {
        let Some(record) = self.store.record(resolve.key).await? else {
            return Ok(ResolveVerdict::NotUnknown);
        };
        let rules = DedupeRules::from(&*self.policies.of_tool(&record.tenant, &record.tool));
        let verdict = self.store.resolve(resolve, &rules).await?;
        if verdict != ResolveVerdict::Resolved {
            return Ok(verdict);
        }
        let after = match resolve.resolution {
            Resolution::Ran => "it ran",
            Resolution::DidNotRun => "it did not run",
        };
        let done = AuditChange {
            deed: AuditAction::Resolved,
            tenant: record.tenant.as_ref(),
            on: format!("record {} of {}", resolve.key.fingerprint(), record.tool),
            before: Some("outcome unknown".to_owned()),
            after: Some(after.to_owned()),
        };
        self.audit.record(by, done).await;
        Ok(verdict)
    }
}

/// The page size when open records are searched for calls whose process has ended.
const JUDGED_AT_ONCE: usize = 1000;

fn described(selection: &RecordFilter) -> String {
    let mut words = vec!["finished records".to_owned()];
    words.extend(selection.tool.iter().map(|tool| format!("of {tool}")));
    words.extend(selection.session.iter().map(|session| format!("in {session}")));
    words.join(" ")
}
