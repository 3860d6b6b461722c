//! Analysts' statements over one namespace.

use anyhow::Result;

use super::Session;

/// One statement, whose parameter is the namespace.
#[derive(Clone, Copy, Debug)]
pub struct Analysis(pub &'static str);

impl Analysis {
    pub const ALL: [Self; 7] = [
        Self("SELECT * FROM mantle.du($1, '')"),
        Self("SELECT * FROM mantle.du($1, '', 2)"),
        Self("SELECT * FROM mantle.top_dirs($1, '', 10)"),
        Self("SELECT * FROM mantle.find($1, '', '*.h', 1048576)"),
        Self("SELECT * FROM mantle.size_histogram WHERE namespace = $1"),
        Self("SELECT * FROM mantle.depth_distribution WHERE namespace = $1"),
        Self("SELECT * FROM mantle.small_objects WHERE namespace = $1"),
    ];
}

impl Session {
    /// Grants the namespace to mantle_analyst and takes that role; only for a superuser's session.
    pub async fn become_analyst(&self, ns: &str) -> Result<()> {
        self.client.query("SELECT mantle.grant_namespace($1, 'mantle_analyst')", &[&ns]).await?;
        Ok(self.client.batch_execute("SET ROLE mantle_analyst").await?)
    }

    /// Vacuums the MetaTable and gathers its statistics. Autovacuum would come later, at an unknown time.
    pub async fn vacuum(&self) -> Result<()> {
        Ok(self.client.batch_execute("VACUUM (ANALYZE) mantle.meta").await?)
    }

    pub async fn analyse(&self, analysis: Analysis, ns: &str) -> Result<usize> {
        Ok(self.client.query(analysis.0, &[&ns]).await?.len())
    }
}
