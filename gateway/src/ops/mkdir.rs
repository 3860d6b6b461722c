//! mkdir: resolve the parent, one SQL call, wait until the index serves the directory.

use mantle_types::{Error, ErrorCode, Result, name::Path};
use serde_json::Value;

use super::{RESTARTS_MAX, directory_name, locate::Purpose, parents::Parent};
use crate::{
    app::{Call, DIRECTORY_MODE, Gateway},
    hash::RequestHash,
    store::{NewDirectory, pause},
};

/// What to make.
#[derive(Clone, Debug, Default)]
pub struct Mkdir {
    /// Make missing parents too?
    pub parents: bool,
    /// Is a directory that exists already fine?
    pub exist_ok: bool,
    /// User metadata.
    pub user_metadata: Option<Value>,
}

impl Gateway {
    /// Makes a directory explicitly; answers its id.
    pub async fn mkdir(&self, call: &Call, namespace: &str, key: &str, options: Mkdir) -> Result<i64> {
        let path = Path::parse(key)?;
        let Some((name, parents)) = path.split_last() else {
            return Err(Error::new(ErrorCode::AlreadyExists, "the root of a namespace exists as long as it"));
        };
        let metadata = options.user_metadata.as_ref().map(Value::to_string);
        let hash = RequestHash::new("mkdir", namespace, &path.components().join("/"))
            .part([u8::from(options.parents)])
            .optional(metadata)
            .finish();
        if let Some(id) = self.replayed(call, namespace, hash).await? {
            return Ok(id);
        }
        for restart in 0..RESTARTS_MAX {
            let Parent { directory, .. } = match options.parents {
                true => self.make_parents(call, namespace, parents, None).await?,
                false => {
                    let directory =
                        self.locate_parent(&call.caller, namespace, parents, Purpose::DirectoryChange).await?;
                    Parent { directory, made: None }
                }
            };
            directory.check_change(&call.caller)?;
            let signed = call.signed(directory.ns, hash);
            let full_name = directory_name(name);
            let awaited = self.index.await_soon(namespace, call.key(&signed));
            let (code, written) = self
                .with_new_id(|id| {
                    let new = NewDirectory {
                        place: directory.place(),
                        name: &full_name,
                        id,
                        permission: call.permission(DIRECTORY_MODE),
                        explicit: true,
                        user_metadata: options.user_metadata.clone(),
                    };
                    self.store.mkdir(signed, new)
                })
                .await?;
            match code {
                // The new directory appears after its parents do: both are in one stream, in the order of their commits.
                None => return awaited.written(&written).await.map(|()| written.id),
                Some(ErrorCode::AlreadyExists) if options.exist_ok => return Ok(written.id),
                Some(ErrorCode::AlreadyExists) => {
                    return Err(Error::new(
                        ErrorCode::AlreadyExists,
                        format!("the directory `{}/` exists", path.components().join("/")),
                    ));
                }
                Some(code) if self.is_outdated(code).await => pause(restart).await,
                Some(code) => return Err(code.into()),
            }
        }
        Err(ErrorCode::DirectoryRemoved.into())
    }

    /// The recorded answer of a request whose key the client chose, once the index serves it.
    pub(super) async fn replayed(&self, call: &Call, namespace: &str, hash: i64) -> Result<Option<i64>> {
        if !call.client_key {
            return Ok(None);
        }
        let Some((ns, written)) = self.store.replay(call.signed(0, hash), namespace).await? else { return Ok(None) };
        self.index.await_written(namespace, call.key(&call.signed(ns, 0)), &written).await?;
        Ok(Some(written.id))
    }
}
