//! Renders `sql/` into the one block of SQL that [`sql`](src/sql.rs) installs after everything that Rust declares.
//!
//! The order of the files: by [`ORDER`], and by name within a directory. A placeholder in braces becomes what a table of
//! `mantle_types` says: `{not_empty}` the SQLSTATE of an error, `{KEY_BYTES_MAX}` a limit. A placeholder that no table has, and
//! an SQLSTATE written out, fail the build: so no number and no code has a second home.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use mantle_types::{error::ERROR_TABLE, limits::LIMITS};

/// Files and directories of `sql/`, each of which may use what those before it made.
const ORDER: [&str; 10] =
    ["roles.sql", "tables", "steps", "verbs", "reads", "import", "analysts", "monitor", "admin", "native.sql"];

fn main() -> io::Result<()> {
    let directory = |variable| PathBuf::from(env::var_os(variable).expect("cargo sets it"));
    let home = directory("CARGO_MANIFEST_DIR").join("../sql");
    println!("cargo::rerun-if-changed={}", home.display());
    let mut installed = String::new();
    for part in ORDER {
        for path in files(&home.join(part))? {
            let name = path.strip_prefix(&home).unwrap_or(&path).display().to_string();
            installed += &format!("-- sql/{name}\n");
            for (at, line) in fs::read_to_string(&path)?.lines().enumerate() {
                installed += &render(&name, at + 1, line);
                installed.push('\n');
            }
        }
    }
    let block = format!("pgrx::extension_sql!(r##\"\n{installed}\"##, name = \"sql\", finalize);\n");
    fs::write(directory("OUT_DIR").join("sql.rs"), block)
}

/// A file, or the SQL files of a directory by name.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    Ok(files)
}

fn render(file: &str, number: usize, line: &str) -> String {
    if let Some(code) = ERROR_TABLE.iter().find(|row| line.contains(row.sqlstate)) {
        panic!("sql/{file}:{number}: write `{{{}}}` instead of {}", code.name, code.sqlstate);
    }
    let mut rendered = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('{') {
        rendered += before;
        // An array's braces hold no bare word.
        match after.split_once('}').filter(|(word, _)| is_placeholder(word)) {
            Some((word, after)) => {
                rendered += &value(word).unwrap_or_else(|| panic!("sql/{file}:{number}: no table has `{{{word}}}`"));
                rest = after;
            }
            None => {
                rendered.push('{');
                rest = after;
            }
        }
    }
    rendered + rest
}

fn is_placeholder(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn value(word: &str) -> Option<String> {
    let error = ERROR_TABLE.iter().find(|row| row.name == word).map(|row| row.sqlstate.to_owned());
    error.or_else(|| LIMITS.iter().find(|(name, _)| *name == word).map(|(_, limit)| limit.to_string()))
}
