//! PostgreSQL servers for a test: primaries, standbys, copies of data directories.
//!
//! Needs `MANTLE_TEST_POSTGRESQL_BIN` (the server's programs, with the extension installed) and `MANTLE_TEST_ACCOUNT`
//! (`uid:gid` of the account that runs them; they refuse root).

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

use super::{connect, eventually, free_addresses};

const PASSWORD: &str = "test";
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
shared_preload_libraries = 'mantle'
mantle.compaction_databases = ''
mantle.epoch_lease_ms = 2000
wal_level = logical
wal_sender_timeout = 0
hot_standby_feedback = on
max_prepared_transactions = 10
max_locks_per_transaction = 128
shared_buffers = '32MB'
max_wal_size = '256MB'
max_slot_wal_keep_size = '1GB'
wal_keep_size = '256MB'
";
const ACCESS: &str = "host all all 127.0.0.1/32 scram-sha-256\nhost replication all 127.0.0.1/32 scram-sha-256\n";

fn account() -> (u32, u32) {
    let text = std::env::var("MANTLE_TEST_ACCOUNT").expect("MANTLE_TEST_ACCOUNT is not set");
    let (uid, gid) = text.split_once(':').expect("MANTLE_TEST_ACCOUNT is uid:gid");
    (uid.parse().unwrap(), gid.parse().unwrap())
}

fn own(path: &Path) {
    let (uid, gid) = account();
    chown(path, Some(uid), Some(gid)).unwrap();
}

/// A command that runs as the servers' account.
fn as_account(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let (uid, gid) = account();
    let mut command = Command::new(program);
    command.uid(uid).gid(gid).current_dir("/").stdin(Stdio::null());
    command
}

/// One of PostgreSQL's programs.
fn program(name: &str) -> Command {
    let bin = std::env::var("MANTLE_TEST_POSTGRESQL_BIN").expect("MANTLE_TEST_POSTGRESQL_BIN is not set");
    let mut command = as_account(PathBuf::from(bin).join(name));
    command.env("PGPASSWORD", PASSWORD);
    command
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A server, which is killed when dropped.
pub struct TestServer {
    pub config: Config,
    pub data: PathBuf,
    child: Option<Child>,
}

/// The directory of a test's servers, and their address: a failover keeps it, as a virtual IP does.
pub struct TestServers {
    folder: TempDir,
    pub port: u16,
}

impl TestServers {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        own(folder.path());
        let port = free_addresses(1)[0].rsplit(':').next().unwrap().parse().unwrap();
        Self { folder, port }
    }

    fn server(&self, name: &str, port: u16) -> TestServer {
        let mut config = Config::new();
        config.host("127.0.0.1").port(port).user("postgres").password(PASSWORD).dbname("postgres");
        TestServer { config, data: self.folder.path().join(name), child: None }
    }

    /// Initializes and starts a new system.
    pub async fn primary(&self, name: &str) -> TestServer {
        let mut server = self.server(name, self.port);
        let password = self.folder.path().join("password");
        fs::write(&password, PASSWORD).unwrap();
        own(&password);
        run(program("initdb")
            .args(["--username=postgres", "--auth=scram-sha-256", "--no-sync", "--locale=C.UTF-8", "--encoding=UTF8"])
            .arg("--pwfile")
            .arg(&password)
            .arg(&server.data));
        fs::write(server.data.join("postgresql.conf"), SETTINGS).unwrap();
        fs::write(server.data.join("pg_hba.conf"), ACCESS).unwrap();
        server.start().await;
        server
    }

    /// Starts a standby on a port of its own, which streams from the primary under its own name.
    pub async fn standby(&self, primary: &TestServer, name: &str) -> TestServer {
        let port: u16 = free_addresses(1)[0].rsplit(':').next().unwrap().parse().unwrap();
        let mut server = self.server(name, port);
        run(program("pg_basebackup")
            .args([
                "--checkpoint=fast",
                "--wal-method=stream",
                "--write-recovery-conf",
                "--no-sync",
                "--username=postgres",
            ])
            .arg("--pgdata")
            .arg(&server.data)
            .arg(format!("--dbname=host=127.0.0.1 port={} application_name={name}", primary.port())));
        server.start().await;
        server
    }

    /// Copies a stopped server's data directory.
    pub fn copy(&self, server: &TestServer, name: &str) -> PathBuf {
        let copy = self.folder.path().join(name);
        run(as_account("cp").arg("-a").arg(&server.data).arg(&copy));
        copy
    }
}

impl TestServer {
    pub fn port(&self) -> u16 {
        self.config.get_ports()[0]
    }

    pub async fn connect(&self) -> Client {
        connect(&self.config).await
    }

    /// Starts it and waits until it answers.
    pub async fn start(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.data.with_extension("log")).unwrap();
        let mut command = program("postgres");
        command.arg("-D").arg(&self.data).arg("-p").arg(self.port().to_string());
        command.arg("-c").arg("unix_socket_directories=").stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        let config = self.config.clone();
        eventually("PostgreSQL", || async { config.connect(NoTls).await.ok().map(drop) }).await;
    }

    /// Stops the server immediately, without sending or writing anything more.
    pub fn crash(&mut self) {
        self.stop_as("immediate");
    }

    /// Stops the server with a last checkpoint.
    pub fn stop(&mut self) {
        self.stop_as("fast");
    }

    fn stop_as(&mut self, mode: &str) {
        if let Some(mut child) = self.child.take() {
            run(program("pg_ctl").arg("stop").arg("--pgdata").arg(&self.data).arg("--mode").arg(mode));
            child.wait().unwrap();
        }
    }

    /// Promotes a standby at another server's address.
    pub async fn promote_to(&mut self, port: u16) {
        self.stop();
        self.config = {
            let mut config = Config::new();
            config.host("127.0.0.1").port(port).user("postgres").password(PASSWORD);
            config.dbname(self.config.get_dbname().unwrap());
            config
        };
        self.start().await;
        let client = self.connect().await;
        client.execute("SELECT pg_promote()", &[]).await.unwrap();
    }

    /// Copies the state of a slot from another server, as Patroni does for a permanent slot. Both are stopped.
    pub fn copy_slot(&self, from: &Self, slot: &str) {
        let to = self.data.join("pg_replslot").join(slot);
        let _ = fs::remove_dir_all(&to);
        run(as_account("cp").arg("-a").arg(from.data.join("pg_replslot").join(slot)).arg(&to));
    }

    /// Changes a setting and reloads the configuration.
    pub async fn set(&self, name: &str, value: &str) {
        let client = self.connect().await;
        client.batch_execute(&format!("ALTER SYSTEM SET {name} = '{value}'")).await.unwrap();
        client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.crash();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.data.with_extension("log")).unwrap_or_default();
            eprintln!("--- log of {}\n{log}", self.data.display());
        }
    }
}

/// Sends a signal to a server process (`STOP`, `CONT`).
pub fn signal(pid: i32, name: &str) {
    run(as_account("kill").arg(format!("-{name}")).arg(pid.to_string()));
}
