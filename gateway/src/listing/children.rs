//! Listings with delimiter `/`. The common prefixes are a directory's subdirectories, so a page is one read of its
//! children.

use mantle_types::Result;

use super::{After, Item, Page, Query, Source, split_prefix};

/// Where a page begins among the children.
struct Start {
    /// Children after this name.
    after: Option<String>,
    /// The directory's own key comes first.
    marker: bool,
    /// The key of a subdirectory that contains the position, and the position. Its common prefix comes first if a key
    /// follows.
    inside: Option<(String, String)>,
}

/// `None` when the position is after all children.
fn start(after: &After, directory: &str, name_prefix: &str) -> Option<Start> {
    let from_the_top = Start { after: None, marker: name_prefix.is_empty() && !directory.is_empty(), inside: None };
    let position = match after {
        After::Start => return Some(from_the_top),
        After::Key(position) | After::Prefix(position) => position,
    };
    let Some(rest) = position.strip_prefix(directory) else {
        // This listing cannot give a common prefix that contains the directory. All its keys are passed.
        let passed =
            position.as_str() > directory || matches!(after, After::Prefix(p) if directory.starts_with(p.as_str()));
        return (!passed).then_some(from_the_top);
    };
    if rest.is_empty() {
        let passed = matches!(after, After::Prefix(_)) && !directory.is_empty();
        return (!passed).then_some(Start { marker: false, ..from_the_top });
    }
    let Some(at) = rest.find('/') else {
        return Some(Start { after: Some(rest.to_owned()), marker: false, inside: None });
    };
    let child = &rest[..=at];
    let whole_child = matches!(after, After::Prefix(_)) && child.len() == rest.len();
    let inside =
        (!whole_child && child.starts_with(name_prefix)).then(|| (format!("{directory}{child}"), position.clone()));
    Some(Start { after: Some(child.to_owned()), marker: false, inside })
}

/// Whether a key that begins with `common` follows the position.
async fn holds_more(source: &impl Source, common: &str, position: &str) -> Result<bool> {
    Ok(!source.tree(Some(position), common, 1).await?.is_empty())
}

pub(super) async fn list(source: &impl Source, query: &Query<'_>) -> Result<Page> {
    let (directory, name_prefix) = split_prefix(query.prefix);
    let Some(start) = start(&query.after, directory, name_prefix) else { return Ok(Page::default()) };
    let mut items = Vec::new();
    if let Some((common, position)) = &start.inside
        && holds_more(source, common, position).await?
    {
        items.push(Item::Prefix(common.clone()));
    }
    let marker = async { if start.marker { source.marker(directory).await } else { Ok(None) } };
    let wanted = query.limit + 1;
    let children = source.children(directory, start.after.as_deref(), name_prefix, wanted);
    let (marker, children) = futures::try_join!(marker, children)?;
    if let Some(entry) = marker {
        items.push(Item::Key(directory.to_owned(), Box::new(entry)));
    }
    items.reserve(children.len());
    for entry in children {
        let key = [directory, &entry.name].concat();
        // The slash of a directory is the first after the prefix.
        items.push(if entry.is_directory() { Item::Prefix(key) } else { Item::Key(key, Box::new(entry)) });
    }
    Ok(Page::cut(items, query.limit))
}
