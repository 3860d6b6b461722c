//! copy_object: makes an object that shares the bytes of another one. Both rows name the same bytes, which are removed
//! once no row names them (P52). Only bytes inside PostgreSQL are copied (P62).

use mantle_types::{EntryId, Error, ErrorCode, Result, name::Path};
use serde_json::Value;

use super::{
    get_object::may_read,
    restarts::Restarts,
    stat::{Found, Naming},
};
use crate::{
    app::{Call, Gateway, OBJECT_MODE},
    data::{Algorithm, Checksum, ChecksumKind, KEPT_AS, OWN_CHECKSUM},
    hash::RequestHash,
    store::{CopyObject, Entry, Precondition, UploadId, Written, accepted},
};

/// What the copy has of its own; `None` keeps what the source has.
#[derive(Clone, Debug, Default)]
pub struct Copy {
    pub replaced: Option<Described>,
    /// Tags, as they are kept; an empty text is none.
    pub tags: Option<String>,
    /// The algorithm of its checksum. If the source has a checksum of another one, its bytes are read once.
    pub algorithm: Option<Algorithm>,
    pub precondition: Precondition,
}

/// Name, in an entry's metadata, of its tags.
pub const TAGGING: &str = ":tagging";

#[derive(Clone, Debug, Default)]
pub struct Described {
    pub content_type: Option<String>,
    /// Without the checksum, which is the source's or is computed.
    pub user_metadata: Option<Value>,
}

/// A namespace and a key in it.
pub type Place<'a> = (&'a str, &'a str);

/// A copy that was made, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Copied {
    /// MD5; `None` in a recorded answer, which does not have it.
    pub etag: Option<String>,
    pub checksum: Option<Checksum>,
    /// Id and version, in a recorded answer.
    recorded: Option<(EntryId, Option<i64>)>,
}

impl Copied {
    fn recorded(answer: &Written) -> Self {
        Self { recorded: Some((answer.id, answer.version)), ..Self::default() }
    }

    /// Whether the copy is what is there now. It may have been replaced since.
    pub fn is(&self, entry: &Entry) -> bool {
        match self.recorded {
            Some((id, version)) => (id, version) == (entry.id, Some(entry.version)),
            None => self.etag.as_deref() == entry.md5(),
        }
    }
}

/// The checksum of a version of the source, so that its bytes are read once.
struct Computed {
    version: (EntryId, i64),
    checksum: Option<Checksum>,
}

impl Gateway {
    /// Copies an object that `accept` accepts. An error if the destination is a directory, or the source has no bytes. With
    /// a slash at the end of both keys, a directory's key.
    pub async fn copy_object<E: From<Error>>(
        &self,
        call: &Call,
        source: Place<'_>,
        destination: Place<'_>,
        copy: &Copy,
        accept: impl Fn(&Entry) -> Result<(), E>,
    ) -> Result<Copied, E> {
        let (namespace, key) = destination;
        match (source.1.ends_with('/'), key.ends_with('/')) {
            (true, true) => return self.copy_marker(call, source, destination, copy, accept).await,
            (false, false) => {}
            _ => {
                let why = "a key that ends in a slash names a directory: it is copied from and to such a key only";
                return Err(Error::new(ErrorCode::InvalidArgument, why).into());
            }
        }
        super::put_object::object_path(key)?;
        let described = copy.replaced.as_ref();
        let hash = RequestHash::new("copy_object", namespace, key)
            .part(source.0)
            .part(source.1)
            .part([u8::from(described.is_some())])
            .optional(described.and_then(|new| new.content_type.as_deref()))
            .optional(described.and_then(|new| new.user_metadata.as_ref()).map(Value::to_string))
            .optional(copy.tags.as_deref())
            .optional(copy.algorithm.map(Algorithm::name))
            .optional(copy.precondition.as_sql())
            .finish();
        if let Some(written) = self.earlier_answer(call, namespace, hash).await? {
            return Ok(Copied::recorded(&written));
        }
        let copied = self.copy_new(call, source, destination, copy, hash, accept).await;
        // Also after a refusal by `accept`: the earlier attempt may have changed its source, which is the destination then.
        let Err(refusal) = copied else { return copied };
        let earlier = self.earlier_answer(call, namespace, hash).await?;
        earlier.map(|written| Copied::recorded(&written)).ok_or(refusal)
    }

