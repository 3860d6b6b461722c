//! ListObjectsV2 and ListObjects.

use mantle_types::{Error, ErrorCode, limits::LIST_KEYS_MAX};
use s3s::{
    S3Request, S3Result,
    dto::{
        CommonPrefix, EncodingType, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
        Object, ObjectStorageClass,
    },
};

use super::{
    Authenticated, S3Operations,
    entry::{epoch, etag, size, timestamp},
};
use crate::{
    http::percent,
    listing::{After, Item, Page, Query, decode_token, encode_token},
    store::Entry,
};

/// How keys are written: as they are, or percent-encoded when the client asked for that.
#[derive(Clone, Copy)]
struct Writing {
    encoded: bool,
}

impl Writing {
    fn of(authenticated: &Authenticated, asked: Option<&EncodingType>) -> S3Result<Self> {
        match asked.map(EncodingType::as_str) {
            None => Ok(Self { encoded: false }),
            Some(EncodingType::URL) => Ok(Self { encoded: true }),
            Some(_) => {
                Err(authenticated.refuse(&Error::new(ErrorCode::InvalidArgument, "encoding-type must be `url`")))
            }
        }
    }

    fn write(self, text: String) -> String {
        if self.encoded { percent::encode(&text) } else { text }
    }
}

fn limit(authenticated: &Authenticated, asked: Option<i32>) -> S3Result<usize> {
    match asked {
        None => Ok(LIST_KEYS_MAX),
        Some(asked) => match usize::try_from(asked) {
            Ok(asked) => Ok(asked.min(LIST_KEYS_MAX)),
            Err(_) => {
                Err(authenticated.refuse(&Error::new(ErrorCode::InvalidArgument, "max-keys must not be negative")))
            }
        },
    }
}

impl S3Operations {
    fn object(&self, writing: Writing, key: String, entry: &Entry, with_owner: bool) -> Object {
        Object {
            key: Some(writing.write(key)),
            e_tag: etag(entry),
            last_modified: Some(entry.last_modified().map_or_else(epoch, timestamp)),
            owner: with_owner.then(|| self.owner(entry.permission.owner)),
            size: Some(size(entry) as i64),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            ..Object::default()
        }
    }

    fn split(&self, writing: Writing, items: Vec<Item>, with_owner: bool) -> (Vec<Object>, Vec<CommonPrefix>) {
        let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                Item::Key(key, entry) => objects.push(self.object(writing, key, &entry, with_owner)),
                Item::Prefix(common) => prefixes.push(CommonPrefix { prefix: Some(writing.write(common)) }),
            }
        }
        (objects, prefixes)
    }

    pub(super) async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<ListObjectsV2Output> {
        let authenticated = self.authenticate(&request, "list_objects_v2")?;
        let input = request.input;
        let writing = Writing::of(&authenticated, input.encoding_type.as_ref())?;
        let limit = limit(&authenticated, input.max_keys)?;
        let prefix = input.prefix.unwrap_or_default();
        let delimiter = input.delimiter.unwrap_or_default();
        let after = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => decode_token(token).map_err(|e| authenticated.refuse(&e))?,
            (None, Some(key)) => After::client(key, &prefix, &delimiter),
            (None, None) => After::Start,
        };
        let query = Query { prefix: &prefix, delimiter: &delimiter, after, limit };
        let page = self.gateway.list_keys(&authenticated.call, &input.bucket, &query).await;
        let Page { items, next } = page.map_err(|e| authenticated.refuse(&e))?;
        let key_count = items.len() as i32;
        let (contents, common_prefixes) = self.split(writing, items, input.fetch_owner.unwrap_or_default());
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(writing.write(prefix)),
            delimiter: (!delimiter.is_empty()).then(|| writing.write(delimiter)),
            max_keys: Some(limit as i32),
            key_count: Some(key_count),
            is_truncated: Some(next.is_some()),
            next_continuation_token: next.as_ref().map(encode_token),
            continuation_token: input.continuation_token,
            start_after: input.start_after.map(|key| writing.write(key)),
            encoding_type: input.encoding_type,
            contents: (!contents.is_empty()).then_some(contents),
            common_prefixes: (!common_prefixes.is_empty()).then_some(common_prefixes),
            request_charged: None,
        })
    }

    pub(super) async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> S3Result<ListObjectsOutput> {
        let authenticated = self.authenticate(&request, "list_objects")?;
        let input = request.input;
        let writing = Writing::of(&authenticated, input.encoding_type.as_ref())?;
        let limit = limit(&authenticated, input.max_keys)?;
        let prefix = input.prefix.unwrap_or_default();
        let delimiter = input.delimiter.unwrap_or_default();
        let after = After::client(input.marker.as_deref().unwrap_or_default(), &prefix, &delimiter);
        let query = Query { prefix: &prefix, delimiter: &delimiter, after, limit };
        let page = self.gateway.list_keys(&authenticated.call, &input.bucket, &query).await;
        let Page { items, next } = page.map_err(|e| authenticated.refuse(&e))?;
        let next_marker = match &next {
            Some(After::Key(position) | After::Prefix(position)) => Some(position.clone()),
            Some(After::Start) | None => None,
        };
        let (contents, common_prefixes) = self.split(writing, items, true);
        Ok(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(writing.write(prefix)),
            delimiter: (!delimiter.is_empty()).then(|| writing.write(delimiter)),
            marker: Some(writing.write(input.marker.unwrap_or_default())),
            max_keys: Some(limit as i32),
            is_truncated: Some(next.is_some()),
            next_marker: next_marker.map(|position| writing.write(position)),
            encoding_type: input.encoding_type,
            contents: (!contents.is_empty()).then_some(contents),
            common_prefixes: (!common_prefixes.is_empty()).then_some(common_prefixes),
            request_charged: None,
        })
    }
}
