//! The overhead that the gateway adds to a call, beside the bare server and beside other gateways.
//!
//! Everything runs as users run it: in processes of its own, over stdio or on ports of this machine. Bare means that
//! the client uses the server itself: over stdio where Steadfast does, otherwise over its own HTTP front.

mod client;
mod process;
mod race;
mod server;
mod setup;

use self::race::{CALLERS, CallerCounts, RaceEntrant};
pub(crate) use self::server::{CHILD as FAST_SERVER, child as fast_server_child};
use self::setup::{BenchPaths, BenchTarget, BenchToolClass, GatewayKind, RecordStorage, SteadfastSetup};
pub(crate) use self::setup::{BenchServer, TransportShape};
use crate::engine::MeasurementError;
use crate::measure::is_quick;
use crate::report::{BenchBudget, BenchReport, Figure, ReportRow};

/// The method, for readers of the table.
pub(crate) const METHOD: &str = "\
Everything ran in processes of its own on one machine and made the same calls in turns, in many short rounds: `echo` with
about 200 bytes of arguments that differ each time. *Added* is the median over rounds of the difference between the
medians of single rounds, Steadfast's or the peer's minus the bare server's; rates are medians over rounds, their ratios medians
of the ratios of single rounds; p99 is over all calls of a run. Steadfast has the memory store and its whole policy on, for a
tool that changes something; like the others it logs no line per call, and over HTTP it is `serve`, which shares a
server between callers as they do. The fast server answers at once; the Node server is `server-everything`. The client costs
the same for all, and its part is in all figures that are not differences. A row without budget is for information.";

const MS: f64 = 1e6;

impl TransportShape {
    const fn name(self) -> &'static str {
        match self {
            Self::StdioToStdio => "stdio to stdio",
            Self::StdioBehindHttp => "stdio behind HTTP",
            Self::HttpToHttp => "HTTP to HTTP",
            Self::HttpBehindStdio => "HTTP behind stdio",
        }
    }

    /// Returns the peers that support this shape.
    const fn peers(self) -> &'static [GatewayKind] {
        match self {
            Self::StdioToStdio => &[GatewayKind::Fastmcp],
            Self::StdioBehindHttp => &[
                GatewayKind::RustProxy,
                GatewayKind::NpmProxy,
                GatewayKind::Supergateway,
                GatewayKind::PythonProxy,
            ],
            Self::HttpToHttp => &[GatewayKind::RustProxy, GatewayKind::Fastmcp],
            Self::HttpBehindStdio => &[GatewayKind::Supergateway, GatewayKind::PythonProxy],
        }
    }

    /// Returns the servers to measure. The cheapest server shows the cost of two transports best.
    const fn servers(self) -> &'static [BenchServer] {
        match self {
            Self::StdioToStdio | Self::StdioBehindHttp | Self::HttpToHttp => {
                &[BenchServer::Fast, BenchServer::Node]
            }
            Self::HttpBehindStdio => &[BenchServer::Fast],
        }
    }

    /// Returns the allowed addition to the median of a call.
    const fn allowed(self) -> Option<f64> {
        match self {
            Self::StdioToStdio => Some(0.1 * MS),
            Self::HttpToHttp => Some(0.15 * MS),
            Self::StdioBehindHttp | Self::HttpBehindStdio => None,
        }
    }

    /// Returns the number of callers. Over stdio every caller starts a process, and of some servers these would be too
    /// many.
    const fn callers(self, server: BenchServer) -> CallerCounts {
        match (self, server) {
            (Self::StdioToStdio, BenchServer::Node) | (Self::HttpBehindStdio, _) => CallerCounts::One,
            (Self::StdioToStdio, BenchServer::Fast) | (Self::StdioBehindHttp | Self::HttpToHttp, _) => {
                CallerCounts::OneAndMany
            }
        }
    }
}

/// A row for one shape with one server.
#[derive(Clone, Copy)]
enum ReportedFigure {
    Median,
    Policy,
    P99,
    Rate,
    RateTogether,
}

impl ReportedFigure {
    const ALL: [Self; 5] = [Self::Median, Self::Policy, Self::P99, Self::Rate, Self::RateTogether];

    fn name(self, server: BenchServer, shape: TransportShape) -> String {
        let label = match self {
            Self::Median if shape == TransportShape::StdioBehindHttp => "median of a call".to_owned(),
            Self::Median => "added median".to_owned(),
            Self::Policy => "added by the policy".to_owned(),
            Self::P99 => "p99 of a call".to_owned(),
            Self::Rate => "calls of one caller".to_owned(),
            Self::RateTogether => format!("calls of {CALLERS} callers"),
        };
        format!("{}, {label}", server.name())
    }
}

