//! What one verb works on in one way: directories, and entries in them, of each client, on both workers.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::site::{CLIENTS, Site};
use crate::sql::Call;

/// Entries of a listed directory: one page.
const LISTED: i64 = 100;
/// Objects of one client's turn of deletes on one worker, put beforehand.
pub const DELETES: usize = 2_048;
const PUTS: usize = 512;

/// A verb, as it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Mkdir,
    /// So many objects a call.
    PutObject(usize),
    DeleteObject,
    Stat,
    List,
    RenameObject {
        across: bool,
    },
    RenameDirectory {
        across: bool,
    },
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

/// One client's on one worker.
struct Place {
    /// Its directory.
    here: i64,
    /// Where its entry goes, and comes back from; on the other worker if the verb is across nodes.
    there: i64,
    /// Its entry, or 0 and nothing.
    id: i64,
    name: String,
    renames: AtomicU64,
    /// The next object that is deleted.
    doomed: AtomicU64,
}

/// See the module.
pub struct Plot {
    verb: Verb,
    /// By client and worker.
    places: Vec<[Place; 2]>,
}

impl Plot {
    pub async fn new(site: &mut Site, verb: Verb) -> Result<Self> {
        let mut places = Vec::new();
        for client in 0..CLIENTS {
            let one = Place::new(site, verb, client, 0).await?;
            places.push([one, Place::new(site, verb, client, 1).await?]);
        }
        Ok(Self { verb, places })
    }

    /// What a turn uses up.
    pub async fn provide(&self, site: &Site) -> Result<()> {
        if self.verb != Verb::DeleteObject {
            return Ok(());
        }
        for (client, places) in self.places.iter().enumerate() {
            for (worker, place) in places.iter().enumerate() {
                let first = site.ids(DELETES as i64);
                for at in (0..DELETES).step_by(PUTS) {
                    let call = Call::PutObject { pid: place.here, id: first + at as i64, count: PUTS };
                    site.call(home(site, worker), client, &call).await?;
                }
                place.doomed.store(first as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// One call of a client, connected to this server, on what it has on this worker.
    pub async fn call(&self, site: &Site, server: usize, client: usize, worker: usize) -> Result<()> {
        let place = &self.places[client][worker];
        let (pid, name) = (place.here, place.name.as_str());
        let is_back = place.renames.load(Ordering::Relaxed) % 2 == 1;
        let (from, to) = if is_back { (place.there, place.here) } else { (place.here, place.there) };
        let doomed;
        let call = match self.verb {
            Verb::Mkdir => Call::Mkdir { pid, id: site.ids(1) },
            Verb::PutObject(count) => Call::PutObject { pid, id: site.ids(count as i64), count },
            Verb::DeleteObject => {
                doomed = format!("o{}", place.doomed.fetch_add(1, Ordering::Relaxed));
                Call::DeleteObject { pid, name: &doomed }
            }
            Verb::Stat => Call::Stat { pid, name },
            Verb::List => Call::List { pid, count: LISTED },
            Verb::RenameObject { .. } => Call::RenameObject { from, to, name },
            Verb::RenameDirectory { .. } => {
                Call::RenameDirectory { from, to, name, id: place.id, attempt: site.ids(1), signer: &site.signer }
            }
        };
        site.call(server, client, &call).await?;
        place.renames.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Place {
    async fn new(site: &mut Site, verb: Verb, client: usize, worker: usize) -> Result<Self> {
        let here = site.directory(worker)?;
        let there = site.directory(if verb.across() { 1 - worker } else { worker })?;
        let (id, server) = (site.ids(LISTED), home(site, worker));
        let name = match verb {
            Verb::Stat | Verb::List | Verb::RenameObject { .. } => {
                let count = if verb == Verb::List { LISTED as usize } else { 1 };
                site.call(server, client, &Call::PutObject { pid: here, id, count }).await?;
                format!("o{id}")
            }
            Verb::RenameDirectory { .. } => {
                site.call(server, client, &Call::Mkdir { pid: here, id }).await?;
                format!("d{id}/")
            }
            Verb::Mkdir | Verb::PutObject(_) | Verb::DeleteObject => String::new(),
        };
        Ok(Self { here, there, id, name, renames: AtomicU64::new(0), doomed: AtomicU64::new(0) })
    }
}

/// The server that has a worker's directories.
pub fn home(site: &Site, worker: usize) -> usize {
    if site.is_cluster() { 1 + worker } else { 0 }
}
