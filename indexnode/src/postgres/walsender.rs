//! A replication connection to a PostgreSQL node: identity of the server, creation of the slot, the change stream.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mantle_types::{Lineage, Lsn};
use pgwire_replication::{QueryRow, ReplicationClient, ReplicationEvent};
use tokio::time::timeout;
use tonic::async_trait;

use super::{
    sql,
    timelines::parse_history,
    upstream::{ChangeStream, Incarnation, NewSlot, Sampler, Server, Walsender},
};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// PostgreSQL reads the WAL from the slot's position only afterwards.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// A sample that takes longer is of no use to the lookups that wait for it.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct PostgresWalsender {
    pub(super) client: ReplicationClient,
    pub(super) slot: String,
}

#[async_trait]
impl Walsender for PostgresWalsender {
    async fn server(&mut self) -> Result<Server> {
        let asked = async {
            let system = self.client.identify_system().await?;
            let history = match system.timeline {
                1 => None,
                timeline => Some(self.client.timeline_history(timeline).await?),
            };
            let started = self.client.simple_query(sql::STARTED).await?;
            Ok::<_, pgwire_replication::PgWireError>((system, history, started))
        };
        let asked = timeout(ANSWER_TIMEOUT, asked).await.map_err(|_| anyhow!("the walsender does not answer"))?;
        let (system, history, started) = asked.context("IDENTIFY_SYSTEM")?;
        let content = history.map_or(String::new(), |history| String::from_utf8_lossy(&history.content).into_owned());
        Ok(Server {
            lineage: Lineage {
                system_identifier: system.system_id.parse().context("IDENTIFY_SYSTEM")?,
                timeline: system.timeline,
            },
            started_us: number(&started)?,
            flushed: Lsn(system.xlogpos.0),
            switch_points: parse_history(&content)?,
        })
    }

    async fn create_slot(&mut self, limit: Duration) -> Result<NewSlot> {
        let created = async {
            self.client.simple_query(&sql::lock_timeout(limit)).await?;
            self.client.simple_query(&sql::create_slot(&self.slot)).await
        };
        // The server waits for the transactions of up to three moments, one after the other.
        let created = timeout(3 * limit + ANSWER_TIMEOUT, created).await;
        let rows = created.map_err(|_| anyhow!("the walsender does not answer")).context("creating the slot")?;
        let rows = rows.context("creating the slot")?;
        let text = |column: usize| -> Result<String> {
            let value = rows.first().and_then(|row| row.get(column)).and_then(Option::as_ref);
            let value = value.context("CREATE_REPLICATION_SLOT answered too few columns")?;
            Ok(String::from_utf8(value.to_vec())?)
        };
        Ok(NewSlot { consistent_point: text(1)?.parse()?, snapshot: text(2)? })
    }

    async fn start(mut self: Box<Self>) -> Result<Box<dyn ChangeStream>> {
        let started = async {
            self.client.start().await?;
            self.client.wait_started().await
        };
        let started = timeout(START_TIMEOUT, started).await.map_err(|_| anyhow!("the walsender does not answer"));
        started.context("START_REPLICATION")?.context("START_REPLICATION")?;
        Ok(Box::new(self.client))
    }
}

/// Samples by IDENTIFY_SYSTEM, a command of the replication protocol that no planner sees. PostgreSQL shows a commit to others
/// after it has flushed it, so what was visible before is below the flush position.
pub(super) struct PostgresSampler {
    client: ReplicationClient,
    started_us: i64,
}

impl PostgresSampler {
    /// Fails on a standby.
    pub(super) async fn new(mut client: ReplicationClient) -> Result<Self> {
        let asked = timeout(ANSWER_TIMEOUT, client.simple_query(sql::PRIMARY_STARTED)).await;
        let rows = asked.map_err(|_| anyhow!("no answer"))?.context("not a primary")?;
        Ok(Self { client, started_us: number(&rows)? })
    }
}

/// The number in the first column of the only row.
fn number(rows: &[QueryRow]) -> Result<i64> {
    let value = rows.first().and_then(|row| row.first()).and_then(Option::as_ref).context("an empty answer")?;
    Ok(std::str::from_utf8(value)?.parse()?)
}

#[async_trait]
impl Sampler for PostgresSampler {
    async fn sample(&mut self) -> Result<(Incarnation, Lsn)> {
        let asked = timeout(SAMPLE_TIMEOUT, self.client.identify_system()).await;
        let system = asked.map_err(|_| anyhow!("the walsender does not answer"))?.context("IDENTIFY_SYSTEM")?;
        let system_identifier = system.system_id.parse().context("IDENTIFY_SYSTEM")?;
        let lineage = Lineage { system_identifier, timeline: system.timeline };
        Ok((Incarnation { lineage, started_us: self.started_us }, Lsn(system.xlogpos.0)))
    }
}

#[async_trait]
impl ChangeStream for ReplicationClient {
    async fn recv(&mut self) -> Result<Option<ReplicationEvent>> {
        ReplicationClient::recv(self).await.context("change stream")
    }

    fn confirm(&self, position: Lsn) {
        self.update_applied_lsn(pgwire_replication::Lsn(position.0));
    }
}
