//! Crash tests: a process dies at every step of the writer in turn.
//!
//! A script of operations runs in another process, which dies at its nth step. Then the file must contain everything
//! that was acknowledged, and each operation in progress either completely or not at all. The expected content comes
//! from the simplest store: the records of the core.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::dedupe::{
    Claim, ClaimIntent, ClaimVerdict, DedupeRecord, DedupeRules, DeliveryReceipt, LeaseOwnerState,
    LocalKnowledge, MemoryRecords, ProcessIdentity, RecordAddress, ReleaseRequest, Resolution,
    ResolutionRequest, ResolveVerdict, RunOutcome, SaveRequest, SettleDelay, UnknownOutcomeReason,
    UnknownOutcomeReport,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::{PolicyProfile, ToolClass};
use steadfast_store::{
    DocumentKind, DocumentName, DocumentWrite, DocumentWriteOutcome, FlushTarget, ManualClock,
    ProcessMonitor, RecordFilter, RecordPage, StateStore, record_loss,
};

use super::processes::{assert_sound, output_lines, part, print_line, spawn};
use super::world::{SqliteTestFolder, acquired, claim, key, patient, save};
use crate::{SqliteOptions, SqliteStore};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// Reports every process as alive.
#[derive(Debug)]
struct AliveProcesses;

impl ProcessMonitor for AliveProcesses {
    fn check_process(&self, _: &ProcessIdentity) -> LeaseOwnerState {
        LeaseOwnerState::Alive
    }
}

/// One operation of the script.
#[derive(Clone, Debug)]
enum ScriptOperation {
    Claim(Claim),
    Start(DedupeRecord),
    Save(SaveRequest),
    Release(ReleaseRequest),
    Delivered(DeliveryReceipt),
    Resolve(RecordKey),
    Flush(RecordKey),
    Write(DocumentName, DocumentWrite),
}

/// The expected content of a file.
#[derive(Clone, Debug, Default)]
struct ExpectedContent {
    records: MemoryRecords,
    documents: BTreeMap<DocumentName, String>,
    versions: u64,
}

impl ExpectedContent {
    fn apply(&mut self, operation: &ScriptOperation) {
        let rules = DedupeRules::from(&PolicyProfile::Standard.policy(ToolClass::Mutating));
        match operation.clone() {
            ScriptOperation::Claim(claim) => drop(self.claim(&claim)),
            ScriptOperation::Start(record) => drop(self.records.start(&record.key, &record.owner, NOW)),
            ScriptOperation::Save(save) => drop(self.records.save(&save, NOW)),
            ScriptOperation::Release(release) => self.records.release(&release),
            ScriptOperation::Delivered(receipt) => self.records.mark_delivered(&receipt, NOW),
            ScriptOperation::Resolve(key) => {
                let verdict = self.records.resolve(
                    &ResolutionRequest::by_operator(key, Resolution::Ran),
                    &rules,
                    |_| LeaseOwnerState::Alive,
                    NOW,
                );
                assert_eq!(verdict, ResolveVerdict::Resolved);
            }
            ScriptOperation::Flush(key) => {
                let index = self.records.get(&key).and_then(|record| record.index);
                self.records.apply(steadfast_core::dedupe::RecordWrite::Remove { key, index });
            }
            ScriptOperation::Write(name, write) => {
                self.versions += 1;
                match write.body {
                    Some(body) => drop(self.documents.insert(name, body.to_string())),
                    None => drop(self.documents.remove(&name)),
                }
            }
        }
    }

    fn claim(&mut self, claim: &Claim) -> ClaimVerdict {
        self.records.claim(claim, &LocalKnowledge::default(), |_| LeaseOwnerState::Alive, NOW)
    }
}

