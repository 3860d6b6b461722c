//! Churn: objects of 4 to 512 KiB are put and deleted in a volume that is nearly full, for three times its capacity. No put may be
//! refused while 5 % are free, objects stay in one piece nearly always, and little is lost to headers and to the ends of blocks.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{Extent, Generation, Geometry, Run, Space, VolumeId, allocator::Allocator};

const SEGMENTS: u32 = 4;
const KIB: u64 = 1 << 10;

/// How sizes are drawn.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    Uniform,
    /// As many of each order of magnitude.
    Logarithmic,
    PowersOfTwo,
}

impl Sizes {
    fn draw(self, random: &mut StdRng) -> u64 {
        match self {
            Self::Uniform => random.random_range(4 * KIB..=512 * KIB),
            Self::Logarithmic => (4.0 * 1024.0 * 128f64.powf(random.random())) as u64,
            Self::PowersOfTwo => (4 * KIB) << random.random_range(0..=7),
        }
    }
}

/// What came out.
struct Churned {
    extents_per_object: f64,
    live_per_used: f64,
}

fn churn(geometry: Geometry, sizes: Sizes, full_percent: u64) -> Churned {
    let mut random = StdRng::seed_from_u64(7);
    let mut allocator = Allocator::new(VolumeId(1), geometry, Duration::ZERO);
    for number in 0..SEGMENTS {
        allocator.lease(number, 1, [], Duration::ZERO).unwrap();
    }
    let capacity = allocator.space().leased;
    let (mut objects, mut live, mut put): (Vec<(u64, Vec<Extent>)>, u64, u64) = (Vec::new(), 0, 0);
    let (mut extents, mut counted, mut live_per_used) = (0, 0, f64::INFINITY);
    let generation = Generation { timeline: 1, id: 1030 };
    // The first filling is not counted: it finds everything in one piece.
    while put < 4 * capacity {
        let bytes = sizes.draw(&mut random);
        while allocator.space().used + bytes > capacity * full_percent / 100 {
            let (bytes, freed) = objects.swap_remove(random.random_range(0..objects.len()));
            live -= bytes;
            for extent in freed {
                allocator.free((extent, generation), Duration::ZERO, Duration::ZERO).unwrap();
            }
        }
        let stored = allocator.allocate(bytes, generation, Duration::ZERO);
        let stored = stored.unwrap_or_else(|error| panic!("{error}, with {:?}", allocator.space()));
        stored.iter().for_each(|extent| allocator.settle((*extent, generation), true));
        put += bytes;
        live += bytes;
        if put > capacity {
            (extents, counted) = (extents + stored.len(), counted + 1);
            live_per_used = live_per_used.min(live as f64 / allocator.space().used as f64);
        }
        objects.push((bytes, stored));
    }
    let Space { used, .. } = allocator.space();
    assert!(used * 100 >= capacity * (full_percent - 1), "{used} of {capacity} are used");
    check_bitmap(&allocator, geometry, &objects);
    Churned { extents_per_object: f64::from(extents as u32) / f64::from(counted), live_per_used }
}

fn check_bitmap(allocator: &Allocator, geometry: Geometry, objects: &[(u64, Vec<Extent>)]) {
    for (number, free) in allocator.free_runs() {
        let extents = objects.iter().flat_map(|(_, extents)| extents);
        let used = extents.filter(|extent| extent.segment.number == number).map(|extent| extent.run(geometry).unwrap());
        let mut all: Vec<Run> = used.chain(free).collect();
        all.sort_unstable();
        let end = all.iter().fold(0, |end, run| {
            assert_eq!(run.first, end, "segment {number}");
            end + run.blocks
        });
        assert_eq!(end, geometry.segment_blocks());
    }
}

#[test]
fn objects_stay_whole_in_a_volume_that_is_nearly_full() {
    for block_bytes in [1024, 4096] {
        let geometry = Geometry::new(block_bytes, 128 << 20).unwrap();
        for sizes in [Sizes::Uniform, Sizes::Logarithmic, Sizes::PowersOfTwo] {
            for full_percent in [90, 95] {
                let Churned { extents_per_object, live_per_used } = churn(geometry, sizes, full_percent);
                println!(
                    "blocks of {block_bytes}, {sizes:?}, {full_percent} % full: {extents_per_object:.3} extents an object, \
                     live bytes of used {live_per_used:.3}"
                );
                assert!(extents_per_object <= 1.3);
                assert!(live_per_used > 0.85);
            }
        }
    }
}
