//! The arguments of the batch verbs: the one list from which the SQL signatures (`extension/build.rs`), the extension's view of
//! a call, and the gateway's statements come. An argument more is a line here, and its use.
//!
//! A batch verb takes one array an argument, with one value an element, and answers one row an element.

use std::marker::PhantomData;

macro_rules! sql_types {
    ($($name:ident $sql:literal)+) => {
        /// The SQL type of an argument's values.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum SqlType {
            $($name),+
        }

        impl SqlType {
            /// Its name in SQL.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $sql),+
                }
            }
        }

        $(
            #[doc = concat!("Values of [`SqlType::", stringify!($name), "`].")]
            #[derive(Clone, Copy, Debug)]
            pub enum $name {}
        )+
    };
}

sql_types! { Int "int" BigInt "bigint" Text "text" Boolean "boolean" Jsonb "jsonb" Uuid "uuid" Bytea "bytea" }

/// An argument with values of `T`: its place among its verb's, from 0.
#[derive(Debug)]
pub struct Argument<T> {
    place: usize,
    values: PhantomData<fn() -> T>,
}

impl<T> Clone for Argument<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Argument<T> {}

impl<T> Argument<T> {
    const fn at(place: usize) -> Self {
        Self { place, values: PhantomData }
    }

    /// The place.
    pub const fn place(self) -> usize {
        self.place
    }
}

/// A verb's arguments, and those that every verb has.
#[allow(missing_docs)]
pub struct Verb {
    /// Name of the SQL function, in the schema `mantle`.
    pub name: &'static str,
    /// Name and type of each, in order.
    pub arguments: &'static [(&'static str, SqlType)],
    /// The columns of the rows that it answers, after the number of the element.
    pub answer: &'static str,
    pub principal: Argument<Int>,
    pub ns: Argument<BigInt>,
    pub pid: Argument<BigInt>,
    pub request: Argument<Uuid>,
    pub hash: Argument<BigInt>,
    pub lease: Argument<Text>,
    pub caller: Argument<Text>,
    pub parent: Argument<Text>,
}

