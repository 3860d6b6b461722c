//! Pages under `docs/` that are generated from code. Tests call this, so that a page cannot differ from its code.
//!
//! With `MANTLE_BLESS=1` in the environment the page is written instead of compared.

use std::path::PathBuf;

/// Compares a whole page with `text`. Panics where they differ.
pub fn assert_page(page: &str, text: &str) {
    assert_text(page, |_| text.to_owned());
}

/// Compares one section of a page with `text`: what stands between `<!-- NAME -->` and `<!-- end of NAME -->`.
pub fn assert_section(page: &str, name: &str, text: &str) {
    assert_text(page, |old| {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
        let from = old.find(&begin).unwrap_or_else(|| panic!("docs/{page} has no section {name}")) + begin.len();
        let to = from + old[from..].find(&end).unwrap_or_else(|| panic!("docs/{page}: section {name} has no end"));
        format!("{}{text}{}", &old[..from], &old[to..])
    });
}

fn assert_text(page: &str, expected: impl FnOnce(&str) -> String) {
    // Read when the test runs: the crate may have been compiled for another clone that shares the target folder.
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let docs = manifest.ancestors().map(|folder| folder.join("docs")).find(|docs| docs.is_dir());
    let path = docs.unwrap_or_else(|| panic!("no docs/ above {}", manifest.display())).join(page);
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let new = expected(&old);
    if std::env::var_os("MANTLE_BLESS").is_some() {
        std::fs::write(&path, new).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    } else {
        assert!(old == new, "docs/{page} is not what the code says: run the test with MANTLE_BLESS=1 to renew it");
    }
}
