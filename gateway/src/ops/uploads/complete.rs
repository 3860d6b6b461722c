//! CompleteMultipartUpload (P53): seal the upload, put the object, finish the upload. Each step may be repeated, and after
//! a crash between two steps any gateway can find out how far the attempt came.

use mantle_types::{Caller, Error, ErrorCode, PartitionId, Permission, Result, name::Path};

use super::{
    super::{parents::Parent, restarts::Restarts},
    checksum_of, no_such_upload,
};
use crate::{
    app::{Call, Gateway, OBJECT_MODE},
    data::{Algorithm, Checksum, ChecksumKind, checksum_of_parts, etag_of_parts},
    hash::RequestHash,
    ops::put_object::object_path,
    store::{
        Attempt, Doubt, NewObject, Part, Precondition, RequestClaim, Sealed, Sealing, Upload, UploadState, accepted,
    },
};

/// Most parts of an upload, and the highest number of one, as in S3.
pub const PARTS_MAX: i32 = 10_000;
/// How often a call looks again before it ends another one's attempt.
const BUSY_RESTARTS: u32 = 2;
/// Smallest part that is not the last, as in S3.
const PART_BYTES_MIN: u64 = 5 << 20;

/// A part that the client wants in the object.
#[derive(Clone, Debug)]
pub struct ChosenPart {
    pub number: i32,
    /// Without quotes.
    pub etag: String,
    /// Base64, if the client says it.
    pub checksum: Option<(Algorithm, String)>,
}

#[derive(Clone, Debug, Default)]
pub struct Complete {
    /// In ascending order.
    pub parts: Vec<ChosenPart>,
    pub precondition: Precondition,
    /// What the client expects of the object.
    pub size: Option<u64>,
    pub checksum: Option<(Algorithm, String)>,
    pub kind: Option<ChecksumKind>,
}

/// Why an object is not made of its parts.
#[derive(Debug)]
pub enum CompleteError {
    /// A part that is not the last is under 5 MiB.
    PartTooSmall,
    /// The object has another checksum than the client expects.
    WrongChecksum(Algorithm),
    /// The client gives a checksum of a part in another algorithm than it has chosen for the upload.
    PartChecksum {
        number: i32,
        algorithm: Algorithm,
    },
    /// The object has another size than the client expects.
    Size {
        wanted: u64,
        computed: u64,
    },
    /// The checksum of the upload is of this other kind, or of this other algorithm.
    Kind(ChecksumKind),
    OtherAlgorithm(Algorithm),
    Mantle(Error),
}

impl From<Error> for CompleteError {
    fn from(error: Error) -> Self {
        Self::Mantle(error)
    }
}

impl From<ErrorCode> for CompleteError {
    fn from(code: ErrorCode) -> Self {
        Self::Mantle(code.into())
    }
}

#[derive(Clone, Debug)]
pub struct Completed {
    pub etag: String,
    pub checksum: Checksum,
}

/// The object that the chosen parts make.
struct Assembled<'a> {
    numbers: Vec<i32>,
    etags: Vec<&'a str>,
    etag: String,
    size: u64,
    checksum: Checksum,
}

fn invalid_part() -> Error {
    let why = "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified \
               entity tag may not match the part's entity tag.";
    Error::new(ErrorCode::InvalidPart, why)
}

