//! The core stays pure: `index/` imports plain types and a short list of modules and crates, and `lookup/` in addition
//! `index/` and what a cache shared by threads needs. The tests read the source files and follow every path in them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What a directory of sources may import.
struct Layer {
    directory: &'static str,
    /// Modules of this crate.
    modules: &'static [&'static str],
    /// Dependencies in `Cargo.toml`.
    crates: &'static [&'static str],
    /// Modules of the standard library: no clock, no threads, no files.
    std: &'static [&'static str],
}

const INDEX: Layer = Layer {
    directory: "index",
    modules: &["index", "failpoints", "prefetch"],
    crates: &["mantle_types", "crc32fast", "foldhash", "memchr", "memmap2", "postcard", "rand", "serde"],
    std: &["array", "cmp", "collections", "fmt", "hash", "io", "iter", "mem", "ops", "slice", "str", "sync"],
};

const LOOKUP: Layer = Layer {
    directory: "lookup",
    modules: &["lookup", "index", "failpoints", "prefetch"],
    crates: &["mantle_types", "hashbrown", "parking_lot", "schemars", "serde", "smallvec", "tokio", "zerocopy"],
    std: INDEX.std,
};

/// Asked at run time: clones share a target folder, and with it a program that another clone has built.
fn manifest() -> PathBuf {
    PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap())
}

/// The dependencies of `Cargo.toml`, as they are written in paths.
fn dependencies() -> Vec<String> {
    let text = fs::read_to_string(manifest().join("Cargo.toml")).unwrap();
    let mut is_list = false;
    let mut names = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            is_list = line.ends_with("dependencies]");
        } else if let Some((name, _)) = line.split_once(['.', ' ', '=']).filter(|_| is_list) {
            names.push(name.replace('-', "_"));
        }
    }
    names
}

/// The source files below a directory, without tests.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files = Vec::new();
    for path in entries.filter(|path| !path.ends_with("tests")) {
        if path.is_dir() {
            files.extend(sources(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// Every path in a source text, `use` groups expanded: `a::{b, c::d}` gives `[a, b]` and `[a, c, d]`. Comments and the unit
/// tests at the end are left out.
fn paths(text: &str) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut rest) = (Vec::new(), code.as_str());
    // The paths that enclose the current position by their groups, and the path being read.
    let (mut groups, mut path): (Vec<Vec<String>>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(length);
        rest = after;
        if token == "as" && !groups.is_empty() {
            rest = rest.trim_start().trim_start_matches(is_word);
            continue;
        }
        if is_word(first) {
            path.push(token.to_owned());
            match rest.strip_prefix("::") {
                Some(after) if after.starts_with('{') => {
                    groups.push([groups.last().cloned().unwrap_or_default(), std::mem::take(&mut path)].concat());
                    rest = &after[1..];
                }
                Some(after) => rest = after,
                None => {
                    let path = std::mem::take(&mut path);
                    if path.len() > 1 || !groups.is_empty() {
                        found.push([groups.last().cloned().unwrap_or_default(), path].concat());
                    }
                }
            }
            continue;
        }
        if !path.is_empty() {
            found.push(std::mem::take(&mut path));
        }
        if first == '}' {
            groups.pop();
        }
    }
    found
}

/// The imports of a layer that its lists do not have.
fn violations(layer: &Layer) -> Vec<String> {
    let dependencies = dependencies();
    let source = manifest().join("src");
    let mut violations = Vec::new();
    for file in sources(&source.join(layer.directory)) {
        let module: Vec<String> = file
            .strip_prefix(&source)
            .unwrap()
            .with_extension("")
            .iter()
            .map(|name| name.to_string_lossy().into())
            .collect();
        let is_root = module.last().is_some_and(|name| name == "mod");
        for path in paths(&fs::read_to_string(&file).unwrap()) {
            let supers = path.iter().take_while(|name| *name == "super").count();
            let allowed = match path[0].as_str() {
                "crate" => layer.modules.contains(&path[1].as_str()),
                // The directory itself is one level; a file in it another.
                "super" => supers + usize::from(is_root) < module.len(),
                "std" | "core" | "alloc" => layer.std.contains(&path[1].as_str()),
                name => layer.crates.contains(&name) || !dependencies.iter().any(|dependency| dependency == name),
            };
            if !allowed {
                let file = file.strip_prefix(manifest()).unwrap().display();
                violations.push(format!(
                    "{file} imports {}, which is not on the list of {}/",
                    path.join("::"),
                    layer.directory
                ));
            }
        }
    }
    violations
}

#[test]
fn the_core_imports_plain_types_only() {
    let violations = violations(&INDEX);
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn the_cache_imports_the_core_and_nothing_above() {
    let violations = violations(&LOOKUP);
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn paths_are_found_in_groups_and_in_expressions() {
    let text = "use std::{fs, io::{Read as _, Write}}; // use a::b;\nfn f() { crate::node::start(super::super::x::Y { a: 1 }) }";
    let found: Vec<String> = paths(text).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["std::fs", "std::io::Read", "std::io::Write", "crate::node::start", "super::super::x::Y"]);
}
