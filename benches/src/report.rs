//! The result table: `what | Steadfast | peer | ratio | budget | verdict`.

use std::fmt;

use crate::measure::{COUNTS, ContestTimes};

/// The budget of a row.
#[derive(Clone, Copy)]
pub(crate) enum BenchBudget {
    /// Steadfast's value divided by the peer's must not be more than this.
    AtMost(f64),
    /// Steadfast's value divided by the peer's must not be less than this.
    AtLeast(f64),
    /// Steadfast's value must be zero.
    Nothing,
    /// For information.
    None,
}

/// A number with its unit.
#[derive(Clone, Copy)]
pub(crate) enum Figure {
    /// Nanoseconds per operation.
    Nanos(f64),
    /// Operations per second.
    PerSecond(f64),
    /// Allocations per operation.
    Allocations(f64),
    /// Bytes of memory.
    Bytes(f64),
}

/// One comparison.
pub(crate) struct ReportRow {
    pub(crate) title: String,
    pub(crate) steadfast: Figure,
    pub(crate) peer: Option<(String, Figure)>,
    /// Steadfast's value divided by the peer's, measured side by side. Computed from the figures if not given.
    pub(crate) ratio: Option<f64>,
    pub(crate) budget: BenchBudget,
}

/// The rows of all subjects, and the filters that select them.
pub(crate) struct BenchReport {
    filters: Vec<String>,
    subject: &'static str,
    lines: Vec<String>,
    remarks: Vec<String>,
}

impl BenchReport {
    pub(crate) fn new(filters: Vec<String>) -> Self {
        Self { filters, subject: "", lines: Vec::new(), remarks: Vec::new() }
    }

    /// Starts the rows of this subject.
    pub(crate) fn begin(&mut self, subject: &'static str) {
        self.subject = subject;
    }

    /// Returns true if a measurement of this name is selected. Call it before measuring.
    pub(crate) fn is_selected(&self, title: &str) -> bool {
        let name = format!("{} {title}", self.subject);
        // Time and allocations are measured in two builds; see `COUNTS`.
        if title.contains("allocations") != COUNTS {
            return false;
        }
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }

    /// Adds a row and prints it at once.
    pub(crate) fn add(&mut self, row: &ReportRow) {
        let line = format!("| {}: {row}", self.subject);
        eprintln!("{line}");
        self.lines.push(line);
    }

    /// Adds a row for each peer, from a contest in which Steadfast was the first and they followed in this order.
    pub(crate) fn add_peers(&mut self, title: &str, standing: &ContestTimes, peers: &[(&str, BenchBudget)]) {
        let Some(steadfast) = standing.nanos.first() else { return };
        let measured = standing.nanos.iter().zip(&standing.first_to).skip(1);
        for ((peer, budget), (nanos, ratio)) in peers.iter().zip(measured) {
            self.add(&ReportRow {
                title: title.to_owned(),
                steadfast: Figure::Nanos(*steadfast),
                peer: Some(((*peer).to_owned(), Figure::Nanos(*nanos))),
                ratio: Some(*ratio),
                budget: *budget,
            });
        }
    }

    /// Adds a remark about the run. It is printed once, however often it is added.
    pub(crate) fn remark(&mut self, sentence: &str) {
        if !self.remarks.iter().any(|remark| remark == sentence) {
            self.remarks.push(sentence.to_owned());
        }
    }

    /// Returns the remarks, each with a space before it.
    pub(crate) fn remarks(&self) -> String {
        self.remarks.iter().map(|sentence| format!(" {sentence}")).collect()
    }

    /// Adds the rows of another report.
    pub(crate) fn append(&mut self, rows: &str) {
        self.lines.extend(rows.lines().map(str::to_owned));
    }

    /// Returns the rows alone.
    pub(crate) fn rows(&self) -> String {
        self.lines.join("\n")
    }

    pub(crate) fn markdown(&self) -> String {
        let mut table = String::from("| what | Steadfast | peer | ratio | budget | verdict |\n");
        table.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for line in &self.lines {
            table.push_str(line);
            table.push('\n');
        }
        table
    }
}

impl Figure {
    const fn value(self) -> f64 {
        match self {
            Self::Nanos(value) | Self::PerSecond(value) | Self::Allocations(value) | Self::Bytes(value) => {
                value
            }
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nanos(nanos) if nanos.abs() >= 1e6 => write!(f, "{:.2} ms", nanos / 1e6),
            Self::Nanos(nanos) if nanos.abs() >= 1e4 => write!(f, "{:.1} µs", nanos / 1e3),
            Self::Nanos(nanos) => write!(f, "{nanos:.1} ns"),
            Self::PerSecond(rate) if *rate >= 1e6 => write!(f, "{:.2} M/s", rate / 1e6),
            Self::PerSecond(rate) if *rate < 1e3 => write!(f, "{rate:.0} /s"),
            Self::PerSecond(rate) => write!(f, "{:.1} k/s", rate / 1e3),
            Self::Allocations(count) => write!(f, "{count:.2}"),
            Self::Bytes(bytes) => write!(f, "{:.1} MiB", bytes / f64::from(1 << 20)),
        }
    }
}

impl ReportRow {
    fn ratio(&self) -> Option<f64> {
        let (_, peer) = self.peer.as_ref()?;
        Some(self.ratio.unwrap_or(self.steadfast.value() / peer.value())).filter(|ratio| ratio.is_finite())
    }

    fn verdict(&self) -> &'static str {
        let is_met = match (self.budget, self.ratio()) {
            (BenchBudget::AtMost(most), Some(ratio)) => ratio <= most,
            (BenchBudget::AtLeast(least), Some(ratio)) => ratio >= least,
            (BenchBudget::Nothing, _) => self.steadfast.value() == 0.0,
            (BenchBudget::None, _) => return "",
            (BenchBudget::AtMost(_) | BenchBudget::AtLeast(_), None) => false,
        };
        if is_met { "kept" } else { "**missed**" }
    }
}

impl fmt::Display for ReportRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | ", self.title, self.steadfast)?;
        if let Some((name, figure)) = &self.peer {
            write!(f, "{name}: {figure}")?;
        }
        write!(f, " | ")?;
        if let Some(ratio) = self.ratio() {
            write!(f, "{ratio:.2}")?;
        }
        match self.budget {
            BenchBudget::AtMost(most) => write!(f, " | at most {most:.2}")?,
            BenchBudget::AtLeast(least) => write!(f, " | at least {least:.2}")?,
            BenchBudget::Nothing => write!(f, " | 0")?,
            BenchBudget::None => write!(f, " | ")?,
        }
        write!(f, " | {} |", self.verdict())
    }
}
