//! Headers that a presigned URL carries in its query, where some SDKs put all `x-amz-*` headers. `s3s` reads them as
//! headers only.

use http::{HeaderName, HeaderValue, request::Parts};
use s3s::S3Error;

use super::{authentication::PRESIGNED, errors::bad_request};

/// Adds the `x-amz-*` parameters to the headers. The signature covers the query, and `s3s` verifies only headers that are
/// named as signed, so more headers do not break it.
///
/// # Errors
/// `InvalidArgument` if a parameter cannot be a header, or a header says otherwise.
pub(super) fn add_headers(parts: &mut Parts) -> Result<(), S3Error> {
    let query = parts.uri.query().unwrap_or_default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let name = name.to_ascii_lowercase();
        if !name.starts_with("x-amz-") || PRESIGNED.iter().any(|known| known.eq_ignore_ascii_case(&name)) {
            continue;
        }
        let bad = |why: &str| bad_request("InvalidArgument", format!("the parameter `{name}` {why}"));
        let header = HeaderName::try_from(&name).map_err(|_| bad("is not the name of a header"))?;
        let value = HeaderValue::try_from(value.as_ref()).map_err(|_| bad("has a value that no header can have"))?;
        if parts.headers.get(&header).is_some_and(|given| *given != value) {
            return Err(bad("contradicts the header"));
        }
        parts.headers.insert(header, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn added(target: &str, header: Option<&str>) -> Result<Vec<(String, String)>, String> {
        let mut request = Request::builder().uri(target);
        if let Some(value) = header {
            request = request.header("x-amz-acl", value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        add_headers(&mut parts).map_err(|error| error.code().as_str().to_owned())?;
        Ok(parts.headers.iter().map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned())).collect())
    }

    #[test]
    fn parameters_become_headers() {
        let acl = |value: &str| Ok(vec![("x-amz-acl".to_owned(), value.to_owned())]);
        assert_eq!(added("/b/k?X-Amz-Signature=1&X-Amz-Date=2&x-id=PutObject&prefix=p", None), Ok(vec![]));
        assert_eq!(added("/b/k?X-Amz-Acl=private", None), acl("private"));
        assert_eq!(added("/b/k?x-amz-acl=private", Some("private")), acl("private"));
        assert_eq!(added("/b/k?x-amz-acl=private", Some("public-read")), Err("InvalidArgument".to_owned()));
        assert_eq!(added("/b/k?x-amz-acl=a%0Ab", None), Err("InvalidArgument".to_owned()));
        assert_eq!(added("/b/k?x-amz-a%20b=1", None), Err("InvalidArgument".to_owned()));
    }
}
