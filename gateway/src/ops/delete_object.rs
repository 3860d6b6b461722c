//! delete_object: removes the metadata first, then the bytes, so that no metadata name bytes that are gone.

use mantle_types::{EntryId, Error, ErrorCode, Result, name::Path};

use super::{locate::Purpose, restarts::Restarts};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::{DeleteObject, Entry, Precondition, UploadId, Written},
};

/// What an entry has to be so that it is deleted. By default anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteCondition {
    pub precondition: Precondition,
    /// In bytes.
    pub size: Option<u64>,
    /// Last-Modified, in seconds since 1970.
    pub modified: Option<i64>,
}

impl DeleteCondition {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The parameters of a request that has the condition.
    pub(super) fn hashed(&self, hash: RequestHash) -> RequestHash {
        hash.optional(self.precondition.as_sql())
            .optional(self.size.map(u64::to_le_bytes))
            .optional(self.modified.map(i64::to_le_bytes))
    }

    fn holds_for(&self, entry: &Entry) -> bool {
        let modified = entry.last_modified().map(|time| time.timestamp());
        self.precondition.holds_for(entry.md5())
            && self.size.is_none_or(|size| size == entry.length())
            && self.modified.is_none_or(|time| modified == Some(time))
    }
}

impl Gateway {
    /// Deletes the bytes that a change left without a row. Not for a replayed answer: the row may name them again. The
    /// sweeper deletes those of a manifest, because others may be reading them one after the other.
    pub(super) async fn delete_replaced(&self, written: &Written) {
        let old = written.old_locator.as_deref().filter(|_| !written.replayed);
        if let Some(old) = old.filter(|old| UploadId::of_manifest(old).is_none()) {
            self.data.delete(old).await;
        }
    }

    /// The entry and the version for which the condition holds; `None` without a condition. The caller has to be allowed to
    /// read the entry.
    pub(super) async fn only_to_delete(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        condition: &DeleteCondition,
    ) -> Result<Option<(EntryId, i64)>> {
        if condition.is_none() {
            return Ok(None);
        }
        let entry = self.head_object(call, namespace, key).await?;
        match condition.holds_for(&entry) {
            true => Ok(Some((entry.id, entry.version))),
            false => Err(ErrorCode::PreconditionFailed.into()),
        }
    }

    /// # Errors
    /// `NotFound`; `PreconditionFailed` if the condition does not hold.
    pub async fn delete_object(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        condition: &DeleteCondition,
    ) -> Result<()> {
        let path = Path::parse(key)?;
        let Some((name, parents)) = path.split_last().filter(|_| !path.is_directory()) else {
            return Err(Error::new(ErrorCode::InvalidArgument, "a key that ends in a slash names a directory"));
        };
        let hash = condition.hashed(RequestHash::new("delete_object", namespace, key)).finish();
        let attempt = async {
            let mut restarts = Restarts::default();
            loop {
                let parent = self.locate_parent(&call.caller, namespace, parents, Purpose::Lookup).await?;
                parent.check_change(&call.caller)?;
                let only = self.only_to_delete(call, namespace, key, condition).await?;
                let (claim, old) = (call.claim(parent.ns, hash), DeleteObject { name: name.to_owned(), only });
                match self.store.delete_object.run(claim, &call.caller, parent.leased_partition(), old).await {
                    Ok(written) => {
                        self.delete_replaced(&written).await;
                        return Ok(());
                    }
                    // Changed since the condition was checked.
                    Err(e) if e.code() == ErrorCode::PreconditionFailed => restarts.again().await?,
                    Err(e) => restarts.after(self, e).await?,
                }
            }
        };
        self.answer_once(call, namespace, hash, |_| (), attempt).await
    }
}
