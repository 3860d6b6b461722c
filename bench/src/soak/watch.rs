//! Samples the server's transactions, delta records and statistics during the soak.

use std::{sync::Arc, time::Duration};

use anyhow::Result;

use super::load::{Load, of_minute};
use crate::sql::{Session, TableState};

/// Short enough that a transaction over the bound is seen several times before it is twice as old.
const LOOK: Duration = Duration::from_millis(250);
/// Counting delta records costs some milliseconds, so only every eighth look does it.
const LOOKS_PER_COUNT: u32 = 8;

/// One minute: maxima, vacuums that ended in it, sizes at its end.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    pub oldest: Duration,
    pub deltas: i64,
    pub table: TableState,
}

/// Watches until the end; answers the minutes.
pub async fn watch(load: Arc<Load>, session: Session) -> Result<Vec<Seen>> {
    let mut minutes: Vec<Seen> = Vec::new();
    let mut vacuums = session.table_state().await?.vacuums;
    let mut looks = 0;
    while let Some(minute) = load.minute() {
        let seen = of_minute(&mut minutes, minute);
        seen.oldest = seen.oldest.max(session.oldest_transaction().await?);
        if looks % LOOKS_PER_COUNT == 0 {
            seen.deltas = seen.deltas.max(session.deltas().await?);
            let now = session.table_state().await?;
            let ended = seen.table.vacuums + now.vacuums - vacuums;
            vacuums = now.vacuums;
            seen.table = TableState { dead: seen.table.dead.max(now.dead), vacuums: ended, ..now };
        }
        looks += 1;
        tokio::time::sleep(LOOK).await;
    }
    Ok(minutes)
}