/// Groups of concurrent operations. Those of one group touch different records. All kinds of writes occur: inserting,
/// updating, replacing another record, moving the index, removing.
fn script() -> Vec<Vec<ScriptOperation>> {
    let mut model = ExpectedContent::default();
    let mut script: Vec<Vec<ScriptOperation>> = Vec::new();
    let mut group = |model: &mut ExpectedContent, operations: Vec<ScriptOperation>| {
        operations.iter().for_each(|operation| model.apply(operation));
        script.push(operations);
    };
    // Owners that are equal in every process that creates this script.
    let mut calls = 0;
    let mut call = |address: RecordAddress| {
        calls += 1;
        let mut claim = claim("any");
        claim.owner.process = ProcessIdentity { boot: "boot".into(), pid: 1, started: 1 };
        claim.owner.call = calls;
        Claim { address, intent: ClaimIntent::Take { started: false }, ..claim }
    };
    let explicit = |name: &str| RecordAddress::Explicit(key(name));
    let keyless = |run: &str, index: &str| RecordAddress::Keyless { run: key(run), index: key(index) };
    let call_id = |id: &str, index: &str| RecordAddress::CallId { id: key(id), index: key(index) };

    let first = [
        call(explicit("explicit")),
        call(keyless("run 1", "equal")),
        call(call_id("id", "with id")),
        call(explicit("released")),
        call(call_id("moving", "from")),
    ];
    group(&mut model, first.iter().cloned().map(ScriptOperation::Claim).collect());
    let record_of = |model: &ExpectedContent, name: &str| model.records.get(&key(name)).unwrap().clone();

    let record = record_of(&model, "explicit");
    group(&mut model, vec![ScriptOperation::Start(record)]);
    let saves =
        ["explicit", "run 1", "id"].map(|name| ScriptOperation::Save(save(&record_of(&model, name), "paid")));
    let released = record_of(&model, "released");
    let release = ReleaseRequest { key: released.key, index: released.index, owner: released.owner };
    group(&mut model, [&saves[..], &[ScriptOperation::Release(release)]].concat());
    let marks = ["run 1", "id"].map(|name| ScriptOperation::Delivered(record_of(&model, name).receipt()));
    group(&mut model, marks.to_vec());

    // Equal arguments again: a record that only the index finds is replaced, and one with a call id stays.
    let again = [call(keyless("run 2", "equal")), call(keyless("run 3", "with id"))];
    group(&mut model, again.iter().cloned().map(ScriptOperation::Claim).collect());
    // An unknown outcome is written again once the attempt has ended, and the response after that is marked as
    // delivered.
    let cut = save(&record_of(&model, "run 2"), "");
    let unknown = |settles| {
        let unknown =
            UnknownOutcomeReport { settles, ..UnknownOutcomeReport::settled(UnknownOutcomeReason::NoAnswer) };
        ScriptOperation::Save(SaveRequest { ending: RunOutcome::Unknown(unknown), ..cut.clone() })
    };
    group(&mut model, vec![unknown(SettleDelay::WhenOwnerReports), ScriptOperation::Flush(key("run 3"))]);
    group(&mut model, vec![unknown(SettleDelay::Settled)]);
    let receipt = record_of(&model, "run 2").receipt();
    group(&mut model, vec![ScriptOperation::Delivered(receipt)]);
    group(&mut model, vec![ScriptOperation::Resolve(key("run 2")), ScriptOperation::Flush(key("explicit"))]);
    // The same id for another call: its index entry moves.
    let mut other = call(call_id("moving", "to"));
    other.digest = steadfast_core::id::Digest::of(b"other");
    group(&mut model, vec![ScriptOperation::Claim(other)]);

    let name = DocumentName { kind: DocumentKind::Breaker, id: "bank/pay".into() };
    let write = |replaces, body: Option<&str>| {
        let body = body.map(Into::into);
        vec![ScriptOperation::Write(name.clone(), DocumentWrite { replaces, body, expires: None })]
    };
    group(&mut model, write(None, Some("closed")));
    group(&mut model, write(Some(1), Some("open")));
    group(&mut model, write(Some(2), None));
    script
}

fn open(path: &std::path::Path) -> SqliteStore {
    let (clock, sight) = (Arc::new(ManualClock::at(NOW)), Arc::new(AliveProcesses));
    SqliteStore::open(SqliteOptions { clock, sight, ..patient(path) }).unwrap()
}

