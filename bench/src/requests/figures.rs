//! What services did, by operation and number of clients: the figures of rounds, their medians, and the table that
//! shows them. The table is also read back: without peers to measure, the page keeps those of an earlier run.

use std::time::Duration;

use anyhow::Result;

use super::kinds::{KINDS, KindClock};
use crate::{
    cpu::{self, Servers},
    measure::run_rounds,
    report::{Report, count, short},
    sample::median,
};

pub const HEADINGS: &str = "operation | clients | service | a second | p50 ms | p99 ms | CPU, µs | measured";
const COLUMNS: usize = 8;
/// The client's name among the processes.
const CLIENT: &str = "client";

/// What was measured: operation, clients, service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub operation: String,
    pub clients: usize,
    pub service: String,
}

impl Key {
    pub fn new(operation: &str, clients: usize, service: &str) -> Self {
        Self { operation: operation.to_owned(), clients, service: service.to_owned() }
    }
}

/// One round, or the medians of several: rate, percentiles in milliseconds, processor time in microseconds for a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub rate: f64,
    pub p50: f64,
    pub p99: f64,
    /// Of each process.
    pub cpu: Vec<(String, f64)>,
    /// PostgreSQL's, by kind of process; none of a service without it, and of an earlier run.
    pub kinds: Option<[f64; KINDS.len()]>,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub key: Key,
    pub turn: Turn,
    /// When it was measured.
    pub measured: String,
}

/// Processor time so far: each server's and the client's.
pub struct Clock<'a> {
    servers: &'a Servers,
    before: Vec<Duration>,
    client: Duration,
    kinds: Option<KindClock>,
}

/// A share of processor time, in microseconds for each of some calls.
fn micros(used: Duration, calls: usize) -> f64 {
    used.as_secs_f64() * 1e6 / calls as f64
}

impl<'a> Clock<'a> {
    pub fn start(servers: &'a Servers) -> Result<Self> {
        let kinds = KindClock::start(servers)?;
        Ok(Self { servers, before: servers.used()?, client: cpu::own()?, kinds })
    }

    /// Microseconds for each of `calls` since the start. `client`: the client's processor time, if it is another
    /// process.
    pub fn each(&self, calls: usize, client: Option<Duration>) -> Result<Vec<(String, f64)>> {
        let each = |used| micros(used, calls);
        let used = self.servers.used()?.into_iter().zip(&self.before);
        let names = self.servers.names().map(str::to_owned);
        let mut all: Vec<_> = names.zip(used.map(|(now, before)| each(now.saturating_sub(*before)))).collect();
        let client = client.map_or_else(|| cpu::own().map(|now| now.saturating_sub(self.client)), Ok)?;
        all.push((CLIENT.to_owned(), each(client)));
        Ok(all)
    }

    /// The same of PostgreSQL, by kind of process.
    pub fn each_kind(&self, calls: usize) -> Result<Option<[f64; KINDS.len()]>> {
        let used = self.kinds.as_ref().map(KindClock::used).transpose()?;
        Ok(used.map(|kinds| kinds.map(|used| micros(used, calls))))
    }
}

/// Lets `clients` call for a period, or until each has made `rounds` calls.
pub async fn turn<F: Future<Output = Result<()>>>(
    servers: &Servers,
    clients: usize,
    (period, rounds): (Duration, usize),
    call: impl Fn(usize, usize) -> F,
) -> Result<Turn> {
    let clock = Clock::start(servers)?;
    let (rate, sample) = run_rounds(clients, period, rounds, call).await?;
    let (calls, p50, p99) = (sample.len(), sample.p50_ms(), sample.p99_ms());
    Ok(Turn { rate, p50, p99, cpu: clock.each(calls, None)?, kinds: clock.each_kind(calls)? })
}

/// The rounds of this run, in the order in which they began.
#[derive(Default)]
pub struct Rounds(Vec<(Key, Vec<Turn>)>);

impl Rounds {
    pub fn add(&mut self, key: Key, turn: Turn) {
        match self.0.iter_mut().find(|(other, _)| *other == key) {
            Some((_, turns)) => turns.push(turn),
            None => self.0.push((key, vec![turn])),
        }
    }

