//! The breaker beside `recloser`, `failsafe` and `tower-resilience-circuitbreaker`.
//!
//! Each peer is called as its own documentation shows: the first two through a shared reference, the third as a tower
//! service (clone, ready, call) inside a runtime. Steadfast's breaker is called as the executor does: admit, record, through the lock.
//! It gets the time as an argument. The peers read a clock only when they open, half-open or (tower) on every call,
//! so one row shows it with two readings of the clock as well.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use steadfast_core::Timestamp;
use steadfast_core::breaker::{BreakerVerdict, CircuitBreaker, SharedBreaker};
use steadfast_core::policy::{BreakerPolicy, PolicyProfile, RateRule, Ratio, ToolClass};
use tower::{Service, ServiceExt as _};
use tower_resilience_circuitbreaker::{CircuitBreakerLayer, SlidingWindowType};

use crate::engine::MeasurementError;
use crate::measure::{Contestant, allocations, contest, contest_in, repeat};
use crate::report::{BenchBudget, BenchReport, Figure, ReportRow};

const RECLOSER: &str = "recloser 1.4.0";
const FAILSAFE: &str = "failsafe 1.3.0";
const TOWER: &str = "tower-resilience 0.14.0";

pub(crate) fn run(report: &mut BenchReport) -> Result<(), MeasurementError> {
    check_and_record(report);
    fail_fast(report);
    as_records_grow(report);
    shared_by_many_tasks(report);
    allocate_nothing(report);
    Ok(())
}

// ---- measurements -----------------------------------------------------------------------------------

fn check_and_record(report: &mut BenchReport) {
    const TITLE: &str = "check and record, closed";
    if !report.is_selected(TITLE) {
        return;
    }
    let (steadfast, policy) = (SharedBreaker::default(), policy());
    let (recloser, failsafe, mut tower) = (recloser(), failsafe(), TowerPeer::counting(100));
    let standing = contest(
        2000,
        &mut [
            repeat(|number| call(&steadfast, &policy, busy_moment(number))),
            repeat(|_| recloser.call(ready)),
            repeat(|_| failsafe::CircuitBreaker::call(&failsafe, ready)),
            Box::new(move |operations| tower.calls(operations)),
        ],
    );
    report.add_peers(
        TITLE,
        &standing,
        &[(RECLOSER, BenchBudget::AtMost(1.0)), (FAILSAFE, BenchBudget::None), (TOWER, BenchBudget::None)],
    );

    let standing = contest(
        2000,
        &mut [repeat(|number| call(&steadfast, &policy, moment(number))), repeat(|_| recloser.call(ready))],
    );
    report.add_peers(
        "check and record, closed, each in its own millisecond",
        &standing,
        &[(RECLOSER, BenchBudget::AtMost(1.0))],
    );

    let mut bare = CircuitBreaker::default();
    let standing = contest(
        2000,
        &mut [
            repeat(|number| call_bare(&mut bare, &policy, moment(number))),
            repeat(|_| recloser.call(ready)),
        ],
    );
    report.add_peers(
        "check and record, closed, without the lock",
        &standing,
        &[(RECLOSER, BenchBudget::None)],
    );

    let one_in_ten = |number: u64| if number.is_multiple_of(10) { failing() } else { ready() };
    let standing = contest(
        2000,
        &mut [
            repeat(|number| call_for(&steadfast, &policy, busy_moment(number), || one_in_ten(number))),
            repeat(|number| recloser.call(|| one_in_ten(number))),
        ],
    );
    report.add_peers(
        "check and record, closed, one in ten fails",
        &standing,
        &[(RECLOSER, BenchBudget::None)],
    );

    let standing = contest(
        2000,
        &mut [repeat(|_| call_with_clock(&steadfast, &policy)), repeat(|_| recloser.call(ready))],
    );
    report.add_peers(
        "check and record, two readings of the clock included",
        &standing,
        &[(RECLOSER, BenchBudget::None)],
    );
}

