//! Take-overs of the volume by another gateway of the same machine, which waits for the lock of the volume's file. The gateway that
//! has the volume is killed while clients put. The two change their parts in each turn.

use anyhow::{Result, ensure};
use mantle_volumes::Locator;

use super::{
    Bench, MIB,
    objects::BUCKET,
    place::{Place, Running},
    starts::{Times, kill_beside_puts},
};
use crate::report::{Report, short};

/// Measures; answers the gateway that has the volume at the end.
pub async fn run(
    bench: &mut Bench<'_>,
    places: [&Place; 2],
    mut running: Running,
    report: &mut Report,
) -> Result<Running> {
    report.heading("Take-over by another gateway");
    report.paragraph(
        "The other gateway runs already, serves reads, and tries once a second to lock the volume. Seconds from the SIGKILL of the one that \
         has the volume, which comes while clients put. /readyz is 200 once the volume is mounted. The bytes of the first PUT are in a \
         segment that was taken over, not in a new one: its locator was looked at.",
    );
    let mut table = Vec::new();
    for turn in 0..bench.options.turns as usize {
        let (before, after) = (places[turn % 2], places[(turn + 1) % 2]);
        let leased = before.leased().await?;
        let waiting = bench.programs.start(after)?;
        waiting.until("to wait for the volume", async || waits(after).await).await?;
        let killed = kill_beside_puts(bench, before, running).await?;
        let name = format!("take-over-{turn}");
        let times = Times::measure(&waiting, after, killed, (&name, leased));
        // The volume grows only after the take-over.
        let (times, volume) = futures::try_join!(times, bench.admin.only_volume())?;
        let locator: Locator = bench.admin.locator(BUCKET, &name).await?.parse()?;
        let segment = locator.lease.segment.number;
        ensure!(segment < volume.segments, "the first object is in segment {segment}, which is new");
        let memory = waiting.memory()?;
        let [ready, put, all, each, objects] = times.cells(bench).await?;
        table.push([(turn + 1).to_string(), ready, put, all, each, objects, short(memory.peak / MIB)]);
        running = waiting;
    }
    report.table(&format!("turn | {} | peak of memory, MiB", Times::HEADINGS), &table);
    Ok(running)
}

/// Whether a gateway serves reads, and has no volume.
async fn waits(place: &Place) -> bool {
    place.probes.metric("mantle_gateway_volume_mounted").await == 0.0 && place.objects.is_readable(0).await
}
