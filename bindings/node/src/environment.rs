//! One thread of JavaScript, as one instance of the module sees it: its messages, the calls whose tools run there, and
//! its end.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use napi::Status;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use parking_lot::Mutex;
use steadfast::Attempt;
use steadfast::call::{CallCanceller, ToolResult};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engines::EngineUse;
use crate::failure::Failure;
use crate::in_place::InPlaceTask;
use crate::prompts::PendingPrompt;
use crate::runtime;

/// The function of JavaScript that fetches the messages.
pub(crate) type WakeFunction = ThreadsafeFunction<(), (), (), Status, false, true, 0>;

/// The number by which JavaScript knows a call or an operation that waits.
pub(crate) type Recipient = u32;

/// One thread of JavaScript, as one instance of the module sees it.
pub(crate) struct Environment {
    id: u64,
    mailbox: Mutex<Mailbox>,
    tables: Mutex<Tables>,
    next: AtomicU64,
    /// Cancelled when the thread ends.
    ended: CancellationToken,
}

struct Mailbox {
    messages: VecDeque<String>,
    /// True if JavaScript was woken and has not fetched its messages yet.
    is_woken: bool,
    /// `None` after the end of the thread.
    wake: Option<WakeFunction>,
}

/// All that waits for this thread, or that this thread waits for.
#[derive(Default)]
struct Tables {
    attempts: BTreeMap<u64, RunningAttempt>,
    calls: BTreeMap<Recipient, ActiveCall>,
    operations: BTreeMap<Recipient, CancellationToken>,
    turns: BTreeMap<Recipient, CancellationToken>,
    prompts: BTreeMap<u64, PendingPrompt>,
    engines: BTreeMap<u64, Arc<EngineUse>>,
}

/// An attempt that runs in this thread.
struct RunningAttempt {
    attempt: Attempt,
    report: oneshot::Sender<ToolResult>,
}

/// A call whose tool is a function of this thread.
#[derive(Clone)]
pub(crate) struct ActiveCall {
    pub(crate) task: Arc<InPlaceTask>,
    pub(crate) canceller: CallCanceller,
}

thread_local! {
    /// The messages of a poll in this thread, which are returned to JavaScript instead of sent, and their environment.
    static COLLECTED: RefCell<Option<(u64, Vec<(Recipient, String)>)>> = const { RefCell::new(None) };
}

