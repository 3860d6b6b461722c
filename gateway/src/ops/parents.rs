//! Makes missing parents level by level, each after its parent's commit (P15). A level's request id derives from the
//! request's, so a retry finds the levels that exist. They are implicit and vanish with their last entry. So a recorded
//! level may be gone at a retry; then the chain starts again under other derived ids.

use mantle_types::{EntryId, Error, ErrorCode, RequestKey, Result, permission::Access};

use super::{
    directory_name,
    locate::{Located, Purpose, Reached},
    restarts::Restarts,
};
use crate::{
    app::{Call, DIRECTORY_MODE, Gateway, OWN_DIRECTORY_MODE},
    hash::RequestHash,
    store::{NewDirectory, Written},
};

/// A parent. The index must show `made`, the change that made the last level, before a change below is acknowledged.
pub struct Parent {
    pub directory: Located,
    pub made: Option<(RequestKey, Written)>,
}

enum Level {
    Made(Located, RequestKey, Written),
    Existing(Located),
    ParentOutdated,
}

impl Gateway {
    /// The directory at a path, made where it is missing. `reached` is the result of an earlier lookup.
    pub async fn make_parents(
        &self,
        call: &Call,
        namespace: &str,
        components: &[&str],
        reached: Option<Reached>,
    ) -> Result<Parent> {
        // A path that PostgreSQL did not find is looked up again, as a change: without an index the change cannot be
        // acknowledged.
        let of_index = |reached: &Reached| matches!(reached, Reached::All(_) | Reached::Part { is_object: None, .. });
        let mut reached = reached.filter(of_index);
        let mut restarts = Restarts::default();
        'restart: loop {
            let reached = match reached.take() {
                Some(reached) => reached,
                None => self.search(&call.caller, namespace, components, Purpose::DirectoryChange).await?,
            };
            let (directory, depth) = match reached {
                Reached::All(directory) => return Ok(Parent { directory, made: None }),
                Reached::Part { deepest, depth, .. } => (deepest, depth),
            };
            let mut parent = Parent { directory, made: None };
            for level in depth..components.len() {
                parent.directory.check_change(&call.caller)?;
                match self.make_level(call, namespace, &components[..=level], parent.directory, restarts.0).await? {
                    Level::Made(directory, key, written) => parent = Parent { directory, made: Some((key, written)) },
                    Level::Existing(directory) => parent.directory = directory,
                    Level::ParentOutdated => {
                        restarts.again().await?;
                        continue 'restart;
                    }
                }
            }
            return Ok(parent);
        }
    }

    async fn make_level(
        &self,
        call: &Call,
        namespace: &str,
        components: &[&str],
        parent: Located,
        restart: u32,
    ) -> Result<Level> {
        let key = components.join("/");
        let hash = RequestHash::new("mkdir_parent", namespace, &key).finish();
        let claim = call.step(parent.ns, &format!("mkdir_parent {restart} {key}"), hash);
        let name = directory_name(components.last().copied().unwrap_or_default());
        let permission = call.permission(DIRECTORY_MODE);
        let start = self.index.resolution_start(namespace).await?;
        let (code, written) = self
            .with_new_id(|id| {
                let (name, id) = (name.clone(), id.as_directory());
                let new = NewDirectory { name, id, permission, explicit: false, user_metadata: None };
                self.store.mkdir.submit(claim, &call.caller, parent.leased_partition(), new)
            })
            .await?;
        let located =
            |id: EntryId, permission| self.located(&start, parent.ns, id.as_directory(), parent.pid(), permission);
        match code {
            // Its own class decides for its maker, so the bits of others do not matter here.
            None => {
                let made = located(written.id, call.permission(OWN_DIRECTORY_MODE));
                Ok(Level::Made(made, claim.key(), written))
            }
            Some(ErrorCode::AlreadyExists) => match self.store.entry(parent.ns, parent.pid(), vec![name]).await? {
                Some(entry) => {
                    let existing = located(entry.id, entry.permission);
                    existing.check(&call.caller, Access::Search)?;
                    Ok(Level::Existing(existing))
                }
                None => Ok(Level::ParentOutdated),
            },
            Some(ErrorCode::IsObject) => Err(Error::new(ErrorCode::ParentIsObject, format!("`{key}` is an object"))),
            Some(code) if self.is_outdated(code).await => Ok(Level::ParentOutdated),
            Some(code) => Err(code.into()),
        }
    }
}
