//! mkdir: resolves the parent, makes the directory with one SQL call, and waits until the index serves it.

use mantle_types::{DirectoryId, Error, ErrorCode, Result, name::Path};
use serde_json::Value;

use super::{directory_name, locate::Purpose, restarts::Restarts};
use crate::{
    app::{Call, DIRECTORY_MODE, Gateway},
    hash::RequestHash,
    store::NewDirectory,
};

#[derive(Clone, Debug, Default)]
pub struct Mkdir {
    pub parents: bool,
    /// An existing directory is a success.
    pub exist_ok: bool,
    pub user_metadata: Option<Value>,
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
        if let Some(id) = self.replayed(call, namespace, hash).await? {
            return Ok(id.as_directory());
        }
        let mut restarts = Restarts::default();
        loop {
            let directory = match options.parents {
                true => self.make_parents(call, namespace, parents, None).await?.directory,
                false => self.locate_parent(&call.caller, namespace, parents, Purpose::DirectoryChange).await?,
            };
            directory.check_change(&call.caller)?;
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
                    self.store.mkdir.submit(claim, directory.leased_partition(), new)
                })
                .await?;
            match code {
                // One stream has both in commit order, so the parents appear before the directory.
                None => return awaited.acknowledge(&written).await.map(|()| written.id.as_directory()),
                Some(ErrorCode::AlreadyExists) if options.exist_ok => return Ok(written.id.as_directory()),
                Some(code @ ErrorCode::AlreadyExists) => {
                    return Err(Error::new(code, format!("the directory `{}/` exists", path.components().join("/"))));
                }
                Some(code) => restarts.after(self, code.into()).await?,
            }
        }
    }
}
