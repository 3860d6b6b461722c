//! The configuration file, read once at the start. Unknown keys are refused, relations are checked, secrets are in files of
//! their own.

use std::{
    fs,
    net::ToSocketAddrs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use mantle_tls::{PostgresTls, TlsSettings, is_loopback, secret_file};
use mantle_types::{GroupId, limits::PATH_DEPTH_MAX};
use serde::{Deserialize, Deserializer};

pub use crate::lookup::{Invalidation, LookupSettings};

const THREADS_MAX: usize = 1024;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The index groups of which this process has a replica, as in `mantle.index_groups`: `groups = [1, 2]`, or `group = 1`.
    #[serde(alias = "group", deserialize_with = "one_or_several")]
    #[cfg_attr(test, schemars(with = "Vec<u32>"))]
    pub groups: Vec<GroupId>,
    /// Directory of the groups' logs, snapshots and identities; no other process may use it.
    pub data_dir: PathBuf,
    /// gRPC: the index service for gateways, and the service between replicas.
    pub listen: String,
    /// HTTP: `/livez`, `/readyz`, `/metrics`.
    pub http_listen: String,
    /// gRPC addresses of all replicas that vote, this one's `listen` among them unless it is a learner.
    pub peers: Vec<String>,
    /// gRPC addresses of the learners that may join.
    #[serde(default)]
    pub learners: Vec<String>,
    /// Threads of the runtime; work that waits for a disk has other threads. By default one for every two processors: calls and
    /// answers pass from task to task, and waking a task on another processor costs more than a lookup.
    #[serde(default = "default_threads")]
    #[cfg_attr(test, schemars(extend("default" = "one per two processors")))]
    pub threads: usize,
    /// Answers lookups, but neither votes nor leads until an administrator promotes it.
    #[serde(default)]
    pub learner: bool,
    /// Certificates for gRPC. Needed unless `listen` is a loopback address.
    #[serde(default)]
    pub tls: Option<TlsSettings>,
    /// The PostgreSQL node, without PgBouncer, which cannot pass on a replication connection.
    pub postgres: PostgresSettings,
    /// Settings of Raft.
    #[serde(default)]
    pub raft: RaftSettings,
    /// Rename locks.
    #[serde(default)]
    pub rename: RenameSettings,
    /// Lookups.
    #[serde(default)]
    pub lookup: LookupSettings,
}

/// How to reach PostgreSQL.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PostgresSettings {
    /// Host name, address, or directory of its Unix socket.
    pub host: String,
    /// TCP port; 5432 by default.
    #[serde(default = "default_port")]
    pub port: u16,
    /// Name of the database.
    pub database: String,
    /// A login role with REPLICATION, member of `mantle_index`.
    pub user: String,
    /// File with its password, mode 0600.
    pub password_file: PathBuf,
    /// Certificates for TLS. Needed unless `host` is this machine.
    #[serde(default)]
    pub tls: Option<PostgresTls>,
    /// Connects without TLS to another machine: passwords, names and permissions can be read on the way.
    #[serde(default)]
    pub plain: bool,
}

/// Highest size of an entry's operations, in bytes (P28). A message between replicas may be larger.
pub(crate) const ENTRY_BYTES_MAX: usize = 4 << 20;

/// Settings of Raft, the same on every replica.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RaftSettings {
    /// A follower without contact to a leader campaigns after this time, or up to twice as long.
    pub election_timeout_ms: u64,
    /// Interval of the leader's heartbeats.
    pub heartbeat_ms: u64,
    /// A snapshot is built after this many entries.
    pub snapshot_log_entries: u64,
    /// Transactions that arrive while an entry is written share the next one, and waiting entries share a flush. `false` is for
    /// measurements: one entry for each transaction, one flush for each append.
    pub log_batching: bool,
    /// Highest size of an entry's operations, in bytes. Only tests set it.
    #[serde(skip)]
    pub entry_bytes_max: usize,
}

