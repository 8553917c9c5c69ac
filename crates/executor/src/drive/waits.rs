//! Waits of the driver: for an activity, a signal of the caller, a timer, or the renewal of the lease.

use std::time::Duration;

use steadfast_core::approval::{self, ApprovalDecision, ParkedRequestId};
use steadfast_core::call::{ApprovalOutcome, Call, CallEvent, OtherWaiters, WakeReason};
use steadfast_store::StoreError;

use super::approval::{DecisionSource, approval_subject};
use super::driver::{CallDriver, DriverActivity, LeaseRenewal, RenewalResult};
use super::lease::answered;
use super::services::CallServices;
use crate::call::prompter::{ClientDecision, ClientDecisionFuture};
use crate::call::signals::CallSignal;
use crate::call::tool::{AttemptEndFuture, ToolResult};

impl CallDriver {
    /// Waits for the next event for the machine.
    pub(super) async fn wait(&mut self) -> CallEvent {
        if self.stopped {
            if self.call.is_settling() {
                return CallEvent::DriverEnds;
            }
            if matches!(self.activity, DriverActivity::Attempt { .. }) {
                return self.lost().await;
            }
        }
        loop {
            let now = self.calls.clock.now();
            if let LeaseRenewal::Due(at) = self.renewal
                && at <= now
                && self.call.record().is_some()
            {
                self.ask_renewal();
            }
            let wake = self.call.wake_at().map(|at| at.since(now));
            let renew = match self.renewal {
                LeaseRenewal::Due(at) if self.call.record().is_some() => Some(at.since(now)),
                LeaseRenewal::Due(_) | LeaseRenewal::None | LeaseRenewal::Asked(_) => None,
            };
            let event = tokio::select! {
                biased;
                result = ended_activity(&mut self.activity, &self.calls, &self.call) => {
                    DriverEvent::Ended(result)
                }
                signal = self.slot.control.next_signal() => DriverEvent::Signal(signal),
                () = self.calls.state.stopping.cancelled(), if !self.stopped => DriverEvent::Stop,
                () = attempt_end(&mut self.ending) => DriverEvent::Settled,
                verdict = answered(&mut self.renewal) => DriverEvent::Renewed(verdict),
                () = sleep(wake) => DriverEvent::Time,
                () = sleep(renew) => continue,
            };
            match event {
                DriverEvent::Ended(ActivityResult::Ran(answer)) => return self.ran(answer).await,
                DriverEvent::Ended(ActivityResult::Woke(wake)) => {
                    self.activity = DriverActivity::Nothing;
                    return CallEvent::Woke(wake);
                }
                DriverEvent::Ended(ActivityResult::Answered(approval)) => {
                    self.activity = DriverActivity::Nothing;
                    return CallEvent::Answered(approval);
                }
                DriverEvent::Ended(ActivityResult::Asked(id, decision)) => self.decided(id, decision).await,
                DriverEvent::Signal(CallSignal::Progress) => return CallEvent::Progressed,
                DriverEvent::Signal(CallSignal::Cancel) => {
                    self.stop_following();
                    return CallEvent::Cancelled(self.others());
                }
                // A caller with a response does not count as gone, even if all others have left.
                DriverEvent::Signal(CallSignal::LastFollowerLeft) if self.slot.is_given() => {
                    return CallEvent::Cancelled(self.others());
                }
                DriverEvent::Signal(CallSignal::LastFollowerLeft) => {}
                DriverEvent::Signal(CallSignal::Disconnected) => {
                    return CallEvent::Disconnected(self.others());
                }
                DriverEvent::Stop => {
                    self.stopped = true;
                    return CallEvent::Cancelled(OtherWaiters::None);
                }
                DriverEvent::Renewed(Ok(renewed)) => return self.renewed(renewed),
                DriverEvent::Renewed(Err(error)) => {
                    self.renewal = LeaseRenewal::Due(now + self.lease() / 3);
                    self.store_trouble(&error);
                }
                DriverEvent::Settled => {
                    self.ending = None;
                    self.activity = DriverActivity::Nothing;
                    return CallEvent::Settled;
                }
                DriverEvent::Time => return CallEvent::Woke(WakeReason::Time),
            }
        }
    }