    /// The first attempt.
    async fn copy_new<E: From<Error>>(
        &self,
        call: &Call,
        source: Place<'_>,
        (namespace, key): Place<'_>,
        copy: &Copy,
        hash: i64,
        accept: impl Fn(&Entry) -> Result<(), E>,
    ) -> Result<Copied, E> {
        let path = super::put_object::object_path(key)?;
        let Some((name, parents)) = path.split_last() else {
            return Err(Error::from(ErrorCode::InvalidArgument).into());
        };
        let mut restarts = Restarts::default();
        let mut computed = None;
        loop {
            let found = self.source_of_copy(call, source).await?;
            accept(&found.entry)?;
            let parent = self.make_parents(call, namespace, parents, None).await?;
            self.check_put(call, &parent.directory, name).await?;
            self.admit_key(parent.directory.ns, &path).await?;
            let Some(checksum) = self.known_checksum(&found, copy, &mut computed, &mut restarts).await? else {
                continue;
            };
            let claim = call.claim(parent.directory.ns, hash);
            let (content_type, user_metadata) = described_as(&found.entry, copy, checksum.as_ref());
            let (found, content_type, user_metadata) = (&found, content_type.as_deref(), user_metadata.as_ref());
            let answer = self
                .with_new_id(|id| async move {
                    let new = CopyObject {
                        source_ns: found.ns,
                        source_directory: found.partition,
                        source: &found.entry,
                        destination: parent.directory.leased_partition(),
                        name,
                        id,
                        permission: call.permission(OBJECT_MODE),
                        content_type,
                        user_metadata,
                        precondition: &copy.precondition,
                        caller: &call.caller,
                    };
                    self.store.copy_object(claim, &new).await
                })
                .await;
            match answer.and_then(accepted) {
                Ok(written) => {
                    self.delete_replaced(&written).await;
                    if let Some((key, made)) = &parent.made {
                        self.index.await_written(namespace, *key, made).await?;
                    }
                    // An earlier attempt of this call may have copied another version of the source.
                    if written.replayed {
                        let written = self.recorded_answer(call, namespace, hash).await?.unwrap_or(written);
                        return Ok(Copied::recorded(&written));
                    }
                    return Ok(Copied { etag: found.entry.md5().map(str::to_owned), checksum, recorded: None });
                }
                // The source was replaced or removed since it was read; it is read again.
                Err(e) if matches!(e.code(), ErrorCode::SourceChanged | ErrorCode::NotFound) => {
                    restarts.again().await?
                }
                Err(e) if e.code() == ErrorCode::IsDirectory => {
                    let directory = parent.directory;
                    match self.prune_ghost(directory.ns, directory.pid(), name).await? {
                        true => restarts.again().await?,
                        false => return Err(e.into()),
                    }
                }
                Err(e) => restarts.after(self, e).await?,
            }
        }
    }

    /// Copies the key `dir/`: its metadata and tags, and nothing of what is below it.
    async fn copy_marker<E: From<Error>>(
        &self,
        call: &Call,
        source: Place<'_>,
        destination: Place<'_>,
        copy: &Copy,
        accept: impl Fn(&Entry) -> Result<(), E>,
    ) -> Result<Copied, E> {
        let found = self.readable(call, source.0, source.1, false).await?;
        let entry = &found.entry;
        accept(entry)?;
        let checksum = self.checksum_of_copy(&found, copy.algorithm).await?.flatten();
        let (_, user_metadata) = described_as(entry, copy, checksum.as_ref());
        self.put_marker(call, destination.0, destination.1, user_metadata, &copy.precondition).await?;
        Ok(Copied { etag: entry.md5().map(str::to_owned), checksum, recorded: None })
    }

