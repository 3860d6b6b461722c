//! Renders `sql/` into the one block of SQL that [`sql`](src/sql.rs) installs after everything that Rust declares.
//!
//! The order of the files: by [`ORDER`], and by name within a directory. A placeholder in braces becomes what a table of
//! `mantle_types` says: `{not_empty}` the SQLSTATE of an error, `{KEY_BYTES_MAX}` a limit, `{mkdir.parameters}` a list of a batch
//! verb's arguments (see [`list`]). A placeholder that no table has, and an SQLSTATE written out, fail the build: so no number, no
//! code and no order of arguments has a second home.
//!
//! `verbs/distributed.sql` is rendered once for each of [`DISTRIBUTED`]: `{verb}` is the verb's name, `{verb.parameters}` a list.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use mantle_types::{
    error::ERROR_TABLE,
    limits::LIMITS,
    verbs::{VERBS, Verb},
};

/// Files and directories of `sql/`, each of which may use what those before it made.
const ORDER: [&str; 10] =
    ["roles.sql", "tables", "steps", "verbs", "reads", "import", "analysts", "monitor", "admin", "native.sql"];

/// The batch verbs that change one directory an element, so that Citus can send each directory's elements to its node.
const DISTRIBUTED: [&str; 4] = ["mkdir", "put_object", "delete_object", "set_attributes"];

fn main() -> io::Result<()> {
    let directory = |variable| PathBuf::from(env::var_os(variable).expect("cargo sets it"));
    let home = directory("CARGO_MANIFEST_DIR").join("../sql");
    println!("cargo::rerun-if-changed={}", home.display());
    let mut installed = String::new();
    for part in ORDER {
        for path in files(&home.join(part))? {
            let name = path.strip_prefix(&home).unwrap_or(&path).display().to_string();
            let text = fs::read_to_string(&path)?;
            let verbs: &[&str] = if name == "verbs/distributed.sql" { &DISTRIBUTED } else { &[""] };
            for verb in verbs {
                installed += &format!("-- sql/{name}\n");
                for (at, line) in text.lines().enumerate() {
                    let line = if verb.is_empty() { line.to_owned() } else { of_verb(line, verb) };
                    installed += &render(&name, at + 1, &line);
                    installed.push('\n');
                }
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

/// A line of a file that is rendered once for each verb.
fn of_verb(line: &str, verb: &str) -> String {
    line.replace("{verb}", verb).replace("{verb.", &format!("{{{verb}."))
}

fn is_placeholder(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

fn value(word: &str) -> Option<String> {
    if let Some((verb, wanted)) = word.split_once('.') {
        return list(VERBS.iter().find(|known| known.name == verb)?, wanted);
    }
    let error = ERROR_TABLE.iter().find(|row| row.name == word).map(|row| row.sqlstate.to_owned());
    error.or_else(|| LIMITS.iter().find(|(name, _)| *name == word).map(|(_, limit)| limit.to_string()))
}

/// A list of a verb's arguments, in order.
fn list(verb: &Verb, wanted: &str) -> Option<String> {
    let of_each = |text: &dyn Fn(&str, &str) -> String| -> String {
        let texts = verb.arguments.iter().map(|(name, of)| text(&name.to_lowercase(), of.name()));
        texts.collect::<Vec<_>>().join(", ")
    };
    Some(match wanted {
        // Of the function, and of one that takes a single element.
        "parameters" => of_each(&|name, of| format!("p_{name} {of}[]")),
        "parameters_of_one" => of_each(&|name, of| format!("p_{name} {of}")),
        "answer" => verb.answer.to_owned(),
        "answer_names" => {
            let names = verb.answer.split(", ").filter_map(|column| column.split_whitespace().next());
            names.collect::<Vec<_>>().join(", ")
        }
        // The arrays; a row of them by `unnest`; and of a row that has a name of one letter.
        "arrays" => of_each(&|name, _| format!("p_{name}")),
        "columns" => of_each(&|name, _| name.to_owned()),
        "columns_of_e" => of_each(&|name, _| format!("e.{name}")),
        "columns_of_g" => of_each(&|name, _| format!("g.{name}")),
        "aggregates_of_u" => of_each(&|name, _| format!("array_agg(u.{name} ORDER BY u.n) AS {name}")),
        // Lengths of the arrays; that of leases may be none.
        "lengths" => of_each(&|name, _| match name {
            "lease" => "coalesce(cardinality(p_lease), cardinality(p_name))".to_owned(),
            _ => format!("cardinality(p_{name})"),
        }),
        // Parameters of a statement, after two others.
        "from_third" => (3..).take(verb.arguments.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", "),
        _ => return None,
    })
}
