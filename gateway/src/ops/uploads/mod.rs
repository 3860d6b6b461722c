//! Multipart uploads. An upload is a row under its own id. Its parts are bytes that are already stored, and completing
//! it copies no bytes: the object's row names the upload as its manifest (P53). Any gateway can continue any upload.

mod complete;
mod list;
mod parts;
mod sweep;

use mantle_types::{Error, ErrorCode, NamespaceId, Result, name::Path, permission::Access};
use serde_json::Value;

pub(super) use self::sweep::sweep;
pub use self::{
    complete::{ChosenPart, Complete, CompleteError, Completed, PARTS_MAX},
    list::{ListedUpload, UploadsQuery},
    parts::PartSource,
};
use super::{
    locate::{Purpose, Reached},
    put_object::object_path,
};
use crate::{
    app::{Call, Gateway},
    data::{Algorithm, ChecksumKind},
    store::{NewUpload, Upload, UploadId, UploadState},
};

/// What a client says when it begins an upload.
#[derive(Clone, Debug)]
pub struct Begin {
    pub content_type: Option<String>,
    pub user_metadata: Option<Value>,
    /// `None`: the client does not care.
    pub algorithm: Option<Algorithm>,
    pub kind: ChecksumKind,
}

fn no_such_upload() -> Error {
    let why = "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been aborted \
               or completed.";
    Error::new(ErrorCode::NoSuchUpload, why)
}

/// The upload that a client names.
fn upload_id(text: &str) -> Result<UploadId> {
    let id = i64::from_str_radix(text, 16).ok().map(UploadId);
    id.filter(|id| id.0 > 0 && name_of(*id) == text).ok_or_else(no_such_upload)
}

/// An upload as clients name it.
fn name_of(id: UploadId) -> String {
    format!("{:016x}", id.0)
}

/// The checksum that an upload keeps of each part, and how they make that of the object.
pub(super) fn checksum_of(upload: &Upload) -> Result<(Algorithm, ChecksumKind)> {
    let algorithm = upload.checksum_algorithm.as_deref().map_or(Some(Algorithm::Crc64Nvme), Algorithm::named);
    let kind = ChecksumKind::named(&upload.checksum_type);
    algorithm.zip(kind).ok_or_else(|| {
        tracing::error!(?upload, "the checksum of an upload is not known");
        ErrorCode::Internal.into()
    })
}

impl Gateway {
    /// Begins an upload; answers its name.
    pub async fn create_upload(&self, call: &Call, namespace: &str, key: &str, begin: &Begin) -> Result<String> {
        let path = object_path(key)?;
        let Some((name, parents)) = path.split_last() else { return Err(ErrorCode::InvalidArgument.into()) };
        let reached = self.search(&call.caller, namespace, parents, Purpose::Lookup).await?;
        self.refuse_object(&reached, parents).await?;
        let (Reached::All(directory) | Reached::Part { deepest: directory, .. }) = reached;
        match reached {
            Reached::All(_) => self.check_put(call, &directory, name).await?,
            Reached::Part { .. } => directory.check_change(&call.caller)?,
        }
        let permission = call.permission(0);
        let new = NewUpload {
            ns: directory.ns,
            key,
            owner: permission.owner,
            group: permission.group,
            content_type: begin.content_type.as_deref(),
            user_metadata: begin.user_metadata.as_ref(),
            checksum_algorithm: begin.algorithm.map(Algorithm::name),
            checksum_type: begin.kind.name(),
        };
        let (code, written) = self.with_new_id(|id| self.store.create_upload(id, &new)).await?;
        match code {
            None => Ok(name_of(written.id.into())),
            Some(code) => Err(code.into()),
        }
    }

    /// An upload that is not done, for its owner, the namespace's, or uid 0.
    pub async fn unfinished_upload(&self, call: &Call, namespace: &str, key: &str, name: &str) -> Result<Upload> {
        let upload = self.upload(call, namespace, key, name).await?;
        if upload.state == UploadState::Done { Err(no_such_upload()) } else { Ok(upload) }
    }

    /// The same in any state.
    async fn upload(&self, call: &Call, namespace: &str, key: &str, name: &str) -> Result<Upload> {
        let ns = self.namespace_of_upload(call, namespace, &Path::parse(key)?).await?;
        let upload = self.store.upload(ns, upload_id(name)?).await?;
        let upload = upload.filter(|upload| upload.key == key).ok_or_else(no_such_upload)?;
        if upload.attempt.principal != call.caller.uid && !self.sees_all_uploads(call, namespace).await? {
            return Err(Error::new(ErrorCode::AccessDenied, "the upload belongs to another caller"));
        }
        Ok(upload)
    }

    /// The namespace of an upload to a key. An error if the caller may not search a directory on the way. So nothing is
    /// revealed of uploads below a closed directory, and none continues there. Callers who see all uploads find them
    /// anyway.
    async fn namespace_of_upload(&self, call: &Call, namespace: &str, key: &Path<'_>) -> Result<NamespaceId> {
        let parents = key.split_last().map(|(_, parents)| parents).unwrap_or_default();
        let reached = self.search(&call.caller, namespace, parents, Purpose::Lookup).await;
        let searched = reached.and_then(|reached| {
            let (Reached::All(directory) | Reached::Part { deepest: directory, .. }) = reached;
            directory.check(&call.caller, Access::Search).map(|()| directory.ns)
        });
        match searched {
            Err(refusal) if refusal.code() == ErrorCode::AccessDenied => {
                match self.sees_all_uploads(call, namespace).await? {
                    true => Ok(self.locate(&call.caller, namespace, &[], Purpose::Lookup).await?.ns),
                    false => Err(refusal),
                }
            }
            other => other,
        }
    }

    async fn sees_all_uploads(&self, call: &Call, namespace: &str) -> Result<bool> {
        if call.caller.uid == 0 {
            return Ok(true);
        }
        let namespace = self.store.namespace(namespace).await?;
        Ok(namespace.is_some_and(|namespace| namespace.owner == call.caller.uid))
    }

    /// Ends an upload without an object.
    pub async fn abort_upload(&self, call: &Call, namespace: &str, key: &str, name: &str) -> Result<()> {
        let upload = self.unfinished_upload(call, namespace, key, name).await?;
        self.end_upload(Some(&call.caller), upload.attempt, upload.state).await
    }

    async fn delete_all(&self, locators: Vec<String>) {
        for locator in locators {
            self.data.delete(&locator).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_uploads_are_read_back() {
        assert_eq!(upload_id(&name_of(UploadId(1030))), Ok(UploadId(1030)));
        for bad in [
            "",
            "406",
            "000000000000040g",
            "-000000000000406",
            "ffffffffffffffff",
            "0000000000000000",
            "+000000000000406",
        ] {
            assert_eq!(upload_id(bad).map_err(|e| e.code()), Err(ErrorCode::NoSuchUpload), "{bad}");
        }
    }
}
