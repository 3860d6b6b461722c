//! The parts that every use case works with: the index, the database, the bytes, and the caller with its request id.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use futures::future::OptionFuture;
use mantle_tls::{Live, PostgresConnector, Tls};
use mantle_types::{Caller, NamespaceId, Permission, Result, request::derive_request_id};
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::{
    auth::primary_group,
    config::{Config, Limits},
    data::DataStore,
    ids::Ids,
    index::Index,
    key_sizes::KeySizes,
    migration::Migrations,
    store::{RequestClaim, Store, Waits},
};

/// The modes of new entries, before the namespace's umask.
pub const DIRECTORY_MODE: u16 = 0o777;
pub const OBJECT_MODE: u16 = 0o666;
/// What a namespace's umask leaves in any case: the bits of a new directory's owner.
pub const OWN_DIRECTORY_MODE: u16 = 0o700;
/// The mode of a new namespace's root.
pub const ROOT_MODE: u16 = 0o700;

pub struct Gateway {
    pub index: Arc<Index>,
    pub store: Arc<Store>,
    pub data: DataStore,
    pub ids: Arc<Ids>,
    pub key_sizes: KeySizes,
    pub limits: Limits,
    pub migrations: Migrations,
    cluster: OnceCell<Uuid>,
    tls: Option<Tls>,
    connector: PostgresConnector,
}

impl Gateway {
    /// Connects at the first call. Must be called within a tokio runtime.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let limits = &config.limits;
        let (connection, answer) =
            (Duration::from_millis(limits.connection_wait_ms), Duration::from_millis(limits.answer_wait_ms));
        let waits = Waits { connection, answer };
        let connector = PostgresConnector::load(config.postgres.tls.clone()).context("postgres.tls")?;
        let tls = config.tls.clone().map(Tls::load).transpose().context("tls")?;
        let store = Arc::new(Store::new(&config.postgres, connector.clone(), "mantle-gateway", waits)?);
        Ok(Self {
            index: Arc::new(Index::new(config, store.clone(), tls.clone())?),
            data: DataStore::open(config)?,
            cluster: OnceCell::new(),
            ids: Arc::new(Ids::new(store.clone(), config.owner_name.clone(), config.limits.id_block)),
            key_sizes: KeySizes::default(),
            store,
            limits: config.limits.clone(),
            migrations: Migrations::default(),
            tls,
            connector,
        })
    }
}

impl Gateway {
    /// The identity of the metadata database, with which stores mark its bytes. It never changes, so it is read once.
    pub async fn cluster(&self) -> Result<Uuid> {
        self.cluster.get_or_try_init(|| self.store.cluster_id()).await.copied()
    }

    /// Reads certificates again when they change. Never returns.
    pub async fn watch_certificates(&self) {
        let index = OptionFuture::from(self.tls.clone().map(Tls::watch));
        let postgres = OptionFuture::from(self.connector.live().cloned().map(Live::watch));
        futures::join!(index, postgres);
        // There are none.
        std::future::pending::<()>().await;
    }
}

/// The caller of a request, and the request's id.
#[derive(Clone, Debug)]
pub struct Call {
    pub caller: Caller,
    /// Chosen by the client, or by the gateway.
    pub request: Uuid,
    /// The client chose the request id. Then the gateway reads the recorded answer before it resolves anything (P19).
    pub client_key: bool,
}

impl Call {
    pub fn claim(&self, ns: NamespaceId, hash: i64) -> RequestClaim {
        RequestClaim { principal: self.caller.uid, ns, request: self.request, hash }
    }

    /// The claim of one step of a request that takes several.
    pub fn step(&self, ns: NamespaceId, step: &str, hash: i64) -> RequestClaim {
        RequestClaim { request: derive_request_id(self.request, step), ..self.claim(ns, hash) }
    }

    pub fn permission(&self, mode: u16) -> Permission {
        Permission { owner: self.caller.uid, group: primary_group(&self.caller), mode }
    }
}
