//! Layer D of the loop guard: a file with one line for each call that was malformed or refused as a loop, to compare
//! models.
//!
//! Several processes may write one file. Each line is one append, and a process that finds the file rotated by
//! another continues in the new one.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use steadfast_core::call::CallResult;
use steadfast_core::classify::ModelMistake;
use steadfast_core::code::Code;
use steadfast_core::guard::log::{MalformedCall, MalformedCallKind, ModelAttribution};
use steadfast_executor::{EngineListener, NoticeContext};

use crate::logs::LogWriter;

/// Logs malformed calls by model. When the file reaches its limit, it is renamed to `<name>.1`, which replaces the
/// previous one.
pub struct MalformedCallLog {
    writer: LogWriter<String>,
}

/// The size limit of a file.
const LARGEST: u64 = 10 * 1024 * 1024;
/// Number of bytes of the arguments that are read. The line cuts them further.
const MOST_ARGUMENTS: usize = 8 * 1024;

impl MalformedCallLog {
    /// Opens or creates the file.
    pub fn at(path: &Path) -> io::Result<Self> {
        Self::of_at_most(path, LARGEST)
    }

    /// Does the same, but creates the file and its folder only when there is something to write.
    pub fn when_needed_at(path: &Path) -> io::Result<Self> {
        Self::writing(RotatingFile { path: path.to_owned(), file: None, largest: LARGEST })
    }

    /// Returns the reason why the file could not be created, without creating it.
    pub fn check(path: &Path) -> io::Result<()> {
        match OpenOptions::new().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                fs::metadata(folder.unwrap_or(Path::new("."))).map(|_| ())
            }
            Err(error) => Err(error),
        }
    }

    fn of_at_most(path: &Path, largest: u64) -> io::Result<Self> {
        Self::writing(RotatingFile { path: path.to_owned(), file: Some(private(path)?), largest })
    }

    fn writing(file: RotatingFile) -> io::Result<Self> {
        let make = |line: &String, lines: &mut String| lines.push_str(line);
        let lost = |lines: u64| format!("{{\"left_out\":{lines}}}\n");
        Ok(Self { writer: LogWriter::start(file, make, lost)? })
    }

    /// Waits until everything so far is written.
    pub fn flush(&self, limit: Duration) -> bool {
        self.writer.flush(limit)
    }
}

impl EngineListener for MalformedCallLog {
    fn finished(&self, about: &NoticeContext<'_>, result: &CallResult) {
        let error_type = match result.outcome.as_ref().err().map(|failure| failure.code) {
            Some(Code::InvalidArguments) => MalformedCallKind::Mistake(ModelMistake::Arguments),
            Some(Code::UnknownTool) => MalformedCallKind::Mistake(ModelMistake::UnknownTool),
            Some(Code::LoopDetected) => MalformedCallKind::Loop,
            Some(Code::ToolErrorLimit) => MalformedCallKind::TurnLimit,
            Some(_) | None => return,
        };
        let request = about.request;
        let malformed = MalformedCall {
            model: ModelAttribution::of(request.model.as_ref(), request.tool_call.as_ref()),
            tool: request.tool.clone(),
            arguments: steadfast_redact::excerpt(about.envelope.payload.params.as_str(), MOST_ARGUMENTS),
            error_type,
            at: about.at,
        };
        self.writer.write(malformed.to_line() + "\n");
    }
}

impl fmt::Debug for MalformedCallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MalformedCalls").finish_non_exhaustive()
    }
}

/// A file with a size limit.
struct RotatingFile {
    path: PathBuf,
    /// Empty before the first line.
    file: Option<File>,
    largest: u64,
}

impl RotatingFile {
    /// Returns the file that has the name now, with room for this number of bytes.
    fn with_room(&mut self, length: u64) -> io::Result<&mut File> {
        let file = match self.file.take().filter(|file| is_at(file, &self.path)) {
            Some(file) => file,
            None => self.open()?,
        };
        let size = file.metadata()?.len();
        if size == 0 || size.saturating_add(length) <= self.largest {
            return Ok(self.file.insert(file));
        }
        let mut before = self.path.clone().into_os_string();
        before.push(".1");
        fs::rename(&self.path, before)?;
        let file = self.open()?;
        Ok(self.file.insert(file))
    }

    fn open(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        private(&self.path)
    }
}

/// Returns true if this is still the file with that name: another process may have rotated it.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(opened), Ok(there)) => (opened.dev(), opened.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// On other systems an open file cannot be renamed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

impl Write for RotatingFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.with_room(line.len() as u64)?.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

/// The input of a model is private.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfast_core::classify::{AttemptFault, FaultSource};
    use steadfast_core::envelope::{CallEnvelope, UnknownFieldPolicy};
    use steadfast_executor::{Attempt, Engine};

    use super::*;

    fn read(amount: &str, id: &str) -> CallEnvelope {
        let text = format!(
            r#"{{"contractVersion":"1.1","requestId":"r","toolName":"read","toolNamespace":"files","toolCallId":"{id}",
                "target":{{"sessionKey":"s","actorId":"ann"}},
                "payload":{{"version":"1.0","params":{{"amount":"{amount}","password":"hunter2"}}}}}}"#
        );
        CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Refuse).unwrap()
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("steadfast-malformed-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[tokio::test]
    async fn each_malformed_call_is_a_line_with_its_model_and_without_secrets() {
        let folder = folder("line");
        let path = folder.join("malformed.jsonl");
        let malformed = Arc::new(MalformedCallLog::at(&path).unwrap());
        let engine = Engine::builder().listener(malformed.clone()).start().await;
        let refuses = async |_: Attempt| {
            Err(AttemptFault::new(FaultSource::JsonRpc { code: -32602 }, "Missing required parameter: path")
                .into())
        };
        engine.call(read("1", "toolu_1"), refuses).await;
        let works = async |_: Attempt| {
            let content = steadfast_json::RawJson::string("fine");
            Ok(steadfast_core::output::ToolOutput { content, metadata: None })
        };
        engine.call(read("2", "call_1"), works).await;
        assert!(malformed.flush(crate::tests::TEST_TIMEOUT));
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!((&lines[0]["model"], &lines[0]["tool"]), (&"anthropic".into(), &"read".into()));
        assert_eq!(lines[0]["error_type"], "invalid_arguments");
        assert!(!text.contains("hunter2"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_full_file_is_rotated() {
        let folder = folder("turn");
        let path = folder.join("malformed.jsonl");
        fs::write(&path, "from before\n").unwrap();
        let mut file = RotatingFile { path: path.clone(), file: None, largest: 20 };
        for line in ["first\n", "second\n", "third\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        let before = fs::read_to_string(folder.join("malformed.jsonl.1")).unwrap();
        assert_eq!(
            (before.as_str(), fs::read_to_string(&path).unwrap().as_str()),
            ("from before\nfirst\n", "second\nthird\n")
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
