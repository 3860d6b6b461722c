//! Loads the directories of an ordered tree. First it finds the existing directories, level by level from the root, and
//! stops at the first level without one: an empty namespace costs one call. Then it makes the others in the order of
//! the walk. So a call has whole subtrees and needs few latches, because only parents outside the call are latched.
//! Finally it makes the directories explicit that have a line of their own, so that they stay when they are empty.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use mantle_types::{
    ErrorCode,
    limits::{BATCH_ELEMENTS_MAX, BATCH_LATCHES_MAX},
};
use parking_lot::Mutex;

use super::{
    load::{Load, Loaded},
    order::directory_batches,
    progress::Progress,
    report::Finding,
    session::{Answer, CallError, Ids, Session, error_code, in_parallel, interrupted, position},
    tree::Node,
};
use crate::sql;

/// Directories of one call that makes them: one transaction and one change-stream message.
const DIRECTORIES_PER_CALL: usize = 8_192;
/// Directories of one call that makes them explicit; each takes up to two latches.
const EXPLICIT_PER_CALL: usize = 256;

/// Ids of the tree's directories; unknown and refused directories have an error code instead.
pub type DirectoryIds = Vec<Result<i64, ErrorCode>>;

/// The code of a directory below a refused one.
pub fn below(parent: ErrorCode) -> ErrorCode {
    if parent == ErrorCode::IsObject { ErrorCode::ParentIsObject } else { parent }
}

impl Load {
    /// Makes all directories, parents first.
    pub async fn directories(&self, progress: &Progress) -> Result<(DirectoryIds, Loaded)> {
        let ids = &mut Ids::new(&self.url, self.order.walk.len());
        // Only the root is known at the start.
        let mut known: DirectoryIds = vec![Err(ErrorCode::NotFound); self.tree.directories.len()];
        known[Node::ROOT.index()] = Ok(self.ns.as_i64());
        let existing = self.find_existing(&mut known, progress).await?;
        let missing = self.order.walk.iter().copied().filter(|node| known[node.index()].is_err());
        let mut calls: VecDeque<Vec<Node>> =
            directory_batches(&self.tree, missing, DIRECTORIES_PER_CALL, BATCH_LATCHES_MAX).into();
        let mut loaded = Loaded { existing, ..Loaded::default() };
        // One session, because a call needs the directories of earlier calls.
        let mut session = Session::new(&self.url, sql::IMPORT_DIRECTORIES);
        while let Some(nodes) = calls.pop_front() {
            if self.cancel.is_cancelled() {
                return Err(interrupted());
            }
            let first_id = ids.take(nodes.len()).await?;
            match self.make(&mut session, &nodes, first_id, &mut known).await {
                Ok(()) => {
                    for (id, node) in (first_id..).zip(&nodes) {
                        match known[node.index()] {
                            Ok(own) if own == id => loaded.inserted += 1,
                            Ok(_) => loaded.existing += 1,
                            Err(code) => self.report_directory(*node, code)?,
                        }
                    }
                    progress.add(nodes.len() as u64);
                }
                // Others made many of these directories meanwhile, and each existing parent needs a latch.
                Err(error) if error.code == Some(ErrorCode::BatchTooLarge) && nodes.len() > 1 => {
                    let (head, tail) = nodes.split_at(nodes.len() / 2);
                    calls.push_front(tail.to_vec());
                    calls.push_front(head.to_vec());
                }
                Err(error) => return Err(error).context("directories"),
            }
        }
        self.make_explicit(&known, ids).await?;
        Ok((known, loaded))
    }

    /// Finds the existing directories; answers their number.
    async fn find_existing(&self, known: &mut DirectoryIds, progress: &Progress) -> Result<u64> {
        let mut sessions = Session::several(self.connections, &self.url, sql::IMPORT_KNOWN);
        let mut count = 0;
        for level in &self.order.levels {
            let has_known_parent = |node: &Node| known[self.tree.directories[node.index()].parent.index()].is_ok();
            let asked: Vec<Node> = level.iter().copied().filter(has_known_parent).collect();
            let found = Mutex::new(Vec::new());
            in_parallel(&mut sessions, asked.chunks(BATCH_ELEMENTS_MAX), &self.cancel, async |session, nodes| {
                let (pids, names) = self.places(nodes, known);
                let answer = session.call(&[&self.ns.as_i64(), &pids, &names]).await.context("directories")?;
                let mut found = found.lock();
                for row in answer.rows {
                    found.push((nodes[position(row.get(0), nodes.len())?], row.get::<_, i64>(1)));
                }
                Ok(())
            })
            .await?;
            let found = found.into_inner();
            if found.is_empty() {
                break;
            }
            count += found.len() as u64;
            progress.add(found.len() as u64);
            for (node, id) in found {
                known[node.index()] = Ok(id);
            }
        }
        Ok(count)
    }

