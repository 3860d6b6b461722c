//! Volumes and the leases of their segments. A node of PostgreSQL takes a locator into a row only if it has admitted the epoch
//! that the locator says. What is freed is kept in rows until the gateway of the volume takes it.

use mantle_types::{EntryId, NamespaceId, PartitionId, Result};
use mantle_volumes::{Geometry, Lease, SegmentId, VolumeId};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{
    Extent, LeasedPartition, Store, UploadId,
    database::{Param, one},
    rows, sql,
};

/// The mount of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount {
    pub cluster: Uuid,
    pub volume: VolumeId,
    /// In the superblock.
    pub epoch: u64,
    pub geometry: Geometry,
    /// How many it has.
    pub segments: u32,
    /// This process.
    pub owner: Uuid,
}

/// A segment that is leased to this gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLease {
    pub lease: Lease,
    /// Rows may name bytes in it.
    pub was_used: bool,
}

/// A locator of bytes in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedIn {
    pub locator: String,
    /// Only what is freed, and not taken yet, names it.
    pub is_freed: bool,
}

/// Deletes that are durable.
#[derive(Clone, Debug)]
pub struct Taken {
    /// For the next call.
    pub horizon: Option<String>,
    pub locators: Vec<String>,
}

/// Bytes of an object in several places.
#[derive(Clone, Debug)]
pub struct NewManifest<'a> {
    pub ns: NamespaceId,
    pub owner: u32,
    pub group: u32,
    /// In the object's order.
    pub extents: &'a [Extent],
}

/// Other bytes for an object, which are the same.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'a> {
    pub pid: PartitionId,
    pub name: &'a str,
    pub id: EntryId,
    pub old: &'a str,
    pub new: &'a str,
    /// The bytes, if the new locator is of bytes inside PostgreSQL.
    pub inline: Option<&'a [u8]>,
    /// From before the manifest was made, if the new locator names one.
    pub lease: Option<mantle_types::Lease>,
}

fn numbers(segments: &[SegmentId]) -> Vec<i32> {
    segments.iter().map(|segment| segment.number as i32).collect()
}

impl Mount {
    /// The first two arguments of most functions.
    fn id(&self) -> (i32, i64) {
        (self.volume.0 as i32, self.epoch as i64)
    }
}

impl Store {
    /// A number for a new volume. `name`: for people.
    pub async fn register_volume(
        &self,
        cluster: Uuid,
        name: &str,
        geometry: Geometry,
        segments: u32,
    ) -> Result<VolumeId> {
        let params: [Param<'_>; 5] = [
            (&cluster, Type::UUID),
            (&name, Type::TEXT),
            (&(geometry.block_bytes() as i32), Type::INT4),
            (&i64::from(geometry.segment_blocks()), Type::INT8),
            (&(segments as i32), Type::INT4),
        ];
        let row = self.query_one(&sql::REGISTER_VOLUME, &params).await?;
        Ok(VolumeId(rows::get::<i32>(&row, "volume")? as u32))
    }

    /// The mount epoch of a volume that was recorded last; `None` if there is no such volume.
    pub async fn known_mount(&self, volume: VolumeId) -> Result<Option<u64>> {
        let rows = self.query(&sql::KNOWN_VOLUME, &[(&(volume.0 as i32), Type::INT4)]).await?;
        rows.first().map(|row| rows::get::<i64>(row, "mount_epoch").map(|epoch| epoch as u64)).transpose()
    }

    /// Records a mount, or that its volume has grown.
    pub async fn mount_volume(&self, mount: &Mount) -> Result<()> {
        let (volume, epoch) = mount.id();
        let params: [Param<'_>; 7] = [
            (&mount.cluster, Type::UUID),
            (&volume, Type::INT4),
            (&epoch, Type::INT8),
            (&(mount.geometry.block_bytes() as i32), Type::INT4),
            (&i64::from(mount.geometry.segment_blocks()), Type::INT8),
            (&(mount.segments as i32), Type::INT4),
            (&mount.owner.to_string(), Type::TEXT),
        ];
        self.query_one(&sql::MOUNT_VOLUME, &params).await.map(drop)
    }

