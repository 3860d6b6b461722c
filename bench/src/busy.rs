//! A busy program: uses a given part of the processors in short pieces, and does nothing else. What is slower beside other
//! work is as slow beside this one, if only the processors are missing.

use std::{
    io::Read as _,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use tokio::process::{Child, Command};

/// As many processes take part in a change: PostgreSQL's, the gateway, three IndexNodes, the pooler, the client.
const THREADS: u32 = 8;
/// What one of them works before it waits again. (A rename among 32 took the servers about 0.9 ms and 21 switches.)
pub const PIECE: Duration = Duration::from_micros(50);

/// Use the processors up to a part
#[derive(clap::Args)]
pub struct Options {
    /// Seconds of processor time a second
    #[arg(long)]
    processors: f64,
}

/// Works until standard input ends.
pub fn work(options: &Options) -> Result<()> {
    let period = PIECE.mul_f64(f64::from(THREADS) / options.processors.max(0.001));
    for thread in 0..THREADS {
        thread::spawn(move || work_in_pieces(period, period * thread / THREADS));
    }
    std::io::stdin().read_to_end(&mut Vec::new()).context("standard input")?;
    Ok(())
}

/// Works a piece in each period, and catches up after a delay.
fn work_in_pieces(period: Duration, offset: Duration) {
    let mut next = Instant::now() + offset;
    // By the thread's own clock, which counts its sleeps' cost as well.
    let mut due = own_time();
    loop {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        due += PIECE;
        work_until(due);
        next += period;
    }
}

/// Works until this thread has used so much processor time since its start.
fn work_until(due: Duration) {
    while own_time() < due {
        std::hint::spin_loop();
    }
}

/// Processor time of this thread.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Starts the program. It ends when the result is dropped.
pub fn start(processors: f64) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["busy", "--processors", &processors.to_string()]).stdin(Stdio::piped()).kill_on_drop(true);
    command.spawn().context("the busy program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_works_as_long_as_is_due_by_its_own_clock() {
        let (before, started) = (own_time(), Instant::now());
        work_until(before + 20 * PIECE);
        assert!(own_time() >= before + 20 * PIECE && started.elapsed() >= 19 * PIECE);
        let done = own_time();
        work_until(before);
        assert!(own_time() < done + 20 * PIECE, "that was done already");
    }
}
