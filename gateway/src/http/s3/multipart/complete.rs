//! CompleteMultipartUpload. Its checksum headers are the object's, not the document's.

use http::{HeaderMap, HeaderName, StatusCode};
use quick_xml::escape::escape;
use s3s::{S3Error, S3Response, s3_error};

use super::{
    super::{
        S3Operations, checksums,
        conditions::Conditions,
        document::Element,
        errors::{Refusal, bad_request},
        xml,
    },
    parts::check_number,
};
use crate::{
    app::Call,
    data::{Algorithm, Checksum, ChecksumKind, Mismatch},
    http::header_text,
    ops::uploads::{ChosenPart, Complete, CompleteError, Completed},
};

const TYPE: &str = "x-amz-checksum-type";
const SIZE: HeaderName = HeaderName::from_static("x-amz-mp-object-size");
const PART: &str = "CompleteMultipartUpload/Part";

/// The upload that a request is about.
pub(in crate::http::s3) struct Target {
    pub bucket: String,
    pub key: String,
    pub upload: String,
}

fn malformed(why: &str) -> S3Error {
    s3_error!(
        MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema: {why}"
    )
}

/// The parts that a document names.
pub(in crate::http::s3) fn parts(elements: &[Element]) -> Result<Vec<ChosenPart>, Refusal> {
    let mut chosen: Vec<ChosenPart> = Vec::new();
    let (mut number, mut etag, mut checksum) = (None, None, None);
    for Element { path, text } in elements {
        let field = path.strip_prefix(PART).map(|field| field.trim_start_matches('/'));
        match field {
            Some("PartNumber") => number = Some(text.trim().parse::<i32>().map_err(|_| malformed("PartNumber"))?),
            Some("ETag") => etag = Some(text.trim().trim_matches('"').to_owned()),
            Some("") => {
                let part = match (number.take(), etag.take()) {
                    (Some(number), Some(etag)) => {
                        ChosenPart { number: check_number(number)?, etag, checksum: checksum.take() }
                    }
                    _ => return Err(malformed("a part needs PartNumber and ETag").into()),
                };
                if chosen.last().is_some_and(|last| last.number >= part.number) {
                    let message = "The list of parts was not in ascending order. The parts list must be specified in order by \
                                   part number.";
                    return Err(bad_request("InvalidPartOrder", message).into());
                }
                chosen.push(part);
            }
            Some(field) => {
                let algorithm = field.strip_prefix("Checksum").and_then(Algorithm::named);
                let given = algorithm.map(|algorithm| (algorithm, text.trim().to_owned()));
                let is_bad = given.as_ref().is_some_and(|(algorithm, value)| !algorithm.is_digest(value));
                if is_bad || checksum.is_some() {
                    let message = "Invalid Base64 or multiple checksums present in request";
                    return Err(bad_request("InvalidArgument", message).into());
                }
                checksum = given;
            }
            None => {}
        }
    }
    if chosen.is_empty() {
        return Err(malformed("it names no part").into());
    }
    Ok(chosen)
}

/// What a request expects of the object.
fn wanted(headers: &HeaderMap, conditions: &Conditions, elements: &[Element]) -> Result<Complete, Refusal> {
    let parts = parts(elements)?;
    let kind = header_text(headers, TYPE).map(|text| {
        let message = "Value for x-amz-checksum-type header is invalid.";
        ChecksumKind::named(text.trim()).ok_or_else(|| bad_request("InvalidRequest", message))
    });
    let size = header_text(headers, SIZE).map(|text| {
        let message = "Value for x-amz-mp-object-size header is invalid.";
        text.trim().parse::<u64>().map_err(|_| bad_request("InvalidRequest", message))
    });
    let checksum = checksums::of_object(headers)?;
    if let Some((algorithm, _)) = checksum.as_ref().filter(|(algorithm, value)| !algorithm.is_digest_of_parts(value)) {
        return Err(checksums::failure(Mismatch::Malformed(algorithm.name())).into());
    }
    Ok(Complete {
        parts,
        precondition: conditions.of_put()?,
        size: size.transpose()?,
        checksum,
        kind: kind.transpose()?,
    })
}

