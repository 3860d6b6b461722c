//! The extents of uploads and manifests: where the bytes of parts are. Each statement goes to the node of the upload's id.

use std::ops::Range;

use mantle_types::Result;
use tokio_postgres::types::Type;

use super::{Extent, Param, Store, UploadId, database::one, rows, sql, uploads::accepted};

/// Extents that are read at a time.
const PAGE_EXTENTS: i32 = 5_000;

/// An extent of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentOfPart {
    pub part: i32,
    /// Within the part, from 0.
    pub number: i32,
    pub extent: Extent,
    /// The part's MD5 in hexadecimal; of its first extent only, and only if it was uploaded as a part.
    pub etag: Option<String>,
}

impl Store {
    /// The extents of an object's range, cut to it, in order, up to a limit.
    pub async fn extents_between(&self, manifest: UploadId, range: Range<u64>, limit: usize) -> Result<Vec<Extent>> {
        let limit = limit as i32;
        let params: [Param<'_>; 4] = [
            (&manifest.0, Type::INT8),
            (&(range.start as i64), Type::INT8),
            (&(range.end as i64), Type::INT8),
            (&limit, Type::INT4),
        ];
        let rows = self.query_at(manifest.partition(), &sql::EXTENTS_BETWEEN, &params).await?;
        let mut extents = Vec::with_capacity(rows.len());
        for row in &rows {
            let number = |column| rows::get::<i64>(row, column).map(|number| number as u64);
            let (start, length, position) = (number("start")?, number("length")?, number("position")?);
            let first = position.max(range.start);
            let end = (position + length).min(range.end);
            if first < end {
                let locator = rows::get(row, "locator")?;
                extents.push(Extent { locator, start: start + first - position, length: end - first });
            }
        }
        Ok(extents)
    }

    /// The extents of all parts of an upload, in order.
    pub async fn upload_extents(&self, upload: UploadId) -> Result<Vec<ExtentOfPart>> {
        let mut extents: Vec<ExtentOfPart> = Vec::new();
        loop {
            let (part, number) = extents.last().map_or((0, 0), |last| (last.part, last.number));
            let params: [Param<'_>; 4] =
                [(&upload.0, Type::INT8), (&part, Type::INT4), (&number, Type::INT4), (&PAGE_EXTENTS, Type::INT4)];
            let rows = self.query_at(upload.partition(), &sql::UPLOAD_EXTENTS, &params).await?;
            for row in &rows {
                let bytes = |column| rows::get::<i64>(row, column).map(|number| number as u64);
                let extent =
                    Extent { locator: rows::get(row, "locator")?, start: bytes("start")?, length: bytes("length")? };
                let (part, number) = (rows::get(row, "part")?, rows::get(row, "extent")?);
                extents.push(ExtentOfPart { part, number, extent, etag: rows::get_opt(row, "etag")? });
            }
            if rows.len() < PAGE_EXTENTS as usize {
                return Ok(extents);
            }
        }
    }

    /// Gives a part that has these locators other extents, which are the same bytes; answers the locators outside of volumes that it
    /// names no more. Other parts may name them. Sent once: what was done already would be answered as refused.
    ///
    /// # Errors
    /// `SourceChanged`, `StaleSegment`; `UnknownOutcome`.
    pub async fn replace_extents(
        &self,
        upload: UploadId,
        part: i32,
        old: &[&str],
        new: &[Extent],
    ) -> Result<Vec<String>> {
        let locators: Vec<&str> = new.iter().map(|extent| extent.locator.as_str()).collect();
        let starts: Vec<i64> = new.iter().map(|extent| extent.start as i64).collect();
        let lengths: Vec<i64> = new.iter().map(|extent| extent.length as i64).collect();
        let params: [Param<'_>; 6] = [
            (&upload.0, Type::INT8),
            (&part, Type::INT4),
            (&old, Type::TEXT_ARRAY),
            (&locators, Type::TEXT_ARRAY),
            (&starts, Type::INT8_ARRAY),
            (&lengths, Type::INT8_ARRAY),
        ];
        let rows = self.query_at(upload.partition(), &sql::REPLACE_EXTENTS, &params).await?;
        accepted(&one(&sql::REPLACE_EXTENTS, rows)?)
    }
}
