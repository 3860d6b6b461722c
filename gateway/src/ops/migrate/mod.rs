//! Moves the bytes of objects to where this gateway stores new ones, its volume or PostgreSQL, while objects are read and
//! changed. It reads an object's bytes, compares them with the etag, stores them, and gives the row the new locator, unless
//! the object was changed meanwhile. The old bytes are removed as replaced ones are. A run that ends early loses nothing: the
//! next run skips what was moved already.
//!
//! - `uploads`: what was uploaded in parts, and what objects with manifests name

mod uploads;

use std::{collections::HashSet, sync::Arc, time::Duration};

use chrono::Utc;
use futures::{StreamExt, stream};
use mantle_types::{
    Error, ErrorCode, NamespaceId, PartitionId, Result,
    inline::{inline_locator, is_inline},
};

use super::object_bytes::RENEWALS_MAX;
use crate::{
    app::{Call, Gateway},
    data::{Content, Expected, Mark, Stored, UploadError},
    disconnect::run_detached,
    migration::{Migration, MigrationState},
    store::{Entry, Listed, Namespace, Replacement, UploadId, no_namespace},
};

/// Most entries of a page.
const PAGE_ENTRIES: usize = 500;
/// Objects that are moved at a time.
const OBJECTS_AT_ONCE: usize = 4;

/// What became of an object or an upload. Of several parts the last in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Its bytes are there already, or it has none, or a put has replaced them there meanwhile.
    Passed,
    Moved,
    Failed,
}

/// An error unless the caller administrates the service.
fn check_administrator(call: &Call) -> Result<()> {
    match call.caller.uid {
        0 => Ok(()),
        _ => Err(Error::new(ErrorCode::AccessDenied, "only uid 0 may move the bytes of all objects")),
    }
}

impl Gateway {
    /// How far the migration is.
    pub fn migration(&self, call: &Call) -> Result<Migration> {
        check_administrator(call)?;
        Ok(self.migrations.now())
    }

    /// Begins a migration of one namespace or all, unless one runs.
    pub async fn begin_migration(self: &Arc<Self>, call: &Call, namespace: Option<&str>) -> Result<Migration> {
        check_administrator(call)?;
        if !self.data.puts_into_volume() {
            return Err(Error::new(ErrorCode::InvalidArgument, "the store of new bytes is no volume (`new_bytes`)"));
        }
        self.data.is_ready()?;
        let mut namespaces = self.store.list_namespaces().await?;
        if let Some(name) = namespace {
            namespaces.retain(|namespace| namespace.name == name);
            if namespaces.is_empty() {
                return Err(no_namespace(name));
            }
        }
        if self.migrations.begin() {
            let gateway = self.clone();
            tokio::spawn(async move {
                let ended = gateway.migrate(namespaces).await;
                gateway.migrations.note(|migration| {
                    migration.finished = Some(Utc::now());
                    migration.state = if ended.is_ok() { MigrationState::Done } else { MigrationState::Failed };
                    migration.error = ended.err().map(|error| error.to_string());
                });
                tracing::info!(migration = ?gateway.migrations.now(), "the migration of bytes has ended");
            });
        }
        Ok(self.migrations.now())
    }

    async fn migrate(self: &Arc<Self>, namespaces: Vec<Namespace>) -> Result<()> {
        let all: HashSet<NamespaceId> = namespaces.iter().map(|namespace| namespace.ns).collect();
        for namespace in namespaces {
            let root = PartitionId::from(namespace.ns.as_i64());
            let mut directories = vec![root];
            let name: Arc<str> = namespace.name.into();
            while let Some(directory) = directories.pop() {
                self.migrate_directory(&name, namespace.ns, directory, &mut directories).await?;
            }
        }
        self.migrate_uploads(&all).await
    }

    fn note(&self, fate: Fate, bytes: u64) {
        self.migrations.note(|migration| {
            migration.bytes += bytes;
            match fate {
                Fate::Passed => {}
                Fate::Moved => migration.objects += 1,
                Fate::Failed => migration.failed += 1,
            }
        });
    }

