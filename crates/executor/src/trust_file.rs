//! Trust in a JSON file, where the host wants to read and carry it.
//!
//! The file of the project comes before that of the user. It is written whole: to a temporary file beside it, which
//! is synced and renamed over it, and the folder is synced; so a reader, or a crash at any moment, finds either the
//! old state or the new one.
//!
//! A host may keep the same file. So it is read again before it is written: changes of the host are taken over, dates are
//! written in the form in which they were found, fields that we do not know stay, and a file that cannot be read is not
//! written at all
//! (decision 0021).

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local, NaiveDateTime, TimeZone as _, Utc};
use serde_json::{Map, Value};
use steadfast_core::Timestamp;
use steadfast_core::trust::{Bounds, Snapshot, TrustLedger};
use steadfast_store::{StoreError, Trouble};

use crate::engine::Inner;

/// Where trust is kept beyond this process.
#[derive(Clone, Debug, Default)]
pub enum TrustKept {
    /// With everything else.
    #[default]
    InStore,
    /// That of calls without a tenant in this file, that of tenants in the store.
    InFile(TrustFile),
    /// Not at all: every process begins with full trust.
    Nowhere,
}

/// Where trust is kept as a file.
#[derive(Clone, Debug)]
pub struct TrustFile {
    path: PathBuf,
    plain: PlainJson,
}

/// Makes JSON of what was written by hand, or says with its place why it cannot.
pub type PlainJson = fn(&str) -> Result<Cow<'_, str>, String>;

impl TrustFile {
    /// This very file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), plain: |text| Ok(Cow::Borrowed(text)) }
    }

    /// The same file, in which a person may have written with more freedom than JSON has. It is written as plain JSON.
    #[must_use]
    pub fn read_by(self, plain: PlainJson) -> Self {
        Self { plain, ..self }
    }

    /// Which file it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says; nothing if there is none yet.
    pub fn read(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces what it says.
    pub fn write(&self, text: &str) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let unfinished = self.path.with_extension(format!("json.{}.tmp", std::process::id()));
        let written = replace(&unfinished, &self.path, text);
        if written.is_err() {
            // Half a file is of no use to anybody; that it cannot be removed either changes nothing.
            let _ = fs::remove_file(&unfinished);
        }
        written?;
        File::open(folder)?.sync_all()
    }
}

fn replace(unfinished: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut file = private(unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

/// A new file that only its owner may read: it tells which tools a person uses.
fn private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// What a trust file says.
struct Contents {
    snapshot: Snapshot,
    /// The same as JSON, with what we do not know.
    raw: Map<String, Value>,
    dates: Dates,
}

/// How dates are written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dates {
    /// Milliseconds since 1970, as we write them.
    Millis,
    /// ISO 8601 with an offset.
    WithOffset,
    /// ISO 8601 without one, in the time of this machine, as Python's `datetime.now()` gives it.
    Local,
}

/// The fields that hold a date, in all parts of the file.
const DATES: [&str; 10] = [
    "at",
    "created",
    "escalated_at",
    "escalation_expires",
    "last_counted_failure",
    "last_failure",
    "last_success",
    "last_updated",
    "recovery_started",
    "timestamp",
];

impl Contents {
    fn parse(text: &str) -> Result<Self, String> {
        // Read as it stands first: then the place of a mistake is the one in the file.
        let as_it_stands = Snapshot::read(text).map_err(|error| error.to_string())?;
        let not_read = |error: serde_json::Error| error.to_string();
        let raw: Map<String, Value> = serde_json::from_str(text).map_err(not_read)?;
        let mut in_utc = Value::Object(raw.clone());
        let mut dates = Dates::Millis;
        for_each_date(&mut in_utc, &mut |date| {
            let Value::String(text) = &date else { return };
            match local_to_utc(text) {
                Some(utc) => {
                    *date = Value::String(utc);
                    dates = Dates::Local;
                }
                None if dates == Dates::Millis => dates = Dates::WithOffset,
                None => {}
            }
        });
        let snapshot = match dates {
            Dates::Millis | Dates::WithOffset => as_it_stands,
            Dates::Local => Snapshot::read(&in_utc.to_string()).map_err(|error| error.to_string())?,
        };
        Ok(Self { snapshot, raw, dates })
    }

    /// What is known now, as this file would say it.
    fn updated(self, now: &Snapshot) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(now)?;
        for_each_date(&mut value, &mut |date| {
            if let Some(at) = date.as_u64() {
                *date = self.dates.write(at);
            }
        });
        let Value::Object(mut new) = value else { return Ok(value.to_string()) };
        if let Some(Value::Object(states)) = new.get_mut("tool_states") {
            let known = self.raw.get("tool_states").and_then(Value::as_object);
            for (name, state) in states.iter_mut() {
                let Value::Object(state) = state else { continue };
                if self.dates != Dates::Millis {
                    // The plugin of jaato reads no entry without it.
                    state.insert("failure_key".to_owned(), name.as_str().into());
                }
                if let Some(Value::Object(known)) = known.and_then(|known| known.get(name)) {
                    add_unknown(state, known, OURS);
                }
            }
        }
        add_unknown(&mut new, &self.raw, &[]);
        serde_json::to_string_pretty(&new)
    }
}

