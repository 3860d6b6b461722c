//! ListObjectsV2 as nearly all clients send it. As with [`plain`](super::plain) reads, the request is not read a second time
//! by `s3s`, which would fill a structure for each key and write each element in three steps.
//! [`listing`](super::listing) decides what an answer contains. This module only writes it, as `s3s` would write it. A
//! test compares both.

use chrono::{DateTime, Datelike, Timelike, Utc};
use http::{HeaderName, HeaderValue, StatusCode, header};
use quick_xml::escape::escape;
use s3s::{
    S3Request, S3Response,
    dto::{EncodingType, ListObjectsV2Input, ListObjectsV2Output, Owner},
};

use super::{
    S3Operations,
    errors::Refusal,
    listing::{ListedV2, checksum},
    operation::{self, Operation},
};
use crate::{app::Call, listing::Item, store::Entry};

/// Parameters of a listing that come as headers, which `s3s` reads.
const IN_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-amz-optional-object-attributes"), HeaderName::from_static("x-amz-request-payer")];
const BEGIN: &str =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
const END: &str = "</ListBucketResult>";
/// About the bytes of a key in the document without the key.
const KEY_BYTES: usize = 320;

/// The input of a listing; `None` if `s3s` has to read the request, or to refuse it.
pub(super) fn plain(operation: &Operation, request: &S3Request<s3s::Body>) -> Option<ListObjectsV2Input> {
    if operation.name != "ListObjectsV2" || IN_HEADERS.into_iter().any(|name| request.headers.contains_key(name)) {
        return None;
    }
    let (bucket, _) = operation::target(&request.uri, request.extensions.get());
    if bucket.is_empty() || bucket.contains(['\0', char::REPLACEMENT_CHARACTER]) {
        return None;
    }
    let mut input = ListObjectsV2Input { bucket, ..ListObjectsV2Input::default() };
    for (name, value) in form_urlencoded::parse(request.uri.query()?.as_bytes()) {
        match &*name {
            "prefix" => input.prefix = Some(value.into_owned()),
            "delimiter" => input.delimiter = Some(value.into_owned()),
            "max-keys" => input.max_keys = Some(value.parse().ok()?),
            "encoding-type" => input.encoding_type = Some(EncodingType::from(value.into_owned())),
            "continuation-token" => input.continuation_token = Some(value.into_owned()),
            "start-after" => input.start_after = Some(value.into_owned()),
            "fetch-owner" => input.fetch_owner = Some(value.parse().ok()?),
            // The others say nothing of the page.
            _ => {}
        }
    }
    Some(input)
}

impl S3Operations {
    pub(super) async fn list_plain(
        &self,
        call: &Call,
        input: ListObjectsV2Input,
    ) -> Result<S3Response<s3s::Body>, Refusal> {
        let listed = self.listed_v2(call, input).await?;
        let text = written(&listed, |uid| self.owner(uid));
        let mut answer = S3Response::with_status(s3s::Body::from(text), StatusCode::OK);
        answer.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        Ok(answer)
    }
}

/// A document that is written.
struct Document(String);

impl Document {
    fn element(&mut self, name: &str, text: &str) {
        self.plain_element(name, &escape(text));
    }

    fn some(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.element(name, text);
        }
    }

    /// An element whose text has nothing to escape.
    fn plain_element(&mut self, name: &str, text: &str) {
        self.within(name, |document| document.0.push_str(text));
    }

    fn number(&mut self, name: &str, number: Option<i64>) {
        if let Some(number) = number {
            self.within(name, |document| document.0.push_str(&number.to_string()));
        }
    }

    fn flag(&mut self, name: &str, flag: Option<bool>) {
        if let Some(flag) = flag {
            self.plain_element(name, if flag { "true" } else { "false" });
        }
    }

    fn within(&mut self, name: &str, inner: impl FnOnce(&mut Self)) {
        self.0.extend(["<", name, ">"]);
        inner(self);
        self.0.extend(["</", name, ">"]);
    }

    /// A number with this many digits.
    fn digits(&mut self, number: u32, count: u32) {
        for place in (0..count).rev() {
            self.0.push(char::from(b'0' + (number / 10_u32.pow(place) % 10) as u8));
        }
    }

    /// In whole seconds, like the times in every answer.
    fn time(&mut self, time: DateTime<Utc>) {
        let parts = [
            (time.year().unsigned_abs(), 4, "-"),
            (time.month(), 2, "-"),
            (time.day(), 2, "T"),
            (time.hour(), 2, ":"),
            (time.minute(), 2, ":"),
            (time.second(), 2, ".000Z"),
        ];
        for (number, count, end) in parts {
            self.digits(number, count);
            self.0.push_str(end);
        }
    }

    fn contents(&mut self, key: &str, entry: &Entry, owner: Option<Owner>) {
        if let Some((algorithm, kind)) = checksum(entry) {
            self.within("ChecksumAlgorithm", |document| {
                document.0.extend(algorithm.name().chars().map(|c| c.to_ascii_uppercase()));
            });
            self.plain_element("ChecksumType", kind.name());
        }
        if let Some(md5) = entry.md5() {
            self.within("ETag", |document| document.0.extend(["\"", md5, "\""]));
        }
        self.element("Key", key);
        self.within("LastModified", |document| document.time(entry.last_modified().unwrap_or_default()));
        if let Some(owner) = owner {
            self.within("Owner", |document| {
                document.some("DisplayName", owner.display_name.as_deref());
                document.some("ID", owner.id.as_deref());
            });
        }
        self.number("Size", Some(entry.length() as i64));
        self.plain_element("StorageClass", "STANDARD");
    }
}

