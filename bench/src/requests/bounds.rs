//! The bounds on requests: what each compares, and whether it holds.

use super::{
    Measured,
    beside::{CALLERS, Other},
    directories::{Leaf, MANTLE, MANY},
    figures::Figure,
};
use crate::{
    bounds::Bounds,
    peers::{GARAGE, HDFS, MINIO, Peer},
    report::Report,
};

/// Requests a second of the gateway before reads travelled in batches and renames had a fast path (2026-11-27, two
/// processors of the reference machine, 32 clients). Other machines differ.
const STAT_BEFORE: f64 = 4_458.0;
const RENAME_BEFORE: f64 = 1_024.0;
const RMDIR_BEFORE: f64 = 1_720.0;
/// "No statement": a gateway asks PostgreSQL for other reasons now and then.
const STATEMENTS_MAX: f64 = 0.001;

/// Lookups of figures, by operation and clients.
struct Lookup<'a>(&'a Measured);

impl Lookup<'_> {
    fn mantle(&self, operation: &str, clients: usize, figure: impl Fn(&Figure) -> f64) -> f64 {
        self.0.figures.of(operation, clients, MANTLE).map_or(f64::NAN, figure)
    }

    fn rate(&self, operation: &str, clients: usize) -> f64 {
        self.mantle(operation, clients, |figure| figure.turn.rate)
    }

    fn p50(&self, operation: &str, clients: usize) -> f64 {
        self.mantle(operation, clients, |figure| figure.turn.p50)
    }

    /// Mantle's rate to a peer's of the same run.
    fn to(&self, peer: Peer, operation: &str) -> f64 {
        let peer = self.0.figures.of(operation, MANY, peer.name).filter(|figure| figure.measured == self.0.at);
        peer.map_or(f64::NAN, |peer| self.rate(operation, MANY) / peer.turn.rate)
    }
}

fn objects(of: &Lookup<'_>, bounds: &mut Bounds) {
    for operation in ["HEAD", "GET"] {
        bounds.least(format!("{operation}, 32 connections, × MinIO"), 2.0, of.to(MINIO, operation));
        let postgresql = of.mantle(operation, MANY, |figure| figure.of_process("postgresql"));
        bounds.most(format!("{operation}, 32 connections: PostgreSQL's CPU, µs a request"), 30.0, postgresql);
    }
    bounds.most("HEAD, one connection: p50, ms", 0.45, of.p50("HEAD", 1));
    bounds.least("LIST of 100 keys, 32 connections, × MinIO", 4.0, of.to(MINIO, "LIST"));
    bounds.least("LIST of 100 keys, 32 connections, × Garage", 0.8, of.to(GARAGE, "LIST"));
    bounds.least("PUT of 1 KiB, 32 connections, × MinIO", 2.5, of.to(MINIO, "PUT"));
    bounds.most("PUT of 1 KiB, one connection: p50, ms", 1.5, of.p50("PUT", 1));
}

fn directories(of: &Lookup<'_>, bounds: &mut Bounds) {
    let [own, one] = [Leaf::Own, Leaf::One].map(|leaf| move |operation: &str| leaf.of(operation));
    for leaf in [Leaf::Own, Leaf::One] {
        let mkdir = leaf.of("mkdir");
        bounds.least(format!("REST {mkdir}, 32 clients, × HDFS"), 0.8, of.to(HDFS, &mkdir));
    }
    let ratio = of.rate(&one("mkdir"), MANY) / of.rate(&own("mkdir"), MANY);
    bounds.least("REST mkdir, 32 clients, one leaf, × own leaf", 0.9, ratio);
    let before =
        [("stat", STAT_BEFORE, 2.5, 0.5), ("rename", RENAME_BEFORE, 4.0, 0.4), ("rmdir", RMDIR_BEFORE, 3.0, 0.4)];
    for (operation, before, times, to_hdfs) in before {
        let name = own(operation);
        let ratio = of.rate(&name, MANY) / before;
        bounds.least(format!("REST {name}, 32 clients, × before ({before:.0}/s)"), times, ratio);
        bounds.least(format!("REST {name}, 32 clients, × HDFS"), to_hdfs, of.to(HDFS, &name));
    }
    for (operation, most) in [("mkdir", 1.5), ("rename", 2.2)] {
        bounds.most(format!("REST {operation}, one client: p50, ms"), most, of.p50(&own(operation), 1));
    }
    let ratio = of.rate(&own("stat of 404s"), MANY) / of.rate(&own("stat"), MANY);
    bounds.least("REST stat of 404s, 32 clients, × hits", 0.7, ratio);
    let looked = of.0.misses.as_ref().map_or(f64::NAN, |misses| misses.looked);
    bounds.most("REST stat of 404s: statements that look for the entry, each", STATEMENTS_MAX, looked);
}

fn changes(of: &Lookup<'_>, bounds: &mut Bounds) {
    bounds.least("REST renames, 64 clients, one parent × one each", 0.8, of.0.together.ratio());
    for callers in CALLERS {
        let name = if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") };
        for (baseline, to) in [(Other::Nothing, "without"), (Other::Busy, "beside as busy processors")] {
            let [rate, p99] = of.0.beside.ratios(callers, baseline);
            bounds.least(format!("lookups beside 1,000 renames/s, {name}: rate × {to}"), 0.9, rate);
            bounds.most(format!("lookups beside 1,000 renames/s, {name}: p99 × {to}"), 2.0, p99);
        }
    }
    let mut renames = Vec::new();
    for rates in &of.0.sql {
        let (least, sessions) = if rates.verb == "mkdir" { (0.8, "one session") } else { (0.6, "sessions") };
        let number = if rates.verb == "mkdir" { String::new() } else { format!("{} ", rates.sessions) };
        let what = format!("{} in SQL, {number}{sessions}, × the textbook", rates.verb);
        bounds.least(what, least, rates.mantle / rates.textbook);
        if rates.verb != "mkdir" {
            renames.push((rates.sessions, rates.mantle));
        }
    }
    let by = |sessions| renames.iter().find(|(at, _)| *at == sessions).map_or(f64::NAN, |(_, rate)| *rate);
    bounds.least("rename of a directory in SQL, 64 sessions × 16 sessions", 1.0, by(64) / by(16));
}

/// Adds the bounds; answers whether all that were measured held.
pub fn judge(measured: &Measured, report: &mut Report) -> bool {
    let (of, mut bounds) = (Lookup(measured), Bounds::default());
    objects(&of, &mut bounds);
    directories(&of, &mut bounds);
    changes(&of, &mut bounds);
    report.heading("Bounds");
    report.paragraph(
        "A ratio to a peer needs the peer's figure of this run. \"Before\" are figures of the reference machine from \
         before reads travelled in batches and renames had a fast path.",
    );
    bounds.judge(report)
}
