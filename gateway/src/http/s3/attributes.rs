//! GetObjectAttributes.

use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Response,
    dto::{
        Checksum, ChecksumType, ETag, GetObjectAttributesInput, GetObjectAttributesOutput, ObjectAttributes,
        StorageClass,
    },
};

use super::{
    S3Operations,
    entry::{md5, size, timestamp},
    errors::Answer,
    metadata,
};
use crate::{app::Call, data::Algorithm, store::Entry};

/// An object that was put in one piece has no list of parts.
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
        if asked.is_empty() || asked.iter().any(|name| !KNOWN.contains(name)) {
            return Err(Error::new(ErrorCode::InvalidArgument, "Invalid attribute name specified.").into());
        }
        let entry = self.gateway.head_object(call, &input.bucket, &input.key).await?;
        let wants = |name: &str| asked.contains(&name);
        Ok(S3Response::new(GetObjectAttributesOutput {
            checksum: if wants(ObjectAttributes::CHECKSUM) { checksum(&entry) } else { None },
            e_tag: md5(&entry).filter(|_| wants(ObjectAttributes::ETAG)).map(|md5| ETag::Strong(md5.to_owned())),
            last_modified: entry.last_modified().map(timestamp),
            object_size: wants(ObjectAttributes::OBJECT_SIZE).then(|| size(&entry) as i64),
            storage_class: wants(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from_static(StorageClass::STANDARD)),
            ..GetObjectAttributesOutput::default()
        }))
    }
}

/// `None` for an object without one, and for algorithms that `s3s` has no element for.
fn checksum(entry: &Entry) -> Option<Checksum> {
    let kept = metadata::checksum(entry.user_metadata.as_ref())?;
    let mut answer =
        Checksum { checksum_type: Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT)), ..Checksum::default() };
    let place = match kept.algorithm {
        Algorithm::Crc32 => &mut answer.checksum_crc32,
        Algorithm::Crc32c => &mut answer.checksum_crc32c,
        Algorithm::Crc64Nvme => &mut answer.checksum_crc64nvme,
        Algorithm::Sha1 => &mut answer.checksum_sha1,
        Algorithm::Sha256 => &mut answer.checksum_sha256,
        _ => return None,
    };
    *place = Some(kept.value);
    Some(answer)
}
