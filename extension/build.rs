//! Renders `sql/` into the one block of SQL that [`sql`](src/sql.rs) installs after everything that Rust declares, and the
//! list of an entry's columns for Rust.
//!
//! The files are ordered by [`ORDER`], and by name within a directory. A placeholder in braces is replaced by a value
//! from a table: `{not_empty}` by the SQLSTATE of an error, `{KEY_BYTES_MAX}` by a limit, `{mkdir.parameters}` by a
//! list of a batch verb's arguments (see [`list`]). An unknown placeholder, or an SQLSTATE that is written out, fails
//! the build. So each number, code and order of arguments is defined in one place.
//!
//! `verbs/distributed.sql` is rendered once for each of [`DISTRIBUTED`]: `{verb}` is the verb's name,
//! `{verb.parameters}` a list.
//!
//! Lines of `--- ` before a CREATE, or before a column in it, are the object's comment. A function's may begin with the
//! roles that may call it, without their `mantle_`: `--- gateway, index: Answers …`. Without roles, only its owner may
//! call it. The doc comment of a `pg_extern` is the function's comment in the database too;
//! its roles are in `sql/native.sql`.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use mantle_types::{error::ERROR_TABLE, limits::LIMITS, verbs::VERBS};

/// Files and directories of `sql/`, each of which may use what those before it made.
const ORDER: [&str; 11] = [
    "encoding.sql",
    "roles.sql",
    "tables",
    "steps",
    "verbs",
    "reads",
    "import",
    "analysts",
    "monitor",
    "admin",
    "native.sql",
];

/// The batch verbs whose elements each are a change on one node, so that Citus can send each directory's elements to its node.
const DISTRIBUTED: [&str; 3] = ["mkdir", "put_object", "delete_object"];

/// Text that several files share, by placeholder. The first four say how a function runs, with names looked up in no
/// schema that a caller can write to: of the owner's rights; the same for a change, which gives up before its commit when
/// somebody holds a lock for long (P18); of the caller's; and a change's part on another node. A file that wants another
/// `lock_timeout` says so after them. The fifth adds to the counts of an attribute or delta record. The last three are said of a
/// locator: its bytes are in a volume ([`mantle_types::segment`]), inside PostgreSQL ([`mantle_types::inline`]), or a manifest's.
const SHARED: [(&str, &str); 8] = [
    ("as_owner", "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"),
    ("as_change", "SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'"),
    ("as_caller", "SET search_path = pg_catalog, pg_temp"),
    (
        "delegated",
        "SET search_path = pg_catalog, pg_temp SET citus.allow_nested_distributed_execution = on SET lock_timeout = '2s'",
    ),
    (
        "or_add",
        "ON CONFLICT (pid, name, ts) DO UPDATE SET entries = m.entries + excluded.entries, \
            subdirectories = m.subdirectories + excluded.subdirectories, bytes = m.bytes + excluded.bytes, \
            modified = greatest(m.modified, excluded.modified)",
    ),
    ("in_volume", "^@ 'v1:'"),
    ("is_inline", "^@ 'inline:'"),
    ("is_manifest", "^@ 'manifest:'"),
];

/// Lists like those of the batch verbs: what reads answer of an entry, what an index signs, the arguments of renames.
const LISTS: [(&str, &str); 4] = [
    (
        "entry",
        "id bigint, owner int, grp int, mode int, version bigint, explicit boolean, size bigint, synthetic boolean, etag text, \
            content_type text, user_metadata jsonb, locator text, created timestamptz, modified timestamptz",
    ),
    (
        "prepared",
        "index_group int, epoch bigint, attempt bigint, principal int, ns bigint, request uuid, src_pid bigint, src_name text, \
            src_id bigint, dst_pid bigint, dst_name text, victim_id bigint",
    ),
    (
        "rename_object",
        "principal int, ns bigint, src_pid bigint, src_name text, dst_pid bigint, dst_name text, overwrite boolean, request uuid, \
            hash bigint, lease text, caller text, src_parent text, dst_parent text",
    ),
    (
        "rename_directory",
        "principal int, ns bigint, src_pid bigint, src_name text, src_id bigint, dst_pid bigint, dst_name text, victim_id bigint, \
            index_group int, epoch bigint, attempt bigint, request uuid, hash bigint, lease text, caller text",
    ),
];

const ROLES: [&str; 5] = ["gateway", "importer", "index", "analyst", "monitor"];

