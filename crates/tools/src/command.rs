//! A tool that is a command. It is started for each attempt on a leash, and ended with all processes that it started.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use steadfast_config::CommandToolSettings;
use steadfast_core::classify::{AttemptFault, FaultSource, TransportError};
use steadfast_core::id::ToolRef;
use steadfast_core::output::ToolOutput;
use steadfast_executor::{Attempt, AttemptError, ToolHandler, ToolResult};
use steadfast_process::{
    ChildExit, ChildProcess, Environment, Launch, LaunchError, Leash, SpawnedChild, StderrLog, StopTimeouts,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout};

use crate::LONGEST_ANSWER;
use crate::output::{Secrets, content, excerpt};
use crate::problem::UnusableReason;

/// A tool that is a command. Its debug output has neither its arguments nor its variables, which may be secret.
#[derive(Clone)]
pub struct CommandTool {
    parts: Arc<CommandParts>,
}

struct CommandParts {
    tool: ToolRef,
    launch: Launch,
    leash: Leash,
    secrets: Secrets,
}

impl CommandTool {
    pub(crate) fn new(
        tool: ToolRef,
        settings: &CommandToolSettings,
        leash: Leash,
    ) -> Result<Self, UnusableReason> {
        let CommandToolSettings { command, env: given, cwd, .. } = settings;
        let (program, args) = command.split_first().ok_or(UnusableReason::NoCommand)?;
        let secrets = Secrets::among(given);
        let given: BTreeMap<_, _> =
            given.iter().map(|(name, value)| (name.clone(), value.expose().clone())).collect();
        let launch = Launch {
            program: program.into(),
            args: args.iter().map(OsString::from).collect(),
            folder: cwd.clone(),
            // The command gets no other variables of this process.
            environment: Environment::allowed_and(env::vars_os(), &given),
            patience: STOP_TIMEOUTS,
        };
        Ok(Self { parts: Arc::new(CommandParts { tool, launch, leash, secrets }) })
    }

    /// Returns its name.
    pub fn tool(&self) -> &ToolRef {
        &self.parts.tool
    }
}

impl fmt::Debug for CommandTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandTool")
            .field("tool", &self.parts.tool)
            .field("program", &self.parts.launch.program)
            .finish_non_exhaustive()
    }
}

impl ToolHandler for CommandTool {
    fn run(&self, attempt: Attempt) -> impl Future<Output = ToolResult> + Send + 'static {
        let parts = Arc::clone(&self.parts);
        async move { parts.run(&attempt).await }
    }
}

impl CommandParts {
    async fn run(&self, attempt: &Attempt) -> ToolResult {
        let (begin, stderr) = (Instant::now(), StderrLog::new());
        let launch = self.launch_of(attempt);
        let started = tokio::select! {
            biased;
            started = launch.start(&self.leash, &stderr) => started,
            // On drop, the leash ends everything that it may have started.
            () = attempt.cancelled() => return Err(cancelled_fault(begin)),
        };
        let SpawnedChild { child, stdin, stdout } = started.map_err(|error| not_started(&error))?;
        let end = tokio::select! {
            biased;
            end = exchange(&child, stdin, stdout, attempt.params()) => end,
            () = attempt.cancelled() => {
                // Output after that comes from a program that was asked to end, so it proves neither success nor
                // failure.
                child.stop(&STOP_TIMEOUTS).await;
                return Err(cancelled_fault(begin));
            }
        };
        match end {
            CommandEnd::TooLong => {
                let message = format!("the answer is longer than {LONGEST_ANSWER} bytes");
                Err(AttemptFault::new(FaultSource::BadAnswer, message).into())
            }
            CommandEnd::Exited { exit: ChildExit::Code(0), output } => {
                Ok(ToolOutput { content: content(output.trim_ascii_end()), metadata: None })
            }
            CommandEnd::Exited { exit, output } => Err(self.failure(exit, &stderr, &output).into()),
        }
    }

    fn launch_of(&self, attempt: &Attempt) -> Launch {
        let mut launch = self.launch.clone();
        // If the mechanisms are off, the call is not changed.
        if !attempt.modes.is_pass_through() {
            launch.environment = launch
                .environment
                .with("TOOL_IDEMPOTENCY_KEY", attempt.idempotency_key())
                .with("TOOL_ATTEMPT", &attempt.number.to_string());
            if let Some(deadline) = attempt.deadline {
                launch.environment =
                    launch.environment.with("TOOL_DEADLINE_MS", &deadline.as_millis().to_string());
            }
        }
        launch
    }

