//! The gateway's configuration file (TOML). Unknown keys are refused and relations between values are checked, so a
//! file that `--check-config` accepts also starts. A name contains its unit: milliseconds, seconds or bytes.

mod volumes;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::NonZero,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use mantle_tls::{Https, PostgresTls, TlsSettings, check_database, is_loopback};
use mantle_types::limits::{BATCH_LATCHES_MAX, ID_BLOCK_MAX, INLINE_BYTES_MAX};
use serde::Deserialize;

pub use self::volumes::Volumes;

/// Most elements of a batch: each takes up to two latches, its directory's and its name's.
const COALESCED_ELEMENTS_MAX: usize = BATCH_LATCHES_MAX / 2;
/// The name of the store that is a folder of files.
pub(crate) const FILES: &str = "files";
/// The name of the store that is a volume.
pub(crate) const VOLUMES: &str = "volumes";
/// Names of stores that are no buckets.
const RESERVED: [&str; 2] = [FILES, VOLUMES];
/// Longest name of a bucket: it is in every locator.
const BUCKET_NAME_BYTES_MAX: usize = 32;
/// More threads would only wake each other.
const THREADS_MAX: usize = 1024;
/// The longest age in a setting, 100 years in seconds: PostgreSQL and calendars have no times much longer ago.
const AGE_MAX_S: u64 = 100 * 365 * 86_400;

/// The configuration.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of S3 and the native API.
    pub listen: SocketAddr,
    /// HTTP for operators: `/livez`, `/readyz`, `/metrics`.
    pub probes_listen: SocketAddr,
    /// HTTPS on `listen`, HTTP/1.1 and HTTP/2. Needed unless `listen` is a loopback address.
    #[serde(default)]
    pub https: Option<Https>,
    /// Serves HTTP without TLS on an address that is no loopback address: tokens and objects can be read on the way. For
    /// a proxy that ends TLS on a network of its own. With the section `[https]`, `listen` takes both, for as long as clients
    /// change to HTTPS.
    #[serde(default)]
    pub plain_http: bool,
    /// A folder for the objects' bytes, one file an object. All gateways that use files need the same folder.
    #[serde(default)]
    pub data_dir: Option<PathBuf>,
    /// Buckets of other object stores for the objects' bytes, by names of lower-case letters, digits and hyphens. The rows of
    /// objects keep a bucket's name: do not change it while it holds bytes.
    #[serde(default)]
    pub buckets: BTreeMap<String, Bucket>,
    /// A volume for the objects' bytes: one file for all of them. This gateway alone writes to it.
    #[serde(default)]
    pub volumes: Option<Volumes>,
    /// The store that takes the bytes of new objects: `files` (`data_dir`), `volumes`, or the name of a bucket. Needed if there
    /// are several.
    #[serde(default)]
    pub new_bytes: Option<String>,
    /// Domains below which buckets are hosts (`bucket.s3.example`). A request to any other host than these, an address,
    /// `localhost`, the machine's own name and `path_style_hosts` is refused.
    #[serde(default)]
    pub domains: Vec<String>,
    /// Further names of this service, where the bucket is in the path: those of load balancers.
    #[serde(default)]
    pub path_style_hosts: Vec<String>,
    /// The S3 region's name.
    #[serde(default = "default_region")]
    pub region: String,
    /// File of the credentials, mode 0600.
    pub credentials_file: PathBuf,
    /// Threads that answer requests, by default one per processor; waits for a disk have further threads. Fewer threads
    /// make each call cheaper where PostgreSQL and IndexNodes share the processors, because calls wake other threads
    /// less often.
    #[serde(default = "default_threads")]
    #[cfg_attr(test, schemars(extend("default" = "one per processor")))]
    pub threads: usize,
    /// Name of this gateway; the owner of its id blocks.
    #[serde(default = "default_owner_name")]
    pub owner_name: String,
    /// Certificates for the connections to the IndexNodes. Needed unless all are on loopback addresses.
    #[serde(default)]
    pub tls: Option<TlsSettings>,
    /// The metadata database.
    pub postgres: Postgres,
    /// The IndexNode group.
    pub index: Index,
    /// Named limits.
    #[serde(default)]
    pub limits: Limits,
}

