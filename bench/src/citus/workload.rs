//! The directories and entries that one verb works on: each client has its own, on both workers.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::deployment::{CLIENTS, Deployment};
use crate::sql::Call;

/// Entries of a listed directory: one page.
const LISTED: i64 = 100;
/// Objects that one client can delete in a turn on one worker; they are put before it.
pub const DELETES: usize = 2_048;
const PUTS: usize = 512;

/// A measured verb; `PutObject` with this many objects a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Mkdir,
    PutObject(usize),
    DeleteObject,
    Stat,
    List,
    RenameObject { across: bool },
    RenameDirectory { across: bool },
}

impl Verb {
    pub const ALL: [Self; 10] = [
        Self::Mkdir,
        Self::PutObject(1),
        Self::PutObject(64),
        Self::DeleteObject,
        Self::Stat,
        Self::List,
        Self::RenameObject { across: false },
        Self::RenameObject { across: true },
        Self::RenameDirectory { across: false },
        Self::RenameDirectory { across: true },
    ];

    pub fn name(self) -> String {
        let nodes = |across| if across { "across nodes" } else { "within a node" };
        match self {
            Self::Mkdir => "mkdir".into(),
            Self::PutObject(count) => format!("put_object, {count} a call"),
            Self::DeleteObject => "delete_object".into(),
            Self::Stat => "stat".into(),
            Self::List => format!("list of {LISTED}"),
            Self::RenameObject { across } => format!("rename_object {}", nodes(across)),
            Self::RenameDirectory { across } => format!("rename_directory {}", nodes(across)),
        }
    }

    /// Elements of one call.
    pub fn elements(self) -> u64 {
        if let Self::PutObject(count) = self { count as u64 } else { 1 }
    }

    fn across(self) -> bool {
        matches!(self, Self::RenameObject { across: true } | Self::RenameDirectory { across: true })
    }
}

struct Directories {
    here: i64,
    /// The directory that its entry is renamed to and back from; on the other worker for renames across nodes.
    there: i64,
    /// Id of its entry; the name is empty if the verb needs none.
    id: i64,
    name: String,
    renames: AtomicU64,
    /// Id of the object that the next delete_object removes.
    next_delete: AtomicU64,
}

pub struct Workload {
    verb: Verb,
    /// By client and worker.
    directories: Vec<[Directories; 2]>,
}

impl Workload {
    pub async fn new(deployment: &mut Deployment, verb: Verb) -> Result<Self> {
        let mut directories = Vec::new();
        for client in 0..CLIENTS {
            let one = Directories::new(deployment, verb, client, 0).await?;
            directories.push([one, Directories::new(deployment, verb, client, 1).await?]);
        }
        Ok(Self { verb, directories })
    }

    /// Puts the objects that a turn of deletes uses up.
    pub async fn provide(&self, deployment: &Deployment) -> Result<()> {
        if self.verb != Verb::DeleteObject {
            return Ok(());
        }
        for (client, directories) in self.directories.iter().enumerate() {
            for (worker, own) in directories.iter().enumerate() {
                let first = deployment.ids(DELETES as i64);
                for at in (0..DELETES).step_by(PUTS) {
                    let call = Call::PutObject { pid: own.here, id: first + at as i64, count: PUTS };
                    deployment.call(home(deployment, worker), client, &call).await?;
                }
                own.next_delete.store(first as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// One call of a client that is connected to `server`, on its directories on `worker`.
    pub async fn call(&self, deployment: &Deployment, server: usize, client: usize, worker: usize) -> Result<()> {
        let own = &self.directories[client][worker];
        let (pid, name) = (own.here, own.name.as_str());
        let is_back = own.renames.load(Ordering::Relaxed) % 2 == 1;
        let (from, to) = if is_back { (own.there, own.here) } else { (own.here, own.there) };
        let next_delete;
        let call = match self.verb {
            Verb::Mkdir => Call::Mkdir { pid, id: deployment.ids(1) },
            Verb::PutObject(count) => Call::PutObject { pid, id: deployment.ids(count as i64), count },
            Verb::DeleteObject => {
                next_delete = format!("o{}", own.next_delete.fetch_add(1, Ordering::Relaxed));
                Call::DeleteObject { pid, name: &next_delete }
            }
            Verb::Stat => Call::Stat { pid, name },
            Verb::List => Call::List { pid, count: LISTED },
            Verb::RenameObject { .. } => Call::RenameObject { from, to, name },
            Verb::RenameDirectory { .. } => {
                let (attempt, signer) = (deployment.ids(1), &deployment.signer);
                Call::RenameDirectory { from, to, name, id: own.id, attempt, signer }
            }
        };
        deployment.call(server, client, &call).await?;
        own.renames.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Directories {
    async fn new(deployment: &mut Deployment, verb: Verb, client: usize, worker: usize) -> Result<Self> {
        let here = deployment.directory(worker)?;
        let there = deployment.directory(if verb.across() { 1 - worker } else { worker })?;
        let (id, server) = (deployment.ids(LISTED), home(deployment, worker));
        let name = match verb {
            Verb::Stat | Verb::List | Verb::RenameObject { .. } => {
                let count = if verb == Verb::List { LISTED as usize } else { 1 };
                deployment.call(server, client, &Call::PutObject { pid: here, id, count }).await?;
                format!("o{id}")
            }
            Verb::RenameDirectory { .. } => {
                deployment.call(server, client, &Call::Mkdir { pid: here, id }).await?;
                format!("d{id}/")
            }
            Verb::Mkdir | Verb::PutObject(_) | Verb::DeleteObject => String::new(),
        };
        Ok(Self { here, there, id, name, renames: AtomicU64::new(0), next_delete: AtomicU64::new(0) })
    }
}

/// The server (from 0) that has a worker's directories.
pub fn home(deployment: &Deployment, worker: usize) -> usize {
    if deployment.is_cluster() { 1 + worker } else { 0 }
}