/// Rename locks.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RenameSettings {
    /// Longest time a rename may hold its lock, in milliseconds.
    pub lock_ms_max: u32,
}

fn one_or_several<'de, D: Deserializer<'de>>(groups: D) -> Result<Vec<GroupId>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Groups {
        One(GroupId),
        Several(Vec<GroupId>),
    }
    Ok(match Groups::deserialize(groups)? {
        Groups::One(group) => vec![group],
        Groups::Several(groups) => groups,
    })
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2))
}

fn default_port() -> u16 {
    5432
}

impl Default for RaftSettings {
    fn default() -> Self {
        Self {
            election_timeout_ms: 500,
            heartbeat_ms: 100,
            snapshot_log_entries: 20_000,
            log_batching: true,
            entry_bytes_max: ENTRY_BYTES_MAX,
        }
    }
}

impl Default for RenameSettings {
    fn default() -> Self {
        Self { lock_ms_max: 30_000 }
    }
}

impl RaftSettings {
    /// Duration of a leader's lease, which a follower's answer grants; also the longest election timeout.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.election_timeout_ms * 2)
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let config = Self::parse(&text).with_context(|| format!("configuration {}", path.display()))?;
        config.password()?;
        Ok(config)
    }

    /// Parses and checks a text.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text).map_err(|e| anyhow::anyhow!("{}", e.to_string().trim_end()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.groups.is_empty(), "groups names no group");
        for (i, group) in self.groups.iter().enumerate() {
            let range = GroupId(1)..=GroupId::MAX;
            ensure!(range.contains(group), "groups: a group is a number from 1 to {}", GroupId::MAX);
            ensure!(!self.groups[..i].contains(group), "groups names {group} twice");
        }
        ensure!((1..=THREADS_MAX).contains(&self.threads), "threads must be between 1 and {THREADS_MAX}");
        ensure!(!self.data_dir.as_os_str().is_empty(), "data_dir is empty");
        resolve(&self.listen).context("listen")?;
        resolve(&self.http_listen).context("http_listen")?;
        ensure!(
            self.tls.is_some() || is_loopback(&self.listen).context("listen")?,
            "listen `{}` is not a loopback address, so it needs certificates: add the section [tls]",
            self.listen
        );
        ensure!(self.listen != self.http_listen, "listen and http_listen are the same address");
        ensure!(
            self.learner || self.peers.contains(&self.listen),
            "peers does not contain this replica's listen address `{}`",
            self.listen
        );
        ensure!(!self.peers.is_empty(), "peers names no replica");
        ensure!(self.peers.len() <= 9, "peers has {} replicas, at most 9 make sense", self.peers.len());
        for (i, peer) in self.peers.iter().enumerate() {
            resolve(peer).context("peers")?;
            ensure!(!self.peers[..i].contains(peer), "peers names `{peer}` twice");
        }
        for learner in &self.learners {
            resolve(learner).context("learners")?;
            ensure!(!self.peers.contains(learner), "`{learner}` is among both peers and learners");
        }
        for other in self.peers.iter().chain(&self.learners) {
            ensure!(
                self.tls.is_some() || is_loopback(other)?,
                "`{other}` is another machine, so its calls need certificates: add the section [tls]"
            );
        }
        for (name, value) in
            [("host", &self.postgres.host), ("database", &self.postgres.database), ("user", &self.postgres.user)]
        {
            ensure!(!value.is_empty(), "postgres.{name} is empty");
        }
        let PostgresSettings { host, port, tls, plain, .. } = &self.postgres;
        mantle_tls::check_database(host, *port, tls.as_ref(), *plain)?;
        let raft = &self.raft;
        ensure!(raft.heartbeat_ms >= 10, "raft.heartbeat_ms must be at least 10");
        ensure!(
            raft.election_timeout_ms >= 3 * raft.heartbeat_ms,
            "raft.election_timeout_ms must be at least three times heartbeat_ms, or one late heartbeat starts an election"
        );
        ensure!(raft.election_timeout_ms <= 60_000, "raft.election_timeout_ms must be at most 60000");
        ensure!(raft.snapshot_log_entries >= 100, "raft.snapshot_log_entries must be at least 100");
        ensure!(
            self.lookup.cache_levels <= PATH_DEPTH_MAX,
            "lookup.cache_levels must be at most {PATH_DEPTH_MAX}, the deepest path"
        );
        ensure!(self.rename.lock_ms_max >= 1000, "rename.lock_ms_max must be at least 1000");
        Ok(())
    }

    /// The password of the PostgreSQL role.
    pub fn password(&self) -> Result<String> {
        secret_file::password(&self.postgres.password_file).context("postgres.password_file")
    }

    /// The other replicas' addresses.
    pub fn others(&self) -> impl Iterator<Item = &String> {
        self.peers.iter().filter(|peer| **peer != self.listen)
    }
}

