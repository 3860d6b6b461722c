//! How far a migration of bytes between stores is, in memory: each gateway has one at most.

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::Serialize;

/// How far a migration is. The native API answers it as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Migration {
    pub state: MigrationState,
    /// Objects, and uploads in parts, whose bytes were moved.
    pub objects: u64,
    pub bytes: u64,
    /// Those that could not be moved; the log names them.
    pub failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<DateTime<Utc>>,
    /// Why it ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationState {
    /// None since the gateway was started.
    #[default]
    None,
    Running,
    Done,
    Failed,
}

/// The migration of a gateway.
#[derive(Default)]
pub struct Migrations(Mutex<Migration>);

impl Migrations {
    /// As it is now.
    pub fn now(&self) -> Migration {
        self.0.lock().clone()
    }

    pub fn note(&self, change: impl FnOnce(&mut Migration)) {
        change(&mut self.0.lock());
    }

    /// `false` if one runs already.
    pub fn begin(&self) -> bool {
        let mut migration = self.0.lock();
        let is_new = migration.state != MigrationState::Running;
        if is_new {
            let started = Some(Utc::now());
            *migration = Migration { state: MigrationState::Running, started, ..Migration::default() };
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let migrations = Migrations::default();
        assert!(migrations.begin());
        migrations.note(|migration| migration.objects = 3);
        assert!(!migrations.begin());
        assert_eq!(migrations.now().objects, 3);
        migrations.note(|migration| migration.state = MigrationState::Failed);
        assert!(migrations.begin());
        assert_eq!(migrations.now().objects, 0);
    }
}
