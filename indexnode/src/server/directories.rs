//! `Directories`: a replica's records for `mantle fsck`, by id or by part of the index. A part is about a thousandth of the
//! index, so that reading all parts delays lookups no longer than one of their own batches.

use mantle_index_client::proto::{DirectoriesRequest, Directory, directories_request::What};
use mantle_types::{DirectoryId, Error, ErrorCode, Result, message::DirectoryRecord};
use tokio::time::Instant;

use super::{
    request::{no_index, time_limit},
    resolve,
};
use crate::{index::SLICES, node::Node};

const IDS_MAX: usize = 4096;

/// The requested records. They reflect everything that was committed before the call.
pub async fn directories(node: &Node, request: &DirectoriesRequest) -> Result<Vec<Directory>> {
    let wrong = |what: String| Error::new(ErrorCode::InvalidArgument, what);
    resolve::catch_up(node, Instant::now() + time_limit(request.timeout_ms)).await?;
    let state = node.state.read();
    if !state.index.is_serving() {
        return Err(no_index());
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
