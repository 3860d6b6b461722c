//! Renames of directories over REST that meet each other.

use std::time::Duration;

use anyhow::Result;

use super::directories::{Api, chain};
use crate::{
    measure::run_clients,
    report::{Report, count, short},
    sample::median,
    wire::Connection,
};

pub const CLIENTS: usize = 64;

/// Rates of 64 clients, in one parent directory for all and in one for each.
#[derive(Default)]
pub struct Together {
    shared: Vec<f64>,
    private: Vec<f64>,
}

/// A client's directory, which is renamed to and fro. `number`: of the rename.
pub async fn to_and_fro(api: &Api<'_>, connection: &Connection, place: &str, number: usize) -> Result<()> {
    let [here, there] = ["d", "r"].map(|name| format!("{place}-{name}/"));
    let (source, destination) = if number.is_multiple_of(2) { (here, there) } else { (there, here) };
    api.rename(connection, &source, &destination).await
}

impl Together {
    pub async fn round(&mut self, api: &Api<'_>, round: u32, period: Duration) -> Result<()> {
        let connections = api.connections(CLIENTS);
        for (is_shared, rates) in [(true, &mut self.shared), (false, &mut self.private)] {
            let base = chain(&format!("together{round}-{is_shared}"));
            let place = |client: usize| format!("{base}/{}/{client}", if is_shared { 0 } else { client });
            for (client, connection) in connections.iter().enumerate() {
                api.mkdir(connection, &format!("{}-d?parents=true", place(client))).await?;
            }
            let rename = |client: usize, number: usize| {
                let (connection, place) = (&connections[client], place(client));
                async move { to_and_fro(api, connection, &place, number).await }
            };
            rates.push(run_clients(CLIENTS, period, rename).await?.0);
        }
        Ok(())
    }

    /// The rate in one parent, as a ratio to that in one each.
    pub fn ratio(&self) -> f64 {
        median(&self.shared) / median(&self.private)
    }

    pub fn show(&self, report: &mut Report) {
        report.heading("Renames of directories over REST, 64 clients");
        report.paragraph(
            "Each client renames a directory of its own to and fro, and nobody else names it. Either all of them lie \
             in one parent, or each in another.",
        );
        let row = |name: &str, rates: &[f64]| [name.to_owned(), count(median(rates).round() as u64)];
        let ratio = ["ratio".to_owned(), short(self.ratio())];
        report.table(
            "parents | renames/s",
            &[row("one for each", &self.private), row("one for all", &self.shared), ratio],
        );
    }
}
