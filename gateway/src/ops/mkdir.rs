//! mkdir: resolves the parent, makes the directory with one SQL call, and waits until the index serves it.

use mantle_types::{DirectoryId, Error, ErrorCode, NamespaceId, Result, name::Path};
use serde_json::{Map, Value};

use super::{directory_name, locate::Purpose, restarts::Restarts, set_attributes::Attributes, stat::Naming};
use crate::{
    app::{Call, DIRECTORY_MODE, Gateway},
    hash::RequestHash,
    store::{EMPTY_MD5, NewDirectory, PartOf, Precondition},
};

#[derive(Clone, Debug, Default)]
pub struct Mkdir {
    pub parents: bool,
    /// An existing directory is a success.
    pub exist_ok: bool,
    pub user_metadata: Option<Value>,
    /// The metadata replaces that of an existing directory.
    pub replaces_metadata: bool,
}

impl Gateway {
    pub async fn mkdir(&self, call: &Call, namespace: &str, key: &str, options: Mkdir) -> Result<DirectoryId> {
        let path = Path::parse(key)?;
        let Some((name, parents)) = path.split_last() else {
            return Err(Error::new(
                ErrorCode::AlreadyExists,
                "the root of a namespace exists as long as the namespace",
            ));
        };
        let metadata = options.user_metadata.as_ref().map(Value::to_string);
        let hash = RequestHash::new("mkdir", namespace, &path.components().join("/"))
            .part([u8::from(options.parents)])
            .optional(metadata)
            .finish();
        let attempt = async {
            let mut restarts = Restarts::default();
            loop {
                let directory = match options.parents {
                    true => self.make_parents(call, namespace, parents, None).await?.directory,
                    false => self.locate_parent(&call.caller, namespace, parents, Purpose::DirectoryChange).await?,
                };
                directory.check_change(&call.caller)?;
                self.admit_key(directory.ns, &path).await?;
                let claim = call.claim(directory.ns, hash);
                let awaited = self.index.begin_await(namespace, claim.key());
                let (code, written) = self
                    .with_new_id(|id| {
                        let new = NewDirectory {
                            name: directory_name(name),
                            id: id.as_directory(),
                            permission: call.permission(DIRECTORY_MODE),
                            explicit: true,
                            user_metadata: options.user_metadata.clone(),
                        };
                        self.store.mkdir.submit(claim, &call.caller, directory.leased_partition(), new)
                    })
                    .await?;
                match code {
                    // One stream has both in commit order, so the parents appear before the directory.
                    None => return awaited.acknowledge(&written).await.map(|()| written.id.as_directory()),
                    Some(ErrorCode::AlreadyExists) if options.exist_ok => {
                        if options.replaces_metadata {
                            self.replace_metadata(call, namespace, key, options.user_metadata).await?;
                        }
                        return Ok(written.id.as_directory());
                    }
                    Some(code @ ErrorCode::AlreadyExists) => {
                        return Err(Error::new(
                            code,
                            format!("the directory `{}/` exists", path.components().join("/")),
                        ));
                    }
                    Some(code) => restarts.after(self, code.into()).await?,
                }
            }
        };
        self.answer_once(call, namespace, hash, |written| written.id.as_directory(), attempt).await
    }

    /// Puts the key `dir/`: makes the directory, or an implicit one explicit, or replaces the metadata of an explicit one.
    pub async fn put_marker(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        user_metadata: Option<Value>,
        precondition: &Precondition,
    ) -> Result<()> {
        let refused = || Error::from(ErrorCode::PreconditionFailed);
        if matches!(precondition, Precondition::Present | Precondition::Etag(_)) {
            let found = self.head_object(call, namespace, key).await?;
            if !precondition.holds_for(found.md5()) {
                return Err(refused());
            }
            // Without a condition, mkdir checks the same. The verb checks it again.
            if let Some((_, parents)) = Path::parse(key)?.split_last() {
                let directory = self.locate_parent(&call.caller, namespace, parents, Purpose::DirectoryChange).await?;
                directory.check_change(&call.caller)?;
            }
            return self.replace_metadata(call, namespace, key, user_metadata).await;
        }
        // Every marker has the etag of no bytes, so mkdir itself can tell whether a condition holds.
        let may_exist = precondition.holds_for(Some(EMPTY_MD5));
        let options = Mkdir { parents: true, exist_ok: may_exist, user_metadata, replaces_metadata: may_exist };
        match self.mkdir(call, namespace, key, options).await {
            Err(e) if e.code() == ErrorCode::AlreadyExists && !may_exist => Err(refused()),
            made => made.map(drop),
        }
    }

    /// Replaces the metadata of a directory that exists, as a step of the request.
    async fn replace_metadata(&self, call: &Call, namespace: &str, key: &str, new: Option<Value>) -> Result<()> {
        let empty = || Value::Object(Map::new());
        let found = self.find(call, namespace, key, Naming::Either).await?.entry;
        let old = found.user_metadata().cloned().unwrap_or_else(empty);
        let mut new = new.unwrap_or_else(empty);
        // To others the answer must not tell whether the metadata is this.
        if old == new && found.permission.may_read(&call.caller) {
            return Ok(());
        }
        if let (Value::Object(old), Value::Object(new)) = (old, &mut new) {
            // A null removes a name. The user's go by themselves only if the new metadata names others of the user's.
            let gone: Vec<_> = old.into_iter().filter(|(name, _)| !new.contains_key(name)).collect();
            new.extend(gone.into_iter().map(|(name, _)| (name, Value::Null)));
        }
        let step = Call { request: call.step(NamespaceId(0), "metadata", 0).request, ..call.clone() };
        let attributes = Attributes { user_metadata: Some(new), part_of: Some(PartOf::Put), ..Attributes::default() };
        self.set_attributes(&step, namespace, key, &attributes).await.map(drop)
    }
}
