//! gRPC clients of the other replicas, by address. A channel reconnects after a loss.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use mantle_types::{Error, ErrorCode};
use parking_lot::Mutex;
use tonic::{body::Body, transport::Endpoint};
use tower::{ServiceExt, util::BoxCloneSyncService};

use crate::{config::ENTRY_BYTES_MAX, proto::peer::peer_client::PeerClient};

/// Longest message between replicas; a Raft entry is much smaller.
pub const MESSAGE_BYTES_MAX: usize = 128 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const WINDOW_BYTES: u32 = 16 << 20;

const _: () = assert!(ENTRY_BYTES_MAX < MESSAGE_BYTES_MAX / 2);

/// A connection to another replica: takes gRPC's HTTP requests, returns their responses.
pub type PeerChannel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, io::Error>;

/// Connects to other replicas. The simulation replaces it.
pub trait Dial: Send + Sync {
    /// A channel to an address, which connects when first used and again after a loss.
    fn channel(&self, address: &str) -> Result<PeerChannel, Error>;
}

/// Connects over TCP.
pub struct Tcp;

impl Dial for Tcp {
    fn channel(&self, address: &str) -> Result<PeerChannel, Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| {
            Error::new(ErrorCode::InvalidArgument, format!("`{address}` is not a replica's address: {e}"))
        })?;
        let channel = endpoint
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .connect_lazy();
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
