//! What a gateway says of itself: whether it is ready, and its metrics.

use anyhow::Result;
use http_body_util::Full;
use hyper::{Request, StatusCode};

use crate::wire::{Connection, address};

/// The address of a gateway's probes.
pub struct Probes {
    address: String,
    connection: Connection,
}

impl Probes {
    pub fn new(url: &str) -> Result<Self> {
        let address = address(url)?;
        Ok(Self { connection: Connection::new(&address), address })
    }

    async fn page(&self, path: &str) -> Result<(StatusCode, String)> {
        let request = Request::get(path).header("host", &*self.address).body(Full::default())?;
        let (status, body) = self.connection.send(request).await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// `false` also while nobody answers.
    pub async fn is_ready(&self) -> bool {
        self.page("/readyz").await.is_ok_and(|(status, _)| status == StatusCode::OK)
    }

    /// A metric by its name, with its labels as written; no number if it is not there, or while nobody answers.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await.unwrap_or_default().1;
        value(&page, name)
    }

    /// Bytes of the gateway's volume: `volume`, `leased`, `used`, `waiting` or `in_doubt`.
    pub async fn volume_bytes(&self, of: &str) -> f64 {
        self.metric(&format!("mantle_gateway_volume_bytes{{of=\"{of}\"}}")).await
    }
}

fn value(page: &str, name: &str) -> f64 {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    page.lines().find_map(of).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_their_whole_names() {
        let page = "# TYPE a gauge\na_more 1\na 2\na{of=\"used\"} 3\n";
        assert_eq!([value(page, "a"), value(page, "a{of=\"used\"}")], [2.0, 3.0]);
        assert!(value(page, "of").is_nan());
    }
}