    /// Parents' ids and names (with their slash) of directories whose parents are known.
    fn places(&self, nodes: &[Node], known: &DirectoryIds) -> (Vec<i64>, Vec<String>) {
        let directories = nodes.iter().map(|node| &self.tree.directories[node.index()]);
        directories
            .map(|d| (known[d.parent.index()].unwrap_or_default(), format!("{}/", self.tree.name(d.name))))
            .unzip()
    }

    /// Makes directories; each parent is known or precedes its child. Directories below a refused one are not sent.
    async fn make(
        &self,
        session: &mut Session,
        nodes: &[Node],
        first_id: i64,
        known: &mut DirectoryIds,
    ) -> Result<(), CallError> {
        // Until the answer, a directory counts as made under its new id.
        let (mut sent, mut new_ids) = (Vec::new(), Vec::new());
        for (id, node) in (first_id..).zip(nodes) {
            let parent = self.tree.directories[node.index()].parent;
            known[node.index()] = known[parent.index()].map(|_| id).map_err(below);
            if known[node.index()].is_ok() {
                sent.push(*node);
                new_ids.push(id);
            }
        }
        if sent.is_empty() {
            return Ok(());
        }
        let (pids, names) = self.places(&sent, known);
        let answer = session.call(&[&self.principal, &self.ns.as_i64(), &pids, &names, &new_ids]).await;
        let result = answer.and_then(|answer| self.take_answer(&answer, &sent, known));
        if result.is_err() {
            nodes.iter().for_each(|node| known[node.index()] = Err(ErrorCode::NotFound));
        }
        result
    }

    /// Records the directories that a call did not make: they exist under another id, or are refused.
    fn take_answer(&self, answer: &Answer, sent: &[Node], known: &mut DirectoryIds) -> Result<(), CallError> {
        for row in &answer.rows {
            let node = sent[position(row.get(0), sent.len())?];
            known[node.index()] = match (error_code(row.get(1))?, row.get::<_, Option<i64>>(2)) {
                (ErrorCode::AlreadyExists, Some(id)) => Ok(id),
                (code, _) => Err(code),
            };
        }
        // A directory below a refused one gets that one's reason. Parents precede children.
        for node in sent {
            let parent = self.tree.directories[node.index()].parent;
            if let Err(code) = known[parent.index()] {
                known[node.index()] = Err(below(code));
            }
        }
        Ok(())
    }

    /// Makes explicit the directories that a line names.
    async fn make_explicit(&self, known: &DirectoryIds, ids: &mut Ids) -> Result<()> {
        let is_listed = |node: &Node| self.tree.directories[node.index()].listed != 0 && known[node.index()].is_ok();
        let listed: Vec<Node> = self.order.walk.iter().copied().filter(is_listed).collect();
        let mut jobs = Vec::new();
        for nodes in listed.chunks(EXPLICIT_PER_CALL) {
            jobs.push((nodes, ids.take(nodes.len()).await?));
        }
        let mut sessions = Session::several(self.connections, &self.url, sql::IMPORT_EXPLICIT);
        in_parallel(&mut sessions, jobs, &self.cancel, async |session, (nodes, first_id)| {
            let (pids, names) = self.places(nodes, known);
            let new_ids: Vec<i64> = (first_id..).take(nodes.len()).collect();
            let answer = session
                .call(&[&self.principal, &self.ns.as_i64(), &pids, &names, &new_ids])
                .await
                .context("explicit directories")?;
            for row in answer.rows {
                match row.get::<_, Option<&str>>(1).map(error_code).transpose()? {
                    // It was explicit before.
                    None | Some(ErrorCode::AlreadyExists) => {}
                    Some(code) => self.report_directory(nodes[position(row.get(0), nodes.len())?], code)?,
                }
            }
            Ok(())
        })
        .await
    }

    /// Reports a directory that a line names. An implied one is reported by the lines below it.
    fn report_directory(&self, node: Node, code: ErrorCode) -> Result<()> {
        let directory = &self.tree.directories[node.index()];
        if directory.listed != 0 {
            let path = self.tree.directory_path(node);
            self.report.lock().add(
                directory.listed.into(),
                path.as_bytes(),
                Finding::refused(code),
                code.row().meaning,
            )?;
        }
        Ok(())
    }
}
