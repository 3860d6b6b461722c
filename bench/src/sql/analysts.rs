//! Analysts' statements over one namespace.

use anyhow::Result;

use super::Session;

const GRANT: &str = "SELECT mantle.grant_namespace($1, 'mantle_analyst')";
// Autovacuum would come later at an unknown time.
const VACUUM: &str = "VACUUM (ANALYZE) mantle.meta";
const BECOME: &str = "SET ROLE mantle_analyst";

/// One statement, whose parameter is the namespace.
#[derive(Clone, Copy, Debug)]
pub struct Analysis(&'static str);

impl Analysis {
    /// All statements, in the report's order.
    pub const ALL: [Self; 7] = [
        Self("SELECT * FROM mantle.du($1, '')"),
        Self("SELECT * FROM mantle.du($1, '', 2)"),
        Self("SELECT * FROM mantle.top_dirs($1, '', 10)"),
        Self("SELECT * FROM mantle.find($1, '', '*.h', 1048576)"),
        Self("SELECT * FROM mantle.size_histogram WHERE namespace = $1"),
        Self("SELECT * FROM mantle.depth_distribution WHERE namespace = $1"),
        Self("SELECT * FROM mantle.small_objects WHERE namespace = $1"),
    ];

    /// The statement's SQL.
    pub fn text(&self) -> &'static str {
        self.0
    }
}

impl Session {
    /// Grants the namespace to mantle_analyst and takes that role; only for a superuser's session.
    pub async fn become_analyst(&self, ns: &str) -> Result<()> {
        self.client.query(GRANT, &[&ns]).await?;
        Ok(self.client.batch_execute(BECOME).await?)
    }

    /// Vacuums the MetaTable and gathers its statistics.
    pub async fn vacuum(&self) -> Result<()> {
        Ok(self.client.batch_execute(VACUUM).await?)
    }

    /// Runs the statement; answers the number of rows.
    pub async fn analyse(&self, analysis: Analysis, ns: &str) -> Result<usize> {
        Ok(self.client.query(analysis.0, &[&ns]).await?.len())
    }
}
