//! Trust in a JSON file, for hosts that read and move it.
//!
//! The file of the project takes precedence over that of the user. It is written as a whole: to a temporary file beside
//! it, which is synced and renamed over it, and the folder is synced. A reader, or a crash at any moment, finds either
//! the old state or the new one.
//!
//! A host may write the same file. It is therefore read again before each write: changes of the host are adopted, dates
//! are written in the form in which they were found, unknown fields stay, and a file that cannot be read is not written
//! at all (decision 0021).

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local, NaiveDateTime, TimeZone as _, Utc};
use serde_json::{Map, Value};
use steadfast_core::Timestamp;
use steadfast_core::trust::{TrustBounds, TrustLedger, TrustSnapshot};

/// Storage of trust beyond this process.
#[derive(Clone, Debug, Default)]
pub enum TrustStorage {
    /// In the store.
    #[default]
    InStore,
    /// In this file for calls without a tenant, in the store for those of tenants.
    InFile(TrustFile),
    /// Not stored: every process begins with full trust.
    NotStored,
}

/// A file with the state of trust.
#[derive(Clone, Debug)]
pub struct TrustFile {
    path: PathBuf,
    plain: JsonConverter,
}

/// A function that converts hand-written text to JSON, or returns an error with its position.
pub type JsonConverter = fn(&str) -> Result<Cow<'_, str>, String>;

impl TrustFile {
    /// Uses the file at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), plain: |text| Ok(Cow::Borrowed(text)) }
    }

    /// Sets a parser for hand-written content that is not strict JSON. The file is always written as plain JSON.
    #[must_use]
    pub fn read_by(self, plain: JsonConverter) -> Self {
        Self { plain, ..self }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file. Returns `None` if it does not exist.
    pub fn read(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the content of the file.
    pub fn write(&self, text: &str) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let unfinished = self.path.with_extension(format!("json.{}.tmp", std::process::id()));
        let written = replace(&unfinished, &self.path, text);
        if written.is_err() {
            // A partial file is useless. A failure to remove it is ignored.
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

/// Creates a file that only its owner may read, because it shows which tools they use.
fn private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// The content of a trust file.
pub(super) struct TrustFileContent {
    pub(super) snapshot: TrustSnapshot,
    /// The same as JSON, with the unknown fields.
    raw: Map<String, Value>,
    dates: DateFormat,
}

/// Form of the dates in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DateFormat {
    /// Milliseconds since 1970, the default of this program.
    Millis,
    /// ISO 8601 with an offset.
    WithOffset,
    /// ISO 8601 without an offset, in local time, as from Python's `datetime.now()`.
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

impl TrustFileContent {
    fn parse(text: &str) -> Result<Self, String> {
        // The original text is parsed first, so that the position of an error is the one in the file.
        let as_it_stands = TrustSnapshot::read(text).map_err(|error| error.to_string())?;
        let not_read = |error: serde_json::Error| error.to_string();
        let raw: Map<String, Value> = serde_json::from_str(text).map_err(not_read)?;
        let mut in_utc = Value::Object(raw.clone());
        let mut dates = DateFormat::Millis;
        for_each_date(&mut in_utc, &mut |date| {
            let Value::String(text) = &date else { return };
            match local_to_utc(text) {
                Some(utc) => {
                    *date = Value::String(utc);
                    dates = DateFormat::Local;
                }
                None if dates == DateFormat::Millis => dates = DateFormat::WithOffset,
                None => {}
            }
        });
        let snapshot = match dates {
            DateFormat::Millis | DateFormat::WithOffset => as_it_stands,
            DateFormat::Local => {
                TrustSnapshot::read(&in_utc.to_string()).map_err(|error| error.to_string())?
            }
        };
        Ok(Self { snapshot, raw, dates })
    }

    /// Returns the new content of the file with the current state.
    pub(super) fn updated(self, now: &TrustSnapshot) -> serde_json::Result<String> {
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
                if self.dates != DateFormat::Millis {
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

/// Fields of an entry that this program owns: if they are missing now, they were removed and are not unknown.
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

/// Adds the fields of `from` that are missing in `to` and not owned by this program.
fn add_unknown(to: &mut Map<String, Value>, from: &Map<String, Value>, known: &[&str]) {
    for (name, value) in from {
        if !to.contains_key(name) && !known.contains(&name.as_str()) && name != "all_blocked" {
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

/// Converts a date without an offset, in local time, to UTC.
fn local_to_utc(text: &str) -> Option<String> {
    if text.get(10..)?.contains(['Z', 'z', '+', '-']) {
        return None;
    }
    let local: NaiveDateTime = text.replacen(' ', "T", 1).parse().ok()?;
    // In the hour that repeats at the end of summer time, the later time counts: one approval too many is safer.
    Some(Local.from_local_datetime(&local).latest()?.with_timezone(&Utc).to_rfc3339())
}

impl DateFormat {
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
    pub(super) fn contents(&self) -> Result<Option<TrustFileContent>, String> {
        let text = self.read().map_err(|error| error.to_string())?;
        text.map(|text| TrustFileContent::parse(&(self.plain)(&text)?)).transpose()
    }

    /// Checks the file. Returns the number of tools, signatures and domains that are not trusted, `None` if there is no
    /// file, or the first error with its position.
    pub fn check(&self) -> Result<Option<usize>, String> {
        let Some(contents) = self.contents()? else { return Ok(None) };
        let ledger = TrustLedger::restore(contents.snapshot, TrustBounds::default())
            .map_err(|error| error.to_string())?;
        Ok(Some(ledger.snapshot(Timestamp::ZERO).tool_states.len()))
    }
}

impl TrustFile {
    pub(super) fn tell_unreadable(&self, error: &str) {
        tracing::warn!(
            event = "trust.unreadable",
            file = %self.path.display(),
            "why" = %error,
            "the trust file cannot be read and stays unchanged; correct or remove it"
        );
    }
}
