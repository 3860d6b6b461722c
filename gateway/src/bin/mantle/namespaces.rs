//! `mantle namespaces`: shows the index group of each namespace, and moves a namespace to another group while it is in
//! use. The new group's leader executes a move. This program only starts and watches it, so it may be interrupted.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tokio_postgres::Client;

use crate::{
    connect::{self, DatabaseOptions},
    exit::{Exit, failure},
    output::Output,
    sql, table,
};

/// Time between two looks at a move.
const LOOK: Duration = Duration::from_millis(200);
const DONE: &str = "done";
const SWITCHED: &str = "switched";

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

/// The answer of `mantle namespaces --json` and `namespaces list --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answer {
    /// In the order of their names.
    namespaces: Vec<Namespace>,
}

/// A namespace.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Namespace {
    /// The bucket's name.
    name: String,
    /// The index group that serves it.
    group: i32,
    /// The other group of a move; null if the namespace does not move.
    other_group: Option<i32>,
    /// Phase of the move: `copy`, `both` or `switched`; null if the namespace does not move.
    phase: Option<String>,
}

/// The answer of `mantle namespaces move --json` and `abort --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Moved {
    /// Name of the namespace.
    name: String,
    /// The phases that the command saw, in order. The last one is the result: `done` for a move; for an abort `aborted`, or
    /// `switched` if it came too late.
    phases: Vec<String>,
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    let database = connect::connect_first(&options.database.url).await?;
    let (name, phases) = match options.action.unwrap_or(Action::List) {
        Action::List => {
            list(&database, output).await?;
            return Ok(Exit::Fine);
        }
        Action::Move { namespace, group } => {
            let phases = move_to(&database, &namespace, group, output).await?;
            (namespace, phases)
        }
        Action::Abort { namespace } => {
            let answer: String = database.query_one(sql::ABORT_MOVE, &[&namespace]).await?.get(0);
            output.text(format_args!("{answer}\n"));
            (namespace, vec![answer])
        }
    };
    // Too late to abort: the new group serves the namespace.
    let exit = if phases.last().is_some_and(|phase| phase == SWITCHED) { Exit::Fault } else { Exit::Fine };
    output.answer(&Moved { name, phases });
    Ok(exit)
}

async fn list(database: &Client, output: Output) -> Result<()> {
    let namespaces = database.query(sql::NAMESPACE_GROUPS, &[]).await?;
    let namespace = |row: &tokio_postgres::Row| Namespace {
        name: row.get(0),
        group: row.get(1),
        other_group: row.get(2),
        phase: row.get(3),
    };
    let answer = Answer { namespaces: namespaces.iter().map(namespace).collect() };
    let mut rows = vec![table::headings(["namespace", "group", "other group", "move"])];
    for Namespace { name, group, other_group, phase } in &answer.namespaces {
        let other = other_group.map(|other| other.to_string());
        let [other, phase] = [other, phase.clone()].map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        rows.push(vec![name.clone(), group.to_string(), other, phase]);
    }
    output.text(table::table(&rows));
    output.answer(&answer);
    Ok(())
}

/// Begins a move if none is under way, and follows it to its end. Answers the phases that were seen.
async fn move_to(database: &Client, namespace: &str, group: i32, output: Output) -> Result<Vec<String>> {
    let mut phase: String = database.query_one(sql::MOVE_NAMESPACE, &[&namespace, &group]).await?.get(0);
    let mut phases: Vec<String> = Vec::new();
    loop {
        if phases.last() != Some(&phase) {
            output.text(format_args!("{phase}\n"));
            phases.push(phase.clone());
        }
        if phase == DONE {
            return Ok(phases);
        }
        tokio::time::sleep(LOOK).await;
        let row = database.query_opt(sql::NAMESPACE_GROUP, &[&namespace]).await?;
        let row = row.ok_or_else(|| failure(Exit::Fault, format!("namespace {namespace} was removed")))?;
        phase = match row.get::<_, Option<String>>(1) {
            Some(phase) => phase,
            None if row.get::<_, i32>(0) == group => DONE.to_owned(),
            None => return Err(failure(Exit::Fault, "the move was taken back")),
        };
    }
}
