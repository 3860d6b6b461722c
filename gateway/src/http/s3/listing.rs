//! ListObjectsV2 and ListObjects.

use std::borrow::Cow;

use mantle_types::{Error, ErrorCode, Result, limits::LIST_KEYS_MAX, name::is_xml};
use s3s::{
    S3Response,
    dto::{
        ChecksumAlgorithm, ChecksumType, CommonPrefix, EncodingType, ListObjectVersionsInput, ListObjectVersionsOutput,
        ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, Object, ObjectStorageClass,
        ObjectVersion, ObjectVersionStorageClass, Owner,
    },
};

use super::{
    S3Operations,
    entry::{epoch, etag, timestamp},
    errors::Answer,
    operation::ONLY_VERSION,
};
use crate::{
    app::Call,
    data::{Algorithm, ChecksumKind, described_in},
    http::percent,
    listing::{After, Item, Page, Query, decode_token, encode_token},
    store::Entry,
};

/// How keys are written: as they are, or percent-encoded when the client asks for that.
#[derive(Clone, Copy)]
pub(super) struct KeyEncoding {
    percent: bool,
}

impl KeyEncoding {
    pub(super) fn of(asked: Option<&EncodingType>) -> Result<Self> {
        match asked.map(EncodingType::as_str) {
            None => Ok(Self { percent: false }),
            Some(EncodingType::URL) => Ok(Self { percent: true }),
            Some(_) => Err(Error::new(ErrorCode::InvalidArgument, "encoding-type must be `url`")),
        }
    }

    pub(super) fn write(self, text: String) -> String {
        if self.percent { percent::encode(&text) } else { text }
    }

    pub(super) fn written(self, text: &str) -> Cow<'_, str> {
        if self.percent { percent::encode(text).into() } else { text.into() }
    }

    /// `None` for an empty text.
    pub(super) fn write_some(self, text: String) -> Option<String> {
        (!text.is_empty()).then(|| self.write(text))
    }
}

/// The limit of a listing, which the client gives in this parameter, cut to S3's.
pub(super) fn limit(name: &str, asked: Option<i32>) -> Result<usize> {
    let asked = asked.map_or(Ok(LIST_KEYS_MAX), usize::try_from);
    let limit = asked.map_err(|_| {
        let why = format!("Argument {name} must be an integer between 0 and 2147483647");
        Error::new(ErrorCode::InvalidArgument, why)
    })?;
    Ok(limit.min(LIST_KEYS_MAX))
}

/// An error for a text that the answer repeats and no document can hold. No key has such characters.
pub(super) fn check_texts(texts: [&str; 3]) -> Result<()> {
    match texts.into_iter().flat_map(str::chars).all(is_xml) {
        true => Ok(()),
        false => {
            Err(Error::new(ErrorCode::InvalidArgument, "prefix, delimiter and marker must not have control characters"))
        }
    }
}

/// `None` for an empty list: S3 leaves it out.
pub(super) fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// What a listing shows of an object's checksum.
pub(super) fn checksum(entry: &Entry) -> Option<(Algorithm, ChecksumKind)> {
    described_in(entry.metadata.as_ref()?.text())
}

/// A page of ListObjectsV2.
pub(super) struct ListedV2 {
    /// What the document says besides its keys and common prefixes.
    pub(super) head: ListObjectsV2Output,
    pub(super) items: Vec<Item>,
    pub(super) encoding: KeyEncoding,
    pub(super) with_owner: bool,
}

fn object(encoding: KeyEncoding, key: String, entry: &Entry, owner: Option<Owner>) -> Object {
    let checksum = checksum(entry);
    let algorithm = checksum.map(|(algorithm, _)| algorithm.name().to_ascii_uppercase());
    Object {
        key: Some(encoding.write(key)),
        checksum_algorithm: algorithm.map(|algorithm| vec![ChecksumAlgorithm::from(algorithm)]),
        checksum_type: checksum.map(|(_, kind)| ChecksumType::from_static(kind.name())),
        e_tag: etag(entry),
        last_modified: Some(entry.last_modified().map_or_else(epoch, timestamp)),
        owner,
        size: Some(entry.length() as i64),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
        ..Object::default()
    }
}

/// `owner`: describes the owner of a key.
fn split(
    encoding: KeyEncoding,
    items: Vec<Item>,
    owner: Option<impl Fn(u32) -> Owner>,
) -> (Vec<Object>, Vec<CommonPrefix>) {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Item::Key(key, entry) => {
                let owner = owner.as_ref().map(|owner| owner(entry.permission.owner));
                objects.push(object(encoding, key, &entry, owner));
            }
            Item::Prefix(common) => prefixes.push(CommonPrefix { prefix: Some(encoding.write(common)) }),
        }
    }
    (objects, prefixes)
}

impl ListedV2 {
    /// The page as `s3s` takes it.
    pub(super) fn output(self, owner: impl Fn(u32) -> Owner) -> ListObjectsV2Output {
        let Self { head, items, encoding, with_owner } = self;
        let (contents, common_prefixes) = split(encoding, items, with_owner.then_some(owner));
        ListObjectsV2Output { contents: some(contents), common_prefixes: some(common_prefixes), ..head }
    }
}

impl S3Operations {
    pub(super) async fn list_objects_v2(&self, call: &Call, input: ListObjectsV2Input) -> Answer<ListObjectsV2Output> {
        let listed = self.listed_v2(call, input).await?;
        Ok(S3Response::new(listed.output(|uid| self.owner(uid))))
    }

