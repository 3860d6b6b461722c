//! One verb's mutations, batched per node. The SQL functions take one array per parameter. They answer one row per
//! element, in any order, numbered from 1 in `ord`.

use std::{collections::HashMap, marker::PhantomData, sync::Arc};

use mantle_types::{Caller, ErrorCode, Result, limits::BATCH_LATCHES_MAX, verbs::Verb};
use parking_lot::Mutex;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    RequestClaim,
    batch::{Batcher, Bounds, Calls, Failure},
    columns::{self, Column, column},
    database::{Database, count_retries, pause},
    fault::Fault,
    nodes::{Node, Nodes},
    resolution::LeasedPartition,
    rows::{self, Coded, Written},
    shards::Address,
    sql::Statement,
};
use crate::{config::Postgres, disconnect::check_client_waits};

/// A change that a verb makes in a partition.
pub trait Mutation: Send + Sync + Sized + 'static {
    const VERB: &'static Verb;
    /// The statement that calls the verb.
    const STATEMENT: &'static Statement;
    /// Most latches that one element adds to its batch.
    const LATCHES_MAX: usize;

    /// The connection broke of an attempt that may still be carried out, whatever a later one is answered.
    fn note_lost(&self) {}

    /// The columns of those arguments that not every verb has.
    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>>;
}

/// One mutation of a batch. Owned, because it travels to the batcher's task.
pub struct Element<M> {
    claim: RequestClaim,
    /// As the SQL verbs take it.
    caller: String,
    partition: LeasedPartition,
    change: M,
}

/// How often a call follows its shard to another node.
pub const MOVES_FOLLOWED_MAX: u32 = 5;

/// A verb's batchers. Each node has its own, because a batch is one transaction on one node.
pub struct Mutations<M: Mutation> {
    nodes: Arc<Nodes>,
    bounds: Bounds,
    batchers: Mutex<HashMap<Address, Arc<Batcher<MutationCalls<M>>>>>,
}

impl<M: Mutation> Mutations<M> {
    /// Bounds the batches so that PostgreSQL never refuses one for its latches.
    pub fn new(nodes: &Arc<Nodes>, config: &Postgres) -> Self {
        let bounds = Bounds {
            batches_in_flight_max: config.batches_in_flight_max,
            elements_max: config.batch_elements_max.min(BATCH_LATCHES_MAX / M::LATCHES_MAX),
        };
        Self { nodes: nodes.clone(), bounds, batchers: Mutex::new(HashMap::new()) }
    }

    /// The answer to one element, with its error code if it was refused.
    pub async fn submit(
        &self,
        claim: RequestClaim,
        caller: &Caller,
        partition: LeasedPartition,
        change: M,
    ) -> Result<Coded> {
        let element = Arc::new(Element { claim, caller: caller.to_string(), partition, change });
        for attempt in 0..MOVES_FOLLOWED_MAX {
            check_client_waits()?;
            let node = self.nodes.of(partition.pid).await?;
            let answer = self.batcher(&node).submit(element.clone()).await;
            if rows::code_of(&answer) != Some(ErrorCode::WrongNode) {
                return answer;
            }
            // Rolled back: the shard has moved.
            count_retries(M::STATEMENT, 1);
            self.nodes.refresh().await?;
            pause(attempt).await;
        }
        Err(ErrorCode::WrongNode.into())
    }

    /// As [`Self::submit`]; a refusal is an error.
    pub async fn run(
        &self,
        claim: RequestClaim,
        caller: &Caller,
        partition: LeasedPartition,
        change: M,
    ) -> Result<Written> {
        rows::accepted(self.submit(claim, caller, partition, change).await?)
    }

    fn batcher(&self, node: &Node) -> Arc<Batcher<MutationCalls<M>>> {
        let mut batchers = self.batchers.lock();
        let calls = || MutationCalls { database: node.database.clone(), verb: PhantomData };
        batchers.entry(node.address.clone()).or_insert_with(|| Arc::new(Batcher::new(calls(), self.bounds))).clone()
    }
}

/// Sends a verb's elements to the database.
pub struct MutationCalls<M> {
    database: Database,
    verb: PhantomData<fn() -> M>,
}

impl<M: Mutation> Calls for MutationCalls<M> {
    /// Shared, because a call may follow its shard to another node.
    type Element = Arc<Element<M>>;
    type Answer = Coded;
    const NAME: &'static str = M::STATEMENT.name;

    fn request(element: &Arc<Element<M>>) -> Uuid {
        element.claim.request
    }

    async fn together(&self, elements: &[&Arc<Element<M>>]) -> Result<Vec<Result<Coded>>, Failure> {
        let columns = all_columns(&elements.iter().map(|element| &***element).collect::<Vec<_>>());
        match self.database.query_once(M::STATEMENT, &columns::params(&columns)).await {
            Ok(rows) => Ok(answers(M::STATEMENT, &rows, elements.len())),
            Err(fault) => Err(failure(fault, M::STATEMENT, elements.len())),
        }
    }

    async fn alone(&self, element: &Arc<Element<M>>, mut lost: bool) -> Result<Coded> {
        let columns = all_columns(&[&**element]);
        let rows = self.database.query_noting(M::STATEMENT, &columns::params(&columns), &mut lost).await;
        if lost {
            element.change.note_lost();
        }
        answers(M::STATEMENT, &rows?, 1).pop().unwrap_or_else(|| Err(ErrorCode::Internal.into()))
    }
}