fn fail_fast(report: &mut BenchReport) {
    const TITLE: &str = "refuse, open";
    if !report.is_selected(TITLE) {
        return;
    }
    let (steadfast, policy) = (SharedBreaker::default(), policy());
    steadfast.with(|breaker| {
        for _ in 0..5 {
            if let Ok((ticket, _)) = breaker.admit(&policy, moment(0)) {
                breaker.record(&policy, ticket, BreakerVerdict::Failure { took: Duration::ZERO }, moment(0));
            }
        }
    });
    let recloser = recloser::Recloser::custom().closed_len(1).open_wait(Duration::from_secs(3600)).build();
    let failsafe = failsafe::Config::new()
        .failure_policy(failsafe::failure_policy::consecutive_failures(
            1,
            failsafe::backoff::constant(Duration::from_secs(3600)),
        ))
        .build();
    for _ in 0..2 {
        _ = recloser.call(failing);
        _ = failsafe::CircuitBreaker::call(&failsafe, failing);
    }
    let mut tower = TowerPeer::open();
    assert!(steadfast.check(&policy, moment(0)).is_err() && tower.service.is_open(), "all are open");
    assert!(matches!(recloser.call(ready), Err(recloser::Error::Rejected)), "all are open");
    assert!(!failsafe::CircuitBreaker::is_call_permitted(&failsafe), "all are open");
    let standing = contest(
        2000,
        &mut [
            repeat(|_| steadfast.admit(&policy, moment(0)).is_err()),
            repeat(|_| recloser.call(ready).is_err()),
            repeat(|_| failsafe::CircuitBreaker::call(&failsafe, ready).is_err()),
            Box::new(move |operations| tower.calls(operations)),
        ],
    );
    report.add_peers(
        TITLE,
        &standing,
        &[(RECLOSER, BenchBudget::AtMost(1.0)), (FAILSAFE, BenchBudget::None), (TOWER, BenchBudget::None)],
    );
}

/// Measures the largest possible window while it fills.
fn as_records_grow(report: &mut BenchReport) {
    const TITLE: &str = "check and record after";
    if !report.is_selected(TITLE) {
        return;
    }
    let last = NonZeroU32::new(RateRule::MOST).unwrap_or(NonZeroU32::MIN);
    let rate = RateRule { threshold: Ratio::percent(50), last, at_least: last };
    let policy = BreakerPolicy { rate: Some(rate), ..policy() };
    let sizes = [100_u64, 1_000, 10_000, 100_000];
    let breakers = sizes.map(|records| {
        let breaker = SharedBreaker::default();
        for number in 0..records {
            call(&breaker, &policy, moment(number));
        }
        breaker
    });
    let mut contestants: Vec<Contestant<'_>> = sizes
        .iter()
        .zip(&breakers)
        .map(|(records, breaker)| {
            let (policy, records) = (&policy, *records);
            repeat(move |number| call(breaker, policy, moment(records + number)))
        })
        .collect();
    let standing = contest(500, &mut contestants);
    for ((records, nanos), first_to) in sizes.iter().zip(&standing.nanos).zip(&standing.first_to) {
        report.add(&ReportRow {
            title: format!("{TITLE} {records} records, itself after 100 as peer"),
            steadfast: Figure::Nanos(*nanos),
            peer: standing.nanos.first().map(|first| ("itself".to_owned(), Figure::Nanos(*first))),
            ratio: Some(1.0 / first_to),
            budget: BenchBudget::AtMost(1.25),
        });
    }
    for records in [100_u32, 1_000, 10_000] {
        let (breaker, policy, behind) = (SharedBreaker::default(), &policy, u64::from(records));
        for number in 0..behind {
            call(&breaker, policy, moment(number));
        }
        let standing = contest_in(
            31,
            20,
            &mut [
                repeat(|number| call(&breaker, policy, moment(behind + number))),
                Box::new(move |operations| {
                    // A new one each time, because its cost grows with every call.
                    let mut tower = TowerPeer::timed();
                    tower.calls(records);
                    tower.calls(operations)
                }),
            ],
        );
        report.add_peers(&format!("{TITLE} {records} records"), &standing, &[(TOWER, BenchBudget::None)]);
    }
}