pub(crate) fn run(report: &mut BenchReport, shape: TransportShape) -> Result<(), MeasurementError> {
    for server in shape.servers().iter().copied() {
        let figures: Vec<_> = ReportedFigure::ALL
            .into_iter()
            .filter(|figure| report.is_selected(&figure.name(server, shape)))
            .collect();
        if figures.is_empty() {
            continue;
        }
        let place = BenchPaths::find()?;
        let without_policy = GatewayKind::Ours(SteadfastSetup::OFF);
        let mut others = vec![GatewayKind::Ours(SteadfastSetup::ON)];
        others.extend(shape.peers());
        // With the other server, a few microseconds would not show.
        others.extend((server == BenchServer::Fast).then_some(without_policy));
        let parties = race::run(report, &place, shape, server, &others, shape.callers(server))?;
        let [bare, steadfast, ..] = parties.as_slice() else {
            return Err(MeasurementError::because("the bare server or our gateway is missing"));
        };
        let peers = parties.iter().filter(|party| party.front.between().is_peer()).collect();
        let without_policy = parties.iter().find(|party| party.front.between() == without_policy);
        let table = ShapeResults { shape, server, bare, steadfast, without_policy, peers };
        for figure in figures {
            table.write_row(report, figure);
        }
    }
    Ok(())
}

/// The results of one shape with one server.
struct ShapeResults<'a> {
    shape: TransportShape,
    server: BenchServer,
    bare: &'a RaceEntrant,
    steadfast: &'a RaceEntrant,
    without_policy: Option<&'a RaceEntrant>,
    peers: Vec<&'a RaceEntrant>,
}

impl ShapeResults<'_> {
    fn write_row(&self, report: &mut BenchReport, figure: ReportedFigure) {
        let title = figure.name(self.server, self.shape);
        let mut add = |steadfast, peer: (&str, Figure), ratio: Option<f64>, budget| {
            let peer = Some((peer.0.to_owned(), peer.1));
            report.add(&ReportRow { title: title.clone(), steadfast, peer, ratio, budget });
        };
        let bare_and_peers = || std::iter::once(self.bare).chain(self.peers.iter().copied());
        match figure {
            ReportedFigure::Median if self.shape == TransportShape::StdioBehindHttp => {
                for other in bare_and_peers() {
                    let peer = (other.name(), Figure::Nanos(other.median()));
                    add(
                        Figure::Nanos(self.steadfast.median()),
                        peer,
                        Some(self.steadfast.time_to(other)),
                        BenchBudget::None,
                    );
                }
            }
            ReportedFigure::Median => {
                let added = self.steadfast.added_to(self.bare);
                if let Some(allowed) = self.shape.allowed() {
                    add(Figure::Nanos(added), ("allowed", Figure::Nanos(allowed)), None, self.allowance());
                }
                // "Not slower than any peer" does not mean "not slower than the best".
                let budget = if self.shape == TransportShape::HttpToHttp {
                    BenchBudget::AtMost(1.0)
                } else {
                    BenchBudget::None
                };
                for peer in &self.peers {
                    let peer_added = peer.added_to(self.bare);
                    add(
                        Figure::Nanos(added),
                        (peer.name(), Figure::Nanos(peer_added)),
                        share(added, peer_added),
                        budget,
                    );
                }
            }
            ReportedFigure::Policy => {
                let Some(without) = self.without_policy else { return };
                let added = Figure::Nanos(self.steadfast.added_to(without));
                add(added, ("allowed", Figure::Nanos(0.01 * MS)), None, self.allowance());
            }
            ReportedFigure::P99 => {
                for other in bare_and_peers() {
                    add(
                        Figure::Nanos(self.steadfast.p99()),
                        (other.name(), Figure::Nanos(other.p99())),
                        None,
                        BenchBudget::None,
                    );
                }
            }
            ReportedFigure::Rate => {
                for other in bare_and_peers() {
                    let peer = (other.name(), Figure::PerSecond(other.rate()));
                    let (rate, ratio) = (self.steadfast.rate(), self.steadfast.rate_to(other));
                    add(Figure::PerSecond(rate), peer, Some(ratio), self.rate_budget(other));
                }
            }
            ReportedFigure::RateTogether => {
                let Some(rate) = self.steadfast.rate_together() else { return };
                for other in bare_and_peers() {
                    let Some(peer_rate) = other.rate_together() else { continue };
                    let peer = (other.name(), Figure::PerSecond(peer_rate));
                    let ratio = self.steadfast.rate_together_to(other);
                    add(Figure::PerSecond(rate), peer, Some(ratio), self.rate_budget(other));
                }
            }
        }
    }

    /// Returns the budget of the added microseconds, which applies to the fast server. The medians of the Node server
    /// vary by more than that.
    const fn allowance(&self) -> BenchBudget {
        match self.server {
            BenchServer::Fast => BenchBudget::AtMost(1.0),
            BenchServer::Node => BenchBudget::None,
        }
    }

    /// Returns the budget of the rate. A server on stdio must be faster through our gateway than through the best peer,
    /// and than through its own front if that is in use.
    fn rate_budget(&self, other: &RaceEntrant) -> BenchBudget {
        match (self.shape, other.front.between(), self.server) {
            (TransportShape::StdioBehindHttp, GatewayKind::RustProxy, _)
            | (TransportShape::StdioBehindHttp, GatewayKind::Nothing, BenchServer::Node) => {
                BenchBudget::AtLeast(1.0)
            }
            _ => BenchBudget::None,
        }
    }
}