    /// Returns the fault for an unsuccessful exit. A program that exited by itself has answered, whatever its code.
    /// Exit codes prove nothing, not even those with which a shell reports that it could not start a command. The
    /// rules of the tool can give them a meaning. A program that was killed has not answered.
    fn failure(&self, exit: ChildExit, stderr: &StderrLog, output: &[u8]) -> AttemptFault {
        let (source, code) = match exit {
            ChildExit::Code(code) => (FaultSource::Tool, Some(code)),
            ChildExit::Signal(signal) => (FaultSource::Exit { code: None, signal: Some(signal) }, None),
            ChildExit::Unknown => (FaultSource::Exit { code: None, signal: None }, None),
        };
        let mut lines = stderr.tail(SHOWN_LINES);
        if lines.iter().all(|line| line.trim().is_empty()) {
            // Many programs print errors to their output.
            let output = String::from_utf8_lossy(output);
            lines = output.lines().rev().take(SHOWN_LINES).map(str::to_owned).collect();
            lines.reverse();
        }
        lines.retain(|line| !line.trim().is_empty());
        let shown = |line: &String| excerpt(line, &self.secrets);
        // Programs report errors in their last line, and the core reads the first line of the message.
        let mut message = format!("the command {exit}");
        if let Some(last) = lines.last() {
            message.push_str(": ");
            message.push_str(&shown(last));
        }
        if let Some((_, before @ [_, ..])) = lines.split_last() {
            message.push_str("\nbefore that:");
            for line in before {
                message.push('\n');
                message.push_str(&shown(line));
            }
        }
        AttemptFault { exit: code, ..AttemptFault::new(source, message) }
    }
}

/// End of a command that was not cancelled.
enum CommandEnd {
    Exited {
        exit: ChildExit,
        output: Vec<u8>,
    },
    /// The output exceeded the limit, and the command is ended for it.
    TooLong,
}

/// Sends the parameters to a command, and reads its output until the command and its output have ended.
async fn exchange(
    child: &ChildProcess,
    mut stdin: ChildStdin,
    mut stdout: ChildStdout,
    params: &str,
) -> CommandEnd {
    let mut output = Vec::new();
    let (exit, output_end) = {
        let transfer = async {
            let writing = async move {
                // A command that does not read its input is not an error, because not every tool has parameters.
                let _ = stdin.write_all(params.as_bytes()).await;
                drop(stdin);
            };
            let ((), output_end) = tokio::join!(writing, listen(&mut stdout, &mut output));
            output_end
        };
        tokio::pin!(transfer);
        tokio::select! {
            output_end = &mut transfer => match output_end {
                OutputEnd::All => (child.wait_until_gone().await, output_end),
                OutputEnd::TooMuch => (ChildExit::Unknown, output_end),
            },
            exit = child.wait_until_gone() => {
                // Buffered output is read at once. A process that left the group may keep the pipe open forever.
                let output_end = timeout(OUTPUT_GRACE, &mut transfer).await;
                (exit, output_end.unwrap_or(OutputEnd::All))
            }
        }
    };
    match output_end {
        OutputEnd::All => CommandEnd::Exited { exit, output },
        OutputEnd::TooMuch => CommandEnd::TooLong,
    }
}

#[derive(Clone, Copy)]
enum OutputEnd {
    All,
    TooMuch,
}

/// Reads the output of a command into a buffer, which keeps what was read if the future is dropped.
async fn listen(stdout: &mut ChildStdout, output: &mut Vec<u8>) -> OutputEnd {
    while let Ok(read) = stdout.read_buf(output).await
        && read > 0
    {
        if output.len() > LONGEST_ANSWER {
            return OutputEnd::TooMuch;
        }
    }
    OutputEnd::All
}

/// Returns the fault of a cancelled attempt.
fn cancelled_fault(begin: Instant) -> AttemptError {
    let source = FaultSource::Timeout { after: begin.elapsed() };
    AttemptFault::new(source, "the command had not ended when it was cancelled").into()
}

/// Returns the fault of a command that could not be started. The fault itself states that nothing ran.
fn not_started(error: &LaunchError) -> AttemptError {
    let source = if matches!(error, LaunchError::NotExecutable { .. }) {
        FaultSource::Exit { code: Some(126), signal: None }
    } else if error.is_lasting() {
        FaultSource::Exit { code: Some(127), signal: None }
    } else {
        FaultSource::Transport { error: TransportError::Other, written: false }
    };
    AttemptFault::new(source, error.to_string()).into()
}

/// Timeout of each step of ending a command. Further output is not needed, so it is asked to end at once.
const STOP_TIMEOUTS: StopTimeouts =
    StopTimeouts { stdin: Duration::ZERO, term: Duration::from_secs(2), kill: Duration::from_secs(6) };
const OUTPUT_GRACE: Duration = Duration::from_millis(50);
/// Number of lines of stderr in a fault message.
const SHOWN_LINES: usize = 8;
