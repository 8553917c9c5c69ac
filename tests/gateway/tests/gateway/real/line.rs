//! A program that exchanges lines of JSON.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use crate::world::{TEST_TIMEOUT, TestProcess};

pub(crate) struct ServerLine {
    child: TestProcess,
    stdin: Option<ChildStdin>,
    incoming: Receiver<Value>,
}

impl ServerLine {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = TestProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (stdin, stdout) = child.streams();
        let out = BufReader::new(stdout);
        let (sender, incoming) = channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).expect("every line is a message");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Self { child, stdin: Some(stdin), incoming }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("open input");
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    /// Waits for the next message, for this reason.
    pub(crate) fn receive(&mut self, description: &str) -> Value {
        let next = self.incoming.recv_timeout(TEST_TIMEOUT);
        next.unwrap_or_else(|problem| panic!("no message while waiting for {description}: {problem}"))
    }

    /// Closes the input of the program, and waits for its end.
    pub(crate) fn hang_up(mut self) -> ExitStatus {
        self.stdin = None;
        self.child.end()
    }
}