async fn perform(store: &SqliteStore, operation: ScriptOperation) {
    let rules = DedupeRules::from(&PolicyProfile::Standard.policy(ToolClass::Mutating));
    match operation {
        ScriptOperation::Claim(claim) => {
            drop(acquired(store.claim(&claim, &LocalKnowledge::default()).await.unwrap()))
        }
        ScriptOperation::Start(record) => drop(store.start(record.key, &record.owner).await.unwrap()),
        ScriptOperation::Save(save) => drop(store.save(&save).await.unwrap()),
        ScriptOperation::Release(release) => store.release(&release).await.unwrap(),
        ScriptOperation::Delivered(receipt) => store.delivered(&receipt, NOW).await.unwrap(),
        ScriptOperation::Resolve(key) => {
            let verdict =
                store.resolve(&ResolutionRequest::by_operator(key, Resolution::Ran), &rules).await.unwrap();
            assert_eq!(verdict, ResolveVerdict::Resolved);
        }
        ScriptOperation::Flush(key) => assert_eq!(store.flush(&FlushTarget::Key(key)).await.unwrap(), 1),
        ScriptOperation::Write(name, write) => {
            assert!(matches!(store.write(&name, write).await.unwrap(), DocumentWriteOutcome::Written(_)));
        }
    }
}

/// Returns true if the file contains exactly this.
async fn holds(store: &SqliteStore, model: &ExpectedContent) -> bool {
    let all = store.records(&RecordFilter::default(), RecordPage { after: None, limit: 100 }).await.unwrap();
    let documents = store.documents(DocumentKind::Breaker).await.unwrap();
    let documents: BTreeMap<_, _> =
        documents.into_iter().map(|(name, document)| (name, document.body.to_string())).collect();
    if !all.iter().eq(model.records.iter()) || documents != model.documents {
        return false;
    }
    // The target of an index entry is checked by a lookup through it.
    for index in ["equal", "with id", "from", "to"] {
        let mut lookup = claim("look");
        lookup.address = RecordAddress::Keyless { run: key("look"), index: key(index) };
        lookup.intent = ClaimIntent::Look;
        if store.claim(&lookup, &LocalKnowledge::default()).await.unwrap() != model.clone().claim(&lookup) {
            return false;
        }
    }
    true
}

#[test]
fn sf_2_a_process_may_die_at_any_step() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    if let Some((file, nth)) = part() {
        let store = Arc::new(open(&file));
        store.shared.steps.exit_at(nth.parse().unwrap());
        for group in script() {
            let operations: Vec<_> = group
                .into_iter()
                .map(|operation| {
                    let store = store.clone();
                    runtime.spawn(async move { perform(&store, operation).await })
                })
                .collect();
            operations.into_iter().for_each(|operation| runtime.block_on(operation).unwrap());
            print_line("done");
        }
        return;
    }
    let script = script();
    for nth in 1.. {
        assert!(nth < 500, "the script does not come to an end");
        let folder = SqliteTestFolder::new();
        let mut child =
            spawn("tests::crash::sf_2_a_process_may_die_at_any_step", &folder.state(), &nth.to_string());
        let done = output_lines(&mut child).count();
        let survived = child.wait().unwrap().success();

        let mut answered = ExpectedContent::default();
        script.iter().take(done).flatten().for_each(|operation| answered.apply(operation));
        let under_way = script.get(done).cloned().unwrap_or_default();
        let store = open(&folder.state());
        let loss = runtime.block_on(record_loss(&store)).unwrap();
        assert_eq!(loss, None, "after step {nth}: nothing is lost");
        let mut found = false;
        // Each operation of the interrupted group may have happened.
        for some in 0..1_u32 << under_way.len() {
            let mut model = answered.clone();
            let happened = under_way.iter().enumerate().filter(|(bit, _)| some & 1 << bit != 0);
            happened.for_each(|(_, operation)| model.apply(operation));
            found |= runtime.block_on(holds(&store, &model));
        }
        assert!(found, "after step {nth}, {done} groups answered: the file holds something else");
        drop(store);
        assert_sound(&folder.state());
        if survived {
            assert_eq!(done, script.len());
            // Each group needs at least one commit, which is two steps. The number of operations per commit is not
            // fixed.
            assert!(nth > 2 * script.len(), "only {nth} steps");
            return;
        }
    }
}
