//! `mantle size`: the connections, memory, disk and WAL that a cluster of a given size needs. It only calculates, and
//! asks no server. The figures are in `size/figures.rs`; the formulas are here and in `size/volume.rs`.
//! `tests/e2e/test_sizing.py` and `tests/cluster/test_sizing.py` compare the answers with what running services use.

mod figures;
mod volume;

use anyhow::Result;
use indicatif::{BinaryBytes, HumanCount};
use mantle_volumes::{BLOCK_BYTES_DEFAULT, Geometry, SEGMENT_BYTES_DEFAULT};
use serde::Serialize;

use self::volume::{Objects, Volume};
use crate::{
    exit::{Exit, failure},
    output::Output,
    table,
};

#[derive(clap::Args)]
pub struct Options {
    /// Objects, of all namespaces
    #[arg(long, value_name = "N")]
    objects: u64,
    /// Directories, of all namespaces
    #[arg(long, value_name = "N")]
    directories: u64,
    /// Gateways
    #[arg(long, value_name = "N", default_value_t = 2)]
    gateways: u32,
    /// IndexNodes, learners included
    #[arg(long, value_name = "N", default_value_t = 3)]
    indexnodes: u32,
    /// Workers of Citus; 0: one PostgreSQL without Citus
    #[arg(long, value_name = "N", default_value_t = 0)]
    workers: u32,
    /// Standbys of each PostgreSQL server
    #[arg(long, value_name = "N", default_value_t = 1)]
    standbys: u32,
    /// `postgres.pool_size` of the gateways
    #[arg(long, value_name = "N", default_value_t = 16)]
    pool_size: u32,
    /// `default_pool_size` of each PgBouncer
    #[arg(long, value_name = "N", default_value_t = 32)]
    pooler_size: u32,
    /// `shared_buffers` of each PostgreSQL server, in GiB; a quarter of what its rows take, unless given
    #[arg(long, value_name = "GIB")]
    shared_buffers: Option<f64>,
    /// Uploads that a gateway receives at a time
    #[arg(long, value_name = "N", default_value_t = 16)]
    uploads: u32,
    /// Object puts a second, sustained
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    puts: f64,
    /// Directories made a second, sustained
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    mkdirs: f64,
    /// Bytes of an object, if the gateways keep them in volumes; 0: they do not
    #[arg(long, value_name = "N", default_value_t = 0)]
    object_bytes: u64,
    /// `volumes.block_bytes` of the gateways
    #[arg(long, value_name = "N", default_value_t = BLOCK_BYTES_DEFAULT)]
    block_bytes: u32,
    /// `volumes.segment_bytes` of the gateways
    #[arg(long, value_name = "N", default_value_t = SEGMENT_BYTES_DEFAULT)]
    segment_bytes: u64,
}

/// The answer of `mantle size --json`. All of it is for one server or process, unless it says otherwise.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answer {
    connections: Connections,
    memory: Memory,
    disk: Disk,
    volume: Volume,
}

/// Connections of the busiest PostgreSQL server.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Connections {
    /// Connections of all gateways to a PgBouncer: `gateways` × (`pool_size` and one for probes); `max_client_conn` has to be more.
    pooler_clients: u64,
    /// Sessions of a PgBouncer with PostgreSQL for the gateways.
    pooler_servers: u64,
    /// Sessions of the IndexNodes' leader.
    index: u64,
    /// Sessions that the other nodes of Citus keep here: one for each of their sessions that executed a statement on this node.
    citus: u64,
    /// Sessions of Patroni.
    patroni: u64,
    /// For analysts, DBAs, imports, monitoring, and PostgreSQL's own `superuser_reserved_connections`.
    reserved: u64,
    /// The sum, rounded up: the least `max_connections`, and `max_prepared_transactions` on Citus.
    max_connections: u64,
    /// Walsenders: standbys, the index, and some for base backups and moves of shards.
    max_wal_senders: u64,
}