    /// Returns the event, or the caller's cancellation or disconnect if there is one. An attempt would follow this
    /// event, and signals are not read again before it has started. A caller that has left by now must not cause an
    /// attempt.
    pub(super) fn unless_left(&self, event: CallEvent) -> CallEvent {
        match self.slot.control.left() {
            Some(CallSignal::Cancel) => CallEvent::Cancelled(self.others()),
            Some(CallSignal::Disconnected) => CallEvent::Disconnected(self.others()),
            Some(CallSignal::Progress | CallSignal::LastFollowerLeft) | None => event,
        }
    }

    /// Stops following a run because the caller cancelled. The leader of that run may be the only one left now.
    fn stop_following(&mut self) {
        if let DriverActivity::Following { key, .. } = &self.activity {
            let key = *key;
            self.activity = DriverActivity::Nothing;
            self.calls.runs.remove_follower(key);
        }
    }
}

/// Something that ended a wait of the driver.
enum DriverEvent {
    Ended(ActivityResult),
    Signal(CallSignal),
    Stop,
    Settled,
    Renewed(Result<RenewalResult, StoreError>),
    Time,
}

/// Result of an activity.
enum ActivityResult {
    Ran(ToolResult),
    Woke(WakeReason),
    Answered(ApprovalOutcome),
    /// The user at the client has decided.
    Asked(ParkedRequestId, ApprovalDecision),
}

/// Waits for the end of an activity.
async fn ended_activity(activity: &mut DriverActivity, calls: &CallServices, call: &Call) -> ActivityResult {
    match activity {
        DriverActivity::Nothing => std::future::pending().await,
        DriverActivity::Attempt { running, .. } => ActivityResult::Ran(running.await),
        DriverActivity::Following { changed, .. } => ActivityResult::Woke(changed.await),
        DriverActivity::Asking { id, ask, caller } => {
            let tenant = calls.machines.tenants.get(&call.request().tenant);
            loop {
                let changed = tenant.approvals_changed.notified();
                let answer = tenant.judged.lock().approvals.answer(
                    *id,
                    approval_subject(call, DecisionSource::of(ask)),
                    calls.clock.now(),
                );
                match answer {
                    approval::ApprovalStatus::Pending => {
                        let decision = tokio::select! {
                            decision = answer_of(caller) => decision,
                            () = changed => continue,
                        };
                        *caller = None;
                        return match decision {
                            ClientDecision::Decided(decision) => ActivityResult::Asked(*id, decision),
                            ClientDecision::Unavailable => {
                                ActivityResult::Answered(ApprovalOutcome::Unreachable)
                            }
                            ClientDecision::PutToCaller(question) => {
                                ActivityResult::Answered(ApprovalOutcome::ReturnedToCaller(question))
                            }
                        };
                    }
                    approval::ApprovalStatus::Granted(grant) => {
                        return ActivityResult::Answered(ApprovalOutcome::Granted(Some(grant)));
                    }
                    approval::ApprovalStatus::Denied => {
                        return ActivityResult::Answered(ApprovalOutcome::Denied);
                    }
                    approval::ApprovalStatus::Gone => {
                        return ActivityResult::Answered(ApprovalOutcome::Unreachable);
                    }
                }
            }
        }
    }
}

async fn attempt_end(ending: &mut Option<AttemptEndFuture>) {
    match ending {
        Some(ending) => ending.await,
        None => std::future::pending().await,
    }
}

async fn answer_of(caller: &mut Option<ClientDecisionFuture>) -> ClientDecision {
    match caller {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn sleep(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}
