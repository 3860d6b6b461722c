//! `mantle namespaces`: shows the index group of each namespace, and moves a namespace to another group while it is in
//! use. The new group's leader executes a move. This program only starts and watches it, so it may be interrupted.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use tokio_postgres::Client;

use crate::{
    connect::{self, DatabaseOptions},
    sql, table,
};

/// Time between two looks at a move.
const LOOK: Duration = Duration::from_millis(200);
const DONE: &str = "done";

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    database: DatabaseOptions,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the namespaces and their groups (the default)
    List,
    /// Move a namespace to another index group and wait for the end; if the move has begun, only wait
    Move { namespace: String, group: i32 },
    /// Undo a move, unless the new group serves the namespace already
    Abort { namespace: String },
}

pub async fn run(options: Options) -> Result<ExitCode> {
    let database = connect::connect_first(&options.database.url).await?;
    match options.action.unwrap_or(Action::List) {
        Action::List => list(&database).await?,
        Action::Move { namespace, group } => move_to(&database, &namespace, group).await?,
        Action::Abort { namespace } => {
            let answer: String =
                database.query_one(sql::ABORT_MOVE, &[&namespace]).await.map_err(database_error)?.get(0);
            crate::print(&format!("{answer}\n"));
            return Ok(if answer == "switched" { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(database: &Client) -> Result<()> {
    let mut rows = vec![table::headings(["namespace", "group", "other group", "move"])];
    for row in database.query(sql::NAMESPACE_GROUPS, &[]).await.map_err(database_error)? {
        let other = row.get::<_, Option<i32>>(2).map(|other| other.to_string());
        let [other, phase] = [other, row.get(3)].map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        rows.push(vec![row.get(0), row.get::<_, i32>(1).to_string(), other, phase]);
    }
    crate::print(&table::table(&rows));
    Ok(())
}

async fn move_to(database: &Client, namespace: &str, group: i32) -> Result<()> {
    let mut phase: String =
        database.query_one(sql::MOVE_NAMESPACE, &[&namespace, &group]).await.map_err(database_error)?.get(0);
    let mut said = String::new();
    loop {
        if phase != said {
            crate::print(&format!("{phase}\n"));
            said.clone_from(&phase);
        }
        if phase == DONE {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
        let row = database.query_opt(sql::NAMESPACE_GROUP, &[&namespace]).await.map_err(database_error)?;
        let row = row.with_context(|| format!("namespace {namespace} was removed"))?;
        phase = match row.get::<_, Option<String>>(1) {
            Some(phase) => phase,
            None if row.get::<_, i32>(0) == group => DONE.to_owned(),
            None => bail!("the move was taken back"),
        };
    }
}

/// PostgreSQL's message; `tokio_postgres::Error` itself prints only "db error".
fn database_error(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(db) => anyhow::anyhow!("{}", db.message()),
        None => anyhow::anyhow!(error),
    }
}
