//! Metadata that S3 stores with an object. `x-amz-meta-*` headers are user metadata under their names. The standard
//! headers that S3 stores (Cache-Control, …) are user metadata too, under names that begin with a colon, which no
//! header's name can.

use mantle_types::limits::USER_METADATA_BYTES_MAX;
use s3s::S3Error;
use s3s::dto::{HeadObjectOutput, Metadata, PutObjectInput, Timestamp, TimestampFormat};
use serde_json::{Map, Value};

use super::{errors::bad_request, tagging};
use crate::ops::copy_object::TAGGING;

pub(super) const CACHE_CONTROL: &str = ":cache-control";
const CONTENT_DISPOSITION: &str = ":content-disposition";
const CONTENT_ENCODING: &str = ":content-encoding";
const CONTENT_LANGUAGE: &str = ":content-language";
pub(super) const EXPIRES: &str = ":expires";
/// Encoding of the upload's framing, not of the object.
const FRAMING: &str = "aws-chunked";

/// The metadata of a PutObject; `None` if it has none.
///
/// # Errors
/// `MetadataTooLarge`; those of [`tagging::of_header`].
pub(super) fn of_put(input: &PutObjectInput) -> Result<Option<Value>, S3Error> {
    let user = input.metadata.iter().flatten();
    let bytes: usize = user.clone().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > USER_METADATA_BYTES_MAX {
        let message = "Your metadata headers exceed the maximum allowed metadata size";
        return Err(bad_request("MetadataTooLarge", message));
    }
    let mut map: Map<_, _> = user.map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
    let encoding = input.content_encoding.as_deref().map(|value| {
        let is_kept = |part: &&str| !part.trim().is_empty() && !part.trim().eq_ignore_ascii_case(FRAMING);
        value.split(',').filter(is_kept).collect::<Vec<_>>().join(",").trim().to_owned()
    });
    let standard = [
        (CACHE_CONTROL, input.cache_control.clone()),
        (CONTENT_DISPOSITION, input.content_disposition.clone()),
        (CONTENT_ENCODING, encoding.filter(|value| !value.is_empty())),
        (CONTENT_LANGUAGE, input.content_language.clone()),
        (EXPIRES, input.expires.as_ref().and_then(http_date)),
        (TAGGING, tagging::of_header(input.tagging.as_deref())?),
    ];
    for (name, value) in standard {
        map.extend(value.map(|value| (name.to_owned(), Value::String(value))));
    }
    Ok((!map.is_empty()).then_some(Value::Object(map)))
}

fn http_date(time: &Timestamp) -> Option<String> {
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// One of the standard headers that are kept with an object.
pub(super) fn standard(kept: Option<&Value>, name: &str) -> Option<String> {
    kept?.get(name)?.as_str().map(str::to_owned)
}

pub(super) fn add_to(output: &mut HeadObjectOutput, kept: Option<&Value>) {
    let Some(Value::Object(map)) = kept else { return };
    let text = |name: &str| map.get(name).and_then(Value::as_str).map(str::to_owned);
    output.cache_control = text(CACHE_CONTROL);
    output.content_disposition = text(CONTENT_DISPOSITION);
    output.content_encoding = text(CONTENT_ENCODING);
    output.content_language = text(CONTENT_LANGUAGE);
    output.expires = text(EXPIRES).and_then(|value| Timestamp::parse(TimestampFormat::HttpDate, &value).ok());
    let user: Metadata = map
        .iter()
        .filter(|(name, _)| !name.starts_with(':'))
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect();
    output.metadata = (!user.is_empty()).then_some(user);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_metadata_comes_back_without_the_framing() {
        let input = PutObjectInput {
            metadata: Some(Metadata::from([("colour".to_owned(), "blå".to_owned())])),
            content_encoding: Some("aws-chunked, deflate, gzip".to_owned()),
            cache_control: Some("no-store".to_owned()),
            ..PutObjectInput::default()
        };
        let mut output = HeadObjectOutput::default();
        add_to(&mut output, of_put(&input).unwrap().as_ref());
        assert_eq!(output.metadata, input.metadata);
        assert_eq!(output.content_encoding.as_deref(), Some("deflate, gzip"));
        assert_eq!(output.cache_control.as_deref(), Some("no-store"));
        let framed = PutObjectInput { content_encoding: Some(FRAMING.to_owned()), ..PutObjectInput::default() };
        assert_eq!(of_put(&framed).unwrap(), None);
    }
}
