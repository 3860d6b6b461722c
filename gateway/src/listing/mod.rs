//! Listing keys as S3 does: exact byte order, any prefix, any delimiter, pages. Pure logic over a [`Source`] of entries, so
//! that it is tested against a model without a database.
//!
//! Source of the rules: S3's ListObjectsV2 documentation. A page holds keys and common prefixes in one order; every
//! key that rolls up into one common prefix counts as one item. With delimiter `/` the common prefixes are the
//! subdirectories, so a page reads one directory and its cost does not depend on what is below. With another delimiter the
//! tree is read in key order, and jumped over from the end of each common prefix.

mod children;
#[cfg(test)]
mod model;
mod token;
mod tree;

use mantle_types::Result;

pub use token::{decode_token, encode_token};

use crate::store::Entry;

/// Sorts after every key that begins with what it follows: it is the last code point.
pub const LAST: char = '\u{10FFFF}';

/// Where a page begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum After {
    /// At the first key.
    #[default]
    Start,
    /// Behind a key, which need not exist.
    Key(String),
    /// Behind everything that begins with a common prefix.
    Prefix(String),
}

impl After {
    /// The position that a client names (`start-after`, `marker`). A common prefix that an earlier page ended with is one.
    pub fn client(position: &str, prefix: &str, delimiter: &str) -> Self {
        // No key has NUL: those behind one that has are those behind what is before its NUL.
        let (position, is_cut) = position.split_once('\0').map_or((position, false), |(before, _)| (before, true));
        if position.is_empty() {
            return Self::Start;
        }
        if is_cut {
            return Self::Key(position.to_owned());
        }
        match roll_up(position, prefix, delimiter) {
            Some(common) if common.len() == position.len() => Self::Prefix(position.to_owned()),
            _ => Self::Key(position.to_owned()),
        }
    }

    fn passes(&self, key: &str) -> bool {
        match self {
            Self::Start => true,
            Self::Key(after) => key > after.as_str(),
            Self::Prefix(common) => key > common.as_str() && !key.starts_with(common.as_str()),
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// Keys begin with this.
    pub prefix: &'a str,
    /// Keys that hold this behind the prefix are rolled up; empty for none.
    pub delimiter: &'a str,
    /// Where the page begins.
    pub after: After,
    /// Most items.
    pub limit: usize,
}

/// One item of a page.
#[derive(Clone, Debug)]
pub enum Item {
    /// A key and what is there.
    Key(String, Box<Entry>),
    /// A common prefix.
    Prefix(String),
}

impl Item {
    /// Where the next page begins if this item is the last of one.
    pub fn position(&self) -> After {
        match self {
            Self::Key(key, _) => After::Key(key.clone()),
            Self::Prefix(common) => After::Prefix(common.clone()),
        }
    }
}

/// A page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// In key order.
    pub items: Vec<Item>,
    /// Where the next page begins, if there is one.
    pub next: Option<After>,
}

impl Page {
    /// Cuts items that were read up to one beyond the limit.
    fn cut(mut items: Vec<Item>, limit: usize) -> Self {
        let truncated = items.len() > limit;
        items.truncate(limit);
        let next = if truncated { items.last().map(Item::position) } else { None };
        Self { items, next }
    }
}

/// Entries in key order. Keys are whole, from the namespace's root.
pub trait Source {
    /// Children of the directory whose key is `directory` (empty, or ending in a slash): names behind `after`, beginning with
    /// `prefix`. Nothing when there is no such directory.
    fn children(
        &self,
        directory: &str,
        after: Option<&str>,
        prefix: &str,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Entry>>> + Send;

    /// The directory itself, when it was made explicitly and so is a key.
    fn marker(&self, directory: &str) -> impl Future<Output = Result<Option<Entry>>> + Send;

    /// Objects and explicit directories whose keys begin with `prefix`, behind `after`.
    fn tree(&self, after: Option<&str>, prefix: &str, limit: usize) -> impl Future<Output = Result<Run>> + Send;
}

/// A run of keys, in order. It may be short, even empty, and not the last.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Names are whole keys.
    pub entries: Vec<Entry>,
    /// Behind which key to go on; `None` when nothing follows.
    pub resume: Option<String>,
}

/// One page of a listing.
pub async fn list(source: &impl Source, query: &Query<'_>) -> Result<Page> {
    if query.limit == 0 {
        return Ok(Page::default());
    }
    match query.delimiter {
        "/" => children::list(source, query).await,
        _ => tree::list(source, query).await,
    }
}

/// The common prefix that a key is rolled up into, if any.
fn roll_up<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    if delimiter.is_empty() {
        return None;
    }
    let rest = key.strip_prefix(prefix)?;
    let at = rest.find(delimiter)?;
    Some(&key[..prefix.len() + at + delimiter.len()])
}

/// Cuts a prefix behind its last slash: the directory's key, and the beginning of the names in it.
pub fn split_prefix(prefix: &str) -> (&str, &str) {
    prefix.split_at(prefix.rfind('/').map_or(0, |at| at + 1))
}
