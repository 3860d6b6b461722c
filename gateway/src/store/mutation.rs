//! A verb of which calls go together: the SQL functions take one array a parameter and answer one row an element, in any
//! order, numbered from 1 in `ord`.

use std::{collections::HashMap, marker::PhantomData, sync::Arc};

use mantle_types::{ErrorCode, Result, limits::BATCH_LATCHES_MAX};
use parking_lot::Mutex;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::{
    Signed,
    batch::{Bounds, Calls, Failure, Lane},
    database::{Database, Param, count_retries, pause},
    fault::Fault,
    nodes::{Node, Nodes},
    rows,
    shards::Address,
    sql::Statement,
    terms::Leased,
};
use crate::{config::Postgres, departure::still_wanted};

/// An array parameter.
pub type Column<'a> = (Box<dyn ToSql + Sync + Send + 'a>, Type);

/// One call of a verb, with all that it needs, since it travels to the lane's task.
pub trait Mutation: Send + Sync + Sized + 'static {
    /// What the caller is answered.
    type Answer: Send + 'static;
    /// The statement. Its first two parameters are principals and namespaces, its last three request ids, hashes
    /// and leases.
    const STATEMENT: &'static Statement;
    /// Most latches that one element adds to its batch.
    const LATCHES_MAX: usize;

    /// Who, where, and under which request id.
    fn signed(&self) -> &Signed;

    /// The partition that it changes: its node carries it out.
    fn leased(&self) -> &Leased;

    /// The parameters in between.
    fn columns<'a>(batch: &[&'a Self]) -> Vec<Column<'a>>;

    /// Reads an element's row; a code may be an error.
    fn answer(row: &Row) -> Result<Self::Answer>;
}

/// One array: a value of each element.
pub fn column<'a, M, T>(batch: &[&'a M], array: Type, value: impl Fn(&'a M) -> T) -> Column<'a>
where
    T: ToSql + Sync + Send + 'a,
{
    (Box::new(batch.iter().map(|element| value(element)).collect::<Vec<T>>()), array)
}

/// How often a call follows its shard.
pub const MOVES_FOLLOWED_MAX: u32 = 5;

/// A verb's lanes: one for each node, since a batch is one transaction on one node.
pub struct Mutations<M: Mutation> {
    nodes: Arc<Nodes>,
    bounds: Bounds,
    lanes: Mutex<HashMap<Address, Arc<Lane<MutationCalls<M>>>>>,
}

/// Makes a verb's lanes; their batches are never refused for their latches.
pub fn mutations<M: Mutation>(nodes: &Arc<Nodes>, config: &Postgres) -> Mutations<M> {
    let bounds = Bounds {
        batches_in_flight_max: config.batches_in_flight_max,
        elements_max: config.batch_elements_max.min(BATCH_LATCHES_MAX / M::LATCHES_MAX),
    };
    Mutations { nodes: nodes.clone(), bounds, lanes: Mutex::new(HashMap::new()) }
}

impl<M: Mutation> Mutations<M> {
    /// The answer to one element.
    pub async fn submit(&self, element: M) -> Result<M::Answer> {
        let element = Arc::new(element);
        for attempt in 0..MOVES_FOLLOWED_MAX {
            still_wanted()?;
            let node = self.nodes.of(element.leased().pid).await?;
            match self.lane(&node).submit(element.clone()).await {
                // Rolled back: its shard has moved.
                Err(error) if error.code() == ErrorCode::WrongNode => {
                    count_retries(M::STATEMENT, 1);
                    self.nodes.refresh().await?;
                    pause(attempt).await;
                }
                answer => return answer,
            }
        }
        Err(ErrorCode::WrongNode.into())
    }

    fn lane(&self, node: &Node) -> Arc<Lane<MutationCalls<M>>> {
        let mut lanes = self.lanes.lock();
        let calls = || MutationCalls { database: node.database.clone(), verb: PhantomData };
        lanes.entry(node.address.clone()).or_insert_with(|| Arc::new(Lane::new(calls(), self.bounds))).clone()
    }
}

/// Sends a verb's elements to the database.
pub struct MutationCalls<M> {
    database: Database,
    verb: PhantomData<fn() -> M>,
}

impl<M: Mutation> Calls for MutationCalls<M> {
    /// Shared with who follows it to another node.
    type Element = Arc<M>;
    type Answer = M::Answer;
    const NAME: &'static str = M::STATEMENT.name;

    fn request(element: &Arc<M>) -> Uuid {
        element.signed().request
    }

    async fn together(&self, elements: &[&Arc<M>]) -> Result<Vec<Result<M::Answer>>, Failure> {
        let columns = all_columns(&elements.iter().map(|element| &***element).collect::<Vec<&M>>());
        match self.database.query_once(M::STATEMENT, &params(&columns)).await {
            Ok(rows) => Ok(answers::<M>(&rows, elements.len())),
            Err(fault) => Err(failure(fault, M::STATEMENT, elements.len())),
        }
    }

    async fn alone(&self, element: &Arc<M>, lost: bool) -> Result<M::Answer> {
        let columns = all_columns(&[&**element]);
        let rows = self.database.query(M::STATEMENT, &params(&columns), lost).await?;
        answers::<M>(&rows, 1).pop().unwrap_or_else(|| Err(ErrorCode::Internal.into()))
    }
}

fn all_columns<'a, M: Mutation>(batch: &[&'a M]) -> Vec<Column<'a>> {
    let mut columns = vec![
        column(batch, Type::INT4_ARRAY, |element| element.signed().principal as i32),
        column(batch, Type::INT8_ARRAY, |element| element.signed().ns),
    ];
    columns.extend(M::columns(batch));
    columns.push(column(batch, Type::UUID_ARRAY, |element| element.signed().request));
    columns.push(column(batch, Type::INT8_ARRAY, |element| element.signed().hash));
    columns.push(column(batch, Type::TEXT_ARRAY, |element| element.leased().lease.to_string()));
    columns
}

