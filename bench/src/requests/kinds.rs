//! PostgreSQL's processor time by kind of process. A phase also pays for what earlier ones left behind: vacuum,
//! checkpoints, the extension's workers. The sum of all processes does not tell that from the requests' own cost.

use std::{collections::HashMap, time::Duration};

use anyhow::Result;

use crate::cpu::{Processes, Server, Servers};

/// The server, among those of the stack.
const POSTGRESQL: &str = "postgresql";

/// Kinds of processes. A process that has ended is in no list, so its kind is not known: nearly all are workers of
/// autovacuum, since sessions are kept.
pub const KINDS: [&str; 8] =
    ["sessions", "walsenders", "workers of Mantle", "autovacuum", "checkpointer", "WAL writer", "others", "ended"];
const OTHERS: usize = KINDS.len() - 2;
const ENDED: usize = KINDS.len() - 1;
/// How titles begin, behind the name of the cluster.
const BEGINNINGS: [(&str, usize); 6] = [
    ("walsender ", 1),
    ("mantle worker", 2),
    ("mantle launcher", 2),
    ("autovacuum ", 3),
    ("checkpointer", 4),
    ("walwriter", 5),
];

/// The kind of a process with this title (`postgres: CLUSTER: …`): a session's has the client's address.
fn kind(title: &str) -> usize {
    let Some((_, title)) = title.rsplit_once(": ") else { return OTHERS };
    let known = BEGINNINGS.iter().find(|(beginning, _)| title.starts_with(beginning));
    match known {
        Some((_, kind)) => *kind,
        None if title.contains('(') || title.contains("[local]") => 0,
        None => OTHERS,
    }
}

/// Processor time between two looks at a server, by kind.
fn between(before: &Processes, now: &Processes) -> [Duration; KINDS.len()] {
    let mut used = [Duration::ZERO; KINDS.len()];
    used[OTHERS] = now.own.saturating_sub(before.own);
    let mut earlier: HashMap<_, _> = before.living.iter().map(|child| (child.id, child.used)).collect();
    for child in &now.living {
        used[kind(&child.title)] += child.used.saturating_sub(earlier.remove(&child.id).unwrap_or_default());
    }
    // What is left has ended since, and the postmaster counts all of its time.
    let counted = before.ended + earlier.into_values().sum::<Duration>();
    used[ENDED] = now.ended.saturating_sub(counted);
    used
}

/// PostgreSQL's processes at the start of a phase.
pub struct KindClock {
    server: Server,
    before: Processes,
}

impl KindClock {
    /// `None` for services without PostgreSQL.
    pub fn start(servers: &Servers) -> Result<Option<Self>> {
        let Some(server) = servers.named(POSTGRESQL) else { return Ok(None) };
        Ok(Some(Self { server, before: server.processes()? }))
    }

    /// Processor time since the start, by kind.
    pub fn used(&self) -> Result<[Duration; KINDS.len()]> {
        Ok(between(&self.before, &self.server.processes()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Child;

    #[test]
    fn titles_tell_the_kind() {
        for (title, expected) in [
            ("postgres: mantle: gateway mantle 127.0.0.1(4711) idle", "sessions"),
            ("postgres: postgres postgres [local] SELECT", "sessions"),
            ("postgres: mantle: walsender index 127.0.0.1(53360) START_REPLICATION", "walsenders"),
            ("postgres: mantle: mantle worker mantle", "workers of Mantle"),
            ("postgres: mantle: mantle launcher", "workers of Mantle"),
            ("postgres: mantle: autovacuum worker mantle", "autovacuum"),
            ("postgres: checkpointer", "checkpointer"),
            ("postgres: mantle: walwriter", "WAL writer"),
            ("postgres: mantle: background writer", "others"),
            ("", "others"),
        ] {
            assert_eq!(KINDS[kind(title)], expected, "{title}");
        }
    }

    /// One session goes on, one ends, and a worker of autovacuum begins.
    #[test]
    fn time_is_counted_once() {
        let ms = Duration::from_millis;
        let child = |pid, title: &str, used| Child { id: (pid, 1), title: title.to_owned(), used: ms(used) };
        let (session, vacuum) = ("postgres: a b 127.0.0.1(1) idle", "postgres: autovacuum worker b");
        let living = vec![child(1, session, 100), child(2, session, 50)];
        let before = Processes { own: ms(5), living, ended: ms(1000) };
        let living = vec![child(1, session, 130), child(3, vacuum, 20)];
        let now = Processes { own: ms(6), living, ended: ms(1060) };
        let used = between(&before, &now);
        assert_eq!(used.map(|used| used.as_millis()), [30, 0, 0, 20, 0, 0, 1, 10]);
        assert_eq!(between(&now, &now), [Duration::ZERO; KINDS.len()]);
    }
}
