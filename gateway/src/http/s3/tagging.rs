//! Tags of objects, directories and buckets. They are kept with the user metadata, under a name that no header can have, in
//! the form of the header `x-amz-tagging`: `key=value&key=value`. Setting them changes neither etag nor time.

use mantle_types::{Error, ErrorCode};
use s3s::{
    S3Error, S3Response,
    dto::{
        DeleteBucketTaggingInput, DeleteBucketTaggingOutput, DeleteObjectTaggingInput, DeleteObjectTaggingOutput,
        GetBucketTaggingInput, GetBucketTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
        PutBucketTaggingInput, PutBucketTaggingOutput, PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
    },
};
use serde_json::{Map, Value, json};

use super::{
    S3Operations,
    errors::{self, Answer, Refusal, bad_request},
};
use crate::{
    app::Call,
    http::percent,
    ops::{copy_object::TAGGING, set_attributes::Attributes, stat::Naming},
    store::PartOf,
};

/// Most tags, as in S3.
const OBJECT_TAGS_MAX: usize = 10;
const BUCKET_TAGS_MAX: usize = 50;
/// Longest key and value, in characters.
const KEY_MAX: usize = 128;
const VALUE_MAX: usize = 256;

type Tags = Vec<(String, String)>;

fn is_allowed(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c.is_whitespace() || "+-=._:/@".contains(c))
}

/// Whether a key before this position is the same.
fn is_doubled(tags: &Tags, at: usize) -> bool {
    tags[..at].iter().any(|(other, _)| *other == tags[at].0)
}

/// An error unless S3 takes these tags.
fn check(tags: &Tags, max: usize) -> Result<(), S3Error> {
    let invalid = |message: &'static str| Err(bad_request("InvalidTag", message));
    if tags.len() > max {
        let what = if max == BUCKET_TAGS_MAX { "Bucket tag count" } else { "Object tags" };
        return Err(bad_request("BadRequest", format!("{what} cannot be greater than {max}")));
    }
    for (at, (key, value)) in tags.iter().enumerate() {
        let length = key.chars().count();
        if length == 0 || length > KEY_MAX || !is_allowed(key) || key.starts_with("aws:") {
            return invalid("The TagKey you have provided is invalid");
        }
        if value.chars().count() > VALUE_MAX || !is_allowed(value) {
            return invalid("The TagValue you have provided is invalid");
        }
        if is_doubled(tags, at) {
            return invalid("Cannot provide multiple Tags with the same key");
        }
    }
    Ok(())
}

fn write(tags: &Tags) -> Option<String> {
    // S3 answers them in the order of their keys.
    let mut tags = tags.clone();
    tags.sort();
    let mut text = form_urlencoded::Serializer::new(String::new());
    text.extend_pairs(&tags);
    (!tags.is_empty()).then(|| text.finish())
}

fn read(text: &str) -> Tags {
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

/// The tags of a header, as they are kept; `None` if there are none.
///
/// # Errors
/// `InvalidTag`, `InvalidArgument`, `BadRequest`.
pub(super) fn of_header(header: Option<&str>) -> Result<Option<String>, S3Error> {
    let Some(text) = header else { return Ok(None) };
    let tags = read(text);
    let any_doubled = (0..tags.len()).any(|at| is_doubled(&tags, at));
    // S3 takes empty pairs, and no percent sign that encodes nothing.
    if any_doubled || percent::decode(text).is_err() || text.split('&').any(|pair| pair.starts_with('=')) {
        let message = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag \
                       name duplicates.";
        return Err(bad_request("InvalidArgument", message));
    }
    check(&tags, OBJECT_TAGS_MAX)?;
    Ok(write(&tags))
}

/// The tags that are kept with an entry.
fn of(kept: Option<&Value>) -> Tags {
    kept.and_then(|kept| kept.get(TAGGING)).and_then(Value::as_str).map(read).unwrap_or_default()
}

/// How many tags are kept with an entry; `None` for none.
pub(super) fn count(kept: Option<&Value>) -> Option<i32> {
    Some(of(kept).len() as i32).filter(|count| *count > 0)
}

fn of_document(set: Vec<Tag>, max: usize) -> Result<Option<String>, S3Error> {
    let tags = set.into_iter().map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default())).collect();
    check(&tags, max)?;
    Ok(write(&tags))
}

