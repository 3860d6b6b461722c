//! set_attributes: changes owner, group, mode and user metadata of a directory or an object. As in POSIX, the owner may
//! change the mode and choose one of its own groups; only uid 0 may change the owner. A caller who may write to the entry may
//! replace its metadata. The verb checks all this again under its latch.

use mantle_types::{Caller, EntryId, Error, ErrorCode, Result, permission::NewAttributes};
use serde_json::Value;

use super::{restarts::Restarts, stat::Naming};
use crate::{
    app::{Call, Gateway},
    hash::RequestHash,
    store::{Entry, PartOf, SetAttributes},
};

/// New values; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub mode: Option<u16>,
    /// User metadata, replaced as a whole.
    pub user_metadata: Option<Value>,
    /// What the change is a part of. The verb checks what that needs.
    pub part_of: Option<PartOf>,
}

fn check(caller: &Caller, entry: &Entry, new: &Attributes) -> Result<()> {
    let Attributes { owner, group, mode, ref user_metadata, part_of: _ } = *new;
    let new = NewAttributes { owner, group, mode, has_metadata: user_metadata.is_some() };
    let refused = entry.permission.refuses_attributes(caller, &new);
    refused.map_or(Ok(()), |why| Err(Error::new(ErrorCode::AccessDenied, why)))
}

impl Gateway {
    pub async fn set_attributes(&self, call: &Call, namespace: &str, key: &str, new: &Attributes) -> Result<EntryId> {
        let number = |value: Option<u32>| value.map(|v| v.to_le_bytes());
        let hash = RequestHash::new("set_attributes", namespace, key)
            .optional(number(new.owner))
            .optional(number(new.group))
            .optional(number(new.mode.map(u32::from)))
            .optional(new.user_metadata.as_ref().map(Value::to_string))
            .finish();
        let attempt = async {
            let mut restarts = Restarts::default();
            loop {
                let found = self.find(call, namespace, key, Naming::Either).await?;
                check(&call.caller, &found.entry, new)?;
                let claim = call.claim(found.ns, hash);
                let set = SetAttributes {
                    owner: new.owner,
                    group: new.group,
                    mode: new.mode,
                    user_metadata: new.user_metadata.clone(),
                    part_of: new.part_of,
                    ..SetAttributes::of(&found.entry)
                };
                match self.store.set_attributes.run(claim, &call.caller, found.partition, set).await {
                    Ok(written) => {
                        if found.entry.is_directory() {
                            self.index.await_written(namespace, claim.key(), &written).await?;
                        }
                        return Ok(written.id);
                    }
                    Err(e) => restarts.after(self, e).await?,
                }
            }
        };
        self.answer_once(call, namespace, hash, |written| written.id, attempt).await
    }
}
