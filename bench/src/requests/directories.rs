//! Directories over REST: the same operations as HDFS's client has. Paths have ten levels. Clients work each in a leaf
//! directory of their own, or all in one.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http_body_util::Full;
use hyper::{Method, Request, StatusCode, body::Bytes};
use serde_json::{Value, json};

use super::figures::{Key, Rounds, turn};
use crate::{
    cpu::Servers,
    measure::run_rounds,
    wire::{Connection, address},
};

pub const MANTLE: &str = "Mantle";
pub const NS: &str = "bench-directories";
/// Levels of a path, the leaf included.
pub const DEPTH: usize = 10;
/// Clients, when there are many.
pub const MANY: usize = 32;
/// Entries of a leaf that is listed: one of a client's own, and the one of all.
const LISTED: [usize; 2] = [500, 16_000];
const PAGE: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// Each client has its own.
    Own,
    /// All clients share one.
    One,
}

impl Leaf {
    /// The name of an operation in it.
    pub fn of(self, operation: &str) -> String {
        format!("{operation}, {} leaf", if self == Self::Own { "own" } else { "one" })
    }

    /// The listing of as many entries as it has.
    pub fn listing(self) -> &'static str {
        if self == Self::Own { "list of 500 entries" } else { "list of 16,000 entries" }
    }

    /// The leaf's number, for a client.
    fn number(self, client: usize) -> usize {
        if self == Self::Own { client } else { 0 }
    }
}

/// The REST interface of Mantle.
pub struct Api<'a> {
    pub servers: &'a Servers,
    address: String,
    authorization: String,
}

impl<'a> Api<'a> {
    pub fn new(url: &str, token: &str, servers: &'a Servers) -> Result<Self> {
        Ok(Self { servers, address: address(url)?, authorization: format!("Bearer {token}") })
    }

    pub fn connections(&self, count: usize) -> Vec<Connection> {
        Connection::several(&self.address, count)
    }

    async fn call(
        &self,
        connection: &Connection,
        method: Method,
        path: &str,
        body: Option<Value>,
        expected: StatusCode,
    ) -> Result<Bytes> {
        let request = Request::builder().method(&method).uri(path).header("host", &*self.address);
        let request = request.header("authorization", &*self.authorization);
        let request = match body {
            None => request.body(Full::default())?,
            Some(body) => {
                request.header("content-type", "application/json").body(Full::new(body.to_string().into()))?
            }
        };
        let (status, answer) = connection.send(request).await?;
        ensure!(status == expected, "{method} {path}: {status} {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    pub async fn create_namespace(&self, connection: &Connection, ns: &str) -> Result<()> {
        self.call(connection, Method::PUT, &format!("/v1/ns/{ns}"), None, StatusCode::CREATED).await.map(drop)
    }

    /// Makes a directory; with a `?parents=true` behind the path also those above.
    pub async fn mkdir(&self, connection: &Connection, path: &str) -> Result<()> {
        let path = format!("/v1/ns/{NS}/dirs/{path}");
        self.call(connection, Method::PUT, &path, None, StatusCode::CREATED).await.map(drop)
    }

    pub async fn rmdir(&self, connection: &Connection, path: &str) -> Result<()> {
        let path = format!("/v1/ns/{NS}/dirs/{path}");
        self.call(connection, Method::DELETE, &path, None, StatusCode::NO_CONTENT).await.map(drop)
    }

    /// Stat of a directory, if the path ends with a slash; else of any entry.
    pub async fn stat(&self, connection: &Connection, path: &str, expected: StatusCode) -> Result<()> {
        let path = format!("/v1/ns/{NS}/entries/{path}");
        self.call(connection, Method::GET, &path, None, expected).await.map(drop)
    }

    pub async fn rename(&self, connection: &Connection, source: &str, destination: &str) -> Result<()> {
        let (path, body) = (format!("/v1/ns/{NS}/rename"), json!({ "src": source, "dst": destination }));
        self.call(connection, Method::POST, &path, Some(body), StatusCode::OK).await.map(drop)
    }

    /// Reads all pages of a listing; an error unless they have so many entries.
    async fn list(&self, connection: &Connection, path: &str, entries: usize) -> Result<()> {
        let (mut found, mut cursor) = (0, String::new());
        loop {
            let uri = format!("/v1/ns/{NS}/list/{path}/?limit={PAGE}{cursor}");
            let page = self.call(connection, Method::GET, &uri, None, StatusCode::OK).await?;
            // Only the cursor matters, and it stands behind the entries.
            let text = std::str::from_utf8(&page)?;
            match text.rsplit_once("\"cursor\":\"").and_then(|(_, rest)| rest.split_once('"')) {
                Some((token, _)) => (found, cursor) = (found + PAGE, format!("&cursor={token}")),
                None => {
                    let last: Value = serde_json::from_slice(&page)?;
                    found += last["entries"].as_array().context("no entries")?.len();
                    break;
                }
            }
        }
        ensure!(found == entries, "{path} has {found} entries, not {entries}");
        Ok(())
    }
}

/// The directories above the leaves.
pub fn chain(top: &str) -> String {
    let levels: String = (0..DEPTH - 2).map(|level| format!("/level{level}")).collect();
    format!("{top}{levels}")
}

fn listed(leaf: Leaf, client: usize) -> String {
    format!("{}/leaf{}", chain(&format!("listed-{leaf:?}")), leaf.number(client))
}

/// Makes the directories that are listed.
pub async fn prepare(api: &Api<'_>) -> Result<()> {
    let connections = api.connections(MANY);
    for (leaf, entries) in [Leaf::Own, Leaf::One].into_iter().zip(LISTED) {
        let leaves = if leaf == Leaf::Own { MANY } else { 1 };
        for client in 0..leaves {
            api.mkdir(&connections[0], &format!("{}?parents=true", listed(leaf, client))).await?;
        }
        let fill = |client: usize, round: usize| {
            let (connection, path) = (&connections[client], format!("{}/d{client}-{round}", listed(leaf, client)));
            async move { api.mkdir(connection, &path).await }
        };
        run_rounds(MANY, Duration::MAX, leaves * entries / MANY, fill).await?;
    }
    Ok(())
}

/// One round: many clients with own leaves, many in one leaf, one client.
pub async fn round(api: &Api<'_>, round: u32, period: Duration, rounds: &mut Rounds) -> Result<()> {
    for (clients, leaf) in [(MANY, Leaf::Own), (MANY, Leaf::One), (1, Leaf::Own)] {
        let place = Place { api, leaf, clients, base: chain(&format!("run{round}-{clients}-{leaf:?}")) };
        place.measure(period, rounds).await?;
        if clients > 1 {
            place.list(period, rounds).await?;
        }
    }
    Ok(())
}

/// Where some clients work.
struct Place<'a> {
    api: &'a Api<'a>,
    leaf: Leaf,
    clients: usize,
    base: String,
}