/// Fields of an entry that are ours: where they are missing now they are over, not unknown.
const OURS: &[&str] = &[
    "domain",
    "escalated_at",
    "escalation_expires",
    "escalation_reason",
    "last_counted_failure",
    "last_failure",
    "last_success",
    "plugin_name",
    "recovery_started",
    "signature",
];

/// Adds the fields that are missing here and are not ours.
fn add_unknown(to: &mut Map<String, Value>, from: &Map<String, Value>, ours: &[&str]) {
    for (name, value) in from {
        if !to.contains_key(name) && !ours.contains(&name.as_str()) && name != "all_blocked" {
            to.insert(name.clone(), value.clone());
        }
    }
}

fn for_each_date(value: &mut Value, act: &mut impl FnMut(&mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Object(_) | Value::Array(_) => for_each_date(value, act),
                    Value::String(_) | Value::Number(_) if DATES.contains(&name.as_str()) => act(value),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_date(item, act)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A date without an offset, which is in the time of this machine, with one.
fn local_to_utc(text: &str) -> Option<String> {
    if text.get(10..)?.contains(['Z', 'z', '+', '-']) {
        return None;
    }
    let local: NaiveDateTime = text.replacen(' ', "T", 1).parse().ok()?;
    // An hour that the end of summer time repeats means its later one: better asked once more than once too little.
    Some(Local.from_local_datetime(&local).latest()?.with_timezone(&Utc).to_rfc3339())
}

impl Dates {
    fn write(self, millis: u64) -> Value {
        let moment = i64::try_from(millis).ok().and_then(DateTime::from_timestamp_millis);
        match (self, moment) {
            (Self::Millis, _) | (_, None) => millis.into(),
            (Self::WithOffset, Some(_)) => Timestamp::from_millis(millis).to_string().into(),
            (Self::Local, Some(moment)) => {
                let local = moment.with_timezone(&Local);
                local.format("%Y-%m-%dT%H:%M:%S%.6f").to_string().into()
            }
        }
    }
}

impl TrustFile {
    fn contents(&self) -> Result<Option<Contents>, String> {
        let text = self.read().map_err(|error| error.to_string())?;
        text.map(|text| Contents::parse(&(self.plain)(&text)?)).transpose()
    }

    /// Checks that it can be read: how many tools, signatures and domains it says are not trusted, or the first mistake
    /// with its place. Nothing if there is no file.
    pub fn check(&self) -> Result<Option<usize>, String> {
        let Some(contents) = self.contents()? else { return Ok(None) };
        let ledger =
            TrustLedger::restore(contents.snapshot, Bounds::default()).map_err(|error| error.to_string())?;
        Ok(Some(ledger.snapshot(Timestamp::ZERO).tool_states.len()))
    }
}

impl Inner {
    /// Takes over what the file says.
    pub(crate) fn load_trust_file(&self, file: &TrustFile) {
        let adopted = file.contents().and_then(|contents| self.adopt_trust_file(contents.as_ref()));
        if let Err(why) = adopted {
            file.tell_unreadable(&why);
        }
    }

    fn adopt_trust_file(&self, contents: Option<&Contents>) -> Result<(), String> {
        let Some(contents) = contents else { return Ok(()) };
        self.adopt_trust(&None, contents.snapshot.clone())
    }

    pub(crate) async fn write_trust_file(&self, file: &TrustFile) -> Result<(), StoreError> {
        let failed = |error: io::Error| {
            let why = format!("trust cannot be written to {}: {error}", file.path.display());
            StoreError::not_done(Trouble::Refused, why)
        };
        let ended = |error: tokio::task::JoinError| StoreError::not_done(Trouble::Closed, error.to_string());
        let reading = file.clone();
        let contents = tokio::task::spawn_blocking(move || reading.contents()).await.map_err(ended)?;
        let contents = match contents.and_then(|contents| {
            self.adopt_trust_file(contents.as_ref())?;
            Ok(contents)
        }) {
            Ok(contents) => contents,
            Err(why) => {
                // What is in it is worth more than what would be written over it. Trust lasts as long as this process.
                file.tell_unreadable(&why);
                return Ok(());
            }
        };
        let snapshot = self.machines.tenants.get(&None).judged.lock().trust.snapshot(self.clock.now());
        let text = match contents {
            Some(contents) => contents.updated(&snapshot),
            None => serde_json::to_string_pretty(&snapshot),
        };
        let text = text.map_err(|error| failed(io::Error::other(error)))?;
        let writing = file.clone();
        let written = tokio::task::spawn_blocking(move || writing.write(&text)).await.map_err(ended)?;
        written.map_err(failed)
    }
}

impl TrustFile {
    fn tell_unreadable(&self, why: &str) {
        tracing::warn!(
            event = "trust.unreadable",
            file = %self.path.display(),
            %why,
            "the trust file cannot be read and is left as it is; correct or remove it"
        );
    }
}
