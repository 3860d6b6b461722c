//! Listings without a delimiter, or with another than `/`: reads keys in order and skips each common prefix.

use mantle_types::Result;

use super::{After, Item, LAST, Page, Query, Source, roll_up};

pub(super) async fn list(source: &impl Source, query: &Query<'_>) -> Result<Page> {
    let mut items: Vec<Item> = Vec::new();
    let mut after = match &query.after {
        After::Start => None,
        After::Key(key) => Some(key.clone()),
        After::Prefix(common) => Some(format!("{common}{LAST}")),
    };
    while items.len() <= query.limit {
        let wanted = query.limit + 1 - items.len();
        let entries = source.tree(after.as_deref(), query.prefix, wanted).await?;
        let resume = entries.last().filter(|_| entries.len() == wanted).map(|entry| entry.name.clone());
        for entry in entries {
            let passed = match items.last() {
                Some(Item::Prefix(common)) => entry.name.starts_with(common.as_str()),
                _ => false,
            };
            if passed || !query.after.passes(&entry.name) {
                continue;
            }
            items.push(match roll_up(&entry.name, query.prefix, query.delimiter) {
                Some(common) => Item::Prefix(common.to_owned()),
                None => Item::Key(entry.name.clone(), Box::new(entry)),
            });
        }
        let Some(resume) = resume else { break };
        after = match items.last() {
            Some(Item::Prefix(common)) if resume.starts_with(common.as_str()) => Some(format!("{common}{LAST}")),
            _ => Some(resume),
        };
    }
    Ok(Page::cut(items, query.limit))
}