    /// Reads a page.
    pub(super) async fn listed_v2(&self, call: &Call, input: ListObjectsV2Input) -> Result<ListedV2> {
        let encoding = KeyEncoding::of(input.encoding_type.as_ref())?;
        let limit = limit("max-keys", input.max_keys)?;
        let (prefix, delimiter) = (input.prefix.unwrap_or_default(), input.delimiter.unwrap_or_default());
        check_texts([&prefix, &delimiter, input.start_after.as_deref().unwrap_or_default()])?;
        let after = match (&input.continuation_token, &input.start_after) {
            // S3 takes an empty token for none.
            (Some(token), _) if token.is_empty() => After::Start,
            (Some(token), _) => decode_token(token)?,
            (None, Some(key)) => After::client(key, &prefix, &delimiter),
            (None, None) => After::Start,
        };
        let query = Query { prefix: &prefix, delimiter: &delimiter, after, limit };
        let Page { items, next } = self.gateway.list_keys(call, &input.bucket, &query).await?;
        let key_count = items.len() as i32;
        let head = ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoding.write(prefix)),
            delimiter: encoding.write_some(delimiter),
            max_keys: Some(limit as i32),
            key_count: Some(key_count),
            is_truncated: Some(next.is_some()),
            next_continuation_token: next.as_ref().map(encode_token),
            continuation_token: input.continuation_token,
            start_after: input.start_after.map(|key| encoding.write(key)),
            encoding_type: input.encoding_type,
            ..ListObjectsV2Output::default()
        };
        Ok(ListedV2 { head, items, encoding, with_owner: input.fetch_owner.unwrap_or_default() })
    }

    pub(super) async fn list_objects(&self, call: &Call, input: ListObjectsInput) -> Answer<ListObjectsOutput> {
        let encoding = KeyEncoding::of(input.encoding_type.as_ref())?;
        let limit = limit("max-keys", input.max_keys)?;
        let (prefix, delimiter) = (input.prefix.unwrap_or_default(), input.delimiter.unwrap_or_default());
        let marker = input.marker.unwrap_or_default();
        check_texts([&prefix, &delimiter, &marker])?;
        let after = After::client(&marker, &prefix, &delimiter);
        let query = Query { prefix: &prefix, delimiter: &delimiter, after, limit };
        let Page { items, next } = self.gateway.list_keys(call, &input.bucket, &query).await?;
        let (contents, common_prefixes) = split(encoding, items, Some(|uid| self.owner(uid)));
        let is_truncated = Some(next.is_some());
        let next_marker = match next {
            Some(After::Key(position) | After::Prefix(position)) => Some(encoding.write(position)),
            Some(After::Start) | None => None,
        };
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoding.write(prefix)),
            delimiter: encoding.write_some(delimiter),
            marker: Some(encoding.write(marker)),
            max_keys: Some(limit as i32),
            is_truncated,
            next_marker,
            encoding_type: input.encoding_type,
            contents: some(contents),
            common_prefixes: some(common_prefixes),
            request_charged: None,
        }))
    }

    /// Each object has one version: no bucket keeps others.
    pub(super) async fn list_object_versions(
        &self,
        call: &Call,
        input: ListObjectVersionsInput,
    ) -> Answer<ListObjectVersionsOutput> {
        let encoding = KeyEncoding::of(input.encoding_type.as_ref())?;
        let limit = limit("max-keys", input.max_keys)?;
        let (prefix, delimiter) = (input.prefix.unwrap_or_default(), input.delimiter.unwrap_or_default());
        let marker = input.key_marker.unwrap_or_default();
        check_texts([&prefix, &delimiter, &marker])?;
        let query =
            Query { prefix: &prefix, delimiter: &delimiter, after: After::client(&marker, &prefix, &delimiter), limit };
        let Page { items, next } = self.gateway.list_keys(call, &input.bucket, &query).await?;
        let (objects, common_prefixes) = split(encoding, items, Some(|uid| self.owner(uid)));
        let version = |object: Object| ObjectVersion {
            checksum_algorithm: object.checksum_algorithm,
            checksum_type: object.checksum_type,
            e_tag: object.e_tag,
            is_latest: Some(true),
            key: object.key,
            last_modified: object.last_modified,
            owner: object.owner,
            size: object.size,
            storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
            version_id: Some(ONLY_VERSION.to_owned()),
            ..ObjectVersion::default()
        };
        let is_truncated = next.is_some();
        let next_key_marker = match next {
            Some(After::Key(position) | After::Prefix(position)) => Some(encoding.write(position)),
            Some(After::Start) | None => None,
        };
        Ok(S3Response::new(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(encoding.write(prefix)),
            delimiter: encoding.write_some(delimiter),
            key_marker: Some(encoding.write(marker)),
            version_id_marker: input.version_id_marker,
            max_keys: Some(limit as i32),
            is_truncated: Some(is_truncated),
            next_version_id_marker: next_key_marker.as_ref().map(|_| ONLY_VERSION.to_owned()),
            next_key_marker,
            encoding_type: input.encoding_type,
            versions: some(objects.into_iter().map(version).collect()),
            common_prefixes: some(common_prefixes),
            ..ListObjectVersionsOutput::default()
        }))
    }
}