/// Chooses parts of those that were uploaded.
fn assemble<'a>(upload: &Upload, uploaded: &'a [Part], wanted: &Complete) -> Result<Assembled<'a>, CompleteError> {
    let (algorithm, kind) = checksum_of(upload)?;
    let mut chosen: Vec<&Part> = Vec::with_capacity(wanted.parts.len());
    for part in &wanted.parts {
        let found = uploaded.binary_search_by_key(&part.number, |uploaded| uploaded.number);
        let found = found.ok().map(|at| &uploaded[at]).filter(|found| found.etag == part.etag);
        let found = found.ok_or_else(invalid_part)?;
        match &part.checksum {
            Some((of, value)) if *of == algorithm && *value != found.checksum => return Err(invalid_part().into()),
            // It cannot be compared. Its etag has been, so it is no loss where the client chose no algorithm.
            Some((of, _)) if *of != algorithm && upload.checksum_algorithm.is_some() => {
                return Err(CompleteError::PartChecksum { number: part.number, algorithm: *of });
            }
            _ => {}
        }
        chosen.push(found);
    }
    let small = chosen.iter().rev().skip(1).find(|part| part.size < PART_BYTES_MIN);
    if small.is_some() {
        return Err(CompleteError::PartTooSmall);
    }
    let etags: Vec<&str> = chosen.iter().map(|part| part.etag.as_str()).collect();
    let checksums: Vec<_> = chosen.iter().map(|part| (part.checksum.as_str(), part.size)).collect();
    let (etag, value) = (etag_of_parts(&etags), checksum_of_parts(algorithm, kind, &checksums));
    let (Some(etag), Some(value)) = (etag, value) else {
        tracing::error!(?upload, "an etag or a checksum of a part is malformed");
        return Err(ErrorCode::Internal.into());
    };
    let size = chosen.iter().map(|part| part.size).sum();
    let numbers = chosen.iter().map(|part| part.number).collect();
    Ok(Assembled { numbers, etags, etag, size, checksum: Checksum { algorithm, value } })
}

/// An error unless the object is what the client expects.
fn check_expected(wanted: &Complete, upload: &Upload, size: u64, checksum: &Checksum) -> Result<(), CompleteError> {
    if let Some(wanted) = wanted.size.filter(|wanted| *wanted != size) {
        return Err(CompleteError::Size { wanted, computed: size });
    }
    let (_, kind) = checksum_of(upload)?;
    if wanted.kind.is_some_and(|wanted| wanted != kind) {
        return Err(CompleteError::Kind(kind));
    }
    match &wanted.checksum {
        Some((of, value)) if *of == checksum.algorithm && strip(value) != strip(&checksum.value) => {
            Err(CompleteError::WrongChecksum(*of))
        }
        Some((of, _)) if *of != checksum.algorithm => Err(CompleteError::OtherAlgorithm(checksum.algorithm)),
        _ => Ok(()),
    }
}

/// A composite checksum with or without the number of parts.
fn strip(value: &str) -> &str {
    value.split_once('-').map_or(value, |(value, _)| value)
}

/// One call of CompleteMultipartUpload.
struct Making<'a> {
    call: &'a Call,
    namespace: &'a str,
    key: &'a str,
    path: &'a Path<'a>,
    /// Its name and its parents.
    entry_name: &'a str,
    parents: &'a [&'a str],
    /// The upload's.
    name: &'a str,
    wanted: &'a Complete,
    /// Of the chosen parts.
    hash: i64,
}

impl Gateway {
    /// Makes the object of an upload. Repeated with the same parts, answers the same.
    pub async fn complete_upload(
        &self,
        call: &Call,
        namespace: &str,
        key: &str,
        name: &str,
        wanted: &Complete,
    ) -> Result<Completed, CompleteError> {
        let path = object_path(key)?;
        let Some((entry_name, parents)) = path.split_last() else { return Err(ErrorCode::InvalidArgument.into()) };
        let hash = hash(namespace, key, name, wanted);
        let making = Making { call, namespace, key, path: &path, entry_name, parents, name, wanted, hash };
        let mut restarts = Restarts::default();
        loop {
            if let Some(completed) = self.try_to_complete(&making, &mut restarts).await? {
                return Ok(completed);
            }
        }
    }