fn main() -> io::Result<()> {
    let directory = |variable| PathBuf::from(env::var_os(variable).expect("cargo sets it"));
    let home = directory("CARGO_MANIFEST_DIR").join("../sql");
    println!("cargo::rerun-if-changed={}", home.display());
    println!("cargo::rerun-if-changed=src");
    let mut installed = String::new();
    for part in ORDER {
        for path in files(&home.join(part), "sql")? {
            let name = path.strip_prefix(&home).unwrap_or(&path).display().to_string();
            let text = fs::read_to_string(&path)?;
            let verbs: &[&str] = if name == "verbs/distributed.sql" { &DISTRIBUTED } else { &[""] };
            for verb in verbs {
                let mut rendered = format!("-- sql/{name}\n");
                for (at, line) in text.lines().enumerate() {
                    let line = if verb.is_empty() { line.to_owned() } else { of_verb(line, verb) };
                    rendered += &render(&name, at + 1, &line);
                    rendered.push('\n');
                }
                installed += &with_comments(&name, &rendered);
            }
        }
    }
    installed += &about_functions_in_rust(Path::new("src"))?;
    let block = format!("pgrx::extension_sql!(r##\"\n{installed}\"##, name = \"sql\", finalize);\n");
    fs::write(directory("OUT_DIR").join("sql.rs"), block)?;
    fs::write(directory("OUT_DIR").join("entry.rs"), entry_columns())
}

/// A list, in Rust, of what reads answer of an entry: its name, and the columns of [`LISTS`].
fn entry_columns() -> String {
    let (_, entry) = LISTS[0];
    let names = entry.split(',').map(|column| column.trim().split(' ').next().unwrap_or_default());
    let literals: Vec<String> = ["name"].into_iter().chain(names).map(|name| format!("c\"{name}\"")).collect();
    format!("[{}]", literals.join(", "))
}

/// A file, or the files below a directory with this extension, by name.
fn files(path: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    if path.is_dir() {
        let entries = fs::read_dir(path)?.map(|entry| files(&entry?.path(), extension));
        let mut found = entries.collect::<io::Result<Vec<_>>>()?.concat();
        found.sort();
        return Ok(found);
    }
    Ok(path.extension().filter(|of| *of == extension).map(|_| path.to_owned()).into_iter().collect())
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
        (rest, rendered) = match after.split_once('}').filter(|(word, _)| is_placeholder(word)) {
            Some((word, after)) => {
                let value = value(word).unwrap_or_else(|| panic!("sql/{file}:{number}: no table has `{{{word}}}`"));
                (after, rendered + &value)
            }
            None => (after, rendered + "{"),
        };
    }
    rendered + rest
}

/// A file without its `--- ` lines, then the COMMENTs and GRANTs that they stand for.
fn with_comments(name: &str, file: &str) -> String {
    let (mut text, mut statements) = (String::new(), String::new());
    let (mut table, mut meaning) = (String::new(), Vec::new());
    let mut rest = file;
    while let Some((line, after)) = rest.split_once('\n') {
        if let Some(words) = line.trim_start().strip_prefix("--- ") {
            meaning.push(words);
        } else {
            text += line;
            text.push('\n');
            if line.starts_with("CREATE ") {
                table = line.split(' ').filter(|word| *word != "UNLOGGED").nth(2).unwrap_or_default().to_owned();
            }
            if !meaning.is_empty() && !line.trim_start().starts_with("--") {
                let column = line.strip_prefix("    ").and_then(|line| line.split(' ').next());
                let object = column.map(|column| format!("COLUMN {table}.{column}")).or_else(|| object(rest));
                let text = meaning.join(" ");
                let object = object.unwrap_or_else(|| panic!("sql/{name}: no CREATE or column follows `--- {text}`"));
                statements += &about(&object, &text);
                meaning.clear();
            }
        }
        rest = after;
    }
    assert!(meaning.is_empty(), "sql/{name}: nothing follows `--- {}`", meaning.join(" "));
    text + &statements
}

/// The COMMENT and the GRANTs of an object.
fn about(object: &str, meaning: &str) -> String {
    let (roles, text) = meaning
        .split_once(": ")
        .filter(|(roles, _)| roles.split(", ").all(|role| ROLES.contains(&role)))
        .unwrap_or(("", meaning));
    let granted = roles.split(", ").filter(|role| !role.is_empty());
    granted.fold(comment(object, text), |all, role| all + &format!("GRANT EXECUTE ON {object} TO mantle_{role};\n"))
}

fn comment(object: &str, text: &str) -> String {
    format!("COMMENT ON {object} IS '{}';\n", text.replace('\'', "''"))
}

/// The COMMENTs of functions that Rust declares.
fn about_functions_in_rust(home: &Path) -> io::Result<String> {
    let mut statements = String::new();
    for file in files(home, "rs")? {
        let (mut doc, mut is_declared) = (Vec::new(), false);
        for line in fs::read_to_string(file)?.lines() {
            if let Some(words) = line.strip_prefix("///") {
                doc.push(words.trim().replace(['`', '[', ']'], ""));
            } else if line.starts_with("#[") {
                is_declared |= line.starts_with("#[pg_extern");
            } else {
                if let Some((_, function)) = line.split_once("fn ").filter(|_| is_declared) {
                    let name = function.split(['(', '<']).next().unwrap_or_default();
                    statements += &comment(&format!("FUNCTION mantle.{name}"), &doc.join(" "));
                }
                (doc, is_declared) = (Vec::new(), false);
            }
        }
    }
    Ok(statements)
}