fn all_columns<'a, M: Mutation>(batch: &[&'a Element<M>]) -> Vec<Column<'a>> {
    let mut columns = M::columns(&batch.iter().map(|element| &element.change).collect::<Vec<_>>());
    columns.push(column(batch, M::VERB.principal, |element| element.claim.principal as i32));
    columns.push(column(batch, M::VERB.ns, |element| element.claim.ns.as_i64()));
    columns.push(column(batch, M::VERB.pid, |element| element.partition.pid.as_i64()));
    columns.push(column(batch, M::VERB.request, |element| element.claim.request));
    columns.push(column(batch, M::VERB.hash, |element| element.claim.hash));
    columns.push(column(batch, M::VERB.lease, |element| element.partition.lease.to_string()));
    columns.push(column(batch, M::VERB.caller, |element| element.caller.as_str()));
    let permission = |element: &Element<M>| element.partition.permission.map(|permission| permission.to_string());
    columns.push(column(batch, M::VERB.parent, permission));
    columns.sort_by_key(|column| column.place);
    debug_assert!(columns::are_complete(&columns, M::VERB.arguments.len()), "{} lacks a column", M::VERB.name);
    columns
}

/// The consequence of a fault of the whole batch for its elements.
pub(super) fn failure(fault: Fault, statement: &'static Statement, elements: usize) -> Failure {
    match fault {
        // The commit that all elements share is in doubt. Sent again, each would be answered as carried out.
        Fault::Mantle(ErrorCode::UnknownOutcome) | Fault::Unavailable(_) => {
            Failure::ForAll(fault.into_error(statement.name, statement.mutates))
        }
        // Rolled back, or answered once under its request id. One bad element must fail no other.
        fault => {
            tracing::debug!(statement = statement.name, elements, ?fault, "a batch failed; its elements go singly");
            count_retries(statement, elements);
            Failure::Singly { lost: matches!(fault, Fault::Lost(_)) }
        }
    }
}

/// The answers in the elements' order.
pub(super) fn answers(statement: &'static Statement, rows: &[Row], count: usize) -> Vec<Result<Coded>> {
    let numbered = rows.iter().map(|row| (rows::get::<i32>(row, "ord").unwrap_or_default(), Written::read(row)));
    let missing = || {
        tracing::error!(statement = statement.name, rows = rows.len(), count, "an element has no row");
        Err(ErrorCode::Internal.into())
    };
    in_order(numbered, count).into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
}

/// Values by their number, from 1; numbers out of range are dropped.
fn in_order<T>(numbered: impl Iterator<Item = (i32, T)>, count: usize) -> Vec<Option<T>> {
    let mut ordered: Vec<Option<T>> = std::iter::repeat_with(|| None).take(count).collect();
    for (ord, value) in numbered {
        let place = usize::try_from(ord).ok().and_then(|ord| ord.checked_sub(1));
        if let Some(slot) = place.and_then(|place| ordered.get_mut(place)) {
            *slot = Some(value);
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::{
        super::{DeleteObject, NewDirectory, NewObject, Rmdir, SetAttributes},
        *,
    };

    fn check<M: Mutation>() {
        let (text, count) = (M::STATEMENT.text, M::VERB.arguments.len());
        assert!(columns::are_complete(&all_columns::<M>(&[]), count), "{text}: not one column for each argument");
        assert!(text.contains(&format!("${count})")), "{text} takes other than {count} parameters");
        assert!(text.starts_with("SELECT ord, "), "{text} does not say whose row it is");
        assert!(M::STATEMENT.mutates && BATCH_LATCHES_MAX / M::LATCHES_MAX > 1);
    }

    #[test]
    fn statements_take_the_columns_of_their_verbs() {
        check::<NewDirectory>();
        check::<Rmdir>();
        check::<SetAttributes>();
        check::<NewObject>();
        check::<DeleteObject>();
    }

    #[test]
    fn rows_are_taken_by_their_number() {
        let rows = [(3, 'c'), (1, 'a'), (0, 'x'), (-1, 'x'), (5, 'x'), (2, 'b')];
        assert_eq!(in_order(rows.into_iter(), 4), [Some('a'), Some('b'), Some('c'), None]);
    }

    #[test]
    fn only_a_doubtful_commit_and_an_absent_database_fail_all() {
        let of = |fault| failure(fault, NewDirectory::STATEMENT, 2);
        assert_eq!(of(Fault::Mantle(ErrorCode::BatchTooLarge)), Failure::Singly { lost: false });
        assert_eq!(of(Fault::Mantle(ErrorCode::WrongIsolation)), Failure::Singly { lost: false });
        assert_eq!(of(Fault::StaleSession(ErrorCode::WrongIsolation)), Failure::Singly { lost: false });
        assert_eq!(of(Fault::Mantle(ErrorCode::UnknownOutcome)), Failure::ForAll(ErrorCode::UnknownOutcome.into()));
        assert_eq!(of(Fault::Unavailable("gone".into())), Failure::ForAll(ErrorCode::DatabaseUnavailable.into()));
    }
}
