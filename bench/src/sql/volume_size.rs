//! Statements about a volume of many objects: what PostgreSQL keeps of it, and what that takes on disk.

use anyhow::{Context, Result, ensure};
use mantle_volumes::{Geometry, PREFIX, SegmentId, VolumeId};
use tokio_postgres::types::Type;

use super::Session;

const VOLUMES: &str = "SELECT v.volume, v.block_bytes, v.segment_blocks, v.segments FROM mantle.volume_status() v";
const LOCATOR: &str = "SELECT m.locator FROM mantle.meta m JOIN mantle.namespaces n ON m.pid = n.ns \
     WHERE n.name = $1 AND m.name = $2";
// In byte order, the locators of a segment are adjacent. The next byte after a dot is a slash.
const LOCATORS: &str = "SELECT count(*) FROM mantle.meta WHERE locator >= $1 || '.' AND locator < $1 || '/'";
// A table with its free space map, its visibility map and what it keeps out of line; and each index.
const RELATIONS: &str = "SELECT coalesce(t.relname, c.relname)::text, CASE WHEN i.indexrelid IS NULL THEN NULL ELSE c.relname END::text, \
     pg_table_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
     LEFT JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_class t ON t.oid = i.indrelid \
     WHERE n.nspname = 'mantle' AND c.relkind IN ('r', 'i') ORDER BY 3 DESC";

// A locator says each extent as block and length.
const EXTENTS: &str = "SELECT avg(regexp_count(m.locator, '\\+') + (SELECT coalesce(sum(regexp_count(e.locator, '\\+')), 0) \
     FROM mantle.extents e WHERE e.upload = mantle.manifest_id(m.locator)))::float8 \
     FROM mantle.meta m JOIN mantle.namespaces n ON m.ns = n.ns WHERE n.name = $1 AND m.locator IS NOT NULL";

/// The only volume of a stack.
#[derive(Clone, Copy, Debug)]
pub struct VolumeRow {
    pub volume: VolumeId,
    pub block_bytes: u32,
    pub segment_blocks: u64,
    pub segments: u32,
}

impl VolumeRow {
    pub fn geometry(self) -> Result<Geometry> {
        let segment_bytes = self.segment_blocks * u64::from(self.block_bytes);
        Geometry::new(self.block_bytes, segment_bytes).context("a volume has blocks or segments that cannot be")
    }
}

/// A table or an index of Mantle's.
pub struct Relation {
    pub table: String,
    /// `None`: the table itself.
    pub index: Option<String>,
    pub bytes: i64,
}

impl Session {
    /// How many extents an object of a namespace has, on average.
    pub async fn extents_of_objects(&self, namespace: &str) -> Result<f64> {
        let found: Option<f64> = self.value(EXTENTS, &[(&namespace, Type::TEXT)]).await?;
        found.context("the namespace has no object with bytes")
    }

    /// The volume, if there is one and no other.
    pub async fn only_volume(&self) -> Result<VolumeRow> {
        let rows = self.client.query_typed(VOLUMES, &[]).await?;
        ensure!(rows.len() == 1, "there are {} volumes", rows.len());
        let (volume, block_bytes): (i32, i32) = (rows[0].get(0), rows[0].get(1));
        let (segment_blocks, segments): (i64, i32) = (rows[0].get(2), rows[0].get(3));
        Ok(VolumeRow {
            volume: VolumeId(volume.try_into()?),
            block_bytes: block_bytes.try_into()?,
            segment_blocks: segment_blocks.try_into()?,
            segments: segments.try_into()?,
        })
    }

    /// The locator of an object in a namespace's root.
    pub async fn locator(&self, ns: &str, name: &str) -> Result<String> {
        let locator: Option<String> = self.value(LOCATOR, &[(&ns, Type::TEXT), (&name, Type::TEXT)]).await?;
        locator.with_context(|| format!("{ns}/{name} has no locator"))
    }

    /// How many objects have their bytes in a segment.
    pub async fn objects_in(&self, segment: SegmentId) -> Result<u64> {
        let begin = format!("{PREFIX}{segment}");
        let count: i64 = self.value(LOCATORS, &[(&begin, Type::TEXT)]).await?;
        Ok(count.try_into()?)
    }

    /// Tables and indexes with their bytes on disk, the largest first.
    pub async fn relations(&self) -> Result<Vec<Relation>> {
        let rows = self.client.query_typed(RELATIONS, &[]).await?;
        let relation = |row: &tokio_postgres::Row| Relation { table: row.get(0), index: row.get(1), bytes: row.get(2) };
        Ok(rows.iter().map(relation).collect())
    }
}