fn to_document(tags: Tags) -> Vec<Tag> {
    tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

impl S3Operations {
    /// Replaces the tags of an entry; the rest of its metadata stays.
    async fn set_tags(&self, call: &Call, bucket: String, key: String, tags: Option<String>) -> Result<(), Refusal> {
        let change = Map::from_iter([(TAGGING.to_owned(), json!(tags))]);
        // The tags of a bucket are read by other requests only.
        let part_of = (!key.is_empty()).then_some(PartOf::Tags);
        let attributes = Attributes { user_metadata: Some(Value::Object(change)), part_of, ..Attributes::default() };
        let set = self.mutate(call, |gateway, call| async move {
            gateway.set_attributes(&call, &bucket, &key, &attributes).await
        });
        Ok(set.await.map(drop)?)
    }

    pub(super) async fn put_object_tagging(
        &self,
        call: &Call,
        input: PutObjectTaggingInput,
    ) -> Answer<PutObjectTaggingOutput> {
        let tags = of_document(input.tagging.tag_set, OBJECT_TAGS_MAX)?;
        self.gateway.head_object(call, &input.bucket, &input.key).await?;
        self.set_tags(call, input.bucket, input.key, tags).await?;
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    }

    pub(super) async fn get_object_tagging(
        &self,
        call: &Call,
        input: GetObjectTaggingInput,
    ) -> Answer<GetObjectTaggingOutput> {
        let entry = self.gateway.head_object(call, &input.bucket, &input.key).await?;
        let tag_set = to_document(of(entry.user_metadata()));
        Ok(S3Response::new(GetObjectTaggingOutput { tag_set, ..GetObjectTaggingOutput::default() }))
    }

    pub(super) async fn delete_object_tagging(
        &self,
        call: &Call,
        input: DeleteObjectTaggingInput,
    ) -> Answer<DeleteObjectTaggingOutput> {
        let entry = self.gateway.head_object(call, &input.bucket, &input.key).await?;
        if count(entry.user_metadata()).is_some() {
            self.set_tags(call, input.bucket, input.key, None).await?;
        }
        Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
    }

    pub(super) async fn put_bucket_tagging(
        &self,
        call: &Call,
        input: PutBucketTaggingInput,
    ) -> Answer<PutBucketTaggingOutput> {
        let tags = of_document(input.tagging.tag_set, BUCKET_TAGS_MAX)?;
        self.set_tags(call, input.bucket, String::new(), tags).await?;
        Ok(S3Response::new(PutBucketTaggingOutput::default()))
    }

    pub(super) async fn get_bucket_tagging(
        &self,
        call: &Call,
        input: GetBucketTaggingInput,
    ) -> Answer<GetBucketTaggingOutput> {
        self.gateway.head_namespace(call, &input.bucket).await?;
        let root = self.gateway.stat(call, &input.bucket, "", Naming::Exact).await?;
        // Its tags would not be shown, and an answer without any would be wrong.
        if !root.permission.may_read(&call.caller) {
            return Err(Error::new(ErrorCode::AccessDenied, "the caller may not read the bucket's tags").into());
        }
        let tags = of(root.user_metadata());
        if tags.is_empty() {
            let mut missing = S3Error::with_message(errors::code("NoSuchTagSet"), "The TagSet does not exist");
            missing.set_status_code(http::StatusCode::NOT_FOUND);
            return Err(missing.into());
        }
        Ok(S3Response::new(GetBucketTaggingOutput { tag_set: to_document(tags) }))
    }

    pub(super) async fn delete_bucket_tagging(
        &self,
        call: &Call,
        input: DeleteBucketTaggingInput,
    ) -> Answer<DeleteBucketTaggingOutput> {
        self.set_tags(call, input.bucket, String::new(), None).await?;
        Ok(S3Response::new(DeleteBucketTaggingOutput::default()))
    }
}

/// Whether a copy has the tags that its request names, instead of its source's.
///
/// # Errors
/// `invalid_argument` for an unknown directive.
pub(super) fn is_replaced(directive: Option<&str>) -> Result<bool, Error> {
    match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(Error::new(ErrorCode::InvalidArgument, "Unknown tagging directive.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_header(text: &str) -> Result<Option<String>, String> {
        of_header(Some(text)).map_err(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn headers_are_read_as_they_are_kept() {
        assert_eq!(of_header(None).unwrap(), None);
        assert_eq!(read_header(""), Ok(None));
        assert_eq!(read_header("&&"), Ok(None));
        assert_eq!(read_header("a=1&&b"), Ok(Some("a=1&b=".to_owned())));
        assert_eq!(read_header("a=1&b="), Ok(Some("a=1&b=".to_owned())));
        assert_eq!(read_header("b+c=%2F"), Ok(Some("b+c=%2F".to_owned())));
    }

    #[test]
    fn tags_have_the_limits_of_s3() {
        let many = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join("&");
        let long = |key: usize, value: usize| format!("{}={}", "k".repeat(key), "v".repeat(value));
        for good in [many(10), long(128, 256), "a%20b=c+d".to_owned(), "%C3%A9=%E2%82%AC1".replace("%E2%82%AC", "x")] {
            assert!(read_header(&good).is_ok(), "{good}");
        }
        for (bad, code) in [
            (many(11), "BadRequest"),
            (long(129, 1), "InvalidTag"),
            (long(1, 257), "InvalidTag"),
            ("a=1&a=2".to_owned(), "InvalidArgument"),
            ("a%=1".to_owned(), "InvalidArgument"),
            ("a=%ff".to_owned(), "InvalidArgument"),
            ("aws:a=1".to_owned(), "InvalidTag"),
            ("a=%3C".to_owned(), "InvalidTag"),
            ("=1".to_owned(), "InvalidArgument"),
        ] {
            assert_eq!(read_header(&bad), Err(code.to_owned()), "{bad}");
        }
    }
}