fn shared_by_many_tasks(report: &mut BenchReport) {
    const TITLE: &str = "check and record, 64 tasks on 2 workers";
    const TASKS: u32 = 64;
    if !report.is_selected(TITLE) {
        return;
    }
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build() else {
        return;
    };
    let (steadfast, policy) = (Arc::new(SharedBreaker::default()), Arc::new(policy()));
    let (recloser, failsafe) = (Arc::new(recloser()), Arc::new(failsafe()));
    let standing = contest_in(
        61,
        TASKS * 500,
        &mut [
            in_tasks(&runtime, TASKS, {
                move || {
                    let (steadfast, policy) = (Arc::clone(&steadfast), Arc::clone(&policy));
                    // Millions of calls a second happen in the same millisecond.
                    move |_| call(&steadfast, &policy, moment(0))
                }
            }),
            in_tasks(&runtime, TASKS, move || {
                let recloser = Arc::clone(&recloser);
                move |_| recloser.call(ready).is_ok()
            }),
            in_tasks(&runtime, TASKS, move || {
                let failsafe = Arc::clone(&failsafe);
                move |_| failsafe::CircuitBreaker::call(&*failsafe, ready).is_ok()
            }),
        ],
    );
    for (index, (peer, budget)) in
        [(RECLOSER, BenchBudget::AtLeast(1.0)), (FAILSAFE, BenchBudget::None)].into_iter().enumerate()
    {
        let per_second =
            |index: usize| Figure::PerSecond(standing.nanos.get(index).map_or(f64::NAN, |nanos| 1e9 / nanos));
        report.add(&ReportRow {
            title: TITLE.to_owned(),
            steadfast: per_second(0),
            peer: Some((peer.to_owned(), per_second(index + 1))),
            ratio: standing.first_to.get(index + 1).map(|cost| 1.0 / cost),
            budget,
        });
    }
}

fn allocate_nothing(report: &mut BenchReport) {
    const TITLE: &str = "allocations per call";
    if !report.is_selected(TITLE) {
        return;
    }
    let (steadfast, policy, recloser, failsafe) =
        (SharedBreaker::default(), policy(), recloser(), failsafe());
    let closed = allocations(|number| call(&steadfast, &policy, moment(number)));
    steadfast.with(|breaker| breaker.force_open(None, moment(0)));
    let open = allocations(|_| steadfast.admit(&policy, moment(0)).is_err());
    let mut tower = TowerPeer::counting(100);
    let peers = [
        (RECLOSER, allocations(|_| recloser.call(ready))),
        (FAILSAFE, allocations(|_| failsafe::CircuitBreaker::call(&failsafe, ready))),
        (TOWER, allocations(|_| tower.calls(1))),
    ];
    for (name, count) in peers {
        report.add(&ReportRow {
            title: format!("{TITLE}, closed"),
            steadfast: Figure::Allocations(closed),
            peer: Some((name.to_owned(), Figure::Allocations(count))),
            ratio: None,
            budget: BenchBudget::Nothing,
        });
    }
    let title = format!("{TITLE}, open");
    report.add(&ReportRow {
        title,
        steadfast: Figure::Allocations(open),
        peer: None,
        ratio: None,
        budget: BenchBudget::Nothing,
    });
}

// ---- contestants ------------------------------------------------------------------------------------

fn policy() -> BreakerPolicy {
    PolicyProfile::Standard.policy(ToolClass::Unknown).breaker
}

fn moment(number: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + number)
}

/// The clock of a loop that calls as fast as it can: a millisecond has room for some thirty thousand calls.
fn busy_moment(number: u64) -> Timestamp {
    moment(number / 10_000)
}

fn call(breaker: &SharedBreaker, policy: &BreakerPolicy, now: Timestamp) -> bool {
    call_for(breaker, policy, now, ready)
}

fn call_for(
    breaker: &SharedBreaker,
    policy: &BreakerPolicy,
    now: Timestamp,
    tool: impl FnOnce() -> Result<u32, u32>,
) -> bool {
    let Ok((permit, _)) = breaker.admit(policy, now) else { return false };
    let answer = tool();
    permit.record(policy, verdict(&answer), now);
    answer.is_ok()
}

/// Calls the machine like a program that holds it under a lock of its own.
fn call_bare(breaker: &mut CircuitBreaker, policy: &BreakerPolicy, now: Timestamp) -> bool {
    let Ok((ticket, _)) = breaker.admit(policy, now) else { return false };
    let answer = ready();
    breaker.record(policy, ticket, verdict(&answer), now);
    answer.is_ok()
}

