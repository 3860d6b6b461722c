//! One connection of HTTP/1.1, kept. Clients share the processors with the measured servers, so this uses hyper's
//! connection itself: no pool, no redirects, no URL to parse for each request.

use std::cell::Cell;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A connection to `host:port`, made by the first request, and again after the server has closed it. One request at a
/// time.
pub struct Connection {
    address: String,
    sender: Cell<Option<SendRequest<Full<Bytes>>>>,
}

impl Connection {
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), sender: Cell::new(None) }
    }

    pub fn several(address: &str, count: usize) -> Vec<Self> {
        (0..count).map(|_| Self::new(address)).collect()
    }

    /// Sends a request and reads the whole answer. The request needs a header `host`.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes)> {
        let mut sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => self.connect().await?,
        };
        sender.ready().await?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        self.sender.set(Some(sender));
        Ok((status, body))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.address).await.with_context(|| self.address.clone())?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // The request that waits for it fails with the cause.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// `host:port` of a URL `http://host:port`.
pub fn address(url: &str) -> Result<String> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url} must be http://host:port"))?;
    Ok(rest.trim_end_matches('/').to_owned())
}