impl RaceEntrant {
    fn name(&self) -> &'static str {
        self.front.between().name()
    }
}

/// Returns the added time of Steadfast divided by that of the peer. There is no ratio to a peer that adds nothing.
fn share(added: f64, peer_added: f64) -> Option<f64> {
    Some(match () {
        () if peer_added > 0.0 => added / peer_added,
        () if added <= peer_added => 1.0,
        () => f64::INFINITY,
    })
}

/// Measures the cost of a durable store.
pub(crate) fn run_sqlite(report: &mut BenchReport) -> Result<(), MeasurementError> {
    for (class, name) in [(BenchToolClass::Mutating, "mutating"), (BenchToolClass::ReadOnly, "read_only")] {
        let title = format!("fast server, stdio to stdio, median of a {name} call");
        if !report.is_selected(&title) {
            continue;
        }
        let place = BenchPaths::find()?;
        let [sqlite, memory] = [RecordStorage::Sqlite, RecordStorage::Memory]
            .map(|storage| GatewayKind::Ours(SteadfastSetup { storage, class, ..SteadfastSetup::ON }));
        let parties = race::run(
            report,
            &place,
            TransportShape::StdioToStdio,
            BenchServer::Fast,
            &[sqlite, memory],
            CallerCounts::One,
        )?;
        let [_, sqlite, memory] = parties.as_slice() else {
            return Err(MeasurementError::because("the bare server or our gateway is missing"));
        };
        report.add(&ReportRow {
            title,
            steadfast: Figure::Nanos(sqlite.median()),
            peer: Some(("the same with the memory store".to_owned(), Figure::Nanos(memory.median()))),
            ratio: Some(sqlite.time_to(memory)),
            budget: BenchBudget::None,
        });
    }
    Ok(())
}

/// Measures the memory of a gateway.
pub(crate) fn run_memory(report: &mut BenchReport) -> Result<(), MeasurementError> {
    const IDLE: &str = "idle, without its children";
    const USED: &str = "after 8 sessions, without its children";
    const WHOLE: &str = "after 8 sessions, with its children";
    const ALLOWED: f64 = 20.0 * (1 << 20) as f64;
    const CALLS: usize = 100;
    let selected = [IDLE, USED, WHOLE].map(|title| report.is_selected(title));
    if !selected.contains(&true) {
        return Ok(());
    }
    let place = BenchPaths::find()?;
    let (shape, server) = (TransportShape::StdioBehindHttp, BenchServer::Node);
    // A quick run compares with the best peer only.
    let peers = if is_quick() { &[GatewayKind::RustProxy] } else { shape.peers() };
    let all_kinds = [GatewayKind::Ours(SteadfastSetup::ON)].into_iter().chain(peers.iter().copied());
    let mut measured = Vec::new();
    for between in race::installed(report, &place, all_kinds) {
        let read_usage = || -> Result<[Option<f64>; 3], MeasurementError> {
            let mut front = BenchTarget::start(&place, between, shape, server, None)?;
            front.until_open()?;
            let idle = front.listening().and_then(|listening| listening.process().resident());
            let mut clients = Vec::new();
            for _ in 0..CALLERS {
                clients.push(front.client(&place)?);
            }
            for client in &mut clients {
                for _ in 0..CALLS {
                    client.call()?;
                }
            }
            let process = front.listening().map(|listening| listening.process());
            Ok([
                idle,
                process.and_then(|process| process.resident()),
                process.and_then(|process| process.resident_with_children()),
            ])
        };
        match read_usage() {
            Ok(figures) => measured.push((between, figures)),
            Err(problem) => race::leave_out(report, between, shape, server, problem)?,
        }
    }
    let Some(((_, steadfast), peers)) = measured.split_first() else { return Ok(()) };
    for (index, title) in [IDLE, USED, WHOLE].into_iter().enumerate() {
        let figure = |figures: &[Option<f64>; 3]| {
            Figure::Bytes(figures.get(index).copied().flatten().unwrap_or(f64::NAN))
        };
        let mut add = |peer: String, bytes, budget| {
            let row = ReportRow {
                title: title.to_owned(),
                steadfast: figure(steadfast),
                peer: Some((peer, bytes)),
                ratio: None,
                budget,
            };
            report.add(&row);
        };
        if title == IDLE {
            add("allowed".to_owned(), Figure::Bytes(ALLOWED), BenchBudget::AtMost(1.0));
        }
        for (between, figures) in peers {
            add(between.name().to_owned(), figure(figures), BenchBudget::None);
        }
    }
    Ok(())
}
