//! Compares listings with a brute-force model: all keys, filtered, rolled up, cut into pages.

use std::collections::BTreeSet;

use futures::executor::block_on;
use mantle_types::{EntryId, Permission, Result};
use proptest::prelude::*;

use super::{After, Item, Page, Query, Source, list, roll_up};
use crate::store::Entry;

/// All keys; those with a trailing slash are explicit directories.
#[derive(Debug)]
struct Tree(BTreeSet<String>);

fn entry(name: &str) -> Entry {
    Entry {
        name: name.to_owned(),
        id: EntryId(0),
        permission: Permission { owner: 0, group: 0, mode: 0 },
        version: 0,
        explicit: name.ends_with('/'),
        size: 0,
        synthetic: false,
        etag: None,
        content_type: None,
        metadata: None,
        locator: None,
        created: None,
        modified: None,
        is_closed: false,
        inline: None,
    }
}

impl Source for Tree {
    async fn children(&self, directory: &str, after: Option<&str>, prefix: &str, limit: usize) -> Result<Vec<Entry>> {
        let below = self.0.iter().filter_map(|key| key.strip_prefix(directory)).filter(|rest| !rest.is_empty());
        let names: BTreeSet<&str> = below.map(|rest| &rest[..rest.find('/').map_or(rest.len(), |at| at + 1)]).collect();
        let wanted =
            names.into_iter().filter(|name| name.starts_with(prefix) && after.is_none_or(|after| *name > after));
        Ok(wanted.take(limit).map(entry).collect())
    }

    async fn marker(&self, directory: &str) -> Result<Option<Entry>> {
        Ok(self.0.get(directory).map(|key| entry(key)))
    }

    async fn tree(&self, after: Option<&str>, prefix: &str, limit: usize) -> Result<Vec<Entry>> {
        let wanted = self.0.iter().filter(|k| k.starts_with(prefix) && after.is_none_or(|after| k.as_str() > after));
        Ok(wanted.take(limit).map(|key| entry(key)).collect())
    }
}

/// The expected keys and common prefixes.
fn model(tree: &Tree, query: &Query<'_>) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for key in tree.0.iter().filter(|key| key.starts_with(query.prefix) && query.after.passes(key)) {
        let item = roll_up(key, query.prefix, query.delimiter).unwrap_or(key);
        if items.last().is_none_or(|last| last != item) {
            items.push(item.to_owned());
        }
    }
    items
}

fn shown(page: &Page) -> Vec<String> {
    let text = |item: &Item| match item {
        Item::Key(key, _) => key.clone(),
        Item::Prefix(common) => common.clone(),
    };
    page.items.iter().map(text).collect()
}

fn keys() -> impl Strategy<Value = Tree> {
    // A small alphabet around `/` (0x2f): keys share prefixes and sort on both sides of the slash.
    let component = prop::sample::select(vec!["a", "b", "a-", "a0", "ab", "b.", "é"]);
    let key = (prop::collection::vec(component, 1..4), any::<bool>());
    prop::collection::vec(key, 0..24).prop_map(|keys| {
        let mut tree = BTreeSet::new();
        for (components, directory) in keys {
            let key = components.join("/") + if directory { "/" } else { "" };
            // A name is either an object or a directory.
            let parents = (1..components.len()).map(|n| components[..n].join("/"));
            let clash = parents.into_iter().any(|parent| tree.contains(&parent))
                || (directory && tree.contains(&components.join("/")))
                || (!directory && tree.iter().any(|k: &String| k.starts_with(&format!("{key}/"))));
            if !clash {
                tree.insert(key);
            }
        }
        Tree(tree)
    })
}

fn text() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a", "a/", "a/b", "a/b/", "b", "a-", "a/a", "é/", "/", "zz", "a/b/a", "ab/a0", "0"])
        .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn pages_together_are_the_models_listing(
        tree in keys(),
        prefix in text(),
        delimiter in prop::sample::select(vec!["", "/", "-", "a", "b/", "/a", "é"]),
        position in text(),
        limit in 1usize..5,
    ) {
        let first = After::client(&position, &prefix, delimiter);
        let expected = model(&tree, &Query { prefix: &prefix, delimiter, after: first.clone(), limit });
        let mut seen = Vec::new();
        let mut after = first;
        loop {
            let page = block_on(list(&tree, &Query { prefix: &prefix, delimiter, after, limit })).unwrap();
            prop_assert!(page.items.len() <= limit);
            seen.extend(shown(&page));
            match page.next {
                Some(next) => after = next,
                None => break,
            }
            prop_assert!(seen.len() <= expected.len(), "pages repeat items: {seen:?}");
        }
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn a_full_last_page_is_not_truncated(tree in keys()) {
        let limit = tree.0.len().max(1);
        let page = block_on(list(&tree, &Query { prefix: "", delimiter: "", after: After::Start, limit })).unwrap();
        prop_assert!(page.next.is_none());
        prop_assert_eq!(shown(&page), tree.0.iter().cloned().collect::<Vec<_>>());
    }
}

#[test]
fn no_items_wanted_is_an_empty_page() {
    let tree = Tree(BTreeSet::from(["a".to_owned()]));
    let page = block_on(list(&tree, &Query { prefix: "", delimiter: "/", after: After::Start, limit: 0 })).unwrap();
    assert!(page.items.is_empty() && page.next.is_none());
}
