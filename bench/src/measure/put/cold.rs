//! Reads of objects whose bytes are in no cache of the kernel, in random order.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::{MANY, NAMES, SIZES, TURN_BYTES, TURNS, content};
use crate::{
    bounds::Bounds,
    measure::{
        Bench, rotation, run_rounds,
        s3::{Measured, Service},
    },
    report::{Report, short},
};

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// What the kernel forgets before a turn, and what is written to [`DROP_CACHES`] for that.
const FORGOTTEN: [(&str, &str); 2] = [("cached pages", "1"), ("cached pages, directory entries and inodes", "3")];
const CONNECTIONS: [usize; 2] = [1, MANY];
/// Most objects of a size.
const OBJECTS_MAX: usize = 2_000;
const RATIO_MIN: f64 = 1.2;

pub(super) async fn run(
    bench: &Bench,
    report: &mut Report,
    services: [&Service; 2],
    bounds: &mut Bounds,
) -> Result<()> {
    report.heading("GET with a cold page cache");
    if let Err(error) = fs::write(DROP_CACHES, FORGOTTEN[0].1) {
        report.paragraph(&format!("Not measured: {DROP_CACHES}: {error}."));
        bounds.least("GET with a cold page cache", RATIO_MIN, f64::NAN);
        return Ok(());
    }
    report.paragraph(&format!(
        "As above. Before each turn everything is flushed, and the kernel forgets its caches ({DROP_CACHES}). Then each object is \
         read once, in random order: up to {OBJECTS_MAX} objects, or {} MiB. Rows that PostgreSQL has in its own cache stay there.",
        TURN_BYTES >> 20,
    ));
    let body = content();
    let mut table = Vec::new();
    for (size, bytes) in SIZES {
        let objects = prepare(services, &body[..bytes]).await?;
        for (what, asked) in FORGOTTEN {
            for connections in CONNECTIONS {
                let [files, volume] = turns(bench, services, (&objects, bytes), asked, connections).await?;
                let ratio = volume.rate() / files.rate();
                if connections == MANY && asked == FORGOTTEN[0].1 {
                    bounds.least(format!("GET of {size}, cold page cache"), RATIO_MIN, ratio);
                }
                let ([p50, p99], [volume_p50, volume_p99]) = (files.sample.cells(), volume.sample.cells());
                let [first, second, ratio] = [files.rate(), volume.rate(), ratio].map(short);
                let [name, forgotten, connections] = [size.to_owned(), what.to_owned(), connections.to_string()];
                table.push([name, forgotten, connections, first, second, ratio, p50, p99, volume_p50, volume_p99]);
            }
        }
        remove(services, &objects).await?;
    }
    let [first, second] = NAMES;
    let headings = format!(
        "size | forgotten | connections | {first} a second | {second} a second | {second} to {first} | {first} p50 | {first} p99 | \
         {second} p50 | {second} p99"
    );
    report.table(&headings, &table);
    Ok(())
}

/// Puts the same objects at both services; answers their keys, in random order.
async fn prepare(services: [&Service; 2], body: &'static [u8]) -> Result<Vec<String>> {
    // As many for each connection.
    let count = OBJECTS_MAX.min(TURN_BYTES / body.len()) / MANY * MANY;
    let mut objects: Vec<_> = (0..count).map(|number| format!("cold-{}/{number}", body.len())).collect();
    for service in services {
        let put = |client: usize, round: usize| {
            let path = path_of(service, &objects[round * MANY + client]);
            async move { service.s3.put(&path, None, body).await.map(drop) }
        };
        run_rounds(MANY, Duration::MAX, count / MANY, put).await?;
    }
    objects.shuffle(&mut StdRng::seed_from_u64(1));
    Ok(objects)
}

async fn remove(services: [&Service; 2], objects: &[String]) -> Result<()> {
    for service in services {
        let delete = |client: usize, round: usize| {
            let path = path_of(service, &objects[round * MANY + client]);
            async move { service.s3.delete(&path).await }
        };
        run_rounds(MANY, Duration::MAX, objects.len() / MANY, delete).await?;
    }
    Ok(())
}

fn path_of(service: &Service, object: &str) -> String {
    service.path(&format!("{}/{object}", service.name))
}

/// Reads each object once in each turn.
async fn turns(
    bench: &Bench,
    services: [&Service; 2],
    (objects, bytes): (&[String], usize),
    forgotten: &str,
    connections: usize,
) -> Result<[Measured; 2]> {
    let mut measured: [Measured; 2] = Default::default();
    for (_, at) in rotation(TURNS, services.len()) {
        let service = services[at];
        let get = |client: usize, round: usize| {
            let path = path_of(service, &objects[round * connections + client]);
            async move {
                let read = service.s3.get(&path).await?;
                if read == bytes { Ok(()) } else { bail!("{path} has {read} bytes") }
            }
        };
        rustix::fs::sync();
        fs::write(DROP_CACHES, forgotten).context(DROP_CACHES)?;
        service.measure(&mut measured[at], connections, (bench.period, objects.len() / connections), get).await?;
    }
    Ok(measured)
}