    /// One pass through the steps; `None` if they have to be gone through again.
    async fn try_to_complete(
        &self,
        making: &Making<'_>,
        restarts: &mut Restarts,
    ) -> Result<Option<Completed>, CompleteError> {
        let Making { call, namespace, key, name, wanted, hash, .. } = *making;
        let upload = self.upload(call, namespace, key, name).await?;
        if upload.state == UploadState::Done {
            let is_repeated = upload.list_hash == Some(hash);
            return Ok(is_repeated.then(|| completed(&upload)).ok_or_else(no_such_upload)?.map(Some)?);
        }
        let uploaded = self.store.list_parts(upload.id, 0, PARTS_MAX).await?;
        let object = match assemble(&upload, &uploaded, wanted) {
            Ok(object) => object,
            // Parts go when an upload ends, which it may have done meanwhile.
            Err(invalid) => match self.upload(call, namespace, key, name).await?.state {
                UploadState::Done => return Ok(None),
                _ => return Err(invalid),
            },
        };
        check_expected(wanted, &upload, object.size, &object.checksum)?;
        let parent = self.make_parents(call, namespace, making.parents, None).await?;
        self.check_put(call, &parent.directory, making.entry_name).await?;
        self.admit_key(parent.directory.ns, making.path).await?;
        let destination = parent.directory.pid();
        let Some(sealed) = self.seal(making, &upload, &object, destination, restarts).await? else { return Ok(None) };
        let is_done = match sealed.attempt.destination {
            _ if sealed.state == UploadState::Done => true,
            Some(sealed_for) if sealed_for == destination => {
                self.put_completed(making, &upload, &object, &parent, sealed.attempt, restarts).await?
            }
            // An earlier attempt went to a directory that has moved away since, and may have come to its end there.
            _ => self.is_settled(sealed.attempt, restarts).await?,
        };
        Ok(is_done.then(|| Completed { etag: object.etag.clone(), checksum: object.checksum.clone() }))
    }

    /// The first step; `None` if another call is making an object of other parts.
    async fn seal(
        &self,
        making: &Making<'_>,
        upload: &Upload,
        object: &Assembled<'_>,
        destination: PartitionId,
        restarts: &mut Restarts,
    ) -> Result<Option<Sealed>> {
        let sealing = Sealing {
            parts: &object.numbers,
            etags: &object.etags,
            list_hash: making.hash,
            destination,
            etag: &object.etag,
            size: object.size,
            checksum: &object.checksum.value,
        };
        match self.store.seal_upload(&making.call.caller, upload.attempt, &sealing).await {
            // If that takes long, the gateway that does it may have died.
            Err(e) if e.code() == ErrorCode::UploadBusy => {
                restarts.again().await?;
                if restarts.0 > BUSY_RESTARTS && upload.state == UploadState::Sealed {
                    self.settle(upload.attempt).await?;
                }
                Ok(None)
            }
            sealed => sealed.map(Some),
        }
    }

    /// The second and the third step; `false` if they have to be gone through again.
    async fn put_completed(
        &self,
        making: &Making<'_>,
        upload: &Upload,
        object: &Assembled<'_>,
        parent: &Parent,
        attempt: Attempt,
        restarts: &mut Restarts,
    ) -> Result<bool> {
        let (principal, ns, request) = (attempt.principal, attempt.ns, attempt.request());
        let claim = RequestClaim { principal, ns, request, hash: making.hash };
        let answer = self
            .with_new_id(|id| {
                let new = NewObject {
                    name: making.entry_name.to_owned(),
                    id,
                    permission: Permission { owner: principal, group: upload.group, mode: OBJECT_MODE },
                    size: object.size,
                    etag: object.etag.clone(),
                    content_type: upload.content_type.clone(),
                    user_metadata: Some(object.checksum.kept_with(upload.user_metadata.clone())),
                    locator: Some(upload.id.manifest()),
                    inline: None,
                    precondition: making.wanted.precondition.clone(),
                    doubt: Doubt::default(),
                };
                self.store.put_object.submit(claim, &making.call.caller, parent.directory.leased_partition(), new)
            })
            .await;
        match answer.and_then(accepted) {
            Ok(written) => {
                self.delete_replaced(&written).await;
                match self.store.finish_upload(attempt).await {
                    Ok(unused) => self.delete_all(unused).await,
                    // The object is there. The next one who asks for the upload, or the sweeper, finishes it.
                    Err(error) => tracing::warn!(%error, "could not finish an upload"),
                }
                if let Some((key, made)) = &parent.made {
                    self.index.await_written(making.namespace, *key, made).await?;
                }
                Ok(true)
            }
            // The object may have been put, or may still be.
            Err(e) if matches!(e.code(), ErrorCode::UnknownOutcome | ErrorCode::DatabaseUnavailable) => Err(e),
            Err(e) => self.after_refused_put(making, parent, attempt, e, restarts).await,
        }
    }