/// Memory in bytes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Memory {
    /// PostgreSQL's `shared_buffers`.
    shared_buffers: u64,
    /// PostgreSQL's shared memory beside `shared_buffers`: the lock table, the WAL's buffers and others.
    shared_other: u64,
    /// Private memory of all PostgreSQL sessions.
    sessions: u64,
    /// A PostgreSQL server with its Patroni and PgBouncer; leave as much again for the system's cache.
    server: u64,
    /// An IndexNode that serves.
    indexnode: u64,
    /// An IndexNode while its index is rebuilt beside the one that serves. Give it this much.
    indexnode_rebuild: u64,
    /// A gateway, with its volume.
    gateway: u64,
    /// An etcd member.
    etcd: u64,
}

/// Disk in bytes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Disk {
    /// Rows of objects with their PostgreSQL indexes, of the whole cluster, once.
    objects: u64,
    /// Rows of directories with their PostgreSQL indexes, of the whole cluster, once.
    directories: u64,
    /// Answers to requests that are kept (`mantle.request_retention_s`, `mantle.request_rows_max`), of the whole cluster, once.
    requests: u64,
    /// WAL that one server writes a second.
    wal_per_second: u64,
    /// WAL that one server may hold: `max_wal_size`, and `max_slot_wal_keep_size` while the index is away.
    wal_kept: u64,
    /// One server, with a third for dead rows and for VACUUM. Base backups and archived WAL are extra.
    server: u64,
    /// An IndexNode: two snapshots, and the log between them.
    indexnode: u64,
}

pub fn run(options: &Options, output: Output) -> Result<Exit> {
    let wrong = "--block-bytes must be a power of two from 512 to 65,536, and --segment-bytes a multiple of it, at most 2^31 times it";
    let geometry = Geometry::new(options.block_bytes, options.segment_bytes);
    let geometry = geometry.ok_or_else(|| failure(Exit::Usage, wrong))?;
    let answer = Answer::of(options, geometry);
    output.text(answer.text());
    output.answer(&answer);
    Ok(Exit::Fine)
}

impl Answer {
    fn of(options: &Options, geometry: Geometry) -> Self {
        let connections = Connections::of(options);
        let disk = Disk::of(options);
        let count = options.objects.div_ceil(options.gateways.max(1).into());
        let volume = Objects { count, bytes: options.object_bytes, geometry }.volume();
        let memory = Memory::of(options, &connections, &disk, &volume);
        Self { connections, memory, disk, volume }
    }

    fn text(&self) -> String {
        let Self { connections: c, memory: m, disk: d, volume: v } = self;
        let (count, bytes) = (|n: u64| HumanCount(n).to_string(), |n: u64| BinaryBytes(n).to_string());
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
        let rows = [
            ("connections", "gateways to a PgBouncer", count(c.pooler_clients)),
            ("", "PgBouncer to PostgreSQL", count(c.pooler_servers)),
            ("", "IndexNodes", count(c.index)),
            ("", "other nodes of Citus", count(c.citus)),
            ("", "Patroni", count(c.patroni)),
            ("", "reserved", count(c.reserved)),
            ("", "max_connections, at least", count(c.max_connections)),
            ("", "max_wal_senders, at least", count(c.max_wal_senders)),
            ("memory", "shared_buffers", bytes(m.shared_buffers)),
            ("", "other shared memory", bytes(m.shared_other)),
            ("", "sessions", bytes(m.sessions)),
            ("", "a PostgreSQL server", bytes(m.server)),
            ("", "an IndexNode", bytes(m.indexnode)),
            ("", "an IndexNode during a rebuild", bytes(m.indexnode_rebuild)),
            ("", "a gateway", bytes(m.gateway)),
            ("", "an etcd member", bytes(m.etcd)),
            ("disk", "objects, all servers together", bytes(d.objects)),
            ("", "directories, all servers together", bytes(d.directories)),
            ("", "answers to requests, all servers together", bytes(d.requests)),
            ("", "WAL a second, of one server", bytes(d.wal_per_second)),
            ("", "WAL kept, of one server", bytes(d.wal_kept)),
            ("", "a PostgreSQL server", bytes(d.server)),
            ("", "an IndexNode", bytes(d.indexnode)),
        ];
        let of_volume = [
            ("volume", "used blocks, of one gateway", bytes(v.used)),
            ("", "its file", bytes(v.file)),
            ("", "memory for its bitmaps", bytes(v.bitmaps)),
            ("", "start: until it takes a put", seconds(v.first_put_ms)),
            ("", "start: until all segments are in use", seconds(v.all_segments_ms)),
        ];
        let rows = rows.into_iter().chain(of_volume.into_iter().filter(|_| v.used > 0));
        let rows: Vec<_> = rows.map(|(part, what, value)| vec![part.into(), what.into(), value]).collect();
        table::table(&rows)
    }
}