    async fn migrate_directory(
        self: &Arc<Self>,
        namespace: &Arc<str>,
        ns: NamespaceId,
        pid: PartitionId,
        directories: &mut Vec<PartitionId>,
    ) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(Listed::Children, ns, pid, after.as_deref(), "", PAGE_ENTRIES).await?;
            after = page.last().map(|last| last.name.clone());
            let is_last = page.len() < PAGE_ENTRIES;
            let (below, objects): (Vec<Entry>, Vec<Entry>) = page.into_iter().partition(Entry::is_directory);
            directories.extend(below.iter().map(|directory| PartitionId::from(directory.id.as_i64())));
            let moves =
                stream::iter(objects).map(|object| self.clone().migrate_object(namespace.clone(), ns, pid, object));
            let mut fates = moves.buffer_unordered(OBJECTS_AT_ONCE);
            while let Some(fate) = fates.next().await {
                let (fate, bytes) = fate?;
                self.note(fate, bytes);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Moves the bytes of an object; returns how many were moved. An error of the object alone is a fate.
    async fn migrate_object(
        self: Arc<Self>,
        namespace: Arc<str>,
        ns: NamespaceId,
        pid: PartitionId,
        object: Entry,
    ) -> Result<(Fate, u64)> {
        let bytes = object.size;
        let Some(locator) = object.locator.clone() else { return Ok((Fate::Passed, 0)) };
        let is_small = (1..=self.limits.inline_bytes_max as u64).contains(&bytes);
        let is_home = if is_small { is_inline(&locator) } else { self.data.is_in_volume(&locator) };
        // The extents of a manifest move with its upload.
        if is_home || UploadId::of_manifest(&locator).is_some() {
            return Ok((Fate::Passed, 0));
        }
        let name = object.name.clone();
        // A row that is sent may be changed, so this is not given up in the middle.
        let fate = run_detached(async move { self.move_bytes(&namespace, ns, pid, &object, &locator).await }).await;
        match fate {
            Ok(fate) => Ok((fate, if fate == Fate::Moved { bytes } else { 0 })),
            Err(error) if matches!(error.code(), ErrorCode::StorageFull | ErrorCode::DatabaseUnavailable) => Err(error),
            Err(error) => {
                tracing::error!(%error, directory = pid.as_i64(), name, "the bytes of an object could not be moved");
                Ok((Fate::Failed, 0))
            }
        }
    }

    async fn move_bytes(
        &self,
        namespace: &str,
        ns: NamespaceId,
        pid: PartitionId,
        object: &Entry,
        old: &str,
    ) -> Result<Fate> {
        let content = match object.size {
            0 => Some(Content::empty()),
            size if is_inline(old) => match self.read_object(pid, object, 0..size).await? {
                // A change takes its bytes along.
                None => return Ok(Fate::Passed),
                content => content,
            },
            size => self.data.get(old, 0..size).await?,
        };
        let stored = match content {
            Some(content) => self.store_again(object, old, content).await?,
            None => None,
        };
        let Some(mut stored) = stored else { return self.not_readable(ns, pid, object, old).await };
        let (mut manifest, mut lease) = (None, None);
        if stored.pieces.len() > 1 {
            // As in a put: the sweeper removes the manifest only after the lease has ended.
            let start = self.index.resolution_start(namespace).await?;
            let half = Duration::from_millis(self.limits.read_grace_ms) / 2;
            lease = Some(self.store.lease(&start, pid).for_at_most(half).lease);
            manifest = Some(self.record_manifest(object.permission, namespace, ns, &mut stored).await?.manifest());
        }
        for _ in 0..RENEWALS_MAX {
            let new = match (&stored.inline, &manifest, stored.pieces.first()) {
                (Some(_), ..) => inline_locator(self.ids.next().await?),
                (None, Some(manifest), _) => manifest.clone(),
                (None, None, Some(piece)) => piece.locator.clone(),
                (None, None, None) => break,
            };
            stored.sent();
            let inline = stored.inline.as_deref();
            let replacement = Replacement { pid, name: &object.name, id: object.id, old, new: &new, inline, lease };
            match self.store.replace_locator(replacement).await {
                Ok(unused) => {
                    self.data.named(stored);
                    if let Some(unused) = unused {
                        self.data.delete(&unused).await;
                    }
                    return Ok(Fate::Moved);
                }
                Err(error) if error.code() == ErrorCode::StaleSegment => stored.renew().await?,
                // As in `with_new_id`.
                Err(error) if error.code() == ErrorCode::InvalidId => self.ids.discard(),
                Err(error) => return self.not_named(stored, error).await,
            }
        }
        Err(ErrorCode::StaleSegment.into())
    }

    /// What became of an object whose bytes cannot be read: a change may have removed them since the object was listed.
    async fn not_readable(&self, ns: NamespaceId, pid: PartitionId, object: &Entry, old: &str) -> Result<Fate> {
        let found = self.store.stat(ns, &[(pid, &object.name)]).await?;
        if found.into_iter().flatten().all(|now| now.locator.as_deref() != Some(old)) {
            return Ok(Fate::Passed);
        }
        tracing::error!(locator = old, "the bytes of an object are gone, or cannot be read");
        Ok(Fate::Failed)
    }

    /// Gives up bytes that PostgreSQL refused to name, unless it may have named them.
    async fn not_named(&self, stored: Stored, error: Error) -> Result<Fate> {
        match error.code() {
            ErrorCode::UnknownOutcome => return Err(error),
            _ => self.data.discard(stored).await,
        }
        if error.code() == ErrorCode::SourceChanged { Ok(Fate::Passed) } else { Err(error) }
    }

    /// The bytes where a put would store them; `None` if they cannot be read, or are not what the etag says.
    async fn store_again(&self, object: &Entry, old: &str, content: Content) -> Result<Option<Stored>> {
        let generation = Some(self.ids.next_generation().await?);
        let mark = Mark { cluster: self.mark().await?, generation };
        let (body, inline_max) = (content.into_stream(), self.limits.inline_bytes_max);
        let expected = Expected { size: Some(object.size), ..Expected::default() };
        let put = self.data.put(mark, body, u64::MAX, expected, inline_max).await;
        let stored = match put {
            Ok(stored) => stored,
            Err(UploadError::Store(error)) => return Err(error),
            Err(error) => {
                tracing::warn!(?error, locator = old, "the bytes of an object cannot be read");
                return Ok(None);
            }
        };
        let is_right = stored.size == object.size && object.etag.as_ref() == Some(&stored.checksums.md5);
        if !is_right {
            tracing::warn!(locator = old, etag = object.etag, "the bytes of an object do not match its etag");
            self.data.discard(stored).await;
            return Ok(None);
        }
        Ok(Some(stored))
    }
}