/// Kind and name of what a CREATE statement makes; of a function also the parameters. `None` for other statements, and
/// for parameters with parentheses, which would be cut off.
fn object(statement: &str) -> Option<String> {
    let (kind, created) = statement.strip_prefix("CREATE ")?.trim_start_matches("UNLOGGED ").split_once(' ')?;
    let (name, _) = created.split_once([' ', '('])?;
    Some(match kind {
        "INDEX" => format!("INDEX mantle.{name}"),
        "FUNCTION" => {
            let parameters = &created[name.len() + 1..created.find(')')?];
            if parameters.contains('(') {
                return None;
            }
            let declared =
                parameters.split(',').map(|parameter| parameter.split(" DEFAULT ").next().unwrap_or_default().trim());
            format!("FUNCTION {name}({})", declared.collect::<Vec<_>>().join(", "))
        }
        "TABLE" | "TYPE" | "VIEW" | "SEQUENCE" => format!("{kind} {name}"),
        _ => return None,
    })
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
    if let Some((name, wanted)) = word.split_once('.') {
        if let Some(verb) = VERBS.iter().find(|verb| verb.name == name) {
            let columns = verb.arguments.iter().map(|(name, of)| (name.to_lowercase(), of.name())).collect::<Vec<_>>();
            return match wanted {
                "answer" => Some(verb.answer.to_owned()),
                "answer_names" => list(&declared(verb.answer), "columns"),
                _ => list(&columns, wanted),
            };
        }
        let (_, columns) = LISTS.iter().find(|(known, _)| *known == name)?;
        return list(&declared(columns), wanted);
    }
    let error = ERROR_TABLE.iter().find(|row| row.name == word).map(|row| row.sqlstate.to_owned());
    let limit = || LIMITS.iter().find(|(name, _)| *name == word).map(|(_, limit)| limit.to_string());
    let shared = || SHARED.iter().find(|(name, _)| *name == word).map(|(_, sql)| (*sql).to_owned());
    error.or_else(limit).or_else(shared)
}

/// Names and types of columns that are written as SQL declares them.
fn declared(columns: &str) -> Vec<(String, &str)> {
    let pairs = columns.split(", ").filter_map(|column| column.split_once(' '));
    pairs.map(|(name, of)| (name.to_owned(), of)).collect()
}

/// A list of columns or arguments, in order.
fn list(columns: &[(String, &str)], wanted: &str) -> Option<String> {
    let of_each = |text: &dyn Fn(&str, &str) -> String| {
        let texts = columns.iter().map(|(name, of)| text(name, of)).filter(|text| !text.is_empty());
        Some(texts.collect::<Vec<_>>().join(", "))
    };
    // All elements of a call have one index group.
    let is_scalar = |name: &str| name == "index_group";
    // They are the last.
    let is_optional =
        |name: &str| ["lease", "caller", "parent", "src_parent", "dst_parent", "inline", "part_of"].contains(&name);
    let default = |name: &str| if is_optional(name) { " DEFAULT NULL" } else { "" };
    match wanted {
        // Of the function, and of one that takes a single element; the signatures with defaults.
        "parameters" => of_each(&|name, of| format!("p_{name} {of}{}", if is_scalar(name) { "" } else { "[]" })),
        "parameters_of_one" => of_each(&|name, of| format!("p_{name} {of}")),
        "signature" => {
            of_each(&|name, of| format!("p_{name} {of}{}{}", if is_scalar(name) { "" } else { "[]" }, default(name)))
        }
        "signature_of_one" => of_each(&|name, of| format!("p_{name} {of}{}", default(name))),
        // The parameters; the elements number `i` of them; and their lengths, where an optional array may be NULL.
        "arguments" => of_each(&|name, _| format!("p_{name}")),
        "elements" => of_each(&|name, _| format!("p_{name}{}", if is_scalar(name) { "" } else { "[i]" })),
        "lengths" => of_each(&|name, _| match name {
            _ if is_optional(name) => format!("coalesce(cardinality(p_{name}), cardinality(p_request))"),
            _ if is_scalar(name) => String::new(),
            _ => format!("cardinality(p_{name})"),
        }),
        // With types; a row of the arrays by `unnest`; of a row that has a name.
        "declared" => of_each(&|name, of| format!("{name} {of}")),
        "columns" => of_each(&|name, _| name.to_owned()),
        "aggregates_of_u" => of_each(&|name, _| format!("array_agg(u.{name} ORDER BY u.n) AS {name}")),
        // Parameters of a statement, after two others.
        "from_third" => Some((3..).take(columns.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ")),
        _ => wanted.strip_prefix("columns_of_").and_then(|row| of_each(&|name, _| format!("{row}.{name}"))),
    }
}