/// Servers that hold rows: the workers, or the only server.
fn data_servers(options: &Options) -> u64 {
    u64::from(options.workers.max(1))
}

impl Connections {
    fn of(options: &Options) -> Self {
        let (gateways, pool_size) = (u64::from(options.gateways), u64::from(options.pool_size));
        let pooler_clients = gateways * (pool_size + 1);
        let pooler_servers = (gateways * pool_size).min(u64::from(options.pooler_size));
        let index = figures::INDEX_SESSIONS as u64;
        // The coordinator and the other workers. A session keeps one connection to each node that it has reached.
        let citus = u64::from(options.workers) * pooler_servers;
        let (patroni, reserved) = (figures::PATRONI_SESSIONS as u64, figures::RESERVED_SESSIONS as u64);
        let sum = pooler_servers + index + citus + patroni + reserved;
        Self {
            pooler_clients,
            pooler_servers,
            index,
            citus,
            patroni,
            reserved,
            max_connections: sum.next_multiple_of(10),
            max_wal_senders: u64::from(options.standbys)
                + figures::INDEX_WALSENDERS as u64
                + figures::SPARE_WALSENDERS as u64,
        }
    }
}

impl Memory {
    fn of(options: &Options, connections: &Connections, disk: &Disk, volume: &Volume) -> Self {
        let rows = (disk.objects + disk.directories + disk.requests) as f64 / data_servers(options) as f64;
        let chosen = options.shared_buffers.map_or(rows / 4.0, |gib| gib * figures::GIB);
        let shared_buffers = chosen.max(figures::SHARED_BUFFERS_LEAST);
        // As many transactions may be prepared as there are sessions.
        let holders = 2.0 * connections.max_connections as f64 + figures::OTHER_BACKENDS;
        let locks = figures::LOCKS_PER_TRANSACTION * holders * figures::LOCK_BYTES;
        let shared_other = locks + figures::SHARED_OTHER_BYTES + figures::SHARED_BYTES_PER_BUFFER_BYTE * shared_buffers;
        let sessions = (connections.max_connections - connections.reserved) as f64 * figures::SESSION_BYTES;
        let index = figures::INDEXNODE_BYTES_PER_DIRECTORY * options.directories as f64;
        let uploads = f64::from(options.uploads) * figures::UPLOAD_BYTES;
        Self {
            shared_buffers: shared_buffers as u64,
            shared_other: shared_other as u64,
            sessions: sessions as u64,
            server: (shared_buffers + shared_other + sessions + figures::PATRONI_BYTES + figures::PGBOUNCER_BYTES)
                as u64,
            indexnode: (figures::INDEXNODE_BYTES + index) as u64,
            indexnode_rebuild: (figures::INDEXNODE_BYTES + 2.0 * index) as u64,
            gateway: ((figures::GATEWAY_BYTES + uploads) as u64).saturating_add(volume.bitmaps + volume.locators),
            etcd: figures::ETCD_BYTES as u64,
        }
    }
}

