//! GetObjectAttributes.

use mantle_types::Error;
use s3s::dto::{
    Checksum, ChecksumType, ETag, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    ObjectAttributes, ObjectPart, StorageClass,
};

use super::{
    S3Operations,
    checksums::{self, Elements},
    entry::timestamp,
    errors::{Answer, bad_request},
    listing,
};
use crate::{
    app::Call,
    data::{Checksum as Kept, ChecksumKind, has_own_checksum},
    store::Entry,
};

const KNOWN: [&str; 5] = [
    ObjectAttributes::CHECKSUM,
    ObjectAttributes::ETAG,
    ObjectAttributes::OBJECT_PARTS,
    ObjectAttributes::OBJECT_SIZE,
    ObjectAttributes::STORAGE_CLASS,
];

impl S3Operations {
    pub(super) async fn get_object_attributes(
        &self,
        call: &Call,
        input: GetObjectAttributesInput,
    ) -> Answer<GetObjectAttributesOutput> {
        // `s3s` does not divide the header's list.
        let names = input.object_attributes.iter().flat_map(|names| names.as_str().split(','));
        let asked: Vec<&str> = names.map(str::trim).collect();
        if asked.iter().any(|name| !KNOWN.contains(name)) {
            self.gateway.head_namespace(call, &input.bucket).await?;
            return Err(match asked.iter().all(|name| name.is_empty()) {
                true => bad_request(
                    "InvalidRequest",
                    "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty",
                ),
                false => bad_request("InvalidArgument", "Invalid attribute name specified."),
            }
            .into());
        }
        let entry = self.gateway.head_object(call, &input.bucket, &input.key).await?;
        let wants = |name: &str| asked.contains(&name);
        let object_parts = match wants(ObjectAttributes::OBJECT_PARTS) {
            true => self.parts_of_object(&entry, input.max_parts, input.part_number_marker).await?,
            false => None,
        };
        let algorithm = Kept::kept_in(entry.user_metadata()).map(|kept| kept.algorithm);
        let output = GetObjectAttributesOutput {
            checksum: if wants(ObjectAttributes::CHECKSUM) { checksum(&entry) } else { None },
            e_tag: entry.md5().filter(|_| wants(ObjectAttributes::ETAG)).map(|md5| ETag::Strong(md5.to_owned())),
            last_modified: entry.last_modified().map(timestamp),
            object_parts,
            object_size: wants(ObjectAttributes::OBJECT_SIZE).then(|| entry.length() as i64),
            storage_class: wants(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from_static(StorageClass::STANDARD)),
            ..GetObjectAttributesOutput::default()
        };
        Ok(checksums::answer(output, algorithm))
    }
}

impl S3Operations {
    /// `None` for an object that was put in one piece.
    async fn parts_of_object(
        &self,
        entry: &Entry,
        max_parts: Option<i32>,
        marker: Option<i32>,
    ) -> Result<Option<GetObjectAttributesParts>, Error> {
        let limit = listing::limit("max-parts", max_parts)?;
        let after = marker.unwrap_or_default().max(0);
        let Some((parts, is_truncated)) = self.gateway.parts_of_object(entry, after, limit).await? else {
            return Ok(None);
        };
        let kept = Kept::kept_in(entry.user_metadata());
        let algorithm = kept.map(|kept| kept.algorithm).filter(|_| !has_own_checksum(entry.user_metadata()));
        let last = parts.last().map(|part| part.number);
        let listed = parts.into_iter().map(|part| {
            let mut dto =
                ObjectPart { part_number: Some(part.number), size: Some(part.size as i64), ..ObjectPart::default() };
            if let Some(algorithm) = algorithm {
                dto.set(algorithm, part.checksum);
            }
            dto
        });
        Ok(Some(GetObjectAttributesParts {
            parts: Some(listed.collect()),
            is_truncated: Some(is_truncated),
            max_parts: Some(limit as i32),
            next_part_number_marker: last.filter(|_| is_truncated),
            part_number_marker: Some(after),
            total_parts_count: etag_parts(entry),
        }))
    }
}

/// The number of parts, which an etag ends in.
fn etag_parts(entry: &Entry) -> Option<i32> {
    entry.md5()?.split_once('-')?.1.parse().ok()
}

/// `None` for an object without one.
fn checksum(entry: &Entry) -> Option<Checksum> {
    let kept = Kept::kept_in(entry.user_metadata())?;
    let kind = ChecksumKind::of(&kept.value).name();
    let mut answer = Checksum { checksum_type: Some(ChecksumType::from_static(kind)), ..Checksum::default() };
    answer.set(kept.algorithm, kept.value);
    Some(answer)
}