impl Place<'_> {
    fn path(&self, client: usize, name: &str, number: usize) -> String {
        format!("{}/leaf{}/{name}{client}-{number}", self.base, self.leaf.number(client))
    }

    /// The `number`-th call of a client. Those of one name find what those of an earlier one left.
    async fn call(
        &self,
        operation: &str,
        connection: &Connection,
        client: usize,
        number: usize,
        made: usize,
    ) -> Result<()> {
        let (api, path) = (self.api, |name, number| self.path(client, name, number));
        match operation {
            "mkdir" => api.mkdir(connection, &path("d", number)).await,
            "stat" => api.stat(connection, &format!("{}/", path("d", number * 7919 % made)), StatusCode::OK).await,
            "stat of 404s" => api.stat(connection, &format!("{}/", path("no", number)), StatusCode::NOT_FOUND).await,
            "rename" => {
                let [source, destination] = ["d", "r"].map(|name| format!("{}/", path(name, number)));
                api.rename(connection, &source, &destination).await
            }
            "rmdir" => api.rmdir(connection, &path("r", number)).await,
            other => bail!("no operation {other}"),
        }
    }

    async fn measure(&self, period: Duration, rounds: &mut Rounds) -> Result<()> {
        let connections = self.api.connections(self.clients);
        let leaves = if self.leaf == Leaf::Own { self.clients } else { 1 };
        for leaf in 0..leaves {
            self.api.mkdir(&connections[0], &format!("{}/leaf{leaf}?parents=true", self.base)).await?;
        }
        // What every client has made, and what every client has renamed.
        let mut made = usize::MAX;
        for operation in ["mkdir", "stat", "stat of 404s", "rename", "rmdir"] {
            let is_using_up = matches!(operation, "rename" | "rmdir");
            let calls: Vec<_> = (0..self.clients).map(|_| std::cell::Cell::new(0_usize)).collect();
            let call = |client: usize, number: usize| {
                calls[client].set(number + 1);
                self.call(operation, &connections[client], client, number, made)
            };
            let length = (period, if is_using_up { made } else { usize::MAX });
            let turn = turn(self.api.servers, self.clients, length, call).await?;
            if matches!(operation, "mkdir" | "rename") {
                made = calls.iter().map(std::cell::Cell::get).min().unwrap_or_default();
                ensure!(made > 0, "a client has done no {operation}");
            }
            rounds.add(Key::new(&self.leaf.of(operation), self.clients, MANTLE), turn);
        }
        Ok(())
    }

    async fn list(&self, period: Duration, rounds: &mut Rounds) -> Result<()> {
        let connections = self.api.connections(self.clients);
        let entries = LISTED[usize::from(self.leaf == Leaf::One)];
        let call = |client: usize, _| {
            let (connection, path) = (&connections[client], listed(self.leaf, client));
            async move { self.api.list(connection, &path, entries).await }
        };
        let turn = turn(self.api.servers, self.clients, (period, usize::MAX), call).await?;
        rounds.add(Key::new(self.leaf.listing(), self.clients, MANTLE), turn);
        Ok(())
    }
}