impl Disk {
    fn of(options: &Options) -> Self {
        let objects = options.objects as f64 * figures::OBJECT_ROW_BYTES;
        let directories = options.directories as f64 * figures::DIRECTORY_ROW_BYTES;
        let servers = data_servers(options) as f64;
        let changes = (options.puts + options.mkdirs) * figures::REQUEST_RETENTION_SECONDS;
        let requests = changes.min(figures::REQUEST_ROWS_MOST * servers) * figures::REQUEST_ROW_BYTES;
        let wal = (options.puts * figures::PUT_WAL_BYTES + options.mkdirs * figures::MKDIR_WAL_BYTES) / servers;
        let wal_kept = figures::MAX_WAL_SIZE + figures::MAX_SLOT_WAL_KEEP_SIZE;
        let rows = (objects + directories + requests) / servers;
        let snapshot = options.directories as f64 * figures::SNAPSHOT_BYTES_PER_DIRECTORY;
        Self {
            objects: objects as u64,
            directories: directories as u64,
            requests: requests as u64,
            wal_per_second: wal as u64,
            wal_kept: wal_kept as u64,
            server: (rows * 4.0 / 3.0 + wal_kept) as u64,
            indexnode: (2.0 * snapshot + figures::INDEX_LOG_BYTES) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Given {
        #[command(flatten)]
        options: Options,
    }

    fn answer(arguments: &str) -> Answer {
        let options = Given::parse_from(["size"].into_iter().chain(arguments.split(' '))).options;
        Answer::of(&options, Geometry::new(options.block_bytes, options.segment_bytes).unwrap())
    }

    #[test]
    fn sizing_page_is_current() {
        let row = |figure: &figures::Figure| {
            format!("| `{}` | {} | {} | {} |\n", figure.name, figure.shown(), figure.meaning, figure.source)
        };
        let rows: String = figures::FIGURES.iter().map(row).collect();
        let page = format!("| figure | value | is | source |\n|---|---|---|---|\n{rows}");
        mantle_types::pages::assert_section("sizing.md", "figures", &page);
        let example = answer(
            "--objects 100000000 --directories 10000000 --gateways 4 --indexnodes 3 --workers 4 --puts 2000 --mkdirs 200 \
             --object-bytes 65536",
        );
        mantle_types::pages::assert_section("sizing.md", "example", &format!("```\n{}```\n", example.text()));
    }

    #[test]
    fn twice_as_much_needs_twice_the_disk_and_more_servers_share_it() {
        let small = answer("--objects 1000000 --directories 100000 --puts 100 --mkdirs 10");
        let large = answer("--objects 2000000 --directories 200000 --puts 200 --mkdirs 20");
        assert_eq!(large.disk.objects, 2 * small.disk.objects);
        assert_eq!(large.disk.wal_per_second, 2 * small.disk.wal_per_second);
        let spread = answer("--objects 2000000 --directories 200000 --puts 200 --mkdirs 20 --workers 2");
        assert_eq!(spread.disk.wal_per_second, small.disk.wal_per_second);
        assert!(spread.disk.server < large.disk.server);
    }

    #[test]
    fn each_server_keeps_its_own_answers_up_to_a_bound() {
        let of = |workers| answer(&format!("--objects 0 --directories 0 --puts 100000 --workers {workers}")).disk;
        assert_eq!(of(4).requests, 4 * of(1).requests);
        assert_eq!(of(4).server, of(1).server);
    }

    #[test]
    fn gateways_share_the_objects() {
        let of =
            |gateways| answer(&format!("--objects 1000000 --directories 0 --object-bytes 1024 --gateways {gateways}"));
        let [one, two] = [1, 2].map(of);
        assert_eq!((one.volume.used, two.volume.used), (4_096_000_000, 2_048_000_000));
        let without = answer("--objects 1000000 --directories 0 --gateways 1");
        assert_eq!(one.memory.gateway, without.memory.gateway + one.volume.bitmaps + one.volume.locators);
        assert!(one.text().contains("used blocks") && !without.text().contains("used blocks"));
    }

    #[test]
    fn the_pooler_bounds_the_sessions_of_gateways() {
        let of = |gateways| answer(&format!("--objects 0 --directories 0 --gateways {gateways}")).connections;
        assert_eq!((of(1).pooler_servers, of(1).citus), (16, 0));
        assert_eq!((of(9).pooler_clients, of(9).pooler_servers), (153, 32));
        assert_eq!(of(2).max_connections, of(9).max_connections);
    }
}
