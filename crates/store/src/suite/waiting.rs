//! Waiting for a record to be settled. Each case has a time limit.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use steadfast_core::dedupe::{
    Claim, DedupeRecord, DedupeRules, Resolution, ResolutionRequest, ResolveVerdict, SettleDelay,
};
use steadfast_core::key::RecordKey;
use steadfast_core::policy::RecordLifetimes;
use tokio::task::JoinHandle;

use super::world::{
    FailurePermanence, SuiteWorld, done, failed, final_unknown, lifetimes, release, rules, save, unknown,
    within,
};
use crate::StateStore;
use crate::selection::FlushTarget;

pub(super) async fn a_settled_record_is_not_waited_for(world: SuiteWorld) {
    let nothing = world.explicit("nothing").address.own();
    let (answered, _) = world.run(&world.explicit("done"), done("paid")).await;
    let (refused, _) = world.run(&world.explicit("failed"), failed(FailurePermanence::ForNow)).await;
    let (unknown_at_last, _) = world.run(&world.explicit("unknown"), final_unknown()).await;
    let (cut, _) = world.run(&world.explicit("cut"), unknown(SettleDelay::WhenOwnerReports)).await;
    let lapsed = world.take_and_lapse(world.explicit("lapsed")).await;
    for key in [nothing, answered.key, refused.key, unknown_at_last.key, cut.key, lapsed.key] {
        within("a record that nobody holds", world.settled(key)).await;
    }
}

pub(super) async fn a_follower_is_woken_by_every_end(world: SuiteWorld) {
    for end in ENDS {
        let record = world.take(&world.explicit(&format!("{end:?}"))).await;
        let follower = follow(world.first(), record.key).await;
        end.bring(&world, &*world.first(), &record).await;
        within(&format!("a follower after {end:?}"), follower).await.unwrap();
    }
}

pub(super) async fn a_follower_of_another_handle_is_woken(world: SuiteWorld) {
    for end in ENDS {
        let record = world.take(&world.explicit(&format!("{end:?}"))).await;
        let follower = follow(world.second(), record.key).await;
        end.bring(&world, &*world.first(), &record).await;
        within(&format!("a follower elsewhere after {end:?}"), follower).await.unwrap();
    }
}

pub(super) async fn a_follower_is_woken_when_the_lease_ends(world: SuiteWorld) {
    let keep = RecordLifetimes { lease: 2 * world.moment(), ..lifetimes() };
    let mut claim = Claim { rules: DedupeRules { keep, ..rules() }, ..world.explicit("k") };
    claim.owner.process = world.spawn();
    let record = world.take(&claim).await;
    let follower = follow(world.second(), record.key).await;
    if world.ends_with_process() {
        world.kill(&record.owner.process);
    } else {
        world.pass(3).await;
    }
    within("a follower of a lapsed claim", follower).await.unwrap();
    assert_eq!(world.verdict(&world.explicit("k")).await, "tell not yet");
}

pub(super) async fn every_follower_is_woken(world: SuiteWorld) {
    let records = [world.take(&world.explicit("a")).await, world.take(&world.keyless("b")).await];
    let mut followers = Vec::new();
    for number in 0..40 {
        let record = if number < 20 { &records[0] } else { &records[1] };
        followers.push(follow(world.handle(number), record.key).await);
    }
    // Some followers give up, without an effect on the others.
    for follower in followers.iter().step_by(7) {
        follower.abort();
    }
    for record in &records {
        world.save(&save(record, done("paid"))).await.unwrap();
    }
    for (number, follower) in followers.into_iter().enumerate() {
        let result = within("a follower among many", follower).await;
        assert!(result.is_ok() || number % 7 == 0);
    }
}

/// A way in which a record leaves the in-flight state.
#[derive(Clone, Copy, Debug)]
enum FlightEnd {
    Done,
    Failed,
    Unknown,
    /// The caller has stopped waiting, and the end of the attempt is not known yet.
    Cut,
    Released,
    Flushed,
    SettledByOperator,
}

const ENDS: [FlightEnd; 7] = [
    FlightEnd::Done,
    FlightEnd::Failed,
    FlightEnd::Unknown,
    FlightEnd::Cut,
    FlightEnd::Released,
    FlightEnd::Flushed,
    FlightEnd::SettledByOperator,
];

impl FlightEnd {
    async fn bring(self, world: &SuiteWorld, store: &dyn StateStore, record: &DedupeRecord) {
        match self {
            Self::Done => drop(store.save(&save(record, done("paid"))).await.unwrap()),
            Self::Failed => drop(store.save(&save(record, failed(FailurePermanence::ForNow))).await.unwrap()),
            Self::Unknown => drop(store.save(&save(record, final_unknown())).await.unwrap()),
            Self::Cut => {
                drop(store.save(&save(record, unknown(SettleDelay::WhenOwnerReports))).await.unwrap())
            }
            Self::Released => store.release(&release(record)).await.unwrap(),
            Self::Flushed => assert_eq!(store.flush(&FlushTarget::Key(record.key)).await.unwrap(), 1),
            Self::SettledByOperator => {
                store.save(&save(record, final_unknown())).await.unwrap();
                let resolution = Resolution::DidNotRun;
                let resolved = world
                    .second()
                    .resolve(&ResolutionRequest::by_operator(record.key, resolution), &rules())
                    .await
                    .unwrap();
                assert_eq!(resolved, ResolveVerdict::Resolved);
            }
        }
    }
}

/// Starts a follower, and returns once it waits.
async fn follow(store: Arc<dyn StateStore>, key: RecordKey) -> JoinHandle<()> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let follower = tokio::spawn(async move {
        let mut settled = store.settled(key);
        let mut sender = Some(sender);
        poll_fn(|context| {
            let poll = settled.as_mut().poll(context);
            if let Some(sender) = sender.take() {
                // The case has ended if there is no receiver.
                let _ = sender.send(());
            }
            match poll {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
    });
    receiver.await.unwrap();
    follower
}
