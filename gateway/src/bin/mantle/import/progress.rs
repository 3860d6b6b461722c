//! Progress on stderr: a bar with rate and time left on a terminal, else a plain line every few seconds.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use parking_lot::Mutex;

const PLAIN_PERIOD: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(100);

pub struct Progress {
    bar: ProgressBar,
    label: &'static str,
    started: Instant,
    /// When the last plain line was written; `None` on a terminal.
    plain: Option<Mutex<Instant>>,
}

impl Progress {
    /// A phase of known length, in entries.
    pub fn bar(label: &'static str, length: u64) -> Self {
        let template = "{prefix:11} {wide_bar} {human_pos}/{human_len} {per_sec} ETA {eta}";
        Self::start(label, ProgressBar::new(length), template)
    }

    /// A phase of unknown length.
    pub fn spinner(label: &'static str) -> Self {
        Self::start(label, ProgressBar::new_spinner(), "{prefix:11} {spinner} {human_pos} {msg} {elapsed}")
    }

    fn start(label: &'static str, bar: ProgressBar, template: &str) -> Self {
        let plain = if std::io::stderr().is_terminal() {
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(label);
            bar.enable_steady_tick(TICK);
            None
        } else {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
            Some(Mutex::new(Instant::now()))
        };
        Self { bar, label, started: Instant::now(), plain }
    }

    pub fn add(&self, n: u64) {
        self.bar.inc(n);
        if self.is_plain_line_due() {
            eprintln!("{}", plain_line(self.label, self.bar.position(), self.bar.length(), self.started.elapsed()));
        }
    }

    fn is_plain_line_due(&self) -> bool {
        let mut last = self.plain.as_ref().map(Mutex::lock);
        let due = last.as_mut().filter(|last| last.elapsed() >= PLAIN_PERIOD);
        due.map(|last| **last = Instant::now()).is_some()
    }

    pub fn say(&self, message: String) {
        if self.is_plain_line_due() {
            eprintln!("{}: {message}", self.label);
        }
        self.bar.set_message(message);
    }

    pub fn finish(self) -> Duration {
        self.bar.finish_and_clear();
        self.started.elapsed()
    }
}

fn plain_line(label: &str, position: u64, length: Option<u64>, elapsed: Duration) -> String {
    let rate = position as f64 / elapsed.as_secs_f64().max(0.001);
    let (done, per_second) = (HumanCount(position), HumanCount(rate as u64));
    match length {
        Some(length) if rate > 0.0 => {
            let left = (length.saturating_sub(position)) as f64 / rate;
            format!("{label}: {done} of {} · {per_second}/s · {left:.0} s left", HumanCount(length))
        }
        _ => format!("{label}: {done} · {per_second}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_have_rate_and_time_left() {
        let line = |position, length| plain_line("objects", position, length, Duration::from_secs(2));
        assert_eq!(line(50_000, Some(100_000)), "objects: 50,000 of 100,000 · 25,000/s · 2 s left");
        assert_eq!(line(50_000, None), "objects: 50,000 · 25,000/s");
        assert_eq!(line(0, Some(9)), "objects: 0 · 0/s");
    }
}
