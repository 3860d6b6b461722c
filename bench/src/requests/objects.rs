//! Objects over S3: PUT, GET, HEAD and LIST of a service, by the same client for every service. Keys lie ten levels
//! deep, in some leaf directories.

use std::time::Duration;

use anyhow::{Result, ensure};
use hyper::body::Bytes;

use super::figures::{Key, Rounds, turn};
use crate::{
    cpu::Servers,
    measure::run_rounds,
    sign::digest,
    signed_s3::{Credentials, SignedS3},
    wire::Connection,
};

const BUCKET: &str = "bench";
const BODY_BYTES: usize = 1 << 10;
pub const CONNECTIONS: [usize; 2] = [32, 1];
/// Directories with objects.
const LEAVES: usize = 32;
/// Keys of a page, and objects that each leaf has before the phases.
const PAGE: usize = 100;
pub const OPERATIONS: [&str; 4] = ["PUT", "GET", "HEAD", "LIST"];

/// An S3 service that runs.
pub struct Service<'a> {
    pub name: &'a str,
    pub servers: &'a Servers,
    s3: SignedS3,
    body: Bytes,
    /// Digest of the body, and of no body.
    digests: [String; 2],
}

/// The directory of a leaf, with the slash at its end: nine levels, and the leaf.
fn directory(leaf: usize) -> String {
    let levels: String = (0..9).map(|level| format!("level{level:02}/")).collect();
    format!("{levels}leaf{:03}/", leaf % LEAVES)
}

fn read_key(number: usize) -> String {
    format!("{}read-{:03}", directory(number), number / LEAVES)
}

impl<'a> Service<'a> {
    pub fn new(name: &'a str, servers: &'a Servers, of: &Credentials, region: &str) -> Result<Self> {
        let body: Vec<u8> = rand::Rng::random_iter(rand::rng()).take(BODY_BYTES).collect();
        Ok(Self {
            name,
            servers,
            s3: SignedS3::new(of, region)?,
            digests: [digest(&body), digest(b"")],
            body: body.into(),
        })
    }

    /// Sends a request for a key of the bucket, or for the bucket itself.
    async fn call(&self, connection: &Connection, method: &str, key: &str, query: &str) -> Result<Bytes> {
        let has_body = method == "PUT" && !key.is_empty();
        let path = if key.is_empty() { format!("/{BUCKET}") } else { format!("/{BUCKET}/{key}") };
        let body = if has_body { self.body.clone() } else { Bytes::new() };
        let digest = &self.digests[usize::from(!has_body)];
        let (status, body) = self.s3.send(connection, method, (&path, query), body, digest).await?;
        let text = String::from_utf8_lossy(&body);
        ensure!(status.is_success(), "{}: {method} {path}?{query}: {status} {text}", self.name);
        Ok(body)
    }

    async fn list(&self, connection: &Connection, leaf: usize) -> Result<Bytes> {
        let prefix = directory(leaf).replace('/', "%2F");
        let query = format!("delimiter=%2F&list-type=2&max-keys={PAGE}&prefix={prefix}");
        self.call(connection, "GET", "", &query).await
    }

    /// The `at`-th call of a client. `put`: the beginning of new keys' names.
    async fn operation(
        &self,
        operation: &str,
        connection: &Connection,
        put: &str,
        client: usize,
        at: usize,
    ) -> Result<()> {
        // Clients read in different orders.
        let number = (client * 7919 + at * 31) % (LEAVES * PAGE);
        match operation {
            "PUT" => {
                let key = format!("{}{put}-{client}-{at}", directory(client * 7 + at));
                self.call(connection, "PUT", &key, "").await.map(drop)
            }
            "LIST" => self.list(connection, number).await.map(drop),
            method => self.call(connection, method, &read_key(number), "").await.map(drop),
        }
    }

    /// Makes the bucket, and the objects that are read; then lets clients read for a while. Their answers are checked
    /// here, so that the measured calls need not.
    async fn prepare(&self, period: Duration) -> Result<()> {
        let connections = self.s3.connections(CONNECTIONS[0]);
        let made = self.call(&connections[0], "PUT", "", "").await;
        if let Err(error) = made.map(drop) {
            // A peer's script, or an earlier round, has made it.
            ensure!(error.to_string().contains("409"), error);
        }
        let clients = connections.len();
        let fill = |client: usize, round: usize| {
            let (connection, key) = (&connections[client], read_key(round * clients + client));
            async move { self.call(connection, "PUT", &key, "").await.map(drop) }
        };
        run_rounds(clients, Duration::MAX, LEAVES * PAGE / clients, fill).await?;
        let read = self.call(&connections[0], "GET", &read_key(0), "").await?;
        ensure!(read == self.body, "{}: an object has other bytes", self.name);
        for leaf in 0..LEAVES {
            let page = self.list(&connections[0], leaf).await?;
            let keys = String::from_utf8_lossy(&page).matches("<Key>").count();
            ensure!(keys == PAGE, "{}: a page has {keys} keys", self.name);
        }
        for operation in &OPERATIONS[1..] {
            let call = |client: usize, at: usize| self.operation(operation, &connections[client], "", client, at);
            run_rounds(clients, period, usize::MAX, call).await?;
        }
        Ok(())
    }

    /// One round of all operations; `round` is its number.
    pub async fn round(&self, round: u32, period: Duration, rounds: &mut Rounds) -> Result<()> {
        self.prepare(period / 3).await?;
        for clients in CONNECTIONS {
            for operation in OPERATIONS {
                let connections = self.s3.connections(clients);
                let put = &format!("new-{round}-{clients}");
                let call = |client: usize, at: usize| self.operation(operation, &connections[client], put, client, at);
                let turn = turn(self.servers, clients, (period, usize::MAX), call).await?;
                rounds.add(Key::new(operation, clients, self.name), turn);
            }
        }
        Ok(())
    }
}