fn params<'a>(columns: &'a [Column<'_>]) -> Vec<Param<'a>> {
    columns.iter().map(|(array, of)| (&**array as &(dyn ToSql + Sync), of.clone())).collect()
}

/// What a fault of a whole batch means for its elements.
fn failure(fault: Fault, statement: &'static Statement, elements: usize) -> Failure {
    match fault {
        // The doubt is about the commit that all share: sent again, each would be told that it was carried out.
        Fault::Mantle(ErrorCode::UnknownOutcome) | Fault::Unavailable(_) => {
            Failure::ForAll(fault.into_error(statement.name, statement.mutates))
        }
        // Rolled back, or answered once under its request id; and what one bad element does to the call is its own.
        fault => {
            tracing::debug!(statement = statement.name, elements, ?fault, "a batch failed; its elements go singly");
            count_retries(statement, elements);
            Failure::Singly { lost: matches!(fault, Fault::Lost(_)) }
        }
    }
}

/// The answers in the elements' order.
fn answers<M: Mutation>(rows: &[Row], count: usize) -> Vec<Result<M::Answer>> {
    let numbered = rows.iter().map(|row| (rows::get::<i32>(row, "ord").unwrap_or_default(), M::answer(row)));
    let missing = || {
        tracing::error!(statement = M::STATEMENT.name, rows = rows.len(), count, "an element has no row");
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
        super::{
            directories::{Mkdir, Rmdir, SetAttributesOf},
            objects::{DeleteObject, PutObject},
        },
        *,
    };

    fn check<M: Mutation>() {
        let text = M::STATEMENT.text;
        let count = all_columns::<M>(&[]).len();
        assert!(text.contains(&format!("${count})")), "{text} takes other than {count} parameters");
        assert!(text.starts_with("SELECT ord, "), "{text} does not say whose row it is");
        assert!(M::STATEMENT.mutates && BATCH_LATCHES_MAX / M::LATCHES_MAX > 1);
    }

    #[test]
    fn statements_take_what_they_are_given() {
        check::<Mkdir>();
        check::<Rmdir>();
        check::<SetAttributesOf>();
        check::<PutObject>();
        check::<DeleteObject>();
    }

    #[test]
    fn rows_are_taken_by_their_number() {
        let rows = [(3, 'c'), (1, 'a'), (0, 'x'), (-1, 'x'), (5, 'x'), (2, 'b')];
        assert_eq!(in_order(rows.into_iter(), 4), [Some('a'), Some('b'), Some('c'), None]);
    }

    #[test]
    fn only_a_doubtful_commit_and_an_absent_database_fail_all() {
        let of = |fault| failure(fault, Mkdir::STATEMENT, 2);
        assert_eq!(of(Fault::Mantle(ErrorCode::BatchTooLarge)), Failure::Singly { lost: false });
        assert_eq!(of(Fault::Mantle(ErrorCode::WrongIsolation)), Failure::Singly { lost: false });
        assert_eq!(of(Fault::Mantle(ErrorCode::UnknownOutcome)), Failure::ForAll(ErrorCode::UnknownOutcome.into()));
        assert_eq!(of(Fault::Unavailable("gone".into())), Failure::ForAll(ErrorCode::DatabaseUnavailable.into()));
    }
}