    /// Leases up to this many free segments; none if there are no more. `UnknownOutcome`: some may be leased now.
    pub async fn lease_segments(&self, mount: &Mount, count: u32, unused_only: bool) -> Result<Vec<SegmentLease>> {
        let (volume, epoch) = mount.id();
        let params: [Param<'_>; 4] =
            [(&volume, Type::INT4), (&epoch, Type::INT8), (&(count as i32), Type::INT4), (&unused_only, Type::BOOL)];
        self.leases(mount, &sql::LEASE_SEGMENTS, &params).await
    }

    /// Leases these segments, or all that somebody has, under a new epoch. Rows may name bytes in any of them.
    pub async fn take_over_segments(&self, mount: &Mount, segments: Option<&[SegmentId]>) -> Result<Vec<SegmentLease>> {
        let (volume, epoch) = mount.id();
        let segments = segments.map(numbers);
        let params: [Param<'_>; 3] = [(&volume, Type::INT4), (&epoch, Type::INT8), (&segments, Type::INT4_ARRAY)];
        self.leases(mount, &sql::TAKE_OVER_SEGMENTS, &params).await
    }

    async fn leases(
        &self,
        mount: &Mount,
        statement: &'static sql::Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<SegmentLease>> {
        let rows = self.query(statement, params).await?;
        let read = |row| {
            let number = rows::get::<i32>(row, "segment")? as u32;
            let segment = SegmentId { volume: mount.volume, number };
            let epoch = rows::get::<i64>(row, "epoch")? as u64;
            Ok(SegmentLease { lease: Lease { segment, epoch }, was_used: rows::get(row, "was_used")? })
        };
        rows.iter().map(read).collect()
    }

    /// What names each node of PostgreSQL.
    pub async fn volume_nodes(&self) -> Result<Vec<i64>> {
        let rows = self.query(&sql::VOLUME_NODES, &[]).await?;
        rows.iter().map(|row| rows::get(row, "at")).collect()
    }

    /// Lets a node take locators of these epochs, and of none before.
    pub async fn admit_segments(&self, at: i64, mount: &Mount, leases: &[Lease]) -> Result<()> {
        let (volume, epoch) = mount.id();
        let segments: Vec<i32> = leases.iter().map(|lease| lease.segment.number as i32).collect();
        let epochs: Vec<i64> = leases.iter().map(|lease| lease.epoch as i64).collect();
        let params: [Param<'_>; 5] = [
            (&at, Type::INT8),
            (&volume, Type::INT4),
            (&epoch, Type::INT8),
            (&segments, Type::INT4_ARRAY),
            (&epochs, Type::INT8_ARRAY),
        ];
        self.query_one(&sql::ADMIT_SEGMENTS, &params).await.map(drop)
    }

    /// The locators of bytes in a segment after one, in the order of their bytes. The epoch has to be admitted on every node.
    pub async fn segment_locators(&self, lease: Lease, after: &str, limit: usize) -> Result<Vec<NamedIn>> {
        let Lease { segment, epoch } = lease;
        let params: [Param<'_>; 5] = [
            (&(segment.volume.0 as i32), Type::INT4),
            (&(segment.number as i32), Type::INT4),
            (&(epoch as i64), Type::INT8),
            (&after, Type::TEXT),
            (&(limit as i32), Type::INT4),
        ];
        let rows = self.query(&sql::SEGMENT_LOCATORS, &params).await?;
        let read = |row| Ok(NamedIn { locator: rows::get(row, "locator")?, is_freed: rows::get(row, "freed")? });
        rows.iter().map(read).collect()
    }

    /// The locators of bytes in a segment that objects and parts name, after one, in the order of their bytes. It needs no lease: an
    /// object that moves to another node meanwhile may be missing.
    pub async fn named_locators(&self, segment: SegmentId, after: &str, limit: usize) -> Result<Vec<String>> {
        let params: [Param<'_>; 4] = [
            (&(segment.volume.0 as i32), Type::INT4),
            (&(segment.number as i32), Type::INT4),
            (&after, Type::TEXT),
            (&(limit as i32), Type::INT4),
        ];
        let rows = self.query(&sql::NAMED_LOCATORS, &params).await?;
        rows.iter().map(|row| rows::get(row, "locator")).collect()
    }

    /// Takes what a node knows of deletes that are durable, and older than the delay. Each is answered once: after an error they may
    /// be lost, and only the segment's next lease finds them.
    pub async fn take_freed(
        &self,
        at: i64,
        mount: &Mount,
        horizon: Option<&str>,
        delay_ms: u64,
        limit: usize,
    ) -> Result<Taken> {
        let (volume, epoch) = mount.id();
        let params: [Param<'_>; 6] = [
            (&at, Type::INT8),
            (&volume, Type::INT4),
            (&epoch, Type::INT8),
            (&horizon, Type::TEXT),
            (&(delay_ms as i64), Type::INT8),
            (&(limit as i32), Type::INT4),
        ];
        let row = one(&sql::TAKE_FREED, self.query(&sql::TAKE_FREED, &params).await?)?;
        Ok(Taken {
            horizon: rows::get_opt(&row, "horizon")?,
            locators: rows::get_opt(&row, "locators")?.unwrap_or_default(),
        })
    }

    /// Forgets what a node kept as freed, and what is not: other rows name the blocks.
    pub async fn forget_freed(&self, at: i64, mount: &Mount, locators: &[String]) -> Result<()> {
        let (volume, epoch) = mount.id();
        let params: [Param<'_>; 4] =
            [(&at, Type::INT8), (&volume, Type::INT4), (&epoch, Type::INT8), (&locators, Type::TEXT_ARRAY)];
        self.query_one(&sql::FORGET_FREED, &params).await.map(drop)
    }

    /// Those of these locators of which a node knows that a row which named them was removed, and that others may name them.
    pub async fn shared_freed(&self, at: i64, locators: &[String]) -> Result<Vec<String>> {
        let params: [Param<'_>; 2] = [(&at, Type::INT8), (&locators, Type::TEXT_ARRAY)];
        rows::get(&self.query_one(&sql::SHARED_FREED, &params).await?, "locators")
    }

    /// Frees shared bytes that no row names any more. No other node may know of them.
    pub async fn settle_shared(&self, at: i64, mount: &Mount, locators: &[String]) -> Result<()> {
        let (volume, epoch) = mount.id();
        let params: [Param<'_>; 4] =
            [(&at, Type::INT8), (&volume, Type::INT4), (&epoch, Type::INT8), (&locators, Type::TEXT_ARRAY)];
        self.query_one(&sql::SETTLE_SHARED, &params).await.map(drop)
    }

    /// Gives an object another locator if it still is the same and has the old one; answers the old one if no row names it any more.
    /// Sent once: what was done already would be answered as refused.
    ///
    /// # Errors
    /// `SourceChanged`, `StaleSegment`; `UnknownOutcome`.
    pub async fn replace_locator(&self, replacement: Replacement<'_>) -> Result<Option<String>> {
        let Replacement { pid, name, id, old, new, inline, lease } = replacement;
        let lease = lease.map(|lease| lease.to_string());
        let params: [Param<'_>; 7] = [
            (&pid.as_i64(), Type::INT8),
            (&name, Type::TEXT),
            (&id.as_i64(), Type::INT8),
            (&old, Type::TEXT),
            (&new, Type::TEXT),
            (&inline, Type::BYTEA),
            (&lease, Type::TEXT),
        ];
        let row = one(&sql::REPLACE_LOCATOR, self.query_at(pid, &sql::REPLACE_LOCATOR, &params).await?)?;
        match rows::code(&row)? {
            None => rows::get_opt(&row, "old_locator"),
            Some(code) => Err(code.into()),
        }
    }

    /// System identifier and timeline of the configured server.
    pub async fn lineage(&self) -> Result<String> {
        rows::get(&self.query_one(&sql::LINEAGE, &[]).await?, "lineage")
    }

    /// Records where the bytes of an object are that one locator cannot name. `upload`: the partition of a new id.
    pub async fn create_manifest(&self, upload: LeasedPartition, new: &NewManifest<'_>) -> Result<rows::Coded> {
        let locators: Vec<&str> = new.extents.iter().map(|extent| extent.locator.as_str()).collect();
        let starts: Vec<i64> = new.extents.iter().map(|extent| extent.start as i64).collect();
        let lengths: Vec<i64> = new.extents.iter().map(|extent| extent.length as i64).collect();
        let id = EntryId::from(upload.pid.as_i64());
        let params: [Param<'_>; 8] = [
            (&id.as_i64(), Type::INT8),
            (&new.ns.as_i64(), Type::INT8),
            (&(new.owner as i32), Type::INT4),
            (&(new.group as i32), Type::INT4),
            (&locators, Type::TEXT_ARRAY),
            (&starts, Type::INT8_ARRAY),
            (&lengths, Type::INT8_ARRAY),
            (&upload.lease.to_string(), Type::TEXT),
        ];
        let partition = UploadId::from(id).partition();
        let row = one(&sql::CREATE_MANIFEST, self.query_at(partition, &sql::CREATE_MANIFEST, &params).await?)?;
        Ok((rows::code(&row)?, rows::Written { id, ..rows::Written::default() }))
    }
}
