//! The faults of a history, chosen by the seed.

use rand::{Rng, rngs::StdRng};

use crate::{
    disk::{Failure, Part},
    network::Weather,
    postgres::SlotAfter,
    world::World,
};

/// Time until the next fault, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 200..2000;
/// Most by which a host's time of day is set wrong: one day.
const DAY_MS: i64 = 86_400_000;

/// The end of a fault, at a later time.
enum Later {
    Start(usize),
    Wipe(usize),
    Reach { from: usize, to: usize },
    ReachPostgres(usize),
    Weather,
    FastDisk(usize),
    MendDisk(usize),
}

pub struct Faults {
    rng: StdRng,
    next_ms: u64,
    later: Vec<(u64, Later)>,
    /// Number of faults, for the report.
    pub count: u64,
}

impl Faults {
    /// Faults from this time on.
    pub fn new(rng: StdRng, from_ms: u64) -> Self {
        Self { rng, next_ms: from_ms, later: Vec::new(), count: 0 }
    }

    /// Ends what is due, and begins a new fault when it is time.
    pub fn tick(&mut self, world: &mut World) {
        let now = world.now_ms;
        let mut at = 0;
        while at < self.later.len() {
            if self.later[at].0 <= now {
                let (_, later) = self.later.swap_remove(at);
                end(world, later);
            } else {
                at += 1;
            }
        }
        if now >= self.next_ms {
            self.next_ms = now + self.rng.random_range(PAUSE_MS);
            self.count += 1;
            self.begin(world);
        }
    }

    fn end_later(&mut self, world: &World, range: std::ops::Range<u64>, later: Later) {
        let until = world.now_ms + self.rng.random_range(range);
        self.later.push((until, later));
    }

    fn begin(&mut self, world: &mut World) {
        let host = self.rng.random_range(0..world.hosts.len());
        match self.rng.random_range(0..100) {
            0..15 => self.isolate(world, host),
            15..22 => self.cut_one_way(world, host),
            22..29 => {
                let weather = Weather { loss: self.rng.random_range(0.01..0.3), delay_ms: 5, stragglers: 0.1 };
                world.note(format_args!("fault: {weather:?}"));
                world.network.set_weather(weather);
                self.end_later(world, 100..1500, Later::Weather);
            }
            29..34 => {
                let weather = Weather { loss: 0.0, delay_ms: self.rng.random_range(20..200), stragglers: 0.05 };
                world.note(format_args!("fault: {weather:?}"));
                world.network.set_weather(weather);
                self.end_later(world, 100..1500, Later::Weather);
            }
            34..50 => self.kill(world, host),
            50..53 => {
                for host in 0..world.hosts.len() {
                    self.kill(world, host);
                }
            }
            53..62 => {
                let until = world.now_ms + self.rng.random_range(20..2500);
                world.note(format_args!("fault: host {host} stands still until {until}"));
                world.hosts[host].paused_until_ms = until;
            }
            62..70 => self.break_disk(world, host),
            70..76 => {
                let longest = self.rng.random_range(10..150);
                world.note(format_args!("fault: flushes of host {host} take up to {longest} ms"));
                *world.hosts[host].flush_ms_max.lock() = longest;
                self.end_later(world, 100..2000, Later::FastDisk(host));
            }
            76..80 => {
                world.note(format_args!("fault: host {host} cannot reach PostgreSQL"));
                world.server.set_reachable(host, false);
                self.end_later(world, 100..2500, Later::ReachPostgres(host));
            }
            // Leases and time limits use a clock that nobody sets. Code that reads the time of day would fail here.
            80..83 => {
                let ms = self.rng.random_range(-DAY_MS..=DAY_MS);
                world.note(format_args!("fault: the time of day of host {host} jumps by {ms} ms"));
                world.hosts[host].day_ms += ms;
            }
            83..85 => {
                world.note(format_args!("fault: host {host} loses its disk"));
                world.kill(host, true);
                self.end_later(world, 50..1000, Later::Wipe(host));
            }
            85..88 => {
                world.note(format_args!("fault: a copy of host {host}'s folder is made"));
                world.keep_copy(host);
            }
            88..91 => {
                let parts = [Part::All, Part::All, Part::Log, Part::Vote, Part::Snapshot];
                let part = parts[self.rng.random_range(0..parts.len())];
                world.note(format_args!("fault: host {host} dies, and {part:?} of its folder goes back"));
                world.kill(host, false);
                world.put_back(host, part);
                self.end_later(world, 10..1500, Later::Start(host));
            }
            _ => self.postgres_fault(world),
        }
    }

