//! gRPC clients of the other replicas, by address. A channel reconnects after a loss.

use std::{collections::HashMap, io, sync::Arc};

use mantle_tls::Tls;
use mantle_types::Error;
use parking_lot::Mutex;
use tonic::body::Body;
use tower::{ServiceExt, util::BoxCloneSyncService};

use crate::{config::ENTRY_BYTES_MAX, proto::peer::peer_client::PeerClient};

/// Longest message between replicas; a Raft entry is much smaller.
pub const MESSAGE_BYTES_MAX: usize = 128 << 20;
const WINDOW_BYTES: u32 = 16 << 20;

const _: () = assert!(ENTRY_BYTES_MAX < MESSAGE_BYTES_MAX / 2);

/// A connection to another replica: takes gRPC's HTTP requests, returns their responses.
pub type PeerChannel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, io::Error>;

/// Connects to other replicas. The simulation replaces it.
pub trait Dial: Send + Sync {
    /// A channel to an address, which connects when first used and again after a loss.
    fn channel(&self, address: &str) -> Result<PeerChannel, Error>;
}

/// Connects over TCP; with TLS, if there are certificates.
pub struct Tcp(pub Option<Tls>);

impl Dial for Tcp {
    fn channel(&self, address: &str) -> Result<PeerChannel, Error> {
        let channel = mantle_index_client::connect_lazy(address, WINDOW_BYTES, self.0.clone())?;
        Ok(BoxCloneSyncService::new(channel.map_err(io::Error::other)))
    }
}

/// Shared clients of other replicas, by address.
#[derive(Clone)]
pub struct Peers {
    dial: Arc<dyn Dial>,
    clients: Arc<Mutex<HashMap<String, PeerClient<PeerChannel>>>>,
}

impl Peers {
    /// No connections yet.
    pub fn new(dial: Arc<dyn Dial>) -> Self {
        Self { dial, clients: Arc::default() }
    }

    /// The shared client of an address, which connects when first used.
    pub fn client(&self, address: &str) -> Result<PeerClient<PeerChannel>, Error> {
        if let Some(client) = self.clients.lock().get(address) {
            return Ok(client.clone());
        }
        let client = self.new_client(address)?;
        self.clients.lock().insert(address.to_owned(), client.clone());
        Ok(client)
    }

    /// A client with a connection of its own.
    pub(super) fn new_client(&self, address: &str) -> Result<PeerClient<PeerChannel>, Error> {
        let client = PeerClient::new(self.dial.channel(address)?);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }
}
