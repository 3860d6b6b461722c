//! Settings of buckets and objects that are not offered, and so are never set: reading one gives the answer that AWS gives
//! where nothing is set, and removing one does nothing. Tools ask for many of them before they do their work. Requests that
//! set one are refused by [`super::operation`].

use http::{HeaderMap, StatusCode};
use quick_xml::escape::escape;
use s3s::{S3Error, S3Response};

use super::{S3Operations, document::Element, errors, xml};

/// The answer about a setting.
enum Unset {
    /// An error with status 404.
    Missing(&'static str, &'static str),
    /// An error with status 400.
    Invalid(&'static str, &'static str),
    /// The root element, and what is in it.
    Document(&'static str, &'static str),
    /// The owner has full control.
    OwnerOnly,
    /// Nothing is there, as demanded.
    Removed,
    /// An access control list that says what holds anyway is accepted, canned or as a document.
    Canned,
}

const NO_LOCK: Unset = Unset::Invalid("InvalidRequest", "Bucket is missing Object Lock Configuration");

fn of(operation: &str) -> Option<Unset> {
    Some(match operation {
        "GetBucketAcl" | "GetObjectAcl" => Unset::OwnerOnly,
        "PutBucketAcl" | "PutObjectAcl" => Unset::Canned,
        "GetBucketAccelerateConfiguration" => Unset::Document("AccelerateConfiguration", ""),
        "GetBucketCors" => Unset::Missing("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
        "GetBucketEncryption" => Unset::Missing(
            "ServerSideEncryptionConfigurationNotFoundError",
            "The server side encryption configuration was not found",
        ),
        "GetBucketLifecycleConfiguration" => {
            Unset::Missing("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist")
        }
        "GetBucketLogging" => Unset::Document("BucketLoggingStatus", ""),
        "GetBucketNotificationConfiguration" => Unset::Document("NotificationConfiguration", ""),
        "GetBucketOwnershipControls" => {
            Unset::Document("OwnershipControls", "<Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule>")
        }
        "GetBucketPolicy" | "GetBucketPolicyStatus" => {
            Unset::Missing("NoSuchBucketPolicy", "The bucket policy does not exist")
        }
        "GetBucketReplication" => {
            Unset::Missing("ReplicationConfigurationNotFoundError", "The replication configuration was not found")
        }
        "GetBucketRequestPayment" => Unset::Document("RequestPaymentConfiguration", "<Payer>BucketOwner</Payer>"),
        "GetBucketWebsite" => {
            Unset::Missing("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration")
        }
        "GetObjectLockConfiguration" => Unset::Missing(
            "ObjectLockConfigurationNotFoundError",
            "Object Lock configuration does not exist for this bucket",
        ),
        "GetPublicAccessBlock" => Unset::Missing(
            "NoSuchPublicAccessBlockConfiguration",
            "The public access block configuration was not found",
        ),
        "GetObjectLegalHold" | "GetObjectRetention" => NO_LOCK,
        "DeleteBucketCors"
        | "DeleteBucketEncryption"
        | "DeleteBucketLifecycle"
        | "DeleteBucketPolicy"
        | "DeleteBucketReplication"
        | "DeleteBucketWebsite"
        | "DeletePublicAccessBlock" => Unset::Removed,
        _ => return None,
    })
}

/// Whether an operation is about a setting that is never set.
pub(super) fn is_unset(operation: &str) -> bool {
    of(operation).is_some()
}

impl S3Operations {
    /// The answer to an operation of which [`is_unset`] holds, about something that exists and has this owner.
    pub(super) fn unset(
        &self,
        operation: &str,
        owner: u32,
        headers: &HeaderMap,
        document: &[Element],
    ) -> Result<S3Response<s3s::Body>, S3Error> {
        let error = |status, code, message: &'static str| {
            let mut error = S3Error::with_message(errors::code(code), message);
            error.set_status_code(status);
            Err(error)
        };
        match of(operation) {
            Some(Unset::Missing(code, message)) => error(StatusCode::NOT_FOUND, code, message),
            Some(Unset::Invalid(code, message)) => error(StatusCode::BAD_REQUEST, code, message),
            Some(Unset::Document(root, inner)) => Ok(answer(root, inner)),
            Some(Unset::OwnerOnly) => {
                let name = escape(&*self.owner_name);
                let owner = format!("<ID>{owner}</ID><DisplayName>{name}</DisplayName>");
                let grantee = "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"";
                let grant =
                    format!("<Grant><Grantee {grantee}>{owner}</Grantee><Permission>FULL_CONTROL</Permission></Grant>");
                let list = format!("<Owner>{owner}</Owner><AccessControlList>{grant}</AccessControlList>");
                Ok(answer("AccessControlPolicy", &list))
            }
            Some(Unset::Removed) => Ok(S3Response::with_status(s3s::Body::empty(), StatusCode::NO_CONTENT)),
            Some(Unset::Canned) if !headers.contains_key("x-amz-acl") && !says_owner_only(document, owner) => {
                error(StatusCode::BAD_REQUEST, "AccessControlListNotSupported", "The bucket does not allow ACLs")
            }
            Some(Unset::Canned) | None => Ok(S3Response::with_status(s3s::Body::empty(), StatusCode::OK)),
        }
    }
}

/// Whether a document gives the owner full control, and nobody else anything.
fn says_owner_only(document: &[Element], owner: u32) -> bool {
    let texts = |end: &'static str| {
        document.iter().filter(move |element| element.path.ends_with(end)).map(|element| element.text.trim())
    };
    let owner = owner.to_string();
    texts("/Permission").next().is_some()
        && texts("/Permission").all(|permission| permission == "FULL_CONTROL")
        && texts("/ID").all(|id| id == owner)
        && texts("/Grantee/ID").count() == texts("/Grant").count()
}

fn answer(root: &str, inner: &str) -> S3Response<s3s::Body> {
    xml::document(StatusCode::OK, root, inner)
}
