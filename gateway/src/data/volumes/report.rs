//! The metrics of the volume: how full it is, and whether it is mounted, writable and able to grow.

use mantle_volumes::Space;

use super::Volumes;

/// Gauge of bytes, by what they are.
const BYTES: &str = "mantle_gateway_volume_bytes";
/// Gauges that are 0 or 1.
const IS_MOUNTED: &str = "mantle_gateway_volume_mounted";
const IS_READ_ONLY: &str = "mantle_gateway_volume_read_only";
/// Gauge: 1 if more room may come.
const CAN_GROW: &str = "mantle_gateway_volume_can_grow";

fn flag(name: &'static str, is_set: bool) {
    metrics::gauge!(name).set(f64::from(u8::from(is_set)));
}

impl Volumes {
    /// Sets the metrics.
    pub fn report(&self) {
        let own = *self.0.own.lock();
        let Space { volume, leased, used, waiting, in_doubt, .. } = self.space().unwrap_or_default();
        for (of, bytes) in
            [("volume", volume), ("leased", leased), ("used", used), ("waiting", waiting), ("in_doubt", in_doubt)]
        {
            metrics::gauge!(BYTES, "of" => of).set(bytes as f64);
        }
        flag(IS_MOUNTED, own.is_some());
        let volume = own.and_then(|own| self.0.store.volume(own).ok());
        flag(IS_READ_ONLY, volume.is_some_and(|volume| volume.is_read_only()));
        flag(CAN_GROW, self.can_grow());
    }
}