    fn postgres_fault(&mut self, world: &mut World) {
        match self.rng.random_range(0..18) {
            0..3 => {
                world.note(format_args!("fault: PostgreSQL restarts"));
                world.server.with(|postgres| postgres.restart());
            }
            3..5 => {
                world.note(format_args!("fault: the slot is gone"));
                world.server.with(|postgres| {
                    postgres.restart();
                    postgres.slot = None;
                });
            }
            5..11 => {
                let slot = [SlotAfter::Kept, SlotAfter::Kept, SlotAfter::MadeAnew, SlotAfter::Gone];
                let slot = slot[self.rng.random_range(0..slot.len())];
                world.note(format_args!("fault: PostgreSQL fails over"));
                world.fail_over(slot);
            }
            11..14 => {
                let ms = self.rng.random_range(50..1500);
                world.note(format_args!("fault: the standby is away for {ms} ms"));
                world.server.with(|postgres| postgres.standby.leave(ms));
            }
            14..17 => {
                let ms = self.rng.random_range(200..2000);
                world.note(format_args!("fault: the standby is slow for {ms} ms"));
                world.server.with(|postgres| postgres.standby.slow_down(ms));
            }
            _ => {
                world.note(format_args!("fault: a checkpoint of PostgreSQL; other WAL"));
                let bytes = self.rng.random_range(1..10_000);
                world.server.with(|postgres| {
                    if let Some(slot) = &mut postgres.slot {
                        slot.persisted = slot.confirmed;
                    }
                    postgres.write_other(bytes);
                });
            }
        }
    }

    fn isolate(&mut self, world: &mut World, host: usize) {
        let with_clients = self.rng.random_bool(0.3);
        world.note(format_args!("fault: host {host} is cut off"));
        let until = world.now_ms + self.rng.random_range(100..3000);
        let clients = world.hosts.len();
        for other in (0..world.hosts.len()).chain(with_clients.then_some(clients)).filter(|other| *other != host) {
            for (from, to) in [(host, other), (other, host)] {
                world.network.set_cut(from, to, true);
                self.later.push((until, Later::Reach { from, to }));
            }
        }
        if self.rng.random_bool(0.5) {
            world.server.set_reachable(host, false);
            self.later.push((until, Later::ReachPostgres(host)));
        }
    }

    fn cut_one_way(&mut self, world: &mut World, from: usize) {
        let to = (from + self.rng.random_range(1..world.hosts.len())) % world.hosts.len();
        world.note(format_args!("fault: nothing goes from host {from} to host {to}"));
        world.network.set_cut(from, to, true);
        self.end_later(world, 100..3000, Later::Reach { from, to });
    }

    /// A host that dies may come back with the newer program.
    fn kill(&mut self, world: &mut World, host: usize) {
        world.hosts[host].is_old &= self.rng.random_bool(0.5);
        let power_is_lost = self.rng.random_bool(0.6);
        world.note(format_args!("fault: host {host} dies, power lost: {power_is_lost}"));
        world.kill(host, power_is_lost);
        self.end_later(world, 10..1500, Later::Start(host));
    }

    fn break_disk(&mut self, world: &mut World, host: usize) {
        let failure =
            if self.rng.random_bool(0.5) { Failure::Flush } else { Failure::Full(self.rng.random_range(0..200)) };
        world.note(format_args!("fault: {failure:?} on host {host}"));
        world.hosts[host].disk().fail(failure);
        self.end_later(world, 200..1500, Later::MendDisk(host));
    }

    /// Ends all faults.
    pub fn heal(&mut self, world: &mut World) {
        for (_, later) in self.later.drain(..) {
            end(world, later);
        }
        world.network.heal();
        world.server.with(|postgres| postgres.standby.mend());
        for host in 0..world.hosts.len() {
            world.server.set_reachable(host, true);
            world.hosts[host].disk().mend();
            world.hosts[host].paused_until_ms = 0;
            *world.hosts[host].flush_ms_max.lock() = 1;
        }
    }
}

fn end(world: &mut World, later: Later) {
    match later {
        Later::Start(host) => world.start(host),
        Later::Wipe(host) => {
            world.wipe(host);
            world.start(host);
        }
        Later::Reach { from, to } => world.network.set_cut(from, to, false),
        Later::ReachPostgres(host) => world.server.set_reachable(host, true),
        Later::Weather => world.network.set_weather(Weather::default()),
        Later::FastDisk(host) => *world.hosts[host].flush_ms_max.lock() = 1,
        Later::MendDisk(host) => world.hosts[host].disk().mend(),
    }
}
