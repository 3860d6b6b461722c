//! Builds the array parameters of a batch verb: one array for each argument, with one value for each element. A column
//! names its argument, so a value of another type does not compile, and the table of verbs decides the order.

use mantle_types::verbs::{Argument, BigInt, Boolean, Bytea, Int, Jsonb, Text, Uuid};
use tokio_postgres::types::{ToSql, Type};

use super::database::Param;

/// The PostgreSQL type of an argument's array.
pub trait Array {
    const TYPE: Type;
}

/// A Rust value that an argument of `T` takes.
pub trait ValueOf<T>: ToSql + Sync + Send {}

macro_rules! arrays {
    ($($of:ident $array:ident: $($rust:ty),+;)+) => {
        $(
            impl Array for $of {
                const TYPE: Type = Type::$array;
            }
            $(impl ValueOf<$of> for $rust {})+
        )+
    };
}

arrays! {
    Int INT4_ARRAY: i32, Option<i32>;
    BigInt INT8_ARRAY: i64, Option<i64>;
    Text TEXT_ARRAY: &str, Option<&str>, String, Option<String>;
    Boolean BOOL_ARRAY: bool, Option<bool>;
    Jsonb JSONB_ARRAY: Option<&serde_json::Value>;
    Uuid UUID_ARRAY: uuid::Uuid;
    Bytea BYTEA_ARRAY: Option<&[u8]>;
}

pub struct Column<'a> {
    /// The argument's, in the table of verbs.
    pub place: usize,
    array: Box<dyn ToSql + Sync + Send + 'a>,
    of: Type,
}

/// The array of an argument: the value of each element.
pub fn column<'a, M, T: Array, V: ValueOf<T> + 'a>(
    batch: &[&'a M],
    argument: Argument<T>,
    value: impl Fn(&'a M) -> V,
) -> Column<'a> {
    let values: Vec<V> = batch.iter().map(|element| value(element)).collect();
    Column { place: argument.place(), array: Box::new(values), of: T::TYPE }
}

/// As [`column`], of an argument whose array may be NULL: it is, if no element has a value.
pub fn column_if_any<'a, M, T: Array, V: ToSql + Sync + Send + 'a>(
    batch: &[&'a M],
    argument: Argument<T>,
    value: impl Fn(&'a M) -> Option<V>,
) -> Column<'a>
where
    Option<V>: ValueOf<T>,
{
    let values = || batch.iter().map(|element| value(element));
    let array = values().any(|value| value.is_some()).then(|| values().collect::<Vec<Option<V>>>());
    Column { place: argument.place(), array: Box::new(array), of: T::TYPE }
}

/// Whether there is exactly one column for each argument.
pub fn are_complete(columns: &[Column<'_>], arguments: usize) -> bool {
    columns.iter().map(|column| column.place).eq(0..arguments)
}

/// The columns as a statement's parameters.
pub fn params<'a>(columns: &'a [Column<'_>]) -> Vec<Param<'a>> {
    columns.iter().map(|column| (&*column.array as &(dyn ToSql + Sync), column.of.clone())).collect()
}