fn verdict(answer: &Result<u32, u32>) -> BreakerVerdict {
    let took = Duration::ZERO;
    if answer.is_ok() { BreakerVerdict::Success { took } } else { BreakerVerdict::Failure { took } }
}

fn call_with_clock(breaker: &SharedBreaker, policy: &BreakerPolicy) -> bool {
    let started = read_clock();
    let Ok((permit, _)) = breaker.admit(policy, started) else { return false };
    let good = ready().is_ok();
    let finished = read_clock();
    permit.record(policy, BreakerVerdict::Success { took: finished.since(started) }, finished);
    good
}

fn read_clock() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

fn ready() -> Result<u32, u32> {
    black_box(Ok(1))
}

fn failing() -> Result<u32, u32> {
    black_box(Err(1))
}

fn recloser() -> recloser::Recloser {
    recloser::Recloser::custom().closed_len(20).error_rate(0.5).build()
}

fn failsafe() -> impl failsafe::CircuitBreaker + Send + Sync + 'static {
    failsafe::Config::new().build()
}

type ReadyService = tower::util::ServiceFn<fn(u32) -> std::future::Ready<Result<u32, u32>>>;

/// The tower peer with the runtime in which its futures are polled.
struct TowerPeer {
    runtime: tokio::runtime::Runtime,
    service: tower_resilience_circuitbreaker::CircuitBreaker<
        ReadyService,
        tower_resilience_circuitbreaker::DefaultClassifier,
    >,
}

impl TowerPeer {
    fn counting(size: usize) -> Self {
        Self::new(SlidingWindowType::CountBased, size, succeeding_service)
    }

    fn timed() -> Self {
        Self::new(SlidingWindowType::TimeBased, 10, succeeding_service)
    }

    fn open() -> Self {
        let mut tower = Self::new(SlidingWindowType::CountBased, 1, bad_service);
        tower.calls(2);
        tower
    }

    #[expect(
        clippy::expect_used,
        reason = "the settings are constants, and a machine without threads measures nothing"
    )]
    fn new(
        window: SlidingWindowType,
        size: usize,
        answer: fn(u32) -> std::future::Ready<Result<u32, u32>>,
    ) -> Self {
        let layer = CircuitBreakerLayer::builder()
            .failure_rate_threshold(0.5)
            .sliding_window_type(window)
            .sliding_window_size(size)
            .sliding_window_duration(Duration::from_secs(120))
            .minimum_number_of_calls(size)
            .wait_duration_in_open(Duration::from_secs(3600))
            .build()
            .expect("valid settings");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        Self { runtime, service: layer.layer_fn(tower::service_fn(answer)) }
    }

    fn calls(&mut self, operations: u32) -> Duration {
        let service = &self.service;
        self.runtime.block_on(async {
            let started = Instant::now();
            for number in 0..operations {
                let mut service = service.clone();
                if let Ok(service) = service.ready().await {
                    _ = black_box(service.call(number).await);
                }
            }
            started.elapsed()
        })
    }
}

fn succeeding_service(number: u32) -> std::future::Ready<Result<u32, u32>> {
    std::future::ready(Ok(number))
}

fn bad_service(number: u32) -> std::future::Ready<Result<u32, u32>> {
    std::future::ready(Err(number))
}

/// Divides operations among tasks that yield now and then, like tasks that wait for something.
fn in_tasks<'a, Call>(
    runtime: &'a tokio::runtime::Runtime,
    tasks: u32,
    mut make: impl FnMut() -> Call + 'a,
) -> Contestant<'a>
where
    Call: FnMut(u64) -> bool + Send + 'static,
{
    Box::new(move |operations| {
        let share = operations / tasks;
        let calls: Vec<Call> = (0..tasks).map(|_| make()).collect();
        let started = Instant::now();
        let running: Vec<_> = calls
            .into_iter()
            .map(|mut call| {
                runtime.spawn(async move {
                    for number in 0..u64::from(share) {
                        black_box(call(number));
                        if number.is_multiple_of(16) {
                            tokio::task::yield_now().await;
                        }
                    }
                })
            })
            .collect();
        runtime.block_on(async {
            for task in running {
                _ = task.await;
            }
        });
        started.elapsed()
    })
}
