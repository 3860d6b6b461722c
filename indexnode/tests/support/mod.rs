//! Replicas as child processes, and a database of their own, for the integration tests.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

pub mod load;
pub mod server;

use std::{
    fs,
    net::TcpListener,
    ops::RangeInclusive,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use mantle_index_client::{IndexClient, Query, Resolution, Status};
use mantle_tls::Tls;
use mantle_types::{Caller, Epoch, GroupId, NamespaceId, RequestKey};
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

/// Longest wait for a condition; the first poll that finds it ends the wait.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// How a replica is started: with the umask and the number of open files of a service manager that sets neither.
const CARELESS: &str = "umask 022; ulimit -Sn 512; exec \"$0\" \"$@\"";

pub const ROOT: u32 = 0;

/// Polls until `condition` yields something.
pub async fn eventually<T, F>(what: &str, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited too long for: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// A database with the extension, dropped at the end.
pub struct TestDatabase {
    pub config: Config,
    pub client: Client,
    admin: Client,
    name: String,
    pub next_id: i64,
}

pub async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("the test's PostgreSQL");
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client
}

impl TestDatabase {
    /// In the PostgreSQL of `MANTLE_TEST_DATABASE_URL`, a superuser's URL with a password.
    pub async fn create() -> Self {
        let url = std::env::var("MANTLE_TEST_DATABASE_URL").expect("MANTLE_TEST_DATABASE_URL is not set");
        Self::create_in(url.parse().expect("MANTLE_TEST_DATABASE_URL")).await
    }

    /// In the PostgreSQL that a superuser reaches by `config`, with a password.
    pub async fn create_in(mut config: Config) -> Self {
        let admin = connect(&config).await;
        let name = format!("mantle_index_test_{:08x}", rand::random::<u32>());
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        config.dbname(&name);
        let client = connect(&config).await;
        client.batch_execute("CREATE EXTENSION mantle").await.unwrap();
        Self::over(config, client, admin, name).await
    }

    /// An existing database with the extension.
    pub async fn existing(config: Config) -> Self {
        let name = config.get_dbname().expect("a database").to_owned();
        Self::over(config.clone(), connect(&config).await, connect(&config).await, name).await
    }

    async fn over(config: Config, client: Client, admin: Client, name: String) -> Self {
        let row = client.query_one("SELECT first_id FROM mantle.allocate_ids('test', 100000)", &[]).await.unwrap();
        let database = Self { config, client, admin, name, next_id: row.get(0) };
        database.name_slot(1).await;
        database
    }

    /// Gives the group a slot name of its own: slots belong to the server, not to the database.
    async fn name_slot(&self, group: u32) {
        let name_slot = "UPDATE mantle.index_groups SET slot_name = $1 WHERE index_group = $2";
        self.client.execute(name_slot, &[&self.slot_of(group), &(group as i32)]).await.unwrap();
    }

    /// Creates an index group.
    pub async fn create_group(&self, group: u32) {
        self.client.execute("SELECT mantle.create_index_group($1)", &[&(group as i32)]).await.unwrap();
        self.name_slot(group).await;
    }

    /// Connects again after the server was replaced.
    pub async fn reconnect(&mut self) {
        self.client = connect(&self.config).await;
    }

    /// The slot of group 1.
    pub fn slot(&self) -> String {
        self.slot_of(1)
    }

    /// The name of a group's slot.
    pub fn slot_of(&self, group: u32) -> String {
        format!("test_{}_{group}", self.name)
    }

    pub fn next_id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub async fn create_namespace(&mut self, name: &str) -> i64 {
        self.create_namespace_in(name, 1).await
    }

    pub async fn create_namespace_in(&mut self, name: &str, group: u32) -> i64 {
        let id = self.next_id();
        let sql = "SELECT code, ns FROM mantle.create_namespace(0, $1, $2, 0, 0, 493, $3, 1, $4)";
        let row = self.client.query_one(sql, &[&name, &id, &Uuid::new_v4(), &(group as i32)]).await.unwrap();
        assert_eq!(row.get::<_, Option<String>>(0), None);
        row.get(1)
    }

    /// Makes a directory; returns its id and the request key.
    pub async fn mkdir(&mut self, ns: i64, pid: i64, name: &str) -> (i64, RequestKey) {
        let id = self.next_id();
        (id, mkdir_in(&self.client, ns, pid, name, id).await)
    }

    pub async fn drop(self) {
        let Self { client, admin, name, .. } = self;
        let slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                     WHERE database = current_database() AND active_pid IS NULL";
        eventually("the slot to be free", || async {
            client.query(slots, &[]).await.ok()?;
            let left = client.query("SELECT FROM pg_replication_slots WHERE database = current_database()", &[]);
            left.await.ok()?.is_empty().then_some(())
        })
        .await;
        drop(client);
        admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
    }
}

/// Makes a directory with a given id; returns the request key.
pub async fn mkdir_in(client: &Client, ns: i64, pid: i64, name: &str, id: i64) -> RequestKey {
    let request = Uuid::new_v4();
    let sql = "SELECT code FROM mantle.mkdir('{0}', ARRAY[$1::bigint], ARRAY[$2::bigint], ARRAY[$3::text || '/'], ARRAY[$4::bigint], \
               ARRAY[0], ARRAY[0], ARRAY[493], ARRAY[true], ARRAY[NULL::jsonb], ARRAY[$5::uuid], ARRAY[1::bigint])";
    let row = client.query_one(sql, &[&ns, &pid, &name, &id, &request]).await.unwrap();
    assert_eq!(row.get::<_, Option<String>>(0), None);
    RequestKey { principal: ROOT, ns: NamespaceId::from(ns), id: request }
}

/// One replica's process and data directory.
pub struct TestReplica {
    pub address: String,
    pub http_address: String,
    /// A protection to leave out.
    pub failpoint: Option<&'static str>,
    config: PathBuf,
    data: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl TestReplica {
    pub fn start(&mut self) {
        let log = fs::File::options().create(true).append(true).open(&self.log).unwrap();
        // `MANTLE_TEST_INDEXNODE`: another build of the program, for measurements.
        let program = std::env::var_os("MANTLE_TEST_INDEXNODE");
        let mut command = Command::new("sh");
        command.args(["-c", CARELESS]).arg(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_mantle-indexnode").into()));
        command.arg("--config").arg(&self.config).stdout(Stdio::null()).stderr(log);
        command.envs(self.failpoint.map(|name| ("MANTLE_FAILPOINT", name)));
        self.child = Some(command.spawn().expect("mantle-indexnode"));
    }

    /// Changes the configuration, from the next start on.
    pub fn configure(&self, change: impl FnOnce(String) -> String) {
        let text = change(fs::read_to_string(&self.config).unwrap());
        fs::write(&self.config, text).unwrap();
    }

    /// Sends SIGKILL and waits.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends SIGSTOP: connections stay open, but the process does not answer.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    pub fn process_id(&self) -> u32 {
        self.child.as_ref().expect("a running replica").id()
    }

    fn signal(&self, name: &str) {
        let id = self.process_id();
        assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success());
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn wipe(&self) {
        fs::remove_dir_all(&self.data).unwrap();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// The replicas of a group.
pub struct TestGroup {
    pub replicas: Vec<TestReplica>,
    pub client: IndexClient,
    tls: Option<Tls>,
    folder: TempDir,
}

/// Returns unused addresses, each once in this process. Ports that the system chooses would not do: it may give the same port
/// to an outgoing connection before the replica listens.
pub fn free_addresses(n: usize) -> Vec<String> {
    /// Below Linux's range for outgoing connections (net.ipv4.ip_local_port_range).
    const PORTS: RangeInclusive<u16> = 16_000..=31_999;
    static BEGINNING: LazyLock<u16> = LazyLock::new(rand::random);
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let any = || {
        let at = BEGINNING.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.0.0.1:{}", PORTS.start() + at % PORTS.len() as u16);
        TcpListener::bind(&address).is_ok().then_some(address)
    };
    (0..n).map(|_| (0..PORTS.len()).find_map(|_| any()).expect("a free port")).collect()
}

impl TestGroup {
    /// Three replicas of one group.
    pub fn new(database: &TestDatabase) -> Self {
        Self::of(3, database)
    }

    pub fn of(size: usize, database: &TestDatabase) -> Self {
        Self::with_learners(size, 0, database)
    }

    /// Three processes that host several groups.
    pub fn hosting(groups: &[u32], database: &TestDatabase) -> Self {
        Self::build(3, 0, groups, database)
    }

    /// The last `learners` replicas do not vote.
    pub fn with_learners(voters: usize, learners: usize, database: &TestDatabase) -> Self {
        Self::build(voters, learners, &[1], database)
    }

    fn build(voters: usize, learners: usize, groups: &[u32], database: &TestDatabase) -> Self {
        let size = voters + learners;
        let folder = tempfile::tempdir().unwrap();
        let addresses = free_addresses(2 * size);
        let (peers, learners) = addresses[..size].split_at(voters);
        let password = folder.path().join("password");
        fs::write(&password, database.config.get_password().expect("a password in the URL")).unwrap();
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
        let tokio_postgres::config::Host::Tcp(host) = &database.config.get_hosts()[0] else { panic!("a TCP host") };
        let replicas = (0..size).map(|i| {
            let config = folder.path().join(format!("replica{i}.toml"));
            let data = folder.path().join(format!("replica{i}"));
            let text = format!(
                "groups = {groups:?}\ndata_dir = {data:?}\nlisten = {:?}\nhttp_listen = {:?}\npeers = {peers:?}\nlearners = {learners:?}\n\
                 learner = {}\n[postgres]\n\
                 host = {host:?}\nport = {}\ndatabase = {:?}\nuser = {:?}\npassword_file = {password:?}\n\
                 [raft]\nsnapshot_log_entries = 100\n",
                addresses[i],
                addresses[i + size],
                i >= voters,
                database.config.get_ports()[0],
                database.config.get_dbname().unwrap(),
                database.config.get_user().unwrap(),
            );
            fs::write(&config, text).unwrap();
            let log = folder.path().join(format!("replica{i}.log"));
            let (address, http_address) = (addresses[i].clone(), addresses[i + size].clone());
            TestReplica { address, http_address, failpoint: None, config, data, log, child: None }
        });
        let replicas = replicas.collect();
        let client = IndexClient::connect_lazy(addresses[..size].to_vec(), None).unwrap();
        Self { replicas, client, tls: None, folder }
    }

    /// A folder for files of the test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets the client use these certificates from now on.
    pub fn use_tls(&mut self, tls: Tls) {
        let addresses = self.replicas.iter().map(|replica| replica.address.clone()).collect();
        self.client = IndexClient::connect_lazy(addresses, Some(tls.clone())).unwrap();
        self.tls = Some(tls);
    }

    /// A client of each replica.
    pub fn clients(&self) -> Vec<IndexClient> {
        let client =
            |replica: &TestReplica| IndexClient::connect_lazy(vec![replica.address.clone()], self.tls.clone()).unwrap();
        self.replicas.iter().map(client).collect()
    }

    pub fn start_all(&mut self) {
        self.replicas.iter_mut().for_each(TestReplica::start);
    }

    pub fn kill_all(&mut self) {
        self.replicas.iter_mut().for_each(TestReplica::kill);
    }

    pub async fn status(&self, i: usize) -> Option<Status> {
        self.client.status().await.swap_remove(i).1.ok()
    }

    /// Waits until every replica is a ready voter of one cluster.
    pub async fn settled(&self) -> Vec<Status> {
        self.settled_group(0).await
    }

    /// The same for one group.
    pub async fn settled_group(&self, group: u32) -> Vec<Status> {
        let (size, client) = (self.replicas.len(), self.client.of_group(GroupId(group)));
        eventually("nothing but ready voters", || async {
            let all: Vec<Status> = client.status().await.into_iter().filter_map(|(_, s)| s.ok()).collect();
            let is_settled = all.len() == size
                && all
                    .iter()
                    .all(|s| s.ready && s.members.len() == size && s.members.iter().all(|m| m.ends_with("voter")))
                && all.iter().all(|s| s.cluster_id == all[0].cluster_id && s.leader_id == all[0].leader_id)
                && all.iter().any(|s| s.streaming);
            is_settled.then_some(all)
        })
        .await
    }

    pub async fn leader(&self) -> usize {
        eventually("a streaming leader", || async {
            let all = self.client.status().await;
            all.iter().position(|(_, s)| s.as_ref().is_ok_and(|s| s.role == "leader" && s.streaming))
        })
        .await
    }

    /// Resolves a path on one replica.
    pub async fn resolve_on(&self, i: usize, namespace: &str, path: &[&str]) -> Resolution {
        let client = self.clients().swap_remove(i);
        let caller = Caller { uid: ROOT, gids: vec![] };
        let query = Query::new(namespace, path.iter().copied(), caller);
        client.resolve_one(Epoch(0), query).await.unwrap()
    }

    /// Resolves a path on any replica.
    pub async fn resolve(&self, namespace: &str, path: &[&str]) -> Resolution {
        let query = Query::new(namespace, path.iter().copied(), Caller { uid: ROOT, gids: vec![] });
        self.client.resolve_one(Epoch(0), query).await.unwrap()
    }

    /// Checks that a path leads to this directory on every replica.
    pub async fn assert_everywhere(&self, namespace: &str, path: &[&str], id: i64) {
        for i in 0..self.replicas.len() {
            let found = self.resolve_on(i, namespace, path).await;
            assert_eq!((found.outcome, found.id.as_i64()), (Ok(()), id), "replica {i}, {path:?}");
        }
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        self.kill_all();
        if std::thread::panicking() {
            for (i, replica) in self.replicas.iter().enumerate() {
                eprintln!("--- log of replica {i}\n{}", replica.log());
            }
            // Once more, because the whole may be too long to be kept.
            for (i, replica) in self.replicas.iter().enumerate() {
                let log = replica.log();
                let alarming = log.lines().filter(|line| line.contains(" ERROR ") || line.contains(" WARN "));
                eprintln!("--- warnings of replica {i}\n{}", alarming.collect::<Vec<_>>().join("\n"));
            }
        }
    }
}
