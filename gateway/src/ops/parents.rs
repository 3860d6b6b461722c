//! Missing parents, made level by level, each after its parent's commit (P15). A level's request id derives
//! from the request's, so that a retry of the whole finds the levels made. A directory made here is implicit: it vanishes
//! with its last entry. So a recorded level may be gone when the request is retried; then the chain starts again under
//! other derived ids.

use mantle_types::{Error, ErrorCode, Permission, RequestKey, Result, permission::Access};

use super::{
    RESTARTS_MAX, directory_name,
    locate::{Located, Purpose, Reached},
};
use crate::{
    app::{Call, DIRECTORY_MODE, Gateway},
    hash::RequestHash,
    store::{NewDirectory, Written, pause},
};

/// A parent, and the change whose appearance in the index it takes before anything below it is acknowledged.
pub struct Parent {
    /// The directory.
    pub directory: Located,
    /// The last level that was made.
    pub made: Option<(RequestKey, Written)>,
}

enum Level {
    Made(Located, RequestKey, Written),
    Existing(Located),
    ParentOutdated,
}

impl Gateway {
    /// The directory at a path, made where missing. `reached` is how far an earlier lookup came.
    pub async fn make_parents(
        &self,
        call: &Call,
        namespace: &str,
        components: &[&str],
        reached: Option<Reached>,
    ) -> Result<Parent> {
        // What is missing is looked up again, for a change: without an index there is no point in beginning.
        let mut reached = reached.filter(|reached| matches!(reached, Reached::All(_)));
        for restart in 0..RESTARTS_MAX {
            let so_far = match reached.take() {
                Some(reached) => reached,
                None => self.search(&call.caller, namespace, components, Purpose::DirectoryChange).await?,
            };
            let (mut directory, depth) = match so_far {
                Reached::All(directory) => return Ok(Parent { directory, made: None }),
                Reached::Part { deepest, depth, .. } => (deepest, depth),
            };
            let mut made = None;
            let mut complete = true;
            for level in depth..components.len() {
                directory.check_change(&call.caller)?;
                match self.make_level(call, namespace, &components[..=level], directory, restart).await? {
                    Level::Made(new, key, written) => (directory, made) = (new, Some((key, written))),
                    Level::Existing(existing) => directory = existing,
                    Level::ParentOutdated => {
                        complete = false;
                        break;
                    }
                }
            }
            if complete {
                return Ok(Parent { directory, made });
            }
            pause(restart).await;
        }
        Err(ErrorCode::DirectoryRemoved.into())
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
        let signed = call.step(parent.ns, &format!("mkdir_parent {restart} {key}"), hash);
        let name = directory_name(components.last().copied().unwrap_or_default());
        let permission = call.permission(DIRECTORY_MODE);
        let moment = self.index.moment(namespace).await?;
        let (code, written) = self
            .with_new_id(|id| {
                let new = NewDirectory {
                    place: parent.place(),
                    name: &name,
                    id,
                    permission,
                    explicit: false,
                    user_metadata: None,
                };
                self.store.mkdir(signed, new)
            })
            .await?;
        let located = |id: i64, permission: Permission| self.located(&moment, parent.ns, id, permission);
        match code {
            None => Ok(Level::Made(located(written.id, permission), call.key(&signed), written)),
            Some(ErrorCode::AlreadyExists) => {
                let found = self.store.stat(parent.ns, &[(parent.pid(), &name)]).await?;
                match found.into_iter().flatten().next() {
                    Some(entry) => {
                        let existing = located(entry.id, entry.permission);
                        existing.check(&call.caller, Access::Search)?;
                        Ok(Level::Existing(existing))
                    }
                    None => Ok(Level::ParentOutdated),
                }
            }
            Some(ErrorCode::IsObject) => Err(Error::new(ErrorCode::ParentIsObject, format!("`{key}` is an object"))),
            Some(code) if self.is_outdated(code).await => Ok(Level::ParentOutdated),
            Some(code) => Err(code.into()),
        }
    }

    /// Runs a creation with a new id; once more with one of a new block if PostgreSQL does not know the id's block.
    pub(super) async fn with_new_id<T: Refusal, F, Fut>(&self, create: F) -> Result<T>
    where
        F: Fn(i64) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let answer = create(self.ids.next().await?).await;
        let refused = match &answer {
            Ok(answer) => answer.code() == Some(ErrorCode::InvalidId),
            Err(error) => error.code() == ErrorCode::InvalidId,
        };
        if !refused {
            return answer;
        }
        self.ids.discard();
        create(self.ids.next().await?).await
    }
}

/// An answer that may hold a refusal.
pub(super) trait Refusal {
    /// The refusal.
    fn code(&self) -> Option<ErrorCode>;
}

impl Refusal for (Option<ErrorCode>, Written) {
    fn code(&self) -> Option<ErrorCode> {
        self.0
    }
}

impl Refusal for Written {
    fn code(&self) -> Option<ErrorCode> {
        None
    }
}