fn refusal(error: CompleteError) -> Refusal {
    match error {
        CompleteError::Mantle(error) => error.into(),
        CompleteError::PartTooSmall => {
            bad_request("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size").into()
        }
        CompleteError::WrongChecksum(algorithm) => checksums::failure(Mismatch::Wrong(algorithm.name())).into(),
        CompleteError::PartChecksum { number, algorithm } => {
            let name = algorithm.name();
            s3_error!(BadDigest, "The {name} you specified for part {number} did not match what we received.").into()
        }
        CompleteError::Size { wanted, computed } => {
            let message = format!(
                "The provided 'x-amz-mp-object-size' header value {wanted} does not match what was computed: {computed}"
            );
            bad_request("InvalidRequest", message).into()
        }
        CompleteError::Kind(kind) => {
            let message = format!(
                "The upload was created using the {} checksum mode. The complete request must use the same checksum mode.",
                kind.name()
            );
            bad_request("InvalidRequest", message).into()
        }
        CompleteError::OtherAlgorithm(algorithm) => {
            bad_request("InvalidRequest", format!("The upload has a checksum of {}.", algorithm.name())).into()
        }
    }
}

impl S3Operations {
    pub(in crate::http::s3) async fn complete_multipart_upload(
        &self,
        call: Call,
        target: Target,
        headers: &HeaderMap,
        conditions: &Conditions,
        elements: &[Element],
    ) -> Result<S3Response<s3s::Body>, Refusal> {
        let wanted = wanted(headers, conditions, elements)?;
        let Target { bucket, key, upload } = target;
        let (in_bucket, at_key) = (bucket.clone(), key.clone());
        let completed = self.mutate(&call, |gateway, call| async move {
            gateway.complete_upload(&call, &in_bucket, &at_key, &upload, &wanted).await
        });
        let Completed { etag, checksum } = completed.await.map_err(refusal)?;
        Ok(answer(&bucket, &key, &etag, &checksum))
    }
}

fn answer(bucket: &str, key: &str, etag: &str, checksum: &Checksum) -> S3Response<s3s::Body> {
    let location = format!("/{bucket}/{}", crate::http::percent::encode(key));
    let name = checksum.algorithm.name().to_ascii_uppercase();
    let kind = ChecksumKind::of(&checksum.value).name();
    let inner = format!(
        "<Location>{}</Location><Bucket>{}</Bucket><Key>{}</Key><ETag>&quot;{etag}&quot;</ETag>\
         <Checksum{name}>{}</Checksum{name}><ChecksumType>{kind}</ChecksumType>",
        escape(&location),
        escape(bucket),
        escape(key),
        checksum.value,
    );
    xml::document(StatusCode::OK, "CompleteMultipartUploadResult", &inner)
}

#[cfg(test)]
mod tests {
    use super::{super::super::document, *};

    fn read(document: &str) -> Result<Vec<(i32, String)>, String> {
        let elements =
            document::elements(document.as_bytes(), document::COMPLETE).map_err(|e| e.code().as_str().to_owned())?;
        let parts = parts(&elements).map_err(|refusal| match refusal {
            Refusal::Mantle(error) => error.code().row().s3.to_owned(),
            Refusal::S3(error) => error.code().as_str().to_owned(),
        })?;
        Ok(parts.into_iter().map(|part| (part.number, part.etag)).collect())
    }

    fn list(parts: &[(&str, &str)]) -> String {
        let parts = parts
            .iter()
            .map(|(number, etag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
        format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", parts.collect::<String>())
    }

    #[test]
    fn a_list_of_parts_is_read() {
        let parts = list(&[("1", "&quot;a&quot;"), ("3", "b")]);
        assert_eq!(read(&parts), Ok(vec![(1, "a".to_owned()), (3, "b".to_owned())]));
        let with_checksum = "<CompleteMultipartUpload><Part><ETag>a</ETag><ChecksumXXHASH3>LQaABTjTlMI=</ChecksumXXHASH3>\
                             <PartNumber>1</PartNumber></Part></CompleteMultipartUpload>";
        assert_eq!(read(with_checksum), Ok(vec![(1, "a".to_owned())]));
        for (bad, code) in [
            (list(&[]), "MalformedXML"),
            (String::new(), "MalformedXML"),
            (list(&[("2", "a"), ("1", "b")]), "InvalidPartOrder"),
            (list(&[("1", "a"), ("1", "a")]), "InvalidPartOrder"),
            (list(&[("0", "a")]), "InvalidArgument"),
            (with_checksum.replace("LQaABTjTlMI=", "AA=="), "InvalidArgument"),
            (with_checksum.replace("</ETag>", "</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32>"), "InvalidArgument"),
            (list(&[("10001", "a")]), "InvalidArgument"),
            (list(&[("x", "a")]), "MalformedXML"),
            (
                "<CompleteMultipartUpload><Part><ETag>a</ETag></Part></CompleteMultipartUpload>".to_owned(),
                "MalformedXML",
            ),
            ("<CompleteMultipartUpload><Part><New/></Part></CompleteMultipartUpload>".to_owned(), "MalformedXML"),
        ] {
            assert_eq!(read(&bad), Err(code.to_owned()), "{bad}");
        }
    }
}
