//! Loads the objects of an ordered tree in batches over several connections. Invariant: a call is repeated until it is
//! acknowledged or fails for good, and repeating it is harmless. So after an interruption at any point a second run
//! loads the missing objects and counts the others as existing.

use anyhow::{Context, Result};
use mantle_types::{
    ErrorCode,
    limits::{BATCH_ELEMENTS_MAX, BATCH_LATCHES_MAX},
};
use parking_lot::Mutex;

use super::{
    directories::{DirectoryIds, below},
    load::{Load, Loaded},
    order::{Batch, interleave},
    progress::Progress,
    report::Finding,
    session::{Ids, Session, error_code, in_parallel, position},
    size::PathHash,
    tree::{Node, Object},
};
use crate::sql;

/// The columns of one call of `import_objects`, and their objects.
#[derive(Default)]
struct Columns<'a> {
    objects: Vec<&'a Object>,
    pids: Vec<i64>,
    names: Vec<&'a str>,
    sizes: Vec<i64>,
}

impl Load {
    /// Makes all objects, over [`Load::connections`] connections.
    pub async fn objects(&self, known: &DirectoryIds, progress: &Progress) -> Result<Loaded> {
        let mut ids = Ids::new(&self.url, self.order.objects.len());
        let mut jobs = Vec::new();
        for batch in self.order.batches(&self.tree, BATCH_ELEMENTS_MAX, BATCH_LATCHES_MAX) {
            let first_id = ids.take(batch.range.len()).await?;
            jobs.push((batch, first_id));
        }
        let jobs = interleave(jobs, self.connections);
        let mut sessions = Session::several(self.connections, &self.url, sql::IMPORT_OBJECTS);
        let loaded = Mutex::new(Loaded::default());
        in_parallel(&mut sessions, jobs, &self.cancel, async |session, (batch, first_id)| {
            let columns = self.columns(&batch, known)?;
            let counts = self.send(session, &columns, first_id, batch.is_synthetic).await.context("objects")?;
            let mut loaded = loaded.lock();
            loaded.inserted += counts.inserted;
            loaded.existing += counts.existing;
            loaded.repeated += counts.repeated;
            progress.add(batch.range.len() as u64);
            Ok(())
        })
        .await?;
        Ok(loaded.into_inner())
    }

    /// The columns of a batch. Objects below refused directories are reported, not sent.
    fn columns(&self, batch: &Batch, known: &DirectoryIds) -> Result<Columns<'_>> {
        let mut columns = Columns::default();
        let mut hash: Option<(Node, PathHash)> = None;
        for at in &self.order.objects[batch.range.clone()] {
            let object = &self.tree.objects[*at as usize];
            let pid = match known[object.parent.index()] {
                Ok(pid) => pid,
                Err(code) => {
                    self.report_object(object, below(code))?;
                    continue;
                }
            };
            let name = self.tree.name(object.name);
            let size = if batch.is_synthetic {
                let directory = match hash {
                    Some((node, hash)) if node == object.parent => hash,
                    _ => PathHash::new(self.seed).extend(&self.tree.directory_path(object.parent)),
                };
                hash = Some((object.parent, directory));
                directory.extend(name).size()
            } else {
                object.size
            };
            columns.objects.push(object);
            columns.pids.push(pid);
            columns.names.push(name);
            columns.sizes.push(size);
        }
        Ok(columns)
    }

    async fn send(
        &self,
        session: &mut Session,
        columns: &Columns<'_>,
        first_id: i64,
        is_synthetic: bool,
    ) -> Result<Loaded> {
        if columns.objects.is_empty() {
            return Ok(Loaded::default());
        }
        let (ns, Columns { objects, pids, names, sizes }) = (self.ns.as_i64(), columns);
        let answer =
            session.call(&[&self.principal, &ns, pids, names, sizes, &first_id, &is_synthetic, &self.modified]).await?;
        let row = answer.first()?;
        let (inserted, existing): (i64, i64) = (row.get(0), row.get(1));
        let refused: Option<Vec<i32>> = row.get(2);
        let codes: Option<Vec<&str>> = row.get(3);
        for (ord, code) in refused.unwrap_or_default().into_iter().zip(codes.unwrap_or_default()) {
            self.report_object(objects[position(ord, objects.len())?], error_code(code)?)?;
        }
        let existing = existing as u64;
        Ok(Loaded { inserted: inserted as u64, existing, repeated: if answer.is_repeated { existing } else { 0 } })
    }

    fn report_object(&self, object: &Object, code: ErrorCode) -> Result<()> {
        let path = self.tree.object_path(object);
        Ok(self.report.lock().add(object.line.into(), path.as_bytes(), Finding::refused(code), code.row().meaning)?)
    }
}