impl Environment {
    pub(crate) fn new(wake: WakeFunction) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            mailbox: Mutex::new(Mailbox { messages: VecDeque::new(), is_woken: false, wake: Some(wake) }),
            tables: Mutex::default(),
            next: AtomicU64::new(1),
            ended: CancellationToken::new(),
        })
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if the thread has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    // ── Messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Sends a message to JavaScript. A message of a poll in this thread becomes part of its answer.
    pub(crate) fn send(&self, to: Recipient, text: String) {
        let rest = COLLECTED.with_borrow_mut(|collected| match collected {
            Some((id, messages)) if *id == self.id => {
                messages.push((to, text));
                None
            }
            Some(_) | None => Some(text),
        });
        if let Some(text) = rest {
            self.post(to, &text);
        }
    }

    fn post(&self, to: Recipient, text: &str) {
        let mut mailbox = self.mailbox.lock();
        if mailbox.wake.is_none() {
            return;
        }
        mailbox.messages.push_back(format!("{to}:{text}"));
        if !mailbox.is_woken
            && let Some(wake) = &mailbox.wake
        {
            let status = wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
            mailbox.is_woken = status == Status::Ok;
        }
    }

    /// Returns the messages since the last time.
    pub(crate) fn drain(&self) -> Vec<String> {
        let mut mailbox = self.mailbox.lock();
        mailbox.is_woken = false;
        mailbox.messages.drain(..).collect()
    }

    // ── Operations ───────────────────────────────────────────────────────────────────────────────────────────────────

    /// Runs an operation. Returns its answer if it does not have to wait; otherwise the answer is sent.
    ///
    /// The future is dropped when the thread ends, or JavaScript [abandons](Self::abandon) the operation.
    pub(crate) fn run(
        self: &Arc<Self>,
        to: Recipient,
        operation: impl Future<Output = Result<String, Failure>> + Send + 'static,
    ) -> Result<Option<String>, Failure> {
        let runtime = runtime::handle()?;
        let _context = runtime.enter();
        let mut operation = Box::pin(async move {
            // A panic is an answer like any other.
            match AssertUnwindSafe(operation).catch_unwind().await {
                Ok(answer) => answer,
                Err(panic) => Err(Failure::panic(&*panic)),
            }
        });
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(answer) = operation.as_mut().poll(&mut context) {
            return answer.map(Some);
        }
        let abandoned = self.ended.child_token();
        self.tables.lock().operations.insert(to, abandoned.clone());
        let environment = self.clone();
        runtime.spawn(async move {
            let answer = abandoned.run_until_cancelled_owned(operation).await;
            environment.tables.lock().operations.remove(&to);
            if let Some(answer) = answer {
                environment.send(to, answer.unwrap_or_else(|failure| failure.text()));
            }
        });
        Ok(None)
    }

    /// Drops the future of an operation that still waits.
    pub(crate) fn abandon(&self, to: Recipient) {
        let operation = self.tables.lock().operations.remove(&to);
        if let Some(operation) = operation {
            operation.cancel();
        }
    }

    // ── Calls whose tool is a function of JavaScript ─────────────────────────────────────────────────────────────────

    /// Polls the task of a call that this thread has claimed. Returns the message for this call if there is exactly one.
    /// Otherwise all messages are sent.
    pub(crate) fn poll_in_place(&self, to: Recipient, task: &Arc<InPlaceTask>) -> Option<String> {
        let before = COLLECTED.replace(Some((self.id, Vec::new())));
        task.poll();
        let (_, messages) = COLLECTED.replace(before)?;
        match <[_; 1]>::try_from(messages) {
            Ok([(recipient, text)]) if recipient == to => Some(text),
            Ok([(recipient, text)]) => {
                self.post(recipient, &text);
                None
            }
            Err(messages) => {
                for (recipient, text) in messages {
                    self.post(recipient, &text);
                }
                None
            }
        }
    }

    pub(crate) fn add_call(&self, to: Recipient, call: ActiveCall) {
        self.tables.lock().calls.insert(to, call);
    }

    pub(crate) fn call(&self, to: Recipient) -> Option<ActiveCall> {
        self.tables.lock().calls.get(&to).cloned()
    }

    pub(crate) fn remove_call(&self, to: Recipient) {
        let call = self.tables.lock().calls.remove(&to);
        drop(call);
    }

    pub(crate) fn add_turn(&self, to: Recipient, cancelled: CancellationToken) {
        self.tables.lock().turns.insert(to, cancelled);
    }

    /// Removes a turn, and cancels it if it still runs.
    pub(crate) fn remove_turn(&self, to: Recipient) {
        let turn = self.tables.lock().turns.remove(&to);
        if let Some(cancelled) = turn {
            cancelled.cancel();
        }
    }

    /// Registers an attempt. Returns its number, and the receiver of its report. `None` if the thread has ended.
    pub(crate) fn expect_report(&self, attempt: Attempt) -> Option<(u64, oneshot::Receiver<ToolResult>)> {
        let (report, reported) = oneshot::channel();
        let number = self.next_number();
        let mut tables = self.tables.lock();
        if self.is_ended() {
            return None;
        }
        tables.attempts.insert(number, RunningAttempt { attempt, report });
        Some((number, reported))
    }

    /// Takes the sender for the report of an attempt. `None` if the attempt has ended.
    pub(crate) fn take_report(&self, number: u64) -> Option<oneshot::Sender<ToolResult>> {
        self.tables.lock().attempts.remove(&number).map(|running| running.report)
    }

    /// Signals progress of an attempt.
    pub(crate) fn progress(&self, number: u64) {
        let attempt = self.tables.lock().attempts.get(&number).map(|running| running.attempt.clone());
        if let Some(attempt) = attempt {
            attempt.progress();
        }
    }

    // ── Prompts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn add_prompt(&self, prompt: PendingPrompt) -> Option<u64> {
        let number = self.next_number();
        let mut tables = self.tables.lock();
        if self.is_ended() {
            return None;
        }
        tables.prompts.insert(number, prompt);
        Some(number)
    }

    pub(crate) fn take_prompt(&self, number: u64) -> Option<PendingPrompt> {
        self.tables.lock().prompts.remove(&number)
    }

    // ── Engines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Stores an engine that was opened for this thread, until JavaScript takes it. Returns its number.
    pub(crate) fn add_engine(&self, engine: Arc<EngineUse>) -> u64 {
        let number = self.next_number();
        self.tables.lock().engines.insert(number, engine);
        number
    }

    pub(crate) fn engine(&self, number: u64) -> Option<Arc<EngineUse>> {
        self.tables.lock().engines.get(&number).cloned()
    }

    /// Ends everything of this thread: nothing can be sent any more, attempts that ran here end, and engines that nobody
    /// else uses are closed.
    pub(crate) fn end(&self) {
        self.ended.cancel();
        let wake = {
            let mut mailbox = self.mailbox.lock();
            mailbox.messages.clear();
            mailbox.wake.take()
        };
        drop(wake);
        let tables = std::mem::take(&mut *self.tables.lock());
        let Tables { attempts, calls, operations, turns, prompts, engines } = tables;
        // What is dropped here may continue as a task of the runtime.
        let _context = runtime::handle().map(|runtime| runtime.enter());
        drop((attempts, calls, operations, prompts));
        for cancelled in turns.into_values() {
            cancelled.cancel();
        }
        drop(_context);
        for engine in engines.into_values() {
            engine.close_now();
        }
    }
}
