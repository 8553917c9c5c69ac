//! A program that speaks in lines of JSON.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::world::wait;

pub(crate) struct Line {
    child: Child,
    stdin: Option<ChildStdin>,
    incoming: Receiver<Value>,
}

/// Longer than anything takes here, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(60);

impl Line {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, incoming) = channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).expect("every line is a message");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, incoming }
    }

    pub(crate) fn say(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("nobody has hung up");
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    /// The next message, which is waited for because of this.
    pub(crate) fn hear(&mut self, what: &str) -> Value {
        let next = self.incoming.recv_timeout(PATIENCE);
        next.unwrap_or_else(|problem| panic!("no message while waiting for {what}: {problem}"))
    }

    /// Closes what the program reads, and waits for its end.
    pub(crate) fn hang_up(mut self) -> ExitStatus {
        self.stdin = None;
        let mut status = None;
        let is_over = || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        };
        wait(is_over, || "the end of the client".to_owned());
        status.unwrap()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