fn resolve(address: &str) -> Result<()> {
    let mut found = address.to_socket_addrs().with_context(|| format!("`{address}` is not host:port"))?;
    ensure!(found.next().is_some(), "`{address}` has no address");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_page_is_current() {
        let page = mantle_telemetry::settings_page::page(&schemars::schema_for!(Config).into());
        mantle_types::pages::assert_section("settings.md", "indexnode", &page);
    }

    const GOOD: &str = r#"
        group = 1
        data_dir = "data"
        listen = "127.0.0.1:7411"
        http_listen = "127.0.0.1:7421"
        peers = ["127.0.0.1:7411", "127.0.0.1:7412"]
        [postgres]
        host = "127.0.0.1"
        database = "mantle"
        user = "index"
        password_file = "password"
    "#;

    fn error(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn a_good_file_gets_defaults() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!((config.raft.lease().as_millis(), &config.groups[..]), (1000, &[GroupId(1)][..]));
        assert!(config.threads >= 1);
        assert_eq!(config.others().collect::<Vec<_>>(), ["127.0.0.1:7412"]);
    }

    #[test]
    fn a_process_may_host_several_groups() {
        let config = Config::parse(&GOOD.replace("group = 1", "groups = [3, 1]")).unwrap();
        assert_eq!(config.groups, [GroupId(3), GroupId(1)]);
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(error(&format!("{GOOD}\n[raft]\nelection_timeout = 1")).contains("election_timeout"));
        assert!(error(&format!("colour = 1\n{GOOD}")).contains("colour"));
    }

    #[test]
    fn broken_relations_are_refused() {
        for (from, to, why) in [
            ("group = 1", "group = 0", "group"),
            ("group = 1", "groups = []", "no group"),
            ("group = 1", "group = 1\nthreads = 0", "threads"),
            ("group = 1", "groups = [1, 2, 1]", "twice"),
            ("http_listen = \"127.0.0.1:7421\"", "http_listen = \"127.0.0.1:7411\"", "same address"),
            ("\"127.0.0.1:7411\", \"127.0.0.1:7412\"", "\"127.0.0.1:7412\"", "does not contain"),
            ("\"127.0.0.1:7412\"", "\"127.0.0.1:7411\"", "twice"),
            ("\"127.0.0.1:7412\"", "\"nonsense\"", "host:port"),
            ("database = \"mantle\"", "database = \"\"", "postgres.database"),
            ("127.0.0.1:7411", "10.0.0.1:7411", "not a loopback address"),
            ("127.0.0.1:7412", "10.0.0.1:7412", "calls need certificates"),
            ("host = \"127.0.0.1\"", "host = \"10.0.0.1\"", "[postgres.tls]"),
        ] {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            let message = error(&text);
            assert!(message.contains(why), "{message}");
        }
        assert!(error(&format!("{GOOD}\n[raft]\nheartbeat_ms = 400")).contains("three times"));
        assert!(error(&format!("{GOOD}\n[lookup]\ncache_levels = 129")).contains("cache_levels"));
    }
}