/// A bucket of S3, Google Cloud Storage or Azure, or of a service that speaks one of their protocols.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
    pub url: String,
    /// Options of the client, by the names of the crate `object_store`: `aws_region`, `aws_endpoint`, `aws_allow_http`,
    /// `azure_storage_account_name`, … Without keys, an instance's own identity is used.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// A TOML file of further options, which are secret, such as `aws_secret_access_key`; mode 0600.
    #[serde(default)]
    pub secrets_file: Option<PathBuf>,
    /// Certificates of the authorities (PEM) that may sign the bucket's certificate, instead of the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

/// How to reach PostgreSQL; PgBouncer in transaction mode is expected between.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Port of the PgBouncer beside every node of a Citus cluster; without it, the node's own port.
    #[serde(default)]
    pub node_port: Option<u16>,
    /// Database.
    pub database: String,
    /// Login role, a member of `mantle_gateway`.
    pub user: String,
    /// File with the password, if the server asks for one; mode 0600.
    pub password_file: Option<PathBuf>,
    /// Certificates for TLS. Needed unless `host` is this machine.
    #[serde(default)]
    pub tls: Option<PostgresTls>,
    /// Connects without TLS to another machine: passwords, names and permissions can be read on the way.
    #[serde(default)]
    pub plain: bool,
    /// Most connections per node.
    #[serde(default = "default_pool_size")]
    pub pool_size: usize,
    /// Most calls of one verb, or reads of entries on one node, in flight; further elements wait for the next batch.
    #[serde(default = "default_batches_in_flight_max")]
    pub batches_in_flight_max: usize,
    /// Most elements of a batch; fewer where they would take too many latches. 1 turns batching off, and with it the
    /// bound on calls in flight.
    #[serde(default = "default_batch_elements_max")]
    pub batch_elements_max: usize,
}

/// The IndexNode groups that serve the namespaces.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Unused. Older versions had one group; now PostgreSQL says which group serves a namespace.
    #[serde(default)]
    pub group: Option<u32>,
    /// gRPC addresses (`host:port`) of the IndexNode processes. Each has replicas of all groups.
    pub replicas: Vec<String>,
}

/// Named limits.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest object that one PutObject may carry.
    pub object_bytes_max: u64,
    /// Largest JSON body of the native API and XML body of S3.
    pub document_bytes_max: usize,
    /// Most paths of one batch stat.
    pub stat_paths_max: usize,
    /// How long an acknowledgement waits for the index.
    pub await_timeout_ms: u64,
    /// How long a rename may hold its lock.
    pub rename_lock_ms: u32,
    /// How long a call waits for a pooled connection.
    pub connection_wait_ms: u64,
    /// How long a request waits for PostgreSQL and the index. The time in which bytes are sent, stored or read does not count.
    /// Then the answer is 503: `database_unavailable` if no change was sent for the request, otherwise `unknown_outcome`. A
    /// change that was sent goes on. Must be more than `connection_wait_ms` and `await_timeout_ms`.
    pub answer_wait_ms: u64,
    /// Ids taken from PostgreSQL at a time, from 16 to 16,777,216.
    pub id_block: u32,
    /// Most connections of clients at a time. Others wait until one closes.
    pub connections_max: usize,
    /// How long the head of a request may take to arrive, and a connection may be idle.
    pub head_timeout_ms: u64,
    /// How long a request's body may pause.
    pub body_idle_ms: u64,
    /// How long a shutdown waits for requests under way.
    pub shutdown_ms: u64,
    /// Age at which the sweeper removes bytes without metadata. Must be longer than any upload takes.
    pub orphan_grace_ms: u64,
    /// Interval of the search for bytes without metadata.
    pub sweep_interval_ms: u64,
    /// How long the bytes of an object in parts stay after its end, for clients that are reading them, if they are files, or others
    /// share them. Other bytes in a volume stay only for the reads of their gateway (`volumes.read_ms_max`).
    pub read_grace_ms: u64,
    /// Age at which a multipart upload ends if it was neither completed nor aborted; 0: never.
    pub upload_lifetime_s: u64,
    /// Objects of at most this many bytes are kept inside PostgreSQL, written in the transaction of their row; 0: none. At most
    /// 16,384. Set it only when every gateway has a version that knows it.
    pub inline_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            object_bytes_max: 5 << 30,
            document_bytes_max: 4 << 20,
            stat_paths_max: 1000,
            await_timeout_ms: 5_000,
            rename_lock_ms: 10_000,
            connection_wait_ms: 5_000,
            answer_wait_ms: 15_000,
            id_block: 4096,
            connections_max: 8_192,
            head_timeout_ms: 30_000,
            body_idle_ms: 20_000,
            shutdown_ms: 10_000,
            orphan_grace_ms: 24 * 3_600_000,
            sweep_interval_ms: 3_600_000,
            read_grace_ms: 3_600_000,
            upload_lifetime_s: 7 * 86_400,
            inline_bytes_max: 0,
        }
    }
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