macro_rules! arguments {
    ($($(#[$about:meta])* $name:ident $of:ident;)+) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Place { $($name),+ }

        $($(#[$about])* pub const $name: Argument<$of> = Argument::at(Place::$name as usize);)+
        const ARGUMENTS: &[(&str, SqlType)] = &[$((stringify!($name), SqlType::$of)),+];
        /// How many arguments there are.
        pub const COUNT: usize = ARGUMENTS.len();
    };
}

/// A module for each verb. Every verb begins and ends with the same arguments. After them come those that were added later:
/// callers of an older version leave them out.
macro_rules! verbs {
    ($($(#[$doc:meta])+ $verb:ident -> $answer:literal { $($(#[$about:meta])* $name:ident $of:ident;)* }
        $(then { $($(#[$later_about:meta])* $later:ident $later_of:ident;)+ })?)+) => {
        $(
            $(#[$doc])+
            #[allow(missing_docs, non_upper_case_globals)]
            pub mod $verb {
                use super::*;

                arguments! {
                    PRINCIPAL Int;
                    NS BigInt;
                    /// The parent's partition.
                    PID BigInt;
                    /// The name; a directory's ends with a slash.
                    NAME Text;
                    $($(#[$about])* $name $of;)*
                    REQUEST Uuid;
                    HASH BigInt;
                    LEASE Text;
                    /// Who asks, with its groups: a [`Caller`](crate::Caller). NULL: the principal, in no group.
                    CALLER Text;
                    /// The directory's [`Permission`](crate::Permission) as the lookup found it (P56). NULL: unknown, so only
                    /// uid 0 passes.
                    PARENT Text;
                    $($($(#[$later_about])* $later $later_of;)+)?
                }
                pub const VERB: Verb = Verb {
                    name: stringify!($verb), arguments: ARGUMENTS, answer: $answer,
                    principal: PRINCIPAL, ns: NS, pid: PID, request: REQUEST, hash: HASH, lease: LEASE,
                    caller: CALLER, parent: PARENT,
                };
                /// The call of the SQL function with parameters: `mantle.verb($1, …)`.
                pub const CALL: &str = crate::joined!("mantle.", stringify!($verb), "(", super::parameters(COUNT), ")");
            }
        )+

        /// Every batch verb.
        pub const VERBS: &[Verb] = &[$($verb::VERB),+];
    };
}

verbs! {
    /// Makes directories.
    mkdir -> "code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn" {
        /// Of the new directory.
        ID BigInt;
        OWNER Int;
        GRP Int;
        MODE Int;
        /// Whether it stays when it is empty.
        EXPLICIT Boolean;
        USER_METADATA Jsonb;
    }
    /// Removes empty directories.
    rmdir -> "code text, id bigint, replayed boolean, flush_lsn pg_lsn" {
        ID BigInt;
    }
    /// Creates or overwrites objects.
    put_object -> "code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn, old_locator text" {
        /// Of the object, if it is new.
        ID BigInt;
        OWNER Int;
        GRP Int;
        MODE Int;
        SIZE BigInt;
        ETAG Text;
        CONTENT_TYPE Text;
        USER_METADATA Jsonb;
        LOCATOR Text;
        /// NULL, `*absent`, `*present`, or the etag that the object must have.
        CONDITION Text;
    } then {
        /// The bytes, if they go into PostgreSQL: then there is no locator (P62). A NULL array: of none.
        INLINE Bytea;
    }
    /// Deletes objects.
    delete_object -> "code text, id bigint, replayed boolean, flush_lsn pg_lsn, old_locator text" {
        /// Of the object, with its version: only these are deleted. NULL: whatever is there.
        ID BigInt;
        VERSION BigInt;
    }
    /// Changes attributes of directories and objects; NULL leaves one as it is.
    set_attributes -> "code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn" {
        ID BigInt;
        OWNER Int;
        GRP Int;
        MODE Int;
        USER_METADATA Jsonb;
        EXPLICIT Boolean;
    } then {
        /// What it is a part of, if that takes more: `put`, of the key of a directory that is there, takes what making it
        /// takes; `tags` takes r on the entry. NULL, or a NULL array: nothing.
        PART_OF Text;
    }
}

/// `$1, $2, …` for a number of parameters.
const fn parameters(count: usize) -> &'static str {
    const ALL: &str = "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, \
                       $24, $25, $26, $27, $28, $29, $30";
    // Four bytes for each of the first nine, five for each later one, without the last comma and space.
    let (short, long) = if count < 9 { (count, 0) } else { (9, count - 9) };
    ALL.split_at(short * 4 + long * 5 - 2).0
}

/// Constant strings, one after the other, as a constant string.
#[macro_export]
macro_rules! joined {
    ($($part:expr),+ $(,)?) => {{
        const PARTS: &[&str] = &[$($part),+];
        const BYTES: [u8; $crate::verbs::joined_length(PARTS)] = $crate::verbs::joined_bytes(PARTS);
        match ::core::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => unreachable!(),
        }
    }};
}

#[doc(hidden)]
pub const fn joined_length(parts: &[&str]) -> usize {
    let (mut length, mut at) = (0, 0);
    while at < parts.len() {
        length += parts[at].len();
        at += 1;
    }
    length
}

#[doc(hidden)]
pub const fn joined_bytes<const N: usize>(parts: &[&str]) -> [u8; N] {
    let (mut bytes, mut length, mut at) = ([0; N], 0, 0);
    while at < parts.len() {
        let mut from = 0;
        while from < parts[at].len() {
            bytes[length] = parts[at].as_bytes()[from];
            length += 1;
            from += 1;
        }
        at += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_a_parameter_for_each_argument() {
        assert_eq!(delete_object::CALL, "mantle.delete_object($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)");
        let calls = [mkdir::CALL, rmdir::CALL, put_object::CALL, delete_object::CALL, set_attributes::CALL];
        for (verb, call) in VERBS.iter().zip(calls) {
            let last = format!("${})", verb.arguments.len());
            assert!(call.ends_with(&last) && call.matches('$').count() == verb.arguments.len(), "{call}");
        }
    }

    /// SQL gives these a default, and only the last arguments may have one.
    #[test]
    fn what_may_be_missing_is_last() {
        for verb in VERBS {
            let last: Vec<&str> = verb.arguments[verb.lease.place()..].iter().map(|(name, _)| *name).collect();
            let later: &[&str] = match verb.name {
                "put_object" => &["INLINE"],
                "set_attributes" => &["PART_OF"],
                _ => &[],
            };
            assert_eq!(last, [&["LEASE", "CALLER", "PARENT"], later].concat(), "{}", verb.name);
        }
    }
}