    /// The object was not put, as far as this call knows. `true` if another one has put it, `false` to go on.
    async fn after_refused_put(
        &self,
        making: &Making<'_>,
        parent: &Parent,
        attempt: Attempt,
        refusal: Error,
        restarts: &mut Restarts,
    ) -> Result<bool> {
        if self.settle(attempt).await? == Settled::Done {
            return Ok(true);
        }
        let Making { call, namespace, key, wanted, .. } = *making;
        match refusal.code() {
            // Another one has ended this attempt.
            ErrorCode::RequestMismatch => restarts.again().await?,
            ErrorCode::IsDirectory => {
                let directory = parent.directory;
                match self.prune_ghost(directory.ns, directory.pid(), making.entry_name).await? {
                    true => restarts.again().await?,
                    false => return Err(refusal),
                }
            }
            ErrorCode::PreconditionFailed => {
                return Err(self.explain_failure(call, namespace, key, &wanted.precondition, refusal).await);
            }
            _ => restarts.after(self, refusal).await?,
        }
        Ok(false)
    }

    /// Settles an attempt; `true` if the object was put, otherwise after a pause.
    async fn is_settled(&self, attempt: Attempt, restarts: &mut Restarts) -> Result<bool> {
        if self.settle(attempt).await? == Settled::Done {
            return Ok(true);
        }
        restarts.again().await.map(|()| false)
    }

    /// Brings an attempt to its end, whoever began it: the object was put, or it never will be.
    pub(super) async fn settle(&self, attempt: Attempt) -> Result<Settled> {
        let was_put = self.store.fence_upload(attempt).await?;
        // The answer to the put may have been purged, long after it.
        if was_put || self.store.unused_locators(&[attempt.upload.manifest()]).await?.is_empty() {
            let unused = self.store.finish_upload(attempt).await?;
            self.delete_all(unused).await;
            return Ok(Settled::Done);
        }
        self.store.unseal_upload(attempt).await?;
        Ok(Settled::Open)
    }

    /// Ends an upload without an object. An error if it has become one. Without a caller: because it is over.
    pub(super) async fn end_upload(&self, caller: Option<&Caller>, attempt: Attempt, state: UploadState) -> Result<()> {
        if state == UploadState::Sealed && self.settle(attempt).await? == Settled::Done {
            return Err(no_such_upload());
        }
        let locators = self.store.abort_upload(caller, attempt.upload).await?;
        self.delete_all(locators).await;
        Ok(())
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The object was put, and the upload is done.
    Done,
    /// The object was not put, and the upload takes parts again.
    Open,
}

fn hash(namespace: &str, key: &str, name: &str, wanted: &Complete) -> i64 {
    let start = RequestHash::new("complete_upload", namespace, key).part(name);
    let parts = wanted.parts.iter();
    parts.fold(start, |hash, part| hash.part(part.number.to_le_bytes()).part(&part.etag)).finish()
}

/// The answer of an upload that is done.
fn completed(upload: &Upload) -> Result<Completed> {
    let (algorithm, _) = checksum_of(upload)?;
    let (Some(etag), Some(value)) = (upload.etag.clone(), upload.checksum.clone()) else {
        return Err(ErrorCode::Internal.into());
    };
    Ok(Completed { etag, checksum: Checksum { algorithm, value } })
}