fn default_region() -> String {
    "us-east-1".into()
}

fn default_owner_name() -> String {
    "gateway".into()
}

fn default_pool_size() -> usize {
    16
}

fn default_batches_in_flight_max() -> usize {
    4
}

fn default_batch_elements_max() -> usize {
    256
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a valid configuration", path.display()))
    }

    /// Parses and checks a text.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = toml::from_str(text)?;
        config.check().map(|()| config)
    }

    /// Whatever leaves this machine is encrypted, or the file says that it is not.
    fn check_addresses(&self) -> anyhow::Result<()> {
        let (listen, postgres) = (self.listen, &self.postgres);
        ensure!(listen != self.probes_listen || listen.port() == 0, "listen and probes_listen are the same address");
        ensure!(
            listen.ip().is_loopback() || self.https.is_some() || self.plain_http,
            "listen `{listen}` is not a loopback address: add the section [https], or `plain_http = true` to do without TLS"
        );
        for replica in &self.index.replicas {
            // A name that is not known yet is somebody else's.
            ensure!(
                self.tls.is_some() || is_loopback(replica).unwrap_or(false),
                "index.replicas: `{replica}` is another machine, so its calls need certificates: add the section [tls]"
            );
        }
        check_database(&postgres.host, postgres.port, postgres.tls.as_ref(), postgres.plain)
    }

    /// The store that takes the bytes of new objects.
    pub(crate) fn new_bytes(&self) -> anyhow::Result<&str> {
        let files = self.data_dir.iter().map(|_| FILES);
        let volumes = self.volumes.iter().map(|_| VOLUMES);
        let names: Vec<&str> = files.chain(volumes).chain(self.buckets.keys().map(String::as_str)).collect();
        match (self.new_bytes.as_deref(), names.as_slice()) {
            (Some(chosen), names) => {
                ensure!(names.contains(&chosen), "new_bytes: there is no store `{chosen}`, only: {}", names.join(", "));
                Ok(chosen)
            }
            (None, [only]) => Ok(only),
            (None, []) => {
                bail!(
                    "there is no store for the objects' bytes: set data_dir, or add a volume ([volumes]) or a bucket ([buckets.NAME])"
                )
            }
            (None, names) => bail!("new_bytes is missing: it says which store takes new bytes: {}", names.join(", ")),
        }
    }

    fn check_stores(&self) -> anyhow::Result<()> {
        for name in self.buckets.keys() {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            ensure!(
                (1..=BUCKET_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain),
                "buckets: `{name}` is no name: 1 to {BUCKET_NAME_BYTES_MAX} lower-case letters, digits and hyphens are"
            );
            ensure!(!RESERVED.contains(&name.as_str()), "buckets: the name `{name}` is reserved");
        }
        self.volumes.as_ref().map_or(Ok(()), Volumes::check).context("volumes")?;
        self.new_bytes().map(drop)
    }

    fn check(&self) -> anyhow::Result<()> {
        let limits = &self.limits;
        self.check_addresses()?;
        self.check_stores()?;
        ensure!(!self.index.replicas.is_empty(), "index.replicas is empty");
        ensure!(self.postgres.pool_size > 0, "postgres.pool_size must be at least 1");
        ensure!(self.postgres.batches_in_flight_max > 0, "postgres.batches_in_flight_max must be at least 1");
        ensure!(
            (1..=COALESCED_ELEMENTS_MAX).contains(&self.postgres.batch_elements_max),
            "postgres.batch_elements_max must be between 1 and {COALESCED_ELEMENTS_MAX}"
        );
        ensure!((1..=THREADS_MAX).contains(&self.threads), "threads must be between 1 and {THREADS_MAX}");
        ensure!(!self.owner_name.is_empty(), "owner_name is empty");
        ensure!(!self.region.is_empty(), "region is empty");
        ensure!(
            (16..=ID_BLOCK_MAX).contains(&limits.id_block.into()),
            "limits.id_block must be between 16 and {ID_BLOCK_MAX}"
        );
        ensure!(limits.await_timeout_ms > 0, "limits.await_timeout_ms must be positive");
        ensure!(limits.rename_lock_ms > 0, "limits.rename_lock_ms must be positive");
        ensure!(
            limits.answer_wait_ms > limits.connection_wait_ms.max(limits.await_timeout_ms),
            "limits.answer_wait_ms must be more than limits.connection_wait_ms and limits.await_timeout_ms, \
             or an answer would never say which of both was not there"
        );
        for (name, age_s) in [
            ("orphan_grace_ms", limits.orphan_grace_ms / 1000),
            ("read_grace_ms", limits.read_grace_ms / 1000),
            ("sweep_interval_ms", limits.sweep_interval_ms / 1000),
            ("upload_lifetime_s", limits.upload_lifetime_s),
        ] {
            ensure!(age_s <= AGE_MAX_S, "limits.{name} must be at most 100 years");
        }
        ensure!(limits.connections_max > 0, "limits.connections_max must be at least 1");
        ensure!(limits.head_timeout_ms > 0, "limits.head_timeout_ms must be positive");
        ensure!(limits.body_idle_ms > 0, "limits.body_idle_ms must be positive");
        ensure!(limits.sweep_interval_ms > 0, "limits.sweep_interval_ms must be positive");
        ensure!(
            limits.inline_bytes_max <= INLINE_BYTES_MAX,
            "limits.inline_bytes_max must be at most {INLINE_BYTES_MAX}: larger objects would fill PostgreSQL's cache and WAL"
        );
        ensure!(
            limits.orphan_grace_ms >= 2 * (limits.await_timeout_ms + limits.connection_wait_ms),
            "limits.orphan_grace_ms must be at least twice the time that a request may wait \
             (await_timeout_ms + connection_wait_ms), or bytes of a request under way could be removed"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = r#"
        listen = "127.0.0.1:0"
        probes_listen = "127.0.0.1:0"
        data_dir = "data"
        credentials_file = "credentials.toml"
        [postgres]
        host = "localhost"
        port = 5432
        database = "mantle"
        user = "gateway"
        [index]
        replicas = ["127.0.0.1:1"]
    "#;

    #[test]
    fn settings_page_is_current() {
        let page = mantle_telemetry::settings_page::page(&schemars::schema_for!(Config).into());
        mantle_types::pages::assert_section("settings.md", "gateway", &page);
    }

    #[test]
    fn the_minimal_file_is_enough() {
        let config = Config::parse(MINIMAL).unwrap();
        assert_eq!((config.index.group, config.region.as_str()), (None, "us-east-1"));
    }

    #[test]
    fn unknown_keys_are_refused_at_every_level() {
        for (before, after) in [("surprise = 1\n", ""), ("", "\nsurprise = 1"), ("", "\n[limits]\nsurprise = 1")] {
            assert!(Config::parse(&format!("{before}{MINIMAL}{after}")).is_err());
        }
    }

    #[test]
    fn relations_are_checked() {
        assert!(Config::parse(&format!("{MINIMAL}\n[limits]\norphan_grace_ms = 1000")).is_err());
        assert!(Config::parse(&MINIMAL.replace("[\"127.0.0.1:1\"]", "[]")).is_err());
    }

    #[test]
    fn the_store_of_new_bytes_is_never_guessed() {
        let with = |stores: &str| Config::parse(&MINIMAL.replace("data_dir = \"data\"", stores));
        let bucket = |name: &str| format!("buckets.{name}.url = \"s3://b/p\"");
        let chosen = |stores: &str| with(stores).map(|config| config.new_bytes().unwrap().to_owned()).ok();
        assert_eq!(chosen("data_dir = \"data\"").as_deref(), Some("files"));
        assert_eq!(chosen(&bucket("main")).as_deref(), Some("main"));
        assert_eq!(chosen(""), None);
        let both = format!("data_dir = \"data\"\n{}", bucket("main"));
        assert_eq!(chosen(&both), None);
        for name in ["files", "main"] {
            assert_eq!(chosen(&format!("{both}\nnew_bytes = \"{name}\"")).as_deref(), Some(name));
        }
        assert_eq!(chosen(&format!("{both}\nnew_bytes = \"other\"")), None);
        for name in ["files", "volumes", "Main", "a_b", "\"\"", "\"a/b\""] {
            assert_eq!(chosen(&bucket(name)), None, "{name}");
        }
    }

    #[test]
    fn nothing_leaves_this_machine_in_clear_unless_the_file_says_so() {
        let with = |from: &str, to: &str| Config::parse(&MINIMAL.replacen(from, to, 1));
        let open = "listen = \"10.0.0.1:80\"";
        assert!(with("listen = \"127.0.0.1:0\"", open).is_err());
        assert!(with("listen = \"127.0.0.1:0\"", &format!("plain_http = true\n{open}")).is_ok());
        let https = "[https]\ncertificate_file = \"c\"\nkey_file = \"k\"\n[postgres]";
        assert!(
            Config::parse(&MINIMAL.replacen("listen = \"127.0.0.1:0\"", open, 1).replace("[postgres]", https)).is_ok()
        );
        assert!(with("[postgres]", &format!("plain_http = true\n{https}")).is_ok(), "while clients change");
        for host in ["10.0.0.1", "database.example"] {
            let host = format!("host = \"{host}\"");
            assert!(with("host = \"localhost\"", &host).is_err());
            assert!(with("host = \"localhost\"", &format!("{host}\nplain = true")).is_ok());
            assert!(with("host = \"localhost\"", &format!("{host}\ntls = {{ ca_file = \"ca\" }}")).is_ok());
        }
        assert!(with("\"127.0.0.1:1\"", "\"127.0.0.1:1\", \"10.0.0.1:1\"").is_err());
        let tls = "[tls]\nca_file = \"a\"\ncertificate_file = \"c\"\nkey_file = \"k\"\n[postgres]";
        assert!(
            Config::parse(&MINIMAL.replace("\"127.0.0.1:1\"", "\"10.0.0.1:1\"").replace("[postgres]", tls)).is_ok()
        );
    }

    #[test]
    fn only_small_objects_go_into_postgresql_and_none_by_default() {
        let with = |bytes: usize| Config::parse(&format!("{MINIMAL}\n[limits]\ninline_bytes_max = {bytes}"));
        assert_eq!(Config::parse(MINIMAL).unwrap().limits.inline_bytes_max, 0);
        assert_eq!(with(INLINE_BYTES_MAX).unwrap().limits.inline_bytes_max, INLINE_BYTES_MAX);
        assert!(with(INLINE_BYTES_MAX + 1).is_err());
    }

    /// They would be refused, or overflow, whenever they are used.
    #[test]
    fn limits_that_postgresql_would_refuse_are_refused() {
        let with = |setting: String| Config::parse(&format!("{MINIMAL}\n[limits]\n{setting}"));
        assert_eq!(with(format!("id_block = {ID_BLOCK_MAX}")).unwrap().limits.id_block, 1 << 24);
        assert!(with(format!("id_block = {}", ID_BLOCK_MAX + 1)).is_err());
        let ages =
            [("orphan_grace_ms", 1000), ("read_grace_ms", 1000), ("sweep_interval_ms", 1000), ("upload_lifetime_s", 1)];
        for (name, unit) in ages {
            assert!(with(format!("{name} = {}", AGE_MAX_S * unit)).is_ok(), "{name}");
            let error = with(format!("{name} = {}", (AGE_MAX_S + 1) * unit)).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn batches_are_bounded() {
        let with = |setting: &str| Config::parse(&MINIMAL.replace("[postgres]", &format!("[postgres]\n{setting}")));
        let default = Config::parse(MINIMAL).unwrap().postgres;
        assert_eq!((default.batches_in_flight_max, default.batch_elements_max), (4, 256));
        assert_eq!(with("batch_elements_max = 1").unwrap().postgres.batch_elements_max, 1);
        assert!(with(&format!("batch_elements_max = {COALESCED_ELEMENTS_MAX}")).is_ok());
        assert!(with(&format!("batch_elements_max = {}", COALESCED_ELEMENTS_MAX + 1)).is_err());
        assert!(with("batch_elements_max = 0").is_err() && with("batches_in_flight_max = 0").is_err());
    }

    #[test]
    fn threads_default_to_the_processors() {
        let with = |threads: usize| Config::parse(&format!("threads = {threads}\n{MINIMAL}"));
        assert!(Config::parse(MINIMAL).unwrap().threads >= 1);
        assert_eq!(with(1).unwrap().threads, 1);
        assert!(with(0).is_err() && with(THREADS_MAX + 1).is_err());
    }
}