    /// The medians, each figure's own.
    pub fn medians(&self, measured: &str) -> Figures {
        let figure = |(key, turns): &(Key, Vec<Turn>)| {
            let of = |figure: &dyn Fn(&Turn) -> f64| median(&turns.iter().map(figure).collect::<Vec<_>>());
            let cpu = turns[0].cpu.iter().enumerate().map(|(at, (name, _))| (name.clone(), of(&|turn| turn.cpu[at].1)));
            let kind = |at: usize| of(&|turn| turn.kinds.map_or(f64::NAN, |kinds| kinds[at]));
            let kinds = turns[0].kinds.map(|_| std::array::from_fn(kind));
            let (rate, p50, p99) = (of(&|t| t.rate), of(&|t| t.p50), of(&|t| t.p99));
            let turn = Turn { rate, p50, p99, cpu: cpu.collect(), kinds };
            Figure { key: key.clone(), turn, measured: measured.to_owned() }
        };
        Figures(self.0.iter().map(figure).collect())
    }
}

/// Figures of this run, and those that the page keeps.
#[derive(Default)]
pub struct Figures(pub Vec<Figure>);

impl Figures {
    pub fn of(&self, operation: &str, clients: usize, service: &str) -> Option<&Figure> {
        let key = Key::new(operation, clients, service);
        self.0.iter().find(|figure| figure.key == key)
    }

    pub fn has(&self, service: &str) -> bool {
        self.0.iter().any(|figure| figure.key.service == service)
    }

    /// Adds an earlier page's figures of services that this run has not measured.
    pub fn keep(&mut self, page: &str) {
        let earlier: Vec<_> = page.lines().filter_map(Figure::read).collect();
        let kept: Vec<_> = earlier.into_iter().filter(|figure| !self.has(&figure.key.service)).collect();
        self.0.extend(kept);
    }

    /// A table of some operations: those that were called in one place together, the services below each other.
    pub fn table(&self, report: &mut Report, is_wanted: impl Fn(&str) -> bool) {
        let wanted: Vec<_> = self.0.iter().filter(|figure| is_wanted(&figure.key.operation)).collect();
        let place = |figure: &Figure| (figure.key.operation.clone(), figure.key.clients);
        let mut places: Vec<_> = Vec::new();
        for figure in &wanted {
            if !places.contains(&place(figure)) {
                places.push(place(figure));
            }
        }
        let of = |at| wanted.iter().filter(move |figure| place(figure) == at).map(|figure| figure.row());
        let rows: Vec<_> = places.into_iter().flat_map(of).collect();
        report.table(HEADINGS, &rows);
    }

    /// A table of PostgreSQL's processor time, where it is known by kind of process.
    pub fn table_of_kinds(&self, report: &mut Report) {
        let row = |figure: &Figure| {
            let Figure { key, turn, .. } = figure;
            let kinds = turn.kinds?.map(short);
            let mut cells = [key.operation.clone(), key.clients.to_string()].into_iter().chain(kinds);
            Some(std::array::from_fn::<_, { KINDS.len() + 2 }, _>(|_| cells.next().unwrap_or_default()))
        };
        let rows: Vec<_> = self.0.iter().filter_map(row).collect();
        report.table(&format!("operation | clients | {}", KINDS.join(" | ")), &rows);
    }
}

fn number(cell: &str) -> Option<f64> {
    cell.replace(',', "").parse().ok()
}

impl Figure {
    /// All servers together, µs of processor time a request.
    pub fn servers(&self) -> f64 {
        self.turn.cpu.iter().filter(|(name, _)| name != CLIENT).map(|(_, each)| each).sum()
    }

    pub fn of_process(&self, process: &str) -> f64 {
        self.turn.cpu.iter().find(|(name, _)| name == process).map_or(f64::NAN, |(_, each)| *each)
    }

