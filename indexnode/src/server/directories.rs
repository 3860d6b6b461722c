//! Directories as a replica knows them, for `mantle fsck`: some by id, or those in one part of the index. A part is about a
//! thousandth, so that whoever goes through all of them keeps lookups waiting no longer than a batch of theirs does.

use mantle_index_client::proto::{DirectoriesRequest, Directory, directories_request::What};
use mantle_types::{DirectoryId, Error, ErrorCode, Result, message::DirectoryRecord};
use tokio::time::Instant;

use super::{request::time_limit, resolve};
use crate::{index::SLICES, node::Node};

/// Most ids in one request.
const IDS_MAX: usize = 4096;

/// What is asked for, as of everything that was committed before.
pub async fn directories(node: &Node, request: &DirectoriesRequest) -> Result<Vec<Directory>> {
    let unavailable = || Error::new(ErrorCode::IndexUnavailable, "this replica has no index yet");
    let wrong = |what: String| Error::new(ErrorCode::InvalidArgument, what);
    resolve::catch_up(node, Instant::now() + time_limit(request.timeout_ms)).await?;
    let state = node.state.read();
    if !state.index.is_serving() {
        return Err(unavailable());
    }
    let found: Vec<DirectoryRecord> = match &request.what {
        Some(What::Ids(ids)) if ids.ids.len() > IDS_MAX => {
            return Err(Error::new(ErrorCode::BatchTooLarge, format!("at most {IDS_MAX} ids are allowed")));
        }
        Some(What::Ids(ids)) => ids.ids.iter().filter_map(|id| state.index.record(DirectoryId(*id))).collect(),
        Some(What::Part(part)) if (*part as usize) < SLICES => {
            state.index.slice(*part as usize).filter_map(|id| state.index.record(id)).collect()
        }
        Some(What::Part(part)) => return Err(wrong(format!("there are {SLICES} parts, {part} is none"))),
        None => return Err(wrong("no directories are asked for".into())),
    };
    Ok(found.into_iter().map(Directory::from).collect())
}