    /// The checksum of a copy of this version of the source. `None` when it had to be computed, or could not be: the caller
    /// looks again, since reading may have taken longer than the lease of the directory lasts.
    async fn known_checksum(
        &self,
        source: &Found,
        copy: &Copy,
        computed: &mut Option<Computed>,
        restarts: &mut Restarts,
    ) -> Result<Option<Option<Checksum>>> {
        let version = (source.entry.id, source.entry.version);
        if let Some(known) = computed.as_ref().filter(|known| known.version == version) {
            return Ok(Some(known.checksum.clone()));
        }
        if computed.is_some() {
            restarts.again().await?;
        }
        let Some(checksum) = self.checksum_of_copy(source, copy.algorithm).await? else {
            restarts.again().await?;
            return Ok(None);
        };
        if copy.algorithm.is_none() {
            return Ok(Some(checksum));
        }
        *computed = Some(Computed { version, checksum });
        Ok(None)
    }

    /// The checksum that the copy has; the inner `None` if the source has none, the outer if its bytes are gone.
    async fn checksum_of_copy(
        &self,
        Found { entry, partition, .. }: &Found,
        asked: Option<Algorithm>,
    ) -> Result<Option<Option<Checksum>>> {
        let kept = Checksum::kept_in(entry.user_metadata());
        // As in S3, a copy has the checksum of all its bytes if the request names an algorithm.
        let is_kept = |kept: &Checksum, asked| {
            kept.algorithm == asked && ChecksumKind::of(&kept.value) == ChecksumKind::FullObject
        };
        let Some(asked) = asked.filter(|asked| !kept.as_ref().is_some_and(|kept| is_kept(kept, *asked))) else {
            return Ok(Some(kept));
        };
        self.check_source_bytes(entry.size)?;
        let read = self.digests_of(partition.pid, entry, 0..entry.size, asked).await?;
        Ok(read.map(|checksums| Some(checksums.checksum)))
    }

    /// An error if a call does not read this many bytes of a source.
    pub(super) fn check_source_bytes(&self, bytes: u64) -> Result<()> {
        if bytes > self.limits.object_bytes_max {
            let why = "The specified copy source is larger than the maximum allowable size for a copy source.";
            return Err(Error::new(ErrorCode::InvalidArgument, why));
        }
        Ok(())
    }

    pub(super) async fn source_of_copy(&self, call: &Call, (namespace, key): Place<'_>) -> Result<Found> {
        if Path::parse(key)?.is_directory() {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "a key that ends in a slash names a directory, which has no bytes",
            ));
        }
        let found = self.find(call, namespace, key, Naming::Exact).await.map_err(|e| match e.code() {
            ErrorCode::ParentIsObject => Error::new(ErrorCode::NotFound, e.detail()),
            _ => e,
        })?;
        may_read(call, &found.entry)?;
        match found.entry.locator {
            Some(_) => Ok(found),
            None => Err(ErrorCode::NoData.into()),
        }
    }
}

/// Content type and metadata of the copy.
fn described_as(source: &Entry, copy: &Copy, checksum: Option<&Checksum>) -> (Option<String>, Option<Value>) {
    let (content_type, described) = match &copy.replaced {
        Some(new) => (&new.content_type, new.user_metadata.as_ref()),
        None => (&source.content_type, source.user_metadata()),
    };
    let mut metadata = match described {
        Some(Value::Object(map)) => map.clone(),
        _ => serde_json::Map::new(),
    };
    if let Some(Value::Object(kept)) = source.user_metadata() {
        metadata.retain(|name, _| !name.starts_with(KEPT_AS));
        let of_source = Checksum::kept_in(source.user_metadata());
        let is_in_parts = source.locator.as_deref().and_then(UploadId::of_manifest).is_some();
        if is_in_parts && (of_source.as_ref() != checksum || kept.contains_key(OWN_CHECKSUM)) {
            metadata.insert(OWN_CHECKSUM.to_owned(), true.into());
        }
        metadata.extend(kept.get(TAGGING).map(|tags| (TAGGING.to_owned(), tags.clone())));
    }
    match copy.tags.as_deref() {
        None => {}
        Some("") => drop(metadata.remove(TAGGING)),
        Some(tags) => drop(metadata.insert(TAGGING.to_owned(), tags.into())),
    }
    let metadata = (!metadata.is_empty()).then_some(Value::Object(metadata));
    let metadata = match checksum {
        Some(checksum) => Some(checksum.kept_with(metadata)),
        None => metadata,
    };
    (content_type.clone(), metadata)
}
