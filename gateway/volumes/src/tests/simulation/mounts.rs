//! Power failures, mounts, growth of volumes, and leases of their segments.

use std::sync::Arc;

use rand::Rng;

use super::{CLUSTER, Simulation, Violation, store};
use crate::{
    Expected, MountError, SegmentId, Volume, VolumeFile, VolumeId,
    file::faulty::Faults,
    tests::mutation::{self, Mutation},
};

/// How many segments a volume gets beside those that it has at first.
const GROWTH_MAX: u32 = 2;

impl Simulation {
    pub(super) fn restart(&mut self) -> Result<(), Violation> {
        self.puts.clear();
        self.gets.clear();
        self.end_doubts()?;
        self.store.crash();
        self.store = store(&self.clock);
        for number in 0..self.files.len() {
            self.files[number].restart();
            self.files[number].set_faults(Faults::default());
            if self.chance(30) {
                self.interrupt_mount(number)?;
            }
        }
        self.mount()?;
        self.read_all()
    }

    /// The power fails again while a volume is mounted.
    fn interrupt_mount(&mut self, number: usize) -> Result<(), Violation> {
        let file = self.files[number].clone();
        file.fail_power_in(self.random.random_range(0..=2));
        match self.mount_one(number) {
            Err(error) if !file.is_down() => return Err(error.to_string()),
            _ => file.restart(),
        }
        Ok(())
    }

    fn mount_one(&self, number: usize) -> Result<Volume, MountError> {
        let volume = VolumeId(number as u32);
        let expected = Expected { cluster: CLUSTER, volume, mount_epoch: self.epochs[number] };
        Volume::mount(self.files[number].clone() as Arc<dyn VolumeFile>, expected)
    }

    pub(super) fn mount(&mut self) -> Result<(), Violation> {
        for number in 0..self.files.len() {
            self.files[number].set_faults(Faults::default());
            let volume = self.mount_one(number).map_err(|error| error.to_string())?;
            if volume.segments() < self.segments[number] {
                return Err(format!("volume {number} has {} segments of {}", volume.segments(), self.segments[number]));
            }
            // A growth may have happened of which the store did not learn.
            (self.epochs[number], self.segments[number]) = (volume.mount_epoch(), volume.segments());
            self.store.add(volume).map_err(|error| error.to_string())?;
            self.files[number].set_faults(self.profile.faults);
        }
        self.lease()
    }

    /// A volume grows, perhaps until the power fails.
    pub(super) fn grow(&mut self) -> Result<(), Violation> {
        let number = self.random.random_range(0..self.files.len());
        let new = SegmentId { volume: VolumeId(number as u32), number: self.segments[number] };
        if new.number >= self.profile.segments + GROWTH_MAX {
            return Ok(());
        }
        if self.chance(60) {
            self.files[number].fail_power_in(self.random.random_range(0..6));
        }
        let volume = self.store.volume(new.volume).map_err(|error| error.to_string())?;
        if volume.grow(1).is_err() {
            return Ok(());
        }
        self.segments[number] += 1;
        match volume.fill(new.number) {
            Ok(()) => self.store.lease(new, self.lease_epoch, []).map_err(|error| format!("a lease answered {error}")),
            Err(_) => Ok(()),
        }
    }

    pub(super) fn lease(&mut self) -> Result<(), Violation> {
        self.lease_epoch += 1;
        self.has_kept = false;
        // Freed or not: rows do not name them.
        self.database.forget_freed();
        for segment in self.segments() {
            let mut used = self.database.used(segment, self.profile.geometry);
            if mutation::is(Mutation::ForgetRows) {
                used.pop();
            }
            self.store.lease(segment, self.lease_epoch, used).map_err(|error| format!("a lease answered {error}"))?;
        }
        Ok(())
    }

    pub(super) fn segments(&self) -> Vec<SegmentId> {
        let volumes = (0..).map(VolumeId).zip(&self.segments);
        volumes.flat_map(|(volume, count)| (0..*count).map(move |number| SegmentId { volume, number })).collect()
    }
}
