//! Starts of a gateway whose volume has all the objects: after SIGTERM, and after SIGKILL beside puts.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{
    Bench,
    objects::LOAD,
    place::{Memory, Place, Running},
    seconds,
};
use crate::report::{Report, count, short};

/// Objects that are acknowledged before a SIGKILL.
const BEFORE_KILL: usize = 500;

/// How long a gateway needed until it was ready, which needs the volume, had acknowledged a put, and had all segments in use.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    ready: Duration,
    put: Duration,
    all: Duration,
}

impl Times {
    pub const HEADINGS: &'static str =
        "/readyz is 200 | first PUT is acknowledged | all segments are in use | ms a segment | objects a second";

    /// Of a gateway, since a time. `name`: of the first object that is put. `leased`: bytes of all segments.
    pub async fn measure(
        running: &Running,
        place: &Place,
        since: Instant,
        (name, leased): (&str, f64),
    ) -> Result<Self> {
        let (ready, put, all) = futures::try_join!(
            running.is_ready(place),
            running.acknowledges(place, name),
            running.has_leased(place, leased),
        )?;
        Ok(Self { ready: ready - since, put: put - since, all: all - since })
    }

    /// Cells of a table, in seconds. The last two are of the time from /readyz until all segments are in use.
    pub async fn cells(self, bench: &Bench<'_>) -> Result<[String; 5]> {
        let segments = bench.admin.only_volume().await?.segments;
        let reading = self.all.saturating_sub(self.ready).as_secs_f64();
        let objects = match reading > 0.0 {
            true => count((bench.options.objects as f64 / reading) as u64),
            false => "–".to_owned(),
        };
        let each = short(reading * 1e3 / f64::from(segments));
        Ok([seconds(self.ready), seconds(self.put), seconds(self.all), each, objects])
    }
}

/// Kills a gateway while all connections put, once it has acknowledged some; answers when.
pub async fn kill_beside_puts(bench: &mut Bench<'_>, place: &Place, running: Running) -> Result<Instant> {
    let acknowledged = Cell::new(0);
    let puts = place.objects.put_until_it_ends(LOAD, bench.next, &acknowledged);
    let kill = async {
        running.until("to take objects", async || acknowledged.get() >= BEFORE_KILL).await?;
        let killed = Instant::now();
        running.end(Signal::KILL).await?;
        Ok(killed)
    };
    let ((later, next), killed) = futures::join!(puts, kill);
    bench.later.extend(later);
    bench.next = next;
    killed
}

/// Measures; answers the gateway that runs at the end, and the memory of one after a start.
pub async fn run(
    bench: &mut Bench<'_>,
    place: &Place,
    mut running: Running,
    report: &mut Report,
) -> Result<(Running, Memory)> {
    report.heading("Start of the gateway");
    report.paragraph(&format!(
        "Seconds from the start of the process. End: seconds from the signal until the process before it has ended. /readyz is 200 once \
         the volume is mounted. Then the gateway reads the rows of one segment after the other from PostgreSQL; a put waits for the first \
         one. The last two columns are of this reading, for each segment, and by the objects of the load. SIGKILL comes while {} connections put.",
        bench.options.connections,
    ));
    let (mut table, mut memory) = (Vec::new(), None);
    for turn in 0..bench.options.turns {
        for (signal, after) in [(Signal::TERM, "SIGTERM"), (Signal::KILL, "SIGKILL")] {
            let leased = place.leased().await?;
            let ended = if signal == Signal::TERM {
                running.end(signal).await?
            } else {
                kill_beside_puts(bench, place, running).await?.elapsed()
            };
            running = bench.programs.start(place)?;
            let name = format!("start-{turn}-{after}");
            let times = Times::measure(&running, place, running.started, (&name, leased)).await?;
            memory.get_or_insert(running.memory()?);
            let [ready, put, all, each, objects] = times.cells(bench).await?;
            table.push([after.to_owned(), seconds(ended), ready, put, all, each, objects]);
        }
    }
    report.table(&format!("after | end | {}", Times::HEADINGS), &table);
    Ok((running, memory.context("no start")?))
}
