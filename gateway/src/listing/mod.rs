//! S3's listing rules: byte order, any prefix, any delimiter, pages. Pure logic over a [`Source`] of entries, so that a
//! test can compare it with a model without a database.
//!
//! The rules come from the documentation of ListObjectsV2. A page has keys and common prefixes in one order. All keys
//! that roll up into one common prefix count as one item. With delimiter `/` the common prefixes are the
//! subdirectories, so a page reads one directory, and its cost does not depend on the tree below. With another
//! delimiter, or none, the tree is read in key order, and each common prefix is skipped.

mod children;
#[cfg(test)]
mod model;
mod token;
mod tree;

use mantle_types::Result;

pub use token::{decode_token, encode_token};

use crate::store::Entry;

/// The last code point. Appended to a text, it sorts after every key that begins with the text.
pub const LAST: char = '\u{10FFFF}';

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum After {
    #[default]
    Start,
    /// After a key, which need not exist.
    Key(String),
    /// After everything that begins with a common prefix.
    Prefix(String),
}

impl After {
    /// The position that a client names (`start-after`, `marker`), for example a common prefix that ended a page.
    pub fn client(position: &str, prefix: &str, delimiter: &str) -> Self {
        // No key has NUL, so the keys after this position are those after the part before its NUL.
        let (position, is_cut) = position.split_once('\0').map_or((position, false), |(before, _)| (before, true));
        match roll_up(position, prefix, delimiter) {
            _ if position.is_empty() => Self::Start,
            Some(common) if common == position && !is_cut => Self::Prefix(position.to_owned()),
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

#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// Keys begin with this.
    pub prefix: &'a str,
    /// Keys with this text after the prefix are rolled up; empty for none.
    pub delimiter: &'a str,
    pub after: After,
    pub limit: usize,
}

#[derive(Clone, Debug)]
pub enum Item {
    Key(String, Box<Entry>),
    Prefix(String),
}

impl Item {
    /// The key, or the common prefix.
    pub fn key(&self) -> &str {
        match self {
            Self::Key(key, _) | Self::Prefix(key) => key,
        }
    }

    /// Where the next page begins if this is a page's last item.
    pub fn position(&self) -> After {
        match self {
            Self::Key(key, _) => After::Key(key.clone()),
            Self::Prefix(common) => After::Prefix(common.clone()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub items: Vec<Item>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<After>,
}

impl Page {
    /// Makes a page of items that were read up to one beyond the limit.
    fn cut(mut items: Vec<Item>, limit: usize) -> Self {
        let truncated = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| truncated).map(Item::position);
        Self { items, next }
    }
}

/// Reads entries in key order. Keys are complete, from the namespace's root.
pub trait Source {
    /// Children of the directory with the key `directory` (empty, or with a trailing slash): names that follow `after`
    /// and begin with `prefix`. Empty if the directory does not exist.
    fn children(
        &self,
        directory: &str,
        after: Option<&str>,
        prefix: &str,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Entry>>> + Send;

    /// The directory itself, if it is explicit and so a key.
    fn marker(&self, directory: &str) -> impl Future<Output = Result<Option<Entry>>> + Send;

    /// Objects and explicit directories whose keys follow `after` and begin with `prefix`; their names are complete keys.
    /// Fewer than `limit`, which is not 0: no more follow.
    fn tree(&self, after: Option<&str>, prefix: &str, limit: usize) -> impl Future<Output = Result<Vec<Entry>>> + Send;
}

pub async fn list(source: &impl Source, query: &Query<'_>) -> Result<Page> {
    match query.delimiter {
        _ if query.limit == 0 => Ok(Page::default()),
        "/" => children::list(source, query).await,
        _ => tree::list(source, query).await,
    }
}

/// The common prefix that a key rolls up into.
fn roll_up<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    let at = key.strip_prefix(prefix)?.find(delimiter).filter(|_| !delimiter.is_empty())?;
    Some(&key[..prefix.len() + at + delimiter.len()])
}

/// Splits a prefix after its last slash into the directory's key and the beginning of the names in it.
pub fn split_prefix(prefix: &str) -> (&str, &str) {
    prefix.split_at(prefix.rfind('/').map_or(0, |at| at + 1))
}
