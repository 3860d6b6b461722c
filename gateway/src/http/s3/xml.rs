//! Documents that are written here, because `s3s` does not know the operation or not all of its elements.

use http::{HeaderValue, StatusCode, header};
use s3s::S3Response;

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// An answer with a document; `inner` is what the root element holds.
pub(super) fn document(status: StatusCode, root: &str, inner: &str) -> S3Response<s3s::Body> {
    let text = format!("{DECLARATION}<{root} xmlns=\"{NAMESPACE}\">{inner}</{root}>");
    let mut answer = S3Response::with_status(s3s::Body::from(text), status);
    answer.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    answer
}