    fn row(&self) -> [String; COLUMNS] {
        let Self { key, turn, measured } = self;
        let each = turn.cpu.iter().map(|(name, each)| format!("{name} {}", short(*each)));
        let rate = if turn.rate < 100.0 { short(turn.rate) } else { count(turn.rate.round() as u64) };
        [
            key.operation.clone(),
            key.clients.to_string(),
            key.service.clone(),
            rate,
            short(turn.p50),
            short(turn.p99),
            format!("{}; all servers {}", each.collect::<Vec<_>>().join(", "), short(self.servers())),
            measured.clone(),
        ]
    }

    /// Reads a row of the table; none if the line is something else.
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [operation, clients, service, rate, p50, p99, cpu, measured] = cells[..] else { return None };
        let cpu = cpu.split_once(';')?.0.split(", ").map(|process| {
            let (name, each) = process.rsplit_once(' ')?;
            Some((name.to_owned(), number(each)?))
        });
        let (rate, p50, p99) = (number(rate)?, number(p50)?, number(p99)?);
        let turn = Turn { rate, p50, p99, cpu: cpu.collect::<Option<_>>()?, kinds: None };
        Some(Self { key: Key::new(operation, clients.parse().ok()?, service), turn, measured: measured.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(rate: f64) -> Turn {
        let cpu = vec![("postgresql".into(), 12.5), (CLIENT.into(), 40.0)];
        Turn { rate, p50: rate / 10.0, p99: 7.0, cpu, kinds: None }
    }

    #[test]
    fn medians_are_of_each_figure() {
        let mut rounds = Rounds::default();
        for rate in [3.0, 1.0, 2.0] {
            rounds.add(Key::new("PUT", 1, "Mantle"), turn(rate));
        }
        rounds.add(Key::new("PUT", 32, "Mantle"), turn(9.0));
        let figures = rounds.medians("today");
        assert_eq!(figures.of("PUT", 1, "Mantle").unwrap().turn, turn(2.0));
        assert_eq!(figures.of("PUT", 32, "Mantle").unwrap().turn, turn(9.0));
        assert!(figures.of("PUT", 2, "Mantle").is_none());
    }

    #[test]
    fn kinds_are_shown_where_they_are_known() {
        let mut rounds = Rounds::default();
        for first in [3.0, 1.0, 2.0] {
            let mut kinds = [0.5; KINDS.len()];
            kinds[0] = first;
            rounds.add(Key::new("PUT", 32, "Mantle"), Turn { kinds: Some(kinds), ..turn(1.0) });
        }
        rounds.add(Key::new("PUT", 32, "Peer"), turn(1.0));
        let mut report = Report::new("Bench", "Text.", &[]);
        rounds.medians("today").table_of_kinds(&mut report);
        let rows: Vec<_> = report.text().lines().filter(|line| line.starts_with("| PUT")).collect();
        assert_eq!(rows, [format!("| PUT | 32 | 2.00 |{}", " 0.50 |".repeat(KINDS.len() - 1))]);
        assert_eq!(Figure::read(rows[0]), None, "no figure of the other table");
    }

    /// Without peers the page keeps theirs, and their date.
    #[test]
    fn figures_of_a_page_are_kept_unless_they_are_measured_again() {
        let figure = |service: &str, rate, measured: &str| Figure {
            key: Key::new("PUT", 32, service),
            turn: turn(rate),
            measured: measured.into(),
        };
        let before = Figures(vec![figure("Mantle", 1500.0, "before"), figure("Peer", 1230.0, "before")]);
        let mut report = Report::new("Bench", "Text | with | bars.", &[]);
        before.table(&mut report, |_| true);
        let mut now = Figures(vec![figure("Mantle", 2000.0, "now")]);
        now.keep(report.text());
        assert_eq!(now.0, [figure("Mantle", 2000.0, "now"), before.0[1].clone()]);
        let row = before.0[1].row();
        assert_eq!(row[3..], ["1,230", "123", "7.00", "postgresql 12.5, client 40.0; all servers 12.5", "before"]);
    }

    #[test]
    fn other_lines_are_no_figures() {
        for line in ["", "| a | b |", &format!("| {HEADINGS} |"), &format!("|{}", "---|".repeat(COLUMNS))] {
            assert_eq!(Figure::read(line), None, "{line}");
        }
    }
}