/// The document of a page.
fn written(listed: &ListedV2, owner: impl Fn(u32) -> Owner) -> String {
    let ListedV2 { head, items, encoding, with_owner } = listed;
    let keys: usize = items.iter().map(|item| KEY_BYTES + item.key().len()).sum();
    let mut document = Document(String::with_capacity(BEGIN.len() + keys + KEY_BYTES));
    document.0.push_str(BEGIN);
    begin(&mut document, head);
    for item in items {
        if let Item::Key(key, entry) = item {
            let owner = with_owner.then(|| owner(entry.permission.owner));
            document.within("Contents", |document| document.contents(&encoding.written(key), entry, owner));
        }
    }
    for item in items {
        if let Item::Prefix(common) = item {
            let common = encoding.written(common);
            document.within("CommonPrefixes", |document| document.element("Prefix", &common));
        }
    }
    document.some("Delimiter", head.delimiter.as_deref());
    document.some("EncodingType", head.encoding_type.as_ref().map(EncodingType::as_str));
    document.some("StartAfter", head.start_after.as_deref());
    document.0.push_str(END);
    document.0
}

/// What comes before the keys.
fn begin(document: &mut Document, head: &ListObjectsV2Output) {
    document.some("Name", head.name.as_deref());
    document.some("Prefix", head.prefix.as_deref());
    document.number("MaxKeys", head.max_keys.map(i64::from));
    document.number("KeyCount", head.key_count.map(i64::from));
    document.some("ContinuationToken", head.continuation_token.as_deref());
    document.flag("IsTruncated", head.is_truncated);
    document.some("NextContinuationToken", head.next_continuation_token.as_deref());
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::executor::block_on;
    use http::{HeaderMap, Method, Uri};
    use mantle_types::{EntryId, Permission};
    use proptest::prelude::*;
    use s3s::{S3, S3Result, service::S3ServiceBuilder};
    use tokio_postgres::types::{FromSql, Type};

    use super::*;
    use crate::{http::s3::listing::KeyEncoding, store::Metadata};

    /// Answers every listing so, and keeps its input.
    #[derive(Default)]
    struct Fixed {
        output: ListObjectsV2Output,
        input: std::sync::Arc<Mutex<Option<ListObjectsV2Input>>>,
    }

    #[async_trait::async_trait]
    impl S3 for Fixed {
        async fn list_objects_v2(
            &self,
            request: S3Request<ListObjectsV2Input>,
        ) -> S3Result<S3Response<ListObjectsV2Output>> {
            *self.input.lock().unwrap() = Some(request.input);
            Ok(S3Response::new(self.output.clone()))
        }
    }

    fn answer(fixed: Fixed, target: &str) -> http::Response<s3s::Body> {
        let request = http::Request::get(format!("http://localhost{target}")).body(s3s::Body::empty()).unwrap();
        block_on(S3ServiceBuilder::new(fixed).build().call(request)).unwrap()
    }

    fn text() -> impl Strategy<Value = String> {
        prop::string::string_regex("[a<>&'\"\t\n /%+\u{e9}\u{10ffff}-]{0,8}").unwrap()
    }

    fn item() -> impl Strategy<Value = Item> {
        let documents = [
            None,
            Some("{}"),
            Some("{\":checksum-crc64nvme\": \"AAAAAAAAAAA=\"}"),
            Some("{\"a\": \"b\", \":checksum-sha256\": \"AAAA-3\"}"),
        ];
        let etag = prop::option::of("[0-9a-f]{32}(-[1-9])?");
        let times = prop::option::of(0_i64..5_000_000_000_000);
        let some = (etag, times, prop::sample::select(documents.to_vec()), any::<u32>());
        (text(), 0..3, some, any::<bool>()).prop_map(|(key, kind, (etag, millis, document, number), is_closed)| {
            if kind == 0 {
                return Item::Prefix(key);
            }
            let raw = document.map(|document| [&[1_u8][..], document.as_bytes()].concat());
            let entry = Entry {
                name: if kind == 1 { "d/".to_owned() } else { "o".to_owned() },
                id: EntryId(7),
                permission: Permission { owner: number, group: 0, mode: 0 },
                version: 1,
                explicit: kind == 1,
                size: u64::from(number) << 8,
                synthetic: false,
                etag,
                content_type: None,
                metadata: raw.map(|raw| Metadata::from_sql(&Type::JSONB, &raw).unwrap()),
                locator: None,
                created: millis.and_then(DateTime::from_timestamp_millis),
                modified: None,
                is_closed,
                inline: None,
            };
            Item::Key(key, Box::new(entry))
        })
    }

    fn owner(uid: u32) -> Owner {
        Owner { display_name: Some("a & b".to_owned()), id: Some(uid.to_string()) }
    }

    proptest! {
        #[test]
        fn documents_are_written_as_s3s_writes_them(
            items in prop::collection::vec(item(), 0..5),
            texts in prop::array::uniform6(prop::option::of(text())),
            is_encoded: bool,
            with_owner: bool,
            number: i32,
        ) {
            let [name, prefix, delimiter, token, next, after] = texts;
            let encoding_type = is_encoded.then(|| EncodingType::from_static(EncodingType::URL));
            let encoding = KeyEncoding::of(encoding_type.as_ref()).unwrap();
            let head = ListObjectsV2Output {
                name,
                prefix,
                delimiter,
                max_keys: Some(number),
                key_count: Some(items.len() as i32),
                is_truncated: Some(next.is_some()),
                next_continuation_token: next,
                continuation_token: token,
                start_after: after,
                encoding_type,
                ..ListObjectsV2Output::default()
            };
            let listed = ListedV2 { head, items, encoding, with_owner };
            let ours = written(&listed, owner);
            let theirs = answer(Fixed { output: listed.output(owner), ..Fixed::default() }, "/bucket?list-type=2");
            prop_assert_eq!(theirs.headers().get(header::CONTENT_TYPE).unwrap(), "application/xml");
            prop_assert_eq!(ours.as_bytes(), &*theirs.body().bytes().unwrap());
        }
    }

    fn read(target: &str, headers: HeaderMap) -> Option<ListObjectsV2Input> {
        let uri: Uri = target.parse().unwrap();
        let operation = operation::check(&Method::GET, &uri, &headers, false).unwrap();
        let request = S3Request {
            input: s3s::Body::empty(),
            method: Method::GET,
            uri,
            headers,
            extensions: http::Extensions::new(),
            credentials: None,
            region: None,
            service: None,
            trailing_headers: None,
        };
        plain(operation, &request)
    }

    #[test]
    fn requests_are_read_as_s3s_reads_them() {
        for target in [
            "/bucket?list-type=2",
            "/bucket/?list-type=2&prefix=&delimiter=%2F&max-keys=0",
            "/bucket?list-type=2&prefix=a+b%2Bc%C3%A9%ff&x-id=ListObjectsV2&start-after=%26",
            "/bucket?fetch-owner=true&list-type=2&continuation-token=a%3D&encoding-type=url&max-keys=-1",
            "/bucket?list-type=2&encoding-type=other&fetch-owner=false&delimiter=ab&max-keys=2147483647",
        ] {
            let fixed = Fixed::default();
            let input = fixed.input.clone();
            assert_eq!(answer(fixed, target).status(), StatusCode::OK, "{target}");
            assert_eq!(read(target, HeaderMap::new()), input.lock().unwrap().take(), "{target}");
        }
    }

    #[test]
    fn what_s3s_refuses_is_left_to_it() {
        for target in
            ["/bucket?list-type=2&max-keys=a", "/bucket?list-type=2&max-keys=", "/bucket?list-type=2&fetch-owner=1"]
        {
            assert_eq!(read(target, HeaderMap::new()), None, "{target}");
            assert_ne!(answer(Fixed::default(), target).status(), StatusCode::OK, "{target}");
        }
        for target in ["/b", "/b?versions", "/b/k", "/?x-id=ListBuckets", "/b%00?list-type=2", "/b%ff?list-type=2"] {
            assert_eq!(read(target, HeaderMap::new()), None, "{target}");
        }
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("x-amz-optional-object-attributes"),
            HeaderValue::from_static("RestoreStatus"),
        )]);
        assert_eq!(read("/b?list-type=2", headers), None);
    }
}
